"""Two robots on one network: each hears its own cameras and commands its own motors."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import rclpy
from nav_msgs.msg import Odometry
from rclpy.executors import SingleThreadedExecutor
from trajectory_msgs.msg import JointTrajectory

from tt_bringup.bags import open_bag
from tt_bringup.node_kit.node import qos_profile
from tt_bringup.topics import STAGE_INPUTS, remap_arguments, topic

pytestmark = [pytest.mark.ros, pytest.mark.slow]
GOLDEN = Path(__file__).resolve().parents[1] / "tools" / "data" / "golden_rally"
ROBOTS = ("left", "right")
WINDOWS = ("--stop=0.55", "--start=0.65")  # of the recording, which holds a capture 30 ms after it
BETWEEN_S = 0.57


def test_a_ball_of_one_robot_moves_only_that_robot(processes: Any, wait_for: Callable[..., None]) -> None:
    heard: dict[str, list[float]] = {}  # capture times, s after the start of the recording
    start_ns = open_bag(GOLDEN).start_ns

    def note(name: str, message: Any) -> None:
        stamp = message.header.stamp
        heard.setdefault(name, []).append((stamp.sec * 10**9 + stamp.nanosec - start_ns) * 1e-9)

    rclpy.init(args=[])
    try:
        node = rclpy.create_node("observer")
        for robot in ROBOTS:
            for name, kind in (("ball/state", Odometry), ("joint_trajectory", JointTrajectory)):
                full = f"/{robot}/{name}"
                node.create_subscription(
                    kind, full, lambda message, full=full: note(full, message), qos_profile(topic(name).qos)
                )
        executor = SingleThreadedExecutor()
        executor.add_node(node)

        def listening() -> bool:
            executor.spin_once(timeout_sec=0.05)
            found = {
                (info.node_namespace, info.node_name)
                for robot in ROBOTS
                for name in STAGE_INPUTS
                for info in node.get_subscriptions_info_by_topic(f"/{robot}/{name}")
            }
            return all((f"/{robot}", stage) in found for robot in ROBOTS for stage in STAGE_INPUTS.values())

        for robot in ROBOTS:
            words = [*remap_arguments(robot), "-r", f"__ns:=/{robot}", "-p", "use_sim_time:=true"]
            processes.python("-m", "tt_bringup.compute_node", *words)
        wait_for(listening, 400.0)  # the first start compiles
        # Each robot gets its own part of the ball, so that a capture time tells whose it is, however late it comes.
        for robot, window in zip(ROBOTS, WINDOWS, strict=True):
            names = ["/joint_states", *(f"/tt/cam{i}/detections" for i in range(4))]
            remaps = [f"--remap={name}:=/{robot}/{name.removeprefix('/tt').strip('/')}" for name in names]
            words = ("replay", str(GOLDEN), "--rate=0.5", window, *remaps)
            player = processes.python("-m", "tt_bringup.cli", *words)

            def heard_enough(player: Any = player, robot: str = robot) -> bool:
                executor.spin_once(timeout_sec=0.05)
                return player.poll() is not None and len(heard.get(f"/{robot}/ball/state", ())) > 10

            wait_for(heard_enough, 60.0)
            assert player.returncode == 0
        assert heard["/left/joint_trajectory"]
        for name, times in heard.items():
            of_left = [time < BETWEEN_S for time in times]
            assert all(of_left) if name.startswith("/left") else not any(of_left), name
        node.destroy_node()
    finally:
        rclpy.try_shutdown()
