"""Calibrations against known truth, and what they refuse."""

from __future__ import annotations

import json
from dataclasses import replace

import cv2
import numpy as np
import pytest

from tt_perception.calibration.boards import Board, BoardError
from tt_perception.calibration.bundle import Anchor, BundleError, adjust, gather
from tt_perception.calibration.intrinsics import IntrinsicsCollector, IntrinsicsError, ViewVerdict
from tt_perception.calibration.poses import moved, pose_difference, rotation_from_vector
from tt_perception.calibration.table_lines import (
    TableNotFoundError,
    clicked_corners,
    find_table,
    fit_table,
    pose_from_corners,
    table_corners,
)
from tt_perception.calibration.time_offset import estimate_time_offsets
from tt_perception.calibration.verify import detections_problem
from tt_perception.camera import CameraError, CameraModel, default_sim_cameras
from tt_sim.eval_perception import simulated_detections
from tt_sim.render import CameraRenderer, RenderConfig
from tt_sim.render_board import board_poses, board_view

CAMERAS = default_sim_cameras()
LENS = CameraModel(
    "lens",
    640,
    400,
    [[520.0, 0, 322.0], [0, 521.0, 197.0], [0, 0, 1]],
    [-0.12, 0.06, 4e-4, -3e-4, 0.0],
    np.eye(4),
)
BOARD = Board("charuco", 7, 5, 0.08, 0.06)


@pytest.fixture(scope="module")
def views():
    rng = np.random.default_rng(4)
    return [board_view(LENS, BOARD, pose, rng) for pose in board_poses(LENS, BOARD, 14, rng)]


@pytest.fixture(scope="module")
def table_image():
    renderer = CameraRenderer(CAMERAS[1], RenderConfig(samples=3, noise_frames=4), seed=2)
    stack = [renderer.render(index / 60.0).astype(np.float32) for index in range(8)]
    return np.rint(np.mean(stack, axis=0)).astype(np.uint8)


def test_intrinsics_from_simulated_views(views):
    collector = IntrinsicsCollector("lens", BOARD)
    verdicts = [collector.add(view)[0] for view in views]
    assert verdicts.count(ViewVerdict.ACCEPTED) >= 12
    result = collector.calibrate()
    assert result.rms_px < 0.3
    assert result.camera.matrix[0, 0] == pytest.approx(520.0, rel=0.003)
    assert result.camera.distortion[0] == pytest.approx(-0.12, abs=0.01)
    assert 0.0 < result.focal_sigma < 0.005
    assert len(result.residuals) > 200


def test_blurred_repeated_and_foreign_views_are_left_out(views):
    collector = IntrinsicsCollector("lens", BOARD)
    assert collector.hint() == "show the board"
    assert collector.add(views[0])[0] is ViewVerdict.ACCEPTED
    assert collector.add(views[0])[0] is ViewVerdict.REPEATED
    # Detectors still find the board under this blur; its corners would be off by tenths of a pixel.
    assert collector.add(cv2.GaussianBlur(views[1], (0, 0), 2.5))[0] in (
        ViewVerdict.BLURRED,
        ViewVerdict.NO_BOARD,
    )
    assert collector.add(np.full((400, 640), 90, np.uint8))[0] is ViewVerdict.NO_BOARD
    assert collector.add(np.full((200, 320), 90, np.uint8))[0] is ViewVerdict.WRONG_SIZE
    assert "move the board to the" in collector.hint()
    with pytest.raises(IntrinsicsError, match="1 usable views, needs 10.*1 like an earlier view"):
        collector.calibrate()


