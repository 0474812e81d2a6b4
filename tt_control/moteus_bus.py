"""The motor bus over the moteus library: all motors in one exchange, replies matched by id, every wait
bounded.

Facts of the library (1.1.1) that shape this file:

* `transaction()` keeps replies that arrived before it is cancelled, `Transport.cycle()` throws them away.
* No wait on a real adapter ends by itself, so every exchange runs as a task with a cancelling timer.
* A late reply looks like a reply of the next cycle. The source id of a command comes back in its reply, so
  each cycle uses another one: a late reply matches nobody and is dropped.
* An unplugged adapter calls the read handler for ever, and an unexpected line kills the reader silently. Both
  are noticed here; the whole event loop is thrown away then, because that removes every leftover for certain.
* Its event loop costs 0.4 ms of processor time per exchange: over an fdcanusb the ticks go past it, see
  `fdcanusb_line.py`. Everything else, and every tick of the other transports, goes through the library.
"""

from __future__ import annotations

import asyncio
import contextlib
import math
import time
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import moteus
import numpy as np
from moteus import multiplex
from moteus.fdcanusb_device import FdcanusbDevice, FdcanusbError
from moteus.transport_device import Frame, TransportDevice

from tt_control.bus import BoardInfo, BusStates, Setpoints
from tt_control.errors import BusError, BusLost
from tt_control.fdcanusb_line import LineExchange, LineFault
from tt_control.moteus_devices import open_devices
from tt_control.moteus_frames import MotorCodec, is_register_reply, number, parse_reply
from tt_planning.robot import Motor

T = TypeVar("T")
SOURCE_IDS = 16
# This many cycles in a row without any reply means the adapter, not the boards, is gone.
SILENT_CYCLES = 25
_REGISTER = moteus.Register
_ROUTE_S = 0.02
# A question outside of the ticks may wait long: nothing moves, and a busy computer must not look like a dead
# board.
_ASK_S = 0.25
_DUPLICATE_S = 0.01


