"""The way back to ready on the wire."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import rclpy
from rclpy.executors import SingleThreadedExecutor
from sensor_msgs.msg import JointState
from trajectory_msgs.msg import JointTrajectory

from tt_bringup.node_kit.node import qos_profile
from tt_bringup.topics import topic
from tt_planning.robot import load_robot

pytestmark = pytest.mark.ros


def test_a_motion_that_the_motors_did_not_do_is_asked_for_again(
    processes: Any, wait_for: Callable[..., None]
) -> None:
    robot = load_robot("gantry4")
    ends: list[np.ndarray] = []
    rclpy.init(args=[])
    try:
        node = rclpy.create_node("motors_that_are_off", namespace="tt")
        qos = {name: qos_profile(topic(name).qos) for name in ("/joint_states", "joint_trajectory")}
        joints = node.create_publisher(JointState, "/joint_states", qos["/joint_states"])
        node.create_subscription(
            JointTrajectory,
            "joint_trajectory",
            lambda message: ends.append(np.array(message.points[-1].positions)),
            qos["joint_trajectory"],
        )
        home = JointState(name=list(robot.joint_names), position=np.asarray(robot.home, float).tolist())
        node.create_timer(0.02, lambda: joints.publish(home))
        executor = SingleThreadedExecutor()
        executor.add_node(node)
        processes.python("-m", "tt_planning.trajectory_node", "--ros-args", "-r", "__ns:=/tt")

        def asked_twice() -> bool:
            executor.spin_once(timeout_sec=0.05)
            return sum(np.allclose(end, robot.ready) for end in ends) >= 2

        assert not np.allclose(robot.home, robot.ready)
        wait_for(asked_twice, 60.0)
        node.destroy_node()
    finally:
        rclpy.try_shutdown()
