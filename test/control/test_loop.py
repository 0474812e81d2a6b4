"""The loop on a clock that wakes late, and what it measures; real-time options; leaving."""

from __future__ import annotations

import os
import threading
import time

import numpy as np
import pytest

from test.control.lockstep import PERIOD_NS, Bench
from tt_control.clocks import PolledClock, WallClock
from tt_control.controller import State
from tt_control.loop_stats import LoopStats
from tt_control.realtime import RealTimeOptions, ask_for_short_slices, enter_real_time


@pytest.fixture
def bench(gantry):
    return Bench(gantry).start()


def test_deadlines_are_absolute(bench):
    """Late wake-ups do not add up."""
    begin, ticks = bench.clock.time_ns, bench.loop.stats.ticks
    bench.clock.late_ns = [900_000] * 240
    bench.run(1.0)
    assert bench.loop.stats.ticks - ticks == pytest.approx((bench.clock.time_ns - begin) / PERIOD_NS, abs=2)
    assert bench.loop.stats.skipped == 0


def test_a_late_tick_is_skipped_not_caught_up(bench):
    times = []
    bench.loop.on_tick = lambda t, s, m: times.append(t)
    bench.clock.late_ns = [0, 0, 13_000_000]
    bench.run(0.08)
    gaps = np.diff(times)
    assert (
        gaps.max() == pytest.approx(17_000_000, abs=1e6)
        and (np.delete(gaps, gaps.argmax()) <= PERIOD_NS).all()
    )
    assert bench.loop.stats.skipped >= 2
    assert bench.controller.state is State.ACTIVE


def test_a_late_tick_sends_the_setpoint_of_its_own_time(bench):
    path = bench.path([0.5, 0.3, 0.0, 0.0], 0.5)
    bench.offer(path)
    bench.run(0.25)
    from tt_planning.trajectory import sample

    rows = []
    bench.loop.on_tick = lambda t, s, m: rows.append((t, s.pos.copy()))
    bench.clock.late_ns = [0, 9_000_000, 0, 7_000_000]
    bench.run(0.06)
    delay = round(bench.controller.config.command_delay_s * 1e9)
    for t, pos in rows:
        assert pos == pytest.approx(sample(path, t + delay)[0], abs=1e-9)


def test_stats_tell_lateness_and_losses(bench):
    bench.clock.late_ns = [500_000] * 100
    bench.run(0.4)
    values = bench.loop.stats.values()
    assert values["late_max_ms"] == pytest.approx(0.5, abs=0.01)
    assert values["tick_share"] > 0.99 and values["cycle_median_ms"] >= 0.0
    assert values["period_median_ms"] == pytest.approx(1e-6 * PERIOD_NS, abs=0.01)


def test_stats_of_known_numbers():
    stats = LoopStats(0.004)
    for k in range(100):
        stats.add(
            late_s=k * 1e-5, period_s=4e-3 + k * 1e-5, cycle_s=1e-3, work_s=3.5e-3, skipped=int(k == 50)
        )
    values = stats.values()
    assert values["ticks"] == 100 and values["skipped_ticks"] == 1
    assert values["overruns"] == 49 and values["late_p99_ms"] == pytest.approx(0.98, abs=0.02)
    assert values["period_median_ms"] == pytest.approx(4.495, abs=0.01)


def test_stats_of_a_run_begin_with_it_and_remember_all_of_it():
    stats = LoopStats(0.004)
    stats.add(late_s=0.5, period_s=0.5, cycle_s=0.5, work_s=0.5, skipped=100)
    stats.begin_run()
    for k in range(10_000):
        stats.add(
            late_s=k * 1e-7, period_s=4e-3, cycle_s=1e-3, work_s=2e-3 if k else 0.3, skipped=int(k == 3)
        )
    values = stats.values()
    assert values["run_ticks"] == 10_000 and values["run_skipped_ticks"] == 1
    assert values["run_tick_share"] == pytest.approx(0.9999)
    assert values["run_late_median_ms"] == pytest.approx(0.5, abs=0.021)
    assert values["run_late_p99_ms"] == pytest.approx(0.99, abs=0.021)
    assert values["run_late_p999_ms"] == pytest.approx(0.999, abs=0.021)
    assert values["run_work_max_ms"] == pytest.approx(300.0) and values["run_work_p999_ms"] < 3.0
    assert values["work_max_ms"] < 3.0, "the last ten seconds have forgotten it"


