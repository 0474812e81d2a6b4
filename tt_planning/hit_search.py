"""Search for the best hit of a gantry: compiled evaluation of one candidate and the search over many.

A candidate is (hit time, flight time of the return, aim x, aim y, tilt, extra):

* gantry4: the depth of the ball fixes the pitch; `tilt` is the height in metres on the blade where the ball
  touches, which trades against it; `extra` is the speed of the x axis at the hit.
* gantry5: `tilt` is the pitch itself; `extra` is the pitch rate, the depth axis does the rest.

The yaw follows from the wanted outgoing direction. Everything else (racket velocity, spin of the return) follows exactly
from the contact law and the flight model. The cost is the probability that the ball is not returned plus
the expected landing error, from the covariance of the ball and the errors of the actuators, plus what the motion
demands of the joints.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from tt_estimation.ball_models import P_RADIUS
from tt_estimation.flight import rk4_step
from tt_perception.table import NET_HEIGHT_M, NET_OVERHANG_M, TABLE_LENGTH_M, TABLE_WIDTH_M
from tt_planning.aiming import effective_time, shoot
from tt_planning.keep_out import box_separation
from tt_planning.kinematics import gantry_rotation
from tt_planning.racket_contact import face_velocity, strike
from tt_planning.trajectory import swing_joint

# Candidate vector.
X_TIME, X_FLIGHT, X_AIM_X, X_AIM_Y, X_TILT, X_EXTRA = range(6)
N_X = 6

# Robot vector.
R_DEPTH, R_BASE_X, R_BASE_Y, R_BASE_Z, R_LENGTH, R_OFFSET, R_FACE, R_HALF_W, R_HALF_H, R_HALF_T = range(10)
N_R = 10

# Noise vector: standard deviations of the actuators.
S_LINEAR, S_ANGLE, S_SPEED, S_RATE, S_TIME = range(5)
N_S = 5

# Weights and limits of the cost.
W_LANDING, W_LOAD, W_EFFORT, W_CHANGE, W_NET, W_EASY, W_END_ACC, W_EDGE, W_LIMIT, W_AIMED = range(10)
N_W = 10

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
N_O = 31

# Why a candidate is no good, in the order in which it is found.
C_OK, C_TIME, C_DEPTH, C_PUSH, C_FRICTION, C_AIM, C_NET, C_LIMIT, C_TABLE = range(9)

_HALF_TABLE_X = 0.5 * TABLE_WIDTH_M
_HALF_TABLE_Y = 0.5 * TABLE_LENGTH_M


@njit(cache=True, nogil=True)
def ball_at(
    t: float, times: np.ndarray, states: np.ndarray, bounce_index: int, bounce_time: float, p: np.ndarray, out: np.ndarray
) -> bool:
    """Predicted ball state (9,) at time `t` on the path, by one RK4 step from the nearest sample before; False outside."""
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
def _pitch_for_depth(depth: float, yaw: float, arm: float, offset: float) -> float:
    """θ with cosψ (offset cosθ − arm sinθ) = depth; NaN when out of reach."""
    d = depth / math.cos(yaw)
    r = math.sqrt(offset * offset + arm * arm)
    if abs(d) > r:
        return math.nan
    return math.acos(d / r) - math.atan2(arm, offset)


@njit(cache=True, nogil=True)
def _set_normal(yaw: float, pitch: float, n: np.ndarray) -> None:
    cp = math.cos(pitch)
    n[0] = -math.sin(yaw) * cp
    n[1] = math.cos(yaw) * cp
    n[2] = math.sin(pitch)


@njit(cache=True, nogil=True)
def _lateral(
    yaw: float,
    x: np.ndarray,
    rob: np.ndarray,
    b: np.ndarray,
    v: np.ndarray,
    w: np.ndarray,
    wanted: np.ndarray,
    p: np.ndarray,
    n: np.ndarray,
    face: np.ndarray,
) -> tuple[float, float, float]:
    """(speed of the x axis − wanted speed, pitch, friction shortfall) for one yaw; sets `n` and `face`."""
    deep = rob[R_DEPTH] > 0.5
    if deep:
        pitch = x[X_TILT]
    else:
        pitch = _pitch_for_depth(b[1] - rob[R_BASE_Y], yaw, rob[R_LENGTH] + x[X_TILT], rob[R_OFFSET])
        if not math.isfinite(pitch):
            return math.nan, pitch, 0.0
    _set_normal(yaw, pitch, n)
    short = face_velocity(v, w, n, wanted, p, face)
    side = math.cos(yaw) * face[0] + math.sin(yaw) * face[1]
    return side - (0.0 if deep else x[X_EXTRA] * math.cos(yaw)), pitch, short


@njit(cache=True, nogil=True)
def _solve_pose(
    x: np.ndarray,
    rob: np.ndarray,
    b: np.ndarray,
    v: np.ndarray,
    w: np.ndarray,
    wanted: np.ndarray,
    p: np.ndarray,
    yaw0: float,
    n: np.ndarray,
    face: np.ndarray,
) -> tuple[int, float, float, float]:
    """Yaw by the secant method so that the face need not slide sideways: (code, yaw, pitch, friction shortfall)."""
    ya = min(max(yaw0, -1.2), 1.2)
    fa, pitch, short = _lateral(ya, x, rob, b, v, w, wanted, p, n, face)
    if not math.isfinite(fa):
        return (C_PUSH if math.isfinite(pitch) else C_DEPTH), ya, pitch, short
    yb = ya + 0.02
    for _ in range(8):
        fb, pitch, short = _lateral(yb, x, rob, b, v, w, wanted, p, n, face)
        if not math.isfinite(fb):
            return (C_PUSH if math.isfinite(pitch) else C_DEPTH), yb, pitch, short
        if abs(fb) < 1e-7 or fb == fa:
            break
        step = -fb * (yb - ya) / (fb - fa)
        step = min(max(step, -0.4), 0.4)
        ya, fa = yb, fb
        yb = min(max(yb + step, -1.3), 1.3)
    return C_OK, yb, pitch, short


@njit(cache=True, nogil=True)
def _flight(
    b: np.ndarray, v: np.ndarray, w: np.ndarray, p: np.ndarray, duration: float, end: np.ndarray
) -> tuple[float, float]:
    """(height at the net, time of the crossing) of a return; +inf when it passes beside the net or not at all."""
    n = max(1, int(math.ceil(duration / 0.05)))
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
    out: np.ndarray,
) -> float:
    """Cost of one candidate `x` (6,); details to `out` (31,). Above 10 it cannot be done, `out[O_CODE]` says why.

    `fine` False does fewer correction rounds and no path check, enough to rank candidates. Times count from the
    capture stamp. `last` (6,) is the previous target for smoothness, NaN when there is none.
    """
    out[O_CODE] = C_TIME
    t = x[X_TIME]
    swing = t - start_time
    if t < earliest or swing < 0.012:
        return 100.0 + max(0.0, earliest - t) + max(0.0, 0.012 - swing)
    ball = np.empty(9)
    if not ball_at(t, times, states, bounce_index, bounce_time, p, ball):
        return 100.0
    b, v, w = ball[0:3], ball[3:6], ball[6:9]
    target = np.empty(3)
    target[0], target[1], target[2] = x[X_AIM_X], x[X_AIM_Y], p[P_RADIUS]
    duration = x[X_FLIGHT]
    vout = np.full(3, math.nan)
    wout = np.empty(3)
    got = np.empty(3)
    end = np.empty(9)
    n = np.empty(3)
    face = np.empty(3)
    m = np.empty(3)
    for i in range(3):
        wout[i] = 0.3 * w[i]
    yaw = math.nan
    pitch = 0.0
    miss = math.inf
    for k in range(5 if fine else 2):
        miss = shoot(b, wout, target, duration, p, 2e-4, 4 if fine else 2, vout, end)
        if not math.isfinite(miss):
            out[O_CODE] = C_AIM
            return 50.0
        if k == 0:
            yaw = math.atan2(-(vout[0] - v[0]), max(vout[1] - v[1], 0.1))
        code, yaw, pitch, short = _solve_pose(x, rob, b, v, w, vout, p, yaw, n, face)
        if code != C_OK:
            out[O_CODE] = code
            if code == C_DEPTH:
                return 60.0 + abs(b[1] - rob[R_BASE_Y])
            return 50.0
        if short > 1e-6:
            out[O_CODE] = C_FRICTION
            return 30.0 + short
        strike(v, w, n, face, p, got, m)
        change = 0.0
        for i in range(3):
            change = max(change, abs(m[i] - wout[i]))
            wout[i] = m[i]
        if change < 0.05 and miss < 2e-4:
            break
    cy, sy, cp, sp = math.cos(yaw), math.sin(yaw), math.cos(pitch), math.sin(pitch)
    rot = np.empty((3, 3))
    gantry_rotation(yaw, pitch, rot)
    deep = rob[R_DEPTH] > 0.5
    height = 0.0 if deep else x[X_TILT]
    arm = rob[R_LENGTH] + height
    # Velocity of the contact point by pitch rate: −arm n + face z_racket.
    yv = -arm * n[1] + rob[R_FACE] * rot[1, 2]
    zv = -arm * n[2] + rob[R_FACE] * rot[2, 2]
    xv = -arm * n[0] + rob[R_FACE] * rot[0, 2]
    q = out[O_Q : O_Q + 5]
    qd = out[O_QD : O_QD + 5]
    for i in range(3):
        out[O_CENTRE + i] = b[i] - rob[R_OFFSET] * n[i] - height * rot[i, 2]
    length = rob[R_LENGTH]
    if deep:
        rate = x[X_EXTRA]
        q[0] = out[O_CENTRE] - length * rot[0, 2] - rob[R_BASE_X]
        q[1] = out[O_CENTRE + 1] - length * rot[1, 2] - rob[R_BASE_Y]
        q[2] = out[O_CENTRE + 2] - length * rot[2, 2] - rob[R_BASE_Z]
        q[3], q[4] = yaw, pitch
        qd[0] = face[0] - rate * xv
        qd[1] = face[1] - rate * yv
        qd[2] = face[2] - rate * zv
        qd[3], qd[4] = 0.0, rate
        joints = 5
    else:
        rate = face[1] / yv
        q[0] = out[O_CENTRE] - length * rot[0, 2] - rob[R_BASE_X]
        q[1] = out[O_CENTRE + 2] - length * rot[2, 2] - rob[R_BASE_Z]
        q[2], q[3] = yaw, pitch
        qd[0] = face[0] - rate * xv
        qd[1] = face[2] - rate * zv
        qd[2], qd[3] = 0.0, rate
        joints = 4
    for i in range(3):
        out[O_POS + i] = b[i]
        out[O_NORMAL + i] = n[i]
        out[O_VOUT + i] = vout[i]
        out[O_WOUT + i] = wout[i]
    # What the joints must do in the time left.
    c = np.empty(6)
    work = np.empty(5)
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
            c,
            work,
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
    p_hit = _within(-edge_w, edge_w, math.sqrt(var_side)) * _within(
        -edge_h - height, edge_h - height, math.sqrt(var_up)
    )
    # Landing errors: outgoing velocity by face velocity, spin, normal (finite differences of the exact law).
    speed = math.sqrt(vout[0] ** 2 + vout[1] ** 2 + vout[2] ** 2)
    reach = effective_time(speed, duration, p)
    down = min(end[5], -0.3)
    gx, gy = end[3] / down, end[4] / down
    near = effective_time(speed, crossing, p) if crossing > 0.0 else 0.0
    steep = (vout[2] - 9.81 * crossing) / max(vout[1], 0.3)
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
            turn = rate if kind == 6 else 0.0
            sigma = math.sqrt(noise[S_ANGLE] ** 2 + turn * turn * time_var)
        d0 = (plus[0] - got[0]) * scale
        d1 = (plus[1] - got[1]) * scale
        d2 = (plus[2] - got[2]) * scale
        lx = reach * (d0 - gx * d2)
        ly = reach * (d1 - gy * d2)
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
    if weight[W_AIMED] > 0.0:
        cost += weight[W_AIMED] * ((x[X_AIM_X]) ** 2 + (x[X_AIM_Y] - 0.75) ** 2)
    if math.isfinite(last[0]):
        dt = (t - last[X_TIME]) / 0.02
        df = (duration - last[X_FLIGHT]) / 0.1
        da = (x[X_TILT] - last[X_TILT]) / (0.3 if deep else 0.03)
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
    """Best candidate: rank the rows of `grid` (n, 6), then a pattern search from the winner; cost of `best` (6,).

    `steps` (6,) are the first steps of the pattern search, 0 for a value that stays; at most `budget` candidates are tried.
    """
    cost = math.inf
    for i in range(grid.shape[0]):
        f = evaluate(
            grid[i], times, states, pos_cov, state_cov, bounce_index, bounce_time, earliest, p, rob, lower, upper,
            max_vel, max_acc, start_time, q0, qd0, qdd0, noise, weight, table_box, last, False, out,
        )  # fmt: skip
        if f < cost:
            cost = f
            for k in range(N_X):
                best[k] = grid[i, k]
    x = np.empty(N_X)
    step = steps.copy()
    used = 0
    rounds = 0
    while used < budget and rounds < 5:
        improved = False
        for k in range(N_X):
            if step[k] == 0.0:
                continue
            for sign in range(2):
                for i in range(N_X):
                    x[i] = best[i]
                x[k] += step[k]
                used += 1
                f = evaluate(
                    x, times, states, pos_cov, state_cov, bounce_index, bounce_time, earliest, p, rob, lower, upper,
                    max_vel, max_acc, start_time, q0, qd0, qdd0, noise, weight, table_box, last, False, out,
                )  # fmt: skip
                if f < cost:
                    cost = f
                    best[k] = x[k]
                    improved = True
                    break
                step[k] = -step[k]
            if used >= budget:
                break
        if not improved:
            rounds += 1
            for k in range(N_X):
                step[k] *= 0.5
    return evaluate(
        best, times, states, pos_cov, state_cov, bounce_index, bounce_time, earliest, p, rob, lower, upper,
        max_vel, max_acc, start_time, q0, qd0, qdd0, noise, weight, table_box, last, True, out,
    )  # fmt: skip
