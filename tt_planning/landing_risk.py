"""How likely a stroke returns the ball, and how far from the aim it is expected to land.

First-order propagation through the exact contact law and the flight: covariance of the ball (position, velocity,
spin) and standard deviations of the racket (position, orientation, speed, timing).
"""

from __future__ import annotations

import math

import numpy as np
from numba import njit

from tt_estimation.ball_models import P_CL, P_CLS, P_K, P_RADIUS
from tt_perception.table import TABLE_LENGTH_M, TABLE_WIDTH_M
from tt_planning import hit_problem as hp
from tt_planning.aiming import effective_time
from tt_planning.hit_problem import HitProblem
from tt_planning.racket_contact import strike

HALF_TABLE_X = 0.5 * TABLE_WIDTH_M
HALF_TABLE_Y = 0.5 * TABLE_LENGTH_M
_INSIDE_M = 0.01  # a ball that lands this near to the edge is not counted on


@njit(cache=True, nogil=True)
def _normal_cdf(x: float) -> float:
    return 0.5 * (1.0 + math.erf(x * 0.7071067811865476))


@njit(cache=True, nogil=True)
def _within(low: float, high: float, sigma: float) -> float:
    s = max(sigma, 1e-6)
    return _normal_cdf(high / s) - _normal_cdf(low / s)


@njit(cache=True, nogil=True)
def _position_cov(t: float, g: HitProblem, cov: np.ndarray) -> None:
    """Position covariance (3, 3) of the ball at time `t`, linear between the samples of the path."""
    hi = 1
    last = g.times.shape[0] - 1
    while hi < last and g.times[hi] < t:
        hi += 1
    f = (t - g.times[hi - 1]) / max(g.times[hi] - g.times[hi - 1], 1e-9)
    for i in range(3):
        for j in range(3):
            cov[i, j] = (1.0 - f) * g.pos_cov[hi - 1, i, j] + f * g.pos_cov[hi, i, j]


@njit(cache=True, nogil=True)
def _face_miss(
    col: int, v: np.ndarray, n: np.ndarray, face: np.ndarray, rot: np.ndarray, closing: float, cov: np.ndarray,
    g: HitProblem,
) -> float:  # fmt: skip
    """Variance of the contact point along column `col` of the racket's axes.

    A ball displaced by δ meets the plane of the face at δ_t + u_t δ_n / closing.
    """
    slide = 0.0
    for i in range(3):
        slide += (v[i] - face[i]) * rot[i, col]
    slide /= closing
    var = g.noise[hp.S_LINEAR] ** 2 + (g.noise[hp.S_TIME] * slide * closing) ** 2
    for i in range(3):
        for j in range(3):
            var += (rot[i, col] + slide * n[i]) * cov[i, j] * (rot[j, col] + slide * n[j])
    return var


