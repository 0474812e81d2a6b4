"""Every trip of the safety layer, caused with the simulated boards, and what follows. See
docs/what_happens_if.md.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from test.control.conftest import axes
from test.control.lockstep import PERIOD_NS, Bench
from tt_control.bus import Drive
from tt_control.codes import Mode
from tt_control.config import control_config
from tt_control.controller import State
from tt_control.trips import Reaction, Trip
from tt_planning.types import JointTrajectory
from tt_sim.boards import StandalonePlant

TESTED: set[Trip] = set()


@pytest.fixture
def bench(gantry):
    return Bench(gantry).start()


def swing(bench, goal=(0.6, 0.4, 0.3, 0.0), duration=0.35):
    """Brings the robot into fast motion."""
    assert bench.offer(bench.path(list(goal), duration)).ok
    bench.run(0.18)
    assert abs(bench.qd()[0]) > 1.0


def assert_tripped(bench, trip, timeout_s=1.0):
    """The trip happened, was the first one, its reaction followed and left the robot standing."""
    assert bench.run(timeout_s, lambda: bench.controller.history), bench.controller.reason
    record = bench.controller.history[0]
    assert record.trip is trip, record
    assert bench.controller.counts[f"trip {trip.name.lower()}"] >= 1
    final = State.STOPPED if trip.reaction is Reaction.HOLD else State.FAULT
    assert bench.run(1.0, lambda: bench.controller.state is final), bench.controller.state
    TESTED.add(trip)
    return record


def assert_nobody_falls(bench):
    """The loaded axis stays up."""
    z = bench.q()[1]
    bench.run(0.5)
    assert bench.q()[1] > z - 2e-3


def recover(bench):
    """The operator's way back."""
    bench.run(0.1)
    if bench.controller.state is State.FAULT:
        answer = bench.call(bench.controller.clear_fault)
        assert answer.ok, answer.text
        bench.run(0.1)
    answer = bench.call(bench.controller.enable)
    assert answer.ok, answer.text
    assert bench.run(1.0, lambda: bench.controller.state is State.ACTIVE), bench.controller.reason
    bench.run(0.5)
    goal = bench.q() * [1, 1, 1, 0] + [0.05, 0.05, 0.1, 0.0]
    assert bench.offer(bench.path(goal)).ok
    bench.run(0.8)
    assert bench.q() == pytest.approx(goal, abs=3e-3)


def test_setpoint_age(bench):
    """A path that ends in motion goes straight on for 50 ms, then brakes and holds."""
    q = np.array(bench.controller.limiter.q)
    rows = np.array([q, q + [0.05, 0, 0, 0]])
    vel = np.array([[0.0] * 4, [1.0, 0, 0, 0]])
    path = JointTrajectory(
        bench.clock.now_ns(), bench.robot.joint_names, np.array([0.02, 0.12]), rows, vel, np.zeros((2, 4))
    )
    assert bench.offer(path).ok
    bench.run(0.16)
    assert bench.controller.state is State.ACTIVE and bench.qd()[0] == pytest.approx(1.0, abs=0.05)
    record = assert_tripped(bench, Trip.SETPOINT_AGE)
    assert (record.stamp_ns - path.capture_stamp_ns) * 1e-9 == pytest.approx(0.12 + 0.05, abs=0.006)
    assert_nobody_falls(bench)
    assert not bench.offer(bench.path(q)).ok, "only the operator leaves a stop"
    recover(bench)


def test_a_fresh_trajectory_in_time_prevents_the_stop(bench):
    q = np.array(bench.controller.limiter.q)
    step = np.array([0.02, 0, 0, 0])
    vel = np.array([1.0, 0, 0, 0])
    for k in range(20):
        now = bench.clock.now_ns()
        rows = np.array([q + k * step, q + (k + 1) * step])
        speeds = np.array([vel * (k > 0), vel])
        path = JointTrajectory(
            now, bench.robot.joint_names, np.array([0.004, 0.024]), rows, speeds, np.zeros((2, 4))
        )
        bench.offer(path)
        bench.run(0.020)
    assert bench.controller.state is State.ACTIVE and not bench.controller.history


