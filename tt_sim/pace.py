"""How fast simulated time may pass, so that rendered images and what is made of them arrive in time.

A machine that cannot render, detect and plan in real time would lose balls for want of computing, which says
nothing about the robot. With `/clock` the simulation can slow down instead. Two things see to it: the clock
waits for images that should have been delivered, and its rate is lowered while that happens, or while ball
states come late, and raised again slowly.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

AUTOMATIC = 0.0  # a scale that stands for what the machine sustains
SLOWEST = 0.05
_WINDOW_S = 0.25  # wall time between decisions about the rate
_HELD_SHARE = 0.05  # of the window that may pass waiting
_LATE_SHARE = 0.15  # of the ball states of a window that may be late
_SLOWER, _FASTER = 0.85, 0.01
_STATE_LATE_NS = 12_000_000  # from the delivery of an image to the ball state, in simulated time
_GRACE_NS = 3_000_000  # to detect the ball in a delivered image and tell about it, in simulated time
_IDLE_PERIODS = 2  # cameras keep their own rhythm while there is no ball


class Pace:
    """Rate of simulated time per wall time.

    Args:
        scale: fixed rate, or `AUTOMATIC`.
        start_s: wall time now.

    Attributes:
        rate: simulated per wall time.
    """

    def __init__(self, scale: float, start_s: float) -> None:
        self.rate = scale or 1.0
        self._automatic = scale == AUTOMATIC
        self._window_s = start_s
        self._held_s = 0.0
        self._states = self._late = 0

    def held(self, seconds: float) -> None:
        """The clock stood still for so much wall time to wait for images."""
        self._held_s += seconds

    def state(self, age_ns: int) -> None:
        """A ball state came this long after the delivery of its image, simulated time."""
        self._states += 1
        self._late += age_ns > _STATE_LATE_NS

    def update(self, wall_s: float) -> None:
        """Decide again about the rate when a window is over."""
        spent = wall_s - self._window_s
        if not self._automatic or spent < _WINDOW_S:
            return
        if self._held_s > _HELD_SHARE * spent or self._late > _LATE_SHARE * max(self._states, 5):
            self.rate = max(self.rate * _SLOWER, SLOWEST)
        elif self._states:  # without a ball there is little to do, which says nothing
            self.rate = min(self.rate + _FASTER, 1.0)
        self._window_s, self._held_s, self._states, self._late = wall_s, 0.0, 0, 0


class ImageGate:
    """Tells whether images that should have been delivered are still missing.

    Args:
        cameras: names.
        delay_ns: from mid-exposure to delivery.
        period_ns: of the trigger.
    """

    def __init__(self, cameras: Sequence[str], delay_ns: int, period_ns: int) -> None:
        self._newest: dict[str, int | None] = dict.fromkeys(cameras)  # None: not heard of, not waited for
        self._delay_ns = delay_ns + _GRACE_NS
        self._period_ns = period_ns
        self._exposed: deque[int] = deque()
        self._needed_ns = 0

    def expose(self, stamp_ns: int) -> None:
        """All cameras take an image of a ball."""
        self._exposed.append(stamp_ns)

    def delivered(self, camera: str, stamp_ns: int) -> None:
        """The detections of an image arrived."""
        self._newest[camera] = stamp_ns

    @property
    def has_heard_all(self) -> bool:
        """Whether every camera delivers."""
        return None not in self._newest.values()

    def missing(self, now_ns: int) -> tuple[str, ...]:
        """Cameras whose due image has not arrived."""
        while self._exposed and self._exposed[0] + self._delay_ns <= now_ns:
            self._needed_ns = self._exposed.popleft()
        needed = max(self._needed_ns, now_ns - self._delay_ns - _IDLE_PERIODS * self._period_ns)
        return tuple(name for name, stamp in self._newest.items() if stamp is not None and stamp < needed)

    def give_up(self, cameras: Sequence[str]) -> None:
        """Do not wait for these until they are heard again."""
        for name in cameras:
            self._newest[name] = None
