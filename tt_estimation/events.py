"""Flight between events: the first touch of table, net, a plane y = const or the floor, found as a root.

RK4 steps look for a sign change, then the event time is refined with a safeguarded Newton iteration on steps
from the same start, so the result depends on the step size only through the order of the integrator.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from tt_estimation.ball_models import P_E_TABLE, P_E_TABLE1, P_MU_TABLE, P_RADIUS
from tt_estimation.contact import contact, restitution
from tt_estimation.flight import rk4_step
from tt_perception.table import (
    NET_HEIGHT_M,
    NET_OVERHANG_M,
    TABLE_HEIGHT_M,
    TABLE_LENGTH_M,
    TABLE_WIDTH_M,
)

# Event codes; those that can be asked for are bits of the mask of `next_event`.
HORIZON = 0
TABLE = 1
NET = 2
PLANE = 4
FLOOR = 8
NOT_FINITE = 16

STEP_S = 0.01  # RK4 at 10 ms errs by 1e-6 mm after 0.4 s (reference table), far below any other error
ROLLING_SPEED_MPS = 0.05  # a rebound slower than this rises 0.1 mm: the ball rolls
SUNK_M = 0.03  # estimates may put the ball this deep into the table; deeper means it is beside or under it

_HALF_LENGTH = 0.5 * TABLE_LENGTH_M
_HALF_WIDTH = 0.5 * TABLE_WIDTH_M
_NET_HALF = _HALF_WIDTH + NET_OVERHANG_M
_Z = 2
_Y = 1


@njit(cache=True, nogil=True)
def _root(
    s: np.ndarray,
    p: np.ndarray,
    axis: int,
    level: float,
    lo: float,
    hi: float,
    falling: bool,
    out: np.ndarray,
) -> float:
    """Time in [lo, hi] at which coordinate `axis` passes `level`; `out` receives the state there.

    `falling` says the coordinate is above `level` at `lo` and below at `hi`.
    """
    sign = 1.0 if falling else -1.0
    t = 0.5 * (lo + hi)
    v = s[3 + axis]
    if v != 0.0:
        guess = (level - s[axis]) / v
        if lo < guess < hi:
            t = guess
    for _ in range(60):
        rk4_step(s, p, t, out)
        g = out[axis] - level
        if abs(g) < 1e-13:
            break
        if sign * g > 0.0:
            lo = t
        else:
            hi = t
        v = out[3 + axis]
        new = t - g / v if v != 0.0 else 0.5 * (lo + hi)
        if not lo < new < hi:
            new = 0.5 * (lo + hi)
        if new == t or hi - lo < 1e-15:
            break
        t = new
    return t


@njit(cache=True, nogil=True)
def net_gap(x: float, y: float, z: float, radius: float) -> float:
    """Gap between ball surface and the net, m; negative when they overlap. Posts are part of the net."""
    dx = max(0.0, abs(x) - _NET_HALF)
    dz = max(0.0, z - NET_HEIGHT_M)
    return math.sqrt(dx * dx + y * y + dz * dz) - radius


@njit(cache=True, nogil=True)
def _net_time(s: np.ndarray, e: np.ndarray, p: np.ndarray, h: float, work: np.ndarray) -> float:
    """Time of the first net touch within a step of `h` seconds from `s` to `e`; -1 when there is none."""
    r = p[P_RADIUS]
    ya, yb = s[1], e[1]
    if min(ya, yb) > r or max(ya, yb) < -r or min(s[2], e[2]) > NET_HEIGHT_M + r or e[2] < 0.0:
        return -1.0
    if net_gap(s[0], ya, s[2], r) <= 0.0:
        return -1.0
    lo, hi = 0.0, h
    # Only the part with |y| < r can touch: narrow the search to it so that a fast ball is not missed.
    if abs(ya) > r:
        level = r if ya > 0.0 else -r
        lo = _root(s, p, _Y, level, 0.0, h, ya > 0.0, work)
    if abs(yb) > r and ya * yb < 0.0:
        level = r if yb > 0.0 else -r
        hi = _root(s, p, _Y, level, lo, h, yb < 0.0, work)
    before = lo
    for i in range(17):
        t = lo + (hi - lo) * i / 16.0
        rk4_step(s, p, t, work)
        if net_gap(work[0], work[1], work[2], r) <= 1e-12:
            a, b = before, t
            for _ in range(50):
                if b - a < 1e-12:
                    break
                t = 0.5 * (a + b)
                rk4_step(s, p, t, work)
                if net_gap(work[0], work[1], work[2], r) > 0.0:
                    a = t
                else:
                    b = t
            return b
        before = t
    return -1.0


@njit(cache=True, nogil=True)
def next_event(
    s: np.ndarray, p: np.ndarray, t_max: float, step: float, mask: int, plane_y: float, out: np.ndarray
) -> tuple[int, float]:
    """Fly until the first event asked for, or `t_max`.

    Args:
        s: state (9,). p: parameter vector of a `BallModel`.
        t_max: longest flight, s. step: largest RK4 step, s (`STEP_S` is plenty).
        mask: sum of `TABLE`, `NET`, `PLANE`, `FLOOR`. TABLE is the touch of the table top from above; the
            contact is not applied (see `bounce_on_table`). PLANE is y = `plane_y`, either way.
        plane_y: m; ignored without PLANE.
        out: receives the state at the event (9,); may alias `s`.

    Returns:
        (event code, seconds after the start). `HORIZON` when nothing happened until `t_max`.
    """
    scratch = np.empty((4, 9))
    a, b, hit, work = scratch[0], scratch[1], scratch[2], scratch[3]
    for i in range(9):
        a[i] = s[i]
    r = p[P_RADIUS]
    if mask & TABLE and a[5] < 0.0 and r - SUNK_M < a[2] < r:
        # An estimated state may lie slightly inside the table: it touches now, rather than falling through.
        if abs(a[0]) <= _HALF_WIDTH and abs(a[1]) <= _HALF_LENGTH:
            for i in range(9):
                out[i] = a[i]
            return TABLE, 0.0
    t = 0.0
    while t < t_max:
        h = min(step, t_max - t)
        rk4_step(a, p, h, b)
        for i in range(9):
            if not math.isfinite(b[i]):
                for k in range(9):
                    out[k] = a[k]
                return NOT_FINITE, t
        code, first = HORIZON, h
        if mask & TABLE and b[2] < r and a[2] >= r:
            lo = 0.0
            if a[5] > 0.0:
                # Leaves the table and falls back within the step: start from the top of the arc.
                lo = min(h, a[5] / 9.81)
            tau = _root(a, p, _Z, r, lo, h, True, work)
            if abs(work[0]) <= _HALF_WIDTH and abs(work[1]) <= _HALF_LENGTH:
                work[2] = r
                code, first = TABLE, tau
                hit[:] = work
        if mask & FLOOR and b[2] < r - TABLE_HEIGHT_M and a[2] >= r - TABLE_HEIGHT_M:
            tau = _root(a, p, _Z, r - TABLE_HEIGHT_M, 0.0, h, True, work)
            if tau < first:
                code, first = FLOOR, tau
                hit[:] = work
        if mask & PLANE and (a[1] - plane_y) * (b[1] - plane_y) <= 0.0 and a[1] != plane_y:
            tau = _root(a, p, _Y, plane_y, 0.0, h, a[1] > plane_y, work)
            if tau <= first:
                code, first = PLANE, tau
                hit[:] = work
        if mask & NET:
            tau = _net_time(a, b, p, h, work)
            if 0.0 <= tau < first:
                rk4_step(a, p, tau, hit)
                code, first = NET, tau
        if code != HORIZON:
            for i in range(9):
                out[i] = hit[i]
            return code, t + first
        for i in range(9):
            a[i] = b[i]
        t += h
    for i in range(9):
        out[i] = a[i]
    return HORIZON, t


@njit(cache=True, nogil=True)
def bounce_on_table(s: np.ndarray, p: np.ndarray, out: np.ndarray) -> None:
    """Apply the table contact to state `s` (9,) at the table; `out` may alias."""
    normal = np.zeros(3)
    normal[2] = 1.0
    still = np.zeros(3)
    e = restitution(p[P_E_TABLE], p[P_E_TABLE1], -s[5])
    for i in range(3):
        out[i] = s[i]
    contact(s[3:6], s[6:9], normal, still, e, p[P_MU_TABLE], p[P_RADIUS], out[3:6], out[6:9])


@njit(cache=True, nogil=True)
def fly(s: np.ndarray, p: np.ndarray, t_end: float, step: float, out: np.ndarray) -> int:
    """State after `t_end` seconds with table bounces applied; returns the number of bounces.

    A ball whose rebound is slower than `ROLLING_SPEED_MPS` stops bouncing: it is left on the table with v_z =
    0 and without friction, which is all a filter that drops rolling balls needs.
    """
    bounces = 0
    t = 0.0
    for i in range(9):
        out[i] = s[i]
    while t < t_end:
        code, dt = next_event(out, p, t_end - t, step, TABLE, 0.0, out)
        t += dt
        if code != TABLE:
            break
        bounces += 1
        bounce_on_table(out, p, out)
        if out[5] < ROLLING_SPEED_MPS:
            for i in range(2):
                out[i] += (t_end - t) * out[3 + i]
            out[5] = 0.0
            break
    return bounces


@njit(cache=True, nogil=True)
def fly_to_plane(
    s: np.ndarray, p: np.ndarray, plane_y: float, t_max: float, step: float, mask: int, out: np.ndarray
) -> tuple[int, float, int]:
    """Fly to the plane y = `plane_y` through table bounces, at most one of them on the robot's half (y < 0).

    Args:
        mask: 0, or `NET` to stop at the net.

    Returns:
        (code, seconds, bounces on the robot's half): code `PLANE` when it arrives, `TABLE` when it bounces a
        second time on the robot's half or rolls, `NET`, `FLOOR`, `HORIZON` or `NOT_FINITE`; `out` is the
        state there.
    """
    t = 0.0
    bounces = 0
    for i in range(9):
        out[i] = s[i]
    while t < t_max:
        code, dt = next_event(out, p, t_max - t, step, TABLE | PLANE | FLOOR | mask, plane_y, out)
        t += dt
        if code != TABLE:
            return code, t, bounces
        if out[1] < 0.0:
            bounces += 1
            if bounces > 1:
                return TABLE, t, bounces
        bounce_on_table(out, p, out)
        if out[5] < ROLLING_SPEED_MPS:
            return TABLE, t, bounces
    return HORIZON, t, bounces
