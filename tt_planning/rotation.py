"""Rotation matrices and quaternions (xyzw)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


def matrix_from_quat(quat_xyzw: FloatArray) -> FloatArray:
    """Rotation matrix (3, 3) of a quaternion (4,), which is normalised first."""
    x, y, z, w = np.asarray(quat_xyzw, dtype=float) / np.linalg.norm(quat_xyzw)
    return np.array(
        [
            [1 - 2 * (y * y + z * z), 2 * (x * y - z * w), 2 * (x * z + y * w)],
            [2 * (x * y + z * w), 1 - 2 * (x * x + z * z), 2 * (y * z - x * w)],
            [2 * (x * z - y * w), 2 * (y * z + x * w), 1 - 2 * (x * x + y * y)],
        ]
    )


def quat_from_matrix(rot: FloatArray) -> FloatArray:
    """Quaternion xyzw (4,) with w ≥ 0 of a rotation matrix (3, 3)."""
    r = np.asarray(rot, dtype=float)
    # Twice the squares of x, y, z, w; the largest is divided by, so no branch loses digits.
    squares = np.array(
        [
            1 + r[0, 0] - r[1, 1] - r[2, 2],
            1 - r[0, 0] + r[1, 1] - r[2, 2],
            1 - r[0, 0] - r[1, 1] + r[2, 2],
            1 + np.trace(r),
        ]
    )
    k = int(np.argmax(squares))
    xy, xz, yz = r[1, 0] + r[0, 1], r[0, 2] + r[2, 0], r[2, 1] + r[1, 2]
    xw, yw, zw = r[2, 1] - r[1, 2], r[0, 2] - r[2, 0], r[1, 0] - r[0, 1]
    rows = (
        (squares[0], xy, xz, xw),
        (xy, squares[1], yz, yw),
        (xz, yz, squares[2], zw),
        (xw, yw, zw, squares[3]),
    )
    quat = np.array(rows[k])
    quat /= np.linalg.norm(quat)
    return quat if quat[3] >= 0.0 else -quat
