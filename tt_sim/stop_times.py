"""How soon the motors are told to stop, and stop, when a board or the motor process dies; in real time.

The motor loop runs in a second process, as on a robot, and moves the first axis at constant speed. The boards
note in their own millisecond steps what they are told and in which mode they are.
"""

from __future__ import annotations

import math
import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from tt_estimation.ball_models import NOMINAL
from tt_perception.errors import TTError
from tt_planning.robot import RobotModel, load_robot
from tt_planning.types import JointTrajectory
from tt_sim.boards import BoardServer, Mode
from tt_sim.boards.robot_motors import robot_motors
from tt_sim.motors import SUPPLY, board_specs
from tt_sim.world import World

RATE_HZ = 250.0
# Three ticks without a reply, and 10 ms for everything else.
DEAD_BOARD_LIMIT_S = 3 / RATE_HZ + 0.010
KILLED_LIMIT_S = 0.030
_SPEED, _RAMP_S, _CRUISE_S = 0.5, 0.4, 1.2  # of the first axis, m/s or rad/s
_BOUND_S = 60.0
_STEADY_S = 0.2
_WATCH_S = 0.5
_POLL_S = 0.002


@dataclass(frozen=True)
class StopTimes:
    """Times of one kind of failure.

    Attributes:
        name: what failed and what was waited for.
        limit_s: what it may take.
        times_s: one per run, at most about half a second, which means never; NaN where the machine stopped the
            robot before the failure did.
    """

    name: str
    limit_s: float
    times_s: tuple[float, ...]


def stop_times(
    robot: str = "gantry4", runs: int = 5, progress: Callable[[int], None] = lambda _: None
) -> list[StopTimes]:
    """Lets a board, and then the motor process, die `runs` times each.

    Args:
        robot: name of a shipped robot or path of its YAML file.
        runs: of each kind.
        progress: told how many runs are done, between them.

    Returns:
        From the death of the last board to the first braking command at the first axis, and from SIGKILL of the
        motor process until every board has been stopped by its own watchdog.

    Raises:
        TTError: the motors did not get going; says why.
    """
    model = load_robot(robot)
    world = World(model, NOMINAL)
    dead: list[float] = []
    killed: list[float] = []
    for _ in range(runs):
        for times, fail in ((dead, _let_board_die), (killed, _kill)):
            with BoardServer(
                board_specs(model, world), standalone=True, motors=robot_motors(model, world), supply=SUPPLY
            ) as server:
                times.append(_run(model, robot, server, fail))
            progress(len(dead) + len(killed))
    return [
        StopTimes("a board dies: the others are told to brake", DEAD_BOARD_LIMIT_S, tuple(dead)),
        StopTimes("the motor process dies: all boards stop", KILLED_LIMIT_S, tuple(killed)),
    ]


def _run(
    model: RobotModel,
    robot: str,
    server: BoardServer,
    fail: Callable[[RobotModel, BoardServer, subprocess.Popen[str]], Callable[[], bool]],
) -> float:
    first = server.boards.board(model.motors[0].id)
    cruise = 0.98 * _SPEED * abs(model.motors[0].turns_per_unit)
    process = subprocess.Popen(
        [sys.executable, "-c", f"from tt_sim.stop_times import drive; drive({server.device!r}, {robot!r})"],
        stdin=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)},
    )

    def is_cruising() -> bool:
        driven = all(board.mode == Mode.POSITION for board in server.boards.boards)
        return driven and abs(first.command_velocity) > cruise

    try:
        if (
            not _wait(lambda: is_cruising() or process.poll() is not None, _BOUND_S)
            or process.poll() is not None
        ):
            process.kill()
            words = process.communicate()[1].strip().splitlines()
            raise TTError(f"the motors did not move: {words[-1] if words else 'no reason given'}")
        time.sleep(_STEADY_S)
        if not is_cruising():
            return math.nan
        happened: list[float] = []
        begin = time.monotonic()
        stopped = fail(model, server, process)
        server.on_step = lambda _now: happened.append(time.monotonic()) if stopped() else None
        _wait(lambda: bool(happened), _WATCH_S)
        return (happened[0] if happened else time.monotonic()) - begin
    finally:
        process.kill()
        process.communicate()


def _let_board_die(
    model: RobotModel, server: BoardServer, process: subprocess.Popen[str]
) -> Callable[[], bool]:
    first = server.boards.board(model.motors[0].id)
    cruise = abs(first.command_velocity)
    server.fail(f"dead {model.motors[-1].id}")
    return lambda: abs(first.command_velocity) < 0.98 * cruise


def _kill(model: RobotModel, server: BoardServer, process: subprocess.Popen[str]) -> Callable[[], bool]:
    process.kill()
    return lambda: all(board.mode == Mode.TIMEOUT for board in server.boards.boards)


def _wait(condition: Callable[[], bool], seconds: float) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(_POLL_S)
    return condition()


def drive(device: str, robot: str) -> None:
    """The motor process: moves the first axis to and fro, enabling it again when the machine stopped it."""
    from tt_control.controller import State
    from tt_control.errors import ControlError
    from tt_control.moteus_bus import MoteusBus
    from tt_control.session import MotorSession

    model, parent = load_robot(robot), os.getppid()
    with MotorSession(model, MoteusBus(model.motors, "fdcanusb", device), rate_hz=RATE_HZ) as session:
        while os.getppid() == parent:
            try:
                if session.controller.state is not State.ACTIVE:
                    session.enable(_BOUND_S)
                start = np.clip(session.position(), model.lower, model.upper)
                session.follow(_there(model, start, session.loop.clock.now_ns()))
            except ControlError as error:
                print(error, file=sys.stderr, flush=True)
                for leave in (session.controller.clear_fault, session.controller.disable):
                    session.loop.call(leave)
                time.sleep(_STEADY_S)


def _there(model: RobotModel, start: np.ndarray, now_ns: int) -> JointTrajectory:
    """From rest to constant speed, and to rest again, towards the farther end of the first axis."""
    vel = np.zeros((4, model.joint_count))
    vel[1:3, 0] = math.copysign(_SPEED, model.lower[0] + model.upper[0] - 2.0 * start[0] or 1.0)
    times = 0.03 + np.cumsum([0.0, _RAMP_S, _CRUISE_S, _RAMP_S])
    steps = 0.5 * (vel[1:] + vel[:-1]) * np.diff(times)[:, None]
    pos = start + np.vstack([np.zeros(model.joint_count), np.cumsum(steps, axis=0)])
    return JointTrajectory(now_ns, model.joint_names, times, pos, vel, np.zeros_like(vel))
