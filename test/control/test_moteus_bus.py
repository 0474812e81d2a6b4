"""The driver with the unmodified moteus library against boards on a pseudo-terminal: replies, silence,
losses.

These run in real time, so nothing here depends on how fast the computer is: waits are generous and watchdogs
long.
"""

from __future__ import annotations

import asyncio
import os
import pty
import random
import select
import threading
import time
import tty

import moteus
import numpy as np
import pytest
from moteus.transport_device import Frame, TransportDevice

from test.control.conftest import SUPPLY, axes, board_specs, wait_for
from tt_control.bus import Drive, JointMap, Setpoints
from tt_control.clocks import WallClock
from tt_control.config import control_config
from tt_control.controller import Controller, State
from tt_control.errors import BusError, BusLost
from tt_control.loop import MotorLoop
from tt_control.moteus_bus import SILENT_CYCLES, MoteusBus
from tt_control.moteus_devices import UDEV_RULE, open_devices
from tt_control.moteus_frames import CommandFrames, TickQuery, decode_tick, parse_reply
from tt_control.trips import Trip
from tt_sim.boards import BoardServer, BoardSet, StandalonePlant

PATIENT_S = 1.0


@pytest.fixture
def bus(boards, gantry):
    bus = MoteusBus(gantry.motors, "fdcanusb", boards.device)
    bus.open()
    yield bus
    bus.close()


def test_position_frames_are_the_librarys():
    ours = CommandFrames(3).position(1.5, -2.25, 0.125, 0.5, 0.75, 3.0, 0.022)
    theirs = moteus.Controller(3, query_resolution=TickQuery()).make_position(
        position=1.5, velocity=-2.25, feedforward_torque=0.125, kp_scale=0.5, kd_scale=0.75, maximum_torque=3.0,
        watchdog_timeout=0.022, velocity_limit=-1.0, accel_limit=-1.0, query=True,
    )  # fmt: skip
    assert ours == theirs.data


def test_fast_decoding_equals_the_librarys(boards, gantry):
    board = boards.boards.board(1)
    query = moteus.Controller(1, query_resolution=TickQuery()).make_query().data
    with boards.boards.lock:
        data = boards.boards.handle(0x8001, query)[0][2]
    fast, slow = decode_tick(data), parse_reply(data)
    assert (
        fast.pos_rev == slow[moteus.Register.POSITION]
        and fast.mode == slow[moteus.Register.MODE] == board.mode
    )
    assert fast.voltage_v == pytest.approx(slow[moteus.Register.VOLTAGE])
    assert (
        fast.temperature_c == slow[moteus.Register.TEMPERATURE] and fast.fault == slow[moteus.Register.FAULT]
    )


@pytest.mark.parametrize("data", [b"", b"\x21", b"\x31\x00\x01", b"\x41\x01\x00", bytes(64), b"\x2f\x01abc"])
def test_foreign_frames_are_no_replies(data):
    assert decode_tick(data) is None


def test_unit_conversion_keeps_power(gantry):
    joint_map = JointMap(gantry.motors)
    vel, effort = np.array([2.0, -1.0, 5.0, 7.0]), np.array([100.0, 50.0, -3.0, 2.0])
    power = 2 * np.pi * joint_map.rev_s_from_joint(vel) * joint_map.torque_from_joint(effort)
    assert power == pytest.approx(vel * effort)
    pos = np.array([0.3, 0.1, -0.5, 1.0])
    assert joint_map.joint_from_rev(joint_map.rev_from_joint(pos)) == pytest.approx(pos)
    assert joint_map.rev_from_joint(pos)[0] == pytest.approx(8 * 0.3)


def test_all_boards_reply_in_one_cycle(bus, boards, gantry):
    states = bus.cycle(Setpoints.idle(4), PATIENT_S)
    assert states.replied.all()
    assert states.pos == pytest.approx(gantry.home, abs=2e-3)
    assert states.voltage_v == pytest.approx([40.0] * 4, abs=1.0) and (states.mode == 0).all()


def test_partial_replies_are_kept_and_late_ones_never_answer_the_next_cycle(bus, boards, gantry):
    bus.cycle(Setpoints.idle(4), PATIENT_S)
    late = gantry.motors[2].id
    boards.fail(f"late {late} delay=0.3")
    states = bus.cycle(Setpoints.idle(4), 0.2)
    assert states.replied.tolist() == [True, True, False, True]
    boards.boards.bus.late.clear()
    boards.boards.bus.silent.add(late)
    begin = time.monotonic()
    states = bus.cycle(Setpoints.idle(4), 0.6)
    assert time.monotonic() - begin > 0.16, "the late reply came in this cycle, and it waited on"
    assert states.replied.tolist() == [True, True, False, True]
    boards.boards.bus.silent.clear()
    assert bus.cycle(Setpoints.idle(4), PATIENT_S).replied.all()