@pytest.mark.parametrize("board", [Board("chessboard", 8, 6, 0.08), Board("apriltag", 5, 4, 0.09, 0.025)])
def test_other_boards_are_found_where_they_are(board):
    pose = np.eye(4)
    pose[:3, :3] = rotation_from_vector(np.array([0.3, -0.2, 0.1]))
    pose[:3, 3] = [-0.25, -0.2, 0.9]
    view = board.find(board_view(LENS, board, pose, np.random.default_rng(0)))
    assert view is not None and len(view.ids) >= 30
    expected = LENS.project(view.points_board @ pose[:3, :3].T + pose[:3, 3])
    # A chessboard looks the same upside down.
    turned = expected[::-1] if board.kind == "chessboard" else expected
    error = min((view.uv_px - expected, view.uv_px - turned), key=lambda item: np.abs(item).max())
    assert np.median(np.linalg.norm(error, axis=1)) < 0.25
    assert np.abs(np.mean(error, axis=0)).max() < 0.15


@pytest.mark.parametrize(
    ("values", "match"),
    [
        ({"kind": "dots"}, "must be one of charuco, chessboard, apriltag"),
        ({"square_m": 60.0}, "metres, not millimetres"),
        ({"columns": 2}, "3..40"),
        ({"marker_m": 0.07}, "smaller than its square"),
    ],
)
def test_impossible_boards(values, match):
    with pytest.raises(BoardError, match=match):
        Board(**values)


def test_the_table_gives_the_pose(table_image):
    unknown = replace(CAMERAS[1], table_from_camera=np.eye(4))
    fit = find_table(table_image, unknown, "robot")
    distance, angle = pose_difference(fit.camera, CAMERAS[1])
    assert distance < 0.003 and np.degrees(angle) < 0.05
    assert fit.rms_px < 0.3
    assert distance < 4.0 * fit.position_sigma_m


def test_clicked_corners_are_refined(table_image):
    clicks = CAMERAS[1].project(table_corners()) + np.random.default_rng(0).normal(0, 4, (4, 2))
    fit = fit_table(table_image, replace(CAMERAS[1], table_from_camera=np.eye(4)), "robot", clicks)
    distance, angle = pose_difference(fit.camera, CAMERAS[1])
    assert distance < 0.003 and np.degrees(angle) < 0.05


def test_the_other_end_gives_the_mirror_place(table_image):
    fit = find_table(table_image, replace(CAMERAS[1], table_from_camera=np.eye(4)), "opponent")
    expected = CAMERAS[1].centre_table * [-1.0, -1.0, 1.0]
    assert np.allclose(fit.camera.centre_table, expected, atol=0.003)


def test_mirrored_corners_are_refused():
    corners = CAMERAS[1].project(table_corners())
    with pytest.raises(CameraError, match="mirrored or out of order"):
        pose_from_corners(CAMERAS[1], corners[[1, 0, 3, 2]])
    with pytest.raises(CameraError, match="mirrored or out of order"):
        pose_from_corners(CAMERAS[1], corners[[0, 2, 1, 3]])


def test_no_table_is_said_so():
    blank = np.full((CAMERAS[1].height, CAMERAS[1].width), 80, np.uint8)
    with pytest.raises(TableNotFoundError, match="no table found"):
        find_table(blank, CAMERAS[1], "robot")
    with pytest.raises(TableNotFoundError, match="points on the table lines"):
        fit_table(blank, CAMERAS[1], "robot", CAMERAS[1].project(table_corners()))
    with pytest.raises(TableNotFoundError, match="four pixels"):
        clicked_corners("1,2 3,4 5,6")


def flights(offsets=(0.0, 0.0, 0.0, 0.0), outliers=0.0):
    found = simulated_detections(CAMERAS, balls=5, seed=3, offsets_s=offsets, sigma_px=0.15)
    rng = np.random.default_rng(1)
    return [
        replace(item, uv_px=rng.uniform(0, 800, (1, 2))) if rng.random() < outliers else item
        for item in found
    ]


def anchors(sigma=0.1, seed=2):
    rng = np.random.default_rng(seed)
    return [
        Anchor(index, table_corners(), camera.project(table_corners()) + rng.normal(0, sigma, (4, 2)), sigma)
        for index, camera in enumerate(CAMERAS)
    ]


