"""Derivatives of flight and table bounce: what the filter, the smoother and identification linearise with.

The RK4 step is differentiated exactly (stage by stage), so the Jacobians agree with finite differences of
`flight.rk4_step` to rounding. Columns are (position, velocity, spin), then the ball constants named by
`theta`, an integer array of `P_*` indices of the parameter vector.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from tt_estimation.ball_models import (
    P_CD0,
    P_CD1,
    P_CL,
    P_CLS,
    P_DECAY,
    P_E_TABLE,
    P_E_TABLE1,
    P_G,
    P_K,
    P_MU_TABLE,
    P_RADIUS,
)
from tt_estimation.contact import restitution
from tt_estimation.events import TABLE, next_event


@njit(cache=True, nogil=True)
def acceleration_jacobian(
    s: np.ndarray, p: np.ndarray, theta: np.ndarray, a: np.ndarray, jac: np.ndarray
) -> None:
    """Acceleration and its derivatives.

    Args:
        s: state (9,). p: parameter vector. theta: `P_*` indices, shape (m,).
        a: receives the acceleration (3,), m/s².
        jac: receives d a / d (velocity, spin, theta), shape (3, 6 + m).
    """
    vx, vy, vz = s[3], s[4], s[5]
    wx, wy, wz = s[6], s[7], s[8]
    cx = wy * vz - wz * vy
    cy = wz * vx - wx * vz
    cz = wx * vy - wy * vx
    speed2 = vx * vx + vy * vy + vz * vz
    speed = math.sqrt(speed2)
    cross = math.sqrt(cx * cx + cy * cy + cz * cz)
    k, r = p[P_K], p[P_RADIUS]
    ratio = 0.0
    # Gradient of the spin ratio S = r |ω × v| / v² with respect to velocity (rv) and spin (rw).
    rvx, rvy, rvz, rwx, rwy, rwz = 0.0, 0.0, 0.0, 0.0, 0.0, 0.0
    if speed2 > 1e-12:
        ratio = r * cross / speed2
        if cross > 1e-12:
            f = r / (cross * speed2)
            d = 2.0 * ratio / speed2
            rvx = f * (cy * wz - cz * wy) - d * vx
            rvy = f * (cz * wx - cx * wz) - d * vy
            rvz = f * (cx * wy - cy * wx) - d * vz
            rwx = f * (vy * cz - vz * cy)
            rwy = f * (vz * cx - vx * cz)
            rwz = f * (vx * cy - vy * cx)
    lift, lift_slope = p[P_CL], 0.0
    if p[P_CLS] > 0.0:
        lift = p[P_CL] / (p[P_CLS] + ratio)
        lift_slope = -lift / (p[P_CLS] + ratio)
    cd = p[P_CD0] + p[P_CD1] * ratio
    kd = k * cd * speed
    kl = k * r * lift
    a[0] = -kd * vx + kl * cx
    a[1] = -kd * vy + kl * cy
    a[2] = -kd * vz + kl * cz - p[P_G]

    inv = k * cd / speed if speed > 1e-6 else 0.0
    dd = k * p[P_CD1] * speed
    dl = k * r * lift_slope
    gx, gy, gz = inv * vx + dd * rvx, inv * vy + dd * rvy, inv * vz + dd * rvz
    jac[0, 0] = -kd - vx * gx + dl * cx * rvx
    jac[0, 1] = -vx * gy - kl * wz + dl * cx * rvy
    jac[0, 2] = -vx * gz + kl * wy + dl * cx * rvz
    jac[1, 0] = -vy * gx + kl * wz + dl * cy * rvx
    jac[1, 1] = -kd - vy * gy + dl * cy * rvy
    jac[1, 2] = -vy * gz - kl * wx + dl * cy * rvz
    jac[2, 0] = -vz * gx - kl * wy + dl * cz * rvx
    jac[2, 1] = -vz * gy + kl * wx + dl * cz * rvy
    jac[2, 2] = -kd - vz * gz + dl * cz * rvz
    ex, ey, ez = dl * cx - dd * vx, dl * cy - dd * vy, dl * cz - dd * vz
    jac[0, 3] = ex * rwx
    jac[0, 4] = kl * vz + ex * rwy
    jac[0, 5] = -kl * vy + ex * rwz
    jac[1, 3] = -kl * vz + ey * rwx
    jac[1, 4] = ey * rwy
    jac[1, 5] = kl * vx + ey * rwz
    jac[2, 3] = kl * vy + ez * rwx
    jac[2, 4] = -kl * vx + ez * rwy
    jac[2, 5] = ez * rwz

    for j in range(theta.shape[0]):
        fv, fc = 0.0, 0.0
        i = theta[j]
        if i == P_CD0:
            fv = -k * speed
        elif i == P_CD1:
            fv = -k * ratio * speed
        elif i == P_CL:
            fc = k * r * (1.0 if p[P_CLS] <= 0.0 else 1.0 / (p[P_CLS] + ratio))
        elif i == P_CLS:
            fc = k * r * lift_slope
        jac[0, 6 + j] = fv * vx + fc * cx
        jac[1, 6 + j] = fv * vy + fc * cy
        jac[2, 6 + j] = fv * vz + fc * cz


@njit(cache=True, nogil=True)
def _chain(jac: np.ndarray, d: np.ndarray, h: float, decay: float, out: np.ndarray) -> None:
    """Derivative of a stage acceleration: A (I + h d_v) and B decay, with `d` (3, 6 + m) the previous stage's."""
    cols = d.shape[1]
    for i in range(3):
        for j in range(cols):
            out[i, j] = h * (jac[i, 0] * d[0, j] + jac[i, 1] * d[1, j] + jac[i, 2] * d[2, j])
        for j in range(3):
            out[i, j] += jac[i, j]
            out[i, 3 + j] += decay * jac[i, 3 + j]
        for j in range(6, cols):
            out[i, j] += jac[i, j]


