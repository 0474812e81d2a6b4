"""Gauss-Newton over all buffered observations of one ball: maximum a posteriori state since the hit.

Spin shows in the curvature of the path (bilinear in spin and velocity) and in the bounce (sliding or rolling): a filter
that linearises each observation once keeps the errors of its early, poor linearisation points. Here the state at the
first observation is estimated from all of them at once and linearised anew for every fit, together with small
deviations of the ball constants from their nominal values, which carry the uncertainty of the model.

Unknowns: state at the anchor time (9), then deviations of the constants `theta` (m).
Cost: ½ Σ rᵀ R⁻¹ r + ½ xᵀ Λ x − ηᵀ x + ½ Σ (δ / σ)².
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from tt_estimation.ball_models import P_RADIUS
from tt_estimation.ekf import observe, solve_spd
from tt_estimation.events import ROLLING_SPEED_MPS, TABLE, next_event
from tt_estimation.sensitivity import (
    apply_jump,
    apply_step_jacobian,
    bounce_kink,
    kink_variance,
    rk4_step_jacobian,
    table_bounce_jacobian,
)


@njit(cache=True, nogil=True)
def linearise(
    rows: np.ndarray,
    n_rows: int,
    x0: np.ndarray,
    p: np.ndarray,
    theta: np.ndarray,
    step: float,
    normal: np.ndarray,
    rhs: np.ndarray,
    x_end: np.ndarray,
    sens: np.ndarray,
    kink: np.ndarray,
    residuals: np.ndarray,
) -> tuple[float, int]:
    """Fly from `x0` through all observations; accumulate normal equations.

    Args:
        rows: observations (≥ n_rows, 26), times ascending from the anchor at 0.
        x0: state at the anchor (9,). p: parameter vector in use. theta: `P_*` indices (m,).
        normal: (9 + m, 9 + m) and rhs (9 + m,): Jᵀ R⁻¹ J and Jᵀ R⁻¹ r are ADDED.
        x_end: receives the state at the last observation (9,).
        sens: receives d x_end / d (x0, theta), shape (9, 9 + m); six more columns receive the effect of
            the impulse per mass (x, y, z) of the first and of the second bounce on x_end.
        kink: (2, 12 + m) receives, for these bounces, the margin to the kink of the friction law, m/s, its derivative
            by (x0, theta), and the direction of the slip (x, y); NaN first when there was no such bounce.
        residuals: receives the residuals (≥ n_rows, 3); zero where unused.

    Returns:
        (½ Σ rᵀ R⁻¹ r, bounces on the way); (inf, 0) when the flight is not finite.
    """
    nt = theta.shape[0]
    n = 9 + nt
    jac = np.empty((6, 6 + nt))
    jump = np.empty((9, 9))
    jump_theta = np.empty((9, nt))
    work = np.empty((9, n + 6))
    gradient = np.empty(9)
    kick = np.empty(9)
    s = np.empty(9)
    x = np.empty(9)
    res = np.empty(3)
    h = np.zeros((3, 3))
    cov = np.empty((3, 3))
    hs = np.empty((3, n))
    wh = np.empty((3, n + 1))
    kink[0, 0] = math.nan
    kink[1, 0] = math.nan
    for i in range(9):
        x[i] = x0[i]
        for j in range(n + 6):
            sens[i, j] = 1.0 if i == j and j < n else 0.0
    cost = 0.0
    bounces = 0
    t = 0.0
    rolling = False
    for r in range(n_rows):
        target = rows[r, 0]
        while t < target - 1e-12:
            if rolling:
                dt = target - t
                for i in range(2):
                    x[i] += dt * x[3 + i]
                    for j in range(n + 6):
                        sens[i, j] += dt * sens[3 + i, j]
                t = target
                break
            d = min(step, target - t)
            code, tau = next_event(x, p, d, d, TABLE, 0.0, s)
            decay = rk4_step_jacobian(x, p, tau, theta, s, jac)
            for i in range(9):
                x[i] = s[i]
                if not math.isfinite(s[i]):
                    return math.inf, 0
            apply_step_jacobian(jac, decay, sens, 9)
            t += tau
            if code == TABLE:
                bounces += 1
                slot = bounces - 1
                if slot < 2:
                    kink[slot, 0] = bounce_kink(x, p, gradient, kick)
                    for j in range(n):
                        a = 0.0
                        for i in range(9):
                            a += gradient[i] * sens[i, j]
                        kink[slot, 1 + j] = a
                    kink[slot, 1 + n] = -kick[3]
                    kink[slot, 2 + n] = -kick[4]
                table_bounce_jacobian(x, p, theta, s, jump, jump_theta)
                apply_jump(jump, jump_theta, sens, 9, work)
                if slot < 2:
                    first = n + 3 * slot
                    for j in range(3):
                        sens[3 + j, first + j] = 1.0
                    sens[6, first + 1] = 1.5 / p[P_RADIUS]
                    sens[7, first] = -1.5 / p[P_RADIUS]
                for i in range(9):
                    x[i] = s[i]
                if x[5] < ROLLING_SPEED_MPS:
                    rolling = True
                    x[5] = 0.0
            elif tau <= 0.0:
                return math.inf, 0
        rows_used = observe(x, rows[r], res, h, cov)
        for i in range(3):
            residuals[r, i] = 0.0
        if rows_used == 0:
            continue
        for i in range(rows_used):
            residuals[r, i] = res[i]
            for j in range(n):
                a = 0.0
                for k in range(3):
                    a += h[i, k] * sens[k, j]
                hs[i, j] = a
                wh[i, j] = a
            wh[i, n] = res[i]
        if not solve_spd(cov, rows_used, wh, n + 1):
            continue
        for i in range(rows_used):
            cost += 0.5 * res[i] * wh[i, n]
            for a in range(n):
                f = hs[i, a]
                if f != 0.0:
                    rhs[a] += f * wh[i, n]
                    for b in range(a + 1):
                        normal[a, b] += f * wh[i, b]
    for i in range(9):
        x_end[i] = x[i]
    for a in range(n):
        for b in range(a):
            normal[b, a] = normal[a, b]
    return cost, bounces


@njit(cache=True, nogil=True)
def refine(
    rows: np.ndarray,
    n_rows: int,
    p: np.ndarray,
    theta: np.ndarray,
    theta_sigma: np.ndarray,
    prior_info: np.ndarray,
    prior_eta: np.ndarray,
    bounce_sigma: float,
    step: float,
    max_passes: int,
    unknowns: np.ndarray,
    x_end: np.ndarray,
    cov_end: np.ndarray,
    residuals: np.ndarray,
    flip: np.ndarray,
) -> tuple[float, float, int]:
    """Maximum a posteriori estimate by Levenberg-Marquardt from `unknowns`, which is updated in place.

    Args:
        rows, n_rows, theta, step: as in `linearise`. p: nominal parameter vector.
        theta_sigma: prior standard deviations of the deviations (m,).
        prior_info, prior_eta: Λ (9, 9) and η (9,) of the prior of the anchor state.
        bounce_sigma: what the contact law leaves unexplained of the impulse per mass of a bounce, m/s.
        max_passes: linearisations at most; the last one always gives the covariance.
        unknowns: (9 + m,) anchor state and deviations of the constants.
        x_end: receives the state at the last observation. cov_end: receives its covariance (9, 9).
        residuals: receives the residuals (≥ n_rows, 3) at the best linearisation.
        flip: (2, 10 + m) receives for the first and second bounce the margin to the kink of the friction law (NaN
            without that bounce), then the most probable change of the unknowns per unit of margin: the way to the
            kink's other side.

    Returns:
        (½ Σ rᵀ R⁻¹ r, the whole cost, bounces) at the estimate; costs inf on failure, outputs then unusable.
    """
    nt = theta.shape[0]
    n = 9 + nt
    q = p.copy()
    normal = np.empty((n, n))
    rhs = np.empty(n)
    factor = np.empty((n, n))
    delta = np.empty((n, 1))
    sens = np.empty((9, n + 6))
    kink = np.empty((2, 3 + n))
    keep_kink = np.empty((2, 3 + n))
    best = unknowns.copy()
    best_total = math.inf
    best_cost = math.inf
    damping = 0.0
    bounces = 0
    passes = 0
    keep_normal = np.empty((n, n))
    keep_rhs = np.empty(n)
    keep_x = np.empty(9)
    side = np.empty((n, 1))
    keep_residuals = np.empty((n_rows, 3))
    keep_sens = np.empty((9, n + 6))
    while passes < max_passes:
        passes += 1
        for i in range(n):
            rhs[i] = 0.0
            for j in range(n):
                normal[i, j] = 0.0
        for j in range(nt):
            q[theta[j]] = p[theta[j]] + unknowns[9 + j]
        cost, nb = linearise(
            rows, n_rows, unknowns, q, theta, step, normal, rhs, x_end, sens, kink, residuals
        )
        total = cost
        for i in range(9):
            a = prior_eta[i]
            for j in range(9):
                a -= prior_info[i, j] * unknowns[j]
                normal[i, j] += prior_info[i, j]
            rhs[i] += a
            total -= 0.5 * unknowns[i] * (a + prior_eta[i])
        for j in range(nt):
            w = 1.0 / (theta_sigma[j] * theta_sigma[j])
            normal[9 + j, 9 + j] += w
            rhs[9 + j] -= w * unknowns[9 + j]
            total += 0.5 * w * unknowns[9 + j] ** 2
        if total <= best_total + 1e-9 * (1.0 + abs(best_total)):
            best_total, best_cost, bounces = total, cost, nb
            best[:] = unknowns
            keep_normal[:, :] = normal
            keep_rhs[:] = rhs
            keep_x[:] = x_end
            keep_sens[:, :] = sens
            keep_kink[:, :] = kink
            keep_residuals[:, :] = residuals[:n_rows]
            damping = 0.0 if damping < 1e-3 else damping * 0.1
        else:
            damping = 1e-2 if damping == 0.0 else damping * 10.0
        if passes == max_passes:
            break
        factor[:, :] = keep_normal
        for i in range(n):
            factor[i, i] *= 1.0 + damping
            delta[i, 0] = keep_rhs[i]
        if not solve_spd(factor, n, delta, 1):
            return math.inf, math.inf, 0
        gain = 0.0
        for i in range(n):
            gain += delta[i, 0] * keep_rhs[i]
        # Newton decrement: the squared distance to the optimum in standard deviations.
        if gain < 1e-4:
            break
        for i in range(n):
            unknowns[i] = best[i] + delta[i, 0]
    if not math.isfinite(best_total):
        return math.inf, math.inf, 0
    residuals[:n_rows] = keep_residuals
    for i in range(n):
        unknowns[i] = best[i]
    for i in range(9):
        x_end[i] = keep_x[i]
    factor[:, :] = keep_normal
    cols = np.empty((n, 9))
    for i in range(n):
        for j in range(9):
            cols[i, j] = keep_sens[j, i]
    if not solve_spd(factor, n, cols, 9):
        return math.inf, math.inf, 0
    for i in range(9):
        for j in range(9):
            a = 0.0
            for k in range(n):
                a += keep_sens[i, k] * cols[k, j]
            cov_end[i, j] = a
    for slot in range(2):
        flip[slot, 0] = keep_kink[slot, 0]
        if not math.isfinite(keep_kink[slot, 0]):
            continue
        # Which side of the kink the ball was on is uncertain: the impulse may differ from the linear law's.
        for i in range(n):
            side[i, 0] = keep_kink[slot, 1 + i]
        factor[:, :] = keep_normal
        variance = 0.0
        if solve_spd(factor, n, side, 1):
            for i in range(n):
                variance += keep_kink[slot, 1 + i] * side[i, 0]
        for i in range(n):
            flip[slot, 1 + i] = side[i, 0] / variance if variance > 0.0 else 0.0
        extra = kink_variance(keep_kink[slot, 0], variance)
        floor = bounce_sigma * bounce_sigma
        ux, uy = keep_kink[slot, 1 + n], keep_kink[slot, 2 + n]
        first = n + 3 * slot
        for i in range(9):
            ki = ux * keep_sens[i, first] + uy * keep_sens[i, first + 1]
            for j in range(9):
                kj = ux * keep_sens[j, first] + uy * keep_sens[j, first + 1]
                cov_end[i, j] += extra * ki * kj
                for k in range(first, first + 3):
                    cov_end[i, j] += floor * keep_sens[i, k] * keep_sens[j, k]
    # The last step has been computed but not linearised again: apply it to first order.
    for i in range(n):
        delta[i, 0] = keep_rhs[i]
    factor[:, :] = keep_normal
    if damping == 0.0 and solve_spd(factor, n, delta, 1):
        for i in range(n):
            unknowns[i] += delta[i, 0]
        for i in range(9):
            for k in range(n):
                x_end[i] += keep_sens[i, k] * delta[k, 0]
    for i in range(9):
        for j in range(i):
            a = 0.5 * (cov_end[i, j] + cov_end[j, i])
            cov_end[i, j] = a
            cov_end[j, i] = a
    return best_cost, best_total, bounces
