"""Ball in the simulated world: exact contacts, nothing stepped over, restitution as the model says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tt_estimation.ball_models import DEEPMIND, MATCH, NOMINAL
from tt_perception.table import BALL_RADIUS_M, NET_HEIGHT_M, TABLE_LENGTH_M, TABLE_WIDTH_M
from tt_sim.ball import Ball, Surface, racket_sample
from tt_sim.ball_file import world_model
from tt_sim.errors import SimError

STEP_S = 0.001


def fly(ball: Ball, seconds: float, step_s: float = STEP_S):
    contacts = []
    for _ in range(round(seconds / step_s)):
        contacts += ball.advance(step_s)
    return contacts


def served(state, model=NOMINAL) -> Ball:
    ball = Ball(model)
    ball.reset(np.asarray(state, float))
    return ball


def test_first_bounce_of_the_reference_ball():
    contacts = fly(served([0, 1.2, 0.25, 0, -6, 1, 0, 0, 0]), 0.5)
    assert contacts[0].surface is Surface.TABLE
    assert contacts[0].pos_table[1] == pytest.approx(-0.616, abs=0.0005)
    assert contacts[0].time_s == pytest.approx(0.343, abs=0.0005)


@pytest.mark.parametrize(
    # Topspin 150 rad/s (+27.2 cm) clips the net, which the reference leaves out.
    ("spin", "shift_m"),
    [(50, 0.103), (100, 0.193), (-50, -0.118), (-100, -0.256), (-150, -0.418)],
)
def test_spin_shifts_the_first_bounce(spin, shift_m):
    base = fly(served([0, 1.2, 0.25, 0, -6, 1, 0, 0, 0]), 0.6)[0].pos_table[1]
    spun = fly(served([0, 1.2, 0.25, 0, -6, 1, spin, 0, 0]), 0.6)[0].pos_table[1]
    assert spun - base == pytest.approx(shift_m, abs=0.002)


def test_drop_test_rebounds_as_published():
    ball = served([0, 0.5, 0.30 + BALL_RADIUS_M, 0, 0, 0, 0, 0, 0])
    heights = []
    bounced = False
    for _ in range(500):
        bounced = bool(ball.advance(STEP_S)) or bounced
        heights.append(ball.state[2] if bounced else 0.0)
    assert max(heights) - BALL_RADIUS_M == pytest.approx(0.215, abs=0.001)


@pytest.mark.parametrize("model", [NOMINAL, DEEPMIND, MATCH])
@pytest.mark.parametrize("speed", [0.5, 2.0, 5.0, 10.0, 20.0, 30.0])
def test_restitution_on_table_and_racket_at_every_speed(model, speed):
    ball = served([0.2, -0.6, 0.05, 0, 0, -speed, 0, 0, 0], model)
    hit = next(c for _ in range(300) for c in ball.advance(STEP_S))
    assert -hit.vel_after[2] / hit.vel_before[2] == pytest.approx(model.table_restitution, rel=1e-9)

    ball = served([0.0, -1.51, 0.3, 0, -speed, 0, 0, 0, 0], model)
    racket = racket_sample(np.array([0.0, -1.55, 0.3]))
    hit = next(c for _ in range(300) for c in ball.advance(STEP_S, racket, racket))
    assert hit.surface is Surface.RACKET
    assert -hit.vel_after[1] / hit.vel_before[1] == pytest.approx(model.racket_restitution, rel=1e-9)


def test_restitution_slope_is_applied():
    model = NOMINAL.with_values(table_restitution=0.9, table_restitution_slope=-0.02)
    ball = served([0.2, -0.6, 0.05, 0, 0, -5.0, 0, 0, 0], model)
    hit = ball.advance(0.02)[0]
    speed = -hit.vel_before[2]
    assert hit.vel_after[2] / speed == pytest.approx(0.9 - 0.02 * speed, rel=1e-9)


@settings(max_examples=150, deadline=None)
@given(
    direction=st.tuples(*[st.floats(-1, 1)] * 3).filter(lambda d: np.linalg.norm(d) > 0.2),
    speed=st.floats(0.5, 30.0),
    target=st.tuples(*[st.floats(-0.95, 0.95)] * 3),
    racket_dir=st.tuples(*[st.floats(-1, 1)] * 3),
    spin=st.floats(-20, 20),
    step_s=st.sampled_from([0.0005, 0.001, 0.002, 0.004]),
    model=st.sampled_from([NOMINAL, MATCH]),
)
def test_no_tunnelling_through_a_moving_racket(direction, speed, target, racket_dir, spin, step_s, model):
    """A ball whose straight path ends inside the blade must touch it, whatever both speeds and the step."""
    d = np.asarray(direction) / np.linalg.norm(direction)
    racket_vel = 6.0 * np.asarray(racket_dir)
    relative = np.linalg.norm(speed * d - racket_vel)
    if relative < 2.0:
        return
    lead_s = 0.2 / relative  # both start apart and meet after this time
    centre = np.array([0.1, -1.5, 0.4])
    half = np.array([0.075, 0.007, 0.08])
    inside = centre + np.asarray(target) * half
    ball = served(np.r_[inside - speed * d * lead_s, speed * d, 0, 0, 0], model)

    def racket(t):
        angle = spin * (t - lead_s)
        c, s = np.cos(angle), np.sin(angle)
        rotation = np.array([[1, 0, 0], [0, c, -s], [0, s, c]])
        vel = racket_vel
        return racket_sample(centre + racket_vel * (t - lead_s), rotation, vel, np.array([spin, 0, 0]))

    t, touched = 0.0, False
    while t < 1.6 * lead_s + 4 * step_s and not touched:
        touched = any(
            c.surface is Surface.RACKET for c in ball.advance(step_s, racket(t), racket(t + step_s))
        )
        t += step_s
    # Gravity and drag (0.135/m · v²) take the ball away from the aimed point; its own radius absorbs a little of it.
    if 0.5 * (9.81 + 0.14 * speed**2) * lead_s**2 < 0.005:
        assert touched


@pytest.mark.parametrize("face", [1, -1])
def test_moving_racket_returns_the_ball_with_its_own_speed_on_both_faces(face):
    """Normal: v' − v_r = −e (v − v_r)."""
    ball = served([0, -1.5 + face * 0.05, 0.3, 0, -face * 5.0, 0, 0, 0, 0])
    vel = np.array([0.0, face * 3.0, 0.0])
    contacts = []
    for k in range(20):
        start = racket_sample(np.array([0, -1.55, 0.3]) + vel * k * STEP_S, None, vel)
        end = racket_sample(np.array([0, -1.55, 0.3]) + vel * (k + 1) * STEP_S, None, vel)
        if face < 0:
            start[1] += 0.1
            end[1] += 0.1
        contacts += ball.advance(STEP_S, start, end)
    assert len(contacts) == 1
    before = contacts[0].vel_before[1] - vel[1]
    after = contacts[0].vel_after[1] - vel[1]
    assert after == pytest.approx(-0.8 * before, rel=1e-9)
    assert contacts[0].normal_table[1] == pytest.approx(face)


