"""`tt bench stops`: how soon the motors stop when a board or the motor process dies."""

from __future__ import annotations

import json
import math
from typing import Annotated

import typer

from tt_bringup.choices import robots


def main(
    robot: Annotated[
        str, typer.Option(help="Robot: a shipped name or the path of its YAML.", autocompletion=robots)
    ] = "gantry4",
    runs: Annotated[int, typer.Option(help="Runs of each kind.", min=1, max=100)] = 5,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Lets a board, and then the motor process, die in the middle of a motion, and times the stop.

    Real time, simulated boards, the motor loop in a process of its own. Fails when a stop takes too long; on a
    busy machine the time that other programs take counts as well.
    """
    from rich.console import Console
    from rich.table import Table

    from tt_bringup.terminal import Progress
    from tt_sim.stop_times import stop_times

    with Progress("stopping motors", total=2 * runs) as bar:
        results = stop_times(robot, runs, bar.update)
    if as_json:
        rows = [
            {
                "name": r.name,
                "limit_s": r.limit_s,
                "times_s": [None if math.isnan(t) else t for t in r.times_s],
            }
            for r in results
        ]
        print(json.dumps({"robot": robot, "stops": rows}))
    else:
        table = Table("what", "min ms", "median", "max", "allowed", "runs", box=None)
        for result in results:
            times = sorted(t for t in result.times_s if not math.isnan(t))
            picked = [times[0], times[len(times) // 2], times[-1]] if times else [math.nan] * 3
            figures = [f"{1e3 * value:.1f}" for value in (*picked, result.limit_s)]
            table.add_row(result.name, *figures, f"{len(times)} of {runs}")
        Console().print(table)
    good = all(
        any(t <= r.limit_s for t in r.times_s) and not any(t > r.limit_s for t in r.times_s) for r in results
    )
    raise typer.Exit(0 if good else 1)
