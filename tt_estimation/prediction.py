"""From a ball state to its path: bounce, end and plane crossings with covariance, in one pass."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tt_estimation.ball_models import P_DECAY, P_RADIUS, BallModel
from tt_estimation.events import (
    FLOOR,
    HORIZON,
    NET,
    ROLLING_SPEED_MPS,
    TABLE,
    next_event,
)
from tt_estimation.sensitivity import (
    acceleration_jacobian,
    apply_jump,
    table_bounce_jacobian,
)
from tt_estimation.types import BallEnd, BallPrediction, BallState, PlaneCrossing

FloatArray = NDArray[np.float64]

_NO_THETA = np.empty(0, dtype=np.int64)
_AFTER_EVENT_S = 1e-9  # the sample after a bounce comes one stamp unit after the one before it
_ENDS = {
    0: BallEnd.HORIZON,
    1: BallEnd.SECOND_BOUNCE,
    2: BallEnd.NET,
    3: BallEnd.FLOOR,
    4: BallEnd.OFF_TABLE,
    5: BallEnd.NOT_FINITE,
}


@dataclass(frozen=True, slots=True)
class PredictorConfig:
    """How far and how finely to look ahead.

    Attributes:
        step_s: spacing of the samples; between them cubic Hermite interpolation errs by less than a micrometre.
        horizon_s: longest path.
        behind_y: the path ends where y falls below this, m: no robot reaches further back.
        net: the path ends at the net; otherwise it is flown through.
    """

    step_s: float = 0.02
    horizon_s: float = 2.0
    behind_y: float = -2.6
    net: bool = True


@njit(cache=True, nogil=True)
def _move(jac: np.ndarray, h: float, decay: float, m: np.ndarray) -> None:
    """Move the columns of `m` (9, c) over a step of `h` seconds with the acceleration's derivative at its middle.

    Second order in h times the derivative (about 1 1/s): 1e-6 of the deviation per step, plenty for a covariance and a
    third of the cost of the exact derivative.
    """
    a = np.empty(3)
    for c in range(m.shape[1]):
        w0, w1, w2 = m[6, c], m[7, c], m[8, c]
        v0, v1, v2 = m[3, c], m[4, c], m[5, c]
        for i in range(3):
            a[i] = (
                jac[i, 0] * v0
                + jac[i, 1] * v1
                + jac[i, 2] * v2
                + jac[i, 3] * w0
                + jac[i, 4] * w1
                + jac[i, 5] * w2
            )
        for i in range(3):
            b = jac[i, 0] * a[0] + jac[i, 1] * a[1] + jac[i, 2] * a[2]
            m[i, c] += h * m[3 + i, c] + 0.5 * h * h * (a[i] + h / 3.0 * b)
            m[3 + i, c] += h * (a[i] + 0.5 * h * b)
            m[6 + i, c] *= decay


@njit(cache=True, nogil=True)
def _write_sample(
    t: float,
    cur: np.ndarray,
    half: np.ndarray,
    n: int,
    times: np.ndarray,
    states: np.ndarray,
    covs: np.ndarray,
) -> None:
    """Write time, state and position covariance (from its square root `half`) of sample `n`."""
    times[n] = t
    for i in range(9):
        states[n, i] = cur[i]
    for i in range(3):
        for j in range(i + 1):
            a = 0.0
            for k in range(9):
                a += half[i, k] * half[j, k]
            covs[n, i, j] = a
            covs[n, j, i] = a


@njit(cache=True, nogil=True)
def _predict(
    x: np.ndarray,
    cov: np.ndarray,
    p: np.ndarray,
    step: float,
    horizon: float,
    behind_y: float,
    mask: int,
    bounces_before: int,
    times: np.ndarray,
    states: np.ndarray,
    covs: np.ndarray,
    info: np.ndarray,
) -> tuple[int, int, int]:
    """Fill samples until the ball is no longer playable.

    `info` (4,) receives time and position of the bounce on the robot half. Returns (samples, index after that bounce or
    -1, end code of `_ENDS`).
    """
    jac = np.empty((3, 6))
    middle = np.empty(9)
    accel = np.empty(3)
    jump = np.empty((9, 9))
    none = np.empty((9, 0))
    work = np.empty((9, 9))
    s = np.empty(9)
    half = np.zeros((9, 9))  # square root of the covariance, moved along the path
    for j in range(9):
        d = cov[j, j]
        for k in range(j):
            d -= half[j, k] * half[j, k]
        d = d**0.5 if d > 0.0 else 0.0
        half[j, j] = d
        for i in range(j + 1, 9):
            a = cov[i, j]
            for k in range(j):
                a -= half[i, k] * half[j, k]
            half[i, j] = a / d if d > 0.0 else 0.0
    cur = x.copy()
    n = 0
    t = 0.0
    bounces = bounces_before
    index = -1
    for i in range(4):
        info[i] = np.nan
    capacity = times.shape[0]
    end = 0
    while True:
        _write_sample(t, cur, half, n, times, states, covs)
        n += 1
        if t >= horizon or cur[1] < behind_y or n + 2 >= capacity:
            end = 4 if bounces == 0 and cur[1] < behind_y else 0
            break
        h = min(step, horizon - t)
        code, tau = next_event(cur, p, h, h, mask, 0.0, s)
        if code != HORIZON and code != TABLE and code != NET and code != FLOOR:
            end = 5
            break
        for i in range(9):
            middle[i] = 0.5 * (cur[i] + s[i])
            cur[i] = s[i]
        acceleration_jacobian(middle, p, _NO_THETA, accel, jac)
        _move(jac, tau, math.exp(-p[P_DECAY] * tau) if p[P_DECAY] != 0.0 else 1.0, half)
        t += tau
        if code == TABLE:
            cur[2] = p[P_RADIUS]
            _write_sample(t, cur, half, n, times, states, covs)
            n += 1
            if cur[1] < 0.0:
                bounces += 1
                if bounces > 1:
                    end = 1
                    break
                info[0] = t
                for i in range(3):
                    info[1 + i] = cur[i]
                index = n
            table_bounce_jacobian(cur, p, _NO_THETA, s, jump, none)
            for i in range(9):
                cur[i] = s[i]
            apply_jump(jump, none, half, -1, work)
            t += _AFTER_EVENT_S
            if cur[5] < ROLLING_SPEED_MPS:
                end = 1 if bounces > 0 else 4
                if index == n:
                    index = n - 1
                break
        elif code == NET or code == FLOOR:
            _write_sample(t, cur, half, n, times, states, covs)
            n += 1
            end = 2
            if code == FLOOR:
                end = 3 if bounces > 0 else 4
            break
    return n, index, end


class Predictor:
    """Predicts paths with one ball model."""

    def __init__(self, model: BallModel, config: PredictorConfig | None = None) -> None:
        self._model = model
        self._config = config or PredictorConfig()
        # Grid samples, two samples per event, and the end.
        n = int(self._config.horizon_s / self._config.step_s) + 32
        self._times = np.empty(n)
        self._states = np.empty((n, 9))
        self._covs = np.empty((n, 3, 3))
        self._info = np.empty(4)

    def predict(self, state: BallState, bounces_before: int = 0) -> BallPrediction:
        """Path of the ball from `state` until it is no longer playable.

        Bounces on the opponent's half are flown through; `end` tells why the path ends. A ball that moves away from
        the robot gets its path too, with end `OUTGOING`.

        Args:
            state: ball state.
            bounces_before: bounces on the robot half before `state`.
        """
        x = state.vector
        if not (np.isfinite(x).all() and np.isfinite(state.cov).all()):
            nan3 = np.full(3, np.nan)
            return BallPrediction(
                state.stamp_ns,
                np.empty(0),
                np.empty((0, 9)),
                np.empty((0, 3, 3)),
                -1,
                float("nan"),
                nan3,
                bounces_before,
                BallEnd.NOT_FINITE,
            )
        c = self._config
        n, index, code = _predict(
            x,
            state.cov,
            self._model.params,
            c.step_s,
            c.horizon_s,
            c.behind_y,
            TABLE | FLOOR | (NET if c.net else 0),
            bounces_before,
            self._times,
            self._states,
            self._covs,
            self._info,
        )
        end = BallEnd.OUTGOING if x[4] >= 0.0 else _ENDS[code]
        info = self._info.copy()
        return BallPrediction(
            state.stamp_ns,
            self._times[:n].copy(),
            self._states[:n].copy(),
            self._covs[:n].copy(),
            index,
            float(info[0]),
            info[1:],
            bounces_before,
            end,
        )


def interpolate(prediction: BallPrediction, index: int, u: float) -> FloatArray:
    """State (9,) between samples `index` and `index + 1`, `u` in 0..1; cubic Hermite in position."""
    a, b = prediction.states[index], prediction.states[index + 1]
    h = prediction.times_s[index + 1] - prediction.times_s[index]
    u2, u3 = u * u, u * u * u
    out = np.empty(9)
    out[:3] = (
        (2 * u3 - 3 * u2 + 1) * a[:3]
        + (u3 - 2 * u2 + u) * h * a[3:6]
        + (3 * u2 - 2 * u3) * b[:3]
        + (u3 - u2) * h * b[3:6]
    )
    out[3:] = (1.0 - u) * a[3:] + u * b[3:]
    return out


def plane_crossing(prediction: BallPrediction, plane_y: float) -> PlaneCrossing | None:
    """Where and when the incoming ball crosses the plane y = `plane_y`; None when the path ends before it.

    The covariance is that of the crossing point (in the plane), not of the position at a fixed time: moving along the
    path is projected out, and shows as `time_sigma_s` instead.
    """
    y = prediction.states[:, 1]
    crossed = np.nonzero((y[:-1] > plane_y) & (y[1:] <= plane_y))[0]
    if len(crossed) == 0:
        return None
    i = int(crossed[0])
    lo, hi = 0.0, 1.0
    for _ in range(50):
        u = 0.5 * (lo + hi)
        state = interpolate(prediction, i, u)
        if state[1] > plane_y:
            lo = u
        else:
            hi = u
    t = prediction.times_s[i] + u * (prediction.times_s[i + 1] - prediction.times_s[i])
    cov = (1.0 - u) * prediction.cov[i] + u * prediction.cov[i + 1]
    v = state[3:6]
    project = np.eye(3)
    project[:, 1] -= v / v[1]
    return PlaneCrossing(
        float(t), float(np.sqrt(max(cov[1, 1], 0.0)) / abs(v[1])), state, project @ cov @ project.T
    )
