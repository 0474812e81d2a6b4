"""`tt calibrate`: intrinsics, extrinsics and time offsets of the cameras."""

from __future__ import annotations

import contextlib
import datetime
import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tt_bringup.choices import boards, one_of
from tt_bringup.terminal import Progress, say
from tt_perception.errors import TTError
from tt_perception.files import result_file, whole_file

if TYPE_CHECKING:
    from tt_perception.calibration.bundle import Anchor
    from tt_perception.camera import CameraModel
    from tt_perception.types import CameraDetections

app = typer.Typer(
    help="Calibrate cameras: intrinsics, extrinsics, time offsets.",
    no_args_is_help=True,
    add_completion=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)

_LIMIT_TABLE_RMS_PX = 0.5
_LIMIT_CENTRE_SIGMA_M = 0.005
_LIMIT_BUNDLE_RMS_PX = 0.5

JsonOption = Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")]
ReportOption = Annotated[Path | None, typer.Option(help="HTML report; beside the result when left out.")]


class CalibrationError(TTError):
    """A calibration that cannot start or does not pass."""


def _today() -> str:
    return datetime.datetime.now().astimezone().isoformat(timespec="seconds")


def _pairs(values: list[str], what: str) -> dict[str, str]:
    pairs = {}
    for value in values:
        name, sign, rest = value.partition("=")
        if not sign or not name or not rest:
            raise CalibrationError(f"{what} {value!r} must be CAMERA=VALUE, e.g. cam0=picture.png")
        pairs[name] = rest
    return pairs


def _finish(result: dict[str, Any], problems: list[str], as_json: bool, lines: list[str]) -> None:
    """Print the outcome; exit code 1 when the calibration does not pass."""
    if as_json:
        print(json.dumps({**result, "passed": not problems, "problems": problems}))
    else:
        for line in lines:
            print(line)
        print("PASS" if not problems else "FAIL: " + "; ".join(problems))
    if problems:
        raise typer.Exit(1)


def _read_image(path: str) -> Any:
    import cv2

    image = cv2.imread(path, cv2.IMREAD_GRAYSCALE)
    if image is None:
        raise CalibrationError(f"{path}: not a readable image")
    return image


def _of_size(picture: Any, camera: CameraModel) -> Any:
    if picture.shape[:2] != (camera.height, camera.width):
        raise CalibrationError(
            f"{camera.name}: image of {picture.shape[1]}×{picture.shape[0]} px, "
            f"but intrinsics for {camera.width}×{camera.height}"
        )
    return picture