def test_a_moving_ball_corrects_rough_poses_in_spite_of_phantoms():
    rng = np.random.default_rng(6)
    rough = [moved(camera, np.r_[rng.normal(0, 0.002, 3), rng.normal(0, 0.02, 3)]) for camera in CAMERAS]
    result = adjust(rough, gather(flights(outliers=0.1), rough), anchors())
    for camera, truth, sigma in zip(result.cameras, CAMERAS, result.sigma_m, strict=True):
        distance, angle = pose_difference(camera, truth)
        assert distance < 0.003 and np.degrees(angle) < 0.05
        assert distance < 4.0 * sigma
    assert result.rms_px < 0.2


def test_a_ball_without_table_or_motion_is_refused():
    observations = gather(flights(), CAMERAS)
    with pytest.raises(BundleError, match="no table points"):
        adjust(CAMERAS, observations, [])
    with pytest.raises(BundleError, match="ball positions seen by two cameras"):
        gather(flights()[:100], CAMERAS)


def test_time_offsets_are_found():
    offsets = (0.0, 0.0012, -0.0006, 0.002)
    result = estimate_time_offsets(CAMERAS, gather(flights(offsets), CAMERAS))
    assert np.allclose(result.offsets_s, offsets, atol=5e-5)
    assert result.rms_after_px < result.rms_before_px
    assert np.all(np.abs(result.offsets_s - offsets) < 5.0 * np.maximum(result.sigma_s, 1e-9) + 1e-12)


def run(*words):
    from tt_bringup.cli import run_verb

    return run_verb("calibrate", words)


def test_the_command_calibrates_from_pictures_and_reports(tmp_path, table_image, capsys):
    from tt_perception.camera import load_cameras, save_camera_info

    save_camera_info(CAMERAS[1], tmp_path / "cam1.yaml")
    cv2.imwrite(str(tmp_path / "table.png"), table_image)
    out = tmp_path / "rig.yaml"
    code = run(
        "extrinsics", "--intrinsics", str(tmp_path / "cam1.yaml"), "--image", f"cam1={tmp_path / 'table.png'}",
        "--near", "cam1=robot", "--out", str(out), "--json",
    )  # fmt: skip
    assert code == 0
    answer = json.loads(capsys.readouterr().out)
    assert answer["passed"] and answer["cameras"]["cam1"]["rms_px"] < 0.3
    (camera,) = load_cameras(out)
    assert pose_difference(camera, CAMERAS[1])[0] < 0.003
    page = out.with_suffix(".html").read_text()
    assert "PASS" in page and page.count("data:image/png;base64") == 3 and answer["checksum"] in page


def test_the_answer_fits_80_columns_and_progress_stays_out_of_pipes(capsys):
    assert run("intrinsics", "--simulate", "12") == 0
    shown = capsys.readouterr()
    assert "reprojection" in shown.out and max(map(len, shown.out.splitlines())) <= 80
    assert not shown.err


def test_a_board_on_the_table_gives_the_pose(tmp_path, capsys):
    from tt_perception.camera import load_cameras, look_at, save_camera_info

    pose = look_at([0.7, -1.3, 1.7], [0.0, 0.1, 0.0])
    truth = CameraModel("near", 1280, 800, CAMERAS[0].matrix, CAMERAS[0].distortion, pose)
    board = Board("charuco", 7, 5, 0.12, 0.09)
    # Lying on the table, turned by 20°, its top left corner at (-0.4, 0.5, 0.003).
    turn = np.radians(20.0)
    table_from_board = np.eye(4)
    table_from_board[:3, :3] = [[np.cos(turn), np.sin(turn), 0], [np.sin(turn), -np.cos(turn), 0], [0, 0, -1]]
    table_from_board[:3, 3] = [-0.4, 0.5, 0.003]
    image = board_view(truth, board, truth.camera_from_table @ table_from_board, np.random.default_rng(0))
    cv2.imwrite(str(tmp_path / "board.png"), image)
    save_camera_info(truth, tmp_path / "near.yaml")
    out = tmp_path / "rig.yaml"
    code = run(
        "extrinsics", "--method", "board", "--intrinsics", str(tmp_path / "near.yaml"), "--columns", "7", "--rows", "5",
        "--square", "0.12", "--marker", "0.09", "--board-place=-0.4,0.5,0.003,20", "--out", str(out), "--json",
        "--image", f"near={tmp_path / 'board.png'}",
    )  # fmt: skip
    assert code == 0
    assert json.loads(capsys.readouterr().out)["passed"]
    (camera,) = load_cameras(out)
    distance, angle = pose_difference(camera, truth)
    assert distance < 0.004 and np.degrees(angle) < 0.1


