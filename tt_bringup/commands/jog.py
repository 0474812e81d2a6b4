"""`tt jog`: move single joints slowly while a key or a button in the browser is held."""

from __future__ import annotations

import json
import select
import sys
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tt_bringup.choices import robots, transports

if TYPE_CHECKING:
    from tt_control.jog import Jogger
    from tt_control.session import MotorSession

# A terminal repeats a held key; a pause longer than this is letting go. The first repeat comes late.
_REPEAT_S = 0.6
_ARROWS = {"\x1b[C": 1.0, "\x1b[D": -1.0, "+": 1.0, "-": -1.0, "d": 1.0, "a": -1.0}
_HELP = "1-9 chooses the joint, hold left/right (or a/d) to move, space stops, h home, e enable, q quits"


def main(
    robot: Annotated[
        str, typer.Option(help="Robot: a shipped name or the path of its YAML.", autocompletion=robots)
    ] = "gantry4",
    device: Annotated[str, typer.Option(help="Motor adapter; searched when left out.")] = "",
    transport: Annotated[
        str, typer.Option(help="fdcanusb, socketcan, python-can or pi3hat.", autocompletion=transports)
    ] = "fdcanusb",
    speed: Annotated[float, typer.Option(help="Speed of linear joints, m/s.", min=0.001, max=0.25)] = 0.05,
    turn_speed: Annotated[
        float, typer.Option(help="Speed of rotary joints, rad/s.", min=0.01, max=1.0)
    ] = 0.3,
    browser: Annotated[
        bool, typer.Option("--browser", help="Buttons in the browser instead of keys.")
    ] = False,
    port: Annotated[int, typer.Option(help="Port of the browser page.", min=1, max=65535)] = 8081,
    as_json: Annotated[bool, typer.Option("--json", help="Print the final joint positions as JSON.")] = False,
) -> None:
    """Moves joints of a robot slowly, one at a time, only while a key or button is held.

    The motors are enabled where they stand. All limits of the motor node apply. Letting go, Ctrl-C, or a
    closed browser page stops the motion.
    """
    from tt_bringup.motors import active_motors
    from tt_bringup.terminal import say
    from tt_control.jog import Jogger
    from tt_perception.errors import TTError
    from tt_planning.robot import load_robot

    model = load_robot(robot)
    if not browser and not sys.stdin.isatty():
        raise TTError("tt jog needs a terminal for its keys; use --browser, or run it in a terminal")
    with active_motors(model, transport, device) as session:
        jogger = Jogger(model, session.controller.is_linear, speed, turn_speed)
        say(
            f"{model.name} is active. Joints: "
            + ", ".join(f"{k + 1} {n}" for k, n in enumerate(model.joint_names))
        )
        (_browser(session, jogger, port) if browser else _keys(session, jogger))
        where = session.position()
    if as_json:
        json.dump({n: round(float(v), 6) for n, v in zip(model.joint_names, where)}, sys.stdout)
        print()


def _keys(session: MotorSession, jogger: Jogger) -> None:
    import termios
    import tty

    from tt_bringup.terminal import say

    say(_HELP)
    settings = termios.tcgetattr(sys.stdin)
    tty.setcbreak(sys.stdin)
    joint = 0
    try:
        while True:
            key = _read_key(_REPEAT_S)
            if key == "q":
                return
            if key.isdigit() and 0 < int(key) <= session.robot.joint_count:
                joint = int(key) - 1
                say(f"joint {joint + 1}: {session.robot.joint_names[joint]}")
            elif key in _ARROWS:
                _jog(session, jogger, joint, _ARROWS[key])
            elif key == " ":
                _jog(session, jogger, joint, 0.0)
            elif key == "h":
                _try(session, session.controller.home)
            elif key == "e":
                _try(session, session.controller.clear_fault)
                _try(session, session.controller.enable)
            if key:
                _show(session)
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, settings)


def _read_key(timeout_s: float) -> str:
    """One key or escape sequence; empty when none came."""
    import os

    if not select.select([sys.stdin], [], [], timeout_s)[0]:
        return ""
    return os.read(sys.stdin.fileno(), 3).decode(errors="ignore")


def _browser(session: MotorSession, jogger: Jogger, port: int) -> None:
    from tt_bringup.terminal import say
    from tt_perception.errors import TTError

    try:
        import viser
    except ImportError:
        raise TTError("--browser needs the package viser: pip install viser") from None
    server = viser.ViserServer(host="127.0.0.1", port=port, verbose=False)
    say(f"open http://localhost:{server.get_port()} and hold a button; Ctrl-C ends")
    texts = {}
    for joint, name in enumerate(session.robot.joint_names):
        share = server.gui.add_slider(f"{name} speed", min=0.1, max=1.0, step=0.1, initial_value=0.5)
        for sign, label in ((-1.0, "−"), (1.0, "+")):
            button = server.gui.add_button(f"{name} {label}")

            def hold(_: Any, joint: int = joint, sign: float = sign, share: Any = share) -> None:
                _jog(session, jogger, joint, sign * float(share.value))

            button.on_hold(callback_hz=20.0)(hold)
        texts[joint] = server.gui.add_text(name, initial_value="", disabled=True)
    stop = server.gui.add_button("STOP", color="red")
    stop.on_click(lambda _: _try(session, session.controller.stop))
    enable = server.gui.add_button("clear and enable")

    def start(_: Any) -> None:
        _try(session, session.controller.clear_fault)
        _try(session, session.controller.enable)

    enable.on_click(start)
    state = server.gui.add_text("state", initial_value="", disabled=True)
    try:
        while session.loop.is_alive:
            for joint, value in enumerate(session.controller.watch.last.pos):
                texts[joint].value = f"{value:+.4f}"
            state.value = f"{session.controller.state.value}: {session.controller.reason}"
            time.sleep(0.2)
    except KeyboardInterrupt:
        pass
    finally:
        server.stop()


def _jog(session: MotorSession, jogger: Jogger, joint: int, direction: float) -> None:
    controller = session.controller
    rest = session.position()

    def offer(now_ns: int) -> Any:
        path = jogger.held(joint, direction, rest, now_ns) if direction else jogger.released(rest, now_ns)
        return controller.offer(path, now_ns)

    _try(session, offer)


def _try(session: MotorSession, function: Any) -> None:
    from tt_bringup.terminal import say
    from tt_control.errors import ControlError

    try:
        session.call(function)
    except ControlError as error:
        say(str(error))


def _show(session: MotorSession) -> None:
    values = zip(session.robot.joint_names, session.controller.watch.last.pos)
    print("\r" + "  ".join(f"{n} {v:+.4f}" for n, v in values) + "   ", end="", file=sys.stderr, flush=True)
