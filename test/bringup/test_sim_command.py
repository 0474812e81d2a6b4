"""`tt sim` as a user meets it: real processes over DDS, bad input, killed nodes, Ctrl-C."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from tt_bringup.bags import open_bag

pytestmark = [pytest.mark.ros, pytest.mark.slow]
BALL = {
    "id": 1, "pos_x": 0.1, "pos_y": 1.4, "pos_z": 0.25, "vel_x": -0.1, "vel_y": -4.5, "vel_z": 1.6,
    "w_vel_x": 60.0, "w_vel_y": 0.0, "w_vel_z": 0.0,
}  # fmt: skip


def running(folder: Path) -> dict[int, str]:
    """Ids and command lines of the processes that belong to runs below the folder."""
    found = {}
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"TT_RUN_DIR={folder}".encode() in (process / "environ").read_bytes():
                found[int(process.name)] = (process / "cmdline").read_text().replace("\0", " ")
        except OSError:
            continue
    return found


@pytest.fixture
def sim(processes, tmp_path):
    """Starts `tt sim` with arguments; its run folder is below the temporary folder of the test."""

    def start(*words: str) -> subprocess.Popen[str]:
        environment = {"TMPDIR": str(tmp_path), "ROS_DOMAIN_ID": "", "PYTHONUNBUFFERED": "1"}
        return processes.python("-m", "tt_bringup.cli", "sim", "--headless", *words, **environment)

    return start


def finish(process: subprocess.Popen[str], folder: Path) -> tuple[int, str, str]:
    out, err = process.communicate(timeout=120)
    assert not running(folder), "a process was left behind"
    return process.returncode, out, err


def wait_for_line(process: subprocess.Popen[str], word: str) -> None:
    for line in process.stderr:
        if word in line:
            return
    raise AssertionError(f"{word!r} never came; it ended with {process.wait()}")


def test_balls_are_played_and_reported(sim, tmp_path):
    code, out, err = finish(sim("--balls", "2", "--json", "--delay", "0.01"), tmp_path)
    assert code == 0, err
    summary = json.loads(out)
    assert summary["balls"] == 2 and len(summary["results"]) == 2
    assert {"id", "outcome", "landing_m", "miss_m", "contact_offset_m"} <= set(summary["results"][0])
    assert {"arrived", "detected", "triangulated", "estimated"} <= set(summary["latency_ms"])
    assert {"median", "p95", "p99", "max"} <= set(summary["latency_ms"]["estimated"])
    assert 0.0 < summary["real_time_factor"] <= 1.05
    assert summary["returned"] <= summary["hit"] <= 2
    assert not list(tmp_path.glob("tt_run_*")), "the run folder is removed after a good run"


def test_two_copies_run_side_by_side(sim, tmp_path):
    runs = [sim("--balls", "1", "--json"), sim("--balls", "1", "--json")]
    for run in runs:
        out, err = run.communicate(timeout=120)
        assert run.returncode == 0, err
        assert json.loads(out)["balls"] == 1
    assert not running(tmp_path)


def test_every_ball_is_in_the_recording(sim, tmp_path):
    code, _, err = finish(sim("--balls", "1", "--record", "bag"), tmp_path)
    assert code == 0, err
    assert open_bag(tmp_path / "bag").counts["/tt/sim/result"] == 1


def test_a_recorder_that_dies_is_told_and_the_balls_go_on(sim, tmp_path):
    process = sim("--balls", "3", "--record", "bag", "--json")
    wait_for_line(process, "1/3")
    (pid,) = [pid for pid, line in running(tmp_path).items() if ".record_node " in line]
    os.kill(pid, signal.SIGKILL)
    code, out, err = finish(process, tmp_path)
    assert code == 1 and json.loads(out)["balls"] == 3
    assert err.count("tt: ") == 1 and "tt: recorder was ended by SIGKILL" in err


def test_ctrl_c_tells_what_was_played(sim, tmp_path):
    process = sim("--balls", "50", "--json")
    wait_for_line(process, "2/50")
    process.send_signal(signal.SIGINT)
    code, out, err = finish(process, tmp_path)
    assert code == 130
    summary = json.loads(out)
    assert 2 <= summary["balls"] == len(summary["results"]) < 50
    assert "real-time factor" in err


@pytest.mark.parametrize("victim", ["motor_node", "compute_node", "sim_node"])
def test_a_killed_node_is_named_and_the_others_stop(sim, tmp_path, victim):
    process = sim("--balls", "1000")
    wait_for_line(process, "1/1000")
    pids = [pid for pid, line in running(tmp_path).items() if f".{victim} " in line]
    assert len(pids) == 1
    os.kill(pids[0], signal.SIGKILL)
    code, out, err = finish(process, tmp_path)
    assert code == 2 and not out
    assert err.strip().splitlines()[-1].startswith(f"tt: {victim} was ended by SIGKILL")
    assert "Traceback" not in err


@pytest.mark.parametrize(
    ("after_s", "number"),
    [(0.2, signal.SIGINT), (1.0, signal.SIGTERM), (2.0, signal.SIGINT), (4.0, signal.SIGTERM)],
)
def test_an_interruption_at_any_moment_leaves_nothing(sim, tmp_path, after_s, number):
    process = sim("--balls", "1000")
    time.sleep(after_s)
    process.send_signal(number)
    code, out, err = finish(process, tmp_path)
    assert code != 0 and not out
    # Before that, a slow machine may still be starting Python itself.
    assert after_s < 1.0 or "Traceback" not in err


def bad_balls(**change: object) -> str:
    return json.dumps([{**BALL, **change}])


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (None, "balls.json"),
        ("[{", "JSON"),
        ("{}", "list"),
        ("[]", "ball"),
        (json.dumps([{key: value for key, value in BALL.items() if key != "vel_z"}]), "vel_z"),
        (bad_balls(pos_x=math.nan), "pos_x"),
        (bad_balls(pos_x="left"), "pos_x"),
        (bad_balls(pos_x=100.0, pos_y=1400.0, pos_z=250.0), "1400"),
    ],
    ids=["missing", "broken", "no list", "empty", "no field", "nan", "text", "millimetres"],
)
def test_bad_ball_files_are_one_clear_line(sim, tmp_path, content, words):
    file = tmp_path / "balls.json"
    if content is not None:
        file.write_text(content)
    code, out, err = finish(sim("--balls-file", str(file)), tmp_path)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1 and err.startswith("tt: ") and words in err


@pytest.mark.parametrize(
    ("given", "words"),
    [
        (("--balls", "-1"), "--balls"),
        (("--balls", "many"), "--balls"),
        (("--robot", "gantry9"), "gantry9"),
        (("--cameras", "movies"), "detections, images"),
        (("--world", "moon"), "moon"),
        (("--params-file", "nowhere.yaml"), "nowhere.yaml"),
        (("--time-scale", "0"), "--time-scale"),
        (("--record", ""), "--record is empty"),
        (("--record", "/proc/bag"), "/proc/bag"),
        (("--seed", "99999999999999999999999"), "--seed"),
        (("--delay", "nan"), "nan"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else "",
)
def test_bad_options_are_one_clear_line(sim, tmp_path, given, words):
    code, out, err = finish(sim(*given), tmp_path)
    assert (code, out) == (2, "")
    assert err.count("\n") == 1 and err.startswith("tt: ") and words in err


@pytest.mark.parametrize(
    ("parameters", "words"),
    [
        (
            "/**/sim_node: {ros__parameters: {seeed: 1}}",
            "'seeed' is no parameter of sim_node; did you mean 'seed'?",
        ),
        (
            "/**/sim_node: {ros__parameters: {seed: tiny}}",
            "parameter seed is 'tiny', but must be a whole number",
        ),
        ("/**/ball_state_node: {ros__parameters: {gate: 7.0}}", "ball_state_node: parameter gate is 7.0"),
    ],
    ids=["wrong key", "wrong type", "composed node"],
)
def test_bad_parameters_are_told_by_the_node_that_has_them(sim, tmp_path, parameters, words):
    file = tmp_path / "params.yaml"
    file.write_text(parameters)
    code, out, err = finish(sim("--params-file", str(file)), tmp_path)
    assert (code, out) == (2, "")
    assert words in err.strip().splitlines()[-1]
    assert "Traceback" not in err


def test_help_is_quick_to_read():
    command = [sys.executable, "-m", "tt_bringup.cli", "sim", "--help"]
    result = subprocess.run(command, capture_output=True, text=True, check=True)
    for option in (
        "--balls",
        "--balls-file",
        "--robot",
        "--cameras",
        "--record",
        "--headless",
        "--json",
        "--time-scale",
    ):
        assert option in result.stdout
