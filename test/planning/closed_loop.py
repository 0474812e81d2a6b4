"""A small lock-step loop for planner tests: true flight, delayed states, planner, ideal joints, racket contact.

The joints follow the commanded quintics exactly; everything else (delay, noise, estimation) can be switched on.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from tt_estimation.ball_models import BallModel
from tt_estimation.events import FLOOR, HORIZON, NET, STEP_S, TABLE, bounce_on_table, next_event
from tt_estimation.flight import rk4_step
from tt_estimation.prediction import Predictor
from tt_estimation.types import BallState
from tt_perception.table import NET_HEIGHT_M, TABLE_LENGTH_M, TABLE_WIDTH_M
from tt_planning.planner import PlanReason
from tt_planning.racket_contact import strike
from tt_planning.robot import RobotModel
from tt_planning.trajectory import NS_PER_S, TrajectoryGenerator, TrajectoryReason, sample

FIELDS = ("pos_x", "pos_y", "pos_z", "vel_x", "vel_y", "vel_z", "w_vel_x", "w_vel_y", "w_vel_z")


def load_states(path: Path) -> list[tuple[int, np.ndarray]]:
    """Ball states of a ball file that fly towards the robot: (id, state (9,))."""
    rows = json.loads(path.read_text())
    return [(r["id"], np.array([r[k] for k in FIELDS])) for r in rows if r["vel_y"] < 0.0]


def bounces_on_robot_half(s: np.ndarray, model: BallModel) -> bool:
    """Whether the first touch of the table is on the robot's half, without touching the net."""
    out = np.empty(9)
    code, _ = next_event(s, model.params, 2.0, STEP_S, TABLE | NET | FLOOR, 0.0, out)
    return code == TABLE and out[1] < 0.0


@dataclass
class Outcome:
    """What became of one ball."""

    outcome: str
    reason: str = ""
    landing: np.ndarray = field(default_factory=lambda: np.full(3, math.nan))
    offset: np.ndarray = field(default_factory=lambda: np.full(2, math.nan))
    reasons: dict[str, int] = field(default_factory=dict)
    plans: list = field(default_factory=list)
    hit_s: float = math.nan
    trajectories: list = field(default_factory=list)
    ball_at_contact: np.ndarray = field(default_factory=lambda: np.full(9, math.nan))
    ball_after: np.ndarray = field(default_factory=lambda: np.full(9, math.nan))
    racket: tuple = ()
    states: list = field(default_factory=list)


class TruthTracker:
    """Delivers the true state, delayed."""

    def __init__(self, model: BallModel) -> None:
        self.cov = np.diag([1e-6] * 3 + [1e-4] * 3 + [1.0] * 3)
        self.predictor = Predictor(model)
        self.bounces = 0

    def observe(self, stamp_ns: int, truth: np.ndarray, bounces: int, now_ns: int):
        state = BallState(stamp_ns, truth[:3].copy(), truth[3:6].copy(), truth[6:].copy(), self.cov)
        return state, self.predictor.predict(state, bounces)


