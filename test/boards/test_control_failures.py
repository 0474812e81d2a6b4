"""The real motor loop against failing boards: what stops, what is said, that nothing restarts by itself."""

from __future__ import annotations

import contextlib
import functools
import math
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from test.control.conftest import SUPPLY, axes, board_specs, wait_for
from tt_control.bus import BusStates
from tt_control.clocks import WallClock
from tt_control.config import control_config
from tt_control.controller import Controller, State
from tt_control.loop import MotorLoop
from tt_control.moteus_bus import MoteusBus
from tt_control.trips import Trip
from tt_planning.robot import RobotModel, load_robot
from tt_planning.trajectory import TrajectoryGenerator
from tt_sim.boards import BoardServer, Mode

PERIOD_S = 0.004
# A machine that pauses the test for a moment must not look like a failure of the bus.
PATIENT = {"watchdog_s": 0.2, "max_tick_gap_s": 0.5, "enable_timeout_s": 5.0}
STOPPING = (State.STOPPING, State.STOPPED, State.FAULT)


# Longer pauses of the loop than this cost replies and count as failures of their own.
LONGEST_PAUSE_S = 0.010


def on_an_unhurried_machine(test: Callable[..., None]) -> Callable[..., None]:
    """Skips a failed test when the machine held the motor loop up: then its trips may come from the machine."""

    @functools.wraps(test)
    def run(*arguments: object, **named: object) -> None:
        rig = named["rig"]
        assert isinstance(rig, Rig)
        try:
            test(*arguments, **named)
        except AssertionError:
            if rig.longest_pause_s > LONGEST_PAUSE_S:
                pytest.skip(f"the machine held the motor loop up for {rig.longest_pause_s * 1e3:.0f} ms")
            raise

    return run


class Rig:
    """A motor loop on simulated boards of the gantry."""

    def __init__(self, server: BoardServer, robot: RobotModel) -> None:
        self.server, self.robot = server, robot
        self.log: list[str] = []
        self.controller = Controller(robot, replace(control_config(robot), **PATIENT), PERIOD_S)
        bus = MoteusBus(robot.motors, "fdcanusb", server.device)
        self.longest_pause_s = 0.0
        self.on_replies: Callable[[BusStates], None] = lambda _states: None
        self._ticked_s = math.nan
        self.loop = MotorLoop(
            bus, self.controller, WallClock(), on_event=lambda level, text: self.log.append(text)
        )

        self.loop.on_tick = self._tick

    def _tick(self, _now: int, _setpoints: object, states: BusStates) -> None:
        now = time.monotonic()
        self.longest_pause_s = max(self.longest_pause_s, now - self._ticked_s - PERIOD_S, states.cycle_s)
        self._ticked_s = now
        self.on_replies(states)

    def enable(self) -> None:
        assert wait_for(lambda: self.controller.state is State.READY), self.controller.reason
        self.longest_pause_s, self._ticked_s = 0.0, math.inf
        assert wait_for(self._enabled), self.controller.reason

    def _enabled(self) -> bool:
        if self.controller.state is State.READY:
            self.loop.call(self.controller.enable).result(5.0)
        return self.controller.state is State.ACTIVE

    def swing(self, generator: TrajectoryGenerator) -> None:
        """Offer a motion from where the joints are to the ready pose."""
        still = np.zeros(self.robot.joint_count)
        now = self.loop.clock.now_ns()
        assert self.loop.latest is not None
        generator.set_reference(self.loop.latest[1].pos, still, still, now)
        path = generator.ready(now).trajectory
        answer = self.loop.call(lambda now_ns: self.controller.offer(path, now_ns)).result(5.0)
        assert answer.ok, answer.text

    def modes(self) -> list[int]:
        return [self.server.boards.board(motor.id).mode for motor in self.robot.motors]

    def trips(self) -> list[Trip]:
        return [record.trip for record in self.controller.history]

    @property
    def answering(self) -> bool:
        """Whether the failure is over and the loop receives all replies."""
        bus = self.server.boards.bus
        over = not (bus.muted or bus.unplugged or bus.injected)
        connected = self.controller.state is not State.DISCONNECTED
        return over and connected and self.loop.latest is not None and bool(self.loop.latest[1].replied.all())

    def stays_off(self) -> bool:
        """Whether the loop, alive and with replies again, still needs an operator before it drives."""
        return self.controller.state not in (State.ACTIVE, State.ENABLING, State.HOMING)


