"""Camera backends: settings, stamps, losses, and the clock of a device."""

from __future__ import annotations

import time

import cv2
import numpy as np
import pytest

from tt_perception.backends.base import (
    CameraLostError,
    CameraSettings,
    CameraSetupError,
    Frame,
    QueueBackend,
    StampSource,
    check_supported,
)
from tt_perception.backends.clock import ClockMap
from tt_perception.backends.folder import FolderBackend
from tt_perception.backends.uvc import UvcBackend
from tt_perception.camera import default_sim_cameras
from tt_perception.expected_ball import ExpectedBall
from tt_sim.render import RenderConfig
from tt_sim.render_backend import RenderedBackend

S = 1_000_000_000
MS = 1_000_000


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"fps": 0.0}, "fps 0 Hz"),
        ({"fps": float("nan")}, "fps"),
        ({"fps": 120.0, "exposure_s": 0.02}, "does not fit"),
        ({"width": -1}, "image size"),
    ],
)
def test_impossible_settings(values, match):
    with pytest.raises(CameraSetupError, match=match):
        CameraSettings(**values)


def test_features_are_known_before_opening():
    check_supported(CameraSettings(trigger="hardware"), UvcBackend.features, "uvc")
    with pytest.raises(CameraSetupError, match="software.*it offers free, hardware"):
        check_supported(CameraSettings(trigger="software"), UvcBackend.features, "uvc")


class FakeDevice:
    """A device clock with drift, sending frames over a line with jitter."""

    def __init__(self, drift, seed=0):
        self.rng = np.random.default_rng(seed)
        self.drift = drift
        self.jump = 0

    def frames(self, start_s, seconds, fps=100):
        for index in range(round(seconds * fps)):
            true_ns = round((start_s + index / fps) * S)
            device_ns = round(true_ns * (1 + self.drift)) - 7 * S + self.jump
            delay_ns = 4 * MS + round(self.rng.exponential(1.0) * MS)
            yield true_ns, device_ns, true_ns + delay_ns


def worst(clock, device, start_s, seconds, settle=0):
    errors = []
    for index, (true_ns, device_ns, arrival_ns) in enumerate(device.frames(start_s, seconds)):
        mapped = clock.update(device_ns, arrival_ns)
        if index >= settle:
            errors.append(mapped.stamp_ns - true_ns)
    return np.abs(errors).max()


@pytest.mark.parametrize("drift", [0.0, 80e-6, -80e-6])
def test_a_drifting_clock_is_followed_through_jitter(drift):
    clock = ClockMap(min_delay_ns=4 * MS)
    device = FakeDevice(drift)
    assert worst(clock, device, 100, 60, settle=1000) < 0.25 * MS
    assert clock.drift == pytest.approx(-drift, abs=10e-6)
    assert clock.resets == 0


@pytest.mark.parametrize("jump_s", [2.0, -2.0])
def test_a_clock_that_jumps_is_noticed(jump_s):
    clock = ClockMap(min_delay_ns=4 * MS)
    device = FakeDevice(30e-6)
    worst(clock, device, 100, 20)
    device.jump = round(jump_s * S)
    assert worst(clock, device, 120, 10, settle=300) < 0.5 * MS
    assert clock.resets == 1


def test_one_late_frame_is_no_jump():
    clock = ClockMap()
    clock.update(1 * S, 1 * S + 4 * MS)
    for index in range(1, 200):
        late = 200 * MS if index == 100 else 0
        mapped = clock.update(1 * S + index * 10 * MS, 1 * S + index * 10 * MS + 4 * MS + late)
    assert clock.resets == 0
    assert abs(mapped.stamp_ns - (1 * S + 199 * 10 * MS + 4 * MS)) < 0.1 * MS


