"""How long one bus cycle takes: the computer's side here, the boards in a second process.

The same cycle against canned answers, which cost the other side nothing, tells what driver and operating system
need by themselves; the difference is what the simulated boards add. The vendor library's own cycle against the
same answers is there to compare with.
"""

from __future__ import annotations

import asyncio
import os
import statistics
import subprocess
import sys
import time
import tty
from collections.abc import Callable
from typing import Any

from tt_perception.errors import TTError
from tt_sim.boards.boardset import BoardSet
from tt_sim.boards.config import BoardSpec
from tt_sim.boards.line import LineAdapter
from tt_sim.boards.plant import MotorSpec, StandalonePlant
from tt_sim.boards.server import BoardServer

GAP_S = 0.002
WARM_UP = 20
MAX_LOST = 5
_WIDE: dict[str, float | int | bool] = {"servopos.position_min": -5.0, "servopos.position_max": 5.0}


def bench_cycle(
    boards: int = 4, cycles: int = 1000, progress: Callable[[int, int], None] = lambda _done, _total: None
) -> dict[str, Any]:
    """Time a full command with query (position, velocity, torque, gains, limits, watchdog) to all boards.

    Args:
        boards: number of boards, 1 to 16.
        cycles: cycles to time, paced about 250 a second.
        progress: told (cycles done, cycles) in the pauses between cycles.

    Returns:
        `cycle_us` (the bus of the motor loop with simulated boards), `driver_us` (the same with canned answers)
        and `library_us` (the cycle of the vendor's library with canned answers), each with min, median, p95,
        p99 and max; `boards`, `cycles`.
    """
    if not 1 <= boards <= 16 or cycles < 10:
        raise TTError(f"{boards} boards, {cycles} cycles: allowed are 1 to 16 boards and 10 cycles or more.")
    parts: dict[str, tuple[str, Callable[[str, int, _Durations], None]]] = {
        "library_us": ("canned", _library_cycles),
        "driver_us": ("canned", _driver_cycles),
        "cycle_us": ("boards", _driver_cycles),
    }
    result: dict[str, Any] = {"boards": boards, "cycles": cycles}
    for k, (name, (kind, run)) in enumerate(parts.items()):

        def tell(done: int, before: int = k * cycles) -> None:
            progress(before + min(done, cycles), len(parts) * cycles)

        result[name] = _measure(kind, boards, _Durations(cycles, tell), run)
    return result


