"""Is a recording in frame `table` and in metres? Gravity and the direction of play tell."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from tt_perception.errors import TTError
from tt_perception.types import BallPosition

FloatArray = NDArray[np.float64]

WINDOW = 12  # points of a piece whose acceleration is measured
MAX_GAP_S = 0.05
_FRAME = "frame 'table' has x across the table, y along it (the robot at y < 0), z up, in metres"


def check_frame(positions: Sequence[BallPosition]) -> None:
    """Refuse positions in another frame or unit.

    Looks at pieces of `WINDOW` successive points: their acceleration must be gravity along −z with some drag,
    their motion must be along y in most of them.

    Raises:
        TTError: no piece that flies, or pieces that fly absurdly; the text says what they look like instead.
    """
    if not positions:
        raise TTError("the recording holds no ball position; record topic ball/position or ball/state")
    points = np.array([p.pos_table for p in positions])
    size = float(np.median(np.abs(points).max(axis=1)))
    if size > 50.0:
        raise TTError(f"the median ball position is {size:.0f} from the origin: millimetres? {_FRAME}")
    acceleration, velocity = _pieces(positions, points)
    if len(acceleration) == 0:
        return  # no smooth piece: the search for flights will say how few there are
    a = np.median(acceleration, axis=0)
    axis = int(np.argmax(np.abs(a)))
    if axis != 2 or not -14.0 < a[2] < -5.0:
        raise TTError(
            f"the balls accelerate by ({a[0]:.1f}, {a[1]:.1f}, {a[2]:.1f}) m/s² in the median, not by about "
            f"(0, 0, −9.8): the axes or the unit are wrong; {_FRAME}"
        )
    along_x, along_y = np.median(np.abs(velocity[:, :2]), axis=0)
    if along_x > 1.5 * along_y:
        raise TTError(
            f"the balls fly along x ({along_x:.1f} m/s in the median) rather than along y ({along_y:.1f} m/s): "
            f"x and y are swapped; {_FRAME}"
        )


def _pieces(positions: Sequence[BallPosition], points: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Acceleration and velocity of smooth pieces, each shape (n, 3)."""
    times = np.array([p.stamp_ns for p in positions], dtype=np.int64)
    order = np.argsort(times, kind="stable")
    times, points = times[order], points[order]
    accelerations, velocities = [], []
    for i in range(0, len(times) - WINDOW + 1, WINDOW // 2):
        t = (times[i : i + WINDOW] - times[i]) * 1e-9
        if np.diff(t).max() > MAX_GAP_S or t[-1] < 0.04:
            continue
        design = np.column_stack((np.ones(WINDOW), t, 0.5 * t * t))
        solution, *_ = np.linalg.lstsq(design, points[i : i + WINDOW], rcond=None)
        if np.abs(points[i : i + WINDOW] - design @ solution).max() > 0.05:
            continue  # a hit, a bounce or another ball inside
        if np.linalg.norm(solution[1]) < 1.0:
            continue
        accelerations.append(solution[2])
        velocities.append(solution[1])
    return np.array(accelerations).reshape(-1, 3), np.array(velocities).reshape(-1, 3)
