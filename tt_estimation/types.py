"""Data that leaves estimation: ball states and predicted paths."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]


@dataclass(frozen=True, slots=True)
class BallState:
    """Ball state at the capture time of the newest fused image.

    Attributes:
        stamp_ns: mid-exposure time of that image.
        pos_table: shape (3,), m.
        vel_table: shape (3,), m/s.
        spin_table: shape (3,), rad/s.
        cov: covariance of (position, velocity, spin), shape (9, 9). The wire (nav_msgs/Odometry) has no
            room for the position-spin block, so states are published with that block completed to
            P_pv P_vv⁻¹ P_vw (conditional independence given velocity: the maximum-entropy completion,
            always positive definite); a state read back from a message equals the one that was sent.
    """

    stamp_ns: int
    pos_table: FloatArray
    vel_table: FloatArray
    spin_table: FloatArray
    cov: FloatArray

    @property
    def vector(self) -> FloatArray:
        """Position, velocity and spin in a new array, shape (9,)."""
        return np.concatenate((self.pos_table, self.vel_table, self.spin_table))


class BallEnd(Enum):
    """Why a predicted path ends."""

    HORIZON = "horizon"
    SECOND_BOUNCE = "second bounce on the robot half"
    OFF_TABLE = "left the table without a bounce on the robot half"
    NET = "caught by the net"
    OUTGOING = "moves away from the robot"
    FLOOR = "reached the floor"
    NOT_FINITE = "state is not finite"


@dataclass(frozen=True, slots=True)
class BallPrediction:
    """Predicted path of the incoming ball, from its state to where it stops being playable.

    Attributes:
        stamp_ns: capture stamp of the state it derives from.
        times_s: seconds after `stamp_ns`, ascending, shape (n,).
        states: position, velocity, spin at those times, shape (n, 9).
        cov: position covariance along the path, shape (n, 3, 3), m².
        bounce_index: index in `states` of the first sample after the bounce on the robot half, -1 when none.
        bounce_time_s: time of that bounce after `stamp_ns`; NaN when none.
        bounce_pos_table: shape (3,), NaN when none.
        bounces_before: bounces on the robot half that had already happened at `stamp_ns` (0 or 1).
        end: why the path ends.
    """

    stamp_ns: int
    times_s: FloatArray
    states: FloatArray
    cov: FloatArray
    bounce_index: int
    bounce_time_s: float
    bounce_pos_table: FloatArray
    bounces_before: int
    end: BallEnd


@dataclass(frozen=True, slots=True)
class PlaneCrossing:
    """Where a predicted ball crosses a plane y = const.

    Attributes:
        time_s: seconds after the stamp of the prediction.
        time_sigma_s: its standard deviation.
        state: position, velocity, spin there, shape (9,).
        cov: covariance of the crossing point, shape (3, 3), m²; its y row is zero.
    """

    time_s: float
    time_sigma_s: float
    state: FloatArray
    cov: FloatArray


@dataclass(frozen=True, slots=True)
class PredictedPath:
    """What of a prediction travels on the wire.

    Attributes:
        stamp_ns: capture stamp it derives from.
        times_s: seconds after `stamp_ns`, shape (n,). A bounce shows as two samples 1 ns apart.
        pos_table: shape (n, 3), m.
    """

    stamp_ns: int
    times_s: FloatArray
    pos_table: FloatArray