def bench_control(boards: int = 4, steps: int = 5000) -> dict[str, float]:
    """Time control step and handling of a frame without any device, in µs a board (best of 5 runs)."""
    board_set = _board_set(boards)
    adapter = LineAdapter(board_set)
    request = b"".join(_request(i + 1) for i in range(boards))
    adapter.feed(request)
    for _ in range(100):
        adapter.feed(request)
        board_set.control(0.001)

    def best(action: Any, count: int) -> float:
        times = []
        for _ in range(5):
            start = time.perf_counter()
            for _ in range(count):
                action()
            times.append((time.perf_counter() - start) / count)
        return min(times) * 1e6 / boards

    return {
        "control_us": best(lambda: board_set.control(1e-6), steps),
        "frame_us": best(lambda: adapter.feed(request), max(10, steps // 10)),
    }


def _measure(
    kind: str, boards: int, durations: _Durations, run: Callable[[str, int, _Durations], None]
) -> dict[str, float]:
    code = f"from tt_sim.boards.bench import serve_{kind}; serve_{kind}({boards})"
    path = os.pathsep.join(p for p in sys.path if p)
    with subprocess.Popen(
        [sys.executable, "-c", code],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": path},
    ) as server:
        assert server.stdin is not None and server.stdout is not None
        try:
            device = server.stdout.readline().strip()
            if not device:
                raise TTError("the simulated boards did not start; the reason is printed above.")
            run(device, boards, durations)
        finally:
            server.stdin.close()  # the server ends when its input does
    times = sorted(durations.seconds[WARM_UP:])
    cycles = len(times)
    pick = {"min": 0, "p95": int(0.95 * cycles), "p99": int(0.99 * cycles), "max": cycles - 1}
    result = {name: times[index] * 1e6 for name, index in pick.items()}
    return {"median": statistics.median(times) * 1e6, **result}


def _driver_cycles(device: str, boards: int, durations: _Durations) -> None:
    from tt_control.bus import Drive, Setpoints
    from tt_control.moteus_bus import MoteusBus
    from tt_planning.robot import Motor

    bus = MoteusBus(
        [Motor(f"motor{i + 1}", i + 1, 1.0, 1, 0.0, 4.0, 0.05, 1.0) for i in range(boards)],
        "fdcanusb",
        device,
    )
    setpoints = Setpoints.idle(boards, Drive.POSITION, watchdog_s=0.025)
    setpoints.pos[:], setpoints.max_torque[:] = 0.1, 1.0
    setpoints.kp_scale[:] = setpoints.kd_scale[:] = 1.0
    bus.open()
    try:
        while durations.wanted:
            start = time.perf_counter()
            answered = bool(bus.cycle(setpoints, 1.0).replied.all())
            durations.add(time.perf_counter() - start, answered)
    finally:
        bus.close()


class _Durations:
    """Durations of cycles, paced; unanswered ones do not count, and too many of them end the measurement."""

    def __init__(self, cycles: int, tell: Callable[[int], None]) -> None:
        self._tell = tell
        self._most, self._most_lost, self._lost = cycles + WARM_UP, MAX_LOST + cycles // 10, 0
        self.seconds: list[float] = []

    @property
    def wanted(self) -> bool:
        return len(self.seconds) < self._most

    def add(self, seconds: float, answered: bool) -> None:
        """Take one cycle, and wait for the time of the next one.

        Raises:
            TTError: too many cycles without an answer.
        """
        if answered:
            self.seconds.append(seconds)
        else:
            self._lost += 1
            if self._lost > self._most_lost:
                raise TTError(
                    f"{self._lost} cycles got no answer; this machine is too busy to measure anything."
                )
        self._tell(len(self.seconds))
        time.sleep(GAP_S)


def _library_cycles(device: str, boards: int, durations: _Durations) -> None:
    asyncio.run(_cycles(device, boards, durations))


async def _cycles(device: str, boards: int, durations: _Durations) -> None:
    import moteus

    transport = moteus.Fdcanusb(device)
    controllers = [moteus.Controller(id=i + 1, transport=transport) for i in range(boards)]
    too_late = (RuntimeError, asyncio.TimeoutError)  # what the library raises when it has waited too long
    try:
        while durations.wanted:
            start = time.perf_counter()
            commands = [_command(controller) for controller in controllers]
            try:
                replies = await asyncio.wait_for(transport.cycle(commands), 1.0)
            except too_late:
                replies = []
            durations.add(time.perf_counter() - start, len(replies) == boards)
    finally:
        transport.close()


def _command(controller: Any) -> Any:
    """Full command with query, as a real-time loop sends it."""
    return controller.make_position(
        position=0.1,
        velocity=0.0,
        feedforward_torque=0.0,
        kp_scale=1.0,
        kd_scale=1.0,
        maximum_torque=1.0,
        watchdog_timeout=0.025,
        velocity_limit=-1.0,
        accel_limit=-1.0,
        query=True,
    )


def serve_boards(boards: int) -> None:
    """Serve stand-alone boards until standard input ends (the other process of the measurement)."""
    specs = [BoardSpec(i + 1, config=_WIDE) for i in range(boards)]
    with BoardServer(specs, standalone=True) as server:
        print(server.device, flush=True)
        sys.stdin.read()


def serve_canned(boards: int) -> None:
    """Answer every cycle with bytes made once per source id, until standard input ends."""
    import select

    adapter = LineAdapter(_board_set(boards))
    answers: dict[bytes, bytes] = {}
    master, slave = os.openpty()
    tty.setraw(slave)
    print(os.ttyname(slave), flush=True)
    request = b""
    while True:
        ready, _, _ = select.select([master, sys.stdin], [], [])
        if sys.stdin in ready:
            return
        request += os.read(master, 65536)
        if request.count(b"\n") >= boards:
            sender = request[: len(b"can send 8001")]
            if sender not in answers:
                answers[sender] = adapter.feed(request)[0][1]
            os.write(master, answers[sender])
            request = b""


def _board_set(boards: int) -> BoardSet:
    plant = StandalonePlant({i + 1: MotorSpec() for i in range(boards)})
    return BoardSet([BoardSpec(i + 1, config=_WIDE, enable_delay_s=0.0) for i in range(boards)], plant)


def _request(board_id: int) -> bytes:
    import moteus

    from tt_sim.boards.frames import PADDED_LENGTH
    from tt_sim.boards.line import with_checksum

    command = _command(moteus.Controller(id=board_id, transport=object()))
    data = command.data + b"\x50" * (PADDED_LENGTH[len(command.data)] - len(command.data))
    return with_checksum(b"can send %04x %b BF" % (0x8000 | board_id, data.hex().upper().encode())) + b"\n"
