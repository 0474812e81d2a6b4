"""Limits every setpoint passes on its way to the motors: position, velocity, acceleration, step, braking
distance.

A setpoint inside all limits passes unchanged, bit for bit. Any other is replaced by the nearest motion the
limits allow, which catches up with the wanted one as soon as it can; the reasons are counted.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
# Time constant of catching up, in ticks; and the share of the acceleration limit it plans with.
_CATCH_UP_TICKS = 3.0
_CATCH_UP_ACC = 0.5
REASONS = ("position", "velocity", "acceleration", "step", "braking")


class SetpointLimiter:
    """Limits of one robot and the last setpoint that passed.

    Args:
        lower, upper: position limits, shape (n,).
        max_vel, max_acc: shape (n,).
        margin: share by which velocity and acceleration may exceed their limits (rounding, jitter).

    Attributes:
        q, qd: the last setpoint.
        counts: how often each reason of `REASONS` changed a setpoint.
    """

    def __init__(
        self, lower: FloatArray, upper: FloatArray, max_vel: FloatArray, max_acc: FloatArray, margin: float
    ) -> None:
        """Starts at rest at zero; call `reset` before the first setpoint."""
        self._lower, self._upper = lower, upper
        self._vel = max_vel * (1.0 + margin)
        self._acc = max_acc * (1.0 + margin)
        self.q = np.zeros_like(lower)
        self.qd = np.zeros_like(lower)
        self.counts = dict.fromkeys(REASONS, 0)
        self._limits = list(zip(lower.tolist(), upper.tolist(), self._vel.tolist(), self._acc.tolist()))

    def reset(self, q: FloatArray, qd: FloatArray | None = None) -> None:
        """The motors are known to be at `q`, moving with `qd`."""
        self.q = np.array(q, dtype=float)
        self.qd = np.zeros_like(self.q) if qd is None else np.array(qd, dtype=float)

    def apply(
        self, q: FloatArray, qd: FloatArray, qdd: FloatArray, dt: float
    ) -> tuple[FloatArray, FloatArray, FloatArray, BoolArray]:
        """The allowed setpoint nearest to the wanted one, `dt` seconds after the last; finite input only.

        Returns:
            position, velocity, acceleration, and which joints were changed, each of shape (n,).
        """
        if self._allows(q, qd, dt):
            self.q, self.qd = q, qd
            return q, qd, qdd, np.zeros(len(q), dtype=bool)
        # A joint that starts outside its limits may come in, but not go farther out.
        lower, upper = np.minimum(self._lower, self.q), np.maximum(self._upper, self.q)
        gain = self._acc * dt
        mean = (q - self.q) / dt
        bad = {
            "position": (q < lower) | (q > upper),
            "velocity": np.abs(qd) > self._vel,
            "acceleration": np.abs(qd - self.qd) > gain,
            "step": np.abs(mean - self.qd) > gain,
            "braking": qd * np.abs(qd) > 2.0 * self._acc * np.maximum(upper - q, 0.0) + 1e-9,
        }
        bad["braking"] |= -qd * np.abs(qd) > 2.0 * self._acc * np.maximum(q - lower, 0.0) + 1e-9
        changed = np.zeros(len(q), dtype=bool)
        for reason, where in bad.items():
            if where.any():
                self.counts[reason] += 1
                changed |= where
        if changed.any():
            q, qd, qdd = self._catch_up(q, qd, qdd, dt, changed, lower, upper)
        self.q, self.qd = q, qd
        return q, qd, qdd, changed

    def _allows(self, q: FloatArray, qd: FloatArray, dt: float) -> bool:
        """Whether a setpoint keeps all limits, joint by joint.

        The rule in plain Python: nearly every setpoint passes, and for a handful of numbers array expressions
        take ten times as long.
        """
        rows = zip(q.tolist(), qd.tolist(), self.q.tolist(), self.qd.tolist(), self._limits)
        for pos, vel, last_pos, last_vel, (lower, upper, top_vel, top_acc) in rows:
            gain = top_acc * dt
            below, above = pos - min(lower, last_pos), max(upper, last_pos) - pos
            room = above if vel > 0.0 else below
            if not (
                below >= 0.0
                and above >= 0.0
                and -top_vel <= vel <= top_vel
                and abs(vel - last_vel) <= gain
                and abs((pos - last_pos) / dt - last_vel) <= gain
                and vel * vel <= 2.0 * top_acc * room + 1e-9
            ):
                return False
        return True

    def _catch_up(
        self,
        q: FloatArray,
        qd: FloatArray,
        qdd: FloatArray,
        dt: float,
        changed: BoolArray,
        lower: FloatArray,
        upper: FloatArray,
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        target = np.clip(q, lower, upper)
        wanted_vel = np.where(target == q, qd, 0.0)
        error = target - self.q - 0.5 * (self.qd + wanted_vel) * dt
        size = np.abs(error)
        approach = np.minimum(size / (_CATCH_UP_TICKS * dt), np.sqrt(2.0 * _CATCH_UP_ACC * self._acc * size))
        vel = wanted_vel + np.sign(error) * approach
        gain = self._acc * dt
        vel = np.clip(vel, self.qd - gain, self.qd + gain)
        vel = np.clip(vel, -self._vel, self._vel)
        # The fastest from which braking still fits behind this tick: v² = 2 a (way left − ½ (v₀ + v) dt),
        # solved for v.
        half = 0.5 * gain
        ahead = upper - self.q - 0.5 * self.qd * dt
        behind = self.q - lower + 0.5 * self.qd * dt
        top = np.sqrt(np.maximum(half * half + 2.0 * self._acc * ahead, 0.0)) - half
        bottom = half - np.sqrt(np.maximum(half * half + 2.0 * self._acc * behind, 0.0))
        vel = np.clip(vel, np.maximum(bottom, -self._vel), np.minimum(top, self._vel))
        pos = np.clip(self.q + 0.5 * (self.qd + vel) * dt, lower, upper)
        acc = (vel - self.qd) / dt
        return np.where(changed, pos, q), np.where(changed, vel, qd), np.where(changed, acc, qdd)
