"""Background of a still camera that follows slow changes of the light and forgets objects that stay."""

from __future__ import annotations

import cv2
import numpy as np
from numpy.typing import NDArray

Image = NDArray[np.uint8]

_STRIPES = 16  # one is updated per image: a sixteenth of the cost, and the still scene changes slowly
_PROBE = 32  # every 32nd pixel of both axes tells the brightness
_GAIN_STEP = 0.01  # smaller changes of brightness stay under the threshold of the detector


class BackgroundModel:
    """Running mean of the scene with a brightness factor for light that changes faster than the mean.

    Args:
        rate: weight of a new image in the mean, per update of a stripe (every 16th image).
        start_images: images averaged plainly before the running mean begins.
    """

    def __init__(self, rate: float = 0.1, start_images: int = 8) -> None:
        self.rate = rate
        self.start_images = start_images
        self.gain = 1.0
        self._mean: NDArray[np.float32] | None = None
        self._picture: Image | None = None
        self._probe: NDArray[np.float32] | None = None
        self._seen = 0

    @property
    def ready(self) -> bool:
        """Enough images were seen to tell what moves."""
        return self._seen >= self.start_images

    def reset(self) -> None:
        """Forget everything, e.g. after the camera was moved or its exposure changed."""
        self._mean = None
        self._seen = 0

    def matches(self, image: Image) -> bool:
        """The model was learnt from images of this size."""
        return self._mean is not None and self._mean.shape == image.shape

    def follow(self, image: Image) -> None:
        """Take the brightness of a whole image; learn from the first images.

        Args:
            image: grey, shape (h, w).
        """
        if not self.matches(image):
            self._mean = image.astype(np.float32)
            self._picture = image.copy()
            self._seen = 1
            self.gain = 1.0
        elif not self.ready:
            assert self._mean is not None
            self._seen += 1
            cv2.accumulateWeighted(image, self._mean, 1.0 / self._seen)
            self._picture = np.rint(self._mean).astype(np.uint8)
        else:
            gain = self._brightness(image)
            self.gain = 1.0 if abs(gain - 1.0) < _GAIN_STEP else gain
            return
        assert self._mean is not None
        self._probe = self._mean[_PROBE // 2 :: _PROBE, _PROBE // 2 :: _PROBE].copy()

    def rows(self, step: int, out: Image) -> Image:
        """Every `step`-th row of the background at the brightness of the last image.

        Args:
            step: 1 for all.
            out: memory for the result, used when the light has changed.
        """
        assert self._picture is not None
        return self._lit(self._picture[::step], out)

    def crop(self, box: tuple[int, int, int, int]) -> Image:
        """Background of a region (left, top, right, bottom) at the brightness of the last image."""
        assert self._picture is not None
        left, top, right, bottom = box
        return self._lit(self._picture[top:bottom, left:right])

    def part(self, image: Image, region: tuple[int, int, int, int]) -> Image:
        """Background of a region (left, top, right, bottom) at the brightness it has in `image`.

        The brightness comes from the means of the region: a ball in it changes them by less than a percent.
        """
        assert self._picture is not None and self.ready
        left, top, right, bottom = region
        still = self._picture[top:bottom, left:right]
        now = cv2.mean(image[top:bottom:2, left:right])[0]  # every second row tells it as well
        before = cv2.mean(still[::2])[0]
        self.gain = min(max((now + 1.0) / (before + 1.0), 0.3), 3.0)
        if abs(self.gain - 1.0) < _GAIN_STEP:
            self.gain = 1.0
        return self._lit(still)

    def learn(self, image: Image, mask: Image | None = None) -> None:
        """Take one stripe of the image into the mean; pixels set in `mask` (foreground) count a tenth."""
        if not self.ready or not self.matches(image):
            return
        assert self._mean is not None and self._picture is not None and self._probe is not None
        self._seen += 1
        rows = -(-image.shape[0] // _STRIPES)
        first = (self._seen % _STRIPES) * rows
        stripe = slice(first, min(first + rows, image.shape[0]))
        if stripe.start >= stripe.stop:
            return
        mean, picture = self._mean[stripe], image[stripe]
        if self.gain != 1.0:
            # A passing change of the light is not learnt at once: it may go as it came.
            picture = cv2.convertScaleAbs(picture, alpha=(1.0 + 0.2 * (self.gain - 1.0)) / self.gain)
        foreground = None if mask is None else mask[stripe]
        if foreground is None or not cv2.countNonZero(foreground):
            cv2.accumulateWeighted(picture, mean, self.rate)
        else:
            cv2.accumulateWeighted(picture, mean, self.rate, cv2.bitwise_not(foreground))
            cv2.accumulateWeighted(picture, mean, 0.1 * self.rate, foreground)
        self._picture[stripe] = cv2.convertScaleAbs(mean)
        probe_rows = np.arange(_PROBE // 2, image.shape[0], _PROBE)
        inside = (probe_rows >= stripe.start) & (probe_rows < stripe.stop)
        if inside.any():
            self._probe[inside] = self._mean[probe_rows[inside], _PROBE // 2 :: _PROBE]

    def _lit(self, still: Image, out: Image | None = None) -> Image:
        return still if self.gain == 1.0 else cv2.convertScaleAbs(still, out, self.gain, 0.0)

    def _brightness(self, image: Image) -> float:
        """Median ratio of image and mean over a grid of pixels: blind to what covers less than half of it."""
        assert self._probe is not None
        probe = image[_PROBE // 2 :: _PROBE, _PROBE // 2 :: _PROBE].astype(np.float32)
        ratio = ((probe + 1.0) / (self._probe + 1.0)).ravel()
        middle = ratio.size // 2
        return min(max(float(np.partition(ratio, middle)[middle]), 0.3), 3.0)
