"""Rows of observations in stamp order: what the filter replays and the smoother fits.

A row is float64: [time s, kind, z (3), covariance (9), projection (12)]. kind 0 is a position (z = x, y, z in
m), kind 1 a ray (z = u, v undistorted px; the covariance is the leading 2 × 2 of the 3 × 3 block).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tt_perception.types import BallPosition, BallRay

ROW = 26


def observation_row(obs: BallPosition | BallRay, time_s: float) -> NDArray[np.float64]:
    """The row of one observation, shape (26,)."""
    row = np.zeros(ROW)
    row[0] = time_s
    if isinstance(obs, BallPosition):
        row[2:5] = obs.pos_table
        row[5:14] = obs.cov.ravel()
    else:
        row[1] = 1.0
        row[2:4] = obs.uv_px
        row[5:7] = obs.cov_px[0]
        row[8:10] = obs.cov_px[1]
        row[14:26] = obs.projection.ravel()
    return row
