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
def acceleration(s: np.ndarray, p: np.ndarray, out: np.ndarray) -> None:
    """Write the acceleration (m/s²) of state `s` (9,) under parameters `p` into `out` (3,)."""
    vx, vy, vz = s[3], s[4], s[5]
    cx = s[7] * vz - s[8] * vy
    cy = s[8] * vx - s[6] * vz
    cz = s[6] * vy - s[7] * vx
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
    out[0] = -kd * vx + kl * cx
    out[1] = -kd * vy + kl * cy
    out[2] = -kd * vz + kl * cz - p[P_G]


@njit(cache=True, nogil=True)
def rk4_step(s: np.ndarray, p: np.ndarray, dt: float, out: np.ndarray) -> None:
    """One classical Runge-Kutta step of `dt` seconds from `s` (9,) into `out` (9,); may alias.

    Spin decays exactly; within the step the acceleration sees the spin at each stage.
    """
    k1 = np.empty(3)
    k2 = np.empty(3)
    k3 = np.empty(3)
    k4 = np.empty(3)
    t = np.empty(9)
    h = 0.5 * dt
    half = math.exp(-p[P_DECAY] * h)
    acceleration(s, p, k1)
    for i in range(3):
        t[i] = s[i]
        t[3 + i] = s[3 + i] + h * k1[i]
        t[6 + i] = s[6 + i] * half
    acceleration(t, p, k2)
    for i in range(3):
        t[3 + i] = s[3 + i] + h * k2[i]
    acceleration(t, p, k3)
    for i in range(3):
        t[3 + i] = s[3 + i] + dt * k3[i]
        t[6 + i] = s[6 + i] * half * half
    acceleration(t, p, k4)
    for i in range(3):
        # Position: Simpson weights of the stage velocities v, v + h k1, v + h k2, v + dt k3.
        out[i] = s[i] + dt * s[3 + i] + dt * dt / 6.0 * (k1[i] + k2[i] + k3[i])
        out[6 + i] = t[6 + i]
    for i in range(3):
        out[3 + i] = s[3 + i] + dt / 6.0 * (k1[i] + 2.0 * k2[i] + 2.0 * k3[i] + k4[i])
