"""What every camera backend offers: a frame with an honest stamp, features known before opening, bounded waits."""

from __future__ import annotations

import queue
from dataclasses import dataclass
from enum import Enum
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from tt_perception.errors import TTError

Image = NDArray[np.uint8]


class CameraSetupError(TTError):
    """A camera that cannot do what was asked: wrong name, setting or missing driver; trying again does not help."""


class CameraLostError(TTError):
    """A camera that stopped answering or was unplugged. Trying again may help."""


class StampSource(Enum):
    """Where the mid-exposure time of a frame comes from, best first."""

    EXACT = "simulator or file"
    DEVICE = "device clock mapped to the host clock"
    DRIVER = "driver time of the frame"
    ARRIVAL = "arrival in the computer minus the usual delay"


@dataclass(frozen=True, slots=True)
class Frame:
    """One image.

    Attributes:
        image: grey (h, w) or BGR (h, w, 3), uint8.
        stamp_ns: mid-exposure time on the node clock.
        stamp_source: where it comes from.
        stamp_sigma_ns: its uncertainty.
        arrival_ns: when the image was complete in the computer, node clock.
        counter: trigger or frame counter of the device, None when it has none.
        exposure_ns: shutter time, 0 when unknown.
    """

    image: Image
    stamp_ns: int
    stamp_source: StampSource
    stamp_sigma_ns: int
    arrival_ns: int
    counter: int | None = None
    exposure_ns: int = 0


@dataclass(frozen=True)
class CameraSettings:
    """What a backend is asked for.

    Attributes:
        device: path, index, serial number, folder, file or topic, as the backend needs.
        width: px; 0 takes what the device gives.
        height: px; 0 takes what the device gives.
        fps: images per second.
        exposure_s: shutter time; 0 leaves it to the device.
        gain: device units; negative leaves it to the device.
        trigger: `free` (own clock), `hardware` (line 1 of the device) or `software`.
        pixel_format: `mono` or `colour`.
        delay_s: usual time from mid-exposure to arrival, for stamps by arrival and for simulated delivery.
    """

    device: str = ""
    width: int = 0
    height: int = 0
    fps: float = 120.0
    exposure_s: float = 0.002
    gain: float = -1.0
    trigger: str = "free"
    pixel_format: str = "mono"
    delay_s: float = 0.0

    def __post_init__(self) -> None:
        if not (np.isfinite(self.fps) and 0.1 <= self.fps <= 2000.0):
            raise CameraSetupError(f"fps {self.fps:g} Hz must be 0.1..2000; set the rate of the camera")
        if self.width < 0 or self.height < 0 or self.width > 20000 or self.height > 20000:
            raise CameraSetupError(f"image size {self.width}×{self.height} px is not possible")
        if not 0.0 <= self.exposure_s < 1.0 / self.fps:
            raise CameraSetupError(
                f"exposure {self.exposure_s * 1e3:g} ms does not fit into {1e3 / self.fps:.2f} ms between "
                f"images ({self.fps:g} Hz)"
            )


@dataclass(frozen=True)
class CameraFeatures:
    """What a backend can do, known before it is opened.

    Attributes:
        counter: frames carry a counter.
        stamp_source: best source of its stamps.
        triggers: which triggers it can follow.
        formats: pixel formats.
    """

    counter: bool
    stamp_source: StampSource
    triggers: tuple[str, ...] = ("free",)
    formats: tuple[str, ...] = ("mono", "colour")


class CameraBackend(Protocol):
    """The contract. `open`, `read` and `close` are called from one thread."""

    features: CameraFeatures

    def open(self) -> str:
        """Connect and start; returns what was connected, in words.

        Raises:
            CameraSetupError: impossible settings or missing driver.
            CameraLostError: no such camera now.
        """
        ...

    def read(self, timeout_s: float) -> Frame | None:
        """Next frame, or None when none came in time.

        Raises:
            CameraLostError: the camera is gone.
            EOFError: a recording is over.
        """
        ...

    def close(self) -> None:
        """Stop and let go of the device; never raises, may be called at any time."""
        ...


def check_supported(settings: CameraSettings, features: CameraFeatures, backend: str) -> None:
    """Refuse settings that the backend cannot fulfil.

    Raises:
        CameraSetupError: trigger or pixel format not offered.
    """
    if settings.trigger not in features.triggers:
        raise CameraSetupError(
            f"trigger {settings.trigger!r} is not possible with {backend}; it offers "
            f"{', '.join(features.triggers)}"
        )
    if settings.pixel_format not in features.formats:
        raise CameraSetupError(
            f"pixel format {settings.pixel_format!r} is not possible with {backend}; "
            f"it offers {', '.join(features.formats)}"
        )


class QueueBackend:
    """Frames that somebody else delivers, e.g. a subscription to an image topic.

    Args:
        depth: frames kept; the oldest is dropped when the reader is too slow.
    """

    features = CameraFeatures(False, StampSource.DRIVER, ("free", "hardware", "software"))

    def __init__(self, depth: int = 4) -> None:
        self._frames: queue.Queue[Frame] = queue.Queue(depth)
        self.dropped = 0

    def open(self) -> str:
        """Nothing to connect."""
        return "frames from a topic"

    def push(self, frame: Frame) -> None:
        """Hand over a frame; never blocks."""
        while True:
            try:
                self._frames.put_nowait(frame)
                return
            except queue.Full:
                try:
                    self._frames.get_nowait()
                    self.dropped += 1
                except queue.Empty:
                    pass

    def read(self, timeout_s: float) -> Frame | None:
        """Next frame, or None when none came in time."""
        try:
            return self._frames.get(timeout=timeout_s)
        except queue.Empty:
            return None

    def close(self) -> None:
        """Forget what waits."""
        while not self._frames.empty():
            self._frames.get_nowait()
