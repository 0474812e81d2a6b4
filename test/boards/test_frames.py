"""Frames and lines against the vendor's own encoder and decoder."""

import math
import os
import struct

import moteus
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moteus import fdcanusb_device, multiplex
from moteus.protocol import parse_registers

from tt_sim.boards import BoardSet, BoardSpec, MotorSpec, StandalonePlant
from tt_sim.boards import registers as reg
from tt_sim.boards.frames import PADDED_LENGTH, BadFrameError, LayoutCache, read_varuint, write_varuint
from tt_sim.boards.line import LineAdapter, crc8, split_checksum, with_checksum

WIDE = {"servopos.position_min": math.nan, "servopos.position_max": math.nan}


def board_set(*ids: int, **spec: object) -> BoardSet:
    specs = [BoardSpec(i, config=WIDE, **spec) for i in ids]  # type: ignore[arg-type]
    return BoardSet(specs, StandalonePlant({i: MotorSpec() for i in ids}))


def ask(boards: BoardSet, data: bytes, destination: int = 1) -> bytes:
    with boards.lock:
        replies = boards.handle(0x8000 | destination, data)
    assert len(replies) == 1
    return replies[0][2]


def resolutions(code: int) -> moteus.PositionResolution:
    chosen = moteus.PositionResolution()
    for name in dir(chosen):
        if not name.startswith("_"):
            setattr(chosen, name, code)
    return chosen


@pytest.mark.parametrize(
    ("code", "position_step", "velocity_step", "torque_step", "scale_step"),
    [
        (multiplex.INT8, 0.01, 0.1, 0.5, 1 / 127),
        (multiplex.INT16, 1e-4, 0.00025, 0.01, 1 / 32767),
        (multiplex.INT32, 1e-5, 1e-5, 0.001, 1e-9),
        (multiplex.F32, 1e-7, 1e-7, 1e-6, 1e-7),
    ],
)
def test_commands_of_the_library_arrive_in_every_resolution(
    code: int, position_step: float, velocity_step: float, torque_step: float, scale_step: float
) -> None:
    boards = board_set(1)
    controller = moteus.Controller(id=1, transport=object(), position_resolution=resolutions(code))
    command = controller.make_position(
        position=0.51,
        velocity=-1.2,
        feedforward_torque=1.5,
        kp_scale=0.75,
        kd_scale=0.25,
        maximum_torque=2.5,
        watchdog_timeout=0.03,
        velocity_limit=5.0,
        accel_limit=4.0,
        query=True,
    )
    ask(boards, command.data)
    board = boards.board(1)
    assert board.command_position == pytest.approx(0.51, abs=position_step)
    assert board.command_velocity == pytest.approx(-1.2, abs=velocity_step)
    assert board.command_feedforward == pytest.approx(1.5, abs=torque_step)
    assert board.command_kp_scale == pytest.approx(0.75, abs=scale_step)
    assert board.command_kd_scale == pytest.approx(0.25, abs=scale_step)
    assert board.command_max_torque == pytest.approx(2.5, abs=torque_step)
    assert board.command_velocity_limit == pytest.approx(5.0, abs=velocity_step)
    assert board.command_timeout == pytest.approx(0.03, abs=0.01)


def test_integers_saturate_where_the_wire_ends_and_nan_survives() -> None:
    # int16 ends at 3.2767 rev and 8.19 rev/s: a stream that needs more must use floats.
    assert reg.from_wire(reg.to_wire(5.0, reg.INT16, reg.POSITION), reg.INT16, reg.POSITION) == pytest.approx(
        3.2767
    )
    assert reg.from_wire(
        reg.to_wire(-20.0, reg.INT16, reg.VELOCITY), reg.INT16, reg.VELOCITY
    ) == pytest.approx(-8.19175)
    for resolution in (reg.INT8, reg.INT16, reg.INT32):
        assert math.isnan(
            reg.from_wire(reg.to_wire(math.nan, resolution, reg.TORQUE), resolution, reg.TORQUE)
        )
    assert math.isnan(struct.unpack("<f", struct.pack("<f", reg.to_wire(math.nan, reg.F32, reg.TORQUE)))[0])


@settings(deadline=None, max_examples=60)
@given(
    st.lists(
        st.tuples(st.sampled_from(sorted(reg.READABLE)), st.integers(0, 3)),
        min_size=1,
        max_size=6,
        unique_by=lambda x: x[0],
    )
)
def test_library_reads_back_what_the_registers_hold(wanted: list[tuple[int, int]]) -> None:
    boards = board_set(1)
    board = boards.board(1)
    board.position, board.velocity, board.torque, board.voltage = 0.1234, -0.77, 0.31, 23.4
    query = b"".join(
        bytes([0x11 | resolution << 2]) + write_varuint(register) for register, resolution in wanted
    )
    response = parse_registers(ask(boards, query)).response
    assert set(response) == {register for register, _ in wanted}
    for register, resolution in wanted:
        name, scales = reg.READABLE[register]
        true = float(getattr(board, name))
        if scales is None or register == 0x02C:  # the library hands the fixed current out unscaled
            continue
        step = 1e-6 * max(1.0, abs(true)) if resolution == reg.F32 else scales[resolution]
        largest = math.inf if resolution == reg.F32 else reg.LARGEST[resolution] * step
        expected = math.nan if math.isnan(true) else min(max(true, -largest), largest)
        assert response[register] == pytest.approx(expected, abs=1.001 * step, nan_ok=True)


