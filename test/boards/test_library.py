"""The unmodified moteus library against boards behind a real pseudo-terminal."""

import asyncio
import contextlib
import math
import os
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path

import moteus
import pytest
from moteus import Register

from tt_perception.errors import TTError
from tt_sim.boards import BoardServer, BoardSet, BoardSpec, Fault, Mode, MotorSpec, StandalonePlant

WIDE: dict[str, float | int | bool] = {
    "servopos.position_min": -50.0,
    "servopos.position_max": 50.0,
    "servo.pid_position.kp": 20.0,
    "servo.pid_position.kd": 0.5,
}
BOUND_S = 10.0


@contextlib.asynccontextmanager
async def transport(server: BoardServer) -> AsyncIterator[moteus.Fdcanusb]:
    opened = moteus.Fdcanusb(server.device)
    try:
        yield opened
    finally:
        asyncio.get_running_loop().remove_reader(opened._transport.devices()[0]._serial.fd)
        opened.close()


def play(server: BoardServer, action: Callable[[moteus.Fdcanusb], Awaitable[None]]) -> None:
    async def bounded() -> None:
        async with transport(server) as opened:
            await asyncio.wait_for(action(opened), BOUND_S)

    asyncio.run(bounded())


def standalone(
    *ids: int, config: dict[str, float | int | bool] | None = None, **options: object
) -> BoardServer:
    specs = [BoardSpec(i, config={**WIDE, **(config or {})}) for i in ids]
    return BoardServer(specs, standalone=True, **options)  # type: ignore[arg-type]


async def until(check: Callable[[], Awaitable[bool]]) -> None:
    deadline = time.monotonic() + BOUND_S
    while not await check():
        assert time.monotonic() < deadline, "did not happen in time"


def test_four_boards_move_to_their_targets_and_report_it() -> None:
    targets = {1: 0.2, 2: -0.3, 3: 1.0, 4: 0.0}

    async def action(opened: moteus.Fdcanusb) -> None:
        controllers = {i: moteus.Controller(id=i, transport=opened) for i in targets}
        await opened.cycle([c.make_stop() for c in controllers.values()])

        async def arrived() -> bool:
            replies = await opened.cycle(
                [
                    c.make_position(position=targets[i], velocity_limit=-1, accel_limit=-1, query=True)
                    for i, c in controllers.items()
                ]
            )
            assert sorted(r.id for r in replies) == [1, 2, 3, 4]
            return all(abs(r.values[Register.POSITION] - targets[r.id]) < 1e-3 for r in replies)

        await until(arrived)
        reply = await controllers[3].query()
        assert reply.values[Register.MODE] == Mode.POSITION
        assert reply.values[Register.VOLTAGE] == pytest.approx(24.0, abs=0.5)
        assert reply.values[Register.TEMPERATURE] == pytest.approx(25.0, abs=1.0)

    with standalone(*targets) as server:
        play(server, action)


def test_the_librarys_own_move_to_completes_within_the_limits() -> None:
    async def action(opened: moteus.Fdcanusb) -> None:
        controllers = [moteus.Controller(id=i, transport=opened) for i in (1, 2)]
        for controller in controllers:
            await controller.set_stop()
        results = await moteus.move_to(
            [(controllers[0], 0.5), (controllers[1], -0.25)],
            velocity_limit=4.0,
            accel_limit=40.0,
            timeout=5.0,
        )
        positions = {r.id: r.values[Register.POSITION] for _, r in results}
        assert positions == {1: pytest.approx(0.5, abs=0.02), 2: pytest.approx(-0.25, abs=0.02)}

    with standalone(1, 2) as server:
        play(server, action)


