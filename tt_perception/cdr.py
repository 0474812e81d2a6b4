"""Reads and writes serialized messages (little-endian CDR) without building ROS objects, which cost too much.

A reader of hundreds of messages a second needs a few numbers of each; a ROS object with all its parts takes
twenty times as long. Offsets count from behind the 4-byte encapsulation header, and every value lies at a
multiple of its size (OMG DDS-RTPS, CDR version 1).
"""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from tt_perception.errors import TTError

_T = TypeVar("_T")
_HEADER_SIZE = 4
_STAMP = struct.Struct("<iI")
_U32 = struct.Struct("<I")
_XYZ = struct.Struct("<3d")
_POSE_SIZE = 56
_NS_PER_S = 1_000_000_000
# A geometry_msgs/PoseStamped whose frame has five letters, as `table` has.
_POSE = np.dtype(
    [
        ("sec", "<i4"),
        ("nanosec", "<u4"),
        ("size", "<u4"),
        ("frame", "S6"),
        ("padding", "V6"),
        ("xyz", "<f8", 3),
        ("quat", "<f8", 4),
    ]
)


class MessageError(TTError):
    """A message whose bytes or content do not follow the contract."""


class CdrReader:
    """A cursor over one serialized message.

    Raises:
        MessageError: the bytes are no little-endian message, or end too early (every method).
    """

    __slots__ = ("_at", "_data")

    def __init__(self, raw: bytes) -> None:
        if len(raw) < _HEADER_SIZE or raw[1] != 1:
            raise MessageError(f"{len(raw)} bytes are no little-endian CDR message")
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
        value: int = self._words(_U32)[0]
        return value

    def uint8(self) -> int:
        """Reads one uint8 or bool."""
        self._need(1)
        self._at += 1
        return self._data[self._at - 1]

    def stamp_ns(self) -> int:
        """Reads a builtin_interfaces/Time or Duration."""
        sec, nanosec = self._words(_STAMP)
        return sec * _NS_PER_S + nanosec

    def string(self) -> str:
        """Reads a string."""
        raw = self.raw(self.uint32())
        try:
            return str(raw[:-1], "utf-8")
        except UnicodeDecodeError as error:
            raise MessageError("a text of a message is not UTF-8") from error

    def strings(self) -> tuple[str, ...]:
        """Reads a sequence of strings."""
        return tuple([self.string() for _ in range(self.uint32())])

    def raw(self, size: int) -> memoryview:
        """Reads `size` bytes as they are."""
        begin = self._at
        self._at += size
        if self._at > len(self._data):
            raise self._short()
        return self._data[begin : self._at]

    def doubles(self, count: int) -> NDArray[np.float64]:
        """Reads `count` float64 values, shape (count,); read-only."""
        begin = -(-self._at // 8) * 8
        self._at = begin + 8 * count
        if self._at > len(self._data):
            raise self._short()
        return np.frombuffer(self._data, "<f8", count, begin)

    def sequence(self) -> NDArray[np.float64]:
        """Reads a sequence of float64 values, shape (n,); read-only."""
        count = self.uint32()
        return self.doubles(count) if count else np.empty(0)

    def records(self, form: np.dtype, count: int) -> NDArray[np.void] | None:
        """The next `count` records without moving on, shape (count,).

        Args:
            form: a record with its padding; its size is a multiple of 8.

        Returns:
            None where alignment or size tell that the message is laid out otherwise.
        """
        if self._at % 8 or self._at + form.itemsize * count > len(self._data):
            return None
        return np.frombuffer(self._data, form, count, self._at)

    def xyz(self) -> tuple[float, float, float]:
        """Reads three float64 values."""
        self.align(8)
        self._need(24)
        values = _XYZ.unpack_from(self._data, self._at)
        self._at += 24
        return values

    def _words(self, form: struct.Struct) -> tuple[int, ...]:
        """The next values of four bytes each."""
        begin = -(-self._at // 4) * 4
        self._at = begin + form.size
        try:
            return form.unpack_from(self._data, begin)
        except struct.error:
            raise self._short() from None

    def _need(self, size: int) -> None:
        if self._at + size > len(self._data):
            raise self._short()

    def _short(self) -> MessageError:
        return MessageError(f"a message of {len(self._data) + _HEADER_SIZE} bytes ends too early")


class CdrWriter:
    """Builds one serialized message."""

    def __init__(self) -> None:
        self._data = bytearray()

    def __len__(self) -> int:
        """Size of the message so far, bytes."""
        return _HEADER_SIZE + len(self._data)

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


class CdrTemplate:
    """Messages whose texts and sizes are always the same: built once, then only numbers are filled in.

    Built like a message, part by part, with gaps; `fill` makes a message with numbers in the gaps.

    Example:
        >>> point = CdrTemplate().time().string("table").doubles(3)  # geometry_msgs/PointStamped
        >>> raw = point.fill(1_000_000_000, np.array([0.1, 0.2, 0.3]))
    """

    __slots__ = ("_data", "_gaps", "_writer")

    def __init__(self) -> None:
        self._writer = CdrWriter()
        self._gaps: list[tuple[int, int]] = []  # offset in the message; bytes, 0 for a time
        self._data = b""

    def time(self) -> CdrTemplate:
        """A gap for a builtin_interfaces/Time or Duration, filled with integer nanoseconds."""
        self._writer.align(4)
        self._gaps.append((len(self._writer), 0))
        self._writer.pack(_STAMP, 0, 0)
        return self

    def doubles(self, count: int) -> CdrTemplate:
        """A gap for float64 values, filled with an array of `count` elements."""
        self._writer.align(8)
        self._gaps.append((len(self._writer), 8 * count))
        self._writer.raw(bytes(8 * count))
        return self

    def sequence(self, count: int) -> CdrTemplate:
        """The same for a sequence, which tells its length."""
        self.count(count)
        return self.doubles(count) if count else self

    def count(self, number: int) -> CdrTemplate:
        """A number that stays, such as the length of a sequence."""
        self._writer.pack(_U32, number)
        return self

    def string(self, text: str) -> CdrTemplate:
        """A text that stays."""
        self._writer.string(text)
        return self

    def strings(self, texts: Sequence[str]) -> CdrTemplate:
        """A sequence of texts that stay."""
        self.count(len(texts))
        for text in texts:
            self.string(text)
        return self

    def fill(self, *values: int | NDArray[np.float64]) -> bytes:
        """A message with these numbers in the gaps, in the order in which the gaps were made."""
        self._data = self._data or self._writer.message()
        data = bytearray(self._data)
        for (at, size), value in zip(self._gaps, values, strict=True):
            if isinstance(value, np.ndarray):
                block = value.astype("<f8", copy=False).tobytes()
                if len(block) != size:
                    raise ValueError(f"{len(block) // 8} numbers for a gap of {size // 8}")
                data[at : at + size] = block
            else:
                _STAMP.pack_into(data, at, *divmod(value, _NS_PER_S))
        return bytes(data)

    def read(self, raws: Sequence[bytes]) -> tuple[NDArray[np.bool_], list[NDArray[Any]]]:
        """The numbers in the gaps of many messages at once, a hundred times as fast as one by one.

        Returns:
            Which messages have this form, shape (n,); the others are left out of what follows. For each gap the times
            in ns, shape (m,), or the values, shape (m, count).
        """
        self._data = self._data or self._writer.message()
        size = len(self._data)
        fits = np.fromiter((len(raw) == size for raw in raws), bool, len(raws))
        block = np.frombuffer(b"".join(raw for raw in raws if len(raw) == size), np.uint8).reshape(-1, size)
        fixed = np.ones(size, bool)
        for at, gap in self._gaps:
            fixed[at : at + (gap or _STAMP.size)] = False
        same = (block[:, fixed] == np.frombuffer(self._data, np.uint8)[fixed]).all(axis=1)
        fits[fits] = same
        block = block[same]
        found: list[NDArray[Any]] = []
        for at, gap in self._gaps:
            part = np.ascontiguousarray(block[:, at : at + (gap or _STAMP.size)])
            if gap:
                found.append(part.view("<f8"))
            else:
                found.append(part.view("<i4")[:, 0] * np.int64(_NS_PER_S) + part.view("<u4")[:, 1])
        return fits, found


def with_others(
    raws: Sequence[bytes],
    fits: NDArray[np.bool_],
    made: Iterable[_T | None],
    read: Callable[[bytes], _T],
) -> list[_T]:
    """What `CdrTemplate.read` left out, read one by one and put between what was `made` of the rest, in order.

    What cannot be read, and None among `made`, is left out.
    """
    rest, found = iter(made), []
    for raw, fit in zip(raws, fits.tolist(), strict=True):
        item: _T | None = None
        if fit:
            item = next(rest)
        else:
            with contextlib.suppress(MessageError):
                item = read(raw)
        if item is not None:
            found.append(item)
    return found


def path_points(raw: bytes) -> tuple[NDArray[np.int64], NDArray[np.float64]]:
    """Stamps (n,) in ns and positions (n, 3) of a nav_msgs/Path.

    Raises:
        MessageError: the bytes are no such message.
    """
    reader = CdrReader(raw)
    reader.stamp_ns()
    reader.string()
    count = reader.uint32()
    poses = reader.records(_POSE, count)
    if poses is not None and (poses["size"] == _POSE["frame"].itemsize).all():
        return poses["sec"] * np.int64(_NS_PER_S) + poses["nanosec"], poses["xyz"].copy()
    stamps, points = [], []
    for _ in range(count):
        stamps.append(reader.stamp_ns())
        reader.string()
        points.append(reader.xyz())
        reader.skip(_POSE_SIZE - 24)
    return np.array(stamps, np.int64), np.array(points, float).reshape(-1, 3)
