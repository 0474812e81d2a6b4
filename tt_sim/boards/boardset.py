"""All boards of one bus: the control step for the physics and the frame handler for the adapter."""

import heapq
import threading
from collections.abc import Callable, Sequence
from typing import Protocol

from tt_perception.errors import TTError
from tt_sim.boards import frames
from tt_sim.boards import registers as reg
from tt_sim.boards.board import Board
from tt_sim.boards.config import BoardSpec
from tt_sim.boards.diagnostic import Diagnostic
from tt_sim.boards.failures import BusState, Failure, apply_failure
from tt_sim.boards.supply import Supply, SupplySpec

BROADCAST = 0x7F


class BoardPlant(Protocol):
    """What the boards need from the physics: the state of each motor's output shaft."""

    def read(self, motor: int | str) -> tuple[float, float]:
        """Return (position in revolutions, velocity in revolutions per second) of one motor."""
        ...


class BoardSet:
    """The boards of one bus with their shared supply and failures.

    Thread-safe: `control` may run in the physics thread while the adapter thread calls `handle`.

    Args:
        specs: one `BoardSpec` per board; ids may repeat on purpose.
        plant: where positions and velocities come from.
        supply: numbers of the power supply.

    Attributes:
        boards: the boards in the order of `specs`.
        bus: what is wrong with the bus at the moment.
        lock: held while frames or a control step are at work.
        on_failure: called when a failure begins or ends; the adapter uses it to act at once.
    """

    def __init__(
        self, specs: Sequence[BoardSpec], plant: BoardPlant, supply: SupplySpec | None = None
    ) -> None:
        if not specs:
            raise TTError("a motor bus needs at least one board: give ids such as 1,2,3,4.")
        self.plant = plant
        self.boards = [Board(spec, place) for place, spec in enumerate(specs)]
        keys = [board.key for board in self.boards]
        if len(set(keys)) != len(keys):
            raise TTError(
                f"two boards drive the same motor ({keys}); give boards with equal ids different "
                "BoardSpec.motor names."
            )
        self.supply = Supply(supply or SupplySpec())
        self.bus = BusState()
        self.lock = threading.Lock()
        self.now_s = 0.0
        self.on_failure: Callable[[], None] | None = None
        self._script: list[tuple[float, int, Failure]] = []
        self._layouts = frames.LayoutCache()
        self._diagnostics = [Diagnostic(board) for board in self.boards]
        self._start_s: float | None = None
        self.sense()

    # ------------------------------------------------------------------ physics side

    def control(self, dt_s: float, now_s: float | None = None) -> dict[int | str, float]:
        """Run every board's control loop once and return the torques to apply during the next dt_s.

        Args:
            dt_s: length of the step, seconds (1 ms is the design value; 0.2 to 2 ms work).
            now_s: time of the simulation, used by scripted failures; counted from dt_s when None.

        Returns:
            Torque at each motor's output shaft in N m, by motor name (the board id unless the spec named it).
        """
        with self.lock:
            self.now_s = self.now_s + dt_s if now_s is None else now_s
            if self._start_s is None:
                self._start_s = self.now_s
            if self._script and self._script[0][0] <= self.now_s - self._start_s:
                self._run_script()
            volts = self.supply.voltage_v
            read = self.plant.read
            torques: dict[int | str, float] = {}
            power = 0.0
            for board in self.boards:
                position, velocity = read(board.key)
                if board.key in self.bus.dead:
                    torques[board.key] = 0.0
                    continue
                torques[board.key] = board.control(position, velocity, volts, dt_s)
                power += board.power_w
            self.supply.step(power, dt_s)
            return torques

    def sense(self) -> None:
        """Let every board read its encoder once without time passing, so that a first query is right."""
        with self.lock:
            for board in self.boards:
                board.control(*self.plant.read(board.key), self.supply.voltage_v, 0.0)

    def board(self, id: int) -> Board:
        """Return the first board that answers to an id.

        Raises:
            TTError: no board has this id.
        """
        for board in self.boards:
            if board.id == id:
                return board
        raise TTError(f"no simulated board has id {id}; there are {[b.id for b in self.boards]}.")

    # ------------------------------------------------------------------ failures

    def fail(self, failure: Failure | str) -> None:
        """Make a failure happen at its time (seconds since the first control), at once if that is past."""
        if isinstance(failure, str):
            failure = Failure.parse(failure)
        for motor_id in failure.ids:
            self.board(motor_id)  # a failure of a board that is not there is a mistake in the script
        with self.lock:
            elapsed = self.now_s - (self._start_s if self._start_s is not None else self.now_s)
            if failure.time_s > elapsed:
                heapq.heappush(self._script, (failure.time_s, id(failure), failure))
            else:
                self._apply(failure, elapsed)

    def _run_script(self) -> None:
        assert self._start_s is not None
        elapsed = self.now_s - self._start_s
        while self._script and self._script[0][0] <= elapsed:
            self._apply(heapq.heappop(self._script)[2], elapsed)

    def _apply(self, failure: Failure, elapsed: float) -> None:
        undo = apply_failure(failure, self.boards, self.supply, self.bus)
        if self.on_failure is not None:
            self.on_failure()
        if undo is not None and failure.duration_s > 0.0:
            end = elapsed + failure.duration_s
            heapq.heappush(self._script, (end, id(undo), undo))

    # ------------------------------------------------------------------ bus side

    def handle(self, arbitration_id: int, data: bytes) -> list[tuple[float, int, bytes]]:
        """Give one CAN frame to all boards it addresses. The caller must hold `lock`.

        Args:
            arbitration_id: bits 0-6 destination, 7 none, 8-14 source, 15 reply wanted, 16-28 prefix.
            data: payload, up to 64 bytes.

        Returns:
            Replies as (delay in seconds, arbitration id, payload), in the order the bus would carry them.
        """
        destination = arbitration_id & 0x7F
        source = arbitration_id >> 8 & 0x7F
        prefix = arbitration_id >> 16
        wants_reply = bool(arbitration_id & 0x8000)
        try:
            layout = self._layouts.find(data)
        except frames.BadFrameError:
            return []
        replies: list[tuple[float, int, bytes]] = []
        bus = self.bus
        for place, board in enumerate(self.boards):
            if destination not in (board.id, BROADCAST) or board.prefix != prefix:
                continue
            if bus.dead and board.key in bus.dead:
                continue
            answer = self._answer(place, board, layout, data)
            if answer is None or not wants_reply or (bus.silent and board.key in bus.silent):
                continue
            if bus.lossy and board.key in bus.lossy and bus.lose(board.key):
                continue
            size = len(answer)
            answer += b"\x50" * (frames.PADDED_LENGTH[size] - size)
            reply_id = (board.id << 8) | source | (prefix << 16)
            replies.append((bus.late.get(board.key, 0.0), reply_id, answer))
        return replies

    def _answer(self, place: int, board: Board, layout: frames.Layout, data: bytes) -> bytes | None:
        errors: list[bytes] = []
        if layout.writes:
            values = layout.unpack(data)
            if layout.has_uuid_mask and not _uuid_matches(board, layout.writes, values):
                return None
            errors = board.write(layout.writes, values)
        answer = layout.reply.encode(board) if layout.reply.size else b""
        if errors:
            answer += b"".join(errors)
        if layout.streams:
            answer += self._diagnostics[place].handle(layout.streams, data)
        return answer[: frames.MAX_PAYLOAD]


def _uuid_matches(board: Board, writes: list[tuple[int, int]], values: tuple[float, ...]) -> bool:
    for (register, resolution), value in zip(writes, values, strict=True):
        if reg.UUID_MASK_FIRST <= register <= reg.UUID_MASK_LAST and resolution == reg.INT32:
            at = 4 * (register - reg.UUID_MASK_FIRST)
            if int.from_bytes(board.uuid[at : at + 4], "little", signed=True) != value:
                return False
    return True
