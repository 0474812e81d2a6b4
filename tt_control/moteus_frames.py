"""Setpoints to frames and frames to states, in the register protocol of the moteus library; pure.

Frames are made once by the library and then only patched, because a tick has no time to spare: the library
builds one position command with all its numbers, and their places are found by value. Replies have one layout
too, because the query never changes.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Sequence
from dataclasses import dataclass

import moteus
import numpy as np
from moteus import multiplex, protocol

from tt_control.bus import BusStates, Drive, JointMap, Setpoints
from tt_planning.robot import Motor

# Registers that one patched command carries, in the order of `PositionFrame.pack`.
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
        self._places = [_place_of(template, value) for value in probe.values()]
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
        values = (pos_rev, vel_rev_s, torque_nm, kp_scale, kd_scale, max_torque_nm, watchdog_s)
        for place, value in zip(self._places, (*values, _NO_LIMIT, _NO_LIMIT)):
            struct.pack_into("<f", frame, place, value)
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


@dataclass(frozen=True, slots=True)
class TickReply:
    """What one board reported: rev, rev/s, N m, V, °C; NaN where the board does not know."""

    mode: int
    pos_rev: float
    vel_rev_s: float
    torque_nm: float
    voltage_v: float
    temperature_c: float
    fault: int


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
        states = BusStates.silent(len(self.ids))
        rev, rev_s, torque = states.pos, states.vel, states.torque
        for k, data in enumerate(replies):
            reply = None if data is None else decode_tick(data)
            if reply is None:
                continue
            states.replied[k] = True
            rev[k], rev_s[k], torque[k] = reply.pos_rev, reply.vel_rev_s, reply.torque_nm
            states.mode[k], states.fault[k] = reply.mode, reply.fault
            states.voltage_v[k], states.temperature_c[k] = reply.voltage_v, reply.temperature_c
        states.pos = self.map.joint_from_rev(rev)
        states.vel = self.map.joint_from_rev_s(rev_s)
        states.torque = self.map.joint_from_torque(torque)
        return states


def is_register_reply(data: bytes) -> bool:
    """Whether a frame answers a register command."""
    return len(data) > 0 and (data[0] & 0xF0 == multiplex.REPLY_BASE or data[0] == multiplex.READ_ERROR)
