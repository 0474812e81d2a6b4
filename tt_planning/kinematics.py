"""Kinematics of the racket: a protocol, and the closed form of the gantries.

Gantry: x and z axes (and a depth axis y), wrist yaw ψ about z, then pitch θ about x, blade L above the pitch axis.
Face normal (−sinψ cosθ, cosψ cosθ, sinθ); centre (x + L sinθ sinψ, y − L sinθ cosψ, z + L cosθ).
"""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tt_perception.cholesky import solve_spd
from tt_planning.arrays import owned
from tt_planning.ik import ANGLE_TOLERANCE_RAD, POSITION_TOLERANCE_M, IkReason, IkResult
from tt_planning.robot import RobotModel

FloatArray = NDArray[np.float64]

_SINGULAR = 1e-6  # pivots of the normal equations, m²


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


@njit(cache=True, nogil=True)
def _gantry_forward(
    q: np.ndarray, base: np.ndarray, length: float, centre: np.ndarray, rot: np.ndarray
) -> None:
    """Write blade centre (3,) and table_from_racket (3, 3) of gantry4 or gantry5 joints `q` (n,)."""
    n = q.shape[0]
    gantry_rotation(q[n - 2], q[n - 1], rot)
    for i in range(3):
        centre[i] = base[i] + length * rot[i, 2]
    centre[0] += q[0]
    if n == 5:
        centre[1] += q[1]
    centre[2] += q[n - 3]


@njit(cache=True, nogil=True)
def _gantry_jacobian(q: np.ndarray, length: float, jac: np.ndarray) -> None:
    """Write the Jacobian (6, n): linear over angular velocity of the blade centre."""
    n = q.shape[0]
    rot = np.empty((3, 3))
    gantry_rotation(q[n - 2], q[n - 1], rot)
    jac[:] = 0.0
    jac[0, 0] = 1.0
    if n == 5:
        jac[1, 1] = 1.0
    jac[2, n - 3] = 1.0
    yaw, pitch = n - 2, n - 1
    jac[0, yaw], jac[1, yaw] = -length * rot[1, 2], length * rot[0, 2]  # ẑ × arm
    jac[5, yaw] = 1.0
    for i in range(3):
        jac[i, pitch] = -length * rot[i, 1]  # x̂_racket × arm
        jac[3 + i, pitch] = rot[i, 0]


@njit(cache=True, nogil=True)
def _gantry_inverse(
    pos: np.ndarray,
    normal: np.ndarray,
    base: np.ndarray,
    length: float,
    lower: np.ndarray,
    upper: np.ndarray,
    q: np.ndarray,
) -> tuple[float, float, bool]:
    """Clamped joints to `q` (n,); distance and angle that are missed, and whether a limit was in the way."""
    n = q.shape[0]
    rot = np.empty((3, 3))
    centre = np.empty(3)
    pitch = math.asin(min(1.0, max(-1.0, normal[2])))
    yaw = math.atan2(-normal[0], normal[1])
    gantry_rotation(yaw, pitch, rot)
    axis = 0
    for i in range(3):
        if i == 1 and n == 4:
            continue
        q[axis] = pos[i] - length * rot[i, 2] - base[i]
        axis += 1
    q[axis], q[axis + 1] = yaw, pitch
    clamped = False
    for j in range(n):
        inside = min(max(q[j], lower[j]), upper[j])
        clamped = clamped or abs(inside - q[j]) > 1e-12
        q[j] = inside
    _gantry_forward(q, base, length, centre, rot)
    away = 0.0
    along = 0.0
    for i in range(3):
        away += (centre[i] - pos[i]) ** 2
        along += rot[i, 1] * normal[i]
    across = (
        (rot[1, 1] * normal[2] - rot[2, 1] * normal[1]) ** 2
        + (rot[2, 1] * normal[0] - rot[0, 1] * normal[2]) ** 2
        + (rot[0, 1] * normal[1] - rot[1, 1] * normal[0]) ** 2
    )
    return math.sqrt(away), math.atan2(math.sqrt(across), along), clamped


