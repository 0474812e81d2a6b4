"""Calibration boards: chessboard, ChArUco, and a grid of AprilTags or ArUco markers."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from tt_perception.errors import TTError

FloatArray = NDArray[np.float64]
Image = NDArray[np.uint8]

KINDS = ("charuco", "chessboard", "apriltag")
_DICTIONARIES = {"charuco": cv2.aruco.DICT_5X5_250, "apriltag": cv2.aruco.DICT_APRILTAG_36h11}


class BoardError(TTError):
    """A board description that is not possible."""


@dataclass(frozen=True)
class BoardView:
    """Board points found in an image.

    Attributes:
        points_board: on the board (z = 0), shape (n, 3), m.
        uv_px: raw pixels, shape (n, 2).
        ids: number of each point, shape (n,).
    """

    points_board: FloatArray
    uv_px: FloatArray
    ids: NDArray[np.int64]


@dataclass(frozen=True)
class Board:
    """A flat board.

    Attributes:
        kind: `charuco`, `chessboard` or `apriltag` (tag36h11 in a grid).
        columns: squares (tags) across.
        rows: squares (tags) down.
        square_m: side of a square; for tags the side of a tag.
        marker_m: side of a ChArUco marker, or the gap between tags.
    """

    kind: str = "charuco"
    columns: int = 9
    rows: int = 6
    square_m: float = 0.06
    marker_m: float = 0.045

    def __post_init__(self) -> None:
        if self.kind not in KINDS:
            raise BoardError(f"board {self.kind!r} must be one of {', '.join(KINDS)}")
        if not (3 <= self.columns <= 40 and 3 <= self.rows <= 40):
            raise BoardError(f"board of {self.columns}×{self.rows} fields; needs 3..40 each way")
        if not 0.002 <= self.square_m <= 1.0:
            raise BoardError(f"square of {self.square_m:g} m; needs 0.002..1 m (metres, not millimetres)")
        if self.kind == "charuco" and not 0.0 < self.marker_m < self.square_m:
            raise BoardError(
                f"marker of {self.marker_m:g} m must be smaller than its square of {self.square_m:g} m"
            )

    @property
    def size_m(self) -> tuple[float, float]:
        """Width and height of the pattern, m."""
        if self.kind == "apriltag":
            step = self.square_m + self.marker_m
            return self.columns * step - self.marker_m, self.rows * step - self.marker_m
        return self.columns * self.square_m, self.rows * self.square_m

    def picture(self, pixels_per_m: float) -> Image:
        """The pattern as an image, for printing and for simulated views."""
        width, height = (round(side * pixels_per_m) for side in self.size_m)
        if self.kind == "chessboard":
            square = round(self.square_m * pixels_per_m)
            field = (np.add.outer(np.arange(self.rows), np.arange(self.columns)) % 2 * 255).astype(np.uint8)
            return np.kron(field, np.ones((square, square), np.uint8))
        return self._aruco().generateImage((width, height), marginSize=0, borderBits=1)

    def find(self, image: Image) -> BoardView | None:
        """Points of the board in a grey image; None when it is not found."""
        if self.kind == "chessboard":
            size = (self.columns - 1, self.rows - 1)
            found, corners = cv2.findChessboardCornersSB(image, size, flags=cv2.CALIB_CB_NORMALIZE_IMAGE)
            if not found:
                return None
            ids = np.arange(size[0] * size[1])
            points = np.zeros((len(ids), 3))
            points[:, 0], points[:, 1] = ids % size[0] + 1, ids // size[0] + 1
            points *= self.square_m
            return BoardView(points, np.asarray(corners, dtype=np.float64).reshape(-1, 2), ids)
        if self.kind == "charuco":
            corners, ids, _, _ = cv2.aruco.CharucoDetector(self._aruco()).detectBoard(image)
            if ids is None or len(ids) < 6:
                return None
            numbers = np.asarray(ids, dtype=np.int64).ravel()
            points = np.asarray(self._aruco().getChessboardCorners(), dtype=np.float64)[numbers]
            return BoardView(points, np.asarray(corners, dtype=np.float64).reshape(-1, 2), numbers)
        parameters = cv2.aruco.DetectorParameters()
        parameters.cornerRefinementMethod = cv2.aruco.CORNER_REFINE_APRILTAG
        detector = cv2.aruco.ArucoDetector(self._dictionary(), parameters)
        corners, ids, _ = detector.detectMarkers(image)
        if ids is None or len(ids) < 2:
            return None
        objects, pixels = self._aruco().matchImagePoints(corners, ids)
        if objects is None or len(objects) < 8:
            return None
        points = np.asarray(objects, dtype=np.float64).reshape(-1, 3)
        # This refinement counts pixels from their edges, everything else here from their centres.
        uv = np.asarray(pixels, dtype=np.float64).reshape(-1, 2) - 0.5
        return BoardView(points, uv, np.arange(len(points)))

    def _dictionary(self):  # type: ignore[no-untyped-def]
        return cv2.aruco.getPredefinedDictionary(_DICTIONARIES[self.kind])

    def _aruco(self):  # type: ignore[no-untyped-def]
        size = (self.columns, self.rows)
        if self.kind == "charuco":
            return cv2.aruco.CharucoBoard(size, self.square_m, self.marker_m, self._dictionary())
        return cv2.aruco.GridBoard(size, self.square_m, self.marker_m, self._dictionary())
