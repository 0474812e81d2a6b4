"""Keep-out volume: the whole racket stays clear of table, net with posts, and the robot's own frame.

Every obstacle is a box in `table`; the racket is a box too. Their separation along the 15 axes of the separating
axis theorem is a lower bound of their distance, and no point of the racket moves faster than a bound
from the joint velocities, so stepping by distance / speed cannot jump over a touch (conservative advancement).
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tt_perception.table import (
    NET_HEIGHT_M,
    NET_OVERHANG_M,
    TABLE_HEIGHT_M,
    TABLE_LENGTH_M,
    TABLE_WIDTH_M,
)
from tt_planning.kinematics import Kinematics, gantry_rotation, make_kinematics
from tt_planning.quintic import N_PEAKS, Q_VEL, coefficients, peaks, position
from tt_planning.robot import RobotModel
from tt_planning.types import JointTrajectory
from tt_planning.urdf import frame_boxes

FloatArray = NDArray[np.float64]

MARGIN_M = 0.01
_RESOLUTION_M = 2e-4  # a separation below this counts as a touch
_ARM_REACH_M = 1.5  # no point of the racket of an arm is farther from any axis


def default_obstacles(robot: RobotModel) -> FloatArray:
    """Boxes (centre, half extents) in `table`, shape (n, 6): table down to the floor, net with posts, floor, frame.

    The frame are the parts of the robot that stand still; parts that move with the racket keep clear of it by design.
    """
    half_w, half_l = 0.5 * TABLE_WIDTH_M, 0.5 * TABLE_LENGTH_M
    boxes = [
        [0.0, 0.0, -0.5 * TABLE_HEIGHT_M, half_w, half_l, 0.5 * TABLE_HEIGHT_M],
        [0.0, 0.0, 0.5 * NET_HEIGHT_M, half_w + NET_OVERHANG_M, 0.02, 0.5 * NET_HEIGHT_M],
        [0.0, 0.0, -TABLE_HEIGHT_M - 0.5, 10.0, 10.0, 0.5],
    ]
    return np.concatenate([np.array(boxes), frame_boxes(robot.urdf)])


@njit(cache=True, nogil=True)
def box_separation(centre: np.ndarray, rot: np.ndarray, half: np.ndarray, box: np.ndarray) -> float:
    """Lower bound of the distance between an oriented box and an axis-parallel one; ≤ 0 when they overlap.

    `centre` (3,), `rot` (3, 3) table_from_box, `half` (3,) of the first; `box` (6,) centre and half extents.
    """
    d0, d1, d2 = centre[0] - box[0], centre[1] - box[1], centre[2] - box[2]
    best = -math.inf
    for i in range(3):  # axes of the fixed box
        reach = box[3 + i] + abs(rot[i, 0]) * half[0] + abs(rot[i, 1]) * half[1] + abs(rot[i, 2]) * half[2]
        d = d0 if i == 0 else (d1 if i == 1 else d2)
        best = max(best, abs(d) - reach)
    for j in range(3):  # axes of the moving box
        a0, a1, a2 = rot[0, j], rot[1, j], rot[2, j]
        reach = half[j] + abs(a0) * box[3] + abs(a1) * box[4] + abs(a2) * box[5]
        best = max(best, abs(d0 * a0 + d1 * a1 + d2 * a2) - reach)
    for j in range(3):  # edges
        for i in range(3):
            if i == 0:
                a0, a1, a2 = 0.0, -rot[2, j], rot[1, j]
            elif i == 1:
                a0, a1, a2 = rot[2, j], 0.0, -rot[0, j]
            else:
                a0, a1, a2 = -rot[1, j], rot[0, j], 0.0
            size = math.sqrt(a0 * a0 + a1 * a1 + a2 * a2)
            if size < 1e-6:
                continue
            reach = abs(a0) * box[3] + abs(a1) * box[4] + abs(a2) * box[5]
            for k in range(3):
                reach += half[k] * abs(a0 * rot[0, k] + a1 * rot[1, k] + a2 * rot[2, k])
            best = max(best, (abs(d0 * a0 + d1 * a1 + d2 * a2) - reach) / size)
    return best


@njit(cache=True, nogil=True)
def _segment(
    times: np.ndarray,
    pos: np.ndarray,
    vel: np.ndarray,
    acc: np.ndarray,
    k: int,
    c: np.ndarray,
    fastest: np.ndarray,
) -> float:
    """Quintics of segment `k` of a path to `c` (n, 6), largest speed of each joint to `fastest` (n,); its duration."""
    work = np.empty(N_PEAKS)
    duration = times[k + 1] - times[k]
    for j in range(c.shape[0]):
        coefficients(
            pos[k, j], vel[k, j], acc[k, j], pos[k + 1, j], vel[k + 1, j], acc[k + 1, j], duration, c[j]
        )
        peaks(c[j], duration, work)
        fastest[j] = work[Q_VEL]
    return duration


@njit(cache=True, nogil=True)
def _gantry_segment_clearance(
    duration: float,
    c: np.ndarray,
    speed: float,
    base: np.ndarray,
    length: float,
    half: np.ndarray,
    boxes: np.ndarray,
    enough: float,
) -> float:
    """Smallest separation along the quintics `c` of a gantry, exact down to the resolution while below `enough`.

    No point of the racket moves faster than `speed`.
    """
    n = c.shape[0]
    rot = np.empty((3, 3))
    centre = np.empty(3)
    lowest = math.inf
    t = 0.0
    while True:
        for i in range(3):
            centre[i] = base[i]
        centre[0] += position(c[0], t)
        if n == 5:
            centre[1] += position(c[1], t)
        centre[2] += position(c[n - 3], t)
        gantry_rotation(position(c[n - 2], t), position(c[n - 1], t), rot)
        for i in range(3):
            centre[i] += length * rot[i, 2]
        gap = math.inf
        for k in range(boxes.shape[0]):
            gap = min(gap, box_separation(centre, rot, half, boxes[k]))
        lowest = min(lowest, gap)
        if t >= duration or lowest <= enough or speed < 1e-9:
            return lowest
        t = min(duration, t + max(gap - enough, _RESOLUTION_M) / speed)


@njit(cache=True, nogil=True)
def _gantry_path_clearance(
    times: np.ndarray,
    pos: np.ndarray,
    vel: np.ndarray,
    acc: np.ndarray,
    base: np.ndarray,
    length: float,
    half: np.ndarray,
    boxes: np.ndarray,
    enough: float,
) -> float:
    """Smallest separation along all segments of a gantry's path; stops looking once it is at most `enough`."""
    n = pos.shape[1]
    c = np.empty((n, 6))
    fastest = np.empty(n)
    reach = length + math.sqrt(half[0] ** 2 + half[1] ** 2 + half[2] ** 2)
    lowest = math.inf
    for k in range(times.shape[0] - 1):
        duration = _segment(times, pos, vel, acc, k, c, fastest)
        speed = 0.0
        for j in range(n):
            speed += fastest[j] * (reach if j >= n - 2 else 1.0)
        gap = _gantry_segment_clearance(duration, c, speed, base, length, half, boxes, enough)
        lowest = min(lowest, gap)
        if lowest <= enough:
            break
    return lowest


