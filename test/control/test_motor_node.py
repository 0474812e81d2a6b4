"""The motor node as a process: services, trajectories, bad messages, and every way it can end."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest
import rclpy
from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import JointState, TimeReference
from std_msgs.msg import Bool
from std_srvs.srv import Trigger
from trajectory_msgs.msg import JointTrajectory as JointTrajectoryMsg

from tt_bringup.node_kit.services import ServiceCalls, wait_with
from tt_control.motor_node import ENABLE_AGAIN_S
from tt_planning.messages import joint_trajectory_to_msg
from tt_planning.types import JointTrajectory

pytestmark = pytest.mark.ros
# The computer may be busy; what is tested here is not how fast it is.
ARGS = ("-m", "tt_control.motor_node", "--ros-args", "-p", "autostart:=true", "-p", "rate_hz:=100.0")


class Operator:
    """A node that talks to the motor node."""

    def __init__(self) -> None:
        self.node = Node("operator", namespace="tt")
        self.joints: list[JointState] = []
        self.stamps: list[TimeReference] = []
        self.node.create_subscription(
            JointState, "/joint_states", self.joints.append, qos_profile_sensor_data
        )
        self.node.create_subscription(TimeReference, "latency", self.stamps.append, qos_profile_sensor_data)
        self.status: list[DiagnosticStatus] = []
        self.node.create_subscription(
            DiagnosticArray, "/diagnostics", lambda message: self.status.extend(message.status), 10
        )
        self.publisher = self.node.create_publisher(JointTrajectoryMsg, "joint_trajectory", 10)
        self.executor = SingleThreadedExecutor()
        self.executor.add_node(self.node)
        self.services = ServiceCalls(self.node, wait_with(lambda: self.executor.spin_once(timeout_sec=0.01)))

    def spin(self) -> bool:
        for _ in range(20):
            self.executor.spin_once(timeout_sec=0.005)
        return True

    def call(self, name: str) -> Trigger.Response:
        return self.services.call(f"motors/{name}", 20.0)

    def values(self) -> dict[str, str]:
        """What the motor node last said of itself."""
        return {item.key: item.value for item in self.status[-1].values} if self.status else {}

    def q(self) -> np.ndarray:
        return np.array(self.joints[-1].position)


@pytest.fixture
def operator() -> Iterator[Operator]:
    rclpy.init()
    yield Operator()
    rclpy.try_shutdown()


@pytest.fixture
def node(request, processes, boards, operator, wait_for):
    """The node; a parametrized test adds arguments."""
    more = getattr(request, "param", ())
    process = processes.python(*ARGS, "-p", f"device:={boards.device}", "-p", "watchdog_ms:=100.0", *more)
    try:
        wait_for(lambda: operator.spin() and len(operator.joints) > 3, 90.0)
    except AssertionError:
        process.send_signal(signal.SIGINT)
        raise AssertionError(f"no joint states; the node said: {process.communicate(timeout=30)}") from None
    return process


def enable(operator, wait_for) -> None:
    """Until the motors are active; a busy computer may let the boards' watchdogs trip meanwhile."""

    def active() -> bool:
        answer = operator.call("enable")
        if not answer.success:
            operator.call("clear_fault")
        return answer.message == "already active"

    wait_for(active, 60.0)


def modes(boards) -> list[int]:
    return [int(boards.boards.board(k).mode) for k in (1, 2, 3, 4)]


def test_a_trajectory_moves_the_joints_and_bad_ones_do_not(node, boards, operator, wait_for, gantry):
    assert operator.joints[-1].name == list(gantry.joint_names)
    assert modes(boards) == [0, 0, 0, 0], "nothing is driven before enable"
    refused = operator.call("home")
    assert not refused.success and "motors/enable" in refused.message
    wait_for(lambda: operator.spin() and "late_p99_ms" in operator.values(), 60.0)
    enable(operator, wait_for)
    wait_for(lambda: operator.publisher.get_subscription_count() > 0)

    start = operator.q()
    now = operator.node.get_clock().now().nanoseconds
    zero = np.zeros((2, 4))
    goal = start + [0.1, 0.05, 0.2, 0.0]
    good = JointTrajectory(now, gantry.joint_names, np.array([0.5, 1.2]), np.array([start, goal]), zero, zero)
    bad = joint_trajectory_to_msg(good)
    bad.joint_names[0] = "elbow"
    operator.publisher.publish(bad)
    short = joint_trajectory_to_msg(good)
    short.points[1].positions = [0.0, 0.1]
    operator.publisher.publish(short)
    old = joint_trajectory_to_msg(good)
    old.header.stamp.sec -= 100
    operator.publisher.publish(old)
    wild = joint_trajectory_to_msg(good)
    wild.points[1].positions[0] = float("nan")
    operator.publisher.publish(wild)
    operator.spin()
    assert np.abs(operator.q() - start).max() < 5e-3

    sent = []

    def send() -> None:
        sent.append(operator.node.get_clock().now().nanoseconds)
        way = np.array([operator.q(), goal])
        operator.publisher.publish(joint_trajectory_to_msg(replace(good, capture_stamp_ns=sent[-1], pos=way)))

    def arrived() -> bool:
        operator.spin()
        if np.abs(operator.q() - goal).max() < 5e-3:
            return True
        if operator.call("enable").message != "already active":  # a pause of the computer has stopped them
            enable(operator, wait_for)
            send()
        return False

    send()
    wait_for(arrived, 60.0)
    done = [s for s in operator.stamps if s.source == "commanded"]
    stamp = done[0].header.stamp
    assert stamp.sec * 10**9 + stamp.nanosec in sent
    assert operator.call("stop").success and not operator.call("enable").success


