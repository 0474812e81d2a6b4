"""Identification of ball constants: found, refused, and refused with the right reason; the command on real bags."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import islice
from pathlib import Path

import numpy as np
import pytest
from rosbags.rosbag2 import StoragePlugin, Writer
from rosbags.typesys import Stores, get_typestore

from tt_bringup import cli
from tt_estimation.ball_models import DEEPMIND, MATCH, NOMINAL, BallModel
from tt_estimation.identify import Identification, identify
from tt_estimation.messages import ball_state_to_msg
from tt_estimation.model_file import load_model
from tt_estimation.spin_prior import load_spin_prior
from tt_estimation.tracker import BallTracker
from tt_perception.errors import TTError
from tt_perception.messages import ball_position_to_msg
from tt_perception.types import BallPosition
from tt_sim.ball_server import sample_balls
from tt_sim.eval_estimation import choose_balls, record_flights


def recording(model: BallModel, count: int) -> list[BallPosition]:
    balls = choose_balls(list(islice(sample_balls(3), 4 * count + 40)), count, model)
    return record_flights(balls, model)


@pytest.fixture(scope="module")
def match_recording() -> list[BallPosition]:
    return recording(MATCH, 50)


@pytest.fixture(scope="module")
def match_found(match_recording: list[BallPosition]) -> Identification:
    return identify(match_recording)


def test_fifty_balls_of_world_match_are_identified(match_found: Identification) -> None:
    p = match_found.parameters
    assert match_found.law == "saturating"
    assert all(p[n].determined for n in ("drag", "lift", "table_restitution", "table_friction"))
    assert p["drag"].value == pytest.approx(MATCH.drag, rel=0.02)
    assert p["table_restitution"].value == pytest.approx(MATCH.table_restitution, rel=0.01)
    assert p["lift"].value == pytest.approx(MATCH.lift, rel=0.10)
    # Intervals mean something: the truth lies within four standard deviations.
    for name in ("drag", "lift", "table_restitution", "table_friction"):
        assert abs(p[name].value - getattr(MATCH, name)) < 4.0 * p[name].sigma
    assert match_found.residual_after_m < 0.0032 < match_found.residual_before_m
    assert not p["clock_offset"].determined
    assert match_found.noise_scale == pytest.approx(1.0, abs=0.1)


def test_very_different_ball_is_found_from_nominal_constants() -> None:
    p = identify(recording(DEEPMIND, 25))
    assert p.law == "linear"
    assert p.model.table_friction == pytest.approx(0.10, abs=0.01)
    assert p.model.table_restitution == pytest.approx(0.975, abs=0.005)
    assert p.model.lift == pytest.approx(1.33, rel=0.05)


def test_constants_without_evidence_are_kept_and_said(true_state: Callable) -> None:
    rng = np.random.default_rng(0)
    stream = []
    for k in range(12):  # lobs that are caught before they bounce
        start = np.array([0.0, 1.2, 0.5, 0.1 * rng.normal(), -5.0, 2.5, 20 * rng.normal(), 0.0, 0.0])
        for i in range(36):
            truth = true_state(start, i / 120, MATCH)
            stamp = 10**9 + k * 2 * 10**9 + round(i / 120 * 1e9)
            stream.append(BallPosition(stamp, truth[:3] + 0.003 * rng.normal(size=3), np.eye(3) * 9e-6))
    found = identify(stream)
    for name in ("table_restitution", "table_friction"):
        assert not found.parameters[name].determined
        assert getattr(found.model, name) == getattr(NOMINAL, name)
        assert "bounce" in found.parameters[name].reason
    assert found.bounces == 0


def test_absurd_recordings_are_refused_with_the_cause(match_recording: list[BallPosition]) -> None:
    some = match_recording[:1500]

    def changed(f: Callable[[np.ndarray], np.ndarray]) -> list[BallPosition]:
        return [replace(p, pos_table=f(p.pos_table)) for p in some]

    for stream, text in (
        (changed(lambda x: x[[1, 0, 2]]), "x and y are swapped"),
        (changed(lambda x: x[[0, 2, 1]]), "axes or the unit"),
        (changed(lambda x: 1000.0 * x), "millimetres"),
        (changed(lambda x: x * np.array([1, 1, -1])), "axes or the unit"),
        (some[:40], "flights"),
        ([], "no ball position"),
    ):
        with pytest.raises(TTError, match=text):
            identify(stream)


def test_unknown_law_is_refused(match_recording: list[BallPosition]) -> None:
    with pytest.raises(TTError, match="cubic"):
        identify(match_recording, law="cubic")


def write_bag(path: Path, topic: str, kind: str, messages: list, plugin: StoragePlugin) -> Path:
    from rclpy.serialization import serialize_message

    store = get_typestore(Stores.ROS2_JAZZY)
    with Writer(path, version=9, storage_plugin=plugin) as writer:
        connection = writer.add_connection(topic, kind, typestore=store)
        for message in messages:
            stamp = message.header.stamp.sec * 10**9 + message.header.stamp.nanosec
            writer.write(connection, stamp, serialize_message(message))
    return path


POSE = "geometry_msgs/msg/PoseWithCovarianceStamped"


def run(words: list[str], capsys: pytest.CaptureFixture[str]) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        cli.main(words)
    out, err = capsys.readouterr()
    return int(end.value.code or 0), out, err


def test_command_writes_model_and_report(
    match_recording: list[BallPosition], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    third = match_recording[: len(match_recording) // 3]
    half = len(third) // 2
    bags = []
    for name, part, plugin in (
        ("a", third[:half], StoragePlugin.MCAP),
        ("b", third[half:], StoragePlugin.SQLITE3),
    ):
        messages = [ball_position_to_msg(p) for p in part]
        bags.append(str(write_bag(tmp_path / name, "/tt/ball/position", POSE, messages, plugin)))
    target = tmp_path / "ball.yaml"
    code, out, _ = run(["identify", *bags, "-o", str(target), "--json"], capsys)
    assert code == 0
    result = json.loads(out)
    assert set(result["parameters"]["drag"]) >= {"value", "sigma", "unit", "determined"}
    assert result["parameters"]["drag"]["value"] == pytest.approx(MATCH.drag, rel=0.04)
    assert result["residual_after_m"] < result["residual_before_m"]
    assert load_model(str(target)).drag == result["parameters"]["drag"]["value"]
    page = (tmp_path / "ball.html").read_text()
    assert page.count("data:image/png;base64,") == 2
    assert not list(tmp_path.glob("*.part"))


def test_command_takes_ball_states_too(
    match_recording: list[BallPosition], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    tracker = BallTracker(NOMINAL)
    states = [s for s in (tracker.add(p) for p in match_recording[:1200]) if s is not None]
    messages = [ball_state_to_msg(s) for s in states]
    bag = write_bag(tmp_path / "s", "/tt/ball/state", "nav_msgs/msg/Odometry", messages, StoragePlugin.MCAP)
    code, out, _ = run(["identify", str(bag), "-o", str(tmp_path / "m.yaml"), "--json"], capsys)
    assert code == 0
    assert json.loads(out)["flights"] >= 5


def test_command_refuses_bags_it_cannot_use(
    match_recording: list[BallPosition], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    messages = [ball_position_to_msg(p) for p in match_recording[:600]]
    other = write_bag(tmp_path / "other", "/tt/something", POSE, messages, StoragePlugin.MCAP)
    for message in messages:
        q = message.pose.pose.position
        q.x, q.y = q.y, q.x
    swapped = write_bag(tmp_path / "swapped", "/tt/ball/position", POSE, messages, StoragePlugin.MCAP)
    for message in messages:
        message.header.frame_id = "map"
    frame = write_bag(tmp_path / "frame", "/tt/ball/position", POSE, messages, StoragePlugin.MCAP)
    for words, text in (
        ([str(other)], "neither ball/position nor ball/state"),
        ([str(swapped)], "x and y are swapped"),
        ([str(frame)], "'map'"),
        ([str(tmp_path / "absent")], "absent"),
        ([], "name at least one bag"),
        ([str(swapped), "--temperature", "20"], "--pressure"),
        ([str(swapped), "--start", "nominall"], "nominall"),
    ):
        code, out, err = run(["identify", *words, "-o", str(tmp_path / "x.yaml")], capsys)
        assert code == 2
        assert out == ""
        assert text in err
        assert "Traceback" not in err
    assert not (tmp_path / "x.yaml").exists()


def test_command_refits_the_spin_prior(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    fields = ("pos_x", "pos_y", "pos_z", "vel_x", "vel_y", "vel_z", "w_vel_x", "w_vel_y", "w_vel_z")
    balls = [
        {"id": i, **dict(zip(fields, map(float, b.state), strict=True))}
        for i, b in enumerate(islice(sample_balls(1), 300))
    ]
    file = tmp_path / "balls.json"
    file.write_text(json.dumps(balls))
    target = tmp_path / "prior.yaml"
    code, out, _ = run(["identify", "--spin-prior", str(file), "-o", str(target), "--json"], capsys)
    assert code == 0
    facts = json.loads(out)["spin_prior"]
    assert facts["states"] == 300
    assert facts["held_out_mahalanobis2"] == pytest.approx(3.0, abs=0.8)
    prior = load_spin_prior(str(target))
    assert prior.low.tolist() == facts["low"] and prior.high.tolist() == facts["high"]
    assert prior.low[4] < prior.high[4] < 0.0


@pytest.mark.parametrize(
    ("words", "file"),
    [
        (["identify", "some_bag"], "ball_model.yaml"),
        (["identify", "--spin-prior", "states.json"], "spin_prior.yaml"),
        (["calibrate", "extrinsics"], "cameras.yaml"),
    ],
)
def test_a_result_that_was_not_named_replaces_no_earlier_one(
    words: list[str],
    file: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path(file).write_text("an earlier result")
    code, _, err = run(words, capsys)
    assert code == 2 and f"{file} is here already" in err and "--out" in err
    assert Path(file).read_text() == "an earlier result"
