"""Kinematics of the racket: a protocol, and the closed form of the gantries.

Gantry: x and z axes (and a depth axis y), wrist yaw ψ about z, then pitch θ about x, blade L above the pitch axis.
Face normal (−sinψ cosθ, cosψ cosθ, sinθ); centre (x + L sinθ sinψ, y − L sinθ cosψ, z + L cosθ).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tt_planning.robot import RobotModel

FloatArray = NDArray[np.float64]

POSITION_TOLERANCE_M = 1e-4
ANGLE_TOLERANCE_RAD = 1e-3


class IkReason(Enum):
    """Outcome of an inverse."""

    OK = "reached"
    LIMIT = "a joint limit is in the way"
    DEPTH = "the racket cannot reach that depth with this normal"
    RESIDUAL = "no joint position within the limits reaches the pose"
    NOT_FINITE = "the wanted pose is not finite"


@dataclass(frozen=True, slots=True)
class IkResult:
    """Joint position for a racket pose; always inside the limits, also when it is not a success.

    Attributes:
        q: shape (n,).
        success: residuals below 0.1 mm and 1 mrad.
        residual_m: distance between wanted and reached blade centre.
        residual_rad: angle between wanted and reached normal.
        reason: why it is not a success.
    """

    q: FloatArray
    success: bool
    residual_m: float
    residual_rad: float
    reason: IkReason


class Kinematics(Protocol):
    """What planning needs of a robot's geometry; all in frame `table`."""

    def forward(self, q: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Blade centre (3,) and table_from_racket rotation (3, 3)."""
        ...

    def jacobian(self, q: FloatArray) -> FloatArray:
        """(6, n): linear velocity of the blade centre over angular velocity, both in `table` axes."""
        ...

    def inverse(self, pos: FloatArray, normal: FloatArray, seed: FloatArray) -> IkResult:
        """Joints that put the blade centre at `pos` with face normal `normal` (3,)."""
        ...


@njit(cache=True, nogil=True)
def gantry_rotation(yaw: float, pitch: float, out: np.ndarray) -> None:
    """Write table_from_racket (3, 3) = Rz(ψ) Rx(θ)."""
    cy, sy = math.cos(yaw), math.sin(yaw)
    cp, sp = math.cos(pitch), math.sin(pitch)
    out[0, 0], out[0, 1], out[0, 2] = cy, -sy * cp, sy * sp
    out[1, 0], out[1, 1], out[1, 2] = sy, cy * cp, -cy * sp
    out[2, 0], out[2, 1], out[2, 2] = 0.0, sp, cp


class GantryKinematics:
    """Closed-form kinematics of gantry4 (x, z, yaw, pitch) and gantry5 (x, y, z, yaw, pitch)."""

    def __init__(self, robot: RobotModel) -> None:
        self.robot = robot
        self.depth_axis = robot.joint_count == 5
        self._base = robot.base_pos_table
        self._length = robot.racket.length

    def _axes(self, q: FloatArray) -> tuple[FloatArray, float, float]:
        base = self._base
        if self.depth_axis:
            return np.array([base[0] + q[0], base[1] + q[1], base[2] + q[2]]), float(q[3]), float(q[4])
        return np.array([base[0] + q[0], base[1], base[2] + q[1]]), float(q[2]), float(q[3])

    def forward(self, q: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Blade centre (3,) and table_from_racket rotation (3, 3)."""
        wrist, yaw, pitch = self._axes(q)
        rot = np.empty((3, 3))
        gantry_rotation(yaw, pitch, rot)
        return wrist + self._length * rot[:, 2], rot

    def jacobian(self, q: FloatArray) -> FloatArray:
        """(6, n): linear over angular velocity of the blade centre, in `table` axes."""
        _, yaw, pitch = self._axes(q)
        rot = np.empty((3, 3))
        gantry_rotation(yaw, pitch, rot)
        arm = self._length * rot[:, 2]
        n = self.robot.joint_count
        jac = np.zeros((6, n))
        for column, axis in enumerate((0, 1, 2) if self.depth_axis else (0, 2)):
            jac[axis, column] = 1.0
        jac[:3, n - 2] = -arm[1], arm[0], 0.0  # ẑ × arm
        jac[5, n - 2] = 1.0
        jac[:3, n - 1] = np.cross(rot[:, 0], arm)
        jac[3:, n - 1] = rot[:, 0]
        return jac

    def inverse(self, pos: FloatArray, normal: FloatArray, seed: FloatArray) -> IkResult:
        """Closed form; `seed` is only returned when the pose is not finite.

        gantry4 cannot choose its depth: the distance along y that it misses is the residual, and the rest of the pose
        is exact. Joints are clamped to their limits and the residuals are those of the clamped joints.
        """
        robot = self.robot
        pos, normal = np.asarray(pos, dtype=float), np.asarray(normal, dtype=float)
        size = float(np.linalg.norm(normal))
        if not (np.isfinite(pos).all() and np.isfinite(size) and size > 1e-9):
            q = np.clip(np.nan_to_num(np.asarray(seed, dtype=float)), robot.lower, robot.upper)
            return IkResult(q, False, math.inf, math.inf, IkReason.NOT_FINITE)
        normal = normal / size
        pitch = math.asin(min(1.0, max(-1.0, float(normal[2]))))
        yaw = math.atan2(-normal[0], normal[1])
        rot = np.empty((3, 3))
        gantry_rotation(yaw, pitch, rot)
        wrist = pos - self._length * rot[:, 2] - self._base
        if self.depth_axis:
            wanted = np.array([wrist[0], wrist[1], wrist[2], yaw, pitch])
        else:
            wanted = np.array([wrist[0], wrist[2], yaw, pitch])
        q = np.clip(wanted, robot.lower, robot.upper)
        centre, reached = self.forward(q)
        residual_m = float(np.linalg.norm(centre - pos))
        residual_rad = angle_between(reached[:, 1], normal)
        reason = IkReason.OK
        if residual_m > POSITION_TOLERANCE_M or residual_rad > ANGLE_TOLERANCE_RAD:
            reason = IkReason.LIMIT if (np.abs(q - wanted) > 1e-12).any() else IkReason.DEPTH
        return IkResult(q, reason is IkReason.OK, residual_m, residual_rad, reason)


def angle_between(a: FloatArray, b: FloatArray) -> float:
    """Angle between two vectors (3,) in rad, exact also when it is tiny."""
    return math.atan2(float(np.linalg.norm(np.cross(a, b))), float(np.dot(a, b)))


def joint_velocity(
    kinematics: Kinematics, q: FloatArray, vel_table: FloatArray, angvel_table: FloatArray, length_m: float
) -> FloatArray:
    """Joint velocities (n,) whose racket twist is nearest to the wanted one (least squares).

    Angular velocity is weighted by `length_m`, so that 1 rad/s counts as the speed it gives the blade.
    """
    jac = kinematics.jacobian(q).copy()
    jac[3:] *= length_m
    twist = np.concatenate([vel_table, length_m * np.asarray(angvel_table)])
    return np.linalg.lstsq(jac, twist, rcond=1e-9)[0]


def make_kinematics(robot: RobotModel) -> Kinematics:
    """Kinematics that fits the robot."""
    if robot.kinematics == "gantry":
        return GantryKinematics(robot)
    from tt_planning.serial_arm import SerialKinematics  # only arms pay for compiling it

    return SerialKinematics(robot)
