"""Joint trajectories: swing to the hit, follow-through, return to ready; sampling of quintic knots.

The generator plans every motion from its own last commanded trajectory, sampled `lead_s` after now, so that each
re-plan is continuous in position, velocity and acceleration whatever the measured joints say (tracking errors are
the controller's business). A request that can no longer be met is refused with a reason, and the motion that was
commanded before goes on.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tt_planning.keep_out import KeepOut
from tt_planning.kinematics import Kinematics, joint_velocity, make_kinematics
from tt_planning.quintic import acceleration, coefficients, load, position, velocity
from tt_planning.robot import RobotModel
from tt_planning.rotation import matrix_from_quat
from tt_planning.swing import N_SW, SW_END_ACC, SW_LEAD, SW_LOAD, SW_WAIT, swing_joint
from tt_planning.types import HitPlan, JointTrajectory

FloatArray = NDArray[np.float64]
Row = tuple[FloatArray, FloatArray, FloatArray]  # position, velocity, acceleration of all joints

NS_PER_S = 1_000_000_000


@dataclass(frozen=True, slots=True)
class TrajectoryConfig:
    """Choices of the trajectory generator.

    Attributes:
        lead_s: from the decision to the instant the new motion starts, s. Shorter than computing and transport:
            in 5 ms a motion leaves the old one by less than 0.2 mm, which the follower fades out.
        min_swing_s: a hit nearer than this after the start is refused, s.
        easy_load: up to this share of the limits a swing ends with zero acceleration; harder ones may accelerate
            through the hit, which lowers their peak.
        end_acc_share: largest acceleration at the hit as a share of the limit.
        return_slack: return to ready takes this many times the shortest duration.
        hold_s: rest between follow-through and return, s.
    """

    lead_s: float = 0.001
    min_swing_s: float = 0.010
    easy_load: float = 0.9
    end_acc_share: float = 0.6
    return_slack: float = 1.3
    hold_s: float = 0.05


@dataclass(frozen=True, slots=True)
class JointSample:
    """Commanded joint state at one instant.

    Attributes:
        stamp_ns: when it holds.
        q, qd, qdd: position, velocity, acceleration, shape (n,), m or rad.
    """

    stamp_ns: int
    q: FloatArray
    qd: FloatArray
    qdd: FloatArray


class TrajectoryReason(Enum):
    """Outcome of a request for a motion."""

    OK = "planned"
    NOT_FINITE = "the request is not finite"
    TOO_LATE = "the hit is too soon or past"
    UNREACHABLE = "the racket cannot reach the pose"
    LIMIT = "the swing would break a joint limit"
    KEEP_OUT = "the racket would come too close to table, net or frame"
    NO_REFERENCE = "the joint positions are not known yet"


@dataclass(frozen=True, slots=True)
class TrajectoryResult:
    """A trajectory, or the reason why there is none (the previous motion then goes on).

    Attributes:
        trajectory: None unless `reason` is OK.
        reason: outcome.
        load: largest share of a velocity or acceleration limit used; NaN when unknown.
    """

    trajectory: JointTrajectory | None
    reason: TrajectoryReason
    load: float = math.nan


def sample(trajectory: JointTrajectory, stamp_ns: int) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Position, velocity, acceleration (n,) at an absolute time; exact quintic between knots.

    Before the first knot its position at rest, after the last knot the last position at rest. A follower that has
    an older trajectory keeps following that one until the first knot of the new one.
    """
    times = trajectory.times_s
    t = (stamp_ns - trajectory.capture_stamp_ns) / NS_PER_S
    n = trajectory.pos.shape[1]
    if t <= times[0]:
        if t == times[0]:
            return trajectory.pos[0].copy(), trajectory.vel[0].copy(), trajectory.acc[0].copy()
        return trajectory.pos[0].copy(), np.zeros(n), np.zeros(n)
    if t >= times[-1]:
        if t == times[-1]:
            return trajectory.pos[-1].copy(), trajectory.vel[-1].copy(), trajectory.acc[-1].copy()
        return trajectory.pos[-1].copy(), np.zeros(n), np.zeros(n)
    out = np.empty((3, n))
    k = int(np.searchsorted(times, t, side="right"))
    _sample_segment(
        times[k - 1],
        times[k],
        trajectory.pos[k - 1],
        trajectory.vel[k - 1],
        trajectory.acc[k - 1],
        trajectory.pos[k],
        trajectory.vel[k],
        trajectory.acc[k],
        t,
        out,
    )
    return out[0], out[1], out[2]


