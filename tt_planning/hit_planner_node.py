"""Node: ball states in, planned hits out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tt_bringup.node_kit import TTNode, param, run_node
from tt_estimation.messages import ball_state_from_raw
from tt_estimation.model_file import load_model
from tt_estimation.prediction import Predictor
from tt_planning.decision import HitDecider, Skipped
from tt_planning.messages import (
    MessageError,
    hit_plan_to_raw,
    joint_positions_from_raw,
    joint_trajectory_from_raw,
)
from tt_planning.planners import PLANNERS, make_planner
from tt_planning.robot import available_robots, load_robot
from tt_planning.trajectory import NS_PER_S, JointSample, TrajectoryConfig, sample
from tt_planning.types import JointTrajectory
from tt_planning.warm_up import warm_up_planner


@dataclass(frozen=True)
class HitPlannerParams:
    """Parameters of the hit planner node."""

    robot: str = param("gantry4", doc="Name of a shipped robot or path of its YAML file.")
    model: str = param(
        "nominal",
        doc="Ball constants of flight and contact: nominal, deepmind, match, or the YAML written by tt identify.",
    )
    planner: str = param("ours", choices=tuple(PLANNERS), doc="Planner that decides the hit.")
    aim_x: float = param(0.0, unit="m", ge=-0.7, le=0.7, doc="Landing point across the opponent's half.")
    aim_y: float = param(0.75, unit="m", ge=0.1, le=1.3, doc="Landing point along the opponent's half.")
    lead: float = param(
        TrajectoryConfig().lead_s, unit="s", ge=0.0, le=0.1, doc="From a decision to the start of its motion."
    )


class HitPlannerNode(TTNode):
    """Plans a hit with every ball state; joints are the commanded ones, else the measured ones."""

    def __init__(self) -> None:
        super().__init__("hit_planner_node", HitPlannerParams)
        p = self.params
        self._robot = load_robot(p.robot)
        model = load_model(p.model)
        planner = make_planner(p.planner, self._robot, model, aim=(p.aim_x, p.aim_y))
        self._decider = HitDecider(planner, Predictor(model), model)
        self._trajectory: JointTrajectory | None = None
        # Compiling takes seconds the first time: before the first ball, not during it.
        warm_up_planner(planner, self._robot, model)
        self._plan_pub = self.advertise("hit_plan")
        self._measured: np.ndarray | None = None
        self._joint_states = self.inbox("/joint_states")
        self.listen("joint_trajectory", self._on_trajectory, raw=True)
        self.listen("ball/state", self._on_state, raw=True)
        self.log.info(f"robot {self._robot.name} of {', '.join(available_robots())}; planner {p.planner}")

    def _on_trajectory(self, raw: bytes) -> None:
        try:
            trajectory = joint_trajectory_from_raw(raw)
        except MessageError as error:
            self.count("bad_message")
            self.log.warning(str(error), throttle_s=1.0)
            return
        if trajectory.joint_names == self._robot.joint_names:
            self._trajectory = trajectory

    def _start(self, now_ns: int) -> JointSample | None:
        """Joints where a motion decided now would start."""
        at = now_ns + round(self.params.lead * NS_PER_S)
        if self._trajectory is not None:
            return JointSample(at, *sample(self._trajectory, at))
        # No motion was commanded yet: the joints stand, and their newest measurement tells where.
        raw = self._joint_states.newest()
        if raw is not None:
            self._measured = measured_joints(raw, self._robot.joint_names)
        if self._measured is None:
            return None
        zero = np.zeros(self._robot.joint_count)
        return JointSample(at, np.clip(self._measured, self._robot.lower, self._robot.upper), zero, zero)

    def _on_state(self, raw: bytes) -> None:
        try:
            state = ball_state_from_raw(raw)
        except MessageError as error:
            self.count("bad_message")
            self.log.warning(str(error), throttle_s=1.0)
            return
        now_ns = self.now_ns()
        result = self._decider.decide(state, self._start(now_ns), now_ns)
        if result is Skipped.NO_JOINTS:
            self.health("warn", "joint positions unknown: is motor_node running?", key="joints", hold_s=2.0)
        if isinstance(result, Skipped):
            self.count(result.name.lower())
            return
        self.count(result.reason.name.lower())
        if result.plan is not None:
            done_ns = self.now_ns()
            self._plan_pub.publish(hit_plan_to_raw(result.plan))
            self.stamp_latency("planned", state.stamp_ns, done_ns)


def measured_joints(raw: bytes, joint_names: tuple[str, ...]) -> np.ndarray | None:
    """Positions of a serialized JointState in our joint order.

    Returns:
        None when it cannot be read, or a joint is missing or not finite.
    """
    try:
        _, names, positions = joint_positions_from_raw(raw)
    except MessageError:
        return None
    index = {name: i for i, name in enumerate(names)}
    if any(n not in index or index[n] >= len(positions) for n in joint_names):
        return None
    q = positions[[index[n] for n in joint_names]]
    return q if np.isfinite(q).all() else None


def main() -> None:
    """Runs the node."""
    run_node(HitPlannerNode)


if __name__ == "__main__":
    main()
