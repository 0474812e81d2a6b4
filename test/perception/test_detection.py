"""Detector and renderer together: what is found, how exactly, and what is refused."""

from __future__ import annotations

import cv2
import numpy as np
import pytest

from tt_perception.camera import default_sim_cameras
from tt_perception.detection import (
    DetectionError,
    Detector,
    DetectorConfig,
    Rejection,
    debug_picture,
    detector_for,
    load_detector,
)
from tt_perception.scan import RowScanner
from tt_perception.subpixel import refine_centre
from tt_sim.render import CameraRenderer, MovingBall, RenderConfig

CAMERA = default_sim_cameras()[0]
SMALL = default_sim_cameras(640, 480)[0]


def learnt(renderer, **changes):
    detector = Detector(renderer.camera.name, detector_for(renderer.camera, **changes))
    for index in range(10):
        detector.detect(renderer.render(index / 120.0), index + 1)
    return detector


@pytest.fixture(scope="module")
def renderer():
    return CameraRenderer(CAMERA, RenderConfig(samples=1, noise_frames=4))


@pytest.fixture(scope="module")
def still(renderer):
    return MovingBall(np.array([0.2, 0.3, 0.4]), np.zeros(3))


def errors(renderer, detector, count, speed, seed=0):
    rng = np.random.default_rng(seed)
    found, missed = [], 0
    for index in range(count):
        pos = rng.uniform([-0.6, -1.2, 0.2], [0.6, 1.2, 0.8])
        direction = rng.normal(size=3)
        ball = MovingBall(pos, speed * direction / np.linalg.norm(direction))
        detections = detector.detect(renderer.render(2.0 + index / 120.0, [ball]), 100 + index)
        distance = np.linalg.norm(detections.uv_px - renderer.camera.project(pos), axis=1)
        if len(distance) and distance.min() < 3.0:
            found.append(distance.min())
        else:
            missed += 1
    return np.array(found), missed


@pytest.mark.parametrize(("speed", "limit"), [(0.0, 0.1), (7.0, 0.12)])
def test_centres_are_exact_to_a_tenth_of_a_pixel(renderer, speed, limit):
    found, missed = errors(renderer, learnt(renderer), 80, speed)
    assert missed <= 1
    assert np.median(found) < limit
    assert np.percentile(found, 90) < 0.5


def test_small_balls_of_small_images_are_not_shifted():
    renderer = CameraRenderer(SMALL, RenderConfig(samples=1, noise_frames=4))
    found, missed = errors(renderer, learnt(renderer), 60, 4.0)
    assert missed <= 2
    assert np.median(found) < 0.15


def test_colour_images_and_an_orange_ball():
    renderer = CameraRenderer(
        SMALL, RenderConfig(samples=1, noise_frames=4, colour=True, ball_colour="orange")
    )
    detector = learnt(renderer, ball_colour=(16.0, 80.0, 14.0), colour_weights=(-0.4, 0.3, 0.8))
    ball = MovingBall(np.array([0.2, 0.3, 0.4]), np.zeros(3))
    detections = detector.detect(renderer.render(3.0, [ball]), 50)
    assert np.linalg.norm(detections.uv_px[0] - SMALL.project(ball.pos_table)) < 0.5
    other = learnt(renderer, ball_colour=(120.0, 80.0, 14.0))  # a blue ball is wanted
    assert len(other.detect(renderer.render(3.0, [ball]), 50).uv_px) == 0
    assert Rejection.COLOUR in {blob.rejection for blob in other.blobs}


def test_radius_is_the_apparent_one(renderer, still):
    detections = learnt(renderer).detect(renderer.render(1.0, [still]), 50)
    expected = CAMERA.matrix[0, 0] * 0.02 / CAMERA.depth_m(still.pos_table)[0]
    assert detections.radius_px[0] == pytest.approx(expected, rel=0.08)
    assert detections.score[0] > 0.5