def test_not_finite(bench, monkeypatch):
    bench.controller._follower._rest[0] = np.nan
    assert_tripped(bench, Trip.NOT_FINITE)
    assert all(np.isfinite(s.pos).all() for s in bench.bus.sent[-50:])
    recover(bench)


def over_the_table(gantry, config=None):
    """A gantry 25 cm nearer, so that its racket can reach the table."""
    deep = replace(gantry, base_pos_table=gantry.base_pos_table + [0.0, 0.25, 0.0])
    free = StandalonePlant({k: replace(m, lower=-99.0, upper=99.0) for k, m in axes(gantry).items()})
    return Bench(deep, config, free)


def test_keep_out(gantry):
    """Racket over the end of the table, then down onto it: it stops above."""
    from tt_planning.keep_out import KeepOut

    bench = over_the_table(gantry).start()
    bench.offer(bench.path([0.0, 0.3, 0.0, -0.9], 0.5))
    bench.run(0.7)
    assert bench.offer(bench.path([0.0, -0.2, 0.0, -0.9], 0.3)).ok
    assert_tripped(bench, Trip.KEEP_OUT)
    lowest = KeepOut(bench.robot).clearance(bench.q())
    assert 0.0 < lowest < 0.1, "it came near but did not touch"


def test_keep_out_lets_the_racket_leave(gantry):
    config = replace(control_config(gantry), keep_out=False)
    bench = over_the_table(gantry, config).start()
    bench.offer(bench.path([0.0, 0.02, 0.0, -0.9], 0.5))
    bench.run(0.7)
    bench.controller._keep_out = over_the_table(gantry).controller._keep_out
    assert bench.offer(bench.path([0.0, 0.4, 0.0, -0.9], 0.6)).ok
    bench.run(0.8)
    assert bench.controller.state is State.ACTIVE and bench.q()[1] == pytest.approx(0.4, abs=0.003)


def test_clock_jump(bench):
    swing(bench)
    bench.clock.jump(3_000_000_000)
    assert_tripped(bench, Trip.CLOCK_JUMP)
    recover(bench)


def test_late_tick(gantry):
    bench = Bench(gantry, replace(control_config(gantry), watchdog_s=0.2)).start()
    bench.clock.late_ns = [250_000_000]
    assert_tripped(bench, Trip.LATE_TICK)
    recover(bench)


def test_tracking(bench):
    """Something holds the x axis: the stop starts from where it really is, without a push."""
    swing(bench)
    bench.plant.set_state(bench.motor("x"), bench.plant.read(bench.motor("x"))[0], 0.0)
    bench.push[bench.motor("x")] = -30.0
    assert_tripped(bench, Trip.TRACKING)
    bench.push.clear()
    assert_nobody_falls(bench)
    recover(bench)


def test_missed_replies(bench):
    """One of four boards dies in motion: the others are braking within 3 ticks + 10 ms, and stand soon
    after.
    """
    swing(bench)
    begin = bench.clock.now_ns()
    bench.boards.fail(f"dead {bench.motor('yaw')}")
    assert bench.run(0.2, lambda: bench.controller.state is State.STOPPING)
    assert (bench.clock.now_ns() - begin) <= 4 * PERIOD_NS, "three ticks without it, and no wait for a fourth"
    assert_tripped(bench, Trip.MISSED_REPLIES)
    assert (bench.clock.now_ns() - begin) * 1e-9 < 0.5
    assert np.abs(bench.qd()[:2]).max() < 0.02
    assert_nobody_falls(bench)
    answer = bench.call(bench.controller.clear_fault)
    bench.run(0.05)
    assert "yaw" in bench.controller.reason, answer


def test_two_missed_replies_are_only_counted(bench):
    swing(bench)
    bench.boards.fail(f"silent {bench.motor('yaw')} for=0.006")
    bench.run(0.5)
    assert bench.controller.state is State.ACTIVE and 0 < bench.controller.watch.missed_total.max() <= 2


