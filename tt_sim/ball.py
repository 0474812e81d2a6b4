"""Event-based ball: flight, and root-found contacts with table, net, floor and the moving racket.

Every collider is a box (the floor a half space); the ball touches one where the distance from its centre to
the box equals the ball radius, so top, edges, corners and sides all come from the same closest point. Within
a step the time of contact is found by conservative advancement: the ball moves forward by gap ÷ (bound on the
closing speed) until the gap changes sign, then bisection. No contact is stepped over at any speed.

The flight uses `tt_estimation.flight.rk4_step`, the contact law is `tt_estimation.contact.contact`, both with
the constants of a `BallModel`: the laws `nominal`, `deepmind` and `match` are models, not code.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tt_estimation.ball_models import (
    P_E_RACKET,
    P_E_RACKET1,
    P_E_TABLE,
    P_E_TABLE1,
    P_MU_RACKET,
    P_MU_TABLE,
    P_RADIUS,
    BallModel,
)
from tt_estimation.contact import contact, restitution
from tt_estimation.flight import rk4_step
from tt_perception.table import (
    NET_HEIGHT_M,
    NET_OVERHANG_M,
    TABLE_HEIGHT_M,
    TABLE_LENGTH_M,
    TABLE_WIDTH_M,
)

FloatArray = NDArray[np.float64]

TABLE_THICKNESS_M = 0.025  # usual board; the rules leave it free
NET_THICKNESS_M = 0.002  # cord and mesh, by calliper on a match net
NET_RESTITUTION = 0.1  # assumed: the mesh gives way and the ball drops at its foot
NET_FRICTION = 0.3  # assumed
FLOOR_RESTITUTION = 0.7  # assumed sports floor; only decides what a lost ball looks like
FLOOR_FRICTION = 0.3  # assumed

MAX_CONTACTS = 12  # per step; a ball that needs more is at rest between surfaces
_MIN_ADVANCE_M = 1e-4  # penetration that a grazing pass may hide is below 1 µm
_ROOT_STEPS = 40  # bisection: 1 ms / 2⁴⁰ is far below the resolution of the state

# Layout of one event row.
E_TIME = 0  # seconds after the start of the step
E_KIND = 1
E_POS = 2  # ball centre, 2..4
E_VEL_BEFORE = 5  # 5..7
E_VEL_AFTER = 8  # 8..10
E_NORMAL = 11  # 11..13
E_LOCAL = 14  # contact point in the racket frame, 14..16
E_SPIN_AFTER = 17  # 17..19
N_EVENT = 20

K_TABLE, K_NET, K_FLOOR, K_RACKET = 0, 1, 2, 3

# Layout of one racket sample: centre 0..2, rotation row-major 3..11, velocity 12..14, angular vel. 15..17.
N_RACKET = 18


class Surface(Enum):
    """What the ball touched."""

    TABLE = K_TABLE
    NET = K_NET
    FLOOR = K_FLOOR
    RACKET = K_RACKET


@dataclass(frozen=True, slots=True)
class BallContact:
    """One contact of the ball.

    Attributes:
        time_s: simulation time.
        surface: what it touched.
        pos_table: ball centre at the contact, m.
        vel_before, vel_after: m/s. spin_after: rad/s.
        normal_table: unit normal of the surface towards the ball.
        racket_point: contact point in the racket frame, m (x across, y out of the face, z to the tip); only
            for the racket.
    """

    time_s: float
    surface: Surface
    pos_table: FloatArray
    vel_before: FloatArray
    vel_after: FloatArray
    spin_after: FloatArray
    normal_table: FloatArray
    racket_point: FloatArray


@njit(cache=True, nogil=True)
def _box_gap(
    x: float, y: float, z: float, hx: float, hy: float, hz: float, radius: float, out_n: np.ndarray
) -> float:
    """Gap of a sphere at (x, y, z) from the box |·| ≤ h about the origin; unit normal into `out_n` (3,)."""
    cx = min(max(x, -hx), hx)
    cy = min(max(y, -hy), hy)
    cz = min(max(z, -hz), hz)
    dx, dy, dz = x - cx, y - cy, z - cz
    d = math.sqrt(dx * dx + dy * dy + dz * dz)
    if d > 1e-9:
        out_n[0], out_n[1], out_n[2] = dx / d, dy / d, dz / d
        return d - radius
    # Centre inside the box: leave through the nearest face.
    px, py, pz = hx - abs(x), hy - abs(y), hz - abs(z)
    out_n[0] = out_n[1] = out_n[2] = 0.0
    if px <= py and px <= pz:
        out_n[0] = 1.0 if x >= 0.0 else -1.0
        return -px - radius
    if py <= pz:
        out_n[1] = 1.0 if y >= 0.0 else -1.0
        return -py - radius
    out_n[2] = 1.0 if z >= 0.0 else -1.0
    return -pz - radius


@njit(cache=True, nogil=True)
def _gap(
    kind: int,
    s: np.ndarray,
    radius: float,
    geom: np.ndarray,
    racket: np.ndarray,
    normal: np.ndarray,
    local: np.ndarray,
) -> float:
    """Gap (m) between the ball and surface `kind`; its normal in `table` axes and the ball in racket axes."""
    if kind == K_TABLE:
        return _box_gap(s[0], s[1], s[2] + 0.5 * geom[2], geom[0], geom[1], 0.5 * geom[2], radius, normal)
    if kind == K_NET:
        return _box_gap(s[0], s[1], s[2] - 0.5 * geom[5], geom[3], geom[4], 0.5 * geom[5], radius, normal)
    if kind == K_FLOOR:
        normal[0], normal[1], normal[2] = 0.0, 0.0, 1.0
        return s[2] - geom[6] - radius
    dx, dy, dz = s[0] - racket[0], s[1] - racket[1], s[2] - racket[2]
    for i in range(3):
        local[i] = racket[3 + i] * dx + racket[6 + i] * dy + racket[9 + i] * dz
    n = np.empty(3)
    gap = _box_gap(local[0], local[1], local[2], geom[7], geom[8], geom[9], radius, n)
    length = 0.0
    for i in range(3):
        normal[i] = racket[3 + 3 * i] * n[0] + racket[4 + 3 * i] * n[1] + racket[5 + 3 * i] * n[2]
        length += normal[i] ** 2
    length = math.sqrt(length)  # interpolated rotations are orthonormal to 1e-4 only
    for i in range(3):
        normal[i] /= length
    return gap


@njit(cache=True, nogil=True)
def _racket_at(start: np.ndarray, end: np.ndarray, f: float, out: np.ndarray) -> None:
    """Racket sample at fraction `f` of the step: everything interpolated linearly.

    A millisecond at 20 rad/s turns the racket by 0.02 rad; the chord error of its corner is 5 µm.
    """
    for i in range(N_RACKET):
        out[i] = start[i] + f * (end[i] - start[i])


@njit(cache=True, nogil=True)
def advance(
    s: np.ndarray,
    p: np.ndarray,
    dt: float,
    geom: np.ndarray,
    racket_start: np.ndarray,
    racket_end: np.ndarray,
    events: np.ndarray,
    closest: np.ndarray,
) -> int:
    """Move the ball `s` (9,) forward by `dt` through all contacts, in place.

    Args:
        s: position, velocity, spin in `table`.
        p: parameters of the `BallModel`.
        dt: length of the step, s.
        geom: from `make_geometry`.
        racket_start: racket sample at the start of the step (N_RACKET,).
        racket_end: racket sample at its end.
        events: rows to fill, (MAX_CONTACTS, N_EVENT).
        closest: (7,), smallest gap to the racket so far, the ball there in racket and table axes; updated.

    Returns:
        Number of contacts.
    """
    radius = p[P_RADIUS]
    n_events = 0
    t = 0.0
    trial = np.empty(9)
    racket = np.empty(N_RACKET)
    normal = np.empty(3)
    local = np.empty(3)
    surface_v = np.empty(3)
    reach = math.sqrt(geom[7] ** 2 + geom[8] ** 2 + geom[9] ** 2) + radius
    racket_speed = 0.0
    for r in range(2):
        q = racket_start if r == 0 else racket_end
        racket_speed = max(
            racket_speed,
            math.sqrt(q[12] ** 2 + q[13] ** 2 + q[14] ** 2)
            + reach * math.sqrt(q[15] ** 2 + q[16] ** 2 + q[17] ** 2),
        )
    dx, dy, dz = (
        racket_end[0] - racket_start[0],
        racket_end[1] - racket_start[1],
        racket_end[2] - racket_start[2],
    )
    racket_speed = max(racket_speed, math.sqrt(dx * dx + dy * dy + dz * dz) / dt) + 1.0
    while t < dt:
        # The ball cannot gain more than g·dt and some drag within a step: 1 m/s covers it.
        ball_speed = math.sqrt(s[3] ** 2 + s[4] ** 2 + s[5] ** 2) + 1.0
        remaining = dt - t
        hit_kind = -1
        hit_tau = remaining
        for kind in range(4):
            bound = ball_speed + (racket_speed if kind == K_RACKET else 0.0)
            tau = 0.0
            before = 0.0
            while tau < hit_tau:
                if tau == 0.0:
                    for i in range(9):
                        trial[i] = s[i]
                else:
                    rk4_step(s, p, tau, trial)
                if kind == K_RACKET:
                    _racket_at(racket_start, racket_end, (t + tau) / dt, racket)
                gap = _gap(kind, trial, radius, geom, racket, normal, local)
                if kind == K_RACKET and gap < closest[0]:
                    closest[0] = gap
                    for i in range(3):
                        closest[1 + i] = local[i]
                        closest[4 + i] = trial[i]
                if gap <= 0.0:
                    if kind == K_RACKET:
                        _surface_velocity(racket, trial, normal, radius, surface_v)
                    else:
                        surface_v[0] = surface_v[1] = surface_v[2] = 0.0
                    vn = 0.0
                    for i in range(3):
                        vn += (trial[3 + i] - surface_v[i]) * normal[i]
                    if vn < 0.0:
                        lo, hi = before, tau
                        if tau > 0.0:
                            for _ in range(_ROOT_STEPS):
                                mid = 0.5 * (lo + hi)
                                rk4_step(s, p, mid, trial)
                                if kind == K_RACKET:
                                    _racket_at(racket_start, racket_end, (t + mid) / dt, racket)
                                if _gap(kind, trial, radius, geom, racket, normal, local) > 0.0:
                                    lo = mid
                                else:
                                    hi = mid
                        hit_kind = kind
                        hit_tau = hi
                        break
                before = tau
                tau += max(gap, _MIN_ADVANCE_M) / bound
        if hit_kind < 0:
            rk4_step(s, p, remaining, s)
            break
        if hit_tau > 0.0:
            rk4_step(s, p, hit_tau, s)
        t += hit_tau
        if n_events == MAX_CONTACTS:
            # Resting contact: hold the ball for the rest of the step.
            s[3] = s[4] = s[5] = 0.0
            break
        _racket_at(racket_start, racket_end, t / dt, racket)
        _gap(hit_kind, s, radius, geom, racket, normal, local)
        row = events[n_events]
        row[E_TIME] = t
        row[E_KIND] = hit_kind
        for i in range(3):
            row[E_POS + i] = s[i]
            row[E_VEL_BEFORE + i] = s[3 + i]
            row[E_NORMAL + i] = normal[i]
            row[E_LOCAL + i] = min(max(local[i], -geom[7 + i]), geom[7 + i])
        _bounce(hit_kind, s, p, racket, normal, surface_v)
        for i in range(3):
            row[E_VEL_AFTER + i] = s[3 + i]
            row[E_SPIN_AFTER + i] = s[6 + i]
        n_events += 1
    return n_events


@njit(cache=True, nogil=True)
def _surface_velocity(
    racket: np.ndarray, s: np.ndarray, normal: np.ndarray, radius: float, out: np.ndarray
) -> None:
    """Velocity of the racket at the contact point of ball `s`."""
    rx = s[0] - radius * normal[0] - racket[0]
    ry = s[1] - radius * normal[1] - racket[1]
    rz = s[2] - radius * normal[2] - racket[2]
    wx, wy, wz = racket[15], racket[16], racket[17]
    out[0] = racket[12] + wy * rz - wz * ry
    out[1] = racket[13] + wz * rx - wx * rz
    out[2] = racket[14] + wx * ry - wy * rx


@njit(cache=True, nogil=True)
def _bounce(
    kind: int,
    s: np.ndarray,
    p: np.ndarray,
    racket: np.ndarray,
    normal: np.ndarray,
    surface_v: np.ndarray,
) -> None:
    """Apply the contact law of surface `kind` to `s`, in place."""
    surface_v[0] = surface_v[1] = surface_v[2] = 0.0
    if kind == K_RACKET:
        _surface_velocity(racket, s, normal, p[P_RADIUS], surface_v)
    vn = 0.0
    for i in range(3):
        vn += (s[3 + i] - surface_v[i]) * normal[i]
    if kind == K_TABLE:
        e, mu = restitution(p[P_E_TABLE], p[P_E_TABLE1], abs(vn)), p[P_MU_TABLE]
    elif kind == K_RACKET:
        e, mu = restitution(p[P_E_RACKET], p[P_E_RACKET1], abs(vn)), p[P_MU_RACKET]
    elif kind == K_NET:
        e, mu = NET_RESTITUTION, NET_FRICTION
    else:
        e, mu = FLOOR_RESTITUTION, FLOOR_FRICTION
    contact(s[3:6], s[6:9], normal, surface_v, e, mu, p[P_RADIUS], s[3:6], s[6:9])


def make_geometry(racket_width_m: float, racket_thickness_m: float, racket_height_m: float) -> FloatArray:
    """Half sizes and heights the kernel reads: table, net, floor, racket blade."""
    return np.array(
        [
            TABLE_WIDTH_M / 2,
            TABLE_LENGTH_M / 2,
            TABLE_THICKNESS_M,
            TABLE_WIDTH_M / 2 + NET_OVERHANG_M,
            NET_THICKNESS_M / 2,
            NET_HEIGHT_M,
            -TABLE_HEIGHT_M,
            racket_width_m / 2,
            racket_thickness_m / 2,
            racket_height_m / 2,
        ]
    )


def racket_sample(
    pos: FloatArray | None = None,
    rot: FloatArray | None = None,
    vel: FloatArray | None = None,
    angvel: FloatArray | None = None,
) -> FloatArray:
    """Racket pose and twist as the kernel reads them; without arguments a racket out of every ball's way."""
    out = np.zeros(N_RACKET)
    out[:3] = (0.0, 0.0, 1000.0) if pos is None else pos
    out[3:12] = np.eye(3).ravel() if rot is None else np.asarray(rot).ravel()
    if vel is not None:
        out[12:15] = vel
    if angvel is not None:
        out[15:18] = angvel
    return out


