"""`tt sim bus`: simulated motor boards on a pseudo-terminal, for motor node, vendor tools and own scripts."""

from __future__ import annotations

import json
import math
import signal
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tt_bringup.choices import robots
from tt_perception.errors import TTError

if TYPE_CHECKING:
    from tt_sim.boards import BoardServer, BoardSpec, MotorSpec, SupplySpec


def main(
    ids: Annotated[
        str, typer.Option(help="Board ids, such as 1,2,3,4; the same id twice makes a wiring fault.")
    ] = "",
    robot: Annotated[
        str,
        typer.Option(
            help="Boards and axes of a robot (name or YAML) instead of --ids.", autocompletion=robots
        ),
    ] = "",
    link: Annotated[
        Path | None, typer.Option(help="Path of the link to the device; in a temporary folder when left out.")
    ] = None,
    conf: Annotated[
        list[str] | None,
        typer.Option(
            help="Board configuration, name=value for all boards or ID:name=value for one; may be repeated. "
            "Unconfigured boards allow ±0.01 revolutions, as new ones do."
        ),
    ] = None,
    fail: Annotated[
        list[str] | None,
        typer.Option(help="Failure, such as 't=2.0 dead 3' or 't=5 unplug for=0.5'; may be repeated."),
    ] = None,
    inertia: Annotated[float, typer.Option(help="Inertia at each motor's output, kg m²; with --ids.")] = 1e-3,
    viscous: Annotated[float, typer.Option(help="Viscous friction, N m s/rad; with --ids.")] = 1e-3,
    coulomb: Annotated[float, typer.Option(help="Coulomb friction, N m.")] = 0.0,
    stiffness: Annotated[
        float, typer.Option(help="Spring between motor and an equal load, N m/rad; 0: rigid; with --ids.")
    ] = 0.0,
    noise: Annotated[float, typer.Option(help="Encoder noise, standard deviation in revolutions.")] = 0.0,
    enable_delay: Annotated[float, typer.Option(help="Time a stopped board needs to start, s.")] = 0.015,
    supply: Annotated[float, typer.Option(help="Supply voltage, V; 24, or what the robot needs.")] = 0.0,
    bus_delay: Annotated[float, typer.Option(help="Time every reply takes on the wire, s.")] = 0.0,
    rate: Annotated[float, typer.Option(help="Physics and control rate, Hz.")] = 1000.0,
    duration: Annotated[
        float, typer.Option(help="End after this many seconds; 0: at Ctrl-C.", min=0.0)
    ] = 0.0,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print one JSON object with device and boards at the start.")
    ] = False,
) -> None:
    """Offers simulated moteus boards in real time and prints the path of their device.

    The unmodified moteus library and moteus_tool open it with --fdcanusb PATH. Failures of boards, supply and
    adapter can be scripted; kinds: dead, silent, lossy, late, encoder, driver, overtemperature, reset,
    overvoltage, undervoltage, stray, noise, mute, unplug.
    """
    from tt_sim.boards import BoardServer, Failure

    extra = {"enable_delay_s": enable_delay, "encoder_noise_rev": noise}
    if robot:
        if ids:
            raise TTError("give either --robot or --ids, not both.")
        specs, motors, power = _of_robot(robot, coulomb, supply, extra)
    else:
        specs, motors, power = _of_ids(
            ids or "1,2,3,4", _motor(inertia, viscous, coulomb, stiffness), supply, extra
        )
    specs = _configure(specs, conf or [])
    failures = [Failure.parse(text) for text in fail or []]
    server = BoardServer(
        specs, link, standalone=True, motors=motors, supply=power, bus_delay_s=bus_delay, rate_hz=rate
    )
    for failure in failures:
        server.fail(failure)
    stop = threading.Event()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda *_: stop.set())
    with server:
        board_ids = [spec.id for spec in specs]
        if as_json:
            print(json.dumps({"device": server.device, "ids": board_ids, "robot": robot or None}), flush=True)
        else:
            print(server.device, flush=True)
        _say(f"boards {', '.join(map(str, board_ids))} answer at {server.device}; Ctrl-C ends.")
        _wait(server, stop, duration)
    _say(f"ended after {server.steps} control steps and {server.frames} frames.")


