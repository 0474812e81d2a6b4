"""Simulated cameras: noise of the wanted size, faults, delay."""

from __future__ import annotations

import numpy as np
import pytest

from tt_perception.camera import default_sim_cameras
from tt_sim.cameras import CameraFaults, DelayLine, SimCameras, pixel_sigma_for

BALL = np.array([0.1, -0.5, 0.3])


def test_pixel_noise_gives_the_wanted_error_after_triangulation():
    cameras = default_sim_cameras()
    sigma_m = 0.003
    rig = SimCameras(cameras, CameraFaults(pixel_sigma_for(cameras, sigma_m)), seed=1)
    rng = np.random.default_rng(2)
    errors = []
    for k in range(400):
        truth = rng.uniform((-0.6, -1.5, 0.05), (0.6, 0.9, 0.5))
        rows, values = [], []
        for camera, image in zip(cameras, rig.observe(k, truth), strict=True):
            if len(image.score):
                u, v = camera.undistort(image.uv_px)[0]
                p = camera.projection
                rows += [u * p[2] - p[0], v * p[2] - p[1]]
                values += [np.linalg.norm(p[2, :3] @ truth + p[2, 3])] * 2
        a = np.array(rows) / np.array(values)[:, None]
        point = np.linalg.lstsq(a[:, :3], -a[:, 3], rcond=None)[0]
        errors.append(point - truth)
    assert np.sqrt(np.mean(np.square(errors))) == pytest.approx(sigma_m, rel=0.15)


def test_no_ball_or_a_ball_outside_the_image_gives_empty_candidates():
    rig = SimCameras(default_sim_cameras(), CameraFaults(0.5))
    assert all(len(image.score) == 0 for image in rig.observe(0, None))
    assert any(len(image.score) == 0 for image in rig.observe(1, np.array([0.0, 30.0, 0.0])))


def test_dropouts_and_phantoms_come_at_their_rates():
    rig = SimCameras(default_sim_cameras(), CameraFaults(0.5, dropout=0.3), seed=3)
    found = [len(image.score) for k in range(300) for image in rig.observe(k, BALL)]
    assert np.mean(found) == pytest.approx(0.7, abs=0.05)
    rig = SimCameras(default_sim_cameras(), CameraFaults(0.5, phantoms=2.0), seed=3)
    found = [len(image.score) for k in range(300) for image in rig.observe(k, BALL)]
    assert np.mean(found) == pytest.approx(3.0, abs=0.15)


def test_same_seed_same_images():
    first, again = (
        SimCameras(default_sim_cameras(), CameraFaults(1.0, 0.1, 0.5), seed=9).observe(0, BALL)
        for _ in range(2)
    )
    for a, b in zip(first, again, strict=True):
        assert np.array_equal(a.uv_px, b.uv_px)
        assert np.array_equal(a.radius_px, b.radius_px)


def test_delay_line_delivers_in_order_and_not_before_time():
    rig = SimCameras(default_sim_cameras(), CameraFaults(0.5))
    line = DelayLine(0.03)
    for stamp in (0, 8_000_000):
        line.push(rig.observe(stamp, BALL))
    assert line.pop(29_999_999) == []
    assert [images[0].stamp_ns for images in line.pop(30_000_000)] == [0]
    assert [images[0].stamp_ns for images in line.pop(60_000_000)] == [8_000_000]
    assert line.pop(60_000_000) == []
