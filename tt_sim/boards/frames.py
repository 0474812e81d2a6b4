"""Multiplex frames of the moteus register protocol: decode a request, encode the reply, fast.

A request is a chain of subframes (write, read, stream, no-operation). The header bytes alone fix where the
next header is, so the first time a shape of frame is seen it is parsed byte by byte into a `Layout`; later
frames of the same shape are recognised by comparing those header bytes and unpacked with one call. Full
commands with a query then cost a few microseconds in plain Python.
"""

import struct
from collections.abc import Sequence
from operator import itemgetter
from typing import Any

from tt_sim.boards import registers as reg

STREAM_CLIENT_DATA = 0x40
STREAM_SERVER_DATA = 0x41
STREAM_CLIENT_POLL = 0x42
STREAM_SERVER_DATA_FLOW = 0x43
STREAM_CLIENT_POLL_FLOW = 0x44
NOP = 0x50
WRITE_ERROR = 0x30
READ_ERROR = 0x31
UNKNOWN_REGISTER = 1
READ_ONLY = 2

# CAN-FD carries these payload lengths only; controllers fill up with NOP bytes.
PADDED_LENGTH = [
    next(n for n in (0, 1, 2, 3, 4, 5, 6, 7, 8, 12, 16, 20, 24, 32, 48, 64) if n >= size)
    for size in range(65)
]
MAX_PAYLOAD = 64


class BadFrameError(ValueError):
    """A frame that ends inside a subframe or carries an unknown subframe code."""


def read_varuint(data: bytes, offset: int) -> tuple[int, int]:
    """Return (value, next offset) of a little-endian base-128 number."""
    value = shift = 0
    while True:
        if offset >= len(data) or shift > 28:
            raise BadFrameError("frame ends inside a number")
        byte = data[offset]
        offset += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value, offset
        shift += 7


def write_varuint(value: int) -> bytes:
    """Encode a little-endian base-128 number."""
    out = bytearray()
    while value > 0x7F:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


class Layout:
    """The shape of one request: where its headers are, which registers it writes and reads.

    Attributes:
        writes: (register, resolution) per written value, in frame order.
        unpack: function of the frame returning the raw written values in the same order.
        reply: plan of the register part of the answer, see `ReplyPlan`.
        streams: (kind, channel, argument, first byte, past last byte) per tunnelled-stream subframe.
    """

    def __init__(self, data: bytes) -> None:
        header: list[int] = []
        pattern = ["<"]
        self.writes: list[tuple[int, int]] = []
        self.streams: list[tuple[int, int, int, int, int]] = []
        reads: list[tuple[int, int, int]] = []
        offset = 0
        size = len(data)
        while offset < size:
            start = offset
            code = data[offset]
            offset += 1
            upper = code & 0xF0
            if upper in (0x00, 0x10):
                resolution = code >> 2 & 3
                count = code & 3
                if count == 0:
                    count, offset = read_varuint(data, offset)
                if count:
                    first, offset = read_varuint(data, offset)
                header += range(start, offset)
                pattern.append(f"{offset - start}x")
                if not count:
                    continue
                if upper == 0x10:
                    reads.append((first, count, resolution))
                    continue
                if count * reg.SIZES[resolution] > size - offset:
                    raise BadFrameError("frame ends inside a value")
                for i in range(count):
                    self.writes.append((first + i, resolution))
                pattern.append(reg.STRUCT_CODES[resolution] * count)
                offset += count * reg.SIZES[resolution]
            elif code == STREAM_CLIENT_DATA:
                channel, offset = read_varuint(data, offset)
                length, offset = read_varuint(data, offset)
                header += range(start, offset)
                self.streams.append((code, channel, 0, offset, offset + length))
                pattern.append(f"{offset - start + length}x")
                offset += length
            elif code == STREAM_CLIENT_POLL:
                channel, offset = read_varuint(data, offset)
                length, offset = read_varuint(data, offset)
                header += range(start, offset)
                self.streams.append((code, channel, length, 0, 0))
                pattern.append(f"{offset - start}x")
            elif code == STREAM_CLIENT_POLL_FLOW:
                channel, offset = read_varuint(data, offset)
                packet = offset
                length, offset = read_varuint(data, offset + 1)
                header += [i for i in range(start, offset) if i != packet]
                self.streams.append((code, channel, length, packet, 0))
                pattern.append(f"{offset - start}x")
            elif code == NOP:
                header.append(start)
                pattern.append("x")
            else:
                raise BadFrameError(f"unknown subframe code 0x{code:02x}")
        if offset > size:
            raise BadFrameError("frame ends inside a value")
        self.unpack = struct.Struct("".join(pattern)).unpack
        self._pick = itemgetter(*header) if header else (lambda _: None)
        self._header = self._pick(data)
        self.reply = ReplyPlan(reads)
        self.has_uuid_mask = any(reg.UUID_MASK_FIRST <= r <= reg.UUID_MASK_LAST for r, _ in self.writes)

    def matches(self, data: bytes) -> bool:
        """Whether a frame of the same length has this shape."""
        return self._pick(data) == self._header