@app.command()
def intrinsics(
    camera: Annotated[str, typer.Option(help="Name of the camera.")] = "cam0",
    images: Annotated[Path | None, typer.Option(help="Folder of images, or a video.")] = None,
    device: Annotated[str, typer.Option(help="Live camera: /dev/videoN, or a Basler serial number.")] = "",
    backend: Annotated[
        str, typer.Option(help="Of the live camera: uvc or basler.", autocompletion=one_of("uvc", "basler"))
    ] = "uvc",
    size: Annotated[str, typer.Option(help="Live image size, WIDTHxHEIGHT.")] = "1280x800",
    fps: Annotated[float, typer.Option(help="Live image rate, Hz.", min=0.5)] = 30.0,
    board: Annotated[
        str, typer.Option(help="charuco, chessboard or apriltag.", autocompletion=boards)
    ] = "charuco",
    columns: Annotated[int, typer.Option(help="Squares (tags) across.")] = 9,
    rows: Annotated[int, typer.Option(help="Squares (tags) down.")] = 6,
    square: Annotated[float, typer.Option(help="Side of a square (tag), m.")] = 0.06,
    marker: Annotated[float, typer.Option(help="Side of a ChArUco marker, or gap between tags, m.")] = 0.045,
    views: Annotated[int, typer.Option(help="Useful views to collect from a live camera.", min=10)] = 25,
    out: Annotated[Path | None, typer.Option(help="camera_info YAML to write.")] = None,
    report: ReportOption = None,
    picture: Annotated[Path | None, typer.Option(help="Only write the board as PNG, for printing.")] = None,
    simulate: Annotated[
        int, typer.Option(help="Use this many simulated views, and compare with the truth.")
    ] = 0,
    as_json: JsonOption = False,
) -> None:
    """Lens and sensor of one camera, from views of a board.

    Show the board all over the image, near enough to fill a third of it, tilted by 30 to 45 degrees. Blurred
    and repeated views are left out, and a hint tells what is missing.
    """
    from dataclasses import replace

    import cv2

    from tt_perception.calibration.boards import Board
    from tt_perception.calibration.intrinsics import IntrinsicsCollector, ViewVerdict
    from tt_perception.calibration.report import coverage_picture, residual_map, write_report
    from tt_perception.camera import save_camera_info

    pattern = Board(board, columns, rows, square, marker)
    if picture is not None:
        if not cv2.haveImageWriter(str(picture)):
            raise CalibrationError(f"{picture}: pictures of this kind cannot be written; let it end in .png")
        with whole_file(picture) as partial:
            if not cv2.imwrite(str(partial), pattern.picture(300.0 / 0.0254)):
                raise CalibrationError(f"cannot write {picture}: no such folder, or no space is left")
        width, height = pattern.size_m
        say(
            f"{picture}: print it {width * 1e3:.1f} × {height * 1e3:.1f} mm (300 dpi), "
            "glue it to something flat, measure"
        )
        return
    collector = IntrinsicsCollector(camera, pattern)
    truth = None
    if simulate:
        truth = _simulated_views(collector, pattern, simulate)
    elif images is not None:
        _views_of_folder(collector, images)
    elif device:
        _views_of_camera(collector, device, backend, size, fps, views)
    else:
        raise CalibrationError("give --images FOLDER, --device CAMERA, or --simulate N")
    with Progress("fitting the lens"):
        result = collector.calibrate()
    model = replace(result.camera, serial=device if backend == "basler" else "")
    problems = list(result.problems)
    facts: dict[str, Any] = {
        "camera": camera,
        "views": result.views,
        "dropped_views": result.dropped,
        **{verdict.name.lower(): collector.counts[verdict] for verdict in ViewVerdict},
        "rms_px": result.rms_px,
        "focal_px": [float(model.matrix[0, 0]), float(model.matrix[1, 1])],
        "centre_px": [float(model.matrix[0, 2]), float(model.matrix[1, 2])],
        "distortion": [float(value) for value in model.distortion],
        "focal_sigma_share": result.focal_sigma,
        "coverage": result.coverage,
        "checksum": model.intrinsics_checksum,
        "date": _today(),
    }
    if truth is not None:
        facts["focal_error_share"] = float(model.matrix[0, 0] / truth.matrix[0, 0] - 1.0)
    if out is not None:
        save_camera_info(model, out)
    target = report or (out.with_suffix(".html") if out is not None else None)
    if target is not None:
        write_report(
            target,
            f"Intrinsics of {camera}",
            [(name, str(value)) for name, value in facts.items()],
            problems,
            [
                (
                    "Residuals, 100 times enlarged",
                    residual_map(
                        (model.width, model.height), result.residuals[:, :2], result.residuals[:, 2:]
                    ),
                ),
                ("Points per cell", coverage_picture(collector.coverage_map(), (model.width, model.height))),
            ],
        )
    lines = [
        f"{camera}: {result.views} views, reprojection {result.rms_px:.3f} px",
        f"  focal length {model.matrix[0, 0]:.2f} px ± {100 * result.focal_sigma:.3f} %, "
        f"coverage {100 * result.coverage:.0f} %",
        f"  checksum {model.intrinsics_checksum}",
    ]
    if truth is not None:
        lines.append(f"  focal length against the truth: {100 * facts['focal_error_share']:+.4f} %")
    _finish(facts, problems, as_json, lines)


def _simulated_views(collector: Any, pattern: Any, count: int) -> CameraModel:
    import numpy as np

    from tt_perception.camera import default_sim_cameras
    from tt_sim.render_board import board_poses, board_view

    truth = default_sim_cameras()[0]
    rng = np.random.default_rng(2)
    with Progress("rendering views", total=count) as bar:
        for number, pose in enumerate(board_poses(truth, pattern, count, rng)):
            verdict, _ = collector.add(board_view(truth, pattern, pose, rng))
            bar.update(number + 1, note=verdict.value)
    return truth


