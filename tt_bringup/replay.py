"""Plays a recording through the pure pipeline.

The stages are those of the nodes; only processes and clocks are missing. Times of arrival and of decisions are
those of the bag, so the same bag gives the same outputs bit for bit, at any speed, on any machine.
`replay_compare` compares them with what was recorded; `replay_planning` lets a second core do the planning.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tt_bringup.bags import Bag
from tt_bringup.latency import parse_time_reference
from tt_bringup.replay_compare import TopicComparison, compare
from tt_bringup.replay_planning import PlanningProcess
from tt_estimation.ball_models import BallModel
from tt_estimation.messages import ball_state_from_raw, ball_states_from_raw
from tt_estimation.model_file import load_model
from tt_estimation.spin_prior import load_spin_prior
from tt_estimation.tracker import TrackerConfig
from tt_estimation.types import BallState
from tt_perception.camera import CameraModel, default_sim_cameras, load_cameras
from tt_perception.errors import TTError
from tt_perception.messages import ball_position_from_raw, ball_positions_from_raw, detections_from_raw
from tt_perception.trigger_sets import TriggerConfig
from tt_perception.types import CameraDetections
from tt_planning.messages import hit_plan_from_raw, joint_positions_from_raw, joint_trajectory_from_raw
from tt_planning.pipeline import Event, Joints, Outputs, Pipeline, PipelineConfig, Tick
from tt_planning.robot import RobotModel, load_robot

if TYPE_CHECKING:  # OpenCV takes 0.1 s to import, and only pictures need it
    from tt_perception.detection import DetectorConfig

FloatArray = NDArray[np.float64]
_UNREADABLE = (TTError, ValueError, ArithmeticError)  # what damaged bytes raise that pass for a message
_T = TypeVar("_T", bool, float, str, tuple[str, ...])
_EVENTS_PER_PROGRESS = 256
TICK_NS = 10_000_000  # the nodes look for late cameras this often
SEEN, PLANNED = ("ball/position", "ball/state"), ("hit_plan", "joint_trajectory")
OUTPUTS = SEEN + PLANNED
BEGINNINGS = ("images", "detections", "ball/position", "ball/state")
_STAGES_BEFORE = (b"estimated", b"planned")  # decisions and motions begin at their ends
_NO_INPUT = "neither pictures, nor detections, nor ball/position, nor ball/state were recorded"


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
        begin: first input, one of `BEGINNINGS`.
        namespace: of the robot in the bag; None finds it.
        detector: how balls look to a camera; None unless pictures are replayed.
        images: folder with pictures; None for those in the bag.
        leads_s: from a decision and from a request for a motion to the start of the motion, as recorded.
    """

    robot: RobotModel
    cameras: tuple[CameraModel, ...]
    model: BallModel
    config: PipelineConfig
    begin: str
    namespace: str | None = None
    detector: Callable[[CameraModel], DetectorConfig] | None = None
    images: Path | None = None
    leads_s: tuple[float, float] = (0.0, 0.0)


@dataclass
class ReplayResult:
    """Outputs of the pipeline and what was left out.

    Attributes:
        outputs: by topic name: positions, states, plans, trajectories, in the order they were made; of pictures
            also the detections.
        made: number of outputs by topic name.
        comparisons: outputs against what was recorded.
        events: how many messages went in.
        skipped: messages that could not be used, by reason.
        wall_s: time it took.
        bag_s: time the recording took.
    """

    outputs: dict[str, list[Any]] = field(default_factory=lambda: {name: [] for name in OUTPUTS})
    made: dict[str, int] = field(default_factory=dict)
    comparisons: list[TopicComparison] = field(default_factory=list)
    decisions: dict[str, int] = field(default_factory=dict)
    health: dict[str, Any] = field(default_factory=dict)
    events: int = 0
    skipped: dict[str, int] = field(default_factory=dict)
    wall_s: float = 0.0
    bag_s: float = 0.0


