"""A simulated fdcanusb adapter: a pseudo-terminal behind which the boards of one bus answer.

One thread waits for bytes, lets the boards answer and writes all replies of a cycle at once. With a
stand-alone plant the same thread also steps the physics, always up to the moment a frame is answered, so
that boards run in real time with no second thread to wait for.
"""

import contextlib
import errno
import heapq
import os
import select
import sys
import tempfile
import threading
import time
import tty
import uuid
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from tt_control.realtime import ask_for_short_slices
from tt_perception.errors import TTError
from tt_sim.boards.boardset import BoardSet
from tt_sim.boards.config import BoardSpec
from tt_sim.boards.failures import Failure
from tt_sim.boards.line import LineAdapter
from tt_sim.boards.plant import MotorSpec, StandalonePlant
from tt_sim.boards.supply import SupplySpec

READ_SIZE = 65536
# A stalled process catches up this much at most; the watchdogs trip in it as they would on a real bus.
CATCH_UP_S = 0.25
IDLE_S = 0.05


class BoardServer:
    """Serves boards on a pseudo-terminal.

    Args:
        boards: the boards; with `standalone` a list of `BoardSpec` is enough.
        link: path of the symlink that leads to the device; in a temporary folder of its own when None. It leads
            nowhere while the adapter is unplugged, and after the end of this process, however it ended.
        standalone: the server steps its own plant in real time (True), or the caller calls `boards.control`.
        motors: motors of the stand-alone plant by name; a default motor for every board that is not listed.
        supply: numbers of the power supply, only when `boards` are specs.
        bus_delay_s: time every reply takes on the wire (about 1.2 ms for four boards on real CAN-FD); 0 by
        default. rate_hz: physics and control rate of the stand-alone plant.

    The server starts with `start()` or as a context manager, and stops with `stop()`: the thread ends, the
    link is removed, the device hangs up.
    """

    def __init__(
        self,
        boards: BoardSet | Sequence[BoardSpec],
        link: str | os.PathLike[str] | None = None,
        *,
        standalone: bool = False,
        motors: Mapping[int | str, MotorSpec] | None = None,
        supply: SupplySpec | None = None,
        bus_delay_s: float = 0.0,
        rate_hz: float = 1000.0,
    ) -> None:
        if not 50.0 <= rate_hz <= 20000.0:
            raise TTError(f"physics rate {rate_hz} Hz is outside 50 to 20000 Hz.")
        if not 0.0 <= bus_delay_s <= 1.0:
            raise TTError(f"bus delay {bus_delay_s} s is outside 0 to 1 s.")
        self.plant: StandalonePlant | None = None
        if isinstance(boards, BoardSet):
            if standalone:
                raise TTError(
                    "a stand-alone server makes its own plant: pass BoardSpec objects instead of a BoardSet."
                )
            self.boards = boards
        else:
            if not standalone:
                raise TTError("without standalone=True pass a BoardSet, whose plant the caller steps.")
            given = dict(motors or {})
            names: list[int | str] = [spec.id if spec.motor is None else spec.motor for spec in boards]
            self.plant = StandalonePlant({name: given.get(name, MotorSpec()) for name in names})
            self.boards = BoardSet(boards, self.plant, supply)
        self._own_folder = link is None
        folder = Path(tempfile.gettempdir(), f"tt_bus_{uuid.uuid4().hex[:12]}")
        self._link = Path(link) if link is not None else folder / "motors"
        self.device = str(self._link)
        self.external: dict[int | str, float] = {}
        self.steps = 0
        self.on_step: Callable[[float], None] | None = None
        self._delay_s = bus_delay_s
        self._dt = 1.0 / rate_hz
        self._adapter = LineAdapter(self.boards)
        self._outbox: list[tuple[float, int, bytes]] = []
        self._sequence = 0
        self._master = self._slave = -1
        self._wake_read = self._wake_write = -1
        self._thread: threading.Thread | None = None
        self._stopping = False
        self._torn = False

    # ------------------------------------------------------------------ life

    def start(self) -> "BoardServer":
        """Open the pseudo-terminal and start answering at `device`."""
        if self._thread is not None:
            raise TTError("the board server already runs; stop it before starting it again.")
        self._wake_read, self._wake_write = os.pipe()
        os.set_blocking(self._wake_write, False)
        self._plug_in()
        self._stopping = False
        if sys.getswitchinterval() > 0.0005:
            sys.setswitchinterval(0.0005)  # a busy physics thread would else delay each reply by up to 5 ms
        self.boards.on_failure = self._wake
        self._thread = threading.Thread(target=self._run, name="boards", daemon=True)
        self._thread.start()
        return self

    def stop(self) -> None:
        """Stop answering, remove the link and close the device; may be called twice."""
        thread, self._thread = self._thread, None
        if thread is None:
            return
        self._stopping = True
        self._wake()
        thread.join(timeout=2.0)
        self._unplug()
        os.close(self._wake_read)
        os.close(self._wake_write)
        if self._own_folder:
            with contextlib.suppress(OSError):
                self._link.parent.rmdir()

    def __enter__(self) -> "BoardServer":
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.stop()

    def fail(self, failure: Failure | str) -> None:
        """Let a failure happen; see `BoardSet.fail` and `failures.KINDS`."""
        self.boards.fail(failure)
        self._wake()

    @property
    def alive(self) -> bool:
        """Whether the serving thread runs."""
        return self._thread is not None and self._thread.is_alive()

    @property
    def frames(self) -> int:
        """Frames received so far."""
        return self._adapter.frames

    # ------------------------------------------------------------------ device

    def _plug_in(self) -> None:
        self._master, self._slave = os.openpty()
        tty.setraw(self._slave)
        os.set_blocking(self._master, False)
        temporary = self._link.with_name(f".{self._link.name}.{os.getpid()}")
        try:
            if self._link.exists() and not self._link.is_symlink():
                raise FileExistsError(errno.EEXIST, "it is no link")
            self._link.parent.mkdir(parents=True, exist_ok=True)
            temporary.unlink(missing_ok=True)
            temporary.symlink_to(self._target())
            temporary.replace(self._link)
        except OSError as error:
            os.close(self._master)
            os.close(self._slave)
            self._master = self._slave = -1
            raise TTError(
                f"cannot create the device link {self._link}: {error.strerror}. "
                "Give the path of a new link in a writable folder."
            ) from None
        self._adapter.reset()
        self._outbox.clear()
        self._torn = False

    def _target(self) -> str:
        """What the link leads to: a path that dies with this process.

        The number of a pseudo-terminal is given to the next program that asks for one; a link to it would lead
        from a killed simulation to a stranger's terminal.
        """
        mortal = f"/proc/{os.getpid()}/fd/{self._slave}"
        return mortal if os.path.exists(mortal) else os.ttyname(self._slave)

    def _unplug(self) -> None:
        with contextlib.suppress(OSError):
            if os.readlink(self._link) == self._target():
                self._link.unlink()
        for descriptor in (self._slave, self._master):
            if descriptor >= 0:
                with contextlib.suppress(OSError):
                    os.close(descriptor)
        self._master = self._slave = -1

    def _wake(self) -> None:
        if self._wake_write >= 0:
            with contextlib.suppress(OSError):
                os.write(self._wake_write, b"w")

    # ------------------------------------------------------------------ thread

    def _run(self) -> None:
        ask_for_short_slices()
        start = time.monotonic()
        stepped = 0
        while not self._stopping:
            now = time.monotonic()
            if self.plant is not None:
                due = int((now - start) / self._dt)
                if due - stepped > CATCH_UP_S / self._dt:
                    start += (due - stepped) * self._dt - CATCH_UP_S
                    due = int((now - start) / self._dt)
                while stepped < due:
                    self._step()
                    stepped += 1
            self._follow_bus_state()
            self._send_due(now)
            wait = self._wait_s(start + (stepped + 1) * self._dt)
            watched = [self._wake_read] if self._master < 0 else [self._wake_read, self._master]
            ready, _, _ = select.select(watched, [], [], wait)
            if self._wake_read in ready:
                os.read(self._wake_read, 4096)
            if self._master in ready:
                self._answer()

    def _wait_s(self, next_step: float) -> float:
        until = next_step if self.plant is not None else time.monotonic() + IDLE_S
        if self._outbox:
            until = min(until, self._outbox[0][0])
        return max(0.0, until - time.monotonic())

    def _step(self) -> None:
        assert self.plant is not None
        torques = self.boards.control(self._dt)
        self.plant.step(torques, self._dt, self.external)
        self.steps += 1
        if self.on_step is not None:
            self.on_step(self.boards.now_s)

    def _follow_bus_state(self) -> None:
        bus = self.boards.bus
        if bus.unplugged and self._master >= 0:
            self._unplug()
        elif not bus.unplugged and self._master < 0:
            self._plug_in()
        while bus.injected and self._master >= 0:
            line, checksum = bus.injected.popleft()
            self._write(self._adapter.encode(line) if checksum else line + b"\r\n")

    def _answer(self) -> None:
        try:
            received = os.read(self._master, READ_SIZE)
        except OSError as error:
            if error.errno in (errno.EIO, errno.EAGAIN):
                return
            raise
        pieces = self._adapter.feed(received)
        if not pieces:
            return
        base = time.monotonic() + self._delay_s
        for delay, piece in pieces:
            if delay + self._delay_s <= 0.0:
                self._write(piece)
            else:
                self._sequence += 1
                heapq.heappush(self._outbox, (base + delay, self._sequence, piece))

    def _send_due(self, now: float) -> None:
        while self._outbox and self._outbox[0][0] <= now:
            piece = heapq.heappop(self._outbox)[2]
            if self._master >= 0:
                self._write(piece)

    def _write(self, data: bytes) -> None:
        if self._torn:
            data = b"\n" + data  # what follows a torn line must not look like its rest
        try:
            self._torn = os.write(self._master, data) < len(data)
        except BlockingIOError:  # nobody reads: a real adapter drops data too
            self._torn = True
