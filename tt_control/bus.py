"""The motor bus: what one tick sends to all motors and what comes back, in joint units.

Everything outside the bus is radians, metres, N and N m; revolutions exist only inside `JointMap` and the
drivers. A bus does one exchange per call, waits a bounded time, and never raises for a motor that is silent:
silence is a result (`replied` is False).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tt_planning.robot import Motor

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
IntArray = NDArray[np.int64]


class Drive(IntEnum):
    """What one motor is told in one tick."""

    QUERY = 0  # report only; the motor keeps doing what it did
    STOP = 1  # driver off, faults and watchdog trips cleared
    POSITION = 2  # follow position, velocity and torque
    DAMP = 3  # hold velocity zero with the board's damping, no position
    BRAKE = 4  # windings shorted: slow and powerless


@dataclass(slots=True)
class Setpoints:
    """Commands of one tick, one entry per joint in robot order.

    Attributes:
        drive: what to do, values of `Drive`, shape (n,).
        pos, vel: wanted position and velocity, m or rad (per second); NaN position holds where it is.
        torque: feedforward, N or N m at the joint.
        kp_scale, kd_scale: share of the board's gains, 0…1.
        max_torque: bound of the motor's effort, N or N m at the joint.
        watchdog_s: the board stops by itself after this silence.
    """

    drive: IntArray
    pos: FloatArray
    vel: FloatArray
    torque: FloatArray
    kp_scale: FloatArray
    kd_scale: FloatArray
    max_torque: FloatArray
    watchdog_s: float

    @classmethod
    def idle(cls, joint_count: int, drive: Drive = Drive.QUERY, watchdog_s: float = 0.02) -> Setpoints:
        """Setpoints that move nothing."""

        def zeros() -> FloatArray:
            return np.zeros(joint_count)

        nan = np.full(joint_count, math.nan)
        mode = np.full(joint_count, int(drive), dtype=np.int64)
        return cls(mode, nan, zeros(), zeros(), zeros(), zeros(), zeros(), watchdog_s)


@dataclass(slots=True)
class BusStates:
    """Replies of one tick, one entry per joint in robot order; NaN or −1 where a joint did not reply.

    Attributes:
        replied: shape (n,).
        pos, vel: measured, m or rad (per second).
        torque: measured effort, N or N m at the joint.
        mode: mode register of the board, see `tt_control.codes.Mode`.
        fault: fault register of the board: a fault or a limiter code.
        voltage_v: supply at the board.
        temperature_c: power stage of the board.
        cycle_s: how long the exchange took.
    """

    replied: BoolArray
    pos: FloatArray
    vel: FloatArray
    torque: FloatArray
    mode: IntArray
    fault: IntArray
    voltage_v: FloatArray
    temperature_c: FloatArray
    cycle_s: float = 0.0

    @classmethod
    def silent(cls, joint_count: int) -> BusStates:
        """Nobody replied."""

        def nan() -> FloatArray:
            return np.full(joint_count, math.nan)

        def none() -> IntArray:
            return np.full(joint_count, -1, dtype=np.int64)

        return cls(np.zeros(joint_count, dtype=bool), nan(), nan(), nan(), none(), none(), nan(), nan())


@dataclass(frozen=True, slots=True)
class BoardInfo:
    """What one board says about itself before it may be enabled.

    Attributes:
        id: multiplex id that answered.
        count: how many boards answered to this id; more than one is a wiring mistake.
        firmware: version register, bytewise major, minor, micro; None when the board does not tell.
        register_map: version of the register map; None when the board does not tell.
        home_state: 0 relative, 1 known within one rotor turn, 2 output position known.
        encoder_validity: bit 0 and 1: first encoder valid for commutation and for position.
        voltage_v, temperature_c: at the board.
        mode, fault: registers.
        config: values of the configuration names asked for; a name the board does not know is missing.
    """

    id: int
    count: int
    firmware: int | None = None
    register_map: int | None = None
    home_state: int | None = None
    encoder_validity: int | None = None
    voltage_v: float = math.nan
    temperature_c: float = math.nan
    mode: int = -1
    fault: int = -1
    config: dict[str, float] = field(default_factory=dict)


class MotorBus(Protocol):
    """One contract for real, simulated, recorded and scripted motors.

    Every method is called from one thread only, the I/O thread.
    """

    def open(self) -> None:
        """Connects.

        Raises:
            BusError: the device is missing, busy or forbidden; the text says how to fix it.
        """
        ...

    def close(self) -> None:
        """Disconnects; never raises, may be called twice."""
        ...

    def cycle(self, setpoints: Setpoints, timeout_s: float, rest_s: float | None = None) -> BusStates:
        """Sends to all motors, collects what replies within the time.

        Args:
            setpoints: one entry per joint.
            timeout_s: how long to wait while nobody has replied.
            rest_s: how much longer the others get once one board has replied, where the adapter allows to tell;
                None: until the time-out. Then the computer is awake, and who is silent is dead.

        Raises:
            BusLost: the adapter is gone (unplugged, silent reader, I/O error): close and open again.
        """
        ...

    def inspect(self, config_names: Sequence[str], timeout_s: float = 2.0) -> list[BoardInfo]:
        """Asks every board of the robot for its identity, limits and gains; takes many cycles.

        Raises:
            BusLost: the adapter is gone.
        """
        ...

    def set_position(self, joint: int, position: float) -> None:
        """Tells the board of one joint that it is at `position` now (m or rad), without moving it.

        Raises:
            BusLost: the adapter is gone.
        """
        ...

    def home_state(self, joint: int) -> int | None:
        """Whether the board of one joint knows its position: 0 no, 1 within a rotor turn, 2 yes; None:
        silent.

        Raises:
            BusLost: the adapter is gone.
        """
        ...


class JointMap:
    """Converts between joints (m, rad, N, N m) and boards (rev, rev/s, N m at the board's output).

    position [rev] = sign · turns_per_unit · (joint − zero). The same power on both sides gives the torque:
    F · q̇ = τ · 2π · turns_per_unit · q̇. All methods take and return arrays in robot order.
    """

    def __init__(self, motors: Sequence[Motor]) -> None:
        """Reads ratio, sign and zero of each motor."""
        self.ids = tuple(motor.id for motor in motors)
        self.turns = np.array([motor.sign * motor.turns_per_unit for motor in motors])
        self.zero = np.array([motor.zero for motor in motors])
        self._torque = 1.0 / (2.0 * math.pi * self.turns)

    def rev_from_joint(self, pos: FloatArray) -> FloatArray:
        """Positions of the boards, rev."""
        return self.turns * (pos - self.zero)

    def joint_from_rev(self, rev: FloatArray) -> FloatArray:
        """Positions of the joints, m or rad."""
        return rev / self.turns + self.zero

    def rev_s_from_joint(self, vel: FloatArray) -> FloatArray:
        """Velocities of the boards, rev/s."""
        return self.turns * vel

    def joint_from_rev_s(self, rev_s: FloatArray) -> FloatArray:
        """Velocities of the joints, m/s or rad/s."""
        return rev_s / self.turns

    def torque_from_joint(self, effort: FloatArray) -> FloatArray:
        """Torques at the boards' outputs, N m, with sign."""
        return self._torque * effort

    def joint_from_torque(self, torque: FloatArray) -> FloatArray:
        """Efforts at the joints, N or N m, with sign."""
        return torque / self._torque
