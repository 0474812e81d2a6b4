"""How well the ball's future is known: the tracker beside simpler filters and the statistical limit, on the same noise.

Columns: A gravity only, B drag without spin, C drag with the true spin (extended Kalman filters of position and
velocity, as in the published comparison), `ours` the tracker of the product, and `map` the batch maximum a posteriori
estimate with the tracker's own spin prior: what positions can reveal at best.

Consistency (NEES and NIS in their 95 % bounds) is a statement about a filter whose model is the truth. Flight, bounce
and noise are the filter's own here; the spins of real balls are not: about the regression of the prior they have heavy
tails. So each cell judges the tracker twice: on the measured spins, and under `drawn_spin` on the same balls with spins
drawn from the prior, which is model = truth.
"""

from __future__ import annotations

import math
import multiprocessing
import os
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2

from tt_estimation import ekf
from tt_estimation.ball_models import DEEPMIND, MATCH, NOMINAL, P_K, BallModel
from tt_estimation.buffer import ROW
from tt_estimation.events import PLANE, STEP_S, TABLE, fly, fly_to_plane, next_event
from tt_estimation.prediction import Predictor, PredictorConfig, plane_crossing
from tt_estimation.sensitivity import bounce_kink
from tt_estimation.spin_prior import SHIPPED, SpinPrior
from tt_estimation.track import KNOWN_BALL, FilterConfig
from tt_estimation.tracker import BallTracker, TrackerConfig
from tt_estimation.types import BallState
from tt_perception.errors import TTError
from tt_perception.types import BallPosition
from tt_sim.ball_server import ServedBall
from tt_sim.batch_fit import fit

FloatArray = NDArray[np.float64]

PLANE_Y_M = -1.6
ESTIMATORS = ("A", "B", "C", "ours", "map")
BEFORE_CROSSING_S = 0.1  # the after-bounce comparison stops looking this long before the crossing
# m/s² per √Hz, of the filters with drag, B and C: with it they come out as in the published table.
DRAG_ACCELERATION_NOISE = 0.085
# Of the filter with gravity only, A: with it A errs least. It has to cover the drag that its model leaves out.
GRAVITY_ACCELERATION_NOISE = 0.4
FIRST_STAMP_NS = 1_000_000_000
RECORDED_BALLS = 50  # for identification
_MOST_DRAWS = 50  # of a spin with which a ball reaches the plane


@dataclass(frozen=True)
class EvalSettings:
    """What to evaluate.

    Attributes:
        fps: image rates, Hz. sigma_m: noise per axis, m. seen_s: seconds observed since the hit.
        seed: of the noise.
        model: true ball. filter_model: what the filters believe.
        filter: settings of the tracker.
        estimators: columns to compute.
        drawn: judge consistency on drawn spins too.
    """

    fps: tuple[float, ...] = (60.0, 120.0, 240.0)
    sigma_m: tuple[float, ...] = (0.001, 0.003, 0.010)
    seen_s: tuple[float, ...] = (0.1, 0.2, 0.3)
    seed: int = 0
    model: BallModel = NOMINAL
    filter_model: BallModel = NOMINAL
    filter: FilterConfig = KNOWN_BALL
    estimators: tuple[str, ...] = ESTIMATORS
    drawn: bool = True


@dataclass(frozen=True)
class Truth:
    """A ball of the evaluation: its state after the hit, and its true crossing of the plane."""

    ball_id: int
    start: FloatArray
    crossing: FloatArray
    crossing_s: float


@dataclass(frozen=True)
class Job:
    """A ball to evaluate: as measured, and with drawn spins (one of them such that it reaches the plane too)."""

    measured: Truth
    drawn: Truth
    drawn_crossing: Truth


