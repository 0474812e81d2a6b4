"""The one table of topics and services: nodes, docs, recording and tests read it.

Names are relative to the namespace of the robot (`tt` unless told otherwise); a leading slash makes a name
absolute. `{camera}` stands for the name of a camera.
"""

from __future__ import annotations

import importlib
from dataclasses import dataclass
from enum import Enum
from typing import Any

from tt_perception.errors import TTError

NAMESPACE = "tt"
JOINT_STATES = "/joint_states"  # where other programs look for them; only the first robot has them there


class TopicError(TTError):
    """A topic or service is not in the table, or a word of its name was left out."""


class Qos(Enum):
    """The four ways to transport a message that the stack uses.

    The value is (reliable, transient local, depth).
    """

    SENSOR = (False, False, 5)
    RELIABLE = (True, False, 10)
    LATCHED = (True, True, 1)
    CLOCK = (False, False, 1)


@dataclass(frozen=True)
class Topic:
    """One topic or service.

    Attributes:
        name: name, may contain `{camera}`.
        type: ROS type, e.g. `sensor_msgs/msg/PointCloud2`, or `std_srvs/srv/Trigger` for a service.
        qos: how it is transported; None for a service.
        rate: usual rate in words.
        frame: what `header.frame_id` holds; empty when there is no header.
        unit: units of the content.
        publisher: the node that publishes or serves it.
        recorded: part of a default recording.
        content: one sentence.
    """

    name: str
    type: str
    qos: Qos | None
    rate: str
    frame: str
    unit: str
    publisher: str
    recorded: bool
    content: str

    @property
    def is_service(self) -> bool:
        """True for services."""
        return self.qos is None

    def resolve(self, **words: str) -> str:
        """The name with `{camera}` filled in.

        Raises:
            TopicError: a word is missing.
        """
        try:
            return self.name.format(**words)
        except KeyError as error:
            raise TopicError(f"topic {self.name!r} needs the word {error.args[0]!r}") from error

    def ros_type(self) -> Any:
        """The message or service class; imports its package."""
        package, kind, name = self.type.split("/")
        return getattr(importlib.import_module(f"{package}.{kind}"), name)


def _trigger(name: str, publisher: str, content: str) -> Topic:
    return Topic(name, "std_srvs/srv/Trigger", None, "on call", "", "", publisher, False, content)


