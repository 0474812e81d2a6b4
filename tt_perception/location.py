"""One point with its covariance from the pixels of several calibrated views."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tt_perception.camera import CameraModel
from tt_perception.errors import TTError
from tt_perception.views import MAX_CANDIDATES, NO_CANDIDATE, locate_pixels_kernel

FloatArray = NDArray[np.float64]


class TriangulationError(TTError):
    """Pixels or cameras that do not fit together."""


class LocateReason(Enum):
    """Why there is a point, or none."""

    OK = "located"
    NO_VIEW = "no camera sees a candidate"
    ONE_VIEW = "only one camera sees a candidate"
    INCONSISTENT = "no two views agree on a point in the room"
    DEGENERATE = "the cameras and the ball are nearly on one line"


@dataclass(frozen=True)
class LocateConfig:
    """How views are combined.

    Attributes:
        gate_sigma: largest reprojection error of a consistent view, in standard deviations. 3.3 loses 0.4 %
            of good views (2 degrees of freedom).
        pair_gate_sigma: largest gap between the rays of a lone pair of views, in standard deviations. 2.6
            loses 0.9 % of good pairs; a wider gate lets more accidental pairs of phantoms through.
        lone_pair_gate_sigma: the same where two or more other views see something else, which makes an
            accident likelier. 1.6 loses 11 % of good pairs.
        bounds_table: smallest and largest corner of the volume in which a ball is of interest, m.
        max_std_m: a point less certain than this along its worst axis is refused as degenerate.
        prior_radius_m: two equally supported points are told apart by being this near to the expected one.
    """

    gate_sigma: float = 3.3
    pair_gate_sigma: float = 2.6
    lone_pair_gate_sigma: float = 1.6
    bounds_table: tuple[tuple[float, float, float], tuple[float, float, float]] = (
        (-1.3, -2.7, -0.35),
        (1.3, 2.7, 1.4),
    )
    max_std_m: float = 0.25
    prior_radius_m: float = 0.15


@dataclass(frozen=True, slots=True)
class Location:
    """Result of combining views.

    Attributes:
        reason: `OK`, or why there is no point.
        point_table: shape (3,), m; NaN when there is none.
        cov: shape (3, 3), m²; infinite on the diagonal when there is no point.
        inliers: indices of the views that agree.
        choice: chosen candidate of each view, -1 for none.
        reprojection_px: root mean square over the inliers.
        ambiguous: another point has as much support from other candidates.
        rival_support: views that support the best other point.
    """

    reason: LocateReason
    point_table: FloatArray
    cov: FloatArray
    inliers: tuple[int, ...]
    choice: NDArray[np.int64]
    reprojection_px: float
    ambiguous: bool
    rival_support: int = 0


class Locator:
    """Combines views of a fixed set of cameras; keeps its arrays, so a call allocates little.

    Not thread-safe.
    """

    def __init__(self, cameras: Sequence[CameraModel], config: LocateConfig | None = None) -> None:
        if not cameras:
            raise TriangulationError("no camera given; triangulation needs at least 2")
        self.cameras = tuple(cameras)
        self.config = config or LocateConfig()
        count = len(cameras)
        self._matrices = np.array([camera.matrix for camera in cameras])
        self._distortions = np.array([camera.distortion for camera in cameras])
        self._poses = np.array([camera.table_from_camera for camera in cameras])
        self._projections = np.array([camera.projection for camera in cameras])
        self._raw = np.zeros((count, MAX_CANDIDATES, 2))
        self._uv = np.zeros((count, MAX_CANDIDATES, 2))
        self._counts = np.zeros(count, dtype=np.int64)
        self._bounds = np.array(self.config.bounds_table, dtype=np.float64)
        self._no_prior = np.full(3, np.nan)
        self._sigmas = np.empty(0)
        self._sigma_given: ArrayLike | None = None

    def locate(
        self,
        uv_px: Sequence[ArrayLike | None],
        pixel_sigma: ArrayLike,
        prior_table: FloatArray | None = None,
    ) -> Location:
        """Find the point that most views agree on.

        Args:
            uv_px: raw (distorted) pixels per camera: shape (2,), (n, 2), or None. More than 16 candidates:
                the first 16 count, so give the best first.
            pixel_sigma: standard deviation of a pixel coordinate, scalar or one per camera, px.
            prior_table: expected position, to tell equally supported points apart.

        Raises:
            TriangulationError: wrong number of views, wrong shape, or a sigma that is not positive.
        """
        count = len(self.cameras)
        if len(uv_px) != count:
            raise TriangulationError(
                f"{len(uv_px)} views given for {count} cameras; give one entry per camera, None for no view"
            )
        sigmas = self._sigmas_of(pixel_sigma)
        counts = self._counts
        for index, pixels in enumerate(uv_px):
            counts[index] = 0 if pixels is None else self._load(index, pixels)
        point = np.empty(3)
        cov = np.empty((3, 3))
        choice = np.empty(count, np.int64)
        config = self.config
        seen, votes, rival, reprojection_px = locate_pixels_kernel(
            self._matrices, self._distortions, self._poses, self._projections, self._raw, self._uv, counts,
            sigmas,
            config.gate_sigma, config.pair_gate_sigma, config.lone_pair_gate_sigma, self._bounds,
            self._no_prior if prior_table is None else prior_table, config.prior_radius_m, choice, point, cov,
        )  # fmt: skip
        if seen < 2:
            return self._nothing(LocateReason.ONE_VIEW if seen else LocateReason.NO_VIEW)
        if votes <= 0:
            return self._nothing(LocateReason.DEGENERATE if votes < 0 else LocateReason.INCONSISTENT)
        if max(cov[0, 0], cov[1, 1], cov[2, 2]) > config.max_std_m**2:
            return self._nothing(LocateReason.DEGENERATE)
        inliers = tuple([index for index, number in enumerate(choice.tolist()) if number != NO_CANDIDATE])
        return Location(
            LocateReason.OK, point, cov, inliers, choice, reprojection_px,
            ambiguous=rival >= votes, rival_support=rival,
        )  # fmt: skip

    def _sigmas_of(self, pixel_sigma: ArrayLike) -> FloatArray:
        """Standard deviation per view; the last one is kept, because it hardly ever changes."""
        if pixel_sigma is not self._sigma_given:
            sigmas = np.array(np.broadcast_to(np.asarray(pixel_sigma, dtype=np.float64), len(self.cameras)))
            if not (sigmas.min() > 0.0 and np.isfinite(sigmas).all()):
                raise TriangulationError(f"pixel_sigma {sigmas.tolist()} px must be positive")
            self._sigmas = sigmas
            # An array may be changed by its owner, a number may not.
            self._sigma_given = pixel_sigma if isinstance(pixel_sigma, float) else None
        return self._sigmas

    def _load(self, index: int, pixels: ArrayLike) -> int:
        """Take the candidates of one view into the work array; returns how many there are."""
        uv = np.asarray(pixels, dtype=np.float64)
        if uv.size == 0:
            return 0
        if uv.shape == (2,):
            uv = uv.reshape(1, 2)
        if uv.ndim != 2 or uv.shape[1] != 2:
            raise TriangulationError(f"pixels of view {index} have shape {uv.shape}, needs (2,) or (n, 2)")
        number = min(len(uv), MAX_CANDIDATES)
        self._raw[index, :number] = uv[:number]
        return number

    def _nothing(self, reason: LocateReason) -> Location:
        nowhere = np.full(3, np.nan)
        unknown = np.diag(np.full(3, np.inf))
        nobody = np.full(len(self.cameras), NO_CANDIDATE)
        return Location(reason, nowhere, unknown, (), nobody, 0.0, ambiguous=False)
