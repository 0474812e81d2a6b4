"""Joining of latency stamps: what a stage took, who is to blame, and clocks that cannot be right."""

from __future__ import annotations

import signal
from typing import Any

import pytest

from tt_bringup.cli import _guarded
from tt_bringup.latency import STAGES, LatencyError, LatencyJoiner, parse_time_reference

MS = 1_000_000


def _ball(joiner: LatencyJoiner, capture_ns: int, ends_ms: dict[str, float]) -> None:
    for stage, end in ends_ms.items():
        joiner.add(stage, capture_ns, capture_ns + int(end * MS))


CHAIN = dict(zip(STAGES, (30.0, 30.5, 31.0, 32.0, 34.0, 34.5, 37.0), strict=True))


def test_each_stage_is_the_gap_to_the_stage_before_it() -> None:
    joiner = LatencyJoiner()
    _ball(joiner, 10**18, CHAIN)
    summary = joiner.summary()
    assert summary["arrived"]["median"] == pytest.approx(30.0)
    assert summary["planned"]["median"] == pytest.approx(2.0)
    assert summary["commanded"]["median"] == pytest.approx(2.5)
    assert summary["end_to_end"]["median"] == pytest.approx(37.0)
    assert summary["arrival_to_command"]["median"] == pytest.approx(7.0)


def test_order_of_arrival_does_not_matter() -> None:
    one, two = LatencyJoiner(), LatencyJoiner()
    _ball(one, 10**18, CHAIN)
    _ball(two, 10**18, dict(reversed(CHAIN.items())))
    assert one.summary() == two.summary()


def test_last_camera_and_first_bus_cycle_count() -> None:
    joiner = LatencyJoiner()
    capture = 10**18
    for camera, arrived in enumerate((30.0, 33.0, 31.0)):
        joiner.add("arrived", capture + camera * 20_000, capture + int(arrived * MS))  # triggers differ by µs
    for cycle in (40.0, 44.0, 48.0):
        joiner.add("commanded", capture, capture + int(cycle * MS))
    assert len(joiner) == 1
    assert joiner.summary()["arrival_to_command"]["max"] == pytest.approx(7.0)


def test_captures_without_a_stage_do_not_spoil_the_next_stage() -> None:
    joiner = LatencyJoiner()
    _ball(joiner, 10**18, CHAIN)
    _ball(
        joiner, 10**18 + 8 * MS, {"arrived": 30.0, "detected": 30.5, "estimated": 32.0}
    )  # `triangulated` lost
    assert joiner.summary()["estimated"]["count"] == 1


def test_graph_without_a_stage_measures_over_the_gap() -> None:
    joiner = LatencyJoiner()
    _ball(joiner, 10**18, {"arrived": 30.0, "estimated": 32.0})
    assert joiner.summary()["estimated"]["median"] == pytest.approx(2.0)


def test_percentiles_and_the_capture_of_the_worst() -> None:
    joiner = LatencyJoiner()
    for i in range(101):
        joiner.add("arrived", 10**18 + i * 8 * MS, 10**18 + i * 8 * MS + i * MS)
    row = joiner.summary()["arrived"]
    assert (row["median"], row["p95"], row["p99"], row["max"]) == pytest.approx((50.0, 95.0, 99.0, 100.0))
    assert row["max_capture_ns"] == 10**18 + 100 * 8 * MS
    assert joiner.summary(since_ns=10**18 + 90 * 8 * MS)["arrived"]["count"] == 11


def test_critical_path_names_the_slow_stage_and_outliers_link_to_it() -> None:
    joiner = LatencyJoiner()
    for i in range(20):
        _ball(joiner, 10**18 + i * 8 * MS, CHAIN)
    slow = 10**18 + 30 * 8 * MS
    _ball(joiner, slow, {**CHAIN, "planned": 64.0, "trajectory": 64.5, "commanded": 67.0})
    capture, total_ms, stage, took_ms = joiner.outliers(1)[0]
    assert (capture, stage) == (slow, "planned")
    assert (total_ms, took_ms) == pytest.approx((67.0, 32.0))
    assert [step.stage for step in joiner.critical_path(slow)] == list(STAGES)
    with pytest.raises(LatencyError, match="nearest"):
        joiner.critical_path(slow + 5 * MS)


