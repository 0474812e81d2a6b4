"""Register numbers, resolutions, modes and fault codes of the moteus controller.

The numbers are the vendor's public register map (moteus reference, "Register command set", map version 6).
A register may be read or written as int8, int16, int32 or float32. Integers are fixed-point with the scale
below and saturate; the most negative integer means NaN.
"""

import math
from enum import IntEnum

INT8, INT16, INT32, F32 = range(4)
SIZES = (1, 2, 4, 4)
STRUCT_CODES = ("b", "h", "i", "f")
LARGEST = (127, 32767, 2147483647)
NAN_CODES = (-128, -32768, -2147483648)


class Mode(IntEnum):
    """Values of the mode register that the simulated board can show."""

    STOPPED = 0
    FAULT = 1
    ENABLING = 2
    CALIBRATING = 3
    CALIBRATION_COMPLETE = 4
    PWM = 5
    VOLTAGE = 6
    VOLTAGE_FOC = 7
    VOLTAGE_DQ = 8
    CURRENT = 9
    POSITION = 10
    TIMEOUT = 11
    ZERO_VELOCITY = 12
    STAY_WITHIN = 13
    MEASURE_INDUCTANCE = 14
    BRAKE = 15


class Fault(IntEnum):
    """Values of the fault register: below 96 they latch mode 1, from 96 on they tell what limits."""

    NONE = 0
    CALIBRATION = 32
    MOTOR_DRIVER = 33
    OVER_VOLTAGE = 34
    ENCODER = 35
    MOTOR_NOT_CONFIGURED = 36
    PWM_CYCLE_OVERRUN = 37
    OVER_TEMPERATURE = 38
    START_OUTSIDE_LIMIT = 39
    UNDER_VOLTAGE = 40
    CONFIG_CHANGED = 41
    THETA_INVALID = 42
    POSITION_INVALID = 43
    DRIVER_ENABLE = 44
    STOP_POSITION_DEPRECATED = 45
    TIMING_VIOLATION = 46
    BEMF_FEEDFORWARD_NO_ACCEL = 47
    INVALID_LIMITS = 48
    POSITION_ERROR = 49
    VELOCITY_ERROR = 50
    LIMIT_MAX_VELOCITY = 96
    LIMIT_MAX_POWER = 97
    LIMIT_MAX_VOLTAGE = 98
    LIMIT_MAX_CURRENT = 99
    LIMIT_FET_TEMPERATURE = 100
    LIMIT_MOTOR_TEMPERATURE = 101
    LIMIT_MAX_TORQUE = 102
    LIMIT_POSITION_BOUNDS = 103
    LIMIT_FLUX_BRAKING = 104
    LIMIT_REGEN_POWER = 105


# Fixed-point scales for int8, int16, int32; None means a plain integer register.
POSITION = (0.01, 0.0001, 0.00001)
VELOCITY = (0.1, 0.00025, 0.00001)
ACCELERATION = (0.05, 0.001, 0.00001)
TORQUE = (0.5, 0.01, 0.001)
PWM = (1.0 / 127.0, 1.0 / 32767.0, 1.0 / 2147483647.0)
VOLTAGE = (0.5, 0.1, 0.001)
TEMPERATURE = (1.0, 0.1, 0.001)
TIME = (0.01, 0.001, 0.000001)
CURRENT = (1.0, 0.1, 0.001)
POWER = (10.0, 0.05, 0.0001)

MODE = 0x000
REZERO_NEAREST = 0x130
SET_OUTPUT_EXACT = 0x131
REQUIRE_REINDEX = 0x132
RECAPTURE = 0x133
UUID_MASK_FIRST, UUID_MASK_LAST = 0x154, 0x157