class Ball:
    """One ball in flight.

    Args:
        model: flight and contact constants.
        racket_size_m: width, thickness, height of the blade.
    """

    def __init__(
        self, model: BallModel, racket_size_m: tuple[float, float, float] = (0.15, 0.014, 0.16)
    ) -> None:
        self.model = model
        self._geometry = make_geometry(*racket_size_m)
        self._events = np.zeros((MAX_CONTACTS, N_EVENT))
        self._closest = np.full(7, np.inf)
        self._away = racket_sample()
        self.state = np.full(9, np.nan)
        self.time_s = 0.0

    @property
    def closest_racket(self) -> tuple[float, FloatArray, FloatArray]:
        """Smallest gap between ball and blade since `reset`, m; the ball there in racket and table axes."""
        return float(self._closest[0]), self._closest[1:4], self._closest[4:]

    def reset(self, state: FloatArray, time_s: float = 0.0) -> None:
        """Put the ball at `state` (position, velocity, spin)."""
        self.state[:] = state
        self.time_s = time_s
        self._closest[:] = np.inf

    def advance(
        self, dt: float, racket_start: FloatArray | None = None, racket_end: FloatArray | None = None
    ) -> list[BallContact]:
        """Move forward by `dt` seconds; the racket moves from one sample to the other meanwhile."""
        start = self._away if racket_start is None else racket_start
        end = start if racket_end is None else racket_end
        n = advance(
            self.state, self.model.params, dt, self._geometry, start, end, self._events, self._closest
        )
        contacts = [self._contact(self._events[i]) for i in range(n)] if n else []
        self.time_s += dt
        return contacts

    def _contact(self, row: FloatArray) -> BallContact:
        row = row.copy()
        return BallContact(
            self.time_s + float(row[E_TIME]),
            Surface(int(row[E_KIND])),
            row[E_POS : E_POS + 3],
            row[E_VEL_BEFORE : E_VEL_BEFORE + 3],
            row[E_VEL_AFTER : E_VEL_AFTER + 3],
            row[E_SPIN_AFTER : E_SPIN_AFTER + 3],
            row[E_NORMAL : E_NORMAL + 3],
            row[E_LOCAL : E_LOCAL + 3],
        )
