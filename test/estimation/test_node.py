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

        def spin_until(condition: Callable[[], bool]) -> None:
            limit = time.monotonic() + CAP_S
            while not condition():
                assert time.monotonic() < limit, "the node did not answer"
                executor.spin_once(timeout_sec=0.05)

        spin_until(
            lambda: positions.get_subscription_count() > 0 and node.count_subscribers("ball/state") > 0
        )
        first = probe.now_ns() - 1_000_000_000
        for i, (obs, _) in enumerate(observations(loop_ball, 0.25, rng, first_ns=first)):
            message = ball_position_to_msg(obs)
            if i == 5:
                wrong = ball_position_to_msg(obs)
                wrong.header.frame_id = "map"
                positions.publish(wrong)
            positions.publish(message)
            if i >= 2:
                spin_until(lambda n=i - 1: len(states) >= n)
            else:
                spin_until(lambda n=i + 1: node.diagnostic_values().get("unassigned", 0) >= n)
        last = ball_state_from_msg(states[-1])
        assert last.stamp_ns == obs.stamp_ns
        spin_until(lambda: len(paths) > 0 and len(latency) == len(states))
        assert {m.source for m in latency} == {"estimated"}
        assert stamp_from_msg(latency[-1].header.stamp) == obs.stamp_ns
        assert paths[0].header.frame_id == "table"
        assert len(paths[0].poses) > 20
        assert node._counts["bad_message"] == 1
        executor.shutdown()
        node.destroy_node()
        probe.destroy_node()
    finally:
        rclpy.try_shutdown()
