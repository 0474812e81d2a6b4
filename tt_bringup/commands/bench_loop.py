"""`tt bench loop`: how punctual the motor loop is beside everything else."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from tt_bringup.choices import robots

_LEAST_SHARE, _LATE_P99_MS = 0.999, 1.5


def main(
    seconds: Annotated[float, typer.Option(help="How long to measure.", min=5.0, max=86_400.0)] = 60.0,
    robot: Annotated[
        str, typer.Option(help="Robot: a shipped name or the path of its YAML.", autocompletion=robots)
    ] = "gantry4",
    rate_hz: Annotated[float, typer.Option(help="Rate of the motor loop.", min=50.0, max=500.0)] = 250.0,
    watch: Annotated[
        bool, typer.Option("--watch", help="Let somebody watch the markers for rviz2 meanwhile.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Runs the whole simulation with ball after ball, and tells how punctual the motor loop was beside it.

    Counted from the first enable on: ticks done, ticks lost, how late the loop woke, how long exchange and work
    took; and what each process used of a core. Exit code 1 when fewer than 99.9 % of the ticks were done or 1 % of
    the wake-ups were more than 1.5 ms late. Other work on this machine counts as well, and so does what the host of
    a virtual machine does for others.
    """
    from rich.console import Console
    from rich.table import Table

    from tt_control.loop_stats import COLUMNS, WORDS

    values = _measure(seconds, robot, rate_hz, watch)
    if as_json:
        json.dump({"robot": robot, "rate_hz": rate_hz, "seconds": seconds, **values}, sys.stdout)
        print()
    else:
        table = Table("ms", *COLUMNS, box=None)
        for key, words in WORDS.items():
            table.add_row(words, *(f"{values[f'run_{key}_{column}_ms']:.2f}" for column in COLUMNS))
        console = Console(highlight=False)
        console.print(table)
        console.print(
            f"{values['run_ticks']:.0f} ticks done, {values['run_skipped_ticks']:.0f} lost "
            f"({100 * values['run_tick_share']:.3f} % done)"
        )
        shares = sorted(values["cpu_shares"].items(), key=lambda item: -item[1])
        console.print("of a core: " + ", ".join(f"{node} {100 * share:.1f} %" for node, share in shares))
        if watch:
            console.print(f"{values['markers_hz']:.1f} messages with markers a second")
        if "host_share" in values:
            console.print(
                f"the host of this virtual machine kept {100 * values['host_share']:.2f} % of its time for others"
            )
    good = values["run_tick_share"] >= _LEAST_SHARE and values["run_late_p99_ms"] <= _LATE_P99_MS
    raise typer.Exit(0 if good else 1)


def _measure(seconds: float, robot: str, rate_hz: float, watch: bool) -> dict[str, Any]:
    """Values of the loop at the end; starts and ends the whole graph."""
    from tt_bringup.graph import GraphSettings, build_graph
    from tt_bringup.supervisor import Supervisor, isolated_environment, run_directory
    from tt_bringup.terminal import say
    from tt_perception.errors import TTError

    with run_directory(keep=False) as folder, isolated_environment() as environment:
        parameters: dict[str, dict[str, Any]] = {
            "sim_node": {"serve_interval": 0.0},
            "motor_node": {"watchdog_ms": 100.0, "rate_hz": rate_hz},
        }
        graph = build_graph(
            GraphSettings(mode="sim", run_dir=folder, robot=robot, visualization=watch, parameters=parameters)
        )
        with Supervisor(graph, environment) as supervisor:
            supervisor.start()
            say(f"measuring {seconds:g} s beside {len(graph.processes)} processes")
            before = _host_ticks()
            values = _play(supervisor, seconds, watch)
            after = _host_ticks()
    if before is not None and after is not None and after[1] > before[1]:
        values["host_share"] = (after[0] - before[0]) / (after[1] - before[1])
    if "run_ticks" not in values:
        raise TTError("motor_node told nothing about its loop; --keep-logs of tt sim keeps the reasons")
    return values


def _host_ticks() -> tuple[int, int] | None:
    """Processor time that the host of a virtual machine kept for others, and all of it; Linux only."""
    try:
        words = Path("/proc/stat").read_text().splitlines()[0].split()[1:9]
    except (OSError, IndexError):
        return None
    ticks = [int(word) for word in words]
    return (ticks[7], sum(ticks)) if len(ticks) == 8 else None


def _play(supervisor: Any, seconds: float, watch: bool) -> dict[str, Any]:
    """Serves balls for a time; what motor_node said of itself last, and the mean share of each process."""
    from tt_bringup.sim_client import SimClient, play
    from tt_bringup.terminal import Progress, say

    bar = Progress("measuring", seconds=seconds)

    def wait(done: Callable[[], bool], cap_s: float) -> bool:
        """The wait of the supervisor, which draws the progress meanwhile."""

        def done_or_drawn() -> bool:
            bar.update(note=f"{len(client.results)} balls")
            return done()

        return bool(supervisor.wait(done_or_drawn, cap_s))

    class LoopClient(SimClient):
        """Keeps the numbers that the nodes publish."""

        def __init__(self) -> None:
            super().__init__(wait)
            self.values: dict[str, Any] = {}
            self.shares: dict[str, list[float]] = {}
            self.markers = 0

        def __enter__(self) -> LoopClient:
            super().__enter__()
            if watch:
                self._listen("markers", self._on_markers, raw=True)
            return self

        def _on_markers(self, _raw: bytes) -> None:
            self.markers += 1

        def _on_diagnostics(self, message: Any) -> None:
            super()._on_diagnostics(message)
            for status in message.status:
                told: dict[str, float] = {}
                for item in status.values:
                    with contextlib.suppress(ValueError):
                        told[item.key] = float(item.value)
                if status.hardware_id == "motor_node":
                    self.values.update(told)
                if "run_ticks" in self.values and "cpu_share" in told:
                    self.shares.setdefault(status.hardware_id, []).append(told["cpu_share"])

    client = LoopClient()
    with client:
        client.wait_until_ready(say)
        begin, client.markers = time.monotonic(), 0
        with bar:
            for _ in play(client, 1_000_000, 1.0):
                if time.monotonic() > begin + seconds:
                    break
        client.pause(1.5)  # the last figures come within a second
        values = client.values
        values["markers_hz"] = client.markers / (time.monotonic() - begin)
        values["cpu_shares"] = {node: sum(s) / len(s) for node, s in client.shares.items()}
        return values
