"""Publishes the scene as markers for rviz2 and Foxglove, and the URDF of the robot."""

from __future__ import annotations

import time
from dataclasses import dataclass
from operator import sub
from typing import Any

import numpy as np
import rclpy
from diagnostic_msgs.msg import DiagnosticStatus
from nav_msgs.msg import Odometry
from nav_msgs.msg import Path as PathMsg
from rclpy.clock import Clock, ClockType
from rclpy.serialization import deserialize_message
from sensor_msgs.msg import JointState
from std_msgs.msg import String
from trajectory_msgs.msg import MultiDOFJointTrajectory

from tt_perception.cdr import path_points
from tt_bringup.markers import Markers, layout_is_known, serialize, to_message
from tt_bringup.node_kit import TTNode, param, run_node
from tt_bringup.node_kit.node import qos_profile
from tt_bringup.paths import shared_file
from tt_bringup.topics import topic
from tt_bringup.urdf_scene import UrdfScene
from tt_perception.camera import load_cameras
from tt_perception.errors import TTError
from tt_planning.messages import hit_plan_from_msg
from tt_planning.robot import load_robot
from tt_sim.messages import result_from_msg

BALL_SHOWN_S = 0.5
PLAN_SHOWN_S = 1.5
LANDING_SHOWN_S = 4.0
STILL = 5e-4  # m or rad; a robot that moved less is not drawn again
REFRESH_PERIOD_S = 2.0  # everything again, for a viewer that came late
_TYPES: dict[str, Any] = {
    "ball/state": Odometry,
    "ball/prediction": PathMsg,
    "hit_plan": MultiDOFJointTrajectory,
    "/joint_states": JointState,
    "sim/result": DiagnosticStatus,
}


@dataclass(frozen=True)
class VisualizationParams:
    """Parameters of `visualization_node`."""

    robot: str = param("gantry4", doc="Name of a robot, or path of its YAML file.")
    cameras: str = param("", doc="Extrinsics file; the cameras of the simulation when empty.")
    rate_hz: float = param(30.0, unit="Hz", gt=0.0, le=30.0, doc="How often markers are published at most.")
    robot_markers: bool = param(
        True, doc="Draw the robot too; not needed where rviz has a RobotModel display."
    )


class Inbox:
    """The newest message of each topic, taken when it is time to draw.

    The subscriptions belong to a node that no executor knows, so the middleware overwrites old messages and
    Python does not wake up for each of them: a third of the CPU time of callbacks.
    """

    def __init__(self, node: TTNode) -> None:
        self._node = rclpy.create_node(
            f"_{node.get_name()}_inbox",
            namespace=node.get_namespace(),
            start_parameter_services=False,
            enable_rosout=False,
        )
        self._subscriptions = {}
        for name in _TYPES:
            row = topic(name)
            profile = qos_profile(row.qos)  # type: ignore[arg-type]
            profile.depth = 1
            self._subscriptions[name] = self._node.create_subscription(
                row.ros_type(), row.resolve(), lambda _: None, profile, raw=True
            )

    def newest(self, name: str) -> bytes | None:
        """What arrived since the last call; None when nothing did."""
        subscription = self._subscriptions[name]
        with subscription.handle:
            taken = subscription.handle.take_message(subscription.msg_type, True)
        return None if taken is None else taken[0]

    def close(self) -> None:
        """Ends the subscriptions."""
        self._node.destroy_node()


class VisualizationNode(TTNode):
    """Draws at a fixed rate what is newest then."""

    def __init__(self) -> None:
        super().__init__("visualization_node", VisualizationParams)
        robot = load_robot(self.params.robot)
        self._robot = UrdfScene(robot.urdf)
        self._racket_size = (robot.racket.width, robot.racket.thickness, robot.racket.height)
        self._seen_s: dict[str, float] = {}
        self._markers = Markers()
        self._markers.table()
        self._markers.cameras(load_cameras(self.params.cameras or shared_file("config/cameras/sim4.yaml")))
        self._drawn_all_s = 0.0
        self._watchers = 0
        self._fast = layout_is_known()
        self._robot_at: tuple[float, ...] = ()
        self._publisher = self.advertise("markers")
        self._description = self.advertise("robot_description")
        self._description.publish(String(data=robot.urdf))
        self._inbox = Inbox(self)
        self.create_timer(
            1.0 / self.params.rate_hz, self._draw, clock=Clock(clock_type=ClockType.STEADY_TIME)
        )

    def _draw(self) -> None:
        watchers = self._publisher.get_subscription_count()
        if watchers > self._watchers:
            self._drawn_all_s = 0.0
        self._watchers = watchers
        if watchers == 0:
            return
        now = time.monotonic()
        for name, kind in _TYPES.items():
            raw = self._inbox.newest(name)
            if raw is None:
                continue
            self._seen_s[name] = now
            try:
                if name == "ball/prediction":
                    self._markers.path(path_points(raw)[1])
                else:
                    self._show(name, deserialize_message(raw, kind))
            except (TTError, ValueError, KeyError) as error:
                self.log.warning(f"{name} is not drawn: {error}", throttle_s=5.0)
        self._hide_old(now)
        every = now - self._drawn_all_s > REFRESH_PERIOD_S
        changed = self._markers.changed(every)
        if every:
            self._drawn_all_s = now
        if changed:
            self._publisher.publish(serialize(changed) if self._fast else to_message(changed))

    def _show(self, name: str, message: Any) -> None:
        if name == "ball/state":
            at, spin = message.pose.pose.position, message.twist.twist.angular
            cov = np.asarray(message.pose.covariance, float).reshape(6, 6)[:3, :3]
            self._markers.ball((at.x, at.y, at.z), cov, (spin.x, spin.y, spin.z))
        elif name == "hit_plan":
            plan = hit_plan_from_msg(message)
            self._markers.planned_hit(
                plan.racket_pos_table,
                plan.racket_quat_xyzw,
                plan.racket_vel_table,
                self._racket_size,
                plan.aim_table,
            )
        elif name == "/joint_states" and self.params.robot_markers:
            at = tuple(message.position)
            if len(at) != len(self._robot_at) or max(map(abs, map(sub, at, self._robot_at))) > STILL:
                self._robot_at = at
                self._markers.robot(self._robot, dict(zip(message.name, at, strict=False)))
        elif name == "sim/result":
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

    def cleanup(self) -> None:
        """Ends the subscriptions."""
        if hasattr(self, "_inbox"):
            self._inbox.close()


def main() -> None:
    """Entry point."""
    run_node(VisualizationNode)


if __name__ == "__main__":
    main()
