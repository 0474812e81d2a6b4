"""Everything that makes the motor controller stop by itself, and how: one table for code, docs and tests."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum


class Reaction(Enum):
    """What the controller does after a trip."""

    HOLD = "brakes along the commanded path, then holds its position; enable goes on"
    FAULT = "brakes along the commanded path, then switches off by stop policy; clear_fault, then enable"
    FAULT_HERE = "brakes from the measured motion, then switches off by stop policy; clear_fault, then enable"
    FAULT_GENTLE = (
        "brakes with reduced deceleration, then switches off by stop policy; clear_fault, then enable"
    )
    LOST = "boards stop by their own watchdog; clear_fault, then enable, once the adapter is back"


@dataclass(frozen=True)
class _Row:
    reaction: Reaction
    cause: str


class Trip(Enum):
    """Causes of a stop; `value` is its row in the table of `docs/what_happens_if.md`."""

    SETPOINT_AGE = _Row(Reaction.HOLD, "the trajectory ends while moving and no newer one arrives in time")
    NOT_FINITE = _Row(Reaction.HOLD, "a sampled setpoint is not finite")
    KEEP_OUT = _Row(Reaction.HOLD, "the racket would enter the table or the net")
    CLOCK_JUMP = _Row(Reaction.HOLD, "the clock jumps, so that trajectory stamps lose their meaning")
    LATE_TICK = _Row(Reaction.HOLD, "the loop wakes so late that the boards' watchdog may have expired")
    TRACKING = _Row(Reaction.FAULT_HERE, "a joint is too far from its setpoint")
    MISSED_REPLIES = _Row(Reaction.FAULT, "a board does not reply three times in a row")
    BOARD_FAULT = _Row(Reaction.FAULT, "a board reports a fault")
    BOARD_MODE = _Row(Reaction.FAULT, "a board leaves position mode by itself (its watchdog, a reset)")
    OUTSIDE_LIMITS = _Row(Reaction.FAULT_HERE, "a joint is measured outside its position limits")
    OVER_SPEED = _Row(Reaction.FAULT_HERE, "a joint is measured much faster than allowed")
    OVER_VOLTAGE = _Row(Reaction.FAULT_GENTLE, "braking lifts the supply voltage too high")
    OVER_TEMPERATURE = _Row(Reaction.FAULT, "a power stage is too hot even after its torque was reduced")
    ESTOP = _Row(Reaction.FAULT, "the service motors/stop is called")
    ESTOP_INPUT = _Row(Reaction.FAULT, "the emergency stop input is pressed or silent")
    ENABLE_TIMEOUT = _Row(Reaction.FAULT, "a board does not reach position mode after enable")
    HOMING = _Row(Reaction.FAULT_HERE, "homing does not find its reference, or finds it with too much torque")
    ADAPTER_LOST = _Row(Reaction.LOST, "the motor adapter is unplugged or stops working")

    @property
    def reaction(self) -> Reaction:
        """What happens."""
        return self.value.reaction

    @property
    def cause(self) -> str:
        """When it happens, for the docs."""
        return self.value.cause
