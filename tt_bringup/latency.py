"""Where the milliseconds of each ball went: latency stamps joined by the capture stamp they belong to.

Every stage tells when it finished with the image captured at a stamp (sensor_msgs/TimeReference on
`latency`). The time of a stage is the gap to the end of the stage before it; the first gap, from exposure to
`arrived`, is the delivery delay of the camera. `arrival_to_command` is what the software takes, `end_to_end`
what the ball sees.
"""

from __future__ import annotations

import bisect
import struct
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from tt_perception.errors import TTError

STAGES = ("arrived", "detected", "triangulated", "estimated", "planned", "trajectory", "commanded")
ARRIVAL_TO_COMMAND = "arrival_to_command"
END_TO_END = "end_to_end"
# One stamp per camera and image: the last camera decides. Of the others the first counts, because a bus cycle
# repeats the trajectory that it already carried.
_LAST_COUNTS = frozenset({"arrived", "detected"})
JOIN_TOLERANCE_NS = 1_000_000  # cameras of one trigger set differ by microseconds, sets by milliseconds
IMPLAUSIBLE_NS = (
    2_000_000_000  # a stage that ends before the exposure, or this long after it, tells of a wrong clock
)
PREEMPTED_SHARE = (
    0.01  # a node may lose the processor before it stamps; another clock shows in far more captures
)

# Published system with the same stages: D'Ambrosio et al. 2023, Table I (ball observation and arm actuation).
PUBLISHED_OBSERVATION_MS = 40.0
PUBLISHED_ACTUATION_MS = 71.0


class LatencyError(TTError):
    """A latency stamp cannot be read, or a stage or capture is not known."""


@dataclass(frozen=True, slots=True)
class LatencyStamp:
    """One latency message.

    Attributes:
        stage: one of `STAGES`.
        capture_ns: mid-exposure time of the image.
        finished_ns: when the stage finished.
        node: which node said so.
    """

    stage: str
    capture_ns: int
    finished_ns: int
    node: str = ""


@dataclass(frozen=True, slots=True)
class StageSummary:
    """Distribution of one duration, milliseconds.

    Attributes:
        count: number of captures.
        max_capture_ns: capture stamp of the longest, to look it up in a recording.
    """

    count: int
    median: float
    p95: float
    p99: float
    max: float
    max_capture_ns: int

    def as_dict(self) -> dict[str, float | int]:
        """Plain numbers for JSON."""
        return {
            "count": self.count,
            "median": round(self.median, 3),
            "p95": round(self.p95, 3),
            "p99": round(self.p99, 3),
            "max": round(self.max, 3),
            "max_capture_ns": self.max_capture_ns,
        }


@dataclass(frozen=True, slots=True)
class PathStep:
    """One stage of one capture: when it ended after the exposure, and how long it took, milliseconds."""

    stage: str
    end_ms: float
    took_ms: float


_TWO = struct.Struct("<iI")
_LENGTH = struct.Struct("<I")


def parse_time_reference(raw: bytes) -> LatencyStamp:
    """Reads a serialized TimeReference (little-endian CDR) without ROS; about 2 µs.

    Raises:
        LatencyError: it is no such message.
    """
    try:
        sec, nanosec = _TWO.unpack_from(raw, 4)
        (size,) = _LENGTH.unpack_from(raw, 12)
        node = raw[16 : 16 + size - 1].decode()
        at = 16 + (size + 3) // 4 * 4
        done_sec, done_nanosec = _TWO.unpack_from(raw, at)
        (size,) = _LENGTH.unpack_from(raw, at + 8)
        stage = raw[at + 12 : at + 12 + size - 1].decode()
    except (struct.error, UnicodeDecodeError) as error:
        raise LatencyError(f"{len(raw)} bytes on `latency` are no sensor_msgs/TimeReference") from error
    return LatencyStamp(stage, sec * 1_000_000_000 + nanosec, done_sec * 1_000_000_000 + done_nanosec, node)