def test_calls_from_other_threads_run_between_ticks(bench):
    answer = bench.loop.call(lambda now: now)
    failing = bench.loop.call(lambda now: 1 / 0)
    bench.run(0.01)
    assert answer.result(0) > 0
    with pytest.raises(ZeroDivisionError):
        failing.result(0)
    assert bench.controller.state is State.ACTIVE, "a failed call does not disturb the motors"


@pytest.mark.parametrize(("asleep_ms", "gap_ms"), [(0.0, 2.0), (0.5, 2.0), (1.7, 2.7)])
def test_a_call_brings_the_next_tick_forward(bench, asleep_ms, gap_ms):
    """At once, but not nearer than half a period to the tick before; the ticks go on from there."""
    times: list[int] = []
    bench.loop.on_tick = lambda t, s, m: times.append(t)
    bench.run(0.02)

    sleep_until = bench.clock.sleep_until

    def called_in_the_sleep(deadline_ns: int) -> bool:
        bench.clock.sleep_until = sleep_until
        bench.clock.advance(round(asleep_ms * 1e6))
        bench.loop.call(lambda now: now)
        return sleep_until(deadline_ns)

    bench.clock.sleep_until = called_in_the_sleep
    bench.run(0.02)
    gaps = np.diff(times) * 1e-6
    early = int(np.argmin(gaps))
    assert gaps[early] == pytest.approx(gap_ms, abs=1e-6)
    assert np.delete(gaps, early) == pytest.approx(4.0)
    assert bench.controller.state is State.ACTIVE


@pytest.mark.parametrize("delay_s", [0.0171, 0.0185, 0.02, 0.0206])
def test_a_tick_comes_when_a_trajectory_starts(bench, delay_s):
    """Or half a period after the last tick; it does not wait for a whole one."""
    bench.run(0.02)
    path = bench.path([0.5, 0.3, 0.0, 0.0], 0.5, delay_s)
    delay = round(bench.controller.config.command_delay_s * 1e9)
    times: list[int] = []
    bench.loop.on_tick = lambda t, s, m: times.append(t)
    bench.loop.call(lambda now: bench.controller.offer(path, now))
    bench.run(0.03)
    start = path.capture_stamp_ns + round(path.times_s[0] * 1e9) - delay
    assert 0 <= min(t for t in times if t >= start) - start <= 2_000_000
    assert (np.diff(times) >= 2_000_000).all() and (np.diff(times) <= 4_000_000).all()


def test_a_nudge_ends_the_sleep_of_the_wall_clock():
    clock = WallClock()
    clock.nudge()
    clock.nudge()
    assert not clock.sleep_until(clock.now_ns() + 60_000_000_000), "noticed although it came before the sleep"
    threading.Timer(0.01, clock.nudge).start()
    assert not clock.sleep_until(clock.now_ns() + 60_000_000_000)
    assert clock.sleep_until(clock.now_ns() + 1_000_000), "each is noticed once"


def test_a_broken_adapter_is_opened_again_and_told_once(gantry):
    bench = Bench(gantry)
    bench.bus.open_error = "adapter is not there"
    bench.run(1.0)
    assert bench.controller.state is State.DISCONNECTED and "not there" in bench.controller.reason
    assert [text for _, text in bench.events] == ["adapter is not there"]
    bench.bus.open_error = ""
    assert bench.run(1.0, lambda: bench.controller.state is State.READY)


def test_boards_are_checked_again_until_they_fit(gantry, monkeypatch):
    from tt_control import loop

    monkeypatch.setattr(loop, "AUDIT_AGAIN_S", 0.0)
    bench = Bench(gantry, servo__timeout_mode=0)
    bench.run(0.1)
    assert bench.controller.state is State.CONNECTED
    told = [text for _, text in bench.events]
    assert (
        len(told) == 1
        and "z: gravity loads this joint" in told[0]
        and "conf set servo.timeout_mode 12" in told[0]
    )
    for board in bench.boards.boards:
        board.set_config("servo.timeout_mode", 12)
    assert bench.run(0.5, lambda: bench.controller.state is State.READY)