@dataclass
class Sample:
    """Result of one estimator on one ball: errors in m and s, NaN without a prediction."""

    error_m: float = math.nan
    time_s: float = math.nan
    spin_error: float = math.nan
    nees: float = math.nan
    nees_dof: int = 9
    hit_spin_error: float = math.nan
    nis: tuple[float, int] = (0.0, 0)


def choose_balls(balls: list[ServedBall], count: int, model: BallModel = NOMINAL) -> list[Truth]:
    """Balls that bounce once on the robot half and reach the plane, evenly spread over the file in order of ids.

    Balls that the shipped spin prior was fitted to (id divisible by 4) come last.

    Raises:
        TTError: the file has none.
    """
    out = np.empty(9)
    fitted: list[Truth] = []
    held_out: list[Truth] = []
    for ball in sorted(balls, key=lambda b: b.ball_id):
        if ball.state[4] >= 0.0:
            continue
        code, t, bounces = fly_to_plane(ball.state, model.params, PLANE_Y_M, 4.0, STEP_S, 0, out)
        if code == PLANE and bounces == 1:
            truth = Truth(ball.ball_id, ball.state.copy(), out.copy(), t)
            (fitted if ball.ball_id % 4 == 0 else held_out).append(truth)
    chosen = _evenly(held_out, count)
    chosen += _evenly(fitted, count - len(chosen))
    if not chosen:
        raise TTError(
            f"none of the {len(balls)} balls bounces once on the robot half and reaches y = {PLANE_Y_M} m; "
            "give a file with incoming balls"
        )
    return chosen


def _evenly(balls: list[Truth], count: int) -> list[Truth]:
    """At most `count` balls, evenly spread over the list."""
    if len(balls) <= count:
        return balls
    return [balls[i] for i in np.linspace(0, len(balls) - 1, max(count, 1)).round().astype(int)[:count]]


def draw_spins(truth: Truth, prior: SpinPrior, model: BallModel, seed: int) -> Job:
    """The ball with spins drawn from the prior at its position and velocity.

    The first draw counts as it comes, so that before the bounce nothing is selected; its crossing may be missing (NaN).
    """
    rng = np.random.default_rng([seed, truth.ball_id, 3])
    near = prior.at(truth.start[:6])
    mean, root = near.mean(truth.start[:3], truth.start[3:6]), np.linalg.cholesky(near.covariance)
    out = np.empty(9)
    first: Truth | None = None
    for _ in range(_MOST_DRAWS):
        start = truth.start.copy()
        start[6:] = mean + root @ rng.normal(size=3)
        code, t, bounces = fly_to_plane(start, model.params, PLANE_Y_M, 4.0, STEP_S, 0, out)
        reaches = code == PLANE and bounces == 1
        drawn = Truth(truth.ball_id, start, out.copy(), t if reaches else math.nan)
        first = first or drawn
        if reaches:
            return Job(truth, first, drawn)
    assert first is not None
    return Job(truth, first, truth)  # a ball whose every likely spin misses the plane: its own one reaches it


def noisy_points(
    truth: Truth, s: EvalSettings, fps: float, sigma: float, last_s: float
) -> tuple[FloatArray, FloatArray]:
    """Times (n,) and noisy positions (n, 3) of a ball; the same noise for every estimator and every length."""
    rng = np.random.default_rng([s.seed, truth.ball_id, round(fps), round(sigma * 1e6)])
    times = np.arange(int(last_s * fps + 1e-6) + 1) / fps
    points = np.empty((len(times), 3))
    state = truth.start.copy()
    for i in range(len(times)):
        if i:
            fly(state, s.model.params, 1.0 / fps, STEP_S, state)
        points[i] = state[:3] + sigma * rng.normal(size=3)
    return times, points


def _crossing_errors(
    truth: Truth, state: FloatArray, params: FloatArray, at_s: float, bounced: bool
) -> tuple[float, float]:
    """(distance at the plane, time error) of the crossing predicted from `state` at `at_s`; NaN when it has none."""
    out = np.empty(9)
    code, t, bounces = fly_to_plane(state, params, PLANE_Y_M, 4.0, STEP_S, 0, out)
    if code != PLANE or bounces + bounced != 1:
        return math.nan, math.nan
    return float(np.linalg.norm(out[:3] - truth.crossing[:3])), abs(at_s + t - truth.crossing_s)


