"""Tracks: start, gating, late stamps, occlusion, phantoms, rallies, several balls, and every kind of bad input."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import numpy as np
import pytest

from tt_estimation.ball_models import NOMINAL
from tt_estimation.phase import BallPhase
from tt_estimation.prediction import plane_crossing
from tt_estimation.tracker import BallTracker, Refusal, TrackerConfig, TrackEvent
from tt_estimation.types import BallEnd, BallState
from tt_perception.types import BallPosition, BallRay

START_NS = 1_000_000_000_000
COV = np.eye(3) * 0.003**2


def names(tracker: BallTracker) -> list[TrackEvent]:
    return [e.event for e in tracker.events()]


def feed(tracker: BallTracker, stream: list[BallPosition]) -> list[BallState]:
    states = [tracker.add(obs, obs.stamp_ns + 5_000_000) for obs in stream]
    return [s for s in states if s is not None]


@pytest.fixture
def stream(loop_ball: np.ndarray, rng: np.random.Generator, observations: Callable) -> list[BallPosition]:
    """0.25 s of one ball at 120 Hz."""
    return [obs for obs, _ in observations(loop_ball, 0.25, rng)]


def test_track_starts_within_three_images_and_state_is_right(
    loop_ball: np.ndarray, rng: np.random.Generator, observations: Callable
) -> None:
    tracker = BallTracker(NOMINAL)
    for i, (obs, truth) in enumerate(observations(loop_ball, 0.25, rng)):
        state = tracker.add(obs)
        assert (state is not None) == (i >= 2)
        if state is not None:
            assert state.stamp_ns == obs.stamp_ns
            assert np.linalg.norm(state.pos_table - truth[:3]) < 0.015
    assert state is not None
    assert np.linalg.norm(state.vel_table - truth[3:6]) < 0.2
    np.linalg.cholesky(state.cov)
    assert names(tracker) == [TrackEvent.START, TrackEvent.OPPONENT_HIT]


def test_published_covariance_is_completed_as_the_wire_needs(stream: list[BallPosition]) -> None:
    state = feed(BallTracker(NOMINAL), stream)[-1]
    c = state.cov
    np.testing.assert_allclose(c[:3, 6:], c[:3, 3:6] @ np.linalg.solve(c[3:6, 3:6], c[3:6, 6:]), atol=1e-12)


def test_order_of_arrival_does_not_change_the_estimate(
    loop_ball: np.ndarray, rng: np.random.Generator, observations: Callable
) -> None:
    stream = [obs for obs, _ in observations(loop_ball, 0.45, rng)]
    shuffled = stream[:3] + [stream[i] for i in (5, 3, 4, 9, 8, 7, 6)] + stream[10:40]
    shuffled += [stream[i] for i in (41, 42, 43, 40)] + stream[44:]
    assert len(shuffled) == len(stream)
    in_order, late = BallTracker(NOMINAL), BallTracker(NOMINAL)
    a, b = feed(in_order, stream)[-1], feed(late, shuffled)[-1]
    assert late.health()["late"] == 6
    sigma = np.sqrt(np.diagonal(a.cov))
    # The same optimum, to a small part of its own uncertainty.
    assert np.abs((a.vector - b.vector) / sigma).max() < 0.02
    assert in_order.robot_bounces == late.robot_bounces == 1


def test_late_observation_moves_the_estimate(stream: list[BallPosition]) -> None:
    tracker = BallTracker(NOMINAL)
    before = feed(tracker, stream[:20] + stream[21:])[-1]
    after = tracker.add(stream[20])
    assert after is not None
    assert after.stamp_ns == before.stamp_ns
    assert np.trace(after.cov[:3, :3]) < np.trace(before.cov[:3, :3])


def test_occlusion_of_100_ms_is_survived(stream: list[BallPosition]) -> None:
    tracker = BallTracker(NOMINAL)
    seen = stream[:10] + stream[22:]  # 108 ms between the images around the gap
    states = feed(tracker, seen)
    assert names(tracker).count(TrackEvent.START) == 1
    assert states[-1].stamp_ns == stream[-1].stamp_ns


def test_track_ends_when_it_is_not_seen_any_more(stream: list[BallPosition]) -> None:
    tracker = BallTracker(NOMINAL)
    feed(tracker, stream)
    tracker.expire(stream[-1].stamp_ns + 150_000_000)
    assert tracker.state() is not None
    tracker.expire(stream[-1].stamp_ns + 10_000_000_000)  # ten seconds of silence
    assert tracker.state() is None
    assert tracker.predict() is None
    assert names(tracker)[-1] is TrackEvent.LOST
    # And the next ball is followed as if nothing had been.
    again = [replace(o, stamp_ns=o.stamp_ns + 11_000_000_000) for o in stream]
    assert len(feed(tracker, again)) == len(stream) - 2


def test_phantoms_start_no_track(rng: np.random.Generator) -> None:
    tracker = BallTracker(NOMINAL)
    for i in range(400):
        stamp = START_NS + i * 8_333_333
        for _ in range(rng.integers(0, 3)):
            point = np.array([rng.uniform(-2, 2), rng.uniform(-3, 3), rng.uniform(-0.5, 2)])
            tracker.add(BallPosition(stamp, point, COV))
        # A reflection that stays where it is.
        tracker.add(BallPosition(stamp, np.array([0.4, 0.3, 0.5]) + 0.003 * rng.normal(size=3), COV))
    assert tracker.state() is None
    assert tracker.health().get("track started", 0) == 0


def test_phantoms_beside_the_ball_do_not_move_it(
    loop_ball: np.ndarray, rng: np.random.Generator, observations: Callable
) -> None:
    clean, dirty = BallTracker(NOMINAL), BallTracker(NOMINAL)
    for obs, _ in observations(loop_ball, 0.3, rng):
        a = clean.add(obs)
        for _ in range(2):
            shift = rng.normal(size=3)
            shift *= rng.uniform(0.1, 1.0) / np.linalg.norm(shift)
            dirty.add(BallPosition(obs.stamp_ns, obs.pos_table + shift, COV))
        b = dirty.add(obs)
    assert a is not None
    assert b is not None
    np.testing.assert_allclose(a.vector, b.vector, atol=1e-9)
    assert dirty.health()[Refusal.GATE.value] > 30


def rally(true_state: Callable) -> list[tuple[float, np.ndarray]]:
    """Opponent hit, bounce on our half, robot hit at 0.75 s, bounce there, opponent hit at 1.45 s."""
    first = np.array([0.1, 1.3, 0.3, 0.2, -5.0, 1.3, 40.0, 0.0, 0.0])
    at_robot = true_state(first, 0.75)
    second = np.concatenate((at_robot[:3], (0.1, 5.0, 1.6), (-60.0, 0.0, 0.0)))
    at_opponent = true_state(second, 0.7)
    third = np.concatenate((at_opponent[:3], (-0.2, -5.5, 1.0), (30.0, 10.0, 0.0)))
    parts = [(first, 0.0, 0.75), (second, 0.75, 1.45), (third, 1.45, 1.9)]
    times = np.arange(0, 1.9, 1 / 120)
    samples = []
    for t in times:
        start, begin, _ = next(p for p in parts if p[1] <= t < p[2])
        samples.append((t, true_state(start, t - begin)))
    return samples


def test_rally_is_recognised_hit_by_hit(rng: np.random.Generator, true_state: Callable) -> None:
    tracker, phase = BallTracker(NOMINAL), BallPhase()
    story: list[tuple[TrackEvent, float]] = []
    counted = []
    for t, truth in rally(true_state):
        stamp = START_NS + round(t * 1e9)
        state = tracker.add(BallPosition(stamp, truth[:3] + 0.003 * rng.normal(size=3), COV))
        story += [(e.event, (e.stamp_ns - START_NS) * 1e-9) for e in tracker.events()]
        if state is not None:
            assert np.linalg.norm(state.pos_table - truth[:3]) < 0.03
            phase.update(state)
            if state.vel_table[1] < 0.0:
                # The planner's view agrees with the tracker's.
                assert phase.bounces == tracker.robot_bounces
        counted.append((t, phase.incoming, phase.bounces))
    kinds = [kind for kind, _ in story if kind is not TrackEvent.START]
    assert kinds[0] is TrackEvent.OPPONENT_HIT
    assert kinds.count(TrackEvent.OPPONENT_HIT) == 2
    assert kinds.count(TrackEvent.ROBOT_HIT) == 1
    robot_hit = next(t for kind, t in story if kind is TrackEvent.ROBOT_HIT)
    assert 0.75 <= robot_hit <= 0.79
    assert phase.restarts == 3
    assert max(b for t, _, b in counted if t < 0.74) == 1
    assert all(not incoming for t, incoming, _ in counted if 0.8 < t < 1.44)


def test_second_bounce_makes_the_ball_not_playable(rng: np.random.Generator, observations: Callable) -> None:
    slow = np.array([0.0, 0.9, 0.4, 0.0, -2.6, 1.0, 0.0, 0.0, 0.0])
    tracker, phase = BallTracker(NOMINAL), BallPhase()
    for obs, _ in observations(slow, 1.1, rng):
        state = tracker.add(obs)
        if state is not None:
            phase.update(state)
    assert tracker.robot_bounces == 2
    assert tracker.playable == (False, "second bounce on the robot half")
    assert not phase.playable
    assert phase.reason == "second bounce on the robot half"
    assert TrackEvent.NOT_PLAYABLE in names(tracker)


def test_net_touch_is_recognised(rng: np.random.Generator, true_state: Callable) -> None:
    start = np.array([0.0, 1.2, 0.25, 0.0, -5.0, 0.85, 0.0, 0.0, 0.0])
    touch = next(t for t in np.arange(0.1, 0.6, 0.001) if true_state(start, t)[1] < 0.02)
    at_net = true_state(start, touch)
    assert 0.1 < at_net[2] < 0.2
    rest = np.concatenate((at_net[:3], (0.1, -2.0, 0.8), (0.0, 0.0, 0.0)))
    tracker = BallTracker(NOMINAL)
    for i in range(80):
        t = i / 120
        truth = true_state(start, t) if t < touch else true_state(rest, t - touch)
        tracker.add(BallPosition(START_NS + round(t * 1e9), truth[:3] + 0.002 * rng.normal(size=3), COV))
    story = names(tracker)
    assert TrackEvent.NET_TOUCH in story
    assert TrackEvent.ROBOT_HIT not in story


def test_rolling_ball_ends_the_track(rng: np.random.Generator) -> None:
    tracker = BallTracker(NOMINAL)
    for i in range(60):
        point = np.array([0.1, 0.8 - 1.5 * i / 120, 0.02])
        tracker.add(
            BallPosition(START_NS + i * 8_333_333, point + 0.001 * rng.normal(size=3), np.eye(3) * 1e-6)
        )
    story = names(tracker)
    assert TrackEvent.ROLLING in story or TrackEvent.START not in story
    assert tracker.state() is None


def test_incoming_ball_wins_among_several(
    loop_ball: np.ndarray, rng: np.random.Generator, observations: Callable
) -> None:
    leaving = np.array([0.5, -1.2, 0.4, 0.0, 5.0, 1.5, 0.0, 0.0, 0.0])
    idle = np.array([-0.6, 0.9, 1.0, 0.3, 1.0, 0.5, 0.0, 0.0, 0.0])
    tracker = BallTracker(NOMINAL)
    streams = [observations(start, 0.35, rng) for start in (leaving, idle, loop_ball)]
    results = []
    for group in zip(*streams, strict=True):
        for obs, _ in group:
            state = tracker.add(obs)
            if state is not None:
                results.append((state, group[2][1]))
    assert tracker.health()["tracks"] == 3
    # From the time all three are followed, only the incoming one is told.
    for state, truth in results[20:]:
        assert np.linalg.norm(state.pos_table - truth[:3]) < 0.02
    assert len(results) > 38


def projection_of(camera: np.ndarray, at: np.ndarray) -> np.ndarray:
    """3 × 4 matrix of a camera at `camera` that looks at `at`."""
    z = (at - camera) / np.linalg.norm(at - camera)
    x = np.cross(z, [0.0, 0.0, 1.0])
    x /= np.linalg.norm(x)
    rotation = np.stack((x, np.cross(z, x), z))
    intrinsics = np.array([[900.0, 0.0, 640.0], [0.0, 900.0, 400.0], [0.0, 0.0, 1.0]])
    return intrinsics @ np.hstack((rotation, -(rotation @ camera)[:, None]))


def test_unsynchronised_rays_keep_the_ball_where_positions_left_it(
    loop_ball: np.ndarray, rng: np.random.Generator, true_state: Callable
) -> None:
    cameras = [
        projection_of(np.array(c), np.array([0.0, 0.0, 0.2]))
        for c in ([2.5, 3.0, 1.8], [-2.5, 3.0, 1.8], [2.5, -3.0, 1.8])
    ]
    tracker = BallTracker(NOMINAL)
    for i in range(4):
        truth = true_state(loop_ball, i / 120)
        tracker.add(
            BallPosition(START_NS + round(i / 120 * 1e9), truth[:3] + 0.003 * rng.normal(size=3), COV)
        )
    for i in range(90):  # three cameras in turn, each at its own time
        t = 0.03 + i / 360
        truth = true_state(loop_ball, t)
        m = cameras[i % 3] @ np.append(truth[:3], 1.0)
        uv = m[:2] / m[2] + 0.5 * rng.normal(size=2)
        stamp = START_NS + round(t * 1e9)
        state = tracker.add(BallRay(stamp, f"cam{i % 3}", uv, np.eye(2) * 0.25, cameras[i % 3]))
    assert state is not None
    error = state.vector - truth
    assert np.linalg.norm(error[:3]) < 0.006
    assert np.linalg.norm(error[3:6]) < 0.15
    crossing = plane_crossing(tracker.predict(), -1.6)
    assert crossing is not None
    assert np.linalg.norm(crossing.state[:3] - true_state_at_plane(loop_ball)) < 0.15


def test_views_of_one_camera_hold_a_track_but_start_none(
    loop_ball: np.ndarray, rng: np.random.Generator, true_state: Callable
) -> None:
    camera = np.array([2.5, 3.0, 1.8])

    def view(t: float) -> BallPosition:
        along = true_state(loop_ball, t)[:3] - camera
        along /= np.linalg.norm(along)
        line = np.outer(along, along)
        point = camera + 4.0 * along + 0.003 * rng.normal(size=3)
        cov = 9.0 * line + 0.003**2 * (np.eye(3) - line)
        return BallPosition(START_NS + round(t * 1e9), point, cov)

    alone = BallTracker(NOMINAL)
    assert not feed(alone, [view(i / 120) for i in range(30)])
    tracker = BallTracker(NOMINAL)
    for i in range(6):
        point = true_state(loop_ball, i / 120)[:3] + 0.003 * rng.normal(size=3)
        tracker.add(BallPosition(START_NS + round(i / 120 * 1e9), point, COV))
    states = feed(tracker, [view(i / 120) for i in range(6, 30)])
    assert len(states) == 24
    error = states[-1].pos_table - true_state(loop_ball, 29 / 120)[:3]
    # Across the ray it is known to millimetres, along it as far as the flight tells.
    across = error - error @ (states[-1].pos_table - camera) * (states[-1].pos_table - camera) / 16.0
    assert np.linalg.norm(across) < 0.05
    assert error @ np.linalg.solve(states[-1].cov[:3, :3], error) < 20.0


def true_state_at_plane(start: np.ndarray) -> np.ndarray:
    from tt_estimation.events import STEP_S, fly_to_plane

    out = np.empty(9)
    fly_to_plane(start, NOMINAL.params, -1.6, 3.0, STEP_S, 0, out)
    return out[:3]


BAD = BallPosition(START_NS, np.array([0.0, 1.0, 0.3]), COV)


@pytest.mark.parametrize(
    ("bad", "refusal"),
    [
        (replace(BAD, pos_table=np.array([np.nan, 0, 0])), Refusal.NOT_FINITE),
        (replace(BAD, pos_table=np.array([0, np.inf, 0])), Refusal.NOT_FINITE),
        (replace(BAD, pos_table=np.zeros(2)), Refusal.NOT_FINITE),
        (replace(BAD, cov=np.diag([1e-5, 1e-5, -1e-5])), Refusal.COVARIANCE),
        (replace(BAD, cov=np.zeros((3, 3))), Refusal.COVARIANCE),
        (replace(BAD, cov=np.full((3, 3), np.nan)), Refusal.COVARIANCE),
        (replace(BAD, cov=np.array([[1, 2, 0], [0, 1, 0], [0, 0, 1.0]])), Refusal.COVARIANCE),
        (replace(BAD, stamp_ns=0), Refusal.NO_STAMP),
        (replace(BAD, stamp_ns=-5), Refusal.NO_STAMP),
        (replace(BAD, stamp_ns=START_NS + 2_000_000_000), Refusal.FUTURE),
        (replace(BAD, pos_table=np.array([0.0, 1.0, 300.0])), Refusal.OUTSIDE),
        (replace(BAD, pos_table=np.array([0.0, 1300.0, 300.0])), Refusal.OUTSIDE),
        (replace(BAD, ambiguous=True), Refusal.AMBIGUOUS),
        (BallRay(START_NS, "c", np.array([1.0, np.nan]), np.eye(2), np.ones((3, 4))), Refusal.NOT_FINITE),
        (BallRay(START_NS, "c", np.ones(2), np.eye(2), np.full((3, 4), np.nan)), Refusal.NOT_FINITE),
        (BallRay(START_NS, "c", np.ones(2), -np.eye(2), np.ones((3, 4))), Refusal.COVARIANCE),
    ],
)
def test_bad_observation_is_refused_counted_and_changes_nothing(
    bad: BallPosition | BallRay, refusal: Refusal, stream: list[BallPosition]
) -> None:
    tracker, clean = BallTracker(NOMINAL), BallTracker(NOMINAL)
    now = stream[-1].stamp_ns
    for obs in stream:
        assert tracker.add(bad, now) is None
        tracker.add(obs, now)
        clean.add(obs, now)
    assert tracker.health()[refusal.value] == len(stream)
    a, b = tracker.state(), clean.state()
    assert a is not None
    assert b is not None
    np.testing.assert_array_equal(a.vector, b.vector)


def test_same_observation_twice_counts_once_and_another_at_the_same_stamp_is_fused(
    stream: list[BallPosition],
) -> None:
    tracker = BallTracker(NOMINAL)
    before = feed(tracker, stream)[-1]
    assert tracker.add(stream[-1]) is None
    assert tracker.health()[Refusal.DUPLICATE.value] == 1
    other = replace(stream[-1], pos_table=stream[-1].pos_table + 0.001)
    after = tracker.add(other)
    assert after is not None
    assert np.trace(after.cov[:3, :3]) < np.trace(before.cov[:3, :3])


def test_very_late_observation_is_dropped_and_time_that_restarts_resets(stream: list[BallPosition]) -> None:
    tracker = BallTracker(NOMINAL)
    feed(tracker, stream)
    tracker.add(replace(stream[0], stamp_ns=stream[-1].stamp_ns - 400_000_000))
    assert tracker.health()[Refusal.TOO_LATE.value] == 1
    assert tracker.state() is not None
    again = [replace(o, stamp_ns=o.stamp_ns - 500_000_000_000) for o in stream]
    states = feed(tracker, again)
    assert TrackEvent.RESET in names(tracker)
    assert len(states) == len(stream) - 2


@pytest.mark.parametrize("seed", range(4))
def test_random_rubbish_never_yields_a_number_that_is_not_finite(
    seed: int, stream: list[BallPosition]
) -> None:
    rng = np.random.default_rng(seed)
    tracker = BallTracker(NOMINAL)
    for obs in stream * 3:
        point = obs.pos_table + rng.choice([0.0, 0.01, 1.0, 1e3, np.nan]) * rng.normal(size=3)
        scale = 10.0 ** rng.uniform(-14, 4)
        stamp = obs.stamp_ns + int(rng.choice([0, 0, 0, 1, -30_000_000, 40_000_000, -2_000_000_000]))
        state = tracker.add(BallPosition(stamp, point, np.eye(3) * scale), START_NS + 10**9)
        if state is not None:
            assert np.isfinite(state.vector).all()
            assert np.isfinite(state.cov).all()
            prediction = tracker.predict()
            assert prediction is not None
            assert np.isfinite(prediction.states).all()
            assert np.isfinite(prediction.cov).all()


def test_prediction_of_a_state_that_is_not_finite_says_so() -> None:
    from tt_estimation.prediction import Predictor

    bad = BallState(1, np.array([0, np.nan, 0]), np.zeros(3), np.zeros(3), np.eye(9))
    prediction = Predictor(NOMINAL).predict(bad)
    assert prediction.end is BallEnd.NOT_FINITE
    assert len(prediction.times_s) == 0


def test_gate_setting_reaches_the_filter(stream: list[BallPosition]) -> None:
    config = TrackerConfig()
    strict = BallTracker(NOMINAL, replace(config, filter=replace(config.filter, gate=0.5)))
    feed(strict, stream)
    assert strict.health().get(Refusal.GATE.value, 0) > 3
