"""Where the racket waits: the pose from which most balls of a distribution can be returned, with the least effort.

For each ball one decision with perfect knowledge is made, some time after the opponent's hit. A pose costs 1 per ball
without a return, and a part of the squared joint load for the others; coordinate descent over the joints, with steps
that shrink, finds the cheapest pose. Each ball counts with its mirror image, so that the chance of a sample does not
push the robot to one side. No random numbers: the same balls give the same pose.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tt_estimation.ball_models import BallModel
from tt_estimation.prediction import Predictor
from tt_estimation.types import BallState
from tt_planning.keep_out import KeepOut
from tt_planning.planners import Aim, is_return, make_planner
from tt_planning.robot import RobotModel
from tt_planning.trajectory import NS_PER_S, JointSample

FloatArray = NDArray[np.float64]

SEEN_S = 0.08  # from the opponent's hit to the first motion: two images, delivery delay 30 ms, a decision
_STEPS = (0.12, 0.06, 0.03)  # of the range of a joint
_MIRROR = np.array([-1.0, 1.0, 1.0, -1.0, 1.0, 1.0, 1.0, -1.0, -1.0])  # spin is an axial vector
_CERTAIN = np.diag([1e-8] * 3 + [1e-6] * 3 + [1e-2] * 3)
_WORTH = 0.01  # a smaller gain, one ball in a hundred, is no more than another sample of balls would change
_EFFORT = 0.3  # a ball returned at the limits costs as much as this share of a lost one


@dataclass(frozen=True, slots=True)
class ReadyScore:
    """How good a ready pose is.

    Attributes:
        ready: joint positions, shape (n,), m or rad.
        returned: share of the balls for which there is a return.
        load: mean share of the joint limits that those returns use.
        cost: what is minimised.
    """

    ready: FloatArray
    returned: float
    load: float
    cost: float


def score_ready(
    robot: RobotModel, model: BallModel, balls: FloatArray, ready: FloatArray, aim: Aim = (0.0, 0.75)
) -> ReadyScore:
    """Decides on every ball from the pose `ready`.

    Args:
        robot: the robot.
        model: ball constants.
        balls: states after the opponent's hit, shape (k, 9).
        ready: joint positions, shape (n,).
        aim: landing point, m.
    """
    waiting = replace(robot, ready=ready)
    planner = make_planner("ours", waiting, model, aim)
    predictor = Predictor(model)
    zero = np.zeros(robot.joint_count)
    start = JointSample(round(SEEN_S * NS_PER_S), ready, zero, zero)
    loads = []
    both = np.concatenate([balls, balls * _MIRROR])
    for ball in both:
        planner.reset()
        state = BallState(0, ball[:3].copy(), ball[3:6].copy(), ball[6:].copy(), _CERTAIN)
        result = planner.plan(state, predictor.predict(state, 0), start)
        if is_return(result):
            loads.append(result.load)
    lost = len(both) - len(loads)
    effort = _EFFORT * float(np.square(loads).sum())
    return ReadyScore(
        ready,
        len(loads) / len(both),
        float(np.mean(loads)) if loads else float("nan"),
        (lost + effort) / len(both),
    )


def choose_ready(
    robot: RobotModel,
    model: BallModel,
    balls: FloatArray,
    aim: Aim = (0.0, 0.75),
    progress: Callable[[ReadyScore], None] = lambda _: None,
) -> ReadyScore:
    """The best ready pose found from the home pose or the robot's own ready pose, whichever is the better start.

    Args:
        robot: the robot.
        model: ball constants.
        balls: states after the opponent's hit, shape (k, 9).
        aim: landing point, m.
        progress: called with the best so far after each pose that was tried.
    """
    keep_out = KeepOut(robot)
    best = score_ready(robot, model, balls, robot.ready.copy(), aim)
    home = score_ready(robot, model, balls, robot.home.copy(), aim)
    if home.cost < best.cost - _WORTH:
        best = home
    progress(best)
    for share in _STEPS:
        improved = True
        while improved:
            improved = False
            for joint in range(robot.joint_count):
                for sign in (1.0, -1.0):
                    ready = best.ready.copy()
                    ready[joint] += sign * share * (robot.upper[joint] - robot.lower[joint])
                    ready = np.clip(ready, robot.lower, robot.upper)
                    if keep_out.clearance(ready) < keep_out.margin_m or (ready == best.ready).all():
                        continue
                    found = score_ready(robot, model, balls, ready, aim)
                    if found.cost < best.cost - _WORTH:
                        best, improved = found, True
                    progress(best)
    return best