# fmt: off
TOPICS: tuple[Topic, ...] = (
    Topic(
        "{camera}/detections", "sensor_msgs/msg/PointCloud2", Qos.SENSOR, "each image", "<camera>_optical",
        "px", "camera_node", True,
        "All candidates of one image, fields u, v, radius, score; empty when there is none.",
    ),
    Topic(
        "{camera}/camera_info", "sensor_msgs/msg/CameraInfo", Qos.LATCHED, "once", "<camera>_optical", "px",
        "camera_node", True, "Calibration of the camera.",
    ),
    Topic(
        "{camera}/image_raw", "sensor_msgs/msg/Image", Qos.SENSOR, "preview_hz", "<camera>_optical", "mono8",
        "camera_node", False, "Preview pictures, or every image when asked.",
    ),
    Topic(
        "{camera}/debug/image", "sensor_msgs/msg/Image", Qos.SENSOR, "debug_hz", "<camera>_optical", "bgr8",
        "camera_node", False, "What the detector saw: candidates, and why blobs were rejected.",
    ),
    Topic(
        "ball/position", "geometry_msgs/msg/PoseWithCovarianceStamped", Qos.SENSOR, "each trigger", "table",
        "m", "triangulation_node", True, "Triangulated ball centre with its 3×3 position covariance.",
    ),
    Topic(
        "ball/state", "nav_msgs/msg/Odometry", Qos.SENSOR, "each position", "table", "m, m/s, rad/s",
        "ball_state_node", True, "Position, velocity and spin (twist.angular), axes parallel to `table`.",
    ),
    Topic(
        "ball/prediction", "nav_msgs/msg/Path", Qos.RELIABLE, "≤ 30 Hz", "table", "m",
        "ball_state_node", True, "Predicted path of the ball with a stamp per pose.",
    ),
    Topic(
        "hit_plan", "trajectory_msgs/msg/MultiDOFJointTrajectory", Qos.RELIABLE, "each replan", "table",
        "m, m/s, rad/s", "hit_planner_node", True, "Racket pose and twist at the hit time, joint `racket`.",
    ),
    Topic(
        "joint_trajectory", "trajectory_msgs/msg/JointTrajectory", Qos.RELIABLE, "each replan", "", "m, rad",
        "trajectory_node", True, "Quintic knots: position, velocity and acceleration per joint.",
    ),
    Topic(
        "/joint_states", "sensor_msgs/msg/JointState", Qos.SENSOR, "250 Hz", "", "m, rad, N, Nm",
        "motor_node", True, "Measured joint positions, velocities and efforts.",
    ),
    Topic(
        "latency", "sensor_msgs/msg/TimeReference", Qos.SENSOR, "each result of a stage", "node name", "ns",
        "every node", True, "When a stage finished (time_ref), for which capture stamp (header.stamp).",
    ),
    Topic(
        "/diagnostics", "diagnostic_msgs/msg/DiagnosticArray", Qos.RELIABLE, "1 Hz per node", "", "",
        "every node", True, "Health and counters of every node.",
    ),
    Topic(
        "markers", "visualization_msgs/msg/MarkerArray", Qos.RELIABLE, "≤ 30 Hz", "table", "m",
        "visualization_node", False, "Table, ball with covariance, path, planned hit, racket, aim, landing.",
    ),
    Topic(
        "robot_description", "std_msgs/msg/String", Qos.LATCHED, "once", "", "",
        "visualization_node", True, "URDF of the robot.",
    ),
    Topic(
        "sim/ball_truth", "nav_msgs/msg/Odometry", Qos.SENSOR, "each trigger", "table", "m, m/s, rad/s",
        "sim_node", True, "True ball state; simulation only.",
    ),
    Topic(
        "sim/result", "diagnostic_msgs/msg/DiagnosticStatus", Qos.RELIABLE, "each ball", "", "",
        "sim_node", True, "What became of a ball; simulation only.",
    ),
    Topic(
        "/clock", "rosgraph_msgs/msg/Clock", Qos.CLOCK, "1 kHz", "", "s",
        "sim_node", False, "Simulated time; only when time runs slower than the wall clock, and in replay.",
    ),
    _trigger("motors/enable", "motor_node", "Starts the motors; nothing moves before this call."),
    _trigger("motors/disable", "motor_node", "Stops the motion, then switches the motors off."),
    _trigger("motors/stop", "motor_node", "Software e-stop: brakes at once; left only by clear_fault."),
    _trigger("motors/home", "motor_node", "Moves to the home pose."),
    _trigger("motors/clear_fault", "motor_node", "Leaves a fault or the e-stop; the motors stay off."),
    _trigger("recorder/snapshot", "recorder", "Saves the last seconds; only when it records snapshots."),
    _trigger("sim/serve", "sim_node", "Serves the next ball; simulation only."),
)
# fmt: on

# Which node must listen to what before data can flow; a recorder that listens to everything proves nothing.
STAGE_INPUTS = {
    "ball/position": "ball_state_node",
    "ball/state": "hit_planner_node",
    "hit_plan": "trajectory_node",
}

_BY_NAME = {topic.name: topic for topic in TOPICS}


def topic(name: str) -> Topic:
    """The row of a topic or service.

    Raises:
        TopicError: the name is not in the table.
    """
    found = _BY_NAME.get(name)
    if found is None:
        raise TopicError(f"{name!r} is not in the topic table; known are: {', '.join(_BY_NAME)}")
    return found


def recorded_topics(cameras: tuple[str, ...]) -> tuple[tuple[str, Topic], ...]:
    """Names (cameras filled in) and rows of everything that a default recording holds."""
    rows: list[tuple[str, Topic]] = []
    for row in TOPICS:
        if row.recorded:
            words = cameras if "{camera}" in row.name else ("",)
            rows.extend((row.resolve(camera=word), row) for word in words)
    return tuple(rows)


def absolute_name(name: str, namespace: str = NAMESPACE) -> str:
    """The full name of a relative topic in a namespace."""
    return name if name.startswith("/") else f"/{namespace.strip('/')}/{name}"


def remappings(namespace: str) -> tuple[tuple[str, str], ...]:
    """Two robots on one network must not share /joint_states; the first one keeps the usual name."""
    name = namespace.strip("/")
    return () if name == NAMESPACE else ((JOINT_STATES, f"/{name}{JOINT_STATES}"),)


def remap_arguments(namespace: str) -> list[str]:
    """The same for `rclpy.init`."""
    return ["--ros-args", *(word for old, new in remappings(namespace) for word in ("-r", f"{old}:={new}"))]


def table_name(name: str) -> str | None:
    """The row of the topic table of a recorded topic, e.g. `ball/state` of `/left/ball/state`."""
    for row in TOPICS:
        if row.is_service:
            continue
        tail = row.name.split("}/")[-1].lstrip("/")
        in_namespace = not row.name.startswith("/") or row.name == JOINT_STATES
        if name == row.name or (in_namespace and name.endswith(f"/{tail}")):
            return row.name
    return None
