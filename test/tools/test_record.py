"""Recording: nothing lost, bounded, closed in order, readable after a crash."""

from __future__ import annotations

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tt_bringup.bags import open_bag
from tt_bringup.record import BagRecorder, RecordedTopic, RecordError, SnapshotBuffer, file_checksums
from tt_bringup.record_path import MIN_FREE_BYTES

HERE = Path(__file__).parent
STATE = RecordedTopic("/tt/ball/state", "nav_msgs/msg/Odometry", reliable=False)
LATCHED = RecordedTopic("/tt/robot_description", "std_msgs/msg/String", latched=True)


def _first_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline()


def test_nothing_is_lost_at_2000_messages_per_second(processes: Any, tmp_path: Path) -> None:
    bag = tmp_path / "bag"
    recorder = processes.python("-m", "tt_bringup.cli", "record", str(bag), "--json")
    publisher = processes.python(str(HERE / "publisher.py"), "2000", "2.5")
    assert int(_first_line(publisher)) == 5000
    _until(lambda: "publisher" in (bag / "recording.json").read_text(), 12.0)
    recorder.send_signal(signal.SIGTERM)
    out, err = recorder.communicate(timeout=20.0)
    assert recorder.returncode == 0, err
    summary = json.loads(out)
    counts = {topic: n for topic, n in summary["topics"].items() if topic != "/diagnostics"}
    assert sum(counts.values()) == 5000 and summary["dropped"] == 0
    opened = open_bag(bag)
    assert opened.damage == "" and opened.counts["/tt/latency"] == 1667
    assert opened.parameters()["/tt/publisher"]["gain"] == 0.25
    assert opened.custom["tt_version"] and opened.custom["namespace"] == "/tt"
    numbers = [m.header.stamp.nanosec for _, _, m in opened.decoded(["/tt/latency"])]
    assert numbers == list(range(0, 5000, 3))


def test_metadata_is_what_ros2_bag_reads(tmp_path: Path) -> None:
    recorder = BagRecorder(tmp_path / "bag", {"git_commit": "abc"})
    recorder.add_topic(STATE)
    recorder.put(STATE.name, 5, _odometry())
    recorder.close()
    info = yaml.safe_load((tmp_path / "bag" / "metadata.yaml").read_text())["rosbag2_bagfile_information"]
    assert info["version"] == 9 and info["storage_identifier"] == "mcap" and info["message_count"] == 1
    topic = info["topics_with_message_count"][0]["topic_metadata"]
    assert topic["type_description_hash"].startswith("RIHS01_")
    assert topic["offered_qos_profiles"][0]["reliability"] == "best_effort"
    assert info["custom_data"]["git_commit"] == "abc"
    reader = pytest.importorskip("mcap_ros2.reader", reason="the mcap-ros2-support reader is not installed")
    (message,) = reader.read_ros2_messages(str(tmp_path / "bag" / "bag.mcap"))
    assert message.channel.topic == STATE.name and message.ros_msg.pose.pose.position.x == 1.5


def _odometry() -> bytes:
    from nav_msgs.msg import Odometry
    from rclpy.serialization import serialize_message

    message = Odometry()
    message.pose.pose.position.x = 1.5
    return bytes(serialize_message(message))


def _until(condition: Callable[[], bool], cap_s: float = 10.0) -> None:
    end = time.monotonic() + cap_s
    while not condition():
        assert time.monotonic() < end, "waited too long"
        time.sleep(0.02)


def test_killed_recorder_leaves_all_but_the_last_second(tmp_path: Path) -> None:
    code = (
        "import sys, time; from tt_bringup.record import *; "
        "r = BagRecorder(sys.argv[1]); r.add_topic(RecordedTopic('/tt/x', 'std_msgs/msg/String'));\n"
        "for i in range(10**6): r.put('/tt/x', i, b'\\0\\1\\0\\0\\2\\0\\0\\0a\\0'); time.sleep(0.002)"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(tmp_path / "bag")])
    try:
        file = tmp_path / "bag" / "bag.mcap"
        _until(lambda: file.is_file() and file.stat().st_size > 5000, 20.0)
    finally:
        process.kill()
        process.wait()
    bag = open_bag(tmp_path / "bag")
    assert "torn" in bag.damage and bag.message_count > 100
    assert [m.stamp_ns for m in bag.messages()] == list(range(bag.message_count))


