"""The computing stages in one process: less traffic and less memory than one process each, same nodes."""

from __future__ import annotations

from tt_bringup.node_kit import run_nodes


def main() -> None:
    """Runs triangulation, ball state, hit planner and trajectory nodes."""
    from tt_estimation.ball_state_node import BallStateNode
    from tt_perception.triangulation_node import TriangulationNode
    from tt_planning.hit_planner_node import HitPlannerNode
    from tt_planning.trajectory_node import TrajectoryNode

    run_nodes([TriangulationNode, BallStateNode, HitPlannerNode, TrajectoryNode])


if __name__ == "__main__":
    main()
