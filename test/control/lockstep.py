"""Motors in lockstep: real register frames, simulated boards and axes, and a clock that only the test
moves.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from test.control.conftest import SUPPLY, axes, board_specs
from tt_control.bus import BoardInfo, BusStates, Drive, Setpoints
from tt_control.config import ControlConfig, control_config
from tt_control.controller import Controller, State
from tt_control.errors import BusError, BusLost
from tt_control.loop import MotorLoop
from tt_control.moteus_frames import MotorCodec
from tt_planning.robot import RobotModel
from tt_planning.types import JointTrajectory
from tt_sim.boards import BoardSet, StandalonePlant

PERIOD_NS = 4_000_000
STEP_NS = 1_000_000
CYCLE_NS = 1_000_000


class VirtualClock:
    """A clock that steps the physics when the loop sleeps, and wakes as late as the test wants."""

    def __init__(self, step: Callable[[float], None]) -> None:
        self.time_ns = 1_000_000_000_000
        self.late_ns: list[int] = []  # lateness of the next wake-ups
        self._step = step
        self._jumps = 0
        self.nudged = False

    def now_ns(self) -> int:
        return self.time_ns

    def sleep_until(self, deadline_ns: int) -> bool:
        if self.nudged:
            self.nudged = False
            return False
        late = self.late_ns.pop(0) if self.late_ns else 0
        self.advance(deadline_ns + late - self.time_ns)
        return True

    def advance(self, duration_ns: int) -> None:
        end = self.time_ns + max(0, duration_ns)
        while self.time_ns < end:
            step = min(STEP_NS, end - self.time_ns)
            self._step(step * 1e-9)
            self.time_ns += step

    def jump(self, by_ns: int) -> None:
        self.time_ns += by_ns
        self._jumps += 1

    def wake(self) -> None:
        pass

    def nudge(self) -> None:
        self.nudged = True

    def jumps(self) -> int:
        return self._jumps


class LockstepBus:
    """`MotorBus` straight into a `BoardSet`, without terminal, thread or time of its own."""

    def __init__(self, robot: RobotModel, boards: BoardSet, clock: VirtualClock) -> None:
        self.codec = MotorCodec(robot.motors)
        self.boards, self.clock = boards, clock
        self.sent: list[Setpoints] = []
        self.is_open = False
        self.broken = ""  # text of the failure that the next cycle raises
        self.open_error = ""

    def open(self) -> None:
        if self.open_error:
            raise BusError(self.open_error)
        self.is_open, self.broken = True, ""

    def close(self) -> None:
        self.is_open = False

    def cycle(self, setpoints: Setpoints, timeout_s: float, rest_s: float | None = None) -> BusStates:
        if self.broken or not self.is_open:
            raise BusLost(self.broken or "closed")
        self.sent.append(setpoints)
        replies: list[bytes | None] = []
        for board_id, data in zip(self.codec.ids, self.codec.encode(setpoints)):
            with self.boards.lock:
                answers = self.boards.handle(0x8000 | 0x7E00 | board_id, data)
            in_time = [payload for delay, _, payload in answers if delay <= timeout_s]
            replies.append(in_time[0] if in_time else None)
        if any(replies) and rest_s is not None:
            timeout_s = rest_s
        self.clock.advance(CYCLE_NS if None not in replies else round(timeout_s * 1e9))
        return self.codec.decode(replies)

    def inspect(self, config_names: Sequence[str], timeout_s: float = 2.0) -> list[BoardInfo]:
        if self.broken:
            raise BusLost(self.broken)
        infos = []
        for board_id in self.codec.ids:
            found = [b for b in self.boards.boards if b.id == board_id and b.key not in self.boards.bus.dead]
            if len(found) != 1:
                infos.append(BoardInfo(board_id, len(found)))
                continue
            b = found[0]
            config = {name: float(b.config[name]) for name in config_names if name in b.config}
            infos.append(
                BoardInfo(
                    board_id, 1, b.firmware_version, b.register_map_version, b.home_state, b.encoder_validity,
                    b.voltage, b.temperature, int(b.mode), int(b.fault), config,
                )
            )  # fmt: skip
        return infos

    def set_position(self, joint: int, position: float) -> None:
        n = len(self.codec.ids)
        rev = float(self.codec.map.rev_from_joint(np.full(n, position))[joint])
        self.boards.board(self.codec.ids[joint]).set_output_exact(rev)

    def home_state(self, joint: int) -> int | None:
        return int(self.boards.board(self.codec.ids[joint]).home_state)


class Bench:
    """A robot's controller, loop and boards in lockstep.

    Args:
        robot: the robot.
        config: controller configuration; the robot's default when None.
        plant: physics with `read(motor)`, and `step(torques, dt, external)`; uncoupled axes when None.
        board_config: configuration of all boards, `__` for dots.
    """

    def __init__(
        self,
        robot: RobotModel,
        config: ControlConfig | None = None,
        plant: StandalonePlant | None = None,
        specs: list | None = None,
        **board_config: float,
    ) -> None:
        self.robot = robot
        self.plant = plant or StandalonePlant(axes(robot))
        self.boards = BoardSet(specs or board_specs(robot, **board_config), self.plant, SUPPLY)
        self.push: dict[int | str, float] = {}  # torque of the world on a motor's output, N m
        self.clock = VirtualClock(self._step)
        self.bus = LockstepBus(robot, self.boards, self.clock)
        self.controller = Controller(robot, config or control_config(robot), PERIOD_NS * 1e-9)
        self.events: list[tuple[str, str]] = []
        self.loop = MotorLoop(
            self.bus,
            self.controller,
            self.clock,
            on_event=lambda level, text: self.events.append((level, text)),
        )

    def _step(self, dt: float) -> None:
        self.plant.step(self.boards.control(dt), dt, self.push)

    def board(self, joint: str):
        return self.boards.board(self.robot.motors[self.robot.joint_names.index(joint)].id)

    def motor(self, joint: str) -> int:
        return self.robot.motors[self.robot.joint_names.index(joint)].id

    def q(self) -> np.ndarray:
        """True joint positions."""
        rev = np.array([self.plant.read(m.id)[0] for m in self.robot.motors])
        return self.bus.codec.map.joint_from_rev(rev)

    def qd(self) -> np.ndarray:
        """True joint velocities."""
        return self.bus.codec.map.joint_from_rev_s(
            np.array([self.plant.read(m.id)[1] for m in self.robot.motors])
        )

    def call(self, function):
        return function(self.clock.now_ns())

    def run(self, seconds: float, until: Callable[[], object] | None = None) -> bool:
        """Ticks for a time, or until a condition holds; returns whether it held."""
        end = self.clock.time_ns + round(seconds * 1e9)
        while self.clock.time_ns < end:
            if until is not None and until():
                return True
            if self.controller.state is State.DISCONNECTED and not self.loop.connect():
                self.clock.advance(100_000_000)
                continue
            self.loop.tick()
        return until is not None and bool(until())

    def start(self) -> Bench:
        """Connects and enables."""
        assert self.loop.connect(), self.controller.reason
        assert self.controller.state is State.READY, self.controller.reason
        assert self.call(self.controller.enable).ok
        assert self.run(1.0, lambda: self.controller.state is State.ACTIVE), self.controller.reason
        self.run(0.5)
        return self

    def path(self, goal: Sequence[float], duration_s: float = 0.5, delay_s: float = 0.02) -> JointTrajectory:
        """Rest to rest from where the robot is commanded to be."""
        q = np.array(self.controller.limiter.q)
        zero = np.zeros((2, self.robot.joint_count))
        times = np.array([delay_s, delay_s + duration_s])
        return JointTrajectory(
            self.clock.now_ns(), self.robot.joint_names, times, np.array([q, goal]), zero, zero.copy()
        )

    def offer(self, path: JointTrajectory):
        return self.controller.offer(path, self.clock.now_ns())

    def driven(self, joint: str) -> Drive:
        """What the joint was told last."""
        return Drive(int(self.bus.sent[-1].drive[self.robot.joint_names.index(joint)]))
