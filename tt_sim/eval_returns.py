"""`tt eval returns`: the share of balls a robot returns, for several planners on the same balls.

Every ball is played alone, in lock step, with random numbers that depend on the seed and the ball's id only:
the result does not depend on the number of processes or on the order. `reachable` is the share of balls
returned by some planner here or by ours with perfect knowledge (true state, no delay, true constants): what
this robot can do.
"""

from __future__ import annotations

import multiprocessing
import os
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from tt_estimation.ball_models import MODELS
from tt_planning.pipeline import Pipeline, PipelineConfig
from tt_planning.planners import make_planner
from tt_planning.robot import load_robot
from tt_sim.ball_file import ServedBall
from tt_sim.rally import RallyRecord, RallyRunner, RallySettings
from tt_sim.referee import BallResult, Outcome

PERFECT = "perfect"  # name of the bound among the planners
BOUND_PLANNER = "ours"


@dataclass(frozen=True, slots=True)
class EvalSettings:
    """What is evaluated.

    Attributes:
        robot: name or path.
        world: name of the laws of the simulated ball.
        believed: name of the constants that estimation and planning use.
        planners: names of planners.
        delay_s, sigma_m, fps: how the ball is seen, see `RallySettings`.
        seed: of noise and camera phase.
        aim: landing point, m.
        timing: measure the processor time of the decisions, the only numbers that differ between equal runs.
    """

    robot: str = "gantry4"
    world: str = "deepmind"
    believed: str = "deepmind"
    planners: tuple[str, ...] = ("ours",)
    delay_s: float = 0.03
    sigma_m: float = 0.003
    fps: float = 120.0
    seed: int = 0
    aim: tuple[float, float] = (0.0, 0.75)
    timing: bool = True


@dataclass(frozen=True, slots=True)
class BallOutcome:
    """One ball with one planner.

    Attributes:
        ball_id: id.
        planner: name.
        result: the referee's verdict.
        reason: why it was not returned, in words; empty when it was.
        decision_us: processor times of the decisions; empty without timing.
        peak_share: largest joint velocity as a share of its limit.
        planned: a hit was planned.
        position_error_m: racket centre against plan at the planned time; NaN without.
        velocity_error_mps: the same for its velocity.
        time_error_s: contact time minus planned time; NaN without.
    """

    ball_id: int
    planner: str
    result: BallResult
    reason: str
    decision_us: tuple[float, ...]
    peak_share: float
    planned: bool
    position_error_m: float
    velocity_error_mps: float
    time_error_s: float


def reason_of(record: RallyRecord) -> str:
    """Why a ball was not returned: the stop of the motors, the missing plan, or what the referee saw."""
    result = record.result
    if result.outcome is Outcome.RETURNED:
        return ""
    if record.stopped:
        return f"the motors stopped: {record.stopped}"
    if not result.hit and record.last_plan is None:
        return (
            f"no plan: {record.last_reason}"
            if record.last_reason
            else "no plan: the ball was not seen in time"
        )
    if not result.hit:
        return "planned, but the racket missed the ball"
    if result.edge_contact:
        return f"hit with the edge: {result.cause.value}"
    return result.cause.value


class _Worker:
    """State of one process: robot, world and runner are made once."""

    current: _Worker

    def __init__(self, settings: EvalSettings) -> None:
        self.settings = settings
        self.robot = load_robot(settings.robot)
        self.runner = RallyRunner(self.robot, MODELS[settings.world])

    def play(self, ball: ServedBall, planner: str, trace: bool = False) -> tuple[BallOutcome, RallyRecord]:
        """One ball with one planner, or with perfect knowledge."""
        s = self.settings
        perfect = planner == PERFECT
        believed = MODELS[s.world if perfect else s.believed]
        pipeline = Pipeline(
            self.robot,
            believed,
            config=PipelineConfig(aim=s.aim),
            planner=make_planner(BOUND_PLANNER if perfect else planner, self.robot, believed, aim=s.aim),
        )
        rally = RallySettings(s.delay_s, s.sigma_m, s.fps, perfect, trace)
        record = self.runner.play(ball, pipeline, rally, np.random.default_rng([s.seed, ball.ball_id]))
        outcome = BallOutcome(
            ball.ball_id,
            planner,
            record.result,
            reason_of(record),
            tuple(record.decision_us) if s.timing else (),
            record.peak_share,
            record.last_plan is not None,
            record.position_error_m,
            record.velocity_error_mps,
            record.time_error_s,
        )
        return outcome, record


def _start_worker(settings: EvalSettings) -> None:
    _Worker.current = _Worker(settings)


def _play(task: tuple[ServedBall, str]) -> BallOutcome:
    return _Worker.current.play(*task)[0]