def _simple_filter(
    truth: Truth,
    times: FloatArray,
    points: FloatArray,
    sigma: float,
    params: FloatArray,
    spin: FloatArray,
    acceleration_noise: float = DRAG_ACCELERATION_NOISE,
) -> Sample:
    """Extended Kalman filter of position and velocity with a given spin."""
    x = np.concatenate((points[0], (0.0, -5.0, 0.0), spin))
    cov = np.diag([sigma**2] * 3 + [10.0**2] * 3 + [0.0] * 3)
    noise = np.zeros(ekf.N_NOISE)
    noise[ekf.Q_ACC] = acceleration_noise**2
    row = np.zeros(ROW)
    row[5:14] = (np.eye(3) * sigma**2).ravel()
    bounces = 0
    for i in range(1, len(times)):
        bounces += ekf.predict(x, cov, params, noise, times[i] - times[i - 1], STEP_S)
        row[2:5] = points[i]
        ekf.update(x, cov, row, np.inf, np.inf)
    return Sample(*_crossing_errors(truth, x, params, times[-1], bounces > 0))


def _map(
    truth: Truth, times: FloatArray, points: FloatArray, sigma: float, s: EvalSettings, end: FloatArray
) -> Sample:
    line = np.polyfit(times[:12], points[:12], 1)
    start = np.concatenate((line[1], line[0], SHIPPED.mean(line[1], line[0])))
    # The true start is one of the starting points: the limit must not suffer from a search that gets stuck.
    prior = s.filter.spin_prior.at(truth.start[:6])
    found = fit(times, points, sigma, s.filter_model.params, None, prior, [start, truth.start])
    if found is None:
        return Sample()
    error, late = _crossing_errors(truth, found.state, s.filter_model.params, 0.0, False)
    state = np.empty(9)
    fly(found.state, s.filter_model.params, times[-1], STEP_S, state)
    return Sample(error, late, float(np.linalg.norm(state[6:] - end[6:])))


def _ours(
    truth: Truth, times: FloatArray, points: FloatArray, sigma: float, s: EvalSettings, stops: list[int]
) -> list[Sample]:
    """The tracker's results after each number of observations in `stops` (ascending)."""
    tracker = BallTracker(
        s.filter_model, TrackerConfig(filter=s.filter, predictor=PredictorConfig(net=False))
    )
    cov = np.eye(3) * sigma**2
    samples = []
    for i in range(len(times)):
        stamp = FIRST_STAMP_NS + round(times[i] * 1e9)
        tracker.add(BallPosition(stamp, points[i], cov), stamp)
        if i + 1 not in stops:
            continue
        sample = Sample(nis=tracker.nis())
        state, full = tracker.state(), tracker.full_covariance()
        prediction = tracker.predict()
        if state is not None and full is not None and prediction is not None:
            at_s = (state.stamp_ns - FIRST_STAMP_NS) * 1e-9
            true = np.empty(9)
            fly(truth.start, s.model.params, at_s, STEP_S, true)
            delta = state.vector - true
            sample.nees = float(delta @ np.linalg.solve(full, delta))
            sample.nees_dof = _free_errors(truth, s.model, at_s, sigma)
            sample.spin_error = float(np.linalg.norm(delta[6:]))
            hit = tracker.hit_state()
            if hit is not None and hit[0] == FIRST_STAMP_NS:
                sample.hit_spin_error = float(np.linalg.norm(hit[1][6:] - truth.start[6:]))
            crossing = plane_crossing(prediction, PLANE_Y_M)
            if crossing is not None and (prediction.bounce_index >= 0 or prediction.bounces_before == 1):
                sample.error_m = float(np.linalg.norm(crossing.state[:3] - truth.crossing[:3]))
                sample.time_s = abs(at_s + crossing.time_s - truth.crossing_s)
        samples.append(sample)
    return samples


