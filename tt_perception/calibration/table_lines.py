"""Pose of a camera from the table it looks at: corners found or clicked, then all white lines, sub-pixel.

The table top has white lines of 20 mm along its edges (ITTF Laws 2.1.5) and one of 3 mm along its middle.
Both sides of the edge lines are used. The table looks the same from both ends: the caller must say near
which end or side the camera stands.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations
from math import erf, sqrt

import cv2
import numpy as np
from numpy.typing import NDArray

from tt_perception.calibration.poses import PoseFit, refine_pose, with_camera_from_table
from tt_perception.camera import CameraError, CameraModel
from tt_perception.errors import TTError
from tt_perception.plausibility import pose_problem
from tt_perception.table import TABLE_LENGTH_M, TABLE_WIDTH_M

FloatArray = NDArray[np.float64]
Image = NDArray[np.uint8]

LINE_WIDTH_M = 0.02
NEAR = ("robot", "opponent", "left", "right")
_HALF_W, _HALF_L = TABLE_WIDTH_M / 2, TABLE_LENGTH_M / 2
_STEP_PX = 0.25
_BLUR_PX = 0.75  # standard deviation of pixel and lens blur together
_MIN_SAMPLES = 60


class TableNotFoundError(TTError):
    """The table, or enough of its lines, was not found in the image."""


def table_corners() -> FloatArray:
    """Outer corners of the table top, shape (4, 3): robot's left and right, opponent's right and left."""
    return np.array(
        [[-_HALF_W, -_HALF_L, 0], [_HALF_W, -_HALF_L, 0], [_HALF_W, _HALF_L, 0], [-_HALF_W, _HALF_L, 0]]
    )


@dataclass(frozen=True)
class TableFit:
    """Pose found from the table.

    Attributes:
        camera: with its pose.
        points_px: where lines were measured, shape (n, 2).
        residuals_px: distance of the model's line from there, signed, shape (n,).
        rms_px: root mean square of the residuals of the good samples.
        position_sigma_m: standard deviation of the camera centre, estimated, m.
    """

    camera: CameraModel
    points_px: FloatArray
    residuals_px: FloatArray
    rms_px: float
    position_sigma_m: float


def _edge_samples(spacing_m: float = 0.02) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Points on both sides of the edge lines, direction of the line, and direction into the white.

    Returns:
        Points (n, 3), unit tangents (n, 3), unit normals towards the white line (n, 3), m.
    """
    points, tangents, inward = [], [], []
    corners = table_corners()
    for index in range(4):
        start, end = corners[index], corners[(index + 1) % 4]
        length = float(np.linalg.norm(end - start))
        tangent = (end - start) / length
        normal = np.cross([0.0, 0.0, 1.0], tangent)  # towards the middle of the table
        for offset, side in ((0.0, 1.0), (LINE_WIDTH_M, -1.0)):
            # Away from corners, where two lines meet.
            for along in np.arange(0.06, length - 0.06, spacing_m):
                points.append(start + along * tangent + offset * normal)
                tangents.append(tangent)
                inward.append(side * normal)
    return np.array(points), np.array(tangents), np.array(inward)


