"""Watches the boards' replies: silence, faults, limiters, tracking, speed, voltage, temperature.

Pure: replies in, at most one trip out. What each board last said is kept, because a stop erases fault codes.

In nearly every tick all boards are well. That is found out first, in plain Python: for a handful of numbers it
takes a tenth of the time of array expressions. Only when something is not plainly well the full judgement runs.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tt_control import codes
from tt_control.bus import BusStates
from tt_control.codes import Mode
from tt_control.config import ControlConfig
from tt_control.trips import Trip
from tt_planning.robot import RobotModel

FloatArray = NDArray[np.float64]
# What a board reports besides having replied, in the order of `BusStates`.
_REPORTED = ("pos", "vel", "torque", "mode", "fault", "voltage_v", "temperature_c")


@dataclass(frozen=True, slots=True)
class Finding:
    """Why the controller must stop: the trip, the joint (−1 for all) and one sentence."""

    trip: Trip
    joint: int
    text: str


class Watch:
    """Judges replies of one robot.

    Attributes:
        missed: replies missed in a row per joint.
        missed_total: replies missed since start per joint.
        limiters: how often each limiter was reported, by name.
        torque_share: share of the torque limit allowed by temperature, per joint.
        last: the latest reply of each joint, also of silent ones.
    """

    def __init__(self, robot: RobotModel, config: ControlConfig, is_linear: NDArray[np.bool_]) -> None:
        """Nothing is known yet."""
        n = robot.joint_count
        self._robot, self._config = robot, config
        self._tracking = np.where(is_linear, config.tracking_linear, config.tracking_angular)
        self._outside = np.where(is_linear, config.outside_linear, config.outside_angular)
        self._far = np.zeros(n, dtype=int)
        self.missed = np.zeros(n, dtype=int)
        self.missed_total = np.zeros(n, dtype=int)
        self.limiters: dict[str, int] = {}
        self.torque_share = np.ones(n)
        self.over_voltage_v = np.full(n, config.over_voltage_v)
        self.hot_c = np.full(n, config.hot_c)
        self.last = BusStates.silent(n)
        self._is_well = False
        self._nobody = np.zeros(n, dtype=bool)
        lower, upper = robot.lower - self._outside, robot.upper + self._outside
        speed = robot.max_vel * config.over_speed
        self._ranges = list(zip(lower.tolist(), upper.tolist(), speed.tolist(), self._tracking.tolist()))

    @property
    def is_dead(self) -> NDArray[np.bool_]:
        """Joints whose board has been silent too long, alone or with all others."""
        if self._is_well:
            return self._nobody
        alone = self.missed.min() < self._config.missed_replies
        return self.missed >= (self._config.missed_replies if alone else self._config.silent_ticks)

    def makes_dead(self, states: BusStates) -> bool:
        """Whether a board counts as dead with these replies, while others live: what follows should not wait."""
        if all(states.replied.tolist()) or not any(states.replied.tolist()):
            return False
        return bool((~states.replied & (self.missed + 1 == self._config.missed_replies)).any())

    def take(self, states: BusStates) -> None:
        """Remembers the replies of one cycle."""
        was_well, self._is_well = self._is_well, self._are_well(states)
        if self._is_well:
            self.last = states
            if not was_well:
                self.missed[:], self.torque_share = 0, np.ones(len(states.pos))
            return
        got, last = states.replied, self.last
        self.missed = np.where(got, 0, self.missed + 1)
        self.missed_total += ~got
        self.last = BusStates(
            last.replied | got,
            *(np.where(got, getattr(states, name), getattr(last, name)) for name in _REPORTED),
        )
        for code in states.fault[got]:
            if codes.is_limiter(int(code)):
                name = codes.describe(int(code))
                self.limiters[name] = self.limiters.get(name, 0) + 1
        warm = self.hot_c - (self._config.hot_c - self._config.warm_c)
        hotness = np.clip((self.last.temperature_c - warm) / np.maximum(self.hot_c - warm, 1e-6), 0.0, 1.0)
        share = 1.0 - (1.0 - self._config.hot_torque) * np.nan_to_num(hotness)
        self.torque_share = share

    def _are_well(self, states: BusStates) -> bool:
        """All replied, with neither fault nor limiter, and with heat and supply far from their limits."""
        warm = self._config.warm_c - self._config.hot_c
        return (
            all(states.replied.tolist())
            and not any(states.fault.tolist())
            and Mode.FAULT not in states.mode.tolist()
            and all(t < hot + warm for t, hot in zip(states.temperature_c.tolist(), self.hot_c.tolist()))
            and all(v <= top for v, top in zip(states.voltage_v.tolist(), self.over_voltage_v.tolist()))
        )

    def check_boards(self) -> Finding | None:
        """Silence and board faults, in any state in which boards are powered."""
        if self._is_well:
            return None
        names, last = self._robot.joint_names, self.last
        for j in np.flatnonzero(self.is_dead):
            return Finding(
                Trip.MISSED_REPLIES,
                int(j),
                f"{names[j]}: the board is silent ({self.missed[j]} replies missed)",
            )
        for j in np.flatnonzero(last.mode == Mode.FAULT):
            return Finding(
                Trip.BOARD_FAULT,
                int(j),
                f"{names[j]}: board fault {codes.describe(int(last.fault[j]))} at {last.voltage_v[j]:.1f} V, "
                f"{last.temperature_c[j]:.0f} °C",
            )
        return None

    def check_power(self) -> Finding | None:
        """Supply and temperature."""
        if self._is_well:
            return None
        names, last = self._robot.joint_names, self.last
        for j in np.flatnonzero(last.voltage_v > self.over_voltage_v):
            return Finding(
                Trip.OVER_VOLTAGE,
                int(j),
                f"{names[j]}: supply at {last.voltage_v[j]:.1f} V, allowed are {self.over_voltage_v[j]:.1f} V; "
                "add a brake resistor or lower the accelerations",
            )
        for j in np.flatnonzero(last.temperature_c >= self.hot_c):
            return Finding(
                Trip.OVER_TEMPERATURE,
                int(j),
                f"{names[j]}: board at {last.temperature_c[j]:.0f} °C, allowed are {self.hot_c[j]:.0f} °C; let it cool",
            )
        return None

    def check_motion(self, setpoint: FloatArray, states: BusStates) -> Finding | None:
        """Mode, tracking, limits and speed of joints that follow `setpoint` (of the tick the replies belong
        to).
        """
        if self._is_well and self._follow_well(setpoint, states):
            return None
        robot, names = self._robot, self._robot.joint_names
        got = states.replied
        for j in np.flatnonzero(got & (states.mode != Mode.POSITION)):
            mode = codes.MODES.get(int(states.mode[j]), str(states.mode[j]))
            return Finding(Trip.BOARD_MODE, int(j), f"{names[j]}: board left position mode, it is in: {mode}")
        with np.errstate(invalid="ignore"):
            error = np.abs(states.pos - setpoint)
            self._far = np.where(got & (error > self._tracking), self._far + 1, np.where(got, 0, self._far))
            outside = got & (
                (states.pos > robot.upper + self._outside) | (states.pos < robot.lower - self._outside)
            )
            fast = got & (np.abs(states.vel) > robot.max_vel * self._config.over_speed)
        for j in np.flatnonzero(self._far >= self._config.tracking_ticks):
            return Finding(
                Trip.TRACKING,
                int(j),
                f"{names[j]}: {error[j]:.3g} away from its setpoint, allowed are {self._tracking[j]:.3g}; "
                "look for a collision, a loose belt or weak gains",
            )
        for j in np.flatnonzero(outside):
            return Finding(
                Trip.OUTSIDE_LIMITS,
                int(j),
                f"{names[j]}: measured at {states.pos[j]:.4g}, limits are {robot.lower[j]:.4g} to {robot.upper[j]:.4g}",
            )
        for j in np.flatnonzero(fast):
            return Finding(
                Trip.OVER_SPEED,
                int(j),
                f"{names[j]}: measured {states.vel[j]:.3g} per s, the limit is {robot.max_vel[j]:.3g}",
            )
        return None

    def _follow_well(self, setpoint: FloatArray, states: BusStates) -> bool:
        """All drive, inside their limits and near their setpoints."""
        rows = zip(
            states.mode.tolist(), states.pos.tolist(), states.vel.tolist(), setpoint.tolist(), self._ranges
        )
        for mode, pos, vel, wanted, (lower, upper, speed, near) in rows:
            if mode != Mode.POSITION or not (
                lower <= pos <= upper and -speed <= vel <= speed and abs(pos - wanted) <= near
            ):
                return False
        self._far[:] = 0
        return True

    def reset_tracking(self) -> None:
        """Forgets setpoint errors, before a new motion."""
        self._far[:] = 0
