"""The controlled stop: every joint decelerates along its own path and then stands."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


class Brake:
    """Constant deceleration from a motion to rest.

    Args:
        q, qd: motion to stop, shape (n,).
        deceleration: per joint, m/s² or rad/s².
    """

    def __init__(self, q: FloatArray, qd: FloatArray, deceleration: FloatArray) -> None:
        """Starts from the motion."""
        self.q, self.qd = np.array(q, dtype=float), np.array(qd, dtype=float)
        self._deceleration = deceleration

    @property
    def is_standing(self) -> bool:
        """True once no joint moves."""
        return not self.qd.any()

    def step(self, dt: float) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Position, velocity and acceleration `dt` seconds later."""
        speed = np.maximum(np.abs(self.qd) - self._deceleration * dt, 0.0)
        vel = np.sign(self.qd) * speed
        # A joint that reaches rest within the step stops on the way.
        moving_s = np.minimum(np.abs(self.qd) / self._deceleration, dt)
        self.q = self.q + 0.5 * (self.qd + vel) * moving_s
        acc = (vel - self.qd) / dt
        self.qd = vel
        return self.q.copy(), vel.copy(), acc
