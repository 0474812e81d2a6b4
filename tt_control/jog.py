"""Hold-to-run: paths that move one or more joints while somebody holds a key, and that stop by themselves.

Each path runs for a short time and then brakes to rest. Holding the key sends the next one before that;
letting go, a lost connection or a hung program sends nothing, and the robot stands.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tt_planning.robot import RobotModel
from tt_planning.types import JointTrajectory

FloatArray = NDArray[np.float64]
# How long a path cruises before it brakes: a little longer than the pause between key repeats.
HOLD_S = 0.15
# Jogging uses this share of the acceleration limits, at most; rotary wrists would jerk otherwise.
ACC_LINEAR, ACC_ANGULAR = 1.0, 4.0
_LEAD_S = 0.02
_SHORTEST_S = 0.02


def jog_path(
    robot: RobotModel,
    q: FloatArray,
    qd: FloatArray,
    wanted_vel: FloatArray,
    is_linear: NDArray[np.bool_],
    now_ns: int,
    hold_s: float = HOLD_S,
) -> JointTrajectory:
    """Path from a commanded motion to `wanted_vel`, on with it for `hold_s`, then to rest inside the limits.

    Args:
        robot: limits. is_linear: shape (n,).
        q, qd: commanded motion at `now_ns` plus the lead, shape (n,).
        wanted_vel: m/s or rad/s, shape (n,); zero brakes.
        now_ns: time of the request.
        hold_s: cruise.
    """
    acc = np.minimum(np.where(is_linear, ACC_LINEAR, ACC_ANGULAR), robot.max_acc)
    vel = np.clip(wanted_vel, -robot.max_vel, robot.max_vel)
    for _ in range(30):
        ramp_s = max(_SHORTEST_S, float((1.5 * np.abs(vel - qd) / acc).max()))
        stop_s = max(_SHORTEST_S, float((1.5 * np.abs(vel) / acc).max()))
        cruise_s = hold_s if vel.any() else 0.0
        p1 = q + 0.5 * (qd + vel) * ramp_s
        p2 = p1 + vel * cruise_s
        p3 = p2 + 0.5 * vel * stop_s
        outside = ((p3 > robot.upper) & (vel > 0)) | ((p3 < robot.lower) & (vel < 0))
        if not outside.any():
            break
        vel = np.where(outside, 0.7 * vel, vel)
    else:
        vel = np.zeros_like(vel)
        ramp_s = stop_s = max(_SHORTEST_S, float((1.5 * np.abs(qd) / acc).max()))
        cruise_s = 0.0
        # A joint that lies outside, on its end stop, stays where it is.
        p1 = p2 = p3 = np.clip(q + 0.5 * qd * ramp_s, np.minimum(robot.lower, q), np.maximum(robot.upper, q))
    zero = np.zeros_like(q)
    times, pos, speed = [0.0, ramp_s], [q, p1], [qd, vel]
    if cruise_s > 0.0:
        times.append(times[-1] + cruise_s)
        pos.append(p2)
        speed.append(vel)
    if vel.any():
        times.append(times[-1] + stop_s)
        pos.append(p3)
        speed.append(zero)
    rows = np.array(pos)
    return JointTrajectory(
        now_ns, robot.joint_names, _LEAD_S + np.array(times), rows, np.array(speed), np.zeros_like(rows)
    )


class Jogger:
    """Keeps what is held and makes the next path.

    Args:
        robot: limits. is_linear: shape (n,).
        speed_linear, speed_angular: jog speeds, m/s and rad/s.
    """

    def __init__(
        self,
        robot: RobotModel,
        is_linear: NDArray[np.bool_],
        speed_linear: float = 0.05,
        speed_angular: float = 0.3,
    ) -> None:
        """Holds nothing."""
        self.robot, self.is_linear = robot, is_linear
        self.speed = np.where(is_linear, speed_linear, speed_angular)
        self._last: JointTrajectory | None = None

    def held(self, joint: int, direction: float, rest_q: FloatArray, now_ns: int) -> JointTrajectory:
        """Path for a joint that is held in a direction (−1…1) now; `rest_q` is where the robot stands
        otherwise.
        """
        wanted = np.zeros(self.robot.joint_count)
        wanted[joint] = direction * self.speed[joint]
        return self._path(wanted, rest_q, now_ns)

    def released(self, rest_q: FloatArray, now_ns: int) -> JointTrajectory:
        """Path to rest, for a stop before the last path ends."""
        return self._path(np.zeros(self.robot.joint_count), rest_q, now_ns)

    def _path(self, wanted: FloatArray, rest_q: FloatArray, now_ns: int) -> JointTrajectory:
        from tt_planning.trajectory import sample

        q, qd = np.array(rest_q), np.zeros(self.robot.joint_count)
        start_ns = now_ns + round(_LEAD_S * 1e9)
        if self._last is not None:
            end_ns = self._last.capture_stamp_ns + round(float(self._last.times_s[-1]) * 1e9)
            if start_ns < end_ns:
                q, qd, _ = sample(self._last, start_ns)
        self._last = jog_path(self.robot, q, qd, wanted, self.is_linear, now_ns)
        return self._last
