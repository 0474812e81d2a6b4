"""Which mistake makes the views of a rig contradict each other: two cameras exchanged, or one turned around.

The views themselves tell: with the right correction they agree. A correction of the whole rig cannot be told
this way: a rig that is turned as a whole about the middle of the table fits as well as the right one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from tt_perception.camera import CameraModel
from tt_perception.location import LocateReason, Locator

FloatArray = NDArray[np.float64]
Views = Sequence[FloatArray | None]

MIN_SETS = 10  # of views that must contradict each other before a correction is looked for
BAD_SHARE = 0.3  # of them that may fit by accident
_GOOD_SHARE = 0.7  # of them that fit with the right correction
_LEAST_PATH_M = 0.3  # that the ball must have flown
_ALL_ORDERS = 4  # cameras up to which every order is tried
HALF_TURN = np.diag([-1.0, -1.0, 1.0, 1.0])  # about the z axis of the table


def least_views(cameras: Sequence[CameraModel]) -> int:
    """Views a set needs to say something: two phantoms agree by accident too often where there are more."""
    return min(len(cameras), 3)


def agreement(
    cameras: Sequence[CameraModel], sets: Sequence[Views], pixel_sigma: float, enough: int = 99
) -> tuple[float, float]:
    """How well views fit together.

    Args:
        cameras: one per view.
        sets: raw pixels (n, 2) or None per camera; those with fewer than `least_views` are left out.
        pixel_sigma: standard deviation of a pixel coordinate, px.
        enough: so many views suffice where there are more.

    Returns:
        Share of the sets in which all views agree; length of the diagonal of the box that holds the points, m.
    """
    locator = Locator(cameras)
    least = least_views(cameras)
    useful, points = 0, []
    for views in sets:
        seen = sum(view is not None and len(view) > 0 for view in views)
        if seen < least:
            continue
        useful += 1
        location = locator.locate(views, pixel_sigma)
        if location.reason is LocateReason.OK and len(location.inliers) >= min(seen, enough):
            points.append(location.point_table)
    if not points:
        return 0.0, 0.0
    return len(points) / useful, float(np.linalg.norm(np.ptp(points, axis=0)))


def find_mix_up(cameras: Sequence[CameraModel], sets: Sequence[Views], pixel_sigma: float) -> str:
    """The correction that makes contradicting views agree, as a sentence; empty when there is none.

    Three views that agree are no mix-up: there the fourth camera was moved.

    Args: as `agreement`.
    """
    if agreement(cameras, sets, pixel_sigma, enough=3)[0] > BAD_SHARE:
        return ""
    found: list[tuple[float, int, str]] = []
    for moved, text, corrected in _corrections(cameras):
        share, extent_m = agreement(corrected, sets, pixel_sigma)
        # Things that stand still may fit a wrong order by accident, and then do so in every set.
        if share >= _GOOD_SHARE and extent_m > _LEAST_PATH_M:
            found.append((share, moved, text))
    if not found:
        return ""
    # A symmetric rig fits in several ways; the smallest mistake is the likeliest.
    fewest = min(moved for _, moved, _ in found)
    best = max(share for share, moved, _ in found if moved == fewest)
    texts = [text for share, moved, text in found if moved == fewest and share > best - 0.05]
    return ", or ".join(dict.fromkeys(texts))


def _corrections(
    cameras: Sequence[CameraModel],
) -> Iterator[tuple[int, str, tuple[CameraModel, ...]]]:
    """How many cameras were mistaken, what the mistake was, and the cameras without it."""
    for order in _orders(len(cameras)):
        moved = [index for index, source in enumerate(order) if source != index]
        if len(moved) == 2:
            text = f"{cameras[moved[0]].name} and {cameras[moved[1]].name} are exchanged"
        else:
            text = " and ".join(
                f"{cameras[index].name} gets the place of {cameras[order[index]].name}" for index in moved
            )
        yield (
            len(moved),
            text,
            tuple(
                replace(camera, table_from_camera=cameras[source].table_from_camera)
                for camera, source in zip(cameras, order, strict=True)
            ),
        )
        yield len(moved), text, tuple(cameras[source] for source in order)
    for index, camera in enumerate(cameras):
        turned = list(cameras)
        turned[index] = replace(camera, table_from_camera=HALF_TURN @ camera.table_from_camera)
        yield 1, f"{camera.name} is put at the opposite end or side of the table", tuple(turned)


def _orders(count: int) -> Iterator[tuple[int, ...]]:
    """Wrong orders of so many cameras: all of few, exchanges of two of many."""
    right = tuple(range(count))
    if count <= _ALL_ORDERS:
        yield from (order for order in itertools.permutations(right) if order != right)
        return
    for i, j in itertools.combinations(right, 2):
        order = list(right)
        order[i], order[j] = j, i
        yield tuple(order)
