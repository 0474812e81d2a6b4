"""Messages that are looked at when somebody wants them, instead of when they come.

A callback costs a wake-up of Python, 30 µs and more, for every message. Most readers of joint states or latency
stamps want the newest one now and then, or all of them a few times a second.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import rclpy
from rclpy.node import Node
from rclpy.qos import QoSProfile


class Inbox:
    """A subscription that keeps its messages in the middleware until they are taken.

    It belongs to a hidden node of its own, which no executor knows: nobody wakes up, and the middleware
    overwrites the oldest messages.

    Args:
        node: for whom; its namespace and remappings hold.
        message_type: ROS class.
        name: of the topic.
        profile: reliability of the topic; its depth is how many messages are kept.
    """

    def __init__(self, node: Node, message_type: Any, name: str, profile: QoSProfile) -> None:
        self._node = rclpy.create_node(
            f"_{node.get_name()}_inbox",
            namespace=node.get_namespace(),
            context=node.context,
            use_global_arguments=False,  # they would give it the name of the node itself
            start_parameter_services=False,
            enable_rosout=False,
        )
        self._type = message_type
        self._subscription = self._node.create_subscription(
            message_type, node.resolve_topic_name(name), lambda _: None, profile, raw=True
        )

    def take(self) -> Iterator[bytes]:
        """What has come since the last time, oldest first, serialized."""
        handle = self._subscription.handle
        with handle:
            while (taken := handle.take_message(self._type, True)) is not None:
                yield taken[0]

    def newest(self) -> bytes | None:
        """The newest of them; None when nothing came."""
        found = None
        for raw in self.take():
            found = raw
        return found

    def close(self) -> None:
        """Ends the subscription."""
        self._node.destroy_node()
