"""What the ball's spin probably is, given its position and velocity just after the opponent's hit.

spin = B (1, position, velocity) + residual, residual ~ N(0, C). C is the plain second moment of the residuals, so the
prior is honest on average although real residuals have heavier tails than a normal distribution (median squared
Mahalanobis distance 1.4 instead of 2.4, 99th percentile 31 instead of 11).

Shipped numbers: fitted with `fit_spin_prior` to the 3,684 incoming states with id divisible by 4 of the public dataset
"Competitive Robot Table Tennis: Initial Ball States" (Google LLC, CC BY 4.0; D'Ambrosio et al., ICRA 2025). On the
3,667 other incoming states with even id: mean squared Mahalanobis distance 3.09 (3 is perfect). Refit with
`tt identify --spin-prior FILE`.

A regression knows nothing beyond the balls it was fitted to: extrapolated, it gives every ball of 12 m/s 140 rad/s of
topspin. Inputs outside the fitted range (1st to 99th percentile of each) therefore count as its border, and the part of
the mean that extrapolation would have added becomes a standard deviation.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
import yaml
from numpy.typing import NDArray

from tt_perception.errors import TTError
from tt_perception.files import write_whole

FloatArray = NDArray[np.float64]

MIN_STATES = 30  # 7 coefficients per axis need several times as many states
FITTED_RANGE_PERCENT = (1.0, 99.0)  # the outermost balls are few and do not fix a slope


@dataclass(frozen=True, slots=True)
class SpinPrior:
    """Gaussian spin prior, linear in position and velocity within a range.

    Attributes:
        coefficients: B, shape (3, 7), columns 1, x, y, z, v_x, v_y, v_z (rad/s per 1, m, m/s).
        covariance: C, shape (3, 3), rad²/s².
        low, high: range of position and velocity that the regression holds in, shape (6,), m and m/s.
    """

    coefficients: FloatArray
    covariance: FloatArray
    low: FloatArray = field(default_factory=lambda: np.full(6, -np.inf))
    high: FloatArray = field(default_factory=lambda: np.full(6, np.inf))

    def at(self, moving: FloatArray) -> SpinPrior:
        """The prior as it is linear near a position and velocity; itself within its range.

        Inputs outside count as the nearest of the range. How far the slope goes on is unknown: what extrapolation
        would add to the mean is added to the spread, as a standard deviation.

        Args:
            moving: position and velocity, shape (6,), m and m/s.
        """
        nearest = np.clip(moving, self.low, self.high)
        outside = nearest != moving
        if not outside.any():
            return self
        slopes = self.coefficients[:, 1:]
        beyond = slopes[:, outside] * (moving - nearest)[outside]
        coefficients = self.coefficients.copy()
        coefficients[:, 0] += slopes[:, outside] @ nearest[outside]
        coefficients[:, 1:][:, outside] = 0.0
        return SpinPrior(coefficients, self.covariance + beyond @ beyond.T)

    def information(self) -> tuple[FloatArray, FloatArray]:
        """The prior as a quadratic ½ xᵀ Λ x − ηᵀ x of the 9 states; no information on position and velocity.

        It is that of the regression: take it from the prior `at` the ball.

        Returns:
            Λ, shape (9, 9), and η, shape (9,).
        """
        rows = np.hstack([-self.coefficients[:, 1:], np.eye(3)])
        weighted = np.linalg.solve(self.covariance, rows)
        return rows.T @ weighted, weighted.T @ self.coefficients[:, 0]

    def mean(self, pos_table: FloatArray, vel_table: FloatArray) -> FloatArray:
        """Expected spin for position and velocity, shape (3,)."""
        moving = np.clip(np.concatenate((pos_table, vel_table)), self.low, self.high)
        return np.asarray(self.coefficients[:, 0] + self.coefficients[:, 1:] @ moving)


def fit_spin_prior(states: FloatArray) -> SpinPrior:
    """Fit the prior to ball states just after a hit by least squares.

    Args:
        states: position, velocity, spin, shape (n, 9); only incoming balls (v_y < 0) are used.

    Raises:
        TTError: fewer than `MIN_STATES` usable states, or states that do not determine the coefficients.
    """
    states = np.asarray(states, float)
    states = states[np.isfinite(states).all(axis=1)]
    states = states[states[:, 4] < 0.0]
    if len(states) < MIN_STATES:
        raise TTError(
            f"{len(states)} incoming ball states cannot determine a spin prior; at least {MIN_STATES} are needed: "
            "give a ball file with more states whose vel_y is negative"
        )
    design = np.hstack([np.ones((len(states), 1)), states[:, :6]])
    coefficients, _, rank, _ = np.linalg.lstsq(design, states[:, 6:], rcond=None)
    residual = states[:, 6:] - design @ coefficients
    covariance = residual.T @ residual / (len(states) - 7)
    if rank < 7 or np.linalg.eigvalsh(covariance)[0] <= 1e-9:
        raise TTError(
            f"the {len(states)} ball states vary too little (rank {rank} of 7) for a spin prior; give measured states"
        )
    low, high = np.percentile(states[:, :6], FITTED_RANGE_PERCENT, axis=0)
    return SpinPrior(coefficients.T.astype(np.float64), covariance.astype(np.float64), low, high)


SHIPPED = SpinPrior(
    coefficients=np.array(
        [
            [-67.580, -4.574, -14.179, 33.624, 1.142, -18.437, 7.056],
            [7.913, -6.209, -1.335, -3.915, 3.534, 0.812, 1.272],
            [5.324, -12.326, 0.057, -3.158, -4.049, 1.151, 0.550],
        ]
    ),
    covariance=np.array([[883.0, 3.4, -43.2], [3.4, 662.9, 262.5], [-43.2, 262.5, 574.5]]),
    low=np.array([-0.740, 0.495, 0.140, -2.523, -8.506, -2.687]),
    high=np.array([0.747, 1.850, 0.753, 2.700, -2.701, 3.003]),
)
"""Prior for a ball first seen just after the opponent's hit."""

