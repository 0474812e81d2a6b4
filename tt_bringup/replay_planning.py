"""The planning half of an offline replay in a process of its own, so that a replay uses two cores.

Nothing that is decided changes what is seen: the first process locates and tracks the ball and passes its states on,
this one decides. Each compares its own outputs with the recording. The stages are the same objects as in one process.
"""

from __future__ import annotations

import contextlib
import multiprocessing
import sys
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tt_estimation.types import BallState
from tt_perception.errors import TTError

_BATCH = 100  # states that travel together
_Events = list[tuple[int, Any]]


@dataclass
class Planned:
    """What the planning half made: messages by topic, outcome of decisions, comparisons with the recording."""

    made: dict[str, int]
    decisions: dict[str, int]
    comparisons: list[Any]


class PlanningProcess:
    """Plans for another process.

    A context manager: the process ends with it, however that ends.

    Args:
        bag: the recording (`Bag`).
        settings: what is replayed (`ReplaySettings`).
    """

    def __init__(self, bag: Any, settings: Any) -> None:
        # Where a process can be copied, the copy has imported everything already.
        context: Any = multiprocessing.get_context("fork" if sys.platform == "linux" else "spawn")
        self._pipe, far = context.Pipe()
        settings = replace(settings, begin="ball/state", detector=None)
        self._process = context.Process(target=_serve, args=(self._pipe, far, bag, settings), daemon=True)
        self._process.start()
        far.close()
        self._events: _Events = []

    def __enter__(self) -> PlanningProcess:
        return self

    def __exit__(self, *_: object) -> None:
        self._process.kill()
        self._process.join()
        self._pipe.close()

    def take(self, now_ns: int, data: Any) -> None:
        """The next ball state or joint positions, and when they arrived."""
        self._events.append((now_ns, data))
        if len(self._events) >= _BATCH:
            self._flush()

    def finish(self) -> Planned:
        """Waits for the last decision.

        Raises:
            TTError: the process failed.
        """
        self._flush()
        self._send(None)
        try:
            planned = self._pipe.recv()
        except EOFError:
            raise self._failure() from None
        if isinstance(planned, Exception):
            raise planned
        assert isinstance(planned, Planned)
        return planned

    def _flush(self) -> None:
        self._send(_packed(self._events))
        self._events = []

    def _send(self, item: Any) -> None:
        try:
            self._pipe.send(item)
        except OSError:
            raise self._failure() from None

    def _failure(self) -> Exception:
        """What the process said before it ended, or how it ended."""
        with contextlib.suppress(EOFError, OSError):
            if isinstance(said := self._pipe.recv(), Exception):
                return said
        self._process.join()
        return TTError(f"the planning half of the replay ended with exit code {self._process.exitcode}")


def _packed(events: _Events) -> tuple[_Events, NDArray[np.int64], NDArray[np.float64]]:
    """Ball states as arrays, ten times as fast as objects; their places in the list are None."""
    states = [(now_ns, data) for now_ns, data in events if isinstance(data, BallState)]
    rest = [(now_ns, None if isinstance(data, BallState) else data) for now_ns, data in events]
    stamps = np.array([data.stamp_ns for _, data in states], np.int64)
    values = np.array([np.concatenate((s.vector, s.cov.ravel())) for _, s in states])
    return rest, stamps, values


def _unpacked(batch: tuple[_Events, NDArray[np.int64], NDArray[np.float64]]) -> _Events:
    rest, stamps, values = batch
    states = (
        BallState(stamp, row[:3], row[3:6], row[6:9], row[9:].reshape(9, 9))
        for stamp, row in zip(stamps.tolist(), values, strict=True)
    )
    return [(now_ns, next(states) if data is None else data) for now_ns, data in rest]


def _serve(near: Connection, pipe: Connection, bag: Any, settings: Any) -> None:
    """The process: packed states come through `pipe` until None does, then a `Planned` goes back."""
    near.close()  # or the end of the other process would never be noticed
    try:
        pipe.send(_plan(pipe, bag, settings))
    except (EOFError, OSError, KeyboardInterrupt):
        sys.exit(1)  # the other process has ended, and has said why
    except Exception as error:
        pipe.send(error)


def _plan(pipe: Connection, bag: Any, settings: Any) -> Planned:
    from tt_bringup import replay
    from tt_bringup.replay_compare import compare
    from tt_planning.pipeline import Event, Pipeline

    recorded = replay.read_recorded(bag, settings, replay.PLANNED)
    clock = replay.RecordedTimes(recorded, settings.leads_s)
    pipeline = Pipeline(settings.robot, settings.model, (), settings.config, clock=clock)
    result = replay.ReplayResult()
    while (batch := pipe.recv()) is not None:
        for now_ns, data in _unpacked(batch):
            replay.collect(pipeline.step(Event(now_ns, data)), result)
    outputs = {name: result.outputs[name] for name in replay.PLANNED}
    made = {name: len(items) for name, items in outputs.items()}
    return Planned(made, result.decisions, compare(recorded.outputs, outputs))
