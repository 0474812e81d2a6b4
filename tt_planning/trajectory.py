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

from tt_perception.rotation import matrix_from_quat
from tt_planning.arrays import owned
from tt_planning.keep_out import KeepOut
from tt_planning.kinematics import Kinematics, joint_velocity, make_kinematics
from tt_planning.quintic import acceleration, coefficients, load, position, velocity
from tt_planning.robot import RobotModel
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
        return_slack: return to ready takes this many times the shortest duration.
        hold_s: rest between follow-through and return, s.
    """

    lead_s: float = 0.001
    min_swing_s: float = 0.010
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
    _sample_segment(times, trajectory.pos, trajectory.vel, trajectory.acc, k - 1, t, out)
    return out[0], out[1], out[2]


@njit(cache=True, nogil=True)
def _sample_segment(
    times: np.ndarray,
    pos: np.ndarray,
    vel: np.ndarray,
    acc: np.ndarray,
    k: int,
    t: float,
    out: np.ndarray,
) -> None:
    """Position, velocity, acceleration at `t` within segment `k` of the knots (m, n), to `out` (3, n)."""
    c = np.empty(6)
    duration, s = times[k + 1] - times[k], t - times[k]
    for j in range(pos.shape[1]):
        coefficients(
            pos[k, j], vel[k, j], acc[k, j], pos[k + 1, j], vel[k + 1, j], acc[k + 1, j], duration, c
        )
        out[0, j], out[1, j], out[2, j] = position(c, s), velocity(c, s), acceleration(c, s)


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


@njit(cache=True, nogil=True)
def _stop_rows(
    q: np.ndarray,
    qd: np.ndarray,
    qdd: np.ndarray,
    lower: np.ndarray,
    upper: np.ndarray,
    max_vel: np.ndarray,
    max_acc: np.ndarray,
    times: np.ndarray,
    rows: np.ndarray,
) -> tuple[int, float]:
    """Each joint stops as fast as it can: (knots, largest load).

    `times` (n,) receives the ascending times at which a joint comes to rest, `rows` (n, 3, n) positions, velocities and
    accelerations of all joints then.
    """
    n = q.shape[0]
    stops = np.empty((n, 2))
    c = np.empty(6)
    worst = 0.0
    for j in range(n):
        share = stop_joint(q[j], qd[j], qdd[j], lower[j], upper[j], max_vel[j], max_acc[j], stops[j])
        worst = max(worst, share)
    count = 0
    for t in np.sort(stops[:, 0]):
        if count > 0 and t == times[count - 1]:
            continue
        times[count] = t
        for j in range(n):
            duration, rest = stops[j, 0], stops[j, 1]
            if t >= duration:
                rows[count, 0, j], rows[count, 1, j], rows[count, 2, j] = rest, 0.0, 0.0
            else:
                coefficients(q[j], qd[j], qdd[j], rest, 0.0, 0.0, duration, c)
                rows[count, 0, j], rows[count, 1, j] = position(c, t), velocity(c, t)
                rows[count, 2, j] = acceleration(c, t)
        count += 1
    return count, worst


@njit(cache=True, nogil=True)
def _rest_to_rest(a: np.ndarray, b: np.ndarray, max_vel: np.ndarray, max_acc: np.ndarray) -> float:
    """Shortest rest-to-rest quintic of all joints: peak velocity 15/8 d/T, peak acceleration 10/√3 d/T²."""
    longest = 0.0
    for j in range(a.shape[0]):
        d = abs(b[j] - a[j])
        longest = max(longest, 1.875 * d / max_vel[j], math.sqrt(5.773502691896258 * d / max_acc[j]))
    return longest


@njit(cache=True, nogil=True)
def _swing_rows(
    q0: np.ndarray,
    qd0: np.ndarray,
    qdd0: np.ndarray,
    q: np.ndarray,
    qd: np.ndarray,
    swing_s: float,
    lower: np.ndarray,
    upper: np.ndarray,
    max_vel: np.ndarray,
    max_acc: np.ndarray,
    ready: np.ndarray,
    hold_s: float,
    return_slack: float,
    times: np.ndarray,
    rows: np.ndarray,
) -> tuple[int, float, float]:
    """All knots of a swing, its follow-through and the return to ready: (knots, load of the swing, of the stop).

    Writes `times` (m,) in seconds after the start, and positions, velocities, accelerations to `rows` (m, 3, n), with
    m ≥ 2 n + 4. No knots when a load is above 1. A joint that has no knot of its own where another begins its last
    part is sampled; splitting a quintic at any time changes nothing.
    """
    n = q.shape[0]
    plans = np.empty((n, N_SW))
    worst = 0.0
    for j in range(n):
        swing_joint(
            q0[j], qd0[j], qdd0[j], q[j], qd[j], swing_s, lower[j], upper[j], max_vel[j], max_acc[j], plans[j]
        )  # fmt: skip
        worst = max(worst, plans[j, SW_LOAD])
    qdd = plans[:, SW_END_ACC].copy()
    stop_times = np.empty(n)
    stop_rows = np.empty((n, 3, n))
    stops, stop_load = _stop_rows(q, qd, qdd, lower, upper, max_vel, max_acc, stop_times, stop_rows)
    if not (worst <= 1.0 + 1e-9 and stop_load <= 1.0 + 1e-9):
        return 0, worst, stop_load
    times[0] = 0.0
    rows[0, 0], rows[0, 1], rows[0, 2] = q0, qd0, qdd0
    count = 1
    c = np.empty(6)
    for t in np.sort(swing_s - plans[:, SW_LEAD]):
        if not times[count - 1] < t < swing_s:
            continue
        times[count] = t
        for j in range(n):
            wait = swing_s - plans[j, SW_LEAD]
            at = t
            if plans[j, SW_LEAD] <= 0.0:
                coefficients(q0[j], qd0[j], qdd0[j], q[j], qd[j], qdd[j], swing_s, c)
            elif t <= wait:
                coefficients(q0[j], qd0[j], qdd0[j], plans[j, SW_WAIT], 0.0, 0.0, wait, c)
            else:
                coefficients(plans[j, SW_WAIT], 0.0, 0.0, q[j], qd[j], qdd[j], plans[j, SW_LEAD], c)
                at = t - wait
            rows[count, 0, j], rows[count, 1, j] = position(c, at), velocity(c, at)
            rows[count, 2, j] = acceleration(c, at)
        count += 1
    times[count] = swing_s
    rows[count, 0], rows[count, 1], rows[count, 2] = q, qd, qdd
    count += 1
    for k in range(stops):
        times[count] = swing_s + stop_times[k]
        rows[count] = stop_rows[k]
        count += 1
    rest = rows[count - 1, 0]
    rows[count : count + 2] = 0.0
    rows[count, 0], rows[count + 1, 0] = rest, ready
    times[count] = times[count - 1] + hold_s
    times[count + 1] = times[count] + max(0.02, return_slack * _rest_to_rest(rest, ready, max_vel, max_acc))
    return count + 2, worst, stop_load


class TrajectoryGenerator:
    """Turns hit plans into joint trajectories for one robot; the memory is its last commanded trajectory."""

    def __init__(self, robot: RobotModel, config: TrajectoryConfig | None = None) -> None:
        self.robot = robot
        self.config = config or TrajectoryConfig()
        self.kinematics: Kinematics = make_kinematics(robot)
        self.keep_out = KeepOut(robot)
        self._current: JointTrajectory | None = None
        # Joints of the last hit: an arm reaches a pose in several ways, and a re-plan must not change the way.
        self._hit_q: FloatArray | None = None

    @property
    def current(self) -> JointTrajectory | None:
        """The last commanded trajectory."""
        return self._current

    def set_reference(self, q: FloatArray, qd: FloatArray, qdd: FloatArray, now_ns: int) -> None:
        """Start from these joints: at start-up and whenever the controller did not follow (after a stop)."""
        self._hit_q = None
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
        quat = plan.racket_quat_xyzw
        # One sum tells of any number that is not finite.
        total = plan.racket_pos_table.sum() + plan.racket_vel_table.sum() + plan.racket_angvel_table.sum()
        if not (math.isfinite(total) and math.isfinite(size := float(quat @ quat)) and size > 1e-12):
            return TrajectoryResult(None, TrajectoryReason.NOT_FINITE)
        swing_s = (plan.hit_stamp_ns - start.stamp_ns) / NS_PER_S
        if swing_s < self.config.min_swing_s:
            return TrajectoryResult(None, TrajectoryReason.TOO_LATE)
        rot = matrix_from_quat(plan.racket_quat_xyzw)
        seed = start.q if self._hit_q is None else self._hit_q
        ik = self.kinematics.inverse(plan.racket_pos_table, rot[:, 1], seed)
        if not ik.success:
            return TrajectoryResult(None, TrajectoryReason.UNREACHABLE)
        qd = joint_velocity(
            self.kinematics, ik.q, plan.racket_vel_table, plan.racket_angvel_table, self.robot.racket.length
        )
        result = self.swing(start, ik.q, qd, plan.hit_stamp_ns, plan.capture_stamp_ns)
        if result.trajectory is not None:
            self._hit_q = ik.q
        return result

    def swing(
        self, start: JointSample, q: FloatArray, qd: FloatArray, hit_stamp_ns: int, capture_stamp_ns: int
    ) -> TrajectoryResult:
        """The same for joint positions and velocities at the hit time; commanded when it keeps all limits."""
        robot, config = self.robot, self.config
        n = robot.joint_count
        swing_s = (hit_stamp_ns - start.stamp_ns) / NS_PER_S
        if swing_s < config.min_swing_s:
            return TrajectoryResult(None, TrajectoryReason.TOO_LATE)
        times, rows = np.empty(2 * n + 4), np.empty((2 * n + 4, 3, n))
        count, worst, stop_load = _swing_rows(
            owned(start.q), owned(start.qd), owned(start.qdd), owned(q), owned(qd), swing_s, robot.lower, robot.upper,
            robot.max_vel, robot.max_acc, robot.ready, config.hold_s, config.return_slack, times, rows,
        )  # fmt: skip
        if count == 0:
            return TrajectoryResult(None, TrajectoryReason.LIMIT, max(worst, stop_load))
        trajectory = JointTrajectory(
            capture_stamp_ns,
            robot.joint_names,
            (start.stamp_ns - capture_stamp_ns) / NS_PER_S + times[:count],
            rows[:count, 0].copy(),
            rows[:count, 1].copy(),
            rows[:count, 2].copy(),
        )
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
        self._hit_q = None
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
        times, rows = np.empty(n), np.empty((n, 3, n))
        limits = (robot.lower, robot.upper, robot.max_vel, robot.max_acc)
        count, worst = _stop_rows(owned(q), owned(qd), owned(qdd), *limits, times, rows)
        return [(float(times[k]), (rows[k, 0], rows[k, 1], rows[k, 2])) for k in range(count)], worst

    def _return_duration(self, a: FloatArray, b: FloatArray) -> float:
        robot = self.robot
        return max(
            0.02, self.config.return_slack * _rest_to_rest(owned(a), owned(b), robot.max_vel, robot.max_acc)
        )

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