def _free_errors(truth: Truth, model: BallModel, at_s: float, sigma: float) -> int:
    """Independent errors of a state.

    9 in general; 7 after a bounce that ended in rolling, which ties two components of spin to the velocity; 0 so near
    to the touch that positions cannot tell before from after: there the state jumps, and its error is no Gaussian.
    """
    touch = np.empty(9)
    code, t = next_event(truth.start, model.params, at_s + 0.1, STEP_S, TABLE, 0.0, touch)
    if code != TABLE:
        return 9
    if abs(at_s - t) < 3.0 * sigma / abs(touch[5]):
        return 0
    rolls = bounce_kink(touch, model.params, np.empty(9), np.empty(9)) < 0.0
    return 7 if at_s > t and rolls else 9


def _compare(
    truth: Truth,
    s: EvalSettings,
    fps: float,
    sigma: float,
    lengths_s: tuple[float, ...],
    estimators: tuple[str, ...],
) -> list[dict[str, Sample]]:
    """Estimators on one ball, for each observation length (ascending)."""
    times, points = noisy_points(truth, s, fps, sigma, max(lengths_s))
    stops = [int(length * fps + 1e-6) + 1 for length in lengths_s]
    gravity = s.filter_model.params.copy()
    gravity[P_K] = 0.0
    no_spin = np.zeros(3)
    results: list[dict[str, Sample]] = [{} for _ in stops]
    if "ours" in estimators:
        for result, sample in zip(results, _ours(truth, times, points, sigma, s, stops), strict=True):
            result["ours"] = sample
    for result, n in zip(results, stops, strict=True):
        t, z = times[:n], points[:n]
        if "A" in estimators:
            result["A"] = _simple_filter(truth, t, z, sigma, gravity, no_spin, GRAVITY_ACCELERATION_NOISE)
        if "B" in estimators:
            result["B"] = _simple_filter(truth, t, z, sigma, s.filter_model.params, no_spin)
        if "C" in estimators:
            result["C"] = _simple_filter(truth, t, z, sigma, s.filter_model.params, truth.start[6:])
        if "map" in estimators:
            end = np.empty(9)
            fly(truth.start, s.model.params, t[-1], STEP_S, end)
            result["map"] = _map(truth, t, z, sigma, s, end)
    return results


def _evaluate_ball(job: tuple[Job, EvalSettings]) -> list[dict[str, Sample]]:
    """One ball in every cell, then in every after-bounce cell."""
    ball, s = job
    results: list[dict[str, Sample]] = []
    for fps in s.fps:
        for sigma in s.sigma_m:
            results += _with_drawn(ball.measured, ball.drawn, s, fps, sigma, s.seen_s)
    for fps in s.fps:
        for sigma in s.sigma_m:
            results += _with_drawn(ball.measured, ball.drawn_crossing, s, fps, sigma, None)
    return results


def _with_drawn(
    measured: Truth,
    drawn: Truth,
    s: EvalSettings,
    fps: float,
    sigma: float,
    lengths_s: tuple[float, ...] | None,
) -> list[dict[str, Sample]]:
    """All estimators on the measured ball, the tracker also on the drawn one; None: until near each one's crossing."""
    results = _compare(
        measured, s, fps, sigma, lengths_s or (measured.crossing_s - BEFORE_CROSSING_S,), s.estimators
    )
    if s.drawn and "ours" in s.estimators:
        lengths = lengths_s or (drawn.crossing_s - BEFORE_CROSSING_S,)
        for result, other in zip(results, _compare(drawn, s, fps, sigma, lengths, ("ours",)), strict=True):
            result["drawn"] = other["ours"]
    return results


