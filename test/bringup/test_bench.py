"""`tt bench` times what it says."""

import json

from test_cli import run


def test_every_stage_is_timed_and_later_entries_take_less():
    result = run("bench", "--rallies", "1", "--json")
    assert result.returncode == 0, result.stderr
    stages = json.loads(result.stdout)["stages_us"]
    assert all(
        row["count"] >= 10 and 0.0 < row["min"] <= row["median"] <= row["max"] for row in stages.values()
    )
    assert stages["plan → trajectory"]["min"] < stages["detections → trajectory"]["min"]