def settings_from_bag(
    bag: Bag,
    robot: str | None = None,
    cameras: Path | None = None,
    model: str | None = None,
    namespace: str | None = None,
    *,
    begin: str | None = None,
    images: Path | None = None,
) -> ReplaySettings:
    """Settings as the recorded nodes had them; arguments win.

    Args:
        bag: the recording.
        robot: name or YAML file.
        cameras: calibration file.
        model: ball constants.
        namespace: of the robot in the bag.
        begin: first input; what was recorded nearest to the cameras when left out, but pictures only when asked
            for or when there are no detections.
        images: folder with pictures, one folder per camera.

    Raises:
        ReplayError: the bag has no input for the pipeline, or is that of another robot.
        TTError: robot, calibration or model cannot be loaded.
    """
    triangulation, planner, estimation, generator, camera = _recorded_parameters(
        bag, "triangulation_node", "hit_planner_node", "ball_state_node", "trajectory_node", "camera_node"
    )
    robot_model = load_robot(robot or planner.get("robot", "gantry4"))
    _check_joints(bag, robot_model, namespace)
    rig = _rig(bag, cameras, triangulation, namespace)
    if images is not None:
        if begin not in (None, "images"):
            raise ReplayError(f"pictures of {images} cannot be used from {begin} on; leave --from out")
        begin = "images"
    default = PipelineConfig()
    trigger = TriggerConfig(
        wait_ns=round(triangulation.get("wait", 0.008) * 1e9),
        stamp_tolerance_ns=round(triangulation.get("stamp_tolerance", 0.0001) * 1e9),
        free=triangulation.get("free_cameras", ()),
    )
    lead_s = default.trajectory.lead_s
    leads_s = (planner.get("lead", lead_s), generator.get("lead", lead_s))
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
        tracker=_tracker_config(estimation),
        trajectory=replace(default.trajectory, lead_s=leads_s[1]),
    )
    begin = _beginning(bag, rig, namespace, begin, images)
    return ReplaySettings(
        robot_model,
        rig,
        load_model(model or estimation.get("model", "nominal")),
        config,
        begin,
        namespace,
        _detector(camera) if begin == "images" else None,
        images,
        leads_s,
    )


def recorded_files(bag: Bag) -> tuple[str, str]:
    """Robot (name or YAML file) and calibration file of the recorded nodes; empty for the simulated cameras.

    Raises:
        ReplayError: a recorded parameter is no text, or the calibration is not here.
    """
    planner, triangulation = _recorded_parameters(bag, "hit_planner_node", "triangulation_node")
    return planner.get("robot", "gantry4"), _calibration(triangulation)


class _RecordedParameters:
    """Parameters of a recorded node; each is taken as recorded when it has the type of its default."""

    def __init__(self, bag: Path, node: str, values: Any) -> None:
        if not isinstance(values, Mapping):
            raise ReplayError(
                f"{bag}: the recorded parameters of {node} are {values!r:.60}, but must be a table"
            )
        self._where, self._values = f"{bag}: recorded parameter {{}} of {node}", values

    def get(self, name: str, default: _T, below: float = 1e6) -> _T:
        """The recorded value, or the default; numbers must be smaller than `below`.

        Raises:
            ReplayError: it has another type, or is too large.
        """
        value = self._values.get(name, default)
        if isinstance(default, tuple):
            value = () if value is None else value  # ROS has no type for an empty list
            fits = isinstance(value, (list, tuple)) and all(isinstance(item, str) for item in value)
        elif isinstance(default, float):
            fits = isinstance(value, (int, float)) and not isinstance(value, bool) and abs(value) < below
        else:
            fits = isinstance(value, type(default))
        if not fits:
            kind = {
                tuple: "a list of texts",
                float: f"a number below {below:g}",
                str: "a text",
                bool: "true or false",
            }
            where = self._where.format(name)
            raise ReplayError(f"{where} is {value!r:.60}, but must be {kind[type(default)]}")
        return type(default)(value)  # type: ignore[call-arg]


def _recorded_parameters(bag: Bag, *nodes: str) -> list[_RecordedParameters]:
    """Parameters of each of these nodes, whatever its namespace was."""
    recorded = {node.rsplit("/", 1)[-1]: values for node, values in bag.parameters().items()}
    return [_RecordedParameters(bag.path, node, recorded.get(node, {})) for node in nodes]


def _tracker_config(recorded: _RecordedParameters) -> TrackerConfig:
    """Limits and noise of the filter as the recorded node had them."""
    default = TrackerConfig()
    names = (
        "acceleration_noise", "drag_sigma", "lift_sigma", "restitution_sigma", "friction_sigma",
    )  # fmt: skip
    changed: dict[str, Any] = {name: recorded.get(name, getattr(default.filter, name)) for name in names}
    changed["gate"] = recorded.get("gate", default.filter.gate, below=1.0)
    if spin_prior := recorded.get("spin_prior", ""):
        changed["spin_prior"] = load_spin_prior(spin_prior)
    return replace(
        default,
        filter=replace(default.filter, **changed),
        max_future_s=recorded.get("max_future", default.max_future_s),
        late_s=recorded.get("late", default.late_s),
        lost_s=recorded.get("lost", default.lost_s),
    )


