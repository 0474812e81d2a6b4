"""The pyramid that a camera sees, as lines."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from tt_perception.camera import CameraModel

DEPTH_M = 0.35


def frustum_lines(camera: CameraModel, depth_m: float = DEPTH_M) -> NDArray[np.float64]:
    """Pairs of points, shape (16, 3): the edges of what a camera sees up to a depth."""
    corners = np.array([[0, 0], [camera.width, 0], [camera.width, camera.height], [0, camera.height]], float)
    rays = np.column_stack(
        [
            (corners[:, 0] - camera.matrix[0, 2]) / camera.matrix[0, 0],
            (corners[:, 1] - camera.matrix[1, 2]) / camera.matrix[1, 1],
            np.ones(4),
        ]
    )
    pose = camera.table_from_camera
    centre, ends = pose[:3, 3], (rays * depth_m) @ pose[:3, :3].T + pose[:3, 3]
    pairs = [(centre, end) for end in ends] + [(ends[i], ends[(i + 1) % 4]) for i in range(4)]
    return np.array(pairs).reshape(-1, 3)
