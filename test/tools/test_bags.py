"""Bags of any origin: other writers, other storages, out of order, torn, empty, and things that are no
bag.
"""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import golden
import pytest
from rosbags.rosbag2 import CompressionMode, StoragePlugin, Writer
from rosbags.rosbag2.enums import CompressionFormat
from rosbags.typesys import Stores, get_types_from_msg, get_typestore

from tt_bringup.bags import Bag, BagError, missing_topics, open_bag, saying_damage
from tt_bringup.cli import run_verb
from tt_bringup.topics import table_name

RAW = b"\x00\x01\x00\x00\x02\x00\x00\x00a\x00"  # std_msgs/String "a"


def write(
    path: Path,
    rows: list[tuple[str, int]],
    storage: StoragePlugin = StoragePlugin.MCAP,
    compression: CompressionMode = CompressionMode.NONE,
    kind: str = "std_msgs/msg/String",
) -> Path:
    """A foreign bag of strings."""
    store = get_typestore(Stores.ROS2_JAZZY)
    store.register(get_types_from_msg("string data\n", "my_msgs/msg/Thing"))
    writer = Writer(path, version=9, storage_plugin=storage)
    if compression is not CompressionMode.NONE:
        writer.set_compression(compression, CompressionFormat.ZSTD)
    with writer:
        known = {}
        for topic, stamp in rows:
            if topic not in known:
                known[topic] = writer.add_connection(topic, kind, typestore=store)
            writer.write(known[topic], stamp, RAW)
    return path


@pytest.mark.parametrize(
    ("storage", "compression"),
    [
        (StoragePlugin.SQLITE3, CompressionMode.NONE),
        (StoragePlugin.SQLITE3, CompressionMode.MESSAGE),
        (StoragePlugin.SQLITE3, CompressionMode.FILE),
        (StoragePlugin.MCAP, CompressionMode.NONE),
        (StoragePlugin.MCAP, CompressionMode.STORAGE),
        (StoragePlugin.MCAP, CompressionMode.MESSAGE),
        (StoragePlugin.MCAP, CompressionMode.FILE),
    ],
)
def test_foreign_bags(tmp_path: Path, storage: StoragePlugin, compression: CompressionMode) -> None:
    path = write(tmp_path / "bag", [("/a", 5), ("/b", 6), ("/a", 7)], storage, compression)
    bag = open_bag(path)
    assert bag.counts == {"/a": 2, "/b": 1} and bag.damage == ""
    assert [(m.topic, m.stamp_ns, m.raw) for m in bag.messages()] == [
        ("/a", 5, RAW),
        ("/b", 6, RAW),
        ("/a", 7, RAW),
    ]
    assert [m.stamp_ns for m in bag.messages(["/b"])] == [6]
    assert [message.data for _, _, message in bag.decoded(["/a"])] == ["a", "a"]


@pytest.mark.parametrize("storage", [StoragePlugin.SQLITE3, StoragePlugin.MCAP])
def test_single_file_without_metadata(tmp_path: Path, storage: StoragePlugin) -> None:
    path = write(tmp_path / "bag", [("/a", 5)], storage)
    (path / "metadata.yaml").unlink()
    assert open_bag(path).message_count == 1
    file = next(f for f in path.iterdir() if f.suffix in (".mcap", ".db3"))
    assert [m.stamp_ns for m in open_bag(file).messages()] == [5]


