"""Referee: each way a ball can end, judged from its contacts."""

from __future__ import annotations

import numpy as np
import pytest

from tt_estimation.ball_models import NOMINAL
from tt_perception.table import NET_HEIGHT_M
from tt_sim.ball import Ball, BallContact, Surface, racket_sample
from tt_sim.referee import Cause, Outcome, Referee

ZERO = np.zeros(3)
IN_FLIGHT = np.zeros(9)


def contact(surface, x, y, z=0.02, normal=(0, 0, 1), t=0.1, vel=(0, 1, -2), point=(0, 0.007, 0)):
    return BallContact(
        t,
        surface,
        np.array([x, y, z]),
        np.array(vel, float),
        ZERO,
        ZERO,
        np.array(normal, float),
        np.array(point),
    )


BOUNCE = contact(Surface.TABLE, 0.1, -0.8)
HIT = contact(Surface.RACKET, 0, -1.5, 0.3, (0, 1, 0), point=(0.03, 0.007, -0.04))


def judge(*contacts):
    referee = Referee()
    referee.start(7, 0.0)
    for c in contacts:
        result = referee.update(c.time_s, IN_FLIGHT, [c])
        if result is not None:
            return result
    return referee.update(10.0, IN_FLIGHT, [])


@pytest.mark.parametrize(
    ("contacts", "outcome", "cause"),
    [
        ((BOUNCE, HIT, contact(Surface.TABLE, 0.2, 0.9)), Outcome.RETURNED, Cause.LANDED),
        (
            (BOUNCE, HIT, contact(Surface.NET, 0, 0, 0.17), contact(Surface.TABLE, 0.2, 0.3)),
            Outcome.RETURNED,
            Cause.LANDED,
        ),
        (
            (BOUNCE, HIT, contact(Surface.NET, 0, -0.02, 0.1), contact(Surface.TABLE, 0.2, -0.1)),
            Outcome.NET,
            Cause.INTO_NET,
        ),
        ((BOUNCE, HIT, contact(Surface.TABLE, 0.2, -0.5)), Outcome.OUT, Cause.OWN_HALF),
        ((BOUNCE, HIT, contact(Surface.FLOOR, 0.2, 2.5, -0.74, vel=(0, 5, -4))), Outcome.OUT, Cause.BEYOND),
        ((BOUNCE, HIT, contact(Surface.FLOOR, 1.8, 0.5, -0.74, vel=(5, 1, -4))), Outcome.OUT, Cause.SIDE),
        ((BOUNCE, HIT, contact(Surface.FLOOR, 1.8, -1.5, -0.74)), Outcome.OUT, Cause.SHORT),
        (
            (BOUNCE, HIT, contact(Surface.TABLE, 0.2, 1.39, -0.005, normal=(0, 1, 0))),
            Outcome.OUT,
            Cause.BEYOND,
        ),
        ((HIT,), Outcome.OUT, Cause.VOLLEY),
        ((BOUNCE, contact(Surface.FLOOR, 0, -2.5, -0.74)), Outcome.MISSED, Cause.PASSED),
        ((BOUNCE, contact(Surface.TABLE, 0, -1.2)), Outcome.MISSED, Cause.SECOND_BOUNCE),
        ((contact(Surface.TABLE, 0, 0.5), contact(Surface.FLOOR, 0, 2, -0.74)), Outcome.NOT_PLAYABLE, None),
        (
            (contact(Surface.NET, 0, 0.02, 0.1), contact(Surface.FLOOR, 0, 2, -0.74)),
            Outcome.NOT_PLAYABLE,
            None,
        ),
        ((contact(Surface.FLOOR, 0, -2.5, -0.74),), Outcome.NOT_PLAYABLE, Cause.SERVED_OUT),
        # A serve: the opponent's half first.
        (
            (contact(Surface.TABLE, 0, 0.8), BOUNCE, HIT, contact(Surface.TABLE, 0, 0.7)),
            Outcome.RETURNED,
            Cause.LANDED,
        ),
        ((), Outcome.NOT_PLAYABLE, Cause.TIMEOUT),
        ((BOUNCE,), Outcome.MISSED, Cause.TIMEOUT),
        ((BOUNCE, HIT), Outcome.OUT, Cause.TIMEOUT),
    ],
)
def test_verdicts(contacts, outcome, cause):
    result = judge(*contacts)
    assert result.outcome is outcome
    assert cause is None or result.cause is cause
    assert result.hit == any(c.surface is Surface.RACKET for c in contacts)


def test_returned_ball_reports_landing_aim_error_and_offset():
    result = judge(BOUNCE, HIT, contact(Surface.TABLE, 0.3, 1.15))
    assert result.landing_table == (0.3, 1.15)
    assert result.aim_error_m == pytest.approx(0.5)
    assert result.contact_offset_m == (0.03, -0.04)
    assert result.as_json()["contact_offset_m"] == 0.05
    assert not result.edge_contact
    assert result.bounce_table == (0.1, -0.8)


def test_landing_beyond_the_table_is_given_at_table_height():
    """The floor is 0.74 m lower: the landing is where the ball passed table height before."""
    fall = contact(Surface.FLOOR, 0.2, 3.0, -0.74, t=1.0, vel=(0.0, 5.0, -4.5))
    result = judge(BOUNCE, HIT, fall)
    back = (4.5 - np.sqrt(4.5**2 - 2 * 9.81 * 0.76)) / 9.81
    assert result.landing_table == pytest.approx((0.2, 3.0 - 5.0 * back))


def test_edge_contact_is_told_from_a_face_contact():
    edge = contact(Surface.RACKET, 0, -1.5, 0.3, (0, 0, 1), point=(0.03, 0.002, 0.08))
    assert judge(BOUNCE, edge, contact(Surface.TABLE, 0, 1)).edge_contact


def test_missed_ball_reports_the_gap():
    ball = Ball(NOMINAL)
    ball.reset(np.array([0.3, -1.0, 0.3, 0, -5.0, 1, 0, 0, 0]))
    racket = racket_sample(np.array([0.0, -1.55, 0.35]))
    referee = Referee()
    referee.start(1, 0.0)
    referee.update(0.0, ball.state, [BOUNCE])
    result = None
    while result is None:
        contacts = ball.advance(0.001, racket, racket)
        result = referee.update(ball.time_s, ball.state, contacts, ball.closest_racket)
    assert result.outcome is Outcome.MISSED
    assert result.miss_m == pytest.approx(0.3 - 0.075 - 0.02, abs=0.001)
    assert result.as_json()["landing_m"] is None


def test_net_clearance_is_the_height_of_the_ball_over_the_cord():
    referee = Referee()
    referee.start(1, 0.0)
    below = np.array([0, -0.01, 0.30, 0, 5, 0, 0, 0, 0.0])
    beyond = np.array([0, 0.01, 0.32, 0, 5, 0, 0, 0, 0.0])
    referee.update(0.1, below, [BOUNCE, HIT])
    referee.update(0.2, beyond, [])
    result = referee.update(0.3, beyond, [contact(Surface.TABLE, 0, 1)])
    assert result.net_clearance_m == pytest.approx(0.31 - 0.02 - NET_HEIGHT_M)


def test_a_ball_whose_state_is_not_finite_ends():
    referee = Referee()
    referee.start(1, 0.0)
    assert referee.update(0.1, np.full(9, np.nan), []).outcome is Outcome.NOT_PLAYABLE
