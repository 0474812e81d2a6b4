"""Plays a recording through the pure pipeline, and compares what comes out with what was recorded.

The stages are those of the nodes; only processes and clocks are missing. Arrival times are those of the bag,
so the same bag gives the same outputs bit for bit, at any speed, on any machine.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tt_bringup.bags import Bag
from tt_estimation.ball_models import BallModel
from tt_estimation.messages import ball_state_from_msg
from tt_estimation.model_file import load_model
from tt_estimation.types import BallState
from tt_perception.camera import CameraModel, default_sim_cameras, load_cameras
from tt_perception.errors import TTError
from tt_perception.messages import ball_position_from_msg, detections_from_msg
from tt_perception.trigger_sets import TriggerConfig
from tt_perception.types import BallPosition
from tt_planning.messages import hit_plan_from_msg, joint_trajectory_from_msg
from tt_planning.pipeline import Event, Joints, Outputs, Pipeline, PipelineConfig, Tick
from tt_planning.robot import RobotModel, load_robot
from tt_planning.types import HitPlan, JointTrajectory

FloatArray = NDArray[np.float64]
TICK_NS = 10_000_000  # the nodes look for late cameras this often
OUTPUTS = ("ball/position", "ball/state", "hit_plan", "joint_trajectory")
_NO_INPUT = "neither detections, nor ball/position, nor ball/state was recorded"


class ReplayError(TTError):
    """A bag does not fit the robot, the cameras or this program."""


@dataclass(frozen=True)
class ReplaySettings:
    """What the pipeline is built from.

    Attributes:
        robot: the robot of the recording.
        cameras: its calibration.
        model: ball constants that the stages believe in.
        config: settings of the stages.
        begin: first stage: `detections`, `ball/position` or `ball/state`.
        namespace: of the robot in the bag; None finds it.
    """

    robot: RobotModel
    cameras: tuple[CameraModel, ...]
    model: BallModel
    config: PipelineConfig
    begin: str
    namespace: str | None = None


@dataclass
class ReplayResult:
    """Outputs of the pipeline and what was left out.

    Attributes:
        outputs: by topic name: positions, states, plans, trajectories, in the order they were made.
        events: how many messages went in.
        skipped: messages that could not be used, by reason.
        wall_s: time it took.
        bag_s: time the recording took.
    """

    outputs: dict[str, list[Any]] = field(default_factory=lambda: {name: [] for name in OUTPUTS})
    decisions: dict[str, int] = field(default_factory=dict)
    health: dict[str, Any] = field(default_factory=dict)
    events: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    wall_s: float = 0.0
    bag_s: float = 0.0


@dataclass
class FieldDifference:
    """Largest difference of one field over all pairs with the same capture stamp."""

    name: str
    unit: str
    largest: float = 0.0
    stamp_ns: int = 0


@dataclass
class TopicComparison:
    """Recorded against replayed messages of one topic.

    Attributes:
        recorded: how many were recorded.
        replayed: how many came out.
        paired: how many have the same capture stamp.
        identical: pairs whose every number is the same.
        fields: largest difference of each field.
    """

    topic: str
    recorded: int
    replayed: int
    paired: int
    identical: int
    fields: list[FieldDifference]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "recorded": self.recorded,
            "replayed": self.replayed,
            "paired": self.paired,
            "identical": self.identical,
            "largest_difference": {f.name: f.largest for f in self.fields},
        }


def settings_from_bag(
    bag: Bag,
    robot: str | None = None,
    cameras: Path | None = None,
    model: str | None = None,
    namespace: str | None = None,
) -> ReplaySettings:
    """Settings as the recorded nodes had them; arguments win.

    Raises:
        ReplayError: the bag has no input for the pipeline, or is that of another robot.
        TTError: robot, calibration or model cannot be loaded.
    """
    recorded = {node.rsplit("/", 1)[-1]: values for node, values in bag.parameters().items()}
    triangulation = recorded.get("triangulation_node", {})
    planner = recorded.get("hit_planner_node", {})
    estimation = recorded.get("ball_state_node", {})
    robot_model = load_robot(robot or planner.get("robot", "gantry4"))
    _check_joints(bag, robot_model, namespace)
    rig = _rig(bag, cameras, triangulation, namespace)
    names = set(bag.cameras(namespace))
    begin = "detections" if names & {c.name for c in rig} else _later_input(bag, names, rig, namespace)
    default = PipelineConfig()
    trigger = TriggerConfig(
        wait_ns=round(triangulation.get("wait", 0.008) * 1e9),
        stamp_tolerance_ns=round(triangulation.get("stamp_tolerance", 0.0001) * 1e9),
        free=tuple(triangulation.get("free_cameras") or ()),
    )
    config = replace(
        default,
        planner=planner.get("planner", default.planner),
        aim=(planner.get("aim_x", default.aim[0]), planner.get("aim_y", default.aim[1])),
        triangulator=replace(
            default.triangulator,
            pixel_sigma=triangulation.get("pixel_sigma", default.triangulator.pixel_sigma),
            trigger=trigger,
            rays=triangulation.get("rays", default.triangulator.rays),
        ),
    )
    return ReplaySettings(
        robot_model, rig, load_model(model or estimation.get("model", "nominal")), config, begin, namespace
    )


def _rig(
    bag: Bag, cameras: Path | None, parameters: Mapping[str, Any], namespace: str | None
) -> tuple[CameraModel, ...]:
    file = str(cameras) if cameras is not None else parameters.get("cameras", "")
    if file and cameras is None and not Path(file).is_file():
        raise ReplayError(
            f"the recording used the calibration {file}, which is not here; give it with --cameras"
        )
    rig = load_cameras(file) if file else default_sim_cameras()
    wanted = tuple(parameters.get("camera_names") or ())
    return tuple(camera for camera in rig if not wanted or camera.name in wanted)


def _later_input(bag: Bag, names: set[str], rig: tuple[CameraModel, ...], namespace: str | None) -> str:
    for name in ("ball/position", "ball/state"):
        if bag.find(name, namespace) is not None:
            return name
    if names:
        raise ReplayError(
            f"{bag.path} has detections of {', '.join(sorted(names))}, but the calibration is of "
            f"{', '.join(camera.name for camera in rig)}; give the right one with --cameras"
        )
    raise ReplayError(f"{bag.path} cannot be replayed: {_NO_INPUT}")


def _check_joints(bag: Bag, robot: RobotModel, namespace: str | None) -> None:
    topic = bag.find("/joint_states") or bag.find("joint_states", namespace)
    if topic is None:
        return
    for _, _, message in bag.decoded([topic]):
        if not set(robot.joint_names) <= set(message.name):
            raise ReplayError(
                f"{bag.path} is the recording of another robot: its joints are {', '.join(message.name)}, those of "
                f"{robot.name} {', '.join(robot.joint_names)}; choose with --robot"
            )
        return


def events(bag: Bag, settings: ReplaySettings, skipped: dict[str, int] | None = None) -> Iterator[Event]:
    """The inputs of the pipeline in the order they arrived, with a tick in every pause.

    Args:
        bag: the recording.
        settings: says which inputs.
        skipped: counts messages that could not be used, by reason.
    """
    skipped = {} if skipped is None else skipped
    joints = bag.find("/joint_states") or bag.find("joint_states", settings.namespace)
    readers: dict[str, Any] = {}
    if settings.begin == "detections":
        known = {camera.name for camera in settings.cameras}
        readers = {
            topic: detections_from_msg
            for name, topic in bag.cameras(settings.namespace).items()
            if name in known
        }
    elif settings.begin == "ball/position":
        readers = {str(bag.find("ball/position", settings.namespace)): ball_position_from_msg}
    else:
        readers = {str(bag.find("ball/state", settings.namespace)): ball_state_from_msg}
    topics = [*readers, *([joints] if joints else [])]
    last_ns = None
    placed = False  # only where the robot stood at first matters: later motions continue the commanded one
    for topic, stamp_ns, raw in bag.messages(topics):
        if topic == joints and placed:
            continue
        while last_ns is not None and stamp_ns - last_ns > TICK_NS:
            last_ns += TICK_NS
            yield Event(last_ns, Tick())
        last_ns = stamp_ns if last_ns is None else max(last_ns, stamp_ns)
        try:
            message = bag.decode(topic, stamp_ns, raw)
            if topic == joints:
                q = _joint_positions(message, settings.robot.joint_names)
                placed = q is not None
                if q is not None:
                    yield Event(stamp_ns, Joints(q))
            else:
                yield Event(stamp_ns, readers[topic](message))
        except TTError as error:
            reason = f"{topic}: {error}"
            skipped[reason] = skipped.get(reason, 0) + 1


def run_offline(bag: Bag, settings: ReplaySettings) -> ReplayResult:
    """Runs the pipeline over a recording.

    Raises:
        ReplayError: not one input could be used.
    """
    pipeline = Pipeline(settings.robot, settings.model, settings.cameras, settings.config)
    result = ReplayResult(bag_s=bag.duration_s)
    begin = time.perf_counter()
    used = 0
    for event in events(bag, settings, result.skipped):
        result.events += 1
        used += not isinstance(event.data, (Joints, Tick))
        collect(pipeline.step(event), result)
    if not used:
        reason = next(iter(result.skipped), _NO_INPUT)
        raise ReplayError(f"{bag.path}: no message could be used: {reason}")
    result.health = {"tracker": pipeline.tracker.health()}
    if pipeline.triangulator is not None:
        result.health["triangulator"] = pipeline.triangulator.health()
    result.wall_s = time.perf_counter() - begin
    return result


def collect(outputs: Outputs, result: ReplayResult) -> None:
    """Adds the outputs of one event to a result."""
    result.outputs["ball/position"] += outputs.positions
    result.outputs["ball/state"] += outputs.states
    result.outputs["hit_plan"] += outputs.plans
    result.outputs["joint_trajectory"] += outputs.trajectories
    for reason in (*outputs.decisions, *outputs.motions):
        result.decisions[reason.name.lower()] = result.decisions.get(reason.name.lower(), 0) + 1


def compare(bag: Bag, result: ReplayResult, namespace: str | None = None) -> list[TopicComparison]:
    """Recorded against replayed outputs, field by field; topics that were not recorded are left out."""
    readers = {
        "ball/position": ball_position_from_msg,
        "ball/state": ball_state_from_msg,
        "hit_plan": hit_plan_from_msg,
        "joint_trajectory": joint_trajectory_from_msg,
    }
    comparisons = []
    for name, reader in readers.items():
        topic = bag.find(name, namespace)
        if topic is None or (name == "joint_trajectory" and not result.outputs[name]):
            continue
        recorded = []
        for _, _, message in bag.decoded([topic]):
            try:
                recorded.append(reader(message))
            except TTError:
                continue
        comparisons.append(compare_topic(name, recorded, result.outputs[name]))
    return comparisons


def compare_topic(name: str, recorded: list[Any], replayed: list[Any]) -> TopicComparison:
    """Pairs outputs by capture stamp and measures the largest difference of each field."""
    by_stamp: dict[int, Any] = {}
    for item in recorded:
        by_stamp.setdefault(_stamp(item), item)
    fields: dict[str, FieldDifference] = {}
    paired = identical = 0
    for item in replayed:
        other = by_stamp.pop(_stamp(item), None)
        if other is None:
            continue
        paired += 1
        same = True
        for label, unit, one, two in _fields(item, other):
            difference = fields.setdefault(label, FieldDifference(label, unit))
            largest = _largest_difference(one, two)
            same &= largest == 0.0
            if largest > difference.largest:
                difference.largest, difference.stamp_ns = largest, _stamp(item)
        identical += same
    return TopicComparison(name, len(recorded), len(replayed), paired, identical, list(fields.values()))


def _stamp(item: Any) -> int:
    return int(item.stamp_ns if hasattr(item, "stamp_ns") else item.capture_stamp_ns)


def _fields(one: Any, two: Any) -> list[tuple[str, str, Any, Any]]:
    if isinstance(one, BallPosition):
        return [("position", "m", one.pos_table, two.pos_table), ("covariance", "m²", one.cov, two.cov)]
    if isinstance(one, BallState):
        return [
            ("position", "m", one.pos_table, two.pos_table),
            ("velocity", "m/s", one.vel_table, two.vel_table),
            ("spin", "rad/s", one.spin_table, two.spin_table),
            ("covariance", "mixed", one.cov, two.cov),
        ]
    if isinstance(one, HitPlan):
        hit_s = [(item.hit_stamp_ns - item.capture_stamp_ns) * 1e-9 for item in (one, two)]
        return [
            ("hit time", "s", hit_s[0], hit_s[1]),
            ("racket position", "m", one.racket_pos_table, two.racket_pos_table),
            ("racket orientation", "", one.racket_quat_xyzw, two.racket_quat_xyzw),
            ("racket velocity", "m/s", one.racket_vel_table, two.racket_vel_table),
        ]
    assert isinstance(one, JointTrajectory)
    return [
        ("end time", "s", one.times_s[-1], two.times_s[-1]),
        ("end position", "m, rad", one.pos[-1], two.pos[-1]),
        ("largest velocity", "m/s, rad/s", np.abs(one.vel).max(), np.abs(two.vel).max()),
    ]


def _largest_difference(one: Any, two: Any) -> float:
    a, b = np.asarray(one, float), np.asarray(two, float)
    if a.shape != b.shape:
        return float("inf")
    both_nan = np.isnan(a) & np.isnan(b)
    return float(np.max(np.where(both_nan, 0.0, np.abs(a - b)), initial=0.0))


def _joint_positions(message: Any, names: tuple[str, ...]) -> FloatArray | None:
    index = {name: i for i, name in enumerate(message.name)}
    if any(name not in index or index[name] >= len(message.position) for name in names):
        return None
    q = np.array([message.position[index[name]] for name in names])
    return q if np.isfinite(q).all() else None


def comparison_lines(comparisons: list[TopicComparison]) -> list[str]:
    """The comparison for a terminal of 80 columns."""
    lines = []
    for row in comparisons:
        lines.append(
            f"{row.topic:<18}{row.recorded:>7} recorded{row.replayed:>7} replayed{row.paired:>7} pairs"
            f"{row.identical:>7} identical"
        )
        for item in row.fields:
            if item.largest > 0.0:
                unit = f" {item.unit}" if item.unit else ""
                lines.append(
                    f"    {item.name:<20} differs by up to {item.largest:.3g}{unit} at {item.stamp_ns}"
                )
    return lines
