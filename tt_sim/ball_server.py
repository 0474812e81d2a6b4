"""Balls to serve: from a public ball file, or from an own distribution fitted to published percentiles.

The file format is that of `ball_file`.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterable, Iterator
from itertools import cycle, islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tt_estimation.ball_models import NOMINAL, BallModel
from tt_perception.table import TABLE_LENGTH_M
from tt_sim.ball import Ball, Surface
from tt_sim.ball_file import ServedBall, load_balls
from tt_sim.errors import BallFileError

FloatArray = NDArray[np.float64]

_FLY_STEP_S = 0.004
_FLY_LIMIT_S = 3.0


def bounces_on_robot_half_first(ball: ServedBall, model: BallModel = NOMINAL) -> bool:
    """True when the ball's first bounce is on the robot's half, flown under `model` with the net in place."""
    if ball.state[4] >= 0.0:
        return False
    flight = Ball(model)
    flight.reset(ball.state)
    for _ in range(round(_FLY_LIMIT_S / _FLY_STEP_S)):
        for contact in flight.advance(_FLY_STEP_S):
            if contact.surface is Surface.TABLE:
                return bool(contact.pos_table[1] < 0.0 and contact.normal_table[2] > 0.5)
            if contact.surface is Surface.FLOOR:
                return False
        if flight.state[2] < -0.1:
            return False
    return False


def incoming(balls: Iterable[ServedBall], model: BallModel = NOMINAL) -> Iterator[ServedBall]:
    """The balls that bounce on the robot's half first, in order."""
    return (ball for ball in balls if bounces_on_robot_half_first(ball, model))


# Own distribution: chosen so that balls that bounce on the robot's half first have the published 5/50/95 %
# percentiles of speed, spin, times and heights (test/sim/test_ball_server.py holds them against it).
_HIT_Y_M = (1.22, 0.22)  # mean, standard deviation
_HIT_X_M = (-0.06, 0.35)
_HIT_Z_LOG = (math.log(0.40), 0.28)
_SPEED_LOG = (math.log(5.35), 0.23)
_VERTICAL_MPS = (1.5, 0.7)
_TARGET_X_M = (0.12, 0.38)  # where the ball heads to at the end line
_TOPSPIN_RADPS = (38.0, 34.0)
_SIDESPIN_RADPS = (0.0, 10.0)  # mean, scale of a Laplace distribution


def sample_balls(seed: int) -> Iterator[ServedBall]:
    """Endless balls of the own distribution; the same seed gives the same balls."""
    rng = np.random.default_rng(seed)
    number = 0
    while True:
        pos = np.array([rng.normal(*_HIT_X_M), rng.normal(*_HIT_Y_M), math.exp(rng.normal(*_HIT_Z_LOG))])
        speed = math.exp(rng.normal(*_SPEED_LOG))
        vz = rng.normal(*_VERTICAL_MPS)
        target_x = rng.normal(*_TARGET_X_M)
        spin = np.array(
            [rng.normal(*_TOPSPIN_RADPS), rng.laplace(*_SIDESPIN_RADPS), rng.laplace(*_SIDESPIN_RADPS)]
        )
        if pos[1] < 0.3 or pos[1] > 2.3 or abs(vz) > 0.6 * speed:
            continue
        heading = np.array([target_x - pos[0], -TABLE_LENGTH_M / 2 - pos[1]])
        level = math.sqrt(speed * speed - vz * vz) / float(np.hypot(*heading))
        ball = ServedBall(number, np.r_[pos, heading * level, vz, spin])
        if bounces_on_robot_half_first(ball):
            yield ball
            number += 1


FAST_HIT_Y_M = 1.6  # just behind the far end line; this place gives the published times of fast balls


def fast_balls(speed_mps: float, count: int, seed: int) -> list[ServedBall]:
    """Fast drives: hit 45 cm high behind the far end line, topspin 50 rad/s, aimed to bounce at y = −0.7 m.

    The elevation is solved under the nominal model; hit and bounce places spread over the width of the table,
    the first ball flies straight down the middle.
    """
    rng = np.random.default_rng(seed)
    flight = Ball(NOMINAL)

    def state(elevation: float, hit_x: float, target_x: float) -> FloatArray:
        heading = np.array([target_x - hit_x, -0.7 - FAST_HIT_Y_M])
        heading /= np.hypot(*heading)
        level = speed_mps * math.cos(elevation)
        spin = 50.0 * np.array([-heading[1], heading[0], 0.0])
        vel = np.array([level * heading[0], level * heading[1], speed_mps * math.sin(elevation)])
        return np.r_[hit_x, FAST_HIT_Y_M, 0.45, vel, spin]

    def landing_y(candidate: FloatArray) -> float:
        """Where it first touches table or net; the floor behind the robot when it touches neither."""
        flight.reset(candidate)
        while flight.time_s < _FLY_LIMIT_S:
            for contact in flight.advance(_FLY_STEP_S):
                return float(contact.pos_table[1])
        return -math.inf

    balls = []
    for number in range(count):
        hit_x, target_x = (0.0, 0.0) if number == 0 else (rng.uniform(-0.5, 0.5), rng.uniform(-0.6, 0.6))
        low, high = math.radians(-30.0), math.radians(35.0)
        for _ in range(50):
            middle = 0.5 * (low + high)
            if landing_y(state(middle, hit_x, target_x)) > -0.7:
                low = middle
            else:
                high = middle
        balls.append(ServedBall(number, state(high, hit_x, target_x)))
    return balls


class BallServer:
    """Serves balls that bounce on the robot's half first: those of a file, over and over, or endless samples.

    Args:
        balls: balls of a file; None samples the own distribution.
        seed: of the samples.
        model: laws under which the balls are looked at.

    Raises:
        BallFileError: no ball of the file bounces on the robot's half first.
    """

    def __init__(
        self, balls: list[ServedBall] | None = None, seed: int = 0, model: BallModel = NOMINAL
    ) -> None:
        # Looked at one by one as they are served: a large file would delay the start by seconds.
        source = sample_balls(seed) if balls is None else cycle(balls)
        self._waiting = deque(islice(incoming(source if balls is None else balls, model), 1))
        if not self._waiting:
            raise BallFileError("no ball of the file bounces on the robot's half first; give other balls")
        self._source = incoming(source, model)
        if balls is not None:
            next(self._source)  # the one that waits

    def next(self) -> ServedBall:
        """The next ball."""
        ball = self._waiting.popleft()
        self._waiting.append(next(self._source))
        return ball


def balls_for(path: str | Path | None, count: int, seed: int, model: BallModel) -> list[ServedBall]:
    """`count` balls that bounce on the robot's half first, from a file or sampled.

    Raises:
        BallFileError: the file is bad, or holds fewer such balls.
    """
    source = sample_balls(seed) if path is None else iter(load_balls(path))
    balls = list(islice(incoming(source, model), count))
    if len(balls) < count:
        raise BallFileError(
            f"ball file {path} holds {len(balls)} balls that bounce on the robot's half first, fewer than "
            f"the {count} asked for; ask for at most {len(balls)}"
        )
    return balls
