"""The simulated hardware as one step function: motor boards, world, ball and referee.

`sim_node` runs it against the wall clock, `eval_returns` in lock step; neither adds physics.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tt_estimation.ball_models import BallModel
from tt_estimation.flight import rk4_step
from tt_planning.robot import RobotModel
from tt_sim.ball import BallContact
from tt_sim.ball_file import ServedBall
from tt_sim.referee import DEFAULT_AIM_TABLE, BallResult, Referee
from tt_sim.world import STEP_S, World

FloatArray = NDArray[np.float64]


class Boards(Protocol):
    """What the world needs of the motor boards."""

    def control(self, dt_s: float, now_s: float | None = None) -> Mapping[int | str, float]:
        """Run the boards' control loops for `dt_s` seconds; torque per motor id, N m at the output."""


@dataclass(frozen=True, slots=True)
class StepResult:
    """What happened in one physics step.

    Attributes:
        contacts: the ball's contacts.
        verdict: the referee's, when the ball was over.
    """

    contacts: list[BallContact]
    verdict: BallResult | None


_NOTHING = StepResult([], None)


class Simulation:
    """Boards, world and referee stepped together.

    Args:
        robot: the robot.
        ball_model: laws of the ball's flight and contacts.
        aim_table: (x, y) that landing errors are measured from.
        step_s: physics step.
        start: joint positions at the start; home when None.
    """

    def __init__(
        self,
        robot: RobotModel,
        ball_model: BallModel,
        aim_table: tuple[float, float] = DEFAULT_AIM_TABLE,
        step_s: float = STEP_S,
        start: FloatArray | None = None,
    ) -> None:
        self.world = World(robot, ball_model, step_s, start)
        self.boards: Boards | None = None
        self.referee = Referee(aim_table, robot.racket.thickness / 2)
        self.served_ball: ServedBall | None = None
        self.served_time_s = 0.0
        self._before = np.full(9, np.nan)
        self._contacts: list[BallContact] = []

    @property
    def time_s(self) -> float:
        """Simulation time."""
        return self.world.time_s

    @property
    def ball_in_play(self) -> bool:
        """True from the serve to the verdict."""
        return self.world.ball_in_play

    def serve(self, ball: ServedBall) -> None:
        """The opponent hits `ball` now."""
        self.world.serve(ball.state)
        self.referee.start(ball.ball_id, self.world.time_s)
        self.served_ball = ball
        self.served_time_s = self.world.time_s
        self._before[:] = ball.state
        self._contacts = []

    def step(self) -> StepResult:
        """Advance everything by one physics step."""
        world = self.world
        if self.boards is not None:
            world.torques(self.boards.control(world.step_s, world.time_s))
        if not world.ball_in_play:
            world.step()
            return _NOTHING
        self._before[:] = world.ball.state
        contacts = self._contacts = world.step()
        verdict = self.referee.update(world.time_s, world.ball.state, contacts, world.ball.closest_racket)
        if verdict is not None:
            world.remove_ball()
        return StepResult(contacts, verdict)

    def ball_at(self, time_s: float) -> FloatArray:
        """Ball state (9,) at a time within the step just made."""
        start, start_s = self._before, self.world.time_s - self.world.step_s
        for contact in self._contacts:
            if contact.time_s <= time_s:
                start = np.r_[contact.pos_table, contact.vel_after, contact.spin_after]
                start_s = contact.time_s
        out = np.empty(9)
        rk4_step(start, self.world.ball.model.params, time_s - start_s, out)
        return out
