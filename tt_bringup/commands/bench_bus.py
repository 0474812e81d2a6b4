"""`tt bench bus`: what one cycle of the motor bus costs on this machine."""

from __future__ import annotations

import json
from typing import Annotated

import typer


def main(
    boards: Annotated[int, typer.Option(help="Number of simulated boards, 1 to 16.")] = 4,
    cycles: Annotated[int, typer.Option(help="Cycles to time.")] = 1000,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Times one cycle over all boards: full command and reply over a pseudo-terminal, as the motor loop does it.

    "driver" is the same cycle against answers that cost nothing: what our side and the system need by
    themselves; the rest are the simulated boards, which compete for the same processors. "vendor library" is the
    library's own cycle against such answers. Real CAN-FD adds about 1.2 ms for four boards. Other work on this
    machine makes the larger figures worse; the smallest and the median tell most.
    """
    from rich.console import Console
    from rich.table import Table

    from tt_bringup.terminal import Progress
    from tt_sim.boards.bench import bench_control, bench_cycle

    with Progress("timing cycles") as bar:
        result = bench_cycle(boards, cycles, bar.update)
        bar.update(what="timing a board")
        result.update(bench_control(boards))
    if as_json:
        print(json.dumps(result))
        return
    table = Table("one cycle", "min µs", "median", "p95", "p99", "max", box=None)
    rows = (("vendor library", "library_us"), ("driver", "driver_us"), (f"{boards} boards", "cycle_us"))
    for name, key in rows:
        table.add_row(
            name, *(f"{result[key][column]:.0f}" for column in ("min", "median", "p95", "p99", "max"))
        )
    Console().print(table)
    Console().print(
        f"a board: {result['control_us']:.1f} µs per control step, {result['frame_us']:.1f} µs per frame"
    )
