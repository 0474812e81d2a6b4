"""`tt eval returns`: deterministic, whatever the number of processes; complete JSON, readable report."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from tt_estimation.ball_models import DEEPMIND
from tt_planning.planners import PLANNERS
from tt_sim.ball_server import balls_for
from tt_sim.eval_report import write_report
from tt_sim.eval_returns import EvalSettings, evaluate, reachable_ids, reason_of, summary, trace_ball
from tt_sim.rally import RallyRecord
from tt_sim.referee import BallResult, Cause, Outcome

SETTINGS = EvalSettings()


@pytest.fixture(scope="module")
def balls():
    return balls_for(None, 3, seed=5, model=DEEPMIND)


@pytest.fixture(scope="module")
def outcomes(balls):
    return evaluate(SETTINGS, balls, processes=1)


def test_json_has_the_agreed_shape(balls, outcomes):
    result = summary(SETTINGS, outcomes)
    for key in (
        "robot",
        "world",
        "delay_s",
        "sigma_m",
        "fps",
        "seed",
        "balls",
        "reachable",
        "planners",
        "results",
    ):
        assert key in result
    assert result["balls"] == len(balls)
    (row,) = result["planners"].values()
    shares = [row[k] for k in ("returned", "missed", "out", "net", "not_playable")]
    assert sum(shares) == pytest.approx(1.0, abs=1e-3)
    assert row["returned"] <= row["hit"] <= 1.0
    assert row["returned"] <= result["reachable"]
    assert sum(row["reasons"].values()) == len(balls) - round(row["returned"] * len(balls))
    assert set(row["landing_error_m"]) == {"median", "p90"}
    assert set(row["decision_us"]) == {"median", "p99"}
    assert [r["id"] for r in result["results"]] == [b.ball_id for b in balls]
    for r in result["results"]:
        assert set(r) == {"id", "planner", "outcome", "reason", "landing_m"}
        assert (r["outcome"] == "returned") == (r["reason"] == "")


def test_same_seed_same_bytes_on_any_number_of_processes(balls, outcomes):
    again = evaluate(replace(SETTINGS, timing=False), balls[::-1], processes=2)
    first = [replace(o, decision_us=()) for o in outcomes]
    order = [b.ball_id for b in balls]
    again.sort(key=lambda o: (o.planner != SETTINGS.planners[0], order.index(o.ball_id)))
    found = summary(SETTINGS, again)
    assert json.dumps(found) == json.dumps(summary(SETTINGS, first))
    assert found["planners"]["ours"]["decision_us"] == {"median": None, "p99": None}


def test_another_seed_gives_other_noise(balls, outcomes):
    other = evaluate(EvalSettings(seed=1), balls[:2], processes=1)
    mine = [o.result for o in outcomes[:2]]
    assert [o.result for o in other[:2]] != mine


def test_most_balls_come_back_and_land_near_the_aim(outcomes):
    """What a user pays for: the closed loop returns ordinary balls."""
    ours = [o for o in outcomes if o.planner == "ours"]
    returned = [o.result for o in ours if o.result.outcome is Outcome.RETURNED]
    assert len(returned) >= len(ours) - 1
    assert np.median([r.aim_error_m for r in returned]) < 0.15
    assert reachable_ids(outcomes) >= {r.ball_id for r in returned}


@pytest.mark.parametrize("planner", sorted(set(PLANNERS) - {"ours"}))
def test_the_other_planners_play_too(balls, planner):
    found = evaluate(EvalSettings(planners=(planner,)), balls[:1], processes=1)
    assert found[0].planner == planner


def test_trace_holds_the_whole_rally(balls):
    outcome, record = trace_ball(SETTINGS, balls[0], "ours")
    trace = record.trace
    assert trace is not None
    times = np.array(trace.times_s)
    assert times[0] < 0.002
    assert times[-1] == pytest.approx(outcome.result.time_s, abs=0.002)
    assert np.allclose(np.diff(times), 0.001)
    assert len(trace.ball) == len(trace.racket) == len(times)
    # Tracing changes nothing but the steps of the return flight, between which the height at the net is interpolated.
    plain = evaluate(SETTINGS, balls[:1], processes=1)[0].result.as_json()
    traced = outcome.result.as_json()
    assert traced.pop("net_clearance_m") == pytest.approx(plain.pop("net_clearance_m"), abs=1e-3)
    assert traced == plain


def test_report_is_one_page_with_pictures(tmp_path, balls, outcomes):
    path = tmp_path / "returns.html"
    write_report(path, SETTINGS, balls, outcomes, summary(SETTINGS, outcomes))
    page = path.read_text(encoding="utf-8")
    assert page.count("<img src='data:image/png;base64,") == 3
    assert "src='http" not in page
    write_report(path, SETTINGS, balls, outcomes, summary(SETTINGS, outcomes), strip_ball=99_999)
    assert "was not among these balls" in path.read_text(encoding="utf-8")


def verdict(outcome, cause, hit=False, edge=False):
    return BallResult(1, outcome, cause, hit, None, None, None, None, edge, None, None, None, None, None, 1.0)


@pytest.mark.parametrize(
    ("record", "reason"),
    [
        (RallyRecord(verdict(Outcome.RETURNED, Cause.LANDED, True)), ""),
        (RallyRecord(verdict(Outcome.MISSED, Cause.PASSED), last_reason="too far"), "no plan: too far"),
        (RallyRecord(verdict(Outcome.MISSED, Cause.PASSED)), "no plan: the ball was not seen in time"),
        (
            RallyRecord(verdict(Outcome.MISSED, Cause.PASSED), last_plan=object()),
            "planned, but the racket missed the ball",
        ),
        (RallyRecord(verdict(Outcome.OUT, Cause.BEYOND, True)), Cause.BEYOND.value),
        (
            RallyRecord(verdict(Outcome.OUT, Cause.BEYOND, True, edge=True)),
            f"hit with the edge: {Cause.BEYOND.value}",
        ),
        (
            RallyRecord(verdict(Outcome.MISSED, Cause.PASSED), stopped="over-voltage"),
            "the motors stopped: over-voltage",
        ),
    ],
)
def test_reasons(record, reason):
    assert reason_of(record) == reason


def test_reasons_are_sorted_by_how_often_they_occur(outcomes):
    result = summary(SETTINGS, outcomes)
    counts = list(result["planners"]["ours"]["reasons"].values())
    assert counts == sorted(counts, reverse=True)
    assert Counter(r["reason"] for r in result["results"] if r["reason"]) == Counter(
        result["planners"]["ours"]["reasons"]
    )
