"""Many balls at once: bounce, apex and plane crossings of each, for statistics over ball files."""

from __future__ import annotations

import math

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tt_estimation.ball_models import P_G, BallModel
from tt_estimation.events import (
    FLOOR,
    PLANE,
    ROLLING_SPEED_MPS,
    STEP_S,
    TABLE,
    bounce_on_table,
    next_event,
)
from tt_estimation.flight import rk4_step

FloatArray = NDArray[np.float64]

# Columns of the summary; NaN where the event does not happen.
BOUNCE_T = 0  # first table bounce, s
BOUNCE_X = 1
BOUNCE_Y = 2
APEX_T = 3  # highest point after it, s
APEX_Z = 4  # of the ball's centre, m
PLANES = 5  # then, per plane: time s, x, z, speed m/s
PER_PLANE = 4


@njit(cache=True, nogil=True)
def _apex(s: np.ndarray, p: np.ndarray, work: np.ndarray) -> tuple[float, float]:
    """Time from a rising state `s` to its highest point, and the height there."""
    t = s[5] / p[P_G]
    for _ in range(20):
        rk4_step(s, p, t, work)
        change = work[5] / p[P_G]
        t += change
        if abs(change) < 1e-12:
            break
    return t, work[2]


@njit(cache=True, nogil=True)
def _summarise(
    states: np.ndarray, p: np.ndarray, planes: np.ndarray, step: float, t_max: float, out: np.ndarray
) -> None:
    s = np.empty(9)
    work = np.empty(9)
    for b in range(states.shape[0]):
        for c in range(out.shape[1]):
            out[b, c] = math.nan
        for i in range(9):
            s[i] = states[b, i]
        t = 0.0
        bounces = 0
        robot_bounces = 0
        plane = 0
        while t < t_max:
            level = planes[plane] if plane < planes.shape[0] else -1e9
            code, dt = next_event(s, p, t_max - t, step, TABLE | PLANE | FLOOR, level, s)
            t += dt
            if code == PLANE:
                if bounces == 0:
                    break  # passed the plane in the air: not a ball that bounces first
                k = PLANES + PER_PLANE * plane
                out[b, k] = t
                out[b, k + 1] = s[0]
                out[b, k + 2] = s[2]
                out[b, k + 3] = math.sqrt(s[3] * s[3] + s[4] * s[4] + s[5] * s[5])
                plane += 1
                if plane == planes.shape[0]:
                    break
                continue
            if code != TABLE:
                break
            bounces += 1
            robot_bounces += 1 if s[1] < 0.0 else 0
            if robot_bounces > 1:
                break
            if bounces == 1:
                out[b, BOUNCE_T] = t
                out[b, BOUNCE_X] = s[0]
                out[b, BOUNCE_Y] = s[1]
            bounce_on_table(s, p, s)
            if s[5] < ROLLING_SPEED_MPS:
                break
            if bounces == 1:
                dt, height = _apex(s, p, work)
                out[b, APEX_T] = t + dt
                out[b, APEX_Z] = height


def summarise_flights(
    states: FloatArray,
    model: BallModel,
    planes_y: tuple[float, ...] = (-1.37, -1.6),
    step_s: float = 2.0 * STEP_S,
    t_max_s: float = 3.0,
) -> FloatArray:
    """Fly balls and report their first bounce, the apex after it, and when they pass planes y = const.

    Args:
        states: position, velocity, spin, shape (n, 9).
        model: ball model.
        planes_y: descending, m.
        step_s: largest RK4 step. t_max_s: longest flight.

    Returns:
        Shape (n, 5 + 4 · planes), columns `BOUNCE_T` … and from `PLANES` on four per plane; NaN where it does
        not happen. A second bounce on the robot's half ends a flight. Net contact is not modelled.
    """
    out = np.empty((len(states), PLANES + PER_PLANE * len(planes_y)))
    planes = np.array(planes_y, dtype=np.float64)
    _summarise(np.ascontiguousarray(states, dtype=np.float64), model.params, planes, step_s, t_max_s, out)
    return out
