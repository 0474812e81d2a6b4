"""Scripts drive the robot: the two examples against a running simulation, and what happens without one."""

from __future__ import annotations

from pathlib import Path

import pytest
from diagnostic_msgs.msg import DiagnosticArray

from tt_bringup.api import ApiError, TableTennisRobot

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
WATCHED_S = 4.0  # the command looks at the motors twice a second
CAP_S = 120.0  # the first run after an installation compiles every kernel
OUTCOMES = ("returned", "out", "net", "missed", "not_playable")


def _simulation_for_scripts(processes, ball_file):
    words = ("sim", "--balls", "0", "--headless", "--balls-file", str(ball_file))
    simulation = processes.python("-m", "tt_bringup.cli", *words)
    seen = []
    for line in simulation.stderr:
        seen.append(line)
        if "ready for scripts" in line:
            break
    assert simulation.poll() is None, "".join(seen)
    return simulation


def test_examples_serve_a_ball_and_play_a_rally(processes, ball_file):
    _simulation_for_scripts(processes, ball_file)
    one = processes.python(str(EXAMPLES / "04_serve_a_ball.py"))
    out, err = one.communicate(timeout=CAP_S)
    assert one.returncode == 0, out + err
    assert out.startswith(OUTCOMES)
    rally = processes.python(str(EXAMPLES / "05_play_a_rally.py"), "2")
    out, err = rally.communicate(timeout=CAP_S)
    assert rally.returncode == 0, out + err
    lines = out.splitlines()
    assert [line.split(": ")[0] for line in lines[:2]] == ["ball 1", "ball 2"]
    assert lines[2] == f"returned {sum('returned' in line for line in lines[:2])} of 2"


def test_without_a_graph_the_api_says_what_is_missing():
    with TableTennisRobot(timeout_s=0.3) as robot:
        assert not robot.is_ready()
        assert robot.last_rally() is None
        with pytest.raises(ApiError, match="sim/serve.*start the graph first"):
            robot.serve()
        with pytest.raises(ApiError, match="ask for 1 or more"):
            robot.start_rally(0)


@pytest.mark.parametrize("button", ["motors/stop", "motors/disable"])
def test_what_an_operator_stopped_stays_stopped_beside_a_simulation_for_scripts(processes, ball_file, button):
    simulation = _simulation_for_scripts(processes, ball_file)
    with TableTennisRobot(timeout_s=30.0) as robot:
        robot.wait_until_ready()
        robot._call(button)
        states: list[str] = []

        def note(message):
            for status in message.status:
                if status.hardware_id == "motor_node":
                    states.extend(item.value for item in status.values if item.key == "state")

        robot._node.create_subscription(DiagnosticArray, "/diagnostics", note, 10)
        robot._spin(WATCHED_S)
        stopped = "fault" if button == "motors/stop" else "ready"
        assert states[-2:] == [stopped, stopped], states
        if button == "motors/stop":
            assert any("somebody stopped the robot" in line for line in iter(simulation.stderr.readline, ""))
            robot._call("motors/clear_fault")
        robot._call("motors/enable")
