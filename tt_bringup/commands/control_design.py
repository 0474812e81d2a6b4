"""`tt control design`: gains of the joints from natural frequency and damping ratio, with margins and a
picture.
"""

from __future__ import annotations

import json
import math
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from tt_bringup.choices import robots

# What the table shows of each row; JSON has all.
_COLUMNS = {
    "joint": "joint",
    "inertia": "inertia",
    "moteus_kp": "kp",
    "moteus_kd": "kd",
    "natural_rad_s": "rad/s",
    "damping": "ζ",
    "phase_margin_deg": "phase°",
    "delay_margin_ms": "delay",
    "gain_margin": "gain ×",
    "overshoot": "over",
    "settle_ms": "settle",
}


def main(
    robot: Annotated[
        str, typer.Option(help="Robot: a shipped name or the path of its YAML.", autocompletion=robots)
    ] = "gantry4",
    natural: Annotated[float, typer.Option(help="Natural frequency of every joint, rad/s.")] = 60.0,
    damping: Annotated[float, typer.Option(help="Damping ratio of every joint; 1 is critical.")] = 1.0,
    delay: Annotated[
        float,
        typer.Option(help="Delay from measuring to torque inside the board's loop, s.", min=0.0, max=0.1),
    ] = 0.0003,
    sample: Annotated[float, typer.Option(help="Period of the board's loop, s.", min=0.0, max=0.1)] = 0.001,
    pose: Annotated[
        str, typer.Option(help="Pose whose inertia counts: home, ready, or numbers separated by commas.")
    ] = "home",
    check_file: Annotated[
        bool, typer.Option("--check", help="Judge the gains of the robot file instead of designing new ones.")
    ] = False,
    picture: Annotated[Path, typer.Option(help="Where to write the step responses (PNG).")] = Path(
        "gains.png"
    ),
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Computes k_p and k_v per joint, their moteus values, stability margins and step responses.

    Effective inertia is the diagonal of the mass matrix at the pose plus the rotor's; friction is that of the
    URDF or of the `control` section. Gains whose total damping is not positive are refused.
    """
    import numpy as np

    from tt_control.config import control_config
    from tt_control.dynamics import Friction, RigidBody
    from tt_control.gains import board_units, check, design, joint_units, margins, step_figures, step_response
    from tt_perception.errors import TTError
    from tt_planning.robot import load_robot

    if picture.suffix.lower() not in (".png", ".svg", ".pdf"):
        raise TTError(f"--picture {picture} must end in .png, .svg or .pdf")
    model = load_robot(robot)
    config = control_config(model, model.control)
    identified = Friction(np.array(config.viscous), np.array(config.coulomb))
    friction = identified if any(config.viscous) or any(config.coulomb) else None
    body = RigidBody.from_robot(model, np.array(config.motor_inertia), friction)
    inertia = np.diag(body.mass_matrix(_pose(model, pose)))
    rows: list[dict[str, Any]] = []
    curves = []
    for k, motor in enumerate(model.motors):
        mass, viscous = float(inertia[k]), float(body.friction.viscous[k])
        if check_file:
            gains = joint_units(motor.kp, motor.kd, motor.turns_per_unit)
        else:
            gains = design(natural, damping, mass, viscous)
        got = check(gains, mass, viscous)
        margin = margins(gains, mass, viscous, delay, sample)
        step = 0.01 if body.is_linear[k] else 0.05
        times, pos, effort = step_response(
            gains, mass, viscous, 12.0 / got.natural, delay, sample, float(model.max_effort[k]), step
        )
        figures = step_figures(times, pos, step)
        kp_board, kd_board = board_units(gains, motor.turns_per_unit)
        rows.append(
            {
                "joint": motor.joint,
                "inertia": _round(mass),
                "kp": _round(gains.kp),
                "kv": _round(gains.kv),
                "moteus_kp": _round(kp_board),
                "moteus_kd": _round(kd_board),
                "natural_rad_s": _round(got.natural),
                "damping": _round(got.damping),
                "phase_margin_deg": _round(margin.phase_deg),
                "delay_margin_ms": _round(margin.delay_s * 1e3),
                "gain_margin": _round(margin.gain),
                "rise_ms": _round(figures.rise_s * 1e3),
                "overshoot": _round(figures.overshoot),
                "settle_ms": _round(figures.settle_s * 1e3),
                "commands": f"conf set servo.pid_position.kp {kp_board:.6g}; "
                f"conf set servo.pid_position.kd {kd_board:.6g}"
                if margin.phase_deg > 0.0
                else "",
            }
        )
        curves.append((motor.joint, times * 1e3, pos / step, effort / float(model.max_effort[k])))
    _draw(picture, model.name, curves)
    _tell(rows, picture)
    unstable = [row["joint"] for row in rows if row["phase_margin_deg"] <= 0.0]
    if unstable:
        raise TTError(
            f"{', '.join(unstable)}: the loop swings up by itself with {delay * 1e3:g} ms of delay and "
            f"{sample * 1e3:g} ms of sampling; use softer gains (a lower natural frequency)"
        )
    if as_json:
        json.dump({"robot": model.name, "joints": rows, "picture": str(picture)}, sys.stdout)
        print()


def _pose(model: Any, text: str) -> Any:
    import numpy as np

    from tt_perception.errors import TTError

    if text in ("home", "ready"):
        return getattr(model, text)
    try:
        values = np.array([float(part) for part in text.split(",")])
    except ValueError:
        values = np.zeros(0)
    if values.shape != (model.joint_count,) or not np.isfinite(values).all():
        raise TTError(
            f"--pose is {text!r}; give home, ready, or {model.joint_count} numbers for {', '.join(model.joint_names)}"
        )
    return values


def _round(value: float) -> float | None:
    """Five digits; None for what does not exist, such as the gain margin of a loop that bears any gain."""
    return float(f"{value:.5g}") if math.isfinite(value) else None


def _draw(path: Path, name: str, curves: list[Any]) -> None:
    from tt_perception.files import whole_file
    from tt_sim.figures import pyplot

    plt = pyplot()
    figure, axes = plt.subplots(2, len(curves), figsize=(3.2 * len(curves), 5.0), squeeze=False, sharex="col")
    for column, (joint, times, pos, effort) in enumerate(curves):
        axes[0, column].plot(times, pos)
        axes[0, column].axhline(1.0, color="grey", linewidth=0.6)
        axes[0, column].set_title(joint)
        axes[1, column].plot(times, effort, color="tab:red")
        axes[1, column].set_xlabel("ms")
    axes[0, 0].set_ylabel("share of the step")
    axes[1, 0].set_ylabel("share of the effort limit")
    figure.suptitle(f"{name}: step of 10 mm or 0.05 rad")
    figure.tight_layout()
    path.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(path) as partial:
        figure.savefig(partial, dpi=110)
    plt.close(figure)


def _tell(rows: list[dict[str, Any]], picture: Path) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table(box=None, padding=(0, 1, 0, 0))
    for heading in _COLUMNS.values():
        table.add_column(heading, justify="left" if heading == "joint" else "right", no_wrap=True)
    for row in rows:
        table.add_row(*map(_cell, (row[name] for name in _COLUMNS)))
    console = Console(stderr=True, highlight=False)
    console.print(table)
    for row in rows:
        if row["commands"]:
            console.print(f"{row['joint']}: {row['commands']}", style="dim", soft_wrap=True)
    console.print(
        f"margins of phase, delay (ms) and gain, settling time (ms); step responses: {picture}",
        soft_wrap=True,
    )


def _cell(value: Any) -> str:
    return "-" if value is None else value if isinstance(value, str) else f"{value:.4g}"
