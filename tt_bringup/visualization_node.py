"""Publishes the scene as markers for rviz2 and Foxglove, and the URDF of the robot."""

from __future__ import annotations

import time
from dataclasses import dataclass
from operator import sub

from diagnostic_msgs.msg import DiagnosticStatus
from rclpy.clock import Clock, ClockType
from rclpy.serialization import deserialize_message
from std_msgs.msg import String

from tt_bringup.markers import Markers, layout_is_known, serialize, to_message
from tt_bringup.node_kit import TTNode, param, run_node
from tt_bringup.node_kit.inbox import Inbox
from tt_bringup.paths import shared_file
from tt_bringup.rally import odometry
from tt_bringup.topics import JOINT_STATES
from tt_bringup.urdf_scene import UrdfScene
from tt_perception.camera import load_cameras
from tt_perception.cdr import path_points
from tt_perception.errors import TTError
from tt_planning.messages import hit_plan_from_raw, joint_positions_from_raw
from tt_planning.robot import load_robot
from tt_sim.messages import result_from_msg

BALL_SHOWN_S = 0.5
PLAN_SHOWN_S = 1.5
LANDING_SHOWN_S = 4.0
STILL = 5e-4  # m or rad; a robot that moved less is not drawn again
REFRESH_PERIOD_S = 2.0  # everything again, for a viewer that came late
COUNT_PERIOD_S = 0.25  # to ask the middleware takes as long as to draw the ball
DRAWN = ("ball/state", "ball/prediction", "hit_plan", JOINT_STATES, "sim/result")


@dataclass(frozen=True)
class VisualizationParams:
    """Parameters of `visualization_node`."""

    robot: str = param("gantry4", doc="Name of a robot, or path of its YAML file.")
    cameras: str = param("", doc="Extrinsics file; the cameras of the simulation when empty.")
    rate_hz: float = param(30.0, unit="Hz", gt=0.0, le=30.0, doc="How often markers are published at most.")
    robot_markers: bool = param(
        True,
        doc="Draw the robot too; the graph leaves it out where robot_state_publisher is installed, because rviz then "
        "draws it as a RobotModel, and joint states are half of this node's work.",
    )


class VisualizationNode(TTNode):
    """Draws at a fixed rate what is newest then; listens to nothing while nobody watches."""

    def __init__(self) -> None:
        super().__init__("visualization_node", VisualizationParams)
        robot = load_robot(self.params.robot)
        self._robot = UrdfScene(robot.urdf)
        self._racket_size = (robot.racket.width, robot.racket.thickness, robot.racket.height)
        self._seen_s: dict[str, float] = {}
        self._markers = Markers()
        self._markers.table()
        self._markers.cameras(load_cameras(self.params.cameras or shared_file("config/cameras/sim4.yaml")))
        self._drawn_all_s = self._counted_s = 0.0
        self._watchers = 0
        self._fast = layout_is_known()
        self._robot_at: tuple[float, ...] = ()
        self._publisher = self.advertise("markers")
        self._description = self.advertise("robot_description")
        self._description.publish(String(data=robot.urdf))
        self._newest: dict[str, Inbox] = {}
        self.create_timer(
            1.0 / self.params.rate_hz, self._draw, clock=Clock(clock_type=ClockType.STEADY_TIME)
        )

    def _draw(self) -> None:
        now = time.monotonic()
        if now - self._counted_s > COUNT_PERIOD_S:
            self._counted_s = now
            self._count_watchers()
        if self._watchers == 0:
            return
        for name, inbox in self._newest.items():
            raw = inbox.newest()
            if raw is None:
                continue
            self._seen_s[name] = now
            try:
                self._show(name, raw)
            except (TTError, ValueError, KeyError) as error:
                self.log.warning(f"{name} is not drawn: {error}", throttle_s=5.0)
        self._hide_old(now)
        every = now - self._drawn_all_s > REFRESH_PERIOD_S
        changed = self._markers.changed(every)
        if every:
            self._drawn_all_s = now
        if changed:
            self._publisher.publish(serialize(changed) if self._fast else to_message(changed))

    def _count_watchers(self) -> None:
        watchers = self._publisher.get_subscription_count()
        if watchers > self._watchers:
            self._drawn_all_s = 0.0
        if bool(watchers) != bool(self._watchers):
            self._listen(bool(watchers))
        self._watchers = watchers

    def _listen(self, watched: bool) -> None:
        """Begins to listen, or ends it: messages cost a third of this node also when they are not drawn."""
        if watched:
            drawn = [name for name in DRAWN if name != JOINT_STATES or self.params.robot_markers]
            self._newest = {name: self.inbox(name) for name in drawn}
        else:
            for inbox in self._newest.values():
                self.close_inbox(inbox)
            self._newest = {}

    def _show(self, name: str, raw: bytes) -> None:
        if name == "ball/state":
            _, values, cov = odometry(raw)
            self._markers.ball(values[:3].tolist(), cov, values[6:])
        elif name == "ball/prediction":
            self._markers.path(path_points(raw)[1])
        elif name == "hit_plan":
            plan = hit_plan_from_raw(raw)
            self._markers.planned_hit(
                plan.racket_pos_table,
                plan.racket_quat_xyzw,
                plan.racket_vel_table,
                self._racket_size,
                plan.aim_table,
            )
        elif name == JOINT_STATES:
            _, names, positions = joint_positions_from_raw(raw)
            at = tuple(positions.tolist())
            if (
                len(at) != len(self._robot_at)
                or max(map(abs, map(sub, at, self._robot_at)), default=0.0) > STILL
            ):
                self._robot_at = at
                self._markers.robot(self._robot, dict(zip(names, at, strict=False)))
        elif name == "sim/result":
            message = deserialize_message(raw, DiagnosticStatus)
            result = result_from_msg(message)
            landing = result.get("landing_m")
            if landing is not None:
                self._markers.landing(landing, message.level == DiagnosticStatus.OK)
            self._markers.text(f"ball {result.get('id', '?')}: {message.message}")

    def _hide_old(self, now: float) -> None:
        for name, shown_s, markers in (
            ("ball/state", BALL_SHOWN_S, ("ball", "covariance", "spin")),
            ("ball/prediction", BALL_SHOWN_S, ("path", "bounce")),
            ("hit_plan", PLAN_SHOWN_S, ("racket", "racket/velocity", "aim")),
            ("sim/result", LANDING_SHOWN_S, ("landing",)),
        ):
            if now - self._seen_s.get(name, now) > shown_s:
                self._markers.hide(*markers)


def main() -> None:
    """Entry point."""
    run_node(VisualizationNode, background=True)


if __name__ == "__main__":
    main()
