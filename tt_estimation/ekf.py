"""Extended Kalman filter of the ball as compiled kernels: 9 states (position, velocity, spin), bounce included.

All kernels work in place on a mean `x` (9,) and a covariance `cov` (9, 9) and allocate only small scratch arrays.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from tt_estimation.ball_models import P_E_TABLE, P_MU_TABLE, P_RADIUS
from tt_estimation.events import ROLLING_SPEED_MPS
from tt_estimation.sensitivity import (
    apply_jump,
    apply_step_jacobian,
    bounce_kink,
    direction_error,
    kink_variance,
    step_or_touch,
    table_bounce_jacobian,
)
from tt_perception.cholesky import solve_spd

# Entries of the noise vector.
Q_ACC = 0  # spectral density of unmodelled acceleration (wind, turbulence), (m/s²)²/Hz
Q_SPIN = 1  # spectral density of unmodelled angular acceleration, (rad/s²)²/Hz
S_E = 2  # standard deviation of table restitution
S_MU = 3  # standard deviation of table friction
S_BOUNCE = 4  # unexplained impulse per mass of a bounce, m/s
N_NOISE = 5

_BOUNCE_THETA = np.array([P_E_TABLE, P_MU_TABLE])
_NO_THETA = np.empty(0, dtype=np.int64)


@njit(cache=True, nogil=True)
def _sandwich(m: np.ndarray, jac: np.ndarray, decay: float) -> None:
    """Replace `m` by F m Fᵀ for the step Jacobian F, using the symmetry of `m`."""
    apply_step_jacobian(jac, decay, m, 9, -1)
    for i in range(9):
        for j in range(i):
            m[i, j], m[j, i] = m[j, i], m[i, j]
    apply_step_jacobian(jac, decay, m, 9, -1)


@njit(cache=True, nogil=True)
def _symmetrise(m: np.ndarray) -> None:
    for i in range(9):
        for j in range(i):
            a = 0.5 * (m[i, j] + m[j, i])
            m[i, j] = a
            m[j, i] = a


@njit(cache=True, nogil=True)
def _contact_error(
    x: np.ndarray, p: np.ndarray, cov: np.ndarray, along: np.ndarray, across: np.ndarray
) -> tuple[float, float, float]:
    """Mean square impulse error of the linear contact law for a ball on the table, along and across its slip.

    `along` and `across` (9,) receive the change of the state after the bounce per unit of friction impulse in these
    directions. Returns the mean squares and the mean product, (m/s)².
    """
    g_kink = np.empty(9)
    g_along = np.zeros(9)
    g_across = np.zeros(9)
    margin = bounce_kink(x, p, g_kink, along)
    r = p[P_RADIUS]
    hx, hy = -along[3], -along[4]
    for i in range(9):
        g_along[i] = g_kink[i] / 0.4 if i != 5 else 0.0
        across[i] = 0.0
    g_across[3], g_across[4], g_across[6], g_across[7] = -hy, hx, r * hx, r * hy
    across[3], across[4], across[6], across[7] = hy, -hx, -1.5 / r * hx, -1.5 / r * hy
    kink, ll, tt, lt = 0.0, 0.0, 0.0, 0.0
    for i in range(9):
        for j in range(9):
            kink += g_kink[i] * cov[i, j] * g_kink[j]
            ll += g_along[i] * cov[i, j] * g_along[j]
            tt += g_across[i] * cov[i, j] * g_across[j]
            lt += g_along[i] * cov[i, j] * g_across[j]
    error = kink_variance(margin, kink)
    if margin <= 0.0:
        return error, 0.0, 0.0
    slip = math.sqrt((x[3] - r * x[7]) ** 2 + (x[4] + r * x[6]) ** 2)
    more, tt, lt = direction_error(0.4 * slip - margin, slip, ll, tt, lt)
    return error + more, tt, lt


@njit(cache=True, nogil=True)
def predict(x: np.ndarray, cov: np.ndarray, p: np.ndarray, noise: np.ndarray, dt: float, step: float) -> int:
    """Move mean and covariance `dt` ≥ 0 seconds ahead, through table bounces.

    The bounce maps the covariance with the saltation matrix and adds the uncertainty of restitution and friction, of
    the contact law itself, and what its linearisation leaves out: the side of its kink (sliding or rolling) that the
    ball is on, and the turning of the slip.

    Returns:
        The number of bounces passed, plus 1000 when the ball rolls (the mean then slides on with v_z = 0).
    """
    jac = np.empty((6, 6))
    jump = np.empty((9, 9))
    jump_theta = np.empty((9, 2))
    work = np.empty((9, 9))
    s = np.empty(9)
    along = np.empty(9)
    across = np.empty(9)
    bounces = 0
    t = 0.0
    while t < dt:
        touches, tau, decay = step_or_touch(x, p, min(step, dt - t), _NO_THETA, s, jac)
        for i in range(9):
            x[i] = s[i]
        _sandwich(cov, jac, decay)
        qv = noise[Q_ACC]
        for i in range(3):
            cov[i, i] += qv * tau * tau * tau / 3.0
            cov[i, 3 + i] += qv * tau * tau / 2.0
            cov[3 + i, i] += qv * tau * tau / 2.0
            cov[3 + i, 3 + i] += qv * tau
            cov[6 + i, 6 + i] += noise[Q_SPIN] * tau
        t += tau
        if touches:
            bounces += 1
            ll, tt, lt = _contact_error(x, p, cov, along, across)
            table_bounce_jacobian(x, p, _BOUNCE_THETA, s, jump, jump_theta)
            apply_jump(jump, jump_theta, cov, -1, work)
            for i in range(9):
                for j in range(i):
                    cov[i, j], cov[j, i] = cov[j, i], cov[i, j]
            apply_jump(jump, jump_theta, cov, -1, work)
            ve = noise[S_E] * noise[S_E]
            vm = noise[S_MU] * noise[S_MU]
            for i in range(9):
                x[i] = s[i]
                for j in range(9):
                    cov[i, j] += ve * jump_theta[i, 0] * jump_theta[j, 0]
                    cov[i, j] += vm * jump_theta[i, 1] * jump_theta[j, 1]
                    cov[i, j] += ll * along[i] * along[j] + tt * across[i] * across[j]
                    cov[i, j] += lt * (along[i] * across[j] + across[i] * along[j])
            # An impulse along x turns the ball about y and so on.
            vi = noise[S_BOUNCE] ** 2
            g = 1.5 / p[P_RADIUS]
            for i in range(3):
                cov[3 + i, 3 + i] += vi
            cov[6, 6] += g * g * vi
            cov[7, 7] += g * g * vi
            cov[4, 6] += g * vi
            cov[6, 4] += g * vi
            cov[3, 7] -= g * vi
            cov[7, 3] -= g * vi
            if x[5] < ROLLING_SPEED_MPS:
                x[5] = 0.0
                for i in range(2):
                    x[i] += (dt - t) * x[3 + i]
                bounces += 1000
                break
        elif tau <= 0.0:
            break
    _symmetrise(cov)
    return bounces


@njit(cache=True, nogil=True)
def observe(x: np.ndarray, row: np.ndarray, residual: np.ndarray, h: np.ndarray, noise: np.ndarray) -> int:
    """Residual and its derivative by position of one observation row (see `buffer`).

    Args:
        x: state; only its position is used.
        row: observation row. residual: receives z − h(x), shape (3,).
        h: receives dh / d position, shape (3, 3). noise: receives the observation covariance (3, 3).

    Returns:
        Rows used: 3 for a position, 2 for a ray, 0 when the ball is behind the camera.
    """
    if row[1] == 0.0:
        for i in range(3):
            residual[i] = row[2 + i] - x[i]
            for j in range(3):
                h[i, j] = 1.0 if i == j else 0.0
                noise[i, j] = row[5 + 3 * i + j]
        return 3
    # Ray: (u, v) = (M₀, M₁) · (x, 1) / M₂ · (x, 1) with the 3 × 4 projection M.
    q0, q1, q2 = row[17], row[21], row[25]
    for k in range(3):
        q0 += row[14 + k] * x[k]
        q1 += row[18 + k] * x[k]
        q2 += row[22 + k] * x[k]
    if q2 <= 1e-9:
        return 0
    u, v = q0 / q2, q1 / q2
    residual[0] = row[2] - u
    residual[1] = row[3] - v
    for k in range(3):
        h[0, k] = (row[14 + k] - u * row[22 + k]) / q2
        h[1, k] = (row[18 + k] - v * row[22 + k]) / q2
    noise[0, 0], noise[0, 1], noise[1, 0], noise[1, 1] = row[5], row[6], row[8], row[9]
    return 2


@njit(cache=True, nogil=True)
def innovation(
    x: np.ndarray, cov: np.ndarray, row: np.ndarray, residual: np.ndarray, h: np.ndarray, s: np.ndarray
) -> tuple[int, float]:
    """(rows, squared Mahalanobis distance) of an observation; (0, inf) when it cannot be compared.

    `residual` (3,), `h` (3, 3) and the innovation covariance `s` (3, 3) are written.
    """
    n = observe(x, row, residual, h, s)
    if n == 0:
        return 0, math.inf
    factor = np.empty((3, 3))
    b = np.empty((3, 1))
    for i in range(n):
        b[i, 0] = residual[i]
        for j in range(n):
            a = s[i, j]
            for k in range(3):
                for m in range(3):
                    a += h[i, k] * cov[k, m] * h[j, m]
            s[i, j] = a
            factor[i, j] = a
    if not solve_spd(factor, n, b, 1, 0.0):
        return 0, math.inf
    d2 = 0.0
    for i in range(n):
        d2 += residual[i] * b[i, 0]
    return n, d2


@njit(cache=True, nogil=True)
def update(x: np.ndarray, cov: np.ndarray, row: np.ndarray, gate2: float, gate3: float) -> tuple[int, float]:
    """Fuse one observation row in Joseph form if it passes the gate.

    Args:
        x, cov: changed in place when the observation is fused.
        gate2, gate3: largest squared Mahalanobis distance of a ray (2 rows) and of a position (3 rows).

    Returns:
        (rows fused, squared Mahalanobis distance); 0 rows when refused.
    """
    residual = np.empty(3)
    h = np.zeros((3, 3))
    s = np.empty((3, 3))
    n, d2 = innovation(x, cov, row, residual, h, s)
    if n == 0 or d2 > (gate2 if n == 2 else gate3):
        return 0, d2
    hp = np.empty((3, 9))
    for i in range(n):
        for j in range(9):
            a = 0.0
            for k in range(3):
                a += h[i, k] * cov[k, j]
            hp[i, j] = a
    gain = hp.copy()
    factor = s.copy()
    if not solve_spd(factor, n, gain, 9, 0.0):
        return 0, d2
    r = np.empty((3, 3))
    observe(x, row, residual, h, r)
    # Joseph form: (I − K H) P (I − K H)ᵀ + K R Kᵀ with K = gainᵀ.
    m = np.empty((9, 9))
    for i in range(9):
        for j in range(9):
            a = cov[i, j]
            for k in range(n):
                a -= gain[k, i] * hp[k, j]
            m[i, j] = a
    mh = np.empty((9, 3))
    for i in range(9):
        for j in range(n):
            a = 0.0
            for k in range(3):
                a += m[i, k] * h[j, k]
            mh[i, j] = a
    for i in range(9):
        for k in range(n):
            x[i] += gain[k, i] * residual[k]
        for j in range(9):
            a = m[i, j]
            for k in range(n):
                a -= mh[i, k] * gain[k, j]
                for q in range(n):
                    a += gain[k, i] * r[k, q] * gain[q, j]
            cov[i, j] = a
    _symmetrise(cov)
    return n, d2


@njit(cache=True, nogil=True)
def distance2(
    x0: np.ndarray,
    cov0: np.ndarray,
    p: np.ndarray,
    noise: np.ndarray,
    dt: float,
    step: float,
    row: np.ndarray,
) -> tuple[int, float]:
    """(rows, squared Mahalanobis distance) of an observation `dt` ≥ 0 seconds after a state; (0, inf) if unusable."""
    x, cov = x0.copy(), cov0.copy()
    predict(x, cov, p, noise, dt, step)
    return innovation(x, cov, row, np.empty(3), np.zeros((3, 3)), np.empty((3, 3)))


@njit(cache=True, nogil=True)
def replay(
    rows: np.ndarray,
    first: int,
    n: int,
    p: np.ndarray,
    noise: np.ndarray,
    step: float,
    states: np.ndarray,
    covs: np.ndarray,
    bounces: np.ndarray,
) -> bool:
    """Filter the observations `first` ≥ 1 to `n` − 1 anew from the checkpoint before them, and write theirs.

    Args:
        rows: observation rows, times ascending.
        states (≥ n, 9), covs (≥ n, 9, 9), bounces (≥ n,): checkpoints after each observation; `bounces` counts from
            the start of the track.

    Returns:
        Whether the ball rolls at the last observation.
    """
    rolls = False
    for i in range(first, n):
        states[i] = states[i - 1]
        covs[i] = covs[i - 1]
        passed = predict(states[i], covs[i], p, noise, rows[i, 0] - rows[i - 1, 0], step)
        rolls = passed >= 1000
        bounces[i] = bounces[i - 1] + passed % 1000
        update(states[i], covs[i], rows[i], math.inf, math.inf)
    return rolls


@njit(cache=True, nogil=True)
def is_sound(x: np.ndarray, cov: np.ndarray) -> bool:
    """Whether mean (9,) and covariance (9, 9) are finite and all variances positive."""
    for i in range(9):
        if not (math.isfinite(x[i]) and cov[i, i] > 0.0):
            return False
        for j in range(9):
            if not math.isfinite(cov[i, j]):
                return False
    return True


@njit(cache=True, nogil=True)
def is_covariance(m: np.ndarray) -> bool:
    """Whether the n × n matrix `m`, n ≤ 3, is finite, symmetric and positive definite."""
    n = m.shape[0]
    largest = 0.0
    for i in range(n):
        for j in range(n):
            if not math.isfinite(m[i, j]):
                return False
            largest = max(largest, abs(m[i, j]))
    factor = np.empty((3, 3))
    for i in range(n):
        for j in range(n):
            if abs(m[i, j] - m[j, i]) > 1e-6 * largest:
                return False
            factor[i, j] = m[i, j]
    return solve_spd(factor, n, np.empty((3, 0)), 0, 0.0)


@njit(cache=True, nogil=True)
def complete_position_spin(cov: np.ndarray) -> None:
    """Replace the position-spin block of a covariance (9, 9) by P_pv P_vv⁻¹ P_vw (see `BallState`)."""
    factor = np.empty((3, 3))
    solved = np.empty((3, 3))
    for i in range(3):
        for j in range(3):
            factor[i, j] = cov[3 + i, 3 + j]
            solved[i, j] = cov[3 + i, 6 + j]
    if not solve_spd(factor, 3, solved, 3, 0.0):
        return
    for i in range(3):
        for j in range(3):
            a = 0.0
            for k in range(3):
                a += cov[i, 3 + k] * solved[k, j]
            cov[i, 6 + j] = a
            cov[6 + j, i] = a


@njit(cache=True, nogil=True)
def complete_position_spins(covs: np.ndarray) -> None:
    """`complete_position_spin` of many covariances, shape (n, 9, 9)."""
    for i in range(covs.shape[0]):
        complete_position_spin(covs[i])
