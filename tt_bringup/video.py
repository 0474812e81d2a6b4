"""A ball as a film: side and top view in slow motion, drawn from the recording."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tt_bringup.bag_view import BagView
from tt_bringup.rally import Ball, Rally
from tt_bringup.report import ReportError
from tt_bringup.urdf_scene import UrdfScene
from tt_bringup.viewer import View
from tt_perception.files import whole_file
from tt_perception.table import BALL_RADIUS_M, NET_HEIGHT_M, TABLE_LENGTH_M, TABLE_WIDTH_M

FloatArray = NDArray[np.float64]
FPS = 30
SLOW = 0.25
WIDTH, SIDE_HEIGHT, TOP_HEIGHT = 1280, 380, 500
SCALE = 255.0  # pixels per metre
_GROUND, _TABLE, _NET, _LINE = (250, 248, 246), (120, 80, 30), (150, 150, 150), (255, 255, 255)
_BALL, _PATH, _RACKET, _ROBOT, _AIM = (
    (20, 130, 245),
    (200, 150, 40),
    (40, 40, 200),
    (140, 135, 130),
    (60, 160, 40),
)
_TEXT = (60, 60, 60)


def write_video(  # noqa: PLR0917
    rally: Rally,
    ball: Ball,
    path: Path,
    urdf: str,
    slow: float = SLOW,
    progress: Callable[[int, int], None] = lambda _done, _total: None,
) -> int:
    """Renders one ball.

    Args:
        rally: the recording.
        ball: which ball.
        path: MP4 file to write.
        urdf: the robot, to draw its racket.
        slow: film time per real time.
        progress: told how many frames are drawn, and of how many.

    Returns:
        Number of frames.

    Raises:
        ReportError: this OpenCV cannot write the file; one that is there already stays as it is.
    """
    import cv2

    size = (WIDTH, SIDE_HEIGHT + TOP_HEIGHT)
    with whole_file(path) as partial:
        writer = cv2.VideoWriter(str(partial), cv2.VideoWriter.fourcc(*"mp4v"), FPS, size)
        if not writer.isOpened():
            raise ReportError(
                f"cannot write {path}: OpenCV has no MP4 encoder here, or the folder is not writable"
            )
        views, robot = BagView(rally), UrdfScene(urdf)
        times = np.arange(ball.begin, ball.end + 0.3, slow / FPS)
        for done, time_s in enumerate(times):
            progress(done, len(times))
            writer.write(
                frame(views.at(float(time_s)), robot, f"ball {ball.name}: {ball.outcome.replace('_', ' ')}")
            )
        writer.release()
        if cv2.VideoCapture(str(partial)).get(cv2.CAP_PROP_FRAME_COUNT) < len(times):
            raise ReportError(f"cannot write {path}: the MP4 encoder failed, or no space is left")
    return len(times)


def frame(view: View, robot: UrdfScene, title: str) -> NDArray[np.uint8]:
    """One picture, BGR: side view above, top view below."""
    import cv2

    image = np.full((SIDE_HEIGHT + TOP_HEIGHT, WIDTH, 3), _GROUND, np.uint8)
    half_x, half_y = TABLE_WIDTH_M / 2, TABLE_LENGTH_M / 2
    cv2.rectangle(image, _side((0, -half_y, 0)), _side((0, half_y, -0.025)), _TABLE, -1)
    cv2.line(image, _side((0, 0, 0)), _side((0, 0, NET_HEIGHT_M)), _NET, 2, cv2.LINE_AA)
    cv2.rectangle(image, _top((-half_x, -half_y, 0)), _top((half_x, half_y, 0)), _TABLE, -1)
    cv2.line(image, _top((0, -half_y, 0)), _top((0, half_y, 0)), _LINE, 1)
    cv2.line(image, _top((-half_x - 0.15, 0, 0)), _top((half_x + 0.15, 0, 0)), _NET, 3)
    for project in (_side, _top):
        # Each view keeps to its own half of the picture.
        part = image[:SIDE_HEIGHT] if project is _side else image[SIDE_HEIGHT:]
        half = image.copy()
        _robot(half, robot, view, project)
        part[:] = half[:SIDE_HEIGHT] if project is _side else half[SIDE_HEIGHT:]
        _curve(image, view.path, project, _PATH, 1)
        _curve(image, view.trail, project, _BALL, 2)
        if view.racket_pos is not None:
            cv2.circle(image, project(view.racket_pos), 9, _RACKET, 2, cv2.LINE_AA)
        if view.aim is not None and np.isfinite(view.aim).all():
            cv2.drawMarker(image, project(view.aim), _AIM, cv2.MARKER_CROSS, 18, 2)
        if view.ball is not None:
            cv2.circle(image, project(view.ball[0]), round(BALL_RADIUS_M * SCALE), _BALL, -1, cv2.LINE_AA)
    if view.landing is not None:
        cv2.circle(image, _top((view.landing[0], view.landing[1], 0)), 9, _AIM, 2, cv2.LINE_AA)
    text = f"{title}   {view.time_s:.3f} s"
    cv2.putText(image, text, (16, 30), cv2.FONT_HERSHEY_SIMPLEX, 0.7, _TEXT, 1, cv2.LINE_AA)
    return image


def _side(point: Any) -> tuple[int, int]:
    return round(WIDTH * 0.53 + SCALE * float(point[1])), round(SIDE_HEIGHT - 115 - SCALE * float(point[2]))


def _top(point: Any) -> tuple[int, int]:
    middle = SIDE_HEIGHT + TOP_HEIGHT // 2
    return round(WIDTH * 0.53 + SCALE * float(point[1])), round(middle + SCALE * float(point[0]))


def _curve(image: Any, points: FloatArray | None, project: Any, colour: Any, width: int) -> None:
    import cv2

    if points is not None and len(points) >= 2:
        pixels = np.array([project(point) for point in points], np.int32).reshape(-1, 1, 2)
        cv2.polylines(image, [pixels], False, colour, width, cv2.LINE_AA)


def _robot(image: Any, robot: UrdfScene, view: View, project: Any) -> None:
    """Every box of the robot as the outline of its corners."""
    import cv2

    poses = robot.link_poses(view.joints or {})
    for visual in robot.visuals:
        half = np.array(visual.size) / 2 if visual.kind == "box" else np.array(visual.size) * (1, 1, 0.5)
        signs = np.array([(a, b, c) for a in (-1, 1) for b in (-1, 1) for c in (-1, 1)], float)
        pose = poses.get(visual.link, np.eye(4)) @ visual.link_from_visual
        corners = (signs * half) @ pose[:3, :3].T + pose[:3, 3]
        pixels = np.array([project(corner) for corner in corners], np.int32)
        red, green, blue = (round(255 * value) for value in visual.colour[:3])
        hull = cv2.convexHull(pixels)
        cv2.fillPoly(image, [hull.reshape(-1, 1, 2)], (blue, green, red), cv2.LINE_AA)
