"""Search for the best hit of a gantry: compiled evaluation of one candidate and the search over many.

A candidate is (rise, flight time of the return, aim x, aim y, place, extra, side):

* `rise` is the speed of the z axis at the hit;
* gantry4: `place` is the height in metres on the blade where the ball touches, `extra` the speed of the x axis;
* gantry5: `place` is the hit time in seconds, `extra` the pitch rate;
* `side` is the distance across the blade at which the ball touches: some more reach at the ends of the x axis.

For each candidate pitch, yaw and forward speed of the face are solved so that the ball, struck by the exact contact
law and flown with drag and Magnus force, is on the aim at the end of the flight time: a shooting method over contact
and flight together, because the spin that the face gives bends the flight as much as the speed does. On gantry4 the
pitch fixes the depth of the racket, and so the hit time. The cost is the probability that the ball is not
returned plus the expected landing error, from the covariance of the ball and the errors of the actuators, plus what
the motion demands of the joints.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from tt_estimation.ball_models import P_CL, P_CLS, P_E_RACKET, P_K, P_RADIUS
from tt_estimation.flight import rk4_step
from tt_perception.table import NET_HEIGHT_M, NET_OVERHANG_M, TABLE_LENGTH_M, TABLE_WIDTH_M
from tt_planning.aiming import effective_time, fly
from tt_planning.keep_out import box_separation
from tt_planning.kinematics import gantry_rotation
from tt_planning.racket_contact import strike
from tt_planning.swing import N_SW, swing_joint

# Candidate vector.
X_RISE, X_FLIGHT, X_AIM_X, X_AIM_Y, X_PLACE, X_EXTRA, X_SIDE = range(7)
N_X = 7

# Robot vector.
# R_DEPTH: 0 gantry4, 1 gantry5, 2 any robot whose face moves along its normal (`free_stroke`).
R_DEPTH, R_BASE_X, R_BASE_Y, R_BASE_Z, R_LENGTH, R_OFFSET, R_FACE, R_HALF_W, R_HALF_H, R_HALF_T = range(10)
N_R = 10

# Noise vector: standard deviations of the actuators.
S_LINEAR, S_ANGLE, S_SPEED, S_RATE, S_TIME = range(5)
N_S = 5

# Weights and limits of the cost.
W_LANDING, W_LOAD, W_EFFORT, W_CHANGE, W_NET, W_EASY, W_END_ACC, W_EDGE, W_LIMIT, W_AIMED, W_PLACE = range(11)
N_W = 11

# Result vector.
O_Q = 0  # joints, 5
O_QD = 5  # joint velocities, 5
O_POS = 10  # ball at contact, 3
O_NORMAL = 13  # 3
O_VOUT = 16  # outgoing ball velocity, 3
O_WOUT = 19  # outgoing spin, 3
O_LOAD = 22
O_P_HIT = 23
O_P_LAND = 24
O_ERROR = 25  # expected landing error, m
O_CODE = 26
O_CLEARANCE = 27
O_CENTRE = 28  # blade centre, 3
O_TIME = 31  # hit time, s after the capture
O_U = 32  # solved pitch, yaw, forward speed of the face, 3
N_O = 35

# Why a candidate is no good, in the order in which it is found.
C_OK, C_TIME, C_DEPTH, C_AIM, C_NET, C_LIMIT, C_TABLE = range(7)

_HALF_TABLE_X = 0.5 * TABLE_WIDTH_M
_HALF_TABLE_Y = 0.5 * TABLE_LENGTH_M


@njit(cache=True, nogil=True)
def ball_at(
    t: float,
    times: np.ndarray,
    states: np.ndarray,
    bounce_index: int,
    bounce_time: float,
    p: np.ndarray,
    out: np.ndarray,
) -> bool:
    """Predicted ball state (9,) at time `t`, by one RK4 step from the nearest sample before; False outside."""
    n = times.shape[0]
    if n < 2 or t < times[0] or t > times[n - 1]:
        return False
    lo, hi = 0, n - 1
    while hi - lo > 1:
        mid = (lo + hi) // 2
        if times[mid] <= t:
            lo = mid
        else:
            hi = mid
    k = lo
    # Between the bounce and the first sample after it the path must be followed backwards.
    if bounce_index > 0 and k == bounce_index - 1 and t > bounce_time:
        k = bounce_index
    rk4_step(states[k], p, t - times[k], out)
    return True


@njit(cache=True, nogil=True)
def _normal_cdf(x: float) -> float:
    return 0.5 * (1.0 + math.erf(x * 0.7071067811865476))


@njit(cache=True, nogil=True)
def _within(low: float, high: float, sigma: float) -> float:
    s = max(sigma, 1e-6)
    return _normal_cdf(high / s) - _normal_cdf(low / s)


@njit(cache=True, nogil=True)
def time_at_depth(
    y: float,
    times: np.ndarray,
    states: np.ndarray,
    bounce_index: int,
    bounce_time: float,
    earliest: float,
    latest: float,
    p: np.ndarray,
    out: np.ndarray,
) -> float:
    """Time at which the incoming ball passes y = const, state (9,) in `out`; NaN outside `earliest`…`latest`."""
    lo, hi = 0, times.shape[0] - 1
    if not states[hi, 1] <= y <= states[lo, 1]:
        return math.nan
    while hi - lo > 1:
        mid = (lo + hi) // 2
        if states[mid, 1] > y:
            lo = mid
        else:
            hi = mid
    t = times[lo]
    v = states[lo, 4]
    if v > -0.05:
        return math.nan
    t += (y - states[lo, 1]) / v
    for _ in range(4):
        if not ball_at(
            min(max(t, times[0]), times[times.shape[0] - 1]), times, states, bounce_index, bounce_time, p, out
        ):
            return math.nan
        miss = y - out[1]
        if abs(miss) < 1e-7:
            break
        if out[4] > -0.05:
            return math.nan
        t += miss / out[4]
    if t < earliest or t > latest:
        return math.nan
    return t


@njit(cache=True, nogil=True)
def _set_normal(yaw: float, pitch: float, n: np.ndarray) -> None:
    cp = math.cos(pitch)
    n[0] = -math.sin(yaw) * cp
    n[1] = math.cos(yaw) * cp
    n[2] = math.sin(pitch)


@njit(cache=True, nogil=True)
def _pitch_rate_velocity(pitch: float, yaw: float, height: float, rob: np.ndarray, out: np.ndarray) -> None:
    """Velocity (3,) of the contact point per rad/s of pitch rate: −arm n + face z_racket."""
    cy, sy, cp, sp = math.cos(yaw), math.sin(yaw), math.cos(pitch), math.sin(pitch)
    arm = rob[R_LENGTH] + height
    out[0] = arm * sy * cp + rob[R_FACE] * sy * sp
    out[1] = -arm * cy * cp - rob[R_FACE] * cy * sp
    out[2] = -arm * sp + rob[R_FACE] * cp


@njit(cache=True, nogil=True)
def _shot(
    u: np.ndarray,
    x: np.ndarray,
    rob: np.ndarray,
    times: np.ndarray,
    states: np.ndarray,
    bounce_index: int,
    bounce_time: float,
    earliest: float,
    latest: float,
    p: np.ndarray,
    step: float,
    hit: np.ndarray,
    end: np.ndarray,
) -> float:
    """Strike and fly with pitch, yaw and forward face speed `u` (3,); returns the hit time, NaN when impossible.

    `hit` (21,) receives ball state (9), normal (3), face velocity (3), outgoing velocity and spin (6);
    `end` (9,) the ball after the flight time.
    """
    deep = rob[R_DEPTH] > 0.5
    pitch, yaw = u[0], u[1]
    if abs(pitch) > 1.5 or abs(yaw) > 1.5:
        return math.nan
    ball, n, face, vout, wout = hit[0:9], hit[9:12], hit[12:15], hit[15:18], hit[18:21]
    height = 0.0 if deep else x[X_PLACE]
    if deep:
        t = x[X_PLACE]
        if t < earliest or t > latest or not ball_at(t, times, states, bounce_index, bounce_time, p, ball):
            return math.nan
    else:
        depth = math.cos(yaw) * (rob[R_OFFSET] * math.cos(pitch) - (rob[R_LENGTH] + height) * math.sin(pitch))
        depth += x[X_SIDE] * math.sin(yaw)
        t = time_at_depth(
            rob[R_BASE_Y] + depth, times, states, bounce_index, bounce_time, earliest, latest, p, ball
        )
        if not math.isfinite(t):
            return math.nan
    _set_normal(yaw, pitch, n)
    _pitch_rate_velocity(pitch, yaw, height, rob, end)
    face[1] = u[2]
    if rob[R_DEPTH] > 1.5:
        for i in range(3):
            face[i] = u[2] * n[i]
    elif deep:
        face[0] = x[X_EXTRA] * end[0]
        face[2] = x[X_RISE] + x[X_EXTRA] * end[2]
    else:
        rate = u[2] / end[1]
        face[0] = x[X_EXTRA] + rate * end[0]
        face[2] = x[X_RISE] + rate * end[2]
    if not strike(ball[3:6], ball[6:9], n, face, p, vout, wout):
        return math.nan
    s = np.empty(9)
    for i in range(3):
        s[i], s[3 + i], s[6 + i] = ball[i], vout[i], wout[i]
    fly(s, p, x[X_FLIGHT], step, end)
    return t


@njit(cache=True, nogil=True)
def _first_guess(
    x: np.ndarray,
    rob: np.ndarray,
    times: np.ndarray,
    states: np.ndarray,
    bounce_index: int,
    bounce_time: float,
    earliest: float,
    latest: float,
    p: np.ndarray,
    u: np.ndarray,
) -> bool:
    """Pitch, yaw, forward speed of a hit without friction and drag, at a time that fits; False when there is none."""
    ball = np.empty(9)
    deep = rob[R_DEPTH] > 0.5
    t = x[X_PLACE] if deep else 0.5 * (earliest + latest)
    duration = x[X_FLIGHT]
    for k in range(3):
        if not ball_at(min(max(t, earliest), latest), times, states, bounce_index, bounce_time, p, ball):
            return False
        # Drag takes about 8 % of the speed per half second of flight.
        stretch = 1.0 + 0.16 * duration
        ox = (x[X_AIM_X] - ball[0]) / duration * stretch
        oy = (x[X_AIM_Y] - ball[1]) / duration * stretch
        oz = (p[P_RADIUS] - ball[2]) / duration + 4.9 * duration
        dx, dy, dz = ox - ball[3], oy - ball[4], oz - ball[5]
        if dy <= 0.1:
            return False
        yaw = math.atan2(-dx, dy)
        pitch = math.atan2(dz, math.sqrt(dx * dx + dy * dy))
        size = math.sqrt(dx * dx + dy * dy + dz * dz)
        along = size / (1.0 + p[P_E_RACKET]) + (ball[3] * dx + ball[4] * dy + ball[5] * dz) / size
        u[0], u[1], u[2] = pitch, yaw, along * (dy / size if rob[R_DEPTH] < 1.5 else 1.0)
        if deep:
            return True
        depth = math.cos(yaw) * (
            rob[R_OFFSET] * math.cos(pitch) - (rob[R_LENGTH] + x[X_PLACE]) * math.sin(pitch)
        )
        t = time_at_depth(
            rob[R_BASE_Y] + depth, times, states, bounce_index, bounce_time, earliest, latest, p, ball
        )
        if not math.isfinite(t):
            return k > 0 or ball_at(
                0.5 * (earliest + latest), times, states, bounce_index, bounce_time, p, ball
            )
    return True


@njit(cache=True, nogil=True)
def solve_shot(
    x: np.ndarray,
    rob: np.ndarray,
    times: np.ndarray,
    states: np.ndarray,
    bounce_index: int,
    bounce_time: float,
    earliest: float,
    latest: float,
    p: np.ndarray,
    step: float,
    tolerance: float,
    rounds: int,
    u: np.ndarray,
    inverse: np.ndarray,
    hit: np.ndarray,
    end: np.ndarray,
) -> tuple[float, float]:
    """Solve pitch, yaw and forward face speed `u` (3,) for the aim: (hit time, miss in m); time NaN on failure.

    Broyden's method. `inverse` (3, 3) is the inverse Jacobian: kept from the last call when `inverse[0, 0]` is
    finite, else made by finite differences; improved in place.
    """
    f = np.empty(3)
    g = np.empty(3)
    du = np.empty(3)
    trial = np.empty(3)
    target_z = p[P_RADIUS]
    t = _shot(u, x, rob, times, states, bounce_index, bounce_time, earliest, latest, p, step, hit, end)
    if not math.isfinite(t):
        return t, math.inf
    f[0], f[1], f[2] = end[0] - x[X_AIM_X], end[1] - x[X_AIM_Y], end[2] - target_z
    miss = math.sqrt(f[0] * f[0] + f[1] * f[1] + f[2] * f[2])
    fresh = False
    for _ in range(rounds):
        if miss < tolerance:
            return t, miss
        if not math.isfinite(inverse[0, 0]):
            fresh = True
            jac = np.empty((3, 3))
            for j in range(3):
                for i in range(3):
                    trial[i] = u[i]
                h = -1e-4 if j < 2 else 1e-3
                trial[j] += h
                tt = _shot(
                    trial,
                    x,
                    rob,
                    times,
                    states,
                    bounce_index,
                    bounce_time,
                    earliest,
                    latest,
                    p,
                    step,
                    hit,
                    end,
                )
                if not math.isfinite(tt):
                    h = -h
                    trial[j] = u[j] + h
                    tt = _shot(
                        trial,
                        x,
                        rob,
                        times,
                        states,
                        bounce_index,
                        bounce_time,
                        earliest,
                        latest,
                        p,
                        step,
                        hit,
                        end,
                    )
                    if not math.isfinite(tt):
                        return tt, math.inf
                jac[0, j] = (end[0] - x[X_AIM_X] - f[0]) / h
                jac[1, j] = (end[1] - x[X_AIM_Y] - f[1]) / h
                jac[2, j] = (end[2] - target_z - f[2]) / h
            if not _invert(jac, inverse):
                return math.nan, math.inf
        for i in range(3):
            du[i] = -(inverse[i, 0] * f[0] + inverse[i, 1] * f[1] + inverse[i, 2] * f[2])
        shrink = max(1.0, abs(du[0]) / 0.25, abs(du[1]) / 0.25, abs(du[2]) / 2.5)
        ok = False
        for _try in range(5):
            for i in range(3):
                trial[i] = u[i] + du[i] / shrink
            tt = _shot(
                trial, x, rob, times, states, bounce_index, bounce_time, earliest, latest, p, step, hit, end
            )
            if math.isfinite(tt):
                g[0], g[1], g[2] = end[0] - x[X_AIM_X], end[1] - x[X_AIM_Y], end[2] - target_z
                new = math.sqrt(g[0] * g[0] + g[1] * g[1] + g[2] * g[2])
                if new < 1.5 * miss:
                    ok = True
                    break
            shrink *= 2.5
        if not ok:
            if fresh:
                return math.nan, math.inf
            inverse[0, 0] = math.nan
            continue
        # Rank-one update of the inverse Jacobian.
        h0 = inverse[0, 0] * (g[0] - f[0]) + inverse[0, 1] * (g[1] - f[1]) + inverse[0, 2] * (g[2] - f[2])
        h1 = inverse[1, 0] * (g[0] - f[0]) + inverse[1, 1] * (g[1] - f[1]) + inverse[1, 2] * (g[2] - f[2])
        h2 = inverse[2, 0] * (g[0] - f[0]) + inverse[2, 1] * (g[1] - f[1]) + inverse[2, 2] * (g[2] - f[2])
        for i in range(3):
            du[i] /= shrink
        below = du[0] * h0 + du[1] * h1 + du[2] * h2
        if abs(below) > 1e-14:
            for j in range(3):
                trial[j] = du[0] * inverse[0, j] + du[1] * inverse[1, j] + du[2] * inverse[2, j]
            for j in range(3):
                inverse[0, j] += (du[0] - h0) * trial[j] / below
                inverse[1, j] += (du[1] - h1) * trial[j] / below
                inverse[2, j] += (du[2] - h2) * trial[j] / below
        if new > 0.7 * miss and not fresh:
            inverse[0, 0] = math.nan
        fresh = False
        for i in range(3):
            u[i] += du[i]
            f[i] = g[i]
        t, miss = tt, new
    # `hit` and `end` belong to the last shot, which is that of `u`, unless a Jacobian was made since.
    return t, miss


@njit(cache=True, nogil=True)
def _invert(a: np.ndarray, out: np.ndarray) -> bool:
    """Inverse of a 3 × 3 matrix; False when it is singular."""
    c00 = a[1, 1] * a[2, 2] - a[1, 2] * a[2, 1]
    c01 = a[1, 2] * a[2, 0] - a[1, 0] * a[2, 2]
    c02 = a[1, 0] * a[2, 1] - a[1, 1] * a[2, 0]
    det = a[0, 0] * c00 + a[0, 1] * c01 + a[0, 2] * c02
    if abs(det) < 1e-12 or not math.isfinite(det):
        return False
    out[0, 0], out[1, 0], out[2, 0] = c00 / det, c01 / det, c02 / det
    out[0, 1] = (a[0, 2] * a[2, 1] - a[0, 1] * a[2, 2]) / det
    out[1, 1] = (a[0, 0] * a[2, 2] - a[0, 2] * a[2, 0]) / det
    out[2, 1] = (a[0, 1] * a[2, 0] - a[0, 0] * a[2, 1]) / det
    out[0, 2] = (a[0, 1] * a[1, 2] - a[0, 2] * a[1, 1]) / det
    out[1, 2] = (a[0, 2] * a[1, 0] - a[0, 0] * a[1, 2]) / det
    out[2, 2] = (a[0, 0] * a[1, 1] - a[0, 1] * a[1, 0]) / det
    return True


@njit(cache=True, nogil=True)
def _flight(
    b: np.ndarray, v: np.ndarray, w: np.ndarray, p: np.ndarray, duration: float, end: np.ndarray
) -> tuple[float, float]:
    """(height at the net, time of the crossing) of a return; +inf when it passes beside the net or not at all."""
    n = max(1, math.ceil(duration / 0.05))
    h = duration / n
    s = np.empty(9)
    for i in range(3):
        s[i], s[3 + i], s[6 + i] = b[i], v[i], w[i]
    height, crossing = math.inf, 0.0
    for k in range(n):
        rk4_step(s, p, h, end)
        if s[1] < 0.0 <= end[1]:
            f = s[1] / (s[1] - end[1])
            x = s[0] + f * (end[0] - s[0])
            crossing = (k + f) * h
            if abs(x) < _HALF_TABLE_X + NET_OVERHANG_M:
                # Cubic Hermite in height over the step.
                g = 1.0 - f
                height = (
                    s[2] * g * g * (1.0 + 2.0 * f)
                    + end[2] * f * f * (3.0 - 2.0 * f)
                    + h * f * g * (s[5] * g - end[5] * f)
                )
        for i in range(9):
            s[i] = end[i]
    return height, crossing


@njit(cache=True, nogil=True)
def evaluate(
    x: np.ndarray,
    times: np.ndarray,
    states: np.ndarray,
    pos_cov: np.ndarray,
    state_cov: np.ndarray,
    bounce_index: int,
    bounce_time: float,
    earliest: float,
    latest: float,
    p: np.ndarray,
    rob: np.ndarray,
    lower: np.ndarray,
    upper: np.ndarray,
    max_vel: np.ndarray,
    max_acc: np.ndarray,
    start_time: float,
    q0: np.ndarray,
    qd0: np.ndarray,
    qdd0: np.ndarray,
    noise: np.ndarray,
    weight: np.ndarray,
    table_box: np.ndarray,
    last: np.ndarray,
    fine: bool,
    inverse: np.ndarray,
    out: np.ndarray,
) -> float:
    """Cost of one candidate `x` (7,); details to `out` (35,). Above 10 it cannot be done, `out[O_CODE]` says why.

    `fine` False does fewer and coarser correction rounds, enough to rank candidates. Times count from the capture
    stamp; hits are between `earliest` and `latest`. `out[O_U]` and `inverse` are first guesses for `solve_shot`, NaN
    for none. `last` (7,) is the previous target for smoothness, NaN when there is none.
    """
    deep = rob[R_DEPTH] > 0.5
    out[O_CODE] = C_TIME
    if latest <= earliest:
        return 100.0
    duration = x[X_FLIGHT]
    if not 0.15 < duration < 1.6:
        return 90.0
    if abs(x[X_AIM_X]) > _HALF_TABLE_X - 0.06 or not 0.15 < x[X_AIM_Y] < _HALF_TABLE_Y - 0.08:
        return 80.0
    if abs(x[X_SIDE]) > rob[R_HALF_W] - 0.02 or (not deep and abs(x[X_PLACE]) > rob[R_HALF_H] - 0.02):
        return 80.0
    hit = np.empty(21)
    end = np.empty(9)
    m = np.empty(3)
    swing_v = np.empty(3)
    u = out[O_U : O_U + 3]
    if not math.isfinite(u[0]) and not _first_guess(
        x, rob, times, states, bounce_index, bounce_time, earliest, latest, p, u
    ):
        out[O_CODE] = C_AIM
        return 60.0
    step = 0.05 if fine else 0.1
    t, miss = solve_shot(
        x, rob, times, states, bounce_index, bounce_time, earliest, latest, p, step, 1e-4 if fine else 5e-3,
        25 if fine else 8, u, inverse, hit, end,
    )  # fmt: skip
    if not math.isfinite(t):
        out[O_CODE] = C_DEPTH
        return 60.0
    if miss > (5e-4 if fine else 2e-2):
        out[O_CODE] = C_AIM
        return 50.0 + min(miss, 5.0)
    b, v, w = hit[0:3], hit[3:6], hit[6:9]
    n, face, vout, wout = hit[9:12], hit[12:15], hit[15:18], hit[18:21]
    pitch, yaw = u[0], u[1]
    height = 0.0 if deep else x[X_PLACE]
    _pitch_rate_velocity(pitch, yaw, height, rob, swing_v)
    rate = x[X_EXTRA] if deep else face[1] / swing_v[1]
    out[O_TIME] = t
    swing = t - start_time
    if swing < 0.012:
        out[O_CODE] = C_TIME
        return 100.0
    rot = np.empty((3, 3))
    gantry_rotation(yaw, pitch, rot)
    q = out[O_Q : O_Q + 5]
    qd = out[O_QD : O_QD + 5]
    for i in range(3):
        out[O_CENTRE + i] = b[i] - rob[R_OFFSET] * n[i] - height * rot[i, 2] - x[X_SIDE] * rot[i, 0]
    length = rob[R_LENGTH]
    axis = 0
    for i in range(3):
        if i == 1 and not deep:
            continue
        q[axis] = out[O_CENTRE + i] - length * rot[i, 2] - rob[R_BASE_X + i]
        qd[axis] = face[i] - rate * swing_v[i]
        axis += 1
    q[axis], q[axis + 1] = yaw, pitch
    qd[axis], qd[axis + 1] = 0.0, rate
    joints = axis + 2
    for i in range(3):
        out[O_POS + i] = b[i]
        out[O_NORMAL + i] = n[i]
        out[O_VOUT + i] = vout[i]
        out[O_WOUT + i] = wout[i]
    # What the joints must do in the time left.
    plan = np.empty(N_SW)
    share = 0.0
    effort = 0.0
    for j in range(joints):
        s = swing_joint(
            q0[j],
            qd0[j],
            qdd0[j],
            q[j],
            qd[j],
            swing,
            lower[j],
            upper[j],
            max_vel[j],
            max_acc[j],
            weight[W_EASY],
            weight[W_END_ACC],
            plan,
        )
        # Room to stop behind the hit: 3/4 v²/a, the stop with a cubic velocity profile.
        rest = q[j] + 0.75 * qd[j] * abs(qd[j]) / max_acc[j]
        beyond = max(lower[j] - rest, rest - upper[j])
        if beyond > 0.0:
            s = max(s, 1.0 + beyond / (upper[j] - lower[j]))
        share = max(share, s)
        r = qd[j] / max_vel[j]
        effort += s * s + r * r
    out[O_LOAD] = share
    if share > weight[W_LIMIT]:
        out[O_CODE] = C_LIMIT
        return 20.0 + min(share, 9.0)
    half = np.empty(3)
    half[0], half[1], half[2] = rob[R_HALF_W], rob[R_HALF_T], rob[R_HALF_H]
    if box_separation(out[O_CENTRE : O_CENTRE + 3], rot, half, table_box) < 0.012:
        out[O_CODE] = C_TABLE
        return 20.0
    net, crossing = _flight(b, vout, wout, p, duration, end)
    clearance = net - p[P_RADIUS] - NET_HEIGHT_M
    out[O_CLEARANCE] = clearance
    if clearance < weight[W_NET]:
        out[O_CODE] = C_NET
        return 15.0 + min(4.0, weight[W_NET] - clearance)
    # Errors at the contact.
    hi = 1
    last_index = times.shape[0] - 1
    while hi < last_index and times[hi] < t:
        hi += 1
    f = (t - times[hi - 1]) / max(times[hi] - times[hi - 1], 1e-9)
    cov = np.empty((3, 3))
    for i in range(3):
        for j in range(3):
            cov[i, j] = (1.0 - f) * pos_cov[hi - 1, i, j] + f * pos_cov[hi, i, j]
    closing = 0.0
    for i in range(3):
        closing += (face[i] - v[i]) * n[i]
    # Where the ball meets the plane of the face when it is displaced by δ: δ_t + u_t δ_n / closing.
    var_depth = 0.0
    for i in range(3):
        for j in range(3):
            var_depth += n[i] * cov[i, j] * n[j]
    var_side = noise[S_LINEAR] ** 2
    var_up = noise[S_LINEAR] ** 2
    for axis in range(2):
        col = 0 if axis == 0 else 2
        slide = 0.0
        for i in range(3):
            slide += (v[i] - face[i]) * rot[i, col]
        slide /= closing
        for i in range(3):
            m[i] = rot[i, col] + slide * n[i]
        var = (noise[S_TIME] * slide * closing) ** 2
        for i in range(3):
            for j in range(3):
                var += m[i] * cov[i, j] * m[j]
        if axis == 0:
            var_side += var
        else:
            var_up += var
    edge_w, edge_h = rob[R_HALF_W] - weight[W_EDGE], rob[R_HALF_H] - weight[W_EDGE]
    side = x[X_SIDE]
    p_hit = _within(-edge_w - side, edge_w - side, math.sqrt(var_side)) * _within(
        -edge_h - height, edge_h - height, math.sqrt(var_up)
    )
    # Landing errors: outgoing velocity by face velocity, spin, normal (finite differences of the exact law).
    speed = math.sqrt(vout[0] ** 2 + vout[1] ** 2 + vout[2] ** 2)
    reach = effective_time(speed, duration, p)
    down = min(end[5], -0.3)
    gx, gy = end[3] / down, end[4] / down
    near = effective_time(speed, crossing, p) if crossing > 0.0 else 0.0
    steep = (vout[2] - 9.81 * crossing) / max(vout[1], 0.3)
    mean = np.empty(3)
    for i in range(3):
        mean[i] = (end[i] - b[i]) / duration
    size = math.sqrt(mean[0] ** 2 + mean[1] ** 2 + mean[2] ** 2)
    lift = p[P_CL]
    if p[P_CLS] > 0.0:
        turning = math.sqrt(wout[0] ** 2 + wout[1] ** 2 + wout[2] ** 2)
        lift /= p[P_CLS] + p[P_RADIUS] * turning / max(size, 0.1)
    bend = 0.5 * duration * duration * p[P_K] * p[P_RADIUS] * lift
    var_x = var_y = var_z = 0.0
    plus = np.empty(3)
    spin = np.empty(3)
    arg = np.empty(3)
    time_var = noise[S_TIME] ** 2 + var_depth / (closing * closing)
    for kind in range(8):
        if kind < 3:
            for i in range(3):
                arg[i] = face[i]
            arg[kind] += 1e-3
            strike(v, w, n, arg, p, plus, spin)
            scale = 1e3
            # ∂v_out/∂v = I − ∂v_out/∂V
            sigma = noise[S_SPEED]
        elif kind < 6:
            for i in range(3):
                arg[i] = w[i]
            arg[kind - 3] += 0.1
            strike(v, arg, n, face, p, plus, spin)
            scale = 10.0
            sigma = math.sqrt(max(state_cov[kind + 3, kind + 3], 0.0))
        else:
            col = 2 if kind == 6 else 0
            sign = 1.0 if kind == 6 else -1.0
            s = 1.0 / math.sqrt(1.0 + 1e-6)
            for i in range(3):
                arg[i] = (n[i] + sign * 1e-3 * rot[i, col]) * s
            strike(v, w, arg, face, p, plus, spin)
            scale = 1e3
            spin_rate = rate if kind == 6 else 0.0
            sigma = math.sqrt(noise[S_ANGLE] ** 2 + spin_rate * spin_rate * time_var)
        d0 = (plus[0] - vout[0]) * scale
        d1 = (plus[1] - vout[1]) * scale
        d2 = (plus[2] - vout[2]) * scale
        # The spin that changes with it bends the flight: ½ T² κ (δω × v).
        for i in range(3):
            spin[i] = (spin[i] - wout[i]) * scale
        e0 = reach * d0 + bend * (spin[1] * mean[2] - spin[2] * mean[1])
        e1 = reach * d1 + bend * (spin[2] * mean[0] - spin[0] * mean[2])
        e2 = reach * d2 + bend * (spin[0] * mean[1] - spin[1] * mean[0])
        lx = e0 - gx * e2
        ly = e1 - gy * e2
        lz = near * (d2 - steep * d1)
        var_x += (sigma * lx) ** 2
        var_y += (sigma * ly) ** 2
        var_z += (sigma * lz) ** 2
        if kind < 3:
            sv = math.sqrt(max(state_cov[3 + kind, 3 + kind], 0.0))
            d0, d1, d2 = -d0, -d1, -d2
            if kind == 0:
                d0 += 1.0
            elif kind == 1:
                d1 += 1.0
            else:
                d2 += 1.0
            var_x += (sv * reach * (d0 - gx * d2)) ** 2
            var_y += (sv * reach * (d1 - gy * d2)) ** 2
            var_z += (sv * near * (d2 - steep * d1)) ** 2
    var_x += cov[0, 0]
    var_y += cov[1, 1]
    var_z += cov[2, 2]
    sx, sy_, sz = math.sqrt(var_x), math.sqrt(var_y), math.sqrt(var_z)
    inside = 0.01
    p_land = (
        _within(-_HALF_TABLE_X + inside - x[X_AIM_X], _HALF_TABLE_X - inside - x[X_AIM_X], sx)
        * _within(inside - x[X_AIM_Y], _HALF_TABLE_Y - inside - x[X_AIM_Y], sy_)
        * _normal_cdf(clearance / max(sz, 1e-6))
    )
    error = math.sqrt(var_x + var_y)
    out[O_P_HIT] = p_hit
    out[O_P_LAND] = p_land
    out[O_ERROR] = error
    out[O_CODE] = C_OK
    cost = 1.0 - p_hit * p_land + weight[W_LANDING] * error
    heavy = max(0.0, share - 0.6)
    cost += weight[W_LOAD] * heavy * heavy + weight[W_EFFORT] * effort
    cost += weight[W_PLACE] * ((height / rob[R_HALF_H]) ** 2 + (side / rob[R_HALF_W]) ** 2)
    if weight[W_AIMED] > 0.0:
        cost += weight[W_AIMED] * ((x[X_AIM_X]) ** 2 + (x[X_AIM_Y] - 0.75) ** 2)
    if math.isfinite(last[0]):
        dt = (x[X_RISE] - last[X_RISE]) / 0.5
        df = (duration - last[X_FLIGHT]) / 0.1
        da = (x[X_PLACE] - last[X_PLACE]) / (0.02 if deep else 0.03)
        cost += weight[W_CHANGE] * (dt * dt + df * df + da * da)
    return cost


@njit(cache=True, nogil=True)
def search(
    grid: np.ndarray,
    steps: np.ndarray,
    budget: int,
    times: np.ndarray,
    states: np.ndarray,
    pos_cov: np.ndarray,
    state_cov: np.ndarray,
    bounce_index: int,
    bounce_time: float,
    earliest: float,
    latest: float,
    p: np.ndarray,
    rob: np.ndarray,
    lower: np.ndarray,
    upper: np.ndarray,
    max_vel: np.ndarray,
    max_acc: np.ndarray,
    start_time: float,
    q0: np.ndarray,
    qd0: np.ndarray,
    qdd0: np.ndarray,
    noise: np.ndarray,
    weight: np.ndarray,
    table_box: np.ndarray,
    last: np.ndarray,
    best: np.ndarray,
    out: np.ndarray,
) -> float:
    """Best candidate: rank the rows of `grid` (n, 7), then a pattern search from the winner; cost of `best` (7,).

    `steps` (7,) are the first steps of the pattern search, 0 for a value that stays; at most `budget` candidates
    are tried.
    """
    cost = math.inf
    u = np.empty(3)
    inverse = np.full((3, 3), math.nan)
    best_inverse = np.full((3, 3), math.nan)
    for i in range(grid.shape[0]):
        out[O_U] = math.nan
        inverse[0, 0] = math.nan
        f = evaluate(
            grid[i], times, states, pos_cov, state_cov, bounce_index, bounce_time, earliest, latest, p, rob, lower,
            upper, max_vel, max_acc, start_time, q0, qd0, qdd0, noise, weight, table_box, last, False, inverse, out,
        )  # fmt: skip
        if f < cost:
            cost = f
            best_inverse[:] = inverse
            for k in range(3):
                u[k] = out[O_U + k]
            for k in range(N_X):
                best[k] = grid[i, k]
    x = np.empty(N_X)
    step = steps.copy()
    used = 0
    rounds = 0
    while used < budget and rounds < 4 and cost < 45.0:
        improved = False
        for k in range(N_X):
            if step[k] == 0.0:
                continue
            for _ in range(2):
                for i in range(N_X):
                    x[i] = best[i]
                x[k] += step[k]
                used += 1
                inverse[:] = best_inverse
                for i in range(3):
                    out[O_U + i] = u[i]
                f = evaluate(
                    x, times, states, pos_cov, state_cov, bounce_index, bounce_time, earliest, latest, p, rob, lower,
                    upper, max_vel, max_acc, start_time, q0, qd0, qdd0, noise, weight, table_box, last, False, inverse,
                    out,
                )  # fmt: skip
                if f < cost:
                    cost = f
                    best[k] = x[k]
                    best_inverse[:] = inverse
                    for i in range(3):
                        u[i] = out[O_U + i]
                    improved = True
                    break
                step[k] = -step[k]
            if used >= budget:
                break
        if not improved:
            rounds += 1
            for k in range(N_X):
                step[k] *= 0.5
    for i in range(3):
        out[O_U + i] = u[i]
    if cost > 45.0:
        out[O_U] = math.nan
    return evaluate(
        best, times, states, pos_cov, state_cov, bounce_index, bounce_time, earliest, latest, p, rob, lower,
        upper, max_vel, max_acc, start_time, q0, qd0, qdd0, noise, weight, table_box, last, True, best_inverse, out,
    )  # fmt: skip


@njit(cache=True, nogil=True)
def free_stroke(
    x: np.ndarray,
    times: np.ndarray,
    states: np.ndarray,
    bounce_index: int,
    bounce_time: float,
    earliest: float,
    latest: float,
    p: np.ndarray,
    rob: np.ndarray,
    net_margin: float,
    out: np.ndarray,
) -> int:
    """Blade centre, normal and face speed along it for hit time `x[X_PLACE]`, flight time and aim; a code.

    For robots that can take any pose (`rob[R_DEPTH]` = 2); the joints are the caller's business. `out` gets what
    `evaluate` writes about ball and racket, and the face velocity at `O_QD` (3).
    """
    hit = np.empty(21)
    end = np.empty(9)
    u = out[O_U : O_U + 3]
    inverse = np.full((3, 3), math.nan)
    if not _first_guess(x, rob, times, states, bounce_index, bounce_time, earliest, latest, p, u):
        return C_AIM
    t, miss = solve_shot(
        x,
        rob,
        times,
        states,
        bounce_index,
        bounce_time,
        earliest,
        latest,
        p,
        0.05,
        1e-4,
        20,
        u,
        inverse,
        hit,
        end,
    )
    if not math.isfinite(t):
        return C_TIME
    if miss > 5e-4:
        return C_AIM
    out[O_TIME] = t
    for i in range(3):
        out[O_POS + i] = hit[i]
        out[O_NORMAL + i] = hit[9 + i]
        out[O_QD + i] = hit[12 + i]
        out[O_VOUT + i] = hit[15 + i]
        out[O_WOUT + i] = hit[18 + i]
        out[O_CENTRE + i] = hit[i] - rob[R_OFFSET] * hit[9 + i]
    net, _ = _flight(hit[0:3], hit[15:18], hit[18:21], p, x[X_FLIGHT], end)
    out[O_CLEARANCE] = net - p[P_RADIUS] - NET_HEIGHT_M
    return C_NET if out[O_CLEARANCE] < net_margin else C_OK


@njit(cache=True, nogil=True)
def swing_load(
    q0: np.ndarray,
    qd0: np.ndarray,
    qdd0: np.ndarray,
    q: np.ndarray,
    qd: np.ndarray,
    duration: float,
    lower: np.ndarray,
    upper: np.ndarray,
    max_vel: np.ndarray,
    max_acc: np.ndarray,
    easy_load: float,
    end_acc_share: float,
) -> float:
    """Load of a swing of all joints (n,), with room to stop behind the hit; feasible when ≤ 1."""
    plan = np.empty(N_SW)
    share = 0.0
    for j in range(q.shape[0]):
        s = swing_joint(
            q0[j], qd0[j], qdd0[j], q[j], qd[j], duration, lower[j], upper[j], max_vel[j], max_acc[j], easy_load,
            end_acc_share, plan,
        )  # fmt: skip
        rest = q[j] + 0.75 * qd[j] * abs(qd[j]) / max_acc[j]
        beyond = max(lower[j] - rest, rest - upper[j])
        if beyond > 0.0:
            s = max(s, 1.0 + beyond / (upper[j] - lower[j]))
        share = max(share, s)
    return share


@njit(cache=True, nogil=True)
def _pitch_for_depth(depth: float, arm: float, offset: float) -> float:
    """θ with offset cosθ − arm sinθ = depth (at yaw 0); NaN when out of reach."""
    r = math.sqrt(offset * offset + arm * arm)
    if abs(depth) > r:
        return math.nan
    return math.acos(depth / r) - math.atan2(arm, offset)


@njit(cache=True, nogil=True)
def block(
    times: np.ndarray,
    states: np.ndarray,
    bounce_index: int,
    bounce_time: float,
    earliest: float,
    latest: float,
    p: np.ndarray,
    rob: np.ndarray,
    lower: np.ndarray,
    upper: np.ndarray,
    max_vel: np.ndarray,
    max_acc: np.ndarray,
    start_time: float,
    q0: np.ndarray,
    qd0: np.ndarray,
    qdd0: np.ndarray,
    limit: float,
    table_box: np.ndarray,
    out: np.ndarray,
) -> float:
    """Put the racket in the way: joints at rest or with a little pitch rate; returns a cost, infinity for none.

    Among the poses the joints reach in time the one whose rebound lands nearest to the middle of the opponent's half
    (vacuum parabola) wins; details in `out` as `evaluate` writes them.
    """
    deep = rob[R_DEPTH] > 0.5
    ball = np.empty(9)
    n = np.empty(3)
    face = np.empty(3)
    vout = np.empty(3)
    wout = np.empty(3)
    swing_v = np.empty(3)
    rot = np.empty((3, 3))
    centre = np.empty(3)
    half = np.empty(3)
    half[0], half[1], half[2] = rob[R_HALF_W], rob[R_HALF_T], rob[R_HALF_H]
    joints = 5 if deep else 4
    q = np.zeros(joints)
    qd = np.zeros(joints)
    best = math.inf
    first = max(earliest, start_time + 0.015)
    for i in range(14):
        t = first + (latest - first) * i / 13.0
        if t < first or not ball_at(t, times, states, bounce_index, bounce_time, p, ball):
            continue
        for k in range(5):
            if deep:
                height, pitch = 0.0, 0.15 * k
            else:
                height = (k - 2) * 0.025
                pitch = _pitch_for_depth(ball[1] - rob[R_BASE_Y], rob[R_LENGTH] + height, rob[R_OFFSET])
                if not math.isfinite(pitch):
                    continue
            for side in range(3):
                yaw = (side - 1) * 0.2
                gantry_rotation(yaw, pitch, rot)
                _set_normal(yaw, pitch, n)
                _pitch_rate_velocity(pitch, yaw, height, rob, swing_v)
                for a in range(3):
                    centre[a] = ball[a] - rob[R_OFFSET] * n[a] - height * rot[a, 2]
                axis = 0
                for a in range(3):
                    if a == 1 and not deep:
                        continue
                    q[axis] = centre[a] - rob[R_LENGTH] * rot[a, 2] - rob[R_BASE_X + a]
                    axis += 1
                q[axis], q[axis + 1] = yaw, pitch
                for fast in range(4):
                    rate = -4.0 * fast
                    for a in range(3):
                        face[a] = rate * swing_v[a]
                    if not strike(ball[3:6], ball[6:9], n, face, p, vout, wout):
                        continue
                    up = vout[2] + math.sqrt(max(vout[2] * vout[2] + 19.6 * (ball[2] - 0.02), 0.0))
                    if up <= 0.0 or vout[1] <= 0.0:
                        continue
                    flight = up / 9.81
                    dx = ball[0] + vout[0] * flight
                    dy = ball[1] + 0.93 * vout[1] * flight - 0.75
                    cost = math.sqrt(dx * dx + dy * dy)
                    cross = -ball[1] / vout[1]
                    if ball[2] + vout[2] * cross - 4.9 * cross * cross < NET_HEIGHT_M + 0.05:
                        cost += 2.0
                    if cost >= best:
                        continue
                    qd[joints - 1] = rate
                    if box_separation(centre, rot, half, table_box) < 0.012:
                        continue
                    share = swing_load(
                        q0, qd0, qdd0, q, qd, t - start_time, lower, upper, max_vel, max_acc, 0.9, 0.6
                    )
                    if share > limit:
                        continue
                    best = cost
                    out[O_LOAD], out[O_TIME] = share, t
                    for j in range(joints):
                        out[O_Q + j], out[O_QD + j] = q[j], qd[j]
                    for a in range(3):
                        out[O_CENTRE + a] = centre[a]
    return best