@njit(cache=True, nogil=True)
def rk4_step_jacobian(
    s: np.ndarray, p: np.ndarray, dt: float, theta: np.ndarray, out: np.ndarray, jac: np.ndarray
) -> float:
    """One RK4 step and its exact derivative.

    Args:
        s: state (9,). p: parameter vector. dt: seconds. theta: `P_*` indices, shape (m,).
        out: receives the state after the step; may alias `s`.
        jac: receives d (position, velocity) / d (velocity, spin, theta), shape (6, 6 + m).
            The rest of the 9 × 9 Jacobian is known: identity for position, decay for spin.

    Returns:
        The factor by which spin decays in the step.
    """
    cols = 6 + theta.shape[0]
    work = np.empty((5, 3, cols))
    a, d1, d2, d3, d4 = work[0], work[1], work[2], work[3], work[4]
    vectors = np.empty(21)
    k1, k2, k3, k4, t = vectors[0:3], vectors[3:6], vectors[6:9], vectors[9:12], vectors[12:21]
    h = 0.5 * dt
    half = math.exp(-p[P_DECAY] * h)
    acceleration_jacobian(s, p, theta, k1, d1)
    for i in range(3):
        t[i] = s[i]
        t[3 + i] = s[3 + i] + h * k1[i]
        t[6 + i] = s[6 + i] * half
    acceleration_jacobian(t, p, theta, k2, a)
    _chain(a, d1, h, half, d2)
    for i in range(3):
        t[3 + i] = s[3 + i] + h * k2[i]
    acceleration_jacobian(t, p, theta, k3, a)
    _chain(a, d2, h, half, d3)
    for i in range(3):
        t[3 + i] = s[3 + i] + dt * k3[i]
        t[6 + i] = s[6 + i] * half * half
    acceleration_jacobian(t, p, theta, k4, a)
    _chain(a, d3, dt, half * half, d4)
    for i in range(3):
        for j in range(cols):
            jac[i, j] = dt * dt / 6.0 * (d1[i, j] + d2[i, j] + d3[i, j])
            jac[3 + i, j] = dt / 6.0 * (d1[i, j] + 2.0 * d2[i, j] + 2.0 * d3[i, j] + d4[i, j])
        jac[i, i] += dt
        jac[3 + i, i] += 1.0
        out[i] = s[i] + dt * s[3 + i] + dt * dt / 6.0 * (k1[i] + k2[i] + k3[i])
        out[6 + i] = t[6 + i]
    for i in range(3):
        out[3 + i] = s[3 + i] + dt / 6.0 * (k1[i] + 2.0 * k2[i] + 2.0 * k3[i] + k4[i])
    return half * half


