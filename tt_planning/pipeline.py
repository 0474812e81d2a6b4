"""The whole chain as one pure object: the same stage classes as the nodes, without processes and clocks.

Evaluation, offline replay and tests use it. Same events, same outputs, bit for bit, whatever the clock does.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tt_estimation.ball_models import NOMINAL, BallModel
from tt_estimation.prediction import Predictor
from tt_estimation.silence import Silence
from tt_estimation.tracker import BallTracker, TrackerConfig
from tt_estimation.types import BallPrediction, BallState
from tt_perception.camera import CameraModel
from tt_perception.rays import ray_as_position
from tt_perception.triangulation import Triangulator, TriangulatorConfig
from tt_perception.types import BallPosition, BallRay, CameraDetections
from tt_planning.decision import HitDecider, Skipped
from tt_planning.planner import Planner, PlanReason
from tt_planning.planners import make_planner
from tt_planning.robot import RobotModel
from tt_planning.trajectory import TrajectoryConfig, TrajectoryGenerator, TrajectoryReason
from tt_planning.types import HitPlan, JointTrajectory

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class Joints:
    """Measured joint positions, shape (n,), m or rad."""

    q: FloatArray


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed and nothing came: waits for late cameras and lost tracks expire."""


StageClock = Callable[[str, int, int], int]
"""When a stage (`planned` or `trajectory`) begins with the result of a capture: (stage, capture stamp, time of the
event, all in ns) -> time. A replay knows it from the recording; without it computing takes no time."""

Input = CameraDetections | BallPosition | BallState | HitPlan | Joints | Tick
"""What can arrive; each form enters at its own stage (a `BallState` goes straight to the planner)."""


@dataclass(frozen=True, slots=True)
class Event:
    """An input with the time it arrived, integer nanoseconds of the node clock."""

    now_ns: int
    data: Input


@dataclass(slots=True)
class Outputs:
    """What one event led to, in the order it was made.

    Attributes:
        positions: triangulated ball positions.
        states: ball states.
        predictions: predicted paths.
        decisions: outcome of each decision, also of those without a plan.
        plans: planned hits.
        motions: outcome of each request for a motion.
        trajectories: joint trajectories.
    """

    positions: list[BallPosition] = field(default_factory=list)
    states: list[BallState] = field(default_factory=list)
    predictions: list[BallPrediction] = field(default_factory=list)
    decisions: list[PlanReason | Skipped] = field(default_factory=list)
    plans: list[HitPlan] = field(default_factory=list)
    motions: list[TrajectoryReason] = field(default_factory=list)
    trajectories: list[JointTrajectory] = field(default_factory=list)


@dataclass(frozen=True, slots=True)
class PipelineConfig:
    """Settings of the stages.

    Attributes:
        planner: name of the planner.
        aim: landing point (x, y) on the opponent's half, m.
        triangulator: see `TriangulatorConfig`; the pixel noise is the one of the simulated detections.
        tracker: see `TrackerConfig`.
        trajectory: see `TrajectoryConfig`.
        predictions: also give the predicted path with each state (the node does at most 30 times a second).
    """

    planner: str = "ours"
    aim: tuple[float, float] = (0.0, 0.75)
    triangulator: TriangulatorConfig = field(default_factory=lambda: TriangulatorConfig(pixel_sigma=1.0))
    tracker: TrackerConfig = field(default_factory=TrackerConfig)
    trajectory: TrajectoryConfig = field(default_factory=TrajectoryConfig)
    predictions: bool = False


class Pipeline:
    """From detections to joint trajectories, one event at a time.

    Args:
        robot: the robot.
        model: ball constants that estimation and planning believe in.
        cameras: calibrated cameras; may be empty when positions come in.
        config: settings of the stages.
        planner: a planner object instead of the one named in `config`.
        clock: when the stages begin; at the time of the event when left out.
    """

    def __init__(
        self,
        robot: RobotModel,
        model: BallModel = NOMINAL,
        cameras: Sequence[CameraModel] = (),
        config: PipelineConfig | None = None,
        planner: Planner | None = None,
        clock: StageClock | None = None,
    ) -> None:
        self.config = config or PipelineConfig()
        c = self.config
        self.robot = robot
        self._clock = clock or (lambda _stage, _capture_ns, now_ns: now_ns)
        self._cameras = {camera.name: camera for camera in cameras}
        self.triangulator = Triangulator(cameras, c.triangulator) if cameras else None
        self.tracker = BallTracker(model, c.tracker)
        self._silence = Silence()
        self.decider = HitDecider(
            planner or make_planner(c.planner, robot, model, aim=c.aim), Predictor(model), model
        )
        self.generator = TrajectoryGenerator(robot, c.trajectory)

    def step(self, event: Event) -> Outputs:
        """Take one event through all stages it reaches."""
        out = self.see(event)
        now_ns, data = event.now_ns, event.data
        if isinstance(data, BallState):
            self._decide(data, now_ns, out)
        elif isinstance(data, HitPlan):
            self._swing(data, now_ns, out)
        elif isinstance(data, Joints) and self.generator.current is None:
            rest = np.zeros(self.robot.joint_count)
            self.generator.set_reference(data.q, rest, rest, now_ns)
        for state in out.states:
            self._decide(state, now_ns, out)
        return out

    def see(self, event: Event) -> Outputs:
        """Take one event through the stages up to the ball states; nothing that is decided changes what they do."""
        out = Outputs()
        now_ns, data = event.now_ns, event.data
        if isinstance(data, CameraDetections):
            if self.triangulator is not None:
                self._located(self.triangulator.add(data, now_ns), now_ns, out)
        elif isinstance(data, BallPosition):
            self._track(data, now_ns, out)
        elif isinstance(data, Tick):
            if self.triangulator is not None:
                self._located(self.triangulator.flush(now_ns), now_ns, out)
            expiry_ns = self._silence.expiry_ns(now_ns)
            if expiry_ns is not None:
                self.tracker.expire(expiry_ns)
        return out

    def _located(self, results: list[BallPosition | BallRay], now_ns: int, out: Outputs) -> None:
        for found in results:
            if isinstance(found, BallRay):
                position = ray_as_position(found, self._cameras[found.camera])
            else:
                position = found
            out.positions.append(position)
            self._track(position, now_ns, out)

    def _track(self, position: BallPosition, now_ns: int, out: Outputs) -> None:
        self._silence.note(position.stamp_ns, now_ns)
        state = self.tracker.add(position, now_ns)
        if state is None:
            return
        out.states.append(state)
        if self.config.predictions:
            prediction = self.tracker.predict()
            if prediction is not None:
                out.predictions.append(prediction)

    def _decide(self, state: BallState, now_ns: int, out: Outputs) -> None:
        now_ns = self._clock("planned", state.stamp_ns, now_ns)
        result = self.decider.decide(state, self.generator.start(now_ns), now_ns)
        if isinstance(result, Skipped):
            out.decisions.append(result)
            return
        out.decisions.append(result.reason)
        if result.plan is not None:
            out.plans.append(result.plan)
            self._swing(result.plan, now_ns, out)

    def _swing(self, plan: HitPlan, now_ns: int, out: Outputs) -> None:
        now_ns = self._clock("trajectory", plan.capture_stamp_ns, now_ns)
        result = self.generator.hit(plan, now_ns)
        out.motions.append(result.reason)
        if result.trajectory is not None:
            out.trajectories.append(result.trajectory)
