"""Binary telemetry of the diagnostic stream: self-describing schemas and the channels a board offers.

A schema is the vendor's compact type description (a type number, then names and member types); the data that
follows it is packed little-endian. Only the types used here are encoded.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tt_sim.boards.board import Board
from tt_sim.boards.registers import Mode

_OBJECT, _FINAL, _BOOL, _INT, _UINT, _F32, _ENUM, _FIXED_ARRAY = 16, 0, 2, 3, 4, 7, 17, 19
_KINDS = {"B": (_UINT, 1), "H": (_UINT, 2), "I": (_UINT, 4), "q": (_INT, 8), "i": (_INT, 4)}

MODE_NAMES = [
    "stopped", "fault", "enabling", "calibrating", "calib_complete", "pwm", "voltage", "voltage_foc",
    "voltage_dq", "current", "position", "pos_timeout", "zero_vel", "within", "meas_ind", "brake",
]  # fmt: skip


@dataclass(frozen=True)
class Member:
    """One member of a structure: name, struct code (f, ?, B, H, I, i, q), array length, enum names."""

    name: str
    code: str
    count: int = 1
    names: Sequence[str] = ()


def _string(text: str) -> bytes:
    return bytes([len(text)]) + text.encode("ascii")


def _type(member: Member) -> bytes:
    if member.code == "f":
        single = bytes([_F32])
    elif member.code == "?":
        single = bytes([_BOOL])
    else:
        single = bytes(_KINDS[member.code])
    if member.names:
        items = b"".join(bytes([value]) + _string(name) for value, name in enumerate(member.names))
        return bytes([_ENUM]) + single + bytes([len(member.names)]) + items
    if member.count > 1:
        return bytes([_FIXED_ARRAY, member.count]) + single
    return single


def schema(members: Sequence[Member]) -> bytes:
    """Return the binary schema of a structure."""
    out = bytes([_OBJECT, 0])
    for member in members:
        out += b"\x00" + _string(member.name) + b"\x00" + _type(member) + b"\x00"
    return out + b"\x00" + _string("") + b"\x00" + bytes([_FINAL]) + b"\x00"


def pack(members: Sequence[Member], values: Sequence[Any]) -> bytes:
    """Pack one value per member (a sequence for arrays) in schema order."""
    flat: list[Any] = []
    for member, value in zip(members, values, strict=True):
        flat.extend(value) if member.count > 1 else flat.append(value)
    return struct.pack("<" + "".join(m.code * m.count for m in members), *flat)


SERVO_STATS = (
    Member("mode", "B", names=MODE_NAMES),
    Member("fault", "i"),
    *(
        Member(name, "f")
        for name in (
            "bus_V", "filt_bus_V", "filt_1ms_bus_V", "fet_temp_C", "filt_fet_temp_C", "motor_temp_C",
            "filt_motor_temp_C", "d_A", "q_A", "position", "velocity", "torque_Nm", "power_W",
            "velocity_filt",
            "control_position", "control_velocity", "control_acceleration", "timeout_s",
        )
    ),
    Member("trajectory_done", "?"),
    Member("torque_error_Nm", "f"),
)  # fmt: skip
FIRMWARE = (Member("version", "I"), Member("serial_number", "I", 3), Member("model", "I"))
GIT = (Member("hash", "B", 20), Member("dirty", "?"), Member("timestamp", "q"))
MOTOR_POSITION = (
    Member("position", "f"),
    Member("velocity", "f"),
    Member("theta_valid", "?"),
    Member("position_relative_valid", "?"),
    Member("homed", "B", names=("relative", "rotor", "output")),
)
SYSTEM_INFO = (Member("ms_count", "I"), Member("can_reset_count", "I"))
CHANNELS: dict[str, Sequence[Member]] = {
    "servo_stats": SERVO_STATS,
    "motor_position": MOTOR_POSITION,
    "system_info": SYSTEM_INFO,
    "firmware": FIRMWARE,
    "git": GIT,
}


def values(channel: str, board: Board) -> list[Any]:
    """Return the present values of a channel in schema order."""
    if channel == "servo_stats":
        volts, fet, motor = board.voltage, board.temperature, board.motor_temperature
        floats = [volts, volts, volts, fet, fet, motor, motor, board.d_current, board.q_current]
        floats += [
            board.position,
            board.velocity,
            board.torque,
            board.power,
            board.velocity,
            board.control_position,
        ]
        floats += [board.control_velocity, board.control_acceleration, board.command_timeout]
        done = bool(board.trajectory_complete)
        return [board.mode if board.mode < len(Mode) else 0, board.fault, *floats, done, board.torque_error]
    if channel == "motor_position":
        return [board.position, board.velocity, board.encoder_ok, board.encoder_ok, board.home_state]
    if channel == "system_info":
        return [board.millisecond_counter, 0]
    if channel == "firmware":
        words = (board.serial_number_1, board.serial_number_2, board.serial_number_3)
        return [board.firmware_version, [w & 0xFFFFFFFF for w in words], board.model_number]
    return [list(board.uuid) + [0] * 4, False, 0]
