"""Device clock to host clock: a line under the delays, fitted over a sliding window.

A frame leaves the device at device time d and arrives at host time h = a + b d + delay, with delay ≥ its
minimum. The smallest delay of each second lies close to the line, so a line through those minima gives
offset and drift of the device clock, and scheduling jitter of the host does not matter.

Source of the idea: minimum-delay filtering of clock measurements (V. Paxson, On Calibrating Measurements of
Packet Transit Times, 1998).
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np

_BIN_NS = 500_000_000
_JUMP_FRAMES = 5
_MAX_DRIFT = 5e-4  # crystals are better than 100 ppm


@dataclass(frozen=True, slots=True)
class HostTime:
    """A device time on the host clock.

    Attributes:
        stamp_ns: host time, minimum delay taken off.
        sigma_ns: uncertainty.
    """

    stamp_ns: int
    sigma_ns: int


class ClockMap:
    """Maps device times of frames to the host clock.

    Args:
        min_delay_ns: shortest time from the device's stamp to arrival in the host (exposure, read-out,
            transfer).
        window_s: length of the window.
        jump_ns: a change of the offset beyond this, seen several times in a row, restarts the fit.

    Attributes:
        resets: how often the device clock jumped.
        drift: rate of the host clock per device clock, minus one.
    """

    def __init__(self, min_delay_ns: int = 0, window_s: float = 20.0, jump_ns: int = 20_000_000) -> None:
        self._min_delay_ns = min_delay_ns
        self._bins: deque[tuple[int, int, int]] = deque(maxlen=max(int(window_s * 1e9 / _BIN_NS), 4))
        self._jump_ns = jump_ns
        self._strange = 0
        self._last_device_ns: int | None = None
        self._origin_ns = 0
        self._offset_ns = 0.0
        self._spread_ns = 0.0
        self.resets = 0
        self.drift = 0.0

    def update(self, device_ns: int, arrival_ns: int) -> HostTime:
        """Take one frame and return its device time on the host clock."""
        offset = arrival_ns - device_ns
        if self._bins and self._jumped(device_ns, offset):
            self._bins.clear()
            self.resets += 1
            self.drift = 0.0
        self._last_device_ns = device_ns
        index = device_ns // _BIN_NS
        if self._bins and self._bins[-1][0] == index:
            if offset < self._bins[-1][2]:
                self._bins[-1] = (index, device_ns, offset)
                self._fit()
        else:
            self._bins.append((index, device_ns, offset))
            self._fit()
        predicted = self._offset_ns + self.drift * (device_ns - self._origin_ns)
        # Nothing arrives before it was sent: a frame faster than the line corrects it at once.
        line = min(predicted, float(offset))
        sigma = max(self._spread_ns, 20_000.0) if len(self._bins) > 2 else 2_000_000.0
        return HostTime(round(device_ns + line - self._min_delay_ns), round(sigma))

    def _jumped(self, device_ns: int, offset: int) -> bool:
        assert self._last_device_ns is not None
        predicted = self._offset_ns + self.drift * (device_ns - self._origin_ns)
        if device_ns <= self._last_device_ns or offset < predicted - self._jump_ns:
            return True
        # A late frame may be jitter; several in a row are a clock that was set back.
        self._strange = self._strange + 1 if offset > predicted + self._jump_ns else 0
        if self._strange >= _JUMP_FRAMES:
            self._strange = 0
            return True
        return False

    def _fit(self) -> None:
        """Line through the minima; the newest bin is not complete and counts only while there are few."""
        rows = list(self._bins) if len(self._bins) < 4 else list(self._bins)[:-1]
        times = np.array([row[1] for row in rows], dtype=np.float64)
        offsets = np.array([row[2] for row in rows], dtype=np.float64)
        self._origin_ns = rows[-1][1]
        x = times - self._origin_ns
        if len(rows) < 4:
            self.drift, self._offset_ns, self._spread_ns = 0.0, float(offsets.min()), 0.0
            return
        base = offsets.min()
        slope, level = np.polyfit(x * 1e-9, offsets - base, 1)
        drift = float(np.clip(slope * 1e-9, -_MAX_DRIFT, _MAX_DRIFT))
        rest = offsets - base - level - drift * x
        self.drift = drift
        self._spread_ns = float(np.std(rest))
        # The line lies below the minima by half their scatter.
        self._offset_ns = float(base + level - self._spread_ns)
