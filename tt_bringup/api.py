"""Script the robot from Python: `serve()`, `start_rally()`, `go_home()`, `is_ready()`, `last_rally()`.

A running graph (`./tt sim`, `./tt robot`, or the launch files) does the work; this object only talks to it. It has
an rclpy context of its own, so it can be used beside other ROS code.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import rclpy
from rclpy.context import Context
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node

from tt_bringup.node_kit.node import qos_profile
from tt_bringup.node_kit.services import ServiceCalls, wait_with
from tt_bringup.topics import NAMESPACE, remap_arguments, topic
from tt_perception.errors import TTError
from tt_planning.robot import RobotModel, load_robot
from tt_sim.messages import result_from_msg

_FRESH_S = 0.5
_REST_SPEED = 0.02  # of the speed limit of a joint
_STANDS_S = 0.3  # longer than the rest between a swing and the way back to ready
_NEAR = 0.01  # of the range of a joint


class ApiError(TTError):
    """The graph did not answer, or refused; the text says which part and what to do."""


@dataclass(frozen=True, slots=True)
class Rally:
    """What became of the balls of one rally.

    Attributes:
        results: one per ball, in order: the values of `sim/result` (`outcome`, `landing_m`, …).
    """

    results: tuple[dict[str, Any], ...]

    @property
    def returned(self) -> int:
        """Balls that came back to the opponent's half."""
        return sum(r.get("outcome") == "returned" for r in self.results)


class TableTennisRobot:
    """A running robot, real or simulated. Use it as a context manager.

    Args:
        robot: name or YAML of the robot that runs.
        namespace: namespace of the graph.
        timeout_s: how long to wait for an answer.

    Raises:
        RobotError: unknown robot.
    """

    def __init__(self, robot: str = "gantry4", namespace: str = NAMESPACE, timeout_s: float = 10.0) -> None:
        self.robot: RobotModel = load_robot(robot)
        self._timeout_s = timeout_s
        self._context = Context()
        rclpy.init(context=self._context)
        self._node = Node(
            "tt_script", namespace=namespace, context=self._context, use_global_arguments=False,
            cli_args=remap_arguments(namespace),
        )  # fmt: skip
        self._executor = SingleThreadedExecutor(context=self._context)
        self._executor.add_node(self._node)
        self._joints: tuple[float, np.ndarray, np.ndarray] | None = None
        self._moved_s = time.monotonic()
        self._results: list[dict[str, Any]] = []
        self._rally: Rally | None = None
        self._wait = wait_with(lambda: self._spin(0.05))
        self._calls = ServiceCalls(self._node, self._wait)
        self._listen("/joint_states", self._on_joints)
        self._listen("sim/result", lambda message: self._results.append(result_from_msg(message)))

    def __enter__(self) -> TableTennisRobot:
        """Nothing to do: the object is ready when it is made."""
        return self

    def __exit__(self, *_: object) -> None:
        """Ends the connection."""
        self.close()

    def close(self) -> None:
        """End the connection; the robot goes on."""
        self._executor.shutdown()
        self._node.destroy_node()
        rclpy.try_shutdown(context=self._context)

    def is_ready(self) -> bool:
        """Whether the joints are known, at rest, and in the ready pose."""
        self._spin(0.1)
        if self._joints is None or time.monotonic() - self._joints[0] > _FRESH_S:
            return False
        _, q, qd = self._joints
        robot = self.robot
        near = np.abs(q - robot.ready) <= _NEAR * (robot.upper - robot.lower)
        return bool(near.all() and (np.abs(qd) <= _REST_SPEED * robot.max_vel).all())

    def wait_until_ready(self) -> None:
        """Wait for `is_ready`.

        Raises:
            ApiError: it took longer than the timeout.
        """
        self._expect(
            self.is_ready, "the robot is not at rest in its ready pose; is the graph running and enabled?"
        )

    def go_home(self) -> None:
        """Move to the home pose (`motors/home`), as soon as the robot stands.

        Raises:
            ApiError: no motor node, it refused (with its reason), or the robot did not come to rest.
        """
        self._expect(self._stands, "the robot does not come to rest")
        self._call("motors/home")

    def _stands(self) -> bool:
        """Whether all joints have been at rest for a moment; also when none are known, which the callee then says."""
        return self._joints is None or time.monotonic() - self._moved_s > _STANDS_S

    def serve(self) -> dict[str, Any]:
        """Serve one ball in the simulation and wait for what becomes of it.

        Returns:
            The values of `sim/result`.

        Raises:
            ApiError: no simulation, it refused, or the ball took longer than the timeout.
        """
        before = len(self._results)
        self._call("sim/serve")
        self._expect(lambda: len(self._results) > before, "no sim/result came for the served ball")
        return self._results[before]

    def start_rally(self, balls: int) -> Rally:
        """Serve `balls` balls one after the other, each when the robot is ready.

        Raises:
            ApiError: as `serve` and `wait_until_ready`; `balls` below 1.
        """
        if balls < 1:
            raise ApiError(f"a rally of {balls} balls; ask for 1 or more")
        results = []
        for _ in range(balls):
            self.wait_until_ready()
            results.append(self.serve())
            self._rally = Rally(tuple(results))
        assert self._rally is not None
        return self._rally

    def last_rally(self) -> Rally | None:
        """The newest rally of this object, also an unfinished one; None before the first ball."""
        return self._rally

    def _listen(self, name: str, callback: Any) -> None:
        row = topic(name)
        assert row.qos is not None
        self._node.create_subscription(row.ros_type(), row.resolve(), callback, qos_profile(row.qos))

    def _on_joints(self, message: Any) -> None:
        index = {name: i for i, name in enumerate(message.name)}
        if any(n not in index for n in self.robot.joint_names):
            return
        order = [index[n] for n in self.robot.joint_names]
        position, velocity = np.asarray(message.position), np.asarray(message.velocity)
        if len(position) <= max(order) or len(velocity) <= max(order):
            return
        now = time.monotonic()
        self._joints = (now, position[order], velocity[order])
        if (np.abs(velocity[order]) > _REST_SPEED * self.robot.max_vel).any():
            self._moved_s = now

    def _call(self, name: str) -> None:
        try:
            answer = self._calls.call(name, self._timeout_s)
        except TTError as error:
            raise ApiError(f"{error}; start the graph first: ./tt sim, ./tt robot or a launch file") from None
        if not answer.success:
            raise ApiError(f"{topic(name).publisher} refused {name}: {answer.message}")

    def _expect(self, done: Callable[[], bool], text: str) -> None:
        if not self._wait(done, self._timeout_s):
            raise ApiError(f"{text} (waited {self._timeout_s:g} s)")

    def _spin(self, seconds: float) -> None:
        end = time.monotonic() + seconds
        while (left := end - time.monotonic()) > 0.0:
            self._executor.spin_once(timeout_sec=left)
