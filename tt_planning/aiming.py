"""Aiming: the outgoing velocity that lands the ball where it should, drag and Magnus included.

Shooting method: a few RK4 steps over a given flight time, corrected by the miss divided by the effective
time (1 − exp(−k T)) / k of a ball with drag rate k, until the miss is below a tolerance.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numba import njit
from numpy.typing import NDArray

from tt_estimation.ball_models import P_CD0, P_G, P_K, P_RADIUS, BallModel
from tt_estimation.flight import rk4_step
from tt_perception.table import (
    BALL_RADIUS_M,
    NET_HEIGHT_M,
    NET_OVERHANG_M,
    TABLE_LENGTH_M,
    TABLE_WIDTH_M,
)

FloatArray = NDArray[np.float64]

_STEP_S = 0.05  # RK4 at 50 ms stays within 0.05 mm over a return flight


@njit(cache=True, nogil=True)
def fly(s: np.ndarray, p: np.ndarray, duration: float, step: float, out: np.ndarray) -> None:
    """State (9,) after `duration` seconds of flight without contacts, in equal RK4 steps of at most `step`."""
    n = max(1, math.ceil(duration / step - 1e-9))
    h = duration / n
    for i in range(9):
        out[i] = s[i]
    for _ in range(n):
        rk4_step(out, p, h, out)


@njit(cache=True, nogil=True)
def effective_time(speed: float, duration: float, p: np.ndarray) -> float:
    """How far a change of launch velocity of 1 m/s moves the ball after `duration` seconds, m per m/s."""
    k = 1.2 * p[P_K] * p[P_CD0] * speed
    return (1.0 - math.exp(-k * duration)) / k if k * duration > 1e-6 else duration


@njit(cache=True, nogil=True)
def shoot(
    pos: np.ndarray,
    spin: np.ndarray,
    target: np.ndarray,
    duration: float,
    p: np.ndarray,
    tolerance: float,
    rounds: int,
    step: float,
    vel: np.ndarray,
    end: np.ndarray,
) -> float:
    """Refine the launch velocity `vel` (3,) until the ball is at `target` (3,) after `duration`; last miss in m.

    `step` is the largest RK4 step. `vel` is the first guess when finite, else the drag-free one is used.
    `end` (9,) receives the arriving state.
    """
    s = np.empty(9)
    if not math.isfinite(vel[0] + vel[1] + vel[2]):
        for i in range(3):
            vel[i] = (target[i] - pos[i]) / duration
        vel[2] += 0.5 * p[P_G] * duration
        speed = math.sqrt(vel[0] * vel[0] + vel[1] * vel[1] + vel[2] * vel[2])
        stretch = duration / effective_time(speed, duration, p)
        vel[0] *= stretch
        vel[1] *= stretch
    miss = math.inf
    for k in range(rounds):
        for i in range(3):
            s[i] = pos[i]
            s[3 + i] = vel[i]
            s[6 + i] = spin[i]
        fly(s, p, duration, step, end)
        dx, dy, dz = target[0] - end[0], target[1] - end[1], target[2] - end[2]
        miss = math.sqrt(dx * dx + dy * dy + dz * dz)
        if miss < tolerance or not math.isfinite(miss) or k == rounds - 1:
            break
        speed = math.sqrt(vel[0] * vel[0] + vel[1] * vel[1] + vel[2] * vel[2])
        t = effective_time(speed, duration, p)
        vel[0] += dx / t
        vel[1] += dy / t
        vel[2] += dz / t
    return miss


@njit(cache=True, nogil=True)
def height_at_net(s: np.ndarray, p: np.ndarray, duration: float) -> float:
    """Height in metres of the ball's centre where it crosses y = 0; +inf when it does not within `duration`.

    −inf is never returned; beside the posts (|x| > table half + overhang) there is no net, also +inf.
    """
    if s[1] >= 0.0 or s[4] <= 0.0:
        return math.inf
    a = np.empty(9)
    b = np.empty(9)
    for i in range(9):
        a[i] = s[i]
    t = 0.0
    while t < duration:
        h = min(_STEP_S, duration - t)
        rk4_step(a, p, h, b)
        if b[1] >= 0.0:
            # Secant refinement of the crossing within this step.
            lo = 0.0
            hi = h
            f_lo = a[1]
            f_hi = b[1]
            for _ in range(20):
                x = lo - f_lo * (hi - lo) / (f_hi - f_lo)
                rk4_step(a, p, x, b)
                if abs(b[1]) < 1e-7:
                    break
                if b[1] < 0.0:
                    lo, f_lo = x, b[1]
                else:
                    hi, f_hi = x, b[1]
            if abs(b[0]) > 0.5 * TABLE_WIDTH_M + NET_OVERHANG_M:
                return math.inf
            return b[2]
        for i in range(9):
            a[i] = b[i]
        t += h
    return math.inf


class AimReason(Enum):
    """Outcome of aiming."""

    OK = "lands on the aim"
    NOT_FINITE = "input is not finite"
    OFF_TABLE = "the aim is not on the opponent's half of the table"
    NET = "every flight that lands there passes too low over the net"
    TOO_FAST = "every flight that lands there is faster than allowed"
    NOT_CONVERGED = "no launch velocity lands there"


@dataclass(frozen=True, slots=True)
class Aim:
    """Launch velocity that lands on the aim.

    Attributes:
        vel_table: launch velocity, shape (3,), m/s; NaN unless `reason` is OK.
        flight_time_s: from launch to landing; NaN unless OK.
        net_clearance_m: gap between the ball's lowest point and the net's top at y = 0; inf beside the net.
        miss_m: distance from the aim in the model.
        reason: outcome.
    """

    vel_table: FloatArray
    flight_time_s: float
    net_clearance_m: float
    miss_m: float
    reason: AimReason


def solve_aim(
    pos_table: FloatArray,
    spin_table: FloatArray,
    aim_table: FloatArray,
    model: BallModel,
    *,
    flight_time_s: float | None = None,
    net_margin_m: float = 0.03,
    max_speed_mps: float = 12.0,
) -> Aim:
    """Velocity that lands a ball launched at `pos_table` with `spin_table` on `aim_table` (x, y) of the table top.

    Lands within 0.1 mm in the model. Without a flight time the shortest of 0.30…1.10 s that clears the net by
    `net_margin_m` plus 0.5 mm per rad/s of backspin or topspin is taken, because spin bends what the model does
    not know exactly. Never raises for arrays of the right shape: the reason says what is impossible.
    """
    pos, spin = np.array(pos_table, dtype=np.float64), np.array(spin_table, dtype=np.float64)
    aim = np.array([aim_table[0], aim_table[1], BALL_RADIUS_M], dtype=np.float64)
    nan = np.full(3, np.nan)

    def failed(reason: AimReason) -> Aim:
        return Aim(nan, math.nan, math.nan, math.nan, reason)

    if not (np.isfinite(pos).all() and np.isfinite(spin).all() and np.isfinite(aim).all()):
        return failed(AimReason.NOT_FINITE)
    if abs(aim[0]) > 0.5 * TABLE_WIDTH_M or not 0.0 < aim[1] <= 0.5 * TABLE_LENGTH_M:
        return failed(AimReason.OFF_TABLE)
    times = [flight_time_s] if flight_time_s is not None else list(np.arange(0.30, 1.1001, 0.05))
    if any(not (t is not None and 0.0 < t < 3.0) for t in times):
        return failed(AimReason.NOT_CONVERGED)
    margin = net_margin_m + 5e-4 * abs(float(spin[0]))
    worst = AimReason.NOT_CONVERGED
    for t in times:
        vel, end = np.full(3, np.nan), np.empty(9)
        miss = shoot(pos, spin, aim, float(t), model.params, 1e-5, 30, _STEP_S, vel, end)
        if not miss < 1e-4:
            continue
        if float(np.linalg.norm(vel)) > max_speed_mps:
            worst = AimReason.TOO_FAST
            continue
        launch = np.concatenate([pos, vel, spin])
        clearance = height_at_net(launch, model.params, float(t)) - model.params[P_RADIUS] - NET_HEIGHT_M
        if clearance < margin:
            worst = AimReason.NET
            continue
        return Aim(vel, float(t), clearance, miss, AimReason.OK)
    return failed(worst)