def test_full_disk_ends_the_recording_but_keeps_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recorder = BagRecorder(tmp_path / "bag", min_free_bytes=1000)
    recorder.add_topic(STATE)
    recorder.put(STATE.name, 1, _odometry())
    usage = shutil.disk_usage(tmp_path)
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=10))
    _until(lambda: bool(recorder.stopped_by))
    summary = recorder.close()
    assert "free on the disk" in summary.stopped_by
    assert open_bag(tmp_path / "bag").counts == {STATE.name: 1}
    with pytest.raises(RecordError, match="make room"):
        BagRecorder(tmp_path / "other", min_free_bytes=1000)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("bag", "not overwritten"),
        (".", "not overwritten"),
        ("dangling", "not overwritten"),
        ("file/bag", "[Nn]ot a directory"),
        ("a" * 300, "file name too long"),
        ("a" * 253, "file name too long"),  # a folder may have it, the file inside may not
        ("new/" + "a" * 253, "file name too long"),
    ],
)
def test_places_where_no_bag_can_be_made_are_refused(tmp_path: Path, name: str, words: str) -> None:
    (tmp_path / "bag").mkdir()
    (tmp_path / "file").touch()
    (tmp_path / "dangling").symlink_to("nowhere")
    with pytest.raises(RecordError, match=words):
        BagRecorder(tmp_path / name)
    assert len(list(tmp_path.iterdir())) == 3, "and nothing is left there"


OVERFULL = """
import json, resource, sys
from pathlib import Path
from tt_bringup.record import BagRecorder, RecordedTopic
resource.setrlimit(resource.RLIMIT_FSIZE, (400_000, 400_000))
state = RecordedTopic("/tt/ball/state", "nav_msgs/msg/Odometry")
recorder = BagRecorder(sys.argv[1], {"tt_version": "test"}, min_free_bytes=0)
recorder.add_topic(state)
raw = bytes.fromhex(sys.argv[2])
number = 0
while not recorder.stopped_by:  # the writer lives in a thread of its own
    number += 1
    recorder.put(state.name, number, raw)
print(json.dumps(recorder.close().as_dict()))
"""


def test_when_the_system_writes_no_more_what_was_written_stays_readable(
    processes: Any, tmp_path: Path
) -> None:
    """A real refusal of the operating system: the file may not grow beyond 400 kB."""
    process = processes.python("-c", OVERFULL, str(tmp_path / "bag"), _odometry().hex())
    out, err = process.communicate(timeout=60.0)
    assert process.returncode == 0, err
    summary = json.loads(out)
    assert summary["stopped_by"] == "file too large" and "Traceback" not in err
    bag = open_bag(tmp_path / "bag")
    raws = [message.raw for message in bag.messages(["/tt/ball/state"])]
    assert len(raws) > 100 and set(raws) == {_odometry()}
    assert summary["messages"] == bag.message_count and summary["dropped"] > 0
    assert bag.damage, "the end is missing, and that is said"


def test_memory_is_bounded_and_what_is_dropped_is_counted(tmp_path: Path) -> None:
    recorder = BagRecorder(tmp_path / "bag", queue_bytes=10_000)
    recorder.add_topic(STATE)
    raw = _odometry()
    for number in range(1000):
        recorder.put(STATE.name, number, raw)
    summary = recorder.close()
    assert summary.dropped > 0 and summary.dropped + summary.messages == 1000


def test_unknown_type_is_refused_not_recorded(tmp_path: Path) -> None:
    recorder = BagRecorder(tmp_path / "bag")
    assert not recorder.add_topic(RecordedTopic("/x", "my_msgs/msg/Thing"))
    recorder.close()


def test_snapshot_keeps_the_last_seconds_and_latched_messages() -> None:
    buffer = SnapshotBuffer(seconds=2.0)
    buffer.add_topic(STATE)
    buffer.add_topic(LATCHED)
    buffer.put(LATCHED.name, 0, b"urdf")
    for tenth in range(100):
        buffer.put(STATE.name, tenth * 100_000_000, bytes(8))
    _, messages = buffer.contents()
    assert messages[0][0] == LATCHED.name
    assert [stamp for name, stamp, _ in messages if name == STATE.name][0] == 7_900_000_000
    assert buffer.bytes_held == 21 * 8
    small = SnapshotBuffer(seconds=1e6, max_bytes=80)
    small.add_topic(STATE)
    for number in range(100):
        small.put(STATE.name, number, bytes(8))
    assert small.bytes_held <= 80