@njit(cache=True, nogil=True)
def step_or_touch(
    s: np.ndarray, p: np.ndarray, dt: float, theta: np.ndarray, out: np.ndarray, jac: np.ndarray
) -> tuple[bool, float, float]:
    """`rk4_step_jacobian` over `dt` seconds, or up to where the ball touches the table on the way.

    `out` must not alias `s`; the contact is not applied.

    Returns:
        Whether it touches the table, the time flown in s, and the factor by which spin decays.
    """
    decay = rk4_step_jacobian(s, p, dt, theta, out, jac)
    if not (s[2] < p[P_RADIUS] or out[2] < p[P_RADIUS]):
        return False, dt, decay
    code, tau = next_event(s, p, dt, dt, TABLE, 0.0, out)
    return code == TABLE, tau, rk4_step_jacobian(s, p, tau, theta, out, jac)


@njit(cache=True, nogil=True)
def apply_step_jacobian(jac: np.ndarray, decay: float, m: np.ndarray, cols: int, shared: int) -> None:
    """Left-multiply the first columns of `m` by the step's 9 × 9 Jacobian in place, and add the constants' columns.

    Args:
        jac: from `rk4_step_jacobian`. decay: what it returned.
        m: shape (9, ≥ cols). cols: columns to move.
        shared: column of `m` where the derivatives by the constants start; -1 when it has none.
    """
    v = np.empty(3)
    w = np.empty(3)
    for c in range(cols):
        for i in range(3):
            v[i] = m[3 + i, c]
            w[i] = m[6 + i, c]
        for i in range(3):
            a = m[i, c]
            b = 0.0
            for k in range(3):
                a += jac[i, k] * v[k] + jac[i, 3 + k] * w[k]
                b += jac[3 + i, k] * v[k] + jac[3 + i, 3 + k] * w[k]
            m[i, c] = a
            m[3 + i, c] = b
            m[6 + i, c] = decay * w[i]
    if shared >= 0:
        for j in range(jac.shape[1] - 6):
            for i in range(6):
                m[i, shared + j] += jac[i, 6 + j]


