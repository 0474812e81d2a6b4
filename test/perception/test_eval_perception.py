"""The measurements of `tt eval perception`, in small."""

from __future__ import annotations

import numpy as np
import pytest

from tt_perception.camera import default_sim_cameras
from tt_sim.eval_perception import PerceptionEvalConfig, evaluate_outliers, evaluate_rendered
from tt_sim.render import CameraRenderer, MovingBall, RenderConfig


@pytest.mark.parametrize(
    ("share", "error_m", "failures"), [(0.01, 0.007, 0.002), (0.1, 0.008, 0.02), (0.25, 0.012, 0.09)]
)
def test_outliers_are_survived_as_published(share, error_m, failures):
    row = evaluate_outliers(4, share, 1500, seed=1)
    assert row["error_m"] <= error_m
    assert row["failures"] <= failures


def test_more_cameras_are_better():
    four, eight = (evaluate_outliers(count, 0.25, 400, seed=2) for count in (4, 8))
    assert eight["error_median_m"] < four["error_median_m"]
    assert eight["failures"] < four["failures"]


def test_a_rendered_rally_is_located_to_millimetres():
    config = PerceptionEvalConfig(
        balls=1, width=640, height=400, fps=60.0, pixel_sigma=0.25,
        render=RenderConfig(samples=1, noise_frames=3, second_ball=True, flicker=0.02),
    )  # fmt: skip
    result = evaluate_rendered(config)
    assert result["frames"] > 30
    assert result["median_m"] < 0.0015
    assert result["p95_m"] < 0.005
    assert result["detected_share"] > 0.95
    assert result["covariance_within_95"] > 0.8


def test_hidden_balls_are_known_to_be_hidden():
    camera = default_sim_cameras(640, 400)[0]
    renderer = CameraRenderer(camera, RenderConfig(samples=1, noise_frames=2, person=True))
    chest = np.array([0.0, 2.25, 0.4])
    behind = chest + 0.8 * (chest - camera.centre_table) / np.linalg.norm(chest - camera.centre_table)
    before = chest - 0.8 * (chest - camera.centre_table) / np.linalg.norm(chest - camera.centre_table)
    assert renderer.hidden(0.0, behind)
    assert not renderer.hidden(0.0, before)
    u, v = camera.project(behind).round().astype(int)
    empty = renderer.render(0.0)[v, u].astype(int)
    assert abs(int(renderer.render(0.0, [MovingBall(behind, np.zeros(3))])[v, u]) - empty) < 25
    assert int(renderer.render(0.0, [MovingBall(before, np.zeros(3))])[v, u]) - empty > 40


def test_motion_blur_is_as_long_as_the_ball_flies_during_the_exposure():
    camera = default_sim_cameras()[0]
    quiet = RenderConfig(
        samples=1, noise_frames=1, read_noise=0.0, shot_noise=0.0, exposure_s=0.004, shadow=False, ambient=1.0
    )
    renderer = CameraRenderer(camera, quiet)
    pos, vel = np.array([0.1, 0.0, 0.4]), np.array([0.0, -8.0, 0.0])
    empty = renderer.render(0.0).astype(float).copy()
    seen = renderer.render(0.0, [MovingBall(pos, vel)]).astype(float) - empty
    v, u = np.nonzero(np.abs(seen) > 8)
    ends = camera.project(np.array([pos - 0.002 * vel, pos + 0.002 * vel]))
    diameter = 2 * camera.matrix[0, 0] * 0.02 / camera.depth_m(pos)[0]
    direction = (ends[1] - ends[0]) / np.linalg.norm(ends[1] - ends[0])
    along = np.column_stack([u, v]) @ direction
    assert np.ptp(along) == pytest.approx(np.linalg.norm(ends[1] - ends[0]) + diameter, abs=2.0)
    weights = np.abs(seen[v, u])
    centre = np.array([np.average(u, weights=weights), np.average(v, weights=weights)])
    assert np.linalg.norm(centre - camera.project(pos)) < 0.3
