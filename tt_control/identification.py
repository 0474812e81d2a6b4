"""Finds inertia and friction of one joint from a gentle chirp: effort = m q̈ + b q̇ + c sign(q̇) + g.

Pure: sampled effort, position and velocity in, constants with their uncertainty out. The acceleration is not
differentiated from noisy data: the equation is integrated once over windows, so that only velocities are
needed (the weak form; e.g. Gautier 1997 on energy and power models). Least squares with reweighting against
outliers.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from tt_control.dynamics import RigidBody
from tt_control.errors import ControlError
from tt_control.gains import joint_units
from tt_planning.robot import RobotModel

FloatArray = NDArray[np.float64]
_WINDOW_S = 0.05
_RESTING = 1e-3
# Slower than this share of the highest speed for so many samples in a row counts as resting.
_SLOW, _REST_SAMPLES = 0.02, 3
# While a joint is identified: share of its gains at most, and the fastest decay of what a command set going, 1/s.
# Between two replies the effort then hardly changes; a light joint would answer within the period.
_GAIN, _DECAY = 0.3, 40.0


@dataclass(frozen=True, slots=True)
class Chirp:
    """A gentle motion whose frequency grows: q(t) = centre + amplitude(t) sin φ(t), starting and ending at
    rest.

    Attributes:
        centre: m or rad. speed, acceleration: bounds of the motion.
        low_hz, high_hz: first and last frequency. duration_s: length.
    """

    centre: float
    speed: float
    acceleration: float
    low_hz: float = 0.5
    high_hz: float = 4.0
    duration_s: float = 12.0
    fade_s: float = 1.0

    def sample(self, times: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
        """Position, velocity and acceleration at times (n,), s; at rest outside."""
        t = np.clip(np.asarray(times, dtype=float), 0.0, self.duration_s)
        h = 1e-4
        p = [self._position(t + k * h) for k in (-2, -1, 0, 1, 2)]
        vel = (p[0] - 8 * p[1] + 8 * p[3] - p[4]) / (12 * h)
        acc = (-p[0] + 16 * p[1] - 30 * p[2] + 16 * p[3] - p[4]) / (12 * h * h)
        return p[2], vel, acc

    def _position(self, t: FloatArray) -> FloatArray:
        t = np.clip(t, 0.0, self.duration_s)
        grow = np.log(self.high_hz / self.low_hz) / self.duration_s
        phase = 2.0 * np.pi * self.low_hz * np.expm1(grow * t) / grow
        omega = 2.0 * np.pi * self.low_hz * np.exp(grow * t)
        size = np.minimum(self.speed / omega, self.acceleration / omega**2)
        edge = np.clip(np.minimum(t, self.duration_s - t) / self.fade_s, 0.0, 1.0)
        smooth = edge**3 * (10.0 - 15.0 * edge + 6.0 * edge**2)
        return self.centre + smooth * size * np.sin(phase)


@dataclass(frozen=True, slots=True)
class JointConstants:
    """What was found, at the joint: kg or kg m², N s/m or N m s/rad, N or N m.

    Attributes:
        inertia, viscous, coulomb, gravity: the constants.
        sigma: their standard deviations, in the same order.
        residual: effort that the constants do not explain, RMS.
    """

    inertia: float
    viscous: float
    coulomb: float
    gravity: float
    sigma: tuple[float, float, float, float]
    residual: float


def soft_gains(robot: RobotModel) -> FloatArray:
    """Share of each joint's gains to use while it is identified, shape (n,)."""
    mass = np.diag(RigidBody.from_robot(robot).mass_matrix(robot.home))
    kv = np.array([joint_units(m.kp, m.kd, m.turns_per_unit).kv for m in robot.motors])
    return np.asarray(np.minimum(_GAIN, _DECAY * mass / np.maximum(kv, 1e-12)))


def mean_effort(
    times: FloatArray,
    effort: FloatArray,
    pos: FloatArray,
    vel: FloatArray,
    torque: FloatArray,
    kp: float,
    kv: float,
) -> FloatArray:
    """Effort between one reply and the next, from the replies and the commands of each tick, all of shape
    (n,).

    A board tells its effort just before it takes the new command over, and the effort jumps with every
    command: sampled like that, it is wrong by a share of ω_n · period. The jump is known from the commands.

    Args:
        times: of the ticks, s. effort: replies, N or N m.
        pos, vel, torque: commands of the ticks at the joint; the board goes on with `vel` between them.
        kp, kv: gains at the joint.
    """
    dt = np.diff(times)
    jump = np.zeros_like(effort)
    drift = pos[1:] - pos[:-1] - vel[:-1] * dt
    jump[1:] = kp * drift + kv * np.diff(vel) + np.diff(torque)
    after = effort + jump
    mean = effort.copy()
    mean[:-1] = 0.5 * (after[:-1] + effort[1:])
    return mean


