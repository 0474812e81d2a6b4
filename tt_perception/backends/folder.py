"""Images of a folder, or a video, with a file of stamps: a recording played as a camera.

Stamp file: `stamps.csv` in the folder, or `<video>.csv` beside the video, with the header `file,stamp_ns` or
`stamp_ns` and optional columns `counter` and `exposure_ns`; one line per image. Without it the images are
stamped at the rate `fps` of the settings from now on.
"""

from __future__ import annotations

import csv
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import cv2

from tt_perception.backends.base import (
    CameraFeatures,
    CameraSettings,
    CameraSetupError,
    Frame,
    Image,
    StampSource,
)

_SUFFIXES = (".png", ".jpg", ".jpeg", ".bmp", ".tif", ".tiff", ".pgm")


@dataclass(frozen=True)
class _Entry:
    name: str
    stamp_ns: int
    counter: int | None
    exposure_ns: int


class FolderBackend:
    """Plays a folder or video in its own rhythm.

    Args:
        settings: `device` is the folder or the video file.
        now_ns: node clock.
        paced: wait until an image is due; False gives them as fast as they are read.
    """

    features = CameraFeatures(True, StampSource.EXACT, ("free", "hardware", "software"))

    def __init__(self, settings: CameraSettings, now_ns: Callable[[], int], paced: bool = True) -> None:
        self._settings = settings
        self._now_ns = now_ns
        self._paced = paced
        self._frames: Iterator[tuple[Image, _Entry]] | None = None
        self._shift_ns = 0
        self._next: tuple[Image, _Entry] | None = None

    def open(self) -> str:
        """Find the images and their stamps.

        Raises:
            CameraSetupError: no such file, no image in it, or a stamp file that does not fit.
        """
        path = Path(self._settings.device)
        if not self._settings.device or not path.exists():
            raise CameraSetupError(f"no folder or video {self._settings.device!r}; give its path as device")
        if path.is_dir():
            names = sorted(item.name for item in path.iterdir() if item.suffix.lower() in _SUFFIXES)
            if not names:
                raise CameraSetupError(f"{path}: no image ({', '.join(_SUFFIXES)}) in this folder")
            entries = self._entries(path / "stamps.csv", names)
            self._frames = self._from_folder(path, entries)
            what = f"{len(entries)} images of {path}"
        else:
            capture = cv2.VideoCapture(str(path))
            if not capture.isOpened():
                raise CameraSetupError(
                    f"{path}: OpenCV cannot open this video; convert it to MJPG in AVI or to images"
                )
            count = max(int(capture.get(cv2.CAP_PROP_FRAME_COUNT)), 0)
            entries = self._entries(
                path.with_suffix(path.suffix + ".csv"), [str(index) for index in range(count)]
            )
            self._frames = self._from_video(capture, entries)
            what = f"video {path} with {count} images"
        self._shift_ns = 0
        self._next = next(self._frames, None)
        if self._next is None:
            raise CameraSetupError(f"{path}: no image can be read")
        if self._paced:
            # Old stamps are moved to now; their spacing stays.
            self._shift_ns = self._now_ns() + 50_000_000 - self._next[1].stamp_ns
        return what

    def read(self, timeout_s: float) -> Frame | None:
        """Next image.

        Raises:
            EOFError: after the last one.
        """
        if self._next is None or self._frames is None:
            raise EOFError("end of the recording")
        image, entry = self._next
        stamp = entry.stamp_ns + self._shift_ns
        if self._paced:
            wait_s = (stamp + round(self._settings.delay_s * 1e9) - self._now_ns()) * 1e-9
            if wait_s > timeout_s:
                time.sleep(timeout_s)
                return None
            if wait_s > 0.0:
                time.sleep(wait_s)
        self._next = next(self._frames, None)
        return Frame(image, stamp, StampSource.EXACT, 0, self._now_ns(), entry.counter, entry.exposure_ns)

    def close(self) -> None:
        """Let go of the files."""
        self._frames = None
        self._next = None

    def _from_folder(self, folder: Path, entries: list[_Entry]) -> Iterator[tuple[Image, _Entry]]:
        for entry in entries:
            image = cv2.imread(str(folder / entry.name), cv2.IMREAD_UNCHANGED)
            if image is None:
                raise CameraSetupError(f"{folder / entry.name}: not a readable image")
            yield self._formatted(image), entry

    def _from_video(self, capture: cv2.VideoCapture, entries: list[_Entry]) -> Iterator[tuple[Image, _Entry]]:
        try:
            for entry in entries:
                good, image = capture.read()
                if not good:
                    return
                yield self._formatted(image), entry
        finally:
            capture.release()

    def _formatted(self, image: Image) -> Image:
        if image.ndim == 3 and image.shape[2] == 4:
            image = image[:, :, :3]
        if image.dtype != "uint8":
            image = cv2.convertScaleAbs(image, alpha=255.0 / 65535.0)
        if self._settings.pixel_format == "mono" and image.ndim == 3:
            return cv2.cvtColor(image, cv2.COLOR_BGR2GRAY)
        if self._settings.pixel_format == "colour" and image.ndim == 2:
            return cv2.cvtColor(image, cv2.COLOR_GRAY2BGR)
        return image

    def _entries(self, path: Path, names: list[str]) -> list[_Entry]:
        if not path.exists():
            step = 1e9 / self._settings.fps
            return [_Entry(name, round(1 + index * step), index, 0) for index, name in enumerate(names)]
        try:
            rows = list(csv.DictReader(path.read_text(encoding="utf-8").splitlines()))
            entries = [
                _Entry(
                    row.get("file") or names[index],
                    int(row["stamp_ns"]),
                    int(row["counter"]) if row.get("counter") else None,
                    int(row["exposure_ns"]) if row.get("exposure_ns") else 0,
                )
                for index, row in enumerate(rows)
            ]
        except (KeyError, ValueError, IndexError, UnicodeDecodeError) as error:
            raise CameraSetupError(
                f"{path}: not a stamp file ({type(error).__name__}: {error}); needs a header with stamp_ns "
                f"and whole numbers"
            ) from error
        for before, after in pairwise(entries):
            if after.stamp_ns <= before.stamp_ns:
                raise CameraSetupError(
                    f"{path}: stamp {after.stamp_ns} ns of {after.name} is not after {before.stamp_ns} ns "
                    f"of {before.name}"
                )
        if not entries or entries[0].stamp_ns <= 0:
            raise CameraSetupError(f"{path}: needs stamps greater than 0, one line per image")
        return entries
