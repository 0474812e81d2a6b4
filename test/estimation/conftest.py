"""What the estimation tests share: states of the public file, and noisy observations of a ball."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tt_estimation.ball_models import NOMINAL, BallModel
from tt_estimation.events import fly
from tt_perception.types import BallPosition

START_NS = 1_000_000_000_000
FIELDS = ("pos_x", "pos_y", "pos_z", "vel_x", "vel_y", "vel_z", "w_vel_x", "w_vel_y", "w_vel_z")


def state_at(start: np.ndarray, time_s: float, model: BallModel = NOMINAL) -> np.ndarray:
    out = np.empty(9)
    fly(start, model.params, time_s, 0.002, out)
    return out


def observe_ball(
    start: np.ndarray,
    seconds: float,
    rng: np.random.Generator,
    fps: float = 120.0,
    sigma: float = 0.003,
    first_ns: int = START_NS,
    model: BallModel = NOMINAL,
) -> Iterator[tuple[BallPosition, np.ndarray]]:
    """Positions with noise, and the true state at each."""
    for i in range(int(seconds * fps) + 1):
        truth = state_at(start, i / fps, model)
        yield (
            BallPosition(
                first_ns + round(i / fps * 1e9),
                truth[:3] + sigma * rng.normal(size=3),
                np.eye(3) * sigma**2,
            ),
            truth,
        )


@pytest.fixture(scope="session")
def public_states(ball_file: Path) -> tuple[np.ndarray, np.ndarray]:
    """(ids, states (n, 9)) of the incoming balls of the public file."""
    balls = json.loads(ball_file.read_text())
    states = np.array([[b[k] for k in FIELDS] for b in balls])
    ids = np.array([b["id"] for b in balls])
    incoming = states[:, 4] < 0.0
    return ids[incoming], states[incoming]


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(7)


@pytest.fixture
def loop_ball() -> np.ndarray:
    """Topspin ball that bounces on the robot's half after 0.32 s."""
    return np.array([0.1, 1.3, 0.3, 0.2, -5.5, 1.0, 50.0, 5.0, -5.0])


@pytest.fixture(scope="session")
def observations() -> Callable[..., Iterator[tuple[BallPosition, np.ndarray]]]:
    """`observe_ball`: noisy positions of a ball with the true states."""
    return observe_ball


@pytest.fixture(scope="session")
def true_state() -> Callable[..., np.ndarray]:
    """`state_at`: true state of a ball some time after its start."""
    return state_at
