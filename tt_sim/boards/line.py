"""The fdcanusb line protocol: `can send <id> <hex> <flags>`, `OK`, `rcv <id> <hex> <flags>`, `ERR <text>`.

Serial adapters add a checksum ` *XX` (CRC-8, polynomial 0x97) to every line; a client that sends one gets
one.
"""

import struct
from collections.abc import Callable

from tt_sim.boards.boardset import BoardSet

_POLYNOMIAL = 0x97


def _crc_table() -> bytes:
    table = bytearray()
    for byte in range(256):
        crc = byte
        for _ in range(8):
            crc = (crc << 1 ^ _POLYNOMIAL) & 0xFF if crc & 0x80 else crc << 1
        table.append(crc)
    return bytes(table)


_TABLE = _crc_table()
# Checksum after two bytes, by their little-endian number: halves the longest loop of every frame.
_PAIRS = bytes(_TABLE[_TABLE[pair & 0xFF] ^ pair >> 8] for pair in range(65536))

_unpackers: dict[int, Callable[[bytes], tuple[int, ...]]] = {}


def crc8(data: bytes) -> int:
    """CRC-8 with polynomial 0x97, initial value 0, of a line up to the star."""
    crc = 0
    pairs = _PAIRS
    unpack = _unpackers.get(len(data))
    if unpack is None:
        unpack = _unpackers[len(data)] = struct.Struct(f"<{len(data) // 2}H").unpack_from
    for pair in unpack(data):
        crc = pairs[pair ^ crc]
    return _TABLE[crc ^ data[-1]] if len(data) & 1 else crc


def with_checksum(line: bytes) -> bytes:
    """Append the checksum to a line (no line end)."""
    line += b" "
    return b"%b*%02X" % (line, crc8(line))


def split_checksum(line: bytes) -> tuple[bytes, bool | None]:
    """Return (line without checksum, whether it was right; None when there was none)."""
    if len(line) < 4 or line[-3:-2] != b"*":
        return line, None
    try:
        claimed = int(line[-2:], 16)
    except ValueError:
        return line, None
    return line[:-3].rstrip(b" "), claimed == crc8(line[:-3])


# The answer to every accepted line, without and with checksum.
_OK = {False: b"OK\r\n", True: with_checksum(b"OK") + b"\r\n"}


class LineAdapter:
    """Turns received bytes into frames for the boards and their replies into lines.

    `feed` returns (delay in seconds, bytes) pieces in the order to send them; all answers without a delay
    form the first piece, so that one cycle over all boards leaves in one write.
    """

    MAX_LINE = 1024

    def __init__(self, boards: BoardSet) -> None:
        self._boards = boards
        self._pending = b""
        self.checksums = False
        self.frames = 0

    def reset(self) -> None:
        """Forget half a line and the checksum mode, as when the adapter is plugged in again."""
        self._pending = b""
        self.checksums = False

    def feed(self, received: bytes) -> list[tuple[float, bytes]]:
        """Take bytes from the client; see the class text."""
        *lines, self._pending = (self._pending + received).replace(b"\r", b"\n").split(b"\n")
        self._pending = self._pending[-self.MAX_LINE :]
        now = bytearray()
        late: list[tuple[float, bytes]] = []
        with self._boards.lock:
            if self._boards.bus.muted:
                return []
            for line in lines:
                if line.strip():
                    self._line(line.strip(), now, late)
        return [(0.0, bytes(now)), *late] if now else late

    def encode(self, line: bytes) -> bytes:
        """Add checksum (when the client uses them) and line end."""
        return (with_checksum(line) if self.checksums else line) + b"\r\n"

    def _line(self, line: bytes, now: bytearray, late: list[tuple[float, bytes]]) -> None:
        line, right = split_checksum(line)
        if right is False:
            now += self.encode(b"ERR checksum")
            return
        self.checksums = right is True
        words = line.split()
        if len(words) < 2 or words[0] != b"can" or words[1] not in (b"send", b"std", b"ext"):
            now += self.encode(
                b"OK"
                if words[0] in (b"tel", b"conf") or words[:2] == [b"can", b"on"]
                else b"ERR unknown command"
            )
            return
        try:
            arbitration_id = int(words[2], 16)
            data = bytes.fromhex(words[3].decode("ascii")) if len(words) > 3 else b""
        except (ValueError, IndexError, UnicodeDecodeError):
            now += self.encode(b"ERR malformed frame")
            return
        if not 0 <= arbitration_id < 1 << 29 or len(data) > 64:
            now += self.encode(b"ERR frame out of range")
            return
        self.frames += 1
        now += _OK[self.checksums]
        for delay, reply_id, payload in self._boards.handle(arbitration_id, data):
            flags = b"E B F" if reply_id > 0x7FF else b"e B F"
            text = self.encode(b"rcv %X %b %b" % (reply_id, payload.hex().upper().encode("ascii"), flags))
            if delay > 0.0:
                late.append((delay, text))
            else:
                now += text
