"""Inputs that waited are passed over, but never all of them."""

from __future__ import annotations

from tt_planning.backlog import Backlog

MS = 1_000_000


def test_usual_inputs_are_never_passed_over() -> None:
    backlog = Backlog()
    assert not any(backlog.is_behind((32 + k % 3) * MS) for k in range(200))


def test_after_a_pause_only_the_newest_counts() -> None:
    backlog = Backlog()
    for _ in range(50):
        backlog.is_behind(32 * MS)
    # A pause of 40 ms: five inputs wait, each 8.3 ms younger than the one before.
    waited = [backlog.is_behind(round((72 - 8.3 * k) * MS)) for k in range(5)]
    assert waited == [True, True, True, True, False]


def test_when_everything_becomes_slower_decisions_go_on() -> None:
    backlog = Backlog()
    for _ in range(50):
        backlog.is_behind(32 * MS)
    slower = [backlog.is_behind(60 * MS) for _ in range(300)]
    assert slower.count(False) > 30
    assert not any(slower[-100:])