def test_a_region_finds_the_same_ball_and_falls_back_to_the_full_image(renderer, still):
    detector = learnt(renderer)
    image = renderer.render(1.0, [still])
    uv = CAMERA.project(still.pos_table)
    full = detector.detect(image, 50)
    near = detector.detect(image, 51, expected_px=uv + 10.0)
    assert detector.region is not None
    assert np.allclose(near.uv_px, full.uv_px, atol=0.1)
    lost = detector.detect(image, 52, expected_px=[100.0, 700.0])
    assert detector.region is None
    assert np.allclose(lost.uv_px, full.uv_px, atol=0.1)
    assert len(detector.detect(image, 53, expected_px=[np.nan, 5.0]).uv_px) == 1


def test_an_empty_scene_has_no_candidates(renderer):
    detector = learnt(renderer)
    assert (
        sum(len(detector.detect(renderer.render(index / 120.0), 60 + index).uv_px) for index in range(30))
        == 0
    )


def test_changing_light_gives_no_candidates_and_keeps_the_ball():
    renderer = CameraRenderer(SMALL, RenderConfig(samples=1, noise_frames=4, flicker=0.06, drift=0.2))
    detector = learnt(renderer)
    uv = SMALL.project([0.2, 0.3, 0.4])
    false = found = 0
    for index in range(60):
        ball = MovingBall(np.array([0.2, 0.3, 0.4]), np.array([0.0, -5.0, 0.0]))
        image = renderer.render(1.0 + index / 60.0, [ball] if index % 2 else [])
        detections = detector.detect(image, 100 + index)
        near = np.linalg.norm(detections.uv_px - uv, axis=1) < 3.0
        found += near.any()
        false += np.sum(~near)
    assert false <= 1
    assert found >= 29


def test_a_ball_that_stays_becomes_background(renderer, still):
    detector = learnt(renderer, background_rate=0.5)
    counts = [len(detector.detect(renderer.render(1.0, [still]), 50 + index).uv_px) for index in range(600)]
    assert counts[0] == 1
    assert counts[-1] == 0


def test_a_person_is_no_ball():
    renderer = CameraRenderer(SMALL, RenderConfig(samples=1, noise_frames=4, person=True))
    detector = Detector("cam0", detector_for(SMALL))
    empty = CameraRenderer(SMALL, RenderConfig(samples=1, noise_frames=4))
    for index in range(10):
        detector.detect(empty.render(0.0), index + 1)
    rejected = set()
    candidates = 0
    for index in range(40):
        candidates += len(detector.detect(renderer.render(index / 10.0), 50 + index).uv_px)
        rejected |= {blob.rejection for blob in detector.blobs}
    assert Rejection.LARGE in rejected
    assert candidates < 40


def test_looking_at_every_second_row_finds_what_all_rows_show(monkeypatch):
    scene = RenderConfig(samples=1, noise_frames=4, person=True, second_ball=True, flicker=0.03)
    renderer = CameraRenderer(CAMERA, scene)
    quick, thorough = (Detector("cam0", detector_for(CAMERA)) for _ in range(2))
    for index in range(10):
        image = renderer.render(index / 120.0)
        for detector in (quick, thorough):
            detector.detect(image, index + 1)
    monkeypatch.setattr(thorough, "_boxes", lambda grey: [(0, 0, grey.shape[1], grey.shape[0])])
    rng = np.random.default_rng(3)
    found = 0
    for index in range(25):
        ball = MovingBall(rng.uniform([-0.7, -1.3, 0.1], [0.7, 1.3, 0.9]), rng.normal(0.0, 5.0, 3))
        image = renderer.render(2.0 + index / 20.0, [ball])
        fast, slow = quick.detect(image, 100 + index), thorough.detect(image, 100 + index)
        assert np.allclose(fast.uv_px, slow.uv_px) and np.allclose(fast.score, slow.score)
        assert quick.stats.rejected == thorough.stats.rejected
        found += len(fast.uv_px)
    assert found > 25


