"""Camera backend that renders its own images from the ball's true state, in the process of the camera node."""

from __future__ import annotations

import queue
from collections import deque
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from tt_perception.backends.base import CameraFeatures, CameraSettings, Frame, StampSource
from tt_perception.camera import CameraModel
from tt_sim.render import CameraRenderer, MovingBall, RenderConfig

FloatArray = NDArray[np.float64]

_SHORTEST_S, _LONGEST_S = 0.0005, 0.005  # between two looks at the clock, which may be a simulated one
_PATIENCE = 1.6  # periods without news of a ball after which the camera goes on without one
_MAX_IDLE = 4  # images without a ball that may be behind before they are skipped


class RenderedBackend:
    """One simulated camera; `push_truth` is its trigger.

    Without news of a ball it keeps the rhythm of the last trigger and shows the scene alone, so that cameras
    in different processes still expose together.

    Args:
        camera: its true calibration, at the size of the images.
        settings: `fps`, `exposure_s`, and `delay_s` from mid-exposure to arrival.
        now_ns: node clock.
        config: scene; its exposure is that of the settings.
        seed: of the noise.
    """

    features = CameraFeatures(False, StampSource.EXACT, ("free", "hardware", "software"))

    def __init__(
        self,
        camera: CameraModel,
        settings: CameraSettings,
        now_ns: Callable[[], int],
        config: RenderConfig | None = None,
        seed: int = 0,
    ) -> None:
        self._renderer = CameraRenderer(camera, config, seed)
        self._now_ns = now_ns
        self._period_ns = round(1e9 / settings.fps)
        self._delay_ns = round(settings.delay_s * 1e9)
        self._exposure_ns = round(self._renderer.config.exposure_s * 1e9)
        self._truth: queue.SimpleQueue[tuple[int, FloatArray, FloatArray]] = queue.SimpleQueue()
        self._waiting: deque[Frame] = deque()
        self._last_stamp_ns = 0
        self._name = camera.name
        # A ball with its shadow on the table: the first one of a rally need not wait for the compiler.
        self._renderer.render(0.0, [MovingBall(np.array([0.0, 0.0, 0.3]), np.zeros(3))])

    def open(self) -> str:
        """Nothing to connect."""
        return f"rendered images of {self._name}"

    def push_truth(self, stamp_ns: int, pos_table: FloatArray, vel_table: FloatArray) -> None:
        """Expose at `stamp_ns` with a ball in the scene."""
        self._truth.put((stamp_ns, pos_table, vel_table))

    def read(self, timeout_s: float) -> Frame | None:
        """Next frame whose delivery time has come."""
        end_ns = self._now_ns() + round(timeout_s * 1e9)
        while True:
            now = self._now_ns()
            if self._waiting and self._due_ns() <= now:
                return self._waiting.popleft()
            if now >= end_ns:
                return None
            until = min(self._due_ns() if self._waiting else end_ns, end_ns)
            try:
                stamp, pos, vel = self._truth.get(
                    timeout=min(max((until - now) * 1e-9, _SHORTEST_S), _LONGEST_S)
                )
            except queue.Empty:
                self._idle(self._now_ns())
                continue
            if stamp > self._last_stamp_ns or self._last_stamp_ns - stamp > 10 * self._period_ns:
                self._expose(stamp, [MovingBall(pos, vel)])

    def _due_ns(self) -> int:
        return self._waiting[0].stamp_ns + self._delay_ns

    def close(self) -> None:
        """Forget what waits."""
        self._waiting.clear()

    def _idle(self, now: int) -> None:
        if self._last_stamp_ns == 0:
            self._last_stamp_ns = now - now % self._period_ns - self._period_ns
        behind = (now - self._last_stamp_ns) / self._period_ns
        if behind < _PATIENCE:
            return
        if behind > _MAX_IDLE:
            self._last_stamp_ns += self._period_ns * int(behind - _MAX_IDLE)
        self._expose(self._last_stamp_ns + self._period_ns, [])

    def _expose(self, stamp_ns: int, balls: list[MovingBall]) -> None:
        image = self._renderer.render((stamp_ns % 1_000_000_000_000) * 1e-9, balls)
        self._last_stamp_ns = stamp_ns
        arrival = max(self._now_ns(), stamp_ns + self._delay_ns)
        self._waiting.append(
            Frame(image, stamp_ns, StampSource.EXACT, 0, arrival, exposure_ns=self._exposure_ns)
        )
