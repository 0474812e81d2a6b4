"""Referee: what became of a served ball, from its contacts alone.

returned: after the racket hit, the ball's first landing is on the opponent's half (touching the net on the
way is legal). The other outcomes say where the robot or the ball failed.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

from tt_perception.table import NET_HEIGHT_M
from tt_sim.ball import BallContact, Surface

FloatArray = NDArray[np.float64]

Point = tuple[float, float, float]

DEFAULT_AIM_TABLE = (0.0, 0.75)
MAX_BALL_S = 4.0  # after this a ball that rolls or balances somewhere is called
_TOP_NORMAL_Z = 0.5  # below it the ball struck the side of the table, which is not a bounce


class Outcome(Enum):
    """What became of a ball."""

    RETURNED = "returned"
    OUT = "out"
    NET = "net"
    MISSED = "missed"
    NOT_PLAYABLE = "not_playable"


class Cause(Enum):
    """Why, in one phrase; the finer reason below an outcome."""

    LANDED = "landed on the opponent's half"
    BEYOND = "flew past the opponent's half"
    SIDE = "left the table sideways"
    OWN_HALF = "came down on the robot's half"
    SHORT = "dropped short of the opponent's half"
    INTO_NET = "stopped by the net"
    VOLLEY = "hit before it bounced on the robot's half"
    SECOND_BOUNCE = "bounced twice on the robot's half"
    PASSED = "passed the racket"
    SERVED_OUT = "never bounced on the robot's half"
    SERVED_NET = "stopped by the net before the robot's half"
    TIMEOUT = "still in play after the time limit"


@dataclass(frozen=True, slots=True)
class BallResult:
    """The referee's verdict on one ball.

    Attributes:
        ball_id: id of the ball.
        outcome, cause: the verdict.
        hit: True when the racket touched the ball.
        landing_table: (x, y) where it first came down to table height after the hit, m; None when it did not.
        aim_error_m: distance of the landing from the aim; None without a landing.
        contact_offset_m: contact point in the racket face relative to its centre (across, towards the tip).
        contact_time_s: time of the hit since the opponent's hit.
        edge_contact: True when the blade's edge, not a face, touched the ball.
        miss_m: smallest gap between the ball's surface and the blade; 0 when hit, None when not playable.
        miss_point_m: ball centre in the racket frame at that gap; None when hit or not playable.
        meet_table: ball centre at the hit, or where it was nearest to the blade, m; None when not playable.
        net_clearance_m: height of the ball's bottom over the net after the hit; None when it did not pass.
        bounce_table: (x, y) of the bounce on the robot's half.
        time_s: from the opponent's hit to the verdict.
    """

    ball_id: int
    outcome: Outcome
    cause: Cause
    hit: bool
    landing_table: tuple[float, float] | None
    aim_error_m: float | None
    contact_offset_m: tuple[float, float] | None
    contact_time_s: float | None
    edge_contact: bool
    miss_m: float | None
    miss_point_m: tuple[float, float, float] | None
    meet_table: tuple[float, float, float] | None
    net_clearance_m: float | None
    bounce_table: tuple[float, float] | None
    time_s: float

    def as_json(self) -> dict[str, object]:
        """Plain values, rounded to 0.1 mm and 0.1 ms."""

        def point(values: tuple[float, ...] | None) -> list[float] | None:
            return None if values is None else [round(v, 4) for v in values]

        def number(value: float | None) -> float | None:
            return None if value is None else round(value, 4)

        offset = self.contact_offset_m
        return {
            "id": self.ball_id,
            "outcome": self.outcome.value,
            "cause": self.cause.value,
            "hit": self.hit,
            "landing_m": point(self.landing_table),
            "aim_error_m": number(self.aim_error_m),
            "miss_m": number(self.miss_m),
            "miss_point_m": point(self.miss_point_m),
            "meet_m": point(self.meet_table),
            "contact_offset_m": None if offset is None else round(float(np.hypot(*offset)), 4),
            "contact_point_m": point(offset),
            "contact_time_s": number(self.contact_time_s),
            "edge_contact": self.edge_contact,
            "net_clearance_m": number(self.net_clearance_m),
            "bounce_m": point(self.bounce_table),
            "time_s": number(self.time_s),
        }


def _point(values: FloatArray) -> Point:
    return (float(values[0]), float(values[1]), float(values[2]))


class Referee:
    """Watches one ball: `start`, then `update` each step until it gives a result.

    Args:
        aim_table: (x, y) the landing error is measured from, m.
        racket_half_thickness_m: tells a face contact from an edge contact.
    """

    def __init__(
        self,
        aim_table: tuple[float, float] = DEFAULT_AIM_TABLE,
        racket_half_thickness_m: float = 0.007,
    ) -> None:
        self._aim = np.asarray(aim_table, float)
        self._half_thickness = racket_half_thickness_m
        self.start(-1, 0.0)

    def start(self, ball_id: int, time_s: float) -> None:
        """A new ball was served at `time_s`."""
        self._id = ball_id
        self._start_s = time_s
        self._bounce: tuple[float, float] | None = None
        self._hit: BallContact | None = None
        self._volley = False
        self._net_touched = False
        self._clearance: float | None = None
        self._previous: FloatArray | None = None
        self._passed = False
        self._miss: tuple[float, Point, Point] | None = None

    @property
    def hit(self) -> bool:
        """True once the racket touched the ball."""
        return self._hit is not None

    def update(
        self,
        time_s: float,
        ball_state: FloatArray,
        contacts: list[BallContact],
        closest: tuple[float, FloatArray, FloatArray] | None = None,
    ) -> BallResult | None:
        """Take the contacts of one step and the ball's state (9,) after it.

        Args:
            time_s: simulation time after the step.
            ball_state: position, velocity, spin.
            contacts: in order.
            closest: smallest gap to the blade so far, and the ball there in racket and table axes.

        Returns:
            The verdict when the ball is over, else None.
        """
        if closest is not None and self._hit is None:
            gap, in_racket, in_table = closest
            self._miss = (max(gap, 0.0), _point(in_racket), _point(in_table))
        for contact in contacts:
            verdict = self._contact(contact)
            if verdict is not None:
                return self._result(*verdict, contact, contact.time_s)
        self._watch_net(ball_state)
        if not np.isfinite(ball_state).all() or time_s - self._start_s > MAX_BALL_S:
            outcome = Outcome.NOT_PLAYABLE if self._bounce is None and self._hit is None else Outcome.MISSED
            if self._hit is not None:
                outcome = Outcome.NET if self._net_touched else Outcome.OUT
            return self._result(outcome, Cause.TIMEOUT, None, time_s)
        return None

    def _contact(self, contact: BallContact) -> tuple[Outcome, Cause] | None:
        if contact.surface is Surface.RACKET:
            if self._hit is None:
                self._hit = contact
                self._volley = self._bounce is None
                self._net_touched = False
                if self._volley:
                    return Outcome.OUT, Cause.VOLLEY
            return None
        if contact.surface is Surface.NET:
            self._net_touched = True
            return None
        top = contact.surface is Surface.TABLE and contact.normal_table[2] > _TOP_NORMAL_Z
        if self._hit is None:
            return self._before_hit(contact, top)
        y = float(contact.pos_table[1])
        if top and y > 0.0:
            return Outcome.RETURNED, Cause.LANDED
        if self._net_touched:
            return Outcome.NET, Cause.INTO_NET
        if top:
            return Outcome.OUT, Cause.OWN_HALF
        if y > 0.0:
            return Outcome.OUT, Cause.BEYOND if self._flew_past(contact) else Cause.SIDE
        return Outcome.OUT, Cause.SHORT

    def _before_hit(self, contact: BallContact, top: bool) -> tuple[Outcome, Cause] | None:
        y = float(contact.pos_table[1])
        if top and y < 0.0:
            if self._bounce is None:
                self._bounce = (float(contact.pos_table[0]), y)
                return None
            return Outcome.MISSED, Cause.SECOND_BOUNCE
        if self._bounce is not None:
            return Outcome.MISSED, Cause.PASSED
        if top:
            return None  # a serve bounces on the opponent's half first
        return Outcome.NOT_PLAYABLE, Cause.SERVED_NET if self._net_touched else Cause.SERVED_OUT

    @staticmethod
    def _flew_past(contact: BallContact) -> bool:
        velocity = contact.vel_before
        return bool(abs(velocity[1]) > abs(velocity[0]))

    def _watch_net(self, state: FloatArray) -> None:
        previous, self._previous = self._previous, state[:3].copy()
        if self._hit is None or previous is None or self._clearance is not None:
            return
        if previous[1] < 0.0 <= state[1]:
            fraction = -previous[1] / (state[1] - previous[1])
            height = previous[2] + fraction * (state[2] - previous[2])
            self._clearance = float(height - 0.02 - NET_HEIGHT_M)

    def _result(self, outcome: Outcome, cause: Cause, last: BallContact | None, time_s: float) -> BallResult:
        hit = self._hit
        landing = error = offset = None
        edge = False
        if hit is not None:
            offset = (float(hit.racket_point[0]), float(hit.racket_point[2]))
            edge = bool(abs(hit.racket_point[1]) < self._half_thickness - 1e-6)
            if last is not None and last.surface is not Surface.RACKET:
                at = self._at_table_height(last)
                landing = (float(at[0]), float(at[1]))
                error = float(np.hypot(*(at - self._aim)))
        playable = outcome is not Outcome.NOT_PLAYABLE
        miss = self._miss if hit is None and playable else None
        return BallResult(
            ball_id=self._id,
            outcome=outcome,
            cause=cause,
            hit=hit is not None,
            landing_table=landing,
            aim_error_m=error,
            contact_offset_m=offset,
            contact_time_s=None if hit is None else hit.time_s - self._start_s,
            edge_contact=edge,
            miss_m=0.0 if hit is not None else (None if miss is None else miss[0]),
            miss_point_m=None if miss is None else miss[1],
            meet_table=_point(hit.pos_table) if hit is not None else (None if miss is None else miss[2]),
            net_clearance_m=self._clearance,
            bounce_table=self._bounce,
            time_s=time_s - self._start_s,
        )

    @staticmethod
    def _at_table_height(contact: BallContact) -> FloatArray:
        """Where a ball that struck the floor came through table height, by its ballistic path backwards."""
        pos, vel = contact.pos_table, contact.vel_before
        if contact.surface is not Surface.FLOOR:
            return pos[:2]
        drop = 0.02 - float(pos[2])
        # z(−t) = z − vz t − g t²/2 with vz < 0: solve for the time before the floor.
        down = -float(vel[2])
        back = (down - np.sqrt(max(down * down - 2.0 * 9.81 * drop, 0.0))) / 9.81
        return pos[:2] - vel[:2] * back
