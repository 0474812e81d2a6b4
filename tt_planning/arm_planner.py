"""Hit planner for serial arms: the same rules, with numerical inverse kinematics for each candidate.

An arm can take any pose, so a candidate is a hit time and a flight time; the face moves along its own normal, the least
speed that does it. The hit with the lightest load of the joints wins.
"""

from __future__ import annotations

import numpy as np

from tt_estimation.ball_models import BallModel
from tt_planning import hit_problem as hp
from tt_planning.hit_problem import HitProblem
from tt_planning.hit_search import free_stroke
from tt_planning.keep_out import KeepOut
from tt_planning.planner import (
    HitPlanner,
    PlannerConfig,
    PlanReason,
    PlanResult,
    Situation,
    swing_share,
)
from tt_planning.robot import RobotModel
from tt_planning.serial_arm import SerialKinematics
from tt_planning.trajectory import NS_PER_S
from tt_planning.types import HitKind

_NEAR_Y_M, _FAR_Y_M = -1.44, -2.0
_TURN_WEIGHT_M = 0.02  # 1 rad/s of the racket counts as this many m/s of its centre
_FLIGHTS_S = (0.45, 0.6, 0.75)
_ASIDE_M = (0.12, 0.25, 0.4)  # how far beside the wanted landing point others are tried
_AIM_LIMIT_M = 0.6


class ArmPlanner(HitPlanner):
    """`HitPlanner` for robots with `kinematics: serial`."""

    def __init__(self, robot: RobotModel, model: BallModel, config: PlannerConfig | None = None) -> None:
        super().__init__(robot, model, config)
        self._arm = SerialKinematics(robot)
        self._keep_out = KeepOut(robot)
        self._found: dict[bytes, tuple[np.ndarray, np.ndarray]] = {}

    def _reach(self) -> tuple[float, float]:
        return _NEAR_Y_M, _FAR_Y_M

    def _choose(self, now: Situation) -> PlanResult:
        c = self.config
        problem = self._problem(now)
        best: tuple[float, np.ndarray, np.ndarray] | None = None
        self._found.clear()
        reason = PlanReason.OUT_OF_REACH
        rows = self._candidates(now)
        for aim_x in self._aims():
            for t, flight in rows:
                x = np.array([0.0, flight, aim_x, c.aim_y_m, t, 0.0, 0.0])
                cost, out, why = self._candidate(x, problem, now)
                if why is not PlanReason.OK:
                    reason = why
                elif best is None or cost < best[0]:
                    best = (cost, x, out)
            if best is not None:
                break
        if best is None:
            return PlanResult(None, reason)
        kind = HitKind.AIM if best[1][hp.X_AIM_X] == c.aim_x_m else HitKind.ANYWHERE
        return self._accept(now.prediction, best[1], best[2], kind, self._found[best[1].tobytes()])

    def _aims(self) -> list[float]:
        """Landing points across the table, nearest to the wanted one first: that one, the last plan's, two others.

        The two change from decision to decision, which bounds its time.
        """
        wanted = self.config.aim_x_m
        self._turn += 1
        aside = _ASIDE_M[self._turn % len(_ASIDE_M)]
        aims = {wanted} | {a for a in (wanted - aside, wanted + aside) if abs(a) < _AIM_LIMIT_M}
        if self._target_ns is not None and np.isfinite(self._target[hp.X_AIM_X]):
            aims.add(float(self._target[hp.X_AIM_X]))
        return sorted(aims, key=lambda a: abs(a - wanted))

    def _candidates(self, now: Situation) -> list[tuple[float, float]]:
        """(hit time, flight time) to try: near those of the target, else all over the window."""
        first, last = now.window
        rows = [(t, f) for t in np.linspace(first, last, 8)[1:-1] for f in _FLIGHTS_S]
        if self._target_ns is not None:
            t = (self._target_ns - now.prediction.stamp_ns) / NS_PER_S
            f = float(self._target[hp.X_FLIGHT])
            near = [(t + dt, f + df) for dt in (-0.006, 0.0, 0.006) for df in (-0.05, 0.0, 0.05)]
            if now.to_hit_s < self.config.commit_s:
                return [(t, f), *near]
            rows = [*near, *rows[self._turn % 3 :: 3]]
        return [(t, f) for t, f in rows if first <= t <= last]

    def _candidate(
        self, x: np.ndarray, problem: HitProblem, now: Situation
    ) -> tuple[float, np.ndarray, PlanReason]:
        """Cost, details and outcome of one hit time and flight time."""
        robot = self.robot
        out = np.zeros(hp.N_O)
        code = free_stroke(x, problem, out)
        if code != hp.C_OK:
            return np.inf, out, PlanReason.NO_RETURN
        centre, normal = out[hp.O_CENTRE : hp.O_CENTRE + 3], out[hp.O_NORMAL : hp.O_NORMAL + 3]
        seed = now.joints.q if self._target_q is None else self._target_q
        ik = self._arm.inverse(centre, normal, seed, seeds=2)
        if not ik.success:
            return np.inf, out, PlanReason.OUT_OF_REACH
        jac = self._arm.jacobian(ik.q)
        weighted = jac * robot.max_vel
        weighted[3:] *= _TURN_WEIGHT_M
        twist = np.concatenate([out[hp.O_QD : hp.O_QD + 3], np.zeros(3)])
        # The centre's velocity is a constraint, a still orientation is a wish: weigh them 30 to 1.
        weighted[:3] *= 30.0
        twist[:3] *= 30.0
        qd = robot.max_vel * np.linalg.lstsq(weighted, twist, rcond=1e-9)[0]
        load = swing_share(robot, now.joints, ik.q, qd, float(x[hp.X_PLACE]) - now.start_s)
        if load > self.config.load_limit:
            return np.inf, out, PlanReason.LIMIT
        rest = ik.q + 0.75 * qd * np.abs(qd) / robot.max_acc  # where the follow-through ends
        clear = min(self._keep_out.clearance(ik.q), self._keep_out.clearance(rest))
        if clear < self._keep_out.margin_m + 0.01:
            return np.inf, out, PlanReason.OUT_OF_REACH
        self._found[x.tobytes()] = (ik.q, qd)
        out[hp.O_LOAD] = load
        return load * load + 0.2 * (float(x[hp.X_FLIGHT]) - 0.6) ** 2, out, PlanReason.OK
