"""Records the live graph into a bag, or keeps the last seconds and saves them when something happens."""

from __future__ import annotations

import functools
import importlib
import json
import re
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from rclpy.clock import Clock, ClockType
from rclpy.parameter import parameter_value_to_python
from rclpy.qos import DurabilityPolicy, QoSProfile, ReliabilityPolicy

from tt_bringup import __version__
from tt_bringup.node_kit import TTNode, param, run_node
from tt_bringup.paths import source_root
from tt_bringup.record import (
    BagRecorder,
    RecordedTopic,
    RecordError,
    RecordingSummary,
    SnapshotBuffer,
    file_checksums,
    fill,
    git_commit,
)
from tt_bringup.record_path import MIN_FREE_BYTES, check_bag_path
from tt_bringup.topics import TOPICS, Topic, absolute_name

DISCOVERY_PERIOD_S = 0.25
PARAMETER_TRIES = 5
PARAMETER_PERIOD_S = 2.0
FAULT_PAUSE_S = 10.0  # at most one snapshot per fault
QUEUE_DEPTH = 1000  # half a second at 2,000 messages/s, so that a short stall loses none
_ERROR_LEVEL = 2


@dataclass(frozen=True)
class RecorderParams:
    """Parameters of `recorder`."""

    bag: str = param("", doc="Folder of the recording; `recording_<time>` when empty.")
    images: bool = param(False, doc="Record the pictures of the cameras too.")
    all_topics: bool = param(
        False, doc="Record every topic on the network, not only those of the topic table."
    )
    duration_s: float = param(0.0, unit="s", ge=0.0, doc="End after this time; 0 records until stopped.")
    snapshot_s: float = param(
        0.0,
        unit="s",
        ge=0.0,
        le=600.0,
        doc="Keep only the last seconds, saved on call or on a fault; 0 records all.",
    )