def _entry(samples: list[Sample]) -> dict[str, float | None]:
    errors = np.array([s.error_m for s in samples])
    times = np.array([s.time_s for s in samples])
    good = np.isfinite(errors)
    if not good.any():
        return {
            "median_m": None,
            "median_sigma_m": None,
            "p90_m": None,
            "p95_m": None,
            "time_median_s": None,
            "no_prediction": 1.0,
        }
    p50, p90, p95 = np.percentile(errors[good], (50, 90, 95))
    # Half the spread of the order statistics one binomial standard deviation to either side of the median.
    aside = 50.0 / math.sqrt(good.sum())
    low, high = np.percentile(errors[good], (max(50.0 - aside, 0.0), min(50.0 + aside, 100.0)))
    return {
        "median_m": float(p50),
        "median_sigma_m": float(0.5 * (high - low)),
        "p90_m": float(p90),
        "p95_m": float(p95),
        "time_median_s": float(np.median(times[good])),
        "no_prediction": float(1.0 - good.mean()),
    }


def within_95(total: float, dof: int) -> bool:
    """Whether a sum of squared normalised errors of `dof` degrees in all lies in its two-sided 95 % bounds."""
    if dof == 0:
        return False
    low, high = chi2.ppf((0.025, 0.975), dof)
    return bool(low <= total <= high)


def consistency(samples: list[Sample]) -> dict[str, Any]:
    """How honest the tracker's covariances are, from its results on independent balls.

    `nees_mean` is scaled to 9 degrees of freedom and `nis_mean` to 3, so that 9 and 3 are honest whatever share of the
    balls rolled on the table or was seen as rays. The bounds are those of chi-square with the degrees of all balls.
    """
    judged = [s for s in samples if math.isfinite(s.nees) and s.nees_dof > 0]
    total, dof = sum(s.nees for s in judged), sum(s.nees_dof for s in judged)
    nis, nis_dof = sum(s.nis[0] for s in samples), sum(s.nis[1] for s in samples)
    return {
        "nees_mean": 9.0 * total / dof if dof else None,
        "nees_median": _median([s.nees for s in judged]),
        "nees_balls": len(judged),
        "nees_within_95": within_95(total, dof),
        "nis_mean": 3.0 * nis / nis_dof if nis_dof else None,
        "nis_within_95": within_95(nis, nis_dof),
    }


def _median(values: list[float]) -> float | None:
    finite = [v for v in values if math.isfinite(v)]
    return float(np.median(finite)) if finite else None


def summarise_cell(
    fps: float, sigma: float, seen_s: float | None, results: list[dict[str, Sample]]
) -> dict[str, Any]:
    """The JSON object of one cell from the results of all balls."""
    cell: dict[str, Any] = {"fps": fps, "sigma_m": sigma, "seen_s": seen_s, "balls": len(results)}
    for name in ESTIMATORS:
        if name in results[0]:
            cell[name] = _entry([r[name] for r in results])
    if "ours" in results[0]:
        ours = [r["ours"] for r in results]
        cell["spin_error_radps"] = _median([o.spin_error for o in ours])
        cell["hit_spin_error_radps"] = _median([o.hit_spin_error for o in ours])
        cell.update(consistency(ours))
    if "drawn" in results[0]:
        cell["drawn_spin"] = consistency([r["drawn"] for r in results])
    if "map" in results[0]:
        cell["map"]["spin_error_radps"] = _median([r["map"].spin_error for r in results])
        if "ours" in results[0]:
            mine, best = cell["ours"]["median_m"], cell["map"]["median_m"]
            cell["ours_over_map"] = mine / best if mine is not None and best else None
    return cell


