"""Joins the latency stamps of all nodes and publishes the budget on /diagnostics once a second."""

from __future__ import annotations

from dataclasses import dataclass

from rclpy.clock import Clock, ClockType

from tt_bringup.latency import END_TO_END, LatencyError, LatencyJoiner, parse_time_reference
from tt_bringup.node_kit import TTNode, param, run_node


@dataclass(frozen=True)
class LatencyMonitorParams:
    """Parameters of `latency_monitor`."""

    window_s: float = param(
        10.0, unit="s", gt=0.0, le=120.0, live=True, doc="Figures cover the captures of this last while."
    )
    warn_ms: float = param(
        100.0,
        unit="ms",
        gt=0.0,
        live=True,
        doc="Warn when the 95th percentile from exposure to bus exceeds this.",
    )


# Stamps wait until they are read, some 50 together: a wake-up for each of a thousand a second would cost more
# than everything else here. The queue holds those of half a second.
_READ_PERIOD_S = 0.05
_QUEUE = 500


class LatencyMonitorNode(TTNode):
    """Reads the stamps on `latency` in batches."""

    def __init__(self) -> None:
        super().__init__("latency_monitor", LatencyMonitorParams)
        self._joiner = LatencyJoiner(max_captures=30_000)
        self._newest_ns = 0
        self._inbox = self.inbox("latency", depth=_QUEUE)
        self.create_timer(_READ_PERIOD_S, self._read, clock=Clock(clock_type=ClockType.STEADY_TIME))

    def _read(self) -> None:
        for raw in self._inbox.take():
            try:
                stamp = parse_time_reference(raw)
            except LatencyError as error:
                self.log.warning(str(error), throttle_s=5.0)
                self.count("unreadable")
                continue
            self._newest_ns = max(self._newest_ns, stamp.capture_ns)
            self._joiner.add(stamp.stage, stamp.capture_ns, stamp.finished_ns)

    def diagnostic_values(self) -> dict[str, str | float]:
        """Median, p95, p99 and max of each stage, ms."""
        values: dict[str, str | float] = {}
        since = self._newest_ns - int(self.params.window_s * 1e9)
        summaries = self._joiner.summaries(since)
        for name, stage in summaries.items():
            for figure in ("median", "p95", "p99", "max"):
                values[f"{name}/{figure}_ms"] = round(getattr(stage, figure), 3)
        total = summaries.get(END_TO_END)
        if total is not None and total.p95 > self.params.warn_ms:
            self.health("warn", f"exposure to bus takes {total.p95:.0f} ms (p95)", key="slow", hold_s=2.0)
        for text in self._joiner.warnings(since):
            self.health("warn", text, key=text[:40], hold_s=2.0)
        return values


def main() -> None:
    """Entry point."""
    run_node(LatencyMonitorNode, background=True)


if __name__ == "__main__":
    main()
