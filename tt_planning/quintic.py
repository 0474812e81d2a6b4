"""Quintic polynomials between two states of position, velocity and acceleration, with exact peaks.

p(t) = c₀ + c₁ t + c₂ t² + c₃ t³ + c₄ t⁴ + c₅ t⁵ on 0 ≤ t ≤ T. Peaks are found at the real roots of the derivatives:
jerk is quadratic (closed form); acceleration is monotone between the roots of jerk, velocity between those of
acceleration, so every root lies alone in a bracket and Newton's method with bisection finds it to rounding.
No sampling is involved.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

# Entries of the vector that `peaks` writes.
Q_POS_MIN = 0
Q_POS_MAX = 1
Q_VEL = 2  # largest |velocity|
Q_ACC = 3  # largest |acceleration|
Q_JERK = 4  # largest |jerk|
N_PEAKS = 5


@njit(cache=True, nogil=True)
def coefficients(
    p0: float, v0: float, a0: float, p1: float, v1: float, a1: float, duration: float, out: np.ndarray
) -> None:
    """Write c₀…c₅ (6,) of the quintic from (p0, v0, a0) to (p1, v1, a1) in `duration` > 0 seconds."""
    t = duration
    # From the parabola of the start state, so that a long duration loses no digits to cancellation.
    h = p1 - p0 - v0 * t - 0.5 * a0 * t * t
    dv = (v1 - v0 - a0 * t) * t
    da = (a1 - a0) * t * t
    t3 = t * t * t
    out[0] = p0
    out[1] = v0
    out[2] = 0.5 * a0
    out[3] = (10.0 * h - 4.0 * dv + 0.5 * da) / t3
    out[4] = (-15.0 * h + 7.0 * dv - da) / (t3 * t)
    out[5] = (6.0 * h - 3.0 * dv + 0.5 * da) / (t3 * t * t)


@njit(cache=True, nogil=True)
def position(c: np.ndarray, t: float) -> float:
    """p(t)."""
    return c[0] + t * (c[1] + t * (c[2] + t * (c[3] + t * (c[4] + t * c[5]))))


@njit(cache=True, nogil=True)
def velocity(c: np.ndarray, t: float) -> float:
    """dp/dt."""
    return c[1] + t * (2.0 * c[2] + t * (3.0 * c[3] + t * (4.0 * c[4] + t * 5.0 * c[5])))


@njit(cache=True, nogil=True)
def acceleration(c: np.ndarray, t: float) -> float:
    """d²p/dt²."""
    return 2.0 * c[2] + t * (6.0 * c[3] + t * (12.0 * c[4] + t * 20.0 * c[5]))


@njit(cache=True, nogil=True)
def jerk(c: np.ndarray, t: float) -> float:
    """d³p/dt³."""
    return 6.0 * c[3] + t * (24.0 * c[4] + t * 60.0 * c[5])


@njit(cache=True, nogil=True)
def _derivative(c: np.ndarray, order: int, t: float) -> float:
    if order == 1:
        return velocity(c, t)
    if order == 2:
        return acceleration(c, t)
    return jerk(c, t)


@njit(cache=True, nogil=True)
def _root(c: np.ndarray, order: int, low: float, high: float, f_low: float) -> float:
    """Root of the given derivative in a bracket with one sign change."""
    x = 0.5 * (low + high)
    for _ in range(80):
        f = _derivative(c, order, x)
        if f == 0.0:
            return x
        if (f > 0.0) == (f_low > 0.0):
            low = x
        else:
            high = x
        slope = _derivative(c, order + 1, x) if order < 3 else 24.0 * c[4] + 120.0 * c[5] * x
        step = x - f / slope if slope != 0.0 else low
        if not (low < step < high):
            step = 0.5 * (low + high)
        if abs(step - x) <= 1e-15 * (1.0 + abs(x)) or step == x:
            return step
        x = step
    return x


@njit(cache=True, nogil=True)
def _split(c: np.ndarray, order: int, breaks: np.ndarray, n: int) -> int:
    """Replace the inner break points (roots of the derivative above) by the roots of this one; new count.

    `breaks[0]` = 0 and `breaks[n - 1]` = T stay.
    """
    end = breaks[n - 1]
    found = np.empty(6)
    m = 0
    low = breaks[0]
    f_low = _derivative(c, order, low)
    for i in range(1, n):
        high = breaks[i]
        f_high = _derivative(c, order, high)
        if (f_low < 0.0 < f_high) or (f_high < 0.0 < f_low):
            found[m] = _root(c, order, low, high, f_low)
            m += 1
        elif f_high == 0.0 and i < n - 1:
            found[m] = high
            m += 1
        low = high
        f_low = f_high
    for i in range(m):
        breaks[1 + i] = found[i]
    breaks[m + 1] = end
    return m + 2


@njit(cache=True, nogil=True)
def peaks(c: np.ndarray, duration: float, out: np.ndarray) -> None:
    """Write the exact extremes over 0 ≤ t ≤ `duration` to `out` (5,): see `Q_POS_MIN` … `Q_JERK`."""
    breaks = np.empty(8)
    breaks[0] = 0.0
    # Jerk: ends and its own turning point; its roots split the acceleration.
    top = max(abs(jerk(c, 0.0)), abs(jerk(c, duration)))
    n = 1
    if c[5] != 0.0:
        turn = -c[4] / (5.0 * c[5])
        if 0.0 < turn < duration:
            top = max(top, abs(jerk(c, turn)))
            breaks[n] = turn
            n += 1
    out[Q_JERK] = top
    breaks[n] = duration
    n += 1
    n = _split(c, 3, breaks, n)
    top = 0.0
    for i in range(n):
        top = max(top, abs(acceleration(c, breaks[i])))
    out[Q_ACC] = top
    n = _split(c, 2, breaks, n)
    top = 0.0
    for i in range(n):
        top = max(top, abs(velocity(c, breaks[i])))
    out[Q_VEL] = top
    n = _split(c, 1, breaks, n)
    low = position(c, 0.0)
    high = low
    for i in range(1, n):
        p = position(c, breaks[i])
        low = min(low, p)
        high = max(high, p)
    out[Q_POS_MIN] = low
    out[Q_POS_MAX] = high


@njit(cache=True, nogil=True)
def peak_acceleration(c: np.ndarray, duration: float) -> float:
    """Largest |acceleration| over 0 ≤ t ≤ `duration`, exact and cheaper than `peaks`."""
    top = max(abs(acceleration(c, 0.0)), abs(acceleration(c, duration)))
    qa, qb, qc = 60.0 * c[5], 24.0 * c[4], 6.0 * c[3]
    if qa == 0.0:
        if qb != 0.0:
            t = -qc / qb
            if 0.0 < t < duration:
                top = max(top, abs(acceleration(c, t)))
        return top
    disc = qb * qb - 4.0 * qa * qc
    if disc <= 0.0:
        return top
    q = -0.5 * (qb + math.copysign(math.sqrt(disc), qb))
    t = q / qa
    if 0.0 < t < duration:
        top = max(top, abs(acceleration(c, t)))
    if q != 0.0:
        t = qc / q
        if 0.0 < t < duration:
            top = max(top, abs(acceleration(c, t)))
    return top


@njit(cache=True, nogil=True)
def load(
    c: np.ndarray,
    duration: float,
    lower: float,
    upper: float,
    max_vel: float,
    max_acc: float,
    work: np.ndarray,
) -> float:
    """Share of the limits that a motion uses; feasible when ≤ 1.

    The largest of |velocity| / max_vel, |acceleration| / max_acc, and 1 + the position excess beyond
    `lower`…`upper` in parts of that range when there is one. `work` (5,) receives the peaks.
    """
    peaks(c, duration, work)
    share = max(work[Q_VEL] / max_vel, work[Q_ACC] / max_acc)
    tolerance = 1e-9 * (1.0 + upper - lower)
    excess = max(lower - work[Q_POS_MIN], work[Q_POS_MAX] - upper)
    if excess > tolerance:
        share = max(share, 1.0) + excess / (upper - lower)
    return share


@njit(cache=True, nogil=True)
def minimum_duration(
    p0: float,
    v0: float,
    a0: float,
    p1: float,
    v1: float,
    a1: float,
    lower: float,
    upper: float,
    max_vel: float,
    max_acc: float,
    longest: float,
) -> float:
    """Shortest duration in seconds whose quintic keeps all limits; NaN when none up to `longest` does.

    Feasibility need not be monotone in the duration, so this takes the first feasible duration on a
    geometric grid of 6 % steps from 1 ms and refines its lower edge by bisection to 1 µs.
    """
    c = np.empty(6)
    work = np.empty(5)
    low = 0.0
    t = 1e-3
    while t <= longest:
        coefficients(p0, v0, a0, p1, v1, a1, t, c)
        if load(c, t, lower, upper, max_vel, max_acc, work) <= 1.0:
            high = t
            while high - low > 1e-6:
                mid = 0.5 * (low + high)
                coefficients(p0, v0, a0, p1, v1, a1, mid, c)
                if load(c, mid, lower, upper, max_vel, max_acc, work) <= 1.0:
                    high = mid
                else:
                    low = mid
            return high
        low = t
        t *= 1.06
    return math.nan


@njit(cache=True, nogil=True)
def best_end_acceleration(
    p0: float,
    v0: float,
    a0: float,
    p1: float,
    v1: float,
    duration: float,
    max_vel: float,
    max_acc: float,
    allowed: float,
) -> float:
    """End acceleration within ±`allowed` that makes the peak load of velocity and acceleration smallest.

    Acceleration and velocity at each time are linear in the end acceleration, so the peak load is convex in it:
    golden-section search is exact. Zero is kept when the motion is easy (load below one half), so that the
    racket crosses the hit at constant velocity whenever it can.
    """
    c = np.empty(6)
    work = np.empty(5)
    coefficients(p0, v0, a0, p1, v1, 0.0, duration, c)
    if load(c, duration, -1e9, 1e9, max_vel, max_acc, work) <= 0.5:
        return 0.0
    g = 0.6180339887498949
    low, high = -allowed, allowed
    x1 = high - g * (high - low)
    x2 = low + g * (high - low)
    coefficients(p0, v0, a0, p1, v1, x1, duration, c)
    f1 = load(c, duration, -1e9, 1e9, max_vel, max_acc, work)
    coefficients(p0, v0, a0, p1, v1, x2, duration, c)
    f2 = load(c, duration, -1e9, 1e9, max_vel, max_acc, work)
    for _ in range(14):
        if f1 <= f2:
            high, x2, f2 = x2, x1, f1
            x1 = high - g * (high - low)
            coefficients(p0, v0, a0, p1, v1, x1, duration, c)
            f1 = load(c, duration, -1e9, 1e9, max_vel, max_acc, work)
        else:
            low, x1, f1 = x1, x2, f2
            x2 = low + g * (high - low)
            coefficients(p0, v0, a0, p1, v1, x2, duration, c)
            f2 = load(c, duration, -1e9, 1e9, max_vel, max_acc, work)
    return 0.5 * (low + high)
