"""Feeds the browser viewer from the running graph, and carries its buttons to the robot."""

from __future__ import annotations

import contextlib
import time
from collections import deque
from collections.abc import Callable
from dataclasses import replace
from typing import Any, TypeVar

import numpy as np
import rclpy
from rclpy.executors import ExternalShutdownException
from rclpy.node import Node
from rclpy.serialization import deserialize_message

from tt_bringup.latency import END_TO_END, LatencyJoiner, parse_time_reference
from tt_bringup.node_kit.node import qos_profile
from tt_bringup.node_kit.run import make_executor
from tt_bringup.node_kit.services import ServiceCalls, wait_with
from tt_bringup.rally import odometry
from tt_bringup.topics import absolute_name, remap_arguments, topic
from tt_bringup.viewer import View, Viewer
from tt_perception.cdr import path_points
from tt_perception.errors import TTError
from tt_perception.messages import detections_from_raw, image_from_msg
from tt_planning.messages import hit_plan_from_raw, joint_positions_from_raw, joint_trajectory_to_msg
from tt_planning.robot import RobotModel
from tt_planning.trajectory import TrajectoryConfig, TrajectoryGenerator
from tt_sim.messages import result_from_msg

T = TypeVar("T")
SHOWN_S = {
    "ball/state": 0.3, "ball/prediction": 0.3, "hit_plan": 1.0, "sim/result": 3.0,
    "uv": 0.3, "image": 3.0, "/joint_states": 0.5,
}  # fmt: skip
SILENT_S = 3.0  # a graph that says nothing for so long has ended
FRAME_S = 1.0 / 30.0
PREVIEW_S = 0.2
PLOT_S = 1.0
LATENCY_WINDOW_S = 20.0
TRAIL_POINTS = 60
SERVICE_S = 3.0
JOG_SLACK = 6.0  # a jog takes this many times the shortest time


