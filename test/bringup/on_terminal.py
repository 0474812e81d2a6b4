"""Runs a command whose stderr, or stdout too, is a terminal."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import Callable
from fcntl import ioctl
from typing import NamedTuple

CAP_S = 120.0


class Ran(NamedTuple):
    """What came out: of stdout where it was a pipe, and of the terminal, as bytes came."""

    code: int
    out: str
    terminal: str


def on_terminal(
    *words: str,
    columns: int = 80,
    out_too: bool = False,
    interrupt_at: Callable[[str], bool] | None = None,
    **environment: str,
) -> Ran:
    """Runs Python with these arguments, with a terminal for its stderr.

    Args:
        words: arguments of Python.
        columns: width of the terminal.
        out_too: stdout goes to the terminal as well.
        interrupt_at: SIGINT is sent once the terminal shows such a text.
        environment: added to that of this process.
    """
    near, far = pty.openpty()
    ioctl(far, termios.TIOCSWINSZ, struct.pack("HHHH", 24, columns, 0, 0))
    env = {name: value for name, value in os.environ.items() if name not in ("NO_COLOR", "TERMINAL_WIDTH")}
    process = subprocess.Popen(
        [sys.executable, *words],
        stdout=far if out_too else subprocess.PIPE,
        stderr=far,
        env={**env, "TERM": "xterm", **environment},
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    os.close(far)
    shown, end = b"", time.monotonic() + CAP_S
    try:
        while time.monotonic() < end:
            if not select.select([near], [], [], 0.1)[0]:
                continue
            try:
                got = os.read(near, 65536)
            except OSError:  # the last end of the other side is closed
                break
            shown += got
            if interrupt_at is not None and interrupt_at(shown.decode(errors="replace")):
                interrupt_at = None
                process.send_signal(signal.SIGINT)
        out = process.communicate(timeout=CAP_S)[0] or b""
    finally:
        process.kill()
        process.wait()
        os.close(near)
    return Ran(process.returncode, out.decode(), shown.decode())


def left_standing(terminal: str) -> list[str]:
    """The lines that are on the screen at the end; knows line feeds, returns and clearing to the end of a line."""
    lines, column = [""], 0
    for part in re.findall(r"\x1b\[K|\x1b\[[0-9;?]*[a-zA-Z]|\r|\n|[^\r\n\x1b]+", terminal):
        if part == "\n":
            lines.append("")
            column = 0
        elif part == "\r":
            column = 0
        elif part == "\x1b[K":
            lines[-1] = lines[-1][:column]
        elif not part.startswith("\x1b"):
            lines[-1] = lines[-1][:column] + part + lines[-1][column + len(part) :]
            column += len(part)
    return [line.rstrip() for line in lines if line.strip()]
