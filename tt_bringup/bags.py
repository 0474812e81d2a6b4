"""Reads recordings: our own, those of `ros2 bag` (MCAP or sqlite3, compressed or not), and torn ones.

A bag is opened once and read in time order, whatever order it was written in. What cannot be read is said
once, in `Bag.damage` or in an error of one line.
"""

from __future__ import annotations

import bisect
import contextlib
import functools
import importlib
import json
from collections import deque
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from operator import itemgetter
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from tt_bringup.mcap_scan import McapError, is_packed, read_mcap, scan_mcap, unpacked
from tt_bringup.record_path import SIDECAR
from tt_bringup.terminal import say
from tt_bringup.topics import NAMESPACE
from tt_perception.errors import TTError

REORDER_NS = 2_000_000_000  # messages written later than this after their time come out late


class BagError(TTError):
    """A bag cannot be read, or lacks what was asked for."""


class BagMessage(NamedTuple):
    """One recorded message: topic, time of reception, serialized bytes."""

    topic: str
    stamp_ns: int
    raw: bytes


_STAMP_OF = itemgetter(1)


@dataclass
class Bag:
    """An open recording.

    Attributes:
        path: folder or file.
        types: ROS type by topic.
        counts: messages by topic; for a torn bag what is readable.
        start_ns: time of the first message, 0 when empty.
        end_ns: time of the last.
        damage: what is wrong with the files in one sentence, empty while nothing is known; reading may find more.
        custom: texts of the metadata: versions, parameters, checksums.
    """

    path: Path
    types: dict[str, str]
    counts: dict[str, int]
    start_ns: int
    end_ns: int
    damage: str = ""
    custom: dict[str, str] = field(default_factory=dict)
    _files: tuple[Path, ...] = ()  # MCAP that is read here, several times as fast as by rosbags
    _packed: bool = False  # messages of these files are compressed one by one
    _kept: frozenset[str] = frozenset()  # topics whose messages are held here, by column, which pickles fast
    _columns: tuple[list[str], list[int], list[bytes]] = field(default_factory=lambda: ([], [], []))

    @property
    def duration_s(self) -> float:
        """Time from the first to the last message."""
        return max(0, self.end_ns - self.start_ns) * 1e-9

    @property
    def message_count(self) -> int:
        """All readable messages."""
        return sum(self.counts.values())

    def find(self, name: str, namespace: str | None = None) -> str | None:
        """The topic of this bag that carries a topic of the table; None when it was not recorded.

        Args:
            name: relative name as in the topic table, e.g. `ball/state`, or an absolute one.
            namespace: of the robot; found when left out.

        Raises:
            BagError: several robots were recorded and no namespace was given.
        """
        if name.startswith("/"):
            return name if self.counts.get(name) else None
        if namespace is not None:
            full = f"/{namespace.strip('/')}/{name}".replace("//", "/")
            return full if self.counts.get(full) else None
        found = [topic for topic, count in self.counts.items() if count and topic.endswith(f"/{name}")]
        if len(found) > 1 and f"/tt/{name}" not in found:
            spaces = ", ".join(sorted(topic[1 : -len(name) - 1] for topic in found))
            raise BagError(f"{self.path} holds several robots; choose one with --namespace: {spaces}")
        if len(found) > 1:
            return f"/tt/{name}"
        return found[0] if found else None

    def joint_states(self, namespace: str | None = None) -> str | None:
        """The topic of the robot's joint states; a robot beside the first has them in its namespace."""
        if namespace is None:
            return self.find("/joint_states") or self.find("joint_states")
        alone = namespace.strip("/") == NAMESPACE or not any(
            n.startswith(f"/{NAMESPACE}/") for n in self.counts
        )
        return self.find("joint_states", namespace) or (self.find("/joint_states") if alone else None)

    def check_namespace(self, namespace: str | None) -> None:
        """Looks for topics of a robot.

        Raises:
            BagError: there are none.
        """
        if namespace is not None and not any(t.startswith(f"/{namespace.strip('/')}/") for t in self.counts):
            spaces = sorted({topic.rpartition("/")[0].strip("/") for topic in self.counts} - {""})
            raise BagError(
                f"{self.path} has no topics in namespace {namespace!r}; it has {', '.join(spaces)}"
            )

    def cameras(self, namespace: str | None = None, kind: str = "detections") -> dict[str, str]:
        """Topics of recorded detections (or `image_raw`) by camera name, sorted."""
        cameras = {}
        for topic, count in sorted(self.counts.items()):
            parts = topic.strip("/").split("/")
            inside = namespace is None or parts[:-2] == namespace.strip("/").split("/")
            if count and parts[-1] == kind and len(parts) >= 2 and inside:
                cameras[parts[-2]] = topic
        return cameras

    def messages(self, topics: Collection[str] | None = None) -> Iterator[BagMessage]:
        """Messages in the order of their times. Damaged data are left out, and `damage` then says so.

        Raises:
            BagError: nothing can be read.
        """
        if topics is not None and self._kept.issuperset(topics):
            chosen = frozenset(topics)
            rows = zip(*self._columns, strict=True)
            yield from (BagMessage(*row) for row in rows if row[0] in chosen)
        else:
            yield from _in_order(self._read(topics))

    def keep(self, topics: Collection[str]) -> None:
        """Holds messages in memory, so that the files are read once for all who ask for some of them.

        Raises:
            BagError: as `messages`.
        """
        names, stamps, raws = self._columns
        for name, stamp_ns, raw in self.messages(topics):
            names.append(name)
            stamps.append(stamp_ns)
            raws.append(raw)
        self._kept = frozenset(topics)

    def _read(self, topics: Collection[str] | None) -> Iterator[BagMessage]:
        found = False
        try:
            if self._files:
                chosen = None if topics is None else frozenset(topics)
                for file in self._files:
                    tell = functools.partial(self._hurt, file)
                    messages = read_mcap(file, chosen, tell)
                    yield from map(BagMessage._make, unpacked(messages, tell) if self._packed else messages)
                return
            # Imported here, because who takes a bag from another process does not need it.
            from rosbags.rosbag2 import Reader

            with Reader(self.path) as reader:
                wanted = [c for c in reader.connections if topics is None or c.topic in topics]
                if wanted:
                    for connection, stamp_ns, raw in reader.messages(wanted):
                        found = True
                        yield BagMessage(connection.topic, stamp_ns, bytes(raw))
        except Exception as error:  # the readers of damaged files raise whatever the bytes lead them to
            if not found:
                raise BagError(f"{self.path} is damaged: {_sentence(error)}") from error
            self._hurt(self.path, _sentence(error))

    def _hurt(self, file: Path, what: str) -> None:
        """Keeps the first damage of each file."""
        if f"{file.name}: " not in self.damage:
            self.damage += f"{'; ' if self.damage else ''}{file.name}: {what}"

    def decode(self, topic: str, stamp_ns: int, raw: bytes) -> Any:
        """One message as a ROS object.

        Raises:
            BagError: its type is not installed, or the bytes do not fit it.
        """
        from rclpy.serialization import deserialize_message

        kind = message_class(self.types[topic])
        if kind is None:
            raise BagError(f"{topic} has type {self.types[topic]}, which is not installed here")
        try:
            return deserialize_message(raw, kind)
        except Exception as error:  # rclpy raises whatever the middleware says
            raise BagError(
                f"{self.path}: message on {topic} at {stamp_ns} ns is no {self.types[topic]}"
            ) from error

    def decoded(self, topics: Collection[str]) -> Iterator[tuple[str, int, Any]]:
        """Messages as ROS objects: topic, time, message.

        Raises:
            BagError: a type is not installed, or bytes do not fit their type.
        """
        for topic, stamp_ns, raw in self.messages(topics):
            yield topic, stamp_ns, self.decode(topic, stamp_ns, raw)

    def unknown_types(self) -> dict[str, str]:
        """Topics whose type is not installed here, with the type; replay and reports skip them."""
        return {topic: kind for topic, kind in self.types.items() if message_class(kind) is None}

    def parameters(self) -> dict[str, dict[str, Any]]:
        """Parameters of the recorded nodes, by node; empty when the bag has none."""
        try:
            values = json.loads(self.custom.get("parameters", "{}"))
        except ValueError:
            return {}
        return values if isinstance(values, dict) else {}

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "bag": str(self.path),
            "messages": self.message_count,
            "duration_s": round(self.duration_s, 3),
            "damage": self.damage,
            "topics": {
                topic: {"type": self.types[topic], "messages": n} for topic, n in sorted(self.counts.items())
            },
        }


