"""Compile (or load from cache) every kernel a stage needs, before the first ball comes."""

from __future__ import annotations

import numpy as np

from tt_estimation.ball_models import BallModel
from tt_estimation.prediction import Predictor
from tt_estimation.types import BallState
from tt_planning.planner import Planner
from tt_planning.robot import RobotModel
from tt_planning.trajectory import JointSample, TrajectoryGenerator


def warm_up_planner(planner: Planner, robot: RobotModel, model: BallModel) -> None:
    """One decision on a made-up ball that bounces on the robot's half; the planner forgets it afterwards."""
    cov = np.diag([1e-5] * 3 + [1e-3] * 3 + [25.0] * 3)
    state = BallState(
        0, np.array([0.1, 0.3, 0.35]), np.array([0.0, -4.0, 0.5]), np.array([60.0, 0.0, 0.0]), cov
    )
    zero = np.zeros(robot.joint_count)
    start = JointSample(8_000_000, robot.ready, zero, zero)
    planner.plan(state, Predictor(model).predict(state, 0), start, 0)
    planner.reset()


def warm_up_generator(robot: RobotModel) -> None:
    """Every kind of motion of a generator of its own."""
    generator = TrajectoryGenerator(robot)
    zero = np.zeros(robot.joint_count)
    generator.set_reference(robot.home, zero, zero, 0)
    start = generator.start(0)
    assert start is not None
    generator.swing(start, robot.ready, 0.05 * robot.max_vel, 500_000_000, 0)
    generator.stop(300_000_000)
    generator.ready(600_000_000)
