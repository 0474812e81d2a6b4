"""Cut a recording of ball positions into flights of one ball between hits, and fit single flights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tt_estimation.ball_models import BallModel
from tt_estimation.spin_prior import SpinPrior
from tt_estimation.track import FilterConfig, Track
from tt_estimation.tracker import BallTracker, TrackerConfig
from tt_perception.types import BallPosition

FloatArray = NDArray[np.float64]

MIN_POINTS = 12
MIN_SECONDS = 0.15

# Wide enough that a recording is followed through bounces whatever ball and table it was made with.
_TOLERANT = FilterConfig(
    gate=0.9999,
    drag_sigma=0.1,
    lift_sigma=0.3,
    restitution_sigma=0.05,
    friction_sigma=0.08,
    bounce_sigma=0.05,
    refine=False,  # to cut the recording the plain filter is enough
)


@dataclass
class Flight:
    """Observations of one ball from its hit, or first sight, to the next hit.

    Attributes:
        rows: observation rows (see `buffer`), times from the first one.
        prior: of its spin. info, eta: the same as a quadratic near the last fit (see `SpinPrior.information`).
        residuals: of the last fit, shape (n, 3), m.
    """

    rows: FloatArray
    prior: SpinPrior
    info: FloatArray = field(default_factory=lambda: np.zeros((9, 9)))
    eta: FloatArray = field(default_factory=lambda: np.zeros(9))
    residuals: FloatArray = field(init=False)
    _state: FloatArray | None = None

    def __post_init__(self) -> None:
        self.residuals = np.zeros((len(self.rows), 3))

    def fit(self, model: BallModel) -> FloatArray:
        """Most probable state at the first observation under fixed constants, shape (9,); keeps the residuals."""
        config = FilterConfig(
            drag_sigma=1e-6, lift_sigma=1e-6, restitution_sigma=1e-6, friction_sigma=1e-6, bounce_sigma=1e-6
        )
        track = Track(self.rows, 0, model, config, self.prior, self._state)
        if not track.valid:
            track = Track(self.rows, 0, model, config, self.prior)
        track.settle()
        self.residuals = track.residuals()
        self._state = track.origin_state.copy()
        self.info, self.eta = self.prior.at(self._state[:6]).information()
        return self._state.copy()


def find_flights(positions: Sequence[BallPosition], model: BallModel, prior: SpinPrior) -> list[Flight]:
    """Flights of at least `MIN_POINTS` observations and `MIN_SECONDS`.

    Args:
        positions: in any order within the tracker's buffer of 0.25 s.
        model: ball model to follow them with, roughly right.
        prior: of the spin of balls that the opponent hit.
    """
    flights: list[Flight] = []

    def keep(track: Track) -> None:
        rows = track.first_rows()
        if len(rows) >= MIN_POINTS and rows[-1, 0] - rows[0, 0] >= MIN_SECONDS:
            flights.append(Flight(rows, track.prior))

    config = TrackerConfig(filter=replace(_TOLERANT, spin_prior=prior))
    tracker = BallTracker(model, config, on_end=keep)
    for position in positions:
        tracker.add(position)
    tracker.finish()
    return flights