class _LineMeter:
    """Measures where the edges of the white lines really are, near where a camera expects them."""

    def __init__(self, image: Image) -> None:
        self._image = np.ascontiguousarray(image, dtype=np.float32)
        self._points, self._tangents, self._inward = _edge_samples()

    def measure(self, camera: CameraModel, reach_px: float) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Crossings of the half level.

        Returns:
            Table points (n, 3), measured pixels (n, 2), unit pixel normals (n, 2).
        """
        uv = camera.project(self._points)
        ahead = camera.project(self._points + 1e-3 * self._tangents)
        into = camera.project(self._points + 1e-3 * self._inward)
        tangent = ahead - uv
        tangent /= np.linalg.norm(tangent, axis=1, keepdims=True)
        normal = np.column_stack([-tangent[:, 1], tangent[:, 0]])
        towards = into - uv
        normal *= np.sign(np.sum(normal * towards, axis=1))[:, None]  # from the dark into the white
        width_px = np.abs(np.sum(normal * towards, axis=1)) * (LINE_WIDTH_M / 1e-3)
        usable = np.isfinite(uv).all(axis=1) & camera.in_image(uv, reach_px + 3.0) & (width_px > 1.6)
        uv, normal, width_px, points = uv[usable], normal[usable], width_px[usable], self._points[usable]
        if not len(uv):
            return np.empty((0, 3)), np.empty((0, 2)), np.empty((0, 2))
        offsets = np.arange(-reach_px, reach_px + 1e-9, _STEP_PX)
        grid = uv[:, None, :] + offsets[None, :, None] * normal[:, None, :]
        profile = cv2.remap(
            self._image, grid[..., 0].astype(np.float32), grid[..., 1].astype(np.float32), cv2.INTER_LINEAR
        )
        return self._crossings(profile, offsets, points, uv, normal, width_px)

    @staticmethod
    def _crossings(profile, offsets, points, uv, normal, width_px):  # type: ignore[no-untyped-def]
        """Half-level crossing of each profile nearest to its middle: dark before, a line's width of white behind."""
        kept, pixels, normals = [], [], []
        step = offsets[1] - offsets[0]
        for row in range(len(profile)):
            values = profile[row]
            width = min(width_px[row], 6.0)
            best, best_score = np.nan, 12.0  # grey levels of contrast at least
            span = max(int(min(width, 3.0) / step * 0.8), 3)
            for k in range(span, len(values) - span):
                if not (values[k] <= values[k + 1]):
                    continue
                dark = values[k - span : k - span // 2].mean()
                # Blur takes from the peak of a narrow line; without it the half level would lie too far out.
                peak = values[k + span // 2 : k + span + 1].max()
                white = dark + (peak - dark) / erf(width_px[row] / (2.0 * sqrt(2.0) * _BLUR_PX))
                half = 0.5 * (dark + white)
                if values[k] < half <= values[k + 1]:
                    # Prefer strong edges near the expected place.
                    score = (white - dark) * (1.0 - 0.06 * abs(offsets[k]))
                    if score > best_score:
                        best_score = score
                        best = offsets[k] + step * (half - values[k]) / max(values[k + 1] - values[k], 1e-6)
            if np.isfinite(best):
                kept.append(points[row])
                pixels.append(uv[row] + best * normal[row])
                normals.append(normal[row])
        if not kept:
            return np.empty((0, 3)), np.empty((0, 2)), np.empty((0, 2))
        return np.array(kept), np.array(pixels), np.array(normals)


def refine_on_lines(image: Image, camera: CameraModel) -> TableFit:
    """Refine a rough pose on all white lines that the image shows.

    Args:
        image: grey, undistorted by nobody.
        camera: pose good to a few pixels.

    Raises:
        TableNotFoundError: too few lines where the pose expects them.
    """
    meter = _LineMeter(image)
    fit: PoseFit | None = None
    pixels = np.empty((0, 2))
    for reach in (14.0, 8.0, 5.0, 5.0, 4.0):
        points, pixels, normals = meter.measure(camera, reach)
        if len(points) < _MIN_SAMPLES:
            raise TableNotFoundError(
                f"camera {camera.name!r}: {len(points)} points on the table lines, needs {_MIN_SAMPLES}; "
                "is the table in sight, and the rough pose right? Give the four corners with --corners"
            )

        def distance(trial: CameraModel, points=points, pixels=pixels, normals=normals) -> FloatArray:  # type: ignore[no-untyped-def]
            return np.sum((trial.project(points) - pixels) * normals, axis=1)

        fit = refine_pose(camera, distance, 0.25)
        camera = fit.camera
    assert fit is not None
    good = np.abs(fit.residuals) < max(4.0 * 1.4826 * float(np.median(np.abs(fit.residuals))), 0.3)
    return TableFit(
        camera,
        pixels,
        fit.residuals,
        float(np.sqrt(np.mean(fit.residuals[good] ** 2))),
        float(np.sqrt(np.trace(fit.cov[3:, 3:]))),
    )


def pose_from_corners(camera: CameraModel, corners_px: FloatArray) -> CameraModel:
    """Pose from the four outer corners.

    Args:
        camera: intrinsics.
        corners_px: raw pixels in the order of `table_corners`, shape (4, 2).

    Raises:
        CameraError: the corners are mirrored or out of order, or no plausible pose fits.
    """
    undistorted = camera.undistort(corners_px)
    solved, rotations, translations, _ = cv2.solvePnPGeneric(
        table_corners(), undistorted.reshape(-1, 1, 2), camera.matrix, None, flags=cv2.SOLVEPNP_IPPE
    )
    best, best_error = None, np.inf
    for vector, translation in zip(rotations, translations, strict=True) if solved else ():
        rotation = cv2.Rodrigues(vector)[0]
        candidate = with_camera_from_table(camera, rotation, translation)
        error = float(
            np.sqrt(np.mean(np.sum((candidate.project(table_corners()) - corners_px) ** 2, axis=1)))
        )
        if error < best_error and not pose_problem(candidate):
            best, best_error = candidate, error
    if best is None or not best_error < 0.02 * camera.width:
        raise CameraError(
            f"camera {camera.name!r}: no camera above the table sees its corners at these pixels; are they "
            "mirrored or out of order? Order: robot's left, robot's right, opponent's right, opponent's left, left "
            "and right as seen from the robot"
        )
    return best


def find_table(image: Image, camera: CameraModel, near: str) -> TableFit:
    """Find the table without any hint but where the camera stands.

    Args:
        image: grey.
        camera: intrinsics.
        near: which end or side of the table the camera is nearest to: robot, opponent, left or right.

    Raises:
        TableNotFoundError: no table.
    """
    if near not in NEAR:
        raise TableNotFoundError(f"near is {near!r}, must be one of {', '.join(NEAR)}")
    ridges = _ridges(image)
    distance = cv2.distanceTransform(cv2.bitwise_not(ridges), cv2.DIST_L2, 3)
    best, best_score = None, 0.0
    for hull in _hulls(ridges):
        for subset in combinations(range(len(hull)), 4):
            quad = hull[list(subset)]
            if cv2.contourArea(quad.astype(np.float32)) < 0.01 * image.size:
                continue
            for first in range(4):
                candidate = _candidate(camera, np.roll(quad, first, axis=0), near)
                if candidate is None:
                    continue
                score = _alignment(candidate, distance)
                if score > best_score:
                    best, best_score = candidate, score
    if best is None or best_score < 0.35:
        raise TableNotFoundError(
            f"camera {camera.name!r}: no table found in the image (best fit {100 * best_score:.0f} % of "
            "its lines); light on, lines clear of people, table wholly in sight? Give the four corners with --corners"
        )
    return refine_on_lines(image, best)


def _candidate(camera: CameraModel, quad: FloatArray, near: str) -> CameraModel | None:
    try:
        candidate = pose_from_corners(camera, quad)
    except CameraError:
        return None
    x, y = candidate.centre_table[:2]
    stands = {"robot": y < 0.0, "opponent": y > 0.0, "left": x < 0.0, "right": x > 0.0}
    return candidate if stands[near] else None


def _ridges(image: Image) -> Image:
    """Thin bright lines."""
    size = max(image.shape[1] // 80, 5) | 1
    hat = cv2.morphologyEx(
        image, cv2.MORPH_TOPHAT, cv2.getStructuringElement(cv2.MORPH_ELLIPSE, (size, size))
    )
    level = max(float(np.percentile(hat, 98.5)) * 0.5, 25.0)
    return cv2.threshold(hat, level, 255, cv2.THRESH_BINARY)[1]


def _hulls(ridges: Image) -> list[FloatArray]:
    """Corner polygons of the largest connected line figures, at most 9 corners each, clockwise in the image."""
    joined = cv2.dilate(ridges, np.ones((5, 5), np.uint8))
    contours, _ = cv2.findContours(joined, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_SIMPLE)
    contours = sorted(contours, key=lambda contour: -cv2.contourArea(cv2.convexHull(contour)))[:3]
    hulls = []
    for contour in contours:
        hull = cv2.convexHull(contour)
        length = cv2.arcLength(hull, True)
        for share in (0.005, 0.01, 0.015, 0.02, 0.03):
            polygon = cv2.approxPolyDP(hull, share * length, True).reshape(-1, 2).astype(np.float64)
            if len(polygon) <= 9:
                break
        if len(polygon) >= 4:
            # The figure was dilated: its corners moved out by two pixels.
            centre = polygon.mean(axis=0)
            away = polygon - centre
            polygon = polygon - 2.0 * away / np.maximum(np.linalg.norm(away, axis=1, keepdims=True), 1.0)
            area = cv2.contourArea(polygon.astype(np.float32), oriented=True)
            # Table corners run anticlockwise seen from above: in an image (v down) the same order has a
            # negative oriented area.
            hulls.append(polygon if area < 0.0 else polygon[::-1].copy())
    return hulls


def _alignment(camera: CameraModel, distance: NDArray[np.float32]) -> float:
    """Share of the table's lines that lie on bright ridges."""
    corners = table_corners()
    lines = [(corners[index], corners[(index + 1) % 4]) for index in range(4)]
    lines.append((np.array([0.0, -_HALF_L, 0.0]), np.array([0.0, _HALF_L, 0.0])))
    share = np.linspace(0.02, 0.98, 60)[:, None]
    points = np.vstack([start + share * (end - start) for start, end in lines])
    uv = camera.project(points)
    inside = camera.in_image(uv, 1.0)
    if inside.mean() < 0.5:
        return 0.0
    pixels = np.rint(uv[inside]).astype(int)
    return float(np.mean(distance[pixels[:, 1], pixels[:, 0]] < 3.5) * inside.mean())


def clicked_corners(text: str) -> FloatArray:
    """Corners from `u,v u,v u,v u,v`.

    Raises:
        TableNotFoundError: not four pairs of numbers.
    """
    try:
        values = [[float(number) for number in pair.split(",")] for pair in text.split()]
        corners = np.array(values, dtype=np.float64)
        if corners.shape != (4, 2) or not np.isfinite(corners).all():
            raise ValueError
    except ValueError:
        raise TableNotFoundError(
            f"corners {text!r} must be four pixels 'u,v u,v u,v u,v': robot's left, robot's right, "
            "opponent's right, opponent's left"
        ) from None
    return corners


def fit_table(
    image: Image,
    camera: CameraModel,
    near: str,
    corners: FloatArray | Sequence[Sequence[float]] | None = None,
) -> TableFit:
    """Pose from an image, with clicked corners where given, else found."""
    if corners is not None:
        return refine_on_lines(image, pose_from_corners(camera, np.asarray(corners, dtype=np.float64)))
    return find_table(image, camera, near)