def test_every_library_command_parses_the_same_from_the_cache() -> None:
    controller = moteus.Controller(id=1, transport=object())
    commands = [
        controller.make_stop(query=True),
        controller.make_brake(query=True),
        controller.make_position(position=math.nan, query=True),
        controller.make_position(position=0.25, velocity=0.5, watchdog_timeout=math.nan),
        controller.make_stay_within(lower_bound=-1.0, upper_bound=1.0, query=True),
        controller.make_zero_velocity(kd_scale=0.5, query=True),
        controller.make_current(q_A=1.0, d_A=0.0),
        controller.make_set_output_exact(position=0.3),
        controller.make_query(),
    ]
    cache = LayoutCache()
    for command in commands:
        data = command.data
        for frame in (data, data):
            layout = cache.find(frame)
            writes = [
                (s.register, s.resolution) for s in multiplex.parse_frame(frame) if s.type.name == "WRITE"
            ]
            values = [s.value for s in multiplex.parse_frame(frame) if s.type.name == "WRITE"]
            assert layout.writes == writes
            assert list(layout.unpack(frame)) == pytest.approx(values, nan_ok=True)
        assert cache.find(data) is cache.find(bytes(data)), (
            "the second frame of a shape must come from the cache"
        )


@settings(deadline=None, max_examples=200)
@given(st.binary(max_size=64))
def test_no_bytes_break_a_board(data: bytes) -> None:
    boards = board_set(1)
    with boards.lock:
        replies = boards.handle(0x8001, data)
    assert len(replies) <= 1
    for _, _, payload in replies:
        assert len(payload) in PADDED_LENGTH


@pytest.mark.parametrize(
    "data", [b"\x00\xff\xff\xff\xff\x07\x00", b"\x10\xff\xff\xff\xff\x07\x00", b"\x01\x80\x80\x02\x00"]
)
def test_huge_counts_and_register_numbers_cost_nothing(data: bytes) -> None:
    boards = board_set(1)
    with boards.lock:
        boards.handle(0x8001, data)


@given(st.integers(0, 2**32 - 1))
def test_varuint_round_trip(value: int) -> None:
    assert read_varuint(write_varuint(value), 0) == (value, len(write_varuint(value)))


def test_unfinished_frames_are_refused() -> None:
    for data in (b"\x0c", b"\x0d\x20\x00\x00", b"\x42\x01", b"\x80", b"\x40\x01\x20abc"):
        with pytest.raises(BadFrameError):
            LayoutCache().find(data)


def test_unknown_registers_get_error_subframes() -> None:
    boards = board_set(1)
    parsed = parse_registers(ask(boards, b"\x11" + write_varuint(0x200) + b"\x11\x00"))
    assert parsed.errors == [(0x200, 1)]
    assert parsed.response == {0: 0}
    assert parse_registers(ask(boards, b"\x01" + write_varuint(0x101) + b"\x07")).errors == [(0x101, 2)]


def test_checksums_equal_the_librarys() -> None:
    for size in (1, 2, 7, 64, 149, 200):
        data = os.urandom(size)
        assert crc8(data) == fdcanusb_device._compute_crc8(data)
    line = b"can send 8001 11 00 BF"
    assert with_checksum(line) == fdcanusb_device._append_checksum(line)
    assert split_checksum(with_checksum(line)) == (line, True)
    assert split_checksum(with_checksum(line).replace(b"8001", b"8002"))[1] is False
    assert split_checksum(line) == (line, None)


def test_line_protocol_answers_and_refuses() -> None:
    adapter = LineAdapter(board_set(1, 2))

    def say(line: bytes) -> list[bytes]:
        return b"".join(piece for _, piece in adapter.feed(line)).split(b"\r\n")[:-1]

    assert say(b"can send 8001 110") == []
    assert say(b"0 BF\n") == [b"OK", b"rcv 100 210000 e B F"], "a line may come in pieces"
    assert say(b"can send 0001 1100 BF\n") == [b"OK"], "no reply without the reply bit"
    assert say(b"can send 8005 1100 BF\n") == [b"OK"], "nobody has this id"
    assert len(say(b"can send 807f 1100 BF\n")) == 3, "all boards answer to the broadcast id"
    assert say(b"can send 8001 11zz BF\n") == [b"ERR malformed frame"]
    assert say(b"can send 8001 %s\n" % (b"50" * 65)) == [b"ERR frame out of range"]
    assert say(b"hello world\n") == [b"ERR unknown command"]
    assert say(with_checksum(b"can send 8001 1100 BF") + b"\n")[1].startswith(b"rcv 100 210000 e B F *")
    assert say(b"can send 8001 1100 BF *00\n")[0].startswith(b"ERR checksum")


def test_prefix_source_and_uuid_address_boards() -> None:
    specs = [BoardSpec(1, config={"can.prefix": 0x12}), BoardSpec(2), BoardSpec(2, motor="twin")]
    boards = BoardSet(specs, StandalonePlant({k: MotorSpec() for k in (1, 2, "twin")}))
    with boards.lock:
        assert boards.handle(0x8001, b"\x11\x00") == []
        assert boards.handle(0x12 << 16 | 0x8301, b"\x11\x00")[0][1] == 0x12 << 16 | 0x103
        assert len(boards.handle(0x8002, b"\x11\x00")) == 2, "two boards with one id both answer"
        twin = boards.boards[2]
        prefix = b"\x0a" + write_varuint(0x154) + twin.uuid[:8]
        replies = boards.handle(0x807F, prefix + b"\x19" + write_varuint(0x150))
    assert len(replies) == 1
    assert replies[0][2][3:7] == twin.uuid[:4]
