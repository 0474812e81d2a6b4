"""Which inputs are not worth a decision, because newer ones wait behind them."""

from __future__ import annotations

from collections import deque


class Backlog:
    """Compares the age of each input with the usual one.

    After a pause of the process several inputs wait. Deciding on each would keep the queue standing; only the
    newest one matters. Age is what tells: a waiting input is older than inputs usually are.

    Args:
        slack_s: an input so much older than the youngest recent one has a newer one behind it: one image period.
        most: decide at the latest after so many were passed over, should all inputs become slower for good.
        memory: inputs from which the usual age is taken.
    """

    def __init__(self, slack_s: float = 0.008, most: int = 6, memory: int = 120) -> None:
        self._slack_ns = round(slack_s * 1e9)
        self._most = most
        self._ages: deque[int] = deque(maxlen=memory)
        self._passed = 0

    def is_behind(self, age_ns: int) -> bool:
        """Whether to pass over an input of this age (now minus capture stamp)."""
        self._ages.append(age_ns)
        behind = age_ns - min(self._ages) > self._slack_ns and self._passed < self._most
        self._passed = self._passed + 1 if behind else 0
        return behind