def test_modes_of_the_library_reach_the_board() -> None:
    async def action(opened: moteus.Fdcanusb) -> None:
        c = moteus.Controller(id=1, transport=opened)
        commands = [
            (c.make_brake, {}, Mode.BRAKE),
            (c.make_zero_velocity, {}, Mode.ZERO_VELOCITY),
            (c.make_stay_within, {"lower_bound": -1.0, "upper_bound": 1.0}, Mode.STAY_WITHIN),
            (c.make_current, {"q_A": 0.0, "d_A": 0.0}, Mode.CURRENT),
            (c.make_position, {"position": math.nan}, Mode.POSITION),
            (c.make_stop, {}, Mode.STOPPED),
        ]
        for make, arguments, mode in commands:

            async def reached(make=make, arguments=arguments, mode=mode) -> bool:  # type: ignore[no-untyped-def]
                reply = (await opened.cycle([make(query=True, **arguments)]))[0]
                return reply.values[Register.MODE] == mode

            await until(reached)
        await c.set_output_exact(position=3.5)
        assert (await c.query()).values[Register.POSITION] == pytest.approx(3.5)

    with standalone(1) as server:
        play(server, action)


def test_discovery_finds_all_boards_and_tells_twins_apart() -> None:
    specs = [BoardSpec(1), BoardSpec(5), BoardSpec(5, motor="twin")]

    async def action(opened: moteus.Fdcanusb) -> None:
        found = await opened.discover()
        assert [d.can_id for d in found] == [1, 5, 5]
        assert len({d.uuid for d in found}) == 3
        twin = next(d for d in found if d.uuid == server.boards.boards[2].uuid)
        reply = await moteus.Controller(id=twin.address, transport=opened).query()
        assert reply.values[Register.MODE] == Mode.STOPPED

    with BoardServer(specs, standalone=True) as server:
        play(server, action)


def test_identity_registers() -> None:
    async def action(opened: moteus.Fdcanusb) -> None:
        c = moteus.Controller(id=1, transport=opened)
        wanted = [0x100, 0x101, 0x102, 0x110, 0x120, 0x121, 0x122, 0x058, 0x00C]
        values = {}
        for register in wanted:
            values.update((await c.custom_query({register: moteus.INT32})).values)
        board = server.boards.board(1)
        assert values[Register.FIRMWARE_VERSION] == board.firmware_version
        assert values[Register.REGISTER_MAP_VERSION] == board.register_map_version
        assert values[Register.MULTIPLEX_ID] == 1
        assert values[Register.SERIAL_NUMBER1] == board.serial_number_1
        assert values[Register.ENCODER_VALIDITY] == 3

    with standalone(1) as server:
        play(server, action)


def test_silence_trips_the_watchdog_and_the_library_sees_it() -> None:
    async def action(opened: moteus.Fdcanusb) -> None:
        c = moteus.Controller(id=1, transport=opened)

        async def driving() -> bool:
            reply = await c.set_position(position=0.1, watchdog_timeout=0.05, query=True)
            return reply.values[Register.MODE] == Mode.POSITION

        async def timed_out() -> bool:
            return (await c.query()).values[Register.MODE] == Mode.TIMEOUT

        await until(driving)
        await until(timed_out)
        with pytest.raises(moteus.FaultError):
            await c.set_position_wait_complete(position=0.1)
        await c.set_stop()
        await until(driving)

    with standalone(1) as server:
        play(server, action)


def test_unconfigured_boards_fault_with_code_39() -> None:
    async def action(opened: moteus.Fdcanusb) -> None:
        c = moteus.Controller(id=1, transport=opened)

        async def refused() -> bool:
            reply = await c.set_position(position=0.0, query=True)
            return reply.values[Register.FAULT] == Fault.START_OUTSIDE_LIMIT

        await until(refused)

    motors = {1: MotorSpec(position=0.2)}
    with BoardServer([BoardSpec(1)], standalone=True, motors=motors) as server:
        play(server, action)


def test_dead_and_late_boards_seen_through_the_library() -> None:
    async def action(opened: moteus.Fdcanusb) -> None:
        controllers = [moteus.Controller(id=i, transport=opened) for i in (1, 2)]
        queries = [c.make_query() for c in controllers]
        assert [r.id for r in await opened.cycle(queries)] == [1, 2]
        server.fail("dead 2")
        assert [r.id for r in await opened.cycle(queries)] == [1]
        server.fail("late 1 delay=0.3")
        assert await opened.cycle(queries) == [], "later than the library waits"

    with standalone(1, 2) as server:
        play(server, action)


