"""A session without ROS on the pseudo-terminal: what scripts and bring-up commands do."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from test.control.conftest import wait_for
from tt_control.config import control_config
from tt_control.controller import State
from tt_control.errors import ControlError
from tt_control.jog import Jogger
from tt_control.moteus_bus import MoteusBus
from tt_control.session import MotorSession


@pytest.fixture
def session(boards, gantry):
    """Patient about time: the computer of the tests may be busy."""
    config = replace(control_config(gantry), watchdog_s=1.0, silent_ticks=100, missed_replies=50)
    with MotorSession(gantry, MoteusBus(gantry.motors, "fdcanusb", boards.device), config, 100.0) as made:
        yield made


def test_enable_move_and_record(session, gantry):
    session.enable(30.0)
    goal = session.position() + [0.05, 0.05, 0.1, 0.0]
    with session.recording() as rows:
        session.move_to(goal, 0.3)
    assert len(rows) > 5
    assert wait_for(lambda: np.abs(session.loop.latest[1].pos - goal).max() < 5e-3)


def test_refusals_are_errors_with_the_reason(session):
    with pytest.raises(ControlError, match="cannot move home while"):
        session.call(session.controller.home)
    session.enable(30.0)
    with pytest.raises(ControlError, match="allowed is -1 to 1"):
        session.move_to(session.position() + [5.0, 0, 0, 0])
    session.call(session.controller.stop)
    with pytest.raises(ControlError, match="emergency stop"):
        session.wait(State.ACTIVE, 5.0)


def test_jogging_moves_while_held_and_then_stands(session, gantry):
    session.enable(30.0)
    jogger = Jogger(gantry, session.controller.is_linear, 0.1)
    start = session.position()

    def hold(now_ns):
        return session.controller.offer(jogger.held(0, 1.0, start, now_ns), now_ns)

    session.call(hold)
    assert wait_for(lambda: session.position()[0] > start[0] + 0.005)
    assert wait_for(lambda: not session.controller.limiter.qd.any())
    assert session.position()[0] < start[0] + 0.1
    assert session.position()[1:] == pytest.approx(start[1:])
