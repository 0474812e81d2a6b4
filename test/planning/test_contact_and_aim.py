"""Racket contact: exact inverse and Jacobians. Aiming: lands on the aim in the model."""

import numpy as np
import pytest

from tt_estimation.ball_models import DEEPMIND, MATCH, NOMINAL
from tt_estimation.events import FLOOR, NET, STEP_S, TABLE, next_event
from tt_planning import racket_contact as rc
from tt_planning.aiming import AimReason, solve_aim

MODELS = (NOMINAL, DEEPMIND, MATCH, NOMINAL.with_values(racket_restitution_slope=-0.01))


def strokes(count=40):
    """Incoming balls and wanted outgoing velocities of ordinary returns."""
    rng = np.random.default_rng(7)
    for _ in range(count):
        vel = np.array([0.6 * rng.normal(), -rng.uniform(1.5, 8.0), rng.normal()])
        spin = 60.0 * rng.normal(size=3)
        wanted = np.array([0.5 * rng.normal(), rng.uniform(3.0, 6.0), rng.uniform(1.5, 4.0)])
        yield vel, spin, wanted


@pytest.mark.parametrize("model", MODELS, ids=lambda m: f"{m.name}{m.racket_restitution_slope}")
def test_inverse_gives_the_wanted_velocity(model):
    """The stroke, put through the forward law, gives what was asked for; the face moves along its normal
    only.
    """
    solved = 0
    for vel, spin, wanted in strokes():
        stroke = rc.solve_stroke(vel, spin, wanted, model)
        if stroke.reason is not rc.ContactReason.OK:
            assert np.isnan(stroke.normal).all()
            continue
        solved += 1
        got, _ = rc.outgoing(vel, spin, stroke.normal, stroke.face_vel, model)
        np.testing.assert_allclose(got, wanted, atol=1e-7)
        np.testing.assert_allclose(np.cross(stroke.normal, stroke.face_vel), 0.0, atol=1e-7)
    assert solved >= 38


def test_inverse_for_a_given_normal():
    """Any normal near the natural one has its own face velocity; one that pushes the wrong way is refused."""
    for vel, spin, wanted in strokes(20):
        normal = wanted - vel + np.array([0.3, 0.0, -0.4])
        stroke = rc.solve_stroke(vel, spin, wanted, NOMINAL, normal)
        if stroke.reason is rc.ContactReason.OK:
            got, _ = rc.outgoing(vel, spin, stroke.normal, stroke.face_vel, NOMINAL)
            np.testing.assert_allclose(got, wanted, atol=1e-9)
        refused = rc.solve_stroke(vel, spin, wanted, NOMINAL, vel - wanted)
        assert refused.reason is rc.ContactReason.NO_PUSH


def test_friction_that_cannot_turn_the_ball_is_a_reason():
    """A sideways change beyond what Coulomb friction transmits."""
    stroke = rc.solve_stroke(
        np.array([0.0, -1.0, 0.0]), np.zeros(3), np.array([6.0, 0.5, 0.0]), NOMINAL, np.array([0.0, 1.0, 0.0])
    )
    assert stroke.reason is rc.ContactReason.FRICTION


@pytest.mark.parametrize("friction", [0.5, 0.02])
def test_jacobians_agree_with_finite_differences(friction):
    """On the rolling branch (high friction) and on the sliding one (low)."""
    model = NOMINAL.with_values(racket_friction=friction, racket_restitution_slope=-0.01)
    rng = np.random.default_rng(3)
    h = 1e-6
    for vel, spin, wanted in strokes(20):
        normal = (wanted - vel) / np.linalg.norm(wanted - vel)
        face = 0.7 * normal + 0.3 * rng.normal(size=3)
        jac = rc.jacobians(vel, spin, normal, face, model)
        args = [vel, spin, normal, face]
        for which in (0, 1, 3):
            for axis in range(3):
                step = np.zeros(3)
                step[axis] = h
                ends = []
                for sign in (1.0, -1.0):
                    moved = list(args)
                    moved[which] = args[which] + sign * step
                    ends.append(rc.outgoing(*moved, model)[0])
                np.testing.assert_allclose((ends[0] - ends[1]) / (2 * h), jac[which][:, axis], atol=2e-5)
        tangent = np.cross(normal, rng.normal(size=3))
        ends = []
        for sign in (1.0, -1.0):
            turned = normal + sign * h * tangent
            ends.append(rc.outgoing(vel, spin, turned / np.linalg.norm(turned), face, model)[0])
        np.testing.assert_allclose((ends[0] - ends[1]) / (2 * h), jac[2] @ tangent, atol=2e-4)


def test_edge_distance():
    """Positive on the blade, negative outside."""
    assert rc.edge_distance(np.array([0.0, 0.0]), 0.15, 0.16) == pytest.approx(0.075)
    assert rc.edge_distance(np.array([0.08, 0.0]), 0.15, 0.16) == pytest.approx(-0.005)


@pytest.mark.parametrize("model", (NOMINAL, DEEPMIND, MATCH), ids=lambda m: m.name)
def test_aim_lands_within_a_millimetre(model):
    """Judged by the event-based flight with a hundred times finer steps, over the net and untouched by it."""
    rng = np.random.default_rng(11)
    for _ in range(20):
        pos = np.array([0.4 * rng.normal(), -1.55, rng.uniform(0.05, 0.5)])
        spin = np.array([-60.0, 0.0, 0.0]) + 20.0 * rng.normal(size=3)
        target = np.array([rng.uniform(-0.6, 0.6), rng.uniform(0.4, 1.2)])
        aim = solve_aim(pos, spin, target, model)
        assert aim.reason is AimReason.OK
        out = np.empty(9)
        start = np.concatenate([pos, aim.vel_table, spin])
        code, t = next_event(start, model.params, 3.0, STEP_S / 10, TABLE | NET | FLOOR, 0.0, out)
        assert code == TABLE
        assert np.hypot(*(out[:2] - target)) < 1e-3
        assert t == pytest.approx(aim.flight_time_s, abs=1e-3)
        assert aim.net_clearance_m >= 0.03


def test_aim_that_cannot_be_reached_has_a_reason():
    """Off the table, not finite, no time, and under the net."""
    pos, spin = np.array([0.0, -1.55, 0.2]), np.zeros(3)
    assert solve_aim(pos, spin, np.array([0.0, 1.5]), NOMINAL).reason is AimReason.OFF_TABLE
    assert solve_aim(pos, spin, np.array([0.9, 0.7]), NOMINAL).reason is AimReason.OFF_TABLE
    assert solve_aim(pos, spin, np.array([np.nan, 0.7]), NOMINAL).reason is AimReason.NOT_FINITE
    low = solve_aim(pos, spin, np.array([0.0, 0.3]), NOMINAL, flight_time_s=0.2)
    assert low.reason is AimReason.NET
    assert np.isnan(low.vel_table).all()
    fast = solve_aim(pos, spin, np.array([0.0, 1.3]), NOMINAL, flight_time_s=0.1, max_speed_mps=8.0)
    assert fast.reason in (AimReason.TOO_FAST, AimReason.NET)