@pytest.mark.parametrize("step", [1, 2])
def test_boxes_hold_every_run_of_three(step):
    rng = np.random.default_rng(7)
    for density in (0.001, 0.02, 0.08):
        scanner = RowScanner(90, 123, step)
        scanner.mask[:] = (rng.random(scanner.mask.shape) < density) * np.uint8(255)
        marked = scanner.mask > 0
        runs = marked[:, :-2] & marked[:, 1:-1] & marked[:, 2:]
        boxes = scanner.boxes()
        inside = np.zeros((90, 123), bool)
        for left, top, right, bottom in boxes or [(0, 0, 123, 90)]:
            assert not inside[top:bottom, left:right].any(), "two boxes overlap"
            inside[top:bottom, left:right] = True
        for row, column in zip(*np.nonzero(runs), strict=True):
            around = inside[max(step * row - 2, 0) : step * row + 3, column : column + 3]
            assert around.all()
        if not runs.any():
            assert boxes == []


def test_excluded_regions_are_silent(renderer, still):
    u, v = CAMERA.project(still.pos_table)
    box = ((u - 30, v - 30), (u + 30, v - 30), (u + 30, v + 30), (u - 30, v + 30))
    detector = learnt(renderer, exclude=(box,))
    assert len(detector.detect(renderer.render(1.0, [still]), 50).uv_px) == 0


def test_the_debug_picture_names_the_reason(renderer, still):
    detector = learnt(renderer, radius_px=(8.0, 20.0))
    image = renderer.render(1.0, [still])
    assert len(detector.detect(image, 50).uv_px) == 0
    assert {blob.rejection for blob in detector.blobs} == {Rejection.SMALL}
    picture = debug_picture(image, detector)
    assert picture.shape == (CAMERA.height, CAMERA.width, 3)
    assert not np.array_equal(picture, cv2.cvtColor(image, cv2.COLOR_GRAY2BGR))


def test_coverage_gives_the_centre_of_a_synthetic_disc():
    rng = np.random.default_rng(1)
    for _ in range(20):
        centre = rng.uniform(9.0, 11.0, 2)
        radius = rng.uniform(2.5, 5.0)
        fine = (np.arange(210) + 0.5) / 10.0 - 0.5
        inside = (fine[None, :] - centre[0]) ** 2 + (fine[:, None] - centre[1]) ** 2 < radius**2
        coverage = inside.reshape(21, 10, 21, 10).mean(axis=(1, 3))
        background = np.full((21, 21), 60, np.uint8)
        image = np.rint(60 + 150 * coverage).astype(np.uint8)
        mask = ((image > 80) * 255).astype(np.uint8)
        result = np.empty(7)
        assert refine_centre(image, background, mask, result)
        assert np.linalg.norm(result[:2] - centre) < 0.03
        assert result[2] == pytest.approx(np.pi * radius**2, rel=0.05)


@pytest.mark.parametrize(
    ("image", "match"),
    [
        (np.empty((0, 0), np.uint8), "empty image"),
        (None, "empty image"),
        (np.zeros((80, 80), np.float32), "float32"),
        (np.zeros((80, 80, 4), np.uint8), "needs uint8"),
    ],
)
def test_images_that_are_none_are_refused(image, match):
    with pytest.raises(DetectionError, match=match):
        Detector("cam0").detect(image, 1)


def test_a_changed_size_is_refused():
    detector = Detector("cam0")
    detector.detect(np.zeros((80, 80), np.uint8), 1)
    with pytest.raises(DetectionError, match="size changed"):
        detector.detect(np.zeros((60, 80), np.uint8), 2)


def test_detector_files(tmp_path):
    path = tmp_path / "detector.yaml"
    path.write_text("threshold: 30\nradius_px: [2, 9]\nexclude: [[[0, 0], [10, 0], [10, 10]]]\n")
    config = load_detector(path)
    assert config.threshold == 30 and config.radius_px == (2, 9) and config.exclude[0][1] == (10, 0)
    path.write_text("treshold: 30\n")
    with pytest.raises(DetectionError, match="unknown key 'treshold'"):
        load_detector(path)
    with pytest.raises(DetectionError, match="no such detector file"):
        load_detector(tmp_path / "none.yaml")
    with pytest.raises(DetectionError, match="threshold 0"):
        Detector("cam0", DetectorConfig(threshold=0))
    with pytest.raises(DetectionError, match="radius_px"):
        Detector("cam0", DetectorConfig(radius_px=(5.0, 2.0)))
