"""Is a calibration still that of the cameras? Pictures of the table and recorded detections tell."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tt_perception.calibration.poses import pose_difference
from tt_perception.calibration.table_lines import TableNotFoundError, find_table
from tt_perception.camera import CameraModel
from tt_perception.mix_ups import HALF_TURN, agreement, find_mix_up, least_views
from tt_perception.types import CameraDetections

FloatArray = NDArray[np.float64]
Image = NDArray[np.uint8]

MAX_DISTANCE_M = 0.03
MAX_ANGLE_RAD = 0.01
MIN_SHARE = 0.8  # of the ball positions in which all views agree
_MAX_SETS = 60
_PIXEL_SIGMA = 1.0
_TOLERANCE_NS = 100_000


def picture_problem(rig: Sequence[CameraModel], camera: CameraModel, image: Image) -> str:
    """What a picture of the table says against the pose of a camera; empty when they agree.

    The table looks the same from both ends: which of them a camera stands at is taken from its pose.

    Args:
        rig: all cameras, whose places the camera may have got.
        camera: the one that took the picture.
        image: grey.
    """
    try:
        fit = find_table(image, camera, "robot" if camera.centre_table[1] < 0.0 else "opponent").camera
    except TableNotFoundError as error:
        return str(error)
    if _same_place(fit, camera):
        return ""
    distance, angle = pose_difference(fit, camera)
    text = (
        f"{camera.name}: the picture shows the table from a place {distance * 1e2:.0f} cm and "
        f"{np.degrees(angle):.1f}° from its pose"
    )
    for other in rig:
        turned = replace(fit, table_from_camera=HALF_TURN @ fit.table_from_camera)
        if other is not camera and (_same_place(fit, other) or _same_place(turned, other)):
            return f"{text}, which is the place of {other.name}: are the two exchanged?"
    return f"{text}; it was moved, or the picture is not its own"


def detections_problem(rig: Sequence[CameraModel], detections: Sequence[CameraDetections]) -> str:
    """What recorded detections say against a rig; empty when the views agree."""
    sets = _sets(rig, detections)
    if len(sets) < 20:
        return f"{len(sets)} triggers with the ball in {least_views(rig)} views or more, needs 20; record a rally"
    chosen = sets[:: -(-len(sets) // _MAX_SETS)]
    share, _ = agreement(rig, chosen, _PIXEL_SIGMA, enough=3)
    if share >= MIN_SHARE:
        return ""
    mistake = find_mix_up(rig, chosen, _PIXEL_SIGMA)
    hint = (
        f"they agree when {mistake}" if mistake else "was a camera moved? Run `tt calibrate extrinsics` again"
    )
    return (
        f"the views agree in {100 * share:.0f} % of the positions, less than {100 * MIN_SHARE:.0f} %; {hint}"
    )


def _same_place(a: CameraModel, b: CameraModel) -> bool:
    distance, angle = pose_difference(a, b)
    return distance < MAX_DISTANCE_M and angle < MAX_ANGLE_RAD


def _sets(
    rig: Sequence[CameraModel], detections: Sequence[CameraDetections]
) -> list[list[FloatArray | None]]:
    """Views of equal stamps with a candidate in enough of them."""
    index = {camera.name: number for number, camera in enumerate(rig)}
    sets: list[list[FloatArray | None]] = []
    stamp_ns = 0
    for item in sorted(detections, key=lambda item: item.stamp_ns):
        if item.camera not in index or not len(item.uv_px):
            continue
        if not sets or item.stamp_ns - stamp_ns > _TOLERANCE_NS:
            sets.append([None] * len(rig))
            stamp_ns = item.stamp_ns
        sets[-1][index[item.camera]] = item.uv_px
    least = least_views(rig)
    return [views for views in sets if sum(view is not None for view in views) >= least]
