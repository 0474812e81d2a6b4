"""Readers of serialized messages give what the ROS objects give, and say what is wrong with other bytes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields
from typing import Any

import numpy as np
import pytest
from rclpy.serialization import deserialize_message, serialize_message
from sensor_msgs.msg import JointState, PointCloud2, PointField

from tt_estimation.messages import (
    ball_state_from_msg,
    ball_state_from_raw,
    ball_state_to_msg,
    ball_state_to_raw,
    ball_states_from_raw,
)
from tt_estimation.types import BallState
from tt_perception.cdr import MessageError
from tt_perception.messages import (
    ball_position_from_msg,
    ball_position_from_raw,
    ball_position_to_msg,
    ball_position_to_raw,
    ball_positions_from_raw,
    detections_from_msg,
    detections_from_raw,
    detections_to_msg,
)
from tt_perception.types import BallPosition, CameraDetections
from tt_planning.messages import (
    joint_positions_from_raw,
    joint_trajectory_from_msg,
    joint_trajectory_from_raw,
    joint_trajectory_to_msg,
)
from tt_planning.types import JointTrajectory

RNG = np.random.default_rng(3)
STAMP = 1_800_000_000_123_456_789


def _spd(n: int) -> np.ndarray:
    a = RNG.normal(size=(n, n))
    return a @ a.T + np.eye(n)


def _detections(camera: str, count: int, counter: int | None) -> CameraDetections:
    uv = RNG.uniform(0.0, 800.0, (count, 2)).astype(np.float32).astype(float)
    ones = np.ones(count)
    return CameraDetections(camera, STAMP, uv, 5.0 * ones, 0.5 * ones, counter)


def _trajectory(knots: int) -> JointTrajectory:
    values = [RNG.normal(size=(knots, 4)) for _ in range(3)]
    return JointTrajectory(STAMP, ("x", "z", "yaw", "pitch"), 0.03 + 0.1 * np.arange(knots), *values)


CASES: list[tuple[Any, Callable, Callable, Callable]] = [
    *(
        (_detections(camera, count, counter), detections_to_msg, detections_from_msg, detections_from_raw)
        for camera in ("a", "cam0", "camera12")
        for count in (0, 1, 3)
        for counter in (None, 77)
    ),
    (BallPosition(STAMP, RNG.normal(size=3), _spd(3)), ball_position_to_msg, ball_position_from_msg,
     ball_position_from_raw),
    (BallState(STAMP, *RNG.normal(size=(3, 3)), _spd(9)), ball_state_to_msg, ball_state_from_msg,
     ball_state_from_raw),
    *((_trajectory(n), joint_trajectory_to_msg, joint_trajectory_from_msg, joint_trajectory_from_raw) for n in (1, 7)),
]  # fmt: skip


def _same(one: Any, two: Any) -> bool:
    pairs = [(getattr(one, f.name), getattr(two, f.name)) for f in fields(one)]
    return all(np.array_equal(a, b) if isinstance(a, np.ndarray) else a == b for a, b in pairs)


@pytest.mark.parametrize(("item", "to_msg", "from_msg", "from_raw"), CASES)
def test_raw_reader_equals_the_ros_object(
    item: Any, to_msg: Callable, from_msg: Callable, from_raw: Callable
) -> None:
    message = to_msg(item)
    raw = bytes(serialize_message(message))
    assert _same(from_raw(raw), from_msg(deserialize_message(raw, type(message))))


@pytest.mark.parametrize(("item", "to_msg", "_", "from_raw"), CASES)
def test_cut_and_foreign_bytes_are_refused(
    item: Any, to_msg: Callable, _: Callable, from_raw: Callable
) -> None:
    raw = bytes(serialize_message(to_msg(item)))
    # Behind the message the middleware leaves room, up to a few bytes per knot of a trajectory.
    for size in range(len(raw) * 9 // 10):
        with pytest.raises(MessageError):
            from_raw(raw[:size])
    with pytest.raises(MessageError):
        from_raw(b"\x00\x00\x00\x00" + raw[4:])


def test_a_cloud_of_somebody_else_with_the_same_points_is_read() -> None:
    """More fields behind ours: another layout than the one that is recognised at once."""
    message = detections_to_msg(_detections("cam0", 2, None))
    extra = PointField(name="area", offset=12, datatype=PointField.UINT8, count=1)
    message.fields = [*message.fields, extra]
    assert _same(detections_from_raw(bytes(serialize_message(message))), detections_from_msg(message))


@pytest.mark.parametrize(
    ("change", "text"),
    [
        ({"point_step": 12}, "step 12"),
        ({"height": 2}, "height 2"),
        ({"fields": []}, "have fields"),
        ({"width": 50}, "bytes for 50 points"),
    ],
)
def test_what_is_wrong_with_a_cloud_is_said(change: dict[str, Any], text: str) -> None:
    message: PointCloud2 = detections_to_msg(_detections("cam0", 2, None))
    for name, value in change.items():
        setattr(message, name, value)
    with pytest.raises(MessageError, match=text):
        detections_from_raw(bytes(serialize_message(message)))


def test_joint_states() -> None:
    message = JointState(name=["z", "x"], position=[0.25, -1.5], velocity=[1.0, 2.0])
    message.header.stamp.sec = 5
    stamp_ns, names, q = joint_positions_from_raw(bytes(serialize_message(message)))
    assert (stamp_ns, names, q.tolist()) == (5_000_000_000, ("z", "x"), [0.25, -1.5])
    assert len(joint_positions_from_raw(bytes(serialize_message(JointState(name=["x"]))))[2]) == 0


@pytest.mark.parametrize(
    ("make", "write", "one", "many", "numbers"),
    [
        (
            lambda k: BallPosition(STAMP + k, RNG.normal(size=3), _spd(3)),
            ball_position_to_raw,
            ball_position_from_raw,
            ball_positions_from_raw,
            43,
        ),
        (
            lambda k: BallState(STAMP + k, *RNG.normal(size=(3, 3)), _spd(9)),
            ball_state_to_raw,
            ball_state_from_raw,
            ball_states_from_raw,
            85,
        ),
    ],
    ids=["positions", "states"],
)
def test_many_messages_read_like_one_by_one_and_bad_ones_are_left_out(
    make: Any, write: Any, one: Any, many: Any, numbers: int
) -> None:
    raws = [write(make(k)) for k in range(6)]
    not_finite = bytearray(raws[0])
    x = len(not_finite) - 8 * numbers
    not_finite[x : x + 8] = np.array([np.nan]).tobytes()
    other_frame = raws[1].replace(b"table", b"floor")
    padded = bytearray(raws[2])
    padded[raws[2].index(b"table") + 7] = 0xAA  # padding may hold anything
    mixed = [raws[0], bytes(not_finite), raws[1][:40], other_frame, b"", bytes(padded), *raws[3:]]
    expected = []
    for raw in mixed:
        try:
            expected.append(one(raw))
        except MessageError:
            continue
    found = many(mixed)
    assert [item.stamp_ns for item in found] == [item.stamp_ns for item in expected] and len(found) == 5
    for a, b in zip(found, expected, strict=True):
        assert (a.pos_table == b.pos_table).all() and (a.cov == b.cov).all()
    assert many([]) == []
