"""The power supply that all boards of one bus share: sag under load, rise while motors brake.

A bench supply delivers current through its wiring resistance but cannot take any back. What braking motors
return charges the capacitors at the bus until a brake resistor, the flux braking of a board, or an
over-voltage fault ends it. With `sinks_current` (a battery) the bus only rises by the wiring resistance.
"""

import math
from dataclasses import dataclass

from tt_perception.errors import TTError


@dataclass(frozen=True)
class SupplySpec:
    """Numbers of the supply.

    Attributes:
        voltage_v: open-circuit voltage.
        resistance_ohm: supply and wiring, gives the sag.
        capacitance_f: all bus capacitors together.
        idle_w: what the boards' electronics use all the time.
        sinks_current: whether the supply takes current back (battery) or not (most bench supplies).
        brake_v: voltage at which an external brake resistor of 2 Ω closes; NaN for none.
    """

    voltage_v: float = 24.0
    resistance_ohm: float = 0.05
    capacitance_f: float = 0.004
    idle_w: float = 2.0
    sinks_current: bool = True
    brake_v: float = math.nan

    def __post_init__(self) -> None:
        """Refuse numbers that describe no supply; raises TTError."""
        if not 0.0 <= self.voltage_v <= 60.0:
            raise TTError(
                f"supply voltage {self.voltage_v} V is outside 0 to 60 V, the range of these boards."
            )
        if self.resistance_ohm < 0.0 or self.capacitance_f <= 0.0 or self.idle_w < 0.0:
            raise TTError("supply resistance and idle power must be 0 or more and the capacitance positive.")


class Supply:
    """Bus voltage as a function of the power the boards take."""

    BRAKE_OHM = 2.0

    def __init__(self, spec: SupplySpec) -> None:
        self.spec = spec
        self.voltage_v = spec.voltage_v
        self.forced_v: float | None = None

    def step(self, power_w: float, dt: float) -> float:
        """Advance by dt with the total power of the motors (negative: returned); return the bus voltage."""
        spec = self.spec
        if self.forced_v is not None:
            self.voltage_v = self.forced_v
            return self.voltage_v
        volts = max(self.voltage_v, 1.0)
        load_a = (power_w + spec.idle_w) / volts
        if load_a > 0.0 and self.voltage_v <= spec.voltage_v:
            # Steady state of source, resistance and constant-power load; the capacitor settles within a step.
            disc = spec.voltage_v**2 - 4.0 * spec.resistance_ohm * (power_w + spec.idle_w)
            self.voltage_v = 0.5 * (spec.voltage_v + math.sqrt(disc)) if disc > 0.0 else 0.5 * spec.voltage_v
            return self.voltage_v
        if spec.sinks_current:
            self.voltage_v = spec.voltage_v - load_a * spec.resistance_ohm
            return self.voltage_v
        if self.voltage_v > spec.brake_v:  # false for NaN
            load_a += volts / self.BRAKE_OHM
        self.voltage_v -= load_a / spec.capacitance_f * dt
        if load_a > 0.0 and self.voltage_v < spec.voltage_v:
            self.voltage_v = spec.voltage_v
        return self.voltage_v
