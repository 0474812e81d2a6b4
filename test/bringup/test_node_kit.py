"""Real node processes: how they start, what they refuse, and that their clean-up always runs."""

from __future__ import annotations

import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import rclpy
from diagnostic_msgs.msg import DiagnosticArray
from geometry_msgs.msg import PoseWithCovarianceStamped
from rcl_interfaces.srv import SetParameters
from rclpy.executors import SingleThreadedExecutor
from rclpy.node import Node
from rclpy.parameter import Parameter
from rclpy.qos import qos_profile_sensor_data
from sensor_msgs.msg import TimeReference

from tt_bringup.node_kit.services import ServiceCalls, wait_with

NODE = str(Path(__file__).with_name("example_node.py"))
ENDED_BY_SIGNAL = pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
pytestmark = pytest.mark.ros


def read_until(process: subprocess.Popen[str], word: str) -> str:
    """Reads lines of stdout until one holds the word."""
    assert process.stdout is not None
    for line in process.stdout:
        if word in line:
            return line
    raise AssertionError(f"{word!r} never came; stderr: {process.stderr and process.stderr.read()}")


def finish(process: subprocess.Popen[str]) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=15)
    return process.returncode, out, err


class Peer:
    """A node in the test process that looks at the node under test."""

    def __init__(self) -> None:
        self.node = Node("peer", namespace="tt")
        self.executor = SingleThreadedExecutor()
        self.executor.add_node(self.node)

    def spin_once(self) -> bool:
        self.executor.spin_once(timeout_sec=0.05)
        return True


@pytest.fixture
def peer() -> Iterator[Peer]:
    rclpy.init()
    yield Peer()
    rclpy.try_shutdown()


@ENDED_BY_SIGNAL
@pytest.mark.parametrize("kind", ["node", "both"])
def test_clean_up_runs_after_a_signal(processes, number, kind):
    process = processes.python(NODE, EXAMPLE_KIND=kind)
    read_until(process, "params" if kind == "node" else "activated")
    process.send_signal(number)
    code, out, _ = finish(process)
    assert code == 0
    assert "cleaned up example_node" in out
    assert ("cleaned up motor_node" in out) == (kind == "both")


def test_clean_up_runs_after_a_failed_start(processes):
    code, out, err = finish(processes.python(NODE, EXAMPLE_FAILS="start"))
    assert code == 2
    assert "cleaned up example_node" in out
    assert err.strip() == "example_node.py: the device is on fire; use another one"


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("name", "Invalid topic name: topic name must not contain repeated '/': '//ball'"),
        ("parameter", "Invalid parameter value (inf) for parameter"),
        ("value", "could not convert string to float: 'wide'"),
        ("file", "File name too long"),
    ],
)
def test_what_ros_or_the_system_refuse_at_the_start_is_one_line(processes, kind, words):
    code, out, err = finish(processes.python(NODE, EXAMPLE_FAILS=kind))
    assert code == 2 and "cleaned up example_node" in out
    assert err.count("\n") == 1 and err.startswith("example_node.py: ") and words in err


def test_a_node_may_end_its_process(processes):
    code, out, err = finish(processes.python(NODE, EXAMPLE_FAILS="end"))
    assert (code, err) == (0, "") and "cleaned up example_node" in out
    code, out, _ = finish(processes.python(NODE, EXAMPLE_FAILS="shutdown"))
    assert code == 0 and "cleaned up example_node" in out


def test_an_error_of_the_clean_up_is_one_line(processes):
    process = processes.python(NODE, EXAMPLE_FAILS="late")
    read_until(process, "params")
    process.send_signal(signal.SIGTERM)
    code, _, err = finish(process)
    assert (code, err) == (1, "example_node.py: the last word was not written\n")


def test_a_failing_clean_up_does_not_stop_the_others(processes):
    process = processes.python(NODE, EXAMPLE_KIND="both", EXAMPLE_FAILS="cleanup")
    read_until(process, "activated")
    process.send_signal(signal.SIGTERM)
    code, out, err = finish(process)
    assert code == 1
    assert "cleaned up motor_node" in out and "cleaned up example_node" in out
    assert "clean-up has a bug" in err


