"""One shot of a gantry's face or of a free face: racket pose and speed so that the struck ball lands on the aim.

Contact and flight are solved together by a shooting method, because the spin that the face gives bends the flight as
much as the speed does. On gantry4 the pitch fixes the depth of the racket, and so the hit time.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from tt_estimation.ball_models import P_E_RACKET, P_RADIUS
from tt_planning import hit_problem as hp
from tt_planning.aiming import fly
from tt_planning.ball_path import ball_at, time_at_depth
from tt_planning.hit_problem import HitProblem
from tt_planning.racket_contact import strike


@njit(cache=True, nogil=True)
def set_normal(yaw: float, pitch: float, n: np.ndarray) -> None:
    """Write the face normal (3,)."""
    cp = math.cos(pitch)
    n[0] = -math.sin(yaw) * cp
    n[1] = math.cos(yaw) * cp
    n[2] = math.sin(pitch)


@njit(cache=True, nogil=True)
def pitch_rate_velocity(pitch: float, yaw: float, height: float, rob: np.ndarray, out: np.ndarray) -> None:
    """Velocity (3,) of the contact point per rad/s of pitch rate: −arm n + face z_racket."""
    cy, sy, cp, sp = math.cos(yaw), math.sin(yaw), math.cos(pitch), math.sin(pitch)
    arm = rob[hp.R_LENGTH] + height
    out[0] = arm * sy * cp + rob[hp.R_FACE] * sy * sp
    out[1] = -arm * cy * cp - rob[hp.R_FACE] * cy * sp
    out[2] = -arm * sp + rob[hp.R_FACE] * cp


@njit(cache=True, nogil=True)
def _time_on_blade(pitch: float, yaw: float, x: np.ndarray, g: HitProblem, ball: np.ndarray) -> float:
    """When the ball meets the point `x` of a gantry4 blade so tilted, its state (9,) in `ball`; NaN for never."""
    rob = g.rob
    depth = math.cos(yaw) * (
        rob[hp.R_OFFSET] * math.cos(pitch) - (rob[hp.R_LENGTH] + x[hp.X_PLACE]) * math.sin(pitch)
    ) + x[hp.X_SIDE] * math.sin(yaw)
    return time_at_depth(rob[hp.R_BASE_Y] + depth, g.times, g.states, g.earliest, g.latest, ball)


@njit(cache=True, nogil=True)
def _shot(
    u: np.ndarray, x: np.ndarray, g: HitProblem, step: float, hit: np.ndarray, end: np.ndarray
) -> float:
    """Strike and fly with pitch, yaw and forward face speed `u` (3,); returns the hit time, NaN when impossible.

    `hit` (21,) receives ball state (9), normal (3), face velocity (3), outgoing velocity and spin (6);
    `end` (9,) the ball after the flight time.
    """
    rob = g.rob
    deep = rob[hp.R_DEPTH] > 0.5
    pitch, yaw = u[0], u[1]
    if abs(pitch) > 1.5 or abs(yaw) > 1.5:
        return math.nan
    ball, n, face, vout, wout = hit[0:9], hit[9:12], hit[12:15], hit[15:18], hit[18:21]
    if deep:
        t = x[hp.X_PLACE]
        if t < g.earliest or t > g.latest:
            return math.nan
        if not ball_at(t, g.times, g.states, ball):
            return math.nan
    else:
        t = _time_on_blade(pitch, yaw, x, g, ball)
        if not math.isfinite(t):
            return math.nan
    set_normal(yaw, pitch, n)
    face[1] = u[2]
    if rob[hp.R_DEPTH] > 1.5:
        for i in range(3):
            face[i] = u[2] * n[i]
    else:
        pitch_rate_velocity(pitch, yaw, 0.0 if deep else x[hp.X_PLACE], rob, end)
        if deep:
            face[0] = x[hp.X_EXTRA] * end[0]
            face[2] = x[hp.X_RISE] + x[hp.X_EXTRA] * end[2]
        else:
            rate = u[2] / end[1]
            face[0] = x[hp.X_EXTRA] + rate * end[0]
            face[2] = x[hp.X_RISE] + rate * end[2]
    if not strike(ball[3:6], ball[6:9], n, face, g.p, vout, wout):
        return math.nan
    for i in range(3):
        end[i], end[3 + i], end[6 + i] = ball[i], vout[i], wout[i]
    fly(end, g.p, x[hp.X_FLIGHT], step, end)
    return t


@njit(cache=True, nogil=True)
def first_guess(x: np.ndarray, g: HitProblem, u: np.ndarray) -> bool:
    """Pitch, yaw, forward speed of a hit without friction and drag, at a time that fits; False when there is none."""
    ball = np.empty(9)
    deep = g.rob[hp.R_DEPTH] > 0.5
    t = x[hp.X_PLACE] if deep else 0.5 * (g.earliest + g.latest)
    duration = x[hp.X_FLIGHT]
    for _ in range(3):
        at = min(max(t, g.earliest), g.latest)
        if not ball_at(at, g.times, g.states, ball):
            return False
        # Drag takes about 8 % of the speed per half second of flight.
        stretch = 1.0 + 0.16 * duration
        ox = (x[hp.X_AIM_X] - ball[0]) / duration * stretch
        oy = (x[hp.X_AIM_Y] - ball[1]) / duration * stretch
        oz = (g.p[P_RADIUS] - ball[2]) / duration + 4.9 * duration
        dx, dy, dz = ox - ball[3], oy - ball[4], oz - ball[5]
        if dy <= 0.1:
            return False
        yaw = math.atan2(-dx, dy)
        pitch = math.atan2(dz, math.sqrt(dx * dx + dy * dy))
        size = math.sqrt(dx * dx + dy * dy + dz * dz)
        along = size / (1.0 + g.p[P_E_RACKET]) + (ball[3] * dx + ball[4] * dy + ball[5] * dz) / size
        u[0], u[1], u[2] = pitch, yaw, along * (dy / size if g.rob[hp.R_DEPTH] < 1.5 else 1.0)
        if deep:
            return True
        t = _time_on_blade(pitch, yaw, x, g, ball)
        if not math.isfinite(t):
            break
    return True


@njit(cache=True, nogil=True)
def _miss(end: np.ndarray, x: np.ndarray, p: np.ndarray, f: np.ndarray) -> float:
    """Vector from the aim to where the ball is, to `f` (3,), and its length."""
    f[0], f[1], f[2] = end[0] - x[hp.X_AIM_X], end[1] - x[hp.X_AIM_Y], end[2] - p[P_RADIUS]
    return math.sqrt(f[0] * f[0] + f[1] * f[1] + f[2] * f[2])


@njit(cache=True, nogil=True)
def _differences(
    u: np.ndarray,
    f: np.ndarray,
    x: np.ndarray,
    g: HitProblem,
    step: float,
    hit: np.ndarray,
    end: np.ndarray,
    inverse: np.ndarray,
) -> bool:
    """Inverse Jacobian (3, 3) of the miss `f` at `u` by finite differences; False when a shot next to it fails."""
    jac = np.empty((3, 3))
    trial = np.empty(3)
    near = np.empty(3)
    for j in range(3):
        h = -1e-4 if j < 2 else 1e-3
        done = False
        for _ in range(2):
            for i in range(3):
                trial[i] = u[i]
            trial[j] += h
            if math.isfinite(_shot(trial, x, g, step, hit, end)):
                done = True
                break
            h = -h
        if not done:
            return False
        _miss(end, x, g.p, near)
        for i in range(3):
            jac[i, j] = (near[i] - f[i]) / h
    return _invert(jac, inverse)


@njit(cache=True, nogil=True)
def _broyden(inverse: np.ndarray, du: np.ndarray, df: np.ndarray, work: np.ndarray) -> None:
    """Rank-one update of the inverse Jacobian (3, 3) after a step `du` that changed the miss by `df`."""
    below = 0.0
    for i in range(3):
        work[i] = inverse[i, 0] * df[0] + inverse[i, 1] * df[1] + inverse[i, 2] * df[2]
        below += du[i] * work[i]
    if abs(below) <= 1e-14:
        return
    for j in range(3):
        row = (du[0] * inverse[0, j] + du[1] * inverse[1, j] + du[2] * inverse[2, j]) / below
        work[3 + j] = row
    for i in range(3):
        for j in range(3):
            inverse[i, j] += (du[i] - work[i]) * work[3 + j]


@njit(cache=True, nogil=True)
def solve_shot(
    x: np.ndarray,
    g: HitProblem,
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
    finite, else made by finite differences; improved in place. `hit` and `end` as `_shot` writes them.
    """
    f = np.empty(3)
    after = np.empty(3)
    du = np.empty(3)
    trial = np.empty(3)
    work = np.empty(6)
    t = _shot(u, x, g, step, hit, end)
    if not math.isfinite(t):
        return t, math.inf
    miss = _miss(end, x, g.p, f)
    fresh = False
    for _ in range(rounds):
        if miss < tolerance:
            return t, miss
        if not math.isfinite(inverse[0, 0]):
            fresh = True
            if not _differences(u, f, x, g, step, hit, end, inverse):
                return math.nan, math.inf
        for i in range(3):
            du[i] = -(inverse[i, 0] * f[0] + inverse[i, 1] * f[1] + inverse[i, 2] * f[2])
        shrink = max(1.0, abs(du[0]) / 0.25, abs(du[1]) / 0.25, abs(du[2]) / 2.5)
        ok = False
        for _try in range(5):
            for i in range(3):
                trial[i] = u[i] + du[i] / shrink
            tt = _shot(trial, x, g, step, hit, end)
            if math.isfinite(tt):
                new = _miss(end, x, g.p, after)
                if new < 1.5 * miss:
                    ok = True
                    break
            shrink *= 2.5
        if not ok:
            if fresh:
                return math.nan, math.inf
            inverse[0, 0] = math.nan
            continue
        for i in range(3):
            du[i] /= shrink
            trial[i] = after[i] - f[i]
        _broyden(inverse, du, trial, work)
        if new > 0.7 * miss and not fresh:
            inverse[0, 0] = math.nan
        fresh = False
        for i in range(3):
            u[i] += du[i]
            f[i] = after[i]
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
