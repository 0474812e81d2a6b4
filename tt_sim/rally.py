"""One ball against the whole stack in lock step: simulated hardware, motor controller and compute pipeline.

No process, no thread, no clock: the same ball with the same seed gives the same bits. The stages are those of
the nodes (`Pipeline`, `Controller`), the motors move through the boards' control loops only.
"""

from __future__ import annotations

import dataclasses
import time
from collections import Counter
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from tt_control.config import ControlConfig, control_config
from tt_control.controller import Controller, State
from tt_control.dynamics import RigidBody
from tt_estimation.ball_models import BallModel
from tt_estimation.types import BallState
from tt_perception.types import BallPosition
from tt_planning.pipeline import Event, Joints, Pipeline
from tt_planning.planner import PlanReason
from tt_planning.robot import RobotModel
from tt_planning.types import HitKind, HitPlan
from tt_sim.ball_file import ServedBall
from tt_sim.direct_bus import DirectBus
from tt_sim.errors import SimError
from tt_sim.motors import robot_boards
from tt_sim.referee import BallResult
from tt_sim.simulation import Simulation
from tt_sim.world import STEP_S

FloatArray = NDArray[np.float64]

CONTROL_STEPS = 4  # controller at 250 Hz
EPOCH_NS = 1_000_000_000
SETTLE_S = 0.1  # between enable and serve: the gains are up and the axes stand
ENABLE_CAP_S = 0.5
AFTER_HIT_S = 0.06  # from here on the ball is out of the racket's reach and flies alone
BALL_STEP_S = 0.004
PERFECT_STRIDE = 4.0  # what is known exactly need not be decided again with every image
TRUTH_SIGMA_M = 1e-4  # what perfect knowledge claims about itself: planners want a covariance


@dataclass(frozen=True, slots=True)
class RallySettings:
    """How the ball is seen.

    Attributes:
        delay_s: from exposure to the estimator.
        sigma_m: error of a position per axis; the estimator is told the same number.
        fps: images per second.
        perfect: the planner gets the true state instead, without delay.
        trace: keep the path of ball and racket.
    """

    delay_s: float = 0.03
    sigma_m: float = 0.003
    fps: float = 120.0
    perfect: bool = False
    trace: bool = False


@dataclass(slots=True)
class Trace:
    """Path of one rally for pictures: one row per trace step.

    Attributes:
        times_s: since the opponent's hit.
        ball: ball centre, m.
        racket: racket centre, m.
        normal: racket normal.
        q: joint positions.
    """

    times_s: list[float] = field(default_factory=list)
    ball: list[FloatArray] = field(default_factory=list)
    racket: list[FloatArray] = field(default_factory=list)
    normal: list[FloatArray] = field(default_factory=list)
    q: list[FloatArray] = field(default_factory=list)


@dataclass(slots=True)
class RallyRecord:
    """What one ball led to.

    Attributes:
        result: the referee's verdict.
        last_plan: the last planned hit; None when there was none.
        reasons: how often each decision was made.
        last_reason: the last reason without a plan, in words; empty when every decision gave one.
        decision_us: processor time of each decision (prediction, hit search, kinematics, path), µs.
        peak_share: largest joint velocity as a share of its limit.
        stopped: why the controller stopped, empty when it did not.
        position_error_m: racket centre against plan at the planned hit time; NaN when there was none.
        velocity_error_mps: the same for its velocity.
        time_error_s: contact time minus planned hit time; NaN when not hit or not planned.
        trace: path, when asked for.
    """

    result: BallResult
    last_plan: HitPlan | None = None
    reasons: Counter[str] = field(default_factory=Counter)
    last_reason: str = ""
    decision_us: list[float] = field(default_factory=list)
    peak_share: float = 0.0
    stopped: str = ""
    position_error_m: float = float("nan")
    velocity_error_mps: float = float("nan")
    time_error_s: float = float("nan")
    trace: Trace | None = None


