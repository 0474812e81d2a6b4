"""Replay into the live graph and through the pipeline; bags that do not fit are refused with one line."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import golden
import pytest
import rclpy
from nav_msgs.msg import Odometry
from rclpy.executors import SingleThreadedExecutor
from rclpy.serialization import deserialize_message, serialize_message
from rosgraph_msgs.msg import Clock
from sensor_msgs.msg import JointState, PointCloud2
from test_bags import write

from tt_bringup.bags import open_bag
from tt_bringup.cli import _guarded
from tt_bringup.node_kit.node import qos_profile
from tt_bringup.record import RecordedTopic, save_messages
from tt_bringup.topics import Qos


class Listener:
    """Collects what is played, with a queue deep enough to lose nothing."""

    def __init__(self, topics: dict[str, Any]) -> None:
        rclpy.init(args=[])
        self.node = rclpy.create_node("listener")
        self.got: list[tuple[str, Any]] = []
        for name, kind in topics.items():
            profile = qos_profile(Qos.SENSOR)
            profile.depth = 2000
            raw = kind is not Clock
            self.node.create_subscription(
                kind, name, lambda m, n=name: self.got.append((n, m)), profile, raw=raw
            )
        self._executor = SingleThreadedExecutor()
        self._executor.add_node(self.node)

    def until_ended(self, process: Any, cap_s: float = 40.0) -> str:
        """Listens until the process has ended; its standard output."""
        import threading

        out: list[str] = []
        thread = threading.Thread(target=lambda: out.extend(process.communicate(timeout=cap_s)))
        thread.start()
        while thread.is_alive():
            self._executor.spin_once(timeout_sec=0.05)
        for _ in range(50):
            self._executor.spin_once(timeout_sec=0.01)
        assert process.returncode == 0, out[1]
        return out[0]

    def close(self) -> None:
        self.node.destroy_node()
        rclpy.try_shutdown()


@pytest.fixture
def listen() -> Any:
    made: list[Listener] = []

    def make(topics: dict[str, Any]) -> Listener:
        made.append(Listener(topics))
        return made[-1]

    yield make
    for listener in made:
        listener.close()


def test_live_replay_is_byte_identical_and_runs_the_clock(processes: Any, listen: Any) -> None:
    topics = {f"/tt/cam{i}/detections": PointCloud2 for i in range(4)}
    listener = listen({**topics, "/joint_states": JointState, "/clock": Clock})
    out = listener.until_ended(
        processes.python("-m", "tt_bringup.cli", "replay", str(golden.BAG), "--rate", "0.5", "--json")
    )
    bag = open_bag(golden.BAG)
    for name in topics:
        expected = [m.raw for m in bag.messages([name])]
        got = [raw for topic, raw in listener.got if topic == name]
        # The middleware pads messages to a multiple of four bytes.
        assert [g[: len(e)] for g, e in zip(got, expected, strict=True)] == expected
        assert json.loads(out)["played"][name] == len(expected)
    clock = [m.clock.sec * 1_000_000_000 + m.clock.nanosec for name, m in listener.got if name == "/clock"]
    assert len(clock) > 500 and all(b > a for a, b in zip(clock, clock[1:], strict=False))
    assert bag.start_ns <= clock[0] and clock[-1] <= bag.end_ns


@pytest.mark.slow
def test_the_stages_run_beside_it_when_asked(processes: Any, listen: Any) -> None:
    listener = listen({"/tt/ball/state": Odometry})
    words = ("replay", str(golden.BAG), "--nodes", "--rate", "0.5", "--json")
    process = processes.python("-m", "tt_bringup.cli", *words)
    played = json.loads(listener.until_ended(process, 400.0))  # the first start compiles
    assert played["nobody_listened"] == []
    stamps = [deserialize_message(raw, Odometry).header.stamp for _, raw in listener.got]
    recorded = {stamp for _, stamp, _ in open_bag(golden.BAG).messages(["/tt/ball/state"])}
    assert len(stamps) > 0.2 * len(recorded)  # a busy computer loses some
    began = open_bag(golden.BAG).start_ns // 10**9
    assert all(began <= stamp.sec <= began + 2 for stamp in stamps), "states carry the time of the recording"


def test_nodes_need_detections_of_one_robot(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    golden_rows = list(open_bag(golden.BAG).messages(["/tt/cam0/detections", "/joint_states"]))
    cloud, joints = "sensor_msgs/msg/PointCloud2", "sensor_msgs/msg/JointState"

    def complaint(names: list[str], *words: str) -> str:
        kinds = {name: cloud if name.endswith("detections") else joints for name in names}
        rows = [
            (name, stamp, raw)
            for source, stamp, raw in golden_rows
            for name in names
            if kinds[name] == (joints if source == "/joint_states" else cloud)
        ]
        path = tmp_path / str(len(list(tmp_path.iterdir())))
        save_messages(path, [RecordedTopic(name, kind) for name, kind in kinds.items()], rows)
        assert _guarded(["replay", str(path), "--nodes", *words]) == 2
        return capsys.readouterr().err

    assert "no detections for the nodes" in complaint(["/joint_states"])
    both = ["/left/cam0/detections", "/right/cam0/detections"]
    assert "several robots; choose with --namespace: left, right" in complaint(both)
    assert "no detections there; choose with --namespace: left" in complaint(both[:1], "--namespace", "tt")


def test_only_inputs_are_played_unless_asked_otherwise(processes: Any) -> None:
    words = ("-m", "tt_bringup.cli", "replay", str(golden.BAG), "--rate", "50", "--wait", "0", "--json")
    some = ("--topics", "ball/state,/joint_states")
    started = [processes.python(*words, *more) for more in ((), ("--all",), some)]
    played = [set(json.loads(p.communicate(timeout=40.0)[0])["played"]) for p in started]
    assert played[0] == {"/joint_states", *(f"/tt/cam{i}/detections" for i in range(4))}
    assert played[1] == set(open_bag(golden.BAG).types)
    assert played[2] == {"/tt/ball/state", "/joint_states"}


def test_window_remap_and_loop(processes: Any, listen: Any) -> None:
    listener = listen({"/other/joints": JointState})
    process = processes.python(
        "-m", "tt_bringup.cli", "replay", str(golden.BAG), "--topics", "/joint_states", "--remap",
        "/joint_states:=/other/joints", "--start", "0.2", "--stop", "0.5", "--rate", "4", "--loop", "--json",
    )  # fmt: skip
    inside = [
        m.raw for m in open_bag(golden.BAG).messages(["/joint_states"])
        if 0.2 <= (m.stamp_ns - open_bag(golden.BAG).start_ns) * 1e-9 <= 0.5
    ]  # fmt: skip
    while len(listener.got) < 3 * len(inside):
        listener._executor.spin_once(timeout_sec=1.0)
    process.send_signal(signal.SIGINT)
    listener.until_ended(process)
    got = [raw for _, raw in listener.got][: 3 * len(inside)]
    assert got == inside * 3


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--robot", "gantry9"], "unknown robot"),
        (["--robot", "gantry5"], "recording of another robot"),
        (["--cameras", "none.yaml"], "none.yaml"),
        (["--model", "golf"], "golf"),
        (["--namespace", "left"], "cannot be replayed"),
    ],
)
def test_what_does_not_fit_is_one_line(capsys: pytest.CaptureFixture, words: list[str], text: str) -> None:
    assert _guarded(["replay", str(golden.BAG), "--offline", *words]) == 2
    err = capsys.readouterr().err.strip()
    assert text in err and len(err.splitlines()) == 1


def test_live_replay_of_what_is_not_there_is_one_line(processes: Any) -> None:
    started = []
    for words, text in (
        (["--topics", "/nope"], "has no topic /nope"),
        (["--remap", "joint_states"], "is not of the form"),
        (["--start", "99"], "has nothing between"),
        (["--start", "nan"], "--start"),
        (["--stop", "1e300"], "--stop"),
        (["--topics", ",,,"], "names no topic"),
        (["--topics", ""], "--topics is empty"),
        (["--remap", "/joint_states:=/"], "'/joint_states:=/'"),
        (["--remap", "/joint_states:=/ü b"], "/ü b"),
    ):
        words = ["-m", "tt_bringup.cli", "replay", str(golden.BAG), "--wait", "0", *words]
        started.append((processes.python(*words), text))
    for process, text in started:
        _, err = process.communicate(timeout=40.0)
        assert process.returncode == 2 and text in err.strip().splitlines()[-1] and "Traceback" not in err


def test_bytes_that_are_no_message_are_not_played(tmp_path: Path, processes: Any) -> None:
    topic = RecordedTopic("/joint_states", "sensor_msgs/msg/JointState")
    rows = [
        (topic.name, k, raw) for k, raw in enumerate((bytes(serialize_message(JointState())), b"\x28garbage"))
    ]
    save_messages(tmp_path / "bag", [topic], rows)
    words = ("-m", "tt_bringup.cli", "replay", str(tmp_path / "bag"), "--wait", "0", "--json")
    out, _ = processes.python(*words).communicate(timeout=40.0)
    assert json.loads(out)["played"] == {topic.name: 1}


def test_the_first_replay_says_that_it_compiles(tmp_path: Path) -> None:
    """In a process of its own, whose cache is empty; one small kernel stands for all."""
    code = (
        "import numba\n"
        "from tt_bringup.commands.replay import _saying_compilation\n"
        "with _saying_compilation():\n"
        "    [numba.njit(cache=False)(f)(1) for f in (lambda x: x, lambda x: x + 1)]\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60.0, check=True
    )
    assert ran.stderr.count("compiling the kernels") == 1


def test_wrong_frame_is_said(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    from geometry_msgs.msg import PoseWithCovarianceStamped

    message = PoseWithCovarianceStamped()
    message.header.frame_id = "map"
    topic = RecordedTopic("/tt/ball/position", "geometry_msgs/msg/PoseWithCovarianceStamped")
    save_messages(tmp_path / "bag", [topic], [(topic.name, 1, bytes(serialize_message(message)))])
    assert _guarded(["replay", str(tmp_path / "bag"), "--offline"]) == 2
    assert "frame 'map'" in capsys.readouterr().err


def test_nothing_to_play(tmp_path: Path, processes: Any) -> None:
    path = write(tmp_path / "bag", [("/a", 1)])
    process = processes.python("-m", "tt_bringup.cli", "replay", str(path))
    _, err = process.communicate(timeout=20.0)
    assert process.returncode == 2 and "all_topics plays what it has" in err


def test_unknown_types_are_skipped_and_listed(tmp_path: Path, processes: Any) -> None:
    path = write(tmp_path / "bag", [("/a", 1)], kind="my_msgs/msg/Thing")
    process = processes.python("-m", "tt_bringup.cli", "replay", str(path), "--all")
    _, err = process.communicate(timeout=20.0)
    assert process.returncode == 2 and "Traceback" not in err


@pytest.fixture(scope="module")
def fresh_bag(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The golden rally as the stages of today play it."""
    path = tmp_path_factory.mktemp("fresh") / "rally"
    golden.write_bag(path)
    return path


