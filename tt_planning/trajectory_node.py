"""Node: planned hits in, joint trajectories out."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tt_bringup.node_kit import TTNode, param, run_node
from tt_planning.hit_planner_node import measured_joints
from tt_planning.messages import MessageError, hit_plan_from_raw, joint_trajectory_to_raw
from tt_planning.robot import load_robot
from tt_planning.trajectory import NS_PER_S, TrajectoryConfig, TrajectoryGenerator, TrajectoryResult, sample
from tt_planning.warm_up import warm_up_generator

_TICK_S = 0.02
_NOT_FOLLOWED_NS = 200_000_000
_AT_REST = 0.25  # share of the deviation that is allowed while the command stands still
_RETRY_NS = 1_000_000_000


@dataclass(frozen=True)
class TrajectoryParams:
    """Parameters of the trajectory node."""

    robot: str = param("gantry4", doc="Name of a shipped robot or path of its YAML file.")
    lead: float = param(
        TrajectoryConfig().lead_s, unit="s", ge=0.0, le=0.1, doc="From a decision to the start of its motion."
    )
    return_to_ready: bool = param(True, doc="Go to the ready pose whenever the robot rests elsewhere.")
    linear_deviation: float = param(
        0.10,
        unit="m",
        gt=0.0,
        le=1.0,
        doc="A linear axis this far from its command means the motors do not follow.",
    )
    angular_deviation: float = param(0.4, unit="rad", gt=0.0, le=3.0, doc="The same for rotary axes.")


class TrajectoryNode(TTNode):
    """Publishes `joint_trajectory` for each plan, and the way back to ready.

    Each motion continues the commanded one. When the measured joints leave the command for 0.2 s (motors stopped or
    disabled) the commanded motion is forgotten and the next one starts from the measured joints at rest.
    """

    def __init__(self) -> None:
        super().__init__("trajectory_node", TrajectoryParams)
        p = self.params
        self._robot = load_robot(p.robot)
        self._generator = TrajectoryGenerator(self._robot, TrajectoryConfig(lead_s=p.lead))
        warm_up_generator(self._robot)
        linear = np.array([n in ("x", "y", "z") for n in self._robot.joint_names])
        linear &= self._robot.kinematics == "gantry"
        self._deviation = np.where(linear, p.linear_deviation, p.angular_deviation)
        self._measured: np.ndarray | None = None
        self._off_since: int | None = None
        self._next_ready_ns = 0
        self._trajectory_pub = self.advertise("joint_trajectory")
        self._joint_states = self.inbox("/joint_states")
        self.listen("hit_plan", self._on_plan, raw=True)
        self.create_timer(_TICK_S, self._on_tick)

    def _look_at_joints(self) -> None:
        """Whether the joints follow the command, by their newest measurement."""
        raw = self._joint_states.newest()
        if raw is None:
            return
        q = measured_joints(raw, self._robot.joint_names)
        if q is None:
            self.count("bad_joint_states")
            return
        now_ns = self.now_ns()
        self._measured = q
        command = self._generator.command(now_ns)
        if command is None:
            self._take_measured(now_ns)
            return
        # A motion that was asked for while the motors were off leaves the joints where they were, and near enough to
        # pass for a lag; at rest there is none.
        allowed = self._deviation if command.qd.any() else _AT_REST * self._deviation
        if (np.abs(command.q - q) > allowed).any():
            self._off_since = self._off_since or now_ns
            if now_ns - self._off_since > _NOT_FOLLOWED_NS:
                self.count("not_followed")
                self._take_measured(now_ns)
                self._next_ready_ns = now_ns + _RETRY_NS
        else:
            self._off_since = None

    def _take_measured(self, now_ns: int) -> None:
        assert self._measured is not None
        zero = np.zeros(self._robot.joint_count)
        self._generator.set_reference(self._measured, zero, zero, now_ns)
        self._off_since = None
        if self._generator.current is not None:
            self._trajectory_pub.publish(joint_trajectory_to_raw(self._generator.current))

    def _on_plan(self, raw: bytes) -> None:
        try:
            plan = hit_plan_from_raw(raw)
        except MessageError as error:
            self.count("bad_message")
            self.log.warning(str(error), throttle_s=1.0)
            return
        result = self._generator.hit(plan, self.now_ns())
        done_ns = self.now_ns()
        self._publish(result)
        if result.trajectory is not None:
            self.stamp_latency("trajectory", plan.capture_stamp_ns, done_ns)

    def _on_tick(self) -> None:
        """Watches the joints; back to ready when the robot rests somewhere else."""
        self._look_at_joints()
        now_ns = self.now_ns()
        current = self._generator.current
        if not self.params.return_to_ready or current is None or self._measured is None:
            return
        if now_ns < self._next_ready_ns or now_ns < current.capture_stamp_ns + current.times_s[-1] * NS_PER_S:
            return
        q, _, _ = sample(current, now_ns)
        if (np.abs(q - self._robot.ready) > 1e-6).any():
            self._publish(self._generator.ready(now_ns))
            self._next_ready_ns = now_ns + _RETRY_NS

    def _publish(self, result: TrajectoryResult) -> None:
        self.count(result.reason.name.lower())
        if result.trajectory is not None:
            self._trajectory_pub.publish(joint_trajectory_to_raw(result.trajectory))


def main() -> None:
    """Runs the node."""
    run_node(TrajectoryNode)


if __name__ == "__main__":
    main()
