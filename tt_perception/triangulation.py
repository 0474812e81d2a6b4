"""Triangulation: detections of several cameras in, ball positions and rays with covariance out."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tt_perception.camera import CameraModel, rig_checksum
from tt_perception.location import LocateConfig, LocateReason, Location, Locator, TriangulationError
from tt_perception.mix_ups import BAD_SHARE, MIN_SETS, find_mix_up, least_views
from tt_perception.trigger_sets import TriggerConfig, TriggerSet, TriggerSets
from tt_perception.types import BallPosition, BallRay, CameraDetections

FloatArray = NDArray[np.float64]
_HISTORY = 200  # sets over which the share of phantoms of a camera is judged
_MEMORY_NS = 150_000_000  # a position older than this says nothing about where the ball is now


@dataclass(frozen=True)
class TriangulatorConfig:
    """How detections become positions.

    Attributes:
        pixel_sigma: standard deviation of a detected centre, px: detector plus calibration.
        locate: gates and volume of interest.
        trigger: how images are put together.
        rays: give single views as rays where fewer than two cameras agree and the track is known.
        phantom_share: above this share of contradicted views a camera counts as disturbed.
    """

    pixel_sigma: float = 0.3
    locate: LocateConfig = field(default_factory=LocateConfig)
    trigger: TriggerConfig = field(default_factory=TriggerConfig)
    rays: bool = True
    phantom_share: float = 0.5


class Triangulator:
    """Turns the detections of a set of cameras into positions; time is passed in.

    Detections of cameras on a common trigger give one `BallPosition` per trigger. Detections of cameras that
    run free, and of a single camera that still sees a known ball, give a `BallRay`. Cameras that the first
    detections show to be exchanged or turned around give nothing any more.

    Attributes:
        refused: why no result is given any more, empty while all is well.
    """

    def __init__(self, cameras: Sequence[CameraModel], config: TriangulatorConfig | None = None) -> None:
        self.config = config or TriangulatorConfig()
        self.cameras = tuple(cameras)
        names = [camera.name for camera in cameras]
        if len(set(names)) != len(names):
            raise TriangulationError(f"two cameras share a name: {', '.join(names)}; names must differ")
        self._locator = Locator(cameras, self.config.locate)
        self._sets = TriggerSets(names, self.config.trigger)
        self._index = {name: index for index, name in enumerate(names)}
        self._counts: dict[str, int] = {reason.name.lower(): 0 for reason in LocateReason}
        self._counts.update(ambiguous=0, rays=0, unknown_camera=0)
        self._agreed: dict[str, deque[bool]] = {name: deque(maxlen=_HISTORY) for name in names}
        self._errors: deque[float] = deque(maxlen=_HISTORY)
        self._fits: deque[bool] = deque(maxlen=_HISTORY)  # of sets in which two cameras or more saw something
        self._contradicting: deque[list[FloatArray | None]] = deque(maxlen=2 * MIN_SETS)
        self._contradictions, self._next_search = 0, MIN_SETS
        self.refused = ""
        self._track: deque[tuple[int, FloatArray]] = deque(maxlen=2)
        self._now_ns = 0

    def add(self, detections: CameraDetections, now_ns: int) -> list[BallPosition | BallRay]:
        """Take one image's detections; returns what the finished trigger sets give, oldest first."""
        self._now_ns = now_ns
        if detections.camera not in self._index:
            self._counts["unknown_camera"] += 1
            return []
        return self._solve(self._sets.add(detections, now_ns))

    def flush(self, now_ns: int) -> list[BallPosition | BallRay]:
        """Solve the sets whose wait for late cameras has expired."""
        self._now_ns = now_ns
        return self._solve(self._sets.flush(now_ns))

    def next_deadline_ns(self) -> int | None:
        """When `flush` should be called; None when nothing waits."""
        return self._sets.next_deadline_ns()

    def health(self) -> dict[str, object]:
        """Counts since the start, and the condition of the cameras now.

        Keys: the counts of sets and results, `silent`, `free`, `disturbed` (camera names), `reprojection_px`
        (root mean square over the last sets), `calibration` (checksum), `warning` and `refused` (sentences,
        empty when all is well).
        """
        silent = self._sets.silent_cameras(self._now_ns)
        disturbed = tuple(
            name
            for name, agreed in self._agreed.items()
            if len(agreed) >= 20 and agreed.count(False) > self.config.phantom_share * len(agreed)
        )
        configured = self.config.trigger.free
        drifted = tuple(
            name for name in self._sets.free_cameras if name not in configured and "*" not in configured
        )
        warnings = []
        if silent and self._now_ns:
            warnings.append(f"no images from {', '.join(silent)}")
        if drifted and not silent:
            warnings.append(f"out of step: {', '.join(drifted)}; check the trigger line")
        if disturbed:
            warnings.append(f"{', '.join(disturbed)} contradicts the others; moved, or phantoms in view?")
        if len(self._fits) >= 30 and self._fits.count(False) > 0.5 * len(self._fits):
            warnings.append("views do not fit together: was a camera moved, or are several exchanged?")
        if len(self.cameras) < 2:
            warnings.append("1 camera only: rays, no positions")
        return {
            **self._sets.counts,
            **self._counts,
            "silent": silent,
            "free": self._sets.free_cameras,
            "disturbed": disturbed,
            "reprojection_px": float(np.sqrt(np.mean(self._errors))) if self._errors else 0.0,
            "calibration": rig_checksum(self.cameras),
            "warning": "; ".join(warnings),
            "refused": self.refused,
        }

    def _solve(self, sets: list[TriggerSet]) -> list[BallPosition | BallRay]:
        results: list[BallPosition | BallRay] = []
        for trigger in sets:
            result = self._solve_one(trigger)
            if result is not None:
                results.append(result)
        return results

    def _solve_one(self, trigger: TriggerSet) -> BallPosition | BallRay | None:
        if self.refused:
            return None
        views: list[FloatArray | None] = [None] * len(self.cameras)
        for name, detections in trigger.views.items():
            views[self._index[name]] = detections.uv_px
        prior = self._expected(trigger.stamp_ns)
        location = self._locator.locate(views, self.config.pixel_sigma, prior)
        self._counts[location.reason.name.lower()] += 1
        if location.reason not in (LocateReason.NO_VIEW, LocateReason.ONE_VIEW):
            fits = location.reason is LocateReason.OK and len(location.inliers) > self._least(views)
            self._fits.append(fits)
            if not fits and self._is_mixed_up(views):
                return None
        if location.reason is LocateReason.OK:
            return self._position(trigger, location)
        free = len(trigger.views) == 1 and next(iter(trigger.views)) in self._sets.free_cameras
        if self.config.rays and (free or prior is not None):
            return self._ray(trigger, prior)
        return None

    def _is_mixed_up(self, views: list[FloatArray | None]) -> bool:
        """Look for the mistake behind views that have contradicted each other from the start."""
        if sum(view is not None and len(view) > 0 for view in views) < least_views(self.cameras):
            return False
        self._contradicting.append(views)
        self._contradictions += 1
        if self._contradictions >= self._next_search:
            self._next_search *= 2  # the search takes some 30 ms, and a moved camera is none of its answers
            if self._fits.count(True) > BAD_SHARE * len(self._fits):
                return False
            mistake = find_mix_up(self.cameras, self._contradicting, self.config.pixel_sigma)
            if mistake:
                self.refused = (
                    f"the views contradict each other, and agree when {mistake}: correct the extrinsics file, "
                    "or which device has which name"
                )
        return bool(self.refused)

    @staticmethod
    def _least(views: Sequence[FloatArray | None]) -> int:
        """Inliers up to this number may be an accident: two where three or more views hold candidates."""
        return 2 if sum(view is not None and len(view) > 0 for view in views) >= 3 else 1

    def _position(self, trigger: TriggerSet, location: Location) -> BallPosition:
        for index, camera in enumerate(self.cameras):
            view = trigger.views.get(camera.name)
            if view is not None and len(view.uv_px):
                self._agreed[camera.name].append(index in location.inliers)
        self._errors.append(location.reprojection_px**2)
        if location.ambiguous:
            self._counts["ambiguous"] += 1
        else:
            self._track.append((trigger.stamp_ns, location.point_table))
        return BallPosition(
            trigger.stamp_ns,
            location.point_table,
            location.cov,
            tuple(self.cameras[index].name for index in location.inliers),
            location.reprojection_px,
            location.ambiguous,
        )

    def _expected(self, stamp_ns: int) -> FloatArray | None:
        """Where the ball should be at `stamp_ns`, from the last two positions."""
        if not self._track or not 0 < stamp_ns - self._track[-1][0] <= _MEMORY_NS:
            return None
        (newer_ns, newer) = self._track[-1]
        if len(self._track) < 2:
            return newer
        (older_ns, older) = self._track[0]
        if not 0 < newer_ns - older_ns <= _MEMORY_NS:
            return newer
        return newer + (newer - older) * ((stamp_ns - newer_ns) / (newer_ns - older_ns))

    def _ray(self, trigger: TriggerSet, prior: FloatArray | None) -> BallRay | None:
        """The view nearest to the expected ball; without an expectation the best candidate."""
        best: tuple[float, BallRay] | None = None
        for name, detections in trigger.views.items():
            if not len(detections.uv_px):
                continue
            camera = self.cameras[self._index[name]]
            undistorted = camera.undistort(detections.uv_px)
            if prior is None:
                choice = int(np.argmax(detections.score))
                distance = 0.0
            else:
                expected = camera.undistort(camera.project(prior))
                distances = np.linalg.norm(undistorted - expected, axis=1)
                distances[~np.isfinite(distances)] = np.inf
                choice = int(np.argmin(distances))
                distance = float(distances[choice])
                depth = max(float(camera.depth_m(prior)[0]), 0.1)
                if not distance < self.config.locate.prior_radius_m * camera.matrix[0, 0] / depth:
                    continue
            if not np.isfinite(undistorted[choice]).all():
                continue
            ray = BallRay(
                trigger.stamp_ns,
                name,
                undistorted[choice],
                np.eye(2) * self.config.pixel_sigma**2,
                camera.projection,
            )
            if best is None or distance < best[0]:
                best = (distance, ray)
        if best is None:
            return None
        self._counts["rays"] += 1
        return best[1]


def triangulate(
    uv_px: Sequence[ArrayLike | None],
    cameras: Sequence[CameraModel],
    pixel_sigma: ArrayLike = 0.3,
    config: LocateConfig | None = None,
) -> tuple[FloatArray, FloatArray, tuple[int, ...]]:
    """Triangulate one ball in any number of calibrated views.

    A `CameraModel` is a 3×3 camera matrix, five distortion coefficients and a 4×4 `table_from_camera`: the
    function serves anybody's cameras.

    Args:
        uv_px: raw pixels per camera: shape (2,), several candidates (n, 2), or None.
        cameras: one per entry of `uv_px`.
        pixel_sigma: standard deviation of a pixel coordinate, px.
        config: gates and room.

    Returns:
        Point in frame `table` (3,), its covariance (3, 3), and the indices of the views that agree. NaN,
        infinity and () when fewer than two views agree; `Locator.locate` tells why.

    Example:
        >>> point, cov, inliers = triangulate([uv0, uv1, uv2], cameras, pixel_sigma=0.3)
    """
    location = Locator(cameras, config).locate(uv_px, pixel_sigma)
    return location.point_table, location.cov, location.inliers
