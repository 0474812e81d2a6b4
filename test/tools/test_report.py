"""The report holds everything in one file; films can be opened again."""

from __future__ import annotations

import json
import re
import resource
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import golden
import numpy as np
import pytest

from tt_bringup.bags import open_bag
from tt_bringup.cli import _guarded
from tt_bringup.latency import LatencyJoiner
from tt_bringup.latency_report import draw_budget
from tt_bringup.rally import States, crossing, load_rally
from tt_bringup.report import ReportError, write_report
from tt_bringup.video import write_video
from tt_planning.robot import load_robot


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("report") / "r.html"
    assert (
        _guarded(["report", str(golden.BAG), "-o", str(path), "--video", str(path.with_suffix(".mp4"))]) == 0
    )
    return path


def test_page_needs_nothing_from_outside(report: Path) -> None:
    page = report.read_text()
    assert len(re.findall(r"src='data:image/png;base64,", page)) >= 3
    assert not re.findall(r"(?:src|href)\s*=\s*['\"]?(?!data:)[^'\" >]+", page)
    assert "ball 1" in page and "golden_rally" in page
    assert len(page) < 3_000_000


def test_page_says_what_it_is_about_and_describes_its_pictures(tmp_path: Path) -> None:
    bag = open_bag(golden.BAG)
    bag.custom["parameters"] = json.dumps({"/tt/hit_planner_node": {"robot": "gantry5"}})
    write_report(load_rally(bag), tmp_path / "r.html")
    page = (tmp_path / "r.html").read_text()
    day = time.strftime("%Y-%m-%d %H:%M", time.localtime(bag.start_ns * 1e-9))
    assert re.search(rf"<h1>golden_rally</h1><p class=muted>{day}.* s, \d+ messages, robot gantry5</p>", page)
    described = re.findall(r"<img alt='([^']+)'", page)
    assert len(described) == page.count("<img ") and "ball 1: unknown, stage by stage" in described


def test_film_can_be_played(report: Path) -> None:
    import cv2

    film = cv2.VideoCapture(str(report.with_suffix(".mp4")))
    count = int(film.get(cv2.CAP_PROP_FRAME_COUNT))
    assert count > 60
    film.set(cv2.CAP_PROP_POS_FRAMES, count // 2)
    good, frame = film.read()
    assert good
    blue, green, red = (frame[:, :, i].astype(int) for i in range(3))
    assert ((red > 200) & (green > 90) & (green < 170) & (blue < 80)).sum() > 20, "no ball in the picture"


def test_json_holds_the_figures(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert _guarded(["report", str(golden.BAG), "-o", str(tmp_path / "r.html"), "--json"]) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["balls"] == 1 and "latency stamps" in result["missing"]


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--ball", "99"], "there is no ball '99'"),
        (["-o", "/nowhere/r.html"], "cannot write /nowhere/r.html"),
        (["-o", "/dev/full"], "cannot write /dev/full: no space left"),
        (["--namespace", "nosuch"], "has no topics in namespace 'nosuch'; it has tt"),
        (["--robot", "nosuch"], "unknown robot"),
        (["--video", "x.foo"], "--video 'x.foo' must end in .mp4"),
    ],
)
def test_bad_wishes_are_one_line(
    tmp_path: Path, capsys: pytest.CaptureFixture, words: list, text: str
) -> None:
    where = [] if "-o" in words else ["-o", str(tmp_path / "r.html")]
    assert _guarded(["report", str(golden.BAG), *where, *words]) == 2
    err = capsys.readouterr().err
    assert text in err and len(err.strip().splitlines()) == 1
    assert not (tmp_path / "r.html").exists()


