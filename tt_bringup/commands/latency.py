"""`tt latency`: where the milliseconds from exposure to bus go."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tt_perception.errors import TTError

_LOOK_S = 0.2  # between looks at the clock while nothing arrives

if TYPE_CHECKING:
    from tt_bringup.latency import LatencyJoiner


def main(
    bag: Annotated[Path | None, typer.Argument(help="A recording.")] = None,
    *,
    live: Annotated[bool, typer.Option("--live", help="Listen to the running graph instead.")] = False,
    seconds: Annotated[float, typer.Option(help="How long to listen with --live.", min=0.1, max=1e6)] = 10.0,
    capture: Annotated[int | None, typer.Option(help="Show the path of this one capture stamp (ns).")] = None,
    picture: Annotated[Path | None, typer.Option(help="Draw the budget into this PNG, SVG or PDF.")] = None,
    outliers: Annotated[int, typer.Option(help="How many of the slowest captures to list.", min=0)] = 5,
    namespace: Annotated[
        str | None, typer.Option(help="Namespace of the robot; found when left out.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Shows median, p95, p99 and max of each stage, and the captures that took longest."""
    from tt_bringup import latency_report
    from tt_bringup.bags import open_bag, saying_damage
    from tt_bringup.terminal import Progress

    if picture is not None and picture.suffix.lower() not in latency_report.PICTURE_KINDS:
        kinds = ", ".join(latency_report.PICTURE_KINDS)
        raise TTError(f"--picture {str(picture)!r} must end in one of {kinds}")
    if live == (bag is not None):
        raise TTError("name a bag, or say --live to listen to the running graph; one of the two")
    if bag is not None:
        recording = open_bag(bag)
        with saying_damage(recording), Progress("reading"):
            joiner = latency_report.joiner_of(recording, namespace)
    else:
        joiner = listen(seconds, namespace or "tt")
    if capture is not None:
        lines = latency_report.path_lines(joiner, capture)
        result = {"capture_ns": capture, "path": [vars_of(step) for step in joiner.critical_path(capture)]}
    else:
        lines = latency_report.table_lines(joiner, outliers)
        result = latency_report.as_json(joiner, outliers)
    if picture is not None:
        latency_report.draw_budget(joiner, picture, str(bag or "live"))
        print(f"wrote {picture}", file=sys.stderr)
    print(json.dumps(result) if as_json else "\n".join(lines))


def listen(seconds: float, namespace: str) -> LatencyJoiner:
    """Collects stamps of the running graph.

    Raises:
        TTError: nothing was published.
    """
    import rclpy
    from rclpy.executors import ExternalShutdownException, SingleThreadedExecutor
    from rclpy.qos import QoSProfile, ReliabilityPolicy

    from tt_bringup.latency import LatencyJoiner, parse_time_reference
    from tt_bringup.terminal import Progress
    from tt_bringup.topics import absolute_name, topic

    joiner = LatencyJoiner()

    def take(raw: bytes) -> None:
        stamp = parse_time_reference(raw)
        joiner.add(stamp.stage, stamp.capture_ns, stamp.finished_ns)

    rclpy.init(args=[])
    try:
        node = rclpy.create_node("tt_latency")
        qos = QoSProfile(depth=1000, reliability=ReliabilityPolicy.BEST_EFFORT)
        name = absolute_name("latency", namespace)
        node.create_subscription(topic("latency").ros_type(), name, take, qos, raw=True)
        executor = SingleThreadedExecutor()
        executor.add_node(node)
        end = time.monotonic() + seconds
        with Progress("listening", seconds=seconds) as bar:
            while (left := end - time.monotonic()) > 0.0:
                executor.spin_once(timeout_sec=min(left, _LOOK_S))
                bar.update(note=f"{len(joiner)} captures")
        node.destroy_node()
    except ExternalShutdownException:
        raise KeyboardInterrupt from None  # SIGTERM ends it as Ctrl-C does
    finally:
        rclpy.try_shutdown()
    if not len(joiner):
        raise TTError(f"nothing arrived on {name} within {seconds:g} s: is `tt sim` or `tt robot` running?")
    return joiner


def vars_of(step: object) -> dict[str, object]:
    """The fields of a path step."""
    return {name: getattr(step, name) for name in ("stage", "end_ms", "took_ms")}
