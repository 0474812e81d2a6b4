"""What a person sees of a rally, as geometry; rviz markers, browser viewer and report pictures draw from it.

Frame `table`, metres. Nothing here knows ROS.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray

from tt_perception.table import (
    BALL_RADIUS_M,
    NET_HEIGHT_M,
    NET_OVERHANG_M,
    TABLE_HEIGHT_M,
    TABLE_LENGTH_M,
    TABLE_WIDTH_M,
)

FloatArray = NDArray[np.float64]
Colour = tuple[float, float, float, float]

TABLE_COLOUR: Colour = (0.07, 0.28, 0.42, 1.0)
LINE_COLOUR: Colour = (0.95, 0.95, 0.95, 1.0)
NET_COLOUR: Colour = (0.85, 0.85, 0.85, 0.45)
BALL_COLOUR: Colour = (1.0, 0.55, 0.05, 1.0)
COVARIANCE_COLOUR: Colour = (1.0, 0.75, 0.2, 0.25)
SPIN_COLOUR: Colour = (0.75, 0.2, 0.85, 1.0)
PATH_COLOUR: Colour = (0.2, 0.75, 0.95, 1.0)
BOUNCE_COLOUR: Colour = (0.1, 0.45, 0.95, 1.0)
RACKET_COLOUR: Colour = (0.85, 0.1, 0.1, 0.55)
AIM_COLOUR: Colour = (0.15, 0.75, 0.25, 0.8)
LANDING_COLOUR: Colour = (0.95, 0.85, 0.1, 0.9)

TABLE_THICKNESS_M = 0.025
LINE_WIDTH_M = 0.02  # ITTF Statutes 2026, 2.1.5
SPIN_ARROW_M_PER_RAD_S = 0.003  # 100 rad/s is an arrow of 30 cm
ELLIPSOID_SIGMAS = 3.0
BOUNCE_HEIGHT_M = BALL_RADIUS_M + 0.015


@dataclass(frozen=True, slots=True)
class Box:
    """An axis-parallel box: centre and size, m."""

    name: str
    centre: tuple[float, float, float]
    size: tuple[float, float, float]
    colour: Colour


def table_boxes() -> tuple[Box, ...]:
    """Table top, its lines, the net, and the legs."""
    half_x, half_y, edge, lift = TABLE_WIDTH_M / 2, TABLE_LENGTH_M / 2, LINE_WIDTH_M / 2, 0.0005
    boxes = [
        Box(
            "top",
            (0.0, 0.0, -TABLE_THICKNESS_M / 2),
            (TABLE_WIDTH_M, TABLE_LENGTH_M, TABLE_THICKNESS_M),
            TABLE_COLOUR,
        ),
        Box(
            "net",
            (0.0, 0.0, NET_HEIGHT_M / 2),
            (TABLE_WIDTH_M + 2 * NET_OVERHANG_M, 0.005, NET_HEIGHT_M),
            NET_COLOUR,
        ),
        Box("centre line", (0.0, 0.0, lift), (0.003, TABLE_LENGTH_M, 0.001), LINE_COLOUR),
    ]
    for side in (-1, 1):
        boxes.append(
            Box(
                f"side line {side}",
                (side * (half_x - edge), 0.0, lift),
                (LINE_WIDTH_M, TABLE_LENGTH_M, 0.001),
                LINE_COLOUR,
            )
        )
        boxes.append(
            Box(
                f"end line {side}",
                (0.0, side * (half_y - edge), lift),
                (TABLE_WIDTH_M, LINE_WIDTH_M, 0.001),
                LINE_COLOUR,
            )
        )
        for end in (-1, 1):
            height = TABLE_HEIGHT_M - TABLE_THICKNESS_M
            boxes.append(
                Box(
                    f"leg {side} {end}",
                    (side * (half_x - 0.1), end * (half_y - 0.3), -TABLE_THICKNESS_M - height / 2),
                    (0.05, 0.05, height),
                    (0.3, 0.3, 0.3, 1.0),
                )
            )
    return tuple(boxes)


def ellipsoid(cov: ArrayLike, sigmas: float = ELLIPSOID_SIGMAS) -> tuple[FloatArray, FloatArray]:
    """Axes of the ellipsoid of a position covariance.

    Args:
        cov: shape (3, 3), m².
        sigmas: half axes in standard deviations.

    Returns:
        Full axis lengths (3,) in m, at least 1 mm, and the rotation (3, 3) whose columns are the axes. A
        covariance that is not finite gives a sphere of 1 mm.
    """
    matrix = np.asarray(cov, float)
    if not np.all(np.isfinite(matrix)):
        return np.full(3, 0.001), np.eye(3)
    values, vectors = np.linalg.eigh(0.5 * (matrix + matrix.T))
    if np.linalg.det(vectors) < 0:
        vectors[:, 0] = -vectors[:, 0]
    return np.maximum(2.0 * sigmas * np.sqrt(np.maximum(values, 0.0)), 0.001), vectors


def spin_arrow(pos: ArrayLike, spin: ArrayLike) -> tuple[FloatArray, FloatArray]:
    """Start and end of the arrow along the spin axis (right-hand rule), each (3,)."""
    start = np.asarray(pos, float)
    return start, start + SPIN_ARROW_M_PER_RAD_S * np.asarray(spin, float)


def first_bounce(path: ArrayLike) -> FloatArray | None:
    """Where a predicted path, shape (n, 3), touches the table on the robot's half; None when it does not."""
    points = np.asarray(path, float).reshape(-1, 3)
    if len(points) < 3:
        return None
    z = points[:, 2]
    low = (z[1:-1] <= z[:-2]) & (z[1:-1] < z[2:]) & (z[1:-1] < BOUNCE_HEIGHT_M) & (points[1:-1, 1] < 0.0)
    found = np.flatnonzero(low)
    return points[1 + found[0]] if len(found) else None


def quat_from_axes(rotation: ArrayLike) -> tuple[float, float, float, float]:
    """Quaternion xyzw of a rotation matrix."""
    from tt_perception.rotation import quat_from_matrix

    x, y, z, w = quat_from_matrix(np.asarray(rotation, float))
    return float(x), float(y), float(z), float(w)