def test_swinging_racket_hits_with_the_speed_of_the_contact_point():
    """A blade that turns about its centre strikes with ω × r where the ball is."""
    omega = np.array([10.0, 0.0, 0.0])  # the upper half moves to −y
    height = 0.05
    ball = served([0, -1.45, 0.3 + height, 0, -5.0, 0, 0, 0, 0])
    contacts = []
    for k in range(30):
        samples = []
        for j in (k, k + 1):
            a = 10.0 * (j - 15) * STEP_S
            rotation = np.array([[1, 0, 0], [0, np.cos(a), -np.sin(a)], [0, np.sin(a), np.cos(a)]])
            samples.append(racket_sample(np.array([0, -1.55, 0.3]), rotation, np.zeros(3), omega))
        contacts += ball.advance(STEP_S, *samples)
    hit = contacts[0]
    point = hit.pos_table - BALL_RADIUS_M * hit.normal_table - np.array([0, -1.55, 0.3])
    surface = np.cross(omega, point) @ hit.normal_table
    before, after = hit.vel_before @ hit.normal_table, hit.vel_after @ hit.normal_table
    assert after - surface == pytest.approx(-0.8 * (before - surface), rel=1e-4)
    assert surface < -0.3


def test_a_ball_beside_the_blade_passes_and_reports_the_gap():
    ball = served([0.075 + BALL_RADIUS_M + 0.003, -1.3, 0.3, 0, -10.0, 0, 0, 0, 0])
    racket = racket_sample(np.array([0.0, -1.55, 0.3]))
    contacts = [c for _ in range(40) for c in ball.advance(STEP_S, racket, racket)]
    gap, point, in_table = ball.closest_racket
    assert contacts == []
    assert gap == pytest.approx(0.003, abs=0.0002)
    assert point[0] == pytest.approx(0.098, abs=0.0002)
    assert in_table - point == pytest.approx([0.0, -1.55, 0.3])


