"""`tt bench all`: every time that README and docs claim, in one table."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Annotated

import typer

from tt_bringup.choices import robots


def main(
    parts: Annotated[
        str, typer.Option(help="Parts to measure, separated by commas; all of them when left out.")
    ] = "",
    bag: Annotated[
        Path | None, typer.Option(help="A recording, for the parts replay, report and viewer.")
    ] = None,
    robot: Annotated[
        str, typer.Option(help="Name of a robot or path of its YAML file.", autocompletion=robots)
    ] = "gantry4",
    rallies: Annotated[int, typer.Option(help="Balls for the computing stages.", min=1, max=10_000)] = 10,
    repeats: Annotated[
        int, typer.Option(help="Calls of everything else; started commands run at most five times.", min=10)
    ] = 300,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Time everything: stages, detection, dynamics, bus, start, replay, report, viewer.

    Other work on this machine makes the larger figures worse; the smallest and the median tell most.
    """
    from rich.console import Console
    from rich.table import Table

    from tt_bringup import bench_parts
    from tt_bringup.terminal import Progress

    names = tuple(word.strip() for word in parts.split(",") if word.strip()) or tuple(bench_parts.PARTS)
    settings = bench_parts.Settings(robot, rallies, repeats, bag)
    with Progress("measuring", total=len(names)) as bar:
        rows, skipped = bench_parts.run(
            names, settings, lambda name: bar.update(names.index(name), what=f"measuring {name}")
        )
    if as_json:
        print(json.dumps({"times": [dataclasses.asdict(row) for row in rows], "skipped": skipped}))
        return
    table = Table("what", "min ms", "median", "p95", "max", "calls", box=None)
    for row in rows:
        values = (row.min_ms, row.median_ms, row.p95_ms, row.max_ms)
        table.add_row(row.name, *("" if v is None else f"{v:.3g}" for v in values), str(row.count))
    console = Console(highlight=False)
    console.print(table)
    for name, why in skipped.items():
        console.print(f"{name} is left out: {why}")
