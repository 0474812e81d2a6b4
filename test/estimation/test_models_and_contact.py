"""Named models, contact law and its inverse, air density, model and prior files."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tt_estimation.air import air_density
from tt_estimation.ball_models import MATCH, NOMINAL
from tt_estimation.contact import NO_INVERSE, ROLLING, UNIQUE, contact, contact_inverse
from tt_estimation.events import bounce_on_table
from tt_estimation.model_file import load_model, save_model
from tt_estimation.spin_prior import SHIPPED, fit_spin_prior, load_spin_prior, save_spin_prior
from tt_perception.errors import TTError
from tt_perception.table import BALL_RADIUS_M

numbers = st.floats(-20, 20)
vectors = st.tuples(numbers, numbers, numbers)


def numpy_contact(
    v: np.ndarray, w: np.ndarray, n: np.ndarray, surface: np.ndarray, e: float, mu: float
) -> tuple[np.ndarray, np.ndarray]:
    r = BALL_RADIUS_M
    rel = v - surface
    vn = rel @ n
    if vn >= 0:
        return v, w
    slip = rel - vn * n + np.cross(w, -r * n)
    size = np.linalg.norm(slip)
    impulse = np.zeros(3) if size < 1e-12 else -min(-mu * (1 + e) * vn, 0.4 * size) * slip / size
    return v - (1 + e) * vn * n + impulse, w + 1.5 / r**2 * np.cross(-r * n, impulse)


@settings(max_examples=100, deadline=None)
@given(vectors, vectors, vectors, vectors, st.floats(0.1, 1), st.floats(0, 1))
def test_contact_agrees_with_its_numpy_twin_and_never_adds_energy(
    v: tuple, w: tuple, surface: tuple, normal: tuple, e: float, mu: float
) -> None:
    n = np.array(normal) + np.array([0.0, 0.0, 1e-3])
    n /= np.linalg.norm(n)
    va, wa, sa = np.array(v), 10 * np.array(w), np.array(surface)
    out_v, out_w = np.empty(3), np.empty(3)
    contact(va, wa, n, sa, e, mu, BALL_RADIUS_M, out_v, out_w)
    expected_v, expected_w = numpy_contact(va, wa, n, sa, e, mu)
    np.testing.assert_allclose(out_v, expected_v, atol=1e-9)
    np.testing.assert_allclose(out_w, expected_w, atol=1e-6)

    def energy(vel: np.ndarray, spin: np.ndarray) -> float:
        # In the frame of the surface; thin shell: 2/3 r² per unit of mass.
        return float((vel - sa) @ (vel - sa) + 2 / 3 * BALL_RADIUS_M**2 * spin @ spin)

    assert energy(out_v, out_w) <= energy(va, wa) + 1e-9


@settings(max_examples=100, deadline=None)
@given(vectors, vectors, vectors, st.floats(0.3, 1), st.floats(0.02, 0.6))
def test_inverse_contact_leads_back_or_says_that_it_cannot(
    v: tuple, w: tuple, surface: tuple, e: float, mu: float
) -> None:
    n = np.array([0.0, 0.6, 0.8])
    va, wa, sa = np.array(v), 10 * np.array(w), np.array(surface)
    out_v, out_w, back_v, back_w = (np.empty(3) for _ in range(4))
    hit = contact(va, wa, n, sa, e, mu, BALL_RADIUS_M, out_v, out_w)
    code = contact_inverse(out_v, out_w, n, sa, e, mu, BALL_RADIUS_M, back_v, back_w)
    if not hit or (va - sa) @ n > -1e-3:
        return
    if code == UNIQUE:
        np.testing.assert_allclose(back_v, va, atol=1e-6)
        np.testing.assert_allclose(back_w, wa, atol=1e-4)
    else:
        # Rolling forgets the slip, but the state it names leads to the same result.
        assert code == ROLLING
        again_v, again_w = np.empty(3), np.empty(3)
        contact(back_v, back_w, n, sa, e, mu, BALL_RADIUS_M, again_v, again_w)
        np.testing.assert_allclose(again_v, out_v, atol=1e-6)
        np.testing.assert_allclose(again_w, out_w, atol=1e-4)


def test_a_ball_that_still_approaches_has_no_contact_behind_it() -> None:
    up = np.array([0.0, 0.0, 1.0])
    out = np.empty(3), np.empty(3)
    down = np.array([0.0, 1.0, -2.0])
    code = contact_inverse(down, np.zeros(3), up, np.zeros(3), 0.9, 0.2, BALL_RADIUS_M, *out)
    assert code == NO_INVERSE
    np.testing.assert_array_equal(out[0], down)


def test_restitution_may_depend_on_the_impact_speed() -> None:
    model = NOMINAL.with_values(table_restitution=0.9, table_restitution_slope=-0.02)
    out = np.empty(9)
    bounce_on_table(np.array([0, -0.5, 0.02, 0, 0, -5.0, 0, 0, 0]), model.params, out)
    assert out[5] == pytest.approx(0.8 * 5.0)


def test_lumped_constants_are_those_of_the_reference() -> None:
    p = NOMINAL.params
    assert p[1] * BALL_RADIUS_M * NOMINAL.lift == pytest.approx(0.0034208, rel=1e-4)
    assert p[1] * NOMINAL.drag == pytest.approx(0.134, abs=0.001)


def test_air_density_of_known_air() -> None:
    assert air_density(15.0, 101_325.0) == pytest.approx(1.225, abs=5e-4)
    # CIPM-2007 table: 20 °C, 101325 Pa, 50 % humidity.
    assert air_density(20.0, 101_325.0, 0.5) == pytest.approx(1.199, abs=1e-3)
    with pytest.raises(TTError, match="1013"):
        air_density(20.0, 1013.0)


def test_model_file_round_trip_and_refusals(tmp_path: Path) -> None:
    path = tmp_path / "ball.yaml"
    save_model(MATCH.with_values(drag=0.5), path, "made by a test")
    loaded = load_model(str(path))
    assert (loaded.drag, loaded.lift, loaded.lift_half_ratio) == (0.5, MATCH.lift, MATCH.lift_half_ratio)
    np.testing.assert_array_equal(loaded.params, MATCH.with_values(drag=0.5).params)
    assert load_model("match") is MATCH
    for text, word in (
        ("ball_model: {drag: 4.7}", "drag"),
        ("ball_model: {dragg: 0.47}", "dragg"),
        ("ball_model: {lift: .nan}", "lift"),
        ("ball_model: {lift: true}", "lift"),
        ("other: 1", "ball_model"),
        ("a: [", "cannot be read"),
    ):
        path.write_text(text)
        with pytest.raises(TTError, match=word):
            load_model(str(path))
    with pytest.raises(TTError, match="nominall"):
        load_model("nominall")


def test_shipped_spin_prior_is_honest_on_balls_it_was_not_fitted_to(
    public_states: tuple[np.ndarray, np.ndarray],
) -> None:
    ids, states = public_states
    held_out = states[ids % 4 == 2]
    residual = np.array([s[6:] - SHIPPED.mean(s[:3], s[3:6]) for s in held_out])
    mahalanobis2 = np.einsum("ni,ni->n", residual, np.linalg.solve(SHIPPED.covariance, residual.T).T)
    assert mahalanobis2.mean() == pytest.approx(3.0, abs=0.4)
    # It must be worth something: less spread than the spins themselves.
    assert residual[:, 0].std() < 0.85 * held_out[:, 6].std()


def test_refitted_spin_prior_is_the_shipped_one(
    public_states: tuple[np.ndarray, np.ndarray], tmp_path: Path
) -> None:
    ids, states = public_states
    fitted = fit_spin_prior(states[ids % 4 == 0])
    np.testing.assert_allclose(fitted.coefficients, SHIPPED.coefficients, atol=0.01)
    np.testing.assert_allclose(fitted.covariance, SHIPPED.covariance, atol=1.5)
    path = tmp_path / "prior.yaml"
    save_spin_prior(fitted, path)
    loaded = load_spin_prior(str(path))
    for name in ("coefficients", "covariance", "low", "high"):
        np.testing.assert_allclose(getattr(loaded, name), getattr(fitted, name))
        np.testing.assert_allclose(getattr(SHIPPED, name), getattr(fitted, name), atol=1.5)
    np.testing.assert_allclose(fitted.low, SHIPPED.low, atol=0.001)
    np.testing.assert_allclose(fitted.high, SHIPPED.high, atol=0.001)


def test_spin_prior_does_not_extrapolate() -> None:
    fast = np.array([0.0, 1.6, 0.45, 0.0, -12.0, -0.8])
    border = fast.copy()
    border[4] = SHIPPED.low[4]
    near = SHIPPED.at(fast)
    expected = SHIPPED.mean(border[:3], border[3:])
    np.testing.assert_allclose(near.mean(fast[:3], fast[3:]), expected)
    np.testing.assert_allclose(SHIPPED.mean(fast[:3], fast[3:]), expected)
    # Spread grows by what extrapolation would have added, so neither of the two answers is excluded.
    added = SHIPPED.coefficients[0, 5] * (fast[4] - border[4])
    assert near.covariance[0, 0] == pytest.approx(SHIPPED.covariance[0, 0] + added**2)
    assert SHIPPED.at(border) is SHIPPED


def test_spin_prior_refuses_what_cannot_determine_it(tmp_path: Path) -> None:
    with pytest.raises(TTError, match="at least 30"):
        fit_spin_prior(np.tile([0, 1, 0.3, 0, -5, 1, 30, 0, 0], (10, 1)))
    with pytest.raises(TTError, match="vary too little"):
        fit_spin_prior(np.tile([0, 1, 0.3, 0, -5, 1, 30, 0, 0], (100, 1)))
    path = tmp_path / "prior.yaml"
    path.write_text("spin_prior: {coefficients: [[1]], covariance: [[1]]}")
    with pytest.raises(TTError, match="cannot be read"):
        load_spin_prior(str(path))  # no range: written by hand
    path.write_text("spin_prior: {coefficients: [[1]], covariance: [[1]], low: [0], high: [1]}")
    with pytest.raises(TTError, match="shapes"):
        load_spin_prior(str(path))
    save_spin_prior(replace(SHIPPED, low=SHIPPED.high, high=SHIPPED.low), path)
    with pytest.raises(TTError, match="not above high"):
        load_spin_prior(str(path))
    with pytest.raises(TTError, match="cannot be read"):
        load_spin_prior(str(tmp_path / "absent.yaml"))
