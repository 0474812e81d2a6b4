"""`tt robot`: the stack on the real robot; `--dry-run` does everything but move it."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tt_bringup.choices import robots

if TYPE_CHECKING:
    from tt_bringup.dry_run import DryRun
    from tt_bringup.supervisor import Supervisor


def main(
    robot: Annotated[
        str, typer.Option(help="Robot: a shipped name or the path of its YAML.", autocompletion=robots)
    ] = "gantry4",
    hardware: Annotated[
        str, typer.Option(help="YAML file with cameras and motor bus; the shipped example shows its form.")
    ] = "",
    cameras: Annotated[
        str, typer.Option(help="Cameras to use, separated by commas; all when left out.")
    ] = "",
    dry_run: Annotated[
        bool,
        typer.Option(
            "--dry-run",
            help="Everything but enabling the motors; would-be commands are recorded and plotted.",
        ),
    ] = False,
    enable: Annotated[
        bool,
        typer.Option(
            "--enable", help="Enable the motors as soon as they are ready; else call motors/enable."
        ),
    ] = False,
    duration: Annotated[float, typer.Option(help="End after so many seconds; 0: at Ctrl-C.", min=0.0)] = 0.0,
    record: Annotated[Path | None, typer.Option(help="Bag folder to record to.")] = None,
    output: Annotated[Path, typer.Option(help="Dry run: folder for the would-be commands.")] = Path(
        "dry_run"
    ),
    params_file: Annotated[Path | None, typer.Option(help="ROS parameter file of your own.")] = None,
    rviz: Annotated[bool, typer.Option("--rviz", help="Start rviz2 when it is installed.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Starts cameras, computing stages and motors of a real robot and watches them until Ctrl-C.

    Nothing moves before the motors are enabled: with --enable, or by the service motors/enable.
    """
    from rich.console import Console

    from tt_bringup.dry_run import DryRun
    from tt_bringup.graph import GraphSettings, build_graph
    from tt_bringup.hardware import DEFAULT
    from tt_bringup.paths import shared_file
    from tt_bringup.supervisor import Supervisor, isolated_environment, run_directory
    from tt_perception.errors import TTError
    from tt_planning.robot import load_robot

    if dry_run and enable:
        raise TTError("--dry-run and --enable exclude each other: a dry run never enables the motors")
    if not hardware:
        raise TTError(
            f"name cameras and motor bus of your robot with --hardware FILE; {shared_file(DEFAULT)} shows its form. "
            "Without a robot use tt sim"
        )
    console = Console(stderr=True, highlight=False)
    model = load_robot(robot)
    with run_directory() as folder, isolated_environment() as environment:
        graph = build_graph(
            GraphSettings(
                mode="robot",
                run_dir=folder,
                robot=robot,
                hardware=hardware,
                cameras=cameras,
                rviz=rviz,
                record="" if record is None else str(record),
                params_file="" if params_file is None else str(params_file),
                parameters={"motor_node": {"autostart": True, "dry_run": dry_run}},
            )
        )
        with (
            Supervisor(graph, environment, lambda line: print(f"tt: {line}", file=sys.stderr)) as supervisor,
            DryRun(model) as watcher,
        ):
            supervisor.start()
            names = ", ".join(p.name for p in graph.processes)
            console.print(f"started {names} (logs: {folder}/log); Ctrl-C ends", style="dim")
            try:
                _watch(supervisor, watcher, console, duration, enable)
            except KeyboardInterrupt:
                console.print("ending", style="dim")
            summary: dict[str, Any] = {"robot": model.name, "dry_run": dry_run, "motors": watcher.motor_state}
    if dry_run:
        summary.update(watcher.write(output))
        console.print(
            f"would-be commands: {summary['commands']} in {output}/commands.csv, picture {output}/commands.png"
        )
    if as_json:
        json.dump(summary, sys.stdout)
        print()
    if supervisor.losses:
        raise typer.Exit(1)


def _watch(supervisor: Supervisor, watcher: DryRun, console: Any, duration: float, enable: bool) -> None:
    """Watches until the time is over; tells every change of the motors' state."""
    begin = time.monotonic()
    said = ""
    while duration == 0.0 or time.monotonic() - begin < duration:
        supervisor.wait(cap_s=0.05)
        watcher.spin()
        if watcher.motor_state != said:
            said = watcher.motor_state
            console.print(f"motors: {said}")
            if enable and said.startswith("ready"):
                console.print(f"motors/enable: {watcher.enable()}")
