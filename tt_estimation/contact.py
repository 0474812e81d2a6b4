"""Instantaneous ball contact with a moving rigid surface: one law for table and racket.

Normal velocity is reversed with restitution e; the slip of the contact point is reduced by Coulomb friction,
impulse per mass at most μ (1 + e) |v_n|, capped where rolling starts (for a thin shell, I = ⅔ m r², removing
2/5 of the slip velocity). The spin changes by the same impulse, m / I = 1.5 / r².
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit


@njit(cache=True, nogil=True)
def restitution(e0: float, slope: float, speed: float) -> float:
    """Restitution e₀ + slope · |v_n| at impact speed `speed` (m/s), kept in 0..1."""
    return min(1.0, max(0.0, e0 + slope * speed))


@njit(cache=True, nogil=True)
def _slip(
    v: np.ndarray, w: np.ndarray, n: np.ndarray, surface_v: np.ndarray, radius: float
) -> tuple[float, float, float, float, float]:
    """Normal velocity relative to the surface, slip of the contact point (x, y, z), and its size, m/s."""
    rx, ry, rz = v[0] - surface_v[0], v[1] - surface_v[1], v[2] - surface_v[2]
    vn = rx * n[0] + ry * n[1] + rz * n[2]
    # Tangential velocity plus ω × (−r n).
    ux = rx - vn * n[0] - radius * (w[1] * n[2] - w[2] * n[1])
    uy = ry - vn * n[1] - radius * (w[2] * n[0] - w[0] * n[2])
    uz = rz - vn * n[2] - radius * (w[0] * n[1] - w[1] * n[0])
    return vn, ux, uy, uz, math.sqrt(ux * ux + uy * uy + uz * uz)


@njit(cache=True, nogil=True)
def _push(
    v: np.ndarray,
    w: np.ndarray,
    n: np.ndarray,
    jn: float,
    jt: float,
    ux: float,
    uy: float,
    uz: float,
    radius: float,
    out_v: np.ndarray,
    out_w: np.ndarray,
) -> None:
    """Velocity and spin after an impulse per mass of `jn` along the normal and `jt` against the direction u."""
    nx, ny, nz = n[0], n[1], n[2]
    out_v[0] = v[0] + jn * nx - jt * ux
    out_v[1] = v[1] + jn * ny - jt * uy
    out_v[2] = v[2] + jn * nz - jt * uz
    g = 1.5 * jt / radius
    out_w[0] = w[0] + g * (ny * uz - nz * uy)
    out_w[1] = w[1] + g * (nz * ux - nx * uz)
    out_w[2] = w[2] + g * (nx * uy - ny * ux)


@njit(cache=True, nogil=True)
def contact(
    v: np.ndarray,
    w: np.ndarray,
    normal: np.ndarray,
    surface_v: np.ndarray,
    e: float,
    mu: float,
    radius: float,
    out_v: np.ndarray,
    out_w: np.ndarray,
) -> bool:
    """Ball velocity and spin after a contact, written to `out_v`, `out_w` (3,); may alias `v`, `w`.

    Args:
        v: ball velocity, m/s. w: ball spin, rad/s.
        normal: unit normal of the surface, towards the ball.
        surface_v: velocity of the surface at the contact point, m/s.
        e: restitution. mu: friction coefficient. radius: ball radius, m.

    Returns:
        False, with the state copied unchanged, when ball and surface separate already.
    """
    vn, ux, uy, uz, slip = _slip(v, w, normal, surface_v, radius)
    if vn >= 0.0:
        for i in range(3):
            out_v[i] = v[i]
            out_w[i] = w[i]
        return False
    jn = -(1.0 + e) * vn
    jt = min(mu * jn, 0.4 * slip)
    if slip > 1e-12:
        ux, uy, uz = ux / slip, uy / slip, uz / slip
    else:
        ux, uy, uz, jt = 0.0, 0.0, 0.0, 0.0
    _push(v, w, normal, jn, jt, ux, uy, uz, radius, out_v, out_w)
    return True


NO_INVERSE = 0  # the ball approaches after the contact, or the surface absorbs all normal speed
UNIQUE = 1  # sliding contact: exactly one state before it
ROLLING = 2  # rolling forgets the slip: the state before with no slip is given


@njit(cache=True, nogil=True)
def contact_inverse(
    v: np.ndarray,
    w: np.ndarray,
    normal: np.ndarray,
    surface_v: np.ndarray,
    e: float,
    mu: float,
    radius: float,
    out_v: np.ndarray,
    out_w: np.ndarray,
) -> int:
    """Ball velocity and spin before a contact, from those after it; arguments as in `contact`.

    A contact that reaches rolling ends with zero slip whatever the slip was before (up to 2.5 μ (1 + e)
    |v_n|), so it cannot be inverted; the state that had no slip before either is returned, with the code
    `ROLLING`.

    Returns:
        `UNIQUE`, `ROLLING`, or `NO_INVERSE` (outputs unchanged copies).
    """
    vn, ux, uy, uz, slip = _slip(v, w, normal, surface_v, radius)
    if vn <= 0.0 or e <= 0.0:
        for i in range(3):
            out_v[i] = v[i]
            out_w[i] = w[i]
        return NO_INVERSE
    jn = (1.0 + e) * vn / e
    jt = 0.0
    code = ROLLING
    if slip > 1e-9:
        ux, uy, uz = ux / slip, uy / slip, uz / slip
        jt = mu * jn
        code = UNIQUE
    # The impulse of the contact, taken back.
    _push(v, w, normal, -jn, -jt, ux, uy, uz, radius, out_v, out_w)
    return code