@pytest.mark.parametrize("storage", [StoragePlugin.SQLITE3, StoragePlugin.MCAP])
def test_messages_come_out_in_order_of_time(tmp_path: Path, storage: StoragePlugin) -> None:
    stamps = [30, 10, 20, 50, 40, 45, 5]
    path = write(tmp_path / "bag", [("/a", stamp * 1_000_000) for stamp in stamps], storage)
    assert [m.stamp_ns // 1_000_000 for m in open_bag(path).messages()] == sorted(stamps)


@pytest.mark.parametrize("share", [0.3, 0.6, 0.95])
@pytest.mark.parametrize("compression", [CompressionMode.NONE, CompressionMode.STORAGE])
def test_torn_mcap_is_read_up_to_the_tear(tmp_path: Path, share: float, compression: CompressionMode) -> None:
    rows = [("/a", number) for number in range(100_000)]
    path = write(tmp_path / "bag", rows, compression=compression)
    whole = open_bag(path).message_count
    (path / "metadata.yaml").unlink()
    file = path / "bag.mcap"
    os.truncate(file, int(share * file.stat().st_size))
    bag = open_bag(path)
    assert "torn after" in bag.damage
    assert 0 < bag.message_count <= whole
    assert [m.stamp_ns for m in bag.messages()] == list(range(bag.message_count))


def test_a_damaged_chunk_costs_no_other_messages(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    path = write(tmp_path / "bag", [("/a", number) for number in range(100_000)])
    data = bytearray((path / "bag.mcap").read_bytes())
    at = len(data) // 3  # inside a chunk
    data[at : at + 300] = b"\xff" * 300
    (path / "bag.mcap").write_bytes(data)
    bag = open_bag(path)
    stamps = [m.stamp_ns for m in bag.messages()]
    assert len(list(bag.messages())) == len(stamps) and bag.damage.count("damaged behind") == 1
    assert 30_000 < len(stamps) < 100_000 and stamps[-1] == 99_999 and stamps == sorted(set(stamps))
    with saying_damage(bag):
        pass
    assert capsys.readouterr().err.count("bag.mcap: damaged behind") == 1


@pytest.mark.parametrize("share", [None, 0.6])
@pytest.mark.parametrize("keep", [True, False])
def test_messages_compressed_one_by_one_are_never_given_out_as_they_are(
    tmp_path: Path, share: float | None, keep: bool
) -> None:
    rows = [("/a", number) for number in range(2000)]
    path = write(tmp_path / "bag", rows, compression=CompressionMode.MESSAGE)
    if not keep:
        (path / "metadata.yaml").unlink()
    if share:
        os.truncate(path / "bag.mcap", int(share * (path / "bag.mcap").stat().st_size))
    bag = open_bag(path)
    found = list(bag.messages())
    assert 0 < len(found) <= 2000 and {m.raw for m in found} == {RAW}
    assert ("torn" in bag.damage) == bool(share)


def test_only_the_files_that_the_metadata_name_are_read(tmp_path: Path) -> None:
    path = write(tmp_path / "bag", [("/a", 1)])
    shutil.copy(path / "bag.mcap", path / "copy.mcap")
    assert [m.stamp_ns for m in open_bag(path).messages()] == [1]
    os.truncate(path / "bag.mcap", (path / "bag.mcap").stat().st_size - 1)
    assert [m.stamp_ns for m in open_bag(path).messages()] == [1]
    (path / "bag.mcap").unlink()
    bag = open_bag(path)
    assert [m.stamp_ns for m in bag.messages()] == [1] and bag.damage == "bag.mcap is missing"


@pytest.mark.parametrize(
    ("hurt", "text"),
    [
        (
            lambda p: (p / "metadata.yaml").write_text(""),
            "metadata.yaml or the index at the end makes no sense",
        ),
        (lambda p: os.truncate(p / "bag.mcap", 150), "(bag.mcap: torn after 43 of 150 bytes"),
        (lambda p: (p / "bag.mcap").write_bytes(b"?" * 99), "cannot be read: bag.mcap is not an MCAP file"),
        (lambda p: ((p / "bag.mcap").unlink(), (p / "bag.mcap").mkdir()), "cannot be read: is a directory"),
        (
            lambda p: ((p / "bag.mcap").unlink(), (p / "metadata.yaml").write_text("")),
            "cannot be read: metadata.yaml makes no sense",
        ),
    ],
)
def test_damage_is_told_in_words_for_people(
    tmp_path: Path, capsys: pytest.CaptureFixture, hurt, text
) -> None:  # type: ignore[no-untyped-def]
    path = write(tmp_path / "bag", [("/a", 1)])
    hurt(path)
    from tt_bringup.cli import _guarded

    assert _guarded(["latency", str(path)]) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("hurt", ["flip", "zero"])
def test_damaged_bytes_never_give_a_traceback(tmp_path: Path, hurt: str) -> None:
    path = write(tmp_path / "bag", [("/a", number) for number in range(2000)])
    file = path / "bag.mcap"
    data = bytearray(file.read_bytes())
    for at in range(200, len(data), 997):
        data[at] = data[at] ^ 0xFF if hurt == "flip" else 0
    file.write_bytes(data)
    try:
        bag = open_bag(path)
        assert all(m.topic for m in bag.messages())
    except BagError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda p: p / "missing", "there is no"),
        (lambda p: p, "is not a bag"),
        (lambda p: _file(p / "notes.txt", b"hello"), "is not a bag"),
        (lambda p: _file(p / "x.mcap", b""), "empty"),
        (lambda p: _file(p / "x.mcap", b"this is not mcap data at all"), "is not an MCAP file"),
        (lambda p: _file(p / "x.db3", b"this is not sqlite data at all" * 50), "cannot be read"),
        (lambda p: write(p / "none", []), "empty bag"),
    ],
)
@pytest.mark.parametrize("verb", ["replay", "report", "latency"])
def test_what_is_no_bag_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture, make, text, verb) -> None:  # type: ignore[no-untyped-def]
    path = make(tmp_path)
    with pytest.raises(BagError, match=text):
        open_bag(path)
    from tt_bringup.cli import _guarded

    assert _guarded([verb, str(path)]) == 2
    err = capsys.readouterr().err.strip()
    assert text in err and len(err.splitlines()) == 1


