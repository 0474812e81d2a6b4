"""The bring-up commands: design, jog, joint calibration, dry run."""

from __future__ import annotations

import json

import numpy as np
import pytest

from tt_bringup.cli import main
from tt_planning.trajectory import TrajectoryGenerator


def run(capsys, *words):
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    streams = capsys.readouterr()
    return ended.value.code, streams.out, streams.err


def test_control_design_prints_gains_and_draws(capsys, tmp_path, gantry):
    picture = tmp_path / "gains.png"
    code, out, _ = run(capsys, "control", "design", "--natural", "60", "--picture", str(picture), "--json")
    rows = {row["joint"]: row for row in json.loads(out)["joints"]}
    assert code == 0 and picture.stat().st_size > 1000
    assert rows["x"]["inertia"] == pytest.approx(8.69) and rows["x"]["kp"] == pytest.approx(
        8.69 * 3600, rel=1e-3
    )
    assert rows["x"]["moteus_kp"] == pytest.approx(gantry.motors[0].kp, rel=1e-3)
    assert rows["z"]["overshoot"] < 0.01 and rows["z"]["phase_margin_deg"] > 60
    assert "conf set servo.pid_position.kp 77.79" in rows["x"]["commands"]


def test_control_design_gives_no_commands_for_a_loop_that_swings_up(capsys, tmp_path):
    picture = tmp_path / "gains.png"
    words = ("control", "design", "--natural", "60", "--sample", "0", "--delay", "0.1")
    code, out, err = run(capsys, *words, "--picture", str(picture))
    assert code == 2 and "swings up by itself with 100 ms of delay" in err and "conf set" not in err + out


def test_control_design_fits_80_columns_and_its_json_is_json(capsys, tmp_path, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    picture = tmp_path / "gains.png"
    words = ("control", "design", "--robot", "arm6", "--check", "--json", "--picture", str(picture))
    code, out, err = run(capsys, *words)
    table = [line for line in err.splitlines() if line[:2] in ("jo", "j1", "j6") and "conf" not in line]
    assert code == 0 and len(table) == 3
    assert all(len(line) <= 80 and "…" not in line for line in table)
    json.loads(out, parse_constant=lambda word: pytest.fail(f"{word} is no JSON"))


def test_reasons_not_to_enable_are_said_once(capsys, tmp_path):
    from tt_sim.boards import BoardServer, BoardSpec

    with BoardServer([BoardSpec(1), BoardSpec(2)], tmp_path / "motors", standalone=True) as boards:
        code, _, err = run(capsys, "calibrate", "joints", "--device", boards.device)
    lines = err.splitlines()
    assert code == 2 and len(lines) == len(set(lines)) > 3
    assert sum("no board answers to id 4" in line for line in lines) == 1
    assert lines[-1] == f"tt: the motors cannot be enabled, for {len(lines) - 1} reasons above"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("control", "design", "--damping", "0"), "damping ratio is 0"),
        (("control", "design", "--natural", "-3"), "natural frequency is -3"),
        (("control", "design", "--pose", "1,2"), "4 numbers for x, z, yaw, pitch"),
        (("control", "design", "--robot", "gantri4"), "unknown robot"),
        (("control", "design", "--picture", "gains.doc"), "must end in .png"),
        (("sim", "bus", "--link", "/dev/null"), "it is no link"),
        (("calibrate", "joints", "--joints", "elbow"), "joint of gantry4"),
        (("calibrate", "joints", "--device", "/dev/nowhere", "--joints", "x"), "/dev/nowhere does not exist"),
        (("jog", "--device", "/dev/nowhere"), "needs a terminal"),
        (("robot", "--dry-run", "--enable"), "exclude each other"),
        (("robot", "--hardware", "nowhere.yaml"), "nowhere.yaml"),
        (("robot",), "--hardware FILE"),
    ],
)
def test_bad_input_is_one_line(capsys, monkeypatch, tmp_path, words, said):
    monkeypatch.chdir(tmp_path)
    code, out, err = run(capsys, *words)
    assert code == 2 and out == ""
    assert said in err and "Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_would_be_commands_are_what_the_motor_node_would_send(gantry):
    from tt_bringup.dry_run import would_be_commands

    generator, still = TrajectoryGenerator(gantry), np.zeros(4)
    start = 10**12
    generator.set_reference(gantry.home, still, still, start)
    good = generator.go_to(gantry.home + [0.2, 0.1, 0.1, 0.1], start).trajectory
    strange = type(good)(start, ("a", "b", "c", "d"), good.times_s, good.pos, good.vel, good.acc)
    times, rows, refused, limited = would_be_commands(
        gantry, [(start, good), (start + 1, strange)], gantry.home
    )
    assert rows[0, 0] == pytest.approx(gantry.home)
    assert rows[-1, 0] == pytest.approx(gantry.home + [0.2, 0.1, 0.1, 0.1], abs=1e-3)
    assert np.diff(times) == pytest.approx(np.full(len(times) - 1, 0.004))
    assert len(refused) == 1 and "unknown" in refused[0] and not any(limited.values())
