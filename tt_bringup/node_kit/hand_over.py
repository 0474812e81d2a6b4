"""Composed nodes hand messages to each other directly, and publish them for everybody else as well.

A trip through DDS costs some 0.3 ms even inside one process. Between nodes of one process the serialized message
goes to the subscriber directly, after the callback that published it has ended: stages run one after the other,
in order. The copy that comes back through DDS is recognised by its stamp and dropped; messages of other processes
arrive as ever. All of these messages begin with a std_msgs/Header.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable
from typing import Any

_STAMP, _STAMP_OFFSET = struct.Struct("<q"), 4  # both numbers of a stamp at once, behind the CDR header
_REMEMBERED = 256  # stamps of copies that have not come back: best-effort copies may be lost


class HandOver:
    """Delivers between the nodes of this process; off until `enabled`, because single nodes have nobody to
    talk to.
    """

    def __init__(self) -> None:
        self.enabled = False
        self.urgent: set[str] = set()
        self._listeners: dict[str, list[Listener]] = {}
        self._waiting: deque[tuple[Listener, bytes]] = deque()
        self._later: deque[Callable[[], None]] = deque()
        self._busy = False

    def publisher(self, publisher: Any) -> Any:
        """The publisher itself, or one that also hands over."""
        return Publisher(publisher, self) if self.enabled else publisher

    def listener(self, callback: Callable[[bytes], None]) -> Callable[[bytes], None]:
        """The callback to subscribe with; `connect` it to the topic of the subscription afterwards."""
        return Listener(callback, self) if self.enabled else callback

    def connect(self, topic: str, callback: Callable[[bytes], None]) -> None:
        """Lets messages published on `topic` (full name) in this process go to the callback directly."""
        if isinstance(callback, Listener):
            self._listeners.setdefault(topic, []).append(callback)

    def clear(self) -> None:
        """Forgets all listeners: the nodes end."""
        self._listeners.clear()
        self._waiting.clear()
        self._later.clear()
        self.enabled = False

    def give(self, topic: str, message: bytes, publish: Callable[[bytes], None]) -> None:
        """Hands a message to the listeners of this process, now or when the running callback has ended.

        It is published at once when nobody here waits for it, else when the chain has ended.
        """
        listeners = self._listeners.get(topic, ())
        for listener in listeners:
            listener.expect_copy(message)
            self._waiting.append((listener, message))
        if listeners and topic not in self.urgent:
            self._later.append(lambda: publish(message))
        else:
            publish(message)
        if not self._busy:
            self._deliver()

    def later(self, action: Callable[[], None]) -> None:
        """Runs `action` when the chain of stages has ended; at once when none runs."""
        if self._busy:
            self._later.append(action)
        else:
            action()

    def run(self, callback: Callable[[bytes], None], message: bytes) -> None:
        """Runs a callback, then everything that it and its followers published."""
        if self._busy:
            callback(message)
            return
        self._busy = True
        try:
            callback(message)
        finally:
            self._busy = False
            self._deliver()

    def _deliver(self) -> None:
        self._busy = True
        try:
            while self._waiting:
                listener, message = self._waiting.popleft()
                listener.callback(message)
        finally:
            self._busy = False
            while self._later:
                self._later.popleft()()


class Listener:
    """A subscription callback that drops the copies of what was handed over."""

    def __init__(self, callback: Callable[[bytes], None], owner: HandOver) -> None:
        self.callback = callback
        self._owner = owner
        self._expected: deque[int] = deque(maxlen=_REMEMBERED)

    def expect_copy(self, message: bytes) -> None:
        """Remembers a message that will also come through DDS."""
        self._expected.append(_key(message))

    def __call__(self, message: bytes) -> None:
        """What the executor calls."""
        if self._expected:
            key = _key(message)
            if key in self._expected:
                self._expected.remove(key)
                return
        self._owner.run(self.callback, message)


class Publisher:
    """A publisher that hands over as well; everything else is that of the ROS publisher."""

    def __init__(self, publisher: Any, owner: HandOver) -> None:
        self._publisher = publisher
        self._owner = owner
        self._topic = publisher.topic_name

    def publish(self, message: bytes) -> None:
        """Publishes for everybody."""
        self._owner.give(self._topic, message, self._publisher.publish)

    def __getattr__(self, name: str) -> Any:
        """Everything else of the ROS publisher."""
        return getattr(self._publisher, name)


def _key(message: bytes) -> int:
    return int(_STAMP.unpack_from(message, _STAMP_OFFSET)[0])


hand_over = HandOver()
"""The one of this process."""
