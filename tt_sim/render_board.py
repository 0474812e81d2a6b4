"""Simulated views of a calibration board, for tests and for `tt calibrate intrinsics --simulate`."""

from __future__ import annotations

from functools import lru_cache

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
_DENSITY = 4000.0  # px per m of the pattern
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
    width_m, height_m = board.size_m
    m = _MARGIN_M
    outline = np.array(
        [[-m, -m, 0], [width_m + m, -m, 0], [width_m + m, height_m + m, 0], [-m, height_m + m, 0]]
    )
    held = CameraModel(camera.name, camera.width, camera.height, camera.matrix, camera.distortion, np.eye(4))
    corners = held.project(outline @ camera_from_board[:3, :3].T + camera_from_board[:3, 3])
    low = np.clip(np.floor(np.nanmin(corners, axis=0)) - 6, 0, [camera.width, camera.height]).astype(int)
    high = np.clip(np.ceil(np.nanmax(corners, axis=0)) + 7, 0, [camera.width, camera.height]).astype(int)
    small = np.full((camera.height, camera.width), 110, np.float32)
    if (high - low).min() > 2:
        window = (slice(low[1], high[1]), slice(low[0], high[0]))
        small[window] = _seen(rays_of(camera)[window], board, camera_from_board)
    small = cv2.GaussianBlur(20.0 + 0.8 * small, (0, 0), blur_px)
    return np.clip(small + rng.normal(0.0, noise, small.shape) + 0.5, 0, 255).astype(np.uint8)


@lru_cache(maxsize=2)
def rays_of(camera: CameraModel) -> NDArray[np.float32]:
    """Rays of a camera; kept, because many views are made of the same one."""
    return pixel_rays(camera)


def _seen(rays: NDArray[np.float32], board: Board, camera_from_board: FloatArray) -> NDArray[np.float32]:
    """Intensity of the board along rays, averaged over each pixel."""
    height, width = rays.shape[:2]
    big = cv2.resize(rays, None, fx=_OVERSAMPLING, fy=_OVERSAMPLING, interpolation=cv2.INTER_LINEAR)
    x, y = big[..., 0], big[..., 1]
    (r00, r01, r02), (r10, r11, r12), (r20, r21, r22) = camera_from_board[:3, :3].tolist()
    tx, ty, tz = camera_from_board[:3, 3].tolist()
    depth = (r02 * tx + r12 * ty + r22 * tz) / (r02 * x + r12 * y + r22)
    px, py, pz = depth * x - tx, depth * y - ty, depth - tz
    u, v = r00 * px + r10 * py + r20 * pz, r01 * px + r11 * py + r21 * pz
    texture = _texture(board)
    picture = cv2.remap(
        texture,
        (u + _MARGIN_M) * _DENSITY - 0.5,
        (v + _MARGIN_M) * _DENSITY - 0.5,
        cv2.INTER_LINEAR,
        borderMode=cv2.BORDER_CONSTANT,
        borderValue=110,
    )
    return cv2.resize(picture, (width, height), interpolation=cv2.INTER_AREA).astype(np.float32)


@lru_cache(maxsize=2)
def _texture(board: Board) -> Image:
    margin = round(_MARGIN_M * _DENSITY)
    plain = cv2.copyMakeBorder(
        board.picture(_DENSITY), margin, margin, margin, margin, cv2.BORDER_CONSTANT, value=255
    )
    return cv2.GaussianBlur(plain, (0, 0), 1.5)


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