def test_a_cycle_never_waits_longer_than_told(bus, boards):
    bus.cycle(Setpoints.idle(4), PATIENT_S)
    boards.fail("mute")
    begin = time.monotonic()
    assert not bus.cycle(Setpoints.idle(4), 0.01).replied.any()
    assert time.monotonic() - begin < 1.0


def test_an_adapter_that_stays_silent_is_lost(bus, boards):
    boards.fail("mute")
    with pytest.raises(BusLost, match="no board has answered"):
        for _ in range(SILENT_CYCLES + 1):
            bus.cycle(Setpoints.idle(4), 0.001)


def test_unplugging_is_noticed_and_plugging_in_again_works(gantry, tmp_path):
    link = tmp_path / "motors"
    with BoardServer(
        board_specs(gantry), link, standalone=True, motors=axes(gantry), supply=SUPPLY
    ) as boards:
        bus = MoteusBus(gantry.motors, "fdcanusb", str(link))
        bus.open()
        bus.cycle(Setpoints.idle(4), PATIENT_S)
        boards.fail("unplug for=0.3")
        assert wait_for(lambda: not link.exists())
        with pytest.raises(BusLost, match="lost"):
            for _ in range(3):
                bus.cycle(Setpoints.idle(4), 0.05)
        with pytest.raises(BusError, match="does not exist"):
            bus.open()
        assert wait_for(link.exists)
        bus.open()
        assert bus.cycle(Setpoints.idle(4), PATIENT_S).replied.all()
        bus.close()


def test_a_stray_line_closes_the_adapter(bus, boards):
    bus.cycle(Setpoints.idle(4), PATIENT_S)
    boards.fail("stray")
    with pytest.raises(BusLost, match="unexpected line"):
        for _ in range(20):
            bus.cycle(Setpoints.idle(4), 0.05)
    bus.open()
    assert bus.cycle(Setpoints.idle(4), PATIENT_S).replied.all()


def test_noise_on_a_serial_line_costs_no_more_than_replies(boards, gantry):
    """Checksums find it; over USB (fdcanusb) there is none."""
    bus = MoteusBus(gantry.motors, "uart", boards.device)
    bus.open()
    bus.cycle(Setpoints.idle(4), PATIENT_S)
    boards.fail("noise")
    for _ in range(3):
        bus.cycle(Setpoints.idle(4), PATIENT_S)
    assert bus.cycle(Setpoints.idle(4), PATIENT_S).replied.all()
    bus.close()


@pytest.mark.parametrize("transport", ["fdcanusb", "uart"])
@pytest.mark.parametrize("answers", ["garbage", "nothing"])
def test_a_wrong_baud_rate_is_a_reason_not_a_hang(gantry, transport, answers):
    """Neither side understands the other then: bytes that mean nothing come back, or none."""
    master, slave = pty.openpty()
    tty.setraw(slave)
    ended = threading.Event()

    def answer() -> None:
        noise = random.Random(1)
        while not ended.is_set():
            if select.select([master], [], [], 0.01)[0]:
                heard = os.read(master, 4096)
                if answers == "garbage":
                    os.write(master, noise.randbytes(len(heard)))

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        bus = MoteusBus(gantry.motors, transport, os.ttyname(slave))
        controller = Controller(gantry, control_config(gantry, {}), 0.004)
        said: list[str] = []
        loop = MotorLoop(bus, controller, WallClock(), on_event=lambda level, text: said.append(text))
        begin = time.monotonic()
        loop.connect()
        assert time.monotonic() - begin < 20.0
        assert controller.state in (State.DISCONNECTED, State.CONNECTED)
        assert said and all("baud rate" in text or "no board answers" in text for text in said), said
        assert not controller.enable(loop.clock.now_ns()).ok
        bus.close()
    finally:
        ended.set()
        thread.join()
        os.close(master)
        os.close(slave)


def test_a_baud_rate_no_port_has_is_refused(gantry):
    with pytest.raises(BusError, match="921601.*none of 115200"):
        MoteusBus(gantry.motors, "uart", "/dev/ttyS0@921601").open()


