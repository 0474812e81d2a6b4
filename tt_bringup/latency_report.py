"""Latency figures as a table for a terminal and as a picture of the budget."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from tt_bringup.bags import Bag
from tt_bringup.latency import (
    ARRIVAL_TO_COMMAND,
    END_TO_END,
    PUBLISHED_ACTUATION_MS,
    PUBLISHED_OBSERVATION_MS,
    STAGES,
    LatencyError,
    LatencyJoiner,
    parse_time_reference,
)
from tt_perception.files import whole_file

PICTURE_KINDS = (".png", ".svg", ".pdf")
STAGE_WORDS = {
    "arrived": "exposure to arrival (delivery)",
    "detected": "detection",
    "triangulated": "triangulation",
    "estimated": "state estimation",
    "planned": "hit decision",
    "trajectory": "joint trajectory",
    "commanded": "until it is on the bus",
    ARRIVAL_TO_COMMAND: "arrival to bus (software)",
    END_TO_END: "exposure to bus (all)",
}
STAGE_COLOURS = ("#9aa5b1", "#4c78a8", "#72b7b2", "#54a24b", "#eeca3b", "#f58518", "#e45756")


def joiner_of(bag: Bag, namespace: str | None = None) -> LatencyJoiner:
    """Joins the stamps of a recording.

    Raises:
        LatencyError: it holds none.
    """
    topic = bag.find("latency", namespace)
    if topic is None:
        raise LatencyError(f"{bag.path} has no latency stamps: topic `latency` was not recorded")
    joiner = LatencyJoiner(max_captures=5_000_000)
    for message in bag.messages([topic]):
        stamp = parse_time_reference(message.raw)
        joiner.add(stamp.stage, stamp.capture_ns, stamp.finished_ns)
    return joiner


def as_json(joiner: LatencyJoiner, outliers: int = 5) -> dict[str, Any]:
    """Everything `tt latency --json` prints."""
    return {
        "captures": len(joiner),
        "latency_ms": joiner.summary(),
        "outliers": [
            {
                "capture_ns": capture,
                "total_ms": round(total, 3),
                "slowest_stage": stage,
                "took_ms": round(took, 3),
            }
            for capture, total, stage, took in joiner.outliers(outliers)
        ],
        "published_ms": {"observation": PUBLISHED_OBSERVATION_MS, "actuation": PUBLISHED_ACTUATION_MS},
        "warnings": joiner.warnings(),
    }


def table_lines(joiner: LatencyJoiner, outliers: int = 5) -> list[str]:
    """The figures for a terminal of 80 columns."""
    summaries = joiner.summaries()
    if not summaries:
        return ["no latency stamps could be joined", *joiner.warnings()]
    lines = [f"{'stage':<31}{'captures':>9}{'median':>9}{'p95':>8}{'p99':>8}{'max':>9}  ms"]
    for name, row in summaries.items():
        if name == ARRIVAL_TO_COMMAND:
            lines.append("")
        words = STAGE_WORDS[name]
        lines.append(
            f"{words:<31}{row.count:>9}{row.median:>9.2f}{row.p95:>8.2f}{row.p99:>8.2f}{row.max:>9.2f}"
        )
    lines.append(
        f"\nPublished (D'Ambrosio et al. 2023, Table I): {PUBLISHED_OBSERVATION_MS:g} ms to see the ball, "
        f"{PUBLISHED_ACTUATION_MS:g} ms\nuntil the arm moves; no actuation delay is measured here."
    )
    rows = joiner.outliers(outliers)
    if rows:
        lines.append("\nslowest captures            total ms   most of it in")
        lines += [f"  {c:<22}{total:>12.2f}   {stage} ({took:.2f} ms)" for c, total, stage, took in rows]
    return lines + [f"warning: {text}" for text in joiner.warnings()]


def path_lines(joiner: LatencyJoiner, capture_ns: int) -> list[str]:
    """The critical path of one capture."""
    lines = [f"capture {capture_ns}: stages in the order they ended, ms after the exposure"]
    for step in joiner.critical_path(capture_ns):
        lines.append(f"  {STAGE_WORDS[step.stage]:<31}{step.took_ms:>9.2f}  -> {step.end_ms:>9.2f}")
    return lines


def draw_budget(joiner: LatencyJoiner, path: Path | str | None = None, title: str = "") -> Any:
    """Draws the budget: medians stacked beside a published system, and the distribution of each stage.

    Args:
        joiner: the stamps.
        path: picture to write; the figure is only returned when left out.
        title: over the picture.

    Returns:
        The matplotlib figure.

    Raises:
        LatencyError: there is nothing to draw.
    """
    from matplotlib.figure import Figure

    durations = joiner.durations_ms()
    stages = [stage for stage in STAGES if stage in durations]
    if not stages:
        raise LatencyError("no latency stamps could be joined; there is nothing to draw")
    figure = Figure(figsize=(10, 4.6), layout="constrained")
    left, right = figure.subplots(1, 2, width_ratios=(1.25, 1))
    start = 0.0
    for stage, colour in zip(STAGES, STAGE_COLOURS, strict=True):
        if stage in durations:
            median = float(np.median(durations[stage][0]))
            left.barh(1, median, left=start, color=colour, label=f"{STAGE_WORDS[stage]} {median:.2f}")
            start += median
    left.barh(0, PUBLISHED_OBSERVATION_MS, color="#9aa5b1", hatch="//", edgecolor="white")
    left.barh(
        0,
        PUBLISHED_ACTUATION_MS,
        left=PUBLISHED_OBSERVATION_MS,
        color="#e45756",
        hatch="//",
        edgecolor="white",
    )
    published = PUBLISHED_OBSERVATION_MS + PUBLISHED_ACTUATION_MS
    words = f" {PUBLISHED_OBSERVATION_MS:g} to see the ball, {PUBLISHED_ACTUATION_MS:g} until the arm moves"
    left.text(published, 0.42, words, ha="right", va="bottom", fontsize=8)
    left.set_xlim(0, 1.04 * max(published, start))
    left.set_yticks((0, 1), ("D'Ambrosio\net al. 2023", "this\nrecording"))
    left.set_xlabel("ms after the exposure (medians)")
    left.set_ylim(-0.6, 3.3)
    left.legend(loc="upper right", fontsize=8, ncols=2, frameon=False)
    left.spines[["top", "right"]].set_visible(False)
    for row, stage in enumerate(stages, 1):
        low, first, median, third, high = np.percentile(durations[stage][0], (1, 25, 50, 75, 99))
        colour = STAGE_COLOURS[STAGES.index(stage)]
        right.plot((low, high), (row, row), color="0.4", lw=1)
        right.barh(row, third - first, left=first, height=0.5, color=colour)
        right.plot((median, median), (row - 0.25, row + 0.25), color="black", lw=1.5)
        right.plot(durations[stage][0].max(), row, ".", color="0.4", ms=4)
    right.set_yticks(range(1, len(stages) + 1), stages)
    right.set_xscale("symlog", linthresh=0.1)
    right.set_xlim(left=0)
    right.set_xlabel("ms (box: quartiles, line: 1 % to 99 %, dot: longest)")
    right.spines[["top", "right"]].set_visible(False)
    figure.suptitle(title)
    if path is not None:
        with whole_file(Path(path)) as partial:
            figure.savefig(partial, dpi=130)
    return figure
