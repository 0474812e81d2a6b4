"""`tt sim`: the whole stack against simulated hardware, ball after ball."""

from __future__ import annotations

import json
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tt_bringup.choices import one_of, robots, worlds

if TYPE_CHECKING:
    from tt_bringup.sim_client import SimClient

# Other programs may hold up a process of a simulation for longer than real hardware should tolerate.
_WATCHDOG_MS = 100.0
_LARGEST_SEED = 2**62  # the largest whole number that a parameter without an upper bound may have
_COLOURS = {"returned": "green", "out": "yellow", "net": "yellow", "missed": "red", "not_playable": "dim"}


def main(
    balls: Annotated[
        int,
        typer.Option(help="How many balls to serve; 0: scripts serve, until Ctrl-C.", min=0, max=100_000),
    ] = 10,
    balls_file: Annotated[
        Path | None, typer.Option(help="Ball file (JSON); sampled balls when left out.")
    ] = None,
    robot: Annotated[
        str, typer.Option(help="Robot: a shipped name or the path of its YAML.", autocompletion=robots)
    ] = "gantry4",
    cameras: Annotated[
        str, typer.Option(help="detections or images.", autocompletion=one_of("detections", "images"))
    ] = "detections",
    record: Annotated[Path | None, typer.Option(help="Bag folder to record to.")] = None,
    headless: Annotated[bool, typer.Option("--headless", help="Without markers and rviz.")] = False,
    scene: Annotated[
        bool,
        typer.Option(
            "--scene", help="With images: a moving person, a second ball on the floor, changing light."
        ),
    ] = False,
    time_scale: Annotated[
        float | None,
        typer.Option(
            help="Simulated per real time. Left out: 1 with detections, what the machine sustains with images.",
            min=0.01,
            max=1.0,
        ),
    ] = None,
    world: Annotated[
        str, typer.Option(help="Laws of the ball: nominal, deepmind or match.", autocompletion=worlds)
    ] = "nominal",
    delay: Annotated[
        float, typer.Option(help="Delivery delay of the images, seconds.", min=0.0, max=1.0)
    ] = 0.03,
    sigma: Annotated[
        float, typer.Option(help="Error per axis of a triangulated ball, metres.", min=0.0, max=0.1)
    ] = 0.003,
    fps: Annotated[
        float | None, typer.Option(help="Camera rate, Hz: 120, or 60 with images.", min=10.0, max=1000.0)
    ] = None,
    seed: Annotated[int, typer.Option(help="Seed of noise and sampled balls.", min=0, max=_LARGEST_SEED)] = 0,
    params_file: Annotated[Path | None, typer.Option(help="ROS parameter file of your own.")] = None,
    keep_logs: Annotated[bool, typer.Option("--keep-logs", help="Keep the files of this run.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Serves balls to the simulated robot and reports what became of each.

    Every stage is a ROS 2 node in a process of its own (the computing stages share one); the motors are
    simulated moteus boards behind a pseudo-terminal. All processes end with the command. Ctrl-C tells what
    was played so far.
    """
    started = time.monotonic()
    from rich.console import Console

    from tt_bringup.graph import GraphSettings, build_graph
    from tt_bringup.supervisor import Supervisor, isolated_environment, run_directory
    from tt_perception.errors import TTError
    from tt_sim.ball_file import load_balls, world_model
    from tt_sim.pace import AUTOMATIC, SLOWEST

    console = Console(stderr=True, highlight=False)
    world_model(world)
    if scene and cameras != "images":
        raise TTError("--scene needs --cameras images: without images there is nothing to see")
    scale = (AUTOMATIC if cameras == "images" else 1.0) if time_scale is None else time_scale
    if balls_file is not None:
        balls_file = balls_file.absolute()
        load_balls(balls_file)  # a bad file is told before anything starts
    sim_parameters: dict[str, Any] = {
        "world": world,
        "balls_file": "" if balls_file is None else str(balls_file),
        "delay": delay,
        "sigma": sigma,
        "seed": seed,
        "time_scale": scale,
        "serve_interval": 0.0,  # this command serves
    }
    if fps is not None:
        sim_parameters["fps"] = fps
    interrupted = False
    with run_directory(keep=keep_logs) as folder, isolated_environment() as environment:
        graph = build_graph(
            GraphSettings(
                mode="sim",
                run_dir=folder,
                robot=robot,
                cameras=cameras,
                use_sim_time=scale != 1.0,
                scene=scene,
                visualization=not headless,
                rviz=not headless,
                record="" if record is None else str(record),
                params_file="" if params_file is None else str(params_file),
                parameters={"sim_node": sim_parameters, "motor_node": {"watchdog_ms": _WATCHDOG_MS}},
            )
        )
        with Supervisor(graph, environment, lambda line: print(f"tt: {line}", file=sys.stderr)) as supervisor:
            supervisor.start()
            console.print(f"starting {len(graph.processes)} processes (logs: {folder}/log)", style="dim")
            # Loaded while the processes start.
            from tt_bringup.sim_client import USUAL_START_S, SimClient, play, stand_by

            if bag := graph.parameters.get("recorder", {}).get("bag"):  # the first ball belongs into it
                supervisor.wait(lambda: Path(bag).is_dir() or bool(supervisor.losses), USUAL_START_S)
            with SimClient(supervisor.wait, started) as client:
                try:
                    client.wait_until_ready(console.print)
                    if balls == 0:
                        stand_by(
                            client, lambda: console.print("ready for scripts; Ctrl-C ends"), console.print
                        )
                    for number, result in enumerate(play(client, balls, scale or SLOWEST), start=1):
                        console.print(_line(number, balls, result), soft_wrap=True)
                except KeyboardInterrupt:
                    if not client.results:
                        raise
                    interrupted = True  # what was played is told all the same
                summary = _summary(
                    client, robot=robot, cameras=cameras, world=world, delay_s=delay, sigma_m=sigma, seed=seed
                )
        if keep_logs:
            console.print(f"files of this run: {folder}", style="dim")
    _tell(console, summary)
    if scale == AUTOMATIC and (factor := summary["real_time_factor"]) is not None:
        console.print(_sustained(factor), soft_wrap=True)
    if as_json:
        json.dump(summary, sys.stdout)
        print()
    if interrupted:
        raise KeyboardInterrupt
    if supervisor.losses:
        raise typer.Exit(1)


def _sustained(factor: float) -> str:
    if factor > 0.97:
        return "images were rendered in real time"
    return (
        f"this machine sustains {factor:.2f} of real time with images: simulated time was slowed down to that"
    )


def _line(number: int, balls: int, result: dict[str, Any]) -> str:
    colour = _COLOURS.get(result["outcome"], "white")
    words = [f"{number:>{len(str(balls))}}/{balls}  ball {result['id']:<6}"]
    words.append(f"[{colour}]{result['outcome'].replace('_', ' '):<12}[/]")
    landing, error, miss = result["landing_m"], result["aim_error_m"], result["miss_m"]
    if landing is not None:
        words.append(f"landed x {landing[0]:+.2f} y {landing[1]:+.2f} m, {100 * error:.0f} cm from the aim")
    if result["contact_offset_m"] is not None:
        words.append(f"{100 * result['contact_offset_m']:.1f} cm off the racket's centre")
    if not result["hit"] and miss is not None:
        words.append(f"{100 * miss:.1f} cm past the racket")
    if result["outcome"] != "returned":
        words.append(result["cause"])
    return "  ".join(words)


def _summary(client: SimClient, **settings: Any) -> dict[str, Any]:
    import numpy as np

    results = client.results
    counts = {
        name: sum(1 for r in results if r["outcome"] == name)
        for name in ("returned", "out", "net", "missed", "not_playable")
    }
    errors = [r["aim_error_m"] for r in results if r["outcome"] == "returned"]
    latency = {
        name: {key: row[key] for key in ("median", "p95", "p99", "max", "count")}
        for name, row in client.latency.summary().items()
    }
    return {
        "balls": len(results),
        **counts,
        "hit": sum(1 for r in results if r["hit"]),
        "landing_error_m": {
            "median": round(float(np.median(errors)), 4) if errors else None,
            "p90": round(float(np.percentile(errors, 90)), 4) if errors else None,
        },
        "results": results,
        "latency_ms": latency,
        "real_time_factor": client.real_time_factor,
        "first_ball_s": client.first_ball_s,
        "motor_stops": client.motor_stops,
        **settings,
    }


def _tell(console: Any, summary: dict[str, Any]) -> None:
    from rich.table import Table

    table = Table(box=None, show_header=False, padding=(0, 2, 0, 0))
    balls = summary["balls"]
    for name in ("returned", "hit", "out", "net", "missed", "not_playable"):
        share = f"{100 * summary[name] / balls:.0f} %" if balls else ""
        table.add_row(name.replace("_", " "), str(summary[name]), share)
    error = summary["landing_error_m"]
    if error["median"] is not None:
        table.add_row(
            "landing error", f"{100 * error['median']:.0f} cm", f"90 %: {100 * error['p90']:.0f} cm"
        )
    for stage, row in summary["latency_ms"].items():
        name = stage.replace("_", " ")
        table.add_row(name, f"{row['median']:.2f} ms", f"p95 {row['p95']:.2f}  max {row['max']:.1f} ms")
    if summary["real_time_factor"] is not None:
        table.add_row("real-time factor", f"{summary['real_time_factor']:.3f}", "")
    if summary["motor_stops"]:
        table.add_row("motor stops", str(len(summary["motor_stops"])), summary["motor_stops"][-1])
    console.print(table)
