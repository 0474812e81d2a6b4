"""One decision per ball state: phase of the rally, predicted path, planned hit.

The node and the pure pipeline share this object: a recorded rally gives the decisions of the live one.
"""

from __future__ import annotations

from dataclasses import replace
from enum import Enum

from tt_estimation.ball_models import BallModel
from tt_estimation.phase import BallPhase
from tt_estimation.prediction import Predictor
from tt_estimation.types import BallState
from tt_planning.backlog import Backlog
from tt_planning.planner import Planner, PlanResult
from tt_planning.trajectory import JointSample


class Skipped(Enum):
    """Why a ball state is no occasion for a decision."""

    BACKLOG = "a newer ball state waits behind this one"
    NO_JOINTS = "joint positions unknown"
    OUTGOING = "ball moves away from the robot"
    SECOND_BOUNCE = "second bounce on the robot half"


class HitDecider:
    """Feeds a planner with what it needs for each new ball state.

    Args:
        planner: decides the hit.
        predictor: predicts the path of the ball.
        model: ball constants, used to recognise bounces in the stream of states.
    """

    def __init__(self, planner: Planner, predictor: Predictor, model: BallModel) -> None:
        self.planner = planner
        self.phase = BallPhase(model)
        self._predictor = predictor
        self._backlog = Backlog()

    def decide(self, state: BallState, start: JointSample | None, now_ns: int) -> PlanResult | Skipped:
        """A decision, or why there is none.

        Args:
            state: newest ball state.
            start: commanded joints where a motion decided now would start; None while unknown.
            now_ns: time of the decision.
        """
        if self.phase.update(state):  # it must see all states, also those without a decision
            self.planner.reset()
        if self._backlog.is_behind(now_ns - state.stamp_ns):
            return Skipped.BACKLOG
        if start is None:
            return Skipped.NO_JOINTS
        if not self.phase.incoming:
            return Skipped.OUTGOING
        if self.phase.bounces >= 2:
            return Skipped.SECOND_BOUNCE
        prediction = self._predictor.predict(state, self.phase.bounces)
        result = self.planner.plan(state, prediction, start, now_ns)
        if result.plan is None:
            return result
        return replace(result, plan=replace(result.plan, start_stamp_ns=start.stamp_ns))
