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
        self._scaled: Image | None = None
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

    def picture(self, image: Image) -> Image:
        """Background at the brightness of `image`; learns from the first images.

        Args:
            image: grey, shape (h, w).

        Returns:
            Same shape. Do not change it; it is valid until the next call.
        """
        if not self.matches(image):
            self._mean = image.astype(np.float32)
            self._picture = image.copy()
            self._scaled = np.empty_like(image)
            self._probe = self._mean[_PROBE // 2 :: _PROBE, _PROBE // 2 :: _PROBE].copy()
            self._seen = 1
            self.gain = 1.0
            return self._picture
        assert self._mean is not None and self._picture is not None and self._scaled is not None
        if not self.ready:
            self._seen += 1
            cv2.accumulateWeighted(image, self._mean, 1.0 / self._seen)
            self._picture = np.rint(self._mean).astype(np.uint8)
            self._probe = self._mean[_PROBE // 2 :: _PROBE, _PROBE // 2 :: _PROBE].copy()
            return self._picture
        self.gain = self._brightness(image)
        if abs(self.gain - 1.0) < _GAIN_STEP:
            self.gain = 1.0
            return self._picture
        cv2.convertScaleAbs(self._picture, self._scaled, self.gain, 0.0)
        return self._scaled

    def part(self, image: Image, region: tuple[int, int, int, int]) -> Image:
        """Background of a region (left, top, right, bottom) at the brightness it has in `image`.

        The brightness comes from the means of the region: a ball in it changes them by less than a percent.
        """
        assert self._picture is not None and self.ready
        left, top, right, bottom = region
        still = self._picture[top:bottom, left:right]
        now, before = cv2.mean(image[top:bottom, left:right])[0], cv2.mean(still)[0]
        self.gain = min(max((now + 1.0) / (before + 1.0), 0.3), 3.0)
        if abs(self.gain - 1.0) < _GAIN_STEP:
            return still
        return cv2.convertScaleAbs(still, alpha=self.gain)

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
        if abs(self.gain - 1.0) >= _GAIN_STEP:
            # A passing change of the light is not learnt at once: it may go as it came.
            picture = cv2.convertScaleAbs(picture, alpha=(1.0 + 0.2 * (self.gain - 1.0)) / self.gain)
        if mask is None:
            cv2.accumulateWeighted(picture, mean, self.rate)
        else:
            foreground = mask[stripe]
            cv2.accumulateWeighted(picture, mean, self.rate, cv2.bitwise_not(foreground))
            cv2.accumulateWeighted(picture, mean, 0.1 * self.rate, foreground)
        self._picture[stripe] = cv2.convertScaleAbs(mean)
        probe_rows = np.arange(_PROBE // 2, image.shape[0], _PROBE)
        inside = (probe_rows >= stripe.start) & (probe_rows < stripe.stop)
        if inside.any():
            self._probe[inside] = self._mean[probe_rows[inside], _PROBE // 2 :: _PROBE]

    def _brightness(self, image: Image) -> float:
        """Median ratio of image and mean over a grid of pixels: blind to whatever covers less than half "
        "of it.
        """
        assert self._probe is not None
        probe = image[_PROBE // 2 :: _PROBE, _PROBE // 2 :: _PROBE].astype(np.float32)
        ratio = (probe + 1.0) / (self._probe + 1.0)
        return float(np.clip(np.median(ratio), 0.3, 3.0))