@pytest.fixture(scope="module")
def robot() -> RobotModel:
    return load_robot("gantry4")


@pytest.fixture(scope="module")
def generator(robot: RobotModel) -> TrajectoryGenerator:
    made = TrajectoryGenerator(robot)
    still = np.zeros(robot.joint_count)
    made.set_reference(robot.home, still, still, 0)
    made.ready(0)  # compiles
    return made


@contextlib.contextmanager
def serving(robot: RobotModel, link: Path) -> Iterator[BoardServer]:
    specs = board_specs(robot)
    with BoardServer(specs, link, standalone=True, motors=axes(robot), supply=SUPPLY) as server:
        yield server


@pytest.fixture
def rig(robot: RobotModel, tmp_path: Path) -> Iterator[Rig]:
    with serving(robot, tmp_path / "motors") as server:
        made = Rig(server, robot)
        made.loop.start()
        try:
            yield made
        finally:
            assert made.loop.stop()


@on_an_unhurried_machine
def test_one_dead_board_stops_the_other_three(rig: Rig, generator: TrajectoryGenerator) -> None:
    rig.enable()
    rig.swing(generator)
    rig.server.fail("dead 3")
    assert wait_for(lambda: rig.controller.state is State.FAULT), rig.controller.reason
    assert Trip.MISSED_REPLIES in rig.trips()
    assert "yaw" in rig.controller.reason
    boards = [rig.server.boards.board(i) for i in (1, 2, 4)]
    assert wait_for(lambda: max(abs(board.velocity) for board in boards) < 0.05)
    assert wait_for(lambda: rig.modes()[0] == Mode.STOPPED), rig.modes()
    assert rig.modes()[1] in (Mode.POSITION, Mode.ZERO_VELOCITY), "gravity loads z: it stays under power"
    refused = rig.loop.call(rig.controller.enable).result(5.0)
    assert not refused.ok
    assert refused.text


@on_an_unhurried_machine
def test_unplugging_lets_the_watchdogs_stop_and_needs_a_new_enable(
    rig: Rig, generator: TrajectoryGenerator
) -> None:
    rig.enable()
    rig.swing(generator)
    rig.server.fail("unplug for=0.6")
    assert wait_for(lambda: rig.controller.state is State.DISCONNECTED), rig.controller.reason
    assert wait_for(lambda: all(mode == Mode.TIMEOUT for mode in rig.modes())), rig.modes()
    assert Trip.ADAPTER_LOST in rig.trips()
    assert wait_for(lambda: rig.controller.state is not State.DISCONNECTED), rig.controller.reason
    assert rig.stays_off()
    assert not rig.loop.call(rig.controller.enable).result(5.0).ok, "the fault must be cleared first"
    assert wait_for(lambda: rig.loop.call(rig.controller.clear_fault).result(5.0).ok)
    rig.enable()
    assert wait_for(lambda: all(mode == Mode.POSITION for mode in rig.modes()))


@pytest.mark.parametrize("failure", ["stray", "mute for=0.5"])
@on_an_unhurried_machine
def test_a_silent_reader_is_noticed_and_the_bus_rebuilt(rig: Rig, failure: str) -> None:
    rig.enable()
    rig.server.fail(failure)
    assert wait_for(lambda: rig.controller.state is not State.ACTIVE), rig.controller.reason
    assert wait_for(lambda: rig.modes()[0] != Mode.POSITION), rig.modes()
    assert set(rig.trips()) & {Trip.ADAPTER_LOST, Trip.MISSED_REPLIES, Trip.BOARD_MODE}
    assert wait_for(lambda: rig.answering), rig.controller.reason
    assert rig.stays_off()
    assert wait_for(lambda: rig.loop.call(rig.controller.clear_fault).result(5.0).ok)
    rig.enable()


@on_an_unhurried_machine
def test_late_replies_never_answer_a_later_cycle(rig: Rig) -> None:
    rig.enable()
    fresh: list[float] = []
    rig.on_replies = lambda states: fresh.append(float(states.replied[1]))
    rig.server.fail("late 2 delay=0.012")
    assert wait_for(lambda: rig.controller.state in STOPPING), rig.controller.reason
    assert Trip.MISSED_REPLIES in rig.trips()
    assert fresh[-1] == 0.0, "a reply three ticks old is no reply"
    rig.server.fail("late 2 delay=0")
    assert wait_for(lambda: fresh[-1] == 1.0), "replies count again once they are in time"
    assert rig.stays_off()


