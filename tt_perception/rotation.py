"""Rotation matrices and quaternions (xyzw)."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


def matrix_from_quat(quat_xyzw: FloatArray) -> FloatArray:
    """Rotation matrix (3, 3) of a quaternion (4,), which is normalised first."""
    x, y, z, w = (float(v) for v in quat_xyzw)
    size = math.sqrt(x * x + y * y + z * z + w * w)
    x, y, z, w = x / size, y / size, z / size, w / size
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
    )


def quat_from_matrix(rot: FloatArray) -> FloatArray:
    """Quaternion xyzw (4,) with w ≥ 0 of a rotation matrix (3, 3)."""
    # Plain numbers: for a handful of them arrays cost more than the arithmetic.
    (r00, r01, r02), (r10, r11, r12), (r20, r21, r22) = np.asarray(rot, dtype=float).tolist()
    # Twice the squares of x, y, z, w; the largest is divided by, so no branch loses digits.
    squares = (1 + r00 - r11 - r22, 1 - r00 + r11 - r22, 1 - r00 - r11 + r22, 1 + r00 + r11 + r22)
    k = squares.index(max(squares))
    xy, xz, yz = r10 + r01, r02 + r20, r21 + r12
    xw, yw, zw = r21 - r12, r02 - r20, r10 - r01
    rows = (
        (squares[0], xy, xz, xw),
        (xy, squares[1], yz, yw),
        (xz, yz, squares[2], zw),
        (xw, yw, zw, squares[3]),
    )
    x, y, z, w = rows[k]
    size = math.copysign(math.sqrt(x * x + y * y + z * z + w * w), w)
    return np.array([x / size, y / size, z / size, w / size])
