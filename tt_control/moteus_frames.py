"""Frames of one tick, made once by the moteus library and then only patched, because a tick has no time to spare.

The library builds the position command with all ten numbers; here it is asked once, and the places of the
numbers are found by value. Replies have one layout too, because the query never changes.
"""

from __future__ import annotations

import math
import struct

import moteus
from moteus import multiplex, protocol

from tt_control.bus import Drive

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
