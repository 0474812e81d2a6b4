"""A person-like figure that sways and swings an arm behind the opponent's end of the table."""

from __future__ import annotations

from dataclasses import dataclass

import cv2
import numpy as np
from numpy.typing import NDArray

from tt_perception.camera import CameraModel
from tt_perception.table import TABLE_HEIGHT_M

FloatArray = NDArray[np.float64]

# Colours blue, green, red.
_TROUSERS = (38.0, 34.0, 32.0)
_SHIRT = (60.0, 50.0, 130.0)
_SKIN = (120.0, 145.0, 185.0)
_BAT = (30.0, 30.0, 120.0)


@dataclass(frozen=True)
class Limb:
    """A capsule between two points.

    Attributes:
        ends: shape (2, 3), table frame, m.
        radius_m: half thickness.
        colour: blue, green, red.
    """

    ends: FloatArray
    radius_m: float
    colour: tuple[float, float, float]


def person_limbs(time_s: float, y_m: float = 2.25) -> tuple[Limb, ...]:
    """The figure at a time, far parts first."""
    sway = 0.45 * np.sin(2.0 * np.pi * 0.31 * time_s)
    bob = 0.03 * np.sin(2.0 * np.pi * 1.1 * time_s)
    swing = np.sin(2.0 * np.pi * 0.83 * time_s)
    floor = -TABLE_HEIGHT_M
    hip = np.array([sway, y_m, floor + 0.90 + bob])
    neck = hip + [0.03 * swing, -0.05, 0.52]
    shoulder = neck + [-0.20, 0.0, -0.06]
    elbow = shoulder + [-0.10, -0.16 - 0.10 * swing, -0.22]
    hand = elbow + [0.10 * swing, -0.24, 0.05 + 0.12 * swing]
    other = neck + [0.20, 0.0, -0.06]
    parts = [
        (hip + [0.10, 0.0, 0.0], np.array([sway + 0.22, y_m, floor + 0.05]), 0.075, _TROUSERS),
        (hip - [0.10, 0.0, 0.0], np.array([sway - 0.22, y_m - 0.1, floor + 0.05]), 0.075, _TROUSERS),
        (hip, neck, 0.165, _SHIRT),
        (other, other + [0.12, -0.1, -0.35], 0.05, _SHIRT),
        (neck + [0.0, 0.0, 0.14], neck + [0.0, 0.0, 0.20], 0.095, _SKIN),
        (shoulder, elbow, 0.05, _SHIRT),
        (elbow, hand, 0.04, _SKIN),
        (hand + [0.0, -0.08, 0.0], hand + [0.02, -0.12, 0.01], 0.075, _BAT),
    ]
    return tuple(Limb(np.array([a, b]), radius, colour) for a, b, radius, colour in parts)


def limb_lines(camera: CameraModel, limbs: tuple[Limb, ...]) -> list[tuple[FloatArray, float, Limb]]:
    """Pixel ends and thickness of the limbs a camera sees."""
    ends = np.array([limb.ends for limb in limbs]).reshape(-1, 3)
    uv = camera.project(ends).reshape(-1, 2, 2)
    depths = camera.depth_m(ends).reshape(-1, 2).min(axis=1)
    seen = np.isfinite(uv).all(axis=(1, 2)) & (depths > 0.3)
    scale = 2.0 * float(camera.matrix[0, 0])
    return [
        (uv[index], scale * limb.radius_m / float(depths[index]), limb)
        for index, limb in enumerate(limbs)
        if seen[index]
    ]


def bounding_box(
    camera: CameraModel, lines: list[tuple[FloatArray, float, Limb]]
) -> tuple[int, int, int, int] | None:
    """Left, top, right, bottom (exclusive) of the figure in the image; None when it is out of sight."""
    if not lines:
        return None
    low = np.min([uv.min(axis=0) - thickness for uv, thickness, _ in lines], axis=0)
    high = np.max([uv.max(axis=0) + thickness for uv, thickness, _ in lines], axis=0)
    left, top = max(int(low[0]), 0), max(int(low[1]), 0)
    right, bottom = min(int(high[0]) + 1, camera.width), min(int(high[1]) + 1, camera.height)
    return (left, top, right, bottom) if right - left > 1 and bottom - top > 1 else None


def draw_lines(
    patch: NDArray[np.uint8], lines: list[tuple[FloatArray, float, Limb]], left: int, top: int, gain: float
) -> None:
    """Draw the limbs into an image patch whose corner is at (left, top)."""
    mono = patch.ndim == 2 or patch.shape[2] == 1
    for uv, thickness, limb in lines:
        b, g, r = limb.colour
        grey = 0.114 * b + 0.587 * g + 0.299 * r
        colour = (gain * grey,) * 3 if mono else (gain * b, gain * g, gain * r)
        ends = [tuple(round(16.0 * float(value)) for value in (u - left, v - top)) for u, v in uv]
        cv2.line(patch, ends[0], ends[1], colour, max(round(thickness), 1), cv2.LINE_AA, shift=4)