# register -> (attribute of Board, scales)
READABLE: dict[int, tuple[str, tuple[float, float, float] | None]] = {
    0x000: ("mode", None),
    0x001: ("position", POSITION),
    0x002: ("velocity", VELOCITY),
    0x003: ("torque", TORQUE),
    0x004: ("q_current", CURRENT),
    0x005: ("d_current", CURRENT),
    0x006: ("abs_position", POSITION),
    0x007: ("power", POWER),
    0x00A: ("motor_temperature", TEMPERATURE),
    0x00B: ("trajectory_complete", None),
    0x00C: ("home_state", None),
    0x00D: ("voltage", VOLTAGE),
    0x00E: ("temperature", TEMPERATURE),
    0x00F: ("fault", None),
    0x020: ("command_position", POSITION),
    0x021: ("command_velocity", VELOCITY),
    0x022: ("command_feedforward", TORQUE),
    0x023: ("command_kp_scale", PWM),
    0x024: ("command_kd_scale", PWM),
    0x025: ("command_max_torque", TORQUE),
    0x026: ("command_stop_position", POSITION),
    0x027: ("command_timeout", TIME),
    0x028: ("command_velocity_limit", VELOCITY),
    0x029: ("command_accel_limit", ACCELERATION),
    0x02A: ("command_fixed_voltage", VOLTAGE),
    0x02B: ("command_ilimit_scale", PWM),
    0x02C: ("command_fixed_current", CURRENT),
    0x02D: ("command_ignore_bounds", None),
    0x030: ("term_proportional", TORQUE),
    0x031: ("term_integral", TORQUE),
    0x032: ("term_derivative", TORQUE),
    0x033: ("term_feedforward", TORQUE),
    0x034: ("control_torque", TORQUE),
    0x038: ("control_position", POSITION),
    0x039: ("control_velocity", VELOCITY),
    0x03A: ("control_torque", TORQUE),
    0x03B: ("position_error", POSITION),
    0x03C: ("velocity_error", VELOCITY),
    0x03D: ("torque_error", TORQUE),
    0x040: ("command_lower_bound", POSITION),
    0x041: ("command_upper_bound", POSITION),
    0x042: ("command_feedforward", TORQUE),
    0x043: ("command_kp_scale", PWM),
    0x044: ("command_kd_scale", PWM),
    0x045: ("command_max_torque", TORQUE),
    0x046: ("command_timeout", TIME),
    0x047: ("command_ilimit_scale", PWM),
    0x048: ("command_ignore_bounds", None),
    0x050: ("encoder_position", POSITION),
    0x051: ("encoder_velocity", VELOCITY),
    0x052: ("no_encoder", POSITION),
    0x053: ("no_encoder", VELOCITY),
    0x054: ("no_encoder", POSITION),
    0x055: ("no_encoder", VELOCITY),
    0x058: ("encoder_validity", None),
    0x05C: ("gpio", None),
    0x05D: ("gpio", None),
    0x05E: ("gpio", None),
    0x05F: ("gpio", None),
    0x070: ("millisecond_counter", None),
    0x071: ("clock_trim", None),
    0x100: ("model_number", None),
    0x101: ("firmware_version", None),
    0x102: ("register_map_version", None),
    0x110: ("id", None),
    0x120: ("serial_number_1", None),
    0x121: ("serial_number_2", None),
    0x122: ("serial_number_3", None),
    0x140: ("driver_fault_1", None),
    0x141: ("driver_fault_2", None),
    0x150: ("uuid_1", None),
    0x151: ("uuid_2", None),
    0x152: ("uuid_3", None),
    0x153: ("uuid_4", None),
    0x158: ("uuid_mask_capable", None),
}

# register -> (field of Command, scales)
COMMAND: dict[int, tuple[str, tuple[float, float, float] | None]] = {
    0x01A: ("d_voltage", VOLTAGE),
    0x01B: ("q_voltage", VOLTAGE),
    0x01C: ("q_current", CURRENT),
    0x01D: ("d_current", CURRENT),
    0x020: ("position", POSITION),
    0x021: ("velocity", VELOCITY),
    0x022: ("feedforward", TORQUE),
    0x023: ("kp_scale", PWM),
    0x024: ("kd_scale", PWM),
    0x025: ("max_torque", TORQUE),
    0x026: ("stop_position", POSITION),
    0x027: ("timeout", TIME),
    0x028: ("velocity_limit", VELOCITY),
    0x029: ("accel_limit", ACCELERATION),
    0x02A: ("fixed_voltage", VOLTAGE),
    0x02B: ("ilimit_scale", PWM),
    0x02C: ("fixed_current", CURRENT),
    0x02D: ("ignore_bounds", None),
    0x040: ("lower_bound", POSITION),
    0x041: ("upper_bound", POSITION),
    0x042: ("feedforward", TORQUE),
    0x043: ("kp_scale", PWM),
    0x044: ("kd_scale", PWM),
    0x045: ("max_torque", TORQUE),
    0x046: ("timeout", TIME),
    0x047: ("ilimit_scale", PWM),
    0x048: ("ignore_bounds", None),
}

# Registers a client may write without effect on the simulated motor (outputs that no robot here uses).
ACCEPTED = {0x05C, 0x05D, 0x071, *range(0x010, 0x020), *range(0x076, 0x080)}

# register -> name of a Board method that takes the written value
ACTIONS: dict[int, str] = {
    REZERO_NEAREST: "set_output_nearest",
    SET_OUTPUT_EXACT: "set_output_exact",
    REQUIRE_REINDEX: "require_reindex",
    RECAPTURE: "recapture",
}
ACTION_SCALES: dict[int, tuple[float, float, float] | None] = {
    REZERO_NEAREST: POSITION,
    SET_OUTPUT_EXACT: POSITION,
    REQUIRE_REINDEX: None,
    RECAPTURE: None,
}


def to_wire(value: float, resolution: int, scales: tuple[float, float, float] | None) -> float | int:
    """Encode one register value: scale, saturate, map non-finite numbers to the reserved code."""
    if resolution == F32:
        return float(value)
    if not math.isfinite(value):
        return NAN_CODES[resolution]
    largest = LARGEST[resolution]
    if scales is None:
        bits = 8 * SIZES[resolution]
        whole = int(value) & ((1 << bits) - 1)
        return whole - (1 << bits) if whole >> (bits - 1) else whole
    scaled = int(value / scales[resolution])
    return largest if scaled > largest else -largest if scaled < -largest else scaled


def from_wire(raw: float | int, resolution: int, scales: tuple[float, float, float] | None) -> float:
    """Decode one register value; the reserved integer code of a scaled register is NaN."""
    if resolution == F32 or scales is None:
        return float(raw)
    if raw == NAN_CODES[resolution]:
        return math.nan
    return raw * scales[resolution]
