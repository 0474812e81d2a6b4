"""Ball files are checked value by value; sampled balls have the published distribution."""

from __future__ import annotations

import json
from itertools import islice

import numpy as np
import pytest

from tt_estimation.ball_models import NOMINAL
from tt_sim.ball import Ball, Surface
from tt_sim.ball_file import FIELDS, load_balls
from tt_sim.ball_server import (
    BallServer,
    balls_for,
    bounces_on_robot_half_first,
    fast_balls,
    incoming,
    sample_balls,
)
from tt_sim.errors import BallFileError

GOOD = dict(zip(FIELDS, (0.06, 1.2, 0.25, 0.1, -6.0, 1.0, 60.0, -5.0, -7.0), strict=True)) | {"id": 2704}


def write(tmp_path, content):
    path = tmp_path / "balls.json"
    path.write_text(content if isinstance(content, str) else json.dumps(content))
    return path


def test_good_file_keeps_ids_and_values(tmp_path):
    (ball,) = load_balls(write(tmp_path, [GOOD]))
    assert ball.ball_id == 2704
    assert ball.state == pytest.approx([GOOD[name] for name in FIELDS])


@pytest.mark.parametrize(
    ("content", "text"),
    [
        ("", "empty"),
        ("[{", "not valid JSON"),
        ("{}", "must be a list"),
        ("[]", "no ball"),
        ("[1]", "instead of an object"),
        ([{k: v for k, v in GOOD.items() if k != "vel_y"}], "field vel_y is missing"),
        ([GOOD, GOOD | {"pos_z": float("nan")}], r"entry 1 \(id 2704\): pos_z is nan"),
        ([GOOD | {"vel_x": float("inf")}], "vel_x is inf"),
        ([GOOD | {"pos_x": "0.1"}], "pos_x is '0.1'; it must be a number"),
        ([GOOD | {"pos_x": None}], "pos_x is None"),
        ([GOOD | {"pos_x": True}], "pos_x is True"),
        ([GOOD | {"id": "a"}], "id is 'a'"),
        ([{k: v for k, v in GOOD.items() if k != "id"}], "id is None"),
        ([GOOD | {"pos_y": 1200.0}], "millimetres"),
        ([GOOD | {"vel_y": -6000.0}], "millimetres"),
        ([GOOD | {"w_vel_x": 6000.0}], "w_vel_x is 6000 rad/s"),
        ([GOOD | {"pos_x": 10**400}], "pos_x"),
    ],
)
def test_bad_file_is_one_clear_line(tmp_path, content, text):
    with pytest.raises(BallFileError, match=text) as error:
        load_balls(write(tmp_path, content))
    assert "\n" not in str(error.value)
    assert "balls.json" in str(error.value)


def test_missing_file_and_folder(tmp_path):
    with pytest.raises(BallFileError, match="No such file"):
        load_balls(tmp_path / "none.json")
    with pytest.raises(BallFileError, match="directory"):
        load_balls(tmp_path)


def test_binary_file_is_refused(tmp_path):
    path = tmp_path / "balls.json"
    path.write_bytes(b"\xff\xfe\x00\x80")
    with pytest.raises(BallFileError, match="UTF-8"):
        load_balls(path)


def test_incoming_keeps_balls_that_bounce_on_the_robot_half_first(tmp_path):
    away = GOOD | {"id": 1, "vel_y": 6.0}
    into_net = GOOD | {"id": 2, "pos_z": 0.05, "vel_z": 0.0}
    long = GOOD | {"id": 3, "vel_y": -12.0, "vel_z": 3.0}
    serve = GOOD | {"id": 4, "vel_z": -4.0}
    balls = load_balls(write(tmp_path, [away, GOOD, into_net, long, serve]))
    assert [b.ball_id for b in incoming(balls)] == [2704]


def test_asking_for_more_balls_than_the_file_has(tmp_path):
    with pytest.raises(BallFileError, match="at most 1"):
        balls_for(write(tmp_path, [GOOD]), 2, 0, NOMINAL)


