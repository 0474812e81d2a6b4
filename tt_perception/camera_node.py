"""Node of one camera: grab, detect, publish. Images cross DDS only as a preview or on request."""

from __future__ import annotations

import importlib
import threading
import time
from dataclasses import dataclass, replace
from typing import Any

import cv2

from tt_bringup.node_kit import TTNode, param, run_node
from tt_perception.backends.base import (
    CameraBackend,
    CameraLostError,
    CameraSettings,
    CameraSetupError,
    Frame,
    QueueBackend,
    StampSource,
    check_supported,
)
from tt_perception.camera import CameraModel, default_sim_cameras, load_cameras
from tt_perception.detection import DetectionError, Detector, debug_picture, detector_for, load_detector
from tt_perception.expected_ball import ExpectedBall
from tt_perception.messages import (
    MessageError,
    ball_motion_from_raw,
    camera_info_to_msg,
    detections_to_raw,
    image_from_msg,
    image_to_msg,
    stamp_from_msg,
)
from tt_perception.plausibility import check_rig

# The renderer belongs to the simulation, which perception must not depend on: it is named, not imported.
_BACKENDS = {
    "uvc": "tt_perception.backends.uvc:UvcBackend",
    "basler": "tt_perception.backends.basler:BaslerBackend",
    "folder": "tt_perception.backends.folder:FolderBackend",
    "sim": "tt_sim.render_backend:RenderedBackend",
}
_READ_TIMEOUT_S = 0.2
_RETRY_S = (0.5, 1.0, 2.0, 5.0)
_SILENT_S = 1.0


@dataclass(frozen=True)
class CameraParams:
    """Parameters of a camera node."""

    camera: str = param("cam0", doc="Name of the camera; topics and frames derive from it.")
    cameras: str = param("", doc="Extrinsics YAML that contains the camera; empty for the simulated cameras.")
    backend: str = param(
        "sim", choices=("uvc", "basler", "folder", "image", "sim"), doc="Where the images come from."
    )
    device: str = param(
        "", doc="uvc: /dev/videoN or N; basler: serial number; folder: folder or video file; image: topic."
    )
    width: int = param(0, unit="px", ge=0, le=20000, doc="Image width; 0 takes that of the calibration.")
    height: int = param(0, unit="px", ge=0, le=20000, doc="Image height; 0 takes that of the calibration.")
    fps: float = param(120.0, unit="Hz", ge=0.1, le=2000.0, doc="Images per second.")
    exposure: float = param(0.002, unit="s", ge=0.0, le=1.0, doc="Shutter time; 0 leaves it to the camera.")
    gain: float = param(-1.0, doc="Gain in units of the camera; negative leaves it to the camera.")
    trigger: str = param("free", choices=("free", "hardware", "software"), doc="What starts an exposure.")
    pixel_format: str = param("mono", choices=("mono", "colour"), doc="Images are grey or BGR.")
    delay: float = param(
        0.0, unit="s", ge=0.0, le=1.0,
        doc="Usual time from mid-exposure to arrival, for cameras without clock; simulated delivery delay.",
    )  # fmt: skip
    detector: str = param("", doc="Detector YAML (ball size, threshold, colour, excluded regions).")
    region: bool = param(True, live=True, doc="Search around the predicted ball only, full frame on loss.")
    preview_hz: float = param(
        0.0,
        unit="Hz",
        ge=0.0,
        le=1000.0,
        live=True,
        doc="Rate of image_raw; 0 for none, 1000 for every image.",
    )
    debug_hz: float = param(
        0.0,
        unit="Hz",
        ge=0.0,
        le=120.0,
        live=True,
        doc="Rate of debug/image, which shows why blobs were rejected.",
    )
    scene: bool = param(False, doc="Simulated scene with person, second ball and changing light.")


