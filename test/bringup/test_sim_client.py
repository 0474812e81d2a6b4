"""When the command may serve the first ball."""

from __future__ import annotations

import time
from collections.abc import Callable
from types import SimpleNamespace

import pytest
from rclpy.node import Node
from std_msgs.msg import Empty

from tt_bringup.sim_client import LISTENERS, SimClient

pytestmark = pytest.mark.ros


def _wait(done: Callable[[], bool], cap_s: float) -> bool:
    end = time.monotonic() + cap_s
    while not done():
        if time.monotonic() > end:
            return False
    return True


def test_a_recorder_that_listens_to_everything_does_not_stand_for_the_robot() -> None:
    with SimClient(_wait, "tt") as client:
        client._joints_seen = True
        client._calls = SimpleNamespace(ready=lambda _name: True)
        recorder = Node("recorder", namespace="tt")
        for topic in LISTENERS:
            recorder.create_subscription(Empty, topic, lambda _: None, 1)
        assert not client.wait(client.ready, 0.5)
        nodes = [Node(name, namespace="tt") for name in LISTENERS.values()]
        for node, topic in zip(nodes, LISTENERS, strict=True):
            node.create_subscription(Empty, topic, lambda _: None, 1)
        assert client.wait(client.ready, 10.0)
        for node in (recorder, *nodes):
            node.destroy_node()