class MoteusBus:
    """`MotorBus` for moteus boards.

    Args:
        motors: motors of the robot in robot order.
        transport: fdcanusb, socketcan, python-can or pi3hat.
        device: see `moteus_devices.open_devices`.

    Attributes:
        map: unit conversion.
        refused_lines: lines of ours that the adapter could not read.
    """

    def __init__(self, motors: Sequence[Motor], transport: str = "fdcanusb", device: str = "") -> None:
        """Prepares the frames; opens nothing."""
        self._codec = MotorCodec(motors)
        self.map = self._codec.map
        self._transport, self._device = transport, device
        self._ids = self.map.ids
        # A source id that is also a board's id would make that board obey other boards' replies.
        free = [source for source in range(126, 0, -1) if source not in self._ids]
        self._sources = free[:SOURCE_IDS]
        self._cycles = 0
        self._loop: asyncio.AbstractEventLoop | None = None
        self._devices: list[Any] = []
        self._routes: dict[int, Any] = {}
        self._lost = ""
        self._task: asyncio.Task[Any] | None = None
        self._silent = 0
        self._line: LineExchange | None = None
        self.refused_lines = 0

    # ------------------------------------------------------------------ connection

    def open(self) -> None:
        """Connects; see `MotorBus.open`."""
        self.close()
        self._loop = asyncio.new_event_loop()
        self._loop.set_exception_handler(self._on_loop_error)
        self._lost, self._silent = "", 0
        try:
            self._devices = self._loop.run_until_complete(self._open())
            self._find_routes()
            self._line = self._straight_line()
            self._take_over()
        except BusError:
            self.close()
            raise

    async def _open(self) -> list[Any]:
        return open_devices(self._transport, self._device)

    def close(self) -> None:
        """Disconnects; see `MotorBus.close`."""
        # The buses of a pi3hat are children of one device, which alone holds the hardware.
        for device in {d.parent() or d for d in self._devices}:
            with contextlib.suppress(Exception):
                device.close()
        self._devices, self._line = [], None
        loop, self._loop = self._loop, None
        if loop is None:
            return
        with contextlib.suppress(Exception):
            leftovers = asyncio.all_tasks(loop)
            for task in leftovers:
                task.cancel()
            loop.call_later(0.1, loop.stop)  # a task that refuses to end must not keep us
            loop.run_until_complete(asyncio.gather(*leftovers, return_exceptions=True))
        with contextlib.suppress(Exception):
            loop.close()

    def _on_loop_error(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        error = context.get("exception")
        self._lost = f"{error or context.get('message', 'unknown error')}"
        if self._task is not None:
            self._task.cancel()

    def _find_routes(self) -> None:
        """Which adapter reaches which board; only several adapters need to be asked."""
        if len(self._devices) == 1:
            self._routes = dict.fromkeys(self._ids, self._devices[0])
            return
        self._routes = {}
        for device in self._devices:
            for joint, board_id in enumerate(self._ids):
                request = self._request(board_id, self._codec.query(joint), self._sources[0], device)
                self._run(_transact(device, [request]), _ROUTE_S)
                if request.responses:
                    self._routes.setdefault(board_id, device)
        for board_id in self._ids:
            self._routes.setdefault(board_id, self._devices[0])

    # ------------------------------------------------------------------ one tick

    def cycle(self, setpoints: Setpoints, timeout_s: float, rest_s: float | None = None) -> BusStates:
        """One exchange with all boards; see `MotorBus.cycle`."""
        self._require_open()
        begin = time.perf_counter()
        source = self._sources[self._cycles % len(self._sources)]
        self._cycles += 1
        frames = self._codec.encode(setpoints)
        if self._line is None:
            replies = self._by_library(source, frames, timeout_s)
        else:
            replies = self._by_line(source, frames, timeout_s, timeout_s if rest_s is None else rest_s)
        states = self._codec.decode(replies)
        states.cycle_s = time.perf_counter() - begin
        self._silent = 0 if states.replied.any() else self._silent + 1
        if self._silent >= SILENT_CYCLES:
            if self._line is not None and self._line.takes_nothing:
                raise BusLost(f"the motor adapter has taken no command {self._silent} times in a row")
            raise BusLost(
                f"no board has answered {self._silent} times in a row; check the supply, the bus cable and the "
                "baud rate of the adapter"
            )
        return states

    def _by_library(self, source: int, frames: Sequence[bytes], timeout_s: float) -> list[bytes | None]:
        requests = [
            self._request(board_id, data, source, self._routes[board_id])
            for board_id, data in zip(self._ids, frames)
        ]
        self._run(self._exchange(requests), timeout_s)
        return [bytes(r.responses[0].data) if r.responses else None for r in requests]

    def _by_line(
        self, source: int, frames: Sequence[bytes], timeout_s: float, rest_s: float
    ) -> list[bytes | None]:
        line = self._line
        assert line is not None
        refused = line.refused
        try:
            replies = line.exchange(source, frames, timeout_s, rest_s)
        except (LineFault, OSError) as error:
            self._lost = str(error)
            raise BusLost(f"motor adapter lost: {error}") from None
        self.refused_lines += line.refused - refused
        if line.wants_checksums:
            self._give_back()
            self._devices[0]._checksum_active, self._line = True, None
        return replies

    def _straight_line(self) -> LineExchange | None:
        """The short way of a tick, where there is one: a single fdcanusb without checksums."""
        if len(self._devices) > 1 or not isinstance(self._devices[0], FdcanusbDevice):
            return None
        device = self._devices[0]
        return None if device._checksum_active else LineExchange(device._serial.fd, self._ids)

    def _give_back(self) -> None:
        """The library reads on where the ticks stopped."""
        if self._line is not None:
            self._devices[0]._stream_data, self._line.rest = self._line.rest, b""

    def _take_over(self) -> None:
        """The ticks read on where the library stopped."""
        if self._line is not None:
            device = self._devices[0]
            self._line.rest = bytes(device._stream_data) + bytes(device._serial._read_data)
            device._stream_data, device._serial._read_data = b"", bytearray()

    def _request(self, board_id: int, data: bytes, source: int, device: Any) -> TransportDevice.Request:
        def is_reply(frame: Frame) -> bool:
            address = frame.arbitration_id
            return (
                (address >> 8) & 0x7F == board_id
                and address & 0x7F == source
                and is_register_reply(frame.data)
            )

        address = 0x8000 | source << 8 | board_id
        frame = Frame(arbitration_id=address, data=data, is_extended_id=True, is_fd=True, bitrate_switch=True)
        parent = device.parent()
        return TransportDevice.Request(
            frame=frame,
            child_device=device if parent else None,
            frame_filter=is_reply,
            expected_reply_size=26,
        )

    async def _exchange(self, requests: Sequence[TransportDevice.Request]) -> None:
        if len(self._devices) == 1:
            await _transact(self._devices[0], requests)
            return
        groups: dict[Any, list[TransportDevice.Request]] = {}
        for board_id, request in zip(self._ids, requests):
            device = self._routes[board_id]
            groups.setdefault(device.parent() or device, []).append(request)
        await asyncio.gather(*(device.transaction(group) for device, group in groups.items()))

    # ------------------------------------------------------------------ running with a bound

    def _require_open(self) -> asyncio.AbstractEventLoop:
        if self._lost:
            raise BusLost(f"motor adapter lost: {self._lost}")
        if self._loop is None:
            raise BusLost("motor adapter is not open")
        return self._loop

    def _run(self, work: Coroutine[Any, Any, T], timeout_s: float) -> T | None:
        """Runs a coroutine for at most the time; None when it did not end.

        Raises:
            BusLost: the adapter failed meanwhile.
        """
        loop = self._loop
        assert loop is not None
        self._give_back()
        self._task = task = loop.create_task(work)
        timer = loop.call_later(timeout_s, task.cancel)
        result: T | None = None
        try:
            result = loop.run_until_complete(task)
        except asyncio.CancelledError:
            pass  # out of time, or cancelled by _on_loop_error
        except FdcanusbError:
            self.refused_lines += 1  # the adapter could not read a line of ours
        except (Exception, SystemExit) as error:  # the library ends the process on a failed handler
            self._lost = self._lost or f"{type(error).__name__}: {error}"
        finally:
            timer.cancel()
            self._task = None
            self._take_over()
        self._check_readers()
        if self._lost:
            raise BusLost(f"motor adapter lost: {self._lost}")
        return result

    def _check_readers(self) -> None:
        for device in self._devices:
            reader = getattr(device, "_reader_task", None)
            if reader is not None and reader.done() and not self._lost:
                error = None if reader.cancelled() else reader.exception()
                self._lost = f"its reader ended ({error})"

    # ------------------------------------------------------------------ slow questions

    def inspect(self, config_names: Sequence[str], timeout_s: float = 2.0) -> list[BoardInfo]:
        """Identity, limits and gains of every board; see `MotorBus.inspect`."""
        self._require_open()
        infos = []
        for board_id in self._ids:
            info = self._run(self._identify(board_id), timeout_s)
            if info is not None and info.count == 1:
                self._run(self._read_config(board_id, config_names, info.config), timeout_s)
            infos.append(info or BoardInfo(board_id, 0))
        return infos

    async def _identify(self, board_id: int) -> BoardInfo:
        count = len(await self._serial_numbers(board_id))
        first = await self._ask(board_id, range(_REGISTER.MODE, _REGISTER.FAULT + 1)) if count == 1 else None
        if first is None:
            return BoardInfo(board_id, count if count > 1 else 0)
        encoders = await self._ask(board_id, [_REGISTER.ENCODER_VALIDITY]) or {}
        version = (
            await self._ask(board_id, [_REGISTER.FIRMWARE_VERSION, _REGISTER.REGISTER_MAP_VERSION]) or {}
        )
        return BoardInfo(
            id=board_id,
            count=1,
            firmware=_whole(version, _REGISTER.FIRMWARE_VERSION),
            register_map=_whole(version, _REGISTER.REGISTER_MAP_VERSION),
            home_state=_whole(first, _REGISTER.HOME_STATE),
            encoder_validity=_whole(encoders, _REGISTER.ENCODER_VALIDITY),
            voltage_v=number(first, _REGISTER.VOLTAGE),
            temperature_c=number(first, _REGISTER.TEMPERATURE),
            mode=int(first.get(_REGISTER.MODE, -1)),
            fault=int(first.get(_REGISTER.FAULT, -1)),
        )

    async def _ask(self, board_id: int, registers: Sequence[int]) -> dict[int, float] | None:
        """Reads registers with a wait of its own; None when nobody answers."""
        small = {
            _REGISTER.MODE,
            _REGISTER.HOME_STATE,
            _REGISTER.TEMPERATURE,
            _REGISTER.FAULT,
            _REGISTER.ENCODER_VALIDITY,
        }
        wanted = {
            r: multiplex.INT8 if r in small else multiplex.INT32 if r >= 0x100 else multiplex.F32
            for r in registers
            if r in _ASKED
        }
        data = moteus.Controller(board_id).make_custom_query(wanted).data
        device = self._routes[board_id]
        request = self._request(board_id, data, self._sources[-1], device)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(_transact(device, [request]), _ASK_S)
        return parse_reply(bytes(request.responses[0].data)) if request.responses else None

    async def _serial_numbers(self, board_id: int) -> set[tuple[float, ...]]:
        """Serial numbers of all boards that answer to an id.

        Counting replies would not do: the library repeats a question whose acknowledgement is late, and one
        board then answers twice.
        """
        registers = (_REGISTER.SERIAL_NUMBER1, _REGISTER.SERIAL_NUMBER2, _REGISTER.SERIAL_NUMBER3)
        data = moteus.Controller(board_id).make_custom_query(dict.fromkeys(registers, multiplex.INT32)).data
        device = self._routes[board_id]
        request = self._request(board_id, data, self._sources[-1], device)
        with contextlib.suppress(asyncio.TimeoutError):
            await asyncio.wait_for(_transact(device, [request]), _ASK_S)
        frames = list(request.responses)
        deadline = time.monotonic() + _DUPLICATE_S
        while (left := deadline - time.monotonic()) > 0.0:
            try:
                frames.append(await asyncio.wait_for((device.parent() or device).receive_frame(), left))
            except asyncio.TimeoutError:
                break
        replies = [parse_reply(bytes(f.data)) for f in frames if (f.arbitration_id >> 8) & 0x7F == board_id]
        return {tuple(r[n] for n in registers) for r in replies if all(n in r for n in registers)}

    async def _read_config(self, board_id: int, names: Sequence[str], out: dict[str, float]) -> None:
        """Fills `out` by the diagnostic stream; names the board does not know are left out."""
        stream = moteus.Stream(self._controller(board_id))
        await stream.flush_read(timeout=0.02)
        for name in names:
            with contextlib.suppress(moteus.CommandError, ValueError, UnicodeDecodeError):
                line = await stream.command(f"conf get {name}".encode(), allow_any_response=True)
                out[name] = float(line.decode().strip())

    def _controller(self, board_id: int) -> moteus.Controller:
        routing = {moteus.DeviceAddress(can_id=i): device for i, device in self._routes.items()}
        return moteus.Controller(board_id, transport=moteus.Transport(self._devices, routing_table=routing))

    def set_position(self, joint: int, position: float) -> None:
        """Tells a board where it is; see `MotorBus.set_position`."""
        self._require_open()
        board_id = self._ids[joint]
        rev = float(self.map.rev_from_joint(np.full(len(self._ids), position))[joint])
        data = moteus.Controller(board_id).make_set_output_exact(position=rev, query=True).data
        device = self._routes[board_id]
        request = self._request(board_id, data, self._sources[-1], device)
        self._run(_transact(device, [request]), _ASK_S)

    def home_state(self, joint: int) -> int | None:
        """Whether a board knows where it is; see `MotorBus.home_state`."""
        self._require_open()
        values = self._run(self._ask(self._ids[joint], [_REGISTER.HOME_STATE]), _ROUTE_S)
        return None if values is None else _whole(values, _REGISTER.HOME_STATE)


_ASKED = {
    _REGISTER.MODE,
    _REGISTER.POSITION,
    _REGISTER.HOME_STATE,
    _REGISTER.VOLTAGE,
    _REGISTER.TEMPERATURE,
    _REGISTER.FAULT,
    _REGISTER.ENCODER_VALIDITY,
    _REGISTER.FIRMWARE_VERSION,
    _REGISTER.REGISTER_MAP_VERSION,
}


async def _transact(device: Any, requests: Sequence[TransportDevice.Request]) -> None:
    await (device.parent() or device).transaction(list(requests))


def _whole(values: dict[int, float], register: int) -> int | None:
    value = values.get(register)
    return None if value is None or (isinstance(value, float) and math.isnan(value)) else int(value)
