"""Markers, URDF drawing, and the visualization node on the wire."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import rclpy
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from rclpy.serialization import deserialize_message, serialize_message
from visualization_msgs.msg import Marker, MarkerArray

from tt_bringup import scene
from tt_bringup.markers import Markers, layout_is_known, serialize, to_message
from tt_bringup.paths import shared_file
from tt_bringup.rally import odometry
from tt_bringup.urdf_scene import UrdfError, UrdfScene
from tt_perception.camera import default_sim_cameras
from tt_perception.cdr import MessageError, path_points
from tt_planning.kinematics import make_kinematics
from tt_planning.robot import available_robots, load_robot


def _full() -> Markers:
    markers = Markers()
    markers.table()
    markers.cameras(default_sim_cameras())
    markers.ball((0.1, -0.2, 0.3), np.diag((1e-4, 4e-4, 1e-5)), (80.0, 0.0, 5.0))
    markers.path(np.array([(0.0, 1.0, 0.3), (0.0, 0.0, 0.2), (0.0, -0.7, 0.021), (0.0, -1.4, 0.3)]))
    markers.planned_hit((0, -1.5, 0.2), (0, 0, 0, 1), (0, 3, 0), (0.15, 0.014, 0.16), (0, 0.75, 0))
    markers.landing((0.1, 0.8), True)
    markers.text("ball 7: returned")
    markers.robot(UrdfScene(load_robot("gantry4").urdf), {"x": 0.1})
    return markers


def test_own_serialization_equals_that_of_ros() -> None:
    assert layout_is_known()
    records = _full().changed()
    by_ros = deserialize_message(serialize_message(to_message(records)), MarkerArray)
    assert deserialize_message(serialize(records), MarkerArray) == by_ros


def test_only_what_changed_is_sent_and_hidden_things_are_deleted() -> None:
    markers = _full()
    every = markers.changed()
    assert {m.space for m in every} == {
        "table", "cameras", "ball", "covariance", "spin", "path", "bounce", "racket", "aim", "landing", "state", "robot"
    }  # fmt: skip
    assert markers.changed() == []
    markers.ball((0.2, 0.0, 0.3), np.eye(3) * 1e-4, (0.0, 0.0, 0.0))
    assert {m.space for m in markers.changed()} == {"ball", "covariance", "spin"}
    markers.hide("ball", "ball")
    (gone,) = markers.changed()
    assert gone.action == Marker.DELETE
    assert len({(m.space, m.number) for m in every}) == len(every)


def test_rviz_file_names_every_kind_of_marker_and_topic() -> None:
    config = yaml.safe_load(shared_file("rviz/table_tennis.rviz").read_text())
    displays = {d["Name"]: d for d in config["Visualization Manager"]["Displays"]}
    assert set(displays["Scene"]["Namespaces"]) == {m.space for m in _full().changed()}
    assert config["Visualization Manager"]["Global Options"]["Fixed Frame"] == "table"


@given(st.lists(st.floats(-0.01, 0.01), min_size=9, max_size=9))
@settings(max_examples=50, deadline=None)
def test_ellipsoid_has_the_volume_of_its_covariance(numbers: list[float]) -> None:
    root = np.array(numbers).reshape(3, 3) + np.eye(3) * 0.02
    cov = root @ root.T
    axes, rotation = scene.ellipsoid(cov, sigmas=1.0)
    np.testing.assert_allclose(rotation @ rotation.T, np.eye(3), atol=1e-9)
    assert np.linalg.det(rotation) == pytest.approx(1.0)
    rebuilt = rotation @ np.diag((axes / 2.0) ** 2) @ rotation.T
    np.testing.assert_allclose(rebuilt, cov, atol=1e-6)


def test_ellipsoid_of_nonsense_is_small() -> None:
    axes, _ = scene.ellipsoid(np.full((3, 3), np.nan))
    assert np.all(axes == 0.001)


@pytest.mark.parametrize("name", available_robots())
def test_drawn_racket_is_where_kinematics_say(name: str) -> None:
    robot = load_robot(name)
    drawn = UrdfScene(robot.urdf)
    rng = np.random.default_rng(1)
    for _ in range(5):
        q = rng.uniform(robot.lower, robot.upper)
        pos, rot = make_kinematics(robot).forward(q)
        pose = drawn.link_poses(dict(zip(robot.joint_names, q, strict=True)))[robot.racket.link]
        np.testing.assert_allclose(pose[:3, 3], pos, atol=1e-9)
        np.testing.assert_allclose(pose[:3, :3], rot, atol=1e-9)


def test_text_that_is_no_urdf() -> None:
    with pytest.raises(UrdfError, match="no URDF"):
        UrdfScene("<robot><joint/></robot")


def test_raw_readers_agree_with_ros() -> None:
    from geometry_msgs.msg import PoseStamped
    from nav_msgs.msg import Odometry
    from nav_msgs.msg import Path as PathMsg

    message = Odometry()
    message.header.frame_id, message.child_frame_id = "table", "ball"
    message.header.stamp.sec, message.header.stamp.nanosec = 1_800_000_000, 7
    values = np.arange(9.0)
    p, v, w = message.pose.pose.position, message.twist.twist.linear, message.twist.twist.angular
    (p.x, p.y, p.z), (v.x, v.y, v.z), (w.x, w.y, w.z) = values[:3], values[3:6], values[6:]
    message.pose.covariance = np.arange(36.0)
    stamp, got, cov = odometry(bytes(serialize_message(message)))
    assert stamp == 1_800_000_000_000_000_007 and np.array_equal(got, values)
    assert np.array_equal(cov, np.arange(36.0).reshape(6, 6)[:3, :3])
    path = PathMsg()
    for i, frame in enumerate(("table", "", "a longer name")):
        pose = PoseStamped()
        pose.header.frame_id, pose.header.stamp.nanosec = frame, i
        pose.pose.position.x, pose.pose.position.z = float(i), 2.0 * i
        path.poses.append(pose)
    stamps, points = path_points(bytes(serialize_message(path)))
    assert stamps.tolist() == [0, 1, 2] and points.tolist() == [[0, 0, 0], [1, 0, 2], [2, 0, 4]]
    with pytest.raises(MessageError):
        path_points(b"\x00\x01\x00\x00\x01")


def test_visualization_node_publishes_the_scene_and_the_urdf(processes: Any, tmp_path: Path) -> None:
    from nav_msgs.msg import Odometry
    from std_msgs.msg import String

    from tt_bringup.node_kit.node import qos_profile
    from tt_bringup.topics import topic

    processes.python("-m", "tt_bringup.visualization_node")
    rclpy.init(args=[])
    try:
        node = rclpy.create_node("looker", namespace="tt")
        seen: set[str] = set()
        urdf: list[str] = []
        node.create_subscription(
            MarkerArray,
            "markers",
            lambda m: seen.update(k.ns for k in m.markers),
            qos_profile(topic("markers").qos),
        )
        node.create_subscription(
            String,
            "robot_description",
            lambda m: urdf.append(m.data),
            qos_profile(topic("robot_description").qos),
        )
        publisher = node.create_publisher(Odometry, "ball/state", qos_profile(topic("ball/state").qos))
        for _ in range(400):
            publisher.publish(Odometry())
            rclpy.spin_once(node, timeout_sec=0.05)
            if {"table", "ball", "covariance", "cameras"} <= seen and urdf:
                break
        node.destroy_node()
    finally:
        rclpy.try_shutdown()
    assert {"table", "ball", "covariance", "cameras"} <= seen
    assert "gantry4" in urdf[0]
