"""Composed nodes hand messages over: in order, once, and only their own copies are dropped."""

from __future__ import annotations

import struct
from typing import Any

from tt_bringup.node_kit.hand_over import HandOver


def message(stamp: int) -> bytes:
    """The beginning of a serialized message with a header."""
    return b"\x00\x01\x00\x00" + struct.pack("<iI", stamp, 7)


def stamp_of(raw: bytes) -> int:
    return int(struct.unpack_from("<i", raw, 4)[0])


class FakePublisher:
    def __init__(self, topic_name: str) -> None:
        self.topic_name = topic_name
        self.sent: list[Any] = []

    def publish(self, message: Any) -> None:
        self.sent.append(message)


def make_chain() -> tuple[HandOver, list[str], FakePublisher, FakePublisher, Any]:
    """A stage that turns `a` into `b`, and one that listens to `b`; what happened goes to a list."""
    owner = HandOver()
    owner.enabled = True
    ros_a, ros_b = FakePublisher("/tt/a"), FakePublisher("/tt/b")
    a, b = owner.publisher(ros_a), owner.publisher(ros_b)
    happened: list[str] = []

    def first(m: bytes) -> None:
        b.publish(message(stamp_of(m)))
        happened.append(f"first {stamp_of(m)}")

    def second(m: bytes) -> None:
        happened.append(f"second {stamp_of(m)}")

    from_a, from_b = owner.listener(first), owner.listener(second)
    owner.connect("/tt/a", from_a)
    owner.connect("/tt/b", from_b)
    return owner, happened, ros_a, ros_b, (a, from_a, from_b)


def test_a_stage_ends_before_the_next_one_begins_and_everything_is_published() -> None:
    _, happened, ros_a, ros_b, (a, _, _) = make_chain()
    a.publish(message(1))
    assert happened == ["first 1", "second 1"]
    assert len(ros_a.sent) == len(ros_b.sent) == 1


def test_the_copy_that_comes_back_is_dropped_once() -> None:
    _, happened, _, ros_b, (a, from_a, from_b) = make_chain()
    a.publish(message(1))
    from_a(message(1))
    from_b(ros_b.sent[0])
    assert happened == ["first 1", "second 1"]
    # A message of another process with the same stamp is a message of its own.
    from_b(message(1))
    assert happened == ["first 1", "second 1", "second 1"]


def test_messages_of_other_processes_run_the_whole_chain() -> None:
    _, happened, _, _, (_, from_a, _) = make_chain()
    from_a(message(5))
    assert happened == ["first 5", "second 5"]


def test_what_others_want_follows_the_last_stage() -> None:
    owner, happened, ros_a, _, (a, _, _) = make_chain()
    seen: list[int] = []
    owner.connect("/tt/b", owner.listener(lambda m: seen.append(len(ros_a.sent))))
    owner.run(lambda m: (a.publish(m), owner.later(lambda: happened.append("later"))), message(1))
    assert seen == [0] and len(ros_a.sent) == 1
    assert happened == ["first 1", "second 1", "later"]


def test_what_the_motors_wait_for_is_published_at_once() -> None:
    owner, _, _, ros_b, (a, _, _) = make_chain()
    owner.urgent.add("/tt/b")
    seen: list[int] = []
    owner.connect("/tt/b", owner.listener(lambda m: seen.append(len(ros_b.sent))))
    a.publish(message(1))
    assert seen == [1]


def test_single_nodes_use_the_ros_publisher_itself() -> None:
    owner = HandOver()
    publisher = FakePublisher("/tt/a")
    assert owner.publisher(publisher) is publisher
