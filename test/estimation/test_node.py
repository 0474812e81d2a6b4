"""The node: positions in, states, predictions and latency stamps out, bad messages counted."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest

from tt_perception.messages import ball_position_to_msg, stamp_from_msg

CAP_S = 120.0


@pytest.mark.ros
def test_node_answers_positions_with_states(
    loop_ball: np.ndarray, rng: np.random.Generator, observations: Callable
) -> None:
    import rclpy
    from geometry_msgs.msg import PoseWithCovarianceStamped
    from rclpy.executors import SingleThreadedExecutor

    from tt_bringup.node_kit import TTNode
    from tt_estimation.ball_state_node import BallStateNode
    from tt_estimation.messages import ball_state_from_msg

    rclpy.init()
    try:
        node, probe = BallStateNode(), TTNode("probe")
        states, paths, latency = [], [], []
        positions = probe.advertise("ball/position")
        probe.listen("ball/state", states.append)
        probe.listen("ball/prediction", paths.append)
        probe.listen("latency", latency.append)
        executor = SingleThreadedExecutor()
        executor.add_node(node)
        executor.add_node(probe)

        def publish_until(message: PoseWithCovarianceStamped, condition: Callable[[], bool]) -> None:
            """Best-effort messages may get lost: again once a second, until the answer is there."""
            limit, again = time.monotonic() + CAP_S, 0.0
            while not condition():
                assert time.monotonic() < limit, "the node did not answer"
                if time.monotonic() > again:
                    positions.publish(message)
                    again = time.monotonic() + 1.0
                executor.spin_once(timeout_sec=0.05)

        first = probe.now_ns() - 1_000_000_000
        seen = [obs for obs, _ in observations(loop_ball, 0.25, rng, first_ns=first)]
        for i, obs in enumerate(seen):
            if i == 5:
                wrong = ball_position_to_msg(obs)
                wrong.header.frame_id = "map"
                publish_until(wrong, lambda: node._counts.get("bad_message", 0) > 0)
            if i < 2:
                done = lambda n=i + 1: node.diagnostic_values().get("unassigned", 0) >= n  # noqa: E731
            else:
                done = lambda t=obs.stamp_ns: bool(states) and ball_state_from_msg(states[-1]).stamp_ns == t  # noqa: E731
            publish_until(ball_position_to_msg(obs), done)
        publish_until(ball_position_to_msg(seen[-1]), lambda: bool(paths and latency))
        assert {m.source for m in latency} == {"estimated"}
        assert {stamp_from_msg(m.header.stamp) for m in latency} <= {obs.stamp_ns for obs in seen[2:]}
        assert paths[0].header.frame_id == "table"
        assert len(paths[0].poses) > 20
        executor.shutdown()
        node.destroy_node()
        probe.destroy_node()
    finally:
        rclpy.try_shutdown()
