"""`tt record`: records the live graph into a bag."""

from __future__ import annotations

import contextlib
import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

_NO_ROBOT = ("/diagnostics", "/rosout", "/parameter_events")  # here the recorder hears itself


def main(
    bag: Annotated[
        Path | None, typer.Argument(help="Folder to make; recording_<time> when left out.")
    ] = None,
    duration: Annotated[
        float, typer.Option(help="End after this many seconds; 0 records until Ctrl-C.", min=0.0)
    ] = 0.0,
    snapshot: Annotated[
        float,
        typer.Option(
            help="Keep only the last seconds; saved by service recorder/snapshot or on a fault.", min=0.0
        ),
    ] = 0.0,
    images: Annotated[bool, typer.Option("--images", help="Record the pictures of the cameras too.")] = False,
    all_topics: Annotated[
        bool, typer.Option("--all", help="Record every topic, not only those of the table.")
    ] = False,
    namespace: Annotated[str, typer.Option(help="Namespace of the robot.")] = "tt",
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Records all topics of the running robot or simulation to a rosbag2 folder (MCAP).

    Works beside a running `tt sim` or `tt robot`. Ctrl-C ends it in order.
    """
    from rclpy.clock import Clock, ClockType
    from rclpy.parameter import Parameter

    from tt_bringup.cli import EXIT_BAD_INPUT
    from tt_bringup.names import checked_namespace
    from tt_bringup.node_kit import run_node
    from tt_bringup.record_node import RecorderNode
    from tt_bringup.terminal import PERIOD_S, Progress
    from tt_bringup.topics import remap_arguments

    namespace = checked_namespace(namespace)

    values: dict[str, Any] = {
        "bag": str(bag) if bag is not None else "",
        "duration_s": duration,
        "snapshot_s": snapshot,
        "images": images,
        "all_topics": all_topics,
    }
    nodes: list[RecorderNode] = []
    what = f"keeping the last {snapshot:g} s" if snapshot else "recording"
    bar = Progress(f"{what}, Ctrl-C ends" if not duration else what, seconds=duration or None)

    def tell() -> None:
        told = nodes[0].diagnostic_values()
        held = f"{told['held_mb']:.1f} MB" if "held_mb" in told else f"{told.get('messages', 0)} messages"
        bar.update(note=held + (f", {told['dropped']} dropped" if told.get("dropped") else ""))

    def make() -> RecorderNode:
        overrides = [Parameter(name, value=value) for name, value in values.items()]
        nodes.append(RecorderNode(namespace=namespace, parameter_overrides=overrides))
        if bar.is_shown:
            nodes[0].create_timer(PERIOD_S, tell, clock=Clock(clock_type=ClockType.STEADY_TIME))
        return nodes[-1]

    code = 0
    try:
        with bar:
            run_node(make, args=["tt record", *remap_arguments(namespace)])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 1
    if nodes and code != EXIT_BAD_INPUT:
        code = max(code, _tell(nodes[0], as_json))
    raise typer.Exit(code)


def _tell(node: Any, as_json: bool) -> int:
    summary, code = node.summary, 0
    if summary is None:
        result: dict[str, Any] = {"snapshots": node.snapshots}
        line = f"{len(node.snapshots)} snapshots" + "".join(f"\n  {path}" for path in node.snapshots)
    else:
        result = summary.as_dict()
        lost = f", {summary.dropped} dropped" if summary.dropped else ""
        line = f"{summary.path}: {summary.messages} messages on {len(summary.counts)} topics{lost}"
        if not summary.stopped_by and not any(
            n for name, n in summary.counts.items() if name not in _NO_ROBOT
        ):
            line += (
                "\ntt: nothing was published: is `tt sim` or `tt robot` running with the same ROS_DOMAIN_ID?"
            )
            code = 1
    with contextlib.suppress(BrokenPipeError):
        print(line, file=sys.stderr)
        if as_json:
            print(json.dumps(result))
    return code
