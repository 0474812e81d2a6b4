"""Calibrations that cannot be right are recognised before they send a racket to the wrong place."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tt_perception.camera import CameraError, CameraModel
from tt_perception.table import TABLE_HEIGHT_M, TABLE_LENGTH_M, TABLE_WIDTH_M

FloatArray = NDArray[np.float64]

MAX_DISTANCE_M = 20.0  # farther from the table a ball is smaller than 2 px with common lenses
MIN_TABLE_SHARE = 0.2  # of the table top that a useful camera sees


def table_grid() -> FloatArray:
    """Points spread over the table top, shape (45, 3), m."""
    x, y = np.meshgrid(
        np.linspace(-TABLE_WIDTH_M / 2, TABLE_WIDTH_M / 2, 5),
        np.linspace(-TABLE_LENGTH_M / 2, TABLE_LENGTH_M / 2, 9),
    )
    return np.column_stack([x.ravel(), y.ravel(), np.zeros(x.size)])


def pose_problem(camera: CameraModel) -> str:
    """What is implausible about the pose of a camera; empty when nothing is."""
    centre = camera.centre_table
    seen = float(np.mean(camera.in_image(camera.project(table_grid()))))
    if centre[2] < -TABLE_HEIGHT_M:
        return f"its centre is {-TABLE_HEIGHT_M - centre[2]:.2f} m under the floor"
    if centre[2] < 0.0 and seen > 0:
        return f"its centre is {-centre[2]:.2f} m below the table top, yet it should see the top"
    if np.linalg.norm(centre) > MAX_DISTANCE_M:
        return (
            f"its centre is {np.linalg.norm(centre):.1f} m from the table, more than {MAX_DISTANCE_M:.0f} m"
        )
    if camera.depth_m(np.zeros(3))[0] <= 0.0:
        return "the table is behind it"
    if seen < MIN_TABLE_SHARE:
        return f"it sees {100 * seen:.0f} % of the table top, less than {100 * MIN_TABLE_SHARE:.0f} %"
    return ""


def inverted(camera: CameraModel) -> CameraModel:
    """The same camera with its pose taken the other way round."""
    return replace(camera, table_from_camera=camera.camera_from_table)


def check_rig(cameras: Sequence[CameraModel]) -> None:
    """Refuse poses that cannot be right, with a hint at the usual mistake behind them.

    Raises:
        CameraError: a camera under the floor, turned away from the table, too far away, or two cameras in
            one place.
    """
    problems = {camera.name: pose_problem(camera) for camera in cameras}
    bad = [camera for camera in cameras if problems[camera.name]]
    if bad:
        camera = bad[0]
        if not pose_problem(inverted(camera)):
            hint = "the pose looks inverted (camera_from_table written as table_from_camera)"
        elif camera.centre_table[2] < 0.0:
            hint = "the z axis points down or the table was mirrored: corners in the wrong order?"
        else:
            hint = "the camera was moved, or its pose belongs to another camera"
        raise CameraError(
            f"camera {camera.name!r}: {problems[camera.name]}; {hint}. Run `tt calibrate extrinsics` again"
        )
    for index, first in enumerate(cameras):
        for second in cameras[index + 1 :]:
            if np.linalg.norm(first.centre_table - second.centre_table) < 0.02:
                raise CameraError(
                    f"cameras {first.name!r} and {second.name!r} are in the same place "
                    f"({first.centre_table.round(3)} m); "
                    "one calibration was copied over the other? Run `tt calibrate extrinsics` again"
                )
