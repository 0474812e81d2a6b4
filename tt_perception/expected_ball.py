"""Where a camera should look: the last ball state of the filter, moved to the time of an image."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tt_perception.camera import CameraModel
from tt_perception.table import BALL_RADIUS_M

FloatArray = NDArray[np.float64]

_GRAVITY = np.array([0.0, 0.0, -9.81])
_MAX_AGE_S = 0.12  # beyond, drag, spin and bounces make a region that is worth nothing


class ExpectedBall:
    """Keeps the newest ball state and projects it."""

    def __init__(self, camera: CameraModel) -> None:
        self._camera = camera
        self._stamp_ns = 0
        self._pos = np.full(3, np.nan)
        self._vel = np.zeros(3)

    def update(self, stamp_ns: int, pos_table: FloatArray, vel_table: FloatArray) -> None:
        """Take a ball state of the filter."""
        self._stamp_ns, self._pos, self._vel = stamp_ns, pos_table, vel_table

    def pixel(self, stamp_ns: int) -> tuple[FloatArray, float] | None:
        """Expected pixel and half size of the region at `stamp_ns`; None when nothing useful is known."""
        age = (stamp_ns - self._stamp_ns) * 1e-9
        if not 0.0 <= age <= _MAX_AGE_S:
            return None
        pos = self._pos + age * self._vel + 0.5 * age * age * _GRAVITY
        if pos[2] < BALL_RADIUS_M < self._pos[2]:  # bounced meanwhile
            pos[2] = 2.0 * BALL_RADIUS_M - pos[2]
        uv = self._camera.project(pos)
        if not self._camera.in_image(uv)[0]:
            return None
        scale = float(self._camera.matrix[0, 0]) / max(float(self._camera.depth_m(pos)[0]), 0.3)
        # 8 cm, and 1.5 m/s of error in the velocity, around a ball of 2 cm.
        return uv, 12.0 + scale * (0.08 + 1.5 * age)
