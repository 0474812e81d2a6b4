"""A process that publishes numbered latency stamps, odometry and diagnostics at a given rate, then says how
many.

usage: publisher.py RATE SECONDS [TOPICS_THAT_MUST_BE_HEARD]
"""

from __future__ import annotations

import sys
import time

import rclpy
from builtin_interfaces.msg import Time
from nav_msgs.msg import Odometry
from rclpy.parameter import Parameter
from rclpy.serialization import serialize_message
from sensor_msgs.msg import TimeReference

from tt_bringup.node_kit.node import qos_profile
from tt_bringup.topics import topic


def main() -> None:
    rate, seconds = float(sys.argv[1]), float(sys.argv[2])
    rclpy.init(args=[])
    node = rclpy.create_node("publisher", namespace="tt", parameter_overrides=[Parameter("gain", value=0.25)],
                             automatically_declare_parameters_from_overrides=True)  # fmt: skip
    names = ("latency", "ball/state", "sim/ball_truth")
    publishers = [
        node.create_publisher(topic(name).ros_type(), name, qos_profile(topic(name).qos)) for name in names
    ]
    end = time.monotonic() + 20.0
    while any(p.get_subscription_count() == 0 for p in publishers) and time.monotonic() < end:
        rclpy.spin_once(node, timeout_sec=0.02)
    # Matched here does not mean matched there, and best effort forgives nobody: give the other side time.
    end = time.monotonic() + 1.0
    while time.monotonic() < end:
        rclpy.spin_once(node, timeout_sec=0.02)
    total = int(rate * seconds)
    odometry = bytes(serialize_message(Odometry()))
    begin, sent = time.monotonic(), 0
    while sent < total:
        due = min(total, int((time.monotonic() - begin) * rate))
        for number in range(sent, due):
            if number % 3:
                publishers[number % 3].publish(odometry)
            else:
                stamp = TimeReference(source="arrived")
                stamp.header.stamp = Time(sec=1, nanosec=number)
                publishers[0].publish(stamp)
        sent = due
        rclpy.spin_once(node, timeout_sec=0.001)
    print(total, flush=True)
    end = time.monotonic() + 30.0
    while time.monotonic() < end:  # parameters can be asked for until the test ends this process
        rclpy.spin_once(node, timeout_sec=0.1)


if __name__ == "__main__":
    main()