class CameraNode(TTNode):
    """One camera."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__("camera_node", CameraParams, **kwargs)
        p: CameraParams = self.params
        self._stop = threading.Event()
        self._camera = _calibration(p)
        self._settings = CameraSettings(
            device=p.device, width=p.width or self._camera.width, height=p.height or self._camera.height,
            fps=p.fps, exposure_s=p.exposure, gain=p.gain, trigger=p.trigger, pixel_format=p.pixel_format,
            delay_s=p.delay,
        )  # fmt: skip
        config = load_detector(p.detector) if p.detector else detector_for(self._camera, p.exposure)
        self._detector = Detector(p.camera, config)
        self._detector.warm_up()
        self._expected = ExpectedBall(self._camera)
        self._backend = self._make_backend(p)
        check_supported(self._settings, self._backend.features, p.backend)
        self._detections_pub = self.advertise("{camera}/detections", camera=p.camera)
        self._image_pub = self.advertise("{camera}/image_raw", camera=p.camera)
        self._debug_pub = self.advertise("{camera}/debug/image", camera=p.camera)
        self._info_pub = self.advertise("{camera}/camera_info", camera=p.camera)
        self._info_pub.publish(camera_info_to_msg(self._camera, self.now_ns()))
        self.listen("ball/state", self._on_state, raw=True)
        self._next_preview = self._next_debug = 0.0
        self._last_frame = time.monotonic()
        self._rate = 0.0
        self._stamp_source = ""
        self._work_us = 0.0
        self.log.info(f"{p.camera}: calibration {self._camera.checksum} {p.cameras or '(simulated)'}")
        self._thread = threading.Thread(target=self._run, name="grab", daemon=True)
        self._thread.start()

    def diagnostic_values(self) -> dict[str, str | float]:
        """Rate, stamps and what the detector did."""
        silent = time.monotonic() - self._last_frame
        if silent > _SILENT_S:
            self.health("error", f"no image for {silent:.0f} s", key="silent")
        else:
            self.health("ok", key="silent")
        stats = self._detector.stats
        return {
            "camera": self.params.camera,
            "calibration": self._camera.checksum,
            "images_per_s": self._rate,
            "stamp_source": self._stamp_source,
            "detect_us": self._work_us,
            "light": self._detector.background.gain,
            "images": stats.images,
            "regions": stats.regions,
            "candidates": stats.candidates,
            **{f"rejected_{reason}": count for reason, count in stats.rejected.items() if count},
        }

    def cleanup(self) -> None:
        """Stops grabbing and lets go of the device."""
        self._stop.set()
        thread = getattr(self, "_thread", None)
        if thread is not None and thread is not threading.current_thread():
            thread.join(timeout=2.0)

    def _make_backend(self, p: CameraParams) -> Any:
        if p.backend == "image":
            if not p.device:
                raise CameraSetupError("backend image needs the parameter device: the topic to subscribe to")
            from rclpy.qos import qos_profile_sensor_data
            from sensor_msgs.msg import Image

            self.create_subscription(Image, p.device, self._on_image, qos_profile_sensor_data)
            return QueueBackend()
        module, name = _BACKENDS[p.backend].split(":")
        backend = getattr(importlib.import_module(module), name)
        if p.backend == "sim":
            self.listen("sim/ball_truth", self._on_truth, raw=True)
            return backend(self._camera, self._settings, self.now_ns, _scene(p), _seed(p.camera))
        return backend(self._settings, self.now_ns)

    def _on_truth(self, raw: bytes) -> None:
        self._backend.push_truth(*ball_motion_from_raw(raw))

    def _on_state(self, raw: bytes) -> None:
        self._expected.update(*ball_motion_from_raw(raw))

    def _on_image(self, message: Any) -> None:
        arrival = self.now_ns()
        try:
            image = image_from_msg(message)
        except MessageError as error:
            self.count("bad_image")
            self.log.error(f"{self.params.device}: {error}", throttle_s=5.0)
            self.health("error", str(error), key="image", hold_s=3.0)
            return
        stamp = stamp_from_msg(message.header.stamp)
        source, sigma = StampSource.DRIVER, 1_000_000
        if not 0 <= arrival - stamp < 1_000_000_000:
            self.count("stamp_not_plausible")
            self.log.warning(
                f"{self.params.device}: stamp is {(arrival - stamp) * 1e-9:.3f} s old; using the arrival "
                f"time",
                throttle_s=5.0,
            )
            stamp, source, sigma = (
                arrival - round(self._settings.delay_s * 1e9),
                StampSource.ARRIVAL,
                5_000_000,
            )
        self._backend.push(Frame(image, stamp, source, sigma, arrival))

    def _run(self) -> None:
        """Grab thread: connect, read, detect, publish; connect again after a loss."""
        try:
            attempt = 0
            while not self._stop.is_set():
                try:
                    opened = self._backend.open()
                    self.log.info(f"{self.params.camera}: {opened}")
                    self.health("ok", key="device")
                    attempt = 0
                    self._grab(self._backend)
                except CameraLostError as error:
                    self.count("lost")
                    self.log.error(f"{self.params.camera}: {error}", throttle_s=5.0)
                    self.health("error", str(error), key="device")
                finally:
                    self._backend.close()
                self._stop.wait(_RETRY_S[min(attempt, len(_RETRY_S) - 1)])
                attempt += 1
        except EOFError:
            self.log.info(f"{self.params.camera}: end of the recording")
        except (CameraSetupError, DetectionError) as error:
            self.log.error(f"{self.params.camera}: {error}")
            self.health("error", str(error), key="device")
        except Exception as error:
            if not self._stop.is_set():
                self.log.error(f"{self.params.camera}: grabbing ended: {type(error).__name__}: {error}")
                self.health("error", f"grabbing ended: {error}", key="device")

    def _grab(self, backend: CameraBackend) -> None:
        started, count = time.monotonic(), 0
        while not self._stop.is_set():
            frame = backend.read(_READ_TIMEOUT_S)
            now = time.monotonic()
            if now - started >= 1.0:
                self._rate, started, count = count / (now - started), now, 0
            if frame is None:
                continue
            count += 1
            self._last_frame = now
            self._process(frame)

    def _process(self, frame: Frame) -> None:
        p: CameraParams = self.params
        if frame.image.shape[:2] != (self._camera.height, self._camera.width):
            raise CameraSetupError(
                f"images of {frame.image.shape[1]}×{frame.image.shape[0]} px, but the calibration is for "
                f"{self._camera.width}×{self._camera.height} px; set width and height, or calibrate at "
                f"this size"
            )
        stamp = frame.stamp_ns - self._camera.time_offset_ns
        self._stamp_source = frame.stamp_source.value
        expected = self._expected.pixel(stamp) if p.region else None
        began = time.perf_counter()
        if expected is None:
            detections = self._detector.detect(frame.image, stamp, frame.counter)
        else:
            detections = self._detector.detect(frame.image, stamp, frame.counter, expected[0], expected[1])
        spent_us = (time.perf_counter() - began) * 1e6
        self._work_us += 0.02 * (spent_us - self._work_us)
        done_ns = self.now_ns()
        self._detections_pub.publish(detections_to_raw(detections))
        if len(detections.uv_px):
            self.stamp_latency("arrived", stamp, frame.arrival_ns)
            self.stamp_latency("detected", stamp, done_ns)
        self._show(frame, stamp)

    def _show(self, frame: Frame, stamp: int) -> None:
        p: CameraParams = self.params
        now = time.monotonic()
        if p.preview_hz > 0.0 and now >= self._next_preview:
            self._next_preview = max(self._next_preview + 1.0 / p.preview_hz, now - 0.5 / p.preview_hz)
            self._image_pub.publish(image_to_msg(frame.image, p.camera, stamp))
        if p.debug_hz > 0.0 and now >= self._next_debug:
            self._next_debug = now + 1.0 / p.debug_hz
            self._debug_pub.publish(image_to_msg(debug_picture(frame.image, self._detector), p.camera, stamp))


def _calibration(p: CameraParams) -> CameraModel:
    """The calibration of this camera, at the size of its images."""
    if p.cameras:
        (camera,) = load_cameras(p.cameras, [p.camera])
    else:
        found = [camera for camera in default_sim_cameras() if camera.name == p.camera]
        if not found:
            names = ", ".join(camera.name for camera in default_sim_cameras())
            raise CameraSetupError(f"no simulated camera {p.camera!r}; there are {names}")
        camera = found[0]
    check_rig([camera])
    if p.backend == "basler" and camera.serial and p.device and p.device != camera.serial:
        raise CameraSetupError(
            f"{p.camera} is device {p.device}, but its calibration is that of device {camera.serial}; are two "
            "cameras exchanged? Correct the device, or calibrate again"
        )
    if p.backend == "sim" and p.width and p.height:
        camera = camera.scaled(p.width, p.height)
    return camera


def _scene(p: CameraParams) -> Any:
    """What the simulated camera sees; a small image has a smaller blur of its lens."""
    render = importlib.import_module("tt_sim.render")
    config = render.RenderConfig(exposure_s=p.exposure or 0.002, colour=p.pixel_format == "colour")
    if p.pixel_format == "colour":
        config = replace(config, ball_colour="orange")
    return replace(config, flicker=0.02, drift=0.08, second_ball=True, person=True) if p.scene else config


def _seed(name: str) -> int:
    return sum(ord(letter) * (index + 1) for index, letter in enumerate(name))


def main() -> None:
    """Runs the node."""
    # One image at a time is too little work for a pool of threads, which would only fight for the cores.
    cv2.setNumThreads(1)
    run_node(CameraNode)


if __name__ == "__main__":
    main()
