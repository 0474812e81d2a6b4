"""Simulated time waits for rendered images, and finds the rate that the machine sustains."""

from __future__ import annotations

import pytest

from tt_sim.pace import AUTOMATIC, SLOWEST, ImageGate, Pace

MS = 1_000_000


def run(pace, seconds, held_share=0.0, state_age_ns=0, start_s=0.0):
    """One call of `update` per millisecond of wall time."""
    for step in range(round(1000 * seconds)):
        pace.held(0.001 * held_share)
        if step % 16 == 0:
            pace.state(state_age_ns)
        pace.update(start_s + 0.001 * step)


def test_a_machine_that_keeps_up_runs_in_real_time():
    pace = Pace(AUTOMATIC, 0.0)
    run(pace, 5.0, held_share=0.02, state_age_ns=4 * MS)
    assert pace.rate == 1.0


@pytest.mark.parametrize(
    "trouble", [{"held_share": 0.2}, {"state_age_ns": 25 * MS}], ids=["images missing", "states late"]
)
def test_a_slow_machine_gets_slower_time_and_recovers(trouble):
    pace = Pace(AUTOMATIC, 0.0)
    run(pace, 2.0, **trouble)
    slow = pace.rate
    assert SLOWEST <= slow < 0.5
    pace.update(2.3)  # what is left of the last window
    slow = pace.rate
    pace.update(2.6)
    assert pace.rate == slow, "a pause without a ball says nothing"
    run(pace, 5.0, start_s=2.6)
    assert slow < pace.rate < slow + 0.4, "faster again, but slowly"
    run(pace, 60.0, start_s=7.6)
    assert pace.rate == 1.0


def test_the_slowest_rate_is_bounded_and_a_fixed_rate_stays():
    pace = Pace(AUTOMATIC, 0.0)
    run(pace, 60.0, held_share=0.9)
    assert pace.rate == SLOWEST
    fixed = Pace(0.5, 0.0)
    run(fixed, 5.0, held_share=0.9)
    assert fixed.rate == 0.5


def test_the_clock_waits_for_every_camera_that_takes_part():
    gate = ImageGate(("a", "b"), delay_ns=30 * MS, period_ns=16 * MS)
    start = 1000 * MS
    for name in ("a", "b"):
        assert not gate.has_heard_all, "a ball served now would not be seen by all"
        gate.delivered(name, start)
    assert gate.has_heard_all
    gate.expose(start + 16 * MS)
    assert gate.missing(start + 45 * MS) == ()  # not due yet
    assert gate.missing(start + 50 * MS) == ("a", "b")
    gate.delivered("a", start + 16 * MS)
    assert gate.missing(start + 50 * MS) == ("b",)
    gate.delivered("b", start + 16 * MS)
    assert gate.missing(start + 50 * MS) == ()


def test_cameras_that_are_not_there_are_not_waited_for():
    gate = ImageGate(("a", "b"), delay_ns=30 * MS, period_ns=16 * MS)
    assert gate.missing(5000 * MS) == ()
    gate.delivered("a", 5000 * MS)
    late = 5000 * MS + 30 * MS + 3 * MS + 2 * 16 * MS + MS
    assert gate.missing(late) == ("a",), "it keeps its rhythm without a ball"
    gate.give_up(("a",))
    assert gate.missing(late) == ()
    gate.delivered("a", late)
    assert gate.missing(late + 40 * MS) == ()