class RallyRunner:
    """Plays single balls; one object per worker process.

    Args:
        robot: the robot.
        world: laws of the simulated ball.
        control: controller settings; those of the robot when None.
    """

    def __init__(self, robot: RobotModel, world: BallModel, control: ControlConfig | None = None) -> None:
        self.robot = robot
        self.world_model = world
        config = control or control_config(robot, robot.control)
        # Without a soft start a ball may come right after enable; commands reach the boards at once here.
        self._config = dataclasses.replace(config, soft_start_s=0.0, soft_start_gain=1.0, command_delay_s=0.0)
        self._body = RigidBody.from_robot(robot, np.asarray(config.motor_inertia))
        self._sim = Simulation(robot, world, start=robot.ready)

    def play(
        self, ball: ServedBall, pipeline: Pipeline, settings: RallySettings, rng: np.random.Generator
    ) -> RallyRecord:
        """Serve one ball and see it to its end.

        Args:
            ball: what the opponent hits.
            pipeline: a fresh one; its planner and constants are what is evaluated.
            settings: how the ball is seen.
            rng: noise, and the phase of the cameras.
        """
        return _Rally(self, ball, pipeline, settings, rng).run()


class _Rally:
    """State of one ball; see `RallyRunner.play`."""

    def __init__(
        self,
        runner: RallyRunner,
        ball: ServedBall,
        pipeline: Pipeline,
        settings: RallySettings,
        rng: np.random.Generator,
    ) -> None:
        self._robot = runner.robot
        self._sim = runner._sim
        self._ball = ball
        self._pipeline = pipeline
        self._settings = settings
        self._rng = rng
        sim = self._sim
        sim.world.reset(self._robot.ready)
        boards = sim.boards = robot_boards(self._robot, sim.world)
        self._bus = DirectBus(self._robot, boards)
        self._controller = Controller(self._robot, runner._config, CONTROL_STEPS * STEP_S, runner._body)
        self._states = self._bus.read()
        self._steps = 0
        self._record = RallyRecord(_NO_RESULT)
        self._serve_s = 0.0

    def _now_ns(self) -> int:
        return EPOCH_NS + round(self._sim.time_s * 1e9)

    def run(self) -> RallyRecord:
        self._enable()
        sim, settings = self._sim, self._settings
        now_ns = self._now_ns()
        self._pipeline.step(Event(now_ns, Joints(sim.world.q)))
        record = self._record
        record.trace = Trace() if settings.trace else None
        sim.serve(self._ball)
        self._serve_s = sim.time_s
        trigger = self._rng.uniform(0.0, 1.0)
        waiting: list[tuple[float, BallPosition | BallState]] = []
        hit_s = np.inf
        delay_s = 0.0 if settings.perfect else settings.delay_s
        while True:
            step = sim.step()
            self._control()
            now_s = sim.time_s
            exposure_s = self._serve_s + trigger / settings.fps
            if exposure_s <= now_s and sim.ball_in_play:
                waiting.append((exposure_s + delay_s, self._observe(exposure_s)))
                trigger += PERFECT_STRIDE if settings.perfect else 1.0
            while waiting and waiting[0][0] <= now_s:
                seen = waiting.pop(0)[1]
                if hit_s == np.inf:
                    self._think(seen)
            self._measure()
            if step.verdict is not None:
                record.result = step.verdict
                break
            if hit_s == np.inf and sim.referee.hit:
                hit_s = now_s
            if now_s - hit_s > AFTER_HIT_S and not settings.trace:
                record.result = self._fly_on()
                break
        self._finish()
        return record

    def _enable(self) -> None:
        controller = self._controller
        controller.connected(self._now_ns())
        controller.audited(self._bus.inspect(), (), self._now_ns())
        self._control()
        answer = controller.enable(self._now_ns())
        while controller.state is not State.ACTIVE:
            if not answer.ok or self._sim.time_s > ENABLE_CAP_S:
                raise SimError(
                    f"the simulated motors could not be enabled: {answer.text}; {controller.reason}"
                )
            self._sim.step()
            self._control()
        for _ in range(round(SETTLE_S / STEP_S)):
            self._sim.step()
            self._control()

    def _control(self) -> None:
        """The controller's tick, every `CONTROL_STEPS` physics steps."""
        if self._steps % CONTROL_STEPS == 0:
            setpoints = self._controller.step(self._now_ns(), self._states)
            self._states = self._bus.cycle(setpoints)
        self._steps += 1

    def _observe(self, exposure_s: float) -> BallPosition | BallState:
        stamp_ns = EPOCH_NS + round(exposure_s * 1e9)
        state = self._sim.ball_at(exposure_s)
        if self._settings.perfect:
            cov = np.diag([TRUTH_SIGMA_M**2] * 3 + [1e-6] * 3 + [1e-2] * 3)
            return BallState(stamp_ns, state[:3], state[3:6], state[6:], cov)
        sigma = self._settings.sigma_m
        seen = state[:3] + self._rng.normal(0.0, 1.0, 3) * sigma
        return BallPosition(stamp_ns, seen, np.eye(3) * max(sigma, 1e-5) ** 2)

    def _think(self, seen: BallPosition | BallState) -> None:
        """Gives the pipeline what was seen and the controller what came of it."""
        record, now_ns, pipeline = self._record, self._now_ns(), self._pipeline
        if isinstance(seen, BallPosition):
            state = pipeline.tracker.add(seen, now_ns)
            if state is None:
                return
        else:
            state = seen
        # Processor time: the same number on a busy machine.
        begin = time.thread_time_ns()
        out = pipeline.step(Event(now_ns, state))
        if out.decisions:
            record.decision_us.append((time.thread_time_ns() - begin) / 1e3)
        for decision in out.decisions:
            record.reasons[decision.value] += 1
            if isinstance(decision, PlanReason) and decision not in (PlanReason.OK, PlanReason.COMMITTED):
                record.last_reason = decision.value
        for motion in out.motions:
            if motion.name != "OK":
                record.reasons[f"trajectory: {motion.value}"] += 1
        if out.plans and out.plans[-1].kind is not HitKind.PREPARE:
            record.last_plan = out.plans[-1]
        for trajectory in out.trajectories:
            answer = self._controller.offer(trajectory, now_ns)
            if not answer.ok:
                record.reasons[f"controller: {answer.text}"] += 1

    def _measure(self) -> None:
        """Peaks, errors at the planned hit, trace."""
        sim, record = self._sim, self._record
        record.peak_share = max(record.peak_share, float((np.abs(sim.world.qd) / self._robot.max_vel).max()))
        plan = record.last_plan
        if plan is not None and not sim.referee.hit:
            # The racket at the step nearest to the planned time; later plans overwrite it.
            left_ns = plan.hit_stamp_ns - self._now_ns()
            if -500_000 < left_ns <= 500_000:
                racket = sim.world.racket
                ahead = left_ns * 1e-9
                record.position_error_m = float(
                    np.linalg.norm(racket[:3] + ahead * racket[12:15] - plan.racket_pos_table)
                )
                record.velocity_error_mps = float(np.linalg.norm(racket[12:15] - plan.racket_vel_table))
        if record.trace is not None:
            record.trace.times_s.append(sim.time_s - self._serve_s)
            record.trace.ball.append(sim.world.ball.state[:3].copy())
            record.trace.racket.append(sim.world.racket[:3].copy())
            record.trace.normal.append(sim.world.racket[[4, 7, 10]].copy())
            record.trace.q.append(sim.world.q)

    def _fly_on(self) -> BallResult:
        """The rest of the return flight, without the robot."""
        ball, referee = self._sim.world.ball, self._sim.referee
        while True:
            contacts = ball.advance(BALL_STEP_S)
            verdict = referee.update(ball.time_s, ball.state, contacts)
            if verdict is not None:
                return verdict

    def _finish(self) -> None:
        record = self._record
        if self._controller.state is not State.ACTIVE:
            record.stopped = self._controller.reason
        plan, result = record.last_plan, record.result
        if plan is not None and result.contact_time_s is not None:
            contact_ns = EPOCH_NS + round((self._serve_s + result.contact_time_s) * 1e9)
            record.time_error_s = (contact_ns - plan.hit_stamp_ns) * 1e-9


_NO_RESULT: BallResult = None  # type: ignore[assignment]  # replaced before a record leaves `run`