class GantryKinematics:
    """Closed-form kinematics of gantry4 (x, z, yaw, pitch) and gantry5 (x, y, z, yaw, pitch)."""

    def __init__(self, robot: RobotModel) -> None:
        self.robot = robot
        self._base = robot.base_pos_table
        self._length = robot.racket.length

    def forward(self, q: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Blade centre (3,) and table_from_racket rotation (3, 3)."""
        centre, rot = np.empty(3), np.empty((3, 3))
        _gantry_forward(owned(q), self._base, self._length, centre, rot)
        return centre, rot

    def jacobian(self, q: FloatArray) -> FloatArray:
        """(6, n): linear over angular velocity of the blade centre, in `table` axes."""
        jac = np.empty((6, self.robot.joint_count))
        _gantry_jacobian(owned(q), self._length, jac)
        return jac

    def inverse(self, pos: FloatArray, normal: FloatArray, seed: FloatArray) -> IkResult:
        """Closed form; `seed` is only returned when the pose is not finite.

        gantry4 cannot choose its depth: the distance along y that it misses is the residual, and the rest of the pose
        is exact. Joints are clamped to their limits and the residuals are those of the clamped joints.
        """
        robot = self.robot
        pos, normal = owned(pos), owned(normal)
        size = math.sqrt(float(normal @ normal))
        if not (np.isfinite(pos).all() and math.isfinite(size) and size > 1e-9):
            q = np.clip(np.nan_to_num(np.asarray(seed, dtype=float)), robot.lower, robot.upper)
            return IkResult(q, False, math.inf, math.inf, IkReason.NOT_FINITE)
        q = np.empty(robot.joint_count)
        residual_m, residual_rad, clamped = _gantry_inverse(
            pos, normal / size, self._base, self._length, robot.lower, robot.upper, q
        )
        reason = IkReason.OK
        if residual_m > POSITION_TOLERANCE_M or residual_rad > ANGLE_TOLERANCE_RAD:
            reason = IkReason.LIMIT if clamped else IkReason.DEPTH
        return IkResult(q, reason is IkReason.OK, residual_m, residual_rad, reason)


def joint_velocity(
    kinematics: Kinematics, q: FloatArray, vel_table: FloatArray, angvel_table: FloatArray, length_m: float
) -> FloatArray:
    """Joint velocities (n,) whose racket twist is nearest to the wanted one (least squares).

    Angular velocity is weighted by `length_m`, so that 1 rad/s counts as the speed it gives the blade.
    """
    jac = kinematics.jacobian(q)
    qd = np.empty((jac.shape[1], 1))
    if _least_squares(jac, owned(vel_table), owned(angvel_table), length_m, qd):
        return qd[:, 0]
    # Singular: the smallest of the best ones.
    jac[3:] *= length_m
    twist = np.concatenate([vel_table, length_m * np.asarray(angvel_table)])
    return np.asarray(np.linalg.lstsq(jac, twist, rcond=1e-9)[0], dtype=np.float64)


@njit(cache=True, nogil=True)
def _least_squares(
    jac: np.ndarray, vel: np.ndarray, angvel: np.ndarray, weight: float, qd: np.ndarray
) -> bool:
    """Normal equations of the weighted twist by Cholesky, to `qd` (n, 1); False near a singularity."""
    n = qd.shape[0]
    a = np.empty((n, n))
    for i in range(n):
        s = 0.0
        for k in range(3):
            s += jac[k, i] * vel[k] + weight * weight * jac[3 + k, i] * angvel[k]
        qd[i, 0] = s
        for j in range(i + 1):
            s = 0.0
            for k in range(3):
                s += jac[k, i] * jac[k, j] + weight * weight * jac[3 + k, i] * jac[3 + k, j]
            a[i, j] = s
    return solve_spd(a, n, qd, 1, _SINGULAR)


def make_kinematics(robot: RobotModel) -> Kinematics:
    """Kinematics that fits the robot."""
    if robot.kinematics == "gantry":
        return GantryKinematics(robot)
    from tt_planning.serial_arm import SerialKinematics  # only arms pay for compiling it

    return SerialKinematics(robot)