@njit(cache=True, nogil=True)
def _sample_segment(t0, t1, p0, v0, a0, p1, v1, a1, t, out):  # type: ignore[no-untyped-def]
    c = np.empty(6)
    s = t - t0
    for j in range(p0.shape[0]):
        coefficients(p0[j], v0[j], a0[j], p1[j], v1[j], a1[j], t1 - t0, c)
        out[0, j] = c[0] + s * (c[1] + s * (c[2] + s * (c[3] + s * (c[4] + s * c[5]))))
        out[1, j] = c[1] + s * (2.0 * c[2] + s * (3.0 * c[3] + s * (4.0 * c[4] + s * 5.0 * c[5])))
        out[2, j] = 2.0 * c[2] + s * (6.0 * c[3] + s * (12.0 * c[4] + s * 20.0 * c[5]))


@njit(cache=True, nogil=True)
def stop_joint(
    p0: float,
    v0: float,
    a0: float,
    lower: float,
    upper: float,
    max_vel: float,
    max_acc: float,
    stop: np.ndarray,
) -> float:
    """Shortest stop of one joint: (duration in s, rest position) to `stop` (2,), its load returned.

    The speed falls along a cubic, which fixes the rest position; it is moved into the limits when it lies outside.
    Durations from 10 ms upwards in 8 % steps; when none keeps all limits, the one that breaks them least.
    """
    c = np.empty(6)
    work = np.empty(5)
    best = np.inf
    t = 0.01
    while t < 2.0:
        p1 = p0 + 0.5 * v0 * t + a0 * t * t / 12.0
        p1 = min(max(p1, lower), upper)
        coefficients(p0, v0, a0, p1, 0.0, 0.0, t, c)
        share = load(c, t, lower, upper, max_vel, max_acc, work)
        if share < best:
            best = share
            stop[0], stop[1] = t, p1
            if share <= 1.0:
                break
        t *= 1.08
    return best


