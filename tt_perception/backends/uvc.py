"""USB cameras through OpenCV and V4L2: settings are read back and checked, plausible driver times believed."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import cv2

from tt_perception.backends.base import (
    CameraFeatures,
    CameraLostError,
    CameraSettings,
    CameraSetupError,
    Frame,
    StampSource,
)

_MAX_DRIVER_AGE_S = 0.25
_MANUAL_EXPOSURE = 1.0  # V4L2_EXPOSURE_MANUAL
# Formats of the wire, best first: what needs no decoding comes first for grey images.
_FORMATS = {"mono": ("GREY", "YUYV", "MJPG"), "colour": ("MJPG", "YUYV", "BGR3")}
_EXPOSURE_UNIT_S = 1e-4  # V4L2_CID_EXPOSURE_ABSOLUTE counts 100 µs
_RATE_TOLERANCE = 0.05
_LOST_AFTER = 3  # failed grabs in a row


class UvcBackend:
    """One V4L2 camera.

    Args:
        settings: `device` is a number or `/dev/video…`.
        now_ns: node clock.
        make_capture: replaces `cv2.VideoCapture` in tests.
        monotonic_s: clock of the driver times.
    """

    features = CameraFeatures(False, StampSource.DRIVER, ("free", "hardware"))

    def __init__(
        self,
        settings: CameraSettings,
        now_ns: Callable[[], int],
        make_capture: Callable[[Any], Any] | None = None,
        monotonic_s: Callable[[], float] = time.monotonic,
    ) -> None:
        self._settings = settings
        self._now_ns = now_ns
        self._make_capture = make_capture or _open_v4l2
        self._monotonic_s = monotonic_s
        self._capture: Any = None
        self._failures = 0
        self.driver_times_refused = 0

    def open(self) -> str:
        """Open the device, set it up and check what it really does.

        Raises:
            CameraLostError: there is no such device now.
            CameraSetupError: it does not do what was asked.
        """
        device = self._settings.device or "0"
        target: Any = int(device) if device.isdigit() else device
        capture = self._make_capture(target)
        if not capture.isOpened():
            raise CameraLostError(
                f"no camera at {device!r}; plugged in, and allowed to you (group video)? `v4l2-ctl "
                f"--list-devices` lists them"
            )
        self._capture = capture
        self._failures = 0
        s = self._settings
        problems = []
        for code in _FORMATS[s.pixel_format]:
            self._set_up(capture, code)
            problem = self._mode_problem(capture, code)
            if not problem:
                return self._check(capture, device, code)
            problems.append(f"{code}: {problem}")
        raise CameraSetupError(
            f"{device}: has no mode of {s.width or 'any'}×{s.height or 'any'} px at {s.fps:g} Hz for "
            f"{s.pixel_format} images ({'; '.join(problems)}); `v4l2-ctl -d {device} --list-formats-ext` lists "
            "its modes"
        )

    def _set_up(self, capture: Any, code: str) -> None:
        s = self._settings
        capture.set(cv2.CAP_PROP_FOURCC, float(_fourcc(code)))
        if s.width and s.height:
            capture.set(cv2.CAP_PROP_FRAME_WIDTH, float(s.width))
            capture.set(cv2.CAP_PROP_FRAME_HEIGHT, float(s.height))
        capture.set(cv2.CAP_PROP_FPS, s.fps)
        capture.set(cv2.CAP_PROP_BUFFERSIZE, 1.0)
        if s.exposure_s > 0.0:
            capture.set(cv2.CAP_PROP_AUTO_EXPOSURE, _MANUAL_EXPOSURE)
            capture.set(cv2.CAP_PROP_EXPOSURE, max(round(s.exposure_s / _EXPOSURE_UNIT_S), 1.0))
        if s.gain >= 0.0:
            capture.set(cv2.CAP_PROP_GAIN, s.gain)

    def _mode_problem(self, capture: Any, code: str) -> str:
        """How format, size and rate differ from what was asked; empty when they do not."""
        s = self._settings
        got = _code(capture.get(cv2.CAP_PROP_FOURCC))
        if got != code:
            return f"the camera gives {got} instead"
        width, height = _size(capture)
        if s.width and s.height and (width, height) != (s.width, s.height):
            return f"gives {width}×{height} px, not {s.width}×{s.height}"
        fps = float(capture.get(cv2.CAP_PROP_FPS))
        if not fps > 0.0:
            return f"reports {fps:g} images per second"
        if abs(fps - s.fps) > _RATE_TOLERANCE * s.fps:
            return f"gives {fps:g} Hz, not {s.fps:g} Hz"
        return ""

    def _check(self, capture: Any, device: str, code: str) -> str:
        """Exposure and gain as asked; returns what was connected."""
        s = self._settings
        if s.exposure_s > 0.0:
            if capture.get(cv2.CAP_PROP_AUTO_EXPOSURE) != _MANUAL_EXPOSURE:
                raise CameraSetupError(
                    f"{device}: does not leave automatic exposure; set exposure to 0 to accept that (motion blur "
                    "and stamps get worse)"
                )
            exposure = float(capture.get(cv2.CAP_PROP_EXPOSURE)) * _EXPOSURE_UNIT_S
            if abs(exposure - s.exposure_s) > max(0.1 * s.exposure_s, _EXPOSURE_UNIT_S):
                raise CameraSetupError(
                    f"{device}: exposes {exposure * 1e3:.2f} ms, not {s.exposure_s * 1e3:.2f} ms; set "
                    "exposure to 0 to leave it to the camera (motion blur and stamps get worse)"
                )
        if s.gain >= 0.0 and abs(float(capture.get(cv2.CAP_PROP_GAIN)) - s.gain) > 0.05 * max(s.gain, 1.0):
            raise CameraSetupError(f"{device}: gain is {capture.get(cv2.CAP_PROP_GAIN):g}, not {s.gain:g}")
        width, height = _size(capture)
        return f"V4L2 {device}, {code} {width}×{height} px at {capture.get(cv2.CAP_PROP_FPS):g} Hz"

    def read(self, timeout_s: float) -> Frame | None:
        """Next frame.

        OpenCV's own V4L2 time-out bounds the wait (OPENCV_VIDEOIO_V4L_SELECT_TIMEOUT, which the stack sets to 1 s).

        Raises:
            CameraLostError: several grabs failed.
        """
        if self._capture is None:
            raise CameraLostError("the camera is not open")
        if not self._capture.grab():
            self._failures += 1
            if self._failures >= _LOST_AFTER:
                raise CameraLostError(f"camera {self._settings.device!r} gives no more images; unplugged?")
            return None
        self._failures = 0
        arrival = self._now_ns()
        arrival_s = self._monotonic_s()
        good, image = self._capture.retrieve()
        if not good or image is None or image.size == 0:
            return None
        if self._settings.pixel_format == "mono" and image.ndim == 3:
            image = cv2.cvtColor(image, cv2.COLOR_BGR2GRAY)
        exposure_ns = round(self._settings.exposure_s * 1e9)
        age_s = arrival_s - float(self._capture.get(cv2.CAP_PROP_POS_MSEC)) * 1e-3
        if 0.0 < age_s < _MAX_DRIVER_AGE_S:
            # V4L2 stamps the first data of a frame: the end of its exposure.
            stamp = arrival - round(age_s * 1e9) - exposure_ns // 2
            return Frame(image, stamp, StampSource.DRIVER, 1_000_000, arrival, None, exposure_ns)
        self.driver_times_refused += 1
        stamp = arrival - round(self._settings.delay_s * 1e9)
        return Frame(image, stamp, StampSource.ARRIVAL, 5_000_000, arrival, None, exposure_ns)

    def close(self) -> None:
        """Release the device."""
        if self._capture is not None:
            self._capture.release()
            self._capture = None


def _fourcc(code: str) -> int:
    return sum(ord(letter) << (8 * index) for index, letter in enumerate(code))


def _code(value: float) -> str:
    return int(value).to_bytes(4, "little").decode("ascii", "replace")


def _size(capture: Any) -> tuple[int, int]:
    return int(capture.get(cv2.CAP_PROP_FRAME_WIDTH)), int(capture.get(cv2.CAP_PROP_FRAME_HEIGHT))


def _open_v4l2(target: Any) -> Any:
    if not sys.platform.startswith("linux"):
        raise CameraSetupError(
            "USB cameras need Linux (V4L2); use backend image with a driver of your system"
        )
    return cv2.VideoCapture(target, cv2.CAP_V4L2)
