"""Data that leaves perception: candidates of one image, and triangulated ball positions."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class CameraDetections:
    """All ball candidates of one image; empty arrays when there is none.

    Attributes:
        camera: camera name, e.g. `camera_left`.
        stamp_ns: mid-exposure time of the image, integer nanoseconds.
        uv_px: candidate centres in the raw (distorted) image, shape (n, 2), pixels; the centre of the
            top left pixel is (0, 0).
        radius_px: apparent radii, shape (n,).
        score: detector confidence in 0..1, shape (n,).
        counter: trigger counter of the camera, None when it has none.
    """

    camera: str
    stamp_ns: int
    uv_px: FloatArray
    radius_px: FloatArray
    score: FloatArray
    counter: int | None = None


@dataclass(frozen=True, slots=True)
class BallPosition:
    """A triangulated ball centre.

    Attributes:
        stamp_ns: mid-exposure time of the images it derives from.
        pos_table: centre in frame `table`, shape (3,), metres.
        cov: covariance of `pos_table`, shape (3, 3), m².
        cameras: names of the cameras in the final inlier set.
        reprojection_px: root mean square reprojection error over the inliers.
        ambiguous: True when the views cannot tell this point from another one.
    """

    stamp_ns: int
    pos_table: FloatArray
    cov: FloatArray
    cameras: tuple[str, ...] = ()
    reprojection_px: float = 0.0
    ambiguous: bool = False


@dataclass(frozen=True, slots=True)
class BallRay:
    """One camera's view of the ball, for cameras that share no trigger; fused at its own time.

    Attributes:
        stamp_ns: mid-exposure time.
        camera: camera name.
        uv_px: undistorted pixel, shape (2,).
        cov_px: pixel covariance, shape (2, 2).
        projection: 3×4 matrix that takes homogeneous `table` points to undistorted pixels.
    """

    stamp_ns: int
    camera: str
    uv_px: FloatArray
    cov_px: FloatArray
    projection: FloatArray = field(repr=False)
