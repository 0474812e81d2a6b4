"""Camera model: pinhole with Brown-Conrady distortion, and the pose of the camera over the table.

Frames: `table` as in `tt_perception.table`; the optical frame of a camera has z forward, x right, y down.
Pixels: the centre of the top left pixel is (0, 0), as in OpenCV.

Files: each camera has a ROS `camera_info` YAML (intrinsics); one extrinsics YAML lists the cameras, their
poses and their `camera_info` files. Both carry checksums, so that a mixed-up or hand-edited calibration is
noticed.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import yaml
from numpy.typing import ArrayLike, NDArray

from tt_perception.errors import TTError
from tt_perception.files import write_whole
from tt_perception.rotation import matrix_from_quat, quat_from_matrix

FloatArray = NDArray[np.float64]


class CameraError(TTError):
    """A camera calibration that cannot be right."""


@dataclass(frozen=True, eq=False)
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
                f"(determinant {np.linalg.det(rotation):.3f}); a mirrored axis or a transposed matrix? "
                f"Calibrate again"
            )
        if self.matrix[0, 0] <= 0 or self.matrix[1, 1] <= 0:
            raise CameraError(
                f"camera {self.name!r}: focal lengths {self.matrix[0, 0]:g}, {self.matrix[1, 1]:g} px must "
                f"be positive"
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
        # numba takes 0.3 s to import; who only draws cameras needs none of it.
        from tt_perception.lens import project_kernel

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
        from tt_perception.lens import undistort_kernel

        uv = np.ascontiguousarray(uv_px, dtype=np.float64)
        flat = np.atleast_2d(uv)
        if flat.size == 0:
            return np.empty((0, 2))
        if flat.ndim != 2 or flat.shape[1] != 2:
            raise CameraError(f"pixels have shape {uv.shape}, needs (n, 2)")
        out = np.empty(flat.shape)
        undistort_kernel(flat, self.matrix, self.distortion, out)
        return out[0] if uv.ndim == 1 else out

    @cached_property
    def intrinsics_checksum(self) -> str:
        """Twelve hex digits that change with any intrinsic number."""
        return _digest(self.width, self.height, self.matrix, self.distortion)

    @cached_property
    def checksum(self) -> str:
        """Twelve hex digits that change with any number of this calibration."""
        return _digest(
            self.name, self.intrinsics_checksum, self.table_from_camera, self.time_offset_ns, self.serial
        )

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

        The horizontal field of view stays; rows are cut off or added above and below where the aspect ratio
        differs.
        """
        scale = width / self.width
        matrix = np.array(self.matrix)
        matrix[:2, :2] *= scale
        matrix[0, 2] = (self.matrix[0, 2] - (self.width - 1) / 2) * scale + (width - 1) / 2
        matrix[1, 2] = (self.matrix[1, 2] - (self.height - 1) / 2) * scale + (height - 1) / 2
        return replace(self, width=width, height=height, matrix=matrix)


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


def _digest(*parts: Any) -> str:
    """Checksum of numbers and names, blind to float noise below 1e-9."""
    text = []
    for part in parts:
        if isinstance(part, np.ndarray):
            text.append(
                ",".join(
                    f"{value + 0.0:.9f}".replace("-0.000000000", "0.000000000") for value in part.ravel()
                )
            )
        else:
            text.append(str(part))
    return hashlib.sha256("|".join(text).encode()).hexdigest()[:12]


def rig_checksum(cameras: Iterable[CameraModel]) -> str:
    """Twelve hex digits that identify a whole set of calibrated cameras."""
    return _digest(*(camera.checksum for camera in cameras))


def save_camera_info(camera: CameraModel, path: Path | str) -> None:
    """Write the intrinsics as a ROS `camera_info` YAML, readable by camera_info_manager and image_proc."""
    projection = np.zeros((3, 4))
    projection[:, :3] = camera.matrix

    def matrix(value: FloatArray) -> dict[str, Any]:
        rows, cols = value.shape
        return {"rows": rows, "cols": cols, "data": [float(number) for number in value.ravel()]}

    _write_yaml(
        path,
        {
            "image_width": camera.width,
            "image_height": camera.height,
            "camera_name": camera.name,
            "camera_matrix": matrix(camera.matrix),
            "distortion_model": "plumb_bob",
            "distortion_coefficients": matrix(camera.distortion.reshape(1, 5)),
            "rectification_matrix": matrix(np.eye(3)),
            "projection_matrix": matrix(projection),
            **({"serial": camera.serial} if camera.serial else {}),
        },
    )


def load_camera_info(path: Path | str) -> CameraModel:
    """Read a ROS `camera_info` YAML; the pose is the identity until extrinsics are known.

    Raises:
        CameraError: the file is missing, is no camera_info, or uses another lens model.
    """
    data = _read_yaml(path, "a ROS camera_info file (from `tt calibrate intrinsics` or camera_calibration)")
    try:
        lens = data.get("distortion_model", "plumb_bob")
        coefficients = [float(value) for value in data["distortion_coefficients"]["data"]]
        if lens != "plumb_bob" or len(coefficients) > 5 or len(coefficients) < 4:
            raise CameraError(
                f"{path}: lens model {lens!r} with {len(coefficients)} coefficients; this stack reads "
                "plumb_bob with 4 or 5. Calibrate again with `tt calibrate intrinsics`"
            )
        return CameraModel(
            str(data["camera_name"]),
            int(data["image_width"]),
            int(data["image_height"]),
            np.array(data["camera_matrix"]["data"], dtype=np.float64).reshape(3, 3),
            np.array(coefficients + [0.0] * (5 - len(coefficients))),
            np.eye(4),
            serial=str(data.get("serial") or ""),
        )
    except (KeyError, TypeError, ValueError) as error:
        raise CameraError(
            f"{path}: not a ROS camera_info file ({type(error).__name__}: {error}); "
            "expected image_width, image_height, camera_name, camera_matrix, distortion_coefficients"
        ) from error


