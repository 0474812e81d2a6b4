"""Planners to compare with: the published nominal planner, and a fixed virtual hitting plane.

Both choose one return: aim (0, 0.75) m at 4.5 m/s horizontal speed, face normal along the wanted velocity change,
the face moving along its normal by the pitch axis alone, three corrections for friction. Neither looks at joint limits
or covariance. Where the joints cannot do the motion, as much of it is done as they can, as saturated motors would.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from tt_estimation.ball_models import P_E_RACKET, BallModel
from tt_estimation.types import BallPrediction, BallState
from tt_perception.table import BALL_RADIUS_M
from tt_planning.aiming import shoot
from tt_planning.ball_path import time_at_depth
from tt_planning.kinematics import make_kinematics
from tt_planning.planner import PlanReason, PlanResult, racket_plan, swing_share
from tt_planning.racket_contact import outgoing
from tt_planning.robot import RobotModel
from tt_planning.trajectory import NS_PER_S, JointSample
from tt_planning.types import HitKind

FloatArray = NDArray[np.float64]

_HORIZONTAL_SPEED_MPS = 4.5
_FIRST_DECISION_S = 0.2  # after the first state of the ball
_STATES_AFTER_BOUNCE = 4
_PLANE_PITCH_RAD = 0.3


class NominalPlanner:
    """The nominal planner of the published simulation for gantries (reference_results.md §8).

    Decides twice: 0.2 s after the first state of a ball, and once four states after the bounce have come.

    Args:
        robot: a gantry.
        model: ball constants.
        aim: landing point (x, y), m.
    """

    def __init__(self, robot: RobotModel, model: BallModel, aim: tuple[float, float] = (0.0, 0.75)) -> None:
        self.robot = robot
        self.model = model
        self.kinematics = make_kinematics(robot)
        self._aim = np.array([aim[0], aim[1], BALL_RADIUS_M])
        self._deep = robot.joint_count == 5
        self.reset()

    def reset(self) -> None:
        """Forget the ball."""
        self._first_ns: int | None = None
        self._after_bounce = 0
        self._decisions = 0
        self._last_q: FloatArray | None = None
        self._hit_ns = 0

    def plan(self, state: BallState, prediction: BallPrediction, joints: JointSample) -> PlanResult:
        """One decision; `COMMITTED` when it is not time for one. See `HitPlanner.plan`."""
        if not (np.isfinite(state.pos_table).all() and np.isfinite(state.vel_table).all()):
            return PlanResult(None, PlanReason.NOT_FINITE)
        if state.vel_table[1] >= 0.0:
            return PlanResult(None, PlanReason.OUTGOING)
        if self._first_ns is None:
            self._first_ns = state.stamp_ns
        self._after_bounce = self._after_bounce + 1 if prediction.bounces_before == 1 else 0
        if not self._due(state):
            return PlanResult(None, PlanReason.COMMITTED)
        if prediction.bounce_index < 0 and prediction.bounces_before == 0:
            return PlanResult(None, PlanReason.NO_BOUNCE)
        found = self._stroke(prediction)
        if found is None:
            return PlanResult(None, PlanReason.OUT_OF_REACH)
        t, q, qd = found
        hit_ns = prediction.stamp_ns + round(t * NS_PER_S)
        q = np.clip(q, self.robot.lower, self.robot.upper)
        qd = np.clip(qd, -self.robot.max_vel, self.robot.max_vel)
        duration = (hit_ns - joints.stamp_ns) / NS_PER_S
        if duration < 0.012:
            return PlanResult(None, PlanReason.TOO_LATE)
        self._decisions += 1
        base = joints.q if self._last_q is None else self._last_q
        for share in (1.0, 0.8, 0.6, 0.4, 0.2):
            part, part_d = base + share * (q - base), share * qd
            load = swing_share(self.robot, joints, part, part_d, duration)
            if load <= 1.0:
                self._last_q, self._hit_ns = part, hit_ns
                aim = float(self._aim[0]), float(self._aim[1])
                plan = racket_plan(
                    self.kinematics, prediction.stamp_ns, hit_ns, (part, part_d), HitKind.AIM, aim
                )
                return PlanResult(plan, PlanReason.OK, load=load)
        return PlanResult(None, PlanReason.LIMIT)

    def _due(self, state: BallState) -> bool:
        assert self._first_ns is not None
        if self._decisions == 0:
            return state.stamp_ns - self._first_ns >= _FIRST_DECISION_S * NS_PER_S
        return self._decisions == 1 and self._after_bounce >= _STATES_AFTER_BOUNCE

    def _depth(self, pitch: float, yaw: float) -> float:
        """Depth y of the ball's centre when it touches the middle of the blade."""
        racket = self.robot.racket
        base = float(self.robot.base_pos_table[1])
        if self._deep:
            base = float(self.robot.ready[1])
        return base + math.cos(yaw) * (
            racket.contact_offset_m * math.cos(pitch) - racket.length * math.sin(pitch)
        )

    def _stroke(self, prediction: BallPrediction) -> tuple[float, FloatArray, FloatArray] | None:
        """Hit time, joints and their velocities, by iterating between the tilt and the depth it puts the blade at."""
        p = self.model.params
        pitch, yaw = 0.3, 0.0
        ball = np.empty(9)
        for _ in range(4):
            t = self._crossing(prediction, pitch, yaw, ball)
            if t is None:
                return None
            solved = self._face(ball, p)
            if solved is None:
                return None
            pitch, yaw, speed = solved
        t = self._crossing(prediction, pitch, yaw, ball)
        if t is None:
            return None
        racket = self.robot.racket
        normal = np.array(
            [-math.sin(yaw) * math.cos(pitch), math.cos(yaw) * math.cos(pitch), math.sin(pitch)]
        )
        ik = self.kinematics.inverse(ball[:3] - racket.contact_offset_m * normal, normal, self.robot.ready)
        qd = np.zeros(self.robot.joint_count)
        qd[-1] = -speed / racket.length
        return t, ik.q, qd

    def _crossing(
        self, prediction: BallPrediction, pitch: float, yaw: float, ball: FloatArray
    ) -> float | None:
        first = prediction.bounce_time_s if prediction.bounces_before == 0 else 0.0
        t = time_at_depth(
            self._depth(pitch, yaw),
            prediction.times_s,
            prediction.states,
            first,
            float(prediction.times_s[-1]),
            ball,
        )
        return t if math.isfinite(t) else None

    def _face(self, ball: FloatArray, p: FloatArray) -> tuple[float, float, float] | None:
        """Pitch, yaw and speed of the face along its normal."""
        pos, vel, spin = ball[:3], ball[3:6], ball[6:]
        flight = float(np.linalg.norm(self._aim[:2] - pos[:2])) / _HORIZONTAL_SPEED_MPS
        wanted, end = np.full(3, np.nan), np.empty(9)
        shoot(pos, np.zeros(3), self._aim, flight, p, 1e-4, 20, 0.05, wanted, end)
        target = wanted.copy()
        normal, speed = np.array([0.0, 1.0, 0.0]), 0.0
        for _ in range(4):
            change = target - vel
            size = float(np.linalg.norm(change))
            if not size > 1e-6:
                return None
            normal = change / size
            speed = float(vel @ normal) + size / (1.0 + p[P_E_RACKET])
            got, _ = outgoing(vel, spin, normal, speed * normal, self.model)
            target = target + (wanted - got)
        if normal[1] <= 0.1:
            return None
        return math.asin(float(np.clip(normal[2], -1, 1))), math.atan2(-normal[0], normal[1]), speed


class PlanePlanner(NominalPlanner):
    """A fixed virtual hitting plane: the ball is met where it crosses one y, whatever tilt the return needs.

    Plans again with every state until 50 ms before the hit. On gantry4 a tilt other than the plane's puts the blade at
    another depth, and the ball arrives there earlier or later: the price of a fixed plane.
    """

    def _due(self, state: BallState) -> bool:
        return self._decisions == 0 or self._hit_ns - state.stamp_ns > 0.09 * NS_PER_S

    def _depth(self, pitch: float, yaw: float) -> float:
        return super()._depth(_PLANE_PITCH_RAD, 0.0)
