"""Homing: joints that do not know where they are find out, one after the other, slowly and weakly.

`end_stop`: towards the stop until torque says it is reached and the velocity says it is real; the board is
told the position of the stop. `index`: in one direction until the board itself reports a reference. Then a
step back.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from tt_control.config import HomingMethod, JointHoming

FloatArray = NDArray[np.float64]
# The stop is reached when the joint gives this share of its homing effort and moves with less than this share
# of its homing speed for so long; sticking bearings pass quicker, springs give torque while they still move.
_STOP_EFFORT, _STOP_SPEED, _STOP_S = 0.7, 0.3, 0.08
# How far the setpoint may run ahead of the joint: limits the energy behind the contact.
_LEAD_S = 0.4
# A board needs a few exchanges to take over a new position.
_SET_TICKS = 5


class Phase(Enum):
    """What the joint is doing."""

    SEEK = "seeking its reference"
    SET = "taking over the position"
    BACK = "stepping back"
    DONE = "homed"
    FAILED = "failed"


@dataclass(frozen=True, slots=True)
class HomingMotion:
    """Setpoint of one tick for the joint that is being homed: position, velocity, and the effort it may
    add.
    """

    q: float
    qd: float
    effort: float


class JointHomer:
    """Homes one joint.

    Args:
        name: of the joint, for messages.
        plan: how.
        q: where it is now, by its own count, m or rad.

    Attributes:
        phase: see `Phase`. failure: one sentence when it failed.
        set_position: position the board must be told now; None when none. `position_was_set` answers.
        wants_home_state: the home state of the board should be reported by `home_state`.
    """

    def __init__(self, name: str, plan: JointHoming, q: float) -> None:
        """Starts where the joint is."""
        self.name, self.plan = name, plan
        self.phase = Phase.SEEK
        self.failure = ""
        self.set_position: float | None = None
        self._start = self._q = q
        self._pressed_s = 0.0
        self._wait_ticks = 0

    @property
    def wants_home_state(self) -> bool:
        """Whether the board's own reference matters now."""
        return self.phase is Phase.SEEK and self.plan.method is HomingMethod.INDEX

    def home_state(self, value: int | None) -> None:
        """What the board says about its reference: 0 none, 1 rotor, 2 output."""
        if self.wants_home_state and value is not None and value >= 1:
            self._wait_ticks, self.phase = _SET_TICKS, Phase.SET

    def position_was_set(self) -> None:
        """The board was told its position."""
        self.set_position = None
        self._wait_ticks, self.phase = _SET_TICKS, Phase.SET

    def step(self, pos: float, vel: float, extra_effort: float, dt: float) -> HomingMotion:
        """One tick: measured position, velocity and effort beyond gravity and friction in; setpoint out."""
        plan = self.plan
        if self.phase is Phase.SEEK and self.set_position is None:
            self._seek(pos, vel, extra_effort, dt)
        elif self.phase is Phase.SET:
            self._q = pos
            self._wait_ticks -= 1
            if self._wait_ticks <= 0:
                self._start, self.phase = pos, Phase.BACK
        elif self.phase is Phase.BACK:
            goal = self._start - plan.direction * plan.backoff
            self._q += np.clip(goal - self._q, -plan.speed * dt, plan.speed * dt)
            if abs(self._q - goal) < 1e-9:
                self.phase = Phase.DONE
            return HomingMotion(
                self._q, -plan.direction * plan.speed * (self.phase is Phase.BACK), plan.effort
            )
        moving = self.phase is Phase.SEEK and self.set_position is None
        return HomingMotion(self._q, plan.direction * plan.speed * moving, plan.effort)

    def _seek(self, pos: float, vel: float, extra_effort: float, dt: float) -> None:
        plan = self.plan
        ahead = plan.direction * (self._q - pos)
        if ahead < plan.speed * _LEAD_S:
            self._q += plan.direction * plan.speed * dt
        if plan.direction * (pos - self._start) > plan.travel:
            self.phase = Phase.FAILED
            self.failure = (
                f"{self.name}: no reference after {plan.travel:g} of travel; check direction and stop"
            )
            return
        pressing = plan.direction * extra_effort > _STOP_EFFORT * plan.effort
        standing = abs(vel) < _STOP_SPEED * plan.speed
        self._pressed_s = self._pressed_s + dt if pressing and standing else 0.0
        if self._pressed_s < _STOP_S:
            return
        if plan.method is HomingMethod.INDEX:
            self.phase = Phase.FAILED
            self.failure = f"{self.name}: a stop was reached before the index; home in the other direction"
        else:
            self._q = pos
            self.set_position = plan.stop_position
