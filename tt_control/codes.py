"""Modes, faults and limiters of a moteus board by number and name (vendor's reference, registers 0x000 and
0x00f).

Codes below 96 are faults: the board has latched mode 1 and gives no torque until it is stopped, and the stop
erases the code. Codes from 96 on are limiters: the board works, but something held its output back.
"""

from __future__ import annotations

from enum import IntEnum

FIRST_LIMITER = 96


class Mode(IntEnum):
    """Mode register."""

    STOPPED = 0
    FAULT = 1
    ENABLING = 2
    POSITION = 10
    TIMEOUT = 11
    ZERO_VELOCITY = 12
    BRAKE = 15


FAULTS = {
    32: "calibration fault",
    33: "motor driver fault",
    34: "over-voltage",
    35: "encoder fault",
    36: "motor not configured",
    37: "control cycle overrun",
    38: "over-temperature",
    39: "start outside position limits",
    40: "under-voltage",
    41: "configuration changed while running",
    42: "commutation angle invalid",
    43: "position invalid",
    44: "driver could not be enabled",
    45: "stop position with limits",
    46: "timing violation",
    47: "back-EMF feedforward without acceleration limit",
    48: "invalid limits",
    49: "position error too large",
    50: "velocity error too large",
}

LIMITERS = {
    96: "maximum velocity",
    97: "maximum power",
    98: "maximum voltage",
    99: "maximum current",
    100: "power stage temperature",
    101: "motor temperature",
    102: "commanded maximum torque",
    103: "position bounds (servopos)",
    104: "flux braking",
    105: "regeneration power",
}

MODES = {
    0: "stopped",
    1: "fault",
    2: "enabling",
    3: "calibrating",
    4: "calibrated",
    5: "pwm",
    6: "voltage",
    7: "voltage foc",
    8: "voltage dq",
    9: "current",
    10: "position",
    11: "watchdog expired",
    12: "zero velocity",
    13: "stay within",
    14: "measuring inductance",
    15: "brake",
}


def is_fault(code: int) -> bool:
    """True for codes that latch the board, false for 0 and for limiters."""
    return 0 < code < FIRST_LIMITER


def is_limiter(code: int) -> bool:
    """True for codes that only tell what holds the output back."""
    return code >= FIRST_LIMITER


def describe(code: int) -> str:
    """Name and number of a fault or limiter, e.g. `over-voltage (34)`."""
    if code == 0:
        return "none (0)"
    name = FAULTS.get(code) or LIMITERS.get(code)
    return f"{name or 'unknown code'} ({code})"
