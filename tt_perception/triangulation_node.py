"""Node: detections of all cameras in, ball positions in frame `table` out."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import numpy as np

from tt_bringup.node_kit import TTNode, param, run_node
from tt_perception.camera import default_sim_cameras, load_cameras, rig_checksum
from tt_perception.messages import MessageError, ball_position_to_raw, detections_from_raw
from tt_perception.plausibility import check_rig
from tt_perception.rays import ray_as_position
from tt_perception.triangulation import Triangulator, TriangulatorConfig, triangulate
from tt_perception.trigger_sets import TriggerConfig
from tt_perception.types import BallPosition, BallRay, CameraDetections

_FLUSH_PERIOD_S = 0.01


@dataclass(frozen=True)
class TriangulationParams:
    """Parameters of the triangulation node."""

    cameras: str = param("", doc="Extrinsics YAML of the cameras; empty for the four simulated cameras.")
    camera_names: tuple[str, ...] = param(
        (), doc="Cameras of the file to use; empty for all. List them when some are not connected."
    )
    pixel_sigma: float = param(
        1.0,
        unit="px",
        gt=0.0,
        le=20.0,
        doc="Standard deviation of a detected centre, detector and calibration together. It sets gates and "
        "covariance: 1.0 fits the simulated detections, 0.4 a calibrated rig or rendered images.",
    )
    wait: float = param(
        0.02, unit="s", gt=0.0, le=0.5, doc="Longest wait for late cameras after the first of a trigger."
    )
    stamp_tolerance: float = param(
        0.0001, unit="s", ge=0.0, le=0.002, doc="Stamps this near belong to the same trigger."
    )
    free_cameras: tuple[str, ...] = param(
        (), doc="Cameras without a common trigger, used as single rays; '*' for all."
    )
    rays: bool = param(
        True, doc="Publish single views of a known ball as positions uncertain along the line of sight."
    )


class TriangulationNode(TTNode):
    """Collects trigger sets and publishes `ball/position`."""

    def __init__(self) -> None:
        super().__init__("triangulation_node", TriangulationParams)
        p = self.params
        if p.cameras:
            cameras = load_cameras(p.cameras, p.camera_names or None)
        else:
            cameras = default_sim_cameras()
            if p.camera_names:
                cameras = tuple(camera for camera in cameras if camera.name in p.camera_names)
        check_rig(cameras)
        self._cameras = {camera.name: camera for camera in cameras}
        self._triangulator = Triangulator(
            cameras,
            TriangulatorConfig(
                pixel_sigma=p.pixel_sigma,
                trigger=TriggerConfig(
                    wait_ns=round(p.wait * 1e9),
                    stamp_tolerance_ns=round(p.stamp_tolerance * 1e9),
                    free=tuple(p.free_cameras),
                ),
                rays=p.rays,
            ),
        )
        # Compiling takes seconds the first time: before the first ball, not during it.
        triangulate([camera.project(np.zeros(3)) for camera in cameras], cameras)
        self._position_pub = self.advertise("ball/position")
        for camera in cameras:
            callback = partial(self._on_detections, camera.name)
            self.listen("{camera}/detections", callback, raw=True, camera=camera.name)
        self.create_timer(_FLUSH_PERIOD_S, self._on_timer)
        self.log.info(
            f"{len(cameras)} cameras, calibration {rig_checksum(cameras)} {p.cameras or '(simulated)'}"
        )

    def diagnostic_values(self) -> dict[str, str | float]:
        """Counts and camera conditions of the triangulator."""
        health = self._triangulator.health()
        if health["refused"]:
            self.health("error", str(health["refused"]), key="cameras")
        elif health["warning"]:
            self.health("warn", str(health["warning"]), key="cameras")
        else:
            self.health("ok", key="cameras")
        return {
            key: ", ".join(value) if isinstance(value, tuple) else value  # type: ignore[misc]
            for key, value in health.items()
            if key not in ("warning", "refused")
        }

    def _on_detections(self, camera: str, raw: bytes) -> None:
        try:
            detections = detections_from_raw(raw)
        except MessageError as error:
            self.count("bad_message")
            self.log.warning(f"{camera}: {error}", throttle_s=1.0)
            return
        self._publish(self._add(detections))

    def _on_timer(self) -> None:
        self._publish(self._triangulator.flush(self.now_ns()))

    def _add(self, detections: CameraDetections) -> list[BallPosition | BallRay]:
        results = self._triangulator.add(detections, self.now_ns())
        if self._triangulator.refused:
            self.log.error(f"no positions: {self._triangulator.refused}", throttle_s=10.0)
        return results

    def _publish(self, results: list[BallPosition | BallRay]) -> None:
        for found in results:
            if isinstance(found, BallRay):
                position = ray_as_position(found, self._cameras[found.camera])
            else:
                position = found
            done_ns = self.now_ns()
            self._position_pub.publish(ball_position_to_raw(position))
            self.stamp_latency("triangulated", position.stamp_ns, done_ns)


def main() -> None:
    """Runs the node."""
    run_node(TriangulationNode)


if __name__ == "__main__":
    main()