def open_bag(path: Path | str) -> Bag:
    """Opens a bag folder or a single `.mcap` or `.db3` file.

    Raises:
        BagError: it is none, it is empty, or nothing in it can be read.
    """
    path = Path(path)
    if not path.exists():
        raise BagError(f"there is no {path}; name a bag folder, or a .mcap or .db3 file")
    files = sorted(path.glob("*.mcap")) + sorted(path.glob("*.db3")) if path.is_dir() else [path]
    files = [file for file in files if file.suffix in (".mcap", ".db3")]
    if not files and not (path / "metadata.yaml").is_file():
        raise BagError(f"{path} is not a bag: it has neither metadata.yaml nor .mcap or .db3 files")
    try:
        bag = _open_whole(path if path.is_file() or (path / "metadata.yaml").is_file() else _only(files))
    except Exception as error:  # as above
        bag = _open_torn(path, files, error)
    bag._packed = is_packed(next((raw for file in bag._files for _, _, raw in read_mcap(file, None)), b""))
    bag.custom = {**_sidecar(path), **bag.custom}
    if not bag.message_count:
        raise BagError(
            f"{path} is an empty bag: no message was recorded{f' ({bag.damage})' if bag.damage else ''}"
        )
    return bag


@contextlib.contextmanager
def saying_damage(bag: Bag) -> Iterator[None]:
    """Says on stderr what is damaged, once the bag has been read."""
    try:
        yield
    finally:
        if bag.damage:
            say(f"tt: {bag.path} is damaged and is used as far as it goes: {bag.damage}")


