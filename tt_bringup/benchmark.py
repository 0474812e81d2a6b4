"""Times the computing stages on this machine: the pure pipeline, entered at each of its stages."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from tt_estimation.ball_models import NOMINAL
from tt_estimation.events import STEP_S, fly
from tt_estimation.prediction import Predictor
from tt_perception.camera import default_sim_cameras
from tt_perception.types import CameraDetections
from tt_planning.pipeline import Event, Joints, Outputs, Pipeline
from tt_planning.robot import RobotModel

PERIOD_NS = 8_333_333
DELAY_NS = 30_000_000
PIXEL_SIGMA = 1.0
IMAGES = 55
# An incoming ball of medium speed with topspin: position m, velocity m/s, spin rad/s.
SERVED = np.array([0.06, 0.88, 0.52, 0.5, -5.5, 0.5, 60.0, -6.0, -8.0])


@dataclass(frozen=True)
class Timing:
    """Times of one stage.

    Attributes:
        name: from where to where.
        times_us: one entry per call, microseconds.
    """

    name: str
    times_us: tuple[float, ...]

    def summary(self) -> dict[str, float]:
        """Smallest, median, 95th and 99th percentile and largest time in microseconds, and their number."""
        times = np.array(self.times_us)
        low, median, p95, p99, high = np.percentile(times, [0, 50, 95, 99, 100])
        return {"min": low, "median": median, "p95": p95, "p99": p99, "max": high, "count": len(times)}


def bench_stages(robot: RobotModel, rallies: int, progress: Callable[[int], None]) -> list[Timing]:
    """Plays rallies through the pipeline, entering it with detections, positions, states and plans.

    Args:
        robot: the robot.
        rallies: how many times one ball is served, each with noise of its own.
        progress: called with the number of finished rallies.
    """
    names = ("detections → trajectory", "position → trajectory", "state → trajectory", "plan → trajectory")
    times: dict[str, list[float]] = {name: [] for name in (*names, "state → prediction")}
    for seed in range(-1, rallies):
        # The first rally, -1, compiles and warms the caches; it does not count.
        kept = times if seed >= 0 else {name: [] for name in times}
        detections = _detections(abs(seed))
        outputs = _run(robot, detections, kept[names[0]], whole_sets=True)
        arrived = [event.now_ns for event in detections]
        for name, field in zip(names[1:], ("positions", "states", "plans"), strict=True):
            inputs = [
                Event(now, item)
                for now, out in zip(arrived, outputs, strict=True)
                for item in getattr(out, field)
            ]
            _run(robot, inputs, kept[name])
        predictor = Predictor(NOMINAL)
        for out in outputs:
            for state in out.states:
                begin = time.perf_counter_ns()
                predictor.predict(state, 0)
                kept["state → prediction"].append(1e-3 * (time.perf_counter_ns() - begin))
        progress(seed + 1)
    return [Timing(name, tuple(values)) for name, values in times.items() if values]


def bench_single_stages(robot: RobotModel, rallies: int) -> list[Timing]:
    """Time of each call of each stage over rallies, as the nodes call them.

    Args:
        robot: the robot.
        rallies: balls that count; one more comes first, to warm up.
    """
    calls: dict[str, list[float]] = {}
    for seed in range(-1, rallies):
        pipeline = Pipeline(robot, NOMINAL, default_sim_cameras())
        if seed == 0:
            calls = {}
        for name, part, method in (
            ("trigger set and triangulation", pipeline.triangulator, "add"),
            ("filter, one observation", pipeline.tracker, "add"),
            ("prediction", pipeline.decider._predictor, "predict"),
            ("decision", pipeline.decider.planner, "plan"),
            ("joint trajectory", pipeline.generator, "hit"),
        ):
            _time_calls(part, method, calls.setdefault(name, []))
        pipeline.step(Event(1, Joints(robot.ready)))
        for event in _detections(abs(seed)):
            pipeline.step(event)
    return [Timing(name, tuple(times)) for name, times in calls.items() if times]


def _time_calls(part: Any, method: str, times_us: list[float]) -> None:
    """Lets a method of one object note how long each call takes that leads to something."""
    call = getattr(part, method)

    def timed(*words: Any) -> Any:
        begin = time.perf_counter_ns()
        result = call(*words)
        if result:
            times_us.append(1e-3 * (time.perf_counter_ns() - begin))
        return result

    setattr(part, method, timed)


def _detections(seed: int) -> list[Event]:
    """One ball as four cameras see it."""
    rng = np.random.default_rng(seed)
    cameras = default_sim_cameras()
    events = []
    ball = np.empty(9)
    for image in range(IMAGES):
        fly(SERVED, NOMINAL.params, image * PERIOD_NS * 1e-9, STEP_S, ball)
        stamp = 1_000_000_000 + image * PERIOD_NS
        for camera in cameras:
            uv = camera.project(ball[None, :3]) + rng.normal(0.0, PIXEL_SIGMA, (1, 2))
            if np.isfinite(uv).all():
                found = CameraDetections(camera.name, stamp, uv, np.array([5.0]), np.array([1.0]), image)
                events.append(Event(stamp + DELAY_NS, found))
    return events


def _run(
    robot: RobotModel, events: Sequence[Event], times_us: list[float], whole_sets: bool = False
) -> list[Outputs]:
    """Steps a fresh pipeline through the events.

    Args:
        robot: the robot.
        events: inputs in order.
        times_us: times of the steps that led to a trajectory are added here.
        whole_sets: a step is timed together with the steps before it that led to nothing.
    """
    pipeline: Any = Pipeline(robot, NOMINAL, default_sim_cameras())
    pipeline.step(Event(1, Joints(robot.ready)))
    outputs = []
    waiting = 0.0
    for event in events:
        begin = time.perf_counter_ns()
        out = pipeline.step(event)
        waiting += 1e-3 * (time.perf_counter_ns() - begin)
        outputs.append(out)
        if out.trajectories:
            times_us.append(waiting)
        if out.positions or not whole_sets:
            waiting = 0.0
    return outputs