def save_cameras(
    path: Path | str, cameras: Sequence[CameraModel], *, method: str = "", date: str = "", report: str = ""
) -> None:
    """Write the extrinsics YAML at `path` and one camera_info YAML per camera in a folder beside it.

    Args:
        path: e.g. `cameras/lab.yaml`; the intrinsics go to `cameras/lab/<camera>.yaml`.
        cameras: the calibrated cameras.
        method: how the extrinsics were found, e.g. `table corners`.
        date: ISO date of the calibration.
        report: path of the calibration report.
    """
    path = Path(path)
    folder = path.with_suffix("")
    folder.mkdir(parents=True, exist_ok=True)
    entries: dict[str, Any] = {}
    for camera in cameras:
        save_camera_info(camera, folder / f"{camera.name}.yaml")
        entries[camera.name] = {
            "camera_info": f"{folder.name}/{camera.name}.yaml",
            "intrinsics_checksum": camera.intrinsics_checksum,
            "position_m": [float(value) for value in camera.centre_table],
            "quaternion_xyzw": quat_from_matrix(camera.table_from_camera[:3, :3]).tolist(),
            "time_offset_ns": int(camera.time_offset_ns),
            "serial": camera.serial,
        }
    _write_yaml(
        path,
        {
            "frame": "table",
            "method": method,
            "date": date,
            "report": report,
            "cameras": entries,
            "checksum": rig_checksum(cameras),
        },
    )


def load_cameras(
    path: Path | str, names: Sequence[str] | None = None, *, verify: bool = True
) -> tuple[CameraModel, ...]:
    """Read an extrinsics YAML and the camera_info files it names.

    Args:
        path: the extrinsics YAML.
        names: cameras to return, in this order; None for all.
        verify: refuse files whose checksum does not fit their numbers.

    Raises:
        CameraError: a missing, foreign or damaged file, an unknown camera, a checksum that does not fit, two
            cameras with one serial number.
    """
    path = Path(path)
    data = _read_yaml(path, "an extrinsics file (from `tt calibrate extrinsics`)")
    try:
        if data.get("frame") != "table":
            raise CameraError(f"{path}: frame is {data.get('frame')!r}, needs 'table'; calibrate again")
        cameras = []
        for name, entry in data["cameras"].items():
            pose = np.eye(4)
            quaternion = np.array(entry["quaternion_xyzw"], dtype=np.float64)
            if quaternion.shape != (4,) or not abs(np.linalg.norm(quaternion) - 1.0) < 1e-3:
                raise CameraError(
                    f"{path}: camera {name!r}: quaternion_xyzw {entry['quaternion_xyzw']} is not of length 1"
                )
            pose[:3, :3] = matrix_from_quat(quaternion)
            pose[:3, 3] = np.array(entry["position_m"], dtype=np.float64).reshape(3)
            intrinsics = load_camera_info(path.parent / entry["camera_info"])
            if verify and entry.get("intrinsics_checksum") not in (None, intrinsics.intrinsics_checksum):
                raise CameraError(
                    f"{path}: the intrinsics of {name!r} changed after its extrinsics were calibrated "
                    f"({intrinsics.intrinsics_checksum}, was {entry['intrinsics_checksum']}); "
                    "run `tt calibrate extrinsics` again"
                )
            cameras.append(
                replace(
                    intrinsics,
                    name=str(name),
                    table_from_camera=pose,
                    time_offset_ns=int(entry.get("time_offset_ns", 0)),
                    serial=str(entry.get("serial") or ""),
                )
            )
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise CameraError(
            f"{path}: not an extrinsics file ({type(error).__name__}: {error}); expected frame, cameras "
            "with camera_info, position_m and quaternion_xyzw"
        ) from error
    if not cameras:
        raise CameraError(f"{path}: lists no camera; run `tt calibrate extrinsics`")
    if verify and data.get("checksum") not in (None, rig_checksum(cameras)):
        raise CameraError(
            f"{path}: checksum {data['checksum']} does not fit the numbers ({rig_checksum(cameras)}): "
            "edited by hand or copied in part. Restore the file, calibrate again, or accept the change with "
            "`tt calibrate check --accept`"
        )
    serials = [camera.serial for camera in cameras if camera.serial]
    for serial in serials:
        if serials.count(serial) > 1:
            twins = ", ".join(camera.name for camera in cameras if camera.serial == serial)
            raise CameraError(
                f"{path}: cameras {twins} have the same serial number {serial!r}; correct one of them"
            )
    if names is None:
        return tuple(cameras)
    by_name = {camera.name: camera for camera in cameras}
    for name in names:
        if name not in by_name:
            raise CameraError(f"{path}: no camera {name!r}; it has {', '.join(by_name)}")
    return tuple(by_name[name] for name in names)


def _read_yaml(path: Path | str, expected: str) -> dict[str, Any]:
    try:
        data = yaml.safe_load(Path(path).read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise CameraError(f"{path}: no such file; needs {expected}") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise CameraError(
            f"{path}: cannot be read as YAML ({' '.join(str(error).split())[:160]}); needs {expected}"
        ) from error
    if not isinstance(data, dict):
        raise CameraError(f"{path}: holds {type(data).__name__}, needs {expected}")
    return data


def _write_yaml(path: Path | str, data: dict[str, Any]) -> None:
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, yaml.safe_dump(data, sort_keys=False, default_flow_style=None, width=110))