def evaluate(
    balls: list[Truth],
    settings: EvalSettings,
    workers: int | None = None,
    on_progress: Callable[[int, int], None] | None = None,
) -> dict[str, Any]:
    """Compare all estimators on all balls.

    Args:
        balls: from `choose_balls`. settings: what to evaluate.
        workers: processes; the machine's cores when None, this process alone when 1.
        on_progress: told (balls done, balls).

    Returns:
        `cells`, `after_bounce` (the cell nearest to 120 Hz and 3 mm), `after_bounce_cells`, and `consistent`: how many
        of all these cells have NEES and NIS within their bounds, of how many, on measured and on drawn spins.
    """
    jobs = [
        (draw_spins(truth, settings.filter.spin_prior, settings.model, settings.seed), settings)
        for truth in balls
    ]
    per_ball: list[list[dict[str, Sample]]] = []
    for i, result in enumerate(_map_jobs(jobs, workers)):
        per_ball.append(result)
        if on_progress is not None:
            on_progress(i + 1, len(jobs))
    pairs = [(fps, sigma) for fps in settings.fps for sigma in settings.sigma_m]
    keys: list[tuple[float, float, float | None]] = [
        (fps, sigma, seen) for fps, sigma in pairs for seen in settings.seen_s
    ]
    keys += [(fps, sigma, None) for fps, sigma in pairs]
    cells = [
        summarise_cell(fps, sigma, seen, [ball[k] for ball in per_ball])
        for k, (fps, sigma, seen) in enumerate(keys)
    ]
    after = cells[len(pairs) * len(settings.seen_s) :]
    nearest = min(after, key=lambda c: (abs(c["fps"] - 120.0), abs(c["sigma_m"] - 0.003)))
    return {
        "cells": cells[: len(pairs) * len(settings.seen_s)],
        "after_bounce": nearest,
        "after_bounce_cells": after,
        "consistent": _count_consistent(cells),
    }


def _count_consistent(cells: list[dict[str, Any]]) -> dict[str, Any]:
    counts: dict[str, Any] = {"cells": len(cells)}
    for name, judged in (
        ("measured_spin", [c for c in cells if "nees_within_95" in c]),
        ("drawn_spin", [c["drawn_spin"] for c in cells if "drawn_spin" in c]),
    ):
        if judged:
            counts[name] = {key: sum(c[f"{key}_within_95"] for c in judged) for key in ("nees", "nis")}
    return counts


def _map_jobs(jobs: list[tuple[Job, EvalSettings]], workers: int | None) -> Iterator[list[dict[str, Sample]]]:
    count = workers or len(os.sched_getaffinity(0))
    if count == 1 or len(jobs) < 4:
        yield from map(_evaluate_ball, jobs)
        return
    _evaluate_ball(jobs[0])  # compile once here, not once per process
    # Spawned: a fork of a process with threads may hang.
    with ProcessPoolExecutor(count, multiprocessing.get_context("spawn")) as pool:
        yield from pool.map(_evaluate_ball, jobs, chunksize=2)


def record_flights(
    balls: list[Truth], model: BallModel, fps: float = 120.0, sigma_m: float = 0.003, seed: int = 1
) -> list[BallPosition]:
    """One stream of positions as a recording holds them: balls of `model` from hit to crossing, a second apart."""
    settings = EvalSettings(model=model, seed=seed)
    stream: list[BallPosition] = []
    first = FIRST_STAMP_NS
    cov = np.eye(3) * sigma_m**2
    for truth in balls:
        times, points = noisy_points(truth, settings, fps, sigma_m, truth.crossing_s)
        stream += [BallPosition(first + round(t * 1e9), z, cov) for t, z in zip(times, points, strict=True)]
        first += round((times[-1] + 1.0) * 1e9)
    return stream


def model_error(balls: list[Truth], model: BallModel) -> dict[str, float | None]:
    """Error at the plane when the true start state is known and only the constants are wrong."""
    return _entry([Sample(*_crossing_errors(t, t.start, model.params, 0.0, False)) for t in balls])