def evaluate(
    settings: EvalSettings,
    balls: Sequence[ServedBall],
    processes: int | None = None,
    progress: Callable[[BallOutcome], None] = lambda _: None,
) -> list[BallOutcome]:
    """Play every ball with every planner and with perfect knowledge.

    Args:
        settings: what is evaluated.
        balls: the balls.
        processes: how many work in parallel; all cores when None.
        progress: called after each ball.

    Returns:
        Outcomes in a fixed order: planners as given, then the bound; within each, balls as given.
    """
    tasks = [(ball, planner) for planner in (*settings.planners, PERFECT) for ball in balls]
    count = min(processes or os.cpu_count() or 1, len(tasks))
    outcomes = []
    for outcome in _map(settings, tasks, count):
        outcomes.append(outcome)
        progress(outcome)
    return outcomes


def _map(settings: EvalSettings, tasks: list[tuple[ServedBall, str]], count: int) -> Iterator[BallOutcome]:
    if count == 1:
        _start_worker(settings)
        yield from map(_play, tasks)
        return
    # Spawned, not forked: compiled kernels and threads of this process stay out of the workers.
    context = multiprocessing.get_context("spawn")
    with ProcessPoolExecutor(
        count, mp_context=context, initializer=_start_worker, initargs=(settings,)
    ) as pool:
        try:
            yield from pool.map(_play, tasks, chunksize=4)
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def trace_ball(settings: EvalSettings, ball: ServedBall, planner: str) -> tuple[BallOutcome, RallyRecord]:
    """Play one ball again and keep its path, for pictures."""
    return _Worker(settings).play(ball, planner, trace=True)


def reachable_ids(outcomes: Sequence[BallOutcome]) -> set[int]:
    """Balls that somebody returned."""
    return {o.ball_id for o in outcomes if o.result.outcome is Outcome.RETURNED}


def summary(settings: EvalSettings, outcomes: Sequence[BallOutcome]) -> dict[str, Any]:
    """The JSON of `tt eval returns`; shares are fractions of all balls."""
    balls = sum(1 for o in outcomes if o.planner == PERFECT)
    return {
        "robot": settings.robot,
        "world": settings.world,
        "believed": settings.believed,
        "delay_s": settings.delay_s,
        "sigma_m": settings.sigma_m,
        "fps": settings.fps,
        "seed": settings.seed,
        "balls": balls,
        "reachable": _share(len(reachable_ids(outcomes)), balls),
        "planners": {
            name: _planner_summary([o for o in outcomes if o.planner == name], balls)
            for name in settings.planners
        },
        "results": [
            {
                "id": o.ball_id,
                "planner": o.planner,
                "outcome": o.result.outcome.value,
                "reason": o.reason,
                "landing_m": o.result.as_json()["landing_m"],
            }
            for o in outcomes
            if o.planner != PERFECT
        ],
    }


def _planner_summary(outcomes: Sequence[BallOutcome], balls: int) -> dict[str, Any]:
    count = Counter(o.result.outcome for o in outcomes)
    returned = [o for o in outcomes if o.result.outcome is Outcome.RETURNED]
    hits = [o for o in outcomes if o.result.hit]
    offsets = [float(np.hypot(*o.result.contact_offset_m)) for o in hits if o.result.contact_offset_m]
    decisions = np.array([t for o in outcomes for t in o.decision_us])
    reasons = Counter(o.reason for o in outcomes if o.reason)
    return {
        "returned": _share(count[Outcome.RETURNED], balls),
        "hit": _share(len(hits), balls),
        "missed": _share(count[Outcome.MISSED], balls),
        "out": _share(count[Outcome.OUT], balls),
        "net": _share(count[Outcome.NET], balls),
        "not_playable": _share(count[Outcome.NOT_PLAYABLE], balls),
        "reasons": dict(sorted(reasons.items(), key=lambda item: (-item[1], item[0]))),
        "landing_error_m": _percentiles(
            [o.result.aim_error_m for o in returned], (50, 90), ("median", "p90")
        ),
        "contact_offset_m": _percentiles(offsets, (50, 90), ("median", "p90")),
        "joint_limit_use": _percentiles([o.peak_share for o in outcomes], (50, 100), ("median", "max")),
        "decision_us": _percentiles(decisions, (50, 99), ("median", "p99")),
        "tracking": {
            "position_m": _percentiles([o.position_error_m for o in outcomes], (50, 90), ("median", "p90")),
            "velocity_mps": _percentiles(
                [o.velocity_error_mps for o in outcomes], (50, 90), ("median", "p90")
            ),
            "time_s": _percentiles(
                [o.time_error_s for o in outcomes], (10, 50, 90), ("p10", "median", "p90")
            ),
        },
    }


def _share(count: int, balls: int) -> float:
    return round(count / balls, 4) if balls else 0.0


def _percentiles(values: Any, levels: tuple[int, ...], names: tuple[str, ...]) -> dict[str, float | None]:
    """Percentiles of the finite values by name; None when there are none."""
    found = np.asarray([v for v in values if v is not None and np.isfinite(v)], dtype=np.float64)
    if not len(found):
        return dict.fromkeys(names)
    return {
        name: round(float(value), 5) for name, value in zip(names, np.percentile(found, levels), strict=True)
    }
