"""The real-time loop: one thread that owns the bus, wakes at absolute deadlines and lets the controller
decide.

Nothing else touches bus or controller: other threads hand over functions by `call`, which run between ticks.
Tests and lockstep simulations call `connect`, `tick` and `leave` themselves, with a clock of their own.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TypeVar

from tt_control.audit import CONFIG_NAMES, audit
from tt_control.bus import BusStates, MotorBus, Setpoints
from tt_control.clocks import NS_PER_S, Clock, PolledClock
from tt_control.controller import POWERED, Controller, State
from tt_control.errors import BusError, BusLost
from tt_control.loop_stats import LoopStats
from tt_control.realtime import RealTimeOptions, enter_real_time

T = TypeVar("T")
# Share of the period the exchange may take, and its least time; the rest is for everything else. An exchange
# after
# a complete one may take longer: a busy computer delays replies, and a lost tick is better than a lost reply.
CYCLE_SHARE, LEAST_CYCLE_S, PATIENT_CYCLE_S = 0.6, 0.002, 0.006
# Pause before a tick that must not wait for its time.
AT_ONCE_NS = 100_000
REOPEN_S = 0.5
# Boards that fail the check are checked again, so that switching a supply on needs no restart.
AUDIT_AGAIN_S = 2.0
HOME_STATE_TICKS = 5
_STOP_TIMEOUT_S = 2.0
_WAKE_CHECK_S = 0.05


@dataclass(frozen=True, slots=True)
class Commanded:
    """A trajectory reached the motors: capture stamp and the end of the exchange that carried it first."""

    capture_stamp_ns: int
    done_ns: int


class MotorLoop:
    """Runs one controller on one bus.

    Args:
        bus: the motors.
        controller: what decides.
        clock: time of the trajectories.
        real_time: best-effort scheduling options.
        on_event: called from the loop's thread with one line for the log (level, text).

    Attributes:
        stats: measures of the loop.
        latest: replies of the last cycle and their time; replaced as a whole, never changed.
        commanded: trajectories that reached the motors, to be taken by the node.
        on_tick: called after every exchange (time, setpoints, replies), for recordings; None by default.
    """

    def __init__(
        self,
        bus: MotorBus,
        controller: Controller,
        clock: Clock,
        real_time: RealTimeOptions | None = None,
        on_event: Callable[[str, str], None] | None = None,
    ) -> None:
        """Prepares; `start` begins."""
        self.bus, self.controller, self.clock = bus, controller, clock
        self.period_ns = round(controller.period_s * NS_PER_S)
        self.cycle_s = max(LEAST_CYCLE_S, CYCLE_SHARE * controller.period_s)
        self.stats = LoopStats(controller.period_s)
        self.latest: tuple[int, BusStates] | None = None
        self.commanded: deque[Commanded] = deque(maxlen=200)
        self.on_tick: Callable[[int, Setpoints, BusStates], None] | None = None
        self._real_time = real_time or RealTimeOptions()
        self._on_event = on_event or (lambda level, text: None)
        self._mailbox: deque[tuple[Callable[[int], object], Future[object]]] = deque()
        if isinstance(clock, PolledClock):
            clock.on_poll = lambda: self._answer_calls(clock.now_ns())
        self._thread: threading.Thread | None = None
        self._stopping = threading.Event()
        self._states: BusStates | None = None
        self._deadline_ns = self._tick_ns = self._woken_ns = 0
        self._jumps = 0
        self._said = ""
        self._problems: tuple[str, ...] = ()
        self._next_audit_s = 0.0

    # ------------------------------------------------------------------ other threads

    def start(self) -> None:
        """Starts the thread."""
        self.controller.warm_up()
        self._thread = threading.Thread(target=self._run, name="motors", daemon=True)
        self._thread.start()

    def stop(self) -> bool:
        """Brakes, leaves the motors by their stop policy, closes the bus, ends the thread; False when it
        hangs.
        """
        thread, self._thread = self._thread, None
        if thread is None:
            return True
        self._stopping.set()
        thread.join(_STOP_TIMEOUT_S)
        if thread.is_alive():
            # A simulated clock that stands still: end without waiting for it; the boards' watchdog does the
            # rest.
            self.clock.wake()
            thread.join(_STOP_TIMEOUT_S)
        return not thread.is_alive()

    @property
    def is_alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread is not None and self._thread.is_alive()

    def call(self, function: Callable[[int], T]) -> Future[T]:
        """Runs `function(now_ns)` between two ticks; the future holds its result.

        What it changes should reach the motors soon, so it brings the next tick forward.
        """
        future: Future[T] = Future()
        self._mailbox.append((function, future))  # type: ignore[arg-type]
        self.clock.nudge()
        return future

    # ------------------------------------------------------------------ the thread's work

    def _run(self) -> None:
        for warning in enter_real_time(self._real_time):
            self._on_event("warning", warning)
        # Another busy Python thread would hold the interpreter for 5 ms otherwise.
        sys.setswitchinterval(0.0005)
        try:
            while not self._stopping.is_set():
                if self.controller.state is State.DISCONNECTED and not self.connect():
                    self._pause(REOPEN_S)
                    continue
                self.tick()
            self.leave()
        except Exception as error:
            self._on_event("error", f"motor loop failed: {type(error).__name__}: {error}")
            raise
        finally:
            self.bus.close()

    def connect(self) -> bool:
        """Opens the bus and checks the boards; False when that failed."""
        try:
            self.bus.open()
            self.controller.connected(self.clock.now_ns())
            self._check_boards()
        except BusError as error:
            self.bus.close()
            self.controller.lost(str(error), self.clock.now_ns())
            self._say("error", str(error))
            return False
        self._deadline_ns = self._tick_ns = self._woken_ns = 0
        self._states = None
        return True

    def _check_boards(self) -> None:
        controller = self.controller
        infos = self.bus.inspect(CONFIG_NAMES)
        problems = audit(infos, controller.robot, controller.config)
        # The controller must know where the joints are before it calls itself ready.
        controller.watch.take(self.bus.cycle(Setpoints.idle(controller.robot.joint_count), PATIENT_CYCLE_S))
        controller.audited(infos, problems, self.clock.now_ns())
        self._next_audit_s = time.monotonic() + AUDIT_AGAIN_S
        news = [problem for problem in problems if problem not in self._problems]
        self._problems = problems
        for problem in news:
            self._on_event("error", problem)
        if not problems:
            self._on_event(
                "info", f"{len(infos)} motor boards checked: {controller.state.value}, {controller.reason}"
            )

    def _pause(self, seconds: float) -> None:
        """Waits without motors, still answering calls."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self._stopping.wait(_WAKE_CHECK_S):
            self._answer_calls(self.clock.now_ns())

    def tick(self) -> None:
        """Sleeps until the next deadline and does one exchange."""
        now = self.clock.now_ns()
        if self._deadline_ns == 0:
            self._deadline_ns = now
        self._deadline_ns += self.period_ns
        # The newest deadline that has passed is kept, late; those before it are lost. A coarse simulated clock may
        # stand still: one tick per time.
        skipped = max(0, (now - self._deadline_ns) // self.period_ns)
        if self._deadline_ns + skipped * self.period_ns <= self._tick_ns:
            skipped += 1
        self._deadline_ns += skipped * self.period_ns
        self._sleep()
        begin = time.perf_counter()
        woken = self.clock.now_ns()
        if self.clock.jumps() != self._jumps:
            self._after_clock_jump(woken)
        late_s = (woken - self._deadline_ns) / NS_PER_S
        # A late tick must not send old setpoints.
        self._tick_ns = tick_ns = self._deadline_ns if late_s < self.controller.period_s else woken
        self._answer_calls(tick_ns)
        setpoints = self.controller.step(tick_ns, self._states)
        try:
            complete = self._states is not None and self._states.replied.all()
            self._states = self.bus.cycle(
                setpoints, PATIENT_CYCLE_S if complete else self.cycle_s, self.cycle_s
            )
        except BusLost as error:
            self.stats.bus_losses += 1
            self.bus.close()
            self.controller.lost(str(error), woken)
            self._say("error", f"{error}; the boards stop by their watchdog")
            return
        if self.controller.homer is not None:
            self._serve_homing()
        done = self.clock.now_ns()
        if self.controller.started_ns is not None:
            self.commanded.append(Commanded(self.controller.started_ns, done))
        self.latest = (done, self._states)
        if self.controller.watch.makes_dead(self._states):
            self._deadline_ns = done + AT_ONCE_NS - self.period_ns  # the others must brake now
        if self.controller.state is State.ACTIVE:
            self.stats.begin_run()
        period_s = (woken - self._woken_ns) / NS_PER_S if self._woken_ns else self.controller.period_s
        self._woken_ns = woken
        self.stats.add(late_s, period_s, self._states.cycle_s, time.perf_counter() - begin, int(skipped))
        if self.on_tick is not None:
            self.on_tick(tick_ns, setpoints, self._states)
        waiting = self.controller.state is State.CONNECTED and time.monotonic() > self._next_audit_s
        if self.controller.wants_audit or waiting:
            with contextlib.suppress(BusLost):
                self._check_boards()

    def _sleep(self) -> None:
        """Until the deadline. A call brings it forward, a trajectory to its start, but not nearer than half a
        period to the last tick, so that the exchange and the other threads keep their time; the ticks go on
        from there.
        """
        earliest = self._deadline_ns - self.period_ns // 2
        self._bring_forward(earliest, self._deadline_ns)
        while not self.clock.sleep_until(self._deadline_ns) and not self._stopping.is_set():
            if self._mailbox:
                now = self.clock.now_ns()
                self._answer_calls(now)
                self._bring_forward(max(earliest, now), now)

    def _bring_forward(self, earliest: int, wanted: int) -> None:
        start = self.controller.next_start_ns()
        self._deadline_ns = min(self._deadline_ns, max(earliest, wanted if start is None else start))

    def _serve_homing(self) -> None:
        """What homing needs from the boards besides the exchange."""
        homer = self.controller.homer
        assert homer is not None
        joint = self.controller.robot.joint_names.index(homer.name)
        with contextlib.suppress(BusLost):  # the next exchange tells
            if homer.set_position is not None:
                self.bus.set_position(joint, homer.set_position)
                homer.position_was_set()
            elif homer.wants_home_state and self.stats.ticks % HOME_STATE_TICKS == 0:
                homer.home_state(self.bus.home_state(joint))

    def _after_clock_jump(self, now_ns: int) -> None:
        self._jumps = self.clock.jumps()
        self._deadline_ns, self._woken_ns = now_ns, 0
        self.controller.clock_jumped(now_ns)

    def _answer_calls(self, now_ns: int) -> None:
        while self._mailbox:
            function, future = self._mailbox.popleft()
            if not future.set_running_or_notify_cancel():
                continue
            try:
                future.set_result(function(now_ns))
            except Exception as error:
                future.set_exception(error)

    def _say(self, level: str, text: str) -> None:
        """Reports a condition once, not every time it is found again."""
        if text != self._said:
            self._said = text
            self._on_event(level, text)

    def leave(self) -> None:
        """Controlled stop, then the motors as their stop policy says; bounded."""
        controller = self.controller
        if controller.state in POWERED or controller.state is State.FAULT:
            self.call(controller.disable)
        end = time.monotonic() + _STOP_TIMEOUT_S * 0.75
        settled = 0
        while controller.state is not State.DISCONNECTED and settled < 3 and time.monotonic() < end:
            self.tick()
            settled += controller.state not in POWERED
        if controller.state is not State.DISCONNECTED:
            for _ in range(2):
                with contextlib.suppress(BusLost):
                    self.bus.cycle(controller.leaving(), self.cycle_s)
