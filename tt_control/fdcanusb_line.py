"""One exchange over an fdcanusb adapter, straight on its file descriptor.

The library answers a command through an event loop: futures, tasks and filters of four boards cost 0.4 ms of
processor time a tick. A tick needs none of that. The lines are the ones the library writes, and everything
that is no tick (questions, configuration) still goes through the library on the same descriptor; between the
two, `LineExchange.rest` holds what was read and not yet used.
"""

from __future__ import annotations

import os
import select
import time
from collections.abc import Sequence

from tt_control.moteus_frames import is_register_reply

_READ_SIZE = 8192
_LONGEST_LINE = 512
# A CAN-FD frame has one of these sizes; a shorter one is filled with the protocol's "nothing".
_SIZES = (*range(9), 12, 16, 20, 24, 32, 48, 64)
_FILL = tuple(b"50" * (min(s for s in _SIZES if s >= size) - size) for size in range(_SIZES[-1] + 1))
_REPLY_MASK = 0x7FFF  # source and destination of a reply


class LineFault(Exception):
    """The adapter stopped speaking its protocol, or hung up; the text says how."""


class LineExchange:
    """Sends one command to each board and collects the replies.

    Args:
        descriptor: of the open adapter, non-blocking.
        board_ids: in robot order.

    Attributes:
        rest: bytes read that are not yet a line.
        refused: lines of ours that the adapter could not read.
        wants_checksums: the adapter asked for checksums, which only the library can give.
        takes_nothing: the last commands did not fit into the adapter's buffer.
    """

    def __init__(self, descriptor: int, board_ids: Sequence[int]) -> None:
        """Touches nothing."""
        self._descriptor = descriptor
        self._ids = tuple(board_ids)
        self._unsent = b""
        self.rest = b""
        self.refused = 0
        self.wants_checksums = self.takes_nothing = False

    def exchange(
        self, source: int, frames: Sequence[bytes], timeout_s: float, rest_s: float
    ) -> list[bytes | None]:
        """One frame to each board; the payload of its reply, None where it was silent.

        Waits `timeout_s` for the first reply, and from then on at most `rest_s` for the others.

        A reply counts only when it names board and source: `source` differs from cycle to cycle, so that a late
        reply answers nobody.

        Raises:
            LineFault: a line that is no answer, or a hung-up device.
            OSError: the device failed.
        """
        deadline = time.monotonic() + timeout_s
        replies: list[bytes | None] = [None] * len(self._ids)
        self._send(
            b"".join(
                b"can send %04x %b%b BF\n"
                % (0x8000 | source << 8 | board_id, data.hex().upper().encode(), _FILL[len(data)])
                for board_id, data in zip(self._ids, frames)
            )
        )
        if self.takes_nothing:
            return replies
        waiting = {board_id << 8 | source: place for place, board_id in enumerate(self._ids)}
        while waiting:
            ready, _, _ = select.select((self._descriptor,), (), (), max(0.0, deadline - time.monotonic()))
            if not ready:
                break
            for line in self._lines():
                self._take(line, waiting, replies)
            if len(waiting) < len(replies):
                deadline = min(deadline, time.monotonic() + rest_s)
        return replies

    def _send(self, lines: bytes) -> None:
        """Writes whole lines; a line that was torn by a full buffer is ended first."""
        if self._unsent:
            self._unsent = self._unsent[self._write(self._unsent) :]
        self.takes_nothing = bool(self._unsent)
        if self.takes_nothing:
            return
        sent = self._write(lines)
        if sent < len(lines):
            # The rest of this line must follow, or the next command would be read as its end. Later ones are
            # old by then.
            torn = sent > 0 and lines[sent - 1] != 0x0A
            self._unsent = lines[sent : lines.index(b"\n", sent) + 1] if torn else b""
            self.takes_nothing = True

    def _write(self, data: bytes) -> int:
        try:
            return os.write(self._descriptor, data)
        except BlockingIOError:
            return 0

    def _lines(self) -> list[bytes]:
        try:
            data = os.read(self._descriptor, _READ_SIZE)
        except BlockingIOError:
            return []
        if not data:
            raise LineFault("it hung up")
        *lines, self.rest = (self.rest + data).replace(b"\r", b"\n").split(b"\n")
        if len(self.rest) > _LONGEST_LINE:
            raise LineFault("it sends without end")
        return lines

    def _take(self, line: bytes, waiting: dict[int, int], replies: list[bytes | None]) -> None:
        if line.startswith(b"rcv "):
            try:
                _, address, payload = line.split(b" ", 3)[:3]
                key = int(address, 16) & _REPLY_MASK
                data = bytes.fromhex(payload.decode("ascii"))
            except (ValueError, UnicodeDecodeError):
                raise LineFault(f"unreadable line {line[:60]!r}") from None
            if key in waiting and is_register_reply(data):
                replies[waiting.pop(key)] = data
        elif line.startswith(b"ERR"):
            self.refused += 1
            self.wants_checksums = self.wants_checksums or b"checksum" in line.lower()
        elif line and not line.startswith(b"OK"):
            raise LineFault(f"unexpected line {line[:60]!r}")
