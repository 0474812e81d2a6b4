"""Clocks for the motor loop: when to wake, and what time the trajectories mean."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable
from typing import Protocol

NS_PER_S = 1_000_000_000
_SLEWED_NS = 2_000_000
_SLEW_NS = 20_000


class Clock(Protocol):
    """Time of the loop; all values are integer nanoseconds of one clock."""

    def now_ns(self) -> int:
        """Time now, in the clock the trajectories are stamped with."""
        ...

    def sleep_until(self, deadline_ns: int) -> bool:
        """Sleeps; False when `wake` or `nudge` ended it early."""
        ...

    def wake(self) -> None:
        """Ends the current and every later sleep."""
        ...

    def nudge(self) -> None:
        """Ends the current sleep, or the next one when nobody sleeps; only where sleeps are long enough."""
        ...

    def jumps(self) -> int:
        """How often the clock was set by more than slewing can follow."""
        ...


class WallClock:
    """System time for stamps, the monotonic clock for sleeping.

    The difference of the two is followed slowly, so that a clock service that slews the time does not shake
    the motors; a step of more than 2 ms is taken at once and counted as a jump.
    """

    def __init__(self) -> None:
        """Reads the difference of both clocks."""
        self._offset_ns = time.time_ns() - time.monotonic_ns()
        self._jumps = 0
        self._stopped = False
        self._nudge = threading.Lock()  # free while a nudge waits to be noticed
        self._nudge.acquire()

    def now_ns(self) -> int:
        """System time, smoothed."""
        mono = time.monotonic_ns()
        drift = time.time_ns() - mono - self._offset_ns
        if abs(drift) > _SLEWED_NS:
            # Being scheduled away between the two readings looks like a jump: look again.
            mono = time.monotonic_ns()
            drift = time.time_ns() - mono - self._offset_ns
        if abs(drift) > _SLEWED_NS:
            self._jumps += 1
            self._offset_ns += drift
        else:
            self._offset_ns += max(-_SLEW_NS, min(_SLEW_NS, drift))
        return mono + self._offset_ns

    def sleep_until(self, deadline_ns: int) -> bool:
        """Sleeps in the calling thread; waiting for a lock wakes as punctually as `time.sleep`."""
        left = deadline_ns - self._offset_ns - time.monotonic_ns()
        nudged = left > 0 and self._nudge.acquire(timeout=left / NS_PER_S)
        return not (nudged or self._stopped)

    def wake(self) -> None:
        """See `Clock`."""
        self._stopped = True
        self.nudge()

    def nudge(self) -> None:
        """See `Clock`."""
        with contextlib.suppress(RuntimeError):  # the one before was not yet noticed
            self._nudge.release()

    def jumps(self) -> int:
        """See `Clock`."""
        return self._jumps


class PolledClock:
    """Any time source that can only be read, such as simulated ROS time: polls it.

    Args:
        read_ns: gives the time.
        poll_s: wall time between readings; a tick is late by up to this.

    Attributes:
        on_poll: called between readings. The time may stand still until what waits there is done, as
            simulated ROS time does while its node waits for the motor loop.
    """

    def __init__(self, read_ns: Callable[[], int], poll_s: float = 0.0004) -> None:
        """Reads nothing yet."""
        self._read_ns, self._poll_s = read_ns, poll_s
        self._last_ns, self._jumps = 0, 0
        self._stopped = threading.Event()
        self.on_poll: Callable[[], None] = lambda: None

    def now_ns(self) -> int:
        """Time of the source."""
        now = self._read_ns()
        if now < self._last_ns:
            self._jumps += 1
        self._last_ns = now
        return now

    def sleep_until(self, deadline_ns: int) -> bool:
        """Polls until the source has reached the deadline or went back."""
        jumps = self._jumps
        while self.now_ns() < deadline_ns and self._jumps == jumps:
            if self._stopped.is_set():
                return False
            self.on_poll()
            time.sleep(self._poll_s)
        return not self._stopped.is_set()

    def wake(self) -> None:
        """See `Clock`."""
        self._stopped.set()

    def nudge(self) -> None:
        """Not needed: polling answers calls."""

    def jumps(self) -> int:
        """See `Clock`."""
        return self._jumps
