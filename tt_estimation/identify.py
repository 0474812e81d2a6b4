"""Ball constants from recorded ball positions: all flights fitted at once, with confidence intervals.

Unknowns are the constants, shared by all flights, and the start state of each flight (with the spin prior of the
filter, since positions alone hardly show the spin before the bounce). Gauss-Newton; the start states are eliminated
flight by flight (Schur complement), so the cost grows linearly with the recording.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tt_estimation.ball_models import (
    NOMINAL,
    P_CD0,
    P_CD1,
    P_CL,
    P_E_TABLE,
    P_MU_TABLE,
    BallModel,
)
from tt_estimation.events import STEP_S
from tt_estimation.flights import Flight, find_flights
from tt_estimation.frame_check import check_frame
from tt_estimation.smoother import kink_columns, linearise
from tt_estimation.spin_prior import SHIPPED, SpinPrior
from tt_perception.errors import TTError
from tt_perception.types import BallPosition

FloatArray = NDArray[np.float64]

MIN_FLIGHTS = 3
LAWS = ("auto", "linear", "saturating")
SATURATING_HALF_RATIO = 0.368  # spin ratio of half saturation of the lift seen in match data
# A law must explain the data by this much in −2 log likelihood to be preferred to the simpler one.
_BETTER_BY = 10.0
# Far beyond all published values: outside, the recording is not what it seems.
_REAL_BALLS = {
    "drag": (0.2, 0.9),
    "lift": (-0.1, 3.0),
    "table_restitution": (0.5, 1.0),
    "table_friction": (0.0, 1.0),
}
_LINEAR = ("drag", "lift", "table_restitution", "table_friction")
_FRICTION_STARTS = (0.1, 0.4)
_MAX_ITERATIONS = 30
_MAX_ROUNDS = 6


@dataclass(frozen=True, slots=True)
class _Constant:
    """A constant that can be fitted: its place, how uncertain it is without data, and how certain it must become."""

    name: str
    index: int
    unit: str
    prior_sigma: float
    limit: float
    needs: str


_CONSTANTS = {
    c.name: c
    for c in (
        _Constant("drag", P_CD0, "1", 0.3, 0.03, "longer or faster flights"),
        _Constant("drag_slope", P_CD1, "1", 0.3, 0.15, "flights with weak and with strong spin"),
        _Constant(
            "lift", P_CL, "1", 0.6, 0.12, "flights with spin that bounce, so that the bounce shows the spin"
        ),
        _Constant("table_restitution", P_E_TABLE, "1", 0.2, 0.015, "flights that bounce on the table"),
        _Constant(
            "table_friction", P_MU_TABLE, "1", 0.2, 0.04, "bounces that slide: flat or fast balls, backspin"
        ),
    )
}


@dataclass(frozen=True, slots=True)
class Parameter:
    """One identified constant.

    Attributes:
        value: identified, or the nominal one when it is not determined.
        sigma: standard deviation; of the data alone, as far as it goes, when it is not determined.
        unit: "1" for numbers without one.
        determined: the data fix it.
        reason: why not, and what to record; empty when it is.
    """

    value: float
    sigma: float
    unit: str
    determined: bool
    reason: str = ""

    def as_json(self) -> dict[str, float | str | bool]:
        """The JSON object of the command."""
        result: dict[str, float | str | bool] = {
            "value": self.value,
            "sigma": self.sigma,
            "unit": self.unit,
            "determined": self.determined,
        }
        if self.reason:
            result["reason"] = self.reason
        return result


@dataclass(frozen=True)
class Identification:
    """What was found.

    Attributes:
        model: ball model with the determined constants.
        law: `linear` or `saturating` lift.
        parameters: by name.
        correlation: of the fitted constants, in the order of `fitted`.
        fitted: names of the constants in `correlation`.
        residual_before_m, residual_after_m: root mean square per axis with nominal and identified constants.
        before, after: residuals of all observations, shape (n, 3), m; times: since the hit, shape (n,).
        flights, bounces, dropped: flights used, their bounces, flights left out as outliers.
        noise_scale: residuals over what the covariances of the observations promise; 1 when these are honest.
    """

    model: BallModel
    law: str
    parameters: dict[str, Parameter]
    correlation: FloatArray
    fitted: tuple[str, ...]
    residual_before_m: float
    residual_after_m: float
    before: FloatArray
    after: FloatArray
    times: FloatArray
    flights: int
    bounces: int
    dropped: int
    noise_scale: float


def identify(
    positions: Sequence[BallPosition],
    start: BallModel = NOMINAL,
    spin_prior: SpinPrior = SHIPPED,
    law: str = "auto",
    name: str = "identified",
    progress: Callable[[str], None] = lambda _: None,
) -> Identification:
    """Fit ball constants to a recording.

    Args:
        positions: of one or several recordings, any order within 0.25 s.
        start: constants to start from; those that the data do not determine keep its values.
        spin_prior: of balls after the opponent's hit.
        law: `linear`, `saturating`, or `auto`: the simpler unless the data contradict it.
        name: of the resulting model.
        progress: told what is being fitted, once per step of the fit.

    Raises:
        TTError: too few flights, or positions in another frame or unit.
    """
    if law not in LAWS:
        raise TTError(f"lift law {law!r} is unknown; allowed: {', '.join(LAWS)}")
    check_frame(positions)
    progress("finding flights")
    flights = find_flights(positions, start, spin_prior)
    if len(flights) < MIN_FLIGHTS:
        raise TTError(
            f"{len(flights)} flights of one ball in {len(positions)} positions; at least {MIN_FLIGHTS} are needed: "
            "record balls that fly freely for 0.15 s and more"
        )
    # A bounce that rolls does not show the friction: from too high a value nothing leads down. So start thrice.
    first: _Fit | None = None
    for friction in sorted({start.table_friction, *_FRICTION_STARTS}):
        tell = functools.partial(progress, f"fitting {len(flights)} flights from friction {friction:g}")
        trial = _Fit(flights, start.with_values(table_friction=friction), _LINEAR, tell)
        trial.run()
        if first is None or trial.typical() < first.typical():
            first = trial
    assert first is not None
    kept = first.without_outliers()
    roughly = first.values()
    candidates: list[tuple[str, BallModel, tuple[str, ...]]] = []
    if law in ("auto", "linear"):
        linear = start.with_values(**{**roughly, "lift_half_ratio": 0.0})
        if start.lift_half_ratio > 0.0:
            linear = linear.with_values(lift=NOMINAL.lift, drag_slope=0.0)
        candidates.append(("linear", linear, _LINEAR))
    if law in ("auto", "saturating"):
        saturating = start.with_values(**roughly)
        if start.lift_half_ratio <= 0.0:
            # The plateau that lifts like the linear law at a spin ratio of 0.2, the median of match balls.
            plateau = roughly["lift"] * (SATURATING_HALF_RATIO + 0.2)
            saturating = saturating.with_values(lift=plateau, lift_half_ratio=SATURATING_HALF_RATIO)
        candidates.append(("saturating", saturating, (*_LINEAR, "drag_slope")))
    best: tuple[str, _Fit] | None = None
    for law_name, model, names in candidates:
        trial = _Fit(kept, model, names, functools.partial(progress, f"fitting the {law_name} lift law"))
        trial.run()
        if best is None or 2.0 * trial.cost < 2.0 * best[1].cost - _BETTER_BY * trial.scale2:
            best = (law_name, trial)
    assert best is not None
    law_name, final = best
    if len(final.without_outliers()) < len(final.flights):
        final = _Fit(final.without_outliers(), final.model(), final.names, final.progress)
        final.run()
    return _conclude(law_name, final, start, len(flights) - len(final.flights), name)


def _conclude(law: str, fit: _Fit, start: BallModel, dropped: int, name: str) -> Identification:
    """Decide what is determined, refit without the rest, and collect the report."""
    parameters: dict[str, Parameter] = {}
    free = list(fit.names)
    while True:
        sigmas = fit.sigmas()
        worst = max(fit.names, key=lambda n: sigmas[n] / _CONSTANTS[n].limit, default=None)
        if worst is None or sigmas[worst] <= _CONSTANTS[worst].limit:
            break
        c = _CONSTANTS[worst]
        value = getattr(start, worst)
        reason = (
            f"standard deviation {sigmas[worst]:.2g} from {len(fit.flights)} flights with {fit.bounces} bounces, "
            f"{c.limit:g} allowed; record {c.needs}"
        )
        parameters[worst] = Parameter(float(value), float(sigmas[worst]), c.unit, False, reason)
        free.remove(worst)
        if worst != "lift" or fit.start.lift_half_ratio == start.lift_half_ratio:
            known = fit.model().with_values(**{worst: value})
        else:
            known = fit.model()  # the value of one lift law means nothing in the other: keep what was fitted
            parameters[worst] = replace(parameters[worst], value=float(getattr(known, worst)))
        fit = _Fit(fit.flights, known, tuple(free), fit.progress)
        fit.run()
    sigmas = fit.sigmas()
    for n in fit.names:
        parameters[n] = Parameter(float(fit.values()[n]), float(sigmas[n]), _CONSTANTS[n].unit, True)
    parameters["clock_offset"] = Parameter(
        0.0,
        float("inf"),
        "s",
        False,
        "ball positions carry one clock, and a constant offset of all stamps changes no flight; offsets between "
        "cameras show in their detections: tt calibrate time-offset BAG",
    )
    for n, (low, high) in _REAL_BALLS.items():
        p = parameters[n]
        if p.determined and not low <= p.value <= high:
            raise TTError(
                f"{n} comes out as {p.value:.2f} ± {p.sigma:.2f}, which no real ball has ({low:g} to {high:g}): "
                "the positions are in another frame or scale, or flights are mixed up with other movements; "
                "frame 'table' has x to the right seen from the robot, y towards the opponent, z up, in metres"
            )
    model = fit.model().with_values()
    model = BallModel(
        name, **{f: getattr(model, f) for f in model.__dataclass_fields__ if f not in ("name", "params")}
    )
    before = _residuals(fit.flights, start)
    after = _residuals(fit.flights, model)
    covariance = fit.covariance()
    sd = np.sqrt(np.diagonal(covariance)) if len(covariance) else np.empty(0)
    return Identification(
        model=model,
        law=law,
        parameters=parameters,
        correlation=covariance / np.outer(sd, sd) if len(sd) else np.empty((0, 0)),
        fitted=fit.names,
        residual_before_m=_rms(before),
        residual_after_m=_rms(after),
        before=before,
        after=after,
        times=np.concatenate([f.rows[:, 0] for f in fit.flights]),
        flights=len(fit.flights),
        bounces=fit.bounces,
        dropped=dropped,
        noise_scale=float(np.sqrt(fit.scale2)),
    )


@dataclass
class _Fit:
    """All flights with some constants free.

    Attributes:
        progress: called in every step.
        cost: ½ Σ rᵀ R⁻¹ r with the priors of spin and constants. scale2: residual variance over the promised one.
        bounces: table bounces in the flights.
    """

    flights: list[Flight]
    start: BallModel
    names: tuple[str, ...]
    progress: Callable[[], None]
    cost: float = np.inf
    scale2: float = 1.0
    bounces: int = 0
    starts: list[FloatArray] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._theta = np.array([_CONSTANTS[n].index for n in self.names], dtype=np.int64)
        self._prior = np.array([1.0 / _CONSTANTS[n].prior_sigma ** 2 for n in self.names])
        self._delta = np.zeros(len(self.names))
        self._information = np.zeros((len(self.names), len(self.names)))
        self._costs = np.empty(0)
        self._weights = np.ones(len(self.flights))

    def model(self) -> BallModel:
        """The model with the fitted values."""
        return self.start.with_values(**self.values())

    def values(self) -> dict[str, float]:
        """Fitted constants by name."""
        return {n: float(getattr(self.start, n) + d) for n, d in zip(self.names, self._delta, strict=True)}

    def covariance(self) -> FloatArray:
        """Covariance of the constants, scaled to the residuals seen."""
        if not self.names:
            return np.empty((0, 0))
        return np.asarray(np.linalg.inv(self._information + np.diag(self._prior)) * max(self.scale2, 1.0))

    def sigmas(self) -> dict[str, float]:
        """Standard deviations by name."""
        return dict(zip(self.names, np.sqrt(np.diagonal(self.covariance())), strict=True))

    def run(self) -> None:
        """Levenberg-Marquardt until the constants move by less than 1/1000 of their uncertainty.

        Each flight starts from its own best fit under the present constants, which also decides on which side of the
        friction law's kink (sliding or rolling) its bounce lies; this is repeated once the constants are known better.
        """
        for _ in range(_MAX_ROUNDS):
            self.starts = [f.fit(self.model()) for f in self.flights]
            before = self._delta.copy()
            self._weigh()
            self._descend()
            sigma = np.sqrt(np.diagonal(self.covariance()))
            if not len(sigma) or np.abs((self._delta - before) / sigma).max() < 0.1:
                break
        dof = sum(3 * len(f.rows) for f in self.flights) - 6 * len(self.flights)
        self.scale2 = 2.0 * float(self._costs.sum()) / max(dof, 1)

    def _weigh(self) -> None:
        """Flights that fit much worse than the others, on the wrong side of the kink for instance, count for less."""
        self._weights = np.ones(len(self.flights))
        self._system(self._delta, self.starts)
        per_point = self._costs / np.array([len(f.rows) for f in self.flights])
        self._weights = np.minimum(1.0, 2.0 * np.median(per_point) / np.maximum(per_point, 1e-12))

    def _descend(self) -> None:
        damping = 0.0
        delta, starts = self._delta, self.starts
        self.cost, system = self._system(delta, starts)
        for _ in range(_MAX_ITERATIONS):
            self.progress()
            step = self._step(system, delta, damping)
            new_delta = delta + step[0]
            new_starts = [x + dx for x, dx in zip(starts, step[1], strict=True)]
            cost, new_system = self._system(new_delta, new_starts)
            if not cost <= self.cost + 1e-9 * abs(self.cost):
                damping = max(10.0 * damping, 1e-3)
                if damping > 1e6:
                    break
                continue
            gain = self.cost - cost
            delta, starts, system, self.cost = new_delta, new_starts, new_system, cost
            damping *= 0.1
            if gain < 1e-3:
                break
        self._delta, self.starts = delta, starts
        self._information = self._schur(system)

    def _system(
        self, delta: FloatArray, starts: list[FloatArray]
    ) -> tuple[float, list[tuple[FloatArray, FloatArray]]]:
        """Cost, and normal matrix and right-hand side of each flight (start state, then constants)."""
        p = self.start.params.copy()
        p[self._theta] += delta
        m = len(self.names)
        if not (0.0 < p[P_E_TABLE] < 1.0 and p[P_MU_TABLE] >= 0.0):
            return np.inf, []  # the contact law has no slope there; a shorter step is tried
        total = 0.5 * float(self._prior @ delta**2)
        system = []
        costs = np.empty(len(self.flights))
        self.bounces = 0
        for k, (flight, x) in enumerate(zip(self.flights, starts, strict=True)):
            normal, rhs = np.zeros((9 + m, 9 + m)), np.zeros(9 + m)
            cost, bounces = linearise(
                flight.rows,
                0,
                len(flight.rows),
                0,
                x,
                p,
                self._theta,
                STEP_S,
                normal,
                rhs,
                np.empty(9),
                np.empty((9, 15 + m)),
                np.empty((2, kink_columns(9 + m))),
                flight.residuals,
            )
            self.bounces += bounces
            costs[k] = cost
            normal[:9, :9] += flight.info
            gradient = flight.eta - flight.info @ x
            rhs[:9] += gradient
            w = self._weights[k]
            total += w * (cost - 0.5 * float(x @ (gradient + flight.eta)))
            system.append((w * normal, w * rhs))
        self._costs = costs
        return total, system

    def _step(
        self, system: list[tuple[FloatArray, FloatArray]], delta: FloatArray, damping: float
    ) -> tuple[FloatArray, list[FloatArray]]:
        m = len(self.names)
        matrix = np.diag(self._prior).astype(float)
        vector = -self._prior * delta
        solved = []
        for normal, rhs in system:
            local = normal[:9, :9] + damping * np.diag(np.diagonal(normal)[:9])
            inverse = np.linalg.solve(local, np.column_stack((normal[:9, 9:], rhs[:9])))
            matrix += normal[9:, 9:] - normal[9:, :9] @ inverse[:, :m]
            vector += rhs[9:] - normal[9:, :9] @ inverse[:, m]
            solved.append(inverse)
        matrix += damping * np.diag(np.diagonal(matrix))
        change = np.linalg.solve(matrix, vector) if m else np.empty(0)
        return change, [np.asarray(s[:, m] - s[:, :m] @ change, float) for s in solved]

    def _schur(self, system: list[tuple[FloatArray, FloatArray]]) -> FloatArray:
        m = len(self.names)
        total = np.zeros((m, m))
        for normal, _ in system:
            total += normal[9:, 9:] - normal[9:, :9] @ np.linalg.solve(normal[:9, :9], normal[:9, 9:])
        return total

    def typical(self) -> float:
        """Mean cost per flight of the better 80 % of the flights."""
        costs = np.sort(self._costs)
        return float(costs[: max(1, int(0.8 * len(costs)))].mean())

    def without_outliers(self) -> list[Flight]:
        """Flights whose residuals are like those of the others: net touches and mixed-up tracks stay out."""
        per_point = self._costs / np.array([len(f.rows) for f in self.flights])
        limit = 4.0 * np.median(per_point)
        kept = [f for f, c in zip(self.flights, per_point, strict=True) if c <= limit]
        return kept if len(kept) >= MIN_FLIGHTS else self.flights


def _residuals(flights: list[Flight], model: BallModel) -> FloatArray:
    """Residuals of all observations when each start state is fitted under `model`, shape (n, 3), m."""
    parts = []
    for flight in flights:
        flight.fit(model)
        parts.append(flight.residuals.copy())
    return np.concatenate(parts)


def _rms(residuals: FloatArray) -> float:
    return float(np.sqrt(np.mean(residuals**2)))