class FakeCapture:
    """A V4L2 camera as OpenCV shows it: `set` never fails, what the device cannot do it replaces.

    A format decides which sizes and rates there are; exposure only takes effect with automatic exposure off.
    """

    def __init__(self, modes=None, present=True, driver_age_s=0.01, stubborn=()):
        self.modes = modes or {"GREY": {(64, 48): (100.0, 50.0)}}
        self.present, self.driver_age_s, self.stubborn = present, driver_age_s, stubborn
        self.format = next(iter(self.modes))
        self.size = next(iter(self.modes[self.format]))
        self.fps = self.modes[self.format][self.size][-1]
        self.wanted = [0, 0]
        self.controls = {
            cv2.CAP_PROP_AUTO_EXPOSURE: 3.0,
            cv2.CAP_PROP_EXPOSURE: 156.0,
            cv2.CAP_PROP_GAIN: 0.0,
        }
        self.fail = False
        self.now_s = 50.0

    def isOpened(self):
        return self.present

    def set(self, key, value):
        if key == cv2.CAP_PROP_FOURCC:
            code = int(value).to_bytes(4, "little").decode()
            self.format = code if code in self.modes else next(iter(self.modes))
            self._nearest()
        elif key in (cv2.CAP_PROP_FRAME_WIDTH, cv2.CAP_PROP_FRAME_HEIGHT):
            self.wanted[key == cv2.CAP_PROP_FRAME_HEIGHT] = value
            self._nearest()
        elif key == cv2.CAP_PROP_FPS:
            self.fps = min(self.modes[self.format][self.size], key=lambda rate: abs(rate - value))
        elif key == cv2.CAP_PROP_EXPOSURE and self.controls[cv2.CAP_PROP_AUTO_EXPOSURE] != 1.0:
            return False
        elif key in self.controls and key not in self.stubborn:
            self.controls[key] = value
        return True

    def _nearest(self):
        sizes = self.modes[self.format]
        self.size = min(
            sizes, key=lambda size: sum(abs(a - b) for a, b in zip(size, self.wanted, strict=True))
        )
        self.fps = sizes[self.size][-1]

    def get(self, key):
        return {
            cv2.CAP_PROP_FOURCC: float(int.from_bytes(self.format.encode(), "little")),
            cv2.CAP_PROP_FPS: self.fps,
            cv2.CAP_PROP_FRAME_WIDTH: float(self.size[0]),
            cv2.CAP_PROP_FRAME_HEIGHT: float(self.size[1]),
            cv2.CAP_PROP_POS_MSEC: (self.now_s - self.driver_age_s) * 1e3,
            **self.controls,
        }.get(key, -1.0)

    def grab(self):
        return not self.fail

    def retrieve(self):
        # OpenCV gives BGR whatever came over the wire, but for grey formats.
        return True, np.zeros(self.size[::-1] if self.format == "GREY" else (*self.size[::-1], 3), np.uint8)

    def release(self):
        self.present = False


def uvc(capture, **settings):
    values = {
        "device": "/dev/video0",
        "fps": 100.0,
        "width": 64,
        "height": 48,
        "exposure_s": 0.002,
        **settings,
    }
    return UvcBackend(CameraSettings(**values), lambda: 10 * S, lambda target: capture, lambda: capture.now_s)


def test_uvc_believes_plausible_driver_times():
    backend = uvc(FakeCapture())
    assert "64×48" in backend.open()
    frame = backend.read(0.1)
    assert frame.stamp_source is StampSource.DRIVER
    assert frame.stamp_ns == 10 * S - 10 * MS - MS  # the driver stamps the end of the exposure
    assert frame.image.shape == (48, 64)


@pytest.mark.parametrize("age_s", [-0.5, 3.0, 50.0])
def test_uvc_does_not_believe_other_driver_times(age_s):
    backend = uvc(FakeCapture(driver_age_s=age_s), delay_s=0.012)
    backend.open()
    frame = backend.read(0.1)
    assert frame.stamp_source is StampSource.ARRIVAL
    assert frame.stamp_ns == 10 * S - 12 * MS
    assert frame.stamp_sigma_ns >= 5 * MS
    assert backend.driver_times_refused == 1