def test_an_adapter_that_never_reads_does_not_block(gantry):
    """The kernel buffer fills up; the writes end by themselves."""
    master, slave = pty.openpty()
    try:
        bus = MoteusBus(gantry.motors, "fdcanusb", os.ttyname(slave))
        bus.open()
        begin = time.monotonic()
        with pytest.raises(BusLost):
            for _ in range(200):
                bus.cycle(Setpoints.idle(4, Drive.STOP), 0.002)
        assert time.monotonic() - begin < 20.0
        bus.close()
    finally:
        os.close(slave)
        os.close(master)


def test_inspect_reads_identity_and_configuration(bus, boards, gantry):
    infos = bus.inspect(["servo.pid_position.kp", "servo.timeout_mode", "no.such.name"])
    assert [i.id for i in infos] == [m.id for m in gantry.motors] and all(i.count == 1 for i in infos)
    assert infos[0].config["servo.pid_position.kp"] == pytest.approx(gantry.motors[0].kp)
    assert infos[1].config["servo.timeout_mode"] == 12 and "no.such.name" not in infos[0].config
    assert infos[0].register_map >= 4 and infos[0].home_state == 2 and infos[0].encoder_validity & 2
    assert bus.cycle(Setpoints.idle(4), PATIENT_S).replied.all()


def test_two_boards_with_one_id_are_found(gantry):
    specs = board_specs(gantry)
    twin = type(specs[0])(specs[0].id, motor="twin", config=dict(specs[0].config), home_state=2)
    with BoardServer([*specs, twin], standalone=True, motors=axes(gantry), supply=SUPPLY) as boards:
        bus = MoteusBus(gantry.motors, "fdcanusb", boards.device)
        bus.open()
        infos = bus.inspect([])
        assert [i.count for i in infos] == [2, 1, 1, 1]
        bus.close()


def test_set_position_changes_what_a_board_counts(bus, boards, gantry):
    bus.set_position(0, 0.5)
    states = bus.cycle(Setpoints.idle(4), PATIENT_S)
    assert states.pos[0] == pytest.approx(0.5, abs=1e-5)


@pytest.mark.parametrize(
    ("transport", "device", "words"),
    [
        ("fdcanusb", "/dev/no_such_adapter", ["/dev/no_such_adapter", "does not exist", "correct the path"]),
        ("fdcanusb", "/etc/hostname", ["not a serial device"]),
        ("fdcanusb", "", ["no fdcanusb adapter found", "--device /dev/ttyACM0"]),
        ("socketcan", "can77", ["can77", "ip link set"]),
        ("socketcan", "", ["does not name a CAN channel"]),
        ("python-can", "can0", ["interface:channel"]),
        ("python-can", "no_such:x", ["x of no_such"]),
        ("pi3hat", "", ["pip install moteus-pi3hat"]),
        ("carrier pigeon", "", ["unknown", "fdcanusb"]),
    ],
)
def test_adapters_that_cannot_be_opened_say_what_to_do(gantry, transport, device, words):
    bus = MoteusBus(gantry.motors, transport, device)
    with pytest.raises(BusError) as caught:
        bus.open()
    assert all(word in str(caught.value) for word in words), caught.value
    assert "\n" not in str(caught.value)
    bus.close()


def test_forbidden_device_prints_the_udev_rule(monkeypatch, gantry):
    import tt_control.moteus_devices as devices

    def forbid(path, **_options):
        raise PermissionError(13, "Permission denied", path)

    monkeypatch.setattr(devices, "FdcanusbDevice", forbid)
    master, slave = pty.openpty()
    with pytest.raises(BusError) as caught:
        open_devices("fdcanusb", os.ttyname(slave))
    assert UDEV_RULE in str(caught.value)
    os.close(slave)
    os.close(master)


def test_an_adapter_in_use_is_refused(bus, boards, gantry):
    second = MoteusBus(gantry.motors, "fdcanusb", boards.device)
    with pytest.raises(BusError, match="used by another process"):
        second.open()
    assert bus.cycle(Setpoints.idle(4), PATIENT_S).replied.all()


