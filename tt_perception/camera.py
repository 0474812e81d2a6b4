"""Camera model: pinhole with Brown-Conrady distortion, and the pose of the camera over the table.

Frames: `table` as in `tt_perception.table`; the optical frame of a camera has z forward, x right, y down.
Pixels: the centre of the top left pixel is (0, 0), as in OpenCV.

Source: D. C. Brown, Close-Range Camera Calibration, 1971, in the form and coefficient order of OpenCV
and of the ROS distortion model `plumb_bob`.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numba import njit
from numpy.typing import ArrayLike, NDArray

from tt_perception.errors import TTError

FloatArray = NDArray[np.float64]

MIN_DEPTH_M = 0.05  # nearer than this to the image plane a point counts as behind the camera


class CameraError(TTError):
    """A camera calibration that cannot be right."""


@njit(cache=True, nogil=True)
def project_kernel(points, camera_from_table, matrix, distortion, uv):  # type: ignore[no-untyped-def]
    """Write the distorted pixel of each point into `uv`; NaN where a point is behind the camera.

    A point so far outside the image that the distortion polynomial has turned back counts as not visible too.

    Args:
        points: shape (n, 3), table frame, m.
        camera_from_table: shape (4, 4).
        matrix: shape (3, 3).
        distortion: k1, k2, p1, p2, k3.
        uv: output, shape (n, 2).
    """
    k1, k2, p1, p2, k3 = distortion[0], distortion[1], distortion[2], distortion[3], distortion[4]
    for i in range(points.shape[0]):
        px, py, pz = points[i, 0], points[i, 1], points[i, 2]
        t = camera_from_table
        depth = t[2, 0] * px + t[2, 1] * py + t[2, 2] * pz + t[2, 3]
        if not depth > MIN_DEPTH_M:
            uv[i, 0] = np.nan
            uv[i, 1] = np.nan
            continue
        x = (t[0, 0] * px + t[0, 1] * py + t[0, 2] * pz + t[0, 3]) / depth
        y = (t[1, 0] * px + t[1, 1] * py + t[1, 2] * pz + t[1, 3]) / depth
        r2 = x * x + y * y
        radial = 1.0 + r2 * (k1 + r2 * (k2 + r2 * k3))
        slope = 1.0 + r2 * (3.0 * k1 + r2 * (5.0 * k2 + r2 * 7.0 * k3))
        if not (radial > 0.0 and slope > 0.0):
            uv[i, 0] = np.nan
            uv[i, 1] = np.nan
            continue
        xd = x * radial + 2.0 * p1 * x * y + p2 * (r2 + 2.0 * x * x)
        yd = y * radial + p1 * (r2 + 2.0 * y * y) + 2.0 * p2 * x * y
        uv[i, 0] = matrix[0, 0] * xd + matrix[0, 1] * yd + matrix[0, 2]
        uv[i, 1] = matrix[1, 1] * yd + matrix[1, 2]


@njit(cache=True, nogil=True)
def undistort_kernel(uv, matrix, distortion, out):  # type: ignore[no-untyped-def]
    """Write into `out` the pixel an undistorted camera of the same matrix would have seen.

    Newton iterations on the 2×2 system; converges to below 1e-9 px in 3 to 5 steps for lenses that
    `project_kernel` can invert. NaN where it does not converge.
    """
    k1, k2, p1, p2, k3 = distortion[0], distortion[1], distortion[2], distortion[3], distortion[4]
    fx, skew, cx, fy, cy = matrix[0, 0], matrix[0, 1], matrix[0, 2], matrix[1, 1], matrix[1, 2]
    for i in range(uv.shape[0]):
        yd = (uv[i, 1] - cy) / fy
        xd = (uv[i, 0] - cx - skew * yd) / fx
        x, y = xd, yd
        converged = False
        for _ in range(20):
            r2 = x * x + y * y
            radial = 1.0 + r2 * (k1 + r2 * (k2 + r2 * k3))
            dradial = k1 + r2 * (2.0 * k2 + r2 * 3.0 * k3)  # d radial / d r2
            ex = x * radial + 2.0 * p1 * x * y + p2 * (r2 + 2.0 * x * x) - xd
            ey = y * radial + p1 * (r2 + 2.0 * y * y) + 2.0 * p2 * x * y - yd
            a = radial + 2.0 * x * x * dradial + 2.0 * p1 * y + 6.0 * p2 * x
            b = 2.0 * x * y * dradial + 2.0 * p1 * x + 2.0 * p2 * y
            d = radial + 2.0 * y * y * dradial + 6.0 * p1 * y + 2.0 * p2 * x
            det = a * d - b * b
            if not abs(det) > 1e-9:
                break
            dx = (d * ex - b * ey) / det
            dy = (a * ey - b * ex) / det
            x -= dx
            y -= dy
            if abs(dx) + abs(dy) < 1e-13:
                converged = True
                break
        if converged:
            out[i, 0] = fx * x + skew * y + cx
            out[i, 1] = fy * y + cy
        else:
            out[i, 0] = np.nan
            out[i, 1] = np.nan


@dataclass(frozen=True)
class CameraModel:
    """One calibrated camera.

    Attributes:
        name: camera name; topics and frames derive from it.
        width: image width, px.
        height: image height, px.
        matrix: 3×3 camera matrix, px.
        distortion: k1, k2, p1, p2, k3, shape (5,).
        table_from_camera: 4×4 pose of the optical frame in frame `table`.
        time_offset_ns: constant error of this camera's stamps; subtract it from them.
        serial: serial number of the device that was calibrated, empty when unknown.
    """

    name: str
    width: int
    height: int
    matrix: FloatArray
    distortion: FloatArray
    table_from_camera: FloatArray
    time_offset_ns: int = 0
    serial: str = ""

    def __post_init__(self) -> None:
        if self.width <= 0 or self.height <= 0:
            raise CameraError(
                f"camera {self.name!r}: image size {self.width}×{self.height} px must be positive"
            )
        for field, shape in (("matrix", (3, 3)), ("distortion", (5,)), ("table_from_camera", (4, 4))):
            value = np.array(getattr(self, field), dtype=np.float64)
            if value.shape != shape:
                raise CameraError(
                    f"camera {self.name!r}: {field} has shape {value.shape}, needs {shape}"
                    + ("; give k1, k2, p1, p2, k3 (plumb_bob)" if field == "distortion" else "")
                )
            if not np.all(np.isfinite(value)):
                raise CameraError(f"camera {self.name!r}: {field} contains NaN or infinity; calibrate again")
            value.setflags(write=False)
            object.__setattr__(self, field, value)
        rotation = self.table_from_camera[:3, :3]
        if np.abs(rotation @ rotation.T - np.eye(3)).max() > 1e-4 or np.linalg.det(rotation) < 0:
            raise CameraError(
                f"camera {self.name!r}: the rotation of table_from_camera is not a right-handed rotation "
                f"(determinant {np.linalg.det(rotation):.3f}); a mirrored axis or a transposed matrix? Calibrate again"
            )
        if self.matrix[0, 0] <= 0 or self.matrix[1, 1] <= 0:
            raise CameraError(
                f"camera {self.name!r}: focal lengths {self.matrix[0, 0]:g}, {self.matrix[1, 1]:g} px must be positive"
            )

    @cached_property
    def camera_from_table(self) -> FloatArray:
        """4×4 transform that takes table coordinates to the optical frame."""
        inverse = np.eye(4)
        rotation = self.table_from_camera[:3, :3]
        inverse[:3, :3] = rotation.T
        inverse[:3, 3] = -rotation.T @ self.table_from_camera[:3, 3]
        inverse.setflags(write=False)
        return inverse

    @cached_property
    def projection(self) -> FloatArray:
        """3×4 matrix that takes homogeneous table points to undistorted pixels."""
        projection = self.matrix @ self.camera_from_table[:3]
        projection.setflags(write=False)
        return projection

    @property
    def centre_table(self) -> FloatArray:
        """Centre of projection in frame `table`, shape (3,), m."""
        return self.table_from_camera[:3, 3]

    def project(self, points_table: ArrayLike) -> FloatArray:
        """Distorted pixels of table points; NaN behind the camera.

        Args:
            points_table: shape (n, 3) or (3,), m.

        Returns:
            Pixels, shape (n, 2) or (2,). They may lie outside the image.
        """
        points = np.ascontiguousarray(points_table, dtype=np.float64)
        flat = np.atleast_2d(points)
        if flat.ndim != 2 or flat.shape[1] != 3:
            raise CameraError(f"points have shape {points.shape}, needs (n, 3), metres in frame table")
        uv = np.empty((flat.shape[0], 2))
        project_kernel(flat, self.camera_from_table, self.matrix, self.distortion, uv)
        return uv[0] if points.ndim == 1 else uv

    def undistort(self, uv_px: ArrayLike) -> FloatArray:
        """Undistorted pixels (same camera matrix) of raw pixels.

        Args:
            uv_px: shape (n, 2) or (2,); any real dtype.

        Returns:
            Same shape, float64; NaN where the lens model cannot be inverted.
        """
        uv = np.ascontiguousarray(uv_px, dtype=np.float64)
        flat = np.atleast_2d(uv)
        if flat.size == 0:
            return np.empty((0, 2))
        if flat.ndim != 2 or flat.shape[1] != 2:
            raise CameraError(f"pixels have shape {uv.shape}, needs (n, 2)")
        out = np.empty(flat.shape)
        undistort_kernel(flat, self.matrix, self.distortion, out)
        return out[0] if uv.ndim == 1 else out

    def in_image(self, uv_px: FloatArray, margin_px: float = 0.0) -> NDArray[np.bool_]:
        """Which pixels lie inside the image, `margin_px` away from its border; NaN is outside."""
        uv = np.atleast_2d(uv_px)
        return (
            (uv[:, 0] >= margin_px)
            & (uv[:, 0] <= self.width - 1 - margin_px)
            & (uv[:, 1] >= margin_px)
            & (uv[:, 1] <= self.height - 1 - margin_px)
        )

    def depth_m(self, points_table: ArrayLike) -> FloatArray:
        """Distance of table points along the optical axis, shape (n,), m."""
        points = np.atleast_2d(np.asarray(points_table, dtype=np.float64))
        return points @ self.camera_from_table[2, :3] + self.camera_from_table[2, 3]

    def scaled(self, width: int, height: int) -> CameraModel:
        """The same camera read out at another size (binning), e.g. 640×400 from 1280×800.

        Where the aspect ratio differs, the image is cropped around its centre before it is scaled.
        """
        scale = max(width / self.width, height / self.height)
        matrix = np.array(self.matrix)
        matrix[:2, :2] *= scale
        matrix[0, 2] = (self.matrix[0, 2] - (self.width - 1) / 2) * scale + (width - 1) / 2
        matrix[1, 2] = (self.matrix[1, 2] - (self.height - 1) / 2) * scale + (height - 1) / 2
        return CameraModel(
            self.name,
            width,
            height,
            matrix,
            self.distortion,
            self.table_from_camera,
            self.time_offset_ns,
            self.serial,
        )


def look_at(centre_table: ArrayLike, target_table: ArrayLike, roll_rad: float = 0.0) -> FloatArray:
    """Pose (4×4 `table_from_camera`) of a camera at `centre_table` that looks at `target_table`, upright."""
    centre = np.asarray(centre_table, dtype=np.float64)
    forward = np.asarray(target_table, dtype=np.float64) - centre
    forward = forward / np.linalg.norm(forward)
    right = np.cross(forward, [0.0, 0.0, 1.0])
    if np.linalg.norm(right) < 1e-6:  # straight up or down: image top towards +y
        right = np.array([1.0, 0.0, 0.0])
    right = right / np.linalg.norm(right)
    down = np.cross(forward, right)
    cos, sin = np.cos(roll_rad), np.sin(roll_rad)
    pose = np.eye(4)
    pose[:3, 0] = cos * right + sin * down
    pose[:3, 1] = -sin * right + cos * down
    pose[:3, 2] = forward
    pose[:3, 3] = centre
    return pose


def default_sim_cameras(width: int = 1280, height: int = 800) -> tuple[CameraModel, ...]:
    """Four simulated cameras in the corners of a 5.6 × 8 m room, about 2.5 m above the floor.

    Every camera sees the whole table and 1 m behind both ends up to 1 m above the table top. Lens and
    sensor are those of a common 1/4" 1280×800 global-shutter module: 3 µm pixels, 3.2 mm lens.

    Args:
        width: image width, px; the field of view is kept, see `CameraModel.scaled`.
        height: image height, px.
    """
    cameras = []
    corners = ((-2.8, -4.0, 1.75), (2.8, -4.0, 1.80), (2.8, 4.0, 1.75), (-2.8, 4.0, 1.80))
    for index, corner in enumerate(corners):
        # Small differences between the cameras, so that a mix-up of files shows in the numbers.
        focal = 1060.0 + 3.0 * index
        matrix = np.array([[focal, 0.0, 642.0 - 2.0 * index], [0.0, focal, 396.0 + 1.5 * index], [0, 0, 1.0]])
        distortion = np.array([-0.110 + 0.004 * index, 0.060 - 0.003 * index, 4e-4, -3e-4, 0.0])
        target = np.array([-0.25 * np.sign(corner[0]), -0.45 * np.sign(corner[1]), 0.02])
        cameras.append(
            CameraModel(
                f"cam{index}", 1280, 800, matrix, distortion, look_at(corner, target), 0, f"SIM{index:03d}"
            )
        )
    if (width, height) != (1280, 800):
        return tuple(camera.scaled(width, height) for camera in cameras)
    return tuple(cameras)