def _wait(server: BoardServer, stop: threading.Event, duration: float) -> None:
    """Wait for the end; complain when the server dies."""
    left = duration
    while not stop.wait(0.1):
        if not server.alive:
            raise TTError("the simulated bus ended unexpectedly; the reason is printed above.")
        if duration:
            left -= 0.1
            if left <= 0.0:
                return


def _of_ids(
    text: str, motor: MotorSpec, supply: float, extra: dict[str, float]
) -> tuple[list[BoardSpec], dict[int | str, MotorSpec], SupplySpec]:
    from tt_sim.boards import BoardSpec, SupplySpec

    try:
        numbers = [int(part) for part in text.split(",") if part.strip()]
    except ValueError:
        raise TTError(f"--ids {text!r} is no list of numbers; write it like 1,2,3,4.") from None
    specs = []
    for place, number in enumerate(numbers):
        twin = number in numbers[:place]
        name = f"{number} at place {place + 1}" if twin else None
        specs.append(BoardSpec(number, motor=name, **extra))  # type: ignore[arg-type]
    names: list[int | str] = [spec.id if spec.motor is None else spec.motor for spec in specs]
    return specs, dict.fromkeys(names, motor), SupplySpec(voltage_v=supply or 24.0)


def _motor(inertia: float, viscous: float, coulomb: float, stiffness: float) -> MotorSpec:
    from tt_sim.boards import MotorSpec

    spring: dict[str, Any] = {}
    if stiffness:
        damping = 0.02 * math.sqrt(max(0.0, stiffness * inertia))  # about 1 % of critical
        spring = {"stiffness": stiffness, "load_inertia": inertia, "spring_damping": damping}
    return MotorSpec(inertia=inertia, viscous=viscous, coulomb=coulomb, **spring)


def _of_robot(
    name: str, coulomb: float, supply: float, extra: dict[str, float]
) -> tuple[list[BoardSpec], dict[int | str, MotorSpec], SupplySpec]:
    from dataclasses import replace

    from tt_estimation.ball_models import NOMINAL
    from tt_planning.robot import load_robot
    from tt_sim.boards.robot_motors import robot_motors
    from tt_sim.motors import SUPPLY, board_specs
    from tt_sim.world import World

    robot = load_robot(name)
    world = World(robot, NOMINAL)
    specs = [replace(spec, **extra) for spec in board_specs(robot, world)]  # type: ignore[arg-type]
    motors = {key: replace(motor, coulomb=coulomb) for key, motor in robot_motors(robot, world).items()}
    return specs, motors, replace(SUPPLY, voltage_v=supply) if supply else SUPPLY


def _configure(specs: list[BoardSpec], entries: list[str]) -> list[BoardSpec]:
    """Apply `name=value` and `ID:name=value` entries."""
    from dataclasses import replace

    from tt_sim.boards.config import DEFAULTS, parse_value

    for entry in entries:
        target, colon, rest = entry.rpartition(":")
        name, equals, text = rest.partition("=")
        known = [spec.id for spec in specs]
        if colon and not (target.isdigit() and int(target) in known):
            raise TTError(f"--conf {entry!r}: there is no board {target!r}; boards are {known}.")
        try:
            value = parse_value(name, text) if name in DEFAULTS else float(text)
        except ValueError:
            hint = "" if equals else "; write it like servopos.position_max=5"
            raise TTError(f"--conf {entry!r}: {text!r} is no number{hint}.") from None
        specs = [
            replace(spec, config={**spec.config, name: value})
            if not colon or spec.id == int(target)
            else spec
            for spec in specs
        ]
    return specs


def _say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)