def _file(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def test_unknown_types_are_listed(tmp_path: Path) -> None:
    bag = open_bag(write(tmp_path / "bag", [("/a", 1)], kind="my_msgs/msg/Thing"))
    assert bag.unknown_types() == {"/a": "my_msgs/msg/Thing"}
    with pytest.raises(BagError, match="not installed"):
        list(bag.decoded(["/a"]))


def test_topics_are_found_in_any_namespace(tmp_path: Path) -> None:
    one = open_bag(write(tmp_path / "one", [("/left/ball/state", 1)]))
    assert one.find("ball/state") == "/left/ball/state"
    assert one.find("ball/state", "right") is None
    two = open_bag(write(tmp_path / "two", [("/left/ball/state", 1), ("/right/ball/state", 2)]))
    with pytest.raises(BagError, match="left, right"):
        two.find("ball/state")
    assert two.find("ball/state", "right") == "/right/ball/state"
    assert missing_topics(one, ["ball/state", "hit_plan"]) == ["hit_plan"]


def test_rows_of_the_topic_table() -> None:
    assert table_name("/left/cam3/detections") == "{camera}/detections"
    assert table_name("/joint_states") == table_name("/left/joint_states") == "/joint_states"
    assert table_name("/somebody/else") is None


def test_golden_bag_has_everything_replay_needs() -> None:
    bag = open_bag(golden.BAG)
    assert list(bag.cameras()) == ["cam0", "cam1", "cam2", "cam3"]
    assert missing_topics(bag, ["ball/position", "ball/state", "hit_plan", "joint_trajectory"]) == []


def test_latency_of_a_bag_without_stamps_is_one_line(capsys: pytest.CaptureFixture) -> None:
    from tt_bringup.cli import _guarded

    assert _guarded(["latency", str(golden.BAG)]) == 2
    assert "no latency stamps" in capsys.readouterr().err


def test_report_of_a_bag_without_most_topics(tmp_path: Path) -> None:
    path = write(tmp_path / "bag", [("/tt/other", 1), ("/tt/other", 2)])
    assert run_verb("report", [str(path), "-o", str(tmp_path / "r.html"), "--json"]) == 0
    assert "Not in this recording" in (tmp_path / "r.html").read_text()


@pytest.mark.parametrize(
    ("topics", "namespace", "found"),
    [
        (("/joint_states", "/tt/hit_plan"), None, "/joint_states"),
        (("/joint_states", "/tt/hit_plan"), "tt", "/joint_states"),
        (("/left/joint_states", "/left/hit_plan"), None, "/left/joint_states"),
        (("/joint_states", "/tt/hit_plan", "/left/joint_states"), "left", "/left/joint_states"),
        (("/joint_states", "/tt/hit_plan", "/left/hit_plan"), "left", None),
        (("/joint_states", "/arm/hit_plan"), "arm", "/joint_states"),
    ],
)
def test_joint_states_are_those_of_the_robot_that_is_asked_for(
    topics: tuple[str, ...], namespace: str | None, found: str | None
) -> None:
    bag = Bag(Path("two"), dict.fromkeys(topics, ""), dict.fromkeys(topics, 1), 0, 1)
    assert bag.joint_states(namespace) == found
