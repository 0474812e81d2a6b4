"""Ball candidates of one image: difference to the background, blobs, plausibility, sub-pixel centre."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, fields
from enum import Enum
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import yaml
from numpy.typing import NDArray

from tt_perception.background import BackgroundModel
from tt_perception.camera import CameraModel
from tt_perception.errors import TTError
from tt_perception.location import LocateConfig
from tt_perception.scan import RowScanner
from tt_perception.subpixel import refine_centre
from tt_perception.table import BALL_RADIUS_M
from tt_perception.types import CameraDetections

Image = NDArray[np.uint8]
FloatArray = NDArray[np.float64]

# Kernels of even size would shift the blobs by half a pixel.
_KERNELS = {
    "none": np.ones((1, 1), np.uint8),
    "cross": np.array([[0, 1, 0], [1, 1, 1], [0, 1, 0]], np.uint8),
    "square": np.ones((3, 3), np.uint8),
}
_FASTEST_MPS = 25.0  # a hard smash
_MARGIN = 3  # px around a blob that the sub-pixel fit needs
_GREY = (0.114, 0.587, 0.299)


class DetectionError(TTError):
    """An image or a detector setting that cannot be used."""


class Rejection(Enum):
    """Why a blob is no candidate."""

    SMALL = "smaller than the smallest ball"
    LARGE = "larger than the largest ball"
    LONG = "longer than the motion blur of the fastest ball"
    RAGGED = "does not fill its outline"
    DARK = "contrast of the wrong sign"
    COLOUR = "not the colour of the ball"
    BORDER = "cut by the image border"


@dataclass(frozen=True)
class DetectorConfig:
    """How balls look.

    Attributes:
        threshold: smallest difference to the background, grey levels. Four standard deviations of the noise
            or more.
        radius_px: smallest and largest apparent radius.
        max_blur_px: longest motion blur: exposure × fastest ball × focal length / nearest distance.
        core: what a blob must contain to be more than noise: `square` (3×3 px), `cross` (5 px) for small
            balls, or `none`.
        min_fill: smallest share of its enclosing capsule that a blob fills.
        colour_weights: blue, green, red weights that turn a colour image grey; choose them so that ball and
            background differ most, e.g. (-0.6, 0.4, 1.0) for an orange ball.
        ball_colour: hue (0..180), smallest saturation (0..255) and hue tolerance of the ball in colour
            images; None to accept any.
        bright: +1 ball brighter than the background, -1 darker, 0 either.
        exclude: polygons (px) in which nothing is reported, e.g. a second table.
        max_candidates: the best ones are kept.
        full_every: with a region of interest, every so many images is searched in full.
        background_rate: weight of a new image in the background.
        background_images: images to learn the background from before anything is reported.
    """

    threshold: int = 20
    radius_px: tuple[float, float] = (1.8, 16.0)
    max_blur_px: float = 25.0
    core: str = "square"
    min_fill: float = 0.55
    colour_weights: tuple[float, float, float] = _GREY
    ball_colour: tuple[float, float, float] | None = None
    bright: int = 0
    exclude: tuple[tuple[tuple[float, float], ...], ...] = ()
    max_candidates: int = 8
    full_every: int = 10
    background_rate: float = 0.1
    background_images: int = 8


@dataclass(frozen=True, slots=True)
class Blob:
    """What became of one blob, for the debug image.

    Attributes:
        box: left, top, width, height, px.
        rejection: None for a candidate.
        centre_px: u, v.
        radius_px: apparent radius.
        score: 0..1.
    """

    box: tuple[int, int, int, int]
    rejection: Rejection | None
    centre_px: tuple[float, float] = (np.nan, np.nan)
    radius_px: float = 0.0
    score: float = 0.0


@dataclass
class DetectorStats:
    """Counts since the start."""

    images: int = 0
    full: int = 0
    regions: int = 0
    candidates: int = 0
    rejected: dict[str, int] = field(default_factory=lambda: {reason.name.lower(): 0 for reason in Rejection})


def load_detector(path: Path | str) -> DetectorConfig:
    """Read a detector YAML; keys are the fields of `DetectorConfig`.

    Raises:
        DetectionError: the file is missing or foreign, or a key is unknown.
    """
    try:
        data = yaml.safe_load(Path(path).read_text(encoding="utf-8")) or {}
    except FileNotFoundError:
        raise DetectionError(f"{path}: no such detector file") from None
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise DetectionError(
            f"{path}: cannot be read as YAML ({' '.join(str(error).split())[:160]})"
        ) from error
    if not isinstance(data, dict):
        raise DetectionError(f"{path}: holds {type(data).__name__}, needs keys such as threshold, radius_px")
    known = [item.name for item in fields(DetectorConfig)]
    for key in data:
        if key not in known:
            raise DetectionError(f"{path}: unknown key {key!r}; known are {', '.join(known)}")
    try:
        values: dict[str, Any] = {key: _tuples(value) for key, value in data.items()}
        return DetectorConfig(**values)
    except TypeError as error:
        raise DetectionError(f"{path}: {error}") from error


def detector_for(camera: CameraModel, exposure_s: float = 0.002, **changes: object) -> DetectorConfig:
    """Settings that follow from where a camera stands: apparent size and motion blur over the volume of play.

    Args:
        camera: calibrated camera.
        exposure_s: shutter time.
        changes: fields to set otherwise.
    """
    low, high = np.array(LocateConfig().bounds_table)
    corners = np.array(
        [[x, y, z] for x in (low[0], high[0]) for y in (low[1], high[1]) for z in (low[2], high[2])]
    )
    depths = camera.depth_m(corners)
    near = max(
        float(
            np.linalg.norm(np.maximum(np.maximum(low - camera.centre_table, camera.centre_table - high), 0.0))
        ),
        0.5,
    )
    focal = float(camera.matrix[0, 0])
    smallest = 0.75 * focal * BALL_RADIUS_M / float(depths.max())
    largest = 1.3 * focal * BALL_RADIUS_M / near
    values: dict[str, Any] = {
        "radius_px": (max(smallest, 0.9), max(largest, 2.0)),
        "max_blur_px": _FASTEST_MPS * exposure_s * focal / near + 4.0,
        "core": "square" if smallest > 1.9 else "cross",
    }
    values.update(changes)
    return DetectorConfig(**values)


def _tuples(value: object) -> object:
    return tuple(_tuples(item) for item in value) if isinstance(value, list) else value


class Detector:
    """Finds ball candidates in the images of one still camera.

    Args:
        camera: camera name.
        config: how balls look.
    """

    def __init__(self, camera: str, config: DetectorConfig | None = None) -> None:
        self.camera = camera
        self.config = config or DetectorConfig()
        c = self.config
        if not 0 < c.radius_px[0] < c.radius_px[1]:
            raise DetectionError(f"radius_px {c.radius_px} must be two positive numbers, smallest first")
        if not 1 <= c.threshold <= 254:
            raise DetectionError(f"threshold {c.threshold} grey levels must be 1..254")
        if c.core not in _KERNELS:
            raise DetectionError(f"core {c.core!r} must be one of {', '.join(_KERNELS)}")
        self.background = BackgroundModel(c.background_rate, c.background_images)
        self.stats = DetectorStats()
        self.blobs: list[Blob] = []  # of the last image
        self.region: tuple[int, int, int, int] | None = None  # left, top, right, bottom of the last search
        self._since_full = 0
        self._result = np.empty(7)
        self._allowed: Image | None = None
        self._difference: Image | None = None
        self._mask: Image | None = None
        self._scan: RowScanner | None = None
        self._written: list[tuple[int, int, int, int]] = []
        self._shape: tuple[int, ...] | None = None

    def warm_up(self) -> None:
        """Compile the kernels before the first image."""
        patch = np.zeros((12, 12), np.uint8)
        patch[3:8, 3:8] = 200
        patch = patch[1:11, 1:11]  # a part of a larger array is another type to the compiler
        fixed = patch.view()
        fixed.flags.writeable = False  # images of a topic cannot be written
        for image in (patch, fixed):
            refine_centre(image, np.zeros((12, 12), np.uint8)[1:11, 1:11], patch, self._result)
        RowScanner(16, 16, 1).boxes()

    def detect(
        self,
        image: Image,
        stamp_ns: int,
        counter: int | None = None,
        expected_px: Sequence[float] | FloatArray | None = None,
        reach_px: float = 48.0,
    ) -> CameraDetections:
        """Find candidates, best first.

        Args:
            image: grey (h, w) or BGR (h, w, 3), uint8.
            stamp_ns: mid-exposure time.
            counter: trigger counter.
            expected_px: where the ball should be; only a region around it is searched, except in every
                `full_every`-th image and when the last region held nothing.
            reach_px: half size of the region.

        Raises:
            DetectionError: no image, wrong type, or another size than before.
        """
        image = self._checked(image)
        grey = image if image.ndim == 2 else self._grey(image)
        self.stats.images += 1
        region = None
        if expected_px is not None and self._since_full < self.config.full_every and self.background.ready:
            region = self._clip(expected_px, reach_px, grey.shape)
        self._forget_mask()
        found = False
        if region is not None:
            self._search(image, grey, self.background.part(grey, region), region)
            found = self._rank()
        if not found:
            region = None
            self.background.follow(grey)
            if self.background.ready:
                self._forget_mask()
                for box in self._boxes(grey):
                    self._search(image, grey, self.background.crop(box), box)
                self._rank()
        self._since_full = 0 if region is None else self._since_full + 1
        self.region = region
        if region is None:
            self.stats.full += 1
            self.background.learn(grey, self._mask)
        else:
            self.stats.regions += 1
        return self._detections(stamp_ns, counter)

    def restart_region_count(self) -> None:
        """Let the next `full_every` images be searched in a region only."""
        self._since_full = 0

    def _checked(self, image: Image) -> Image:
        if image is None or not isinstance(image, np.ndarray) or image.size == 0:
            raise DetectionError(f"{self.camera}: empty image; is the camera connected?")
        if image.dtype != np.uint8 or image.ndim not in (2, 3) or (image.ndim == 3 and image.shape[2] != 3):
            raise DetectionError(
                f"{self.camera}: image of type {image.dtype} and shape {image.shape}; needs uint8 (h, w) "
                f"or (h, w, 3) BGR"
            )
        if self._shape is not None and image.shape != self._shape:
            raise DetectionError(
                f"{self.camera}: image size changed from {self._shape} to {image.shape}; restart the "
                f"camera node"
            )
        if self._shape is None:
            self._shape = image.shape
            self._mask = np.zeros(image.shape[:2], np.uint8)
            # Only a 3×3 core is sure to show in every second row.
            step = 2 if self.config.core == "square" else 1
            self._scan = RowScanner(image.shape[0], image.shape[1], step)
            self._difference = np.empty(image.shape[:2], np.uint8)
            self._allowed = self._allowed_mask(image.shape[:2])
        return image

    def _grey(self, image: Image) -> Image:
        if self.config.colour_weights == _GREY:
            return cv2.cvtColor(image, cv2.COLOR_BGR2GRAY)
        return cv2.transform(image, np.array([self.config.colour_weights], np.float32))

    def _allowed_mask(self, shape: tuple[int, int]) -> Image | None:
        if not self.config.exclude:
            return None
        allowed = np.full(shape, 255, np.uint8)
        for polygon in self.config.exclude:
            cv2.fillPoly(allowed, [np.array(polygon, np.float64).round().astype(np.int32)], 0)
        return allowed

    @staticmethod
    def _clip(
        expected_px: Sequence[float] | FloatArray, reach_px: float, shape: tuple[int, ...]
    ) -> tuple[int, int, int, int] | None:
        u, v = float(expected_px[0]), float(expected_px[1])
        if not (math.isfinite(u) and math.isfinite(v)):
            return None
        left, top = max(int(u - reach_px), 0), max(int(v - reach_px), 0)
        right, bottom = min(int(u + reach_px) + 1, shape[1]), min(int(v + reach_px) + 1, shape[0])
        return (left, top, right, bottom) if right - left > 8 and bottom - top > 8 else None

    def _boxes(self, grey: Image) -> list[tuple[int, int, int, int]]:
        """Parts of the image in which something differs."""
        scan = self._scan
        assert scan is not None and self._difference is not None
        everything = [(0, 0, grey.shape[1], grey.shape[0])]
        if self.config.core == "none":
            return everything
        rows = slice(None, None, scan.step)
        difference = self._difference[rows]
        self._compare(grey[rows], self.background.rows(scan.step, difference), difference, scan.mask)
        found = scan.boxes()
        return everything if found is None else found

    def _compare(self, part: Image, back: Image, difference: Image, mask: Image) -> None:
        """Set `mask` where `part` differs from the background in the wanted direction."""
        if self.config.bright > 0:
            cv2.subtract(part, back, difference)
        elif self.config.bright < 0:
            cv2.subtract(back, part, difference)
        else:
            cv2.absdiff(part, back, difference)
        cv2.threshold(difference, self.config.threshold - 1, 255, cv2.THRESH_BINARY, mask)

    def _search(self, image: Image, grey: Image, back: Image, box: tuple[int, int, int, int]) -> None:
        """Add what differs in a part of the image to `blobs`."""
        assert self._difference is not None and self._mask is not None
        left, top, right, bottom = box
        part = grey[top:bottom, left:right]
        difference, mask = self._difference[top:bottom, left:right], self._mask[top:bottom, left:right]
        self._written.append(box)
        self._compare(part, back, difference, mask)
        # Specks of noise would each become a contour: opening removes them at a fraction of the cost.
        cv2.morphologyEx(mask, cv2.MORPH_OPEN, _KERNELS[self.config.core], mask)
        if self._allowed is not None:
            cv2.bitwise_and(mask, self._allowed[top:bottom, left:right], mask)
        contours, _ = cv2.findContours(mask, cv2.RETR_EXTERNAL, cv2.CHAIN_APPROX_NONE)
        for contour in contours:
            self.blobs.append(self._judge(contour, image, part, back, mask, (left, top)))

    def _rank(self) -> bool:
        """Sort the blobs, best first, and count the rejected; True when there is a candidate."""
        self.blobs.sort(key=lambda blob: -blob.score)
        for blob in self.blobs:
            if blob.rejection is not None:
                self.stats.rejected[blob.rejection.name.lower()] += 1
        return bool(self.blobs) and self.blobs[0].rejection is None

    def _forget_mask(self) -> None:
        """The mask is zero outside of the parts that were searched in this image."""
        assert self._mask is not None
        for left, top, right, bottom in self._written:
            self._mask[top:bottom, left:right] = 0
        self._written.clear()
        self.blobs = []

    def _judge(  # noqa: PLR0917
        self,
        contour: NDArray[np.int32],
        image: Image,
        part: Image,
        back: Image,
        mask: Image,
        corner: tuple[int, int],
    ) -> Blob:
        c = self.config
        x, y, width, height = cv2.boundingRect(contour)
        box = (x + corner[0], y + corner[1], width, height)
        smallest, largest = c.radius_px
        if max(width, height) < 2.0 * smallest - 1.0:
            return Blob(box, Rejection.SMALL)
        if (
            min(width, height) > 2.0 * largest + 2.0
            or max(width, height) > 2.0 * largest + c.max_blur_px + 2.0
        ):
            return Blob(box, Rejection.LARGE)
        if x == 0 or y == 0 or x + width == part.shape[1] or y + height == part.shape[0]:
            return Blob(box, Rejection.BORDER)
        x0, y0 = max(x - _MARGIN, 0), max(y - _MARGIN, 0)
        x1, y1 = min(x + width + _MARGIN, part.shape[1]), min(y + height + _MARGIN, part.shape[0])
        window = (slice(y0, y1), slice(x0, x1))
        good = refine_centre(part[window], back[window], mask[window], self._result)
        u, v, area, major, minor, contrast, unknown = self._result.tolist()
        centre = (u + x0 + corner[0], v + y0 + corner[1])
        if minor < smallest:
            return Blob(box, Rejection.SMALL, centre, minor)
        if minor > largest:
            return Blob(box, Rejection.LARGE, centre, minor)
        # A streak of length s has variance r²/4 + s²/12 along and r²/4 across its motion.
        blur = math.sqrt(max(3.0 * (major * major - minor * minor), 0.0))
        if blur > c.max_blur_px or (good and major > 4.0 * minor and major > 2.0 * largest):
            return Blob(box, Rejection.LONG, centre, minor)
        # Second moments of a ragged or hollow shape are those of a larger capsule than its area fills.
        fill = area / (math.pi * minor * minor + 2.0 * minor * blur)
        if fill < c.min_fill:
            return Blob(box, Rejection.RAGGED, centre, minor)
        if contrast * c.bright < 0:
            return Blob(box, Rejection.DARK, centre, minor)
        if c.ball_colour is not None and image.ndim == 3 and not self._has_colour(image, centre, minor):
            return Blob(box, Rejection.COLOUR, centre, minor)
        score = min(fill, 1.0) * (1.0 if good else 0.6) * (1.0 - 0.5 * min(unknown, 1.0))
        score *= min(abs(contrast) / (2.0 * c.threshold), 1.0) ** 0.5
        if contrast < 0.0:
            score *= 0.5  # balls are brighter than most of the room: shadows are not
        return Blob(box, None, centre, minor, min(max(score, 0.01), 1.0))

    def _has_colour(self, image: Image, centre: tuple[float, float], radius: float) -> bool:
        assert self.config.ball_colour is not None
        hue, saturation, tolerance = self.config.ball_colour
        half = max(int(0.6 * radius), 1)
        u, v = round(centre[0]), round(centre[1])
        patch = image[max(v - half, 0) : v + half + 1, max(u - half, 0) : u + half + 1]
        if patch.size == 0:
            return False
        mean = np.array(cv2.mean(patch)[:3]).reshape(1, 1, 3).astype(np.uint8)
        h, s, _ = (float(value) for value in cv2.cvtColor(mean, cv2.COLOR_BGR2HSV)[0, 0])
        distance = abs((h - hue + 90.0) % 180.0 - 90.0)
        return s >= saturation and (distance <= tolerance or saturation == 0.0)

    def _detections(self, stamp_ns: int, counter: int | None) -> CameraDetections:
        rows = [
            (*blob.centre_px, blob.radius_px, blob.score) for blob in self.blobs if blob.rejection is None
        ][: self.config.max_candidates]
        self.stats.candidates += len(rows)
        table = np.array(rows, dtype=np.float64).reshape(-1, 4)
        return CameraDetections(self.camera, stamp_ns, table[:, :2], table[:, 2], table[:, 3], counter)


def debug_picture(image: Image, detector: Detector) -> Image:
    """The image with every blob of the last search: candidates green with score, rejected ones red with reason."""
    picture = cv2.cvtColor(image, cv2.COLOR_GRAY2BGR) if image.ndim == 2 else image.copy()
    if detector.region is not None:
        left, top, right, bottom = detector.region
        cv2.rectangle(picture, (left, top), (right - 1, bottom - 1), (200, 160, 0), 1)
    for blob in detector.blobs:
        x, y, width, height = blob.box
        accepted = blob.rejection is None
        colour = (0, 220, 0) if accepted else (40, 40, 255)
        cv2.rectangle(picture, (x - 2, y - 2), (x + width + 1, y + height + 1), colour, 1)
        text = (
            f"{blob.score:.2f} r{blob.radius_px:.1f}"
            if blob.rejection is None
            else blob.rejection.name.lower()
        )
        cv2.putText(picture, text, (x, max(y - 5, 10)), cv2.FONT_HERSHEY_SIMPLEX, 0.4, colour, 1, cv2.LINE_AA)
    for polygon in detector.config.exclude:
        cv2.polylines(picture, [np.array(polygon).round().astype(np.int32)], True, (255, 0, 255), 1)
    state = "" if detector.background.ready else "learning background"
    cv2.putText(
        picture, f"{detector.camera} gain {detector.background.gain:.2f} {state}", (6, 16),
        cv2.FONT_HERSHEY_SIMPLEX, 0.5, (0, 255, 255), 1, cv2.LINE_AA,
    )  # fmt: skip
    return picture