@on_an_unhurried_machine
def test_lost_replies_here_and_there_do_not_stop_the_robot(rig: Rig) -> None:
    rig.enable()
    lost = 0

    def count(states: BusStates) -> None:
        nonlocal lost
        lost += int((~states.replied).sum())

    rig.on_replies = count
    rig.server.fail("lossy 1,2,3,4 p=0.02")
    sent = rig.server.frames
    assert wait_for(lambda: lost > 2 and rig.server.frames > sent + 4 * 150)
    assert Trip.MISSED_REPLIES not in rig.trips(), rig.controller.reason


@pytest.mark.parametrize(
    ("failure", "trips"),
    [
        ("driver 2", {Trip.BOARD_FAULT}),
        ("encoder 1", {Trip.BOARD_FAULT, Trip.TRACKING}),
        ("reset 4", {Trip.BOARD_MODE}),
        ("overvoltage volts=60", {Trip.BOARD_FAULT, Trip.OVER_VOLTAGE}),
        ("overtemperature 3 celsius=80", {Trip.BOARD_FAULT, Trip.OVER_TEMPERATURE}),
    ],
)
@on_an_unhurried_machine
def test_board_faults_stop_all_and_are_remembered(rig: Rig, failure: str, trips: set[Trip]) -> None:
    rig.enable()
    rig.server.fail(failure)
    assert wait_for(lambda: rig.controller.state in STOPPING), rig.controller.reason
    assert set(rig.trips()) & trips, rig.controller.reason
    assert wait_for(lambda: rig.controller.state is State.FAULT), rig.controller.reason
    if Trip.BOARD_FAULT in rig.trips():
        record = next(r for r in rig.controller.history if r.trip is Trip.BOARD_FAULT)
        assert any(32 <= code < 96 for code in record.faults), "the code is kept before the stop erases it"


VICTIM = """
import os, sys, time
from tt_control.clocks import WallClock
from tt_control.config import control_config
from tt_control.controller import Controller, State
from tt_control.loop import MotorLoop
from tt_control.moteus_bus import MoteusBus
from tt_planning.robot import load_robot
robot = load_robot("gantry4")
controller = Controller(robot, control_config(robot), 0.004)
loop = MotorLoop(MoteusBus(robot.motors, "fdcanusb", sys.argv[1]), controller, WallClock())
loop.start()
parent = os.getppid()  # a test that is killed must not leave this process behind
while controller.state is not State.ACTIVE and os.getppid() == parent:
    if controller.state is State.READY:
        loop.call(controller.enable)
    time.sleep(0.005)
print("active", flush=True)
while os.getppid() == parent:
    time.sleep(0.1)
"""


def test_sigkill_of_the_motor_process_leaves_the_boards_to_their_watchdog(
    robot: RobotModel, tmp_path: Path
) -> None:
    """Measured in the boards' own time: from the last command to the timeout mode."""
    with serving(robot, tmp_path / "motors") as server:
        timeline: list[tuple[float, int, tuple[int, ...]]] = []

        def record(now_s: float) -> None:
            timeline.append((now_s, server.frames, tuple(board.mode for board in server.boards.boards)))

        process = subprocess.Popen(
            [sys.executable, "-c", VICTIM, server.device],
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,
        )
        try:
            assert process.stdout is not None
            assert process.stdout.readline().strip() == "active"
            server.on_step = record
            assert wait_for(lambda: timeline and all(mode == Mode.POSITION for mode in timeline[-1][2]))
            frames = server.frames
            assert wait_for(lambda: server.frames > frames + 40)
        finally:
            process.kill()
            process.wait()
        stopped = (Mode.TIMEOUT,) * robot.joint_count
        assert wait_for(lambda: timeline[-1][2] == stopped), timeline[-1]
    last_frames = timeline[-1][1]
    last_command_s = next(now for now, frames, _ in timeline if frames == last_frames)
    stopped_s = next(now for now, _, modes in timeline if modes == stopped)
    assert stopped_s - last_command_s <= 0.030
