"""Talks to a running simulation: serves balls, collects the referee's results, latencies and the pace."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any

import rclpy
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.node import Node
from rclpy.serialization import deserialize_message
from rclpy.signals import SignalHandlerOptions
from rclpy.task import Future
from sensor_msgs.msg import JointState

from tt_bringup.latency import LatencyJoiner, parse_time_reference
from tt_bringup.node_kit.inbox import Inbox
from tt_bringup.node_kit.node import qos_profile
from tt_bringup.node_kit.run import make_executor
from tt_bringup.node_kit.services import ServiceCalls, Wait
from tt_bringup.topics import NAMESPACE, STAGE_INPUTS, remap_arguments, topic
from tt_perception.errors import TTError
from tt_sim.messages import result_from_msg

SERVICES = ("sim/serve", "motors/enable", "motors/clear_fault")
USUAL_START_S = 15.0
READY_CAP_S = 600.0  # the first start after an installation compiles the kernels
MATCH_S = 0.4  # all names are there; their publishers and subscribers may still be looking for each other
STILL_SPEED = 0.05  # m/s or rad/s below which a joint counts as at rest
STILL_S = 0.3
VERDICT_CAP_S = 15.0  # a ball is over within 4 s of simulated time
SETTLE_CAP_S = 5.0
ENABLE_CAP_S = 60.0
CALL_CAP_S = 10.0
STAND_BY_S = 0.5  # between looks at the motors while scripts play
RETRY_S = 0.3
LISTENERS = {
    "cam0/detections": "triangulation_node",
    **STAGE_INPUTS,
    "joint_trajectory": "motor_node",
}
ALREADY_ACTIVE = "already active"  # what motors/enable answers when nothing had to be done
SPIN_S = 0.02
FAULT = "fault"  # state of motor_node: latched
ESTOP = "emergency stop"  # in the reason of a latched stop that an operator called
STAMPS_KEPT = 1000  # latency stamps of a second


class OperatorStopError(TTError):
    """An operator's emergency stop is latched."""


