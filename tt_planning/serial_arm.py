"""Kinematics of any serial arm from its URDF: forward, Jacobian, and a numerical inverse that never lies.

The inverse is damped least squares (Nakamura and Hanafusa 1986) on blade centre and face normal; turning the racket
about its normal is free. Joints that would leave their limits are held there and the step is solved again with the
others. Several seeds are tried; a result is a success only when its residual and its limits were checked.
"""

from __future__ import annotations

import math
from xml.etree import ElementTree

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tt_perception.cholesky import solve_spd
from tt_planning.ik import (
    ANGLE_TOLERANCE_RAD,
    POSITION_TOLERANCE_M,
    IkReason,
    IkResult,
    angle_between,
)
from tt_planning.robot import RobotModel
from tt_planning.urdf import origin

FloatArray = NDArray[np.float64]

_ARM_M = 0.3  # 1 rad of normal counts as this many metres of centre
_ROUNDS = 60
_FACES = 2


def chain_from_urdf(robot: RobotModel) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Chain from `table` to the racket link.

    Returns:
        Fixed transforms before each moving joint (n, 4, 4), joint axes (n, 3), 1 for prismatic joints (n,), and the
        fixed transform from the last joint to the racket (4, 4).
    """
    root = ElementTree.fromstring(robot.urdf)
    by_child = {}
    for joint in root.findall("joint"):
        child = joint.find("child")
        if child is not None:
            by_child[child.get("link")] = joint
    path = []
    link: str | None = robot.racket.link
    while link in by_child:
        joint = by_child[link]
        path.append(joint)
        parent = joint.find("parent")
        link = None if parent is None else parent.get("link")
    transforms, axes, sliding = [], [], []
    pending = np.eye(4)
    for joint in reversed(path):
        pending = pending @ origin(joint)
        if joint.get("type") == "fixed":
            continue
        axis = joint.find("axis")
        vector = np.array(
            [float(v) for v in str(axis.get("xyz")).split()] if axis is not None else [1.0, 0.0, 0.0]
        )
        transforms.append(pending)
        axes.append(vector / np.linalg.norm(vector))
        sliding.append(1.0 if joint.get("type") == "prismatic" else 0.0)
        pending = np.eye(4)
    return np.array(transforms), np.array(axes), np.array(sliding), pending


@njit(cache=True, nogil=True)
def forward_jacobian(
    q: np.ndarray,
    transforms: np.ndarray,
    axes: np.ndarray,
    sliding: np.ndarray,
    tool: np.ndarray,
    pos: np.ndarray,
    rot: np.ndarray,
    jac: np.ndarray,
) -> None:
    """Write blade centre (3,), rotation (3, 3) and Jacobian (6, n) of the joints `q` (n,)."""
    n = q.shape[0]
    r = np.eye(3)
    p = np.zeros(3)
    t = np.empty((3, 3))
    turn = np.empty((3, 3))
    points = np.empty((n, 3))
    for j in range(n + 1):
        m = transforms[j] if j < n else tool
        for i in range(3):
            p[i] += r[i, 0] * m[0, 3] + r[i, 1] * m[1, 3] + r[i, 2] * m[2, 3]
        for i in range(3):
            for k in range(3):
                t[i, k] = r[i, 0] * m[0, k] + r[i, 1] * m[1, k] + r[i, 2] * m[2, k]
        r[:] = t
        if j == n:
            break
        x, y, z = axes[j, 0], axes[j, 1], axes[j, 2]
        for i in range(3):
            jac[3 + i, j] = r[i, 0] * x + r[i, 1] * y + r[i, 2] * z
            points[j, i] = p[i]
        if sliding[j] > 0.5:
            for i in range(3):
                p[i] += jac[3 + i, j] * q[j]
            continue
        c, s = math.cos(q[j]), math.sin(q[j])
        v = 1.0 - c
        turn[0, 0], turn[0, 1], turn[0, 2] = c + x * x * v, x * y * v - z * s, x * z * v + y * s
        turn[1, 0], turn[1, 1], turn[1, 2] = y * x * v + z * s, c + y * y * v, y * z * v - x * s
        turn[2, 0], turn[2, 1], turn[2, 2] = z * x * v - y * s, z * y * v + x * s, c + z * z * v
        for i in range(3):
            for k in range(3):
                t[i, k] = r[i, 0] * turn[0, k] + r[i, 1] * turn[1, k] + r[i, 2] * turn[2, k]
        r[:] = t
    for i in range(3):
        pos[i] = p[i]
        for k in range(3):
            rot[i, k] = r[i, k]
    for j in range(n):
        ax, ay, az = jac[3, j], jac[4, j], jac[5, j]
        if sliding[j] > 0.5:
            jac[0, j], jac[1, j], jac[2, j] = ax, ay, az
            jac[3, j] = jac[4, j] = jac[5, j] = 0.0
        else:
            dx, dy, dz = p[0] - points[j, 0], p[1] - points[j, 1], p[2] - points[j, 2]
            jac[0, j] = ay * dz - az * dy
            jac[1, j] = az * dx - ax * dz
            jac[2, j] = ax * dy - ay * dx


@njit(cache=True, nogil=True)
def descend(
    q: np.ndarray,
    target: np.ndarray,
    normal: np.ndarray,
    sign: float,
    lower: np.ndarray,
    upper: np.ndarray,
    transforms: np.ndarray,
    axes: np.ndarray,
    sliding: np.ndarray,
    tool: np.ndarray,
    rounds: int,
    residual: np.ndarray,
) -> None:
    """Improve `q` (n,) in place towards centre `target` and face normal `sign` · y of the racket = `normal`.

    `residual` (2,) receives the remaining distance in m and angle in rad. `q` stays within the limits.
    """
    n = q.shape[0]
    pos = np.empty(3)
    rot = np.empty((3, 3))
    jac = np.empty((6, n))
    a = np.empty((6, 6))
    e = np.empty(6)
    y = np.empty((6, 1))
    dq = np.empty(n)
    free = np.empty(n)
    best_q = q.copy()
    best = math.inf
    damping = 1e-3
    for _ in range(rounds):
        forward_jacobian(q, transforms, axes, sliding, tool, pos, rot, jac)
        f0, f1, f2 = sign * rot[0, 1], sign * rot[1, 1], sign * rot[2, 1]
        e[0], e[1], e[2] = target[0] - pos[0], target[1] - pos[1], target[2] - pos[2]
        e[3] = f1 * normal[2] - f2 * normal[1]
        e[4] = f2 * normal[0] - f0 * normal[2]
        e[5] = f0 * normal[1] - f1 * normal[0]
        sine = math.sqrt(e[3] * e[3] + e[4] * e[4] + e[5] * e[5])
        cosine = f0 * normal[0] + f1 * normal[1] + f2 * normal[2]
        angle = math.atan2(sine, cosine)
        grow = angle / sine if sine > 1e-9 else 1.0
        if sine <= 1e-9 and cosine < 0.0:
            e[3] = math.pi  # exactly opposite: any axis across will do
            grow = 1.0
        for i in range(3, 6):
            e[i] *= grow * _ARM_M
        distance = math.sqrt(e[0] * e[0] + e[1] * e[1] + e[2] * e[2])
        total = distance + _ARM_M * angle
        if total < best:
            best = total
            best_q[:] = q
            residual[0], residual[1] = distance, angle
            damping = max(damping * 0.3, 1e-6)
        else:
            damping = min(damping * 4.0, 1.0)
            q[:] = best_q
            if damping >= 1.0:
                break
            forward_jacobian(q, transforms, axes, sliding, tool, pos, rot, jac)
            continue
        if total < 1e-7:
            break
        # Rotation about the normal is free: remove it from the angular rows.
        for j in range(n):
            along = f0 * jac[3, j] + f1 * jac[4, j] + f2 * jac[5, j]
            jac[3, j] = (jac[3, j] - along * f0) * _ARM_M
            jac[4, j] = (jac[4, j] - along * f1) * _ARM_M
            jac[5, j] = (jac[5, j] - along * f2) * _ARM_M
            free[j] = 1.0
        for _attempt in range(n):
            for i in range(6):
                for k in range(6):
                    s = damping * damping * (1.0 if i == k else 0.0)
                    for j in range(n):
                        s += free[j] * jac[i, j] * jac[k, j]
                    a[i, k] = s
                a[i, i] += 1e-12
                y[i, 0] = e[i]
            if not solve_spd(a, 6, y, 1, 0.0):
                break
            blocked = False
            size = 0.0
            for j in range(n):
                d = 0.0
                for i in range(6):
                    d += jac[i, j] * y[i, 0]
                d *= free[j]
                dq[j] = d
                if free[j] > 0.0 and ((q[j] <= lower[j] and d < 0.0) or (q[j] >= upper[j] and d > 0.0)):
                    free[j] = 0.0
                    blocked = True
                size = max(size, abs(d))
            if not blocked:
                break
        scale = min(1.0, 0.5 / size) if size > 0.0 else 0.0
        for j in range(n):
            q[j] = min(max(q[j] + scale * dq[j] * free[j], lower[j]), upper[j])
    q[:] = best_q


class SerialKinematics:
    """Kinematics of a serial arm. `Kinematics` protocol.

    Args:
        robot: the robot; its URDF gives the chain.
    """

    def __init__(self, robot: RobotModel) -> None:
        self.robot = robot
        self.chain = chain_from_urdf(robot)

    def forward(self, q: FloatArray) -> tuple[FloatArray, FloatArray]:
        """Blade centre (3,) and table_from_racket rotation (3, 3)."""
        pos, rot, _ = self._all(q)
        return pos, rot

    def jacobian(self, q: FloatArray) -> FloatArray:
        """(6, n): linear over angular velocity of the blade centre, in `table` axes."""
        return self._all(q)[2]

    def _all(self, q: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        pos, rot, jac = np.empty(3), np.empty((3, 3)), np.empty((6, self.robot.joint_count))
        forward_jacobian(np.asarray(q, dtype=np.float64), *self.chain, pos, rot, jac)
        return pos, rot, jac

    def inverse(
        self, pos: FloatArray, normal: FloatArray, seed: FloatArray, either_face: bool = False, seeds: int = 6
    ) -> IkResult:
        """Joints for blade centre `pos` and face normal `normal`; rotation about the normal is free.

        Args:
            pos: blade centre, shape (3,), m.
            normal: face normal, shape (3,); need not be normalised.
            seed: where to start, shape (n,); may lie on or outside the limits.
            either_face: the back of the racket may do as well (the red and the black side are one here).
            seeds: at most this many starts: the seed, the ready pose, then fixed ones across the joint ranges.
        """
        robot = self.robot
        pos, normal = np.asarray(pos, dtype=np.float64), np.asarray(normal, dtype=np.float64)
        start = np.clip(np.nan_to_num(np.asarray(seed, dtype=np.float64)), robot.lower, robot.upper)
        size = float(np.linalg.norm(normal))
        if not (np.isfinite(pos).all() and np.isfinite(size) and size > 1e-9):
            return IkResult(start, False, math.inf, math.inf, IkReason.NOT_FINITE)
        normal = normal / size
        best: tuple[float, FloatArray, float, float] | None = None
        residual = np.empty(2)
        for k in range(max(1, seeds)):
            for sign in (1.0, -1.0)[: _FACES if either_face else 1]:
                q = self._seed(k, start)
                descend(q, pos, normal, sign, robot.lower, robot.upper, *self.chain, _ROUNDS, residual)
                total = float(residual[0] + _ARM_M * residual[1])
                if best is None or total < best[0]:
                    best = (total, q, float(residual[0]), float(residual[1]))
            if best is not None and best[2] < POSITION_TOLERANCE_M and best[3] < ANGLE_TOLERANCE_RAD:
                break
        assert best is not None
        q = best[1]
        centre, rot = self.forward(q)
        residual_m = float(np.linalg.norm(centre - pos))
        residual_rad = angle_between(rot[:, 1], normal)
        if either_face:
            residual_rad = min(residual_rad, math.pi - residual_rad)
        ok = residual_m <= POSITION_TOLERANCE_M and residual_rad <= ANGLE_TOLERANCE_RAD
        at_limit = bool(((q <= robot.lower) | (q >= robot.upper)).any())
        reason = IkReason.OK if ok else (IkReason.LIMIT if at_limit else IkReason.RESIDUAL)
        return IkResult(q, ok, residual_m, residual_rad, reason)

    def _seed(self, k: int, start: FloatArray) -> FloatArray:
        if k == 0:
            return start.copy()
        robot = self.robot
        if k == 1:
            return robot.ready.copy()
        # Additive recurrence with powers of the golden ratio's relatives: spread out, always the same.
        j = np.arange(1, robot.joint_count + 1)
        fraction = np.mod(0.5 + (k - 1) * np.sqrt(j + 1.0), 1.0)
        return robot.lower + (0.2 + 0.6 * fraction) * (robot.upper - robot.lower)
