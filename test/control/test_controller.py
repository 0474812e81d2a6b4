"""The state machine: what an operator may do when, and what the motors are told."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from test.control.conftest import axes
from test.control.lockstep import Bench
from tt_control.bus import Drive
from tt_control.codes import Mode
from tt_control.controller import State
from tt_control.jog import jog_path
from tt_sim.boards import StandalonePlant


@pytest.fixture
def bench(gantry):
    return Bench(gantry)


def test_nothing_moves_before_enable(bench):
    before = bench.q()
    bench.run(0.3)
    assert bench.controller.state is State.READY
    assert all((s.drive == Drive.QUERY).all() for s in bench.bus.sent)
    assert np.allclose(bench.q()[[0, 2, 3]], before[[0, 2, 3]])


def test_first_command_after_enable_is_the_measured_position(bench, gantry):
    bench.plant.set_state(bench.motor("x"), 3.2)
    bench.plant.set_state(bench.motor("yaw"), -0.05)
    bench.run(0.05)
    where = bench.q()
    bench.call(bench.controller.enable)
    bench.run(0.05, lambda: bench.driven("x") is Drive.POSITION)
    first = bench.bus.sent[-1]
    assert first.pos == pytest.approx(where, abs=1e-6)
    assert (first.vel == 0).all()
    bench.run(0.5)
    assert bench.q() == pytest.approx(where, abs=1e-3)


def test_gains_start_low(bench):
    assert bench.loop.connect()
    bench.call(bench.controller.enable)
    bench.run(0.02)
    assert bench.bus.sent[-1].kp_scale.max() < 0.3
    bench.run(0.6)
    assert (bench.bus.sent[-1].kp_scale == 1.0).all()


def test_follows_a_trajectory_to_its_end(bench, gantry):
    bench.start()
    goal = [0.4, 0.3, -0.5, 0.0]  # the bench weighs its axes as at home: pitch stays there
    assert bench.offer(bench.path(goal)).ok
    bench.run(0.8)
    assert bench.q() == pytest.approx(goal, abs=2e-3)
    assert not any(bench.controller.limiter.counts.values()), (
        "a trajectory inside the limits passes unchanged"
    )


def test_commanded_names_the_trajectory_that_began(bench):
    bench.start()
    path = bench.path([0.1, 0.2, 0.0, 0.0])
    bench.offer(path)
    bench.run(0.1)
    done = list(bench.loop.commanded)
    assert [d.capture_stamp_ns for d in done] == [path.capture_stamp_ns]
    assert 0.016 < (done[0].done_ns - path.capture_stamp_ns) * 1e-9 < 0.030


def test_disable_stops_first_and_keeps_a_loaded_axis(bench):
    bench.start()
    bench.offer(bench.path([0.5, 0.4, 0.0, 0.0], 0.4))
    bench.run(0.2)
    assert abs(bench.qd()[0]) > 0.5
    answer = bench.call(bench.controller.disable)
    assert answer.ok and "z" in answer.text
    bench.run(0.5)
    assert bench.controller.state is State.READY
    assert bench.board("x").mode == Mode.STOPPED
    assert bench.board("z").mode == Mode.POSITION
    z = bench.q()[1]
    bench.run(1.0)
    assert bench.q()[1] == pytest.approx(z, abs=1e-3)


def test_enable_again_does_not_let_a_held_axis_fall(bench):
    bench.start()
    bench.offer(bench.path([0.0, 0.4, 0.0, 0.0], 0.4))
    bench.run(0.6)
    bench.call(bench.controller.disable)
    bench.run(0.3)
    heights = []
    bench.loop.on_tick = lambda t, s, m: heights.append(m.pos[1])
    assert bench.call(bench.controller.enable).ok
    bench.run(0.5)
    assert bench.controller.state is State.ACTIVE
    assert np.ptp(heights) < 2e-3


def test_leaving_damps_the_loaded_axis_and_stops_the_others(bench):
    bench.start()
    bench.offer(bench.path([0.5, 0.4, 0.0, 0.0], 0.4))
    bench.run(0.2)
    bench.loop.leave()
    assert [bench.board(j).mode for j in bench.robot.joint_names] == [0, Mode.ZERO_VELOCITY, 0, 0]
    assert np.abs(bench.qd()).max() < 0.05


@pytest.mark.parametrize("call", ["enable", "home"])
def test_refusals_say_why(bench, call):
    answer = bench.call(getattr(bench.controller, call))
    assert not answer.ok and "disconnected" in answer.text and "adapter" in answer.text


def test_trajectories_are_refused_while_not_active(bench):
    bench.loop.connect()
    answer = bench.offer(bench.path([0.0, 0.1, 0.0, 0.0]))
    assert not answer.ok and "ready" in answer.text and "motors/enable" in answer.text


def test_home_moves_slowly_to_the_home_pose(bench, gantry):
    bench.start()
    bench.offer(bench.path([0.3, 0.4, 0.5, 0.0]))
    bench.run(0.8)
    assert bench.call(bench.controller.home).ok
    speeds = []
    bench.loop.on_tick = lambda t, s, m: speeds.append(np.abs(s.vel))
    bench.run(4.0)
    assert bench.q() == pytest.approx(gantry.home, abs=2e-3)
    assert (np.max(speeds, axis=0) <= 0.101 * gantry.max_vel).all()


def test_enable_refuses_a_joint_outside_its_limits(gantry):
    bench = Bench(gantry, plant=StandalonePlant({k: replace(m, upper=20.0) for k, m in axes(gantry).items()}))
    bench.plant.set_state(bench.motor("x"), 1.1 * 8)
    bench.run(0.05)
    answer = bench.call(bench.controller.enable)
    assert not answer.ok and "x stands at 1.1" in answer.text and "by hand" in answer.text


def test_a_robot_that_lies_on_its_end_stop_can_be_moved(gantry):
    """Switched off, a loaded axis sinks onto its stop, just outside its limits; from there it must come in."""
    stop = gantry.lower[1] - 0.004
    turns = stop * gantry.motors[1].turns_per_unit
    motors = axes(gantry)
    motors[gantry.motors[1].id] = replace(motors[gantry.motors[1].id], lower=turns, position=turns)
    bench = Bench(gantry, plant=StandalonePlant(motors)).start()
    assert bench.q()[1] == pytest.approx(stop, abs=2e-3)
    farther = bench.path([0.0, stop - 0.003, 0.0, 0.0])
    refused = bench.offer(farther)
    assert not refused.ok and "puts z at" in refused.text
    sideways = jog_path(
        gantry, bench.controller.limiter.q, np.zeros(4), np.array([0.1, -0.1, 0, 0]), bench.controller.is_linear,
        bench.clock.now_ns(),
    )  # fmt: skip
    assert bench.offer(sideways).ok
    bench.run(0.6)
    assert bench.q()[1] == pytest.approx(stop, abs=2e-3)
    assert bench.call(bench.controller.home).ok
    bench.run(3.0)
    assert bench.q() == pytest.approx(gantry.home, abs=2e-3)


@pytest.mark.parametrize(
    ("joint", "turns", "words"),
    [
        ("yaw", -1, ["really is at 0.2", "-1 turns wrong", "moteus_tool -t 3 --zero-offset"]),
        ("x", 16, ["really is inside", "whole turns wrong", "home it"]),
    ],
)
def test_enable_refuses_a_count_that_is_off_by_whole_turns(gantry, joint, turns, words):
    """A wrapped encoder looks like a joint far outside."""
    free = {k: replace(m, lower=-99.0, upper=99.0) for k, m in axes(gantry).items()}
    bench = Bench(gantry, plant=StandalonePlant(free))
    motor = gantry.motors[gantry.joint_names.index(joint)]
    bench.plant.set_state(motor.id, motor.sign * motor.turns_per_unit * (0.2 - motor.zero) + turns, 0.0)
    bench.run(0.05)
    answer = bench.call(bench.controller.enable)
    assert not answer.ok and all(word in answer.text for word in words), answer.text


def test_enable_refuses_low_voltage(bench):
    bench.loop.connect()
    bench.boards.fail("undervoltage volts=8")
    bench.run(0.05)
    answer = bench.call(bench.controller.enable)
    assert not answer.ok and "8.0 V" in answer.text


def test_a_new_start_takes_a_damped_axis_over_without_dropping_it(bench, gantry):
    """The node before left z damped in the air; enabling goes on from there."""
    bench.start()
    bench.offer(bench.path([0.0, 0.4, 0.0, 0.0], 0.5))
    bench.run(0.7)
    bench.loop.leave()
    bench.bus.close()
    assert bench.board("z").mode == Mode.ZERO_VELOCITY
    again = Bench(gantry, plant=bench.plant)
    again.boards, again.bus.boards = bench.boards, bench.boards
    assert again.loop.connect()
    heights, modes = [], []
    again.loop.on_tick = lambda t, s, m: (heights.append(again.q()[1]), modes.append(int(m.mode[1])))
    assert again.call(again.controller.enable).ok
    again.run(0.5)
    assert again.controller.state is State.ACTIVE
    assert Mode.STOPPED not in modes and np.ptp(heights) < 2e-3
