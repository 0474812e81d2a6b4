"""When silence means that the ball is gone, and when only that the computer is busy."""

from __future__ import annotations

_PATIENCE_NS = 500_000_000
_RESTART_NS = 1_000_000_000


class Silence:
    """Compares the time since the newest observation with the clock of the observations.

    Observations arrive late, and later when the machine stalls. That is no occlusion: a track may only end from
    silence when nothing at all has arrived for half a second.
    """

    def __init__(self) -> None:
        self._stamp_ns = 0
        self._arrival_ns = 0

    def note(self, stamp_ns: int, now_ns: int) -> None:
        """An observation with a capture stamp arrived."""
        newer = self._stamp_ns < stamp_ns <= now_ns
        restarted = stamp_ns < self._stamp_ns - _RESTART_NS
        if newer or restarted:
            self._stamp_ns, self._arrival_ns = stamp_ns, now_ns

    def expiry_ns(self, now_ns: int) -> int | None:
        """Time, in capture stamps, at which tracks should be judged; None while observations arrive."""
        silent_ns = now_ns - self._arrival_ns
        if not self._stamp_ns or silent_ns <= _PATIENCE_NS:
            return None
        return self._stamp_ns + silent_ns