def test_a_stray_line_with_a_valid_checksum_kills_the_reader() -> None:
    """The vendor's trap, kept: after this line the library receives nothing and says so only when asked."""

    async def action(opened: moteus.Fdcanusb) -> None:
        c = moteus.Controller(id=1, transport=opened)
        await c.query()
        server.fail("stray checksum=0")
        await c.query()  # a line without checksum is skipped on a serial adapter
        server.fail("stray")
        device = opened._transport.devices()[0]
        await until(lambda: _let_run(lambda: device._reader_task.done()))
        with pytest.raises(RuntimeError, match="received error"):
            device._reader_task.result()

    with standalone(1) as server:
        play(server, action)


async def _let_run(check: Callable[[], bool]) -> bool:
    await asyncio.sleep(0)
    return check()


def wait_for(check: Callable[[], bool]) -> None:
    done = threading.Event()
    deadline = time.monotonic() + BOUND_S
    while not check():
        assert time.monotonic() < deadline, "did not happen in time"
        done.wait(0.002)


def test_unplugging_hangs_up_and_the_link_leads_to_the_new_device(tmp_path: Path) -> None:
    link = tmp_path / "run" / "motors"
    with standalone(1, link=link) as server:
        assert server.device == str(link)
        before = os.readlink(link)
        handle = os.open(before, os.O_RDWR | os.O_NOCTTY)
        server.fail("unplug for=0.05")
        wait_for(lambda: not link.is_symlink())
        with pytest.raises(OSError):
            os.write(handle, b"x")
        wait_for(link.exists)
        os.close(handle)

        async def action(opened: moteus.Fdcanusb) -> None:
            assert (await moteus.Controller(id=1, transport=opened).query()).id == 1

        play(server, action)
    assert not link.is_symlink()


