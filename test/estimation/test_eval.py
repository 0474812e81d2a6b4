"""The evaluation: its columns, its independence of the tracker, its JSON, and what it refuses."""

from __future__ import annotations

import json
from itertools import islice

import numpy as np
import pytest

from tt_bringup import cli
from tt_estimation.ball_models import MATCH, NOMINAL
from tt_estimation.spin_prior import SHIPPED
from tt_perception.errors import TTError
from tt_sim.ball_server import ServedBall, sample_balls
from tt_sim.batch_fit import fit
from tt_sim.eval_estimation import EvalSettings, choose_balls, evaluate, noisy_points, within_95


@pytest.fixture(scope="module")
def balls() -> list:
    return choose_balls(list(islice(sample_balls(5), 400)), 24)


def test_columns_stand_in_the_order_that_knowledge_gives(balls: list) -> None:
    settings = EvalSettings(fps=(120.0,), sigma_m=(0.003,), seen_s=(0.3,))
    result = evaluate(balls, settings, workers=1)
    cell = result["cells"][0]
    assert cell["balls"] == 24
    # The more an estimator knows the nearer it comes; ours is at the limit of the unknown spin.
    assert cell["A"]["median_m"] > cell["B"]["median_m"] > cell["ours"]["median_m"] > cell["C"]["median_m"]
    assert cell["ours"]["median_m"] <= 1.25 * cell["map"]["median_m"]
    after = result["after_bounce"]
    assert after["ours"]["median_m"] < 0.2 * cell["ours"]["median_m"]
    assert after["ours"]["median_m"] <= 1.3 * after["map"]["median_m"]
    assert after["hit_spin_error_radps"] < 7.0


def test_covariances_are_honest_where_the_model_is_the_truth() -> None:
    # Also through the bounce, where sliding and rolling divide the probability between them.
    balls = choose_balls(list(islice(sample_balls(6), 400)), 60)
    settings = EvalSettings(fps=(60.0,), sigma_m=(0.003, 0.010), seen_s=(0.2,), estimators=("ours",))
    result = evaluate(balls, settings, workers=1)
    assert result["consistent"]["drawn_spin"] == {"nees": 4, "nis": 4}
    assert result["consistent"]["cells"] == 4
    assert all(c["drawn_spin"]["nees_balls"] >= 55 for c in result["cells"] + result["after_bounce_cells"])


def test_evaluation_repeats_itself_and_depends_on_the_seed(balls: list) -> None:
    settings = EvalSettings(fps=(60.0,), sigma_m=(0.01,), seen_s=(0.2,), estimators=("ours",))
    first = evaluate(balls[:4], settings, workers=1)
    assert first == evaluate(balls[:4], settings, workers=1)
    other = EvalSettings(fps=(60.0,), sigma_m=(0.01,), seen_s=(0.2,), estimators=("ours",), seed=1)
    assert first != evaluate(balls[:4], other, workers=1)


def test_batch_fit_finds_a_ball_without_noise(balls: list) -> None:
    truth = balls[0]
    times, points = noisy_points(truth, EvalSettings(), 120.0, 1e-7, 0.6)
    start = np.concatenate((points[0], (points[5] - points[0]) / times[5], np.zeros(3)))
    found = fit(times, points, 1e-7, NOMINAL.params, None, SHIPPED, [start])
    assert found is not None
    np.testing.assert_allclose(found.state, truth.start, rtol=1e-3, atol=1e-3)


def test_only_balls_that_bounce_once_and_arrive_are_chosen() -> None:
    away = ServedBall(1, np.array([0, -1, 0.3, 0, 5, 1, 0, 0, 0.0]))
    with pytest.raises(TTError, match="none of the 1 balls"):
        choose_balls([away], 5)
    chosen = choose_balls([away, *islice(sample_balls(0), 60)], 10, MATCH)
    assert len(chosen) == 10
    assert all(t.crossing[1] == pytest.approx(-1.6, abs=1e-6) for t in chosen)


def test_bounds_of_honesty() -> None:
    assert within_95(1800.0, 1800)
    assert not within_95(2000.0, 1800)
    assert not within_95(1600.0, 1800)
    assert not within_95(0.0, 0)


def run(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        cli.main(["eval", "estimation", *words])
    out, err = capsys.readouterr()
    return int(end.value.code or 0), out, err


def test_command_prints_one_json_object(capsys: pytest.CaptureFixture[str]) -> None:
    words = "--balls 3 --fps 120 --sigma 3 --seen 0.1,0.2 --no-worlds --json --jobs 1"
    code, out, _ = run(words.split(), capsys)
    assert code == 0
    result = json.loads(out)
    assert [c["seen_s"] for c in result["cells"]] == [0.1, 0.2]
    cell = result["cells"][0]
    assert cell["sigma_m"] == 0.003
    for name in ("A", "B", "C", "ours", "map"):
        assert set(cell[name]) >= {"median_m", "p90_m", "p95_m", "time_median_s", "no_prediction"}
    for key in ("spin_error_radps", "nees_mean", "nees_within_95"):
        assert key in cell
        assert key in result["after_bounce"]
    assert "drawn_spin" in cell
    assert set(result["timing_us"]) == {"flight_to_plane", "ekf_step", "prediction"}


def test_command_compares_the_simple_columns_alone(capsys: pytest.CaptureFixture[str]) -> None:
    words = [
        *["--balls", "30", "--fps", "120", "--sigma", "3", "--seen", "0.3", "--jobs", "1"],
        "--columns",
        "C, A",
    ]
    code, out, _ = run([*words, "--json"], capsys)
    assert code == 0
    cell = json.loads(out)["cells"][0]
    assert "ours" not in cell
    assert cell["A"]["median_m"] > 5.0 * cell["C"]["median_m"]
    assert 0.0 < cell["A"]["median_sigma_m"] < 0.5 * cell["A"]["median_m"]
    code, out, _ = run(words, capsys)
    assert code == 0
    assert "NEES" not in out


@pytest.mark.parametrize(
    ("words", "text"),
    [
        (["--fps", "5"], "--fps 5 Hz"),
        (["--sigma", "x"], "not a list of numbers"),
        (["--seen", "9"], "--seen 9 s"),
        (["--columns", "A,D"], "D is no column"),
        (["--balls-file", "/nowhere/balls.json"], "/nowhere/balls.json"),
    ],
)
def test_command_refuses_bad_input(words: list[str], text: str, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(words, capsys)
    assert code == 2
    assert out == ""
    assert text in err
