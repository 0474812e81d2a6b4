"""Small pose algebra that the calibrations share: rotation vectors, and pose refinement with a robust loss."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from tt_perception.camera import CameraModel

FloatArray = NDArray[np.float64]


def rotation_from_vector(vector: FloatArray) -> FloatArray:
    """Rotation matrix of a rotation vector (Rodrigues, 1840)."""
    angle = float(np.linalg.norm(vector))
    x, y, z = vector
    cross = np.array([[0.0, -z, y], [z, 0.0, -x], [-y, x, 0.0]])
    if angle < 1e-9:
        return np.eye(3) + cross
    return np.eye(3) + np.sin(angle) / angle * cross + (1.0 - np.cos(angle)) / angle**2 * cross @ cross


def moved(camera: CameraModel, step: FloatArray) -> CameraModel:
    """Camera turned by `step[:3]` (rad, optical axes) and moved by `step[3:]` (m, table axes)."""
    pose = np.array(camera.table_from_camera)
    rotation = pose[:3, :3] @ rotation_from_vector(step[:3])
    u, _, vt = np.linalg.svd(rotation)  # rounding must not add up over many steps
    pose[:3, :3] = u @ vt
    pose[:3, 3] += step[3:]
    return replace(camera, table_from_camera=pose)


def with_camera_from_table(camera: CameraModel, rotation: FloatArray, translation: FloatArray) -> CameraModel:
    """Camera whose pose is given the way OpenCV's pose solvers give it (table to camera)."""
    pose = np.eye(4)
    pose[:3, :3] = rotation.T
    pose[:3, 3] = -rotation.T @ np.asarray(translation, dtype=np.float64).ravel()
    return replace(camera, table_from_camera=pose)


def pose_difference(a: CameraModel, b: CameraModel) -> tuple[float, float]:
    """Distance of the centres (m) and angle between the orientations (rad) of two poses."""
    relative = a.table_from_camera[:3, :3].T @ b.table_from_camera[:3, :3]
    angle = float(np.arccos(np.clip((np.trace(relative) - 1.0) / 2.0, -1.0, 1.0)))
    return float(np.linalg.norm(a.centre_table - b.centre_table)), angle


def huber_weights(residuals: FloatArray, scale: float) -> FloatArray:
    """Weights of iteratively reweighted least squares for the Huber loss (P. J. Huber, 1964)."""
    size = np.abs(residuals)
    return np.where(size <= scale, 1.0, scale / np.maximum(size, 1e-12))


def huber_cost(residuals: FloatArray, scale: float) -> float:
    """Sum of the Huber loss: ½ r² up to `scale`, linear beyond."""
    size = np.abs(residuals)
    return float(np.sum(np.where(size <= scale, 0.5 * size**2, scale * (size - 0.5 * scale))))


@dataclass(frozen=True)
class PoseFit:
    """Result of `refine_pose`.

    Attributes:
        camera: with the refined pose.
        residuals: shape (n,), px.
        cov: covariance of the pose step (rotation, translation), shape (6, 6).
    """

    camera: CameraModel
    residuals: FloatArray
    cov: FloatArray


def refine_pose(
    camera: CameraModel,
    residuals_of: Callable[[CameraModel], FloatArray],
    sigma_px: float,
    iterations: int = 20,
) -> PoseFit:
    """Levenberg-Marquardt on the six numbers of a pose with a Huber loss at 2 sigma.

    Args:
        camera: start.
        residuals_of: residuals (px) for a camera, shape (n,); NaN entries are left out.
        sigma_px: standard deviation of a good residual.
        iterations: at most.
    """
    damping = 1e-6
    current = residuals_of(camera)
    steps = np.array([1e-5] * 3 + [1e-4] * 3)
    normal: FloatArray = np.eye(6)
    for _ in range(iterations):
        good = np.isfinite(current)
        jacobian = np.empty((len(current), 6))
        for k in range(6):
            nudge = np.zeros(6)
            nudge[k] = steps[k]
            jacobian[:, k] = (residuals_of(moved(camera, nudge)) - residuals_of(moved(camera, -nudge))) / (
                2.0 * steps[k]
            )
        good &= np.isfinite(jacobian).all(axis=1)
        weights = huber_weights(current[good], 2.0 * sigma_px)
        weighted = jacobian[good] * weights[:, None]
        normal = weighted.T @ jacobian[good]
        gradient = weighted.T @ current[good]
        cost = huber_cost(current[good], 2.0 * sigma_px)
        for _ in range(8):
            step = -np.linalg.solve(normal + damping * np.diag(np.diag(normal)), gradient)
            trial = moved(camera, np.asarray(step, dtype=np.float64))
            after = residuals_of(trial)
            both = good & np.isfinite(after)
            if both.sum() >= 0.9 * good.sum() and huber_cost(after[both], 2.0 * sigma_px) <= cost:
                camera, current, damping = trial, after, max(damping * 0.2, 1e-9)
                break
            damping *= 10.0
        else:
            break
        if np.linalg.norm(step[:3]) < 1e-8 and np.linalg.norm(step[3:]) < 1e-7:
            break
    good = current[np.isfinite(current)]
    spread = max(float(np.median(np.abs(good))) * 1.4826, 1e-6)
    cov = np.asarray(np.linalg.inv(normal) * spread**2, dtype=np.float64)
    return PoseFit(camera, current, cov)
