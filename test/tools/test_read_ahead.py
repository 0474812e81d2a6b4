"""A recording that another process reads: the same messages, the same errors, and no message lost with that process."""

from __future__ import annotations

from pathlib import Path

import golden
import pytest

from tt_bringup.bags import Bag, BagError, open_bag
from tt_bringup.read_ahead import ReadAhead

SOME = ("/tt/ball/state", "/tt/hit_plan")


def _some(bag: Bag) -> list[str]:
    return [topic for topic in bag.counts if topic in SOME or topic.endswith("/detections")]


def test_it_holds_what_the_files_hold() -> None:
    whole = open_bag(golden.BAG)
    with ReadAhead(golden.BAG, _some) as reading:
        bag = reading.bag()
    assert bag.counts == whole.counts and bag.duration_s == whole.duration_s
    for topics in (_some(whole), list(bag.cameras().values()), ["/joint_states"], [], None):
        expected = list(whole.messages(topics))
        assert list(bag.messages(topics)) == expected
        assert bool(expected) == (topics != [])


def test_kept_messages_need_no_file_any_more(tmp_path: Path) -> None:
    copy = tmp_path / "copy.mcap"
    copy.write_bytes(next(golden.BAG.glob("*.mcap")).read_bytes())
    bag = open_bag(copy)
    kept = _some(bag)
    expected = list(bag.messages(kept))
    bag.keep(kept)
    copy.unlink()
    assert list(bag.messages(kept)) == expected
    with pytest.raises(BagError, match="no such file"):
        list(bag.messages(["/joint_states"]))


def test_errors_come_from_the_other_process(tmp_path: Path) -> None:
    with (
        ReadAhead(tmp_path / "nothing", _some) as reading,
        pytest.raises(BagError, match="there is no .*nothing"),
    ):
        reading.bag()


def test_a_process_that_was_killed_is_no_loss() -> None:
    with ReadAhead(golden.BAG, _some) as reading:
        reading._process.kill()
        assert reading.bag().counts == open_bag(golden.BAG).counts