def test_blade_edge_contact_leaves_along_the_edge_normal():
    ball = served([0.0, -1.55, 0.3 + 0.08 + 0.1, 0, 0, -5.0, 0, 0, 0])
    racket = racket_sample(np.array([0.0, -1.55, 0.3]))
    hit = next(c for _ in range(60) for c in ball.advance(STEP_S, racket, racket))
    assert hit.normal_table == pytest.approx([0, 0, 1])
    assert abs(hit.racket_point[2]) == pytest.approx(0.08)


def test_table_edge_and_side():
    edge_y = TABLE_LENGTH_M / 2
    over = served([0, edge_y + 0.012, 0.1, 0, 0, -3.0, 0, 0, 0])  # centre beyond the edge, ball over it
    hit = fly(over, 0.1)[0]
    assert hit.surface is Surface.TABLE
    assert 0.5 < hit.normal_table[2] < 1.0
    assert hit.normal_table[1] > 0.3
    side = served([0, edge_y + 0.1, -0.012, 0, -5.0, 0, 0, 0, 0])
    hit = fly(side, 0.05)[0]
    assert hit.normal_table == pytest.approx([0, 1, 0], abs=1e-6)
    past = served([TABLE_WIDTH_M / 2 + BALL_RADIUS_M + 0.001, 0.5, 0.1, 0, 0, -3, 0, 0, 0])
    assert fly(past, 0.3)[0].surface is Surface.FLOOR


@pytest.mark.parametrize("speed", [3.0, 12.0, 30.0])
def test_net_stops_the_ball_and_its_cord_can_be_cleared(speed):
    low = served([0, 0.1, NET_HEIGHT_M - 0.02, 0, -speed, 0, 0, 0, 0])
    contacts = fly(low, 0.5)
    assert contacts[0].surface is Surface.NET
    assert low.state[1] > 0.0
    over = served([0, 0.1, NET_HEIGHT_M + BALL_RADIUS_M + 0.02, 0, -speed, 0.3, 0, 0, 0])
    assert all(c.surface is not Surface.NET for c in fly(over, 0.05))


@pytest.mark.parametrize("step_s", [0.0005, 0.002, 0.004, 0.01])
def test_contacts_do_not_depend_on_the_step(step_s):
    state = [0.1, 1.2, 0.25, 0.4, -7, 1.2, 60, 10, -20]
    fine, coarse = (fly(served(state, MATCH), 1.2, s) for s in (0.001, step_s))
    assert [c.surface for c in fine[:2]] == [c.surface for c in coarse[:2]]
    assert coarse[0].time_s == pytest.approx(fine[0].time_s, abs=1e-7)
    assert coarse[1].pos_table == pytest.approx(fine[1].pos_table, abs=1e-5)


def test_energy_never_rises_without_a_racket():
    ball = served([0.1, 1.0, 0.4, 0.3, -5, 2, 80, -30, 20], MATCH)

    def energy():
        v, w = ball.state[3:6], ball.state[6:]
        return 9.81 * ball.state[2] + 0.5 * v @ v + 0.5 * (2 / 3) * BALL_RADIUS_M**2 * (w @ w)

    last = energy()
    for _ in range(3000):
        ball.advance(STEP_S)
        now = energy()
        assert now <= last + 1e-9
        last = now
    assert np.isfinite(ball.state).all()


def test_unknown_world_names_the_known_ones():
    with pytest.raises(SimError, match=r"moon.*nominal, deepmind, match"):
        world_model("moon")
