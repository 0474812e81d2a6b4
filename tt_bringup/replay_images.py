"""Recorded pictures as inputs of a replay: from the image topics of a bag, or from folders beside it.

Every picture is searched in full. The live node searches around the expected ball most of the time, so a few
candidates elsewhere may be new.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator
from pathlib import Path

from tt_bringup.bags import Bag
from tt_perception.backends.base import CameraSettings
from tt_perception.backends.folder import FolderBackend
from tt_perception.camera import CameraModel
from tt_perception.detection import Detector, DetectorConfig, detector_for
from tt_perception.errors import TTError
from tt_perception.messages import image_from_msg, stamp_from_msg
from tt_perception.types import CameraDetections


class ImageError(TTError):
    """Pictures that do not fit the calibration, or are not there."""


class ImageReader:
    """Detects balls in recorded pictures.

    Args:
        cameras: calibrated cameras.
        detector: how balls look to a camera; `detector_for` when left out.
    """

    def __init__(
        self, cameras: Collection[CameraModel], detector: Callable[[CameraModel], DetectorConfig] | None
    ) -> None:
        detector = detector or detector_for
        self._cameras = {camera.name: camera for camera in cameras}
        self._detectors = {camera.name: Detector(camera.name, detector(camera)) for camera in cameras}

    def message(self, bag: Bag, topic: str, stamp_ns: int, raw: bytes) -> CameraDetections:
        """Candidates in a recorded sensor_msgs/Image.

        Raises:
            TTError: it cannot be read, or has another size than the calibration.
        """
        message = bag.decode(topic, stamp_ns, raw)
        return self.detect(
            topic.split("/")[-2], stamp_from_msg(message.header.stamp), image_from_msg(message)
        )

    def detect(self, name: str, stamp_ns: int, image: object, counter: int | None = None) -> CameraDetections:
        """Candidates in one picture.

        Raises:
            TTError: it is no picture, or has another size than the calibration.
        """
        camera = self._cameras[name]
        height, width = image.shape[:2]  # type: ignore[attr-defined]
        if (height, width) != (camera.height, camera.width):
            raise ImageError(
                f"pictures of {name} have {width}×{height} px, but the calibration is for "
                f"{camera.width}×{camera.height} px; give the right one with --cameras"
            )
        return self._detectors[name].detect(image, stamp_ns - camera.time_offset_ns, counter)  # type: ignore[arg-type]

    def folder(self, path: Path, delay_ns: int) -> Iterator[tuple[int, CameraDetections]]:
        """Arrival time and candidates of all pictures of `path/<camera>`, in the order of their stamps.

        Raises:
            TTError: a folder is missing, or its pictures or stamps cannot be used.
        """
        names = [name for name in self._cameras if (path / name).is_dir()]
        if not names:
            raise ImageError(
                f"{path} has no folder {' or '.join(self._cameras)}; pictures go into one folder per camera, with "
                "a stamps.csv"
            )
        for stamp_ns, name, image, counter in heapq.merge(
            *(self._frames(path / name) for name in names), key=lambda item: item[:2]
        ):
            yield stamp_ns + delay_ns, self.detect(name, stamp_ns, image, counter)

    @staticmethod
    def _frames(path: Path) -> Iterator[tuple[int, str, object, int | None]]:
        if not (path / "stamps.csv").is_file():
            raise ImageError(
                f"{path} has no stamps.csv: lines `file,stamp_ns` say when each picture was taken"
            )
        backend = FolderBackend(CameraSettings(device=str(path)), lambda: 0, paced=False)
        backend.open()
        while True:
            try:
                frame = backend.read(0.0)
            except EOFError:
                return
            assert frame is not None  # it waits for nothing
            yield frame.stamp_ns, path.name, frame.image, frame.counter
