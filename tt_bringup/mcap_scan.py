"""Reads an MCAP file from its beginning without the index at its end: for recordings that were cut off.

Format: https://mcap.dev/spec, version 0. Only what a recording needs: schemas, channels, messages, chunks.
"""

from __future__ import annotations

import mmap
import struct
from dataclasses import dataclass, field
from pathlib import Path

from tt_perception.errors import TTError

_MAGIC = b"\x89MCAP0\r\n"
_FOOTER, _SCHEMA, _CHANNEL, _MESSAGE, _CHUNK, _DATA_END = 0x02, 0x03, 0x04, 0x05, 0x06, 0x0F
_RECORD = struct.Struct("<BQ")
_MESSAGE_HEAD = struct.Struct("<HIQQ")
_U32 = struct.Struct("<I")


class McapError(TTError):
    """The file is not MCAP at all."""


@dataclass
class McapScan:
    """What could be read: ROS type by topic, (topic, log time, bytes) in file order, and where it ended."""

    types: dict[str, str] = field(default_factory=dict)
    messages: list[tuple[str, int, bytes]] = field(default_factory=list)
    damage: str = ""


class _TornError(Exception):
    """The data end, or stop making sense."""


def scan_mcap(path: Path) -> McapScan:
    """Reads everything before the first tear.

    Raises:
        McapError: the file does not begin like MCAP.
    """
    if path.stat().st_size < len(_MAGIC):
        raise McapError(f"{path.name} is empty")
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        if data[: len(_MAGIC)] != _MAGIC:
            raise McapError(f"{path.name} is not an MCAP file")
        scan = McapScan()
        state = _State(scan)
        at = len(_MAGIC)
        try:
            while True:
                code, begin, end = _record(data, at, len(data))
                if code in (_FOOTER, _DATA_END):
                    return scan
                state.take(code, data[begin:end])
                at = end
        except _TornError as tear:
            scan.damage = f"torn after {at / 1e6:.2f} of {len(data) / 1e6:.2f} MB ({tear})"
        return scan


class _State:
    def __init__(self, scan: McapScan) -> None:
        self._scan = scan
        self._schemas: dict[int, str] = {}
        self._channels: dict[int, str] = {}

    def take(self, code: int, body: bytes) -> None:
        """Reads one record.

        Raises:
            _TornError: its content makes no sense.
        """
        try:
            if code == _SCHEMA:
                (number,) = struct.unpack_from("<H", body)
                self._schemas[number] = _string(body, 2)[0]
            elif code == _CHANNEL:
                number, schema = struct.unpack_from("<HH", body)
                topic = _string(body, 4)[0]
                self._channels[number] = topic
                self._scan.types.setdefault(topic, self._schemas.get(schema, ""))
            elif code == _MESSAGE:
                channel, _, log_time, _ = _MESSAGE_HEAD.unpack_from(body)
                topic = self._channels[channel]
                self._scan.messages.append((topic, log_time, body[_MESSAGE_HEAD.size :]))
            elif code == _CHUNK:
                self._chunk(body)
        except (struct.error, UnicodeDecodeError, KeyError) as error:
            raise _TornError("a record makes no sense") from error

    def _chunk(self, body: bytes) -> None:
        compression, at = _string(body, 28)
        (size,) = struct.unpack_from("<Q", body, at)
        records = _decompress(compression, body[at + 8 : at + 8 + size])
        at = 0
        while at < len(records):
            code, begin, end = _record(records, at, len(records))
            self.take(code, records[begin:end])
            at = end


def _record(data: bytes | mmap.mmap, at: int, size: int) -> tuple[int, int, int]:
    if at + _RECORD.size > size:
        raise _TornError("the file ends")
    code, length = _RECORD.unpack_from(data, at)
    begin = at + _RECORD.size
    if code == 0 or begin + length > size:
        raise _TornError("the last record is cut")
    return code, begin, begin + length


def _string(body: bytes, at: int) -> tuple[str, int]:
    (size,) = _U32.unpack_from(body, at)
    end = at + 4 + size
    if end > len(body):
        raise _TornError("a text is cut")
    return body[at + 4 : end].decode(), end


def _decompress(compression: str, data: bytes) -> bytes:
    if compression == "":
        return data
    try:
        if compression == "lz4":
            import lz4.frame

            return bytes(lz4.frame.decompress(data))
        if compression == "zstd":
            try:
                from compression import zstd  # type: ignore[import-not-found]
            except ImportError:
                from backports import zstd  # type: ignore[import-not-found, no-redef]
            return bytes(zstd.decompress(data))
    except Exception as error:
        raise _TornError(f"a {compression} chunk is damaged") from error
    raise _TornError(f"chunks are compressed with {compression}, which is not supported")