def test_clean_up_runs_after_an_exception_in_a_callback(processes, peer, wait_for):
    process = processes.python(NODE, EXAMPLE_FAILS="callback")
    read_until(process, "params")
    publisher = peer.node.create_publisher(
        PoseWithCovarianceStamped, "ball/position", qos_profile_sensor_data
    )

    def has_ended() -> bool:
        # Best effort, and the other side may not know us yet: a single message may get lost.
        publisher.publish(PoseWithCovarianceStamped())
        peer.spin_once()
        return process.poll() is not None

    wait_for(has_ended)
    code, out, err = finish(process)
    assert code == 1
    assert "cleaned up example_node" in out
    assert "RuntimeError: a bug" in err


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ("gat:=0.5", "'gat' is no parameter of example_node; did you mean 'gate'?"),
        ("gate:=2.0", "example_node: parameter gate is 2.0, but must be >= 0 and <= 1"),
        ("gate:=.nan", "example_node: parameter gate is nan, but must be >= 0 and <= 1"),
        ("gate:=wide", "example_node: parameter gate is 'wide', but must be a number"),
        ("count:=2.5", "example_node: parameter count is 2.5, but must be a whole number"),
        ("count:=0", "example_node: parameter count is 0 balls, but must be >= 1 and <= 9 balls"),
        ("loud:=1", "example_node: parameter loud is 1, but must be true or false"),
        ("model:=matsch", "example_node: parameter model is 'matsch', but must be one of nominal, match"),
        ("cameras:=cam0", "example_node: parameter cameras is 'cam0', but must be a list of str"),
        ("offsets:=[a, b]", "example_node: parameter offsets is 'a', but must be a number"),
    ],
)
def test_wrong_parameters_are_one_clear_line(processes, given, sentence):
    code, _, err = finish(processes.python(NODE, "--ros-args", "-p", given))
    assert code == 2
    assert err.strip() == f"example_node.py: {sentence}"


def test_parameters_come_from_a_file(processes, tmp_path):
    file = tmp_path / "params.yaml"
    file.write_text("/**/example_node:\n  ros__parameters: {gate: 1, cameras: [a, b], offsets: [1.0, 2.5]}\n")
    process = processes.python(NODE, "--ros-args", "--params-file", str(file))
    line = read_until(process, "params")
    assert "gate=1.0" in line and "cameras=('a', 'b')" in line and "offsets=(1.0, 2.5)" in line


def test_a_parameter_for_all_nodes_must_mean_something_to_one_of_them(processes, tmp_path):
    file = tmp_path / "params.yaml"
    file.write_text("/**:\n  ros__parameters: {robot: gantry4, gate: 0.25}\n")
    process = processes.python(NODE, "--ros-args", "--params-file", str(file))
    assert "gate=0.25" in read_until(process, "params")
    file.write_text("/**:\n  ros__parameters: {robott: gantry4}\n")
    code, _, err = finish(processes.python(NODE, "--ros-args", "--params-file", str(file)))
    assert code == 2 and "'robott' is no parameter of example_node" in err


def test_a_missing_parameter_file_is_one_clear_line(processes):
    code, _, err = finish(processes.python(NODE, "--ros-args", "--params-file", "nowhere.yaml"))
    assert code == 2
    assert "Traceback" not in err and "nowhere.yaml" in err


def test_live_parameters_change_and_others_are_refused(processes, peer):
    read_until(processes.python(NODE), "params")
    services = ServiceCalls(peer.node, wait_with(peer.spin_once))

    def set_to(name, value):
        request = SetParameters.Request(parameters=[Parameter(name, value=value).to_parameter_msg()])
        return services.call("example_node/set_parameters", 20.0, request, SetParameters).results[0]

    assert set_to("gate", 0.75).successful
    assert "bad luck" in set_to("gate", 0.13).reason
    assert not set_to("gate", 7.0).successful
    assert not set_to("count", 4).successful


def test_health_counters_and_latency_stamps_are_published(processes, peer, wait_for):
    read_until(processes.python(NODE), "params")
    diagnostics, stamps = [], []
    peer.node.create_subscription(DiagnosticArray, "/diagnostics", diagnostics.append, 10)
    peer.node.create_subscription(TimeReference, "latency", stamps.append, qos_profile_sensor_data)
    publisher = peer.node.create_publisher(
        PoseWithCovarianceStamped, "ball/position", qos_profile_sensor_data
    )

    def stamped():
        publisher.publish(PoseWithCovarianceStamped())
        return peer.spin_once() and bool(stamps)

    wait_for(stamped)
    assert (stamps[0].source, stamps[0].header.frame_id) == ("estimated", "example_node")
    assert stamps[0].header.stamp.nanosec == 123
    wait_for(lambda: peer.spin_once() and bool(diagnostics))
    status = diagnostics[0].status[0]
    assert (status.name, status.level, status.message) == ("/tt/example_node", b"\x01", "one thing is odd")
    assert {value.key: value.value for value in status.values}["starts"] == "1"


def test_lifecycle_node_starts_by_itself_or_says_why_not(processes):
    process = processes.python(NODE, EXAMPLE_KIND="lifecycle")
    read_until(process, "activated")
    process.send_signal(signal.SIGINT)
    assert "cleaned up motor_node" in finish(process)[1]
    code, out, err = finish(processes.python(NODE, EXAMPLE_KIND="lifecycle", EXAMPLE_FAILS="configure"))
    assert code == 2 and "cleaned up motor_node" in out
    assert err.strip().splitlines()[-1] == (
        "example_node.py: motor_node could not be configured: "
        "no motor answers on the bus; switch the power on"
    )
