"""`tt calibrate joints`: inertia and friction of each joint from a gentle chirp."""

from __future__ import annotations

import json
import sys
import textwrap
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tt_bringup.choices import robots, transports

if TYPE_CHECKING:
    from tt_control.identification import JointConstants
    from tt_control.session import MotorSession


def main(
    robot: Annotated[
        str, typer.Option(help="Robot: a shipped name or the path of its YAML.", autocompletion=robots)
    ] = "gantry4",
    device: Annotated[str, typer.Option(help="Motor adapter; searched when left out.")] = "",
    transport: Annotated[
        str, typer.Option(help="fdcanusb, socketcan, python-can or pi3hat.", autocompletion=transports)
    ] = "fdcanusb",
    joints: Annotated[str, typer.Option(help="Joints separated by commas; all when left out.")] = "",
    speed: Annotated[
        float, typer.Option(help="Largest speed as a share of the limit.", min=0.01, max=0.5)
    ] = 0.17,
    acceleration: Annotated[
        float, typer.Option(help="Largest acceleration as a share of the limit.", min=0.01, max=0.5)
    ] = 0.2,
    seconds: Annotated[float, typer.Option(help="Length of each chirp, s.", min=3.0, max=60.0)] = 10.0,
    watchdog_ms: Annotated[
        float, typer.Option(help="Boards stop by themselves after this silence, ms.", min=5.0, max=100.0)
    ] = 22.0,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Moves one joint after the other around its present position and fits inertia, friction and weight.

    Prints the `control` section for the robot file. Keep the whole range around the robot free.
    """
    from dataclasses import replace

    from tt_bringup.motors import active_motors
    from tt_bringup.names import nearest
    from tt_bringup.terminal import COLUMNS, Progress, say
    from tt_control.config import control_config
    from tt_perception.errors import TTError
    from tt_planning.robot import load_robot

    model = load_robot(robot)
    chosen = [name.strip() for name in joints.split(",") if name.strip()] or list(model.joint_names)
    for name in chosen:
        if name not in model.joint_names:
            raise TTError(nearest(name, model.joint_names, f"joint of {model.name}"))
    config = replace(control_config(model, model.control), watchdog_s=watchdog_ms * 1e-3)
    found: dict[str, JointConstants] = {}
    with (
        active_motors(model, transport, device, config, gentle=True) as session,
        Progress("measuring joints", total=len(chosen)) as bar,
    ):
        session.on_wait = bar.update
        for done, name in enumerate(chosen):
            bar.update(done, note=f"{name}, {seconds:g} s and more")
            found[name] = _one(session, model.joint_names.index(name), speed, acceleration, seconds)
            say(textwrap.fill(f"{name}: {_words(found[name])}", COLUMNS, subsequent_indent="  "))
    say(_yaml(session, found))
    if as_json:
        json.dump({"robot": model.name, "joints": {n: _plain(c) for n, c in found.items()}}, sys.stdout)
        print()


def _one(session: MotorSession, j: int, speed: float, acceleration: float, seconds: float) -> JointConstants:
    import numpy as np

    from tt_control.gains import joint_units
    from tt_control.identification import Chirp, identify, mean_effort
    from tt_planning.types import JointTrajectory

    robot = session.robot
    start = np.clip(session.position(), robot.lower, robot.upper)  # off an end stop
    chirp = Chirp(0.0, speed * robot.max_vel[j], acceleration * robot.max_acc[j], duration_s=seconds)
    times = np.arange(0.0, seconds + 0.02, 0.02)
    shape, vel_j, acc_j = chirp.sample(times)
    reach = 1.05 * float(np.abs(shape).max()) + 0.01 * float(robot.upper[j] - robot.lower[j])
    room = 0.5 * float(robot.upper[j] - robot.lower[j])
    scale = min(1.0, room / reach)
    centre = float(np.clip(start[j], robot.lower[j] + scale * reach, robot.upper[j] - scale * reach))
    there = start.copy()
    there[j] = centre
    session.move_to(there)
    pos, vel, acc = (np.tile(row, (len(times), 1)) for row in (there, 0.0 * there, 0.0 * there))
    pos[:, j], vel[:, j], acc[:, j] = centre + scale * shape, scale * vel_j, scale * acc_j
    with session.recording() as rows:
        session.follow(
            JointTrajectory(session.loop.clock.now_ns(), robot.joint_names, times + 0.05, pos, vel, acc)
        )
    session.move_to(start)
    rows = [row for row in rows if row[2].replied[j]]
    t = np.array([row[0] for row in rows]) * 1e-9
    said = np.array([(m.pos[j], m.vel[j], m.torque[j]) for _, _, m in rows]).T
    pos, vel, torque = np.array([(s.pos[j], s.vel[j], s.torque[j]) for _, s, _ in rows]).T
    motor = robot.motors[j]
    gains = joint_units(motor.kp, motor.kd, motor.turns_per_unit)
    share = float(session.controller.gain[j])
    effort = mean_effort(t - t[0], said[2], pos, vel, torque, share * gains.kp, share * gains.kv)
    return identify(t - t[0], said[0], said[1], effort)


def _words(c: JointConstants) -> str:
    names = ("inertia", "viscous", "coulomb", "weight")
    values = (c.inertia, c.viscous, c.coulomb, c.gravity)
    return ", ".join(f"{n} {v:.4g} ± {s:.1g}" for n, v, s in zip(names, values, c.sigma))


def _plain(c: JointConstants) -> dict[str, Any]:
    return {
        "inertia": c.inertia,
        "viscous": c.viscous,
        "coulomb": c.coulomb,
        "gravity": c.gravity,
        "sigma": list(c.sigma),
        "residual": c.residual,
    }


def _yaml(session: MotorSession, found: dict[str, JointConstants]) -> str:
    """The lines for the robot file; rotor inertia is what the URDF's masses do not explain."""
    import numpy as np

    from tt_control.dynamics import RigidBody

    names = session.robot.joint_names
    mass = np.diag(RigidBody.from_robot(session.robot).mass_matrix(session.robot.home))

    def line(key: str, values: dict[str, float]) -> str:
        return f"  {key}: {{" + ", ".join(f"{n}: {v:.4g}" for n, v in values.items()) + "}"

    return "\n".join(
        [
            "control:  # measured by tt calibrate joints",
            line("viscous", {n: max(0.0, c.viscous) for n, c in found.items()}),
            line("coulomb", {n: max(0.0, c.coulomb) for n, c in found.items()}),
            line("motor_inertia", {n: max(0.0, c.inertia - mass[names.index(n)]) for n, c in found.items()}),
        ]
    )
