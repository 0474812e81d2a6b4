"""Data that leaves planning: planned hits and joint trajectories."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


class HitKind(Enum):
    """What a plan tries, best first."""

    AIM = "aim"
    ANYWHERE = "anywhere legal"
    BLOCK = "block"
    EVADE = "move out of the way"
    PREPARE = "move towards where the ball will pass"


@dataclass(frozen=True, slots=True)
class HitPlan:
    """Racket pose and twist wanted at the hit time.

    Attributes:
        capture_stamp_ns: capture stamp of the ball state the plan derives from.
        hit_stamp_ns: absolute hit time.
        racket_pos_table: centre of the racket blade, shape (3,), m.
        racket_quat_xyzw: orientation; the racket frame has +y out of the hitting face, +z from the
            handle to the tip, and is parallel to `table` at identity.
        racket_vel_table: velocity of the racket centre, shape (3,), m/s.
        racket_angvel_table: angular velocity in `table` axes, shape (3,), rad/s.
        kind: what the plan tries.
        aim_table: wanted landing point on the table, shape (3,); NaN when not aimed.
        expected_error_m: expected landing error, one number; NaN when unknown.
        start_stamp_ns: when the motion was meant to start; 0 when unknown.
    """

    capture_stamp_ns: int
    hit_stamp_ns: int
    racket_pos_table: FloatArray
    racket_quat_xyzw: FloatArray
    racket_vel_table: FloatArray
    racket_angvel_table: FloatArray
    kind: HitKind
    aim_table: FloatArray
    expected_error_m: float
    start_stamp_ns: int = 0


@dataclass(frozen=True, slots=True)
class JointTrajectory:
    """Quintic knots per joint; between knots the quintic through position, velocity, acceleration.

    Attributes:
        capture_stamp_ns: capture stamp of the ball state it derives from; the time origin of `times_s`.
            For motions without a ball (homing, ready) the time it was made.
        joint_names: order of the columns.
        times_s: knot times after `capture_stamp_ns`, strictly ascending, shape (n,).
        pos: shape (n, joints), m or rad.
        vel: shape (n, joints).
        acc: shape (n, joints).
    """

    capture_stamp_ns: int
    joint_names: tuple[str, ...]
    times_s: FloatArray
    pos: FloatArray
    vel: FloatArray
    acc: FloatArray
