"""Writes recordings: rosbag2 folders in MCAP that `ros2 bag`, rviz2, Foxglove and PlotJuggler open.

Callbacks hand over serialized messages and return at once; a thread of its own writes them, so that a slow
disk delays nobody. Memory is bounded: what does not fit is dropped and counted.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import shutil
import subprocess
import threading
from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rosbags.interfaces import Qos, QosDurability, QosHistory, QosLiveliness, QosReliability, QosTime
from rosbags.rosbag2 import StoragePlugin, Writer
from rosbags.rosbag2.errors import WriterError
from rosbags.typesys import Stores, get_typestore

from tt_bringup.mcap_scan import McapError, read_mcap
from tt_bringup.record_path import MIN_FREE_BYTES, SIDECAR, RecordError, check_bag_path

QUEUE_BYTES = 64_000_000
FLUSH_PERIOD_S = 1.0  # what a power cut can cost
_WAKE_S = 0.02
_FOREVER = QosTime(2147483647, 4294967295)


@dataclass(frozen=True, slots=True)
class RecordedTopic:
    """One topic of a recording: name, ROS type, and how it was offered."""

    name: str
    type: str
    reliable: bool = True
    latched: bool = False
    depth: int = 10


@dataclass
class RecordingSummary:
    """What a recording holds.

    Attributes:
        counts: messages written, by topic; after a write error those that the file holds.
        dropped: messages that did not fit into the queue, or did not reach the file.
        stopped_by: why it ended early, empty when it was asked to.
    """

    path: str
    counts: dict[str, int] = field(default_factory=dict)
    dropped: int = 0
    stopped_by: str = ""

    @property
    def messages(self) -> int:
        """All messages written."""
        return sum(self.counts.values())

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "bag": self.path,
            "messages": self.messages,
            "dropped": self.dropped,
            "stopped_by": self.stopped_by,
            "topics": dict(sorted(self.counts.items())),
        }


class BagRecorder:
    """Records into one new bag; `put` from one thread, written by another.

    A full disk or a write error ends the recording in order: what was written so far stays readable.
    """

    def __init__(
        self,
        path: Path | str,
        custom: Mapping[str, str] | None = None,
        *,
        queue_bytes: int = QUEUE_BYTES,
        min_free_bytes: int = MIN_FREE_BYTES,
    ) -> None:
        """Creates the bag folder.

        Raises:
            RecordError: the folder exists, cannot be made, or the disk is nearly full.
        """
        self.path = Path(path)
        self._min_free, self._queue_bytes = min_free_bytes, queue_bytes
        check_bag_path(self.path, min_free_bytes)
        self._typestore = get_typestore(Stores.ROS2_JAZZY)
        try:
            self._writer: Writer | None = Writer(self.path, version=9, storage_plugin=StoragePlugin.MCAP)
            self._writer.open()
        except (OSError, WriterError) as error:
            raise RecordError(f"cannot create the bag {self.path}: {_reason(error)}") from error
        self._connections: dict[str, Any] = {}
        self._custom: dict[str, str] = {}
        self._queue: deque[tuple[str, int, bytes]] = deque()
        self._put_bytes = self._taken_bytes = 0
        self._lock = threading.Lock()  # guards the writer between its thread and add_topic
        self._summary = RecordingSummary(str(self.path))
        self._end = threading.Event()
        self.set_custom(custom or {})
        self._thread = threading.Thread(target=self._run, name="bag writer", daemon=True)
        self._thread.start()

    def set_custom(self, custom: Mapping[str, str]) -> None:
        """Adds texts to the metadata of the bag: versions, parameters, checksums."""
        with self._lock:
            self._custom.update(custom)
            with contextlib.suppress(OSError):
                (self.path / SIDECAR).write_text(json.dumps(self._custom, indent=1, sort_keys=True) + "\n")

    def add_topic(self, topic: RecordedTopic) -> bool:
        """Announces a topic; False when its type is not known and it cannot be recorded."""
        with self._lock:
            if topic.name in self._connections:
                return True
            if topic.type not in self._typestore.types or self._writer is None:
                return False
            self._connections[topic.name] = self._writer.add_connection(
                topic.name, topic.type, typestore=self._typestore, offered_qos_profiles=[_qos(topic)]
            )
            self._summary.counts[topic.name] = 0
            return True

    def put(self, name: str, stamp_ns: int, raw: bytes) -> None:
        """Hands over one serialized message received at `stamp_ns`; never blocks."""
        if self._put_bytes - self._taken_bytes + len(raw) > self._queue_bytes or self._end.is_set():
            self._summary.dropped += 1
            return
        self._put_bytes += len(raw)
        self._queue.append((name, stamp_ns, raw))

    @property
    def stopped_by(self) -> str:
        """Why the recording ended early; empty while all is well."""
        return self._summary.stopped_by

    @property
    def summary(self) -> RecordingSummary:
        """What was written so far."""
        return self._summary

    def close(self) -> RecordingSummary:
        """Writes what is queued, and the index; safe to call twice."""
        self._end.set()
        self._thread.join()
        return self._summary

    def _run(self) -> None:
        since_flush = 0.0
        while not self._end.wait(_WAKE_S):
            since_flush += _WAKE_S
            flush = since_flush >= FLUSH_PERIOD_S
            if not self._step(flush):
                break
            since_flush = 0.0 if flush else since_flush
        self._step(False)
        self._finish()

    def _step(self, flush: bool) -> bool:
        """Writes the queue; False when the recording cannot go on."""
        if self._summary.stopped_by:
            return False
        try:
            with self._lock:
                while self._queue:
                    name, stamp_ns, raw = self._queue.popleft()
                    self._taken_bytes += len(raw)
                    self._writer.write(self._connections[name], stamp_ns, raw)  # type: ignore[union-attr]
                    self._summary.counts[name] += 1
                if flush:
                    _flush(self._writer)
            free = shutil.disk_usage(self.path).free if flush else self._min_free
            if free < self._min_free:
                self._stop(f"only {free / 1e6:.0f} MB are free on the disk")
        except (OSError, WriterError) as error:
            self._stop(_reason(error))
        return not self._summary.stopped_by

    def _stop(self, why: str) -> None:
        self._summary.stopped_by = why
        self._end.set()

    def _finish(self) -> None:
        with self._lock:
            writer, self._writer = self._writer, None
            try:
                for key, value in self._custom.items():
                    writer.set_custom_data(key, value)  # type: ignore[union-attr]
                writer.close()  # type: ignore[union-attr]
            except (OSError, WriterError) as error:
                self._summary.stopped_by = self._summary.stopped_by or _reason(error)
                with contextlib.suppress(Exception):
                    writer.abort()  # type: ignore[union-attr]
                self._count_again()

    def _count_again(self) -> None:
        """Counts what the file holds: after a write error that is less than what the writer was given."""
        summary, given = self._summary, self._summary.messages + len(self._queue)
        summary.counts = dict.fromkeys(summary.counts, 0)
        with contextlib.suppress(McapError, OSError):  # the tear at its end
            for name, _, _ in read_mcap(self.path / f"{self.path.name}.mcap", None):
                summary.counts[name] += 1
        summary.dropped += given - summary.messages


class SnapshotBuffer:
    """The last seconds of all topics, to be saved when something worth keeping has just happened.

    Latched topics never expire. Memory is bounded by `max_bytes` besides the time.
    """

    def __init__(self, seconds: float = 30.0, max_bytes: int = 256_000_000) -> None:
        if not seconds > 0.0:
            raise RecordError(f"the snapshot length is {seconds} s, but must be more than 0 s")
        get_typestore(Stores.ROS2_JAZZY)  # takes 0.14 s the first time: not while a snapshot is asked for
        self._length_ns, self._max_bytes = int(seconds * 1e9), max_bytes
        self._topics: dict[str, RecordedTopic] = {}
        self._latched: dict[str, tuple[int, bytes]] = {}
        self._ring: deque[tuple[str, int, bytes]] = deque()
        self._bytes = 0

    @property
    def bytes_held(self) -> int:
        """Size of the payloads in the ring."""
        return self._bytes

    def add_topic(self, topic: RecordedTopic) -> bool:
        """Announces a topic."""
        self._topics[topic.name] = topic
        return True

    def put(self, name: str, stamp_ns: int, raw: bytes) -> None:
        """Adds one message and forgets what is too old."""
        if self._topics[name].latched:
            self._latched[name] = (stamp_ns, raw)
            return
        ring = self._ring
        ring.append((name, stamp_ns, raw))
        self._bytes += len(raw)
        while ring and (stamp_ns - ring[0][1] > self._length_ns or self._bytes > self._max_bytes):
            self._bytes -= len(ring.popleft()[2])

    def contents(self) -> tuple[list[RecordedTopic], list[tuple[str, int, bytes]]]:
        """A copy of everything held, for `save_messages`; latched messages first."""
        first = self._ring[0][1] if self._ring else 0
        latched = [(name, max(stamp, first), raw) for name, (stamp, raw) in self._latched.items()]
        return list(self._topics.values()), latched + list(self._ring)


def save_messages(
    path: Path | str,
    topics: Iterable[RecordedTopic],
    messages: Iterable[tuple[str, int, bytes]],
    custom: Mapping[str, str] | None = None,
    *,
    min_free_bytes: int = MIN_FREE_BYTES,
) -> RecordingSummary:
    """Writes a whole bag at once.

    Raises:
        RecordError: it cannot be written.
    """
    return fill(BagRecorder(path, custom, queue_bytes=2**62, min_free_bytes=min_free_bytes), topics, messages)


def fill(
    recorder: BagRecorder, topics: Iterable[RecordedTopic], messages: Iterable[tuple[str, int, bytes]]
) -> RecordingSummary:
    """Writes everything into a bag just made, and closes it.

    Raises:
        RecordError: it cannot be written.
    """
    known = {topic.name for topic in topics if recorder.add_topic(topic)}
    for name, stamp_ns, raw in messages:
        if name in known:
            recorder.put(name, stamp_ns, raw)
    summary = recorder.close()
    if summary.stopped_by:
        raise RecordError(f"{recorder.path} is not complete: {summary.stopped_by}")
    return summary


def git_commit(folder: Path) -> str:
    """The commit of a source tree, with `+` when it was changed; empty outside of one."""
    try:
        call = ["git", "-C", str(folder), "describe", "--always", "--dirty=+", "--abbrev=12", "--exclude=*"]
        done = subprocess.run(call, capture_output=True, text=True, timeout=5.0, check=False)
    except (OSError, subprocess.SubprocessError):
        return ""
    return done.stdout.strip() if done.returncode == 0 else ""


def file_checksums(parameters: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """SHA-256 of every file that a parameter names: calibration, robot, gains.

    Args:
        parameters: by node, then by parameter name.
    """
    sums: dict[str, str] = {}
    for values in parameters.values():
        for value in values.values():
            if not isinstance(value, str) or not 0 < len(value) < 4096 or value in sums:
                continue
            with contextlib.suppress(OSError, ValueError):
                file = Path(value)
                if file.suffix and file.is_file() and file.stat().st_size < 10_000_000:
                    sums[value] = hashlib.sha256(file.read_bytes()).hexdigest()
    return sums


def _flush(writer: Any) -> None:
    """Ends the open chunk, so that a torn file keeps it; the writer of `rosbags` itself waits for 1 MB."""
    storage = writer.storage
    if storage is not None and hasattr(storage, "close_chunk") and storage.chunk.msgs:
        storage.close_chunk()
        storage.bio.flush()


def _qos(topic: RecordedTopic) -> Qos:
    reliability = QosReliability.RELIABLE if topic.reliable else QosReliability.BEST_EFFORT
    durability = QosDurability.TRANSIENT_LOCAL if topic.latched else QosDurability.VOLATILE
    return Qos(
        history=QosHistory.KEEP_LAST,
        depth=topic.depth,
        reliability=reliability,
        durability=durability,
        deadline=_FOREVER,
        lifespan=_FOREVER,
        liveliness=QosLiveliness.AUTOMATIC,
        liveliness_lease_duration=_FOREVER,
        avoid_ros_namespace_conventions=False,
    )


def _reason(error: Exception) -> str:
    if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
        return "no space is left on the disk"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    return str(error)
