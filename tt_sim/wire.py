"""Cheap messages: a serialized template whose stamp and numbers are patched in place.

The simulation publishes several hundred messages a second beside its physics; filling message objects and
serializing them would cost more than the physics.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

_STAMP_OFFSET = 4  # behind the CDR header; every message here starts with a std_msgs/Header
_STAMP = struct.Struct("<iI")


class PatchedMessage:
    """Serialized messages that differ only in `header.stamp` and one block of bytes.

    Args:
        make: builds the message for a given block; called once.
        block: any block whose bytes occur in the message exactly once.
        serialize: `rclpy.serialization.serialize_message`.
    """

    def __init__(self, make: Callable[[bytes], Any], block: bytes, serialize: Callable[[Any], bytes]) -> None:
        raw = serialize(make(block))
        assert block == b"" or raw.count(block) == 1, "the block must occur exactly once"
        self._buffer = bytearray(raw)
        self._offset = raw.find(block) if block else len(raw)
        self._size = len(block)

    def bytes(self, stamp_ns: int, block: bytes) -> bytes:
        """The message with this stamp and block; the block's size must not change."""
        assert len(block) == self._size, (len(block), self._size)
        _STAMP.pack_into(self._buffer, _STAMP_OFFSET, *divmod(stamp_ns, 1_000_000_000))
        self._buffer[self._offset : self._offset + self._size] = block
        return bytes(self._buffer)


def sentinel(size: int) -> bytes:
    """Bytes that occur nowhere else in a small message."""
    return np.random.default_rng(7).integers(1, 255, size, dtype=np.uint8).tobytes()


def pack_float32(*columns: NDArray[np.float64]) -> bytes:
    """Rows of float32, one column per field, as PointCloud2 wants them."""
    return np.column_stack(columns).astype("<f4").tobytes()
