"""Gains: the oracles of the reference results to their digits, units, margins and refusals."""

from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from test.control.lockstep import Bench
from tt_control.config import control_config
from tt_control.errors import ControlError
from tt_control.gains import (
    Gains,
    board_units,
    check,
    critical_damping,
    design,
    joint_units,
    margins,
    second_order,
    step_figures,
    step_response,
)
from tt_control.oscillator import energy, integrate, release


@pytest.mark.parametrize(
    ("m", "b", "k", "natural", "damping", "damped"),
    [(2, 4.8, 8, 2, 0.6, 1.6), (2, 2.4, 8, 2, 0.3, 1.908), (1, 4, 4, 2, 1, 0),
     (1, 1, 4, 2, 0.25, 1.936), (2, 10, 2, 1, 2.5, 0)],
)  # fmt: skip
def test_character_of_a_mass_on_a_spring(m, b, k, natural, damping, damped):
    got = second_order(m, b, k)
    assert (got.natural, got.damping, got.damped) == pytest.approx((natural, damping, damped), abs=5e-4)


def test_critical_damping():
    assert critical_damping(2, 8) == pytest.approx(8)


def test_released_oscillator():
    times = np.linspace(0.0, 4.0, 400001)
    pos, vel = release(2, 4.8, 8, 0.1, times)
    turn = np.flatnonzero((vel[1:-1] <= 0) & (vel[2:] > 0))[0] + 2
    assert times[turn] == pytest.approx(1.963, abs=6e-4)
    assert pos[turn] == pytest.approx(-0.0095, abs=5e-5)
    assert energy(2, 8, pos[turn], vel[turn]) / energy(2, 8, 0.1, 0.0) == pytest.approx(0.009, abs=5e-4)
    p, v = release(2, 4.8, 8, 0.1, np.array([1.0]))
    assert energy(2, 8, 0.1, 0) - energy(2, 8, p[0], v[0]) == pytest.approx(0.03245, abs=5e-6)


@pytest.mark.parametrize(
    ("method", "x", "e"),
    [("euler", 0.05014, 0.05967), ("semi-implicit", 0.03986, 0.03971), ("rk4", 0.04081, 0.04)],
)
def test_integrators(method, x, e):
    pos, vel = integrate(method, 2, 0.0, 8, 0.1, 0.01, 1000)
    assert release(2, 0.0, 8, 0.1, np.array([10.0]))[0][0] == pytest.approx(0.04081, abs=5e-6)
    assert pos == pytest.approx(x, abs=5e-6)
    assert energy(2, 8, pos, vel) == pytest.approx(e, abs=5e-6)


@pytest.mark.parametrize(
    ("inertia", "kp", "kv", "natural", "damping"),
    [
        (3.2e-5, 3.2e-3, 0.32e-3, 10, 0.5),
        (3.2e-5, 12.8e-3, 0.64e-3, 20, 0.5),
        (6.4e-5, 12.8e-3, 0.64e-3, 14.142, 0.354),
        (6.4e-5, 12.8e-3, 0.905e-3, 14.142, 0.5),
    ],
)
def test_elbow(inertia, kp, kv, natural, damping):
    got = check(Gains(kp, kv), inertia)
    assert (got.natural, got.damping) == pytest.approx((natural, damping), abs=5e-4)


def test_elbow_overshoot():
    gains = design(10, 0.5, 3.2e-5)
    assert (gains.kp, gains.kv) == pytest.approx((3.2e-3, 0.32e-3))
    assert check(gains, 3.2e-5).overshoot == pytest.approx(0.163, abs=5e-4)
    figures = step_figures(*step_response(gains, 3.2e-5, 0.0, 2.0)[:2])
    assert figures.overshoot == pytest.approx(0.163, abs=3e-3)


def test_negative_damping_multiplies_the_energy_and_is_refused():
    inertia, kp, net = 3.2e-5, 3.2e-3, -0.3e-3
    pos, vel = release(inertia, net, kp, 1e-3, np.linspace(0, 1.0, 2))
    growth = energy(inertia, kp, pos[1], vel[1]) / energy(inertia, kp, 1e-3, 0.0)
    assert growth == pytest.approx(19646, rel=5e-5)
    for kv, friction in ((0.0, -0.3e-3), (0.3e-3, -0.6e-3), (0.0, 0.0)):
        with pytest.raises(ControlError, match="total damping is .*more than 0"):
            check(Gains(kp, kv), inertia, friction)


@given(st.floats(0.5, 200), st.floats(0.05, 3), st.floats(1e-5, 100), st.floats(0.05, 50))
def test_design_and_units_go_both_ways(natural, damping, inertia, turns):
    gains = design(natural, damping, inertia)
    got = check(gains, inertia)
    assert (got.natural, got.damping) == pytest.approx((natural, damping))
    back = joint_units(*board_units(gains, turns), turns)
    assert (back.kp, back.kv) == pytest.approx((gains.kp, gains.kv))


def test_robot_files_hold_the_gains_they_promise(gantry):
    """60 rad/s and critical damping for the mass each axis moves."""
    from tt_control.dynamics import RigidBody

    body = RigidBody.from_robot(gantry)
    mass = np.diag(body.mass_matrix(gantry.home))
    for motor, m in zip(gantry.motors[:2], mass):
        got = check(joint_units(motor.kp, motor.kd, motor.turns_per_unit), float(m))
        assert got.natural == pytest.approx(60, rel=0.02) and got.damping == pytest.approx(1.0, rel=0.02)


def test_margins_shrink_with_delay_and_predict_instability():
    gains = design(60, 1.0, 2.0)
    calm = margins(gains, 2.0, delay_s=0.0)
    assert calm.phase_deg == pytest.approx(76, abs=1.5) and calm.gain == math.inf
    late = margins(gains, 2.0, delay_s=0.003)
    assert late.phase_deg < calm.phase_deg and 1.0 < late.gain < math.inf
    assert late.delay_s == pytest.approx(calm.delay_s - 0.003, rel=0.01)
    for extra, stable in ((0.8, True), (1.25, False)):
        _, pos, _ = step_response(gains, 2.0, 0.0, 1.5, delay_s=extra * calm.delay_s, sample_s=1e-4)
        assert bool(np.abs(pos[-2000:] - 1.0).max() < 0.5) is stable


@pytest.mark.parametrize(
    "values", [(0, 1, 1), (10, 0, 1), (10, 1, 0), (10, 1, -2), (math.nan, 1, 1), (10, math.inf, 1)]
)
def test_designs_that_cannot_be_are_refused(values):
    with pytest.raises(ControlError, match="must be more than 0"):
        design(*values)


def test_the_loop_of_the_simulated_board_does_what_the_design_says(gantry):
    """Step of the x axis on the bench: the board's own loop has the designed frequency and no overshoot."""
    bench = Bench(gantry, control_config(gantry, {"inertia_feedforward": False})).start()
    x = gantry.motors[0]
    assert check(joint_units(x.kp, x.kd, x.turns_per_unit), 8.69).damping == pytest.approx(1.0, abs=0.02)
    bench.push[x.id] = 8.0
    bench.run(0.5)
    moved = bench.q()[0]
    assert moved == pytest.approx(
        8.0 * 2 * np.pi * 8 / joint_units(x.kp, x.kd, x.turns_per_unit).kp, rel=0.02
    )
    bench.push.clear()
    path = []
    bench.loop.on_tick = lambda t, s, m: path.append(m.pos[0])
    bench.run(0.3)
    assert min(path) > -0.03 * moved, "critical damping does not swing through"