@pytest.fixture
def full_disk() -> Iterator[None]:
    """No file can grow beyond 20 kB."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, before[1]))
    yield
    resource.setrlimit(resource.RLIMIT_FSIZE, before)


@pytest.mark.usefixtures("full_disk")
@pytest.mark.parametrize("name", ["r.html", "r.mp4", "r.png"])
def test_a_full_disk_leaves_older_results_as_they_are(
    tmp_path: Path, capsys: pytest.CaptureFixture, name: str
) -> None:
    (tmp_path / name).write_text("old")
    if name == "r.mp4":
        rally = load_rally(open_bag(golden.BAG))
        with pytest.raises(ReportError, match="no space is left"):
            write_video(rally, rally.balls()[0], tmp_path / name, load_robot("gantry4").urdf)
    elif name == "r.html":
        assert _guarded(["report", str(golden.BAG), "-o", str(tmp_path / name)]) == 2
        assert "cannot write" in capsys.readouterr().err
    else:
        joiner = LatencyJoiner()
        joiner.add("arrived", 10**18, 10**18 + 1_000_000)
        with pytest.raises(OSError, match="r.png"):
            draw_budget(joiner, tmp_path / name)
    assert [(f.name, f.read_text()) for f in tmp_path.iterdir()] == [(name, "old")]


def page_about(status: Any, folder: Path) -> str:
    """The report on a bag that holds nothing but this status, twice."""
    from diagnostic_msgs.msg import DiagnosticArray
    from rclpy.serialization import serialize_message

    from tt_bringup.record import RecordedTopic, save_messages

    raw = bytes(serialize_message(DiagnosticArray(status=[status])))
    topic = RecordedTopic("/diagnostics", "diagnostic_msgs/msg/DiagnosticArray")
    save_messages(folder / "bag", [topic], [(topic.name, 1, raw), (topic.name, 2, raw)])
    assert _guarded(["report", str(folder / "bag"), "-o", str(folder / "r.html")]) == 0
    return (folder / "r.html").read_text()


def test_the_motor_loop_is_reported(tmp_path: Path) -> None:
    from diagnostic_msgs.msg import DiagnosticStatus, KeyValue

    from tt_control.loop_stats import LoopStats

    stats = LoopStats(0.004)
    stats.begin_run()
    for k in range(1000):
        stats.add(late_s=1e-4, period_s=4e-3, cycle_s=5e-4, work_s=7e-4, skipped=int(k == 500))
    values = [KeyValue(key=key, value=f"{value:.6g}") for key, value in stats.values().items()]
    page = page_about(DiagnosticStatus(hardware_id="motor_node", values=values), tmp_path)
    assert "1000 ticks, 1 lost, 0 losses of the adapter" in page
    assert "exchange with the boards</td><td>0.50" in page
    for name, text in (("run_late_p999_ms", "?</td>"), ("bus_losses", "? losses")):
        some = [item for item in values if item.key != name]
        other = page_about(DiagnosticStatus(hardware_id="motor_node", values=some), tmp_path / name)
        assert text in other, "a damaged recording lacks one of them"


def test_names_from_the_bag_cannot_inject_html(tmp_path: Path) -> None:
    from diagnostic_msgs.msg import DiagnosticStatus

    status = DiagnosticStatus(level=b"\x02", name="<script>alert(1)</script>", message="<b>hot</b>")
    page = page_about(status, tmp_path)
    assert "<script>" not in page and "&lt;script&gt;" in page


def test_crossing_interpolates_between_states() -> None:
    values = np.zeros((3, 9))
    values[:, 1] = (1.0, 0.0, -1.0)
    values[:, 2] = (0.0, 1.0, 3.0)
    states = States(np.array([0.0, 0.1, 0.2]), np.zeros(3), values, np.zeros((3, 3, 3)))
    time, point = crossing(states, -0.5)  # type: ignore[misc]
    assert time == pytest.approx(0.15) and point[2] == pytest.approx(2.0)
    assert crossing(states, -2.0) is None


def test_balls_without_a_referee_are_told_by_pauses() -> None:
    rally = load_rally(open_bag(golden.BAG))
    (ball,) = rally.balls()
    assert ball.outcome == "unknown" and 0.5 < ball.end - ball.begin < 1.5
