"""A recording as arrays: what viewer and report look things up in.

Times are seconds after the start of the bag: `arrived` when a message was received, `seen` the capture stamp.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tt_bringup.bags import Bag
from tt_bringup.latency import LatencyJoiner, parse_time_reference
from tt_perception.cdr import CdrReader, path_points
from tt_perception.errors import TTError
from tt_perception.messages import ball_position_from_raw, detections_from_raw
from tt_planning.messages import hit_plan_from_raw, joint_positions_from_raw, joint_trajectory_from_raw
from tt_planning.types import HitPlan, JointTrajectory

FloatArray = NDArray[np.float64]
NEW_BALL_GAP_S = 0.4  # without sim/result, a pause of the ball states this long separates balls
BALL_START_SLACK_S = 0.05
_EMPTY = np.empty(0)


@dataclass
class States:
    """Odometry of a ball: capture time and arrival (n,), values (n, 9): position, velocity, spin; cov (n, 3,
    3).
    """

    seen: FloatArray = field(default_factory=lambda: _EMPTY)
    arrived: FloatArray = field(default_factory=lambda: _EMPTY)
    values: FloatArray = field(default_factory=lambda: np.empty((0, 9)))
    cov: FloatArray = field(default_factory=lambda: np.empty((0, 3, 3)))

    def between(self, begin: float, end: float) -> States:
        """Those seen in a span of time."""
        inside = (self.seen >= begin) & (self.seen <= end)
        return States(self.seen[inside], self.arrived[inside], self.values[inside], self.cov[inside])

    def __len__(self) -> int:
        """Number of states."""
        return len(self.seen)


@dataclass(frozen=True)
class PathSample:
    """A predicted path: arrival and capture time, times (n,) and points (n, 3)."""

    arrived: float
    seen: float
    times: FloatArray
    points: FloatArray


@dataclass(frozen=True)
class Detection:
    """What one camera saw in one image."""

    camera: str
    arrived: float
    seen: float
    uv: FloatArray
    score: FloatArray


@dataclass(frozen=True)
class Fault:
    """A condition that a node reported: level 1 warn, 2 error, 3 stale."""

    first: float
    last: float
    count: int
    node: str
    level: int
    text: str


@dataclass
class Ball:
    """One ball of a rally.

    Attributes:
        number: position in the recording, from 1.
        begin, end: span of time, s.
        result: the referee's words; empty without a referee.
    """

    number: int
    begin: float
    end: float
    result: dict[str, Any]

    @property
    def name(self) -> str:
        """Id of the ball, or its number."""
        return str(self.result.get("id", self.number))

    @property
    def outcome(self) -> str:
        """Verdict of the referee; `unknown` without one."""
        return str(self.result.get("outcome", "unknown"))


@dataclass
class Rally:
    """Everything of a recording that people look at; empty parts were not recorded.

    Attributes:
        bag: where it came from.
        start_ns: time zero.
        joint_names: order of the columns of `joints`.
        joint_times, joints: measured, (n,) and (n, joints).
    """

    bag: Bag
    start_ns: int
    states: States = field(default_factory=States)
    truth: States = field(default_factory=States)
    positions: FloatArray = field(default_factory=lambda: np.empty((0, 4)))
    paths: list[PathSample] = field(default_factory=list)
    plans: list[tuple[float, HitPlan]] = field(default_factory=list)
    trajectories: list[tuple[float, JointTrajectory]] = field(default_factory=list)
    detections: dict[str, list[Detection]] = field(default_factory=dict)
    joint_names: tuple[str, ...] = ()
    joint_times: FloatArray = field(default_factory=lambda: _EMPTY)
    joints: FloatArray = field(default_factory=lambda: np.empty((0, 0)))
    results: list[tuple[float, dict[str, Any]]] = field(default_factory=list)
    latency: LatencyJoiner = field(default_factory=lambda: LatencyJoiner(5_000_000))
    faults: list[Fault] = field(default_factory=list)
    motor_values: dict[str, str] = field(default_factory=dict)
    urdf: str = ""
    skipped: dict[str, int] = field(default_factory=dict)

    @property
    def duration(self) -> float:
        """Length of the recording, s."""
        return self.bag.duration_s

    def seconds(self, stamp_ns: int) -> float:
        """Time after the start of a stamp."""
        return (stamp_ns - self.start_ns) * 1e-9

    def balls(self) -> list[Ball]:
        """Balls in the order they were played."""
        spans = self._ball_spans()
        return [Ball(i, begin, end, result) for i, (begin, end, result) in enumerate(spans, 1)]

    def _ball_spans(self) -> list[tuple[float, float, dict[str, Any]]]:
        tracks = self.truth if len(self.truth) else self.states
        if self.results:
            spans = []
            last = 0.0
            for arrived, result in self.results:
                inside = tracks.seen[(tracks.seen > last) & (tracks.seen <= arrived)]
                begin = float(inside[0]) - BALL_START_SLACK_S if len(inside) else max(last, arrived - 2.0)
                spans.append((max(last, begin), arrived, result))
                last = arrived
            return spans
        if not len(tracks):
            return []
        cuts = np.flatnonzero(np.diff(tracks.seen) > NEW_BALL_GAP_S)
        firsts, lasts = np.r_[0, cuts + 1], np.r_[cuts, len(tracks) - 1]
        return [
            (float(tracks.seen[a]), float(tracks.seen[b]), {}) for a, b in zip(firsts, lasts, strict=True)
        ]


def ball_called(balls: Sequence[Ball], name: str) -> Ball | None:
    """The ball of this name; the running number only counts where no ball has that name."""
    named = [ball for ball in balls if ball.name == name] or [b for b in balls if str(b.number) == name]
    return named[0] if named else None


def load_rally(bag: Bag, namespace: str | None = None) -> Rally:
    """Reads a recording.

    Messages that cannot be read are counted in `Rally.skipped`; topics of unknown type are left out.

    Raises:
        BagError: the bag has no topic in this namespace.
    """
    bag.check_namespace(namespace)
    rally = Rally(bag, bag.start_ns)
    loader = _Loader(rally)
    topics: dict[str, Any] = {}
    for name, take in (
        ("ball/state", loader.state),
        ("sim/ball_truth", loader.truth),
        ("ball/position", loader.position),
        ("ball/prediction", loader.path),
        ("hit_plan", loader.plan),
        ("joint_trajectory", loader.trajectory),
        ("latency", loader.latency),
        ("sim/result", loader.result),
        ("robot_description", loader.description),
    ):
        topic = bag.find(name, namespace)
        if topic is not None:
            topics[topic] = take
    for topic in (bag.joint_states(namespace), bag.find("/diagnostics")):
        if topic is not None:
            topics[topic] = loader.joint_state if topic.endswith("joint_states") else loader.diagnostics
    topics.update(dict.fromkeys(bag.cameras(namespace).values(), loader.detection))
    unknown = bag.unknown_types()
    for topic, stamp_ns, raw in bag.messages([topic for topic in topics if topic not in unknown]):
        try:
            topics[topic](topic, rally.seconds(stamp_ns), stamp_ns, raw)
        except (TTError, ValueError, ArithmeticError, KeyError) as error:
            reason = f"{topic}: {error}"
            rally.skipped[reason] = rally.skipped.get(reason, 0) + 1
    loader.finish()
    return rally


def odometry(raw: bytes) -> tuple[int, FloatArray, FloatArray]:
    """Stamp (ns), values (9,) and position covariance (3, 3) of a serialized nav_msgs/Odometry."""
    reader = CdrReader(raw)
    stamp = reader.stamp_ns()
    reader.string()
    reader.string()
    pose = reader.doubles(7)
    cov = reader.doubles(36)
    twist = reader.doubles(6)
    return stamp, np.concatenate((pose[:3], twist)), cov.reshape(6, 6)[:3, :3]


class _Loader:
    """Takes messages in order and fills a rally."""

    def __init__(self, rally: Rally) -> None:
        self._rally = rally
        self._states: list[tuple[float, float, FloatArray, FloatArray]] = []
        self._truth: list[tuple[float, float, FloatArray, FloatArray]] = []
        self._positions: list[tuple[float, float, float, float]] = []
        self._joints: list[tuple[float, FloatArray]] = []
        self._faults: dict[tuple[str, int, str], list[float]] = {}

    def state(self, _topic: str, arrived: float, _ns: int, raw: bytes) -> None:
        stamp, values, cov = odometry(raw)
        self._states.append((self._rally.seconds(stamp), arrived, values, cov))

    def truth(self, _topic: str, arrived: float, _ns: int, raw: bytes) -> None:
        stamp, values, cov = odometry(raw)
        self._truth.append((self._rally.seconds(stamp), arrived, values, cov))

    def position(self, _topic: str, _arrived: float, _ns: int, raw: bytes) -> None:
        position = ball_position_from_raw(raw)
        self._positions.append((self._rally.seconds(position.stamp_ns), *position.pos_table))

    def path(self, _topic: str, arrived: float, _ns: int, raw: bytes) -> None:
        stamps, points = path_points(raw)
        if len(points):
            times = np.asarray((stamps - self._rally.start_ns) * 1e-9, np.float64)
            self._rally.paths.append(PathSample(arrived, float(times[0]), times, points))

    def plan(self, _topic: str, arrived: float, _ns: int, raw: bytes) -> None:
        self._rally.plans.append((arrived, hit_plan_from_raw(raw)))

    def trajectory(self, _topic: str, arrived: float, _ns: int, raw: bytes) -> None:
        self._rally.trajectories.append((arrived, joint_trajectory_from_raw(raw)))

    def latency(self, _topic: str, _arrived: float, _ns: int, raw: bytes) -> None:
        stamp = parse_time_reference(raw)
        self._rally.latency.add(stamp.stage, stamp.capture_ns, stamp.finished_ns)

    def result(self, topic: str, arrived: float, ns: int, raw: bytes) -> None:
        message = self._rally.bag.decode(topic, ns, raw)
        values = {item.key: json.loads(item.value) for item in message.values}
        self._rally.results.append((arrived, {**values, "message": message.message}))

    def description(self, topic: str, _arrived: float, ns: int, raw: bytes) -> None:
        self._rally.urdf = self._rally.bag.decode(topic, ns, raw).data

    def joint_state(self, _topic: str, _arrived: float, ns: int, raw: bytes) -> None:
        stamp, names, q = joint_positions_from_raw(raw)
        rally = self._rally
        if not rally.joint_names:
            rally.joint_names = names
        if names == rally.joint_names and len(q) == len(names):
            self._joints.append((rally.seconds(stamp or ns), q))

    def detection(self, _topic: str, arrived: float, _ns: int, raw: bytes) -> None:
        found = detections_from_raw(raw)
        seen = self._rally.seconds(found.stamp_ns)
        detection = Detection(found.camera, arrived, seen, found.uv_px, found.score)
        self._rally.detections.setdefault(found.camera, []).append(detection)

    def diagnostics(self, topic: str, arrived: float, ns: int, raw: bytes) -> None:
        for status in self._rally.bag.decode(topic, ns, raw).status:
            level = int.from_bytes(status.level, "little")
            if status.hardware_id == "motor_node":
                self._rally.motor_values = {item.key: item.value for item in status.values}
            if level:
                self._faults.setdefault((status.name, level, status.message), []).append(arrived)

    def finish(self) -> None:
        rally = self._rally
        rally.states, rally.truth = _pack(self._states), _pack(self._truth)
        rally.positions = np.array(self._positions, float).reshape(-1, 4)
        rally.joint_times = np.array([t for t, _ in self._joints])
        rally.joints = np.array([q for _, q in self._joints], float).reshape(-1, len(rally.joint_names) or 1)
        rally.faults = sorted(
            (
                Fault(t[0], t[-1], len(t), node, level, text)
                for (node, level, text), t in self._faults.items()
            ),
            key=lambda fault: (-fault.level, fault.first),
        )


def _pack(rows: list[tuple[float, float, FloatArray, FloatArray]]) -> States:
    if not rows:
        return States()
    rows = sorted(rows, key=lambda row: row[0])
    seen, arrived, values, cov = zip(*rows, strict=True)
    return States(np.array(seen), np.array(arrived), np.array(values), np.array(cov))


def crossing(states: States, y: float) -> tuple[float, FloatArray] | None:
    """When and where an incoming ball passes a plane y = const, between two states; None when it does not."""
    ys = states.values[:, 1]
    found = np.flatnonzero((ys[:-1] > y) & (ys[1:] <= y))
    if not len(found):
        return None
    i = int(found[0])
    share = (ys[i] - y) / (ys[i] - ys[i + 1])
    time = states.seen[i] + share * (states.seen[i + 1] - states.seen[i])
    return float(time), states.values[i, :3] + share * (states.values[i + 1, :3] - states.values[i, :3])


def prediction_errors(rally: Rally, ball: Ball) -> FloatArray:
    """How far each predicted path was from where the ball really passed the last predicted end of its way.

    The plane is that of the last planned hit, or y = −1.37 m without one; the truth is `sim/ball_truth`, or
    the ball states when there is none.

    Returns:
        Rows of (time to the crossing s, distance m, error of the time s), shape (n, 3); paths that do not
        reach the plane are left out.
    """
    tracks = (rally.truth if len(rally.truth) else rally.states).between(ball.begin, ball.end)
    plans = [plan for arrived, plan in rally.plans if ball.begin <= arrived <= ball.end]
    y = float(plans[-1].racket_pos_table[1]) + 0.03 if plans else -1.37
    actual = crossing(tracks, y)
    if actual is None:
        return np.empty((0, 3))
    time, point = actual
    rows = []
    for path in rally.paths:
        if not ball.begin <= path.seen <= min(ball.end, time):
            continue
        ys = path.points[:, 1]
        found = np.flatnonzero((ys[:-1] > y) & (ys[1:] <= y))
        if not len(found):
            continue
        i = int(found[0])
        share = (ys[i] - y) / (ys[i] - ys[i + 1])
        predicted = path.points[i] + share * (path.points[i + 1] - path.points[i])
        when = path.times[i] + share * (path.times[i + 1] - path.times[i])
        rows.append((time - path.seen, float(np.linalg.norm(predicted - point)), float(when - time)))
    return np.array(rows, float).reshape(-1, 3)
