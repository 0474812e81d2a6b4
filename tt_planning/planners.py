"""The planners by name, for nodes and evaluation."""

from __future__ import annotations

from collections.abc import Callable

from tt_estimation.ball_models import BallModel
from tt_perception.errors import TTError
from tt_planning.planner import HitPlanner, Planner, PlannerConfig
from tt_planning.robot import RobotModel


def _ours(robot: RobotModel, model: BallModel, aim: tuple[float, float]) -> Planner:
    return HitPlanner(robot, model, PlannerConfig(aim_x_m=aim[0], aim_y_m=aim[1]))


PLANNERS: dict[str, Callable[[RobotModel, BallModel, tuple[float, float]], Planner]] = {"ours": _ours}


def make_planner(
    name: str, robot: RobotModel, model: BallModel, aim: tuple[float, float] = (0.0, 0.75)
) -> Planner:
    """A planner by name.

    Raises:
        TTError: the name is unknown.
    """
    if name not in PLANNERS:
        raise TTError(f"unknown planner '{name}'; allowed are {', '.join(PLANNERS)}")
    return PLANNERS[name](robot, model, aim)
