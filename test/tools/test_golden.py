"""The golden rally: offline replay gives what was recorded, and each fault does what it is known to do."""

from __future__ import annotations

import json
from typing import Any

import golden
import numpy as np
import pytest

from tt_bringup import replay, replay_compare
from tt_bringup.bags import Bag, open_bag
from tt_bringup.replay_planning import PlanningProcess
from tt_perception.errors import TTError

EXPECTED = json.loads(golden.EXPECTED.read_text())
REFRESH = "run python test/tools/golden.py when the change is wanted"


@pytest.fixture(scope="module")
def bag() -> Bag:
    return open_bag(golden.BAG)


def test_bag_is_small_enough_for_a_repository() -> None:
    assert sum(file.stat().st_size for file in golden.BAG.iterdir()) < 300_000


def test_offline_replay_equals_the_recording_field_by_field(bag: Bag) -> None:
    result = replay.run_offline(bag, replay.settings_from_bag(bag))
    rows = {row.topic: row for row in result.comparisons}
    for topic in ("ball/position", "ball/state", "hit_plan", "joint_trajectory"):
        row = rows[topic]
        assert row.recorded == row.replayed == row.paired > 50, REFRESH
    # Other processors round differently in the last digits, and the search for a hit magnifies that.
    assert all(field.largest < 1e-6 for field in rows["ball/position"].fields), REFRESH
    state = {field.name: field.largest for field in rows["ball/state"].fields}
    assert state["position"] < 1e-5 and state["velocity"] < 1e-3 and state["spin"] < 0.1, REFRESH
    plan = {field.name: field.largest for field in rows["hit_plan"].fields}
    assert plan["hit time"] < 2e-3 and plan["racket position"] < 5e-3, REFRESH


def test_planning_in_a_process_of_its_own_changes_nothing(bag: Bag) -> None:
    settings = replay.settings_from_bag(bag)
    alone = replay.run_offline(bag, settings)
    with PlanningProcess(bag, settings) as planning:
        both = replay.run_offline(bag, settings, planning)
    assert (both.made, both.decisions) == (alone.made, alone.decisions)
    assert both.comparisons == alone.comparisons, "the same differences to the recording, to the last bit"


def test_a_planning_process_that_dies_is_a_reason_not_a_hang(bag: Bag) -> None:
    settings = replay.settings_from_bag(bag)
    with PlanningProcess(bag, settings) as planning:
        planning._process.kill()
        with pytest.raises(TTError, match="planning half of the replay ended with exit code -9"):
            replay.run_offline(bag, settings, planning)


def test_two_replays_are_identical_bit_for_bit(bag: Bag) -> None:
    one, two = (replay.run_offline(bag, replay.settings_from_bag(bag)) for _ in range(2))
    for topic in replay.OUTPUTS:
        row = replay_compare.compare_topic(topic, one.outputs[topic], two.outputs[topic])
        assert row.identical == row.paired == row.recorded == row.replayed > 0


@pytest.mark.parametrize("scenario", golden.SCENARIOS)
def test_fault_scenario(bag: Bag, scenario: str) -> None:
    got, expected = golden.play(bag, scenario), EXPECTED[scenario]
    exact = ("positions", "states", "plans", "trajectories", "no_joints", "warning", "health")
    assert {key: got[key] for key in exact} == {key: expected[key] for key in exact}, REFRESH
    _close(got["last_state"], expected["last_state"], 1e-2)
    _close(got["hit_s"], expected["hit_s"], 2e-3)
    _close(got["racket_m"], expected["racket_m"], 5e-3)


def _close(got: Any, expected: Any, tolerance: float) -> None:
    assert (got is None) == (expected is None), REFRESH
    if got is not None:
        np.testing.assert_allclose(got, expected, atol=tolerance, rtol=tolerance, err_msg=REFRESH)


def test_what_the_faults_must_and_must_not_do() -> None:
    """Independent of stored numbers: what a user may rely on."""
    healthy = EXPECTED["healthy"]
    assert healthy["warning"] == "" and healthy["plans"] > 50
    assert EXPECTED["camera_dropped"]["warning"] == "no images from cam2"
    assert EXPECTED["camera_dropped"]["states"] > 0.9 * healthy["states"]
    assert EXPECTED["one_late"]["health"]["late"] > 100
    assert EXPECTED["stamp_jump"]["states"] > 0.95 * healthy["states"]
    assert EXPECTED["phantom_ball"]["last_state"] == pytest.approx(healthy["last_state"], rel=0.05, abs=0.05)
    hidden = healthy["states"] - EXPECTED["occlusion_at_net"]["states"]
    assert 3 <= hidden <= 20
    assert EXPECTED["motor_timeout"]["plans"] == 0 and EXPECTED["motor_timeout"]["no_joints"] > 100
