"""Intrinsics of one camera from views of a board: which views are worth keeping, and the fit.

Source of the fit: Z. Zhang, A Flexible New Technique for Camera Calibration, 2000, as in OpenCV.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import cv2
import numpy as np
from numpy.typing import NDArray

from tt_perception.calibration.boards import Board, BoardView
from tt_perception.camera import CameraModel
from tt_perception.errors import TTError

FloatArray = NDArray[np.float64]
Image = NDArray[np.uint8]

GRID = (6, 4)  # cells of the coverage map, across and down
MIN_VIEWS = 10
_OUTLIER = 3.0  # views with more than this times the median error are left out
LIMIT_RMS_PX = 0.3
LIMIT_COVERAGE = 0.7
LIMIT_FOCAL_SHARE = 0.002  # standard deviation of the focal length


class IntrinsicsError(TTError):
    """Views that cannot determine the intrinsics."""


class ViewVerdict(Enum):
    """What became of an image."""

    ACCEPTED = "accepted"
    NO_BOARD = "no board found"
    BLURRED = "blurred: hold the board still"
    REPEATED = "like an earlier view: move or tilt the board"
    WRONG_SIZE = "another image size than before"


@dataclass(frozen=True)
class IntrinsicsResult:
    """Calibrated intrinsics.

    Attributes:
        camera: with the identity as pose.
        rms_px: root mean square reprojection error, per point.
        view_rms_px: per kept view.
        focal_sigma: standard deviation of fx, relative.
        coverage: share of the image grid in which points were seen.
        residuals: pixel and residual of every point, shape (n, 4).
        views: kept.
        dropped: views left out because they fit badly.
    """

    camera: CameraModel
    rms_px: float
    view_rms_px: FloatArray
    focal_sigma: float
    coverage: float
    residuals: FloatArray
    views: int
    dropped: int

    @property
    def problems(self) -> tuple[str, ...]:
        """Why this calibration should not be used; empty when it passes."""
        found = []
        if self.rms_px > LIMIT_RMS_PX:
            found.append(
                f"reprojection error {self.rms_px:.3f} px, more than {LIMIT_RMS_PX} px: is the board flat?"
            )
        if self.coverage < LIMIT_COVERAGE:
            found.append(
                f"points in {100 * self.coverage:.0f} % of the image, less than {100 * LIMIT_COVERAGE:.0f} "
                f"%: show the corners"
            )
        if self.focal_sigma > LIMIT_FOCAL_SHARE:
            found.append(
                f"focal length uncertain by {100 * self.focal_sigma:.2f} %: tilt the board by 30 to 45°"
            )
        return tuple(found)


class IntrinsicsCollector:
    """Takes images one by one and keeps the useful ones.

    Args:
        name: camera name.
        board: what is shown.
        min_sharpness: smallest contrast of the edges at the board's corners, grey levels per px relative to
            the contrast of the board; a blurred edge of 4 px has 0.25.
        min_change: smallest move of the board against every earlier view: rms of the corner positions as a
            share of the image width, or 8° of tilt.
    """

    def __init__(
        self, name: str, board: Board, min_sharpness: float = 0.22, min_change: float = 0.03
    ) -> None:
        self.name = name
        self.board = board
        self.min_sharpness = min_sharpness
        self.min_change = min_change
        self.size: tuple[int, int] | None = None
        self.views: list[BoardView] = []
        self.counts = dict.fromkeys(ViewVerdict, 0)
        self._signatures: list[FloatArray] = []

    def add(self, image: Image) -> tuple[ViewVerdict, BoardView | None]:
        """Judge an image and keep its view when it is useful."""
        verdict, view = self._judge(image)
        self.counts[verdict] += 1
        return verdict, view

    def _judge(self, image: Image) -> tuple[ViewVerdict, BoardView | None]:
        if image is None or image.size == 0:
            return ViewVerdict.NO_BOARD, None
        grey = cv2.cvtColor(image, cv2.COLOR_BGR2GRAY) if image.ndim == 3 else image
        if self.size is None:
            self.size = (grey.shape[1], grey.shape[0])
        elif self.size != (grey.shape[1], grey.shape[0]):
            return ViewVerdict.WRONG_SIZE, None
        view = self.board.find(grey)
        if view is None:
            return ViewVerdict.NO_BOARD, None
        if sharpness(grey, view) < self.min_sharpness:
            return ViewVerdict.BLURRED, view
        signature = self._signature(view)
        for earlier in self._signatures:
            if np.sqrt(np.mean((signature - earlier) ** 2)) < self.min_change:
                return ViewVerdict.REPEATED, view
        self._signatures.append(signature)
        self.views.append(view)
        return ViewVerdict.ACCEPTED, view

    def _signature(self, view: BoardView) -> FloatArray:
        """Where the corners of the whole board are in the image, as shares of its width."""
        assert self.size is not None
        homography, _ = cv2.findHomography(view.points_board[:, :2], view.uv_px)
        width, height = self.board.size_m
        corners = np.array([[[0, 0], [width, 0], [width, height], [0, height]]], dtype=np.float64)
        if homography is None:
            return np.full(8, np.inf)
        return cv2.perspectiveTransform(corners, homography).ravel() / self.size[0]

    def coverage_map(self) -> NDArray[np.int64]:
        """Points per cell of the image, shape `GRID[::-1]`."""
        grid = np.zeros(GRID[::-1], dtype=np.int64)
        if self.size is None:
            return grid
        for view in self.views:
            column = np.clip(view.uv_px[:, 0] / self.size[0] * GRID[0], 0, GRID[0] - 1).astype(int)
            row = np.clip(view.uv_px[:, 1] / self.size[1] * GRID[1], 0, GRID[1] - 1).astype(int)
            np.add.at(grid, (row, column), 1)
        return grid

    @property
    def coverage(self) -> float:
        """Share of the cells with points."""
        return float(np.mean(self.coverage_map() > 0))

    def hint(self) -> str:
        """What to show next."""
        grid = self.coverage_map()
        if not len(self.views):
            return "show the board"
        row, column = np.unravel_index(int(np.argmin(grid)), grid.shape)
        if grid[row, column] == 0:
            across = ("left", "middle", "right")[int(column) * 3 // GRID[0]]
            down = ("top", "middle", "bottom")[int(row) * 3 // GRID[1]]
            return f"move the board to the {down} {across}"
        return "tilt the board" if len(self.views) < 2 * MIN_VIEWS else "enough views"

    def calibrate(self) -> IntrinsicsResult:
        """Fit the intrinsics to the kept views.

        Raises:
            IntrinsicsError: too few views.
        """
        if len(self.views) < MIN_VIEWS or self.size is None:
            counted = ", ".join(f"{count} {verdict.value}" for verdict, count in self.counts.items() if count)
            raise IntrinsicsError(
                f"{len(self.views)} usable views, needs {MIN_VIEWS} ({counted or 'no image'})"
            )
        views = self.views
        fit = _fit(views, self.size)
        errors = np.asarray(fit[4]).ravel()
        kept = [
            view for view, error in zip(views, errors, strict=True) if error < _OUTLIER * np.median(errors)
        ]
        dropped = len(views) - len(kept)
        if dropped and len(kept) >= MIN_VIEWS:
            fit = _fit(kept, self.size)
            views = kept
            errors = np.asarray(fit[4]).ravel()
        matrix, distortion, rotations, translations = fit[0], fit[1].ravel()[:5], fit[2], fit[3]
        residuals = []
        for view, rotation, translation in zip(views, rotations, translations, strict=True):
            projected, _ = cv2.projectPoints(view.points_board, rotation, translation, matrix, distortion)
            residuals.append(np.column_stack([view.uv_px, projected.reshape(-1, 2) - view.uv_px]))
        table = np.vstack(residuals)
        return IntrinsicsResult(
            CameraModel(self.name, self.size[0], self.size[1], matrix, distortion, np.eye(4)),
            float(np.sqrt(np.mean(np.sum(table[:, 2:] ** 2, axis=1)))),
            errors,
            float(fit[5].ravel()[0] / matrix[0, 0]),
            self.coverage,
            table,
            len(views),
            dropped,
        )


def _fit(views: list[BoardView], size: tuple[int, int]):  # type: ignore[no-untyped-def]
    objects = [view.points_board.astype(np.float32) for view in views]
    pixels = [view.uv_px.astype(np.float32).reshape(-1, 1, 2) for view in views]
    flags = cv2.CALIB_FIX_K3  # five coefficients on one board overfit; the lenses in question need two
    _, matrix, distortion, rotations, translations, sigma, _, errors = cv2.calibrateCameraExtended(
        objects, pixels, size, None, None, flags=flags
    )
    return matrix, distortion, rotations, translations, errors, sigma


def sharpness(grey: Image, view: BoardView) -> float:
    """Steepest edge around the board's points relative to the contrast there, per px; 0.5 is a perfect edge."""
    values = []
    for u, v in view.uv_px[:: max(len(view.uv_px) // 12, 1)]:
        x, y = round(float(u)), round(float(v))
        patch = grey[max(y - 6, 0) : y + 7, max(x - 6, 0) : x + 7].astype(np.float32)
        if min(patch.shape) < 7:
            continue
        contrast = float(np.percentile(patch, 95) - np.percentile(patch, 5))
        slope = np.hypot(cv2.Sobel(patch, cv2.CV_32F, 1, 0) / 8.0, cv2.Sobel(patch, cv2.CV_32F, 0, 1) / 8.0)
        values.append(float(np.percentile(slope, 97)) / max(contrast, 10.0))
    return float(np.median(values)) if values else 0.0