@pytest.mark.parametrize("node", [("-p", "estop_topic:=estop", "-p", "estop_timeout_s:=10.0")], indirect=True)
def test_an_emergency_stop_input_must_be_there_and_released(node, boards, operator, wait_for):
    refused = operator.call("enable")
    assert not refused.success and "emergency stop input" in refused.message, "silence counts as pressed"
    button = operator.node.create_publisher(Bool, "estop", 10)
    wait_for(lambda: button.get_subscription_count() > 0)

    def when(pressed: bool, holds: Callable[[], bool]) -> None:
        def held() -> bool:
            button.publish(Bool(data=pressed))
            operator.spin()
            return holds()

        wait_for(held, 60.0)

    def enabled() -> bool:
        if operator.call("enable").message == "already active":
            return True
        operator.call("clear_fault")
        return False

    when(False, enabled)
    when(True, lambda: not operator.call("enable").success)
    when(True, lambda: modes(boards)[0] == 0)
    refused = operator.call("clear_fault")
    assert not refused.success and "release" in refused.message
    when(False, enabled)


@pytest.mark.parametrize(
    "node",
    [("-p", "estop_topic:=estop", "-p", "estop_timeout_s:=10.0", "-p", "enable_at_start:=true")],
    indirect=True,
)
def test_a_released_input_does_not_enable_by_itself(node, boards, operator, wait_for):
    button = operator.node.create_publisher(Bool, "estop", 10)
    wait_for(lambda: button.get_subscription_count() > 0)

    def press(pressed: bool) -> bool:
        button.publish(Bool(data=pressed))
        return operator.spin()

    wait_for(lambda: press(False) and modes(boards)[0] == 10, 60.0)
    wait_for(lambda: press(True) and modes(boards)[0] == 0, 60.0)
    seen = []
    end = time.monotonic() + 2.0 * ENABLE_AGAIN_S + 0.5
    while time.monotonic() < end:
        press(False)
        seen.append(modes(boards)[0])
    assert 10 not in seen


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_ends_it_with_the_motors_off(node, boards, operator, wait_for, number):
    enable(operator, wait_for)
    assert modes(boards) == [10, 10, 10, 10]
    node.send_signal(number)
    assert node.wait(40.0) == 0
    assert modes(boards) == [0, 12, 0, 0]


def test_after_sigkill_the_boards_stop_by_themselves(processes, boards, operator, wait_for):
    """Within 30 ms of the last command, counted in the boards' own time."""
    silent_s: list[float] = []
    seen = [0, 0.0]

    def watch(now_s: float) -> None:
        if boards.frames != seen[0]:
            seen[0], seen[1] = boards.frames, now_s
        elif modes(boards) == [11, 11, 11, 11] and not silent_s:
            silent_s.append(now_s - seen[1])

    process = processes.python(
        *ARGS, "-p", f"device:={boards.device}", "-p", "watchdog_ms:=22.0", "-p", "enable_at_start:=true"
    )
    wait_for(lambda: modes(boards) == [10, 10, 10, 10], 90.0)
    boards.on_step = watch
    process.kill()
    wait_for(lambda: bool(silent_s), 20.0)
    assert silent_s[0] <= 0.030


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("-p", "robot:=gantry9"), ["unknown robot 'gantry9'", "gantry4"]),
        (("-p", "transport:=usb"), ["transport", "fdcanusb"]),
        (("-p", "rate_hz:=5000.0"), ["rate_hz", "500"]),
        (("-p", "watchdogms:=20.0"), ["watchdogms", "watchdog_ms"]),
    ],
)
def test_wrong_parameters_are_one_line_and_no_motion(processes, arguments, words):
    process = processes.python(*ARGS, *arguments)
    _, err = process.communicate(timeout=90)
    assert process.returncode == 2
    assert all(word in err for word in words), err
    assert "Traceback" not in err
