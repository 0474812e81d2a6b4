"""Reads serialized messages (little-endian CDR) without building ROS objects, where those cost too much.

A reader of hundreds of messages a second needs a few numbers of each. Offsets count from behind the 4-byte
encapsulation header, and every value lies at a multiple of its size (OMG DDS-RTPS, CDR version 1).
"""

from __future__ import annotations

import struct

import numpy as np
from numpy.typing import NDArray

from tt_perception.errors import TTError

_HEADER_SIZE = 4
_STAMP = struct.Struct("<iI")
_U32 = struct.Struct("<I")
_XYZ = struct.Struct("<3d")
_POSE_SIZE = 56


class CdrError(TTError):
    """The bytes are not the message they should be."""


class CdrReader:
    """A cursor over one serialized message."""

    def __init__(self, raw: bytes) -> None:
        if len(raw) < _HEADER_SIZE or raw[1] != 1:
            raise CdrError(f"{len(raw)} bytes are no little-endian CDR message")
        self._data = memoryview(raw)[_HEADER_SIZE:]
        self._at = 0

    def align(self, size: int) -> None:
        """Moves on to the next multiple of `size`."""
        self._at = -(-self._at // size) * size

    def skip(self, size: int) -> None:
        """Moves on by `size` bytes."""
        self._at += size

    def uint32(self) -> int:
        """Reads one uint32."""
        self.align(4)
        (value,) = _U32.unpack_from(self._data, self._at)
        self._at += 4
        return int(value)

    def stamp_ns(self) -> int:
        """Reads a builtin_interfaces/Time."""
        self.align(4)
        sec, nanosec = _STAMP.unpack_from(self._data, self._at)
        self._at += 8
        return int(sec) * 1_000_000_000 + int(nanosec)

    def string(self) -> str:
        """Reads a string."""
        size = self.uint32()
        if self._at + size > len(self._data):
            raise CdrError("a text is longer than its message")
        text = bytes(self._data[self._at : self._at + max(0, size - 1)]).decode()
        self._at += size
        return text

    def doubles(self, count: int) -> NDArray[np.float64]:
        """Reads `count` float64 values, shape (count,)."""
        self.align(8)
        values = np.frombuffer(self._data, "<f8", count, self._at)
        self._at += 8 * count
        return values

    def xyz(self) -> tuple[float, float, float]:
        """Reads three float64 values."""
        self.align(8)
        values = _XYZ.unpack_from(self._data, self._at)
        self._at += 24
        return values


class CdrWriter:
    """Builds one serialized message."""

    def __init__(self) -> None:
        self._data = bytearray()

    def message(self) -> bytes:
        """The message with its encapsulation header."""
        return b"\x00\x01\x00\x00" + bytes(self._data)

    def align(self, size: int) -> None:
        """Pads to the next multiple of `size`."""
        self._data += bytes(-len(self._data) % size)

    def pack(self, form: struct.Struct, *values: float) -> None:
        """Appends values whose members all have the size of the first, which decides the alignment."""
        self.align(form.size // len(values))
        self._data += form.pack(*values)

    def string(self, text: str) -> None:
        """Appends a string."""
        raw = text.encode()
        self.align(4)
        self._data += _U32.pack(len(raw) + 1) + raw + b"\x00"

    def raw(self, data: bytes) -> None:
        """Appends bytes as they are."""
        self._data += data


def header_stamp_ns(raw: bytes) -> int:
    """`header.stamp` of any message that begins with a header."""
    sec, nanosec = _STAMP.unpack_from(raw, _HEADER_SIZE)
    return int(sec) * 1_000_000_000 + int(nanosec)


def path_points(raw: bytes) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Stamps (n,) in ns and positions (n, 3) of a nav_msgs/Path.

    Raises:
        CdrError: the bytes are no such message.
    """
    try:
        reader = CdrReader(raw)
        reader.stamp_ns()
        reader.string()
        count = reader.uint32()
        stamps, points = [], []
        for _ in range(count):
            stamps.append(reader.stamp_ns())
            reader.string()
            points.append(reader.xyz())
            reader.skip(_POSE_SIZE - 24)
    except (struct.error, UnicodeDecodeError) as error:
        raise CdrError(f"{len(raw)} bytes are no nav_msgs/Path") from error
    return np.array(stamps, np.int64), np.array(points, float).reshape(-1, 3)
