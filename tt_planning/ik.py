"""What an inverse of the kinematics answers: joints that are always inside their limits, and an honest outcome."""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

POSITION_TOLERANCE_M = 1e-4
ANGLE_TOLERANCE_RAD = 1e-3


class IkReason(Enum):
    """Outcome of an inverse."""

    OK = "reached"
    LIMIT = "a joint limit is in the way"
    DEPTH = "the racket cannot reach that depth with this normal"
    RESIDUAL = "no joint position within the limits reaches the pose"
    NOT_FINITE = "the wanted pose is not finite"


@dataclass(frozen=True, slots=True)
class IkResult:
    """Joint position for a racket pose; always inside the limits, also when it is not a success.

    Attributes:
        q: shape (n,).
        success: residuals below 0.1 mm and 1 mrad.
        residual_m: distance between wanted and reached blade centre.
        residual_rad: angle between wanted and reached normal.
        reason: why it is not a success.
    """

    q: FloatArray
    success: bool
    residual_m: float
    residual_rad: float
    reason: IkReason


def angle_between(a: FloatArray, b: FloatArray) -> float:
    """Angle between two vectors (3,) in rad, exact also when it is tiny."""
    return math.atan2(float(np.linalg.norm(np.cross(a, b))), float(np.dot(a, b)))
