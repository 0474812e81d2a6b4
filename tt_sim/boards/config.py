"""Configuration of one simulated board: the vendor's `conf` names, and how the motor behind it is built.

Two kinds of numbers describe a board. `BoardSpec` is what a person decides when building the simulated robot
(id, motor, friction of the encoder world, which failures are possible). The configuration tree is what a real
board stores and `conf get`/`conf set` change; its names and defaults are the vendor's, also the awkward ones:
`servopos.position_min/max` default to ±0.01 revolutions, so a board that nobody configured refuses to move.
"""

import math
from dataclasses import dataclass, field

from tt_perception.errors import TTError

NAN = math.nan

# Defaults of the vendor's firmware for a moteus-r4 (source: moteus reference, "Configuration").
DEFAULTS: dict[str, float | int | bool] = {
    "id.id": 1,
    "can.prefix": 0,
    "clock.hsitrim": 64,
    "motor.poles": 14,
    "motor.phase_invert": 0,
    "motor.resistance_ohm": 0.05,
    "motor.inductance_d_H": 3.0e-5,
    "motor.inductance_q_H": 3.0e-5,
    "motor.Kv": 100.0,
    "motor.rotation_current_cutoff_A": 10000.0,
    "motor.rotation_current_scale": 0.05,
    "motor.rotation_torque_scale": 14.7,
    "motor.cogging_dq_scale": 0.0,
    "motor_position.sources.0.aux_number": 1,
    "motor_position.sources.0.type": 1,
    "motor_position.sources.0.i2c_device": 0,
    "motor_position.sources.0.incremental_index": -1,
    "motor_position.sources.0.cpr": 16384,
    "motor_position.sources.0.offset": 0.0,
    "motor_position.sources.0.sign": 1,
    "motor_position.sources.0.reference": 0,
    "motor_position.sources.0.pll_filter_hz": 400.0,
    "motor_position.commutation_source": 0,
    "motor_position.output.source": 0,
    "motor_position.output.offset": 0.0,
    "motor_position.output.sign": 1,
    "motor_position.output.reference_source": -1,
    "motor_position.rotor_to_output_ratio": 1.0,
    "motor_position.rotor_to_output_override": False,
    "servo.pwm_rate_hz": 30000,
    "servo.current_sense_ohm": 0.0005,
    "servo.max_voltage": 46.0,
    "servo.max_power_W": NAN,
    "servo.override_board_max_power": False,
    "servo.temperature_margin": 25.0,
    "servo.fault_temperature": 75.0,
    "servo.enable_motor_temperature": False,
    "servo.motor_thermistor_ohm": 10000.0,
    "servo.motor_temperature_margin": 20.0,
    "servo.motor_fault_temperature": NAN,
    "servo.fault_position_error": NAN,
    "servo.fault_velocity_error": NAN,
    "servo.velocity_threshold": 0.0,
    "servo.position_derate": 0.02,
    "servo.pid_dq.kp": 0.005,
    "servo.pid_dq.ki": 30.0,
    "servo.pid_position.kp": 4.0,
    "servo.pid_position.ki": 1.0,
    "servo.pid_position.kd": 0.05,
    "servo.pid_position.iratelimit": -1.0,
    "servo.pid_position.ilimit": 0.0,
    "servo.pid_position.max_desired_rate": 0.0,
    "servo.pid_position.sign": -1.0,
    "servo.current_feedforward": 1.0,
    "servo.bemf_feedforward": 0.0,
    "servo.bemf_feedforward_override": False,
    "servo.inertia_feedforward": 0.0,
    "servo.default_velocity_limit": NAN,
    "servo.default_accel_limit": 50.0,
    "servo.voltage_mode_control": False,
    "servo.fixed_voltage_mode": False,
    "servo.fixed_voltage_control_V": 0.0,
    "servo.max_position_slip": NAN,
    "servo.max_velocity_slip": NAN,
    "servo.default_timeout_s": 0.1,
    "servo.timeout_max_torque_Nm": 5.0,
    "servo.timeout_mode": 12,
    "servo.max_regen_power_W": NAN,
    "servo.flux_brake_margin_voltage": 3.0,
    "servo.flux_brake_resistance_ohm": 0.025,
    "servo.max_current_A": 100.0,
    "servo.derate_current_A": -20.0,
    "servo.max_velocity": 500.0,
    "servo.max_velocity_derate": 2.0,
    "servo.cooldown_cycles": 256,
    "servo.velocity_zero_capture_threshold": 0.05,
    "servo.timing_fault": False,
    "servo.emit_debug": 0,
    "servopos.position_min": -0.01,
    "servopos.position_max": 0.01,
}