@njit(cache=True, nogil=True)
def assess(
    x: np.ndarray,
    g: HitProblem,
    t: float,
    hit: np.ndarray,
    end: np.ndarray,
    rot: np.ndarray,
    height: float,
    side: float,
    rate: float,
    crossing: float,
    out: np.ndarray,
) -> None:
    """Write `O_P_HIT`, `O_P_LAND` and `O_ERROR` of the stroke `hit` (21,) at time `t` whose flight ends in `end` (9,).

    Args:
        x: the candidate.
        g: inputs of the decision.
        t: hit time.
        hit: ball (9), normal, face velocity, outgoing velocity, outgoing spin, as `solve_shot` writes them.
        end: ball at the end of its flight.
        rot: table_from_racket, shape (3, 3).
        height, side: contact point on the blade, m from its centre.
        rate: rad/s by which the face turns about the racket's x axis.
        crossing: time from the hit to the net, 0 when the ball passes beside it.
        out: `O_CLEARANCE` is read.
    """
    v, w = hit[3:6], hit[6:9]
    n, face, vout, wout = hit[9:12], hit[12:15], hit[15:18], hit[18:21]
    noise, weight, p = g.noise, g.weight, g.p
    duration = x[hp.X_FLIGHT]
    cov = np.empty((3, 3))
    _position_cov(t, g, cov)
    closing = 0.0
    var_depth = 0.0
    for i in range(3):
        closing += (face[i] - v[i]) * n[i]
        for j in range(3):
            var_depth += n[i] * cov[i, j] * n[j]
    var_side = _face_miss(0, v, n, face, rot, closing, cov, g)
    var_up = _face_miss(2, v, n, face, rot, closing, cov, g)
    edge_w, edge_h = g.rob[hp.R_HALF_W] - weight[hp.W_EDGE], g.rob[hp.R_HALF_H] - weight[hp.W_EDGE]
    out[hp.O_P_HIT] = _within(-edge_w - side, edge_w - side, math.sqrt(var_side)) * _within(
        -edge_h - height, edge_h - height, math.sqrt(var_up)
    )
    # Landing errors: outgoing velocity by face velocity, spin, normal (finite differences of the exact law).
    speed = math.sqrt(vout[0] ** 2 + vout[1] ** 2 + vout[2] ** 2)
    reach = effective_time(speed, duration, p)
    down = min(end[5], -0.3)
    gx, gy = end[3] / down, end[4] / down
    near = effective_time(speed, crossing, p) if crossing > 0.0 else 0.0
    steep = (vout[2] - 9.81 * crossing) / max(vout[1], 0.3)
    mean = np.empty(3)
    for i in range(3):
        mean[i] = (end[i] - hit[i]) / duration
    size = math.sqrt(mean[0] ** 2 + mean[1] ** 2 + mean[2] ** 2)
    lift = p[P_CL]
    if p[P_CLS] > 0.0:
        turning = math.sqrt(wout[0] ** 2 + wout[1] ** 2 + wout[2] ** 2)
        lift /= p[P_CLS] + p[P_RADIUS] * turning / max(size, 0.1)
    bend = 0.5 * duration * duration * p[P_K] * p[P_RADIUS] * lift
    var_x = var_y = var_z = 0.0
    plus = np.empty(3)
    spin = np.empty(3)
    arg = np.empty(3)
    time_var = noise[hp.S_TIME] ** 2 + var_depth / (closing * closing)
    for kind in range(8):
        if kind < 3:
            for i in range(3):
                arg[i] = face[i]
            arg[kind] += 1e-3
            strike(v, w, n, arg, p, plus, spin)
            scale = 1e3
            sigma = noise[hp.S_SPEED]
        elif kind < 6:
            for i in range(3):
                arg[i] = w[i]
            arg[kind - 3] += 0.1
            strike(v, arg, n, face, p, plus, spin)
            scale = 10.0
            sigma = math.sqrt(max(g.state_cov[kind + 3, kind + 3], 0.0))
        else:
            col = 2 if kind == 6 else 0
            sign = 1.0 if kind == 6 else -1.0
            s = 1.0 / math.sqrt(1.0 + 1e-6)
            for i in range(3):
                arg[i] = (n[i] + sign * 1e-3 * rot[i, col]) * s
            strike(v, w, arg, face, p, plus, spin)
            scale = 1e3
            spin_rate = rate if kind == 6 else 0.0
            sigma = math.sqrt(noise[hp.S_ANGLE] ** 2 + spin_rate * spin_rate * time_var)
        d0 = (plus[0] - vout[0]) * scale
        d1 = (plus[1] - vout[1]) * scale
        d2 = (plus[2] - vout[2]) * scale
        # The spin that changes with it bends the flight: ½ T² κ (δω × v).
        for i in range(3):
            spin[i] = (spin[i] - wout[i]) * scale
        e0 = reach * d0 + bend * (spin[1] * mean[2] - spin[2] * mean[1])
        e1 = reach * d1 + bend * (spin[2] * mean[0] - spin[0] * mean[2])
        e2 = reach * d2 + bend * (spin[0] * mean[1] - spin[1] * mean[0])
        var_x += (sigma * (e0 - gx * e2)) ** 2
        var_y += (sigma * (e1 - gy * e2)) ** 2
        var_z += (sigma * near * (d2 - steep * d1)) ** 2
        if kind < 3:
            # ∂v_out/∂v = I − ∂v_out/∂V
            sv = math.sqrt(max(g.state_cov[3 + kind, 3 + kind], 0.0))
            d0 = (1.0 if kind == 0 else 0.0) - d0
            d1 = (1.0 if kind == 1 else 0.0) - d1
            d2 = (1.0 if kind == 2 else 0.0) - d2
            var_x += (sv * reach * (d0 - gx * d2)) ** 2
            var_y += (sv * reach * (d1 - gy * d2)) ** 2
            var_z += (sv * near * (d2 - steep * d1)) ** 2
    var_x += cov[0, 0]
    var_y += cov[1, 1]
    var_z += cov[2, 2]
    aim_x, aim_y = x[hp.X_AIM_X], x[hp.X_AIM_Y]
    out[hp.O_P_LAND] = (
        _within(-HALF_TABLE_X + _INSIDE_M - aim_x, HALF_TABLE_X - _INSIDE_M - aim_x, math.sqrt(var_x))
        * _within(_INSIDE_M - aim_y, HALF_TABLE_Y - _INSIDE_M - aim_y, math.sqrt(var_y))
        * _normal_cdf(out[hp.O_CLEARANCE] / max(math.sqrt(var_z), 1e-6))
    )
    out[hp.O_ERROR] = math.sqrt(var_x + var_y)
