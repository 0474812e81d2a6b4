"""Camera model against OpenCV, files, and the plausibility of poses."""

from __future__ import annotations

from dataclasses import replace

import cv2
import numpy as np
import pytest
import yaml

from tt_perception.camera import (
    CameraError,
    CameraModel,
    default_sim_cameras,
    load_camera_info,
    load_cameras,
    save_cameras,
)
from tt_perception.plausibility import check_rig, inverted
from tt_perception.rotation import matrix_from_quat, quat_from_matrix

CAMERAS = default_sim_cameras()


def grid():
    axes = np.linspace(-0.9, 0.9, 7), np.linspace(-2.2, 2.2, 9), np.linspace(-0.2, 1.0, 5)
    return np.array(np.meshgrid(*axes)).reshape(3, -1).T


@pytest.mark.parametrize("camera", CAMERAS, ids=lambda camera: camera.name)
def test_projection_is_that_of_opencv(camera):
    transform = camera.camera_from_table
    vector, _ = cv2.Rodrigues(transform[:3, :3])
    expected, _ = cv2.projectPoints(grid(), vector, transform[:3, 3], camera.matrix, camera.distortion)
    assert np.allclose(camera.project(grid()), expected.reshape(-1, 2), atol=1e-8)


@pytest.mark.parametrize("camera", CAMERAS, ids=lambda camera: camera.name)
def test_undistorted_pixels_are_those_of_the_projection_matrix(camera):
    homogeneous = np.c_[grid(), np.ones(len(grid()))] @ camera.projection.T
    assert np.allclose(
        camera.undistort(camera.project(grid())), homogeneous[:, :2] / homogeneous[:, 2:], atol=1e-8
    )


def test_points_behind_the_camera_have_no_pixel():
    camera = CAMERAS[0]
    behind = camera.centre_table - 2.0 * camera.table_from_camera[:3, 2]
    assert np.isnan(camera.project(behind)).all()


@pytest.mark.parametrize("dtype", [np.int32, np.uint8, np.float16, np.float32])
def test_any_real_pixel_type_is_taken(dtype):
    pixels = np.array([[100, 50], [200, 120]], dtype=dtype)
    assert np.allclose(CAMERAS[0].undistort(pixels), CAMERAS[0].undistort(pixels.astype(np.float64)))


def test_no_pixels_give_no_pixels():
    assert CAMERAS[0].undistort(np.empty((0, 2))).shape == (0, 2)


def test_the_simulated_cameras_see_the_volume_of_play():
    points = np.array([p for p in grid() if abs(p[1]) < 2.0])
    seen = np.sum([camera.in_image(camera.project(points)) for camera in CAMERAS], axis=0)
    assert seen.min() >= 3
    check_rig(CAMERAS)


def test_binning_keeps_the_direction_of_every_pixel():
    camera = CAMERAS[1]
    half = camera.scaled(640, 400)
    uv = camera.project(grid())
    expected = (uv - [639.5, 399.5]) / 2 + [319.5, 199.5]
    assert np.allclose(half.project(grid()), expected, atol=1e-9)


def test_quaternions_round_trip():
    """For rotations of every kind, half turns included."""
    rng = np.random.default_rng(1)
    for quat in [*rng.normal(size=(50, 4)), [1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]]:
        rotation = matrix_from_quat(np.array(quat, float))
        assert np.allclose(matrix_from_quat(quat_from_matrix(rotation)), rotation, atol=1e-12)


def test_files_give_back_the_cameras(tmp_path):
    path = tmp_path / "lab.yaml"
    save_cameras(path, CAMERAS, method="test", date="2026-01-01")
    for before, after in zip(CAMERAS, load_cameras(path), strict=True):
        assert after.checksum == before.checksum
        assert np.allclose(after.project(grid()), before.project(grid()), atol=1e-9)
    assert [camera.name for camera in load_cameras(path, ["cam2", "cam0"])] == ["cam2", "cam0"]
    info = yaml.safe_load((tmp_path / "lab" / "cam0.yaml").read_text())
    assert info["distortion_model"] == "plumb_bob" and len(info["projection_matrix"]["data"]) == 12


