"""Setpoints to frames and frames to states, in the register protocol of the moteus library; pure.

Frames are made once by the library and then only patched, because a tick has no time to spare: the library
builds one position command with all its numbers, and their places are found by value. Replies have one layout
too, because the query never changes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from typing import NamedTuple

import moteus
import numpy as np
from moteus import multiplex, protocol

from tt_control.bus import BusStates, Drive, JointMap, Setpoints
from tt_planning.robot import Motor

# Registers that one patched command carries, in the order of the arguments of `position`.
_FIELDS = (
    "position",
    "velocity",
    "feedforward_torque",
    "kp_scale",
    "kd_scale",
    "maximum_torque",
    "watchdog_timeout",
    "velocity_limit",
    "accel_limit",
)
# The registers come in two runs without a gap.
_HEAD = _FIELDS.index("watchdog_timeout")
_PACK_HEAD, _PACK_TAIL = struct.Struct("<6f").pack_into, struct.Struct("<3f").pack_into
# No board-side profile: NaN would mean the board's default acceleration, a negative number means none.
_NO_LIMIT = -1.0


class TickQuery(moteus.QueryResolution):
    """What every board reports in every tick: 25 bytes, one frame."""

    mode = multiplex.INT8
    position = multiplex.F32
    velocity = multiplex.F32
    torque = multiplex.F32
    voltage = multiplex.INT16
    temperature = multiplex.INT8
    fault = multiplex.INT8


class CommandFrames:
    """Encodes the commands of one board.

    Args:
        board_id: multiplex id.
    """

    def __init__(self, board_id: int) -> None:
        """Asks the library for every frame this board will ever get."""
        self._query = TickQuery()
        controller = moteus.Controller(board_id, query_resolution=self._query)
        probe = {name: 1.0 + 0.125 * k for k, name in enumerate(_FIELDS)}
        template = controller.make_position(**probe, query=True).data
        self._template = bytearray(template)
        places = [_place_of(template, value) for value in probe.values()]
        self._first, self._second = places[0], places[_HEAD]
        assert places == [self._first + 4 * k for k in range(_HEAD)] + [
            self._second + 4 * k for k in range(len(_FIELDS) - _HEAD)
        ], "the library changed its command layout"
        self._fixed = {
            Drive.QUERY: controller.make_query().data,
            Drive.STOP: controller.make_stop(query=True).data,
            Drive.BRAKE: controller.make_brake(query=True).data,
            Drive.DAMP: controller.make_zero_velocity(query=True).data,
        }

    def fixed(self, drive: Drive) -> bytes:
        """A command without numbers."""
        return self._fixed[drive]

    def position(
        self,
        pos_rev: float,
        vel_rev_s: float,
        torque_nm: float,
        kp_scale: float,
        kd_scale: float,
        max_torque_nm: float,
        watchdog_s: float,
    ) -> bytes:
        """A position command; a NaN position holds where the board is."""
        frame = self._template
        _PACK_HEAD(frame, self._first, pos_rev, vel_rev_s, torque_nm, kp_scale, kd_scale, max_torque_nm)
        _PACK_TAIL(frame, self._second, watchdog_s, _NO_LIMIT, _NO_LIMIT)
        return bytes(frame)


def _place_of(template: bytes, value: float) -> int:
    needle = struct.pack("<f", value)
    place = template.find(needle)
    assert place >= 0 and template.find(needle, place + 1) < 0, "the library changed its command layout"
    return place


def parse_reply(data: bytes) -> dict[int, float]:
    """Register number to value in rev, rev/s, N m, V, °C; empty when the frame is not a register reply."""
    try:
        return dict(protocol.parse_reply(data))
    except (IndexError, struct.error, RuntimeError):
        # A truncated or foreign frame is not an answer.
        return {}


def number(values: dict[int, float], register: int) -> float:
    """One value of a reply, NaN when it is missing."""
    value = values.get(register)
    return math.nan if value is None else float(value)


class TickReply(NamedTuple):
    """What one board reported: rev, rev/s, N m, V, °C; NaN where the board does not know."""

    mode: int
    pos_rev: float
    vel_rev_s: float
    torque_nm: float
    voltage_v: float
    temperature_c: float
    fault: int


_SILENT = TickReply(-1, math.nan, math.nan, math.nan, math.nan, math.nan, -1)
# Layout of the reply to `TickQuery`: each block has a header (type, count, first register), then its values.
_REPLY = struct.Struct("<2sb2sfff2sh2sbb")
_HEADERS = (b"\x21\x00", b"\x2f\x01", b"\x25\x0d", b"\x22\x0e")


def decode_tick(data: bytes) -> TickReply | None:
    """Decodes the reply to `TickQuery`; None when the frame is something else.

    The usual layout is read directly (a tenth of the library's time), any other by the library.
    """
    if len(data) >= _REPLY.size:
        head0, mode, head1, pos, vel, torque, head2, volt, head3, temperature, fault = _REPLY.unpack_from(
            data
        )
        if (head0, head1, head2, head3) == _HEADERS:
            volts = math.nan if volt == -32768 else 0.1 * volt
            celsius = math.nan if temperature == -128 else float(temperature)
            return TickReply(mode, pos, vel, torque, volts, celsius, fault)
    values = parse_reply(data)
    if moteus.Register.MODE not in values or moteus.Register.POSITION not in values:
        return None
    return TickReply(
        mode=int(values[moteus.Register.MODE]),
        pos_rev=number(values, moteus.Register.POSITION),
        vel_rev_s=number(values, moteus.Register.VELOCITY),
        torque_nm=number(values, moteus.Register.TORQUE),
        voltage_v=number(values, moteus.Register.VOLTAGE),
        temperature_c=number(values, moteus.Register.TEMPERATURE),
        fault=int(values.get(moteus.Register.FAULT, 0)),
    )


class MotorCodec:
    """Encodes the setpoints of all motors of a robot and decodes their replies.

    Args:
        motors: motors of the robot in robot order.

    Attributes:
        map: unit conversion.
        ids: board ids in robot order.
    """

    def __init__(self, motors: Sequence[Motor]) -> None:
        """Makes the frames."""
        self.map = JointMap(motors)
        self.ids = self.map.ids
        self._frames = [CommandFrames(board_id) for board_id in self.ids]

    def query(self, joint: int) -> bytes:
        """The frame that only asks."""
        return self._frames[joint].fixed(Drive.QUERY)

    def encode(self, s: Setpoints) -> list[bytes]:
        """One frame per board, in robot order."""
        m = self.map
        pos, vel = m.rev_from_joint(s.pos).tolist(), m.rev_s_from_joint(s.vel).tolist()
        torque, bound = (
            m.torque_from_joint(s.torque).tolist(),
            np.abs(m.torque_from_joint(s.max_torque)).tolist(),
        )
        kp, kd, drive = s.kp_scale.tolist(), s.kd_scale.tolist(), s.drive.tolist()
        return [
            frames.position(pos[k], vel[k], torque[k], kp[k], kd[k], bound[k], s.watchdog_s)
            if drive[k] == Drive.POSITION
            else frames.fixed(Drive(drive[k]))
            for k, frames in enumerate(self._frames)
        ]

    def decode(self, replies: Sequence[bytes | None]) -> BusStates:
        """States from one reply per board, in robot order; None where a board was silent."""
        known = [_SILENT if data is None else decode_tick(data) or _SILENT for data in replies]
        mode, rev, rev_s, torque, volts, celsius, fault = zip(*known)
        return BusStates(
            replied=np.array([reply is not _SILENT for reply in known]),
            pos=self.map.joint_from_rev(np.array(rev)),
            vel=self.map.joint_from_rev_s(np.array(rev_s)),
            torque=self.map.joint_from_torque(np.array(torque)),
            mode=np.array(mode, dtype=np.int64),
            fault=np.array(fault, dtype=np.int64),
            voltage_v=np.array(volts),
            temperature_c=np.array(celsius),
        )


def is_register_reply(data: bytes) -> bool:
    """Whether a frame answers a register command."""
    return len(data) > 0 and (data[0] & 0xF0 == multiplex.REPLY_BASE or data[0] == multiplex.READ_ERROR)