def _detector(recorded: _RecordedParameters) -> Callable[[CameraModel], DetectorConfig]:
    """How balls look to a camera, as the recorded camera node had it."""
    from tt_perception.detection import detector_for, load_detector

    if file := recorded.get("detector", ""):
        config = load_detector(file)
        return lambda _camera: config
    exposure_s = recorded.get("exposure", 0.0) or 0.002
    return lambda camera: detector_for(camera, exposure_s)


def _rig(
    bag: Bag, cameras: Path | None, parameters: _RecordedParameters, namespace: str | None
) -> tuple[CameraModel, ...]:
    file = str(cameras) if cameras is not None else _calibration(parameters)
    rig = load_cameras(file) if file else default_sim_cameras()
    wanted = parameters.get("camera_names", ())
    return tuple(camera for camera in rig if not wanted or camera.name in wanted)


def _calibration(parameters: _RecordedParameters) -> str:
    """The calibration file of the recorded nodes; empty for the simulated cameras."""
    file = parameters.get("cameras", "")
    if file and not Path(file).is_file():
        raise ReplayError(
            f"the recording used the calibration {file}, which is not here; give it with --cameras"
        )
    return file


def _beginning(
    bag: Bag, rig: tuple[CameraModel, ...], namespace: str | None, begin: str | None, images: Path | None
) -> str:
    """The first input: as asked for, or what was recorded nearest to the cameras."""
    known = {camera.name for camera in rig}
    seen, pictures = set(bag.cameras(namespace)), set(bag.cameras(namespace, "image_raw"))
    has = {
        "images": bool(pictures & known) or images is not None,
        "detections": bool(seen & known),
        **{name: bag.find(name, namespace) is not None for name in ("ball/position", "ball/state")},
    }
    if begin is not None:
        if has[begin]:
            return begin
        there = ", ".join(name for name, found in has.items() if found) or "none of the inputs"
        raise ReplayError(f"{bag.path} cannot be replayed from {begin}: it has {there}")
    for name in ("detections", "images", "ball/position", "ball/state"):
        if has[name]:
            return name
    others = sorted(seen | pictures)
    if others:
        raise ReplayError(
            f"{bag.path} has cameras {', '.join(others)}, but the calibration is of {', '.join(sorted(known))}; "
            "give the right one with --cameras"
        )
    raise ReplayError(f"{bag.path} cannot be replayed: {_NO_INPUT}")


def _check_joints(bag: Bag, robot: RobotModel, namespace: str | None) -> None:
    topic = bag.joint_states(namespace)
    if topic is None:
        return
    for _, _, raw in bag.messages([topic]):
        _, names, _ = joint_positions_from_raw(raw)
        if not set(robot.joint_names) <= set(names):
            raise ReplayError(
                f"{bag.path} is the recording of another robot: its joints are {', '.join(names)}, those of "
                f"{robot.name} {', '.join(robot.joint_names)}; choose with --robot"
            )
        return


@dataclass
class Recorded:
    """What the recorded nodes made.

    Attributes:
        outputs: by topic name as in `ReplayResult.outputs`.
        ended: by stage and capture stamp, when the stage was done (topic `latency`), ns.
    """

    outputs: dict[str, list[Any]] = field(default_factory=dict)
    ended: dict[str, dict[int, int]] = field(default_factory=dict)


def read_recorded(bag: Bag, settings: ReplaySettings, outputs: Sequence[str] = OUTPUTS) -> Recorded:
    """Reads what the replay is compared with; messages that cannot be read are left out.

    Args:
        bag: the recording.
        settings: says which inputs are replayed.
        outputs: which of `OUTPUTS`; the ends of the stages are only read for plans.
    """
    recorded = Recorded()
    names = {bag.find(name, settings.namespace): name for name in outputs}
    if settings.begin == "images":
        names.update({topic: topic for topic in bag.cameras(settings.namespace).values()})
    names.pop(None, None)
    latency = bag.find("latency", settings.namespace) if "hit_plan" in outputs else None
    found: dict[str, list[bytes]] = {topic: [] for topic in names if topic is not None}
    for topic, _, raw in bag.messages([*found, *([latency] if latency else [])]):
        if topic != latency:
            found[topic].append(raw)
        elif any(stage in raw for stage in _STAGES_BEFORE):
            with contextlib.suppress(*_UNREADABLE):
                stamp = parse_time_reference(raw)
                recorded.ended.setdefault(stamp.stage, {}).setdefault(stamp.capture_ns, stamp.finished_ns)
    for topic, raws in found.items():
        recorded.outputs[names[topic]] = _READERS.get(names[topic], _each(detections_from_raw))(raws)
    return recorded


