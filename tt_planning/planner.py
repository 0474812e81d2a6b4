"""Hit planner: from a predicted path to a racket pose and twist at a hit time.

There is no fixed hitting plane: hit time, aim, flight time of the return and racket pose are searched together under
what the joints can do in the time left (`hit_search`). The planner plans again with every estimate.

Commit rule: a new target replaces the old one freely, small changes preferred, until `commit_s` before the hit; from
there to `freeze_s` the search is local to the last target; inside `freeze_s` nothing changes any more. From `late_s`
on a correction that the joints cannot do any more is done part way.

Fall-backs, in this order: a return to the aim, a return anywhere legal, the racket in the way of the ball, out of the
way of a ball that flies out. While none of them can be had the racket already moves towards where the ball will pass,
so that a better estimate finds it nearer; the reason why there is no hit yet stays in the result.

A decision tries a bounded number of candidates: what one state leaves untried the next one goes on with, from the
best found so far.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tt_estimation.ball_models import BallModel
from tt_estimation.types import BallEnd, BallPrediction, BallState
from tt_perception.rotation import quat_from_matrix
from tt_planning import hit_problem as hp
from tt_planning.arrays import owned
from tt_planning.hit_problem import HitProblem
from tt_planning.hit_search import POSSIBLE, block, evaluate, search
from tt_planning.keep_out import default_obstacles
from tt_planning.kinematics import Kinematics, make_kinematics
from tt_planning.robot import RobotModel
from tt_planning.swing import swing_load
from tt_planning.trajectory import NS_PER_S, JointSample
from tt_planning.types import HitKind, HitPlan

FloatArray = NDArray[np.float64]

_NO_TARGET = np.full(hp.N_X, np.nan)
# From the middle of the blade to the ball's path: half a blade, a ball, and room for errors.
_EVADE_GAP_M = 0.2
_EVADE_SIGMA_M = 0.08  # a path less certain than this is no reason to leave
_EVADE_HORIZON_S = 0.45
_PREPARE_S = 0.03  # with less time left no preparation is begun
_PREPARE_SIGMAS = 4.0  # a ball predicted this surely to fly over the end of the table is not prepared for
_PREPARED_M = 0.005  # nearer than this to where to wait (m or rad) nothing is commanded
# Coarse candidates of a first decision, a later one, a wide one.
_ROWS_FIRST, _ROWS_NEXT, _ROWS_WIDE = 16, 3, 9


class PlanReason(Enum):
    """Outcome of one decision."""

    OK = "planned"
    COMMITTED = "the hit is too near to change the plan"
    NOT_FINITE = "the ball state is not finite"
    UNCERTAIN = "the ball state is too uncertain to act on"
    OUTGOING = "the ball moves away from the robot"
    AT_REST = "the ball rests"
    BELOW_TABLE = "the ball is below the table top"
    PAST = "the ball is past the racket's reach"
    NO_BOUNCE = "the ball will not bounce on the robot half"
    NET = "the ball will be caught by the net"
    SECOND_BOUNCE = "the ball bounces a second time before the racket can reach it"
    TOO_LATE = "no time is left for a swing"
    OUT_OF_REACH = "no racket pose within the joint limits meets the ball"
    LIMIT = "the joints are too slow for every hit"
    NO_RETURN = "no racket motion sends the ball to the table"


@dataclass(frozen=True, slots=True)
class PlanResult:
    """A plan, or the reason why there is no new one.

    Attributes:
        plan: racket motion to command; None leaves the last one as it is.
        reason: OK, or why no hit is planned; with a reason the only plan there can be is to prepare.
        p_return: probability of a legal return in the model; NaN when unknown.
        load: share of the joint limits that the swing uses; NaN when unknown.
    """

    plan: HitPlan | None
    reason: PlanReason
    p_return: float = math.nan
    load: float = math.nan


@dataclass(frozen=True, slots=True)
class PlannerConfig:
    """Choices of the planner; standard deviations are those of our own robot, seen in closed loop.

    Attributes:
        aim_x_m, aim_y_m: preferred landing point on the opponent's half.
        net_margin_m: smallest planned gap between ball and net.
        late_s, commit_s, freeze_s: see the commit rule, s before the hit.
        linear_error_m, angle_error_rad, speed_error_mps, time_error_s: one standard deviation of the racket at the
            hit: position, orientation, velocity of the face, timing.
        max_position_error_m: a state less certain than this is not acted on.
        load_limit: largest share of the joint limits that a plan may use.
        budget: candidates tried in the local search of the first decision on a ball.
        budget_known: the same in later ones: what a state leaves untried the next one goes on with.
    """

    aim_x_m: float = 0.0
    aim_y_m: float = 0.75
    net_margin_m: float = 0.05
    late_s: float = 0.2
    commit_s: float = 0.06
    freeze_s: float = 0.02
    linear_error_m: float = 0.004
    angle_error_rad: float = 0.012
    speed_error_mps: float = 0.06
    time_error_s: float = 0.002
    max_position_error_m: float = 0.5
    load_limit: float = 0.97
    budget: int = 24
    budget_known: int = 16


@dataclass(frozen=True, slots=True)
class Situation:
    """What a hit is chosen from.

    Attributes:
        state: newest ball state.
        prediction: its path.
        joints: commanded joints at the instant where a new motion would start.
        start_s: that instant, s after the capture.
        window: first and last time at which the ball can be played, s after the capture.
        to_hit_s: from the start to the hit of the current target, s; infinite when there is none.
    """

    state: BallState
    prediction: BallPrediction
    joints: JointSample
    start_s: float
    window: tuple[float, float]
    to_hit_s: float


class Planner(Protocol):
    """What pipeline and nodes need of a planner."""

    def plan(self, state: BallState, prediction: BallPrediction, joints: JointSample) -> PlanResult:
        """One decision."""
        ...

    def reset(self) -> None:
        """Forget the current target: a new ball comes."""
        ...


def swing_share(
    robot: RobotModel, joints: JointSample, q: FloatArray, qd: FloatArray, duration_s: float
) -> float:
    """Share of the joint limits that a swing from `joints` to (`q`, `qd`) uses; above 1 when it cannot be done."""
    limits = (robot.lower, robot.upper, robot.max_vel, robot.max_acc)
    loads = np.empty(robot.joint_count)
    return swing_load(joints.q, joints.qd, joints.qdd, q, qd, duration_s, *limits, 1.0, loads)


def racket_plan(
    kinematics: Kinematics,
    capture_stamp_ns: int,
    hit_stamp_ns: int,
    motion: tuple[FloatArray, FloatArray],
    kind: HitKind,
    aim: tuple[float, float] = (math.nan, math.nan),
    expected_error_m: float = math.nan,
) -> HitPlan:
    """The plan for a `motion`: joints (n,) and their velocities (n,) at the hit; `aim` is the landing point, m."""
    q, qd = motion
    centre, rot = kinematics.forward(q)
    twist = kinematics.jacobian(q) @ qd
    return HitPlan(
        capture_stamp_ns=capture_stamp_ns,
        hit_stamp_ns=hit_stamp_ns,
        racket_pos_table=centre,
        racket_quat_xyzw=quat_from_matrix(rot),
        racket_vel_table=twist[:3],
        racket_angvel_table=twist[3:],
        kind=kind,
        aim_table=np.array([*aim, 0.0]),
        expected_error_m=expected_error_m,
    )


class HitPlanner:
    """Plans hits for one robot and one ball model; the memory is its current target.

    Args:
        robot: the robot.
        model: ball constants used for racket contact and return flight.
        config: choices.
    """

    def __init__(self, robot: RobotModel, model: BallModel, config: PlannerConfig | None = None) -> None:
        self.robot = robot
        self.model = model
        self.config = config or PlannerConfig()
        self.kinematics: Kinematics = make_kinematics(robot)
        c, racket = self.config, robot.racket
        serial = robot.kinematics == "serial"
        self._deep = robot.joint_count == 5 or serial
        rob = np.zeros(hp.N_R)
        rob[hp.R_DEPTH] = 2.0 if serial else float(self._deep)
        rob[hp.R_BASE_X : hp.R_BASE_Z + 1] = robot.base_pos_table
        rob[hp.R_LENGTH], rob[hp.R_OFFSET], rob[hp.R_FACE] = (
            racket.length,
            racket.contact_offset_m,
            0.5 * racket.thickness,
        )
        rob[hp.R_HALF_W], rob[hp.R_HALF_H], rob[hp.R_HALF_T] = (
            0.5 * racket.width,
            0.5 * racket.height,
            0.5 * racket.thickness,
        )
        self._rob = rob
        self._noise = np.array([c.linear_error_m, c.angle_error_rad, c.speed_error_mps, c.time_error_s])
        weight = np.zeros(hp.N_W)
        weight[hp.W_LANDING] = 0.5
        weight[hp.W_LOAD] = 0.5
        weight[hp.W_EFFORT] = 0.004
        weight[hp.W_CHANGE] = 0.002
        weight[hp.W_NET] = c.net_margin_m
        weight[hp.W_EDGE] = 0.012
        weight[hp.W_LIMIT] = c.load_limit
        weight[hp.W_AIMED] = 0.2
        weight[hp.W_PLACE] = 0.1
        self._weight = weight
        self._table_box = default_obstacles(robot)[0]
        self._ready_centre = self.kinematics.forward(robot.ready)[0]
        self._target_ns: int | None = None
        self._target = _NO_TARGET.copy()
        self._target_q: FloatArray | None = None
        self._target_qd: FloatArray | None = None
        self._kind = HitKind.AIM
        self._turn = 0
        self._failures = 0
        self._near: FloatArray | None = None
        self._near_ns = 0
        # The solved shot of the target: where the search of the next state starts.
        self._shot = np.full(3, np.nan)
        self._inverse = np.full((3, 3), np.nan)

    def reset(self) -> None:
        """Forget the current target."""
        self._target_ns = None
        self._target = _NO_TARGET.copy()
        self._target_q = self._target_qd = None
        self._kind = HitKind.AIM
        self._failures = 0
        self._near = None
        self._shot[:] = np.nan
        self._inverse[:] = np.nan

    def plan(self, state: BallState, prediction: BallPrediction, joints: JointSample) -> PlanResult:
        """One decision from the newest state and its predicted path.

        Args:
            state: newest ball state.
            prediction: its path.
            joints: commanded joints at the instant where a new motion would start (`TrajectoryGenerator.start`).
        """
        joints = JointSample(joints.stamp_ns, owned(joints.q), owned(joints.qd), owned(joints.qdd))
        refused = self._refuse(state, prediction)
        if refused is not None:
            if refused in (PlanReason.OUTGOING, PlanReason.AT_REST):
                self.reset()
            if refused is PlanReason.NO_BOUNCE:
                return self._evade(prediction, joints) or self._prepare(prediction, joints, refused)
            return PlanResult(None, refused)
        capture = prediction.stamp_ns
        start_s = (joints.stamp_ns - capture) / NS_PER_S
        to_hit_s = math.inf
        if self._target_ns is not None:
            to_hit_s = (self._target_ns - joints.stamp_ns) / NS_PER_S
            if to_hit_s < -0.2:
                self.reset()
                to_hit_s = math.inf
            elif to_hit_s < self.config.freeze_s:
                return PlanResult(None, PlanReason.COMMITTED)
        window = self._window(prediction, start_s)
        if isinstance(window, PlanReason):
            return self._prepare(prediction, joints, window)
        return self._choose(Situation(state, prediction, joints, start_s, window, to_hit_s))

    def _choose(self, now: Situation) -> PlanResult:
        """The best hit within the window."""
        prediction, to_hit_s = now.prediction, now.to_hit_s
        capture = prediction.stamp_ns
        first, last_time = now.window
        last = self._target.copy()
        if self._deep and self._target_ns is not None:
            last[hp.X_PLACE] = (self._target_ns - capture) / NS_PER_S
        x, out = np.empty(hp.N_X), np.zeros(hp.N_O)
        problem = self._problem(now)
        local = to_hit_s < self.config.commit_s
        known = bool(np.isfinite(last).all())
        incumbent = last if known else self._remembered(capture)
        grid = self._grid(first, last_time, incumbent, local and known)
        steps = np.array(
            [0.5, 0.08, 0.0, 0.0, 0.012 if self._deep else 0.01, 2.0 if self._deep else 0.3, 0.0]
        )
        if known:
            steps *= 0.25 if local else 0.5
        budget = self.config.budget if incumbent is None else self.config.budget_known
        cost = search(grid, steps, budget, problem, last, self._shot, self._inverse, x, out)
        self._failures = 0 if cost <= POSSIBLE else self._failures + 1
        if cost > POSSIBLE and not local and self._failures % 2:
            # Anywhere legal: other aims, weighted towards the middle of the table.
            wide = self._grid(first, last_time, x, False, wide=True)
            steps[hp.X_AIM_X] = steps[hp.X_AIM_Y] = 0.1
            steps[hp.X_SIDE] = 0.015
            budget = self.config.budget_known
            cost = search(wide, steps, budget, problem, last, self._shot, self._inverse, x, out)
        self._near, self._near_ns = x, capture
        if cost <= POSSIBLE:
            aimed = (
                math.hypot(x[hp.X_AIM_X] - self.config.aim_x_m, x[hp.X_AIM_Y] - self.config.aim_y_m) < 1e-9
            )
            return self._accept(prediction, x, out, HitKind.AIM if aimed else HitKind.ANYWHERE)
        reason = _REASONS[int(out[hp.O_CODE])]
        if self._target_q is not None and reason is PlanReason.LIMIT and to_hit_s < self.config.late_s:
            part = self._part_way(now, x, out, problem, last)
            if part is not None:
                return part
        elif to_hit_s > self.config.commit_s and self._failures % 2 == 0:
            # In turn with the search for other aims, which bounds the time of a decision.
            blocked = self._block(prediction, problem)
            if blocked is not None:
                return blocked
        return self._prepare(prediction, now.joints, reason)

    def _part_way(
        self, now: Situation, x: FloatArray, out: FloatArray, problem: HitProblem, last: FloatArray
    ) -> PlanResult | None:
        """As much of the correction as the joints can still do: the new hit time, joints between old and new target."""
        assert self._target_q is not None and self._target_qd is not None
        n = self.robot.joint_count
        free = self._weight.copy()
        free[hp.W_LIMIT], free[hp.W_NET] = 1e9, -1e9
        inverse = np.full((3, 3), np.nan)
        wish = out.copy()
        if evaluate(x, problem._replace(weight=free), last, True, inverse, wish) > POSSIBLE:
            return None
        t = float(wish[hp.O_TIME])
        q1, qd1 = wish[hp.O_Q : hp.O_Q + n], wish[hp.O_QD : hp.O_QD + n]
        robot = self.robot
        for share in (1.0, 0.8, 0.6, 0.4, 0.2, 0.0):
            q = np.clip(self._target_q + share * (q1 - self._target_q), robot.lower, robot.upper)
            qd = self._target_qd + share * (qd1 - self._target_qd)
            load = swing_share(robot, now.joints, q, qd, t - now.start_s)
            if load <= 1.0:
                wish[hp.O_Q : hp.O_Q + n], wish[hp.O_QD : hp.O_QD + n] = q, qd
                wish[hp.O_LOAD] = load
                return self._accept(now.prediction, x, wish, self._kind)
        return None

    def _block(self, prediction: BallPrediction, problem: HitProblem) -> PlanResult | None:
        """The racket in the way of the ball, when nothing better can be reached."""
        out = np.full(hp.N_O, np.nan)
        if not math.isfinite(block(problem, out)):
            return None
        result = self._accept(prediction, _NO_TARGET, out, HitKind.BLOCK)
        self._target_q = self._target_qd = None  # a block is no target to stay close to
        return result

    def _prepare(self, prediction: BallPrediction, joints: JointSample, reason: PlanReason) -> PlanResult:
        """Towards where the ball will pass the waiting racket, as far as the joints get; gantries only.

        Nothing when another plan is under way, when no time is left, or when it is certain that the ball flies out.
        """
        robot = self.robot
        if robot.kinematics != "gantry" or self._target_ns is not None or reason is PlanReason.TOO_LATE:
            return PlanResult(None, reason)
        passing = self._passing(prediction)
        left = (
            math.nan if passing is None else passing[0] - (joints.stamp_ns - prediction.stamp_ns) / NS_PER_S
        )
        if passing is None or not left > _PREPARE_S:
            return PlanResult(None, reason)
        _, pos, sigma_z = passing
        if reason is PlanReason.NO_BOUNCE and float(pos[2]) > _PREPARE_SIGMAS * sigma_z:
            return PlanResult(None, reason)
        q = robot.ready.copy()
        q[0] += float(pos[0]) - self._ready_centre[0]
        if reason is not PlanReason.NO_BOUNCE:  # without a bounce the height tells nothing
            q[-3] += float(pos[2]) - self._ready_centre[2]
        q = np.clip(q, robot.lower, robot.upper)
        if (np.abs(q - joints.q) < _PREPARED_M).all():
            return PlanResult(None, reason)
        still = np.zeros(robot.joint_count)
        for share in (1.0, 0.8, 0.6, 0.4, 0.2):
            part = joints.q + share * (q - joints.q)
            load = swing_share(robot, joints, part, still, left)
            if load <= self.config.load_limit:
                hit_ns = joints.stamp_ns + round(left * NS_PER_S)
                plan = racket_plan(
                    self.kinematics, prediction.stamp_ns, hit_ns, (part, still), HitKind.PREPARE
                )
                return PlanResult(plan, reason, load=load)
        return PlanResult(None, reason)

    def _passing(self, prediction: BallPrediction) -> tuple[float, FloatArray, float] | None:
        """(time, ball position, height error) where the ball passes the waiting racket; None when it is past.

        A path that ends before it goes straight on.
        """
        y = float(self._ready_centre[1])
        states = prediction.states
        if not len(states) or states[0, 1] < y:
            return None
        passed = np.flatnonzero(states[:, 1] < y)
        k = int(passed[0]) if len(passed) else len(states) - 1
        if not states[k, 4] < -0.1:
            return None
        ahead = (y - float(states[k, 1])) / float(states[k, 4])
        pos = states[k, :3] + ahead * states[k, 3:6]
        return float(prediction.times_s[k]) + ahead, pos, math.sqrt(max(float(prediction.cov[k, 2, 2]), 0.0))

    def _evade(self, prediction: BallPrediction, joints: JointSample) -> PlanResult | None:
        """Sideways out of the path of a ball that flies out: touching it would lose the point. Gantries only."""
        if self.robot.kinematics != "gantry" or self._kind is HitKind.EVADE:
            return None
        centre = self.kinematics.forward(joints.q)[0]
        passed = np.flatnonzero(prediction.states[:, 1] < centre[1])
        if not len(passed) or prediction.states[0, 1] < centre[1]:
            return None
        k = int(passed[0])
        start_s = (joints.stamp_ns - prediction.stamp_ns) / NS_PER_S
        left = float(prediction.times_s[k]) - start_s
        sure = math.sqrt(max(float(np.trace(prediction.cov[k])), 0.0)) < _EVADE_SIGMA_M
        aside = prediction.states[k, :3] - centre
        if not (0.05 < left < _EVADE_HORIZON_S and sure) or math.hypot(aside[0], aside[2]) > _EVADE_GAP_M:
            return None
        robot = self.robot
        for side in (-1.0, 1.0) if aside[0] > 0.0 else (1.0, -1.0):
            q = np.clip(joints.q, robot.lower, robot.upper)
            q[0] += float(aside[0]) + side * _EVADE_GAP_M
            if not robot.lower[0] <= q[0] <= robot.upper[0]:
                continue
            still = np.zeros(robot.joint_count)
            load = swing_share(robot, joints, q, still, left)
            if load > self.config.load_limit:
                continue
            out = np.full(hp.N_O, np.nan)
            out[hp.O_TIME], out[hp.O_LOAD] = prediction.times_s[k], load
            result = self._accept(prediction, _NO_TARGET, out, HitKind.EVADE, (q, still))
            self._target_q = self._target_qd = None
            return result
        return None

    def _accept(
        self,
        prediction: BallPrediction,
        x: FloatArray,
        out: FloatArray,
        kind: HitKind,
        motion: tuple[FloatArray, FloatArray] | None = None,
    ) -> PlanResult:
        """Make the candidate the target; its joints and their velocities come from `out` unless given in `motion`."""
        n = self.robot.joint_count
        if motion is None:
            motion = out[hp.O_Q : hp.O_Q + n].copy(), out[hp.O_QD : hp.O_QD + n].copy()
        hit_ns = prediction.stamp_ns + round(float(out[hp.O_TIME]) * NS_PER_S)
        self._target_ns, self._target = hit_ns, x.copy()
        self._target_q, self._target_qd = motion
        self._kind = kind
        aim = float(x[hp.X_AIM_X]), float(x[hp.X_AIM_Y])
        plan = racket_plan(
            self.kinematics, prediction.stamp_ns, hit_ns, motion, kind, aim, float(out[hp.O_ERROR])
        )
        p_return = float(out[hp.O_P_HIT] * out[hp.O_P_LAND])
        return PlanResult(plan, PlanReason.OK, p_return, float(out[hp.O_LOAD]))

    def _refuse(self, state: BallState, prediction: BallPrediction) -> PlanReason | None:
        """Why this ball is no business of the racket's, or None."""
        # One sum tells of any number that is not finite.
        total = state.pos_table.sum() + state.vel_table.sum() + state.spin_table.sum() + state.cov.sum()
        if not math.isfinite(total) or prediction.end is BallEnd.NOT_FINITE:
            return PlanReason.NOT_FINITE
        cov = state.cov
        if math.sqrt(max(float(cov[0, 0] + cov[1, 1] + cov[2, 2]), 0.0)) > self.config.max_position_error_m:
            return PlanReason.UNCERTAIN
        if float(state.vel_table @ state.vel_table) < 0.05**2:
            return PlanReason.AT_REST
        if state.vel_table[1] >= 0.0 or prediction.end is BallEnd.OUTGOING:
            return PlanReason.OUTGOING
        reach = 0.3 if not self._deep else 0.85
        if state.pos_table[1] < (-1.55 if self._deep else float(self._rob[hp.R_BASE_Y])) - reach:
            return PlanReason.PAST
        if state.pos_table[2] < 0.0 and state.pos_table[1] > -1.37:
            return PlanReason.BELOW_TABLE
        if prediction.bounce_index < 0 and prediction.bounces_before == 0:
            if prediction.end is BallEnd.NET:
                return PlanReason.NET
            return PlanReason.NO_BOUNCE
        if len(prediction.times_s) < 2 or not math.isfinite(prediction.states.sum()):
            return PlanReason.NOT_FINITE
        return None

    def _reach(self) -> tuple[float, float]:
        """Nearest and farthest y at which the racket can meet a ball, m."""
        r = self._rob
        reach = math.hypot(r[hp.R_LENGTH] + 0.04, r[hp.R_OFFSET])
        base = float(r[hp.R_BASE_Y])
        if self._deep:
            return base + self.robot.upper[1] + reach, base + self.robot.lower[1] - reach
        return base + reach, base - reach

    def _window(self, prediction: BallPrediction, start_s: float) -> tuple[float, float] | PlanReason:
        """First and last time at which the ball can be played, s after the capture."""
        y = prediction.states[:, 1]
        near, far = self._reach()
        inside = (y < near) & (y > far)
        earliest = start_s + 0.012
        if prediction.bounces_before == 0:
            earliest = max(earliest, prediction.bounce_time_s)
        if not inside.any():
            if prediction.end is BallEnd.SECOND_BOUNCE:
                return PlanReason.SECOND_BOUNCE
            return PlanReason.OUT_OF_REACH
        times = prediction.times_s[inside]
        first, last = max(float(times[0]), earliest), float(times[-1])
        if first >= last:
            return PlanReason.TOO_LATE
        return first, last

    def _remembered(self, capture_ns: int) -> FloatArray | None:
        """The best candidate of the last state although it could not be done; None for a new ball."""
        if self._near is None:
            return None
        near = self._near.copy()
        if self._deep:
            near[hp.X_PLACE] -= (capture_ns - self._near_ns) / NS_PER_S
        return near

    def _grid(
        self, first: float, last_time: float, incumbent: FloatArray | None, local: bool, wide: bool = False
    ) -> FloatArray:
        """Candidates that the search ranks first: a part of all, which bounds its time, and the incumbent as last row.

        Each decision takes another part.
        """
        c = self.config
        if local and incumbent is not None:
            return incumbent[None, :].copy()
        flights: tuple[float, ...] = (0.42, 0.55, 0.7, 0.85)
        rises: tuple[float, ...] = (-1.0, 0.0, 1.0, 2.0)
        places: tuple[float, ...] = (0.0,)
        if self._deep:
            margin = 0.05 * (last_time - first)
            places = tuple(np.linspace(first + margin, last_time - margin, 7))
            rises = (0.0, 1.0)
        aims = [(c.aim_x_m, c.aim_y_m)]
        sides: tuple[float, ...] = (0.0,)
        if wide:
            aims = [(ax, 0.7) for ax in (-0.4, 0.0, 0.4)]
            sides = (-0.04, 0.0, 0.04)
            flights = (0.5, 0.75)
        rows = [
            [r, f, ax, ay, k, 0.0, side]
            for k in places
            for f in flights
            for r in rises
            for ax, ay in aims
            for side in sides
        ]
        most = _ROWS_WIDE if wide else (_ROWS_FIRST if incumbent is None else _ROWS_NEXT)
        stride = math.ceil(len(rows) / most)
        self._turn += 1
        rows = rows[self._turn % stride :: stride]
        if incumbent is not None:
            rows.append(list(incumbent))
            if not wide:
                rows[-1][hp.X_AIM_X : hp.X_AIM_Y + 1] = c.aim_x_m, c.aim_y_m
        return np.array(rows)

    def _problem(self, now: Situation) -> HitProblem:
        robot, prediction, joints = self.robot, now.prediction, now.joints
        return HitProblem(
            times=owned(prediction.times_s),
            states=owned(prediction.states),
            pos_cov=owned(prediction.cov),
            state_cov=owned(now.state.cov),
            earliest=now.window[0],
            latest=now.window[1],
            p=self.model.params,
            rob=self._rob,
            lower=robot.lower,
            upper=robot.upper,
            max_vel=robot.max_vel,
            max_acc=robot.max_acc,
            start_time=now.start_s,
            q0=joints.q,
            qd0=joints.qd,
            qdd0=joints.qdd,
            noise=self._noise,
            weight=self._weight,
            table_box=self._table_box,
        )


_REASONS = {
    hp.C_TIME: PlanReason.TOO_LATE,
    hp.C_DEPTH: PlanReason.OUT_OF_REACH,
    hp.C_AIM: PlanReason.NO_RETURN,
    hp.C_NET: PlanReason.NO_RETURN,
    hp.C_LIMIT: PlanReason.LIMIT,
    hp.C_TABLE: PlanReason.OUT_OF_REACH,
    hp.C_OK: PlanReason.NO_RETURN,
}
