"""Ball flight: acceleration and RK4 steps as compiled kernels.

State vectors are (position 3, velocity 3, spin 3) in frame `table`, SI units.
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from tt_estimation.ball_models import (
    P_CD0,
    P_CD1,
    P_CL,
    P_CLS,
    P_DECAY,
    P_G,
    P_K,
    P_RADIUS,
)


@njit(cache=True, nogil=True)
def _acceleration(
    vx: float, vy: float, vz: float, wx: float, wy: float, wz: float, p: np.ndarray
) -> tuple[float, float, float]:
    cx = wy * vz - wz * vy
    cy = wz * vx - wx * vz
    cz = wx * vy - wy * vx
    speed2 = vx * vx + vy * vy + vz * vz
    speed = math.sqrt(speed2)
    ratio = 0.0
    if speed2 > 1e-12:
        ratio = p[P_RADIUS] * math.sqrt(cx * cx + cy * cy + cz * cz) / speed2
    lift = p[P_CL]
    if p[P_CLS] > 0.0:
        lift = p[P_CL] / (p[P_CLS] + ratio)
    kd = p[P_K] * (p[P_CD0] + p[P_CD1] * ratio) * speed
    kl = p[P_K] * p[P_RADIUS] * lift
    return -kd * vx + kl * cx, -kd * vy + kl * cy, -kd * vz + kl * cz - p[P_G]


@njit(cache=True, nogil=True)
def acceleration(s: np.ndarray, p: np.ndarray, out: np.ndarray) -> None:
    """Write the acceleration (m/s²) of state `s` (9,) under parameters `p` into `out` (3,)."""
    out[0], out[1], out[2] = _acceleration(s[3], s[4], s[5], s[6], s[7], s[8], p)


@njit(cache=True, nogil=True)
def rk4_step(s: np.ndarray, p: np.ndarray, dt: float, out: np.ndarray) -> None:
    """One classical Runge-Kutta step of `dt` seconds from `s` (9,) into `out` (9,); may alias.

    Spin decays exactly; within the step the acceleration sees the spin at each stage.
    """
    h = 0.5 * dt
    half = math.exp(-p[P_DECAY] * h) if p[P_DECAY] != 0.0 else 1.0
    vx, vy, vz = s[3], s[4], s[5]
    wx, wy, wz = s[6], s[7], s[8]
    ax, ay, az = _acceleration(vx, vy, vz, wx, wy, wz, p)
    wx, wy, wz = wx * half, wy * half, wz * half
    bx, by, bz = _acceleration(vx + h * ax, vy + h * ay, vz + h * az, wx, wy, wz, p)
    cx, cy, cz = _acceleration(vx + h * bx, vy + h * by, vz + h * bz, wx, wy, wz, p)
    wx, wy, wz = wx * half, wy * half, wz * half
    dx, dy, dz = _acceleration(vx + dt * cx, vy + dt * cy, vz + dt * cz, wx, wy, wz, p)
    # Position: Simpson weights of the stage velocities v, v + h a, v + h b, v + dt c.
    q = dt * dt / 6.0
    out[0] = s[0] + dt * vx + q * (ax + bx + cx)
    out[1] = s[1] + dt * vy + q * (ay + by + cy)
    out[2] = s[2] + dt * vz + q * (az + bz + cz)
    r = dt / 6.0
    out[3] = vx + r * (ax + 2.0 * bx + 2.0 * cx + dx)
    out[4] = vy + r * (ay + 2.0 * by + 2.0 * cy + dy)
    out[5] = vz + r * (az + 2.0 * bz + 2.0 * cz + dz)
    out[6], out[7], out[8] = wx, wy, wz
