"""Where in the rally the ball is, derived from the stream of ball states alone.

The wire carries no flags, so everybody who needs "has it bounced on our side?" asks this object, and a
recorded stream gives the same answers as the live one.
"""

from __future__ import annotations

import math

import numpy as np

from tt_estimation.ball_models import NOMINAL, BallModel
from tt_estimation.events import STEP_S, TABLE, fly, next_event
from tt_estimation.types import BallState

RESTART_GAP_S = 0.3  # longer silence than an occlusion
# No flight or table bounce changes horizontal velocity or position this much between two states.
HIT_SPEED_CHANGE_MPS = 3.0
JUMP_M = 0.3


class BallPhase:
    """Follows the ball states of one stream.

    Attributes:
        restarts: tracks seen so far; a change means that what was known of the old ball is void.
        hit_stamp_ns: stamp of the first state after the last hit (or first sight); 0 before any.
        bounces: bounces on the robot half since then: 0, 1 or 2 (2 means two or more).
        bounce_stamp_ns: stamp of the first state after the last counted bounce; 0 when none.
        incoming: the ball moves towards the robot.
    """

    def __init__(self, model: BallModel = NOMINAL) -> None:
        self._model = model
        self._last: BallState | None = None
        self.restarts = 0
        self.hit_stamp_ns = 0
        self.bounces = 0
        self.bounce_stamp_ns = 0
        self.incoming = False

    @property
    def playable(self) -> bool:
        """Whether the robot may still return this ball."""
        return self.reason == ""

    @property
    def reason(self) -> str:
        """Why the ball is not playable; empty when it is."""
        if self._last is None:
            return "no ball"
        if not self.incoming:
            return "moves away from the robot"
        if self.bounces >= 2:
            return "second bounce on the robot half"
        return ""

    def update(self, state: BallState) -> bool:
        """Take the next state.

        Returns:
            True when it starts a new ball: first sight, a hit, a jump in place or time.
        """
        last = self._last
        dt = 0.0 if last is None else (state.stamp_ns - last.stamp_ns) * 1e-9
        if last is not None and -RESTART_GAP_S < dt <= 0.0:
            return False  # a late or repeated state tells nothing new
        self._last = state
        self.incoming = bool(state.vel_table[1] < 0.0)
        if last is None or not 0.0 < dt < RESTART_GAP_S or self._is_hit(last, state, dt):
            self.restarts += 1
            self.hit_stamp_ns = state.stamp_ns
            self.bounces = 0
            self.bounce_stamp_ns = 0
            return True
        y = self._bounce_y(last, state, dt)
        if y is not None and y < 0.0:
            self.bounces = min(self.bounces + 1, 2)
            self.bounce_stamp_ns = state.stamp_ns
        return False

    def _is_hit(self, last: BallState, state: BallState, dt: float) -> bool:
        vy0, vy1 = last.vel_table[1], state.vel_table[1]
        if vy0 * vy1 < 0.0 and abs(vy1 - vy0) > 1.0:
            return True
        out = np.empty(9)
        fly(last.vector, self._model.params, dt, STEP_S, out)
        variances = np.diagonal(last.cov).tolist()
        far, fast = (5.0 * math.sqrt(max(0.0, *variances[i : i + 3])) for i in (0, 3))
        end = out.tolist()
        return (
            math.dist(state.pos_table, end[:3]) > JUMP_M + far + fast * dt
            or math.dist(state.vel_table[:2], end[3:5]) > HIT_SPEED_CHANGE_MPS + fast
        )

    def _bounce_y(self, last: BallState, state: BallState, dt: float) -> float | None:
        """Where the table was touched between two states of one flight; None when it was not."""
        out = np.empty(9)
        # Estimates move a little with every image: look somewhat beyond the new state for the touch.
        code, t = next_event(last.vector, self._model.params, dt + 0.05, STEP_S, TABLE, 0.0, out)
        if last.vel_table[2] < 0.0 < state.vel_table[2]:
            # Nothing but a bounce turns a falling ball.
            return float(out[1]) if code == TABLE else float(0.5 * (last.pos_table[1] + state.pos_table[1]))
        if dt > 0.1 and code == TABLE and t < dt - 0.02:
            return float(out[1])  # bounced and falling again, unseen
        return None
