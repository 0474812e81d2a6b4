"""Single views as positions: the form in which a ray travels between processes."""

from __future__ import annotations

import numpy as np

from tt_perception.camera import CameraModel
from tt_perception.types import BallPosition, BallRay

RAY_STD_M = 3.0  # along the line of sight: the room


def ray_as_position(ray: BallRay, camera: CameraModel) -> BallPosition:
    """A ray as a position at the distance of the table, uncertain by `RAY_STD_M` along the line of sight."""
    depth_m = float(camera.depth_m(np.zeros(3))[0])
    x = (ray.uv_px[0] - camera.matrix[0, 2]) / camera.matrix[0, 0]
    y = (ray.uv_px[1] - camera.matrix[1, 2]) / camera.matrix[1, 1]
    direction = camera.table_from_camera[:3, :3] @ np.array([x, y, 1.0])
    along = direction / np.linalg.norm(direction)
    across = depth_m / camera.matrix[0, 0] * np.sqrt(max(ray.cov_px[0, 0], ray.cov_px[1, 1]))
    line = np.outer(along, along)
    cov = RAY_STD_M**2 * line + across**2 * (np.eye(3) - line)
    return BallPosition(ray.stamp_ns, camera.centre_table + depth_m * direction, cov, (ray.camera,))