def test_snapshot_is_saved_on_call(processes: Any, tmp_path: Path) -> None:
    import rclpy

    from tt_bringup.node_kit.services import ServiceCalls, wait_with

    recorder = processes.python(
        "-m", "tt_bringup.cli", "record", str(tmp_path / "shot"), "--snapshot", "30", "--json"
    )
    publisher = processes.python(str(HERE / "publisher.py"), "300", "1")
    assert int(_first_line(publisher)) == 300
    rclpy.init(args=[])
    try:
        node = rclpy.create_node("caller", namespace="tt")
        services = ServiceCalls(node, wait_with(lambda: rclpy.spin_once(node, timeout_sec=0.05)))
        # The last messages may still be on their way when the publisher is done: ask until they have arrived.
        saved, deadline = 0, time.monotonic() + 20.0
        while saved < 300 and time.monotonic() < deadline:
            answer = services.call("recorder/snapshot", 10.0)
            bags = sorted(tmp_path.glob("shot*/metadata.yaml"), key=lambda path: path.stat().st_mtime)
            if answer.success and bags:
                counts = open_bag(bags[-1].parent).counts
                saved = sum(n for topic, n in counts.items() if topic != "/diagnostics")
        node.destroy_node()
    finally:
        rclpy.try_shutdown()
    recorder.send_signal(signal.SIGINT)
    out, _ = recorder.communicate(timeout=20.0)
    bag = open_bag(json.loads(out)["snapshots"][-1])
    assert sum(n for topic, n in bag.counts.items() if topic != "/diagnostics") == 300
    assert bag.custom["snapshot_reason"] == "asked for"


def test_snapshot_is_saved_when_a_node_reports_an_error(processes: Any, tmp_path: Path) -> None:
    import rclpy
    from diagnostic_msgs.msg import DiagnosticArray, DiagnosticStatus

    recorder = processes.python(
        "-m", "tt_bringup.cli", "record", str(tmp_path / "shot"), "--snapshot", "30", "--json"
    )
    rclpy.init(args=[])
    try:
        node = rclpy.create_node("broken", namespace="tt")
        publisher = node.create_publisher(DiagnosticArray, "/diagnostics", 10)
        status = DiagnosticStatus(level=DiagnosticStatus.ERROR, name="/tt/broken", message="motor 3 is hot")

        def saved() -> bool:
            publisher.publish(DiagnosticArray(status=[status]))
            rclpy.spin_once(node, timeout_sec=0.1)
            return any(tmp_path.glob("shot*/metadata.yaml"))

        _until(saved, 30.0)
        node.destroy_node()
    finally:
        rclpy.try_shutdown()
    recorder.send_signal(signal.SIGINT)
    out, _ = recorder.communicate(timeout=20.0)
    assert recorder.returncode == 0
    (shot,) = json.loads(out)["snapshots"]
    bag = open_bag(shot)
    assert bag.custom["snapshot_reason"] == "/tt/broken: motor 3 is hot"
    assert bag.counts["/diagnostics"] >= 1, "and the report itself is in it"


def test_nothing_published_is_an_error(processes: Any, tmp_path: Path) -> None:
    recorder = processes.python("-m", "tt_bringup.cli", "record", str(tmp_path / "b"), "--duration", "4", "--json",
                                ROS_DOMAIN_ID=str((int(os.environ["ROS_DOMAIN_ID"]) + 17) % 100))  # fmt: skip
    out, err = recorder.communicate(timeout=20.0)
    assert recorder.returncode == 1 and "is `tt sim` or `tt robot` running" in err
    assert "Traceback" not in err and "FATAL" not in err, "it may end while something else is due"
    assert open_bag(tmp_path / "b").counts["/diagnostics"] == json.loads(out)["messages"] > 0


@pytest.mark.parametrize("given", [["--namespace", ""], ["--namespace", "/"], ["--namespace", "ü"],
                                   ["--duration", "inf"], ["--snapshot", "601"]])  # fmt: skip