def test_the_thread_ends_although_the_clock_stands_still(gantry):
    """A simulated clock that stopped must not keep the process."""
    from tt_control.loop import MotorLoop

    bench = Bench(gantry)
    loop = MotorLoop(bench.bus, bench.controller, PolledClock(lambda: 1_000_000_000))
    loop.start()
    assert loop.stop()


def test_polled_clock_follows_its_source_and_notices_a_step_back():
    source = [10_000_000_000]
    clock = PolledClock(lambda: source[0], poll_s=0.0001)
    done = threading.Event()

    def sleeper() -> None:
        clock.sleep_until(10_004_000_000)
        done.set()

    thread = threading.Thread(target=sleeper)
    thread.start()
    source[0] = 10_003_000_000
    assert not done.wait(0.02)
    source[0] = 10_004_000_000
    assert done.wait(5.0)
    thread.join()
    source[0] = 1_000_000_000
    clock.now_ns()
    assert clock.jumps() == 1


def test_wall_clock_sleeps_to_the_deadline_and_is_system_time():
    clock = WallClock()
    assert abs(clock.now_ns() - time.time_ns()) < 50_000_000
    deadline = clock.now_ns() + 5_000_000
    assert clock.sleep_until(deadline)
    assert clock.now_ns() >= deadline - 100_000 and clock.jumps() == 0


def test_wall_clock_counts_a_step_of_the_system_time(monkeypatch):
    clock = WallClock()
    real = time.time_ns
    monkeypatch.setattr(time, "time_ns", lambda: real() + 3_600_000_000_000)
    assert clock.now_ns() == pytest.approx(real() + 3_600_000_000_000, abs=1e9)
    assert clock.jumps() == 1


def test_real_time_options_fail_with_words_not_exceptions():
    result: list[list[str]] = []

    def work() -> None:
        result.append(enter_real_time(RealTimeOptions(cpu=4000, priority=0, freeze_gc=False)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert len(result[0]) == 1 and f"0 to {os.cpu_count() - 1}" in result[0][0]


def test_short_slices_change_neither_policy_nor_niceness():
    result: list[tuple[int, int]] = []

    def work() -> None:
        ask_for_short_slices()
        here = threading.get_native_id()
        result.append((os.sched_getscheduler(here), os.getpriority(os.PRIO_PROCESS, here)))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert result == [(os.SCHED_OTHER, os.getpriority(os.PRIO_PROCESS, 0))]


def test_stopping_brakes_first(bench):
    bench.offer(bench.path([0.5, 0.3, 0.0, 0.0], 0.4))
    bench.run(0.2)
    assert abs(bench.qd()[0]) > 0.5
    speeds = []
    bench.loop.on_tick = lambda t, s, m: speeds.append(abs(m.vel[0]))
    bench.loop.leave()
    assert speeds[-1] < 0.03 and len(speeds) > 5


@pytest.mark.parametrize(("late_s", "code"), [(1e-4, 0), (2e-3, 1)])
def test_bench_loop_judges_what_the_motor_node_said(monkeypatch, capsys, late_s, code):
    from tt_bringup.cli import _guarded
    from tt_bringup.commands import bench_loop

    stats = LoopStats(0.004)
    stats.begin_run()
    for _ in range(1000):
        stats.add(late_s=late_s, period_s=4e-3, cycle_s=5e-4, work_s=7e-4, skipped=0)
    values = {**stats.values(), "cpu_shares": {"sim_node": 0.1, "motor_node": 0.15}}
    monkeypatch.setattr(bench_loop, "_measure", lambda *_: values)
    assert _guarded(["bench", "loop", "--seconds", "5"]) == code
    page = capsys.readouterr().out
    assert "1000 ticks done, 0 lost (100.000 % done)\nof a core: motor_node 15.0 %, sim_node 10.0 %" in page