def test_the_command_says_what_is_missing(tmp_path):
    from tt_perception.camera import save_camera_info
    from tt_perception.errors import TTError

    save_camera_info(CAMERAS[1], tmp_path / "cam1.yaml")
    given = ("extrinsics", "--intrinsics", str(tmp_path / "cam1.yaml"))
    with pytest.raises(TTError, match="no --image for camera 'cam1'"):
        run(*given)
    with pytest.raises(TTError, match="must be CAMERA=VALUE"):
        run(*given, "--image", "table.png")
    with pytest.raises(TTError, match="upside down"):
        run(*given, "--method", "board", "--board", "chessboard")
    with pytest.raises(TTError, match="must be table, board or ball"):
        run("extrinsics", "--method", "magic")
    with pytest.raises(TTError, match="give --images FOLDER"):
        run("intrinsics")


def test_a_hand_edited_rig_is_refused_until_accepted(tmp_path):
    from tt_perception.camera import save_cameras

    path = tmp_path / "rig.yaml"
    save_cameras(path, CAMERAS)
    path.write_text(path.read_text().replace("2.8, -4.0", "2.81, -4.0"))
    with pytest.raises(CameraError, match="checksum"):
        run("check", str(path))
    assert run("check", str(path), "--accept") == 0
    assert run("check", str(path)) == 0


def with_poses(order):
    return tuple(
        replace(camera, table_from_camera=CAMERAS[source].table_from_camera)
        for camera, source in zip(CAMERAS, order, strict=True)
    )


def test_exchanged_cameras_are_named_by_a_picture_of_the_table(tmp_path, table_image, capsys):
    from tt_perception.camera import save_cameras

    picture = tmp_path / "cam1.png"
    cv2.imwrite(str(picture), table_image)
    paths = []
    for index, rig in enumerate((CAMERAS, with_poses((1, 0, 2, 3)))):
        paths.append(str(tmp_path / f"rig{index}.yaml"))
        save_cameras(paths[-1], rig)
    assert run("check", paths[0], "--image", f"cam1={picture}") == 0
    capsys.readouterr()
    assert run("check", paths[1], "--image", f"cam1={picture}", "--json") == 1
    answer = json.loads(capsys.readouterr().out)
    assert not answer["passed"]
    assert "the place of cam0: are the two exchanged?" in answer["problems"][0]


def test_recorded_detections_tell_exchanged_from_moved_cameras():
    found = flights(outliers=0.05)
    assert detections_problem(CAMERAS, found) == ""
    assert "cam1 and cam2 are exchanged" in detections_problem(with_poses((0, 2, 1, 3)), found)
    step = np.array([0.0, 0.03, 0.0, 0.2, 0.0, 0.0])
    shifted = [moved(camera, (1 - 2 * (index % 2)) * step) for index, camera in enumerate(CAMERAS)]
    assert "was a camera moved?" in detections_problem(shifted, found)
    assert "needs 20" in detections_problem(CAMERAS, found[:30])


def test_a_moving_ball_cannot_correct_exchanged_cameras():
    with pytest.raises(BundleError, match="agree when cam0 and cam1 are exchanged"):
        gather(flights(), with_poses((1, 0, 2, 3)))