class TrajectoryGenerator:
    """Turns hit plans into joint trajectories for one robot; the memory is its last commanded trajectory."""

    def __init__(self, robot: RobotModel, config: TrajectoryConfig | None = None) -> None:
        self.robot = robot
        self.config = config or TrajectoryConfig()
        self.kinematics: Kinematics = make_kinematics(robot)
        self.keep_out = KeepOut(robot)
        self._current: JointTrajectory | None = None

    @property
    def current(self) -> JointTrajectory | None:
        """The last commanded trajectory."""
        return self._current

    def set_reference(self, q: FloatArray, qd: FloatArray, qdd: FloatArray, now_ns: int) -> None:
        """Start from these joints: at start-up and whenever the controller did not follow (after a stop)."""
        q = np.clip(np.asarray(q, dtype=float), self.robot.lower, self.robot.upper)
        start = JointSample(now_ns, q, np.asarray(qd, dtype=float), np.asarray(qdd, dtype=float))
        stop_knots, _ = self._stop_knots(start.q, start.qd, start.qdd)
        times = [0.0, *(t for t, _ in stop_knots)]
        rows = [(start.q, start.qd, start.qdd), *(row for _, row in stop_knots)]
        self._current = self._assemble(now_ns, now_ns, times, rows)

    def command(self, now_ns: int) -> JointSample | None:
        """Commanded joints at `now_ns`; None before a reference was set."""
        if self._current is None:
            return None
        return JointSample(now_ns, *sample(self._current, now_ns))

    def start(self, now_ns: int) -> JointSample | None:
        """Joints from which a motion decided now will start (`lead_s` from now): what the planner plans from."""
        return self.command(now_ns + round(self.config.lead_s * NS_PER_S))

    def hit(self, plan: HitPlan, now_ns: int) -> TrajectoryResult:
        """Swing to the planned racket pose and twist at the hit time, follow through, return to ready."""
        start = self.start(now_ns)
        if start is None:
            return TrajectoryResult(None, TrajectoryReason.NO_REFERENCE)
        numbers = (
            plan.racket_pos_table,
            plan.racket_quat_xyzw,
            plan.racket_vel_table,
            plan.racket_angvel_table,
        )
        if not all(np.isfinite(a).all() for a in numbers) or not np.linalg.norm(plan.racket_quat_xyzw) > 1e-6:
            return TrajectoryResult(None, TrajectoryReason.NOT_FINITE)
        swing_s = (plan.hit_stamp_ns - start.stamp_ns) / NS_PER_S
        if swing_s < self.config.min_swing_s:
            return TrajectoryResult(None, TrajectoryReason.TOO_LATE)
        rot = matrix_from_quat(plan.racket_quat_xyzw)
        ik = self.kinematics.inverse(plan.racket_pos_table, rot[:, 1], start.q)
        if not ik.success:
            return TrajectoryResult(None, TrajectoryReason.UNREACHABLE)
        qd = joint_velocity(
            self.kinematics, ik.q, plan.racket_vel_table, plan.racket_angvel_table, self.robot.racket.length
        )
        return self.swing(start, ik.q, qd, plan.hit_stamp_ns, plan.capture_stamp_ns)

    def swing(
        self, start: JointSample, q: FloatArray, qd: FloatArray, hit_stamp_ns: int, capture_stamp_ns: int
    ) -> TrajectoryResult:
        """The same for joint positions and velocities at the hit time; commanded when it keeps all limits."""
        robot, config = self.robot, self.config
        n = robot.joint_count
        swing_s = (hit_stamp_ns - start.stamp_ns) / NS_PER_S
        if swing_s < config.min_swing_s:
            return TrajectoryResult(None, TrajectoryReason.TOO_LATE)
        plans = np.empty((n, N_SW))
        for j in range(n):
            swing_joint(
                start.q[j],
                start.qd[j],
                start.qdd[j],
                q[j],
                qd[j],
                swing_s,
                robot.lower[j],
                robot.upper[j],
                robot.max_vel[j],
                robot.max_acc[j],
                config.easy_load,
                config.end_acc_share,
                plans[j],
            )
        worst = float(plans[:, SW_LOAD].max())
        if not worst <= 1.0 + 1e-9:
            return TrajectoryResult(None, TrajectoryReason.LIMIT, worst)
        qdd = plans[:, SW_END_ACC].copy()
        stop_knots, stop_load = self._stop_knots(q, qd, qdd)
        if stop_load > 1.0 + 1e-9:
            return TrajectoryResult(None, TrajectoryReason.LIMIT, stop_load)
        zero = np.zeros(n)
        rows = [(start.q, start.qd, start.qdd)]
        times = [0.0]
        for t, row in [*_wind_up_knots(start, q, qd, qdd, swing_s, plans), (swing_s, (q, qd, qdd))]:
            rows.append(row)
            times.append(t)
        for t, row in stop_knots:
            rows.append(row)
            times.append(swing_s + t)
        rest = rows[-1][0]
        rows += [(rest, zero, zero), (robot.ready, zero, zero)]
        times.append(times[-1] + config.hold_s)
        times.append(times[-1] + self._return_duration(rest, robot.ready))
        trajectory = self._assemble(capture_stamp_ns, start.stamp_ns, times, rows)
        if not self.keep_out.path_is_free(trajectory):
            return TrajectoryResult(None, TrajectoryReason.KEEP_OUT, worst)
        self._current = trajectory
        return TrajectoryResult(trajectory, TrajectoryReason.OK, worst)

    def stop(self, now_ns: int) -> TrajectoryResult:
        """Controlled stop of all joints as soon as the limits allow, wherever that is."""
        start = self.start(now_ns)
        if start is None:
            return TrajectoryResult(None, TrajectoryReason.NO_REFERENCE)
        stop_knots, stop_load = self._stop_knots(start.q, start.qd, start.qdd)
        times = [0.0, *(t for t, _ in stop_knots)]
        rows = [(start.q, start.qd, start.qdd), *(row for _, row in stop_knots)]
        self._current = self._assemble(now_ns, start.stamp_ns, times, rows)
        return TrajectoryResult(self._current, TrajectoryReason.OK, stop_load)

    def ready(self, now_ns: int) -> TrajectoryResult:
        """Go to the ready pose."""
        return self.go_to(self.robot.ready, now_ns)

    def home(self, now_ns: int) -> TrajectoryResult:
        """Go to the home pose."""
        return self.go_to(self.robot.home, now_ns)

    def go_to(self, q: FloatArray, now_ns: int) -> TrajectoryResult:
        """Go to rest at `q` from whatever is going on; stops first when joints move fast."""
        start = self.start(now_ns)
        if start is None:
            return TrajectoryResult(None, TrajectoryReason.NO_REFERENCE)
        robot = self.robot
        q = np.asarray(q, dtype=float)
        if q.shape != robot.lower.shape or not np.isfinite(q).all():
            return TrajectoryResult(None, TrajectoryReason.NOT_FINITE)
        if (q < robot.lower - 1e-9).any() or (q > robot.upper + 1e-9).any():
            return TrajectoryResult(None, TrajectoryReason.LIMIT)
        zero = np.zeros(robot.joint_count)
        rows = [(start.q, start.qd, start.qdd)]
        times = [0.0]
        here = start.q
        if np.abs(start.qd / robot.max_vel).max() > 1e-6 or np.abs(start.qdd / robot.max_acc).max() > 1e-6:
            for t, row in self._stop_knots(start.q, start.qd, start.qdd)[0]:
                rows.append(row)
                times.append(t)
            here = rows[-1][0]
        rows.append((q, zero, zero))
        times.append(times[-1] + self._return_duration(here, q))
        trajectory = self._assemble(now_ns, start.stamp_ns, times, rows)
        if not self.keep_out.path_is_free(trajectory):
            return TrajectoryResult(None, TrajectoryReason.KEEP_OUT)
        self._current = trajectory
        return TrajectoryResult(trajectory, TrajectoryReason.OK)

    def _stop_knots(
        self, q: FloatArray, qd: FloatArray, qdd: FloatArray
    ) -> tuple[list[tuple[float, Row]], float]:
        """Each joint stops as fast as it can: knots (seconds after the start, (q, qd, qdd)), and the largest load."""
        robot = self.robot
        n = robot.joint_count
        stops, worst = np.empty((n, 2)), 0.0
        for j in range(n):
            share = stop_joint(
                q[j],
                qd[j],
                qdd[j],
                robot.lower[j],
                robot.upper[j],
                robot.max_vel[j],
                robot.max_acc[j],
                stops[j],
            )
            worst = max(worst, share)
        c = np.empty(6)
        knots: list[tuple[float, Row]] = []
        for t in sorted(set(stops[:, 0])):
            row = np.zeros((3, n))
            for j, (duration, rest) in enumerate(stops):
                if t >= duration:
                    row[0, j] = rest
                else:
                    coefficients(q[j], qd[j], qdd[j], rest, 0.0, 0.0, duration, c)
                    row[:, j] = position(c, t), velocity(c, t), acceleration(c, t)
            knots.append((float(t), (row[0], row[1], row[2])))
        return knots, worst

    def _return_duration(self, a: FloatArray, b: FloatArray) -> float:
        """Rest-to-rest quintic of all joints: peak velocity 15/8 d/T, peak acceleration 10/√3 d/T²."""
        d = np.abs(np.asarray(b) - a)
        by_vel = 1.875 * d / self.robot.max_vel
        by_acc = np.sqrt(10.0 / math.sqrt(3.0) * d / self.robot.max_acc)
        return max(0.02, self.config.return_slack * float(max(by_vel.max(), by_acc.max())))

    def _assemble(
        self,
        capture_stamp_ns: int,
        start_stamp_ns: int,
        knot_times: list[float],
        rows: list[Row],
    ) -> JointTrajectory:
        times = (start_stamp_ns - capture_stamp_ns) / NS_PER_S + np.array(knot_times)
        pos, vel, acc = (np.array([r[k] for r in rows], dtype=float) for k in range(3))
        return JointTrajectory(capture_stamp_ns, self.robot.joint_names, times, pos, vel, acc)


