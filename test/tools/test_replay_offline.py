"""Offline replay: from pictures as from detections, at the recorded instants."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import cv2
import golden
import numpy as np
import pytest
from rclpy.serialization import serialize_message

from tt_bringup import replay, replay_compare
from tt_bringup.bags import Bag, open_bag
from tt_bringup.cli import _guarded
from tt_bringup.record import RecordedTopic, save_messages
from tt_bringup.replay_planning import PlanningProcess
from tt_perception.camera import CameraModel, default_sim_cameras, save_cameras
from tt_perception.errors import TTError
from tt_perception.messages import detections_to_msg, image_to_msg
from tt_perception.types import CameraDetections
from tt_planning.pipeline import Event, Pipeline, Tick

DELAY_NS = 20_000_000
IMAGES, EMPTY = 34, 10  # the first ones show the background alone


@pytest.fixture(scope="module")
def golden_bag() -> Bag:
    return open_bag(golden.BAG)


class Pictures:
    """Half a second of the golden ball as three small cameras see it, and where it really was."""

    def __init__(self) -> None:
        from tt_sim.render import CameraRenderer, MovingBall

        self.cameras = tuple(camera.scaled(640, 400) for camera in default_sim_cameras()[:3])
        self.truth: dict[int, np.ndarray] = {}
        self.images: list[tuple[CameraModel, int, np.ndarray]] = []
        path = golden.ball_path(np.arange(IMAGES - EMPTY) / golden.FPS)
        for camera in self.cameras:
            renderer = CameraRenderer(camera)
            for k in range(IMAGES):
                stamp = golden.START_NS + round(k / golden.FPS * 1e9)
                balls = [MovingBall(path[k - EMPTY, :3], path[k - EMPTY, 3:6])] if k >= EMPTY else []
                self.images.append((camera, stamp, renderer.render(k / golden.FPS, balls).copy()))
                if k >= EMPTY:
                    self.truth[stamp] = path[k - EMPTY, :3]


@pytest.fixture(scope="module")
def pictures() -> Pictures:
    return Pictures()


def _calibration(pictures: Pictures, folder: Path) -> Path:
    save_cameras(folder / "small.yaml", pictures.cameras)
    return folder / "small.yaml"


def _write_bag(path: Path, pictures: Pictures, kind: str) -> None:
    topics, rows = [], []
    for camera in pictures.cameras:
        topics.append(RecordedTopic(f"/tt/{camera.name}/{kind}", f"sensor_msgs/msg/{_TYPES[kind]}"))
    for camera, stamp, image in sorted(pictures.images, key=lambda item: item[1]):
        message: Any = (
            image_to_msg(image, camera.name, stamp)
            if kind == "image_raw"
            else detections_to_msg(
                CameraDetections(camera.name, stamp, np.empty((0, 2)), np.empty(0), np.empty(0))
            )
        )
        rows.append((f"/tt/{camera.name}/{kind}", stamp + DELAY_NS, bytes(serialize_message(message))))
    save_messages(path, topics, rows)


_TYPES = {"image_raw": "Image", "detections": "PointCloud2"}


def _check_positions(pictures: Pictures, positions: list[Any]) -> None:
    errors = [np.linalg.norm(item.pos_table - pictures.truth[item.stamp_ns]) for item in positions]
    assert len(errors) > 0.8 * len(pictures.truth) and np.median(errors) < 0.004


def test_recorded_pictures_give_the_ball(tmp_path: Path, pictures: Pictures) -> None:
    _write_bag(tmp_path / "bag", pictures, "image_raw")
    bag = open_bag(tmp_path / "bag")
    settings = replay.settings_from_bag(bag, cameras=_calibration(pictures, tmp_path))
    assert settings.begin == "images", "nothing else was recorded"
    one, two = replay.run_offline(bag, settings), replay.run_offline(bag, settings)
    _check_positions(pictures, one.outputs["ball/position"])
    for name in replay.OUTPUTS[:2]:
        row = replay_compare.compare_topic(name, one.outputs[name], two.outputs[name])
        assert row.identical == row.recorded == row.replayed > 10


def test_pictures_in_folders_beside_a_recording(
    tmp_path: Path, pictures: Pictures, capsys: pytest.CaptureFixture
) -> None:
    _write_bag(tmp_path / "bag", pictures, "detections")
    for camera, stamp, image in pictures.images:
        folder = tmp_path / "pictures" / camera.name
        folder.mkdir(parents=True, exist_ok=True)
        cv2.imwrite(str(folder / f"{stamp}.png"), image)
        with (folder / "stamps.csv").open("a") as file:
            file.write(("" if file.tell() else "file,stamp_ns\n") + f"{stamp}.png,{stamp}\n")
    calibration = _calibration(pictures, tmp_path)
    bag = open_bag(tmp_path / "bag")
    settings = replay.settings_from_bag(bag, cameras=calibration, images=tmp_path / "pictures")
    result = replay.run_offline(bag, settings)
    _check_positions(pictures, result.outputs["ball/position"])
    rows = {row.topic: row for row in result.comparisons}
    centre = next(f for f in rows["/tt/cam0/detections"].fields if f.name == "candidates")
    assert rows["/tt/cam0/detections"].paired == IMAGES and centre.largest == 1.0, "the ball is found anew"
    (tmp_path / "pictures" / "cam0" / "stamps.csv").unlink()
    words = ["replay", str(tmp_path / "bag"), "--offline", "--cameras", str(calibration)]
    assert _guarded([*words, "--images", str(tmp_path / "pictures")]) == 2
    assert "has no stamps.csv" in capsys.readouterr().err
    assert _guarded([*words, "--images", str(tmp_path)]) == 2
    assert "one folder per camera" in capsys.readouterr().err


def test_pictures_of_another_size_are_one_line(
    tmp_path: Path, pictures: Pictures, capsys: pytest.CaptureFixture
) -> None:
    _write_bag(tmp_path / "bag", pictures, "image_raw")
    assert _guarded(["replay", str(tmp_path / "bag"), "--offline"]) == 2
    assert "640×400 px, but the calibration is for 1280×800 px" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("begin", "text"),
    [("images", "it has detections, ball/position, ball/state"), ("frames", "is none of images, detections")],
)
def test_first_input_that_is_not_there(capsys: pytest.CaptureFixture, begin: str, text: str) -> None:
    assert _guarded(["replay", str(golden.BAG), "--offline", "--from", begin]) == 2
    assert text in capsys.readouterr().err


@pytest.mark.parametrize("begin", ["ball/position", "ball/state"])
def test_later_beginnings_use_what_was_recorded(
    golden_bag: Bag, begin: str, capsys: pytest.CaptureFixture
) -> None:
    words = ["replay", str(golden.BAG), "--offline", "--from", begin, "--json"]
    assert _guarded(words) == 0
    outputs = json.loads(capsys.readouterr().out)["outputs"]
    assert outputs["ball/position"] == 0 and outputs["hit_plan"] > 50
    assert outputs["ball/state"] == (golden_bag.counts["/tt/ball/state"] if begin == "ball/position" else 0)


def test_decisions_are_repeated_at_the_instants_of_the_recording(golden_bag: Bag) -> None:
    """A planner that was slow and passed states over, as on a busy machine, is repeated exactly."""
    settings = replay.settings_from_bag(golden_bag)

    def slow(stage: str, capture_ns: int, now_ns: int) -> int:
        # Every eighth image something holds the processor for 20 ms.
        held = capture_ns // 8_333_333 % 8 == 0
        return now_ns + (20_000_000 if held else 300_000) + (2_000_000 if stage == "trajectory" else 0)

    live = Pipeline(settings.robot, settings.model, settings.cameras, settings.config, clock=slow)
    made = replay.ReplayResult()
    recorded = replay.Recorded({name: [] for name in replay.OUTPUTS})
    inputs: list[Event] = list(replay.events(golden_bag, settings))
    for event in inputs:
        out = live.step(event)
        replay.collect(out, made)
        for state in out.states:
            done = recorded.ended.setdefault("estimated", {})
            done[state.stamp_ns] = slow("planned", state.stamp_ns, event.now_ns)
    assert made.decisions["backlog"] > 5
    recorded.outputs = made.outputs
    clock = replay.RecordedTimes(recorded, settings.leads_s)
    again = Pipeline(settings.robot, settings.model, settings.cameras, settings.config, clock=clock)
    result = replay.ReplayResult()
    for event in inputs:
        replay.collect(again.step(event), result)
    assert result.decisions == made.decisions
    for row in replay_compare.compare(made.outputs, result.outputs):
        assert row.identical == row.paired == row.recorded == row.replayed > 50, row.topic


def test_a_busy_computer_is_no_occlusion(golden_bag: Bag) -> None:
    """Positions that arrive 0.3 s late, with pauses: tracks go on as in the live node."""
    settings = replay.settings_from_bag(golden_bag, begin="ball/position")
    pipeline = golden.new_pipeline(settings)
    made = replay.ReplayResult()
    late_ns = 300_000_000
    for event in replay.events(golden_bag, settings):
        arrived_ns = event.now_ns + late_ns
        replay.collect(pipeline.see(Event(arrived_ns - 1, Tick())), made)
        replay.collect(pipeline.see(Event(arrived_ns, event.data)), made)
    recorded = replay.read_recorded(golden_bag, settings).outputs["ball/state"]
    assert len(made.outputs["ball/state"]) == len(recorded) > 50


@pytest.mark.parametrize(
    ("node", "values", "text"),
    [
        ("hit_planner_node", {"robot": 5}, "parameter robot of hit_planner_node is 5, but must be a text"),
        ("hit_planner_node", [1], "parameters of hit_planner_node are [1], but must be a table"),
        ("hit_planner_node", {"lead": None}, "parameter lead of hit_planner_node is None"),
        ("trajectory_node", {"lead": 1e300}, "parameter lead of trajectory_node is 1e+300"),
        ("triangulation_node", {"wait": "x"}, "parameter wait of triangulation_node is 'x'"),
        ("triangulation_node", {"camera_names": 5}, "is 5, but must be a list of texts"),
        ("triangulation_node", {"free_cameras": [1]}, "is [1], but must be a list of texts"),
        (
            "ball_state_node",
            {"gate": 5},
            "parameter gate of ball_state_node is 5, but must be a number below 1",
        ),
    ],
)
def test_wrong_recorded_parameters_are_named(node: str, values: Any, text: str) -> None:
    bag = open_bag(golden.BAG)
    bag.custom["parameters"] = json.dumps({f"/tt/{node}": values})
    with pytest.raises(replay.ReplayError, match=re.escape(text)):
        replay.settings_from_bag(bag)


def test_an_error_of_the_planning_process_is_the_error_of_the_replay(golden_bag: Bag) -> None:
    settings = replay.settings_from_bag(golden_bag)
    broken = replace(settings, config=replace(settings.config, planner="none"))
    with PlanningProcess(golden_bag, broken) as planning, pytest.raises(TTError, match="unknown planner"):
        planning.finish()


def test_numbers_of_damaged_messages_that_cannot_be_are_left_out() -> None:
    bag = open_bag(golden.BAG)
    settings, topic = replay.settings_from_bag(bag), bag.find("hit_plan")
    whole = len(replay.read_recorded(bag, settings).outputs["hit_plan"])
    rows = list(bag.messages([topic]))  # type: ignore[list-item]
    rows[5] = rows[5]._replace(
        raw=rows[5].raw[:-60] + b"\xff" * 8 + rows[5].raw[-52:]
    )  # kind of the hit: NaN
    bag.messages = lambda _=None: iter(rows)  # type: ignore[method-assign, assignment]
    assert len(replay.read_recorded(bag, settings).outputs["hit_plan"]) == whole - 1