def _each(read: Callable[[bytes], Any]) -> Callable[[Sequence[bytes]], list[Any]]:
    """A reader of many messages, which leaves out those that cannot be read."""

    def read_all(raws: Sequence[bytes]) -> list[Any]:
        made = []
        for raw in raws:
            with contextlib.suppress(*_UNREADABLE):
                made.append(read(raw))
        return made

    return read_all


_READERS: dict[str, Callable[[Sequence[bytes]], list[Any]]] = {
    "ball/position": ball_positions_from_raw,
    "ball/state": ball_states_from_raw,
    "hit_plan": _each(hit_plan_from_raw),
    "joint_trajectory": _each(joint_trajectory_from_raw),
}


class RecordedTimes:
    """When the recorded planner and trajectory generator began with each capture.

    Plans and trajectories tell it to the nanosecond. Where they were not recorded, the end of the stage before
    does nearly; and else the arrival of the input has to do.
    """

    def __init__(self, recorded: Recorded, leads_s: tuple[float, float]) -> None:
        plan_lead_ns, motion_lead_ns = (round(lead_s * 1e9) for lead_s in leads_s)
        self._times = {
            "planned": dict(recorded.ended.get("estimated", {})),
            "trajectory": dict(recorded.ended.get("planned", {})),
        }
        for plan in recorded.outputs.get("hit_plan", ()):
            if plan.start_stamp_ns:
                self._times["planned"][plan.capture_stamp_ns] = plan.start_stamp_ns - plan_lead_ns
        for motion in recorded.outputs.get("joint_trajectory", ()):
            start_ns = motion.capture_stamp_ns + round(float(motion.times_s[0]) * 1e9)
            self._times["trajectory"][motion.capture_stamp_ns] = start_ns - motion_lead_ns

    def __call__(self, stage: str, capture_ns: int, now_ns: int) -> int:
        """See `StageClock`."""
        return self._times[stage].get(capture_ns, now_ns)


def events(bag: Bag, settings: ReplaySettings, skipped: dict[str, int] | None = None) -> Iterator[Event]:
    """The inputs of the pipeline in the order they arrived, with a tick in every pause.

    Args:
        bag: the recording.
        settings: says which inputs.
        skipped: counts messages that could not be used, by reason.
    """
    skipped = {} if skipped is None else skipped
    last_ns = None
    for event in _inputs(bag, settings, skipped):
        while last_ns is not None and event.now_ns - last_ns > TICK_NS:
            last_ns += TICK_NS
            yield Event(last_ns, Tick())
        last_ns = event.now_ns if last_ns is None else max(last_ns, event.now_ns)
        yield event


def _inputs(bag: Bag, settings: ReplaySettings, skipped: dict[str, int]) -> Iterator[Event]:
    """The inputs without ticks. Of the joints only the first matter: later motions continue the commanded one."""
    joints = bag.joint_states(settings.namespace)
    readers = _readers(bag, settings)
    placed = None
    if joints is not None:
        placed = next(_placed(bag.messages([joints]), settings.robot), None)
    for stamp_ns, made in _data(bag, settings, readers, skipped):
        if placed is not None and placed.now_ns <= stamp_ns:
            yield placed
            placed = None
        yield Event(stamp_ns, made)


def _placed(messages: Iterable[tuple[str, int, bytes]], robot: RobotModel) -> Iterator[Event]:
    for _, stamp_ns, raw in messages:
        try:
            _, names, q = joint_positions_from_raw(raw)
        except _UNREADABLE:
            continue
        where = dict(zip(names, q, strict=False))
        found = np.array([where.get(name, np.nan) for name in robot.joint_names])
        if np.isfinite(found).all():
            yield Event(stamp_ns, Joints(found))


