"""Gains of a position loop: from natural frequency, damping and inertia to board units, with stability
margins.

The loop of one joint with inertia m, friction b, and effort k_p (q_ref − q) + k_v (q̇_ref − q̇):

    m q̈ + (b + k_v) q̇ + k_p q = …,   ω_n = √(k_p / m),   ζ = (b + k_v) / (2 √(k_p m))

Pure; SI at the joint (N/m and N s/m, or N m/rad and N m s/rad).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tt_control.errors import ControlError

FloatArray = NDArray[np.float64]
TWO_PI = 2.0 * math.pi


@dataclass(frozen=True, slots=True)
class SecondOrder:
    """Character of m q̈ + b q̇ + k q = 0.

    Attributes:
        natural: undamped frequency ω_n, rad/s.
        damping: damping ratio ζ.
        damped: ω_n √(1 − ζ²), rad/s; 0 when it does not oscillate.
    """

    natural: float
    damping: float
    damped: float

    @property
    def overshoot(self) -> float:
        """Overshoot of the step response as a share of the step; 0 from critical damping on."""
        if self.damping >= 1.0:
            return 0.0
        return math.exp(-math.pi * self.damping / math.sqrt(1.0 - self.damping**2))


def second_order(mass: float, damping: float, stiffness: float) -> SecondOrder:
    """Natural frequency, damping ratio and damped frequency.

    Raises:
        ControlError: mass or stiffness not positive, or total damping not positive: the motion would grow.
    """
    _positive("inertia", mass)
    _positive("stiffness", stiffness)
    if not damping > 0.0:
        raise ControlError(
            f"the total damping is {damping:g}; it must be more than 0, because a joint with negative damping gains "
            "energy until something breaks: raise k_v"
        )
    natural = math.sqrt(stiffness / mass)
    ratio = damping / (2.0 * math.sqrt(stiffness * mass))
    return SecondOrder(natural, ratio, natural * math.sqrt(max(0.0, 1.0 - ratio * ratio)))


def critical_damping(mass: float, stiffness: float) -> float:
    """The least damping without overshoot, 2 √(k m)."""
    _positive("inertia", mass)
    _positive("stiffness", stiffness)
    return 2.0 * math.sqrt(stiffness * mass)


@dataclass(frozen=True, slots=True)
class Gains:
    """Gains of one joint at the joint: k_p in N/m or N m/rad, k_v in N s/m or N m s/rad."""

    kp: float
    kv: float


def design(natural: float, damping: float, inertia: float, friction: float = 0.0) -> Gains:
    """Gains that give a natural frequency and damping ratio.

    Args:
        natural: ω_n, rad/s. damping: ζ.
        inertia: effective inertia at the joint. friction: viscous friction of the joint itself, which may be
            negative.

    Raises:
        ControlError: values that give no stable loop, or a negative k_v.
    """
    _positive("natural frequency", natural)
    _positive("damping ratio", damping)
    _positive("inertia", inertia)
    kv = 2.0 * damping * natural * inertia - friction
    if kv < 0.0:
        raise ControlError(
            f"the joint's own friction {friction:g} already damps more than ζ = {damping:g} at {natural:g} rad/s; "
            "raise the natural frequency or the damping ratio"
        )
    return Gains(natural * natural * inertia, kv)


def check(gains: Gains, inertia: float, friction: float = 0.0) -> SecondOrder:
    """What gains give on a joint; refuses unstable ones.

    Raises:
        ControlError: total damping b + k_v not positive, or k_p not positive.
    """
    return second_order(inertia, friction + gains.kv, gains.kp)


def board_units(gains: Gains, turns_per_unit: float) -> tuple[float, float]:
    """Gains in moteus units, kp in N m/rev and kd in N m/(rev/s): e [rev] = turns_per_unit · e [joint]."""
    scale = TWO_PI * turns_per_unit * turns_per_unit
    return gains.kp / scale, gains.kv / scale


def joint_units(kp_board: float, kd_board: float, turns_per_unit: float) -> Gains:
    """Back from moteus units."""
    scale = TWO_PI * turns_per_unit * turns_per_unit
    return Gains(kp_board * scale, kd_board * scale)


@dataclass(frozen=True, slots=True)
class Margins:
    """Robustness of a loop with delay.

    Attributes:
        phase_deg: phase margin. delay_s: additional delay the loop bears. gain: factor by which the gains may
            grow.
        crossover: frequency where the open loop has gain 1, rad/s.
    """

    phase_deg: float
    delay_s: float
    gain: float
    crossover: float


def margins(
    gains: Gains, inertia: float, friction: float = 0.0, delay_s: float = 0.0, sample_s: float = 0.0
) -> Margins:
    """Stability margins of L(s) = (k_p + k_v s) e^{−s T} / (s (m s + b)) with T = delay + sample / 2.

    `delay_s` is everything from measuring to torque; sampling adds half a period in the mean.
    """
    check(gains, inertia, friction)
    total = delay_s + 0.5 * sample_s
    natural = math.sqrt(gains.kp / inertia)
    top = max(natural, (gains.kv + abs(friction)) / inertia) * 1e3
    omega = np.geomspace(natural * 1e-3, top, 20000)
    bare = (gains.kp + 1j * gains.kv * omega) / (1j * omega * (1j * inertia * omega + friction))
    size = np.abs(bare)
    phase = np.unwrap(np.angle(bare)) - omega * total
    above = size >= 1.0
    last = int(np.flatnonzero(above)[-1]) if above.any() else 0
    crossover = float(omega[last])
    phase_margin = math.pi + float(phase[last])
    crossings = np.flatnonzero((phase[:-1] > -math.pi) & (phase[1:] <= -math.pi))
    gain = min((1.0 / float(size[k]) for k in crossings), default=math.inf)
    return Margins(math.degrees(phase_margin), phase_margin / crossover, gain, crossover)


def step_response(
    gains: Gains,
    inertia: float,
    friction: float,
    duration_s: float,
    delay_s: float = 0.0,
    sample_s: float = 0.001,
    max_effort: float = math.inf,
    step: float = 1.0,
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Sampled loop with delay after a step of the wanted position: times, positions, efforts.

    The board's loop is modelled as it works: it samples position and velocity every `sample_s`, holds the
    effort, and the effort acts `delay_s` later.
    """
    check(gains, inertia, friction)
    fine = min(sample_s, 1e-4) if sample_s > 0 else 1e-4
    per_sample = max(1, round(sample_s / fine))
    count = max(2, round(duration_s / fine))
    lag = round(delay_s / fine)
    times, pos, effort = np.arange(count) * fine, np.zeros(count), np.zeros(count)
    q = qd = wanted = 0.0
    pending = [0.0] * (lag + 1)
    for k in range(count):
        if k % per_sample == 0:
            wanted = min(max(gains.kp * (step - q) - gains.kv * qd, -max_effort), max_effort)
        pending.append(wanted)
        acting = pending.pop(0)
        pos[k], effort[k] = q, acting
        qd += (acting - friction * qd) / inertia * fine
        q += qd * fine
    return np.asarray(times, dtype=np.float64), pos, effort


@dataclass(frozen=True, slots=True)
class StepFigures:
    """Figures of a step response: rise time 10 to 90 %, overshoot as a share, settling time to 2 %."""

    rise_s: float
    overshoot: float
    settle_s: float


def step_figures(times: FloatArray, pos: FloatArray, step: float = 1.0) -> StepFigures:
    """Reads the usual figures off a step response; NaN where it never gets there."""
    share = pos / step
    reached = [
        times[np.argmax(share >= level)] if (share >= level).any() else math.nan for level in (0.1, 0.9)
    ]
    outside = np.flatnonzero(np.abs(share - 1.0) > 0.02)
    settle = math.nan if len(outside) == 0 or outside[-1] == len(times) - 1 else float(times[outside[-1] + 1])
    return StepFigures(float(reached[1] - reached[0]), max(0.0, float(share.max()) - 1.0), settle)


def _positive(what: str, value: float) -> None:
    if not (math.isfinite(value) and value > 0.0):
        raise ControlError(f"the {what} is {value:g}; it must be more than 0")