def evaluate_worlds(
    balls: list[ServedBall],
    count: int,
    settings: EvalSettings,
    workers: int | None = None,
    on_progress: Callable[[str, int, int], None] | None = None,
) -> dict[str, Any]:
    """The tracker in worlds whose constants differ from its own, before and after identification.

    Each world records `RECORDED_BALLS` balls that are not evaluated. `constants` is the error of a flight from the
    true start state, `seen` and `after_bounce` those of the tracker; `truth` is the tracker that knows the world's
    constants.
    """
    from tt_estimation.identify import identify

    result: dict[str, Any] = {}
    for world in (DEEPMIND, MATCH):
        if on_progress is not None:
            on_progress(f"{world.name} identification", 0, 1)
        chosen = choose_balls(balls, count + RECORDED_BALLS, world)
        recorded = _evenly(chosen, RECORDED_BALLS)
        ids = {t.ball_id for t in recorded}
        evaluated = [t for t in chosen if t.ball_id not in ids] or chosen
        found = identify(record_flights(recorded, world), NOMINAL, spin_prior=settings.filter.spin_prior)
        entry: dict[str, Any] = {"identified": {k: v.as_json() for k, v in found.parameters.items()}}
        entry["law"] = found.law
        for name, model in (("before", NOMINAL), ("after", found.model), ("truth", world)):
            s = replace(
                settings,
                fps=(120.0,),
                sigma_m=(0.003,),
                seen_s=(0.3,),
                model=world,
                filter_model=model,
                filter=replace(FilterConfig(), spin_prior=settings.filter.spin_prior),
                estimators=("ours",),
                drawn=False,  # the constants are not the world's: nothing to be consistent with
            )
            label = f"{world.name} {name}"
            report = None if on_progress is None else _labelled(on_progress, label)
            cells = evaluate(evaluated, s, workers, report)
            entry[name] = {
                "constants": model_error(evaluated, model),
                "seen": cells["cells"][0],
                "after_bounce": cells["after_bounce"],
            }
        result[world.name] = entry
    return result


def _labelled(report: Callable[[str, int, int], None], label: str) -> Callable[[int, int], None]:
    return lambda done, total: report(label, done, total)


def timings(balls: list[Truth], model: BallModel = NOMINAL) -> dict[str, float]:
    """Microseconds per call on this machine, the fastest of several rounds."""
    states = [t.start for t in balls[:100]]
    out = np.empty(9)

    def flights() -> int:
        for s in states:
            fly_to_plane(s, model.params, PLANE_Y_M, 4.0, STEP_S, 0, out)
        return len(states)

    noise = FilterConfig().noise()
    row = np.zeros(ROW)
    row[5:14] = (np.eye(3) * 9e-6).ravel()

    def steps() -> int:
        x = states[0].copy()
        cov = np.diag([1e-5] * 3 + [1e-2] * 3 + [400.0] * 3)
        for _ in range(200):
            ekf.predict(x, cov, model.params, noise, 1.0 / 120.0, STEP_S)
            row[2:5] = x[:3]
            ekf.update(x, cov, row, np.inf, np.inf)
            x[:] = states[0]
        return 200

    predictor = Predictor(model)
    cov9 = np.diag([1e-5] * 3 + [1e-2] * 3 + [400.0] * 3)
    ball_states = [BallState(1, s[:3], s[3:6], s[6:], cov9) for s in states]

    def predictions() -> int:
        for state in ball_states:
            predictor.predict(state)
        return len(ball_states)

    return {
        "flight_to_plane": _fastest_us(flights),
        "ekf_step": _fastest_us(steps),
        "prediction": _fastest_us(predictions),
    }


def _fastest_us(work: Callable[[], int], rounds: int = 7) -> float:
    work()
    best = math.inf
    for _ in range(rounds):
        begin = time.perf_counter()
        n = work()
        best = min(best, (time.perf_counter() - begin) / n)
    return best * 1e6
