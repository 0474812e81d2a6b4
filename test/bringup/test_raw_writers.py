"""Messages serialized without ROS objects are those that rclpy reads, and go back to what they were made of."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from rclpy.serialization import deserialize_message, serialize_message
from sensor_msgs.msg import JointState

from tt_estimation.messages import (
    ball_state_to_msg,
    ball_state_to_raw,
    prediction_to_msg,
    prediction_to_raw,
)
from tt_estimation.types import BallEnd, BallPrediction, BallState
from tt_perception.cdr import CdrTemplate, MessageError, path_points
from tt_perception.messages import ball_position_to_msg, ball_position_to_raw
from tt_perception.types import BallPosition
from tt_planning.messages import (
    JointStateWriter,
    hit_plan_from_msg,
    hit_plan_from_raw,
    hit_plan_to_msg,
    hit_plan_to_raw,
    joint_trajectory_to_msg,
    joint_trajectory_to_raw,
)
from tt_planning.types import HitKind, HitPlan, JointTrajectory

STAMP = 1_800_000_000_123_456_789
RNG = np.random.default_rng(5)


def _prediction(count: int) -> BallPrediction:
    return BallPrediction(
        STAMP, np.linspace(0.0, 1.0, count), RNG.normal(size=(count, 9)), np.zeros((count, 3, 3)), -1, 0.0,
        np.zeros(3), 0, BallEnd.HORIZON,
    )  # fmt: skip


def _plan(start_ns: int = STAMP + 40_000_000) -> HitPlan:
    pos, vel, spin, aim = RNG.normal(size=(4, 3))
    quat = np.array([0.1, 0.2, 0.3, 0.9])
    return HitPlan(STAMP, STAMP + 345_000_001, pos, quat, vel, spin, HitKind.AIM, aim, 0.07, start_ns)


def _trajectory(knots: int, names: tuple[str, ...]) -> JointTrajectory:
    values = [RNG.normal(size=(knots, len(names))) for _ in range(3)]
    return JointTrajectory(STAMP, names, 0.03 + 0.1 * np.arange(knots), *values)


@pytest.mark.parametrize(
    ("item", "to_msg", "to_raw"),
    [
        (BallPosition(STAMP, RNG.normal(size=3), RNG.normal(size=(3, 3))), ball_position_to_msg, ball_position_to_raw),
        (BallState(STAMP, *RNG.normal(size=(3, 3)), RNG.normal(size=(9, 9))), ball_state_to_msg, ball_state_to_raw),
        *((_prediction(n), prediction_to_msg, prediction_to_raw) for n in (0, 1, 40)),
        (_plan(), hit_plan_to_msg, hit_plan_to_raw),
        *(
            (_trajectory(n, names), joint_trajectory_to_msg, joint_trajectory_to_raw)
            for n in (1, 8)
            for names in (("x", "z", "yaw", "pitch"), ("shoulder",))
        ),
    ],
)  # fmt: skip
def test_rclpy_reads_what_it_would_have_written(item: Any, to_msg: Callable, to_raw: Callable) -> None:
    message = to_msg(item)
    assert deserialize_message(to_raw(item), type(message)) == message


def test_joint_states() -> None:
    names = ("x", "z", "yaw")
    pos, vel, effort = RNG.normal(size=(3, 3))
    message = deserialize_message(JointStateWriter(names).raw(STAMP, pos, vel, effort), JointState)
    expected = JointState(
        name=list(names), position=pos.tolist(), velocity=vel.tolist(), effort=effort.tolist()
    )
    expected.header.stamp.sec, expected.header.stamp.nanosec = divmod(STAMP, 10**9)
    assert message == expected


@pytest.mark.parametrize("frame", ["table", "world", "a longer name"])
def test_a_path_is_read_whatever_its_frame_is_called(frame: str) -> None:
    prediction = _prediction(12)
    message = prediction_to_msg(prediction)
    for pose in message.poses:
        pose.header.frame_id = frame
    stamps, points = path_points(bytes(serialize_message(message)))
    assert np.array_equal(points, prediction.states[:, :3])
    assert stamps.tolist() == [STAMP + round(time_s * 1e9) for time_s in prediction.times_s.tolist()]


@pytest.mark.parametrize("start_ns", [STAMP + 40_000_000, 0])
def test_a_plan_comes_back_both_ways(start_ns: int) -> None:
    plan = _plan(start_ns)
    for back in (hit_plan_from_raw(hit_plan_to_raw(plan)), hit_plan_from_msg(hit_plan_to_msg(plan))):
        for field in fields(HitPlan):
            sent, got = getattr(plan, field.name), getattr(back, field.name)
            assert np.array_equal(sent, got), field.name
    raw = hit_plan_to_raw(plan)
    for size in (3, 20, 80, len(raw) - 20):
        with pytest.raises(MessageError):
            hit_plan_from_raw(raw[:size])


def test_a_gap_takes_as_many_numbers_as_it_has_room_for() -> None:
    template = CdrTemplate().time().sequence(2)
    template.fill(STAMP, np.zeros(2))
    with pytest.raises(ValueError, match="3 numbers for a gap of 2"):
        template.fill(STAMP, np.zeros(3))