def test_the_link_of_a_killed_simulation_leads_nowhere(tmp_path: Path) -> None:
    """Its pseudo-terminal's number may belong to a stranger by then."""
    link = tmp_path / "motors"
    code = f"""
import sys
from tt_sim.boards import BoardServer, BoardSpec
with BoardServer([BoardSpec(1)], {str(link)!r}, standalone=True):
    print("ready", flush=True)
    sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline().strip() == "ready"
        assert link.exists()
        process.kill()
        process.wait()
    assert link.is_symlink(), "nobody was left to remove it"
    assert not link.exists()


def test_without_a_link_a_temporary_one_is_made_and_removed() -> None:
    with standalone(1) as server:
        path = Path(server.device)
        assert path.is_symlink()
    assert not path.is_symlink()
    assert not path.parent.exists()
    assert standalone(1).device != server.device


def test_a_script_inside_a_simulation_unplugs_the_adapter(tmp_path: Path) -> None:
    plant = StandalonePlant({1: MotorSpec()})
    boards = BoardSet([BoardSpec(1)], plant)
    link = tmp_path / "motors"
    boards.fail("t=0.01 unplug for=0.01")
    with BoardServer(boards, link):
        for _ in range(15):
            boards.control(0.001)
        wait_for(lambda: not link.is_symlink())
        for _ in range(15):
            boards.control(0.001)
        wait_for(link.exists)


def test_a_client_that_does_not_read_finds_whole_lines_again() -> None:
    with standalone(1) as server:
        handle = os.open(server.device, os.O_RDWR | os.O_NOCTTY | os.O_NONBLOCK)
        try:
            for sent in range(100, 6001, 100):
                os.write(handle, b"can send 8001 1100 BF\n" * 100)
                wait_for(lambda sent=sent: server.frames == sent)  # type: ignore[misc]
            unread = b""
            while True:
                try:
                    unread += os.read(handle, 65536)
                except BlockingIOError:
                    break
            os.write(handle, b"can send 8001 1100 BF\n")
            received = b""

            def complete() -> bool:
                nonlocal received
                with contextlib.suppress(BlockingIOError):
                    received += os.read(handle, 65536)
                return received.endswith(b"rcv 100 210000 e B F\r\n")

            wait_for(complete)
            lines = (unread + received).split(b"\n")
            assert len(lines) < 12000, "nothing was lost, so nothing was tried"
            assert all(line.count(b"rcv") + line.count(b"OK") <= 1 for line in lines), "torn lines end"
        finally:
            os.close(handle)


def test_a_second_server_on_the_same_link_keeps_it_when_the_first_ends(tmp_path: Path) -> None:
    link = tmp_path / "motors"
    first, second = standalone(1, link=link).start(), standalone(1, link=link).start()
    first.stop()
    assert link.exists()
    second.stop()
    assert not link.is_symlink()


def test_bus_delay_holds_the_replies_back() -> None:
    async def action(opened: moteus.Fdcanusb) -> None:
        c = moteus.Controller(id=1, transport=opened)
        await c.query()
        start = time.monotonic()
        await c.query()
        assert time.monotonic() - start >= 0.02

    with standalone(1, bus_delay_s=0.02) as server:
        play(server, action)


def test_boards_inside_a_simulation_follow_the_callers_time() -> None:
    plant = StandalonePlant({1: MotorSpec()})
    boards = BoardSet([BoardSpec(1, config=WIDE, enable_delay_s=0.0)], plant)

    async def action(opened: moteus.Fdcanusb) -> None:
        c = moteus.Controller(id=1, transport=opened)
        await c.set_position(position=0.1, watchdog_timeout=0.05)
        await c.query()
        plant.step(boards.control(0.001, 0.001), 0.001)
        for _ in range(20):
            assert (await c.query()).values[Register.MODE] == Mode.POSITION, (
                "time stands still, so does the watchdog"
            )
        for _ in range(60):
            plant.step(boards.control(0.001), 0.001)
        assert (await c.query()).values[Register.MODE] == Mode.TIMEOUT

    with BoardServer(boards) as server:
        play(server, action)


def test_frames_and_physics_from_two_threads_do_not_disturb_each_other() -> None:
    plant = StandalonePlant({i: MotorSpec() for i in (1, 2)})
    boards = BoardSet([BoardSpec(i, config=WIDE) for i in (1, 2)], plant)
    stop = threading.Event()
    failed: list[BaseException] = []

    def physics() -> None:
        try:
            while not stop.is_set():
                plant.step(boards.control(0.0005), 0.0005)
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=physics)
    thread.start()

    async def action(opened: moteus.Fdcanusb) -> None:
        controllers: Sequence[moteus.Controller] = [moteus.Controller(id=i, transport=opened) for i in (1, 2)]
        for k in range(150):
            replies = await opened.cycle(
                [
                    c.make_position(position=0.001 * k, watchdog_timeout=math.nan, query=True)
                    for c in controllers
                ]
            )
            assert sorted(r.id for r in replies) == [1, 2]

    try:
        with BoardServer(boards) as server:
            play(server, action)
    finally:
        stop.set()
        thread.join()
    assert not failed


def test_wrong_server_arguments_say_why(tmp_path: Path) -> None:
    plant = StandalonePlant({1: MotorSpec()})
    boards = BoardSet([BoardSpec(1)], plant)
    for arguments, options in (
        ((boards,), {"standalone": True}),
        (([BoardSpec(1)],), {}),
        ((boards,), {"rate_hz": 1.0}),
        ((boards,), {"bus_delay_s": -1.0}),
    ):
        with pytest.raises(TTError):
            BoardServer(*arguments, **options)  # type: ignore[arg-type]
    (tmp_path / "file").write_text("")
    with pytest.raises(TTError, match="cannot create the device link"):
        BoardServer(boards, tmp_path / "file" / "motors").start()
    (tmp_path / "file").write_text("somebody's")
    with pytest.raises(TTError, match="it is no link"):
        BoardServer(boards, tmp_path / "file").start()
    assert (tmp_path / "file").read_text() == "somebody's"
