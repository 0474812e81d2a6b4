"""Reads an MCAP file from its beginning, without the index at its end: recordings that were cut off, and fast.

Format: https://mcap.dev/spec, version 0. Only what a recording needs: schemas, channels, messages, chunks.
"""

from __future__ import annotations

import contextlib
import mmap
import struct
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from tt_perception.errors import TTError

_MAGIC = b"\x89MCAP0\r\n"
_FOOTER, _SCHEMA, _CHANNEL, _MESSAGE, _CHUNK, _DATA_END = 0x02, 0x03, 0x04, 0x05, 0x06, 0x0F
_RECORD = struct.Struct("<BQ")
_MESSAGE_RECORD = struct.Struct("<BQHIQQ")
_U32 = struct.Struct("<I")
_ZSTD_MAGIC = b"\x28\xb5\x2f\xfd"
_SIZES = ((1e6, "MB"), (1e3, "kB"), (1, "bytes"))
Message = tuple[str, int, bytes]  # topic, log time, bytes


class McapError(TTError):
    """The file is not MCAP at all."""


@dataclass
class McapScan:
    """What can be read: ROS type and number of messages by topic, first and last log time, what is damaged."""

    types: dict[str, str] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)
    start_ns: int = 0
    end_ns: int = 0
    damages: list[str] = field(default_factory=list)


class _TornError(Exception):
    """The data end, or stop making sense."""


def scan_mcap(path: Path) -> McapScan:
    """Goes through everything that `read_mcap` can read.

    Raises:
        McapError: the file does not begin like MCAP.
    """
    scan = McapScan()
    scanner = _Scanner(path, scan.damages.append)
    for topic, stamp_ns, _ in scanner.messages(None):
        if not scan.counts:
            scan.start_ns = scan.end_ns = stamp_ns
        scan.start_ns, scan.end_ns = min(scan.start_ns, stamp_ns), max(scan.end_ns, stamp_ns)
        scan.counts[topic] = scan.counts.get(topic, 0) + 1
    scan.types = scanner.types
    return scan


def read_mcap(
    path: Path, topics: Collection[str] | None, tell: Callable[[str], None] = lambda _: None
) -> Iterator[Message]:
    """Topic, log time and bytes of the messages of a file, in its order and with little memory.

    A damaged chunk ends early and the next one follows; the file ends where no record can be made out any more.

    Args:
        path: the file.
        topics: only these; all when None.
        tell: told what is damaged.

    Raises:
        McapError: it is not MCAP.
    """
    return _Scanner(path, tell).messages(topics)


def is_packed(raw: bytes) -> bool:
    """Whether a message is compressed by itself, which only metadata.yaml tells; none of ROS begins like this."""
    return raw.startswith(_ZSTD_MAGIC)


def unpacked(messages: Iterable[Message], tell: Callable[[str], None]) -> Iterator[Message]:
    """Messages that were compressed one by one; `tell` is told of damaged ones, which are left out."""
    for topic, stamp_ns, raw in messages:
        try:
            yield topic, stamp_ns, _decompress("zstd", raw)
        except _TornError as error:
            tell(f"damaged message at {stamp_ns} ns ({error})")


class _Scanner:
    """Reads one file once.

    Attributes:
        at: where the last whole record of the file ends.
        types: ROS type by topic, as far as it was read.
    """

    def __init__(self, path: Path, tell: Callable[[str], None]) -> None:
        self._path = path
        self._tell = tell
        self.at = len(_MAGIC)
        self.types: dict[str, str] = {}
        self._schemas: dict[int, str] = {}
        self._channels: dict[int, str] = {}

    def messages(self, topics: Collection[str] | None) -> Iterator[Message]:
        """See `read_mcap`."""
        if self._path.stat().st_size < len(_MAGIC):
            raise McapError(f"{self._path.name} is empty")
        with self._path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
            if data[: len(_MAGIC)] != _MAGIC:
                raise McapError(f"{self._path.name} is not an MCAP file")
            while True:
                try:
                    code, begin, end = _record(data, self.at, len(data))
                except _TornError as tear:
                    yield from self._cut_chunk(data, topics)
                    self._tell(f"torn after {self._place(data)} ({tear})")
                    return
                if code in (_FOOTER, _DATA_END):
                    return
                try:
                    if code == _CHUNK:
                        records = _chunk(data[begin:end])
                        yield from self._records(records, 0, len(records), topics)
                    else:
                        yield from self._records(data, self.at, end, topics)
                except _TornError as tear:
                    self._tell(f"damaged behind {self._place(data)} ({tear})")
                self.at = end

    def _place(self, data: mmap.mmap) -> str:
        scale, unit = next((s, u) for s, u in _SIZES if len(data) >= s)
        return f"{self.at / scale:.4g} of {len(data) / scale:.4g} {unit}"

    def _cut_chunk(self, data: mmap.mmap, topics: Collection[str] | None) -> Iterator[Message]:
        """What an uncompressed chunk at the end holds that was cut off."""
        begin = self.at + _RECORD.size
        if len(data) < begin or data[self.at] != _CHUNK:
            return
        with contextlib.suppress(_TornError, struct.error, UnicodeDecodeError):
            body = data[begin:]
            compression, at = _string(body, 28)
            if not compression:
                yield from self._records(body, at + 8, len(body), topics)

    def _records(
        self, data: bytes | mmap.mmap, at: int, stop: int, topics: Collection[str] | None
    ) -> Iterator[Message]:
        channels, record, message = self._channels, _RECORD, _MESSAGE_RECORD
        while at < stop:
            code, length = record.unpack_from(data, at) if at + record.size <= stop else (0, 0)
            end = at + record.size + length
            if code == 0 or end > stop:
                raise _TornError("a record is cut")
            try:
                if code == _MESSAGE:
                    _, _, channel, _, log_time, _ = message.unpack_from(data, at)
                    topic = channels[channel]
                else:
                    self._describe(code, data[at + record.size : end])
            except (struct.error, UnicodeDecodeError, KeyError) as error:
                raise _TornError("a record makes no sense") from error
            if code == _MESSAGE and (topics is None or topic in topics):
                yield topic, log_time, data[at + message.size : end]
            at = end

    def _describe(self, code: int, body: bytes) -> None:
        if code == _SCHEMA:
            (number,) = struct.unpack_from("<H", body)
            self._schemas[number] = _string(body, 2)[0]
        elif code == _CHANNEL:
            number, schema = struct.unpack_from("<HH", body)
            topic = _string(body, 4)[0]
            self._channels[number] = topic
            self.types.setdefault(topic, self._schemas.get(schema, ""))


def _chunk(body: bytes) -> bytes:
    """The records of a chunk."""
    try:
        compression, at = _string(body, 28)
        (size,) = struct.unpack_from("<Q", body, at)
    except (struct.error, UnicodeDecodeError) as error:
        raise _TornError("a record makes no sense") from error
    return _decompress(compression, body[at + 8 : at + 8 + size])


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
        raise _TornError(f"{compression} data make no sense") from error
    raise _TornError(f"compression {compression!r:.20} is not known")
