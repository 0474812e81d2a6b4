"""A robot's motors without ROS: connect, enable, move, leave safely; what bring-up commands and scripts
use.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Sequence
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from tt_control.bus import BusStates, MotorBus, Setpoints
from tt_control.clocks import WallClock
from tt_control.config import ControlConfig, control_config
from tt_control.controller import Answer, Controller, State
from tt_control.errors import ControlError
from tt_control.loop import MotorLoop
from tt_planning.robot import RobotModel
from tt_planning.types import JointTrajectory

FloatArray = NDArray[np.float64]
_POLL_S = 0.005
CALL_S = 2.0


class MotorSession:
    """Motors of one robot in a `with` block; leaving it brakes and switches off by stop policy.

    Args:
        robot: the robot.
        bus: its motors.
        config: controller configuration; that of the robot file when None.
        rate_hz: rate of the motor loop.
        on_event: gets one line per event (level, text).

    Attributes:
        on_wait: called again and again by whoever waits for the motors, in the waiting thread.
    """

    def __init__(
        self,
        robot: RobotModel,
        bus: MotorBus,
        config: ControlConfig | None = None,
        rate_hz: float = 250.0,
        on_event: Callable[[str, str], None] | None = None,
    ) -> None:
        """Touches nothing yet."""
        self.robot = robot
        self.on_wait: Callable[[], None] = lambda: None
        self.controller = Controller(robot, config or control_config(robot, robot.control), 1.0 / rate_hz)
        self.loop = MotorLoop(bus, self.controller, WallClock(), on_event=on_event)

    def __enter__(self) -> MotorSession:
        """Starts the motor loop; motors stay off."""
        self.loop.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Brakes, switches off, closes the bus."""
        self.loop.stop()

    def call(self, function: Callable[[int], Answer]) -> Answer:
        """Runs an operator call of the controller in the loop.

        Raises:
            ControlError: it was refused, with the reason.
        """
        answer = self.loop.call(function).result(CALL_S)
        if not answer.ok:
            raise ControlError(answer.text)
        return answer

    def _pause(self) -> None:
        self.on_wait()
        time.sleep(_POLL_S)

    def wait(self, state: State, timeout_s: float) -> None:
        """Waits for a state.

        Raises:
            ControlError: it does not come, or the controller faults or stops meanwhile; says why.
        """
        end = time.monotonic() + timeout_s
        while self.controller.state is not state:
            if self.controller.state in (State.FAULT, State.STOPPED) or not self.loop.is_alive:
                raise ControlError(f"the motors are {self.controller.state.value}: {self.controller.reason}")
            if time.monotonic() > end:
                raise ControlError(
                    f"the motors are {self.controller.state.value}, not {state.value}: {self.controller.reason}"
                )
            self._pause()

    def enable(self, timeout_s: float = 5.0) -> None:
        """Waits until the boards are checked, homes joints that need it, and enables.

        Raises:
            ControlError: see `wait`.
        """
        end = time.monotonic() + timeout_s
        while self.controller.state not in (State.READY, State.AUDITED) and time.monotonic() < end:
            if self.controller.state in (State.FAULT, State.HOMED) or not self.loop.is_alive:
                break
            self._pause()
        if self.controller.state is State.AUDITED:
            self.call(self.controller.home)
            self.wait(State.READY, 120.0)
        self.wait(State.READY, 0.1)
        self.call(self.controller.enable)
        self.wait(State.ACTIVE, timeout_s)

    def position(self) -> FloatArray:
        """Where the joints are commanded to be, m or rad."""
        return np.array(self.controller.limiter.q)

    def follow(self, path: JointTrajectory) -> None:
        """Follows a trajectory to its end.

        Raises:
            ControlError: refused, or the motors stopped on the way.
        """
        self.call(lambda now_ns: self.controller.offer(path, now_ns))
        end_ns = path.capture_stamp_ns + round(float(path.times_s[-1]) * 1e9)
        while self.loop.clock.now_ns() < end_ns:
            if self.controller.state is not State.ACTIVE:
                raise ControlError(f"the motors are {self.controller.state.value}: {self.controller.reason}")
            self._pause()

    def move_to(self, goal: Sequence[float] | FloatArray, speed_share: float = 0.1) -> None:
        """Moves from rest to rest with a share of the speed and acceleration limits; see `follow`."""
        self.follow(
            rest_to_rest(self.robot, self.position(), np.asarray(goal), speed_share, self.loop.clock.now_ns())
        )

    @contextlib.contextmanager
    def recording(self):  # type: ignore[no-untyped-def]
        """Collects (time_ns, setpoints, states) of every tick in the list that the block gets."""
        rows: list[tuple[int, Setpoints, BusStates]] = []
        self.loop.on_tick = lambda now_ns, setpoints, states: rows.append((now_ns, setpoints, states))
        try:
            yield rows
        finally:
            self.loop.on_tick = None


def rest_to_rest(
    robot: RobotModel,
    start: FloatArray,
    goal: FloatArray,
    speed_share: float,
    now_ns: int,
    lead_s: float = 0.03,
) -> JointTrajectory:
    """Quintic from rest to rest that uses a share of the limits.

    The peak velocity is 1.875 times the mean one, the peak acceleration 5.78 d/T².
    """
    way = np.abs(goal - start)
    need = np.maximum(
        1.875 * way / (speed_share * robot.max_vel), np.sqrt(5.78 * way / (speed_share * robot.max_acc))
    )
    zero = np.zeros((2, robot.joint_count))
    times = lead_s + np.array([0.0, max(0.1, float(need.max()))])
    return JointTrajectory(now_ns, robot.joint_names, times, np.array([start, goal]), zero, zero.copy())
