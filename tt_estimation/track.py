"""One ball: its observations in stamp order, the filter that follows them, and the smoother that refines it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tt_estimation import ekf
from tt_estimation.ball_models import (
    P_CD0,
    P_CL,
    P_E_TABLE,
    P_MU_TABLE,
    BallModel,
)
from tt_estimation.buffer import ROW
from tt_estimation.events import STEP_S
from tt_estimation.smoother import Memory, forget, holds_fit, kink_columns, linearise, new_memory, refine
from tt_estimation.spin_prior import SHIPPED, SpinPrior

FloatArray = NDArray[np.float64]

CAPACITY = 320  # observations a track keeps: 1.3 s at 240 Hz, longer than a ball flies from hit to hit
KEEP = 192  # after the buffer overflows: how many of the newest stay


@dataclass(frozen=True, slots=True)
class FilterConfig:
    """How much the model is trusted, and what is accepted.

    The defaults suit constants identified with `tt identify`; `KNOWN_BALL` suits a simulation with the
    filter's own constants.

    Attributes:
        gate: share of correct observations that pass the chi-square gate.
        acceleration_noise: spectral density of unmodelled acceleration, m/s² per √Hz. Room air moves with some
            0.1 m/s for tenths of a second: 0.1 × the ball's drag slope of 1 1/s gives about 0.01.
        drag_sigma, lift_sigma: standard deviation of the constants between balls and rooms.
        restitution_sigma, friction_sigma: the same for the table contact.
        bounce_sigma: what the contact law leaves unexplained of the impulse per mass of a bounce, m/s.
        refine: fit all observations of the buffer after each one; the plain filter otherwise.
        spin_prior: for balls first seen after the opponent's hit.
    """

    gate: float = 0.999
    acceleration_noise: float = 0.003
    drag_sigma: float = 0.003
    lift_sigma: float = 0.01
    restitution_sigma: float = 0.003
    friction_sigma: float = 0.008
    bounce_sigma: float = 0.004
    refine: bool = True
    spin_prior: SpinPrior = field(default=SHIPPED)

    def noise(self) -> FloatArray:
        """The noise vector of the filter kernels."""
        q = np.zeros(ekf.N_NOISE)
        q[ekf.Q_ACC] = self.acceleration_noise**2
        q[ekf.S_E] = self.restitution_sigma
        q[ekf.S_MU] = self.friction_sigma
        q[ekf.S_BOUNCE] = self.bounce_sigma
        return q


_THETA = np.array([P_CD0, P_CL, P_E_TABLE, P_MU_TABLE])
_LINE_POINTS = 12
_PRIOR_SETTLED = 12  # observations after which position and velocity at the hit hardly change any more
_GROWING = (12, 18, 27, 40, 60, 90, 135, 200)
_OTHER_SIDE_PASSES = 4
_BEYOND_KINK_MPS = 1e-4  # at least this far beyond the kink starts the fit of its other side
_SETTLE_PASSES = 20
_IMPROBABLE = 1e-4  # odds below which the other side of the friction law's kink is left alone
_SETTLED_WAIT = 4  # for so many observations


KNOWN_BALL = FilterConfig(
    gate=1.0 - 1e-6,
    acceleration_noise=0.0,
    drag_sigma=1e-6,
    lift_sigma=1e-6,
    restitution_sigma=1e-6,
    friction_sigma=1e-6,
    bounce_sigma=1e-4,
)
"""For a simulation whose ball obeys the filter's own constants exactly, with nothing else in view."""


@dataclass(frozen=True, slots=True)
class _Fit:
    unknowns: FloatArray
    x: FloatArray
    cov: FloatArray
    cost: float
    total: float
    log_mass: float
    bounces: int
    shift: FloatArray
    flip: FloatArray


