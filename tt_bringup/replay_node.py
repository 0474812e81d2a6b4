"""Plays a recording into the live graph, byte for byte, with /clock, at any rate."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import rclpy
from rclpy.exceptions import InvalidTopicNameException
from rclpy.validate_full_topic_name import validate_full_topic_name
from rosgraph_msgs.msg import Clock as ClockMsg

from tt_bringup.bags import BagError, BagMessage, message_class, open_bag
from tt_bringup.node_kit import TTNode, param, run_node
from tt_bringup.node_kit.node import qos_profile
from tt_bringup.topics import STAGE_INPUTS, Qos, table_name, topic
from tt_perception.errors import TTError

# What comes from hardware; the live graph makes the rest itself.
INPUTS = ("{camera}/detections", "{camera}/camera_info", "{camera}/image_raw", "/joint_states")
CLOCK_PERIOD_S = 0.001
LONGEST_S = 1e9  # stamps and times in nanoseconds have 63 bits
LISTENERS_WAIT_S = 5.0
MATCH_POLL_S = 0.02


@dataclass(frozen=True)
class ReplayParams:
    """Parameters of `replay_node`."""

    bag: str = param("", doc="The recording to play.")
    rate: float = param(1.0, gt=0.0, le=1000.0, doc="Speed; 0.1 is slow motion.")
    start_s: float = param(
        0.0, unit="s", ge=0.0, le=LONGEST_S, doc="Begin this long after the start of the recording."
    )
    stop_s: float = param(
        0.0,
        unit="s",
        ge=0.0,
        le=LONGEST_S,
        doc="End this long after the start of the recording; 0 plays all.",
    )
    loop: bool = param(False, doc="Begin again at the end.")
    all_topics: bool = param(
        False, doc="Play everything, also what the nodes made; only without a graph that makes it again."
    )
    topics: tuple[str, ...] = param(
        (), doc="Play only these topics, as named in the bag or in the topic table."
    )
    remap: tuple[str, ...] = param((), doc="Other names for topics, each as old:=new.")
    clock: bool = param(True, doc="Publish the time of the recording on /clock.")
    wait_s: float = param(
        LISTENERS_WAIT_S, unit="s", ge=0.0, le=600.0, doc="Longest wait for somebody who listens."
    )
    wait_for_stages: bool = param(False, doc="Wait for the computing nodes too, not only for any listener.")


class ReplayNode(TTNode):
    """Publishes recorded bytes from a thread of its own, so that callbacks never disturb the rhythm.

    Attributes:
        counts: messages played, by topic.
        error: why it ended early; empty while all is well.
        nobody: topics that nobody listened to at the start.
        length_s: how much of the recording is played.
        position_s: how much of that has been played; None before the first message.
    """

    def __init__(self, **kwargs: Any) -> None:
        """Opens the bag; takes the keyword arguments of `rclpy.node.Node`.

        Raises:
            TTError: the bag or a remapping is not usable.
        """
        super().__init__("replay_node", ReplayParams, **kwargs)
        if 0.0 < self.params.stop_s <= self.params.start_s:
            raise TTError(
                f"stop at {self.params.stop_s:g} s is not behind the start at {self.params.start_s:g} s"
            )
        self.counts: dict[str, int] = {}
        self.error = ""
        self.nobody: list[str] = []
        self.position_s: float | None = None
        self.skipped: dict[str, str] = {}
        self._end = threading.Event()
        self._bag = open_bag(Path(self.params.bag))
        self._names = self._choose()
        end_s = min(self.params.stop_s or self._bag.duration_s, self._bag.duration_s)
        self.length_s = max(0.0, end_s - self.params.start_s)
        self._publishers_of = {name: self._advertise(name, target) for name, target in self._names.items()}
        self._clock_pub = (
            self.create_publisher(ClockMsg, "/clock", qos_profile(Qos.CLOCK)) if self.params.clock else None
        )
        if self._bag.damage:
            self.log.warning(f"{self._bag.path} is damaged: {self._bag.damage}")
        for name, kind in self.skipped.items():
            self.log.warning(f"{name} is skipped: type {kind} is not installed")
        self._thread = threading.Thread(target=self._run, name="player", daemon=True)

    def begin(self) -> None:
        """Begins to play."""
        self._thread.start()

    def _choose(self) -> dict[str, str]:
        """Topics to play and the names to play them under."""
        bag, p = self._bag, self.params
        renamed = dict(_remapping(entry) for entry in p.remap)
        chosen = {bag.find(name) or name for name in p.topics}
        unknown = [name for name in (*renamed, *sorted(chosen)) if name not in bag.types]
        if unknown:
            raise BagError(f"{bag.path} has no topic {unknown[0]}; it has {', '.join(sorted(bag.types))}")
        self.skipped = bag.unknown_types()
        names = {}
        for name, count in bag.counts.items():
            wanted = name in chosen if chosen else p.all_topics or table_name(name) in INPUTS
            if wanted and count and name not in self.skipped and table_name(name) != "/clock":
                names[name] = renamed.get(name, name)
        if not names:
            raise BagError(
                f"{bag.path} has no camera detections, pictures or joint states to play; "
                "all_topics plays what it has"
            )
        return names

    def _advertise(self, name: str, target: str) -> Any:
        return self.create_publisher(message_class(self._bag.types[name]), target, qos_profile(_qos_of(name)))

    def _run(self) -> None:
        try:
            self._wait_for_listeners()
            again = True
            while again and not self._end.is_set():
                told = self._bag.damage
                self._play()
                again = self.params.loop
                if self._bag.damage != told:
                    self.log.warning(f"{self._bag.path} is damaged: {self._bag.damage}")
        except TTError as error:
            self.error = str(error)
        except Exception as error:
            if rclpy.ok() and not self._end.is_set():
                self.error = f"{type(error).__name__}: {error}"
        if not self._end.is_set():
            self.end_process()

    def _wait_for_listeners(self) -> None:
        end = time.monotonic() + self.params.wait_s
        # Who comes late gets the newest message of a latched topic all the same; pictures only few want.
        awaited = [name for name in self._publishers_of if table_name(name) == INPUTS[0]] or [
            name for name in self._publishers_of if _qos_of(name) is not Qos.LATCHED
        ]
        while time.monotonic() < end and not self._end.is_set():
            silent = [name for name in awaited if self._publishers_of[name].get_subscription_count() == 0]
            self.nobody = silent
            if not silent and (not self.params.wait_for_stages or self._stages_listen()):
                return
            self._end.wait(MATCH_POLL_S)
        if self.nobody:
            self.log.warning(f"nobody listens to {', '.join(sorted(self.nobody))}")

    def _stages_listen(self) -> bool:
        """True when all stages have compiled or loaded what they need, which is when they begin to listen."""
        return all(
            any(info.node_name == node for info in self.get_subscriptions_info_by_topic(name))
            for name, node in STAGE_INPUTS.items()
        )

    def _window(self) -> Iterator[BagMessage]:
        begin = self._bag.start_ns + int(self.params.start_s * 1e9)
        end = self._bag.start_ns + int(self.params.stop_s * 1e9) if self.params.stop_s > 0.0 else None
        for message in self._bag.messages(list(self._names)):
            if end is not None and message.stamp_ns > end:
                return
            if message.stamp_ns >= begin:
                yield message

    def _play(self) -> None:
        """Plays once; the time of the recording runs from its first message in the window."""
        first_ns, began = None, 0.0
        clock_ns = 0
        for name, stamp_ns, raw in self._window():
            if first_ns is None:
                first_ns, clock_ns, began = stamp_ns, stamp_ns, time.monotonic()
            clock_ns = self._sleep_until(stamp_ns, first_ns, began, clock_ns)
            if self._end.is_set():
                return
            if raw[:1] != b"\0":  # no message begins like this; whoever listened would make nonsense of it
                continue
            self._publishers_of[name].publish(raw)
            self.position_s = 1e-9 * (stamp_ns - first_ns)
            self.counts[name] = self.counts.get(name, 0) + 1
        if first_ns is None:
            raise TTError(
                f"{self._bag.path} has nothing between {self.params.start_s:g} s and its end at "
                f"{self._bag.duration_s:.1f} s"
            )

    def _sleep_until(self, stamp_ns: int, first_ns: int, began: float, clock_ns: int) -> int:
        """Waits for the moment of a message and keeps /clock running meanwhile; the clock's last time."""
        step_ns = max(1, int(CLOCK_PERIOD_S * 1e9))
        while not self._end.is_set():
            due = stamp_ns if self._clock_pub is None else min(stamp_ns, clock_ns + step_ns)
            pause = began + (due - first_ns) * 1e-9 / self.params.rate - time.monotonic()
            if pause > 0.0:
                time.sleep(min(pause, 0.1))
                if pause > 0.1:
                    continue
            if self._clock_pub is not None and due >= clock_ns + step_ns:
                clock_ns = due
                message = ClockMsg()
                message.clock.sec, message.clock.nanosec = divmod(due, 1_000_000_000)
                self._clock_pub.publish(message)
            if due >= stamp_ns:
                return clock_ns
        return clock_ns

    def diagnostic_values(self) -> dict[str, str | float]:
        """Messages played."""
        return {"played": sum(self.counts.values())}

    def cleanup(self) -> None:
        """Stops the thread."""
        end = getattr(self, "_end", None)
        if end is not None:
            end.set()
        thread = getattr(self, "_thread", None)
        if thread is not None and thread.is_alive():
            thread.join(timeout=2.0)


def _qos_of(name: str) -> Qos:
    """How a recorded topic is transported."""
    row = table_name(name)
    return (topic(row).qos if row else None) or Qos.RELIABLE


def _remapping(entry: str) -> tuple[str, str]:
    old, sign, new = entry.partition(":=")
    if not sign or not old.startswith("/") or not new.startswith("/"):
        raise TTError(f"remapping {entry!r} is not of the form /old/topic:=/new/topic")
    try:
        validate_full_topic_name(new)
    except InvalidTopicNameException as error:
        reason = " ".join(str(error).split())
        raise TTError(f"remapping {entry!r}: {reason}") from error
    return old, new


def main() -> None:
    """Entry point."""
    run_node(ReplayNode)


if __name__ == "__main__":
    main()
