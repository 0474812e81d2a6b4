"""Joins the latency stamps of all nodes and publishes the budget on /diagnostics once a second."""

from __future__ import annotations

from dataclasses import dataclass

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


class LatencyMonitorNode(TTNode):
    """Reads `latency` as raw bytes, so that a thousand stamps a second cost little."""

    def __init__(self) -> None:
        super().__init__("latency_monitor", LatencyMonitorParams)
        self._joiner = LatencyJoiner(max_captures=30_000)
        self._newest_ns = 0
        self._subscription = self.listen("latency", self._on_latency, raw=True)

    def _on_latency(self, raw: bytes) -> None:
        try:
            stamp = parse_time_reference(raw)
        except LatencyError as error:
            self.log.warning(str(error), throttle_s=5.0)
            self.count("unreadable")
            return
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
        for text in self._joiner.warnings():
            self.health("warn", text, key=text[:40], hold_s=2.0)
        return values


def main() -> None:
    """Entry point."""
    run_node(LatencyMonitorNode)


if __name__ == "__main__":
    main()
