"""The planners by name, for nodes and evaluation, and the bound that no planner can pass."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from tt_estimation.ball_models import BallModel
from tt_estimation.prediction import Predictor
from tt_estimation.types import BallState
from tt_perception.errors import TTError
from tt_planning.baselines import NominalPlanner, PlanePlanner
from tt_planning.planner import HitPlanner, Planner, PlannerConfig, PlanResult
from tt_planning.robot import RobotModel
from tt_planning.trajectory import NS_PER_S, JointSample
from tt_planning.types import HitKind

Aim = tuple[float, float]


def _ours(robot: RobotModel, model: BallModel, aim: Aim) -> Planner:
    config = PlannerConfig(aim_x_m=aim[0], aim_y_m=aim[1])
    if robot.kinematics == "serial":
        from tt_planning.arm_planner import ArmPlanner  # only arms pay for compiling its kernels

        return ArmPlanner(robot, model, config)
    return HitPlanner(robot, model, config)


def _gantry_only(make: Callable[[RobotModel, BallModel, Aim], Planner], name: str) -> Callable[..., Planner]:
    def build(robot: RobotModel, model: BallModel, aim: Aim) -> Planner:
        if robot.kinematics != "gantry":
            raise TTError(
                f"planner '{name}' is for gantries; robot '{robot.name}' is none; use planner 'ours'"
            )
        return make(robot, model, aim)

    return build


PLANNERS: dict[str, Callable[[RobotModel, BallModel, Aim], Planner]] = {
    "ours": _ours,
    "nominal": _gantry_only(NominalPlanner, "nominal"),
    "plane": _gantry_only(PlanePlanner, "plane"),
}


def make_planner(name: str, robot: RobotModel, model: BallModel, aim: Aim = (0.0, 0.75)) -> Planner:
    """A planner by name.

    Raises:
        TTError: the name is unknown, or the planner does not fit the robot.
    """
    if name not in PLANNERS:
        raise TTError(f"unknown planner '{name}'; allowed are {', '.join(PLANNERS)}")
    return PLANNERS[name](robot, model, aim)


def perfect_plan(robot: RobotModel, model: BallModel, ball: np.ndarray, aim: Aim = (0.0, 0.75)) -> PlanResult:
    """What our planner decides when it knows ball and constants exactly from the first instant.

    The bound of an evaluation: a ball counts as reachable when this gives a plan to the table (`is_return`).

    Args:
        robot: starts at rest in its ready pose.
        model: the true constants.
        ball: true state after the opponent's hit, shape (9,).
        aim: landing point (x, y), m.
    """
    cov = np.diag([1e-8] * 3 + [1e-6] * 3 + [1e-2] * 3)
    state = BallState(0, ball[:3].copy(), ball[3:6].copy(), ball[6:].copy(), cov)
    zero = np.zeros(robot.joint_count)
    start = JointSample(round(0.001 * NS_PER_S), robot.ready, zero, zero)
    return _ours(robot, model, aim).plan(state, Predictor(model).predict(state, 0), start, 0)


def is_return(result: PlanResult) -> bool:
    """Whether a decision is expected to send the ball to the table (no block, no evasion)."""
    return result.plan is not None and result.plan.kind in (HitKind.AIM, HitKind.ANYWHERE)