class ReplyPlan:
    """How to answer the read subframes of one request with a single pack call.

    Every range the client asks for is answered range by range in the asked resolution; a range that contains
    an unknown register is answered with a read error for that register and nothing more, like the firmware.
    """

    def __init__(self, reads: Sequence[tuple[int, int, int]]) -> None:
        pattern = ["<"]
        items: list[Any] = []
        for first, count, resolution in reads:
            unknown = next((r for r in range(first, first + count) if r not in reg.READABLE), None)
            if unknown is not None:
                head = bytes([READ_ERROR]) + write_varuint(unknown) + write_varuint(UNKNOWN_REGISTER)
                pattern.append(f"{len(head)}s")
                items.append(head)
                continue
            code = 0x20 | resolution << 2
            head = bytes([code | count]) if count <= 3 else bytes([code]) + write_varuint(count)
            head += write_varuint(first)
            pattern.append(f"{len(head)}s")
            items.append(head)
            for register in range(first, first + count):
                name, scales = reg.READABLE[register]
                pattern.append(reg.STRUCT_CODES[resolution])
                items.append((name, resolution, scales))
        self._struct = struct.Struct("".join(pattern))
        self._items = items
        self.size = self._struct.size

    def encode(self, board: Any) -> bytes:
        """Return the reply bytes with the board's present register values."""
        out: list[Any] = []
        for item in self._items:
            if item.__class__ is bytes:
                out.append(item)
                continue
            name, resolution, scales = item
            value = getattr(board, name)
            out.append(value if resolution == reg.F32 else reg.to_wire(value, resolution, scales))
        try:
            return self._struct.pack(*out)
        except OverflowError:  # a float beyond float32: the wire carries infinity
            return self._struct.pack(*[_clip(v) for v in out])


def _clip(value: Any) -> Any:
    return min(max(value, -3.4e38), 3.4e38) if isinstance(value, float) else value


class LayoutCache:
    """Layouts seen so far, found by frame length and header bytes; bounded, oldest lengths stay."""

    def __init__(self, limit: int = 64) -> None:
        self._by_length: dict[int, list[Layout]] = {}
        self._count = 0
        self._limit = limit

    def find(self, data: bytes) -> Layout:
        """Return the layout of a frame.

        Raises:
            BadFrameError: the bytes are not a request frame.
        """
        known = self._by_length.get(len(data))
        if known is not None:
            for layout in known:
                if layout.matches(data):
                    return layout
        layout = Layout(data)
        if self._count < self._limit and not any(s[0] == STREAM_CLIENT_DATA for s in layout.streams):
            self._by_length.setdefault(len(data), []).append(layout)
            self._count += 1
        return layout
