"""The doctor finds what is wrong and names the command, and never faints."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tt_bringup import doctor
from tt_bringup.cli import run_verb
from tt_bringup.paths import shared_file


def test_json_lists_every_area(capsys: pytest.CaptureFixture) -> None:
    code = run_verb("doctor", ["--json", "--calibration", str(shared_file("config/cameras/sim4.yaml"))])
    result = json.loads(capsys.readouterr().out)
    areas = {finding["area"] for finding in result["findings"]}
    assert {"python", "packages", "ros", "dds", "clock", "serial", "cameras", "calibration", "disk"} <= areas
    assert (result["state"] == "bad") == (code == 1)
    assert all(
        f["fix"] for f in result["findings"] if f["level"] in ("bad", "warn") and f["area"] != "doctor"
    )


def test_red_lines_have_a_command(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    port = tmp_path / "dev/serial/by-id/usb-mjbots_fdcanusb_1"
    port.parent.mkdir(parents=True)
    port.write_text("")
    governor = tmp_path / "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor"
    governor.parent.mkdir(parents=True)
    governor.write_text("powersave\n")
    monkeypatch.setattr(doctor.os, "access", lambda *_: False)
    (serial,) = doctor.check_serial(tmp_path)
    assert serial.level == doctor.BAD and "usermod" in serial.fix and "fdcanusb" in serial.text
    assert any(f.level == doctor.WARN and "performance" in f.fix for f in doctor.check_cpu(tmp_path))


def test_dds_settings_that_cannot_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ROS_AUTOMATIC_DISCOVERY_RANGE", "OFF")
    assert any(f.level == doctor.BAD and "OFF" in f.text for f in doctor.check_dds(tmp_path))
    monkeypatch.setenv("ROS_DOMAIN_ID", "500")
    assert any(f.level == doctor.BAD and "500" in f.text for f in doctor.check_dds(tmp_path))
    monkeypatch.setenv("FASTRTPS_DEFAULT_PROFILES_FILE", "/nowhere.xml")
    assert any(f.level == doctor.BAD and "/nowhere.xml" in f.text for f in doctor.check_dds(tmp_path))


def test_calibration_edited_by_hand_is_red(tmp_path: Path) -> None:
    source = shared_file("config/cameras/sim4.yaml")
    (tmp_path / "sim4").mkdir()
    for file in (source.parent / "sim4").glob("*.yaml"):
        (tmp_path / "sim4" / file.name).write_text(file.read_text())
    text = source.read_text()
    lines = text.splitlines()
    at = next(i for i, line in enumerate(lines) if "position_m" in line)
    digits = next(c for c in "\n".join(lines[at : at + 4]) if c.isdigit() and c != "9")
    head, tail = "\n".join(lines[:at]), "\n".join(lines[at:])
    (tmp_path / "sim4.yaml").write_text(head + "\n" + tail.replace(digits, "9", 1) + "\n")
    findings = doctor.check_calibration(tmp_path / "sim4.yaml")
    assert findings[0].level == doctor.BAD and findings[0].fix
    assert doctor.check_calibration(tmp_path / "none.yaml")[0].level == doctor.BAD


def test_a_check_that_fails_is_a_line_not_a_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    def faint() -> list[doctor.Finding]:
        raise RuntimeError("boom")

    monkeypatch.setattr(doctor, "check_python", faint)
    monkeypatch.setattr(doctor, "SLEEP_TRIALS", 1)
    assert any("boom" in finding.text for finding in doctor.run_checks())