def test_board_fault(bench):
    """Name, code and voltage are kept although the stop erases them on the board."""
    swing(bench)
    bench.boards.fail(f"driver {bench.motor('x')} for=0.1")
    record = assert_tripped(bench, Trip.BOARD_FAULT)
    assert "motor driver fault (33)" in record.text and " V" in record.text
    assert record.faults[0] == 33 and record.voltages[0] == pytest.approx(40.0, abs=3.0)
    assert_nobody_falls(bench)
    recover(bench)
    assert bench.board("x").fault == 0 and bench.controller.history[0].faults[0] == 33


def test_board_mode(bench):
    """A board restarts by itself: it is stopped, the others brake."""
    swing(bench)
    bench.boards.fail(f"reset {bench.motor('pitch')}")
    record = assert_tripped(bench, Trip.BOARD_MODE)
    assert "pitch" in record.text and "left position mode" in record.text
    recover(bench)


def test_outside_limits(gantry):
    plant = StandalonePlant({k: replace(m, lower=-99.0, upper=99.0) for k, m in axes(gantry).items()})
    wide = replace(control_config(gantry), tracking_linear=10.0)
    bench = Bench(gantry, wide, plant, servopos__position_max=99.0, servopos__position_min=-99.0).start()
    bench.offer(bench.path([0.99, 0.2, 0.0, 0.0], 1.0))
    bench.run(1.1)
    bench.push[bench.motor("x")] = 15.0
    record = assert_tripped(bench, Trip.OUTSIDE_LIMITS)
    assert "x: measured at 1.0" in record.text


def test_over_speed(gantry):
    wide = replace(control_config(gantry), tracking_linear=10.0, tracking_angular=10.0)
    bench = Bench(gantry, wide).start()
    bench.plant.set_state(bench.motor("x"), 0.0, 6.0 * 8)
    assert_tripped(bench, Trip.OVER_SPEED)


def test_over_voltage(bench):
    """The supply rises while braking: the stop becomes gentler."""
    swing(bench)
    bench.boards.fail("overvoltage volts=45.4 for=0.3")
    record = assert_tripped(bench, Trip.OVER_VOLTAGE)
    assert "supply at 45" in record.text and "brake resistor" in record.text
    recover(bench)


def test_over_voltage_brakes_gently(bench):
    swing(bench)
    bench.boards.fail("overvoltage volts=45.4 for=0.3")
    speeds = []
    bench.loop.on_tick = lambda t, s, m: speeds.append(s.vel[0])
    assert_tripped(bench, Trip.OVER_VOLTAGE)
    decelerations = -np.diff(np.abs(speeds)) / (PERIOD_NS * 1e-9)
    share = bench.controller.config.gentle_brake_acc
    assert decelerations[1:].max() <= share * bench.robot.max_acc[0] * 1.01


def test_over_temperature(bench):
    bench.boards.fail(f"overtemperature {bench.motor('x')} celsius=73")
    assert_tripped(bench, Trip.OVER_TEMPERATURE)


def test_warm_boards_get_less_torque(bench):
    full = bench.bus.sent[-1].max_torque[0]
    bench.boards.fail(f"overtemperature {bench.motor('x')} celsius=66")
    bench.run(0.1)
    assert bench.controller.state is State.ACTIVE
    assert bench.bus.sent[-1].max_torque[0] == pytest.approx(0.65 * full, rel=0.02)
    assert bench.bus.sent[-1].max_torque[1] == pytest.approx(bench.controller._max_effort[1])


def test_estop(bench):
    swing(bench)
    assert bench.call(bench.controller.stop).ok
    assert_tripped(bench, Trip.ESTOP)
    assert_nobody_falls(bench)
    answer = bench.call(bench.controller.enable)
    assert not answer.ok and "emergency stop" in answer.text
    recover(bench)


def test_estop_without_motion_latches_too(bench):
    bench.call(bench.controller.disable)
    bench.run(0.2)
    bench.call(bench.controller.stop)
    assert bench.controller.state is State.FAULT
    assert not bench.call(bench.controller.enable).ok


