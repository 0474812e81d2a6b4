"""What a replay gave against what was recorded, field by field, with the tolerance of each field.

Positions and states follow from the recorded inputs alone and must be the same. Plans and trajectories also
depend on the instant of each decision; where that is known only to a fraction of a millisecond they differ a
little, and now and then the search finds another hit of nearly the same cost.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tt_estimation.types import BallState
from tt_perception.types import BallPosition, CameraDetections
from tt_planning.types import HitPlan, JointTrajectory

FloatArray = NDArray[np.float64]
_NS = 1e-9
_QUANTILES = (50.0, 95.0)


@dataclass(frozen=True)
class Field:
    """One compared field: name, unit, largest difference that counts as the same, and its value."""

    name: str
    unit: str
    tolerance: float
    value: Callable[[Any], Any]


@dataclass
class FieldDifference:
    """Differences of one field over all pairs with the same capture stamp.

    Attributes:
        largest: largest difference, and the capture stamp where it is.
        median, p95: of all pairs.
        within: pairs within the tolerance.
    """

    name: str
    unit: str
    tolerance: float
    largest: float = 0.0
    stamp_ns: int = 0
    median: float = 0.0
    p95: float = 0.0
    within: int = 0


@dataclass
class TopicComparison:
    """Recorded against replayed messages of one topic.

    Attributes:
        recorded: how many were recorded.
        replayed: how many came out.
        paired: how many have the same capture stamp.
        identical: pairs whose every number is the same.
        fields: differences of each field.
    """

    topic: str
    recorded: int
    replayed: int
    paired: int
    identical: int
    fields: list[FieldDifference]

    def as_dict(self) -> dict[str, Any]:
        """Plain values for JSON."""
        return {
            "recorded": self.recorded,
            "replayed": self.replayed,
            "paired": self.paired,
            "identical": self.identical,
            "largest_difference": {f.name: f.largest for f in self.fields},
            "median_difference": {f.name: f.median for f in self.fields},
            "tolerance": {f.name: f.tolerance for f in self.fields},
            "within_tolerance": {f.name: f.within for f in self.fields},
        }


def _seconds_to_hit(plan: HitPlan) -> float:
    return (plan.hit_stamp_ns - plan.capture_stamp_ns) * _NS


def _best_centre(found: CameraDetections) -> FloatArray:
    return found.uv_px[0] if len(found.uv_px) else np.full(2, np.nan)


FIELDS: dict[type, tuple[Field, ...]] = {
    CameraDetections: (
        Field("candidates", "", 0.0, lambda found: len(found.uv_px)),
        Field("best centre", "px", 0.1, _best_centre),
    ),
    BallPosition: (
        Field("position", "m", 1e-6, lambda item: item.pos_table),
        Field("covariance", "m²", 1e-9, lambda item: item.cov),
    ),
    BallState: (
        Field("position", "m", 1e-5, lambda item: item.pos_table),
        Field("velocity", "m/s", 1e-3, lambda item: item.vel_table),
        Field("spin", "rad/s", 0.1, lambda item: item.spin_table),
        Field("covariance", "mixed", 0.1, lambda item: item.cov),
    ),
    HitPlan: (
        Field("hit time", "s", 2e-3, _seconds_to_hit),
        Field("racket position", "m", 5e-3, lambda item: item.racket_pos_table),
        Field("racket orientation", "", 0.02, lambda item: item.racket_quat_xyzw),
        Field("racket velocity", "m/s", 0.1, lambda item: item.racket_vel_table),
    ),
    JointTrajectory: (
        Field("end time", "s", 5e-3, lambda item: round(float(item.times_s[-1]), 9)),
        Field("end position", "m, rad", 1e-6, lambda item: item.pos[-1]),
        Field("largest velocity", "m/s, rad/s", 0.2, lambda item: np.abs(item.vel).max()),
    ),
}


def compare(recorded: dict[str, list[Any]], replayed: dict[str, list[Any]]) -> list[TopicComparison]:
    """Recorded against replayed outputs, field by field; topics that were not recorded are left out."""
    return [
        compare_topic(name, recorded[name], made)
        for name, made in replayed.items()
        if name in recorded and (made or name != "joint_trajectory")
    ]


def compare_topic(name: str, recorded: list[Any], replayed: list[Any]) -> TopicComparison:
    """Pairs outputs by capture stamp and measures the differences of each field."""
    by_stamp: dict[int, Any] = {}
    for item in recorded:
        by_stamp.setdefault(_stamp(item), item)
    pairs = []
    for item in replayed:
        other = by_stamp.pop(_stamp(item), None)
        if other is not None:
            pairs.append((item, other))
    differences = []
    same = np.ones(len(pairs), bool)
    for field in FIELDS[type(pairs[0][0])] if pairs else ():
        gaps = _gaps(field, pairs)
        same &= gaps == 0.0
        worst = int(np.argmax(gaps))
        median, p95 = np.percentile(gaps, _QUANTILES, method="lower")
        differences.append(
            FieldDifference(
                field.name,
                field.unit,
                field.tolerance,
                float(gaps[worst]),
                _stamp(pairs[worst][0]),
                float(median),
                float(p95),
                int((gaps <= field.tolerance).sum()),
            )
        )
    return TopicComparison(name, len(recorded), len(replayed), len(pairs), int(same.sum()), differences)


def _gaps(field: Field, pairs: list[tuple[Any, Any]]) -> FloatArray:
    """Largest difference of one field in each pair, shape (n,); two NaN are the same."""
    one, two = (
        np.array([field.value(pair[side]) for pair in pairs], float).reshape(len(pairs), -1)
        for side in (0, 1)
    )
    gaps = np.abs(one - two)
    gaps[np.isnan(one) & np.isnan(two)] = 0.0
    gaps[np.isnan(gaps)] = np.inf
    return np.asarray(gaps.max(axis=1))


def _stamp(item: Any) -> int:
    return int(item.stamp_ns if hasattr(item, "stamp_ns") else item.capture_stamp_ns)


def comparison_lines(comparisons: list[TopicComparison]) -> list[str]:
    """The comparison for a terminal of 80 columns."""
    lines = []
    for row in comparisons:
        lines.append(
            f"{row.topic:<18}{row.recorded:>7} recorded{row.replayed:>7} replayed{row.paired:>7} pairs"
            f"{row.identical:>7} identical"
        )
        for item in row.fields:
            if item.largest > 0.0:
                unit = f" {item.unit}" if item.unit else ""
                lines.append(
                    f"    {item.name:<18} {100 * item.within / row.paired:5.1f} % within {item.tolerance:g}{unit}; "
                    f"median {item.median:.2g}, p95 {item.p95:.2g}"
                )
                lines.append(f"      differs by up to {item.largest:.3g}{unit} at {item.stamp_ns}")
    return lines
