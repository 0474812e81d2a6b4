"""Predicted paths: bounce, ends, crossings, covariance; wire form both ways."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tt_estimation import ekf
from tt_estimation.ball_models import NOMINAL
from tt_estimation.events import PLANE, STEP_S, fly_to_plane
from tt_estimation.messages import (
    ball_state_from_msg,
    ball_state_to_msg,
    prediction_from_msg,
    prediction_to_msg,
)
from tt_estimation.phase import BallPhase
from tt_estimation.prediction import Predictor, interpolate, plane_crossing
from tt_estimation.tracker import ball_state
from tt_estimation.types import BallEnd, BallState
from tt_perception.messages import MessageError
from tt_perception.table import BALL_RADIUS_M

STAMP = 12_345_678_901_234


def make_state(x: np.ndarray, scale: float = 1.0, stamp_ns: int = STAMP) -> BallState:
    root = np.diag([0.003] * 3 + [0.05] * 3 + [5.0] * 3) * scale
    mix = np.eye(9) + 0.2 * np.sin(np.arange(81).reshape(9, 9))
    cov = root @ mix @ mix.T @ root
    return ball_state(stamp_ns, x, cov)


def test_path_bounces_on_the_robot_half_and_samples_are_exact(
    loop_ball: np.ndarray, true_state: Callable
) -> None:
    p = Predictor(NOMINAL).predict(make_state(loop_ball))
    assert p.stamp_ns == STAMP
    assert (np.diff(p.times_s) > 0).all()
    for t, state in zip(p.times_s, p.states, strict=True):
        if abs(t - p.bounce_time_s) > 1e-6 and t < 0.8:
            np.testing.assert_allclose(state, true_state(loop_ball, t), atol=1e-5)
    i = p.bounce_index
    assert p.times_s[i] == pytest.approx(p.bounce_time_s, abs=2e-9)
    assert p.states[i - 1, 5] < 0.0 < p.states[i, 5]
    assert p.bounce_pos_table[2] == pytest.approx(BALL_RADIUS_M)
    assert p.bounce_pos_table[1] < 0.0


def test_crossing_with_covariance_agrees_with_monte_carlo(loop_ball: np.ndarray) -> None:
    state = make_state(loop_ball, 0.3)
    crossing = plane_crossing(Predictor(NOMINAL).predict(state), -1.6)
    assert crossing is not None
    out = np.empty(9)
    code, t, _ = fly_to_plane(loop_ball, NOMINAL.params, -1.6, 3.0, STEP_S, 0, out)
    assert code == PLANE
    assert crossing.time_s == pytest.approx(t, abs=1e-6)
    np.testing.assert_allclose(crossing.state[:3], out[:3], atol=1e-5)
    rng = np.random.default_rng(0)
    root = np.linalg.cholesky(state.cov)
    points, times = [], []
    for _ in range(2000):
        _, ti, _ = fly_to_plane(
            loop_ball + root @ rng.normal(size=9), NOMINAL.params, -1.6, 3.0, STEP_S, 0, out
        )
        points.append(out[:3].copy())
        times.append(ti)
    sampled = np.cov(np.array(points).T)
    for axis in (0, 2):
        assert np.sqrt(crossing.cov[axis, axis]) == pytest.approx(np.sqrt(sampled[axis, axis]), rel=0.15)
    assert crossing.time_sigma_s == pytest.approx(np.std(times), rel=0.15)
    assert crossing.cov[1, 1] == pytest.approx(0.0, abs=1e-12)


def test_covariance_along_the_path_is_that_of_the_filter(loop_ball: np.ndarray) -> None:
    state = make_state(loop_ball)
    p = Predictor(NOMINAL).predict(state)
    none = np.zeros(ekf.N_NOISE)
    for i in range(0, p.bounce_index, 4):
        x, cov = loop_ball.copy(), state.cov.copy()
        ekf.predict(x, cov, NOMINAL.params, none, p.times_s[i], STEP_S)
        np.testing.assert_allclose(p.cov[i], cov[:3, :3], rtol=1e-3, atol=1e-9)


def test_interpolation_between_samples_is_exact_to_micrometres(
    loop_ball: np.ndarray, true_state: Callable
) -> None:
    p = Predictor(NOMINAL).predict(make_state(loop_ball))
    for i in range(0, len(p.times_s) - 2, 3):
        if i in (p.bounce_index - 1, p.bounce_index) or p.times_s[i] > 0.7:
            continue
        t = 0.5 * (p.times_s[i] + p.times_s[i + 1])
        np.testing.assert_allclose(interpolate(p, i, 0.5)[:3], true_state(loop_ball, t)[:3], atol=5e-6)


@pytest.mark.parametrize(
    ("x", "before", "end"),
    [
        ([0, 0.4, 0.2, 0, -5.0, -0.3, 0, 0, 0], 0, BallEnd.NET),
        ([0, 1.0, 0.3, 0, -9.0, 3.0, 0, 0, 0], 0, BallEnd.OFF_TABLE),
        ([0, 1.0, 0.4, 2.5, -4.0, 0.5, 0, 0, 0], 0, BallEnd.OFF_TABLE),
        ([0, -1.0, 0.3, 0, 5.0, 1.0, 0, 0, 0], 0, BallEnd.OUTGOING),
        ([0, 0.3, 0.5, 0, -1.5, 1.0, 0, 0, 0], 0, BallEnd.SECOND_BOUNCE),
        ([0, -0.5, 0.3, 0, -0.5, -1.0, 0, 0, 0], 1, BallEnd.SECOND_BOUNCE),
        ([0, -1.5, 0.2, 0, -2.0, 0.0, 0, 0, 0], 1, BallEnd.FLOOR),
    ],
)
def test_path_says_why_it_ends(x: list[float], before: int, end: BallEnd) -> None:
    p = Predictor(NOMINAL).predict(make_state(np.array(x, float)), before)
    assert p.end is end
    assert p.bounces_before == before
    assert np.isfinite(p.states).all()
    assert np.isfinite(p.cov).all()
    for cov in p.cov:
        assert np.linalg.eigvalsh(cov)[0] > -1e-12


def test_serve_bounces_on_both_halves() -> None:
    serve = np.array([0.0, 1.4, 0.3, 0.0, -5.0, -1.0, 0.0, 0.0, 0.0])
    p = Predictor(NOMINAL).predict(make_state(serve))
    y = p.states[:, 1]
    first = int(np.nonzero(np.diff(np.sign(p.states[:, 5])) > 0)[0][0])
    assert y[first] > 0.0  # the opponent's half comes first and is not the bounce that is told
    assert p.bounce_index > first + 1
    assert p.bounce_pos_table[1] < 0.0


def test_state_message_round_trip_is_exact(loop_ball: np.ndarray) -> None:
    state = make_state(loop_ball)
    message = ball_state_to_msg(state)
    assert message.header.frame_id == "table"
    assert message.child_frame_id == "ball"
    assert message.twist.twist.angular.x == loop_ball[6]
    back = ball_state_from_msg(message)
    assert back.stamp_ns == state.stamp_ns
    for name in ("pos_table", "vel_table", "spin_table"):
        np.testing.assert_array_equal(getattr(back, name), getattr(state, name))
    np.testing.assert_allclose(back.cov, state.cov, rtol=1e-12, atol=1e-18)
    message.header.frame_id = "map"
    with pytest.raises(MessageError, match="map"):
        ball_state_from_msg(message)


def test_state_message_with_nan_is_refused(loop_ball: np.ndarray) -> None:
    message = ball_state_to_msg(make_state(loop_ball))
    message.twist.twist.angular.y = float("nan")
    with pytest.raises(MessageError, match="NaN"):
        ball_state_from_msg(message)


def test_path_message_round_trip(loop_ball: np.ndarray) -> None:
    p = Predictor(NOMINAL).predict(make_state(loop_ball))
    message = prediction_to_msg(p)
    assert message.header.stamp.sec * 10**9 + message.header.stamp.nanosec == STAMP
    back = prediction_from_msg(message)
    assert back.stamp_ns == STAMP
    np.testing.assert_allclose(back.times_s, p.times_s, atol=1e-9)
    np.testing.assert_array_equal(back.pos_table, p.states[:, :3])


def test_phase_needs_states_only_and_survives_gaps(loop_ball: np.ndarray, true_state: Callable) -> None:
    phase = BallPhase()
    assert not phase.playable
    assert phase.reason == "no ball"
    for i in range(70):
        if 30 < i < 45:  # 125 ms without a state, the bounce inside
            continue
        state = make_state(true_state(loop_ball, i / 120), 0.1, STAMP + round(i / 120 * 1e9))
        assert phase.update(state) == (i == 0)
    assert phase.restarts == 1
    assert phase.bounces == 1
    assert phase.playable
    # An older state changes nothing; a new ball elsewhere restarts.
    assert not phase.update(make_state(loop_ball, 0.1, STAMP + 500_000_000))
    assert phase.update(make_state(loop_ball, 0.1, STAMP + 700_000_000))
    assert phase.bounces == 0
