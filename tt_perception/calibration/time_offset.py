"""Constant errors of the cameras' stamps, from a moving ball.

A camera whose stamps are late by δ shows the ball where it was δ before them: its pixels are off by δ times
the image velocity of the ball. The other errors of a calibration do not depend on the velocity, so δ can be
told apart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tt_perception.calibration.bundle import BundleError, Observations
from tt_perception.camera import CameraModel

FloatArray = NDArray[np.float64]

_MIN_SPEED_MPS = 1.0
_MAX_GAP_NS = 40_000_000


@dataclass(frozen=True)
class TimeOffsets:
    """Result of `estimate_time_offsets`.

    Attributes:
        offsets_s: error of each camera's stamps against the first camera, shape (c,); subtract it from the
            stamps.
        sigma_s: standard deviations, shape (c,); 0 for the first.
        rms_before_px: reprojection error without the offsets.
        rms_after_px: with them.
        positions: ball positions used.
    """

    offsets_s: FloatArray
    sigma_s: FloatArray
    rms_before_px: float
    rms_after_px: float
    positions: int


def ball_velocities(stamps_ns: NDArray[np.int64], points: FloatArray) -> FloatArray:
    """Velocities by central differences; NaN next to gaps and bounces, shape (m, 3), m/s."""
    velocity = np.full(points.shape, np.nan)
    times = (stamps_ns - stamps_ns[0]) * 1e-9
    for index in range(2, len(points) - 2):
        if stamps_ns[index + 2] - stamps_ns[index - 2] > 4 * _MAX_GAP_NS:
            continue
        before = (points[index] - points[index - 2]) / (times[index] - times[index - 2])
        after = (points[index + 2] - points[index]) / (times[index + 2] - times[index])
        if np.linalg.norm(after - before) < 2.0:  # no hit and no bounce between
            velocity[index] = 0.5 * (before + after)
    return velocity


def estimate_time_offsets(cameras: Sequence[CameraModel], observations: Observations) -> TimeOffsets:
    """Estimate the offsets of all cameras against the first one.

    Args:
        cameras: calibrated.
        observations: from `bundle.gather`, of a ball that moves fast in several directions.

    Raises:
        BundleError: the ball moves too little.
    """
    points = np.array(observations.points_table)
    velocity = ball_velocities(observations.stamps_ns, points)
    usable = np.isfinite(velocity).all(axis=1) & (
        np.linalg.norm(np.nan_to_num(velocity), axis=1) > _MIN_SPEED_MPS
    )
    keep = usable[observations.position]
    if usable.sum() < 40:
        raise BundleError(
            f"{int(usable.sum())} ball positions with more than {_MIN_SPEED_MPS:g} m/s, needs 40; record "
            "rallies, not a ball carried by hand"
        )
    camera, position, uv = observations.camera[keep], observations.position[keep], observations.uv_px[keep]
    count = len(cameras)
    offsets = np.zeros(count)
    before = after = 0.0
    matrix = np.eye(count)
    for iteration in range(6):
        matrix = np.zeros((count, count))
        gradient = np.zeros(count)
        point_matrix = np.zeros((len(points), 3, 3))
        point_gradient = np.zeros((len(points), 3))
        coupling = np.zeros((len(points), count, 3))
        squares: list[FloatArray] = []
        for index, model in enumerate(cameras):
            mine = camera == index
            where = position[mine]
            moved_points = points[where] - offsets[index] * velocity[where]
            jacobian = np.stack(
                [
                    (model.project(moved_points + step) - model.project(moved_points - step)) / 2e-4
                    for step in 1e-4 * np.eye(3)
                ],
                axis=2,
            )
            slope = -np.einsum("nij,nj->ni", jacobian, velocity[where])
            rest = model.project(moved_points) - uv[mine]
            weight = 1.0 / np.maximum(np.linalg.norm(rest, axis=1), 0.3)
            squares.append(np.sum(rest**2, axis=1))
            matrix[index, index] += np.einsum("ni,ni,n->", slope, slope, weight)
            gradient[index] += np.einsum("ni,ni,n->", slope, rest, weight)
            np.add.at(point_matrix, where, np.einsum("nij,nik,n->njk", jacobian, jacobian, weight))
            np.add.at(point_gradient, where, np.einsum("nij,ni,n->nj", jacobian, rest, weight))
            coupling[where, index] += np.einsum("ni,nij,n->nj", slope, jacobian, weight)
        rms = float(np.sqrt(np.median(np.concatenate(squares))))
        before, after = (rms if iteration == 0 else before), rms
        inverse = np.linalg.inv(point_matrix + 1e-6 * np.eye(3))
        eliminated = coupling @ inverse
        matrix -= np.einsum("nij,nkj->ik", eliminated, coupling)
        gradient -= np.einsum("nij,nj->i", eliminated, point_gradient)
        step = np.zeros(count)
        step[1:] = -np.linalg.solve(matrix[1:, 1:] + 1e-9 * np.eye(count - 1), gradient[1:])
        offsets = offsets + step
        moved_back = point_gradient + np.einsum("nij,i->nj", coupling, step)
        points = points - np.einsum("nij,nj->ni", inverse, moved_back)
        if np.abs(step).max() < 1e-8:
            break
    sigma = np.zeros(count)
    sigma[1:] = np.sqrt(np.diag(np.linalg.inv(matrix[1:, 1:]))) * max(np.sqrt(after * 0.3), 0.05)
    return TimeOffsets(offsets, sigma, before, after, int(usable.sum()))