def _wind_up_knots(
    start: JointSample, q: FloatArray, qd: FloatArray, qdd: FloatArray, swing_s: float, plans: FloatArray
) -> list[tuple[float, Row]]:
    """Knots between start and hit: (seconds after the start, (q, qd, qdd)) where any joint begins its last part.

    A joint that has no knot of its own there is sampled; splitting a quintic at any time changes nothing.
    """
    waits = sorted({float(w) for w in swing_s - plans[:, SW_LEAD] if 0.0 < w < swing_s})
    knots = []
    c = np.empty(6)
    for t in waits:
        row = np.empty((3, len(q)))
        for j, plan in enumerate(plans):
            wait = swing_s - plan[SW_LEAD]
            if plan[SW_LEAD] <= 0.0:
                coefficients(start.q[j], start.qd[j], start.qdd[j], q[j], qd[j], qdd[j], swing_s, c)
                at = t
            elif t <= wait:
                coefficients(start.q[j], start.qd[j], start.qdd[j], plan[SW_WAIT], 0.0, 0.0, wait, c)
                at = t
            else:
                coefficients(plan[SW_WAIT], 0.0, 0.0, q[j], qd[j], qdd[j], plan[SW_LEAD], c)
                at = t - wait
            row[:, j] = position(c, at), velocity(c, at), acceleration(c, at)
        knots.append((t, (row[0], row[1], row[2])))
    return knots