def edit(path, change):
    data = yaml.safe_load(path.read_text())
    change(data)
    path.write_text(yaml.safe_dump(data))


def test_edited_numbers_are_noticed(tmp_path):
    path = tmp_path / "lab.yaml"
    save_cameras(path, CAMERAS)
    edit(path, lambda data: data["cameras"]["cam1"]["position_m"].__setitem__(0, 2.9))
    with pytest.raises(CameraError, match="checksum"):
        load_cameras(path)
    assert load_cameras(path, verify=False)[1].centre_table[0] == 2.9


def test_changed_intrinsics_are_noticed(tmp_path):
    path = tmp_path / "lab.yaml"
    save_cameras(path, CAMERAS)
    edit(tmp_path / "lab" / "cam1.yaml", lambda data: data["camera_matrix"]["data"].__setitem__(0, 1000.0))
    with pytest.raises(CameraError, match="intrinsics of 'cam1' changed"):
        load_cameras(path)


@pytest.mark.parametrize(
    ("text", "match"),
    [
        ("", "NoneType"),
        ("just words", "holds str"),
        ("a: [1, 2", "cannot be read as YAML"),
        ("frame: base_link\ncameras: {}\n", "frame is 'base_link'"),
        ("frame: table\ncameras: {}\n", "lists no camera"),
        ("frame: table\ncameras: {cam0: {position_m: [0, 0, 1]}}\n", "not an extrinsics file"),
    ],
)
def test_foreign_files_are_refused_in_one_line(tmp_path, text, match):
    path = tmp_path / "foreign.yaml"
    path.write_text(text)
    with pytest.raises(CameraError, match=match) as error:
        load_cameras(path)
    assert "\n" not in str(error.value)


def test_missing_files_duplicate_serials_and_unknown_names(tmp_path):
    with pytest.raises(CameraError, match="no such file"):
        load_cameras(tmp_path / "none.yaml")
    path = tmp_path / "twins.yaml"
    save_cameras(path, [replace(camera, serial="123") for camera in CAMERAS[:2]])
    with pytest.raises(CameraError, match="same serial number '123'"):
        load_cameras(path)
    save_cameras(path, CAMERAS)
    with pytest.raises(CameraError, match="no camera 'cam9'"):
        load_cameras(path, ["cam9"])


def test_another_lens_model_is_refused(tmp_path):
    save_cameras(tmp_path / "lab.yaml", CAMERAS)
    path = tmp_path / "lab" / "cam0.yaml"
    edit(path, lambda data: data.update(distortion_model="equidistant"))
    with pytest.raises(CameraError, match="equidistant"):
        load_camera_info(path)


@pytest.mark.parametrize(
    "change", [{"matrix": np.full((3, 3), np.nan)}, {"width": 0}, {"distortion": np.zeros(4)}]
)
def test_impossible_models_are_refused(change):
    with pytest.raises(CameraError):
        replace(CAMERAS[0], **change)


def mirrored(camera):
    pose = np.array(camera.table_from_camera)
    pose[:3] = np.diag([1.0, 1.0, -1.0]) @ pose[:3]
    pose[:3, 0] *= -1.0  # keeps the rotation right-handed
    return replace(camera, table_from_camera=pose)


@pytest.mark.parametrize(
    ("camera", "match"),
    [
        (inverted(CAMERAS[0]), "inverted"),
        (mirrored(CAMERAS[0]), "under the floor.*z axis points down"),
        (replace(CAMERAS[0], table_from_camera=np.eye(4)), "cam0"),
    ],
)
def test_poses_that_cannot_be_are_refused_with_a_hint(camera, match):
    with pytest.raises(CameraError, match=match):
        check_rig([camera])


def test_one_calibration_for_two_cameras_is_refused():
    with pytest.raises(CameraError, match="same place"):
        check_rig([CAMERAS[0], replace(CAMERAS[0], name="copy")])


def test_a_mirror_is_no_rotation():
    pose = np.array(CAMERAS[0].table_from_camera)
    pose[:3, 0] *= -1.0
    with pytest.raises(CameraError, match="right-handed"):
        CameraModel("x", 10, 10, CAMERAS[0].matrix, np.zeros(5), pose)