def test_estop_input(bench):
    swing(bench)
    bench.controller.estop_input(True, "emergency stop input is pressed", bench.clock.now_ns())
    assert_tripped(bench, Trip.ESTOP_INPUT)
    answer = bench.call(bench.controller.clear_fault)
    assert not answer.ok and "release" in answer.text
    bench.controller.estop_input(False, "", bench.clock.now_ns())
    recover(bench)


def test_enable_timeout(gantry):
    """A board that cannot start (bounds of a new board) does not keep the others waiting under power."""
    bench = Bench(gantry)
    assert bench.loop.connect()
    bench.board("x").set_config("servopos.position_max", -1.0)
    bench.board("x").set_config("servopos.position_min", -2.0)
    bench.call(bench.controller.enable)
    assert bench.run(2.0, lambda: bench.controller.state is State.FAULT)
    assert bench.controller.history[0].trip in (Trip.BOARD_FAULT, Trip.ENABLE_TIMEOUT)
    bench = Bench(gantry)
    assert bench.loop.connect()
    bench.board("x")._enable_left_s = 99.0
    bench.boards.board(1).spec = replace(bench.board("x").spec, enable_delay_s=99.0)
    bench.call(bench.controller.enable)
    assert bench.run(2.0, lambda: bench.controller.state is State.FAULT)
    assert bench.controller.history[0].trip is Trip.ENABLE_TIMEOUT
    assert "x" in bench.controller.reason and "enabling" in bench.controller.reason
    TESTED.add(Trip.ENABLE_TIMEOUT)


def test_adapter_lost(bench):
    """Boards stop by their own watchdog; the adapter comes back; nothing moves before clear_fault and
    enable.
    """
    swing(bench)
    bench.bus.broken = "unplugged"
    bench.bus.open_error = "not there"
    begin = bench.clock.now_ns()
    bench.run(0.03)
    assert bench.controller.state is State.DISCONNECTED
    bench.clock.advance(30_000_000)
    assert all(bench.board(j).mode == Mode.TIMEOUT for j in bench.robot.joint_names)
    bench.run(0.5)
    assert bench.clock.now_ns() - begin > 0 and np.abs(bench.qd()).max() < 0.1
    bench.bus.open_error = ""
    assert_tripped(bench, Trip.ADAPTER_LOST)
    assert not bench.call(bench.controller.enable).ok
    recover(bench)


def test_an_adapter_lost_at_rest_needs_no_clearing(gantry):
    bench = Bench(gantry)
    bench.run(0.1)
    bench.bus.broken = "unplugged"
    bench.run(0.5, lambda: False)
    assert bench.controller.state is State.READY and not bench.controller.history


def test_limiters_are_counted_not_faults(bench):
    bench.board("x").set_config("servo.max_current_A", 2.0)
    bench.offer(bench.path([0.2, 0.2, 0.0, 0.0], 0.4))
    bench.run(0.3)
    assert any("maximum current (99)" in name for name in bench.controller.watch.limiters)
    assert not any(r.trip is Trip.BOARD_FAULT for r in bench.controller.history)


def test_dead_boards_get_only_safe_commands(bench):
    bench.boards.fail(f"dead {bench.motor('z')}")
    bench.boards.fail(f"dead {bench.motor('yaw')}")
    bench.run(0.5)
    assert bench.driven("z") in (Drive.DAMP, Drive.QUERY)
    assert bench.driven("yaw") in (Drive.STOP, Drive.QUERY)


def test_every_trip_has_a_test():
    untested = set(Trip) - TESTED
    assert untested <= {Trip.HOMING}, untested  # test_homing.py


def test_every_trip_has_a_line_in_the_docs():
    """The table of docs/what_happens_if.md is made from the same rows."""
    import importlib.util
    from pathlib import Path

    path = Path(__file__).resolve().parents[2] / "docs" / "hooks.py"
    spec = importlib.util.spec_from_file_location("hooks", path)
    hooks = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(hooks)
    page = (path.parent / "what_happens_if.md").read_text()
    table = hooks.on_page_markdown(page)
    for trip in Trip:
        assert trip.cause in table and trip.reaction.value in table
