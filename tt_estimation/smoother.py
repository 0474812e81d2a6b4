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
from tt_estimation.ekf import observe
from tt_estimation.events import ROLLING_SPEED_MPS
from tt_estimation.sensitivity import (
    apply_jump,
    apply_step_jacobian,
    bounce_kink,
    cut_normal,
    direction_error,
    step_or_touch,
    table_bounce_jacobian,
)
from tt_perception.cholesky import solve_spd

# Squared distances to the optimum, in standard deviations, below which a linearisation is good enough: after a pass,
# and of one that has seen all but the newest observations, of a ball in free flight and of one that has bounced. The
# last step is taken to first order, so what is left grows with the square of the distance: in free flight a hundredth
# of a standard deviation (p99) where the linearisation is one away.
SETTLED = 1e-4
NEAR = 1.0
NEAR_BOUNCED = 0.1


@njit(cache=True, nogil=True)
def kink_columns(n: int) -> int:
    """Columns of the `kink` array of `linearise` for n unknowns."""
    return 4 + 3 * n


@njit(cache=True, nogil=True)
def linearise(
    rows: np.ndarray,
    first: int,
    n_rows: int,
    bounces: int,
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
        first: 0 to start at the anchor; else the first observation that is new, and the flight goes on from what
            `x_end`, `sens`, `kink` and `bounces` hold for the observation before it.
        x0: state at the anchor (9,). p: parameter vector in use. theta: `P_*` indices (m,).
        normal: (9 + m, 9 + m) and rhs (9 + m,): Jᵀ R⁻¹ J and Jᵀ R⁻¹ r are ADDED.
        x_end: receives the state at the last observation (9,).
        sens: receives d x_end / d (x0, theta), shape (9, 9 + m); six more columns receive the effect of
            the impulse per mass (x, y, z) of the first and of the second bounce on x_end.
        kink: (2, `kink_columns(9 + m)`) receives, for these bounces, the margin to the kink of the friction law, m/s,
            its derivative by (x0, theta), the slip (x, y), its derivatives, and the impulse of friction per mass if
            the ball slid; NaN first when there was no such bounce.
        residuals: receives the residuals (≥ n_rows, 3) of the new observations; zero where unused.

    Returns:
        (½ Σ rᵀ R⁻¹ r of the new observations, bounces since the anchor); (inf, 0) when the flight is not finite.
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
    weight = np.empty((3, 3))
    t = 0.0
    rolling = False
    if first == 0:
        bounces = 0
        kink[0, 0] = math.nan
        kink[1, 0] = math.nan
        for i in range(9):
            x[i] = x0[i]
            for j in range(n + 6):
                sens[i, j] = 1.0 if i == j and j < n else 0.0
    else:
        t = rows[first - 1, 0]
        for i in range(9):
            x[i] = x_end[i]
        rolling = bounces > 0 and x[5] == 0.0
    cost = 0.0
    for r in range(first, n_rows):
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
            touches, tau, decay = step_or_touch(x, p, min(step, target - t), theta, s, jac)
            for i in range(9):
                x[i] = s[i]
                if not math.isfinite(s[i]):
                    return math.inf, 0
            # Columns of bounces that have not happened are zero.
            apply_step_jacobian(jac, decay, sens, n + 3 * min(bounces, 2), 9)
            t += tau
            if touches:
                bounces += 1
                slot = bounces - 1
                if slot < 2:
                    _note_kink(x, p, sens, n, kink[slot], gradient, kick)
                table_bounce_jacobian(x, p, theta, s, jump, jump_theta)
                apply_jump(jump, jump_theta, sens, 9, work)
                if slot < 2:
                    c = n + 3 * slot
                    for j in range(3):
                        sens[3 + j, c + j] = 1.0
                    sens[6, c + 1] = 1.5 / p[P_RADIUS]
                    sens[7, c] = -1.5 / p[P_RADIUS]
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
            for j in range(rows_used):
                weight[i, j] = 1.0 if i == j else 0.0
        if not solve_spd(cov, rows_used, weight, rows_used, 0.0):
            continue
        for i in range(rows_used):
            wr = 0.0
            for k in range(rows_used):
                wr += weight[i, k] * res[k]
            cost += 0.5 * res[i] * wr
            for a in range(n):
                rhs[a] += hs[i, a] * wr
            for b in range(n):
                wh = 0.0
                for k in range(rows_used):
                    wh += weight[i, k] * hs[k, b]
                for a in range(b, n):
                    normal[a, b] += hs[i, a] * wh
    for i in range(9):
        x_end[i] = x[i]
    for a in range(n):
        for b in range(a):
            normal[b, a] = normal[a, b]
    return cost, bounces


@njit(cache=True, nogil=True)
def _note_kink(
    x: np.ndarray,
    p: np.ndarray,
    sens: np.ndarray,
    n: int,
    kink: np.ndarray,
    gradient: np.ndarray,
    kick: np.ndarray,
) -> None:
    """Write what `linearise` says of the bounce from state `x` into one row of `kink`."""
    r = p[P_RADIUS]
    margin = bounce_kink(x, p, gradient, kick)
    ux = x[3] - r * x[7]
    uy = x[4] + r * x[6]
    kink[0] = margin
    kink[1 + n] = ux
    kink[2 + n] = uy
    kink[3 + 3 * n] = 0.4 * math.sqrt(ux * ux + uy * uy) - margin
    for j in range(n):
        a = 0.0
        for i in range(9):
            a += gradient[i] * sens[i, j]
        kink[1 + j] = a
        kink[3 + n + j] = sens[3, j] - r * sens[7, j]
        kink[3 + 2 * n + j] = sens[4, j] + r * sens[6, j]


Memory = tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray, np.ndarray]


