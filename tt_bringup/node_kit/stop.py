"""Signals as a polite request to end.

The handlers of rclpy end the communication at once, and Python's raise KeyboardInterrupt anywhere, also
where compiled code swallows it. Here a signal raises KeyboardInterrupt while nodes are being made; once they
spin it only ends the loop, between two callbacks, with everything still working for the clean-up.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class StopRequest:
    """Whether this process was asked to end.

    Attributes:
        requested: a signal came, or a node asked.
    """

    def __init__(self) -> None:
        self.requested = False
        self._wake: Callable[[], None] | None = None

    def listen(self) -> None:
        """Takes the signals over."""
        read_end, write_end = os.pipe()
        os.set_blocking(write_end, False)
        # Python handlers wait until the main thread leaves compiled code; the pipe tells the watcher at once.
        signal.set_wakeup_fd(write_end, warn_on_full_buffer=False)
        for number in SIGNALS:
            signal.signal(number, self._handle)
        threading.Thread(target=self._watch, args=(read_end,), name="signals", daemon=True).start()

    def on_request(self, wake: Callable[[], None]) -> None:
        """From now on a signal calls `wake`, from another thread, instead of raising.

        Raises:
            KeyboardInterrupt: a signal came already.
        """
        self._wake = wake
        if self.requested:
            raise KeyboardInterrupt

    def request(self) -> None:
        """Asks as a signal does, from any thread, once the nodes spin."""
        self.requested = True
        if self._wake is not None:
            self._wake()

    def ignore(self) -> None:
        """Signals do nothing any more: a second Ctrl-C must not interrupt the clean-up."""
        for number in SIGNALS:
            signal.signal(number, signal.SIG_IGN)
        self._wake = None

    def _handle(self, _number: int, _frame: Any) -> None:
        self.requested = True
        if self._wake is None:
            raise KeyboardInterrupt

    def _watch(self, read_end: int) -> None:
        while os.read(read_end, 1):
            self.request()
