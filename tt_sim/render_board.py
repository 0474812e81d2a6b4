"""Simulated views of a calibration board, for tests and for `tt calibrate intrinsics --simulate`."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

from tt_perception.calibration.boards import Board
from tt_perception.calibration.poses import rotation_from_vector
from tt_perception.camera import CameraModel
from tt_sim.render import pixel_rays

FloatArray = NDArray[np.float64]
Image = NDArray[np.uint8]

_OVERSAMPLING = 3
_MARGIN_M = 0.03  # white border around the pattern


def board_view(
    camera: CameraModel,
    board: Board,
    camera_from_board: FloatArray,
    rng: np.random.Generator,
    noise: float = 2.0,
    blur_px: float = 0.5,
) -> Image:
    """One image of a board in front of grey.

    Args:
        camera: true intrinsics.
        board: what is shown.
        camera_from_board: pose, shape (4, 4); board x right, y down, z away.
        rng: of the noise.
        noise: standard deviation, grey levels.
        blur_px: standard deviation of the lens blur.
    """
    big = cv2.resize(
        pixel_rays(camera), None, fx=_OVERSAMPLING, fy=_OVERSAMPLING, interpolation=cv2.INTER_LINEAR
    )
    x, y = big[..., 0], big[..., 1]
    rotation, translation = camera_from_board[:3, :3], camera_from_board[:3, 3]
    normal = rotation[:, 2]
    depth = float(normal @ translation) / (normal[0] * x + normal[1] * y + normal[2])
    px, py, pz = depth * x - translation[0], depth * y - translation[1], depth - translation[2]
    u = rotation[0, 0] * px + rotation[1, 0] * py + rotation[2, 0] * pz
    v = rotation[0, 1] * px + rotation[1, 1] * py + rotation[2, 1] * pz
    density = 4000.0
    texture = cv2.copyMakeBorder(
        board.picture(density), *(round(_MARGIN_M * density),) * 4, cv2.BORDER_CONSTANT, value=255
    )
    picture = cv2.remap(
        cv2.GaussianBlur(texture, (0, 0), 1.5),
        ((u + _MARGIN_M) * density - 0.5).astype(np.float32),
        ((v + _MARGIN_M) * density - 0.5).astype(np.float32),
        cv2.INTER_LINEAR,
        borderMode=cv2.BORDER_CONSTANT,
        borderValue=110,
    )
    small = cv2.resize(picture, (camera.width, camera.height), interpolation=cv2.INTER_AREA).astype(
        np.float32
    )
    small = cv2.GaussianBlur(20.0 + 0.8 * small, (0, 0), blur_px)
    return np.clip(small + rng.normal(0.0, noise, small.shape) + 0.5, 0, 255).astype(np.uint8)


def board_poses(camera: CameraModel, board: Board, count: int, rng: np.random.Generator) -> list[FloatArray]:
    """Poses as a careful person shows a board: all over the image, tilted, near enough."""
    width, height = board.size_m
    focal = float(camera.matrix[0, 0])
    cells = [(column, row) for row in range(3) for column in range(4)]
    poses = []
    for index in range(count):
        column, row = cells[index % len(cells)]
        distance = focal * width / camera.width / rng.uniform(0.35, 0.6)
        tilt = rotation_from_vector(rng.uniform([-0.6, -0.6, -0.3], [0.6, 0.6, 0.3]))
        middle = np.array([(column + 0.5) / 4 * camera.width, (row + 0.5) / 3 * camera.height])
        middle = 0.5 * middle + 0.5 * np.clip(
            middle, [0.28 * camera.width, 0.28 * camera.height], [0.72 * camera.width, 0.72 * camera.height]
        )
        ray = np.array(
            [(middle[0] - camera.matrix[0, 2]) / focal, (middle[1] - camera.matrix[1, 2]) / focal, 1.0]
        )
        pose = np.eye(4)
        pose[:3, :3] = tilt
        pose[:3, 3] = distance * ray - tilt @ np.array([width / 2, height / 2, 0.0])
        poses.append(pose)
    return poses
