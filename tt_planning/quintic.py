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
    enough = 1e-12 * (high - low)  # an extreme does not feel an error of its place to first order
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
        if abs(step - x) <= enough:
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
def _jerk_roots(c: np.ndarray, duration: float) -> tuple[float, float]:
    """Times in 0…`duration` at which the jerk is zero, ascending; `duration` in place of a missing one."""
    qa, qb, qc = 60.0 * c[5], 24.0 * c[4], 6.0 * c[3]
    first = second = duration
    if qa == 0.0:
        if qb != 0.0:
            first = -qc / qb
    else:
        disc = qb * qb - 4.0 * qa * qc
        if disc > 0.0:
            q = -0.5 * (qb + math.copysign(math.sqrt(disc), qb))
            first = q / qa
            if q != 0.0:
                second = qc / q
    first = first if 0.0 < first < duration else duration
    second = second if 0.0 < second < duration else duration
    return min(first, second), max(first, second)


@njit(cache=True, nogil=True)
def peak_acceleration(c: np.ndarray, duration: float) -> float:
    """Largest |acceleration| over 0 ≤ t ≤ `duration`, exact and cheaper than `peaks`."""
    first, second = _jerk_roots(c, duration)
    return max(
        abs(acceleration(c, 0.0)),
        abs(acceleration(c, first)),
        abs(acceleration(c, second)),
        abs(acceleration(c, duration)),
    )


@njit(cache=True, nogil=True)
def peak_velocity(c: np.ndarray, duration: float) -> float:
    """Largest |velocity| over 0 ≤ t ≤ `duration`, exact and cheaper than `peaks`."""
    first, second = _jerk_roots(c, duration)
    top = max(abs(velocity(c, 0.0)), abs(velocity(c, duration)))
    low, f_low = 0.0, acceleration(c, 0.0)
    for k in range(3):
        high = first if k == 0 else (second if k == 1 else duration)
        if high <= low:
            continue
        f_high = acceleration(c, high)
        if (f_low < 0.0 < f_high) or (f_high < 0.0 < f_low):
            top = max(top, abs(velocity(c, _root(c, 2, low, high, f_low))))
        else:
            top = max(top, abs(velocity(c, high)))
        low, f_low = high, f_high
    return top


@njit(cache=True, nogil=True)
def _peak_velocity_bound(c: np.ndarray, duration: float) -> float:
    """Upper bound of |velocity|: the largest control value of its Bézier form, whose hull holds the curve."""
    t = duration
    a1, a2 = 2.0 * c[2] * t, 3.0 * c[3] * t * t
    a3 = 4.0 * c[4] * t * t * t
    b1 = c[1] + 0.25 * a1
    b2 = c[1] + 0.5 * a1 + a2 / 6.0
    b3 = c[1] + 0.75 * a1 + 0.5 * a2 + 0.25 * a3
    return max(abs(c[1]), abs(b1), abs(b2), abs(b3), abs(velocity(c, t)))


@njit(cache=True, nogil=True)
def _position_within(c: np.ndarray, duration: float, low: float, high: float) -> bool:
    """Whether the Bézier hull of the position lies within `low`…`high`; False proves nothing."""
    t = duration
    a1, a2 = c[1] * t, c[2] * t * t
    a3, a4 = c[3] * t * t * t, c[4] * t * t * t * t
    b1 = c[0] + 0.2 * a1
    b2 = c[0] + 0.4 * a1 + 0.1 * a2
    b3 = c[0] + 0.6 * a1 + 0.3 * a2 + 0.1 * a3
    b4 = c[0] + 0.8 * a1 + 0.6 * a2 + 0.4 * a3 + 0.2 * a4
    b5 = position(c, t)
    return min(c[0], b1, b2, b3, b4, b5) >= low and max(c[0], b1, b2, b3, b4, b5) <= high


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
    `lower`…`upper` in parts of that range when there is one. Exact; peaks of velocity and position are only looked
    for (into `work` (5,)) where cheap bounds leave it open whether they matter.
    """
    share = peak_acceleration(c, duration) / max_acc
    if _peak_velocity_bound(c, duration) > share * max_vel:
        share = max(share, peak_velocity(c, duration) / max_vel)
    tolerance = 1e-9 * (1.0 + upper - lower)
    if _position_within(c, duration, lower - tolerance, upper + tolerance):
        return share
    peaks(c, duration, work)
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
    golden-section search finds it, here to 2 % of `allowed`. Zero is kept when the motion is easy (load below one
    half), so that the racket crosses the hit at constant velocity whenever it can.
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
    for _ in range(8):
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
