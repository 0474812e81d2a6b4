"""Which images belong to one trigger: by counter where cameras have one, else by equal stamps.

Cameras on one hardware trigger expose together, so their detections form a set. Host arrival times say
nothing about that and are only used to stop waiting. A camera that never shares a stamp with the others runs
free: its images become sets of their own, for the filter to use as single rays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tt_perception.types import CameraDetections

_RESET_JUMP_NS = 1_000_000_000
_PROBATION = 8  # sets in a row without a partner before a camera counts as running free


@dataclass(frozen=True)
class TriggerConfig:
    """How images are put together.

    Attributes:
        wait_ns: longest wait for the other cameras after the first image of a set arrived. A newer complete
            set ends it too, so a lost image costs one period and a busy computer does not tear sets apart.
        stamp_tolerance_ns: stamps this near are equal. A ball moves 0.1 mm in 10 µs; more than 200 µs would
            hide a camera that is out of step.
        silent_after_ns: a camera without an image for this long is not waited for.
        free: names of cameras without trigger, or `("*",)` for all.
    """

    wait_ns: int = 20_000_000
    stamp_tolerance_ns: int = 100_000
    silent_after_ns: int = 100_000_000
    free: tuple[str, ...] = ()


@dataclass
class TriggerSet:
    """Images of one trigger."""

    stamp_ns: int
    counter: int | None
    opened_ns: int
    views: dict[str, CameraDetections] = field(default_factory=dict)


class TriggerSets:
    """Collects detections into trigger sets; sets come out in the order of their stamps.

    Attributes:
        counts: events since the start: `late`, `duplicate`, `bad_stamp`, `reset`, `resync`, `partial`,
            `complete`.
    """

    def __init__(self, cameras: Sequence[str], config: TriggerConfig | None = None) -> None:
        self.cameras = tuple(cameras)
        self.config = config or TriggerConfig()
        self.counts = dict.fromkeys(
            ("late", "duplicate", "bad_stamp", "reset", "resync", "partial", "complete"), 0
        )
        self._all_free = "*" in self.config.free
        self._free = set(self.cameras if self._all_free else self.config.free)
        self._pending: list[TriggerSet] = []
        self._first_ns: int | None = None
        self._last_seen_ns: dict[str, int] = {}
        self._last_stamp: dict[str, int] = {}
        self._last_emitted_ns = 0
        self._offsets: dict[str, int] = {}  # counter of a camera minus the common counter
        self._alone: dict[str, int] = dict.fromkeys(self.cameras, 0)

    @property
    def free_cameras(self) -> tuple[str, ...]:
        """Cameras that run free, by configuration or because they never share a stamp."""
        return tuple(name for name in self.cameras if self._runs_free(name))

    def silent_cameras(self, now_ns: int) -> tuple[str, ...]:
        """Cameras that have not been heard for `silent_after_ns`."""
        return tuple(name for name in self.cameras if self._is_silent(name, now_ns))

    def _runs_free(self, name: str) -> bool:
        return name in self._free or self._alone[name] >= _PROBATION

    def _is_silent(self, name: str, now_ns: int) -> bool:
        start = self._first_ns if self._first_ns is not None else now_ns
        return self._last_seen_ns.get(name, start) < now_ns - self.config.silent_after_ns

    def add(self, detections: CameraDetections, now_ns: int) -> list[TriggerSet]:
        """Take one image's detections; returns the sets that are now finished."""
        name, stamp = detections.camera, detections.stamp_ns
        if stamp <= 0:
            self.counts["bad_stamp"] += 1
            return []
        last = self._last_stamp.get(name)
        if last is not None and stamp <= last:
            if last - stamp < _RESET_JUMP_NS:
                self.counts["duplicate"] += 1
                return []
            self._reset()  # the clock was set back, or a recording started again
        if last is not None and stamp - last > 60 * _RESET_JUMP_NS:
            self.counts["reset"] += 1
        self._last_stamp[name] = stamp
        self._last_seen_ns[name] = now_ns
        if self._first_ns is None:
            self._first_ns = now_ns
        if name in self._free:
            return [TriggerSet(stamp, None, now_ns, {name: detections})]
        counter = self._common_counter(detections)
        match = self._match(name, stamp, counter)
        if match is None:
            if stamp <= self._last_emitted_ns + self.config.stamp_tolerance_ns:
                if self._alone[name] >= _PROBATION:
                    return [TriggerSet(stamp, None, now_ns, {name: detections})]
                self.counts["late"] += 1
                return []
            match = TriggerSet(stamp, counter, now_ns)
            self._pending.append(match)
            self._pending.sort(key=lambda pending: pending.stamp_ns)
        match.views[name] = detections
        if match.counter is None and counter is not None:
            match.counter = counter
            for other, view in match.views.items():
                if view.counter is not None:
                    self._offsets.setdefault(other, view.counter - counter)
        return self._emit_to(match) if self._is_complete(match, now_ns) else self.flush(now_ns)

    def flush(self, now_ns: int) -> list[TriggerSet]:
        """Sets whose wait has expired."""
        expired = [item for item in self._pending if now_ns - item.opened_ns >= self.config.wait_ns]
        return self._emit_to(expired[-1]) if expired else []

    def next_deadline_ns(self) -> int | None:
        """When `flush` should be called; None when nothing waits."""
        if not self._pending:
            return None
        return min(item.opened_ns for item in self._pending) + self.config.wait_ns

    def _match(self, name: str, stamp: int, counter: int | None) -> TriggerSet | None:
        for pending in self._pending:
            if name in pending.views:
                continue
            if counter is not None and pending.counter is not None:
                if counter == pending.counter:
                    return pending
            elif abs(pending.stamp_ns - stamp) <= self.config.stamp_tolerance_ns:
                return pending
        return None

    def _common_counter(self, detections: CameraDetections) -> int | None:
        """Counter in the count of the first camera; cameras may have started to count at different triggers.

        The offset is taken from the first pair with equal stamps, and taken again when counters and stamps
        disagree (a camera restarted or lost a trigger).
        """
        if detections.counter is None:
            return None
        name = detections.camera
        if not self._offsets:
            self._offsets[name] = 0
        for pending in self._pending:
            if pending.counter is None or name in pending.views:
                continue
            if abs(pending.stamp_ns - detections.stamp_ns) <= self.config.stamp_tolerance_ns:
                offset = detections.counter - pending.counter
                if self._offsets.get(name, offset) != offset:
                    self.counts["resync"] += 1
                self._offsets[name] = offset
                break
        if name not in self._offsets:
            return None
        return detections.counter - self._offsets[name]

    def _is_complete(self, item: TriggerSet, now_ns: int) -> bool:
        for name in self.cameras:
            if name not in item.views and not self._is_silent(name, now_ns) and not self._runs_free(name):
                return False
        return True

    def _emit_to(self, last: TriggerSet) -> list[TriggerSet]:
        """Release `last` and everything older, so that results never go back in time."""
        ready = [item for item in self._pending if item.stamp_ns <= last.stamp_ns]
        self._pending = [item for item in self._pending if item.stamp_ns > last.stamp_ns]
        for item in ready:
            self._last_emitted_ns = max(self._last_emitted_ns, item.stamp_ns)
            self.counts["complete" if len(item.views) == len(self.cameras) else "partial"] += 1
            alone = len(item.views) == 1
            for name in item.views:
                self._alone[name] = min(self._alone[name] + 1, 2 * _PROBATION) if alone else 0
        return ready

    def _reset(self) -> None:
        self.counts["reset"] += 1
        self._pending.clear()
        self._last_stamp.clear()
        self._offsets.clear()
        self._last_emitted_ns = 0