def identify(
    times: FloatArray, pos: FloatArray, vel: FloatArray, effort: FloatArray, window_s: float = _WINDOW_S
) -> JointConstants:
    """Least-squares constants from samples of one joint, each of shape (n,); effort holds until the next
    time.

    Raises:
        ControlError: too little or too slow motion to tell inertia from friction.
    """
    times, pos, vel, effort = (np.asarray(a, dtype=float) for a in (times, pos, vel, effort))
    good = np.isfinite(times) & np.isfinite(pos) & np.isfinite(vel) & np.isfinite(effort)
    times, pos, vel, effort = times[good], pos[good], vel[good], effort[good]
    if len(times) < 50 or np.ptp(vel) < _RESTING:
        raise ControlError(
            f"only {len(times)} samples with {np.ptp(vel) if len(vel) else 0:.3g} of velocity change; "
            "let the joint move more"
        )
    rows, right = _windows(times, vel, effort, window_s)
    if len(rows) < 20:
        raise ControlError(f"only {len(rows)} windows of {window_s:g} s in the recording; record longer")
    scale = np.maximum(np.abs(rows).max(axis=0), 1e-12)
    # Exact data must not make the smallest error look like an outlier.
    floor = 5e-3 * float(np.sqrt(np.mean(right**2))) + 1e-12
    weights = np.ones(len(rows))
    solution = np.zeros(4)
    for _ in range(8):
        a, b = rows / scale * weights[:, None], right * weights
        solution = np.linalg.lstsq(a, b, rcond=None)[0]
        errors = right - rows / scale @ solution
        spread = max(1.4826 * float(np.median(np.abs(errors))), floor)
        weights = np.sqrt(np.minimum(1.0, 2.0 * spread / np.maximum(np.abs(errors), 1e-12)))
    normal = (rows / scale * weights[:, None]).T @ (rows / scale * weights[:, None])
    if np.linalg.cond(normal) > 1e10:
        raise ControlError("the motion does not tell inertia from friction; use a wider range of frequencies")
    freedom = max(1.0, float((weights**2).sum()) - 4.0)
    variance = float(((errors * weights) ** 2).sum()) / freedom
    sigma = np.sqrt(np.diag(np.linalg.inv(normal)) * variance) / scale
    values = solution / scale
    inertia, viscous, coulomb, gravity = (float(v) for v in values)
    deviations = (float(sigma[0]), float(sigma[1]), float(sigma[2]), float(sigma[3]))
    residual = float(np.sqrt(np.mean(errors**2))) / window_s
    return JointConstants(inertia, viscous, coulomb, gravity, deviations, residual)


def _hold(times: FloatArray, values: FloatArray) -> FloatArray:
    """Running integral of values that hold from each time to the next."""
    out = np.zeros_like(values)
    out[1:] = np.cumsum(values[:-1] * np.diff(times))
    return out


def _windows(
    times: FloatArray, vel: FloatArray, effort: FloatArray, window_s: float
) -> tuple[FloatArray, FloatArray]:
    """Integrals over half-overlapping windows: [Δvel, ∫vel, ∫sign(vel), ∫1] and ∫effort.

    A joint that turns round may stick for a moment, with any friction up to Coulomb's: windows in which it rests
    are left out.
    """
    slow = (np.abs(vel) < _SLOW * float(np.abs(vel).max())).astype(float)
    resting = np.convolve(slow, np.ones(_REST_SAMPLES), mode="same") > _REST_SAMPLES - 0.5
    integral = {
        "v": _cumulative(times, vel),
        "s": _cumulative(times, np.sign(vel)),
        "e": _hold(times, effort),
    }
    rows, right = [], []
    start = times[0]
    while start + window_s <= times[-1]:
        i, j = np.searchsorted(times, [start, start + window_s])
        j = min(int(j), len(times) - 1)
        if j > i + 2 and not resting[i : j + 1].any() and np.diff(times[i : j + 1]).max() < 0.5 * window_s:
            span = times[j] - times[i]
            rows.append([vel[j] - vel[i], *(integral[k][j] - integral[k][i] for k in "vs"), span])
            right.append(integral["e"][j] - integral["e"][i])
        start += 0.5 * window_s
    return np.array(rows).reshape(-1, 4), np.array(right)


def _cumulative(times: FloatArray, values: FloatArray) -> FloatArray:
    out = np.zeros_like(values)
    out[1:] = np.cumsum(0.5 * (values[1:] + values[:-1]) * np.diff(times))
    return out