class Track:
    """Observations and estimate of one ball since its hit, or since it was first seen.

    Attributes:
        origin_ns: stamp of the first observation; times of rows count from it.
        x, cov: estimate at the newest observation, shapes (9,) and (9, 9).
        bounces: table bounces passed since the origin.
        n: observations in the buffer.
        cost: ½ Σ rᵀ R⁻¹ r of the smoother's last fit.
        prior: of the spin at the origin.
    """

    def __init__(
        self,
        rows: FloatArray,
        origin_ns: int,
        model: BallModel,
        config: FilterConfig,
        prior: SpinPrior,
        start: FloatArray | None = None,
    ) -> None:
        """Start from at least three observation rows whose times count from `origin_ns`.

        `start` is a state (9,) near the one at the first row; found from the rows when left out.
        """
        self.origin_ns = origin_ns
        self._model = model
        self._config = config
        self._noise = config.noise()
        self._theta_sigma = np.array(
            [config.drag_sigma, config.lift_sigma, config.restitution_sigma, config.friction_sigma]
        )
        self.prior = prior
        self._prior_near: SpinPrior | None = None
        self._info, self._eta = np.zeros((9, 9)), np.zeros(9)
        self._first_rows: FloatArray | None = None
        self._rows = np.zeros((CAPACITY, ROW))
        self._states = np.zeros((CAPACITY, 9))
        self._covs = np.zeros((CAPACITY, 9, 9))
        self._bounce_counts = np.zeros(CAPACITY, dtype=np.int64)
        self._memory = new_memory(len(_THETA))
        self._other_memories = [new_memory(len(_THETA)) for _ in range(2)]
        self._unknowns = np.zeros(9 + len(_THETA))
        self._bounces_before_anchor = 0
        self._fitted_bounces = 0
        self._other_side_wait = 0
        self.x = np.zeros(9)
        self.cov = np.zeros((9, 9))
        self.bounces = 0
        self.cost = 0.0
        self.n = len(rows)
        self.rolling = False
        self._rows[: self.n] = rows
        self.valid = self._start(prior) if start is None else self._start_from(start)

    def _start(self, prior: SpinPrior) -> bool:
        n = self.n
        rows = self._rows[: min(n, _LINE_POINTS)]
        t, z = rows[:, 0], rows[:, 2:5]
        # Straight line through the first points, gravity taken out, as the first linearisation point.
        drop = np.zeros_like(z)
        drop[:, 2] = -0.5 * 9.81 * t * t
        slope = np.polyfit(t, z - drop, 1)
        self._unknowns[:3] = slope[1]
        self._unknowns[3:6] = slope[0]
        self._unknowns[6:9] = prior.mean(slope[1], slope[0])
        self._set_prior()
        # Many points at once (identification): lengthen the fit step by step, so that each start is near its
        # optimum.
        for count in (*_GROWING, n):
            if count <= n:
                self.n = count
                if not self._refine(6):
                    return False
        self._store(n - 1)
        # Checkpoints of the starting rows are never replayed from: a late one among them refits everything.
        for i in range(n - 1):
            self._states[i] = np.nan
        return True

    def _start_from(self, start: FloatArray) -> bool:
        self._unknowns[:9] = start
        self._set_prior()
        if not self._refine(6):
            return False
        self._store(self.n - 1)
        self._states[: self.n - 1] = np.nan
        return True

    def _set_prior(self) -> None:
        """Take the spin prior as it is near the present estimate of the first state."""
        near = self.prior.at(self._unknowns[:6])
        if near is self._prior_near:
            return
        self._prior_near = near
        self._info, self._eta = near.information()
        self._forget_fits()

    @property
    def time_s(self) -> float:
        """Time of the newest observation after the origin."""
        return float(self._rows[self.n - 1, 0])

    @property
    def stamp_ns(self) -> int:
        """Stamp of the newest observation."""
        return self.origin_ns + round(self.time_s * 1e9)

    @property
    def origin_state(self) -> FloatArray:
        """Estimated state at the anchor, shape (9,)."""
        return self._unknowns[:9]

    def first_rows(self) -> FloatArray:
        """Observation rows from the start of the track, as many as the buffer held at once; times from there."""
        return self._rows[: self.n].copy() if self._first_rows is None else self._first_rows

    def residuals(self) -> FloatArray:
        """Residuals of the estimate in the units of the observations, shape (n, 3)."""
        n = len(self._unknowns)
        p = self._model.params.copy()
        p[_THETA] += self._unknowns[9:]
        residuals = np.empty((self.n, 3))
        linearise(
            self._rows,
            0,
            self.n,
            0,
            self._unknowns,
            p,
            _THETA,
            STEP_S,
            np.zeros((n, n)),
            np.zeros(n),
            np.empty(9),
            np.empty((9, n + 6)),
            np.empty((2, kink_columns(n))),
            residuals,
        )
        return residuals

    def settle(self) -> bool:
        """Fit until nothing changes, the other side of the friction law's kink included."""
        self._other_side_wait = 0
        self._forget_fits()  # they are as near to the optimum as a ball in flight needs
        return self._refine(_SETTLE_PASSES)

    def predicted(self, time_s: float) -> tuple[FloatArray, FloatArray, int]:
        """Mean, covariance and bounces at a time not before the newest observation."""
        x, cov = self.x.copy(), self.cov.copy()
        bounces = ekf.predict(x, cov, self._model.params, self._noise, time_s - self.time_s, STEP_S)
        return x, cov, bounces

    def distance2(self, row: FloatArray) -> tuple[int, float]:
        """(rows, squared Mahalanobis distance) of an observation, also of a late one."""
        index = self._index(row[0])
        if index == self.n:
            x, cov = self.x, self.cov
        elif index == 0 or not np.isfinite(self._states[index - 1, 0]):
            return 3, 0.0  # among the first three: the refit decides
        else:
            x, cov = self._states[index - 1], self._covs[index - 1]
        dt = row[0] - self._rows[index - 1, 0]
        return ekf.distance2(x, cov, self._model.params, self._noise, dt, STEP_S, row)

    def fuse(self, row: FloatArray) -> bool:
        """Insert an observation in stamp order, replay the filter from there, refine.

        Returns:
            False when the estimate is no longer usable (the track must end).
        """
        if self.n == CAPACITY:
            row = row.copy()
            row[0] -= self._shorten()
        index = self._index(row[0])
        if row[0] < 0.0:
            return True
        end = self.n
        if index < end:
            for array in (self._rows, self._states, self._covs, self._bounce_counts):
                array[index + 1 : end + 1] = array[index:end]
            self._forget_fits()
        self._rows[index] = row
        self._states[index] = np.nan
        self.n += 1
        replayable = index > 0 and np.isfinite(self._states[index - 1, 0])
        if replayable:
            self._replay(index)
        if self.n <= _PRIOR_SETTLED and self._first_rows is None:
            self._set_prior()
        if self._config.refine or not replayable:
            if self._refine(3 if replayable else 6):
                self._store(self.n - 1)
            elif not replayable:
                return False
        return ekf.is_sound(self.x, self.cov)

    def _index(self, time_s: float) -> int:
        if time_s >= self._rows[self.n - 1, 0]:
            return self.n
        return int(np.searchsorted(self._rows[: self.n, 0], time_s, side="right"))

    def _replay(self, index: int) -> None:
        states, covs, counts = self._states, self._covs, self._bounce_counts
        p = self._model.params
        self.rolling = ekf.replay(self._rows, index, self.n, p, self._noise, STEP_S, states, covs, counts)
        last = self.n - 1
        self.x, self.cov, self.bounces = states[last].copy(), covs[last].copy(), int(counts[last])

    def _store(self, index: int) -> None:
        self._states[index] = self.x
        self._covs[index] = self.cov
        self._bounce_counts[index] = self.bounces

    def _forget_fits(self) -> None:
        """Observations or priors that earlier fits took in have changed."""
        for memory in (self._memory, *self._other_memories):
            forget(memory)

    def _refine(self, passes: int) -> bool:
        """Fit all observations anew from the present estimate; False on failure, which keeps the old estimate."""
        fitted = self._fit(self._memory, self._unknowns, passes)
        if fitted is None:
            return False
        if fitted.bounces != self._fitted_bounces:
            self._other_side_wait = 0
        if fitted.bounces > 0:
            fitted = self._other_side(fitted)
            fitted = replace(fitted, cov=fitted.cov + np.outer(fitted.shift, fitted.shift))
        self._unknowns, self.x, self.cov = fitted.unknowns, fitted.x, fitted.cov
        self.cost = fitted.cost
        self._fitted_bounces = fitted.bounces
        self.bounces = self._bounces_before_anchor + fitted.bounces
        return True

    def _other_side(self, fitted: _Fit) -> _Fit:
        """The better of the two sides that sliding and rolling make, with a covariance that spans both.

        Each bounce is tried while its other side is not improbable; then only now and then, since it may
        become so. A side that stays in question is carried on from fit to fit.
        """
        if self._other_side_wait > 0:
            self._other_side_wait -= 1
            return fitted
        self._other_side_wait = _SETTLED_WAIT
        for slot in range(min(fitted.bounces, 2)):
            other = self._across(fitted, slot)
            if other is None:
                forget(self._other_memories[slot])
                continue
            if other.total < fitted.total and other.flip[slot, 0] * other.flip[slot, 1] > 0.0:
                fitted, other = other, fitted
                self._memory, self._other_memories[slot] = self._other_memories[slot], self._memory
            # Odds are those of whole sides, not of their best points: sliding tells little of the spin, rolling much.
            odds = np.exp(min(other.log_mass - fitted.log_mass, 50.0))
            if odds < _IMPROBABLE:
                forget(self._other_memories[slot])
                continue
            self._other_side_wait = 0
            share = odds / (1.0 + odds)
            apart = other.x + other.shift - fitted.x
            cov = (1.0 - share) * (fitted.cov + np.outer(fitted.shift, fitted.shift))
            cov += share * (other.cov + np.outer(apart, apart))
            fitted = replace(fitted, cov=cov, shift=np.zeros(9))
        return fitted

    def _across(self, fitted: _Fit, slot: int) -> _Fit | None:
        """Fit on the other side of the kink of a bounce; of its slope at the kink when it has no optimum of its own."""
        memory = self._other_memories[slot]
        side, margin, way = fitted.flip[slot, 0], fitted.flip[slot, 1], fitted.flip[slot, 2:]
        beyond = -side * max(0.5 * abs(margin), _BEYOND_KINK_MPS)
        start = fitted.unknowns + (beyond - margin) * way

        def fit(passes: int) -> _Fit | None:
            other = self._fit(memory, start, passes)
            across = other is not None and other.bounces == fitted.bounces and other.flip[slot, 0] == -side
            return other if across else None

        if holds_fit(memory):
            carried_on = fit(_OTHER_SIDE_PASSES)
            if carried_on is not None:
                return carried_on
        forget(memory)
        slope = fit(1)
        if slope is not None and slope.flip[slot, 1] * side < 0.0:
            optimum = fit(_OTHER_SIDE_PASSES)
            if optimum is not None:
                return optimum
        forget(memory)
        return slope

    def _fit(self, memory: Memory, start: FloatArray, passes: int) -> _Fit | None:
        x, cov = np.empty(9), np.empty((9, 9))
        shift, flip = np.empty(9), np.empty((2, 11 + len(_THETA)))
        unknowns = start.copy()
        cost, total, bounces = refine(
            self._rows,
            self.n,
            self._model.params,
            _THETA,
            self._theta_sigma,
            self._info,
            self._eta,
            self._config.bounce_sigma,
            STEP_S,
            passes,
            memory,
            unknowns,
            x,
            cov,
            shift,
            flip,
        )
        if not (np.isfinite(total) and ekf.is_sound(x, cov)):
            return None
        return _Fit(unknowns, x, cov, cost, total, float(memory[6][4]), bounces, shift, flip)

    def _shorten(self) -> float:
        """Move the anchor forward: the filter's estimate there becomes the prior, older observations go.

        Returns:
            By how many seconds.
        """
        if self._first_rows is None:
            self._first_rows = self._rows[: self.n].copy()
        drop = self.n - KEEP
        anchor = drop - 1
        x, cov = self._states[anchor], self._covs[anchor]
        self._info = np.linalg.inv(cov)
        self._eta = self._info @ x
        self._forget_fits()
        self._unknowns[:9] = x
        self._bounces_before_anchor = int(self._bounce_counts[anchor])
        shift = self._rows[anchor, 0]
        for array in (self._rows, self._states, self._covs, self._bounce_counts):
            array[:KEEP] = array[drop : self.n].copy()
        self.n = KEEP
        self._fitted_bounces = self.bounces - self._bounces_before_anchor
        self._rows[: self.n, 0] -= shift
        self.origin_ns += round(shift * 1e9)
        return float(shift)