def play(
    ball: np.ndarray,
    robot: RobotModel,
    world: BallModel,
    planner,
    generator: TrajectoryGenerator,
    tracker,
    *,
    delay_s: float = 0.03,
    fps: float = 120.0,
    first_s: float = 0.0,
    jitter: Callable[[int], tuple[np.ndarray, np.ndarray]] | None = None,
    keep: bool = False,
) -> Outcome:
    """Serve one ball and return what became of it; the joints start at ready."""
    p = world.params
    zero = np.zeros(robot.joint_count)
    generator.set_reference(robot.ready, zero, zero, 0)
    planner.reset()
    result = Outcome("missed")
    # True path without racket, sampled at 1 ms, until the second bounce or the floor.
    dt = 1e-3
    path = [ball.copy()]
    bounces = [0]  # touches of the table so far
    own = [0]  # those on the robot's half
    s = ball.copy()
    out = np.empty(9)
    touched = on_own_half = 0
    playable_until = math.inf
    for k in range(2500):
        left = dt
        while left > 0:
            code, tau = next_event(s, p, left, STEP_S, TABLE | NET | FLOOR, 0.0, out)
            s = out.copy()
            left -= tau
            if code == HORIZON:
                break
            if code == TABLE:
                bounce_on_table(s, p, out)
                s = out.copy()
                s[2] = p[7] + 1e-9
                touched += 1
                on_own_half += s[1] < 0.0
                if on_own_half == 2:
                    playable_until = min(playable_until, (k + 1) * dt)
            else:
                playable_until = min(playable_until, (k + 1) * dt)
                left = 0
        path.append(s.copy())
        bounces.append(touched)
        own.append(on_own_half)
        if s[1] < -2.6 or playable_until < math.inf:
            break
    end_s = (len(path) - 1) * dt
    delay_ns = round(delay_s * NS_PER_S)
    frame = 0
    period = NS_PER_S / fps
    reasons: dict[str, int] = {}
    racket = robot.racket
    half = np.array([0.5 * racket.width, 0.5 * racket.height])
    off = racket.contact_offset_m
    last_gap, last_rel = None, np.zeros(3)
    kin = generator.kinematics
    active = generator.current
    pending = None
    for k in range(len(path)):
        now = round(k * dt * NS_PER_S)
        # Frames that arrive now.
        while frame * period + delay_ns <= now:
            stamp = round(frame * period)
            frame += 1
            t = stamp / NS_PER_S
            i = int(t / dt)
            if i + 1 >= len(path) or t < first_s:
                continue
            if bounces[i + 1] == bounces[i]:
                rk4_step(path[i], p, t - i * dt, out)
                truth = out.copy()
                before = own[i]
            else:
                truth, before = path[i + 1].copy(), own[i + 1]
            got = tracker.observe(stamp, truth, before, now)
            if got is None:
                continue
            state, prediction = got
            if keep:
                result.states.append((state, prediction, truth))
            start = generator.start(now)
            planned = planner.plan(state, prediction, start)
            key = planned.reason.name
            if planned.plan is not None:
                made = generator.hit(planned.plan, now)
                key += "/" + made.reason.name
                if made.reason is TrajectoryReason.OK:
                    pending = made.trajectory
                if keep:
                    result.plans.append((now, planned, made, start))
            reasons[key] = reasons.get(key, 0) + 1
            result.reason = key if planned.reason is not PlanReason.COMMITTED else result.reason
        if pending is not None and now >= pending.capture_stamp_ns + round(pending.times_s[0] * NS_PER_S) - 1:
            active, pending = pending, None
            if keep:
                result.trajectories.append((now, active))
        # Racket contact within this millisecond.
        ball_s = path[k]
        q, qd, _ = sample(active, now)
        if jitter is not None:
            dq, dqd = jitter(now)
            q, qd = q + dq, qd + dqd
        centre, rot = kin.forward(q)
        rel = rot.T @ (ball_s[:3] - centre)
        gap = rel[1] - off
        if last_gap is not None and last_gap > 0.0 >= gap and k * dt <= playable_until:
            f = last_gap / (last_gap - gap)
            at = last_rel + f * (rel - last_rel)
            if (np.abs([at[0], at[2]]) < half).all():
                v = path[k - 1] if bounces[k] == bounces[k - 1] else path[k]
                rk4_step(v, p, f * dt if v is path[k - 1] else 0.0, out)
                b = out.copy()
                twist = kin.jacobian(q) @ qd
                point = b[:3] - p[7] * rot[:, 1]
                face = twist[:3] + np.cross(twist[3:], point - centre)
                ov, ow = np.empty(3), np.empty(3)
                strike(b[3:6], b[6:9], rot[:, 1].copy(), face, p, ov, ow)
                result.offset = np.array([at[0], at[2]])
                result.hit_s = (k - 1 + f) * dt
                result.ball_at_contact = b
                result.ball_after = np.concatenate([b[:3], ov, ow])
                result.racket = (centre, rot, face, q, qd)
                result.outcome, result.landing = judge(result.ball_after, world)
                if own[k] == 0:
                    result.outcome = "volley"
                result.reasons = reasons
                return result
        last_gap, last_rel = gap, rel
    result.reasons = reasons
    if end_s and touched == 0:
        result.outcome = "not_playable"
    return result


def judge(s: np.ndarray, world: BallModel) -> tuple[str, np.ndarray]:
    """Outcome and landing point of a ball struck at state `s`."""
    out = np.empty(9)
    code, _ = next_event(s, world.params, 3.0, STEP_S, TABLE | NET | FLOOR, 0.0, out)
    if code == TABLE and out[1] > 0.0:
        return "returned", out[:3].copy()
    if code == NET or (code == TABLE and out[1] <= 0.0):
        return "net", out[:3].copy()
    return "out", out[:3].copy()


__all__ = ["NET_HEIGHT_M", "TABLE_LENGTH_M", "TABLE_WIDTH_M", "Outcome", "TruthTracker", "judge", "play"]
