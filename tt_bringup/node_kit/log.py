"""Log lines that cannot flood: the same call site speaks at most once per `throttle_s`."""

from __future__ import annotations

import sys
import time
from typing import Any


class ThrottledLog:
    """A ROS logger whose lines may be throttled per call site.

    The logger of rclpy throttles per caller too, but sees every caller of a wrapper as one; this one looks at
    the line that called it, and tells how many lines it held back.
    """

    def __init__(self, logger: Any) -> None:
        self._logger = logger
        self._last: dict[tuple[str, int], tuple[float, int]] = {}

    def debug(self, text: str, *, throttle_s: float = 0.0) -> None:
        """Logs for developers."""
        line = self._pass(text, throttle_s)
        if line is not None:
            self._logger.debug(line)

    def info(self, text: str, *, throttle_s: float = 0.0) -> None:
        """Logs what a user wants to know."""
        line = self._pass(text, throttle_s)
        if line is not None:
            self._logger.info(line)

    def warning(self, text: str, *, throttle_s: float = 0.0) -> None:
        """Logs what should not be, but does not stop the work."""
        line = self._pass(text, throttle_s)
        if line is not None:
            self._logger.warning(line)

    def error(self, text: str, *, throttle_s: float = 0.0) -> None:
        """Logs what stops part of the work."""
        line = self._pass(text, throttle_s)
        if line is not None:
            self._logger.error(line)

    def _pass(self, text: str, throttle_s: float) -> str | None:
        if throttle_s <= 0.0:
            return text
        frame = sys._getframe(2)
        site = (frame.f_code.co_filename, frame.f_lineno)
        now = time.monotonic()
        last, held = self._last.get(site, (-float("inf"), 0))
        if now - last < throttle_s:
            self._last[site] = (last, held + 1)
            return None
        self._last[site] = (now, 0)
        return f"{text} ({held} more like this)" if held else text
