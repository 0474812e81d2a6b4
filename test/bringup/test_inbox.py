"""Messages that wait until somebody looks: in order, bounded, under the names of the node they belong to."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest
import rclpy
from rclpy.node import Node
from rclpy.qos import QoSProfile
from rclpy.serialization import deserialize_message
from std_msgs.msg import Int32

from tt_bringup.node_kit.inbox import Inbox

pytestmark = pytest.mark.ros
DEPTH = 3


@pytest.fixture
def node() -> Iterator[Node]:
    rclpy.init(args=["--ros-args", "-r", "__node:=renamed", "-r", "numbers:=counts"])
    yield Node("looker", namespace="tt")
    rclpy.try_shutdown()


def _numbers(inbox: Inbox) -> list[int]:
    return [deserialize_message(raw, Int32).data for raw in inbox.take()]


def test_what_has_come_is_taken_once_and_the_oldest_are_dropped(
    node: Node, wait_for: Callable[..., None]
) -> None:
    inbox = Inbox(node, Int32, "numbers", QoSProfile(depth=20))
    small = Inbox(node, Int32, "numbers", QoSProfile(depth=DEPTH))
    publisher = node.create_publisher(Int32, "/tt/counts", 20)  # the remapped name
    wait_for(lambda: publisher.get_subscription_count() == 2)
    assert inbox.newest() is None and _numbers(inbox) == []

    for number in range(10):
        publisher.publish(Int32(data=number))
    found: list[int] = []

    def all_came() -> bool:
        found.extend(_numbers(inbox))
        return len(found) == 10

    wait_for(all_came)
    assert found == list(range(10))
    assert inbox.newest() is None
    assert len(_numbers(small)) <= DEPTH
    small.close()

    publisher.publish(Int32(data=10))
    publisher.publish(Int32(data=11))
    newest: list[int] = []

    def eleven_came() -> bool:
        raw = inbox.newest()
        newest.extend([] if raw is None else [deserialize_message(raw, Int32).data])
        return newest[-1:] == [11]

    wait_for(eleven_came)
    inbox.close()
    wait_for(lambda: publisher.get_subscription_count() == 0)


def test_the_hidden_node_does_not_take_the_name_of_its_owner(node: Node) -> None:
    inbox = Inbox(node, Int32, "numbers", QoSProfile(depth=1))
    names = node.get_node_names()
    assert names.count("renamed") == 1
    inbox.close()