def _views_of_folder(collector: Any, path: Path) -> None:
    from tt_perception.backends.base import CameraSettings
    from tt_perception.backends.folder import FolderBackend
    from tt_perception.calibration.intrinsics import ViewVerdict

    source = FolderBackend(CameraSettings(device=str(path)), lambda: 0, paced=False)
    say(source.open())
    number = 0
    with contextlib.suppress(EOFError), contextlib.closing(source), Progress("looking at images") as bar:
        while True:
            frame = source.read(1.0)
            if frame is None:
                continue
            number += 1
            verdict, _ = collector.add(frame.image)
            bar.update(number)
            if verdict is not ViewVerdict.ACCEPTED:
                say(f"image {number}: {verdict.value}")


def _views_of_camera(collector: Any, device: str, backend: str, size: str, fps: float, views: int) -> None:
    import time

    from tt_perception.backends.base import CameraSettings

    try:
        width, height = (int(part) for part in size.lower().split("x"))
    except ValueError:
        raise CalibrationError(f"size {size!r} must be WIDTHxHEIGHT, e.g. 1280x800") from None
    settings = CameraSettings(
        device=device, width=width, height=height, fps=fps, exposure_s=min(0.004, 0.5 / fps)
    )
    source: Any
    if backend == "uvc":
        from tt_perception.backends.uvc import UvcBackend

        source = UvcBackend(settings, time.time_ns)
    elif backend == "basler":
        from tt_perception.backends.basler import BaslerBackend

        source = BaslerBackend(settings, time.time_ns)
    else:
        raise CalibrationError(
            f"backend {backend!r} must be uvc or basler; record others to a folder of images"
        )
    say(source.open())
    last = ""
    silent_until = time.monotonic() + 5.0
    try:
        while len(collector.views) < views or collector.coverage < 0.9:
            frame = source.read(0.5)
            if frame is None:
                if time.monotonic() > silent_until:
                    raise CalibrationError(f"no image from {device} for 5 s; is its trigger running?")
                continue
            silent_until = time.monotonic() + 5.0
            verdict, _ = collector.add(frame.image)
            text = f"{len(collector.views)}/{views} views, {100 * collector.coverage:.0f} % covered: "
            text += f"{verdict.value}; {collector.hint()}"
            if text != last:
                say(text)
                last = text
    except KeyboardInterrupt:
        say("stopped; using the views so far")
    finally:
        source.close()


