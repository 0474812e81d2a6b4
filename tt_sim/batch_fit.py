"""Batch fits of a ball's start state to noisy positions: the yardsticks that the tracker is measured against.

Written apart from the tracker on purpose: derivatives come from finite differences of the flight, and the search
starts from several points, so that an error in the tracker's own Jacobians or linearisation would show.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tt_estimation.events import STEP_S, fly
from tt_estimation.spin_prior import SpinPrior

FloatArray = NDArray[np.float64]

_STEPS = np.array([1e-6] * 3 + [1e-5] * 3 + [1e-3] * 3)  # of the finite differences: m, m/s, rad/s
_MAX_ITERATIONS = 40


@njit(cache=True, nogil=True)
def _positions(x0: np.ndarray, p: np.ndarray, times: np.ndarray, step: float, out: np.ndarray) -> None:
    """Positions of a ball at ascending `times`, through table bounces, into `out` (n, 3)."""
    s = x0.copy()
    t = 0.0
    for k in range(times.shape[0]):
        if times[k] > t:
            fly(s, p, times[k] - t, step, s)
            t = times[k]
        for i in range(3):
            out[k, i] = s[i]


@njit(cache=True, nogil=True)
def _jacobian(
    x0: np.ndarray, p: np.ndarray, times: np.ndarray, step: float, steps: np.ndarray, n: int, out: np.ndarray
) -> None:
    """Central differences of `_positions` by the first `n` states, into `out` (m, 3, n)."""
    high = np.empty((times.shape[0], 3))
    low = np.empty((times.shape[0], 3))
    x = x0.copy()
    for j in range(n):
        x[j] = x0[j] + steps[j]
        _positions(x, p, times, step, high)
        x[j] = x0[j] - steps[j]
        _positions(x, p, times, step, low)
        x[j] = x0[j]
        for k in range(times.shape[0]):
            for i in range(3):
                out[k, i, j] = (high[k, i] - low[k, i]) / (2.0 * steps[j])


@dataclass(frozen=True, slots=True)
class BatchFit:
    """Result of a fit.

    Attributes:
        state: start state, shape (9,).
        cov: its covariance in the fitted states, shape (n, n); Laplace approximation at the optimum.
        cost: half the squared residuals in standard deviations, prior included.
    """

    state: FloatArray
    cov: FloatArray
    cost: float


def fit(
    times_s: FloatArray,
    points: FloatArray,
    sigma_m: float,
    params: FloatArray,
    spin: FloatArray | None,
    prior: SpinPrior | None,
    starts: list[FloatArray],
) -> BatchFit | None:
    """Fit the state at time 0 to positions.

    Args:
        times_s: ascending, shape (m,). points: shape (m, 3), m. sigma_m: standard deviation per axis.
        params: parameter vector of the ball model.
        spin: shape (3,) when it is given and only position and velocity are fitted; None to fit it too.
        prior: of the spin, when it is fitted.
        starts: states to start the search from; the best optimum wins.

    Returns:
        None when no start converges to finite numbers.
    """
    n = 9 if spin is None else 6
    if prior is not None:
        whiten = np.linalg.inv(np.linalg.cholesky(prior.covariance))
        prior_rows = whiten @ np.hstack([-prior.coefficients[:, 1:], np.eye(3)])[:, :n]
        prior_constant = whiten @ prior.coefficients[:, 0]
    predicted = np.empty((len(times_s), 3))
    jacobian = np.empty((len(times_s), 3, n))

    def residuals(x: FloatArray) -> FloatArray:
        _positions(x, params, times_s, STEP_S, predicted)
        r = ((points - predicted) / sigma_m).ravel()
        return r if prior is None else np.concatenate((r, prior_constant - prior_rows @ x[:n]))

    best: BatchFit | None = None
    for start in starts:
        x = start.copy()
        if spin is not None:
            x[6:] = spin
        r = residuals(x)
        cost = 0.5 * float(r @ r)
        damping = 1e-6
        for _ in range(_MAX_ITERATIONS):
            _jacobian(x, params, times_s, STEP_S, _STEPS, n, jacobian)
            a = jacobian.reshape(-1, n) / sigma_m
            if prior is not None:
                a = np.vstack((a, prior_rows))
            normal = a.T @ a
            gradient = a.T @ r
            done = True
            for _ in range(8):
                damped = normal + damping * np.diag(np.diagonal(normal))
                try:
                    step = np.linalg.solve(damped, gradient)
                except np.linalg.LinAlgError:
                    break
                trial = x.copy()
                trial[:n] += step
                r_trial = residuals(trial)
                trial_cost = 0.5 * float(r_trial @ r_trial)
                if np.isfinite(trial_cost) and trial_cost <= cost:
                    done = cost - trial_cost < 1e-9 * (1.0 + cost)
                    x, r, cost = trial, r_trial, trial_cost
                    damping = max(damping * 0.1, 1e-12)
                    break
                damping = max(damping * 10.0, 1e-9)
            if done:
                break
        if np.isfinite(cost) and (best is None or cost < best.cost):
            try:
                best = BatchFit(x, np.asarray(np.linalg.inv(normal), np.float64), cost)
            except np.linalg.LinAlgError:
                continue
    return best
