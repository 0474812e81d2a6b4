"""Compile (or load from cache) every kernel a stage needs, before the first ball comes."""

from __future__ import annotations

import numpy as np

from tt_estimation.ball_models import BallModel
from tt_estimation.events import STEP_S, fly
from tt_estimation.prediction import Predictor
from tt_estimation.types import BallState
from tt_planning.planner import Planner
from tt_planning.quintic import acceleration, coefficients, position, velocity
from tt_planning.robot import RobotModel
from tt_planning.trajectory import NS_PER_S, TrajectoryGenerator

_LATE_NS = 120_000_000


# Balls hit at a place of the opponent's half: an ordinary one, one that flies too long, one that passes too far out.
_BALLS = (
    (0.1, 1.2, 0.3, 0.1, -5.0, 1.0, 60.0, 0.0, 0.0),
    (0.0, 1.2, 0.5, 0.0, -9.0, 3.0, 0.0, 0.0, 0.0),
    (0.5, 1.0, 0.4, 1.8, -4.5, 1.0, 20.0, 0.0, 0.0),
)
_PERIOD_S = 0.016
_SIDESTEP_M = 0.5  # a late surprise that no swing can follow: part-way corrections and blocks


def warm_up_planner(planner: Planner, robot: RobotModel, model: BallModel) -> None:
    """Decides on made-up balls from first sight to the hit, late surprise included; the planner forgets them."""
    predictor, state = Predictor(model), np.empty(9)
    cov = np.diag([1e-5] * 3 + [1e-3] * 3 + [25.0] * 3)
    for sidestep_m in (0.0, _SIDESTEP_M):
        for ball in _BALLS:
            generator = TrajectoryGenerator(robot)
            zero = np.zeros(robot.joint_count)
            generator.set_reference(robot.ready, zero, zero, 0)
            hit_ns = 0
            for i in range(1, 60):
                code = fly(np.array(ball), model.params, i * _PERIOD_S, STEP_S, state)
                now_ns = round(i * _PERIOD_S * NS_PER_S)
                if hit_ns and hit_ns - now_ns < _LATE_NS:
                    state[0] += sidestep_m
                seen = BallState(now_ns, state[:3].copy(), state[3:6].copy(), state[6:].copy(), cov)
                start = generator.start(now_ns)
                assert start is not None
                result = planner.plan(seen, predictor.predict(seen, int(code > 0)), start)
                if result.plan is not None:
                    generator.hit(result.plan, now_ns)
                    hit_ns = result.plan.hit_stamp_ns
                if hit_ns and now_ns > hit_ns:
                    break
            planner.reset()


def warm_up_generator(robot: RobotModel) -> None:
    """Every kind of motion of a generator of its own."""
    c = np.empty(6)
    coefficients(0.0, 0.0, 0.0, 1.0, 0.0, 0.0, 1.0, c)
    for part in (position, velocity, acceleration):
        part(c, 0.5)
    generator = TrajectoryGenerator(robot)
    zero = np.zeros(robot.joint_count)
    generator.set_reference(robot.home, zero, zero, 0)
    start = generator.start(0)
    assert start is not None
    generator.swing(start, robot.ready, 0.05 * robot.max_vel, 500_000_000, 0)
    generator.stop(300_000_000)
    generator.ready(600_000_000)