def test_wrong_options_are_one_line_and_leave_nothing(
    processes: Any, tmp_path: Path, given: list[str]
) -> None:
    recorder = processes.python("-m", "tt_bringup.cli", "record", str(tmp_path / "b"), *given)
    out, err = recorder.communicate(timeout=20.0)
    assert (recorder.returncode, out, err.count("\n")) == (2, "", 1) and given[0][2:] in err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("after_s", [0.2, 0.6, 1.0, 1.4, 1.8])
def test_an_interrupted_start_leaves_no_half_made_bag(processes: Any, tmp_path: Path, after_s: float) -> None:
    bag = tmp_path / "b"
    recorder = processes.python("-m", "tt_bringup.record_node", "--ros-args", "-p", f"bag:={bag}")
    time.sleep(after_s)
    recorder.send_signal(signal.SIGTERM)
    recorder.communicate(timeout=20.0)
    assert not bag.exists() or (bag / "metadata.yaml").is_file()


def test_a_recording_that_ended_early_is_an_error(processes: Any, tmp_path: Path) -> None:
    code = (
        "import resource, sys; from tt_bringup.record_node import main; "
        "resource.setrlimit(resource.RLIMIT_FSIZE, (3000, 3000)); main()"
    )
    recorder = processes.python("-c", code, "--ros-args", "-p", f"bag:={tmp_path / 'b'}")
    _, err = recorder.communicate(timeout=20.0)  # its own diagnostics fill the file
    assert recorder.returncode == 1 and "Traceback" not in err
    assert "the recording ended early: file too large" in err.splitlines()[-1]


@pytest.fixture
def snapshots(tmp_path: Path) -> Iterator[Any]:
    """A recorder of snapshots that holds one message."""
    import rclpy
    from rclpy.parameter import Parameter

    from tt_bringup.node_kit.node import started_nodes
    from tt_bringup.record_node import RecorderNode

    for name in ("shot_004", "shot_012", "shot_x", "other_099"):
        (tmp_path / name).mkdir()
    rclpy.init(args=[])
    values = {"bag": str(tmp_path / "shot"), "snapshot_s": 9.0}
    node = RecorderNode(parameter_overrides=[Parameter(name, value=value) for name, value in values.items()])
    node.begin()
    node._sink.add_topic(STATE)
    node._sink.put(STATE.name, 1, _odometry())
    yield node
    started_nodes.clear()
    node.destroy_node()
    rclpy.try_shutdown()


def test_snapshots_go_on_behind_those_of_earlier_recorders(snapshots: Any, tmp_path: Path) -> None:
    assert snapshots._save_snapshot("once") == (True, str(tmp_path / "shot_013"))
    snapshots._saving.join()
    assert snapshots._save_snapshot("twice") == (True, str(tmp_path / "shot_014"))
    snapshots.cleanup()
    assert snapshots.snapshots == [str(tmp_path / "shot_013"), str(tmp_path / "shot_014")]
    assert all(open_bag(path).counts == {STATE.name: 1} for path in snapshots.snapshots)


def test_a_snapshot_for_which_there_is_no_room_is_refused(
    snapshots: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)
    # Enough for a recording to begin, but not for what the snapshot holds.
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage._replace(free=MIN_FREE_BYTES + 10))
    saved, why = snapshots._save_snapshot("asked for")
    assert not saved and "make room" in why and not (tmp_path / "shot_013").exists()
    with pytest.raises(RecordError, match="make room"):
        snapshots.cleanup()
    assert snapshots.snapshots == []


def test_a_snapshot_that_fails_on_the_way_is_told(snapshots: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise OSError(errno.ENOSPC, "no space")

    monkeypatch.setattr("rosbags.rosbag2.storage_mcap.McapWriter.close_chunk", refuse)
    assert snapshots._save_snapshot("asked for")[0]
    with pytest.raises(RecordError, match="not complete: no space is left on the disk"):
        snapshots.cleanup()
    assert snapshots.snapshots == []


def test_checksums_of_files_that_parameters_name(tmp_path: Path) -> None:
    file = tmp_path / "cameras.yaml"
    file.write_text("x")
    sums = file_checksums({"/tt/a": {"cameras": str(file), "rate": 3.0, "other": "none.yaml"}})
    assert list(sums) == [str(file)] and len(sums[str(file)]) == 64