class RecorderNode(TTNode):
    """Subscribes to raw bytes of everything to be recorded, as soon as it appears.

    Attributes:
        summary: what was recorded; None until the end, and in snapshot mode.
        snapshots: bags saved in snapshot mode.
        failures: what went wrong with the recording or with snapshots, one sentence each.
    """

    def __init__(self, **kwargs: Any) -> None:
        """Subscribes; takes the keyword arguments of `rclpy.node.Node`.

        Raises:
            RecordError: no bag can be made at this place.
        """
        super().__init__("recorder", RecorderParams, **kwargs)
        self.summary: RecordingSummary | None = None
        self.snapshots: list[str] = []
        self.failures: list[str] = []
        self._rows = [
            (re.compile(re.escape(self._absolute(row.name)).replace(r"\{camera\}", "[^/]+")), row)
            for row in TOPICS
        ]
        self._subscribed: dict[str, Any] = {}
        self._skipped: set[str] = set()
        self._node_params: dict[str, dict[str, Any]] = {}
        self._asked: dict[str, int] = {}
        self._last_fault_s = float("-inf")
        self._saving: threading.Thread | None = None
        self._path = Path(self.params.bag or time.strftime("recording_%Y%m%d_%H%M%S"))
        self._custom = {
            "tt_version": __version__,
            "git_commit": git_commit(source_root() or Path(__file__).parent),
            "namespace": self.get_namespace(),
        }
        self._recorder: BagRecorder | None = None
        self._ring: SnapshotBuffer | None = None
        if self.params.snapshot_s > 0.0:
            self._ring = SnapshotBuffer(self.params.snapshot_s)
        check_bag_path(self._next_snapshot() if self._ring else self._path)
        self._service = self.serve("recorder/snapshot", self._on_snapshot)
        self._subscribe_table()
        steady = Clock(clock_type=ClockType.STEADY_TIME)
        self._started_s = time.monotonic()
        self.create_timer(DISCOVERY_PERIOD_S, self._look_around, clock=steady)
        self.create_timer(PARAMETER_PERIOD_S, self._ask_parameters, clock=steady)

    def begin(self) -> None:
        """Makes the bag; a start that was interrupted before leaves none.

        Raises:
            RecordError: the bag cannot be made.
        """
        if self._ring is None:
            self._recorder = BagRecorder(self._path, self._custom)
        self._sink: BagRecorder | SnapshotBuffer = self._recorder or self._ring  # type: ignore[assignment]
        self.log.info(
            f"keeping the last {self.params.snapshot_s:g} s" if self._ring else f"recording into {self._path}"
        )

    def _wanted(self, row: Topic) -> bool:
        return not row.is_service and (
            row.recorded or (self.params.images and row.name.endswith("image_raw"))
        )

    def _subscribe_table(self) -> None:
        for row in TOPICS:
            if self._wanted(row) and "{" not in row.name:
                self._subscribe(self._absolute(row.name), row.type, *row.qos.value[:2])  # type: ignore[union-attr]

    def _absolute(self, name: str) -> str:
        full = absolute_name(name, self.get_namespace())
        return full if "{" in full else str(self.resolve_topic_name(full))

    def _subscribe(self, name: str, type_name: str, reliable: bool, latched: bool) -> None:
        if name in self._subscribed or name in self._skipped:
            return
        topic = RecordedTopic(name, type_name, reliable, latched)
        try:
            message_type = _message_class(type_name)
        except (ImportError, AttributeError, ValueError):
            self._skipped.add(name)
            self.log.warning(f"{name} is not recorded: its type {type_name} is not installed")
            return
        qos = QoSProfile(
            depth=QUEUE_DEPTH,
            reliability=ReliabilityPolicy.RELIABLE if reliable else ReliabilityPolicy.BEST_EFFORT,
            durability=DurabilityPolicy.TRANSIENT_LOCAL if latched else DurabilityPolicy.VOLATILE,
        )
        self._subscribed[name] = self.create_subscription(
            message_type, name, self._taker(topic, self._watcher(name)), qos, raw=True
        )

    def _taker(self, topic: RecordedTopic, watch: Callable[[bytes], None] | None) -> Callable[[bytes], None]:
        """The callback of one topic; announces the topic with its first message."""
        state = {"known": False}

        def take(raw: bytes) -> None:
            if not state["known"]:
                state["known"] = self._sink.add_topic(topic)
                if not state["known"]:
                    self._skipped.add(topic.name)
                    return
            self._sink.put(topic.name, self.now_ns(), raw)
            if watch is not None:
                watch(raw)

        return take

    def _watcher(self, name: str) -> Callable[[bytes], None] | None:
        return self._watch_diagnostics if self._ring is not None and name == "/diagnostics" else None

    def _watch_diagnostics(self, raw: bytes) -> None:
        from diagnostic_msgs.msg import DiagnosticArray
        from rclpy.serialization import deserialize_message

        for status in deserialize_message(raw, DiagnosticArray).status:
            if int.from_bytes(status.level, "little") == _ERROR_LEVEL:
                if time.monotonic() - self._last_fault_s > FAULT_PAUSE_S:
                    self._last_fault_s = time.monotonic()
                    self._save_snapshot(f"{status.name}: {status.message}")
                return

    def _look_around(self) -> None:
        """Subscribes to what has appeared; ends the recording when it is time or the disk is full."""
        for name, types in self.get_topic_names_and_types():
            row = self._row_of(name)
            if row is not None and self._wanted(row):
                self._subscribe(name, row.type, *row.qos.value[:2])  # type: ignore[union-attr]
            elif row is None and self.params.all_topics and name not in self._subscribed:
                offers = self.get_publishers_info_by_topic(name)
                reliable = bool(offers) and all(
                    o.qos_profile.reliability == ReliabilityPolicy.RELIABLE for o in offers
                )
                latched = bool(offers) and all(
                    o.qos_profile.durability == DurabilityPolicy.TRANSIENT_LOCAL for o in offers
                )
                self._subscribe(name, types[0], reliable, latched)
        full = self._recorder is not None and bool(self._recorder.stopped_by)
        over = 0.0 < self.params.duration_s <= time.monotonic() - self._started_s
        if full or over:
            self.end_process()

    def _row_of(self, name: str) -> Topic | None:
        return next((row for pattern, row in self._rows if pattern.fullmatch(name)), None)

    def _ask_parameters(self) -> None:
        """Asks every node of this namespace for its parameters, and asks again who did not answer."""
        from rclpy.parameter_client import AsyncParameterClient

        for name, namespace in self.get_node_names_and_namespaces():
            node = f"{namespace.rstrip('/')}/{name}"
            tries = self._asked.get(node, 0)
            mine = namespace == self.get_namespace()
            if not mine or node in self._node_params or tries >= PARAMETER_TRIES or name == self.get_name():
                continue
            self._asked[node] = tries + 1
            client = AsyncParameterClient(self, node)
            if client.services_are_ready():
                listed = client.list_parameters([], 10)
                listed.add_done_callback(functools.partial(self._on_names, node, client))

    def _on_names(self, node: str, client: Any, future: Any) -> None:
        names = future.result().result.names
        values = client.get_parameters(names)
        values.add_done_callback(functools.partial(self._on_values, node, names))

    def _on_values(self, node: str, names: list[str], future: Any) -> None:
        values = [parameter_value_to_python(value) for value in future.result().values]
        self._node_params[node] = {
            name: list(value) if not isinstance(value, (bool, int, float, str, type(None))) else value
            for name, value in zip(names, values, strict=False)
            if not name.startswith("qos_overrides.")
        }
        self._custom["parameters"] = json.dumps(self._node_params, sort_keys=True)
        self._custom["file_sha256"] = json.dumps(file_checksums(self._node_params), sort_keys=True)
        if self._recorder is not None:
            self._recorder.set_custom(self._custom)

    def _on_snapshot(self, _request: Any, response: Any) -> Any:
        if self._ring is None:
            response.success = False
            response.message = (
                "the recorder writes everything; start it with snapshot_s to keep only the last seconds"
            )
        else:
            response.success, response.message = self._save_snapshot("asked for")
        return response

    def _save_snapshot(self, why: str) -> tuple[bool, str]:
        assert self._ring is not None
        if self._saving is not None and self._saving.is_alive():
            return False, "the snapshot before this one is still being written"
        path = self._next_snapshot()
        try:
            check_bag_path(path, MIN_FREE_BYTES + self._ring.bytes_held)
            recorder = BagRecorder(path, {**self._custom, "snapshot_reason": why}, queue_bytes=2**62)
        except RecordError as error:
            return False, self._snapshot_failed(error)
        topics, messages = self._ring.contents()

        def save() -> None:
            try:
                summary = fill(recorder, topics, messages)
                self.snapshots.append(str(path))
                self.log.info(f"snapshot {path}: {summary.messages} messages ({why})")
            except RecordError as error:
                self._snapshot_failed(error)

        self._saving = threading.Thread(target=save, name="snapshot", daemon=True)
        self._saving.start()
        return True, str(path)

    def _snapshot_failed(self, error: RecordError) -> str:
        self.failures.append(str(error))
        self.log.error(str(error))
        self.health("warn", str(error), key="snapshot", hold_s=FAULT_PAUSE_S)
        return str(error)

    def _next_snapshot(self) -> Path:
        """The numbers go on after those of earlier recorders."""
        start = f"{self._path.name}_"
        ends = [
            path.name.removeprefix(start)
            for path in self._path.parent.glob("*")
            if path.name.startswith(start)
        ]
        number = max((int(end) for end in ends if re.fullmatch(r"\d{3,9}", end, re.ASCII)), default=-1) + 1
        return self._path.with_name(f"{start}{number:03d}")

    def diagnostic_values(self) -> dict[str, str | float]:
        """Messages written and dropped, or held."""
        if self._recorder is not None:
            return {"messages": self._recorder.summary.messages, "dropped": self._recorder.summary.dropped}
        return {"held_mb": self._ring.bytes_held / 1e6} if self._ring else {}

    def cleanup(self) -> None:
        """Closes the bag, so that it has its index and metadata.

        Raises:
            RecordError: something was not written.
        """
        if getattr(self, "_recorder", None) is not None:
            assert self._recorder is not None
            self.summary = self._recorder.close()
        if getattr(self, "_saving", None) is not None:
            assert self._saving is not None
            self._saving.join()
        if self.summary is not None and self.summary.stopped_by:
            rest = "what is in it can be read" if self.summary.messages else "nothing is in it"
            self.failures.append(f"the recording ended early: {self.summary.stopped_by}; {rest}")
        if failures := getattr(self, "failures", None):
            raise RecordError("; ".join(failures))


def _message_class(type_name: str) -> Any:
    package, kind, name = type_name.split("/")
    return getattr(importlib.import_module(f"{package}.{kind}"), name)


def main() -> None:
    """Entry point."""
    run_node(RecorderNode)


if __name__ == "__main__":
    main()
