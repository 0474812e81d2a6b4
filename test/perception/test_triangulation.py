"""Subset search, covariance, trigger sets, and what becomes of cameras that misbehave."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tt_perception.camera import default_sim_cameras, look_at
from tt_perception.location import LocateReason, Locator, TriangulationError
from tt_perception.triangulation import Triangulator, TriangulatorConfig, triangulate
from tt_perception.trigger_sets import TriggerConfig
from tt_perception.types import BallPosition, BallRay, CameraDetections

CAMERAS = default_sim_cameras()
PERIOD_NS = 8_333_333
START_NS = 1_700_000_000_000_000_000
coordinate = st.floats(-1.0, 1.0)


def views_of(point, rng=None, sigma=0.0):
    noise = (lambda: 0.0) if rng is None else (lambda: rng.normal(0.0, sigma, 2))
    return [camera.project(point) + noise() for camera in CAMERAS]


@settings(max_examples=30, deadline=None)
@given(coordinate, coordinate, coordinate)
def test_perfect_views_give_the_point(x, y, z):
    point = np.array([0.8 * x, 1.6 * y, 0.4 + 0.4 * z])
    found, _, inliers = triangulate(views_of(point), CAMERAS)
    assert np.allclose(found, point, atol=1e-8)
    assert inliers == (0, 1, 2, 3)


def test_covariance_is_that_of_a_numpy_twin():
    point, sigma = np.array([0.2, -0.7, 0.3]), 0.4
    _, cov, _ = triangulate(views_of(point), CAMERAS, sigma)
    information = np.zeros((3, 3))
    for camera in CAMERAS:
        homogeneous = camera.projection @ np.append(point, 1.0)
        uv = homogeneous[:2] / homogeneous[2]
        jacobian = (camera.projection[:2, :3] - uv[:, None] * camera.projection[2, :3]) / homogeneous[2]
        information += jacobian.T @ jacobian / sigma**2
    assert np.allclose(cov, np.linalg.inv(information), rtol=1e-6)


@pytest.mark.parametrize("used", [(0, 1, 2, 3), (0, 1), (1, 3)])
def test_errors_are_as_large_as_the_covariance_says(used):
    rng = np.random.default_rng(3)
    sigma = 0.3
    locator = Locator(CAMERAS)
    nees = []
    for point in rng.uniform([-0.7, -1.4, 0.0], [0.7, 1.4, 0.8], (800, 3)):
        views = [view if index in used else None for index, view in enumerate(views_of(point, rng, sigma))]
        location = locator.locate(views, sigma)
        if location.reason is LocateReason.OK:
            error = location.point_table - point
            nees.append(error @ np.linalg.solve(location.cov, error))
    assert len(nees) > 770
    assert 2.6 < np.mean(nees) < 3.3  # 3 degrees of freedom; gates cut the tail
    assert 0.93 < np.mean(np.array(nees) < 7.815) < 0.985


def test_two_cameras_are_least_certain_along_their_line_of_sight():
    point = np.array([0.0, 0.0, 0.3])
    views = views_of(point)
    _, cov, _ = triangulate([views[0], views[1], None, None], CAMERAS)
    values, vectors = np.linalg.eigh(cov)
    towards = point - 0.5 * (CAMERAS[0].centre_table + CAMERAS[1].centre_table)
    assert abs(vectors[:, 2] @ towards / np.linalg.norm(towards)) > 0.9
    assert values[2] > 3.0 * values[0]


def test_a_wrong_view_is_left_out():
    point = np.array([0.3, 0.5, 0.2])
    views = views_of(point)
    views[2] = views[2] + [40.0, -25.0]
    found, _, inliers = triangulate(views, CAMERAS)
    assert inliers == (0, 1, 3)
    assert np.allclose(found, point, atol=1e-7)


def test_the_ball_is_found_among_many_candidates():
    rng = np.random.default_rng(5)
    point = np.array([-0.4, 1.1, 0.5])
    views = [
        np.vstack([rng.uniform(0, 800, (5, 2)), view, rng.uniform(0, 800, (3, 2))])
        for view in views_of(point)
    ]
    location = Locator(CAMERAS).locate(views, 0.3)
    assert np.allclose(location.point_table, point, atol=1e-6)
    assert list(location.choice) == [5, 5, 5, 5]


def test_two_balls_are_ambiguous_and_the_expected_one_is_taken():
    near, far = np.array([0.2, 0.4, 0.3]), np.array([-0.3, -0.8, 0.5])
    views = [np.vstack([a, b]) for a, b in zip(views_of(near), views_of(far), strict=True)]
    locator = Locator(CAMERAS)
    for expected in (near, far):
        location = locator.locate(views, 0.3, expected + 0.02)
        assert np.allclose(location.point_table, expected, atol=1e-6)
        assert location.ambiguous and location.rival_support == 4


def test_reasons_when_there_is_no_point():
    locator = Locator(CAMERAS)
    views = views_of(np.array([0.1, 0.2, 0.3]))
    assert locator.locate([None] * 4, 0.3).reason is LocateReason.NO_VIEW
    assert locator.locate([np.empty((0, 2))] * 4, 0.3).reason is LocateReason.NO_VIEW
    assert locator.locate([views[0], None, None, None], 0.3).reason is LocateReason.ONE_VIEW
    apart = [views[0], views[1] + [0.0, 60.0], None, None]
    assert locator.locate(apart, 0.3).reason is LocateReason.INCONSISTENT


def test_cameras_and_ball_on_one_line_are_degenerate():
    first = CAMERAS[0]
    pose = np.array(first.table_from_camera)
    pose[:3, 3] -= 0.4 * pose[:3, 2]  # straight behind the first camera
    second = replace(first, name="behind", table_from_camera=pose)
    ball = first.centre_table + 4.5 * first.table_from_camera[:3, 2]
    location = Locator([first, second]).locate([first.project(ball), second.project(ball)], 0.3)
    assert location.reason in (LocateReason.DEGENERATE, LocateReason.INCONSISTENT)


@pytest.mark.parametrize("dtype", [np.int64, np.float16, np.float32])
def test_pixels_of_other_types(dtype):
    point = np.array([0.1, -0.2, 0.3])
    views = [np.round(view).astype(dtype) for view in views_of(point)]
    found, _, inliers = triangulate(views, CAMERAS, pixel_sigma=1.0)
    assert len(inliers) >= 3
    assert np.linalg.norm(found - point) < 0.01


def test_bad_calls_are_refused():
    with pytest.raises(TriangulationError, match="3 views given for 4 cameras"):
        triangulate([None] * 3, CAMERAS)
    with pytest.raises(TriangulationError, match="shape"):
        triangulate([np.zeros((2, 3))] * 4, CAMERAS)
    with pytest.raises(TriangulationError, match="positive"):
        triangulate([None] * 4, CAMERAS, pixel_sigma=0.0)
    with pytest.raises(TriangulationError, match="at least 2"):
        Locator([])


def ball_at(index):
    return np.array([0.1, 1.2 - 0.04 * index, 0.3])


def detections(camera, index, counter=None, shift_ns=0, point=None):
    uv = camera.project(ball_at(index) if point is None else point)[None]
    return CameraDetections(
        camera.name, START_NS + index * PERIOD_NS + shift_ns, uv, np.array([4.0]), np.array([1.0]), counter
    )


def run(triangulator, steps):
    """Feed (detections, arrival delay in ms) pairs in order; returns the results."""
    results = []
    for item, delay_ms in steps:
        results += triangulator.add(item, item.stamp_ns + round(delay_ms * 1e6))
    return results


def positions(results):
    return [item for item in results if isinstance(item, BallPosition)]


def test_a_set_is_solved_when_its_last_image_arrives():
    triangulator = Triangulator(CAMERAS)
    for index in range(5):
        for camera in CAMERAS[:3]:
            assert triangulator.add(detections(camera, index), START_NS) == []
        (position,) = triangulator.add(detections(CAMERAS[3], index), START_NS)
        assert np.allclose(position.pos_table, ball_at(index), atol=1e-6)
        assert position.stamp_ns == START_NS + index * PERIOD_NS
        assert len(position.cameras) == 4


def test_counters_pair_images_whose_stamps_are_rough():
    shifts = (0, 300_000, -250_000, 150_000)
    starts = (0, 17, 5, 1000)  # each camera began to count at another trigger
    steps = []
    for index in range(12):
        for camera, shift, start in zip(CAMERAS, shifts, starts, strict=True):
            rough = 0 if index == 0 else shift  # the first images tell which counters belong together
            steps.append((detections(camera, index, counter=start + index, shift_ns=rough), 5.0))
    triangulator = Triangulator(CAMERAS)
    results = positions(run(triangulator, steps))
    assert len(results) == 12
    assert all(len(position.cameras) == 4 for position in results)


def test_a_late_image_does_not_hold_up_the_others():
    triangulator = Triangulator(CAMERAS)
    steps = []
    for index in range(6):
        steps += [(detections(camera, index), 5.0) for camera in CAMERAS[:3]]
        if index != 2:
            steps.append((detections(CAMERAS[3], index), 5.0))
    steps.append((detections(CAMERAS[3], 2), 40.0))
    results = positions(run(triangulator, steps))
    assert [position.stamp_ns for position in results] == sorted(position.stamp_ns for position in results)
    assert len(results) == 6
    assert len(results[2].cameras) == 3
    assert triangulator.health()["duplicate"] == 1 or triangulator.health()["late"] == 1


def test_a_silent_camera_is_reported_and_no_longer_waited_for():
    triangulator = Triangulator(CAMERAS)
    run(triangulator, [(detections(camera, index), 5.0) for index in range(3) for camera in CAMERAS])
    delays = []
    for index in range(3, 40):
        for camera in CAMERAS[:3]:
            now = START_NS + index * PERIOD_NS + 5_000_000
            results = triangulator.add(detections(camera, index), now)
            delays += [now - item.stamp_ns for item in results]
    assert triangulator.health()["silent"] == ("cam3",)
    assert "cam3" in triangulator.health()["warning"]
    assert delays[-1] < PERIOD_NS


def test_a_camera_out_of_step_becomes_rays_and_is_reported():
    triangulator = Triangulator(CAMERAS)
    results = []
    for index in range(60):
        now = START_NS + index * PERIOD_NS + 5_000_000
        for camera in CAMERAS[:3]:
            results += triangulator.add(detections(camera, index), now)
        late = detections(CAMERAS[3], index, shift_ns=3_000_000)
        results += triangulator.add(late, now + 3_000_000)
        results += triangulator.flush(now + 12_000_000)
    health = triangulator.health()
    assert health["free"] == ("cam3",)
    assert "out of step" in health["warning"]
    assert sum(isinstance(item, BallRay) and item.camera == "cam3" for item in results) > 30
    assert len(positions(results)) >= 58
    assert (
        max(
            np.linalg.norm(item.pos_table - ball_at((item.stamp_ns - START_NS) // PERIOD_NS))
            for item in positions(results)
        )
        < 1e-6
    )


def test_phantoms_in_one_camera_are_outvoted_and_reported():
    rng = np.random.default_rng(7)
    triangulator = Triangulator(CAMERAS)
    results = []
    for index in range(40):
        for camera in CAMERAS:
            item = detections(camera, index)
            if camera.name == "cam1":
                item = replace(item, uv_px=rng.uniform(100, 700, (1, 2)))
            results += triangulator.add(item, item.stamp_ns)
    found = positions(results)
    assert len(found) == 40
    assert all(
        np.linalg.norm(item.pos_table - ball_at((item.stamp_ns - START_NS) // PERIOD_NS)) < 1e-6
        for item in found
    )
    assert triangulator.health()["disturbed"] == ("cam1",)


def poses_in_order(order):
    return tuple(
        replace(camera, table_from_camera=CAMERAS[source].table_from_camera)
        for camera, source in zip(CAMERAS, order, strict=True)
    )


TURN = np.diag([-1.0, -1.0, 1.0, 1.0])
TURNED = (
    *CAMERAS[:2],
    replace(CAMERAS[2], table_from_camera=TURN @ CAMERAS[2].table_from_camera),
    CAMERAS[3],
)


@pytest.mark.parametrize(
    ("rig", "hint"),
    [
        (poses_in_order((1, 0, 2, 3)), "cam0 and cam1 are exchanged"),
        (poses_in_order((0, 3, 2, 1)), "cam1 and cam3 are exchanged"),
        (poses_in_order((1, 2, 0, 3)), "gets the place of"),
        (TURNED[1:3], "cam2 is put at the opposite end"),
        (poses_in_order((1, 0, 2, 3))[:2], "cam0 and cam1 are exchanged"),
    ],
    ids=["neighbours", "opposite", "three", "wrong end", "two cameras"],
)
def test_exchanged_and_turned_cameras_are_refused_with_the_hint_which(rig, hint):
    triangulator = Triangulator(rig)
    late = []
    for index in range(40):
        for camera in rig:
            item = detections(next(true for true in CAMERAS if true.name == camera.name), index)
            found = triangulator.add(item, item.stamp_ns)
            late += found if index >= 20 else []
    assert hint in triangulator.health()["refused"]
    assert late == []


def test_things_that_stand_still_do_not_look_like_exchanged_cameras():
    rng = np.random.default_rng(11)
    for _ in range(6):
        still = {camera.name: rng.uniform(100.0, 700.0, (3, 2)) for camera in CAMERAS}
        for rig in (CAMERAS, CAMERAS[:2]):
            triangulator = Triangulator(rig, TriangulatorConfig(pixel_sigma=1.0))
            for index in range(25):
                for camera in rig:
                    item = detections(camera, index)
                    pixels = still[camera.name] + rng.normal(0.0, 0.2, (3, 2))
                    item = replace(item, uv_px=pixels, radius_px=np.full(3, 4.0), score=np.ones(3))
                    triangulator.add(item, item.stamp_ns)
            assert triangulator.health()["refused"] == ""


def test_a_moved_camera_is_warned_of_but_the_others_go_on():
    moved = replace(CAMERAS[1], table_from_camera=look_at(CAMERAS[1].centre_table, [0.4, 0.5, 0.2]))
    triangulator = Triangulator((CAMERAS[0], moved, *CAMERAS[2:]))
    found = []
    for index in range(60):
        for camera in CAMERAS:
            item = detections(camera, index)
            found += triangulator.add(item, item.stamp_ns)
    health = triangulator.health()
    assert health["refused"] == "" and "cam1 contradicts the others" in health["warning"]
    assert len(found) > 50


def test_one_camera_of_a_known_ball_gives_a_ray_through_it():
    triangulator = Triangulator(CAMERAS)
    run(triangulator, [(detections(camera, index), 5.0) for index in range(4) for camera in CAMERAS])
    results = []
    for camera in CAMERAS:
        item = detections(camera, 4)
        if camera.name != "cam2":
            item = replace(item, uv_px=np.empty((0, 2)), radius_px=np.empty(0), score=np.empty(0))
        results += triangulator.add(item, item.stamp_ns)
    (ray,) = results
    assert isinstance(ray, BallRay)
    homogeneous = ray.projection @ np.append(ball_at(4), 1.0)
    assert np.allclose(ray.uv_px, homogeneous[:2] / homogeneous[2], atol=1e-6)


def test_free_cameras_give_rays_at_once():
    config = TriangulatorConfig(trigger=TriggerConfig(free=("*",)))
    triangulator = Triangulator(CAMERAS, config)
    results = run(
        triangulator, [(detections(CAMERAS[0], 0), 5.0), (detections(CAMERAS[1], 0, shift_ns=1_000), 5.0)]
    )
    assert [item.camera for item in results] == ["cam0", "cam1"]


@pytest.mark.parametrize("stamp", [0, -5])
def test_stamps_that_are_no_times_are_counted(stamp):
    triangulator = Triangulator(CAMERAS)
    item = replace(detections(CAMERAS[0], 0), stamp_ns=stamp)
    assert triangulator.add(item, START_NS) == []
    assert triangulator.health()["bad_stamp"] == 1


def test_a_clock_set_back_starts_again():
    triangulator = Triangulator(CAMERAS)
    run(triangulator, [(detections(camera, index), 5.0) for index in range(3) for camera in CAMERAS])
    back = [
        (replace(item, stamp_ns=item.stamp_ns - 10_000_000_000), 5.0)
        for index in range(3)
        for item in (detections(camera, index) for camera in CAMERAS)
    ]
    assert len(positions(run(triangulator, back))) == 3
    assert triangulator.health()["reset"] >= 1


def test_a_single_camera_rig_says_so():
    triangulator = Triangulator(CAMERAS[:1])
    assert "1 camera only" in triangulator.health()["warning"]
    triangulator.add(replace(detections(CAMERAS[0], 0), camera="stranger"), START_NS)
    assert triangulator.health()["unknown_camera"] == 1