class LiveView(Node):
    """Keeps the newest bytes of each topic; `view` reads them.

    Args:
        robot: for joint names and jogging.
        namespace: of the robot.
    """

    def __init__(self, robot: RobotModel, namespace: str) -> None:
        super().__init__("tt_view", namespace=namespace)
        self._robot = robot
        self._namespace = namespace
        self._newest: dict[str, tuple[float, bytes]] = {}
        self._trail: deque[tuple[float, np.ndarray]] = deque(maxlen=TRAIL_POINTS)
        self._cameras: set[str] = set()
        self._words = ""
        self._heard_s = 0.0
        self._joints: dict[str, float] | None = None
        self._health: dict[str, tuple[int, str]] = {}
        self.latency = LatencyJoiner(max_captures=20_000)
        for name in (
            "ball/state",
            "ball/prediction",
            "hit_plan",
            "/joint_states",
            "sim/result",
            "/diagnostics",
        ):
            self._listen(name, name)
        row = topic("latency")
        self.create_subscription(row.ros_type(), row.name, self._on_latency, qos_profile(row.qos), raw=True)  # type: ignore[arg-type]
        self._calls = ServiceCalls(self, wait_with(_doze))
        self._trajectory = self.create_publisher(
            topic("joint_trajectory").ros_type(),
            "joint_trajectory",
            qos_profile(topic("joint_trajectory").qos),  # type: ignore[arg-type]
        )
        self._generator: TrajectoryGenerator | None = None

    def _listen(self, name: str, key: str, **words: str) -> None:
        row = topic(name)
        self.create_subscription(
            row.ros_type(),
            row.resolve(**words),
            lambda raw: self._take(key, raw),
            qos_profile(row.qos),  # type: ignore[arg-type]
            raw=True,
        )

    def _take(self, key: str, raw: bytes) -> None:
        self._newest[key] = (time.monotonic(), raw)
        self._heard_s = time.monotonic()
        if key == "ball/state":
            with contextlib.suppress(TTError):
                self._trail.append((time.monotonic(), odometry(raw)[1][:3]))

    def _on_latency(self, raw: bytes) -> None:
        with contextlib.suppress(TTError):
            stamp = parse_time_reference(raw)
            self.latency.add(stamp.stage, stamp.capture_ns, stamp.finished_ns)

    def find_cameras(self) -> None:
        """Listens to cameras that have appeared."""
        prefix = absolute_name("", self._namespace)
        for name, _ in self.get_topic_names_and_types():
            camera, _, tail = name.removeprefix(prefix).rpartition("/")
            if tail == "detections" and camera and "/" not in camera and camera not in self._cameras:
                self._cameras.add(camera)
                self._listen("{camera}/detections", f"uv:{camera}", camera=camera)
                self._listen("{camera}/image_raw", f"image:{camera}", camera=camera)

    def view(self) -> View:
        """What is known now."""
        now, view = time.monotonic(), View()
        view.joints = self._joints
        fresh = self._read("/joint_states", joint_positions_from_raw, now)
        if fresh is not None:
            _, names, q = fresh
            view.joints = self._joints = dict(zip(names, q.tolist(), strict=False))
        state = self._read("ball/state", odometry, now)
        if state is not None:
            _, values, cov = state
            view.ball = (values[:3], cov, values[6:])
            points = [point for when, point in self._trail if now - when < 0.6]
            view.trail = np.array(points).reshape(-1, 3)
        path = self._read("ball/prediction", path_points, now)
        if path is not None:
            view.path = path[1]
        plan = self._read("hit_plan", hit_plan_from_raw, now)
        if plan is not None:
            view.racket_pos, view.racket_quat = plan.racket_pos_table, plan.racket_quat_xyzw
            view.racket_vel, view.aim = plan.racket_vel_table, plan.aim_table
        message = self._read("sim/result", _decode("sim/result"), now)
        if message is not None:
            result = result_from_msg(message)
            landing = result.get("landing_m")
            view.landing = None if landing is None else np.asarray(landing, float)
            self._words = f"ball {result.get('id')}: {message.message}"
        view.text, view.warnings = self._text(now)
        return view

    def pictures(self, view: View) -> None:
        """Adds detections and camera pictures to a view."""
        now = time.monotonic()
        for camera in self._cameras:
            found = self._read(f"uv:{camera}", detections_from_raw, now)
            if found is not None:
                view.uv[camera] = found.uv_px
            picture = self._read(f"image:{camera}", _picture, now)
            if picture is not None:
                view.pictures[camera] = picture

    def _read(self, key: str, read: Callable[[bytes], T], now: float) -> T | None:
        """What the newest message of a topic says; None when it is old, or cannot be read."""
        taken = self._newest.get(key)
        if taken is None or now - taken[0] > SHOWN_S[key.split(":", 1)[0]]:
            return None
        with contextlib.suppress(TTError):
            return read(taken[1])
        return None

    def _text(self, now: float) -> tuple[str, tuple[str, ...]]:
        """What the robot is doing, and what is wrong."""
        taken = self._newest.pop("/diagnostics", None)
        if taken is not None:
            for status in deserialize_message(taken[1], topic("/diagnostics").ros_type()).status:
                self._health[status.name] = (int.from_bytes(status.level, "little"), status.message)
        bad = [f"{name.rsplit('/', 1)[-1]}: {text}" for name, (level, text) in self._health.items() if level]
        if not self._heard_s:
            return "nothing is published: is tt sim or tt robot running?", ()
        if now - self._heard_s > SILENT_S:
            self._words = ""
            self._health.clear()
            return f"nothing has come for {now - self._heard_s:.0f} s: has the robot ended?", ()
        return self._words or "running", tuple(bad[:6])

    def call(self, name: str) -> str:
        """Calls a Trigger service.

        Raises:
            TTError: nobody answers, or the answer is no.
        """
        answer = self._calls.call(name, SERVICE_S)
        if not answer.success:
            raise TTError(f"{name}: {answer.message}")
        return answer.message or f"{name} done"

    def jog_to(self, target: dict[str, float]) -> str:
        """Slowly towards joint positions; the motion ends there, or with `jog_stop`.

        Raises:
            TTError: joints are not known, or the way is not free.
        """
        now_ns = int(self.get_clock().now().nanoseconds)
        if self._generator is None:
            fresh = self._read("/joint_states", joint_positions_from_raw, time.monotonic())
            if fresh is None:
                raise TTError("joint positions are not known: is motor_node running?")
            joints = dict(zip(fresh[1], fresh[2].tolist(), strict=False))
            if not set(self._robot.joint_names) <= set(joints):
                raise TTError(
                    f"the robot has joints {', '.join(joints)}, not those of {self._robot.name}; start with --robot"
                )
            config = replace(TrajectoryConfig(), return_slack=JOG_SLACK)
            self._generator = TrajectoryGenerator(self._robot, config)
            q = np.array([joints[name] for name in self._robot.joint_names])
            self._generator.set_reference(q, 0.0 * q, 0.0 * q, now_ns)
            goal = np.array([target[name] for name in self._robot.joint_names])
            result = self._generator.go_to(goal, now_ns)
            if result.trajectory is None:
                self._generator = None
                raise TTError(f"the robot does not go there: {result.reason.value}")
            self._trajectory.publish(joint_trajectory_to_msg(result.trajectory))
        return "moving"

    def jog_stop(self) -> None:
        """Ends a jog at once."""
        generator, self._generator = self._generator, None
        if generator is not None:
            result = generator.stop(int(self.get_clock().now().nanoseconds))
            if result.trajectory is not None:
                self._trajectory.publish(joint_trajectory_to_msg(result.trajectory))