class LatencyJoiner:
    """Collects stamps in any order and tells the time of each stage.

    Memory is bounded: beyond `max_captures` the oldest captures are forgotten.
    """

    def __init__(self, max_captures: int = 100_000) -> None:
        if max_captures < 1:
            raise LatencyError(f"max_captures is {max_captures}, but must be at least 1")
        self._max = max_captures
        self._by_capture: dict[int, dict[str, int]] = {}
        self._order: list[int] = []  # capture stamps, ascending
        self._seen: set[str] = set()
        self._implausible: dict[str, tuple[int, float]] = {}
        self._unknown: dict[str, int] = {}

    def __len__(self) -> int:
        """Number of captures held."""
        return len(self._by_capture)

    def add(self, stage: str, capture_ns: int, finished_ns: int) -> None:
        """Adds one stamp; unknown stages and implausible times are counted, not joined."""
        if stage not in STAGES:
            self._unknown[stage] = self._unknown.get(stage, 0) + 1
            return
        age = finished_ns - capture_ns
        if age < 0 or age > IMPLAUSIBLE_NS:
            count, _ = self._implausible.get(stage, (0, 0.0))
            self._implausible[stage] = (count + 1, age * 1e-9)
            return
        stamps = self._by_capture.get(capture_ns)
        if stamps is None:
            stamps = self._near_or_new(capture_ns)
        self._seen.add(stage)
        before = stamps.get(stage)
        if before is None:
            stamps[stage] = finished_ns
        else:
            stamps[stage] = (max if stage in _LAST_COUNTS else min)(before, finished_ns)

    def _near_or_new(self, capture_ns: int) -> dict[str, int]:
        at = bisect.bisect_left(self._order, capture_ns)
        near = [self._order[i] for i in (at - 1, at) if 0 <= i < len(self._order)]
        best = min(near, key=lambda stamp: abs(stamp - capture_ns), default=None)
        if best is not None and abs(best - capture_ns) <= JOIN_TOLERANCE_NS:
            return self._by_capture[best]
        stamps = self._by_capture[capture_ns] = {}
        self._order.insert(at, capture_ns)
        if len(self._order) > self._max:
            drop = max(1, self._max // 16)
            for old in self._order[:drop]:
                self._by_capture.pop(old, None)
            del self._order[:drop]
        return stamps

    def durations_ms(self, since_ns: int | None = None) -> dict[str, tuple[np.ndarray, np.ndarray]]:
        """Durations of each stage, of `arrival_to_command` and `end_to_end`.

        Args:
            since_ns: leave out captures before this stamp.

        Returns:
            Per name: durations in ms, shape (n,), and the capture stamps they belong to, shape (n,).
        """
        first = 0 if since_ns is None else bisect.bisect_left(self._order, since_ns)
        previous = self._previous()
        values: dict[str, list[int]] = {}
        owners: dict[str, list[int]] = {}

        def put(name: str, duration: int, capture: int) -> None:
            values.setdefault(name, []).append(duration)
            owners.setdefault(name, []).append(capture)

        for capture in self._order[first:]:
            stamps = self._by_capture[capture]
            for stage, end in stamps.items():
                before = previous[stage]
                start = capture if before is None else stamps.get(before)
                if start is not None:
                    put(stage, end - start, capture)
            if "commanded" in stamps:
                put(END_TO_END, stamps["commanded"] - capture, capture)
                if "arrived" in stamps:
                    put(ARRIVAL_TO_COMMAND, stamps["commanded"] - stamps["arrived"], capture)
        names = [*STAGES, ARRIVAL_TO_COMMAND, END_TO_END]
        return {
            name: (np.asarray(values[name], np.float64) * 1e-6, np.asarray(owners[name], np.int64))
            for name in names
            if name in values
        }

    def _previous(self) -> dict[str, str | None]:
        """For each stage the last one before it that this graph has; None for the first."""
        previous: dict[str, str | None] = {}
        last: str | None = None
        for stage in STAGES:
            previous[stage] = last
            if stage in self._seen:
                last = stage
        return previous

    def summary(self, since_ns: int | None = None) -> dict[str, dict[str, float | int]]:
        """Count, median, p95, p99, max (ms) and the capture of the max, by stage; ready for JSON."""
        return {name: stage.as_dict() for name, stage in self.summaries(since_ns).items()}

    def summaries(self, since_ns: int | None = None) -> dict[str, StageSummary]:
        """As `summary`, as objects."""
        result = {}
        for name, (values, captures) in self.durations_ms(since_ns).items():
            median, p95, p99 = np.percentile(values, (50, 95, 99))
            worst = int(np.argmax(values))
            result[name] = StageSummary(
                len(values), float(median), float(p95), float(p99), float(values[worst]), int(captures[worst])
            )
        return result

    def critical_path(self, capture_ns: int) -> list[PathStep]:
        """The stages of one capture in the order they ended.

        Raises:
            LatencyError: no stage of that capture is known.
        """
        stamps = self._by_capture.get(capture_ns)
        if stamps is None:
            at = bisect.bisect_left(self._order, capture_ns)
            near = [self._order[i] for i in (at - 1, at) if 0 <= i < len(self._order)]
            best = min(near, key=lambda stamp: abs(stamp - capture_ns), default=None)
            if best is None or abs(best - capture_ns) > JOIN_TOLERANCE_NS:
                hint = f"the nearest is {best}" if best is not None else "no capture is known"
                raise LatencyError(f"no latency stamp belongs to capture {capture_ns} ns; {hint}")
            capture_ns, stamps = best, self._by_capture[best]
        steps = []
        before = capture_ns
        for stage, end in sorted(stamps.items(), key=lambda item: (item[1], STAGES.index(item[0]))):
            steps.append(PathStep(stage, (end - capture_ns) * 1e-6, (end - before) * 1e-6))
            before = end
        return steps

    def outliers(self, count: int = 5) -> list[tuple[int, float, str, float]]:
        """The captures that took longest, worst first.

        Returns:
            Capture stamp, total in ms, the stage that took most of it, and how long that stage took in ms.
        """
        durations = self.durations_ms()
        values, captures = durations.get(END_TO_END, (np.empty(0), np.empty(0, np.int64)))
        rows = []
        for index in np.argsort(values)[::-1][:count]:
            slowest = max(self.critical_path(int(captures[index])), key=lambda step: step.took_ms)
            rows.append((int(captures[index]), float(values[index]), slowest.stage, slowest.took_ms))
        return rows

    def warnings(self, since_ns: int | None = None) -> list[str]:
        """Sentences about clocks and stages that cannot be right; empty when all is well.

        Args:
            since_ns: look for impossible gaps in captures from this stamp on; in all when None.
        """
        texts = []
        for stage, (count, age_s) in self._implausible.items():
            when = f"{-age_s:.3f} s before" if age_s < 0 else f"{age_s:.3f} s after"
            texts.append(
                f"clock implausible: `{stage}` ended {when} the exposure ({count} stamps left out; 0 to "
                f"{IMPLAUSIBLE_NS * 1e-9:g} s are believed): synchronise the clocks of camera and computer"
            )
        for stage, count in self._unknown.items():
            texts.append(f"{count} stamps name the unknown stage {stage!r}; known are: {', '.join(STAGES)}")
        texts.extend(self._impossible_gaps(since_ns))
        return texts

    def _impossible_gaps(self, since_ns: int | None) -> list[str]:
        texts = []
        for name, (values, _) in self.durations_ms(since_ns).items():
            negative = int(np.count_nonzero(values < 0))
            if negative > PREEMPTED_SHARE * len(values):
                texts.append(
                    f"clock implausible: `{name}` ended before the stage it follows in {negative} of "
                    f"{len(values)} captures: its node runs on another clock"
                )
        return texts


def join(stamps: Iterable[LatencyStamp]) -> LatencyJoiner:
    """A joiner filled with stamps."""
    joiner = LatencyJoiner()
    for stamp in stamps:
        joiner.add(stamp.stage, stamp.capture_ns, stamp.finished_ns)
    return joiner
