"""Quintics: end conditions, exact peaks, shortest durations."""

import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tt_planning import quintic

values = st.floats(-5.0, 5.0, allow_subnormal=False)


@settings(max_examples=200, deadline=None)
@given(values, values, values, values, values, values, st.floats(0.02, 3.0))
def test_peaks_bound_a_dense_sampling_and_are_reached(p0, v0, a0, p1, v1, a1, duration):
    """Never below any sample, and not above the largest one by more than the grid can hide."""
    c, found = np.empty(6), np.empty(quintic.N_PEAKS)
    quintic.coefficients(p0, v0, a0, p1, v1, a1, duration, c)
    quintic.peaks(c, duration, found)
    poly = np.polynomial.Polynomial(c)
    t = np.linspace(0.0, duration, 4001)
    samples = [poly(t), poly.deriv()(t), poly.deriv(2)(t), poly.deriv(3)(t)]
    sampled = [samples[0].min(), samples[0].max(), *(np.abs(s).max() for s in samples[1:])]
    gaps = np.array([sampled[0] - found[0], *(found[i] - sampled[i] for i in range(1, 5))])
    scale = np.array([np.abs(s).max() + 1e-3 for s in (samples[0], *samples)])
    assert (gaps / scale > -1e-9).all()
    assert (gaps / scale < 1e-4).all()
    assert quintic.peak_acceleration(c, duration) == pytest.approx(found[quintic.Q_ACC], rel=1e-9)


@settings(max_examples=100, deadline=None)
@given(values, values, values, values, values, values, st.floats(0.05, 3.0))
def test_quintic_meets_both_ends(p0, v0, a0, p1, v1, a1, duration):
    """Position, velocity and acceleration at both ends are the wanted ones."""
    c = np.empty(6)
    quintic.coefficients(p0, v0, a0, p1, v1, a1, duration, c)
    tol = 1e-9 * (1.0 + np.abs(c).max() * max(1.0, duration) ** 5)
    assert quintic.position(c, duration) == pytest.approx(p1, abs=tol)
    assert quintic.velocity(c, duration) == pytest.approx(v1, abs=10 * tol)
    assert quintic.acceleration(c, duration) == pytest.approx(a1, abs=100 * tol)
    assert (quintic.position(c, 0.0), quintic.velocity(c, 0.0), quintic.acceleration(c, 0.0)) == (p0, v0, a0)


def test_shortest_duration_of_a_rest_to_rest_motion_is_the_closed_form():
    """15/8 d / v by velocity, or √(10/√3 d / a) by acceleration, whichever is longer."""
    for distance in (0.001, 0.1, 1.0):
        want = max(1.875 * distance / 3.0, math.sqrt(10.0 / math.sqrt(3.0) * distance / 40.0))
        got = quintic.minimum_duration(0.0, 0.0, 0.0, distance, 0.0, 0.0, -2.0, 2.0, 3.0, 40.0, 5.0)
        assert got == pytest.approx(want, abs=2e-6)


def test_no_duration_can_leave_the_limits():
    """An end outside the position limits is refused, not clipped."""
    assert math.isnan(quintic.minimum_duration(0.0, 0.0, 0.0, 3.0, 0.0, 0.0, -2.0, 2.0, 3.0, 40.0, 5.0))


def test_load_counts_position_excess():
    """A dip below the lower limit makes a motion infeasible though speed and acceleration are small."""
    c, work = np.empty(6), np.empty(quintic.N_PEAKS)
    quintic.coefficients(0.0, 0.0, 0.0, 0.0, 1.0, 0.0, 1.0, c)
    assert quintic.load(c, 1.0, -1.0, 1.0, 3.0, 40.0, work) < 1.0
    assert quintic.load(c, 1.0, -0.05, 1.0, 3.0, 40.0, work) > 1.0
