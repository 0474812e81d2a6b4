"""Two robots on one network: each hears its own cameras and commands its own motors."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import rclpy
from nav_msgs.msg import Odometry
from rclpy.executors import SingleThreadedExecutor
from trajectory_msgs.msg import JointTrajectory

from tt_bringup.node_kit.node import qos_profile
from tt_bringup.topics import STAGE_INPUTS, remap_arguments, topic

pytestmark = [pytest.mark.ros, pytest.mark.slow]
GOLDEN = Path(__file__).resolve().parents[1] / "tools" / "data" / "golden_rally"
ROBOTS = ("left", "right")


def test_a_ball_of_one_robot_moves_only_that_robot(processes: Any, wait_for: Callable[..., None]) -> None:
    heard: Counter[str] = Counter()
    rclpy.init(args=[])
    try:
        node = rclpy.create_node("observer")
        for robot in ROBOTS:
            for name, kind in (("ball/state", Odometry), ("joint_trajectory", JointTrajectory)):
                full = f"/{robot}/{name}"
                node.create_subscription(
                    kind, full, lambda _, full=full: heard.update([full]), qos_profile(topic(name).qos)
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
        for robot in ROBOTS:
            names = ["/joint_states", *(f"/tt/cam{i}/detections" for i in range(4))]
            remaps = [f"--remap={name}:=/{robot}/{name.removeprefix('/tt').strip('/')}" for name in names]
            heard.clear()
            player = processes.python("-m", "tt_bringup.cli", "replay", str(GOLDEN), "--rate=0.5", *remaps)

            def over(player: Any = player) -> bool:
                executor.spin_once(timeout_sec=0.05)
                return player.poll() is not None

            wait_for(over, 60.0)
            assert player.returncode == 0
            assert heard[f"/{robot}/ball/state"] > 20 and heard[f"/{robot}/joint_trajectory"] > 0, heard
            assert {name.split("/")[1] for name in heard} == {robot}, heard
        node.destroy_node()
    finally:
        rclpy.try_shutdown()