def _decode(name: str) -> Callable[[bytes], Any]:
    return lambda raw: deserialize_message(raw, topic(name).ros_type())


def _picture(raw: bytes) -> np.ndarray:
    return image_from_msg(_decode("{camera}/image_raw")(raw))


def _doze() -> None:
    """In the thread of a button: the main thread handles what arrives."""
    time.sleep(0.01)


def show_live(viewer: Viewer, robot: RobotModel, namespace: str, allow_motion: bool, end: float) -> None:
    """Shows the running graph until a time or Ctrl-C."""
    rclpy.init(args=remap_arguments(namespace))
    try:
        node = LiveView(robot, namespace)
        executor = make_executor()
        executor.add_node(node)
        _controls(viewer, node, robot, allow_motion)
        drawn = previewed = plotted = 0.0
        while (now := time.monotonic()) < end:
            executor.spin_once(timeout_sec=max(0.0, drawn + FRAME_S - now))
            now = time.monotonic()
            if now - drawn < FRAME_S:
                continue
            drawn, view = now, node.view()
            viewer.show(view)
            if now - previewed > PREVIEW_S:
                previewed = now
                node.find_cameras()
                node.pictures(view)
                viewer.preview(view)
            if now - plotted > PLOT_S:
                plotted = now
                _plot_latency(viewer, node)
        node.destroy_node()
    except ExternalShutdownException:
        pass  # told to end
    finally:
        rclpy.try_shutdown()


def _controls(viewer: Viewer, node: LiveView, robot: RobotModel, allow_motion: bool) -> None:
    """E-stop and serve for everybody; what moves the robot only when it is allowed."""
    actions = [
        ("E-STOP", "red", lambda: node.call("motors/stop")),
        ("serve (simulation)", "blue", lambda: node.call("sim/serve")),
        ("stop", "orange", lambda: node.call("motors/disable")),
    ]
    if allow_motion:
        actions += [
            ("start", "green", lambda: node.call("motors/enable")),
            ("home", "teal", lambda: node.call("motors/home")),
            ("clear fault", "gray", lambda: node.call("motors/clear_fault")),
        ]
    viewer.buttons(actions)
    if allow_motion:
        rows = zip(robot.joint_names, robot.lower, robot.upper, robot.ready, strict=True)
        joints = [(name, float(low), float(high), float(start)) for name, low, high, start in rows]
        viewer.jog(joints, node.jog_to, node.jog_stop)


def _plot_latency(viewer: Viewer, node: LiveView) -> None:
    values, captures = node.latency.durations_ms().get(END_TO_END, (np.empty(0), np.empty(0)))
    if not len(values):
        return
    times = (captures - captures[-1]) * 1e-9
    recent = times > -LATENCY_WINDOW_S
    viewer.plot("latency, exposure to bus", times[recent], values[recent], "s", "ms")
