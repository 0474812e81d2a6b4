"""Watches a running robot from outside: state of the motors, and the commands a dry run would have sent.

The would-be commands are what the motor node would do with the trajectories: splicing, limits, 250 Hz.
"""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from rclpy.node import Node
from rclpy.signals import SignalHandlerOptions

from tt_bringup.node_kit.node import qos_profile
from tt_bringup.node_kit.run import make_executor
from tt_bringup.node_kit.services import ServiceCalls, wait_with
from tt_bringup.topics import NAMESPACE, remap_arguments, topic
from tt_control.config import control_config
from tt_control.dynamics import RigidBody
from tt_control.follower import PathFollower
from tt_control.intake import Refused, accept
from tt_control.limits import SetpointLimiter
from tt_perception.errors import TTError
from tt_perception.files import whole_file
from tt_planning.messages import joint_trajectory_from_msg
from tt_planning.robot import RobotModel
from tt_planning.types import JointTrajectory

PERIOD_NS = 4_000_000
_CALL_S = 5.0
_SPIN_S = 0.02


class DryRun:
    """A node that listens; used as a context manager.

    Attributes:
        motor_state: state and reason the motor node told last.
        trajectories: all trajectories seen.
    """

    def __init__(self, robot: RobotModel, namespace: str = NAMESPACE) -> None:
        """Joins nothing yet."""
        self.robot, self._namespace = robot, namespace
        self.motor_state = ""
        self.trajectories: list[tuple[int, JointTrajectory]] = []
        self.malformed = 0
        self._start_q = np.array(robot.home)
        self._seen_joints = False

    def __enter__(self) -> DryRun:
        """Joins the ROS graph; signals stay with the supervisor."""
        words = ["tt robot", *remap_arguments(self._namespace)]
        rclpy.init(args=words, signal_handler_options=SignalHandlerOptions.NO)
        self._node = Node("tt_robot_command", namespace=self._namespace)
        for name, callback in (
            ("/diagnostics", self._on_diagnostics),
            ("joint_trajectory", self._on_trajectory),
            ("/joint_states", self._on_joints),
        ):
            row = topic(name)
            assert row.qos is not None
            self._node.create_subscription(row.ros_type(), row.name, callback, qos_profile(row.qos))
        self._calls = ServiceCalls(self._node, wait_with(self.spin))
        self._executor = make_executor()
        self._executor.add_node(self._node)
        return self

    def __exit__(self, *_: object) -> None:
        """Leaves the ROS graph."""
        self._executor.remove_node(self._node)
        self._node.destroy_node()
        rclpy.try_shutdown()

    def spin(self) -> None:
        """Handles what has arrived."""
        self._executor.spin_once(timeout_sec=_SPIN_S)

    def enable(self) -> str:
        """Calls motors/enable; returns its answer."""
        try:
            return str(self._calls.call("motors/enable", _CALL_S).message)
        except TTError as error:
            return str(error)

    def _on_diagnostics(self, msg: DiagnosticArray) -> None:
        for status in msg.status:
            if status.name.rsplit("/", 1)[-1] == "motor_node":
                values = {item.key: item.value for item in status.values}
                text = f"{values.get('state', '?')}: {values.get('reason', status.message)}"
                self.motor_state = text

    def _on_joints(self, msg: Any) -> None:
        if not self._seen_joints and list(msg.name) == list(self.robot.joint_names):
            self._start_q, self._seen_joints = np.array(msg.position), True

    def _on_trajectory(self, msg: Any) -> None:
        try:
            self.trajectories.append(
                (self._node.get_clock().now().nanoseconds, joint_trajectory_from_msg(msg))
            )
        except TTError:
            self.malformed += 1

    # ------------------------------------------------------------------ would-be commands

    def write(self, folder: Path) -> dict[str, Any]:
        """Writes commands.csv and commands.png; returns the counts."""
        times, rows, refused, limited = would_be_commands(self.robot, self.trajectories, self._start_q)
        folder.mkdir(parents=True, exist_ok=True)
        names = self.robot.joint_names
        with whole_file(folder / "commands.csv") as partial, partial.open("w", newline="") as file:
            writer = csv.writer(file)
            writer.writerow(["time_s", *(f"{n}_{what}" for what in ("pos", "vel", "acc") for n in names)])
            for t, row in zip(times, rows):
                writer.writerow([f"{t:.4f}", *(f"{v:.6g}" for v in row.ravel())])
        _draw(folder / "commands.png", names, times, rows)
        return {
            "trajectories": len(self.trajectories),
            "malformed": self.malformed,
            "refused": refused,
            "limited": limited,
            "commands": len(times),
            "folder": str(folder),
        }


def would_be_commands(
    robot: RobotModel, trajectories: list[tuple[int, JointTrajectory]], start_q: np.ndarray
) -> tuple[np.ndarray, np.ndarray, list[str], dict[str, int]]:
    """What the motor node would have commanded.

    Args:
        robot: limits. trajectories: arrival time in ns and trajectory. start_q: where the robot stands.

    Returns:
        times (n,) s after the first arrival, setpoints (n, 3, joints), reasons of refusals, limiter counts.
    """
    config = control_config(robot, robot.control)
    linear = RigidBody.from_robot(robot).is_linear
    follower = PathFollower(robot.max_acc, np.where(linear, config.splice_linear, config.splice_angular))
    limiter = SetpointLimiter(robot.lower, robot.upper, robot.max_vel, robot.max_acc, config.limit_margin)
    follower.hold(start_q)
    limiter.reset(start_q)
    refused: list[str] = []
    times, rows = [], []
    if not trajectories:
        return np.zeros(0), np.zeros((0, 3, robot.joint_count)), refused, limiter.counts
    waiting = list(trajectories)
    begin = now = waiting[0][0]
    end = max(t.capture_stamp_ns + round(float(t.times_s[-1]) * 1e9) for _, t in waiting)
    while now <= end:
        while waiting and waiting[0][0] <= now:
            try:
                follower.offer(accept(waiting.pop(0)[1], robot, config, now, limiter.q))
            except Refused as reason:
                refused.append(str(reason))
        wanted = follower.reference(now)
        q, qd, qdd, _ = limiter.apply(wanted.q, wanted.qd, wanted.qdd, PERIOD_NS * 1e-9)
        times.append((now - begin) * 1e-9)
        rows.append((q, qd, qdd))
        now += PERIOD_NS
    return np.array(times), np.array(rows), refused, limiter.counts


def _draw(path: Path, names: tuple[str, ...], times: np.ndarray, rows: np.ndarray) -> None:
    from tt_sim.figures import pyplot

    plt = pyplot()
    figure, axes = plt.subplots(3, len(names), figsize=(3.4 * len(names), 6.5), squeeze=False, sharex=True)
    for k, what in enumerate(("position", "velocity", "acceleration")):
        for j, name in enumerate(names):
            if len(times):
                axes[k, j].plot(times, rows[:, k, j], linewidth=0.8)
            axes[k, j].set_title(name if k == 0 else "")
        axes[k, 0].set_ylabel(what)
    for axis in axes[-1]:
        axis.set_xlabel("s")
    figure.tight_layout()
    with whole_file(path) as partial:
        figure.savefig(partial, dpi=110)
    plt.close(figure)
