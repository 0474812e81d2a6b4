"""Homing on the simulated axes: end stop, index, and what goes wrong."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from test.control.conftest import axes, board_specs
from test.control.lockstep import Bench
from tt_control.config import control_config
from tt_control.controller import State
from tt_control.trips import Trip
from tt_sim.boards import StandalonePlant

X_STOP = {"x": {"method": "end_stop", "direction": -1, "speed": 0.1, "effort": 40.0, "stop_position": -1.02}}


def unreferenced(gantry, section, x_lower=-1.02, **changes):
    """A gantry whose x board lost its reference: it counts from 0 wherever it is; the stop is at
    `x_lower`.
    """
    specs = [replace(s, home_state=0 if s.id == gantry.motors[0].id else 2) for s in board_specs(gantry)]
    specs[0].config.update({"servopos.position_min": -99.0, "servopos.position_max": 99.0})
    motors = axes(gantry)
    motors[1] = replace(motors[1], lower=x_lower * 8, position=-0.7 * 8, **changes)
    bench = Bench(gantry, control_config(gantry, {"homing": section}), StandalonePlant(motors), specs)
    bench.board("x").set_output_exact(0.0)
    bench.board("x").home_state = 0
    return bench


def test_a_joint_without_reference_must_be_homed_first(gantry):
    bench = unreferenced(gantry, X_STOP)
    assert bench.loop.connect()
    assert bench.controller.state is State.AUDITED and "x must be homed" in bench.controller.reason
    answer = bench.call(bench.controller.enable)
    assert not answer.ok and "motors/home" in answer.text


def test_end_stop_gives_the_reference(gantry):
    bench = unreferenced(gantry, X_STOP)
    bench.loop.connect()
    assert bench.call(bench.controller.home).ok
    speeds, efforts = [], []

    def watch(t, s, m):
        speeds.append(abs(m.vel[0]))
        efforts.append(abs(m.torque[0]))

    bench.loop.on_tick = watch
    assert bench.run(25.0, lambda: bench.controller.state is State.READY), bench.controller.reason
    assert bench.controller.watch.last.pos == pytest.approx(bench.q(), abs=2e-3)
    assert bench.q()[0] == pytest.approx(-1.02 + 0.02, abs=2e-3), "one step back from the stop"
    assert max(speeds) < 0.15 and max(efforts) < 43.0
    bench.run(0.1)
    assert bench.call(bench.controller.enable).ok
    bench.run(0.6)
    assert bench.offer(bench.path([0.3, 0.2, 0.0, 0.0], 1.0)).ok
    bench.run(1.2)
    assert bench.q()[0] == pytest.approx(0.3, abs=2e-3)


def test_friction_alone_is_no_stop(gantry):
    """Sticky rails need force too, but the joint moves."""
    bench = unreferenced(gantry, X_STOP, coulomb=20.0 / (2 * np.pi * 8))
    bench.loop.connect()
    bench.call(bench.controller.home)
    assert bench.run(25.0, lambda: bench.controller.state is State.READY), bench.controller.reason
    assert bench.controller.watch.last.pos[0] == pytest.approx(bench.q()[0], abs=2e-3)


def test_homing_gives_up_without_a_stop(gantry):
    section = {"x": {**X_STOP["x"], "travel": 0.1}}
    bench = unreferenced(gantry, section, x_lower=-9.0)
    bench.loop.connect()
    bench.call(bench.controller.home)
    assert bench.run(10.0, lambda: bench.controller.state is State.FAULT)
    assert bench.controller.history[0].trip is Trip.HOMING and "0.1 of travel" in bench.controller.reason


def test_index_of_the_encoder(gantry):
    bench = unreferenced(gantry, {"x": {"method": "index", "direction": -1, "speed": 0.1, "effort": 40.0}})
    bench.loop.connect()
    bench.call(bench.controller.home)
    bench.run(1.0)
    assert bench.controller.state is State.HOMING
    bench.board("x").set_output_exact(
        bench.plant.read(1)[0]
    )  # the index passes: the board corrects its count
    bench.board("x").home_state = 1
    assert bench.run(5.0, lambda: bench.controller.state is State.READY), bench.controller.reason
    assert bench.controller.watch.last.pos[0] == pytest.approx(bench.q()[0], abs=2e-3)


def test_a_stop_before_the_index_fails(gantry):
    section = {"x": {"method": "index", "direction": -1, "speed": 0.1, "effort": 40.0}}
    bench = unreferenced(gantry, section, x_lower=-0.75)
    bench.loop.connect()
    bench.call(bench.controller.home)
    assert bench.run(10.0, lambda: bench.controller.state is State.FAULT)
    assert "other direction" in bench.controller.reason


def test_stop_during_homing(gantry):
    bench = unreferenced(gantry, X_STOP)
    bench.loop.connect()
    bench.call(bench.controller.home)
    bench.run(1.0)
    bench.call(bench.controller.stop)
    assert bench.run(1.0, lambda: bench.controller.state is State.FAULT)
    assert abs(bench.qd()[0]) < 0.025
    bench.call(bench.controller.clear_fault)
    bench.run(0.1)
    assert bench.controller.state is State.AUDITED


def test_a_board_without_reference_and_without_homing_method_is_an_audit_problem(gantry):
    bench = unreferenced(gantry, {})
    bench.loop.connect()
    assert bench.controller.state is State.CONNECTED
    assert "does not know where the joint is" in bench.controller.reason
