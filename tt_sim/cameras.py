"""Simulated cameras: ball candidates with pixel noise, dropouts, phantoms and delivery delay.

All cameras share one trigger. The pixel noise is chosen so that a triangulated ball has the wanted error per
axis over the volume the ball flies through.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tt_perception.camera import CameraModel
from tt_perception.table import BALL_RADIUS_M
from tt_perception.types import CameraDetections

FloatArray = NDArray[np.float64]

# Places that stand for the volume a ball flies through (x, y, z), m.
_VOLUME = np.array(
    [(x, y, z) for x in (-0.5, 0.5) for y in (-1.5, -0.75, 0.0, 0.75) for z in (0.1, 0.4)], dtype=np.float64
)
_DIFFERENCE_M = 1e-4
_EDGE_PX = 4.0  # nearer to the image border the blob is cut and a detector drops it


def pixel_sigma_for(cameras: tuple[CameraModel, ...], sigma_m: float) -> float:
    """Pixel noise (px per image axis) that gives `sigma_m` rms per axis, triangulated by all cameras."""
    variances = []
    for point in _VOLUME:
        information = np.zeros((3, 3))
        for camera in cameras:
            if not camera.in_image(camera.project(point[None]))[0]:
                continue
            steps = np.vstack([point + _DIFFERENCE_M * np.eye(3), point - _DIFFERENCE_M * np.eye(3)])
            uv = camera.project(steps)
            jacobian = (uv[:3] - uv[3:]).T / (2.0 * _DIFFERENCE_M)
            information += jacobian.T @ jacobian
        if np.linalg.matrix_rank(information) == 3:
            variances.append(np.trace(np.linalg.inv(information)) / 3.0)
    return float(sigma_m / np.sqrt(np.mean(variances)))


@dataclass(frozen=True, slots=True)
class CameraFaults:
    """What goes wrong in the simulated images.

    Attributes:
        sigma_px: standard deviation of the centre per image axis.
        dropout: share of images in which the ball is not found.
        phantoms: mean number of false candidates per image.
    """

    sigma_px: float
    dropout: float = 0.0
    phantoms: float = 0.0


class SimCameras:
    """Candidates that a set of triggered cameras reports.

    Args:
        cameras: their true calibration.
        faults: noise and failures.
        seed: of the random numbers.
    """

    def __init__(self, cameras: tuple[CameraModel, ...], faults: CameraFaults, seed: int = 0) -> None:
        self.cameras = cameras
        self.faults = faults
        self._rng = np.random.default_rng(seed)
        self._counter = 0

    def observe(self, stamp_ns: int, ball_pos_table: FloatArray | None) -> list[CameraDetections]:
        """One image of every camera at `stamp_ns`; `ball_pos_table` is None when there is no ball."""
        images = []
        for camera in self.cameras:
            uv, radius, score = self._candidates(camera, ball_pos_table)
            images.append(CameraDetections(camera.name, stamp_ns, uv, radius, score, self._counter))
        self._counter += 1
        return images

    def _candidates(
        self, camera: CameraModel, ball_pos_table: FloatArray | None
    ) -> tuple[FloatArray, FloatArray, FloatArray]:
        rng, faults = self._rng, self.faults
        rows: list[tuple[float, float, float, float]] = []
        if ball_pos_table is not None and not (faults.dropout > 0.0 and rng.random() < faults.dropout):
            u, v = camera.project(ball_pos_table[None])[0]
            radius = 0.0
            if _EDGE_PX < u < camera.width - _EDGE_PX and _EDGE_PX < v < camera.height - _EDGE_PX:
                radius = camera.matrix[0, 0] * BALL_RADIUS_M / camera.depth_m(ball_pos_table[None])[0]
                noise = rng.normal(0.0, faults.sigma_px, 3)
                rows.append((u + noise[0], v + noise[1], max(radius + 0.5 * noise[2], 0.5), 0.95))
        if faults.phantoms > 0.0:
            for _ in range(rng.poisson(faults.phantoms)):
                rows.append(
                    (
                        rng.uniform(0.0, camera.width - 1.0),
                        rng.uniform(0.0, camera.height - 1.0),
                        rng.uniform(2.0, 8.0),
                        rng.uniform(0.2, 0.8),
                    )
                )
            rng.shuffle(rows)
        table = np.array(rows, dtype=np.float64).reshape(-1, 4)
        return table[:, :2], table[:, 2], table[:, 3]


class DelayLine:
    """Holds images back until their delivery time.

    Args:
        delay_s: from mid-exposure to arrival in the computer.
    """

    def __init__(self, delay_s: float) -> None:
        self._delay_ns = round(delay_s * 1e9)
        self._waiting: deque[tuple[int, list[CameraDetections]]] = deque()

    def push(self, images: list[CameraDetections]) -> None:
        """Takes the images of one trigger."""
        self._waiting.append((images[0].stamp_ns + self._delay_ns, images))

    def pop(self, now_ns: int) -> list[list[CameraDetections]]:
        """Trigger sets that have arrived by `now_ns`, oldest first."""
        arrived = []
        while self._waiting and self._waiting[0][0] <= now_ns:
            arrived.append(self._waiting.popleft()[1])
        return arrived
