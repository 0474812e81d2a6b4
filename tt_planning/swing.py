"""How one joint swings to the hit: straight, or by way of a wind-up.

A single quintic to a moving end state overshoots backwards by a share of speed × duration, which breaks position limits
when there is plenty of time. So a joint may first go to rest at a wind-up position and swing from there in
the last tenths of a second. Planner and generator share this rule.
"""

from __future__ import annotations

import numpy as np
from numba import njit

from tt_planning.quintic import best_end_acceleration, coefficients, load

# Entries of the result vector of `swing_joint`.
SW_LOAD = 0  # largest share of a limit over the whole swing
SW_LEAD = 1  # duration of the last part, s; 0 for a straight swing
SW_WAIT = 2  # position of the wind-up
SW_END_ACC = 3  # acceleration at the hit
N_SW = 4

EASY_LOAD = 0.9  # up to this share of the limits a swing ends with zero acceleration
END_ACC_SHARE = 0.6  # harder ones may end with this share of the acceleration limit, which lowers their peak
_EASY_STRAIGHT = 0.55  # a straight swing this easy is not compared with wind-ups
_LEADS = np.array([0.06, 0.1, 0.15, 0.22])  # durations of the last part that are tried, s
_MIN_WAIT_S = 0.03


@njit(cache=True, nogil=True)
def swing_joint(
    p0: float,
    v0: float,
    a0: float,
    p1: float,
    v1: float,
    duration: float,
    lower: float,
    upper: float,
    max_vel: float,
    max_acc: float,
    plan: np.ndarray,
) -> float:
    """Plan the swing of one joint from (p0, v0, a0) to (p1, v1) in `duration`; load, details in `plan` (4,).

    The way with the smallest load wins. A straight swing whose load is above `EASY_LOAD` may end with an
    acceleration of up to `END_ACC_SHARE` of the limit.
    """
    c = np.empty(6)
    work = np.empty(5)
    coefficients(p0, v0, a0, p1, v1, 0.0, duration, c)
    best = load(c, duration, lower, upper, max_vel, max_acc, work)
    plan[SW_LOAD], plan[SW_LEAD], plan[SW_WAIT], plan[SW_END_ACC] = best, 0.0, p1, 0.0
    if best <= _EASY_STRAIGHT:
        return best
    # No motion at all gets farther off its mean speed than a·T²/4, nor far with more than the largest speed.
    off = abs(p1 - p0 - 0.5 * (v0 + v1) * duration)
    if 4.0 * off > max_acc * duration * duration or abs(p1 - p0) > max_vel * duration:
        return best
    for k in range(_LEADS.shape[0]):
        lead = _LEADS[k]
        wait = duration - lead
        if wait < _MIN_WAIT_S:
            break
        p = min(max(p1 - 0.5 * v1 * lead, lower), upper)
        coefficients(p, 0.0, 0.0, p1, v1, 0.0, lead, c)
        share = load(c, lead, lower, upper, max_vel, max_acc, work)
        if share >= best:
            continue
        coefficients(p0, v0, a0, p, 0.0, 0.0, wait, c)
        share = max(share, load(c, wait, lower, upper, max_vel, max_acc, work))
        if share < best:
            best = share
            plan[SW_LOAD], plan[SW_LEAD], plan[SW_WAIT] = best, lead, p
    if best > EASY_LOAD and plan[SW_LEAD] == 0.0:
        a1 = best_end_acceleration(p0, v0, a0, p1, v1, duration, max_vel, max_acc, END_ACC_SHARE * max_acc)
        coefficients(p0, v0, a0, p1, v1, a1, duration, c)
        share = load(c, duration, lower, upper, max_vel, max_acc, work)
        if share < best:
            best = share
            plan[SW_LOAD], plan[SW_END_ACC] = best, a1
    return best


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
    enough: float,
    loads: np.ndarray,
) -> float:
    """Load of a swing of all joints (n,), with room to stop behind the hit; feasible when ≤ 1.

    Looks at no further joint once one needs more than `enough`. `loads` (n,) receives the load of each joint.
    """
    plan = np.empty(N_SW)
    share = 0.0
    for j in range(loads.shape[0]):
        s = swing_joint(
            q0[j], qd0[j], qdd0[j], q[j], qd[j], duration, lower[j], upper[j], max_vel[j], max_acc[j], plan
        )  # fmt: skip
        # 3/4 v²/a: the stop with a cubic velocity profile.
        rest = q[j] + 0.75 * qd[j] * abs(qd[j]) / max_acc[j]
        beyond = max(lower[j] - rest, rest - upper[j])
        if beyond > 0.0:
            s = max(s, 1.0 + beyond / (upper[j] - lower[j]))
        loads[j] = s
        share = max(share, s)
        if share > enough:
            break
    return share