@pytest.mark.parametrize("age_ms", [-3.0, 86_400_000.0])
def test_implausible_clock_is_reported_and_left_out(age_ms: float) -> None:
    joiner = LatencyJoiner()
    _ball(joiner, 10**18, CHAIN)
    joiner.add("arrived", 10**18 + 8 * MS, 10**18 + 8 * MS + int(age_ms * MS))
    assert joiner.summary()["arrived"]["count"] == 1
    (text,) = joiner.warnings()
    assert "clock implausible" in text and "arrived" in text


def test_node_on_another_clock_is_reported() -> None:
    joiner = LatencyJoiner()
    _ball(joiner, 10**18, {**CHAIN, "planned": 12.0})
    assert any("another clock" in text for text in joiner.warnings())


def test_a_single_late_stamp_is_no_other_clock() -> None:
    joiner = LatencyJoiner()
    for k in range(1000):
        _ball(joiner, 10**18 + k * 8 * MS, {**CHAIN, "detected": 40.0} if k == 500 else CHAIN)
    assert joiner.warnings() == []


def test_memory_is_bounded_and_keeps_the_newest() -> None:
    joiner = LatencyJoiner(max_captures=100)
    for i in range(1000):
        joiner.add("arrived", 10**18 + i * 8 * MS, 10**18 + i * 8 * MS + MS)
    assert len(joiner) <= 100
    assert joiner.critical_path(10**18 + 999 * 8 * MS)


def test_raw_message_is_read_as_ros_wrote_it() -> None:
    rclpy = pytest.importorskip("rclpy.serialization", reason="needs ROS 2 or its wheels")
    from builtin_interfaces.msg import Time
    from sensor_msgs.msg import TimeReference

    for node in ("n", "node", "camera_node_left"):
        message = TimeReference()
        message.header.stamp = Time(sec=1_800_000_000, nanosec=999_999_999)
        message.header.frame_id = node
        message.time_ref = Time(sec=1_800_000_001, nanosec=5)
        message.source = "estimated"
        stamp = parse_time_reference(rclpy.serialize_message(message))
        assert (stamp.stage, stamp.node) == ("estimated", node)
        assert stamp.capture_ns == 1_800_000_000_999_999_999
        assert stamp.finished_ns - stamp.capture_ns == 6
    with pytest.raises(LatencyError, match="TimeReference"):
        parse_time_reference(b"\x00\x01\x00\x00abc")


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["B", "--picture", "x.foo"], "must end in one of .png, .svg, .pdf"),
        (["B", "--picture", ""], "--picture is empty"),
        ([""], "an argument is empty"),
        (["--live", "--seconds", "inf"], "--seconds"),
    ],
)
def test_what_makes_no_sense_is_one_line(capsys: pytest.CaptureFixture, words: list[str], text: str) -> None:
    assert _guarded(["latency", *words]) == 2
    err = capsys.readouterr().err.strip()
    assert text in err and len(err.splitlines()) == 1


@pytest.mark.parametrize("sign", [signal.SIGTERM, signal.SIGINT])
def test_listening_ends_quietly(processes: Any, sign: signal.Signals) -> None:
    code = (
        "import threading, rclpy, tt_bringup.cli as cli; make = rclpy.create_node\n"
        "def told(*a, **k):\n    node = make(*a, **k); threading.Timer(0.5, print, ['up'], {'flush': True}).start()\n"
        "    return node\n"
        "rclpy.create_node = told; cli.main(['latency', '--live', '--seconds', '60'])"
    )
    process = processes.python("-c", code)
    assert process.stdout.readline().strip() == "up"
    process.send_signal(sign)
    out, err = process.communicate(timeout=20.0)
    assert (process.returncode, out, err) == (130, "", "")