class SimClient:
    """A node that serves balls and listens; it does nothing between calls of `wait`.

    Attributes:
        results: verdicts of the referee in order.
        latency: stamps since the first ball.
        first_ball_s: from the start of the command to the first served ball.
        motor_stops: how often the motors had to be enabled again between balls, with what they said.
    """

    def __init__(self, wait: Wait, started: float | None = None, namespace: str = NAMESPACE) -> None:
        """Prepares.

        Args:
            wait: how to wait, as `Supervisor.wait`, which also looks after the processes.
            started: `time.monotonic` when the command began, for `first_ball_s`; now when None.
            namespace: of the robot.
        """
        self._supervised_wait = wait
        self._namespace = namespace
        self.results: list[dict[str, Any]] = []
        self.latency = LatencyJoiner()
        self.first_ball_s: float | None = None
        self.motor_stops: list[str] = []
        self._started = time.monotonic() if started is None else started
        self._pace: list[tuple[float, float]] = []
        self._moved_s = 0.0
        self._joints_seen = False
        self._motors = ("", "")  # state and reason, as motor_node reported them last

    def __enter__(self) -> SimClient:
        """Joins the ROS graph; signals stay with the supervisor."""
        words = ["tt sim", *remap_arguments(self._namespace)]
        rclpy.init(args=words, signal_handler_options=SignalHandlerOptions.NO)
        self._node = Node("tt_sim_command", namespace=self._namespace)
        self._calls = ServiceCalls(self._node, self.wait)
        self._listen("sim/result", self._on_result)
        self._listen("/diagnostics", self._on_diagnostics)
        # A thousand messages a second, looked at some thirty times: no wake-up for each of them.
        self._joint_states = self._inbox("/joint_states", 1)
        self._latency_stamps = self._inbox("latency", STAMPS_KEPT)
        self._executor = make_executor()
        self._executor.add_node(self._node)
        return self

    def __exit__(self, *_: object) -> None:
        """Leaves the ROS graph."""
        self._executor.remove_node(self._node)
        self._joint_states.close()
        self._latency_stamps.close()
        self._node.destroy_node()
        rclpy.try_shutdown()

    @property
    def real_time_factor(self) -> float | None:
        """Simulated per wall time (times the time scale) between first and last ball; None when unknown."""
        if len(self._pace) < 2:
            return None
        (sim_0, wall_0), (sim_1, wall_1) = self._pace[0], self._pace[-1]
        return round((sim_1 - sim_0) / (wall_1 - wall_0), 4)

    def wait(self, done: Callable[[], bool], cap_s: float) -> bool:
        """Waits until `done`, at most `cap_s` seconds, and handles what arrives; returns what `done` said last."""

        def handled() -> bool:
            self._executor.spin_until_future_complete(Future(), timeout_sec=SPIN_S)
            self._look()
            return done()

        return self._supervised_wait(handled, cap_s)

    def ready(self) -> bool:
        """True when the graph is complete and the robot reports its joints."""
        offered = [
            self._calls.ready(name) for name in SERVICES
        ]  # each is looked for, also when one is missing
        return self._joints_seen and all(offered) and all(self._listens(*pair) for pair in LISTENERS.items())

    def _listens(self, topic: str, node: str) -> bool:
        return any(info.node_name == node for info in self._node.get_subscriptions_info_by_topic(topic))

    def still(self) -> bool:
        """True when no joint has moved for a moment."""
        return time.monotonic() - self._moved_s > STILL_S

    def wait_until_ready(self, tell: Callable[[str], None]) -> None:
        """Waits until a ball can be served.

        Args:
            tell: gets a line when that takes long.

        Raises:
            TTError: the graph did not get ready.
            NodeDiedError: a required process ended.
            KeyboardInterrupt: the user asked to stop.
        """
        if not self.wait(self.ready, USUAL_START_S):
            tell("still starting: the first start compiles the kernels, which takes one to three minutes")
            if not self.wait(self.ready, READY_CAP_S):
                raise TTError(
                    f"the robot was not ready after {READY_CAP_S:g} s; --keep-logs keeps the logs with the reason"
                )
        self.pause(MATCH_S)

    def enable(self) -> None:
        """Sees to it that the motors are enabled; a stop between balls is cleared and counted.

        Raises:
            OperatorStopError: an emergency stop is latched; only who called it may leave it.
            TTError: the motors refuse.
        """
        end = time.monotonic() + ENABLE_CAP_S
        stopped = ""
        while True:
            reply = self._calls.call("motors/enable", CALL_CAP_S)
            if reply.success and reply.message == ALREADY_ACTIVE:
                if stopped and self.first_ball_s is not None:
                    self.motor_stops.append(stopped)
                return
            if not reply.success and ESTOP in reply.message:
                raise OperatorStopError(f"somebody stopped the robot: {reply.message}")
            if not reply.success:
                stopped = stopped or reply.message
                self._calls.call("motors/clear_fault", CALL_CAP_S)
            if time.monotonic() > end:
                raise TTError(f"the motors cannot be enabled: {reply.message}")
            self.pause(RETRY_S)

    def recover(self) -> None:
        """Enables the motors after a fault; motors that somebody switched off or stopped are left so.

        Raises:
            OperatorStopError: an emergency stop is latched; only who called it may leave it.
            TTError: the motors refuse.
        """
        state, reason = self._motors
        if state != FAULT:
            return
        if ESTOP in reason:
            raise OperatorStopError(f"somebody stopped the robot: {reason}")
        self._motors = ("", "")
        self.enable()

    def serve(self) -> None:
        """Serves the next ball.

        Raises:
            TTError: the simulation did not serve.
        """
        reply = self._calls.call("sim/serve", CALL_CAP_S)
        if not reply.success:
            raise TTError(f"sim_node did not serve: {reply.message}")
        if self.first_ball_s is None:
            self.first_ball_s = round(time.monotonic() - self._started, 3)
            self._pace.clear()

    def pause(self, seconds: float) -> None:
        """Waits, still handling what arrives."""
        self.wait(lambda: False, seconds)

    def _listen(self, name: str, callback: Callable[[Any], None], raw: bool = False) -> None:
        row = topic(name)
        assert row.qos is not None
        self._node.create_subscription(row.ros_type(), row.resolve(), callback, qos_profile(row.qos), raw=raw)

    def _inbox(self, name: str, depth: int) -> Inbox:
        row = topic(name)
        assert row.qos is not None
        profile = qos_profile(row.qos)
        profile.depth = depth
        return Inbox(self._node, row.ros_type(), row.resolve(), profile)

    def _look(self) -> None:
        """Takes what has come into the inboxes."""
        raw = self._joint_states.newest()
        if raw is not None:
            self._on_joints(deserialize_message(raw, JointState))
        for raw in self._latency_stamps.take():
            if self.first_ball_s is not None:
                stamp = parse_time_reference(raw)
                self.latency.add(stamp.stage, stamp.capture_ns, stamp.finished_ns)

    def _on_result(self, message: DiagnosticStatus) -> None:
        self.results.append(result_from_msg(message))

    def _on_joints(self, message: JointState) -> None:
        now = time.monotonic()
        if not self._joints_seen:
            self._joints_seen = True
            self._moved_s = now
        if any(abs(speed) > STILL_SPEED for speed in message.velocity):
            self._moved_s = now

    def _on_diagnostics(self, message: DiagnosticArray) -> None:
        for status in message.status:
            values = {item.key: item.value for item in status.values}
            if status.hardware_id == "motor_node":
                self._motors = (values.get("state", ""), values.get("reason", ""))
            if status.hardware_id == "sim_node":
                if "sim_time_s" in values and "wall_time_s" in values:
                    self._pace.append((float(values["sim_time_s"]), float(values["wall_time_s"])))


def play(client: SimClient, balls: int, time_scale: float) -> Iterator[dict[str, Any]]:
    """Serves `balls` balls one after the other and yields the verdict on each.

    Raises:
        TTError: a ball got no verdict, or the motors refuse.
        NodeDiedError: a required process ended.
        KeyboardInterrupt: the user asked to stop.
    """
    for number in range(balls):
        client.enable()
        client.wait(client.still, SETTLE_CAP_S / time_scale)
        client.serve()

        def judged(count: int = number + 1) -> bool:
            return len(client.results) >= count

        if not client.wait(judged, VERDICT_CAP_S / time_scale):
            raise TTError(f"ball {number + 1} got no verdict within {VERDICT_CAP_S / time_scale:g} s")
        yield client.results[-1]


def stand_by(client: SimClient, started: Callable[[], None], tell: Callable[[str], None]) -> None:
    """Keeps the motors enabled for scripts that serve; calls `started` once they are, and never returns.

    They are enabled again after faults only: what an operator switched off or stopped stays so, and `tell` gets a
    line about an emergency stop.

    Raises:
        TTError: the motors refuse.
        NodeDiedError: a required process ended.
        KeyboardInterrupt: the user asked to stop.
    """
    client.enable()
    started()
    said = ""
    while True:
        client.pause(STAND_BY_S)
        try:
            client.recover()
            said = ""
        except OperatorStopError as stop:
            if str(stop) != said:
                said = str(stop)
                tell(f"{said}; motors/clear_fault leaves it")
