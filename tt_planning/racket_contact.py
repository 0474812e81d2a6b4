"""Contact of the ball with a moving racket face: impulse law, its exact inverse, and Jacobians.

The law is `tt_estimation.contact` in the frame of the face: relative normal velocity reversed with restitution
e(|u_n|) = e₀ + e₁ |u_n|, slip reduced by Coulomb friction and capped at rolling (2/5 of the slip for a thin shell).
The curvature of ball dents and rubber is ignored; `edge_distance` says how far from the edge a contact lies.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tt_estimation.ball_models import P_E_RACKET, P_E_RACKET1, P_MU_RACKET, P_RADIUS, BallModel
from tt_estimation.contact import contact

FloatArray = NDArray[np.float64]

_ROLLING = 0.4  # share of the slip that a thin shell loses when it starts to roll


@njit(cache=True, nogil=True)
def strike(
    v: np.ndarray,
    w: np.ndarray,
    n: np.ndarray,
    face_v: np.ndarray,
    p: np.ndarray,
    out_v: np.ndarray,
    out_w: np.ndarray,
) -> bool:
    """Ball velocity and spin after the racket with unit normal `n` and contact-point velocity `face_v`.

    All arrays (3,), SI, one frame; `p` the ball parameters. False, state copied, when they separate already.
    """
    closing = 0.0
    for i in range(3):
        closing -= (v[i] - face_v[i]) * n[i]
    e = p[P_E_RACKET] + p[P_E_RACKET1] * max(closing, 0.0)
    return contact(v, w, n, face_v, min(max(e, 0.0), 1.0), p[P_MU_RACKET], p[P_RADIUS], out_v, out_w)


@njit(cache=True, nogil=True)
def face_velocity(
    v: np.ndarray, w: np.ndarray, n: np.ndarray, wanted: np.ndarray, p: np.ndarray, out: np.ndarray
) -> float:
    """Velocity of the contact point (3,) that turns `v`, `w` into outgoing velocity `wanted`, for a given normal.

    Exact closed form. Normal: (1 + e₀) u + e₁ u² = Δv·n gives the closing speed u. Tangential: the wanted
    change needs a slip of |Δv_t| / 0.4 (rolling) as long as friction can transmit it.

    Returns:
        The tangential velocity change in m/s that friction cannot give (0 when the inverse is exact), or
        infinity when the wanted change does not push the ball off the face.
    """
    r = p[P_RADIUS]
    dn = 0.0
    vn = 0.0
    for i in range(3):
        dn += (wanted[i] - v[i]) * n[i]
        vn += v[i] * n[i]
    if dn <= 1e-9:
        return math.inf
    e0, e1 = p[P_E_RACKET], p[P_E_RACKET1]
    if abs(e1) < 1e-12:
        u = dn / (1.0 + e0)
    else:
        disc = (1.0 + e0) * (1.0 + e0) + 4.0 * e1 * dn
        if disc < 0.0:
            return math.inf
        u = 2.0 * dn / (1.0 + e0 + math.sqrt(disc))
    e = e0 + e1 * u
    if e < 0.0 or e > 1.0:  # `strike` clamps e, so the law is linear here
        u = dn / (1.0 + min(max(e, 0.0), 1.0))
    tx = wanted[0] - v[0] - dn * n[0]
    ty = wanted[1] - v[1] - dn * n[1]
    tz = wanted[2] - v[2] - dn * n[2]
    t = math.sqrt(tx * tx + ty * ty + tz * tz)
    limit = p[P_MU_RACKET] * dn
    short = max(0.0, t - limit)
    # With a shortfall the velocity is that of unlimited friction: a smooth continuation for root finders.
    scale = 1.0 / _ROLLING
    # slip = (v − V)_t − r (w × n) = −scale · Δv_t  =>  V_t = v_t − r (w × n) + scale · Δv_t
    cx = w[1] * n[2] - w[2] * n[1]
    cy = w[2] * n[0] - w[0] * n[2]
    cz = w[0] * n[1] - w[1] * n[0]
    along = u + vn
    out[0] = v[0] - vn * n[0] - r * cx + scale * tx + along * n[0]
    out[1] = v[1] - vn * n[1] - r * cy + scale * ty + along * n[1]
    out[2] = v[2] - vn * n[2] - r * cz + scale * tz + along * n[2]
    return short


@njit(cache=True, nogil=True)
def _tangent_of(n: np.ndarray, a: np.ndarray, b: np.ndarray) -> None:
    """Two unit vectors (3,) that complete `n` to an orthonormal frame."""
    if abs(n[2]) < 0.9:
        ax, ay, az = n[1], -n[0], 0.0
    else:
        ax, ay, az = 0.0, n[2], -n[1]
    s = 1.0 / math.sqrt(ax * ax + ay * ay + az * az)
    a[0], a[1], a[2] = ax * s, ay * s, az * s
    b[0] = n[1] * a[2] - n[2] * a[1]
    b[1] = n[2] * a[0] - n[0] * a[2]
    b[2] = n[0] * a[1] - n[1] * a[0]


@njit(cache=True, nogil=True)
def normal_without_sliding_face(
    v: np.ndarray, w: np.ndarray, wanted: np.ndarray, p: np.ndarray, n: np.ndarray, face_v: np.ndarray
) -> bool:
    """Unit normal `n` and velocity `face_v` along it that give the outgoing velocity `wanted`.

    The face moves along its own normal only, the least racket speed for a hit. Newton's method on the two
    tangential components of the face velocity, from n = direction of Δv, with step halving; the returned pair is
    exact to 1e-9 m/s. False when there is no such pair (friction cannot transmit the change, or Δv = 0).
    """
    size = 0.0
    for i in range(3):
        n[i] = wanted[i] - v[i]
        size += n[i] * n[i]
    size = math.sqrt(size)
    if not size > 1e-9:
        return False
    for i in range(3):
        n[i] /= size
    a = np.empty(3)
    b = np.empty(3)
    m = np.empty(3)
    f = np.empty(3)
    h = 1e-6
    short = face_velocity(v, w, n, wanted, p, face_v)
    if short == math.inf:
        return False
    for _ in range(40):
        _tangent_of(n, a, b)
        fa = face_v[0] * a[0] + face_v[1] * a[1] + face_v[2] * a[2]
        fb = face_v[0] * b[0] + face_v[1] * b[1] + face_v[2] * b[2]
        err = math.sqrt(fa * fa + fb * fb)
        if err < 1e-9 and short == 0.0:
            return True
        j00 = j01 = j10 = j11 = 0.0
        for k in range(2):
            s = 0.0
            for i in range(3):
                m[i] = n[i] + h * (a[i] if k == 0 else b[i])
                s += m[i] * m[i]
            s = math.sqrt(s)
            for i in range(3):
                m[i] /= s
            face_velocity(v, w, m, wanted, p, f)
            ga = f[0] * a[0] + f[1] * a[1] + f[2] * a[2]
            gb = f[0] * b[0] + f[1] * b[1] + f[2] * b[2]
            if k == 0:
                j00, j10 = (ga - fa) / h, (gb - fb) / h
            else:
                j01, j11 = (ga - fa) / h, (gb - fb) / h
        det = j00 * j11 - j01 * j10
        if abs(det) < 1e-12:
            return False
        da = -(j11 * fa - j01 * fb) / det
        db = -(j00 * fb - j10 * fa) / det
        step = 1.0
        big = math.sqrt(da * da + db * db)
        if big > 0.5:
            step = 0.5 / big
        improved = False
        for _ in range(12):
            s = 0.0
            for i in range(3):
                m[i] = n[i] + step * (da * a[i] + db * b[i])
                s += m[i] * m[i]
            s = math.sqrt(s)
            for i in range(3):
                m[i] /= s
            sh = face_velocity(v, w, m, wanted, p, f)
            if sh != math.inf:
                along = f[0] * m[0] + f[1] * m[1] + f[2] * m[2]
                left = 0.0
                for i in range(3):
                    left += (f[i] - along * m[i]) ** 2
                if math.sqrt(left) + sh < err + short or math.sqrt(left) < 1e-12:
                    improved = True
                    break
            step *= 0.5
        if not improved:
            return err < 1e-7 and short == 0.0
        for i in range(3):
            n[i] = m[i]
            face_v[i] = f[i]
        short = sh
    return False


class ContactReason(Enum):
    """Outcome of an inverse contact."""

    OK = "solved"
    FRICTION = "friction of the racket cannot turn the ball that much"
    NO_PUSH = "the wanted velocity does not leave the face"


@dataclass(frozen=True, slots=True)
class RacketStroke:
    """Racket face that gives a wanted outgoing velocity.

    Attributes:
        normal: unit normal towards the ball, shape (3,); NaN unless solved.
        face_vel: velocity of the contact point, shape (3,), m/s; NaN unless solved.
        reason: why it is not solved.
    """

    normal: FloatArray
    face_vel: FloatArray
    reason: ContactReason


def outgoing(
    vel: FloatArray, spin: FloatArray, normal: FloatArray, face_vel: FloatArray, model: BallModel
) -> tuple[FloatArray, FloatArray]:
    """Velocity and spin (3,) after the contact; unchanged when ball and face separate already."""
    out_v, out_w = np.empty(3), np.empty(3)
    strike(_v3(vel), _v3(spin), _v3(normal), _v3(face_vel), model.params, out_v, out_w)
    return out_v, out_w


def solve_stroke(
    vel: FloatArray, spin: FloatArray, wanted: FloatArray, model: BallModel, normal: FloatArray | None = None
) -> RacketStroke:
    """Racket normal and contact-point velocity that turn (`vel`, `spin`) into outgoing velocity `wanted`.

    With `normal` given only the velocity is solved (closed form). Without it the face moves along its own normal.
    Solutions are exact: `outgoing` of the result gives `wanted` to 1e-8 m/s. Never raises for finite input.
    """
    v, w, out = _v3(vel), _v3(spin), _v3(wanted)
    nan = np.full(3, np.nan)
    face = np.empty(3)
    if not (np.isfinite(v).all() and np.isfinite(w).all() and np.isfinite(out).all()):
        return RacketStroke(nan, nan, ContactReason.NO_PUSH)
    if normal is not None:
        n = _v3(normal)
        size = float(np.linalg.norm(n))
        if not (np.isfinite(size) and size > 0.0):
            return RacketStroke(nan, nan, ContactReason.NO_PUSH)
        n = n / size
        short = face_velocity(v, w, n, out, model.params, face)
        if short > 0.0:
            reason = ContactReason.NO_PUSH if math.isinf(short) else ContactReason.FRICTION
            return RacketStroke(nan, nan, reason)
        return RacketStroke(n, face, ContactReason.OK)
    n = np.empty(3)
    if normal_without_sliding_face(v, w, out, model.params, n, face):
        return RacketStroke(n, face, ContactReason.OK)
    reason = ContactReason.NO_PUSH if np.linalg.norm(out - v) < 1e-9 else ContactReason.FRICTION
    return RacketStroke(nan, nan, reason)


def jacobians(
    vel: FloatArray, spin: FloatArray, normal: FloatArray, face_vel: FloatArray, model: BallModel
) -> tuple[FloatArray, FloatArray, FloatArray, FloatArray]:
    """Analytic derivatives of the outgoing velocity by (velocity, spin, normal, face velocity), each (3, 3).

    The derivative by the normal is along the sphere: multiply it by tangential changes of the unit normal.
    Valid on either branch (rolling, sliding), not at their border; zero changes when there is no contact.
    """
    v, w, n, face = _v3(vel), _v3(spin), _v3(normal), _v3(face_vel)
    p = model.params
    r, mu = p[P_RADIUS], p[P_MU_RACKET]
    u = v - face
    un = float(u @ n)
    eye = np.eye(3)
    if un >= 0.0:
        return eye, np.zeros((3, 3)), np.zeros((3, 3)), np.zeros((3, 3))
    e = p[P_E_RACKET] - p[P_E_RACKET1] * un
    slope = -p[P_E_RACKET1]
    if not 0.0 < e < 1.0:
        e, slope = min(max(e, 0.0), 1.0), 0.0
    tangent = eye - np.outer(n, n)
    slip = tangent @ u - r * np.cross(w, n)
    # d slip: by u, by w (w × n = −[n]× w), by n.
    slip_u, slip_w = tangent, r * _cross(n)
    slip_n = -un * eye - np.outer(n, u) - r * _cross(w)
    jn = -(1.0 + e) * un
    djn_du = -(1.0 + e + slope * un) * n
    djn_dn = -(1.0 + e + slope * un) * u
    size = float(np.linalg.norm(slip))
    if _ROLLING * size <= mu * jn or size < 1e-12:
        by_u = np.outer(n, djn_du) - _ROLLING * slip_u
        by_w = -_ROLLING * slip_w
        by_n = jn * eye + np.outer(n, djn_dn) - _ROLLING * slip_n
    else:
        d = slip / size
        turn = (eye - np.outer(d, d)) / size
        by_u = np.outer(n - mu * d, djn_du) - mu * jn * turn @ slip_u
        by_w = -mu * jn * turn @ slip_w
        by_n = jn * eye + np.outer(n - mu * d, djn_dn) - mu * jn * turn @ slip_n
    return eye + by_u, by_w, by_n, -by_u


def edge_distance(contact_in_racket: FloatArray, width: float, height: float) -> float:
    """Distance in metres from a contact point (x, z in the racket frame, from the centre) to the nearest edge.

    Negative outside the blade's rectangle `width` × `height`.
    """
    return float(min(0.5 * width - abs(contact_in_racket[0]), 0.5 * height - abs(contact_in_racket[1])))


def _v3(a: FloatArray) -> FloatArray:
    return np.ascontiguousarray(a, dtype=np.float64).reshape(3)


def _cross(a: FloatArray) -> FloatArray:
    return np.array([[0.0, -a[2], a[1]], [a[2], 0.0, -a[0]], [-a[1], a[0], 0.0]])
