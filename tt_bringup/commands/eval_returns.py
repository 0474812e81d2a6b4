"""`tt eval returns`: how many balls the robot returns, measured in lock step."""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tt_bringup.choices import planners, robots, worlds

if TYPE_CHECKING:
    from tt_estimation.ball_models import BallModel
    from tt_planning.robot import RobotModel
    from tt_sim.ball_file import ServedBall


DEFAULT_PLANNERS = ("ours", "nominal")


def main(
    balls: Annotated[int, typer.Option(help="How many balls.", min=1, max=100_000)] = 500,
    balls_file: Annotated[
        Path | None, typer.Option(help="Ball file (JSON); sampled balls when left out.")
    ] = None,
    robot: Annotated[
        str, typer.Option(help="Robot: a shipped name or the path of its YAML.", autocompletion=robots)
    ] = "gantry4",
    planner: Annotated[
        str,
        typer.Option(
            help="Planners, separated by commas; ours and, where it fits, nominal when left out.",
            autocompletion=planners,
        ),
    ] = "",
    world: Annotated[
        str, typer.Option(help="Laws of the simulated ball: nominal, deepmind, match.", autocompletion=worlds)
    ] = "deepmind",
    believed: Annotated[
        str,
        typer.Option(
            help="Ball constants the robot believes in; those of the world when left out.",
            autocompletion=worlds,
        ),
    ] = "",
    delay: Annotated[
        float, typer.Option(help="From exposure to estimator, seconds.", min=0.0, max=1.0)
    ] = 0.03,
    sigma: Annotated[
        float, typer.Option(help="Error of a position per axis, metres.", min=0.0, max=0.1)
    ] = 0.003,
    fps: Annotated[float, typer.Option(help="Images per second.", min=10.0, max=1000.0)] = 120.0,
    fast: Annotated[
        float, typer.Option(help="Serve drives of this speed instead, m/s; 0 for none.", min=0.0, max=35.0)
    ] = 0.0,
    seed: Annotated[int, typer.Option(help="Seed of noise, camera phase and sampled balls.", min=0)] = 0,
    processes: Annotated[int, typer.Option(help="Processes; 0 for all cores.", min=0, max=256)] = 0,
    report: Annotated[Path | None, typer.Option(help="HTML report to write.")] = None,
    ball: Annotated[
        int, typer.Option(help="Ball of the report's picture strip; a failed one when left out.")
    ] = -1,
    timing: Annotated[
        bool,
        typer.Option(
            help="Measure how long decisions take; without it the same seed gives the same bytes, and the "
            "decision times are null."
        ),
    ] = True,
    choose_ready: Annotated[
        bool,
        typer.Option(
            help="Play nothing; compute the ready pose from which most of these balls can be returned "
            "(with --fast: from as many drives of that speed too)."
        ),
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Plays balls against the robot without ROS and without clocks; the same seed gives the same result.

    Boards, controller, estimation and planning are those of the nodes. `reachable` is what the robot could
    return if it knew the ball perfectly. Only the measured decision times differ between equal runs; leave
    them out with `--no-timing` and the whole JSON is the same byte for byte.
    """
    from rich.console import Console

    from tt_bringup.terminal import Progress
    from tt_perception.errors import TTError
    from tt_planning.robot import load_robot
    from tt_sim import eval_returns as er
    from tt_sim.ball_file import world_model
    from tt_sim.ball_server import balls_for, fast_balls

    console = Console(stderr=True, highlight=False)
    model = world_model(world)
    believed_model = world_model(believed or world)
    names = _planners(planner, load_robot(robot), believed_model)
    if report is not None and not report.absolute().parent.is_dir():
        raise TTError(f"cannot write {report}: its folder does not exist")
    drives = fast_balls(fast, balls, seed) if fast > 0.0 else []
    if choose_ready:
        ordinary = balls_for(balls_file, balls, seed, model)
        _choose_ready(console, load_robot(robot), believed_model, [*ordinary, *drives], as_json)
        return
    served = drives or balls_for(balls_file, balls, seed, model)
    settings = er.EvalSettings(
        robot=robot,
        world=world,
        believed=believed or world,
        planners=names,
        delay_s=delay,
        sigma_m=sigma,
        fps=fps,
        seed=seed,
        timing=timing,
    )
    with Progress("balls", total=len(served) * (len(names) + 1)) as bar:
        played = itertools.count(1)
        outcomes = er.evaluate(
            settings,
            served,
            processes or None,
            lambda outcome: bar.update(next(played), note=outcome.planner),
        )
    result = er.summary(settings, outcomes)
    _tell(console, result)
    if report is not None:
        from tt_sim.eval_report import write_report

        write_report(report, settings, served, outcomes, result, ball if ball >= 0 else None)
        console.print(f"report: {report}")
    if as_json:
        json.dump(result, sys.stdout)
        print()


def _choose_ready(
    console: Any, robot: RobotModel, believed: BallModel, balls: list[ServedBall], as_json: bool
) -> None:
    """Computes the ready pose for a distribution of balls; see `tt_planning.ready_pose`."""
    import numpy as np

    from tt_bringup.terminal import Progress
    from tt_planning.ready_pose import choose_ready, score_ready

    states = np.array([ball.state for ball in balls])
    now = score_ready(robot, believed, states, robot.ready)
    with Progress("trying ready poses") as bar:
        best = choose_ready(
            robot,
            believed,
            states,
            progress=lambda s: bar.update(note=f"{100 * s.returned:.1f} % returned"),
        )
    result: dict[str, Any] = {"robot": robot.name, "balls": len(balls)}
    for title, score in (("shipped", now), ("chosen", best)):
        pose = {n: round(float(v), 4) for n, v in zip(robot.joint_names, score.ready, strict=True)}
        result[title] = {
            "ready": pose,
            "returned": round(score.returned, 4),
            "load": round(score.load, 4),
            "cost": round(score.cost, 5),
        }
        words = ", ".join(f"{name} {value:g}" for name, value in pose.items())
        console.print(f"{title}: {words}: {100 * score.returned:.1f} % returned, cost {score.cost:.3f}")
    if as_json:
        json.dump(result, sys.stdout)
        print()


def _planners(asked: str, robot: RobotModel, believed: BallModel) -> tuple[str, ...]:
    """The planners asked for, made once to see that they fit; without a wish those of `DEFAULT_PLANNERS`."""
    from tt_perception.errors import TTError
    from tt_planning.planners import make_planner

    names = tuple(filter(None, asked.split(",")))
    for name in names:
        make_planner(name, robot, believed)
    if names:
        return names
    fitting = []
    for name in DEFAULT_PLANNERS:
        with contextlib.suppress(TTError):
            make_planner(name, robot, believed)
            fitting.append(name)
    return tuple(fitting)


def _tell(console: Any, result: dict[str, Any]) -> None:
    from rich.table import Table

    console.print(
        f"{result['balls']} balls, robot {result['robot']}, world {result['world']}, "
        f"delay {1e3 * result['delay_s']:.0f} ms: reachable {100 * result['reachable']:.1f} %"
    )
    table = Table(box=None, padding=(0, 2, 0, 0))
    for title in ("planner", "returned", "hit", "missed", "out", "net", "landing error", "decision"):
        table.add_column(title, justify="left" if title == "planner" else "right")
    for name, row in result["planners"].items():
        error, decision = row["landing_error_m"], row["decision_us"]
        table.add_row(
            name,
            *(f"{100 * row[key]:.1f} %" for key in ("returned", "hit", "missed", "out", "net")),
            "–" if error["median"] is None else f"{100 * error['median']:.0f} / {100 * error['p90']:.0f} cm",
            "–" if decision["median"] is None else f"{decision['median']:.0f} / {decision['p99']:.0f} µs",
        )
    console.print(table)
    for name, row in result["planners"].items():
        for reason, count in list(row["reasons"].items())[:8]:
            console.print(f"  {name}: {count} × {reason}", style="dim")