def test_check_tells_a_changed_recording(
    tmp_path: Path, fresh_bag: Path, capsys: pytest.CaptureFixture
) -> None:
    """A position moved by a millimetre in the recording must be noticed, and be found by its stamp."""
    from geometry_msgs.msg import PoseWithCovarianceStamped
    from rclpy.serialization import deserialize_message

    bag = open_bag(fresh_bag)
    rows, changed = [], 0
    for topic, stamp_ns, raw in bag.messages():
        if topic == "/tt/ball/position" and stamp_ns > bag.start_ns + 500_000_000 and not changed:
            message = deserialize_message(raw, PoseWithCovarianceStamped)
            message.pose.pose.position.x += 0.001
            changed = message.header.stamp.sec * 1_000_000_000 + message.header.stamp.nanosec
            raw = bytes(serialize_message(message))
        rows.append((topic, stamp_ns, raw))
    save_messages(tmp_path / "bag", [RecordedTopic(name, kind) for name, kind in bag.types.items()], rows)
    assert (
        _guarded(["replay", str(fresh_bag), "--offline", "--check", "--tolerance", "1e-9"]) == 0
    )  # times on the wire are whole nanoseconds
    capsys.readouterr()
    assert _guarded(["replay", str(tmp_path / "bag"), "--offline", "--check", "--tolerance", "1e-4"]) == 1
    captured = capsys.readouterr()
    assert "ball/position" in captured.err and f"0.001 m at {changed}" in captured.out