@functools.lru_cache(maxsize=256)
def message_class(type_name: str) -> Any | None:
    """The Python class of a ROS type such as `nav_msgs/msg/Odometry`; None when it is not installed."""
    try:
        package, kind, name = type_name.split("/")
        return getattr(importlib.import_module(f"{package}.{kind}"), name)
    except (ValueError, ImportError, AttributeError):
        return None


def missing_topics(bag: Bag, names: Collection[str], namespace: str | None = None) -> list[str]:
    """Which topics of the table a bag lacks."""
    return [name for name in names if bag.find(name, namespace) is None]


def _only(files: list[Path]) -> Path:
    if len(files) > 1:
        raise BagError(f"metadata.yaml is missing and there are {len(files)} files")
    return files[0]


def _open_whole(path: Path) -> Bag:
    from rosbags.rosbag2 import Reader

    with Reader(path) as reader:
        types = {c.topic: c.msgtype for c in reader.connections}
        counts: dict[str, int] = {}
        for connection in reader.connections:
            counts[connection.topic] = counts.get(connection.topic, 0) + connection.msgcount
        storages: list[Any] = getattr(reader.storage, "storages", [reader.storage])
        files = tuple(Path(storage.path) for storage in storages)
        ours = reader.compression_mode != "file" and all(file.suffix == ".mcap" for file in files)
        custom = getattr(reader.storage.metadata, "custom", None) or {}
        empty = not reader.message_count
        return Bag(
            path,
            types,
            counts,
            0 if empty else reader.start_time,
            0 if empty else reader.end_time - 1,
            custom={str(key): str(value) for key, value in custom.items()},
            _files=files if ours else (),
        )


def _open_torn(path: Path, files: list[Path], error: Exception) -> Bag:
    """Reads a bag that has lost its index or its end; MCAP keeps everything before the tear."""
    named = _named(path)
    there = [file for file in named if file.exists()]
    scannable = [file for file in there or files if file.suffix == ".mcap"]
    if not scannable:
        raise BagError(f"{path} cannot be read: {_sentence(error)}") from error
    bag = Bag(path, {}, {}, 0, 0, "; ".join(f"{f.name} is missing" for f in named if f not in there))
    scans = []
    for file in scannable:
        try:
            scans.append(scan_mcap(file))
        except (McapError, OSError) as scan_error:
            raise BagError(f"{path} cannot be read: {_sentence(scan_error)}") from scan_error
        bag.types.update(scans[-1].types)
        for topic in scans[-1].types:
            bag.counts[topic] = bag.counts.get(topic, 0) + scans[-1].counts.get(topic, 0)
        for damage in scans[-1].damages:
            bag._hurt(file, damage)
    filled = [scan for scan in scans if scan.counts]
    bag.start_ns = min((scan.start_ns for scan in filled), default=0)
    bag.end_ns = max((scan.end_ns for scan in filled), default=0)
    bag.damage = bag.damage or "metadata.yaml or the index at the end makes no sense"
    bag._files = tuple(scannable)
    return bag


def _named(path: Path) -> list[Path]:
    """The files that metadata.yaml names; none when it cannot be read."""
    try:
        text = (path / "metadata.yaml").read_text()
        names = yaml.safe_load(text)["rosbag2_bagfile_information"]["relative_file_paths"]
        return [path / Path(name).name for name in names]
    except (OSError, ValueError, TypeError, KeyError, yaml.YAMLError):
        return []


def _sidecar(path: Path) -> dict[str, str]:
    try:
        values = json.loads((path / SIDECAR).read_text())
    except (OSError, ValueError):
        return {}
    return {str(key): str(value) for key, value in values.items()} if isinstance(values, dict) else {}


def _in_order(messages: Iterator[BagMessage]) -> Iterator[BagMessage]:
    """Sorts a nearly sorted stream with bounded memory; stable for equal times."""
    waiting: deque[BagMessage] = deque()  # sorted
    for message in messages:
        stamp_ns = message[1]
        if waiting and stamp_ns < waiting[-1][1]:
            bisect.insort_right(waiting, message, key=_STAMP_OF)
            continue
        waiting.append(message)
        due = stamp_ns - REORDER_NS
        while waiting[0][1] < due:
            yield waiting.popleft()
    yield from waiting


def _sentence(error: Exception) -> str:
    """The text of an error where it was written for people."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror.lower()
    from rosbags.rosbag2.errors import ReaderError

    if not isinstance(error, (TTError, ReaderError, EOFError)) or not str(error):
        return "its data make no sense"
    if isinstance(error.__cause__, (TypeError, ValueError, AttributeError)):
        return "metadata.yaml makes no sense"
    text = " ".join(str(error).split()).rstrip(".").removesuffix("; please report issue")
    return text[:1].lower() + text[1:]