@njit(cache=True, nogil=True)
def table_bounce_jacobian(
    s: np.ndarray,
    p: np.ndarray,
    theta: np.ndarray,
    out: np.ndarray,
    jump: np.ndarray,
    jump_theta: np.ndarray,
) -> None:
    """Table bounce with the derivative of the state after it, the moving event time included.

    The jump is the saltation matrix D + (f⁺ − D f⁻) ∇gᵀ / (∇gᵀ f⁻) of the guard g = z − r, with f the rate of
    the state before and after (Müller 1995; Leine and Nijmeijer 2004, section 8), so a covariance mapped with
    it is that of the state at a fixed time just after the bounce.

    Args:
        s: state on the table with v_z < 0, shape (9,). p: parameter vector. theta: `P_*` indices (m,).
        out: receives the state after the bounce (9,); must not alias `s`.
        jump: receives the 9 × 9 saltation matrix.
        jump_theta: receives the derivative by the constants, shape (9, m).
    """
    r = p[P_RADIUS]
    vz = s[5]
    e = restitution(p[P_E_TABLE], p[P_E_TABLE1], -vz)
    slope = p[P_E_TABLE1]
    mu = p[P_MU_TABLE]
    jn = -(1.0 + e) * vz
    ux = s[3] - r * s[7]
    uy = s[4] + r * s[6]
    slip = math.sqrt(ux * ux + uy * uy)
    g = 1.5 / r
    hx, hy = 0.0, 0.0
    if slip > 1e-12:
        hx, hy = ux / slip, uy / slip
    sliding = mu * jn < 0.4 * slip
    if sliding:
        qx, qy = mu * jn * hx, mu * jn * hy
        f = mu * jn / slip
        qxx, qxy, qyy = f * (1.0 - hx * hx), -f * hx * hy, f * (1.0 - hy * hy)
        qxj, qyj = mu * hx, mu * hy
    else:
        qx, qy = 0.4 * ux, 0.4 * uy
        qxx, qxy, qyy = 0.4, 0.0, 0.4
        qxj, qyj = 0.0, 0.0
    out[0], out[1], out[2] = s[0], s[1], s[2]
    out[3] = s[3] - qx
    out[4] = s[4] - qy
    out[5] = -e * vz
    out[6] = s[6] - g * qy
    out[7] = s[7] + g * qx
    out[8] = s[8]

    jn_vz = -(1.0 + e) + slope * vz
    # Derivatives of q by v_x, v_y, v_z, w_x, w_y.
    dqx = (qxx, qxy, qxj * jn_vz, r * qxy, -r * qxx)
    dqy = (qxy, qyy, qyj * jn_vz, r * qyy, -r * qxy)
    for i in range(9):
        for j in range(9):
            jump[i, j] = 1.0 if i == j else 0.0
    for j in range(5):
        c = 3 + j
        jump[3, c] -= dqx[j]
        jump[4, c] -= dqy[j]
        jump[6, c] -= g * dqy[j]
        jump[7, c] += g * dqx[j]
    jump[5, 5] = -e + slope * vz

    # Event time: add (f⁺ − D f⁻) / v_z⁻ to the column of z.
    a0 = np.empty(3)
    a1 = np.empty(3)
    unused = np.empty((3, 6))
    none = np.empty(0, np.int64)
    acceleration_jacobian(s, p, none, a0, unused)
    acceleration_jacobian(out, p, none, a1, unused)
    rate0 = np.empty(9)
    rate1 = np.empty(9)
    for i in range(3):
        rate0[i] = s[3 + i]
        rate1[i] = out[3 + i]
        rate0[3 + i] = a0[i]
        rate1[3 + i] = a1[i]
        rate0[6 + i] = -p[P_DECAY] * s[6 + i]
        rate1[6 + i] = -p[P_DECAY] * out[6 + i]
    for i in range(9):
        d = rate1[i]
        for k in range(9):
            d -= jump[i, k] * rate0[k]
        rate1[i] = d / vz
    for i in range(9):
        jump[i, 2] += rate1[i]

    for j in range(theta.shape[0]):
        for i in range(9):
            jump_theta[i, j] = 0.0
        k = theta[j]
        d_jn = 0.0
        if k == P_E_TABLE:
            d_jn = -vz
        elif k == P_E_TABLE1:
            d_jn = vz * vz
        tx, ty = qxj * d_jn, qyj * d_jn
        if k == P_MU_TABLE and sliding:
            tx, ty = jn * hx, jn * hy
        jump_theta[3, j] = -tx
        jump_theta[4, j] = -ty
        jump_theta[5, j] = d_jn
        jump_theta[6, j] = -g * ty
        jump_theta[7, j] = g * tx


@njit(cache=True, nogil=True)
def bounce_kink(s: np.ndarray, p: np.ndarray, gradient: np.ndarray, kick: np.ndarray) -> float:
    """How far a table bounce is from the kink of the friction law, where sliding turns into rolling.

    Args:
        s: state on the table before the bounce, shape (9,). p: parameter vector.
        gradient: receives the derivative of the margin by the state, shape (9,).
        kick: receives the change of the state after the bounce per unit of tangential impulse, shape (9,).

    Returns:
        The margin 0.4 |slip| − μ (1 + e) |v_n|, m/s: positive when the ball slides, negative when it rolls.
    """
    r = p[P_RADIUS]
    e = restitution(p[P_E_TABLE], p[P_E_TABLE1], -s[5])
    ux = s[3] - r * s[7]
    uy = s[4] + r * s[6]
    slip = math.sqrt(ux * ux + uy * uy)
    hx, hy = 0.0, 0.0
    if slip > 1e-9:
        hx, hy = ux / slip, uy / slip
    for i in range(9):
        gradient[i] = 0.0
        kick[i] = 0.0
    gradient[3] = 0.4 * hx
    gradient[4] = 0.4 * hy
    gradient[5] = p[P_MU_TABLE] * (1.0 + e)
    gradient[6] = 0.4 * r * hy
    gradient[7] = -0.4 * r * hx
    g = 1.5 / r
    kick[3] = -hx
    kick[4] = -hy
    kick[6] = -g * hy
    kick[7] = g * hx
    return 0.4 * slip + p[P_MU_TABLE] * (1.0 + e) * s[5]