def test_server_repeats_a_file_and_seeds_its_samples(tmp_path):
    server = BallServer(load_balls(write(tmp_path, [GOOD, GOOD | {"id": 5}])))
    assert [server.next().ball_id for _ in range(3)] == [2704, 5, 2704]
    first, again, other = (BallServer(seed=s).next().state for s in (3, 3, 4))
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def statistics(ball):
    """The quantities of the published table for one ball; NaN where it does not reach."""
    flight = Ball(NOMINAL)
    flight.reset(ball.state)
    bounce = apex = height = pass_137 = pass_160 = speed_137 = height_137 = np.nan
    while flight.time_s < 2.5 and flight.state[2] > -0.1:
        y, vz = flight.state[1], flight.state[5]
        for contact in flight.advance(0.002):
            if contact.surface is Surface.TABLE and np.isnan(bounce):
                bounce, vz = contact.time_s, contact.vel_after[2]
        state = flight.state
        if not np.isnan(bounce) and np.isnan(apex) and vz > 0.0 >= state[5]:
            apex, height = flight.time_s, state[2] - 0.02
        if y > -1.37 >= state[1]:
            pass_137, speed_137, height_137 = flight.time_s, np.linalg.norm(state[3:6]), state[2] - 0.02
        if y > -1.6 >= state[1]:
            pass_160 = flight.time_s
    speed, spin = np.linalg.norm(ball.state[3:6]), np.linalg.norm(ball.state[6:])
    return (speed, spin, bounce, apex, height, pass_137, pass_160, speed_137, height_137)


PUBLISHED = {  # 5, 50, 95 % and the tolerance of each
    "speed": ((3.89, 5.46, 7.62), 0.35),
    "spin": ((9, 49, 100), 8),
    "bounce time": ((0.317, 0.449, 0.621), 0.03),
    "apex time": ((0.511, 0.678, 0.904), 0.045),
    "apex height": ((0.20, 0.30, 0.45), 0.045),
    "passes y = −1.37": ((0.474, 0.654, 0.951), 0.125),
    "passes y = −1.6": ((0.538, 0.745, 1.082), 0.125),
    "speed there": ((2.07, 2.88, 4.15), 0.3),
    "height there": ((0.06, 0.24, 0.38), 0.045),
}


def test_sampled_balls_have_the_published_percentiles():
    rows = np.array([statistics(ball) for ball in islice(sample_balls(0), 1200)])
    rows = rows[np.isfinite(rows).all(axis=1)]
    for column, (name, (published, tolerance)) in enumerate(PUBLISHED.items()):
        got = np.percentile(rows[:, column], (5, 50, 95))
        assert got == pytest.approx(published, abs=tolerance), name


def test_sampled_balls_all_bounce_on_the_robot_half():
    assert all(bounces_on_robot_half_first(ball) for ball in islice(sample_balls(1), 50))


@pytest.mark.parametrize(
    ("speed", "bounce_s", "end_line_s"),
    [(8, 0.338, 0.496), (12, 0.226, 0.321), (16, 0.170, 0.238), (20, 0.136, 0.190)],
)
def test_fast_balls_match_the_published_times(speed, bounce_s, end_line_s):
    straight, *others = fast_balls(speed, 4, seed=0)
    _, _, bounce, _, _, pass_137, *_ = statistics(straight)
    assert bounce == pytest.approx(bounce_s, abs=0.002)
    assert pass_137 == pytest.approx(end_line_s, abs=0.003)
    assert all(bounces_on_robot_half_first(ball) for ball in others)


def test_public_file_gives_the_published_numbers(ball_file):
    balls = load_balls(ball_file)
    towards = [b for b in balls if b.state[4] < 0]
    assert len(balls) == 7896
    assert len(towards) == 7351
    # 11 590 of 14 703 without a net; a net stops a few more.
    share = sum(1 for b in towards[::4] if bounces_on_robot_half_first(b)) / len(towards[::4])
    assert share == pytest.approx(11590 / 14703, abs=0.04)
