"""Compile every kernel of the running stack before the first ball."""

from __future__ import annotations

import numpy as np

from tt_estimation.ball_models import BallModel
from tt_estimation.events import STEP_S, fly
from tt_estimation.phase import BallPhase
from tt_estimation.tracker import BallTracker
from tt_perception.types import BallPosition


def warm_up(model: BallModel) -> None:
    """Track one synthetic ball through a bounce, predict it, and follow its phase."""
    start = np.array([0.0, 1.2, 0.25, 0.3, -6.0, 1.0, 30.0, 0.0, 0.0])
    tracker = BallTracker(model)
    phase = BallPhase(model)
    state = np.empty(9)
    cov = np.eye(3) * 1e-6
    for i in range(0, 60, 2):
        fly(start, model.params, i / 120.0, STEP_S, state)
        result = tracker.add(BallPosition(1_000_000_000 + i * 8_333_333, state[:3].copy(), cov))
        if result is not None:
            phase.update(result)
            tracker.predict()