@pytest.mark.parametrize(
    ("capture", "match"),
    [
        (
            FakeCapture({"GREY": {(64, 48): (30.0,)}}),
            "GREY: gives 30 Hz, not 100 Hz; YUYV: the camera gives GREY",
        ),
        (FakeCapture({"GREY": {(64, 48): (0.0,)}}), "reports 0 images per second"),
        (FakeCapture({"GREY": {(32, 24): (100.0,)}}), "gives 32×24 px, not 64×48.*lists its modes"),
        (FakeCapture({"H264": {(64, 48): (100.0,)}}), "no mode of 64×48 px at 100 Hz for mono images"),
        (FakeCapture(stubborn=(cv2.CAP_PROP_EXPOSURE,)), "exposes 15.60 ms, not 2.00 ms"),
        (FakeCapture(stubborn=(cv2.CAP_PROP_AUTO_EXPOSURE,)), "does not leave automatic exposure"),
        (FakeCapture(stubborn=(cv2.CAP_PROP_GAIN,)), "gain is 0, not 16"),
    ],
)
def test_uvc_settings_are_read_back(capture, match):
    with pytest.raises(CameraSetupError, match=match):
        uvc(capture, gain=16.0).open()


def test_uvc_takes_the_first_format_that_has_the_mode():
    modes = {"YUYV": {(64, 48): (30.0,)}, "MJPG": {(64, 48): (100.0, 30.0), (32, 24): (200.0,)}}
    backend = uvc(FakeCapture(modes))
    assert "MJPG 64×48 px at 100 Hz" in backend.open()
    assert backend.read(0.1).image.shape == (48, 64), "grey, although the wire is coloured"
    colour = uvc(FakeCapture(modes), pixel_format="colour")
    colour.open()
    assert colour.read(0.1).image.shape == (48, 64, 3)


def test_uvc_that_is_unplugged_and_plugged_in_again():
    capture = FakeCapture(present=False)
    backend = uvc(capture)
    with pytest.raises(CameraLostError, match="no camera at '/dev/video0'"):
        backend.open()
    capture.present = True
    backend.open()
    capture.fail = True
    assert backend.read(0.1) is None and backend.read(0.1) is None
    with pytest.raises(CameraLostError, match="unplugged"):
        backend.read(0.1)
    backend.close()
    backend.close()
    capture.present, capture.fail = True, False
    backend.open()
    assert backend.read(0.1) is not None


def test_a_queue_drops_the_oldest():
    backend = QueueBackend(depth=2)
    for stamp in (1, 2, 3):
        backend.push(Frame(np.zeros((2, 2), np.uint8), stamp, StampSource.DRIVER, 0, stamp))
    assert [backend.read(0.01).stamp_ns, backend.read(0.01).stamp_ns] == [2, 3]
    assert backend.read(0.01) is None
    assert backend.dropped == 1


def write_folder(path, stamps, header="file,stamp_ns,counter"):
    for index in range(len(stamps)):
        cv2.imwrite(str(path / f"{index:03d}.png"), np.full((48, 64), index, np.uint8))
    rows = [f"{index:03d}.png,{stamp},{index + 5}" for index, stamp in enumerate(stamps)]
    (path / "stamps.csv").write_text("\n".join([header, *rows]) + "\n")


def test_a_folder_plays_with_its_stamps(tmp_path):
    write_folder(tmp_path, [1000, 2000, 3500])
    backend = FolderBackend(CameraSettings(device=str(tmp_path)), lambda: 0, paced=False)
    assert "3 images" in backend.open()
    frames = [backend.read(0.1) for _ in range(3)]
    assert [frame.stamp_ns for frame in frames] == [1000, 2000, 3500]
    assert [frame.counter for frame in frames] == [5, 6, 7]
    assert [int(frame.image[0, 0]) for frame in frames] == [0, 1, 2]
    with pytest.raises(EOFError):
        backend.read(0.1)


@pytest.mark.parametrize(
    ("stamps", "header", "match"),
    [
        ([1000, 900], "file,stamp_ns,counter", "is not after"),
        ([0, 10], "file,stamp_ns,counter", "greater than 0"),
        ([1, 2], "file,time,counter", "not a stamp file"),
    ],
)
def test_wrong_stamp_files(tmp_path, stamps, header, match):
    write_folder(tmp_path, stamps, header)
    with pytest.raises(CameraSetupError, match=match):
        FolderBackend(CameraSettings(device=str(tmp_path)), lambda: 0).open()


