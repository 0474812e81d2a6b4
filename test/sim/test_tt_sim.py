"""`tt sim` end to end: real DDS processes, the simulated robot, a few balls; slowed down for busy hosts."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path

import pytest

CAP_S = 240.0  # the first run after an installation compiles every kernel
TT = ("-m", "tt_bringup.cli")


def leftovers(domain: str) -> list[str]:
    """Command lines of processes of this ROS domain that still run, this test's own excepted."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes().split(b"\0")
            words = (folder / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if f"ROS_DOMAIN_ID={domain}".encode() in environment and "_node" in words:
            found.append(words)
    return found


def test_balls_are_served_and_judged(processes, ball_file):
    run = processes.python(
        *TT,
        "sim",
        "--balls",
        "3",
        "--balls-file",
        str(ball_file),
        "--headless",
        "--json",
        "--time-scale",
        "0.5",
    )
    out, err = run.communicate(timeout=CAP_S)
    assert run.returncode == 0, err
    summary = json.loads(out)
    assert summary["balls"] == 3
    assert [r["id"] for r in summary["results"]] == [2704, 2706, 2708]
    assert {r["outcome"] for r in summary["results"]} <= {"returned", "out", "net", "missed"}
    kinds = ("returned", "out", "net", "missed", "not_playable")
    assert sum(summary[kind] for kind in kinds) == 3
    assert summary["hit"] >= summary["returned"]
    # The chain is closed: every stage reported on some image.
    for stage in ("arrived", "detected", "triangulated", "estimated"):
        assert summary["latency_ms"][stage]["count"] > 0, stage
    assert 0.0 < summary["real_time_factor"] <= 0.55
    assert "1/3" in err
    assert leftovers(os.environ["ROS_DOMAIN_ID"]) == []


def test_rendered_images_are_played_at_the_pace_of_the_machine(processes, ball_file):
    words = ("--balls", "1", "--balls-file", str(ball_file), "--cameras", "images", "--scene", "--headless")
    run = processes.python(*TT, "sim", *words, "--json")
    out, err = run.communicate(timeout=CAP_S)
    assert run.returncode == 0, err
    summary = json.loads(out)
    assert summary["balls"] == 1 and summary["cameras"] == "images"
    for stage in ("arrived", "detected", "triangulated", "estimated"):
        assert summary["latency_ms"][stage]["count"] > 5, stage
    assert 0.0 < summary["real_time_factor"] <= 1.05
    assert "real time" in err.splitlines()[-1]


def test_ctrl_c_ends_every_process(processes, wait_for):
    run = processes.python(*TT, "sim", "--balls", "50", "--headless")
    domain = os.environ["ROS_DOMAIN_ID"]
    wait_for(lambda: len(leftovers(domain)) >= 4, 30.0)
    run.send_signal(signal.SIGINT)
    run.communicate(timeout=30.0)
    assert run.returncode == 130
    assert leftovers(domain) == []


def test_a_killed_node_is_named_and_the_others_end(processes, wait_for):
    run = processes.python(*TT, "sim", "--balls", "50", "--headless")
    domain = os.environ["ROS_DOMAIN_ID"]
    wait_for(lambda: any("motor_node" in words for words in leftovers(domain)), 30.0)
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            environment = (folder / "environ").read_bytes().split(b"\0")
            words = (folder / "cmdline").read_bytes()
        except OSError:
            continue
        if f"ROS_DOMAIN_ID={domain}".encode() in environment and b"motor_node" in words:
            os.kill(int(folder.name), signal.SIGKILL)
    _, err = run.communicate(timeout=30.0)
    assert run.returncode not in (0, 130)
    assert "motor_node was ended by SIGKILL" in err
    assert leftovers(domain) == []


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (("--balls", "-1"), "--balls"),
        (("--robot", "nope"), "gantry4"),
        (("--cameras", "lidar"), "detections, images"),
        (("--world", "moon"), "nominal, deepmind"),
        (("--scene",), "needs --cameras images"),
        (("--balls-file", "none.json"), "none.json"),
        (("--params-file", "none.yaml"), "none.yaml"),
    ],
)
def test_bad_input_is_one_line_before_anything_starts(processes, words, text):
    run = processes.python(*TT, "sim", "--headless", *words)
    out, err = run.communicate(timeout=60.0)
    assert run.returncode == 2
    assert out == ""
    assert len(err.strip().splitlines()) == 1, err
    assert text in err
