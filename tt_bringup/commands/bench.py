"""`tt bench`: times of the computing stages on this machine."""

from __future__ import annotations

import json
from typing import Annotated

import typer

from tt_bringup.choices import robots


def main(
    robot: Annotated[
        str, typer.Option(help="Name of a robot or path of its YAML file.", autocompletion=robots)
    ] = "gantry4",
    rallies: Annotated[int, typer.Option(help="How many balls to compute.", min=1, max=10_000)] = 20,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Time the computing stages: the pure pipeline, without ROS and without waiting.

    Each row is the time from an input of that kind to a new joint trajectory. Other work on this machine
    makes the larger figures worse; the smallest and the median tell most.
    """
    from rich.console import Console
    from rich.table import Table

    from tt_bringup.benchmark import bench_stages
    from tt_bringup.terminal import Progress
    from tt_planning.robot import load_robot

    model = load_robot(robot)
    with Progress("computing rallies", total=rallies) as bar:
        timings = bench_stages(model, rallies, bar.update)
    figures = {timing.name: timing.summary() for timing in timings}
    if as_json:
        print(json.dumps({"robot": model.name, "rallies": rallies, "stages_us": figures}))
        return
    table = Table("from → to", "min µs", "median", "p95", "p99", "max", "calls", box=None)
    for name, row in figures.items():
        values = [f"{row[key]:.0f}" for key in ("min", "median", "p95", "p99", "max", "count")]
        table.add_row(name, *values)
    Console().print(table)
