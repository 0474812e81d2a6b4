"""The planners by name, for nodes and evaluation."""

from __future__ import annotations

from collections.abc import Callable

from tt_estimation.ball_models import BallModel
from tt_perception.errors import TTError
from tt_planning.baselines import NominalPlanner, PlanePlanner
from tt_planning.planner import HitPlanner, Planner, PlannerConfig, PlanResult
from tt_planning.robot import RobotModel
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


def is_return(result: PlanResult) -> bool:
    """Whether a decision is expected to send the ball to the table (no block, no evasion)."""
    return result.plan is not None and result.plan.kind in (HitKind.AIM, HitKind.ANYWHERE)
