"""Measures of the real-time loop: cheap to add in a tick, summarised once a second.

Two views: the last ten seconds, and the whole run since the motors were first enabled. The run is kept as counts
in classes of 20 µs, so that ten minutes take no more memory than one.
"""

from __future__ import annotations

import numpy as np

WINDOW = 2500  # ticks, 10 s at 250 Hz
CLASS_MS, CLASSES = 0.02, 5000  # what takes longer than 100 ms counts in the last class
# What is measured, in words, and the columns of tables about it (`run_<name>_<column>_ms`).
WORDS = {
    "late": "woke late",
    "period": "from tick to tick",
    "cycle": "exchange with the boards",
    "work": "all work of a tick",
}
COLUMNS = ("median", "p99", "p999", "max")
NAMES = tuple(WORDS)


class LoopStats:
    """Lateness, period, exchange time and losses of the ticks.

    Attributes:
        ticks: since start. skipped: ticks lost because the one before took too long.
        bus_losses: times the adapter was lost. overruns: ticks whose work ended after the next deadline.
    """

    def __init__(self, period_s: float) -> None:
        """Starts empty."""
        self.period_s = period_s
        self.ticks = self.skipped = self.overruns = self.bus_losses = 0
        self._window = np.zeros((len(NAMES), WINDOW))
        self._run: np.ndarray | None = None
        self._run_max = [0.0] * len(NAMES)
        self._run_ticks = self._run_skipped = 0

    def begin_run(self) -> None:
        """From now on the ticks count for the run; only the first call does something."""
        if self._run is None:
            self._run = np.zeros((len(NAMES), CLASSES), dtype=np.int64)

    def add(self, late_s: float, period_s: float, cycle_s: float, work_s: float, skipped: int) -> None:
        """One tick: how late it woke, how long after the one before, how long the exchange and all its work took,
        ticks skipped before it.
        """
        sample = (late_s, period_s, cycle_s, work_s)
        self._window[:, self.ticks % WINDOW] = sample
        self.ticks += 1
        self.skipped += skipped
        self.overruns += late_s + work_s > self.period_s
        if self._run is None:
            return
        self._run_ticks += 1
        self._run_skipped += skipped
        for k, value in enumerate(sample):
            self._run[k, min(max(int(value * (1e3 / CLASS_MS)), 0), CLASSES - 1)] += 1
            self._run_max[k] = max(self._run_max[k], value)

    def values(self) -> dict[str, float]:
        """Values for the diagnostics; times in ms over the last 10 s, and with `run_` over the whole run."""
        out: dict[str, float] = {
            "ticks": self.ticks,
            "skipped_ticks": self.skipped,
            "overruns": self.overruns,
            "bus_losses": self.bus_losses,
            "tick_share": self.ticks / max(1, self.ticks + self.skipped),
        }
        n = min(self.ticks, WINDOW)
        if n:
            for name, data in zip(NAMES, self._window):
                sample = data[:n] * 1e3
                out[f"{name}_median_ms"] = float(np.median(sample))
                out[f"{name}_p99_ms"] = float(np.percentile(sample, 99))
                out[f"{name}_max_ms"] = float(sample.max())
        if self._run is not None and self._run_ticks:
            out["run_ticks"], out["run_skipped_ticks"] = self._run_ticks, self._run_skipped
            out["run_tick_share"] = self._run_ticks / (self._run_ticks + self._run_skipped)
            for name, counts, longest in zip(NAMES, self._run, self._run_max):
                below = np.cumsum(counts)
                for share, word in ((0.5, "median"), (0.99, "p99"), (0.999, "p999")):
                    place = int(np.searchsorted(below, share * self._run_ticks))
                    out[f"run_{name}_{word}_ms"] = min((place + 1) * CLASS_MS, longest * 1e3)
                out[f"run_{name}_max_ms"] = longest * 1e3
        return out
