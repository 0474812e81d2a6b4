"""One mass, spring and damper, released from rest: the closed form, and three integrators to compare with it.

What every joint under position control is near its setpoint; the simulator's and the controller's integrators
are judged by it.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


def release(
    mass: float, damping: float, stiffness: float, start: float, times: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Position and velocity at `times` (n,) after release from rest at `start`; under-, over- and critically
    damped.
    """
    natural = math.sqrt(stiffness / mass)
    decay = damping / (2.0 * mass)
    inner = natural * natural - decay * decay
    times = np.asarray(times, dtype=float)
    if abs(inner) < 1e-12 * natural * natural:
        pos = start * (1.0 + decay * times) * np.exp(-decay * times)
        return pos, -start * decay * decay * times * np.exp(-decay * times)
    root = np.sqrt(complex(inner))
    pos = start * np.exp(-decay * times) * (np.cos(root * times) + decay / root * np.sin(root * times))
    vel = -start * np.exp(-decay * times) * (natural * natural / root) * np.sin(root * times)
    return pos.real, vel.real


def energy(mass: float, stiffness: float, pos: float, vel: float) -> float:
    """Kinetic plus spring energy, J."""
    return 0.5 * mass * vel * vel + 0.5 * stiffness * pos * pos


def integrate(
    method: str, mass: float, damping: float, stiffness: float, start: float, dt: float, steps: int
) -> tuple[float, float]:
    """Position and velocity after so many steps of `euler`, `semi-implicit` or `rk4`, released from rest."""
    x, v = start, 0.0

    def acc(x: float, v: float) -> float:
        return (-damping * v - stiffness * x) / mass

    for _ in range(steps):
        if method == "euler":
            x, v = x + dt * v, v + dt * acc(x, v)
        elif method == "semi-implicit":
            v += dt * acc(x, v)
            x += dt * v
        else:
            k1 = (v, acc(x, v))
            k2 = (v + 0.5 * dt * k1[1], acc(x + 0.5 * dt * k1[0], v + 0.5 * dt * k1[1]))
            k3 = (v + 0.5 * dt * k2[1], acc(x + 0.5 * dt * k2[0], v + 0.5 * dt * k2[1]))
            k4 = (v + dt * k3[1], acc(x + dt * k3[0], v + dt * k3[1]))
            x += dt / 6.0 * (k1[0] + 2 * k2[0] + 2 * k3[0] + k4[0])
            v += dt / 6.0 * (k1[1] + 2 * k2[1] + 2 * k3[1] + k4[1])
    return x, v
