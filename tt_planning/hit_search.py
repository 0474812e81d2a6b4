"""Search for the best hit: compiled evaluation of one candidate and the search over many.

A candidate is (rise, flight time of the return, aim x, aim y, place, extra, side):

* `rise` is the speed of the z axis at the hit;
* gantry4: `place` is the height in metres on the blade where the ball touches, `extra` the speed of the x axis;
* gantry5: `place` is the hit time in seconds, `extra` the pitch rate;
* `side` is the distance across the blade at which the ball touches: some more reach at the ends of the x axis.

For each candidate pitch, yaw and forward speed of the face are solved so that the struck ball is on the aim at the end
of the flight time (`shot`). The cost is the probability that the ball is not returned plus the expected landing error,
from the covariance of the ball and the errors of the actuators (`landing_risk`), plus what the motion demands of
the joints (`swing`).
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from tt_estimation.ball_models import P_RADIUS
from tt_estimation.flight import rk4_step
from tt_perception.table import NET_HEIGHT_M, NET_OVERHANG_M
from tt_planning import hit_problem as hp
from tt_planning.ball_path import ball_at
from tt_planning.hit_problem import HitProblem
from tt_planning.keep_out import box_separation
from tt_planning.kinematics import gantry_rotation
from tt_planning.landing_risk import HALF_TABLE_X, HALF_TABLE_Y, assess
from tt_planning.racket_contact import strike
from tt_planning.shot import first_guess, pitch_rate_velocity, set_normal, solve_shot
from tt_planning.swing import swing_load

POSSIBLE = 10.0  # costs above are those of candidates that cannot be done
_CLEAR_M = 0.012  # from the racket to the table
_EDGE_M = 0.03  # the returned ball may pass the end of the table by so much less than the net
_COARSE_STEP_S = 0.2  # RK4 steps of a flight that is only ranked: millimetres


@njit(cache=True, nogil=True)
def _height_at(y: float, half_width: float, s: np.ndarray, end: np.ndarray, h: float) -> float:
    """Height where a step of `h` seconds from `s` to `end` passes `y`; infinity when it does not, or beside it."""
    if not s[1] < y <= end[1]:
        return math.inf
    f = (y - s[1]) / (end[1] - s[1])
    if abs(s[0] + f * (end[0] - s[0])) > half_width:
        return math.inf
    # Cubic Hermite over the step.
    g = 1.0 - f
    return (
        s[2] * g * g * (1.0 + 2.0 * f)
        + end[2] * f * f * (3.0 - 2.0 * f)
        + h * f * g * (s[5] * g - end[5] * f)
    )


@njit(cache=True, nogil=True)
def _flight(
    b: np.ndarray, v: np.ndarray, w: np.ndarray, p: np.ndarray, duration: float, step: float, end: np.ndarray
) -> tuple[float, float]:
    """(gap to the net, time of its crossing) of a return; the gap to the own end of the table counts when smaller.

    Infinity when it passes beside both. The end of the table is nearer to the racket than the net, so the ball needs
    `_EDGE_M` less of a gap there.
    """
    n = max(1, math.ceil(duration / step - 1e-9))
    h = duration / n
    s = np.empty(9)
    for i in range(3):
        s[i], s[3 + i], s[6 + i] = b[i], v[i], w[i]
    gap, crossing = math.inf, 0.0
    for k in range(n):
        rk4_step(s, p, h, end)
        gap = min(gap, _height_at(0.0, HALF_TABLE_X + NET_OVERHANG_M, s, end, h) - NET_HEIGHT_M)
        gap = min(gap, _height_at(-HALF_TABLE_Y, HALF_TABLE_X, s, end, h) + _EDGE_M)
        if s[1] < 0.0 <= end[1]:
            crossing = (k + s[1] / (s[1] - end[1])) * h
        for i in range(9):
            s[i] = end[i]
    return gap - p[P_RADIUS], crossing


@njit(cache=True, nogil=True)
def _pose(
    x: np.ndarray, g: HitProblem, u: np.ndarray, hit: np.ndarray, rot: np.ndarray, out: np.ndarray
) -> float:
    """Joints and their velocities at the hit, racket axes `rot` (3, 3), blade centre; the pitch rate."""
    rob = g.rob
    deep = rob[hp.R_DEPTH] > 0.5
    pitch, yaw = u[0], u[1]
    height = 0.0 if deep else x[hp.X_PLACE]
    swing_v = np.empty(3)
    pitch_rate_velocity(pitch, yaw, height, rob, swing_v)
    rate = x[hp.X_EXTRA] if deep else hit[13] / swing_v[1]
    gantry_rotation(yaw, pitch, rot)
    axis = 0
    for i in range(3):
        out[hp.O_CENTRE + i] = (
            hit[i] - rob[hp.R_OFFSET] * hit[9 + i] - height * rot[i, 2] - x[hp.X_SIDE] * rot[i, 0]
        )
        if i == 1 and not deep:
            continue
        out[hp.O_Q + axis] = out[hp.O_CENTRE + i] - rob[hp.R_LENGTH] * rot[i, 2] - rob[hp.R_BASE_X + i]
        out[hp.O_QD + axis] = hit[12 + i] - rate * swing_v[i]
        axis += 1
    out[hp.O_Q + axis], out[hp.O_Q + axis + 1] = yaw, pitch
    out[hp.O_QD + axis], out[hp.O_QD + axis + 1] = 0.0, rate
    return rate


@njit(cache=True, nogil=True)
def _write_stroke(t: float, hit: np.ndarray, out: np.ndarray) -> None:
    """Ball, normal and outgoing ball of a solved shot to the result vector."""
    out[hp.O_TIME] = t
    for i in range(3):
        out[hp.O_POS + i] = hit[i]
        out[hp.O_NORMAL + i] = hit[9 + i]
        out[hp.O_VOUT + i] = hit[15 + i]
        out[hp.O_WOUT + i] = hit[18 + i]


@njit(cache=True, nogil=True)
def _clearance(
    x: np.ndarray, g: HitProblem, hit: np.ndarray, step: float, end: np.ndarray, out: np.ndarray
) -> float:
    """Gap between the returned ball and the net to `O_CLEARANCE`; time from the hit to the net, 0 beside it."""
    out[hp.O_CLEARANCE], crossing = _flight(hit[0:3], hit[15:18], hit[18:21], g.p, x[hp.X_FLIGHT], step, end)
    return crossing


@njit(cache=True, nogil=True)
def _load(g: HitProblem, q: np.ndarray, qd: np.ndarray, t: float, enough: float, loads: np.ndarray) -> float:
    """`swing_load` of joints `q` that move with `qd` at the hit time."""
    return swing_load(
        g.q0, g.qd0, g.qdd0, q, qd, t - g.start_time, g.lower, g.upper, g.max_vel, g.max_acc, enough, loads
    )


@njit(cache=True, nogil=True)
def evaluate(
    x: np.ndarray, g: HitProblem, last: np.ndarray, fine: bool, inverse: np.ndarray, out: np.ndarray
) -> float:
    """Cost of one candidate `x` (7,); details to `out` (35,). Above `POSSIBLE` it cannot be done, `O_CODE` says why.

    `fine` False does fewer and coarser correction rounds, enough to rank candidates. `out[O_U]` and `inverse` are first
    guesses for `solve_shot`, NaN for none. `last` (7,) is the previous target for smoothness, NaN when there is none.
    """
    rob, weight = g.rob, g.weight
    deep = rob[hp.R_DEPTH] > 0.5
    out[hp.O_CODE] = hp.C_TIME
    if g.latest <= g.earliest:
        return 100.0
    duration = x[hp.X_FLIGHT]
    if not 0.15 < duration < 1.6:
        return 90.0
    if abs(x[hp.X_AIM_X]) > HALF_TABLE_X - 0.06 or not 0.15 < x[hp.X_AIM_Y] < HALF_TABLE_Y - 0.08:
        return 80.0
    if abs(x[hp.X_SIDE]) > rob[hp.R_HALF_W] - 0.02 or (
        not deep and abs(x[hp.X_PLACE]) > rob[hp.R_HALF_H] - 0.02
    ):
        return 80.0
    hit = np.empty(21)
    end = np.empty(9)
    u = out[hp.O_U : hp.O_U + 3]
    if not math.isfinite(u[0]) and not first_guess(x, g, u):
        out[hp.O_CODE] = hp.C_AIM
        return 60.0
    step = 0.05 if fine else _COARSE_STEP_S
    tolerance, rounds = (1e-4, 25) if fine else (5e-3, 8)
    t, miss = solve_shot(x, g, step, tolerance, rounds, u, inverse, hit, end)
    if not math.isfinite(t):
        out[hp.O_CODE] = hp.C_DEPTH
        return 60.0
    if miss > (5e-4 if fine else 2e-2):
        out[hp.O_CODE] = hp.C_AIM
        return 50.0 + min(miss, 5.0)
    _write_stroke(t, hit, out)
    if t - g.start_time < 0.012:
        return 100.0
    rot = np.empty((3, 3))
    rate = _pose(x, g, u, hit, rot, out)
    # What the joints must do in the time left.
    joints = 5 if deep else 4
    loads = np.empty(joints)
    share = _load(g, out[hp.O_Q : hp.O_Q + joints], out[hp.O_QD : hp.O_QD + joints], t, math.inf, loads)
    effort = 0.0
    for j in range(joints):
        r = out[hp.O_QD + j] / g.max_vel[j]
        effort += loads[j] * loads[j] + r * r
    out[hp.O_LOAD] = share
    if share > weight[hp.W_LIMIT]:
        out[hp.O_CODE] = hp.C_LIMIT
        return 20.0 + min(share, 9.0)
    half = np.empty(3)
    half[0], half[1], half[2] = rob[hp.R_HALF_W], rob[hp.R_HALF_T], rob[hp.R_HALF_H]
    if box_separation(out[hp.O_CENTRE : hp.O_CENTRE + 3], rot, half, g.table_box) < _CLEAR_M:
        out[hp.O_CODE] = hp.C_TABLE
        return 20.0
    crossing = _clearance(x, g, hit, 0.5 * step, end, out)
    if out[hp.O_CLEARANCE] < weight[hp.W_NET]:
        out[hp.O_CODE] = hp.C_NET
        return 15.0 + min(4.0, weight[hp.W_NET] - out[hp.O_CLEARANCE])
    height, side = 0.0 if deep else x[hp.X_PLACE], x[hp.X_SIDE]
    assess(x, g, t, hit, end, rot, height, side, rate, crossing, out)
    out[hp.O_CODE] = hp.C_OK
    cost = 1.0 - out[hp.O_P_HIT] * out[hp.O_P_LAND] + weight[hp.W_LANDING] * out[hp.O_ERROR]
    heavy = max(0.0, share - 0.6)
    cost += weight[hp.W_LOAD] * heavy * heavy + weight[hp.W_EFFORT] * effort
    cost += weight[hp.W_PLACE] * ((height / rob[hp.R_HALF_H]) ** 2 + (side / rob[hp.R_HALF_W]) ** 2)
    if weight[hp.W_AIMED] > 0.0:
        cost += weight[hp.W_AIMED] * ((x[hp.X_AIM_X]) ** 2 + (x[hp.X_AIM_Y] - 0.75) ** 2)
    if math.isfinite(last[0]):
        dt = (x[hp.X_RISE] - last[hp.X_RISE]) / 0.5
        df = (duration - last[hp.X_FLIGHT]) / 0.1
        da = (x[hp.X_PLACE] - last[hp.X_PLACE]) / (0.02 if deep else 0.03)
        cost += weight[hp.W_CHANGE] * (dt * dt + df * df + da * da)
    return cost


@njit(cache=True, nogil=True)
def search(
    grid: np.ndarray,
    steps: np.ndarray,
    budget: int,
    g: HitProblem,
    last: np.ndarray,
    u: np.ndarray,
    inverse: np.ndarray,
    best: np.ndarray,
    out: np.ndarray,
) -> float:
    """Best candidate: rank the rows of `grid` (n, 7), then a pattern search from the winner; cost of `best` (7,).

    Args:
        grid: candidates; the last row is the one that `u` and `inverse` belong to.
        steps: first steps of the pattern search, shape (7,), 0 for a value that stays.
        budget: at most so many candidates are tried after those of the grid.
        g: inputs of the decision.
        last: previous target, NaN when there is none.
        u, inverse: solution of the shot (3,) and inverse Jacobian (3, 3) of the last row, NaN when unknown; those of
            the best candidate afterwards, for the next decision.
        best: receives the best candidate.
        out: receives its details.
    """
    cost = math.inf
    known = u.copy()
    known_inverse = inverse.copy()
    trial = np.empty((3, 3))
    rows = grid.shape[0]
    for k in range(hp.N_X):
        best[k] = grid[rows - 1, k]
    for i in range(rows):
        warm = i == rows - 1
        for k in range(3):
            out[hp.O_U + k] = known[k] if warm else math.nan
        trial[:] = known_inverse
        if not warm:
            trial[0, 0] = math.nan
        f = evaluate(grid[i], g, last, False, trial, out)
        if f < cost:
            cost = f
            inverse[:] = trial
            for k in range(3):
                u[k] = out[hp.O_U + k]
            for k in range(hp.N_X):
                best[k] = grid[i, k]
    x = np.empty(hp.N_X)
    step = steps.copy()
    used = 0
    rounds = 0
    while used < budget and rounds < 4 and cost < 45.0:
        improved = False
        for k in range(hp.N_X):
            if step[k] == 0.0:
                continue
            for _ in range(2):
                for i in range(hp.N_X):
                    x[i] = best[i]
                x[k] += step[k]
                used += 1
                trial[:] = inverse
                for i in range(3):
                    out[hp.O_U + i] = u[i]
                f = evaluate(x, g, last, False, trial, out)
                if f < cost:
                    cost = f
                    best[k] = x[k]
                    inverse[:] = trial
                    for i in range(3):
                        u[i] = out[hp.O_U + i]
                    improved = True
                    break
                step[k] = -step[k]
            if used >= budget:
                break
        if not improved:
            rounds += 1
            for k in range(hp.N_X):
                step[k] *= 0.5
    for i in range(3):
        out[hp.O_U + i] = u[i]
    if cost > 45.0:
        out[hp.O_U] = math.nan
        inverse[0, 0] = math.nan
    cost = evaluate(best, g, last, True, inverse, out)
    for i in range(3):
        u[i] = out[hp.O_U + i]
    return cost


@njit(cache=True, nogil=True)
def free_stroke(x: np.ndarray, g: HitProblem, out: np.ndarray) -> int:
    """Blade centre, normal and face speed along it for hit time `x[X_PLACE]`, flight time and aim; a code.

    For robots that can take any pose (`rob[R_DEPTH]` = 2); the joints are the caller's business. `out` gets what
    `evaluate` writes about ball, racket and risk, and the face velocity at `O_QD` (3).
    """
    hit = np.empty(21)
    end = np.empty(9)
    rot = np.empty((3, 3))
    u = out[hp.O_U : hp.O_U + 3]
    inverse = np.full((3, 3), math.nan)
    if not first_guess(x, g, u):
        return hp.C_AIM
    t, miss = solve_shot(x, g, 0.05, 1e-4, 20, u, inverse, hit, end)
    if not math.isfinite(t):
        return hp.C_TIME
    if miss > 5e-4:
        return hp.C_AIM
    _write_stroke(t, hit, out)
    for i in range(3):
        out[hp.O_QD + i] = hit[12 + i]
        out[hp.O_CENTRE + i] = hit[i] - g.rob[hp.R_OFFSET] * hit[9 + i]
    crossing = _clearance(x, g, hit, 0.05, end, out)
    if out[hp.O_CLEARANCE] < g.weight[hp.W_NET]:
        return hp.C_NET
    # Turning the blade about its normal changes little on a face that is nearly square.
    gantry_rotation(u[1], u[0], rot)
    assess(x, g, t, hit, end, rot, 0.0, 0.0, 0.0, crossing, out)
    return hp.C_OK


@njit(cache=True, nogil=True)
def _pitch_for_depth(depth: float, arm: float, offset: float) -> float:
    """θ with offset cosθ − arm sinθ = depth (at yaw 0); NaN when out of reach."""
    r = math.sqrt(offset * offset + arm * arm)
    if abs(depth) > r:
        return math.nan
    return math.acos(depth / r) - math.atan2(arm, offset)


@njit(cache=True, nogil=True)
def _rebound(ball: np.ndarray, n: np.ndarray, face: np.ndarray, p: np.ndarray, after: np.ndarray) -> float:
    """How far from the middle of the opponent's half a blocked ball lands (vacuum parabola), 2 m more by the net.

    Infinity when it does not fly towards the opponent. `after` (6,) is work space.
    """
    vout, wout = after[0:3], after[3:6]
    if not strike(ball[3:6], ball[6:9], n, face, p, vout, wout):
        return math.inf
    up = vout[2] + math.sqrt(max(vout[2] * vout[2] + 19.6 * (ball[2] - 0.02), 0.0))
    if up <= 0.0 or vout[1] <= 0.0:
        return math.inf
    flight = up / 9.81
    dx = ball[0] + vout[0] * flight
    dy = ball[1] + 0.93 * vout[1] * flight - 0.75
    cross = -ball[1] / vout[1]
    low = ball[2] + vout[2] * cross - 4.9 * cross * cross < NET_HEIGHT_M + 0.05
    return math.sqrt(dx * dx + dy * dy) + (2.0 if low else 0.0)


@njit(cache=True, nogil=True)
def block(g: HitProblem, out: np.ndarray) -> float:
    """Put the racket in the way: joints at rest or with a little pitch rate; returns a cost, infinity for none.

    Among the poses the joints reach in time the one whose rebound lands nearest to the middle of the opponent's half
    wins; details in `out` as `evaluate` writes them.
    """
    rob = g.rob
    deep = rob[hp.R_DEPTH] > 0.5
    limit = g.weight[hp.W_LIMIT]
    ball = np.empty(9)
    n = np.empty(3)
    face = np.empty(3)
    after = np.empty(6)
    swing_v = np.empty(3)
    rot = np.empty((3, 3))
    centre = np.empty(3)
    half = np.empty(3)
    half[0], half[1], half[2] = rob[hp.R_HALF_W], rob[hp.R_HALF_T], rob[hp.R_HALF_H]
    joints = 5 if deep else 4
    q = np.zeros(joints)
    qd = np.zeros(joints)
    loads = np.empty(joints)
    best = math.inf
    first = max(g.earliest, g.start_time + 0.015)
    for i in range(6):
        t = first + (g.latest - first) * i / 5.0
        if t < first or not ball_at(t, g.times, g.states, ball):
            continue
        for k in range(3):
            if deep:
                height, pitch = 0.0, 0.25 * k
            else:
                height = (k - 1) * 0.04
                pitch = _pitch_for_depth(
                    ball[1] - rob[hp.R_BASE_Y], rob[hp.R_LENGTH] + height, rob[hp.R_OFFSET]
                )
                if not math.isfinite(pitch):
                    continue
            for side in range(3):
                yaw = (side - 1) * 0.2
                gantry_rotation(yaw, pitch, rot)
                set_normal(yaw, pitch, n)
                axis = 0
                for a in range(3):
                    centre[a] = ball[a] - rob[hp.R_OFFSET] * n[a] - height * rot[a, 2]
                    if a == 1 and not deep:
                        continue
                    q[axis] = centre[a] - rob[hp.R_LENGTH] * rot[a, 2] - rob[hp.R_BASE_X + a]
                    axis += 1
                q[axis], q[axis + 1] = yaw, pitch
                qd[joints - 1] = 0.0
                # Only the pitch axis differs between the strokes of one pose: see first whether the pose can be had.
                if _load(g, q, qd, t, limit, loads) > limit:
                    continue
                if box_separation(centre, rot, half, g.table_box) < _CLEAR_M:
                    continue
                pitch_rate_velocity(pitch, yaw, height, rob, swing_v)
                for fast in range(4):
                    rate = -4.0 * fast
                    for a in range(3):
                        face[a] = rate * swing_v[a]
                    cost = _rebound(ball, n, face, g.p, after)
                    if cost >= best:
                        continue
                    qd[joints - 1] = rate
                    share = _load(g, q, qd, t, limit, loads)
                    if share > limit:
                        continue
                    best = cost
                    out[hp.O_LOAD], out[hp.O_TIME] = share, t
                    for j in range(joints):
                        out[hp.O_Q + j], out[hp.O_QD + j] = q[j], qd[j]
                    for a in range(3):
                        out[hp.O_CENTRE + a] = centre[a]
    return best
