"""Trajectories on their way in: what is refused, how paths are spliced, what the limiter lets through."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tt_control.brake import Brake
from tt_control.config import ControlConfig
from tt_control.follower import PathFollower, fade
from tt_control.intake import Refused, accept
from tt_control.jog import Jogger, jog_path
from tt_control.limits import SetpointLimiter
from tt_planning.trajectory import TrajectoryGenerator, sample
from tt_planning.types import JointTrajectory

NOW = 1_000_000_000_000
LINEAR = np.array([True, True, False, False])


def path(gantry, **changes):
    q = np.array([gantry.home, gantry.ready])
    plain = JointTrajectory(
        NOW, gantry.joint_names, np.array([0.01, 0.5]), q, np.zeros((2, 4)), np.zeros((2, 4))
    )
    return replace(plain, **changes)


def test_a_good_trajectory_is_accepted(gantry):
    assert accept(path(gantry), gantry, ControlConfig(), NOW).joint_names == gantry.joint_names


def test_joints_count_by_name_not_by_order(gantry):
    order = [2, 0, 3, 1]
    good = path(gantry)
    mixed = replace(good, joint_names=tuple(gantry.joint_names[k] for k in order), pos=good.pos[:, order])
    assert accept(mixed, gantry, ControlConfig(), NOW).pos == pytest.approx(good.pos)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"joint_names": ("x", "z", "yaw", "pich")}, "joint 'pich' is unknown; did you mean 'pitch'"),
        ({"joint_names": ("x", "z", "yaw", "yaw")}, "named twice"),
        ({"joint_names": ("x", "z", "yaw")}, "it lacks pitch"),
        ({"times_s": np.array([0.5, 0.01])}, "ascending"),
        ({"times_s": np.array([0.1, 0.1])}, "ascending"),
        ({"times_s": np.array([0.1, np.nan])}, "finite and ascending"),
        ({"times_s": np.array([0.1])}, "pos has shape (2, 4)"),
        ({"vel": np.zeros((2, 3))}, "vel has shape (2, 3)"),
        ({"acc": np.full((2, 4), np.inf)}, "acc holds a number that is not finite"),
        ({"pos": np.array([[0, 0.1, 0, 0], [1.2, 0.1, 0, 0]])}, "knot 1 puts x at 1.2; allowed is -1 to 1"),
        ({"pos": np.array([[np.nan, 0.1, 0, 0], [0, 0.1, 0, 0]])}, "not finite"),
        ({"capture_stamp_ns": NOW - 10**9}, "ended 0.500 s ago"),
        ({"capture_stamp_ns": 0}, "clocks agree"),
        ({"capture_stamp_ns": NOW + 6 * 10**9}, "starts in 6.010 s"),
    ],
)
def test_bad_trajectories_are_refused_with_one_reason(gantry, changes, words):
    with pytest.raises(Refused) as caught:
        accept(path(gantry, **changes), gantry, ControlConfig(), NOW)
    assert words in str(caught.value) and "\n" not in str(caught.value)


# ---------------------------------------------------------------------- splicing


def follower(gantry):
    config = ControlConfig()
    made = PathFollower(gantry.max_acc, np.where(LINEAR, config.splice_linear, config.splice_angular))
    made.hold(gantry.home)
    return made


def run(made, begin_ns, seconds, period_ns=4_000_000):
    rows = []
    for k in range(round(seconds * 1e9) // period_ns):
        r = made.reference(begin_ns + k * period_ns)
        rows.append((r.q, r.qd, r.qdd))
    return np.array(rows)


def test_the_old_path_is_followed_until_the_first_knot_of_the_new_one(gantry):
    made = follower(gantry)
    first = path(gantry)
    made.offer(first)
    run(made, NOW, 0.1)
    start_ns = NOW + 200_000_000
    q, qd, qdd = sample(first, start_ns)
    second = JointTrajectory(
        NOW + 90_000_000, gantry.joint_names, np.array([0.11, 0.6]),
        np.array([q, gantry.home]), np.array([qd, 0 * qd]), np.array([qdd, 0 * qd]),
    )  # fmt: skip
    made.offer(second)
    for t in range(NOW + 100_000_000, start_ns, 4_000_000):
        assert made.reference(t).q == pytest.approx(sample(first, t)[0])
    got = made.reference(start_ns)
    assert got.started_ns == second.capture_stamp_ns and got.q == pytest.approx(q)
    assert made.reference(start_ns + 40_000_000).q == pytest.approx(sample(second, start_ns + 40_000_000)[0])


def test_replanned_swings_of_the_generator_splice_without_a_step(gantry):
    """The real partner: re-plans every 30 ms, each arriving a little later than planned."""
    made, generator = follower(gantry), TrajectoryGenerator(gantry)
    still = np.zeros(4)
    generator.set_reference(gantry.home, still, still, NOW)
    rows, t = [], NOW
    for k in range(8):
        goal = gantry.home + np.array([0.3 + 0.01 * k, 0.1, 0.1, 0.2])
        result = generator.swing(generator.start(t), goal, np.array([0, 0, 0, -3.0]), NOW + 500_000_000, t)
        assert result.trajectory is not None, result.reason
        late = 3_000_000 * (k % 3)
        for _ in range(7):
            t += 4_000_000
            if _ == 0 or late > 0:
                made.offer(result.trajectory) if _ == late // 3_000_000 else None
            r = made.reference(t)
            rows.append(np.concatenate([r.q, r.qd]))
    steps = np.abs(np.diff(np.array(rows), axis=0))
    assert (steps[:, :4] <= gantry.max_vel * 0.0041).all()
    assert (steps[:, 4:] <= 1.3 * gantry.max_acc * 0.004).all()


def test_a_late_trajectory_is_faded_in(gantry):
    made = follower(gantry)
    run(made, NOW, 0.1)
    late = path(gantry, times_s=np.array([0.02, 0.5]))  # should have begun 80 ms ago
    made.offer(late)
    rows = run(made, NOW + 100_000_000, 0.6)
    steps = np.abs(np.diff(rows[:, 0], axis=0)).max(axis=0)
    assert (steps < 0.02).all(), "no jump"
    assert rows[-1, 0] == pytest.approx(gantry.ready)
    speed_steps = np.abs(np.diff(rows[:, 1], axis=0)) / 0.004
    assert (speed_steps <= gantry.max_acc).all()


def test_a_trajectory_from_elsewhere_is_refused(gantry):
    made = follower(gantry)
    run(made, NOW, 0.05)
    away = path(
        gantry, pos=np.array([gantry.home + [0.1, 0, 0, 0], gantry.ready]), times_s=np.array([0.1, 0.5])
    )
    with pytest.raises(Refused, match="0.1 away from the path in force"):
        made.offer(away)


def test_a_newer_trajectory_replaces_one_that_waits(gantry):
    made = follower(gantry)
    run(made, NOW, 0.02)
    waiting = path(gantry, capture_stamp_ns=NOW + 1, times_s=np.array([0.2, 0.6]))
    newer = path(
        gantry, capture_stamp_ns=NOW + 2, times_s=np.array([0.1, 0.4]), pos=np.array([gantry.home] * 2)
    )
    made.offer(waiting)
    made.offer(newer)
    assert run(made, NOW + 20_000_000, 0.9)[-1, 0] == pytest.approx(gantry.home)


@given(st.floats(-0.1, 0.1), st.floats(-2, 2), st.floats(0.02, 0.4))
def test_fading_starts_at_the_difference_and_ends_at_nothing(pos, vel, duration):
    p, v = np.array([pos]), np.array([vel])
    assert [float(a[0]) for a in fade(p, v, 0.0, duration)] == pytest.approx([pos, vel, 0.0], abs=1e-9)
    assert [float(a[0]) for a in fade(p, v, duration, duration)] == pytest.approx([0.0] * 3, abs=1e-6)


# ---------------------------------------------------------------------- limits


def limiter(gantry):
    made = SetpointLimiter(gantry.lower, gantry.upper, gantry.max_vel, gantry.max_acc, 0.1)
    made.reset(gantry.home)
    return made


def test_motion_inside_the_limits_passes_unchanged(gantry):
    made, generator = limiter(gantry), TrajectoryGenerator(gantry)
    still = np.zeros(4)
    generator.set_reference(gantry.home, still, still, NOW)
    swing = generator.swing(
        generator.start(NOW),
        np.array([0.35, 0.3, 0.2, 0.2]),
        np.array([0, 0, 0, -5.0]),
        NOW + 300_000_000,
        NOW,
    )
    assert swing.trajectory is not None and swing.load > 0.5
    for k in range(300):
        wanted = sample(swing.trajectory, NOW + 8_000_000 + k * 4_000_000)
        got = made.apply(*wanted, 0.004)
        assert all((a == b).all() for a, b in zip(got[:3], wanted)) and not got[3].any()
    assert not any(made.counts.values())


@given(st.integers(0, 2**32 - 1))
@settings(max_examples=15, deadline=None)
def test_whatever_is_asked_the_limits_hold(gantry, seed):
    """Random targets, far outside too: position, velocity, acceleration and braking distance are kept."""
    rng = np.random.default_rng(seed)
    made, dt = limiter(gantry), 0.004
    q_prev, v_prev = np.array(gantry.home), np.zeros(4)
    target = np.zeros(4)
    for k in range(250):
        if k % 25 == 0:
            target = rng.uniform(1.5 * gantry.lower, 1.5 * gantry.upper)
            speed = rng.uniform(-2, 2, 4) * gantry.max_vel * (rng.random() < 0.5)
        q, v, _, _ = made.apply(target + speed * dt * (k % 25), speed, np.zeros(4), dt)
        assert (q >= gantry.lower - 1e-9).all() and (q <= gantry.upper + 1e-9).all()
        assert (np.abs(v) <= 1.1 * gantry.max_vel + 1e-9).all()
        assert (np.abs(q - q_prev) <= 1.1 * gantry.max_vel * dt + 1e-9).all()
        ahead = np.where(v > 0, gantry.upper - q, q - gantry.lower)
        assert (v**2 <= 2 * 1.1 * gantry.max_acc * ahead + 1e-6).all(), "it can still brake"
        gain = np.abs(v - v_prev) / dt
        assert (gain <= 1.1 * gantry.max_acc * 1.0001 + 1e-6).all()
        q_prev, v_prev = q, v


def test_a_step_is_caught_up_and_then_followed_exactly(gantry):
    made = limiter(gantry)
    goal, zero = np.array([0.5, 0.4, 0.8, -0.8]), np.zeros(4)
    for _ in range(500):
        q, _, _, changed = made.apply(goal, zero, zero, 0.004)
    assert q == pytest.approx(goal, abs=1e-9) and not changed.any()
    assert made.counts["step"] > 0


def test_a_joint_outside_its_limits_may_only_come_in(gantry):
    made = limiter(gantry)
    made.reset(np.array([1.01, 0.1, 0, 0]))
    zero = np.zeros(4)
    out, _, _, _ = made.apply(np.array([1.2, 0.1, 0, 0]), zero, zero, 0.004)
    assert out[0] <= 1.01
    for _ in range(300):
        out, _, _, _ = made.apply(np.array([0.9, 0.1, 0, 0]), zero, zero, 0.004)
    assert out[0] == pytest.approx(0.9)


@given(st.floats(-3, 3), st.floats(1, 40), st.floats(0.001, 0.02))
@settings(deadline=None)
def test_braking_ends_at_rest_after_the_braking_distance(speed, deceleration, dt):
    made = Brake(np.array([0.2]), np.array([speed]), np.array([deceleration]))
    ticks = 0
    while not made.is_standing:
        made.step(dt)
        ticks += 1
        assert ticks < 5000
    assert made.q[0] == pytest.approx(0.2 + speed * abs(speed) / (2 * deceleration), abs=1e-9)


# ---------------------------------------------------------------------- jogging


@given(st.sampled_from([0, 1, 2, 3]), st.sampled_from([-1.0, 1.0, 0.4]))
@settings(deadline=None)
def test_a_jog_path_moves_one_joint_and_ends_at_rest_inside(gantry, joint, direction):
    made = Jogger(gantry, LINEAR).held(joint, direction, gantry.home, NOW)
    moved = made.pos[-1] - gantry.home
    assert np.sign(moved[joint]) == np.sign(direction) and not np.delete(moved, joint).any()
    assert not made.vel[-1].any()
    speed = np.abs(made.vel).max(axis=0)
    assert (speed <= np.where(LINEAR, 0.05, 0.3) + 1e-9).all()


def test_holding_goes_on_smoothly_and_letting_go_stops_by_itself(gantry):
    jogger, made = Jogger(gantry, LINEAR), follower(gantry)
    rows, t = [], NOW
    for _ in range(10):
        made.offer(jogger.held(0, 1.0, gantry.home, t))
        rows += list(run(made, t, 0.1))
        t += 100_000_000
    assert rows[-1][1][0] == pytest.approx(0.05, rel=0.02)
    rows += list(run(made, t, 0.8))
    assert not rows[-1][1].any(), "nobody held it any more"
    speeds = np.array([r[1][0] for r in rows])
    assert np.abs(np.diff(speeds)).max() < 1.1 * 1.0 * 0.004 * 1.5


def test_jogging_stops_at_the_limit(gantry):
    q = gantry.home + np.array([0.999, 0, 0, 0])
    made = jog_path(gantry, q, np.zeros(4), np.array([0.05, 0, 0, 0]), LINEAR, NOW)
    assert made.pos.max(axis=0)[0] <= gantry.upper[0] + 1e-9
    out = jog_path(gantry, q, np.zeros(4), np.array([-0.05, 0, 0, 0]), LINEAR, NOW)
    assert out.pos[-1, 0] < q[0]
