"""What goes to the terminal beside results: one line of progress, and messages that do not tear it."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from types import TracebackType

COLUMNS = 80  # pages, messages and progress fit into these: the width of a plain terminal
PERIOD_S = 0.2  # between two drawings of a line of progress
_BAR_COLUMNS = 20
_CLEAR = "\r\x1b[K"


class Progress:
    """One line on stderr about work that goes on; nothing where stderr is not a terminal.

    A context manager: the line is gone when the block ends, however it ends. It is drawn by whoever calls `update`, at
    most five times a second: no thread and no import, which would disturb what is being timed.
    """

    def __init__(
        self, what: str, total: float | None = None, seconds: float | None = None, unit: str = ""
    ) -> None:
        """Draws nothing yet.

        Args:
            what: what is being done.
            total: how many there are to do, when that is known.
            seconds: how long it lasts, when that is known; time is then what is counted.
            unit: of `total`.
        """
        self.is_shown = _can_redraw()
        self._what, self._total, self._seconds = what, total, seconds
        self._done: float | None = None if total is None else 0.0
        self._unit = f" {unit}" if unit else " s" if seconds is not None else ""
        self._note = ""
        self._is_open = False
        self._begin = time.monotonic()
        self._due = 0.0

    def __enter__(self) -> Progress:
        """Draws the line."""
        self._is_open = self.is_shown
        self._begin = time.monotonic()
        self._draw(self._begin)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Removes the line."""
        if self._is_open:
            self._is_open = False
            _write(_CLEAR)

    def update(
        self,
        done: float | None = None,
        total: float | None = None,
        what: str | None = None,
        note: str | None = None,
    ) -> None:
        """Takes what has changed; draws it when the last drawing is old enough, and a new `what` at once.

        Outside the block it does nothing.
        """
        if not self._is_open:
            return
        self._done = self._done if done is None else done
        self._total = self._total if total is None else total
        self._note = self._note if note is None else note
        now = time.monotonic()
        if what is not None and what != self._what:
            self._what = what
        elif now < self._due:
            return
        self._draw(now)

    def _draw(self, now: float) -> None:
        if not self._is_open:
            return
        self._due = now + PERIOD_S
        # The cursor rests at the start of the line: what others write covers it instead of following it.
        _write(f"{_CLEAR}{self._line(now - self._begin)[: _columns() - 1]}\r")

    def _line(self, elapsed_s: float) -> str:
        timed = self._seconds is not None
        done, total = (elapsed_s, self._seconds) if timed else (self._done, self._total)
        words = [self._what]
        if total and done is not None:
            done = min(max(done, 0.0), total)
            full = round(_BAR_COLUMNS * done / total)
            words.append(f"[{'#' * full}{'.' * (_BAR_COLUMNS - full)}]")
            words.append(f"{int(done)} of {total:.0f}{self._unit}")
        elif done is not None:
            words.append(f"{done:.0f}")
        if not timed:
            minutes, seconds = divmod(int(elapsed_s), 60)
            words.append(f"{minutes}:{seconds:02d}")
        return "  ".join([*words, self._note]).rstrip()


def say(text: str) -> None:
    """One message on stderr, whole even where a line of progress stands."""
    _write(f"{_CLEAR if _can_redraw() else ''}{text}\n")


def _can_redraw() -> bool:
    return sys.stderr.isatty() and os.environ.get("TERM") not in ("dumb", "unknown")


def _write(text: str) -> None:
    with contextlib.suppress(OSError):  # the terminal has gone; the work goes on
        sys.stderr.write(text)
        sys.stderr.flush()


def _columns() -> int:
    try:
        width = os.get_terminal_size(sys.stderr.fileno()).columns
    except (OSError, ValueError):
        width = 0
    return min(width or COLUMNS, COLUMNS)