def test_a_video_file_plays_at_its_stamps(tmp_path):
    path = tmp_path / "rally.avi"
    writer = cv2.VideoWriter(str(path), cv2.VideoWriter_fourcc(*"MJPG"), 50.0, (64, 48))
    for level in (20, 90, 160):
        writer.write(np.full((48, 64, 3), level, np.uint8))
    writer.release()
    backend = FolderBackend(CameraSettings(device=str(path), fps=50.0), lambda: 0, paced=False)
    backend.open()
    frames = [backend.read(0.1) for _ in range(3)]
    assert [frame.stamp_ns - frames[0].stamp_ns for frame in frames] == [0, 20 * MS, 40 * MS]
    assert [round(float(frame.image.mean()), -1) for frame in frames] == [20, 90, 160]
    with pytest.raises(EOFError):
        backend.read(0.1)
    backend.close()


def test_missing_and_empty_folders(tmp_path):
    with pytest.raises(CameraSetupError, match="no folder or video"):
        FolderBackend(CameraSettings(device=str(tmp_path / "none")), lambda: 0).open()
    with pytest.raises(CameraSetupError, match="no image"):
        FolderBackend(CameraSettings(device=str(tmp_path)), lambda: 0).open()


def test_emulated_basler_cameras(monkeypatch):
    pytest.importorskip("pypylon", reason="pypylon is an optional package")
    monkeypatch.setenv("PYLON_CAMEMU", "2")
    from tt_perception.backends.basler import BaslerBackend

    for trigger in ("free", "software"):
        settings = CameraSettings(device="0815-0000", width=640, height=480, fps=50.0, trigger=trigger)
        backend = BaslerBackend(settings, time.time_ns)
        assert "0815-0000" in backend.open()
        frames = [backend.read(1.0) for _ in range(4)]
        backend.close()
        backend.close()
        assert all(frame.image.shape == (480, 640) for frame in frames)
        assert [frame.counter - frames[0].counter for frame in frames] == [0, 1, 2, 3]
        assert frames[0].stamp_source is StampSource.ARRIVAL  # emulated cameras stamp with 0
    with pytest.raises(CameraLostError, match="no Basler camera '99'; connected: 0815-0000"):
        BaslerBackend(CameraSettings(device="99"), time.time_ns).open()
    with pytest.raises(CameraSetupError, match="several Basler cameras"):
        BaslerBackend(CameraSettings(), time.time_ns).open()


class Clock:
    """A node clock that moves a little with every look at it."""

    def __init__(self):
        self.ns = 100 * S

    def __call__(self):
        self.ns += 200_000
        return self.ns


def test_the_rendered_camera_exposes_at_the_truth_and_goes_on_without():
    camera = default_sim_cameras(320, 200)[0]
    clock = Clock()
    backend = RenderedBackend(
        camera, CameraSettings(fps=50.0, delay_s=0.03), clock, RenderConfig(samples=1, noise_frames=2)
    )
    stamp = clock.ns
    backend.push_truth(stamp, np.array([0.0, 0.0, 0.3]), np.zeros(3))
    frame = backend.read(5.0)
    assert frame.stamp_ns == stamp and frame.stamp_source is StampSource.EXACT
    assert clock.ns >= stamp + 30 * MS  # delivered late, as ordered
    with_ball = frame.image.copy()
    following = backend.read(5.0)
    assert (following.stamp_ns - stamp) % (20 * MS) == 0
    assert np.abs(with_ball.astype(int) - following.image.astype(int)).max() > 60


def test_the_expected_ball_moves_with_time_and_is_forgotten():
    camera = default_sim_cameras()[0]
    expected = ExpectedBall(camera)
    assert expected.pixel(5 * S) is None
    pos, vel = np.array([0.1, 0.5, 0.4]), np.array([0.0, -5.0, 0.0])
    expected.update(5 * S, pos, vel)
    uv, reach = expected.pixel(5 * S + 50 * MS)
    truth = camera.project(pos + 0.05 * vel - [0.0, 0.0, 0.5 * 9.81 * 0.05**2])
    assert np.allclose(uv, truth, atol=0.5)
    assert 20 < reach < 80
    assert expected.pixel(6 * S) is None
