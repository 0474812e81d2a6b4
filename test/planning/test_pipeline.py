"""The pure chain: same events, same outputs; entering at a later stage gives what the earlier stages gave."""

from __future__ import annotations

import numpy as np
import pytest

from tt_estimation.ball_models import NOMINAL
from tt_estimation.events import STEP_S, fly
from tt_perception.camera import default_sim_cameras
from tt_perception.types import CameraDetections
from tt_planning.pipeline import Event, Joints, Outputs, Pipeline, Tick
from tt_planning.robot import load_robot

PERIOD_NS = 8_333_333
DELAY_NS = 30_000_000
START_NS = 1_000_000_000
SERVED = np.array([0.06, 0.88, 0.52, 0.5, -5.5, 0.5, 60.0, -6.0, -8.0])


def rally(seed: int, images: int = 55) -> list[Event]:
    """Detections of one incoming ball by four cameras, one pixel of noise, delivered 30 ms late."""
    rng = np.random.default_rng(seed)
    events = []
    ball = np.empty(9)
    for k in range(images):
        fly(SERVED, NOMINAL.params, k * PERIOD_NS * 1e-9, STEP_S, ball)
        stamp = START_NS + k * PERIOD_NS
        for camera in default_sim_cameras():
            uv = camera.project(ball[None, :3]) + rng.normal(0.0, 1.0, (1, 2))
            if np.isfinite(uv).all():
                found = CameraDetections(camera.name, stamp, uv, np.array([5.0]), np.array([1.0]), k)
                events.append(Event(stamp + DELAY_NS, found))
    return events


def run(events: list[Event]) -> list[Outputs]:
    robot = load_robot("gantry4")
    pipeline = Pipeline(robot, NOMINAL, default_sim_cameras())
    return [pipeline.step(event) for event in [Event(1, Joints(robot.ready)), *events]]


def numbers(outputs: list[Outputs]) -> bytes:
    rows: list[np.ndarray] = []
    for out in outputs:
        rows += [np.r_[p.stamp_ns, p.pos_table, p.cov.ravel()] for p in out.positions]
        rows += [np.r_[s.stamp_ns, s.vector, s.cov.ravel()] for s in out.states]
        rows += [np.r_[p.hit_stamp_ns, p.racket_pos_table, p.racket_vel_table] for p in out.plans]
        rows += [np.r_[t.times_s, t.pos.ravel(), t.vel.ravel(), t.acc.ravel()] for t in out.trajectories]
    return b"".join(row.astype(np.float64).tobytes() for row in rows)


def test_detections_become_a_swing_that_starts_where_the_last_one_was() -> None:
    outputs = run(rally(seed=1))
    trajectories = [t for out in outputs for t in out.trajectories]
    assert len(trajectories) > 20
    assert len({t.joint_names for t in trajectories}) == 1
    robot = load_robot("gantry4")
    for trajectory in trajectories:
        assert (trajectory.pos >= robot.lower - 1e-9).all() and (trajectory.pos <= robot.upper + 1e-9).all()
        assert (np.diff(trajectory.times_s) > 0.0).all()


def test_same_events_give_the_same_bytes() -> None:
    assert numbers(run(rally(seed=2))) == numbers(run(rally(seed=2)))
    assert numbers(run(rally(seed=2))) != numbers(run(rally(seed=3)))


@pytest.mark.parametrize("stage", ["positions", "states", "plans"])
def test_entering_at_a_later_stage_gives_the_same_trajectories(stage: str) -> None:
    events = rally(seed=4)
    whole = run(events)[1:]
    later = [
        Event(event.now_ns, data)
        for event, out in zip(events, whole, strict=True)
        for data in getattr(out, stage)
    ]
    expected = [t for out in whole for t in out.trajectories]
    got = [t for out in run(later) for t in out.trajectories]
    assert len(expected) > 20
    assert numbers([Outputs(trajectories=got)]) == numbers([Outputs(trajectories=expected)])


def test_nothing_moves_before_the_joints_are_known() -> None:
    robot = load_robot("gantry4")
    pipeline = Pipeline(robot, NOMINAL, default_sim_cameras())
    outputs = [pipeline.step(event) for event in rally(seed=5)]
    assert any(out.states for out in outputs)
    assert not any(out.trajectories or out.plans for out in outputs)


def test_a_tick_solves_trigger_sets_that_wait_for_a_silent_camera() -> None:
    robot = load_robot("gantry4")
    pipeline = Pipeline(robot, NOMINAL, default_sim_cameras())
    positions = 0
    for event in rally(seed=6, images=20):
        if event.data.camera == "cam3":
            positions += len(pipeline.step(Event(event.now_ns + 20_000_000, Tick())).positions)
            continue
        positions += len(pipeline.step(event).positions)
    assert positions >= 18
