"""Follows joint trajectories and splices new ones in without a step.

A new trajectory is kept until its first knot; the old one is followed meanwhile. What remains of a difference
at the splice (a late message, rounding) is not jumped over but faded out by a quintic whose acceleration
stays small.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tt_control.intake import Refused
from tt_planning.trajectory import sample
from tt_planning.types import JointTrajectory

FloatArray = NDArray[np.float64]
NS_PER_S = 1_000_000_000
# A trajectory that ends slower than this is at rest there.
REST_SPEED = 1e-3
# Share of the acceleration limit that fading may add, and its shortest and longest duration.
_FADE_ACC = 0.3
_FADE_S = (0.02, 0.4)
# Peaks of the fading quintic: 5.78 e/T² from a position step, 4.0 v/T from a velocity step (bounds).
_PEAK_POS, _PEAK_VEL = 5.78, 4.0
_MAX_WAITING = 8


@dataclass(frozen=True, slots=True)
class Reference:
    """What the joints should do at one instant.

    Attributes:
        q, qd, qdd: shape (n,), m or rad.
        stale_s: how long ago the trajectory ended while moving; 0 while it is valid.
        started_ns: capture stamp of the trajectory that began to be followed since the last call, else None.
    """

    q: FloatArray
    qd: FloatArray
    qdd: FloatArray
    stale_s: float
    started_ns: int | None


class _Path:
    """A trajectory with the instants at which it begins and ends, and whether it ends at rest."""

    __slots__ = ("end_ns", "ends_moving", "start_ns", "trajectory")

    def __init__(self, trajectory: JointTrajectory) -> None:
        self.trajectory = trajectory
        first, last = float(trajectory.times_s[0]), float(trajectory.times_s[-1])
        self.start_ns = trajectory.capture_stamp_ns + round(first * NS_PER_S)
        self.end_ns = trajectory.capture_stamp_ns + round(last * NS_PER_S)
        self.ends_moving = bool(np.abs(trajectory.vel[-1]).max() > REST_SPEED)

    def at(self, at_ns: int) -> tuple[FloatArray, FloatArray, FloatArray]:
        """The motion; beyond an end in motion it goes on straight, so that a late successor fits."""
        if self.ends_moving and at_ns > self.end_ns:
            pos, vel = self.trajectory.pos[-1], self.trajectory.vel[-1]
            return pos + vel * ((at_ns - self.end_ns) / NS_PER_S), vel.copy(), np.zeros_like(vel)
        return sample(self.trajectory, at_ns)

    def stale_s(self, at_ns: int) -> float:
        """How long ago it ended while moving."""
        return max(0.0, (at_ns - self.end_ns) / NS_PER_S) if self.ends_moving else 0.0


class PathFollower:
    """The path in force and the ones waiting for their first knot.

    Args:
        max_acc: acceleration limits, shape (n,).
        splice: largest position step per joint between old and new path, shape (n,).
    """

    def __init__(self, max_acc: FloatArray, splice: FloatArray) -> None:
        """Starts at rest at zero; call `hold` before the first sample."""
        self._max_acc, self._splice = max_acc, splice
        self._rest = np.zeros_like(max_acc)
        self._active: _Path | None = None
        self._waiting: list[_Path] = []
        self._fade: tuple[int, float, FloatArray] | None = None
        self._last_ns: int | None = None

    def hold(self, q: FloatArray) -> None:
        """Forgets every trajectory and rests at `q`."""
        self._rest = np.array(q, dtype=float)
        self._active, self._fade, self._last_ns = None, None, None
        self._waiting.clear()

    @property
    def is_resting(self) -> bool:
        """True when no trajectory is followed or waiting."""
        return self._active is None and not self._waiting

    @property
    def next_start_ns(self) -> int | None:
        """When the first waiting trajectory begins; None when none waits."""
        return self._waiting[0].start_ns if self._waiting else None

    def offer(self, trajectory: JointTrajectory) -> None:
        """Takes a trajectory that `accept` has checked; it replaces waiting ones that start later.

        Raises:
            Refused: it does not continue the path in force.
        """
        path = _Path(trajectory)
        kept = [other for other in self._waiting if other.start_ns < path.start_ns]
        at_ns = path.start_ns if self._last_ns is None else max(path.start_ns, self._last_ns)
        old = kept[-1].at(at_ns) if kept else self._following(at_ns)
        step = np.abs(path.at(at_ns)[0] - old[0])
        if (step > self._splice).any():
            j = int(np.argmax(step / self._splice))
            raise Refused(
                f"it begins {step[j]:.3g} away from the path in force (joint {trajectory.joint_names[j]}); "
                f"at most {self._splice[j]:.3g} is allowed, plan from the current motion"
            )
        self._waiting = [*kept, path][-_MAX_WAITING:]

    def reference(self, at_ns: int) -> Reference:
        """The motion wanted at a time that never goes back."""
        started = None
        while self._waiting and self._waiting[0].start_ns <= at_ns:
            path = self._waiting.pop(0)
            self._splice_in(path)
            started = path.trajectory.capture_stamp_ns
        self._last_ns = at_ns
        q, qd, qdd = self._following(at_ns)
        stale_s = 0.0 if self._active is None else self._active.stale_s(at_ns)
        return Reference(q, qd, qdd, stale_s, started)

    def peek(self, at_ns: int) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Motion on the path in force a little later than the last `reference`; changes nothing."""
        fade = self._fade
        motion = self._following(at_ns)
        self._fade = fade
        return motion

    def _splice_in(self, path: _Path) -> None:
        at_ns = path.start_ns if self._last_ns is None else max(path.start_ns, self._last_ns)
        old, new = self._following(at_ns), path.at(at_ns)
        self._active = path
        self._fade = self._make_fade(at_ns, old[0] - new[0], old[1] - new[1])

    def _make_fade(
        self, at_ns: int, pos: FloatArray, vel: FloatArray
    ) -> tuple[int, float, FloatArray] | None:
        if np.abs(pos).max() < 1e-9 and np.abs(vel).max() < 1e-7:
            return None
        room = _FADE_ACC * self._max_acc
        need = np.maximum(np.sqrt(_PEAK_POS * np.abs(pos) / room), _PEAK_VEL * np.abs(vel) / room)
        duration = float(np.clip(need.max(), *_FADE_S))
        return at_ns, duration, np.array([pos, vel])

    def _following(self, at_ns: int) -> tuple[FloatArray, FloatArray, FloatArray]:
        if self._active is None:
            zero = np.zeros_like(self._rest)
            return self._rest.copy(), zero, zero.copy()
        q, qd, qdd = self._active.at(at_ns)
        if self._fade is not None:
            begin, duration, offset = self._fade
            t = max(0.0, (at_ns - begin) / NS_PER_S)
            if t >= duration:
                self._fade = None
            else:
                p, v, a = fade(offset[0], offset[1], t, duration)
                q, qd, qdd = q + p, qd + v, qdd + a
        return q, qd, qdd


def fade(
    pos: FloatArray, vel: FloatArray, t: float, duration: float
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Quintic from (pos, vel, 0) to (0, 0, 0) over `duration`, sampled at `t`: position, velocity,
    acceleration.
    """
    T = duration
    c3 = (-10.0 * pos - 6.0 * vel * T) / T**3
    c4 = (15.0 * pos + 8.0 * vel * T) / T**4
    c5 = (-6.0 * pos - 3.0 * vel * T) / T**5
    p = pos + t * (vel + t * t * (c3 + t * (c4 + t * c5)))
    v = vel + t * t * (3.0 * c3 + t * (4.0 * c4 + t * 5.0 * c5))
    a = t * (6.0 * c3 + t * (12.0 * c4 + t * 20.0 * c5))
    return p, v, a