def new_memory(m: int) -> Memory:
    """What `refine` remembers from one call to the next, for `m` constants: its best linearisation.

    Point, normal matrix, right-hand side, end state, sensitivities, kinks (see `linearise`), and (cost, whole cost,
    bounces, observations in it, log of the probability mass around the estimate); no observation means that there is
    none.
    """
    n = 9 + m
    return (
        np.zeros(n),
        np.zeros((n, n)),
        np.zeros(n),
        np.zeros(9),
        np.zeros((9, n + 6)),
        np.zeros((2, kink_columns(n))),
        np.zeros(5),
    )


def forget(memory: Memory) -> None:
    """Make the next fit start from its given unknowns, with all observations."""
    memory[6][3] = 0.0


def holds_fit(memory: Memory) -> bool:
    """Whether the next fit goes on from this memory."""
    return bool(memory[6][3] > 0.0)


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
    memory: Memory,
    unknowns: np.ndarray,
    x_end: np.ndarray,
    cov_end: np.ndarray,
    shift: np.ndarray,
    flip: np.ndarray,
) -> tuple[float, float, int]:
    """Maximum a posteriori estimate by Levenberg-Marquardt from `unknowns`, which is updated in place.

    Args:
        rows, n_rows, theta, step: as in `linearise`. p: nominal parameter vector.
        theta_sigma: prior standard deviations of the deviations (m,).
        prior_info, prior_eta: Λ (9, 9) and η (9,) of the prior of the anchor state.
        bounce_sigma: what the contact law leaves unexplained of the impulse per mass of a bounce, m/s.
        max_passes: linearisations at most; the last one always gives the covariance.
        memory: from `new_memory`. When it holds the linearisation of the first observations (under the same prior),
            only the rest is added to find the first step, and `unknowns` is not read.
        unknowns: (9 + m,) anchor state and deviations of the constants.
        x_end: receives the state at the last observation. cov_end: receives its covariance (9, 9).
        shift: (9,) receives how far the mean lies from `x_end`: the estimate speaks for its own side of the friction
            law's kink only, where the distribution is cut off.
        flip: (2, 11 + m) receives for the first and second bounce the side of the kink that the estimate is valid on
            (1 sliding, −1 rolling, NaN without that bounce), the margin to the kink, m/s, and the most probable change
            of the unknowns per unit of margin: the way to the other side.

    Returns:
        (½ Σ rᵀ R⁻¹ r, the whole cost, bounces) at the estimate; costs inf on failure, outputs then unusable.
    """
    point, best_normal, best_rhs, best_x, best_sens, best_kink, totals = memory
    nt = theta.shape[0]
    n = 9 + nt
    q = p.copy()
    normal = np.empty((n, n))
    rhs = np.empty(n)
    factor = np.empty((n, n))
    delta = np.zeros((n, 1))
    sens = np.empty((9, n + 6))
    kink = np.empty((2, kink_columns(n)))
    residuals = np.empty((n_rows, 3))
    best_total = math.inf
    best_cost = math.inf
    damping = 0.0
    bounces = 0
    passes = 0
    known = int(totals[3])
    if 0 < known <= n_rows:
        for j in range(nt):
            q[theta[j]] = p[theta[j]] + point[9 + j]
        more, bounces = linearise(
            rows,
            known,
            n_rows,
            int(totals[2]),
            point,
            q,
            theta,
            step,
            best_normal,
            best_rhs,
            best_x,
            best_sens,
            best_kink,
            residuals,
        )
        best_cost, best_total = totals[0] + more, totals[1] + more
    while True:
        if math.isfinite(best_total):
            factor[:, :] = best_normal
            for i in range(n):
                factor[i, i] *= 1.0 + damping
                delta[i, 0] = best_rhs[i]
            if not solve_spd(factor, n, delta, 1, 0.0):
                totals[3] = 0.0
                return math.inf, math.inf, 0
            gain = 0.0
            for i in range(n):
                gain += delta[i, 0] * best_rhs[i]
            # Newton decrement: the squared distance to the optimum in standard deviations.
            near = NEAR_BOUNCED if bounces > 0 else NEAR
            if passes == max_passes or gain < (SETTLED if passes > 0 else near):
                break
            for i in range(n):
                unknowns[i] = point[i] + delta[i, 0]
        elif passes > 0:
            totals[3] = 0.0
            return math.inf, math.inf, 0
        passes += 1
        for i in range(n):
            rhs[i] = 0.0
            for j in range(n):
                normal[i, j] = 0.0
        for j in range(nt):
            q[theta[j]] = p[theta[j]] + unknowns[9 + j]
        cost, nb = linearise(
            rows, 0, n_rows, 0, unknowns, q, theta, step, normal, rhs, x_end, sens, kink, residuals
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
        if not math.isfinite(best_total) or total <= best_total + 1e-9 * (1.0 + abs(best_total)):
            best_total, best_cost, bounces = total, cost, nb
            point[:] = unknowns
            best_normal[:, :] = normal
            best_rhs[:] = rhs
            best_x[:] = x_end
            best_sens[:, :] = sens
            best_kink[:, :] = kink
            damping = 0.0 if damping < 1e-3 else damping * 0.1
        else:
            damping = 1e-2 if damping == 0.0 else damping * 10.0
    totals[0], totals[1], totals[2], totals[3] = best_cost, best_total, bounces, n_rows
    for i in range(9):
        x_end[i] = best_x[i]
    for i in range(n):
        unknowns[i] = point[i]
    # The last step has been computed but not linearised again: apply it to first order.
    gain = 0.0
    for i in range(n):
        if damping > 0.0:
            delta[i, 0] = 0.0
        unknowns[i] += delta[i, 0]
        gain += delta[i, 0] * best_rhs[i]
    for i in range(9):
        for k in range(n):
            x_end[i] += best_sens[i, k] * delta[k, 0]
    volume = _covariance(best_normal, best_sens, best_kink, delta, bounce_sigma, cov_end, shift, flip)
    if not math.isfinite(volume):
        totals[3] = 0.0
        return math.inf, math.inf, 0
    totals[4] = volume - best_total + 0.5 * gain
    return best_cost, best_total, bounces


@njit(cache=True, nogil=True)
def _covariance(
    normal: np.ndarray,
    sens: np.ndarray,
    kink: np.ndarray,
    delta: np.ndarray,
    bounce_sigma: float,
    cov_end: np.ndarray,
    shift: np.ndarray,
    flip: np.ndarray,
) -> float:
    """Covariance of the end state, and the ways to the other sides of the kinks; arguments as in `refine`.

    `delta` (9 + m, 1) is the step from the linearisation to the estimate. To the linear part comes what bounces add:
    the unexplained impulse, the mean square of what a fixed direction of the slip leaves out, and the cut at the kink.

    Returns:
        Log of the volume of unknowns that the posterior spreads over on this side of the kinks, up to a constant; NaN
        when the normal matrix is not positive definite.
    """
    n = normal.shape[0]
    factor = normal.copy()
    cols = np.empty((n, 9))
    for i in range(n):
        for j in range(9):
            cols[i, j] = sens[j, i]
    if not solve_spd(factor, n, cols, 9, 0.0):
        return math.nan
    volume = 0.0
    for i in range(n):
        volume -= math.log(factor[i, i])
    for i in range(9):
        shift[i] = 0.0
        for j in range(i + 1):
            a = 0.0
            for k in range(n):
                a += sens[i, k] * cols[k, j]
            cov_end[i, j] = a
            cov_end[j, i] = a
    solved = np.empty((n, 3))
    way = np.empty(9)
    for slot in range(2):
        flip[slot, 0] = math.nan
        if not math.isfinite(kink[slot, 0]):
            continue
        ux, uy = kink[slot, 1 + n], kink[slot, 2 + n]
        slip = math.sqrt(ux * ux + uy * uy)
        hx, hy = (ux / slip, uy / slip) if slip > 1e-9 else (1.0, 0.0)
        # Margin to the kink, slip along itself, slip across: gradients by the unknowns.
        for i in range(n):
            gx, gy = kink[slot, 3 + n + i], kink[slot, 3 + 2 * n + i]
            solved[i, 0] = kink[slot, 1 + i]
            solved[i, 1] = hx * gx + hy * gy
            solved[i, 2] = hx * gy - hy * gx
        gradients = solved.copy()
        if not solve_spd(normal.copy(), n, solved, 3, 0.0):
            return math.nan
        margin, variance, along, across, both = kink[slot, 0], 0.0, 0.0, 0.0, 0.0
        for i in range(n):
            margin += gradients[i, 0] * delta[i, 0]
            variance += gradients[i, 0] * solved[i, 0]
            along += gradients[i, 1] * solved[i, 1]
            across += gradients[i, 2] * solved[i, 2]
            both += gradients[i, 1] * solved[i, 2]
        if not variance > 0.0:
            return math.nan
        side = 1.0 if kink[slot, 0] > 0.0 else -1.0
        flip[slot, 0] = side
        flip[slot, 1] = margin
        for i in range(n):
            flip[slot, 2 + i] = solved[i, 0] / variance
        mass, mean, spread = cut_normal(side * margin / math.sqrt(variance))
        volume += mass
        for i in range(9):
            way[i] = 0.0
            for k in range(n):
                way[i] += sens[i, k] * flip[slot, 2 + k]
            shift[i] += way[i] * side * mean * math.sqrt(variance)
        ll, tt, lt = 0.0, 0.0, 0.0
        if side > 0.0:
            ll, tt, lt = direction_error(kink[slot, 3 + 3 * n], slip, along, across, both)
        floor = bounce_sigma * bounce_sigma
        c = n + 3 * slot
        for i in range(9):
            li = hx * sens[i, c] + hy * sens[i, c + 1]
            ti = hx * sens[i, c + 1] - hy * sens[i, c]
            for j in range(i + 1):
                lj = hx * sens[j, c] + hy * sens[j, c + 1]
                tj = hx * sens[j, c + 1] - hy * sens[j, c]
                a = ll * li * lj + tt * ti * tj + lt * (li * tj + ti * lj)
                a += (spread - 1.0) * variance * way[i] * way[j]
                for k in range(c, c + 3):
                    a += floor * sens[i, k] * sens[j, k]
                cov_end[i, j] += a
                if i != j:
                    cov_end[j, i] = cov_end[i, j]
    return volume
