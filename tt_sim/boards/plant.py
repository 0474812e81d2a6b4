"""Stand-alone motors for boards without a robot: inertia, friction, elasticity, gravity load, end stops.

Every motor is one degree of freedom, or two when `stiffness` is finite: the board's encoder sits on the motor
side, the load hangs on a spring and damper behind it. Units are those of the boards: revolutions, N m at the
output shaft; inertias in kg m² as usual, so that torque / inertia is rad/s².
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass

from tt_perception.errors import TTError

TWO_PI = 2.0 * math.pi


@dataclass(frozen=True)
class MotorSpec:
    """One stand-alone motor and its load.

    Attributes:
        inertia: moment of inertia at the output shaft, kg m².
        viscous: viscous friction, N m s/rad.
        coulomb: Coulomb friction, N m; the shaft sticks while less torque than this acts on it.
        gravity: constant load torque, N m, pulling towards negative positions (a lifted mass on a drum).
        position: start position, revolutions.
        lower, upper: end stops, revolutions (infinite: none).
        stiffness: spring between motor and load, N m/rad (infinite: rigid).
        spring_damping: damper beside that spring, N m s/rad.
        load_inertia: inertia behind the spring, kg m²; only with finite stiffness.
    """

    inertia: float = 1e-3
    viscous: float = 1e-3
    coulomb: float = 0.0
    gravity: float = 0.0
    position: float = 0.0
    lower: float = -math.inf
    upper: float = math.inf
    stiffness: float = math.inf
    spring_damping: float = 0.0
    load_inertia: float = 0.0

    def __post_init__(self) -> None:
        """Refuse motors that cannot exist; raises TTError."""
        if not self.inertia > 0.0:
            raise TTError(f"motor inertia {self.inertia} kg m² must be positive.")
        for name in ("viscous", "coulomb", "spring_damping", "load_inertia"):
            if not getattr(self, name) >= 0.0:
                raise TTError(f"motor {name} is {getattr(self, name)}; it must be 0 or more.")
        if not self.lower < self.upper:
            raise TTError(
                f"end stops {self.lower} and {self.upper} rev: the lower one must be below the upper one."
            )
        if math.isfinite(self.stiffness) and not (self.stiffness > 0.0 and self.load_inertia > 0.0):
            raise TTError("an elastic motor needs a positive stiffness and a positive load_inertia.")


class _Motor:
    __slots__ = ("angle", "load_angle", "load_speed", "spec", "speed")

    def __init__(self, spec: MotorSpec) -> None:
        self.spec = spec
        self.angle = self.load_angle = spec.position * TWO_PI
        self.speed = self.load_speed = 0.0


class StandalonePlant:
    """Motors that are not coupled with each other; integrates semi-implicitly with friction solved exactly.

    Args:
        motors: `MotorSpec` by motor name (the board id unless `BoardSpec.motor` says otherwise).
    """

    END_STOP_RESTITUTION = 0.1

    def __init__(self, motors: Mapping[int | str, MotorSpec]) -> None:
        self._motors = {name: _Motor(spec) for name, spec in motors.items()}

    def read(self, motor: int | str) -> tuple[float, float]:
        """Return (position in revolutions, velocity in revolutions per second) of the encoder side."""
        m = self._motors[motor]
        return m.angle / TWO_PI, m.speed / TWO_PI

    def load(self, motor: int | str) -> tuple[float, float]:
        """Return position and velocity behind the spring (the same as `read` for rigid motors)."""
        m = self._motors[motor]
        if math.isfinite(m.spec.stiffness):
            return m.load_angle / TWO_PI, m.load_speed / TWO_PI
        return m.angle / TWO_PI, m.speed / TWO_PI

    def set_state(self, motor: int | str, position: float, velocity: float = 0.0) -> None:
        """Put a motor at a position (revolutions) and velocity (revolutions per second)."""
        m = self._motors[motor]
        m.angle = m.load_angle = position * TWO_PI
        m.speed = m.load_speed = velocity * TWO_PI

    def step(
        self, torques: Mapping[int | str, float], dt: float, external: Mapping[int | str, float] | None = None
    ) -> None:
        """Advance all motors by dt seconds under constant torques (N m) of the boards and of the world."""
        for name, torque in torques.items():
            push = external.get(name, 0.0) if external else 0.0
            m = self._motors[name]
            if math.isfinite(m.spec.stiffness):
                _step_elastic(m, torque, push, dt)
            else:
                total = torque + push - m.spec.gravity
                m.angle, m.speed = _end_stop(m.spec, *_step_shaft(m.spec, m.angle, m.speed, total, dt))


def _step_shaft(spec: MotorSpec, angle: float, speed: float, torque: float, dt: float) -> tuple[float, float]:
    """Exact motion under a constant torque; where it would turn round, friction may hold it."""
    direction = math.copysign(1.0, speed) if speed else math.copysign(1.0, torque)
    if not speed and abs(torque) <= spec.coulomb:
        return angle, 0.0
    force = torque - direction * spec.coulomb
    if speed and direction * force < 0.0:
        left = _time_to_rest(spec, direction * speed, -direction * force)
        if left < dt:
            angle, _ = _glide(spec, angle, speed, force, left)
            return _step_shaft(spec, angle, 0.0, torque, dt - left)
    return _glide(spec, angle, speed, force, dt)


def _time_to_rest(spec: MotorSpec, speed: float, braking: float) -> float:
    """Time until a shaft of this speed stands, both more than 0."""
    b = spec.viscous
    return (
        spec.inertia * speed / braking
        if b * speed < 1e-9 * braking
        else math.log1p(b * speed / braking) * (spec.inertia / b)
    )


def _glide(spec: MotorSpec, angle: float, speed: float, force: float, dt: float) -> tuple[float, float]:
    """M dv/dt = force − b v for a time in which v keeps its sign."""
    rate = spec.viscous / spec.inertia
    gain = force / spec.inertia
    if rate * dt < 1e-6:
        return angle + (speed + 0.5 * gain * dt) * dt, speed + (gain - rate * speed) * dt
    fade = -math.expm1(-rate * dt) / rate
    after = speed + (gain - rate * speed) * fade
    return angle + (gain * dt - (after - speed)) / rate, after


def _end_stop(spec: MotorSpec, angle: float, speed: float) -> tuple[float, float]:
    low, high = spec.lower * TWO_PI, spec.upper * TWO_PI
    if angle < low:
        return low, max(0.0, -speed * StandalonePlant.END_STOP_RESTITUTION)
    if angle > high:
        return high, min(0.0, -speed * StandalonePlant.END_STOP_RESTITUTION)
    return angle, speed


def _step_elastic(m: _Motor, torque: float, push: float, dt: float) -> None:
    spec = m.spec
    # Substeps that turn the spring oscillation by less than 0.2 rad (semi-implicit Euler is stable below 2).
    reduced = 1.0 / (1.0 / spec.inertia + 1.0 / spec.load_inertia)
    count = max(1, math.ceil(math.sqrt(spec.stiffness / reduced) * dt / 0.2))
    h = dt / count
    for _ in range(count):
        spring = spec.stiffness * (m.angle - m.load_angle) + spec.spring_damping * (m.speed - m.load_speed)
        m.angle, m.speed = _step_shaft(spec, m.angle, m.speed, torque - spring, h)
        m.load_speed += (spring - spec.gravity + push) / spec.load_inertia * h
        m.load_angle += m.load_speed * h
        m.load_angle, m.load_speed = _end_stop(spec, m.load_angle, m.load_speed)