@app.command()
def extrinsics(
    method: Annotated[
        str, typer.Option(help="table, board or ball.", autocompletion=one_of("table", "board", "ball"))
    ] = "table",
    cameras: Annotated[
        Path | None,
        typer.Option(help="Extrinsics YAML whose intrinsics (and rough poses, for ball) are used."),
    ] = None,
    intrinsics_files: Annotated[
        list[Path] | None, typer.Option("--intrinsics", help="camera_info YAML; repeat per camera.")
    ] = None,
    image: Annotated[
        list[str] | None, typer.Option(help="CAMERA=IMAGE of the table or board; repeat.")
    ] = None,
    near: Annotated[
        list[str] | None,
        typer.Option(
            help="CAMERA=robot|opponent|left|right: the end or side of the table it stands nearest to."
        ),
    ] = None,
    corners: Annotated[
        list[str] | None,
        typer.Option(
            help="CAMERA='u,v u,v u,v u,v': corners robot left, robot right, opponent right, opponent left."
        ),
    ] = None,
    bag: Annotated[
        Path | None, typer.Option(help="Recording with detections of a moving ball (method ball).")
    ] = None,
    board: Annotated[
        str, typer.Option(help="charuco, chessboard or apriltag (method board).", autocompletion=boards)
    ] = "charuco",
    columns: Annotated[int, typer.Option(help="Squares (tags) across.")] = 9,
    rows: Annotated[int, typer.Option(help="Squares (tags) down.")] = 6,
    square: Annotated[float, typer.Option(help="Side of a square (tag), m.")] = 0.06,
    marker: Annotated[float, typer.Option(help="Side of a ChArUco marker, or gap between tags, m.")] = 0.045,
    board_place: Annotated[
        str,
        typer.Option(
            help="Top left corner x,y,z (m) of the board in frame table and its turn about z (degrees)."
        ),
    ] = "0,0,0,0",
    out: Annotated[
        Path | None, typer.Option(help="Extrinsics YAML to write. [default: cameras.yaml]")
    ] = None,
    report: ReportOption = None,
    simulate: Annotated[
        bool,
        typer.Option(
            "--simulate",
            help="Rendered images of the simulated rig; compares with the truth and writes nothing.",
        ),
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Poses of the cameras over the table: from its lines, from a board on it, or from a moving ball.

    The table looks the same from both ends, so say where each camera stands with --near. `ball` refines the
    poses of all cameras together and needs a recording of `<camera>/detections`; frame and scale come from
    the table (--image) or from the rough poses.
    """
    from tt_perception.calibration.poses import pose_difference
    from tt_perception.camera import default_sim_cameras, rig_checksum, save_cameras
    from tt_perception.plausibility import check_rig

    if method not in ("table", "board", "ball"):
        raise CalibrationError(f"method {method!r} must be table, board or ball")
    file = None if simulate else result_file(out, "cameras.yaml", "--out")
    if simulate:
        rig: list[CameraModel] = list(default_sim_cameras())
    else:
        rig = _rig(cameras, intrinsics_files or [])
    found: list[CameraModel]
    extra: dict[str, Any]
    pictures: list[tuple[str, Any]]
    if method == "table":
        found, extra, pictures, problems = _from_table(rig, image or [], near or [], corners or [], simulate)
    elif method == "board":
        from tt_perception.calibration.boards import Board

        pattern = Board(board, columns, rows, square, marker)
        found, extra, pictures, problems = _from_board(rig, image or [], pattern, board_place)
    else:
        found, extra, pictures, problems = _from_ball(
            rig, bag, image or [], near or [], corners or [], simulate
        )
    check_rig(found)
    facts: dict[str, Any] = {"method": method, "date": _today(), "checksum": rig_checksum(found), **extra}
    lines = [f"{method}: {len(found)} cameras, checksum {facts['checksum']}"]
    for camera in found:
        x, y, z = camera.centre_table
        lines.append(f"  {camera.name}: centre {x:+.4f}, {y:+.4f}, {z:+.4f} m")
        lines.append(f"    {facts['cameras'][camera.name]['text']}")
    if simulate:
        for truth, camera in zip(default_sim_cameras(), found, strict=True):
            distance, angle = pose_difference(truth, camera)
            facts["cameras"][camera.name].update(error_m=distance, error_rad=angle)
            lines.append(
                f"  {camera.name} against the truth: {distance * 1e3:.2f} mm, {angle * 57.29578:.4f}°"
            )
    from tt_perception.calibration.report import poses_picture, write_report

    target = report or (None if file is None else file.with_suffix(".html"))
    if target is not None:
        rows_shown = [(name, str(value)) for name, value in facts.items() if name != "cameras"]
        rows_shown += [(camera.name, facts["cameras"][camera.name]["text"]) for camera in found]
        write_report(
            target,
            f"Extrinsics from the {method}",
            rows_shown,
            problems,
            [("Cameras over the table", poses_picture(found)), *pictures],
        )
    if file is not None and not problems:
        save_cameras(file, found, method=method, date=facts["date"], report=str(target or ""))
        lines.append(f"written to {file}; report {target}")
    _finish(facts, problems, as_json, lines)


def _rig(cameras: Path | None, files: list[Path]) -> list[CameraModel]:
    from tt_perception.camera import load_camera_info, load_cameras

    if cameras is not None:
        return list(load_cameras(cameras))
    if not files:
        raise CalibrationError(
            "give --intrinsics FILE per camera (from `tt calibrate intrinsics`), or --cameras RIG.yaml"
        )
    rig = [load_camera_info(path) for path in files]
    names = [camera.name for camera in rig]
    for name in names:
        if names.count(name) > 1:
            raise CalibrationError(
                f"two intrinsics files are for camera {name!r}; correct camera_name in one of them"
            )
    return rig


Found = tuple[list["CameraModel"], dict[str, Any], list[tuple[str, Any]], list[str]]


def _from_table(
    rig: list[CameraModel], images: list[str], near: list[str], corners: list[str], simulate: bool
) -> Found:
    import numpy as np

    from tt_perception.calibration.report import overlay_picture, residual_map
    from tt_perception.calibration.table_lines import clicked_corners, fit_table

    pictures, problems, notes, found = [], [], {}, []
    if simulate:
        rig, loaded, ends = _simulated_table(rig)
        clicks: dict[str, str] = {}
    else:
        loaded = {name: _read_image(path) for name, path in _pairs(images, "--image").items()}
        ends, clicks = _pairs(near, "--near"), _pairs(corners, "--corners")
    for camera in rig:
        if camera.name not in loaded:
            raise CalibrationError(f"no --image for camera {camera.name!r}; give {camera.name}=IMAGE")
        if camera.name not in clicks and camera.name not in ends:
            raise CalibrationError(
                f"say where {camera.name!r} stands: --near {camera.name}=robot|opponent|left|right"
            )
        picture = _of_size(loaded[camera.name], camera)
        clicked = clicked_corners(clicks[camera.name]) if camera.name in clicks else None
        fit = fit_table(picture, camera, ends.get(camera.name, "robot"), clicked)
        found.append(fit.camera)
        if fit.rms_px > _LIMIT_TABLE_RMS_PX:
            problems.append(
                f"{camera.name}: lines fit to {fit.rms_px:.2f} px, more than {_LIMIT_TABLE_RMS_PX} px"
            )
        if fit.position_sigma_m > _LIMIT_CENTRE_SIGMA_M:
            problems.append(f"{camera.name}: centre uncertain by {fit.position_sigma_m * 1e3:.1f} mm")
        notes[camera.name] = {
            "rms_px": fit.rms_px,
            "samples": len(fit.residuals_px),
            "sigma_m": fit.position_sigma_m,
            "text": f"lines fit to {fit.rms_px:.3f} px ({len(fit.residuals_px)} samples), "
            f"± {fit.position_sigma_m * 1e3:.1f} mm",
        }
        size = (camera.width, camera.height)
        across = np.column_stack([np.zeros(len(fit.residuals_px)), fit.residuals_px])
        pictures.append(
            (f"{camera.name}: table where the calibration puts it", overlay_picture(picture, fit.camera))
        )
        pictures.append(
            (
                f"{camera.name}: residuals across the lines, 100 times",
                residual_map(size, fit.points_px, across),
            )
        )
    return found, {"cameras": notes}, pictures, problems


def _simulated_table(rig: list[CameraModel]) -> tuple[list[CameraModel], dict[str, Any], dict[str, str]]:
    """Rendered images of the table, averaged over 8, and cameras without poses."""
    from dataclasses import replace

    import numpy as np

    from tt_sim.render import CameraRenderer, RenderConfig

    images, ends, unknown = {}, {}, []
    with Progress("rendering tables", total=len(rig)) as bar:
        for done, camera in enumerate(rig):
            bar.update(done, note=camera.name)
            renderer = CameraRenderer(camera, RenderConfig(samples=4, noise_frames=8), seed=3)
            stack = [renderer.render(index / 60.0).astype(np.float32) for index in range(8)]
            images[camera.name] = np.rint(np.mean(stack, axis=0)).astype(np.uint8)
            ends[camera.name] = "robot" if camera.centre_table[1] < 0 else "opponent"
            unknown.append(replace(camera, table_from_camera=np.eye(4)))
    return unknown, images, ends


def _from_board(rig: list[CameraModel], images: list[str], pattern: Any, place: str) -> Found:
    import cv2
    import numpy as np

    from tt_perception.calibration.poses import refine_pose, with_camera_from_table
    from tt_perception.calibration.report import overlay_picture

    if pattern.kind == "chessboard":
        raise CalibrationError(
            "a chessboard looks the same upside down and gives no pose; use --board charuco or apriltag"
        )
    try:
        x, y, z, turn = (float(part) for part in place.split(","))
    except ValueError:
        raise CalibrationError(
            f"--board-place {place!r} must be x,y,z,degrees, e.g. -0.27,-0.18,0.003,0"
        ) from None
    cos, sin = np.cos(np.radians(turn)), np.sin(np.radians(turn))
    # Board x runs right, y down the page: lying on the table its y axis points to the reader.
    table_from_board = np.array(
        [[cos, sin, 0.0, x], [sin, -cos, 0.0, y], [0.0, 0.0, -1.0, z], [0.0, 0.0, 0.0, 1.0]]
    )
    loaded = _pairs(images, "--image")
    found, notes, pictures, problems = [], {}, [], []
    for camera in rig:
        if camera.name not in loaded:
            raise CalibrationError(f"no --image for camera {camera.name!r}; give {camera.name}=IMAGE")
        image = _read_image(loaded[camera.name])
        view = pattern.find(image)
        if view is None:
            raise CalibrationError(
                f"{camera.name}: board not found in {loaded[camera.name]}; right kind, columns, rows?"
            )
        points = view.points_board @ table_from_board[:3, :3].T + table_from_board[:3, 3]
        solved, vector, translation = cv2.solvePnP(points, camera.undistort(view.uv_px), camera.matrix, None)
        if not solved:
            raise CalibrationError(f"{camera.name}: no pose fits the {len(points)} board points")
        start = with_camera_from_table(camera, cv2.Rodrigues(vector)[0], translation)

        def distance(trial: CameraModel, points: Any = points, view: Any = view) -> Any:
            return (trial.project(points) - view.uv_px).ravel()

        fit = refine_pose(start, distance, 0.3)
        rms = float(np.sqrt(2.0 * np.nanmean(fit.residuals**2)))
        sigma = float(np.sqrt(np.trace(fit.cov[3:, 3:])))
        if rms > _LIMIT_TABLE_RMS_PX:
            problems.append(f"{camera.name}: board fits to {rms:.2f} px, more than {_LIMIT_TABLE_RMS_PX} px")
        if sigma > _LIMIT_CENTRE_SIGMA_M:
            problems.append(
                f"{camera.name}: centre uncertain by {sigma * 1e3:.1f} mm; use a larger board or the table"
            )
        found.append(fit.camera)
        notes[camera.name] = {
            "rms_px": rms,
            "sigma_m": sigma,
            "text": f"board fits to {rms:.3f} px, ± {sigma * 1e3:.1f} mm",
        }
        pictures.append(
            (f"{camera.name}: table where the calibration puts it", overlay_picture(image, fit.camera))
        )
    return found, {"cameras": notes}, pictures, problems


def _from_ball(
    rig: list[CameraModel],
    bag: Path | None,
    images: list[str],
    near: list[str],
    corners: list[str],
    simulate: bool,
) -> Found:
    from tt_perception.calibration.bundle import Anchor, adjust, gather
    from tt_perception.calibration.report import poses_picture, residual_map
    from tt_perception.calibration.table_lines import table_corners

    anchors: list[Anchor] = []
    if simulate:
        detections, rough, anchors = _simulated_ball(rig)
    else:
        if bag is None:
            raise CalibrationError("method ball needs --bag RECORDING with the detections of all cameras")
        detections = read_detections(bag, rig)
        if images:
            rough, _, _, _ = _from_table(rig, images, near, corners, False)
            sigma = 0.15
        else:
            rough, sigma = rig, 1.0
        anchors = [
            Anchor(index, table_corners(), camera.project(table_corners()), sigma)
            for index, camera in enumerate(rough)
        ]
    observations = gather(detections, rough)
    say(f"{len(observations.stamps_ns)} ball positions")
    with Progress("fitting poses and positions"):
        result = adjust(rough, observations, anchors)
    problems, notes, pictures = (
        [],
        {},
        [("Ball positions", poses_picture(result.cameras, result.points_table))],
    )
    if result.rms_px > _LIMIT_BUNDLE_RMS_PX:
        problems.append(f"reprojection {result.rms_px:.2f} px, more than {_LIMIT_BUNDLE_RMS_PX} px")
    for index, camera in enumerate(result.cameras):
        mine = result.observations.camera == index
        rms = float((result.residuals_px[mine] ** 2).mean() ** 0.5)
        sigma_m = float(result.sigma_m[index])
        if sigma_m > 2.0 * _LIMIT_CENTRE_SIGMA_M:
            problems.append(
                f"{camera.name}: centre uncertain by {sigma_m * 1e3:.1f} mm; move the ball through more of the space"
            )
        notes[camera.name] = {
            "rms_px": rms,
            "observations": int(mine.sum()),
            "sigma_m": sigma_m,
            "text": f"reprojection {rms:.3f} px over {int(mine.sum())} positions, ± {sigma_m * 1e3:.1f} mm",
        }
        size = (camera.width, camera.height)
        pictures.append(
            (
                f"{camera.name}: residuals, 100 times",
                residual_map(size, result.observations.uv_px[mine], result.residuals_px[mine]),
            )
        )
    facts = {"rms_px": result.rms_px, "positions": len(result.points_table), "iterations": result.iterations}
    return list(result.cameras), {**facts, "cameras": notes}, pictures, problems


def _simulated_ball(rig: list[CameraModel]) -> tuple[list[CameraDetections], list[CameraModel], list[Anchor]]:
    """Rendered rallies seen by the detector, and rough poses from the rendered table, worsened by 1 cm and
    0.2°.
    """
    import numpy as np

    from tt_perception.calibration.bundle import Anchor
    from tt_perception.calibration.poses import moved
    from tt_perception.calibration.table_lines import table_corners
    from tt_sim.eval_perception import rendered_detections

    unknown, images, ends = _simulated_table(rig)
    from tt_perception.calibration.table_lines import find_table

    rng = np.random.default_rng(5)
    fits = [find_table(images[camera.name], camera, ends[camera.name]) for camera in unknown]
    anchors = [
        Anchor(index, table_corners(), fit.camera.project(table_corners()), 0.15)
        for index, fit in enumerate(fits)
    ]
    rough = [moved(fit.camera, np.r_[rng.normal(0, 0.002, 3), rng.normal(0, 0.006, 3)]) for fit in fits]
    with Progress("rendering rallies") as bar:
        detections = rendered_detections(rig, balls=8, seed=7, progress=bar.update)
    return detections, rough, anchors


def read_detections(
    bag: Path, cameras: list[CameraModel], namespace: str | None = None
) -> list[CameraDetections]:
    """Recorded detections of the cameras.

    Raises:
        CalibrationError: a camera was not recorded.
    """
    from tt_bringup.bags import open_bag, saying_damage
    from tt_perception.messages import detections_from_msg

    recording = open_bag(bag)
    topics = recording.cameras(namespace)
    for camera in cameras:
        if camera.name not in topics:
            raise CalibrationError(
                f"{bag}: no detections of {camera.name!r}; recorded: {', '.join(topics) or 'none'}"
            )
    wanted = {topics[camera.name] for camera in cameras}
    with saying_damage(recording), Progress("reading"):
        return [detections_from_msg(message) for _, _, message in recording.decoded(wanted)]


@app.command("time-offset")
def time_offset(
    bag: Annotated[
        Path | None, typer.Argument(help="Recording of rallies with detections of all cameras.")
    ] = None,
    cameras: Annotated[Path | None, typer.Option(help="Extrinsics YAML of the cameras.")] = None,
    write: Annotated[bool, typer.Option("--write", help="Store the offsets in the extrinsics YAML.")] = False,
    tolerance: Annotated[
        float, typer.Option(help="Stamps this near (s) count as one trigger.", min=0.0, max=0.02)
    ] = 0.003,
    simulate: Annotated[
        bool, typer.Option("--simulate", help="Simulated rallies with offsets of 1, -0.5 and 2 ms.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Constant errors of the cameras' stamps against the first camera, from a fast ball."""
    from dataclasses import replace

    from tt_perception.calibration.bundle import gather
    from tt_perception.calibration.time_offset import estimate_time_offsets
    from tt_perception.camera import default_sim_cameras, load_cameras, save_cameras

    truth = None
    if simulate:
        from tt_sim.eval_perception import simulated_detections

        rig = list(default_sim_cameras())
        truth = [0.0, 0.001, -0.0005, 0.002]
        detections = simulated_detections(rig, balls=10, seed=4, offsets_s=truth, sigma_px=0.2)
    else:
        if bag is None or cameras is None:
            raise CalibrationError("give a recording and --cameras RIG.yaml, or --simulate")
        rig = list(load_cameras(cameras))
        detections = read_detections(bag, rig)
    with Progress("fitting offsets"):
        result = estimate_time_offsets(rig, gather(detections, rig, tolerance_ns=round(tolerance * 1e9)))
    facts: dict[str, Any] = {
        "offsets_s": {camera.name: float(value) for camera, value in zip(rig, result.offsets_s, strict=True)},
        "sigma_s": {camera.name: float(value) for camera, value in zip(rig, result.sigma_s, strict=True)},
        "rms_before_px": result.rms_before_px,
        "rms_after_px": result.rms_after_px,
        "positions": result.positions,
    }
    lines = [
        f"  {camera.name}: {value * 1e3:+.3f} ± {sigma * 1e3:.3f} ms"
        for camera, value, sigma in zip(rig, result.offsets_s, result.sigma_s, strict=True)
    ]
    lines.insert(
        0,
        f"time offsets from {result.positions} positions, {result.rms_before_px:.2f} → {result.rms_after_px:.2f} px",
    )
    if truth is not None:
        worst = max(abs(value - true) for value, true in zip(result.offsets_s, truth, strict=True))
        facts["error_s"] = float(worst)
        lines.append(f"largest error against the truth: {worst * 1e6:.0f} µs")
    if write and cameras is not None:
        # Recorded stamps were already corrected by the offsets of the file.
        updated = [
            replace(camera, time_offset_ns=camera.time_offset_ns + round(float(value) * 1e9))
            for camera, value in zip(rig, result.offsets_s, strict=True)
        ]
        save_cameras(cameras, updated, method="time-offset", date=_today())
        lines.append(f"written to {cameras}")
    _finish(facts, [], as_json, lines)


@app.command()
def check(
    cameras: Annotated[Path, typer.Argument(help="Extrinsics YAML.")],
    image: Annotated[
        list[str] | None, typer.Option(help="CAMERA=IMAGE of the table, to compare with its pose; repeat.")
    ] = None,
    bag: Annotated[
        Path | None, typer.Option(help="Recording of rallies: do the views of all cameras agree?")
    ] = None,
    accept: Annotated[
        bool, typer.Option("--accept", help="Store new checksums after an edit by hand.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Verify a calibration: checksums, plausible poses, and, where given, pictures and a recording.

    Exchanged cameras are named: by a picture of the table per camera, or by a recorded ball.
    """
    from tt_perception.calibration.verify import detections_problem, picture_problem
    from tt_perception.camera import load_cameras, rig_checksum, save_cameras
    from tt_perception.plausibility import check_rig

    rig = load_cameras(cameras, verify=not accept)
    check_rig(rig)
    problems = []
    for name, path in _pairs(image or [], "--image").items():
        camera = next((camera for camera in rig if camera.name == name), None)
        if camera is None:
            raise CalibrationError(
                f"--image {name!r}: no such camera; there are {', '.join(camera.name for camera in rig)}"
            )
        problems.append(picture_problem(rig, camera, _of_size(_read_image(path), camera)))
    if bag is not None:
        problems.append(detections_problem(rig, read_detections(bag, list(rig))))
    if accept:
        save_cameras(cameras, rig, method="edited by hand", date=_today())
    names = [camera.name for camera in rig]
    _finish(
        {"cameras": names, "checksum": rig_checksum(rig)},
        [problem for problem in problems if problem],
        as_json,
        [f"{len(rig)} cameras, checksum {rig_checksum(rig)}"],
    )
