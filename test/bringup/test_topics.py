"""The topic table against the contract of the design, the docs and the code."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tt_bringup.topics import (
    TOPICS,
    Qos,
    TopicError,
    absolute_name,
    recorded_topics,
    remap_arguments,
    remappings,
    topic,
)

ROOT = Path(__file__).resolve().parents[2]


@pytest.mark.parametrize("row", TOPICS, ids=lambda row: row.name)
def test_types_exist_and_rows_are_complete(row):
    assert row.ros_type().__name__ == row.type.split("/")[2]
    assert row.content.endswith(".") and row.publisher and row.rate
    assert row.is_service == ("/srv/" in row.type)


def test_only_standard_messages_are_used():
    packages = {row.type.split("/")[0] for row in TOPICS}
    standard = ("diagnostic", "geometry", "nav", "rosgraph", "sensor", "std", "trajectory", "visualization")
    assert packages <= {"std_srvs", *(f"{name}_msgs" for name in standard)}


def test_latched_topics_reach_those_who_come_late():
    latched = {row.name for row in TOPICS if row.qos == Qos.LATCHED}
    assert latched == {"{camera}/camera_info", "robot_description"}


def test_a_recording_holds_everything_that_replay_and_reports_need():
    names = {name for name, _ in recorded_topics(("cam0", "cam1"))}
    assert names >= {"cam0/detections", "cam1/detections", "cam0/camera_info", "ball/position", "ball/state"}
    assert names >= {"ball/prediction", "hit_plan", "joint_trajectory", "/joint_states", "latency"}
    assert "/diagnostics" in names
    assert "cam0/image_raw" not in names, "images would fill the disk"


def test_names_are_resolved():
    assert topic("{camera}/detections").resolve(camera="cam0") == "cam0/detections"
    assert absolute_name("ball/state") == "/tt/ball/state"
    assert absolute_name("ball/state", "/left/") == "/left/ball/state"
    assert absolute_name("/joint_states", "left") == "/joint_states"
    with pytest.raises(TopicError, match="camera"):
        topic("{camera}/detections").resolve()
    with pytest.raises(TopicError, match="ball/stat"):
        topic("ball/stat")


def test_nodes_use_no_topic_that_is_not_in_the_table():
    used = set()
    for file in ROOT.glob("tt_*/*_node.py"):
        found = re.findall(r"self\.(?:advertise|listen|serve|client)\(\s*\"([^\"]+)\"", file.read_text())
        used.update(found)
    assert used <= {row.name for row in TOPICS}
    assert {"ball/position", "ball/state", "hit_plan", "joint_trajectory"} <= used


def test_only_the_first_robot_has_its_joint_states_where_other_programs_look_for_them() -> None:
    assert remappings("tt") == remappings("/tt/") == ()
    assert remap_arguments("/left") == ["--ros-args", "-r", "/joint_states:=/left/joint_states"]