# Power a moteus-r4 may take from or give to its supply when `servo.max_power_W` says nothing.
BOARD_MAX_POWER_W = 900.0


@dataclass(frozen=True)
class BoardSpec:
    """One simulated board and the motor on it.

    Attributes:
        id: multiplex id, 1..126. Two boards may share one id on purpose (that is a fault to be found).
        motor: name under which the plant knows the motor; the id when None.
        config: configuration values that differ from the firmware defaults, by vendor name.
        max_torque_nm: torque at the output at `servo.max_current_A`; sets `motor.Kv` when given.
        enable_delay_s: time from the first command after a stop until the mode asked for is reached.
        encoder_noise_rev: standard deviation of the measured position, revolutions.
        velocity_noise_rev_s: standard deviation of the measured velocity, revolutions per second.
        encoder_step_rev: quantisation of the measured position (0 = none).
        home_state: 0 relative, 1 rotor, 2 output; the reference the position has at power-up.
        ambient_c: temperature of board and motor at rest.
        serial: seed of the serial number and UUID; the id and the place on the bus when None.
        firmware: firmware version register, bytewise major.minor.micro.
        seed: seed of the encoder noise.
    """

    id: int
    motor: int | str | None = None
    config: dict[str, float | int | bool] = field(default_factory=dict)
    max_torque_nm: float | None = None
    enable_delay_s: float = 0.015
    encoder_noise_rev: float = 0.0
    velocity_noise_rev_s: float = 0.0
    encoder_step_rev: float = 0.0
    home_state: int = 1
    ambient_c: float = 25.0
    serial: int | None = None
    firmware: int = 0x010100
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse specifications no real board could have.

        Raises:
            TTError: an id, configuration name or number out of range.
        """
        if not 1 <= self.id <= 126:
            raise TTError(f"board id {self.id} is not possible: use 1 to 126 (127 means all boards).")
        for name in self.config:
            if name not in DEFAULTS:
                raise TTError(
                    f"board {self.id}: unknown configuration value {name!r}. Names are the vendor's, "
                    f"such as servopos.position_min; nearest: {_nearest(name)}."
                )
        for name in ("enable_delay_s", "encoder_noise_rev", "velocity_noise_rev_s", "encoder_step_rev"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value >= 0):
                raise TTError(f"board {self.id}: {name} is {value}; it must be a finite number, 0 or more.")

    def initial_config(self) -> dict[str, float | int | bool]:
        """Return the whole configuration tree this board powers up with."""
        values = dict(DEFAULTS)
        values.update(self.config)
        values["id.id"] = self.id
        if self.max_torque_nm is not None:
            ratio = float(values["motor_position.rotor_to_output_ratio"])
            constant = self.max_torque_nm * ratio / float(values["servo.max_current_A"])
            values["motor.Kv"] = TORQUE_CONSTANT_KV / constant
        return values


# Torque constant times Kv of a motor, N m/A times rpm/V: 60 / 2π, with the usual factor √3/2 of star
# windings.
TORQUE_CONSTANT_KV = 60.0 / (2.0 * math.pi) * math.sqrt(3.0) / 2.0


def parse_value(name: str, text: str) -> float | int | bool:
    """Convert the text of `conf set` to the type of that value; raises ValueError when it does not fit."""
    default = DEFAULTS[name]
    number = float(text)
    if not isinstance(default, float) and not math.isfinite(number):
        raise ValueError(f"{name} is a whole number")
    if name == "id.id" and not 1 <= number <= 126:
        raise ValueError("ids are 1 to 126")
    if isinstance(default, bool):
        return bool(number)
    return int(number) if isinstance(default, int) else number


def format_value(value: float | int | bool) -> str:
    """Text of one value as `conf get` prints it."""
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, int):
        return str(value)
    return "nan" if math.isnan(value) else f"{value:.9g}"


def _nearest(name: str) -> str:
    import difflib

    return ", ".join(difflib.get_close_matches(name, DEFAULTS, n=2, cutoff=0.3)) or "none"
