"""Jacobians, filter and smoother: derivatives, positive definiteness, honesty."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest

from tt_estimation import ekf
from tt_estimation.ball_models import (
    MATCH,
    NOMINAL,
    P_CD0,
    P_CD1,
    P_CL,
    P_CLS,
    P_E_TABLE,
    P_E_TABLE1,
    P_MU_TABLE,
    BallModel,
)
from tt_estimation.buffer import ROW, observation_row
from tt_estimation.events import STEP_S, TABLE, bounce_on_table, fly, next_event
from tt_estimation.sensitivity import (
    acceleration_jacobian,
    apply_jump,
    apply_step_jacobian,
    bounce_kink,
    cut_normal,
    kink_variance,
    rk4_step_jacobian,
    table_bounce_jacobian,
)
from tt_estimation.spin_prior import SHIPPED
from tt_estimation.track import KNOWN_BALL, FilterConfig, Track
from tt_estimation.tracker import BallTracker, TrackerConfig
from tt_perception.types import BallPosition, BallRay

START_NS = 1_000_000_000_000
THETA = np.array([P_CD0, P_CD1, P_CL, P_CLS, P_E_TABLE, P_E_TABLE1, P_MU_TABLE])
VARIANT = MATCH.with_values(spin_decay=0.3, table_restitution_slope=-0.01)


def flow_jacobian(x: np.ndarray, p: np.ndarray, seconds: float) -> np.ndarray:
    """d state(seconds) / d (x, theta) through one bounce, from the analytic pieces."""
    total = np.hstack([np.eye(9), np.zeros((9, len(THETA)))])
    step = np.empty((6, 6 + len(THETA)))
    jump, jump_theta = np.empty((9, 9)), np.empty((9, len(THETA)))
    y, z = np.empty(9), np.empty(9)
    code, t = next_event(x, p, seconds, seconds, TABLE, 0.0, y)
    assert code == TABLE
    apply_step_jacobian(step, rk4_step_jacobian(x, p, t, THETA, z, step), total, total.shape[1], 9)
    table_bounce_jacobian(y, p, THETA, z, jump, jump_theta)
    apply_jump(jump, jump_theta, total, 9, np.empty((9, 9 + len(THETA))))
    apply_step_jacobian(step, rk4_step_jacobian(z, p, seconds - t, THETA, z, step), total, total.shape[1], 9)
    return total


@pytest.mark.parametrize("friction", [0.05, 0.4], ids=["sliding", "rolling"])
def test_flow_jacobian_through_a_bounce_agrees_with_finite_differences(friction: float) -> None:
    p = VARIANT.params.copy()
    p[P_MU_TABLE] = friction
    x = np.array([0.1, -0.5, 0.035, 1.0, -5.0, -3.0, 50.0, 20.0, -30.0])
    analytic = flow_jacobian(x, p, 0.01)

    def flow(state: np.ndarray, params: np.ndarray) -> np.ndarray:
        out = np.empty(9)
        assert fly(state, params, 0.01, 0.01, out) == 1
        return out

    numeric = np.empty_like(analytic)
    for j in range(9):
        d = np.zeros(9)
        d[j] = 1e-6
        numeric[:, j] = (flow(x + d, p) - flow(x - d, p)) / 2e-6
    for j, k in enumerate(THETA):
        high, low = p.copy(), p.copy()
        high[k] += 1e-6
        low[k] -= 1e-6
        numeric[:, 9 + j] = (flow(x, high) - flow(x, low)) / 2e-6
    np.testing.assert_allclose(analytic, numeric, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("model", [NOMINAL, VARIANT], ids=["linear lift", "saturating lift"])
def test_acceleration_jacobian_agrees_with_finite_differences(
    model: BallModel, rng: np.random.Generator
) -> None:
    a, unused = np.empty(3), np.empty((3, 6))
    none = np.empty(0, np.int64)
    for _ in range(20):
        s = np.concatenate((rng.normal(size=3), rng.normal(size=3) * 6, rng.normal(size=3) * 80))
        jac = np.empty((3, 6))
        acceleration_jacobian(s, model.params, none, a, jac)
        numeric = np.empty((3, 6))
        for j in range(6):
            h = 1e-5 if j < 3 else 1e-3
            high, low = s.copy(), s.copy()
            high[3 + j] += h
            low[3 + j] -= h
            b = np.empty(3)
            acceleration_jacobian(high, model.params, none, a, unused)
            acceleration_jacobian(low, model.params, none, b, unused)
            numeric[:, j] = (a - b) / (2 * h)
        np.testing.assert_allclose(jac, numeric, rtol=1e-6, atol=1e-8)


def test_kink_margin_and_its_gradient() -> None:
    s = np.array([0.1, -0.5, 0.02, 1.0, -5.0, -3.0, 50.0, 20.0, -30.0])
    gradient, kick, unused = np.empty(9), np.empty(9), np.empty(9)
    p = NOMINAL.params
    bounce_kink(s, p, gradient, kick)
    for j in range(9):
        d = np.zeros(9)
        d[j] = 1e-5
        slope = (bounce_kink(s + d, p, unused, unused) - bounce_kink(s - d, p, unused, unused)) / 2e-5
        assert gradient[j] == pytest.approx(slope, abs=1e-7)
    # E[max(x, 0)²] of a centred normal is half its variance; far from the kink nothing is left.
    assert kink_variance(0.0, 4.0) == pytest.approx(2.0)
    assert kink_variance(30.0, 4.0) == 0.0


def numpy_update(
    x: np.ndarray, cov: np.ndarray, z: np.ndarray, r: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    h = np.hstack([np.eye(3), np.zeros((3, 6))])
    gain = cov @ h.T @ np.linalg.inv(h @ cov @ h.T + r)
    keep = np.eye(9) - gain @ h
    return x + gain @ (z - x[:3]), keep @ cov @ keep.T + gain @ r @ gain.T


def test_update_agrees_with_its_numpy_twin(rng: np.random.Generator) -> None:
    root = rng.normal(size=(9, 9))
    cov = root @ root.T * 1e-3 + np.eye(9) * 1e-4
    x = rng.normal(size=9)
    noise = np.diag([1e-5, 2e-5, 3e-5]) + 1e-6
    z = x[:3] + 0.004
    expected_x, expected_cov = numpy_update(x, cov, z, noise)
    rows, d2 = ekf.update(x, cov, observation_row(BallPosition(1, z, noise), 0.0), np.inf, np.inf)
    assert rows == 3
    assert d2 > 0.0
    np.testing.assert_allclose(x, expected_x, atol=1e-12)
    np.testing.assert_allclose(cov, expected_cov, atol=1e-14)


def test_covariance_stays_symmetric_positive_definite_over_100_000_updates() -> None:
    x = np.array([0.0, 1.2, 0.3, 0.2, -5.0, 1.0, 30.0, 0.0, 0.0])
    cov = np.diag([1e-5] * 3 + [1.0] * 3 + [900.0] * 3)
    noise = FilterConfig().noise()
    row = np.zeros(ROW)
    row[5:14] = (np.eye(3) * 1e-8).ravel()  # much better than any camera: the hard case for rounding
    start = x.copy()
    for k in range(100_000):
        ekf.predict(x, cov, NOMINAL.params, noise, 1.0 / 240.0, 0.01)
        row[2:5] = x[:3] + 1e-4 * np.sin([k, 2 * k, 3 * k])
        ekf.update(x, cov, row, np.inf, np.inf)
        if k % 100 == 99:
            x[:] = start  # keep it flying; the covariance goes on
    np.testing.assert_array_equal(cov, cov.T)
    scale = np.sqrt(np.diagonal(cov))
    assert np.linalg.eigvalsh(cov / np.outer(scale, scale))[0] > 0.0


def test_ray_observation_jacobian_and_agreement_with_a_position() -> None:
    projection = np.array([[900.0, 0, 640, 100], [0, 900, 400, -50], [0, 0, 1, 3.0]])
    x = np.array([0.2, -0.3, 0.4, 0, 0, 0, 0, 0, 0.0])
    row = observation_row(BallRay(1, "cam", np.array([700.0, 420.0]), np.eye(2), projection), 0.0)
    residual, h, noise = np.empty(3), np.zeros((3, 3)), np.empty((3, 3))
    assert ekf.observe(x, row, residual, h, noise) == 2
    numeric = np.empty((2, 3))
    unused = np.zeros((3, 3))
    for j in range(3):
        high, low = residual.copy(), residual.copy()
        d = np.zeros(9)
        d[j] = 1e-6
        ekf.observe(x + d, row, high, unused, noise)
        ekf.observe(x - d, row, low, unused, noise)
        numeric[:, j] = -(high[:2] - low[:2]) / 2e-6
    np.testing.assert_allclose(h[:2], numeric, rtol=1e-6)
    behind = x.copy()
    behind[2] = -4.0
    assert ekf.observe(behind, row, residual, h, noise) == 0


def test_gate_accepts_in_model_noise_at_its_nominal_level(
    loop_ball: np.ndarray, observations: Callable
) -> None:
    # The prior of the spin must be that of the balls: here spins are drawn from it.
    rng = np.random.default_rng(1)
    gate = 0.95
    fused = offered = 0
    for _ in range(60):
        start = loop_ball.copy()
        start[6:] = SHIPPED.mean(start[:3], start[3:6]) + np.linalg.cholesky(SHIPPED.covariance) @ rng.normal(
            size=3
        )
        tracker = BallTracker(NOMINAL, TrackerConfig(filter=FilterConfig(gate=gate)))
        for i, (obs, _) in enumerate(observations(start, 0.25, rng)):
            tracker.add(obs)
            offered += i >= 3
        fused += tracker.health().get("fused", 0)
    # Standard deviation of the share is 0.005 for 1,680 observations.
    assert fused / offered == pytest.approx(gate, abs=0.02)


def test_nees_and_nis_are_honest_over_200_public_balls(
    public_states: tuple[np.ndarray, np.ndarray], observations: Callable
) -> None:
    from scipy.stats import chi2

    ids, states = public_states
    rng = np.random.default_rng(3)
    nees, nis, dof, balls = 0.0, 0.0, 0, 0
    for start in states[ids % 4 == 2][::18][:200]:
        tracker = BallTracker(NOMINAL, TrackerConfig(filter=KNOWN_BALL))
        truth = start
        for obs, truth in observations(start, 0.2, rng):  # noqa: B007
            tracker.add(obs)
        state, cov = tracker.state(), tracker.full_covariance()
        if state is None or cov is None or abs(truth[2] - 0.02) < 0.02:
            continue
        error = state.vector - truth
        nees += float(error @ np.linalg.solve(cov, error))
        total, rows = tracker.nis()
        nis, dof, balls = nis + total, dof + rows, balls + 1
    assert balls >= 190
    low, high = chi2.ppf((0.025, 0.975), 9 * balls)
    assert low <= nees <= high
    low, high = chi2.ppf((0.025, 0.975), dof)
    assert low <= nis <= high


def test_normal_cut_at_a_border_has_its_moments() -> None:
    from scipy.stats import norm, truncnorm

    for a in (-9.0, -6.5, -5.0, -1.0, 0.0, 2.0, 5.9):
        log_mass, mean, variance = cut_normal(a)
        exact = truncnorm(-a, np.inf)
        assert log_mass == pytest.approx(norm.logcdf(a), abs=0.03)
        assert mean == pytest.approx(exact.mean(), rel=2e-3, abs=1e-9)
        assert variance == pytest.approx(exact.var(), rel=0.2)
    assert cut_normal(7.0) == (0.0, 0.0, 1.0)


def test_covariance_after_a_bounce_knows_that_the_slip_turns(rng: np.random.Generator) -> None:
    # Sidespin uncertain by 30 rad/s turns the slip of this sliding ball by 10°: the linear law alone promises an
    # impulse of a fixed size along a line, and would be surprised by its curvature.
    x = np.array([0.0, -0.5, 0.02, 0.5, -6.0, -3.0, -20.0, 10.0, 0.0])
    cov = np.diag([1e-8] * 3 + [1e-6] * 3 + [30.0**2, 30.0**2, 1.0])
    states = x + rng.normal(size=(4000, 9)) * np.sqrt(np.diagonal(cov))
    after = np.empty((len(states), 9))
    for s, out in zip(states, after, strict=True):
        bounce_on_table(s, NOMINAL.params, out)
    mean, bounced = x.copy(), cov.copy()
    assert ekf.predict(mean, bounced, NOMINAL.params, KNOWN_BALL.noise(), 1e-9, STEP_S) == 1
    error = after - mean
    nees = np.einsum("ni,ni->n", error[:, 3:], np.linalg.solve(bounced[3:, 3:], error[:, 3:].T).T).mean()
    assert nees == pytest.approx(6.0, abs=1.0)


def test_smoother_finds_the_spin_through_the_bounce(
    public_states: tuple[np.ndarray, np.ndarray], observations: Callable
) -> None:
    ids, states = public_states
    rng = np.random.default_rng(5)
    errors = []
    for start in states[ids % 4 == 2][::60][:40]:
        landed = np.empty(9)
        code, t = next_event(start, NOMINAL.params, 1.0, 0.01, TABLE, 0.0, landed)
        if code != TABLE or landed[1] > 0.0:
            continue
        tracker = BallTracker(NOMINAL, TrackerConfig(filter=KNOWN_BALL))
        for obs, _ in observations(start, t + 0.15, rng):
            tracker.add(obs)
        hit = tracker.hit_state()
        assert hit is not None
        errors.append(np.linalg.norm(hit[1][6:] - start[6:]))
    assert len(errors) > 20
    assert np.median(errors) < 7.0


def test_track_follows_a_long_rally_of_bounces_beyond_its_buffer(
    rng: np.random.Generator, observations: Callable
) -> None:
    # 240 Hz for 1.6 s are 384 observations, more than the buffer holds.
    start = np.array([0.0, 1.2, 0.5, 0.0, -1.2, 2.0, 0.0, 0.0, 0.0])
    tracker = BallTracker(NOMINAL)
    states = 0
    for obs, truth in observations(start, 1.6, rng, fps=240.0):
        state = tracker.add(obs)
        if state is not None:
            states += 1
            assert np.linalg.norm(state.pos_table - truth[:3]) < 0.02
    assert states > 370


def test_start_needs_three_rows_that_fly(loop_ball: np.ndarray, true_state: Callable) -> None:
    rows = [
        observation_row(BallPosition(START_NS, true_state(loop_ball, t)[:3], np.eye(3) * 1e-6), t)
        for t in (0.0, 0.01, 0.02)
    ]
    track = Track(np.array(rows), START_NS, NOMINAL, FilterConfig(), SHIPPED)
    assert track.valid
    np.testing.assert_allclose(track.x[:3], true_state(loop_ball, 0.02)[:3], atol=2e-3)