def _readers(bag: Bag, settings: ReplaySettings) -> dict[str, Callable[[bytes], Any]]:
    """How the messages of each input topic are read; pictures are read by an `ImageReader`."""
    known = {camera.name for camera in settings.cameras}
    if settings.begin == "detections":
        cameras = bag.cameras(settings.namespace)
        return {topic: detections_from_raw for name, topic in cameras.items() if name in known}
    read = {"ball/position": ball_position_from_raw, "ball/state": ball_state_from_raw}.get(settings.begin)
    return {} if read is None else {str(bag.find(settings.begin, settings.namespace)): read}


def _data(
    bag: Bag,
    settings: ReplaySettings,
    readers: dict[str, Callable[[bytes], Any]],
    skipped: dict[str, int],
) -> Iterator[tuple[int, Any]]:
    """Arrival time and content of each usable input."""
    images = None
    if settings.begin == "images":
        from tt_bringup.replay_images import ImageReader

        images = ImageReader(settings.cameras, settings.detector)
    if images is not None and settings.images is not None:
        yield from images.folder(settings.images, 0)
        return
    if images is not None:
        known = {camera.name for camera in settings.cameras}
        cameras = bag.cameras(settings.namespace, "image_raw")
        readers = {topic: None for name, topic in cameras.items() if name in known}  # type: ignore[misc]
    for topic, stamp_ns, raw in bag.messages(list(readers)):
        try:
            made = images.message(bag, topic, stamp_ns, raw) if images is not None else readers[topic](raw)
        except _UNREADABLE as error:
            reason = f"{topic}: {error}"
            skipped[reason] = skipped.get(reason, 0) + 1
            continue
        yield stamp_ns, made


def run_offline(
    bag: Bag,
    settings: ReplaySettings,
    planning: PlanningProcess | None = None,
    progress: Callable[[float], None] = lambda _: None,
) -> ReplayResult:
    """Runs the pipeline over a recording, and compares what comes out with what was recorded.

    Args:
        bag: the recording.
        settings: stages and inputs.
        planning: decides in a process of its own; its outputs are then counted and compared, but not kept.
        progress: told now and then how far in the recording it is, s.

    Raises:
        ReplayError: not one input could be used.
    """
    result = ReplayResult(bag_s=bag.duration_s)
    begin = time.perf_counter()
    recorded = read_recorded(bag, settings, OUTPUTS if planning is None else SEEN)
    clock = RecordedTimes(recorded, settings.leads_s)
    pipeline = Pipeline(settings.robot, settings.model, settings.cameras, settings.config, clock=clock)
    used = 0
    for event in events(bag, settings, result.skipped):
        if result.events % _EVENTS_PER_PROGRESS == 0:
            progress(1e-9 * (event.now_ns - bag.start_ns))
        result.events += 1
        used += not isinstance(event.data, (Joints, Tick))
        if settings.begin == "images" and isinstance(event.data, CameraDetections):
            _keep_detections(bag, settings, event.data, result)
        if planning is None:
            collect(pipeline.step(event), result)
        else:
            seen = pipeline.see(event)
            collect(seen, result)
            for data in (event.data, *seen.states):
                if isinstance(data, (Joints, BallState)):
                    planning.take(event.now_ns, data)
    if not used:
        reason = next(iter(result.skipped), _NO_INPUT)
        raise ReplayError(f"{bag.path}: no message could be used: {reason}")
    result.health = {"tracker": pipeline.tracker.health()}
    if pipeline.triangulator is not None:
        result.health["triangulator"] = pipeline.triangulator.health()
    result.made = {name: len(items) for name, items in result.outputs.items()}
    result.comparisons = compare(recorded.outputs, result.outputs)
    if planning is not None:
        planned = planning.finish()
        result.made.update(planned.made)
        result.decisions = planned.decisions
        result.comparisons += planned.comparisons
    result.wall_s = time.perf_counter() - begin
    return result


def _keep_detections(
    bag: Bag, settings: ReplaySettings, found: CameraDetections, result: ReplayResult
) -> None:
    topic = bag.cameras(settings.namespace).get(found.camera)
    if topic is not None:
        result.outputs.setdefault(topic, []).append(found)


def collect(outputs: Outputs, result: ReplayResult) -> None:
    """Adds the outputs of one event to a result."""
    result.outputs["ball/position"] += outputs.positions
    result.outputs["ball/state"] += outputs.states
    result.outputs["hit_plan"] += outputs.plans
    result.outputs["joint_trajectory"] += outputs.trajectories
    for reason in (*outputs.decisions, *outputs.motions):
        result.decisions[reason.name.lower()] = result.decisions.get(reason.name.lower(), 0) + 1
