"""The three launch files under the real launch_ros, where it is installed: nodes start, data flow, nothing is left."""

from __future__ import annotations

import json
import os
import signal
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import rclpy
from rclpy.executors import SingleThreadedExecutor
from rclpy.qos import qos_profile_sensor_data

from tt_bringup.paths import share_dir
from tt_perception.camera import default_sim_cameras, save_cameras

pytest.importorskip("launch_ros.actions", reason="launch_ros is not installed: it comes with ROS 2 only")

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "test" / "tools" / "data" / "golden_rally"
CAP_S = 150.0  # a cold machine compiles kernels first
# What `ros2 launch FILE name:=value` does.
LAUNCH = """
import sys
from launch import LaunchDescription, LaunchService
from launch.actions import IncludeLaunchDescription
from launch.launch_description_sources import PythonLaunchDescriptionSource
given = [tuple(word.split(":=", 1)) for word in sys.argv[2:]]
source = PythonLaunchDescriptionSource(sys.argv[1])
service = LaunchService()
service.include_launch_description(
    LaunchDescription([IncludeLaunchDescription(source, launch_arguments=given)]))
sys.exit(service.run())
"""


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    """An installed package as launch_ros looks for it: index, executables, launch files."""
    root = tmp_path / "prefix"
    (root / "share/ament_index/resource_index/packages").mkdir(parents=True)
    (root / "share/ament_index/resource_index/packages/tt_bringup").touch()
    for folder in ("lib/tt_bringup", "bin"):
        (root / folder).mkdir(parents=True)
    for script in (ROOT / "scripts").iterdir():
        copy = root / "lib/tt_bringup" / script.name  # it looks for ../../bin/python3 beside itself
        copy.write_text(script.read_text())
        copy.chmod(0o755)
    python = root / "bin" / "python3"
    python.write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    python.chmod(0o755)
    return root


@pytest.fixture
def launch(processes: Any, prefix: Path) -> Callable[..., Any]:
    """Starts a launch file."""

    def start(mode: str, **given: str) -> Any:
        path = os.pathsep.join(filter(None, [str(prefix), os.environ.get("AMENT_PREFIX_PATH", "")]))
        file = share_dir() / "launch" / f"{mode}.launch.py"
        words = [f"{name}:={value}" for name, value in given.items()]
        return processes.python(
            "-c",
            LAUNCH,
            str(file),
            *words,
            AMENT_PREFIX_PATH=path,
            PYTHONPATH=os.pathsep.join([str(ROOT), *sys.path]),
        )

    return start


def _wait_for_data(process: Any, topics: dict[str, Any]) -> None:
    """Until a message has come on every topic."""
    rclpy.init(args=[])
    try:
        node = rclpy.create_node("launch_test")
        seen: set[str] = set()
        for name, kind in topics.items():
            node.create_subscription(
                kind, name, lambda _, n=name: seen.add(n), qos_profile_sensor_data, raw=True
            )
        executor = SingleThreadedExecutor()
        executor.add_node(node)
        end = node.get_clock().now().nanoseconds + CAP_S * 1e9
        while seen != set(topics):
            executor.spin_once(timeout_sec=0.2)
            assert process.poll() is None, f"the launch ended with {process.returncode}"
            assert node.get_clock().now().nanoseconds < end, f"nothing on {sorted(set(topics) - seen)}"
        node.destroy_node()
    finally:
        rclpy.try_shutdown()


def _ends_well(process: Any) -> None:
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=60.0)
    assert process.returncode == 0
    assert not _in_session(process.pid)


def _in_session(session: int) -> list[str]:
    """Command lines of the processes that belong to a session."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                fields = (folder / "stat").read_text().rsplit(")", 1)[1].split()
                if int(fields[3]) == session and fields[0] != "Z":
                    found.append((folder / "cmdline").read_text().replace("\0", " "))
            except OSError:
                continue  # it has ended meanwhile
    return found


def test_sim(launch: Callable[..., Any]) -> None:
    from sensor_msgs.msg import JointState, PointCloud2

    process = launch("sim", log_level="warn")
    _wait_for_data(process, {"/joint_states": JointState, "/tt/cam0/detections": PointCloud2})
    _ends_well(process)


def test_robot_with_simulated_hardware(launch: Callable[..., Any], processes: Any, tmp_path: Path) -> None:
    """The robot's launch file with folders of pictures and simulated boards in the places of the hardware."""
    from sensor_msgs.msg import JointState, PointCloud2

    boards = processes.python("-m", "tt_bringup.cli", "sim", "bus", "--json")
    device = json.loads(boards.stdout.readline())["device"]
    cameras = [camera.scaled(320, 200) for camera in default_sim_cameras()[:2]]
    save_cameras(tmp_path / "small.yaml", cameras)
    hardware = {
        "calibration": str(tmp_path / "small.yaml"),
        "cameras": {
            c.name: {"backend": "folder", "device": str(_pictures(tmp_path / c.name))} for c in cameras
        },
        "motors": {"transport": "fdcanusb", "device": device},
    }
    file = tmp_path / "hardware.yaml"
    file.write_text(json.dumps(hardware))
    process = launch("robot", hardware=str(file), log_level="warn")
    _wait_for_data(process, {"/joint_states": JointState, "/tt/cam1/detections": PointCloud2})
    _ends_well(process)


def _pictures(folder: Path) -> Path:
    """Half a minute of grey pictures."""
    folder.mkdir()
    good = cv2.imwrite(str(folder / "grey.png"), np.full((200, 320), 90, np.uint8))
    assert good
    lines = [f"grey.png,{1_000_000_000 + 50_000_000 * k}" for k in range(600)]
    (folder / "stamps.csv").write_text("\n".join(["file,stamp_ns", *lines]))
    return folder


def test_replay(launch: Callable[..., Any]) -> None:
    from nav_msgs.msg import Odometry
    from trajectory_msgs.msg import JointTrajectory

    process = launch("replay", bag=str(GOLDEN), loop="true", log_level="warn")
    _wait_for_data(process, {"/tt/ball/state": Odometry, "/tt/joint_trajectory": JointTrajectory})
    _ends_well(process)
