"""Three loose points that fly like one ball: where tracks start, within three images, out of noise."""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

MAX_SPAN_NS = 60_000_000  # three images at 60 Hz with one lost between them
MAX_EXCESS_ACCELERATION = 25.0  # m/s²: drag and lift of a ball at 15 m/s besides gravity


@njit(cache=True, nogil=True)
def _search(
    stamps: np.ndarray,
    points: np.ndarray,
    sigmas: np.ndarray,
    newest: int,
    min_speed: float,
    max_speed: float,
) -> tuple[int, int, int]:
    best = (-1, -1, -1)
    best_score = math.inf
    n = stamps.shape[0]
    for a in range(n):
        for b in range(n):
            for c in range(n):
                if a != newest and b != newest and c != newest:
                    continue
                if not stamps[a] < stamps[b] < stamps[c] or stamps[c] - stamps[a] > MAX_SPAN_NS:
                    continue
                t1 = (stamps[b] - stamps[a]) * 1e-9
                t2 = (stamps[c] - stamps[b]) * 1e-9
                gap2 = 0.0
                speed2 = 0.0
                for i in range(3):
                    v1 = (points[b, i] - points[a, i]) / t1
                    v2 = (points[c, i] - points[b, i]) / t2
                    bend = v2 - v1
                    if i == 2:
                        bend += 9.81 * 0.5 * (t1 + t2)
                    gap2 += bend * bend
                    v = (points[c, i] - points[a, i]) / (t1 + t2)
                    speed2 += v * v
                if speed2 < min_speed * min_speed or speed2 > max_speed * max_speed:
                    continue
                # Standard deviation of the velocity change from the noise of the three points, one axis.
                sigma = math.sqrt(
                    (sigmas[a] / t1) ** 2 + (sigmas[b] * (1.0 / t1 + 1.0 / t2)) ** 2 + (sigmas[c] / t2) ** 2
                )
                allowed = 4.0 * sigma + MAX_EXCESS_ACCELERATION * 0.5 * (t1 + t2)
                if gap2 > allowed * allowed:
                    continue
                score = math.sqrt(gap2) / allowed + (t1 + t2) * 20.0
                if score < best_score:
                    best_score = score
                    best = (a, b, c)
    return best


def find_start(
    stamps: NDArray[np.int64],
    points: NDArray[np.float64],
    sigmas: NDArray[np.float64],
    newest: int,
    min_speed: float,
    max_speed: float,
) -> tuple[int, int, int] | None:
    """The three points, one of them `newest`, that fly most like one ball.

    Args:
        stamps: ns, ascending, shape (n,). points: shape (n, 3), m. sigmas: standard deviation per axis (n,),
            m.
        newest: index of the point just added.
        min_speed, max_speed: m/s.

    Returns:
        Three indices in stamp order, or None.
    """
    a, b, c = _search(stamps, points, sigmas, newest, min_speed, max_speed)
    return None if a < 0 else (a, b, c)