BROAD = SpinPrior(coefficients=np.zeros((3, 7)), covariance=np.eye(3) * 80.0**2)
"""For a ball whose hit was not seen, or was ours: zero mean, and wide enough for the 95th percentile of the public
spins (100 rad/s) and for the spin that a bounce adds."""


def save_spin_prior(prior: SpinPrior, path: Path, comment: str = "") -> None:
    """Write a prior so that `load_spin_prior` reads it back; the file appears whole or not at all."""
    text = "".join(f"# {line}\n" for line in comment.splitlines())
    text += yaml.safe_dump(
        {
            "spin_prior": {
                "coefficients": prior.coefficients.tolist(),
                "covariance": prior.covariance.tolist(),
                "low": prior.low.tolist(),
                "high": prior.high.tolist(),
            }
        },
        sort_keys=False,
    )
    write_whole(path, text)


def load_spin_prior(path: str) -> SpinPrior:
    """The prior of a YAML file; the shipped one for an empty path.

    Raises:
        TTError: unreadable file, wrong shapes, numbers that are not finite, or a covariance that is not positive
            definite.
    """
    if not path:
        return SHIPPED
    try:
        values = yaml.safe_load(Path(path).read_text(encoding="utf-8"))["spin_prior"]
        coefficients = np.array(values["coefficients"], dtype=np.float64)
        covariance = np.array(values["covariance"], dtype=np.float64)
        low = np.array(values["low"], dtype=np.float64)
        high = np.array(values["high"], dtype=np.float64)
    except (OSError, UnicodeDecodeError, yaml.YAMLError, KeyError, TypeError, ValueError) as error:
        raise TTError(
            f"spin prior {path} cannot be read ({type(error).__name__}); write one with `tt identify --spin-prior FILE`"
        ) from error
    finite = np.isfinite(coefficients).all() and np.isfinite(covariance).all()
    if coefficients.shape != (3, 7) or covariance.shape != (3, 3) or not finite:
        raise TTError(
            f"spin prior {path} has shapes {coefficients.shape} and {covariance.shape}; "
            "needs finite coefficients (3, 7) and covariance (3, 3)"
        )
    if np.abs(covariance - covariance.T).max() > 1e-6 or np.linalg.eigvalsh(covariance)[0] <= 0.0:
        raise TTError(f"spin prior {path}: the covariance is not symmetric positive definite; refit it")
    if low.shape != (6,) or high.shape != (6,) or not (low <= high).all():
        raise TTError(
            f"spin prior {path}: low {low.tolist()} and high {high.tolist()} are no range of position and velocity; "
            "needs 6 numbers each, low not above high; refit it"
        )
    return SpinPrior(coefficients, covariance, low, high)