def test_python_can_buses_work_too(gantry):
    """The same driver over a python-can interface; a thread answers on the other end with simulated
    boards.
    """
    can = pytest.importorskip("can")
    import threading

    plant = StandalonePlant(axes(gantry))
    boards = BoardSet(board_specs(gantry), plant, SUPPLY)
    other = can.Bus(interface="virtual", channel="tt-test", fd=True)
    ending = threading.Event()

    def answer() -> None:
        while not ending.is_set():
            message = other.recv(0.05)
            if message is None:
                continue
            with boards.lock:
                replies = boards.handle(message.arbitration_id, bytes(message.data))
            for _, address, data in replies:
                other.send(can.Message(arbitration_id=address, data=data, is_fd=True, is_extended_id=True))

    thread = threading.Thread(target=answer)
    thread.start()
    try:
        bus = MoteusBus(gantry.motors, "python-can", "virtual:tt-test")
        bus.open()
        states = bus.cycle(Setpoints.idle(4), PATIENT_S)
        assert states.replied.all() and states.pos == pytest.approx(gantry.home, abs=2e-3)
        bus.close()
    finally:
        ending.set()
        thread.join()
        other.shutdown()


def test_loss_and_return_of_the_adapter_in_the_loop(gantry, tmp_path):
    """Unplugged under power: boards stop alone, the loop reopens, and only clear_fault and enable start
    again.
    """
    from dataclasses import replace

    link = tmp_path / "motors"
    config = replace(control_config(gantry), watchdog_s=0.3, silent_ticks=100, missed_replies=100)
    with BoardServer(
        board_specs(gantry), link, standalone=True, motors=axes(gantry), supply=SUPPLY
    ) as boards:
        controller = Controller(gantry, config, 0.02)
        loop = MotorLoop(MoteusBus(gantry.motors, "fdcanusb", str(link)), controller, WallClock())
        loop.start()
        try:
            assert wait_for(lambda: controller.state is State.READY), controller.reason
            assert loop.call(controller.enable).result(5.0).ok
            assert wait_for(lambda: controller.state is State.ACTIVE), controller.reason
            boards.fail("unplug for=0.5")
            assert wait_for(lambda: controller.state is State.DISCONNECTED)
            assert wait_for(lambda: boards.boards.board(1).mode == 11), "the board's own watchdog stops it"
            assert wait_for(lambda: controller.state is State.FAULT), controller.reason
            assert controller.history[-1].trip is Trip.ADAPTER_LOST
            assert not loop.call(controller.enable).result(5.0).ok
            assert loop.call(controller.clear_fault).result(5.0).ok
            assert wait_for(
                lambda: controller.state is State.READY and (controller.watch.last.mode != 11).all()
            )
            assert loop.call(controller.enable).result(5.0).ok
            assert wait_for(lambda: controller.state is State.ACTIVE), controller.reason
        finally:
            assert loop.stop()


class FakeHat(TransportDevice):
    """What the vendor's pi3hat driver looks like from outside: one device with a child for each of its buses."""

    def __init__(self, boards: BoardSet) -> None:
        super().__init__()
        self.boards, self.closed = boards, False
        self.buses = [FakeHatBus(self, number) for number in range(1, 6)]

    def close(self) -> None:
        self.closed = True

    async def transaction(self, requests):
        for request in requests:
            assert request.child_device in self.buses, "the hat does not know by itself where a board is"
            if request.child_device.number == 1 + (request.frame.arbitration_id & 0x7F) % 2:
                with self.boards.lock:
                    replies = self.boards.handle(request.frame.arbitration_id, bytes(request.frame.data))
                frames = [Frame(arbitration_id=address, data=data) for _, address, data in replies]
                request.responses.extend(f for f in frames if request.frame_filter(f))
        if not all(request.responses for request in requests):
            await asyncio.Event().wait()  # until it is cancelled, as the real one


class FakeHatBus(TransportDevice):
    def __init__(self, hat: FakeHat, number: int) -> None:
        super().__init__()
        self._hat, self.number = hat, number

    def parent(self) -> FakeHat:
        return self._hat

    async def transaction(self, requests):
        raise AssertionError("broken in the vendor's driver")


def test_boards_behind_a_pi3hat(gantry, monkeypatch):
    """Never run on the hardware: the vendor's driver replaced by its shape."""
    import tt_control.moteus_devices as devices

    boards = BoardSet(board_specs(gantry), StandalonePlant(axes(gantry)), SUPPLY)
    hat = FakeHat(boards)
    monkeypatch.setattr(devices, "_open_pi3hat", lambda: list(hat.buses))
    bus = MoteusBus(gantry.motors, "pi3hat")
    bus.open()
    states = bus.cycle(Setpoints.idle(4), PATIENT_S)
    assert states.replied.all() and states.pos == pytest.approx(gantry.home, abs=2e-3)
    boards.fail("dead 2")
    assert bus.cycle(Setpoints.idle(4), 0.02).replied.tolist() == [True, False, True, True]
    bus.close()
    assert hat.closed, "the next one to open it needs the hardware"
