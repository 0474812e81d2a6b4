"""`tt bench` times what it says, all parts in one table, and says what it leaves out."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tt_bringup import bench_parts
from tt_bringup.cli import _guarded


def _json(capsys: pytest.CaptureFixture, *words: str) -> dict[str, Any]:
    assert _guarded([*words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_every_stage_is_timed_and_later_entries_take_less(capsys: pytest.CaptureFixture) -> None:
    stages = _json(capsys, "bench", "--rallies", "1")["stages_us"]
    assert all(
        row["count"] >= 10 and 0.0 < row["min"] <= row["median"] <= row["max"] for row in stages.values()
    )
    assert stages["plan → trajectory"]["min"] < stages["detections → trajectory"]["min"]


def test_chosen_parts_and_what_is_left_out(capsys: pytest.CaptureFixture) -> None:
    found = _json(
        capsys, "bench", "all", "--parts", "stages,dynamics,start,replay", "--rallies", "1", "--repeats", "10"
    )
    rows = {row["name"]: row for row in found["times"]}
    single = ("trigger set and triangulation", "filter, one observation", "prediction", "decision")
    assert {*single, "joint trajectory", "inverse dynamics", "tt --help"} <= set(rows)
    assert all(0.0 < row["min_ms"] <= row["median_ms"] and row["count"] >= 1 for row in rows.values())
    assert rows["prediction"]["min_ms"] < rows["detections → trajectory"]["min_ms"]
    assert "--bag" in found["skipped"]["replay"]


def test_a_part_that_is_not_there_is_one_line(capsys: pytest.CaptureFixture) -> None:
    assert _guarded(["bench", "all", "--parts", "stages,lunch"]) == 2
    err = capsys.readouterr().err.strip()
    assert "'lunch'" in err and all(name in err for name in bench_parts.PARTS) and len(err.splitlines()) == 1