class KeepOut:
    """Checks rackets and whole trajectories of one robot against the keep-out volume.

    Args:
        robot: the robot.
        boxes: obstacles (n, 6), centre and half extents; the default ones when None.
        margin_m: smallest allowed separation.
    """

    def __init__(
        self, robot: RobotModel, boxes: FloatArray | None = None, margin_m: float = MARGIN_M
    ) -> None:
        self.robot = robot
        self.boxes = (
            default_obstacles(robot) if boxes is None else np.asarray(boxes, dtype=float).reshape(-1, 6)
        )
        self.margin_m = margin_m
        racket = robot.racket
        self._half = 0.5 * np.array([racket.width, racket.thickness, racket.height])
        self._kinematics: Kinematics = make_kinematics(robot)

    def clearance(self, q: FloatArray) -> float:
        """Separation in metres between the racket at joints `q` and the nearest obstacle (a lower bound)."""
        centre, rot = self._kinematics.forward(q)
        return min(box_separation(centre, rot, self._half, box) for box in self.boxes)

    def path_clearance(self, trajectory: JointTrajectory) -> float:
        """Smallest separation along the whole path; stops looking once it is below the margin."""
        enough = self.margin_m - _RESOLUTION_M
        rows = trajectory.pos, trajectory.vel, trajectory.acc
        if self.robot.kinematics == "gantry":
            base, length = self.robot.base_pos_table, self.robot.racket.length
            return _gantry_path_clearance(
                trajectory.times_s, *rows, base, length, self._half, self.boxes, enough
            )
        c, fastest = np.empty((self.robot.joint_count, 6)), np.empty(self.robot.joint_count)
        lowest = math.inf
        for k in range(len(trajectory.times_s) - 1):
            duration = _segment(trajectory.times_s, *rows, k, c, fastest)
            lowest = min(lowest, self._serial_segment(duration, c, fastest, enough))
            if lowest <= enough:
                break
        return lowest

    def path_is_free(self, trajectory: JointTrajectory) -> bool:
        """True when the whole racket keeps the margin along the whole path."""
        return self.path_clearance(trajectory) >= self.margin_m - _RESOLUTION_M

    def _serial_segment(self, duration: float, c: FloatArray, fastest: FloatArray, enough: float) -> float:
        """As `_gantry_segment_clearance`, for any kinematics."""
        speed = 0.0
        for joint_speed in fastest:
            speed += _ARM_REACH_M * joint_speed
        lowest, t = math.inf, 0.0
        while True:
            gap = self.clearance(np.array([position(row, t) for row in c]))
            lowest = min(lowest, gap)
            if t >= duration or lowest <= enough or speed < 1e-9:
                return lowest
            t = min(duration, t + max(gap - enough, _RESOLUTION_M) / speed)