@njit(cache=True, nogil=True)
def kink_variance(margin: float, variance: float) -> float:
    """Mean square impulse error of linearising the friction law on one side of its kink.

    With the margin x ~ N(−|margin|, variance) on the other side's axis the error is max(x, 0).
    """
    if not variance > 0.0:
        return 0.0
    sigma = math.sqrt(variance)
    a = abs(margin) / sigma
    if a > 6.0:
        return 0.0
    tail = 0.5 * math.erfc(a / math.sqrt(2.0))
    density = math.exp(-0.5 * a * a) / math.sqrt(2.0 * math.pi)
    return variance * ((1.0 + a * a) * tail - a * density)


@njit(cache=True, nogil=True)
def cut_normal(a: float) -> tuple[float, float, float]:
    """Log of the mass, mean and variance of a standard normal variable of which only what lies above −a counts."""
    if a > 6.0:
        return 0.0, 0.0, 1.0
    if a < -6.0:  # first terms of the asymptotic series
        return -0.5 * a * a - math.log(-a * math.sqrt(2.0 * math.pi)), -a - 1.0 / a, 1.0 / (a * a)
    mass = 0.5 * math.erfc(-a / math.sqrt(2.0))
    mean = math.exp(-0.5 * a * a) / (math.sqrt(2.0 * math.pi) * mass)
    return math.log(mass), mean, 1.0 - mean * (mean + a)


@njit(cache=True, nogil=True)
def direction_error(
    impulse: float, slip: float, along: float, across: float, both: float
) -> tuple[float, float, float]:
    """Mean square impulse error of linearising the direction of sliding friction.

    Friction of a fixed size turns with the slip: with the slip uncertain by λ along itself and φ across (relative to
    its size), the impulse errs by −½ φ² along and −φ λ across, to second order, which the linear law leaves out. The
    means are those of Gaussian φ and λ.

    Args:
        impulse: of friction per mass, m/s. slip: m/s.
        along, across, both: variances of the slip along and across itself and their covariance, (m/s)².

    Returns:
        Mean squares along and across and the mean product, (m/s)².
    """
    if not (slip > 1e-9 and across > 0.0 and along > 0.0):
        return 0.0, 0.0, 0.0
    f = 1.0 / (slip * slip)
    a, b, c = across * f, along * f, both * f
    j = impulse * impulse
    return 0.75 * j * a * a, j * (a * b + 2.0 * c * c), 1.5 * j * a * c


@njit(cache=True, nogil=True)
def apply_jump(
    jump: np.ndarray, jump_theta: np.ndarray, m: np.ndarray, shared: int, work: np.ndarray
) -> None:
    """Left-multiply `m` (9, c) by `jump` in place and add the constants' columns from column `shared` on.

    `shared` is -1 when `m` has none; `work` is scratch, shape (9, c) or larger.
    """
    cols = m.shape[1]
    for i in range(9):
        for c in range(cols):
            a = 0.0
            for k in range(9):
                a += jump[i, k] * m[k, c]
            work[i, c] = a
    for i in range(9):
        for c in range(cols):
            m[i, c] = work[i, c]
    if shared >= 0:
        for i in range(9):
            for j in range(jump_theta.shape[1]):
                m[i, shared + j] += jump_theta[i, j]
