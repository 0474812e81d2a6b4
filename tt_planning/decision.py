"""One decision per ball state: phase of the rally, predicted path, planned hit.

The node and the pure pipeline share this object: a recorded rally gives the decisions of the live one.
"""

from __future__ import annotations

import math
from dataclasses import replace
from enum import Enum

from tt_estimation.ball_models import BallModel
from tt_estimation.phase import BallPhase
from tt_estimation.prediction import Predictor, PredictorConfig
from tt_estimation.types import BallEnd, BallPrediction, BallState
from tt_perception.table import BALL_RADIUS_M, NET_HEIGHT_M
from tt_planning.backlog import Backlog
from tt_planning.planner import Planner, PlanResult
from tt_planning.trajectory import JointSample

_NET_TOUCH_M = 0.02  # a ball this far below the top of the net may still roll over it
_NET_SIGMAS = 4.0


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
        self._over_net = Predictor(model, PredictorConfig(net=False))
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
        prediction = self._predict(state)
        result = self.planner.plan(state, prediction, start)
        if result.plan is None:
            return result
        return replace(result, plan=replace(result.plan, start_stamp_ns=start.stamp_ns))

    def _predict(self, state: BallState) -> BallPrediction:
        """The path to plan for: over the net as long as it is not certain that the net stops the ball.

        A ball that is stopped never comes, so preparing for it costs nothing; waiting for certainty costs the time in
        which a fast ball could have been reached.
        """
        bounces = self.phase.bounces
        prediction = self._predictor.predict(state, bounces)
        if prediction.end is not BallEnd.NET or bounces > 0:
            return prediction
        missing = NET_HEIGHT_M + BALL_RADIUS_M - float(prediction.states[-1, 2])
        sigma = math.sqrt(max(float(prediction.cov[-1, 2, 2]), 0.0))
        if missing > _NET_TOUCH_M + _NET_SIGMAS * sigma:
            return prediction
        return self._over_net.predict(state, bounces)
