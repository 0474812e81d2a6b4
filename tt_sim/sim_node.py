"""The one node that stands in for all hardware: cameras, motor boards on a pseudo-terminal, ball, referee.

A physics thread steps the simulation against the wall clock, or, with a `time_scale` other than 1, at a slower
rate and publishes `/clock`. Everything else of the stack runs unchanged.
"""

from __future__ import annotations

import sys
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from builtin_interfaces.msg import Time
from rclpy.serialization import serialize_message
from rosgraph_msgs.msg import Clock

from tt_bringup.node_kit import TTNode, param, run_node
from tt_estimation.messages import ball_state_to_raw
from tt_estimation.types import BallState
from tt_perception.camera import CameraModel, default_sim_cameras, load_cameras
from tt_perception.cdr import CdrReader
from tt_perception.messages import camera_info_to_msg, detections_to_msg
from tt_perception.types import CameraDetections
from tt_planning.robot import load_robot
from tt_sim.ball_file import ServedBall, load_balls, world_model
from tt_sim.ball_server import BallServer
from tt_sim.boards import BoardServer
from tt_sim.cameras import CameraFaults, DelayLine, SimCameras, pixel_sigma_for
from tt_sim.messages import result_to_msg
from tt_sim.motors import robot_boards
from tt_sim.pace import ImageGate, Pace
from tt_sim.simulation import Simulation
from tt_sim.wire import PatchedMessage, pack_float32, sentinel
from tt_sim.world import STEP_S

# A stall longer than this is not caught up: the simulated time slips behind the wall clock instead.
MAX_CATCH_UP_S = 0.1
SLOW_CATCH_UP_S = 0.005  # the same with /clock, where nothing is lost by slipping
CLOCK_PERIOD_S = 0.0019  # wall time between two /clock messages
PATIENCE_S = 0.5  # wall time that the clock waits for an image
_DETECTION_BYTES = 16  # u, v, radius, score as float32


@dataclass(frozen=True)
class SimParams:
    """Parameters of the simulated hardware."""

    robot: str = param("gantry4", doc="Robot: a shipped name or the path of a robot YAML.")
    world: str = param("nominal", choices=("nominal", "deepmind", "match"), doc="Laws of the ball.")
    balls_file: str = param("", doc="Ball file (JSON); empty samples balls.")
    serve_interval: float = param(
        0.0,
        unit="s",
        ge=0.0,
        le=3600.0,
        live=True,
        doc="Serve by itself this long after a ball is over; 0 serves on sim/serve only.",
    )
    seed: int = param(0, ge=0, doc="Seed of noise and sampled balls.")
    camera_file: str = param("", doc="Calibration of the simulated cameras; empty for the built-in four.")
    images: bool = param(
        False, doc="Camera nodes render and detect from sim/ball_truth; publish no detections here."
    )
    fps: float = param(120.0, unit="Hz", ge=1.0, le=1000.0, doc="Rate of the shared camera trigger.")
    delay: float = param(0.03, unit="s", ge=0.0, le=1.0, doc="From mid-exposure to arrival in the computer.")
    sigma: float = param(
        0.003, unit="m", ge=0.0, le=0.1, doc="Error per axis of a triangulated ball; sets the pixel noise."
    )
    dropout: float = param(0.0, ge=0.0, le=1.0, doc="Share of images in which the ball is not found.")
    phantoms: float = param(0.0, ge=0.0, le=50.0, doc="Mean number of false candidates per image.")
    time_scale: float = param(
        1.0,
        ge=0.0,
        le=1.0,
        doc="Simulated per real time; 0 finds what the machine sustains. Other than 1 the node publishes /clock.",
    )
    device: str = param("", doc="Symbolic link to make for the motor bus; empty for none.")
    aim_x: float = param(0.0, unit="m", ge=-0.7625, le=0.7625, doc="Aim that landings are measured from.")
    aim_y: float = param(0.75, unit="m", ge=0.0, le=1.37, doc="Aim that landings are measured from.")


