"""Measures of the real-time loop: cheap to add in a tick, summarised once a second."""

from __future__ import annotations

import numpy as np

WINDOW = 2500  # ticks, 10 s at 250 Hz


class LoopStats:
    """Lateness, period, exchange time and losses of the last ticks.

    Attributes:
        ticks: since start. skipped: ticks lost because the one before took too long.
        bus_losses: times the adapter was lost. overruns: ticks whose work ended after the next deadline.
    """

    def __init__(self, period_s: float) -> None:
        """Starts empty."""
        self.period_s = period_s
        self.ticks = self.skipped = self.overruns = self.bus_losses = 0
        self._late = np.zeros(WINDOW)
        self._cycle = np.zeros(WINDOW)
        self._work = np.zeros(WINDOW)

    def add(self, late_s: float, cycle_s: float, work_s: float, skipped: int) -> None:
        """One tick: how late it woke, how long the exchange and all its work took, ticks skipped before
        it.
        """
        k = self.ticks % WINDOW
        self._late[k], self._cycle[k], self._work[k] = late_s, cycle_s, work_s
        self.ticks += 1
        self.skipped += skipped
        self.overruns += late_s + work_s > self.period_s

    def values(self) -> dict[str, float]:
        """Values for the diagnostics; times in ms over the last 10 s."""
        out: dict[str, float] = {
            "ticks": self.ticks,
            "skipped_ticks": self.skipped,
            "overruns": self.overruns,
            "bus_losses": self.bus_losses,
            "tick_share": self.ticks / max(1, self.ticks + self.skipped),
        }
        n = min(self.ticks, WINDOW)
        if n:
            for name, data in (("late", self._late), ("cycle", self._cycle), ("work", self._work)):
                sample = data[:n] * 1e3
                out[f"{name}_median_ms"] = float(np.median(sample))
                out[f"{name}_p99_ms"] = float(np.percentile(sample, 99))
                out[f"{name}_max_ms"] = float(sample.max())
        return out
