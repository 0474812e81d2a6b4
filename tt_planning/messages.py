"""Wire form of planning: HitPlan ↔ MultiDOFJointTrajectory, JointTrajectory ↔ trajectory_msgs, both ways."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from builtin_interfaces.msg import Duration
from geometry_msgs.msg import Transform, Twist
from trajectory_msgs.msg import (
    JointTrajectory as JointTrajectoryMsg,
)
from trajectory_msgs.msg import (
    JointTrajectoryPoint,
    MultiDOFJointTrajectory,
    MultiDOFJointTrajectoryPoint,
)

from tt_perception.cdr import CdrReader, CdrTemplate, MessageError
from tt_perception.messages import stamp_from_msg, stamp_to_msg
from tt_planning.types import HitKind, HitPlan, JointTrajectory

NS_PER_S = 1_000_000_000
RACKET_JOINT = "racket"


def hit_plan_to_msg(plan: HitPlan) -> MultiDOFJointTrajectory:
    """`hit_plan`: pose and twist of joint `racket` at the hit time, counted from the capture stamp.

    Kind, aim, expected error and start travel in a second point, one nanosecond later: its transform's translation is
    the aim, its twist's linear part (index of the kind, expected error, start of the motion in s after the capture; 0
    when unknown). A reader of the standard message uses point 0.
    """
    msg = MultiDOFJointTrajectory()
    msg.header.frame_id = "table"
    msg.header.stamp = stamp_to_msg(plan.capture_stamp_ns)
    msg.joint_names = [RACKET_JOINT]
    after = plan.hit_stamp_ns - plan.capture_stamp_ns
    hit = MultiDOFJointTrajectoryPoint(transforms=[Transform()], velocities=[Twist()])
    hit.time_from_start = _duration(after)
    _set(hit.transforms[0].translation, plan.racket_pos_table)
    rotation = hit.transforms[0].rotation
    rotation.x, rotation.y, rotation.z, rotation.w = (float(v) for v in plan.racket_quat_xyzw)
    _set(hit.velocities[0].linear, plan.racket_vel_table)
    _set(hit.velocities[0].angular, plan.racket_angvel_table)
    note = MultiDOFJointTrajectoryPoint(transforms=[Transform()], velocities=[Twist()])
    note.time_from_start = _duration(after + 1)
    _set(note.transforms[0].translation, plan.aim_table)
    _set(note.velocities[0].linear, _note(plan))
    msg.points = [hit, note]
    return msg


def _note(plan: HitPlan) -> tuple[float, float, float]:
    start_ns = plan.start_stamp_ns - plan.capture_stamp_ns if plan.start_stamp_ns else 0
    return float(list(HitKind).index(plan.kind)), plan.expected_error_m, start_ns / NS_PER_S


def hit_plan_to_raw(plan: HitPlan) -> bytes:
    """The same message serialized, without building ROS objects."""
    after = plan.hit_stamp_ns - plan.capture_stamp_ns
    return _PLAN.fill(
        plan.capture_stamp_ns,
        np.concatenate((plan.racket_pos_table, plan.racket_quat_xyzw)),
        np.concatenate((plan.racket_vel_table, plan.racket_angvel_table)),
        after,
        np.array((*plan.aim_table, 0.0, 0.0, 0.0, 1.0)),
        np.array((*_note(plan), 0.0, 0.0, 0.0)),
        after + 1,
    )


def _plan_template() -> CdrTemplate:
    template = CdrTemplate().time().string("table").strings([RACKET_JOINT]).count(2)
    for _ in range(2):
        # One transform, one velocity, no acceleration.
        template.count(1).doubles(7).count(1).doubles(6).count(0).time()
    return template


_PLAN = _plan_template()


def hit_plan_from_raw(raw: bytes) -> HitPlan:
    """Back from `hit_plan`, serialized.

    Raises:
        MessageError: as `hit_plan_from_msg`, or the bytes are no such message.
    """
    reader = CdrReader(raw)
    capture = reader.stamp_ns()
    reader.string()
    reader.strings()
    points = []
    for _ in range(reader.uint32()):
        transforms = [reader.doubles(7) for _ in range(reader.uint32())]
        twists = [reader.doubles(6) for _ in range(reader.uint32())]
        for _ in range(reader.uint32()):
            reader.doubles(6)
        points.append((transforms[:1], twists[:1], reader.stamp_ns()))
    return _hit_plan(capture, points)


def hit_plan_from_msg(msg: MultiDOFJointTrajectory) -> HitPlan:
    """Back from `hit_plan`. A message of one point reads as kind AIM with unknown aim.

    Raises:
        MessageError: no point, or a point without transform and twist.
    """
    points = []
    for point in msg.points:
        transforms = [np.r_[_get(t.translation), _quat(t.rotation)] for t in point.transforms[:1]]
        twists = [np.r_[_get(t.linear), _get(t.angular)] for t in point.velocities[:1]]
        points.append((transforms, twists, stamp_from_msg(point.time_from_start)))
    return _hit_plan(stamp_from_msg(msg.header.stamp), points)


def _hit_plan(capture: int, points: list[tuple[list[np.ndarray], list[np.ndarray], int]]) -> HitPlan:
    """Checks and builds; a point holds the first transform (7,), the first twist (6,) and its time in ns."""
    if not points or not points[0][0] or not points[0][1]:
        raise MessageError(
            "hit_plan has no point with a transform and a twist; publish one point for joint 'racket'"
        )
    (pose,), (twist,), after = points[0]
    kind, error, aim, start_ns = HitKind.AIM, math.nan, np.full(3, math.nan), 0
    if len(points) > 1 and points[1][0] and points[1][1]:
        (note_pose,), (note_twist,), _ = points[1]
        aim = note_pose[:3]
        if not (math.isfinite(note_twist[0]) and math.isfinite(note_twist[2])):
            raise MessageError("hit_plan names kind or start by a number that is not finite")
        index = int(note_twist[0])
        kinds = list(HitKind)
        if not 0 <= index < len(kinds):
            raise MessageError(f"hit_plan names kind {index}; allowed are 0 to {len(kinds) - 1}")
        kind, error = kinds[index], float(note_twist[1])
        if note_twist[2]:
            start_ns = capture + round(float(note_twist[2]) * NS_PER_S)
    return HitPlan(
        capture_stamp_ns=capture,
        hit_stamp_ns=capture + after,
        racket_pos_table=pose[:3],
        racket_quat_xyzw=pose[3:],
        racket_vel_table=twist[:3],
        racket_angvel_table=twist[3:],
        kind=kind,
        aim_table=aim,
        expected_error_m=error,
        start_stamp_ns=start_ns,
    )


def joint_trajectory_to_msg(trajectory: JointTrajectory) -> JointTrajectoryMsg:
    """`joint_trajectory`: one point per knot, times from the capture stamp in the header."""
    msg = JointTrajectoryMsg()
    msg.header.stamp = stamp_to_msg(trajectory.capture_stamp_ns)
    msg.joint_names = list(trajectory.joint_names)
    points = []
    for k, t in enumerate(trajectory.times_s):
        point = JointTrajectoryPoint(
            positions=trajectory.pos[k].tolist(),
            velocities=trajectory.vel[k].tolist(),
            accelerations=trajectory.acc[k].tolist(),
            time_from_start=_duration(round(float(t) * NS_PER_S)),
        )
        points.append(point)
    msg.points = points
    return msg


def joint_trajectory_to_raw(trajectory: JointTrajectory) -> bytes:
    """The same message serialized, without building ROS objects."""
    values: list[int | np.ndarray] = [trajectory.capture_stamp_ns]
    for k, time_s in enumerate(trajectory.times_s.tolist()):
        values += [trajectory.pos[k], trajectory.vel[k], trajectory.acc[k], round(time_s * NS_PER_S)]
    return _trajectory_template(trajectory.joint_names, len(trajectory.times_s)).fill(*values)


@functools.lru_cache(maxsize=256)
def _trajectory_template(names: tuple[str, ...], count: int) -> CdrTemplate:
    n = len(names)
    template = CdrTemplate().time().string("").strings(names).count(count)
    for _ in range(count):
        template.sequence(n).sequence(n).sequence(n).count(0).time()  # no efforts
    return template


def joint_trajectory_from_msg(msg: JointTrajectoryMsg) -> JointTrajectory:
    """Back from `joint_trajectory`; velocities and accelerations left out read as zero.

    Raises:
        MessageError: no points, or a point with a wrong number of values, or times that do not ascend.
    """
    rows = [(point.positions, point.velocities, point.accelerations) for point in msg.points]
    times = [stamp_from_msg(point.time_from_start) for point in msg.points]
    return _joint_trajectory(stamp_from_msg(msg.header.stamp), tuple(msg.joint_names), times, rows)


def joint_trajectory_from_raw(raw: bytes) -> JointTrajectory:
    """The same of a serialized message.

    Raises:
        MessageError: as `joint_trajectory_from_msg`, or the bytes are no such message.
    """
    reader = CdrReader(raw)
    capture = reader.stamp_ns()
    reader.string()
    names = reader.strings()
    rows, times = [], []
    for _ in range(reader.uint32()):
        rows.append((reader.sequence(), reader.sequence(), reader.sequence()))
        reader.sequence()  # efforts
        times.append(reader.stamp_ns())
    return _joint_trajectory(capture, names, times, rows)


def _joint_trajectory(
    capture: int, names: tuple[str, ...], times_ns: list[int], rows: list[tuple[Any, Any, Any]]
) -> JointTrajectory:
    """Checks and builds; a row holds positions, velocities and accelerations of one knot."""
    n = len(names)
    if not rows or n == 0:
        raise MessageError("joint_trajectory has no points; publish at least one with a position per joint")
    zeros = (0.0,) * n
    full = []
    for k, (pos, vel, acc) in enumerate(rows):
        if len(pos) != n or len(vel) not in (0, n) or len(acc) not in (0, n):
            raise MessageError(
                f"joint_trajectory point {k} has {len(pos)} positions, {len(vel)} velocities, {len(acc)} "
                f"accelerations for {n} joints; give one of each per joint"
            )
        full.append((pos, vel if len(vel) else zeros, acc if len(acc) else zeros))
    times_s = np.array([ns // NS_PER_S + ns % NS_PER_S / NS_PER_S for ns in times_ns])
    if (np.diff(times_s) <= 0.0).any():
        raise MessageError(
            "joint_trajectory times do not ascend; each point must be later than the one before"
        )
    pos_a, vel_a, acc_a = (np.array([row[i] for row in full], dtype=float) for i in range(3))
    return JointTrajectory(capture, names, times_s, pos_a, vel_a, acc_a)


def joint_positions_from_raw(raw: bytes) -> tuple[int, tuple[str, ...], np.ndarray]:
    """Stamp (ns), joint names and positions (n,) of a serialized JointState.

    Raises:
        MessageError: the bytes are no such message.
    """
    reader = CdrReader(raw)
    stamp_ns = reader.stamp_ns()
    reader.string()
    return stamp_ns, reader.strings(), reader.sequence()


class JointStateWriter:
    """Serialized JointStates of one robot.

    Args:
        names: of the joints.
    """

    def __init__(self, names: Sequence[str]) -> None:
        n = len(names)
        self._template = CdrTemplate().time().string("").strings(names).sequence(n).sequence(n).sequence(n)

    def raw(self, stamp_ns: int, pos: np.ndarray, vel: np.ndarray, effort: np.ndarray) -> bytes:
        """A message; each array has one value per joint."""
        return self._template.fill(stamp_ns, pos, vel, effort)


def _duration(ns: int) -> Duration:
    sec, nanosec = divmod(ns, NS_PER_S)
    return Duration(sec=sec, nanosec=nanosec)


def _set(target, values) -> None:  # type: ignore[no-untyped-def]
    target.x, target.y, target.z = (float(v) for v in values)


def _get(source) -> np.ndarray:  # type: ignore[no-untyped-def]
    return np.array([source.x, source.y, source.z])


def _quat(source) -> np.ndarray:  # type: ignore[no-untyped-def]
    return np.array([source.x, source.y, source.z, source.w])