class SimNode(TTNode):
    """Simulated hardware."""

    def __init__(self) -> None:
        super().__init__("sim_node", SimParams)
        p: SimParams = self.params
        robot = load_robot(p.robot)
        self._sim = Simulation(robot, world_model(p.world), (p.aim_x, p.aim_y))
        cameras = load_cameras(p.camera_file) if p.camera_file else default_sim_cameras()
        faults = CameraFaults(pixel_sigma_for(cameras, p.sigma), p.dropout, p.phantoms)
        self._cameras = SimCameras(cameras, faults, p.seed)
        self._line = DelayLine(p.delay)
        balls = load_balls(p.balls_file) if p.balls_file else None
        self._server = BallServer(balls, p.seed, world_model(p.world))
        self._lock = threading.Lock()
        self._waiting: ServedBall | None = None
        self._idle_since_s = 0.0
        self._stop = threading.Event()
        self._real_time_factor = 1.0
        self._lag_ms = 0.0

        self._detections_pubs = {}
        self._info_pubs = []
        self._templates: dict[tuple[str, int], PatchedMessage] = {}
        for camera in () if p.images else cameras:
            self._detections_pubs[camera.name] = self.advertise("{camera}/detections", camera=camera.name)
            info = self.advertise("{camera}/camera_info", camera=camera.name)
            info.publish(camera_info_to_msg(camera, self.now_ns()))
            self._info_pubs.append(info)
            for count in (0, 1):
                self._template(camera.name, count)
        self._truth_pub = self.advertise("sim/ball_truth")
        self._result_pub = self.advertise("sim/result")
        self._clock_pub = self.advertise("/clock") if p.time_scale != 1.0 else None
        self._rate = Pace(p.time_scale, time.monotonic())
        self._gate = self._wait_for_images(cameras) if p.images and self._clock_pub is not None else None
        self._now_ns = 0
        self._clock_wall_s = 0.0
        self._serves = False
        if self._gate is None:
            self._offer_balls()
        self._sim.boards = robot_boards(robot, self._sim.world)
        self._bus = BoardServer(self._sim.boards, link=p.device or None).start()
        self._thread = threading.Thread(target=self._run, name="physics", daemon=True)
        self._thread.start()

    def diagnostic_values(self) -> dict[str, str | float]:
        """Pace of the simulation."""
        return {
            "real_time_factor": self._real_time_factor,
            "time_scale": self._rate.rate,
            "lag_ms": self._lag_ms,
            "sim_time_s": f"{self._sim.time_s:.4f}",
            "wall_time_s": f"{time.monotonic():.4f}",
            "motor_device": str(self._bus.device),
        }

    def cleanup(self) -> None:
        """Ends the physics thread and the motor bus."""
        self._stop.set()
        thread = getattr(self, "_thread", None)
        if thread is not None:
            thread.join(timeout=2.0)
        bus = getattr(self, "_bus", None)
        if bus is not None:
            bus.stop()

    def _offer_balls(self) -> None:
        """Balls can be asked for now; with images not before every camera delivers, or nobody would see the first."""
        if not self._serves:
            self._serves = True
            self.serve("sim/serve", self._on_serve)

    def _on_serve(self, _request: Any, response: Any) -> Any:
        with self._lock:
            busy = self._sim.ball_in_play or self._waiting is not None
            if not busy:
                self._waiting = self._server.next()
                response.message = str(self._waiting.ball_id)
            else:
                response.message = "a ball is in play; wait for sim/result"
            response.success = not busy
        return response

    def _run(self) -> None:
        """Physics thread: one step per `STEP_S` of simulated time."""
        try:
            self._pace()
        except Exception as error:
            if not self._stop.is_set():
                self.log.error(f"physics stopped: {type(error).__name__}: {error}")
                self.health("error", f"physics stopped: {error}", key="physics")
                raise

    def _pace(self) -> None:
        sim, rate = self._sim, self._rate
        real_time = self._clock_pub is None
        catch_up_s = MAX_CATCH_UP_S if real_time else SLOW_CATCH_UP_S
        epoch_ns = self.now_ns()
        next_wall = window_start = time.monotonic()
        window_sim = 0.0
        trigger = 0
        fps = self.params.fps
        while not self._stop.is_set():
            self._serve_if_due()
            result = sim.step()
            now_s = sim.time_s
            self._tell_time(epoch_ns + round(now_s * 1e9))
            while trigger / fps <= now_s:
                if trigger / fps > now_s - STEP_S:
                    self._expose(trigger / fps, epoch_ns)
                trigger += 1
            self._deliver(epoch_ns + round(now_s * 1e9))
            if result.verdict is not None:
                self._idle_since_s = now_s
                self._result_pub.publish(result_to_msg(result.verdict))
                self.count(result.verdict.outcome.value)
            self._hold()
            next_wall += STEP_S / rate.rate
            wall = time.monotonic()
            behind = wall - next_wall
            if behind < 0.0:
                time.sleep(-behind)
            elif behind > catch_up_s:
                next_wall += behind
                if real_time:
                    epoch_ns += round(behind * 1e9)  # stamps stay on the wall clock
                    self._slipped(behind)
            rate.update(wall)
            if wall - window_start >= 1.0:
                self._real_time_factor = (now_s - window_sim) / (wall - window_start)
                self._lag_ms = max(behind, 0.0) * 1e3
                window_start, window_sim = wall, now_s

    def _slipped(self, behind_s: float) -> None:
        self.count("slipped_s", behind_s)
        self.log.warning(
            f"the machine stalled: simulated time slipped by {behind_s * 1e3:.0f} ms; "
            "use --time-scale on a slow machine",
            throttle_s=5.0,
        )

    def _wait_for_images(self, cameras: Sequence[CameraModel]) -> ImageGate:
        """Listens to what the camera nodes and the filter make of the images."""
        p: SimParams = self.params
        gate = ImageGate([camera.name for camera in cameras], round(p.delay * 1e9), round(1e9 / p.fps))
        for camera in cameras:
            name = camera.name

            def on_detections(raw: bytes, name: str = name) -> None:
                gate.delivered(name, CdrReader(raw).stamp_ns())
                if gate.has_heard_all:
                    self._offer_balls()

            self.listen("{camera}/detections", on_detections, raw=True, camera=name)

        def on_state(raw: bytes) -> None:
            self._rate.state(self._now_ns - CdrReader(raw).stamp_ns() - round(p.delay * 1e9))

        self.listen("ball/state", on_state, raw=True)
        return gate

    def _hold(self) -> None:
        """Lets the clock stand still while images are missing."""
        gate = self._gate
        if gate is None or not gate.missing(self._now_ns):
            return
        began = time.monotonic()
        self._publish_clock()
        while (missing := gate.missing(self._now_ns)) and not self._stop.is_set():
            if time.monotonic() - began > PATIENCE_S:
                self.count("images_missed", len(missing))
                gate.give_up(missing)
            if time.monotonic() - self._clock_wall_s > 10.0 * CLOCK_PERIOD_S:
                self._publish_clock()  # the last one may have got lost
            time.sleep(0.0005)
        self._rate.held(time.monotonic() - began)

    def _serve_if_due(self) -> None:
        interval = self.params.serve_interval
        if interval <= 0.0 and self._waiting is None:
            return
        with self._lock:
            sim = self._sim
            idle = self._waiting is None and not sim.ball_in_play
            if idle and sim.time_s - self._idle_since_s >= interval:
                self._waiting = self._server.next()
            if self._waiting is not None:
                sim.serve(self._waiting)
                self._waiting = None

    def _expose(self, time_s: float, epoch_ns: int) -> None:
        """Takes the images of one trigger and publishes the truth."""
        stamp_ns = epoch_ns + round(time_s * 1e9)
        state = self._sim.ball_at(time_s) if self._sim.ball_in_play else None
        if self._gate is not None and state is not None:
            self._gate.expose(stamp_ns)
        if not self.params.images:
            self._line.push(self._cameras.observe(stamp_ns, None if state is None else state[:3]))
        if state is not None:
            truth = BallState(stamp_ns, state[:3], state[3:6], state[6:], np.zeros((9, 9)))
            self._truth_pub.publish(ball_state_to_raw(truth))

    def _deliver(self, now_ns: int) -> None:
        """Publishes the candidates of every image that has arrived."""
        for images in self._line.pop(now_ns):
            arrived_ns = done_ns = self._node_time_ns(now_ns)
            for image in images:
                done_ns = self._node_time_ns(now_ns)
                self._publish_detections(image)
            # Nobody waits for the results of images without a candidate.
            if any(len(image.score) for image in images):
                stamp_ns = images[0].stamp_ns
                self.stamp_latency("arrived", stamp_ns, arrived_ns)
                self.stamp_latency("detected", stamp_ns, done_ns)

    def _node_time_ns(self, sim_now_ns: int) -> int:
        return self.now_ns() if self._clock_pub is None else sim_now_ns

    def _publish_detections(self, image: CameraDetections) -> None:
        block = pack_float32(image.uv_px[:, 0], image.uv_px[:, 1], image.radius_px, image.score)
        template = self._template(image.camera, len(image.score))
        self._detections_pubs[image.camera].publish(template.bytes(image.stamp_ns, block))

    def _template(self, camera: str, count: int) -> PatchedMessage:
        found = self._templates.get((camera, count))
        if found is None:

            def make(block: bytes) -> Any:
                rows = np.frombuffer(block, "<f4").reshape(-1, 4).astype(np.float64)
                message = detections_to_msg(CameraDetections(camera, 0, rows[:, :2], rows[:, 2], rows[:, 3]))
                message.data = block
                return message

            found = PatchedMessage(make, sentinel(_DETECTION_BYTES * count), serialize_message)
            self._templates[camera, count] = found
        return found

    def _tell_time(self, now_ns: int) -> None:
        """Publishes /clock, at most so often that its readers have time for something else."""
        self._now_ns = now_ns
        if self._clock_pub is not None and time.monotonic() - self._clock_wall_s >= CLOCK_PERIOD_S:
            self._publish_clock()

    def _publish_clock(self) -> None:
        assert self._clock_pub is not None
        self._clock_wall_s = time.monotonic()
        sec, nanosec = divmod(self._now_ns, 1_000_000_000)
        self._clock_pub.publish(Clock(clock=Time(sec=sec, nanosec=nanosec)))


def main() -> None:
    """Runs the simulated hardware until a signal ends it."""
    # Physics, motor bus and ROS share the interpreter: the default 5 ms would stall the bus.
    sys.setswitchinterval(0.0005)
    run_node(SimNode)


if __name__ == "__main__":
    main()
