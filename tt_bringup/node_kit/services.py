"""Calls services of other nodes: one way for all commands, the viewer, the scripting API and the tests."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from rclpy.node import Node
from std_srvs.srv import Trigger

from tt_perception.errors import TTError

SETTLE_S = 0.3

Wait = Callable[[Callable[[], bool], float], bool]
"""Waits until a condition holds, at most so many seconds, while callbacks are handled; tells whether it holds."""


def wait_with(step: Callable[[], object]) -> Wait:
    """A way to wait that takes a `step` between two looks: handle what has arrived, or sleep for a moment."""

    def wait(done: Callable[[], bool], cap_s: float) -> bool:
        end = time.monotonic() + cap_s
        while not done():
            if time.monotonic() > end:
                return False
            step()
        return True

    return wait


class ServiceCalls:
    """Clients of services by name.

    A client that has found a service may not have been found by it yet, and Fast DDS drops an answer whose reader is
    still unknown after 100 ms: the call would then wait for ever. A service therefore counts as ready only
    `SETTLE_S` after it was found.

    Args:
        node: owns the clients.
        wait: how its owner waits.
    """

    def __init__(self, node: Node, wait: Wait) -> None:
        self._node, self._wait = node, wait
        self._clients: dict[str, Any] = {}
        self._found_s: dict[str, float] = {}

    def ready(self, name: str, service_type: Any = Trigger) -> bool:
        """Whether a call would be answered.

        Args:
            name: of the service, relative to the namespace of the node.
            service_type: its type.
        """
        client = self._clients.get(name)
        if client is None:
            client = self._clients[name] = self._node.create_client(service_type, name)
        if not client.service_is_ready():
            self._found_s.pop(name, None)
            return False
        return time.monotonic() - self._found_s.setdefault(name, time.monotonic()) >= SETTLE_S

    def call(self, name: str, cap_s: float, request: Any = None, service_type: Any = Trigger) -> Any:
        """Calls a service.

        Args:
            name: of the service, relative to the namespace of the node.
            cap_s: longest wait for the service, and for its answer.
            request: an empty one when None.
            service_type: its type.

        Returns:
            The response.

        Raises:
            TTError: nobody offers the service, or it does not answer.
        """
        if not self._wait(lambda: self.ready(name, service_type), cap_s):
            raise TTError(f"{name} is not offered: is its node running? (waited {cap_s:g} s)")
        future = self._clients[name].call_async(service_type.Request() if request is None else request)
        if not self._wait(lambda: bool(future.done()), cap_s):
            raise TTError(f"{name} did not answer within {cap_s:g} s")
        return future.result()
