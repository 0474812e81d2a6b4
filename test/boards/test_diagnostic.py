"""The diagnostic stream, spoken directly: what a user of a console sees."""

import math
import struct

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from moteus import reader

from tt_sim.boards import Board, BoardSpec, Mode, frames
from tt_sim.boards.config import DEFAULTS
from tt_sim.boards.diagnostic import Diagnostic
from tt_sim.boards.telemetry import CHANNELS, pack, schema, values


def console(**config: float) -> tuple[Board, Diagnostic]:
    settings_ = {name.replace("__", "."): value for name, value in config.items()}
    board = Board(BoardSpec(1, config=settings_, enable_delay_s=0.0))
    board.control(0.0, 0.0, 24.0, 0.001)
    return board, Diagnostic(board)


def say(diagnostic: Diagnostic, *lines: str) -> str:
    for line in lines:
        data = line.encode() + b"\n"
        diagnostic.handle([(frames.STREAM_CLIENT_DATA, 1, 0, 0, len(data))], data)
    answer = b""
    while True:
        piece = diagnostic.handle([(frames.STREAM_CLIENT_POLL, 1, 61, 0, 0)], b"")[3:]
        if not piece:
            return answer.decode("latin1").replace("\r\n", "|")
        answer += piece


def test_configuration_is_read_changed_stored_loaded_and_defaulted() -> None:
    board, diagnostic = console()
    assert say(diagnostic, "conf get servopos.position_max") == "0.01|"
    assert say(diagnostic, "conf set servopos.position_max nan") == "OK|"
    assert say(diagnostic, "conf get servopos.position_max") == "nan|"
    assert say(diagnostic, "conf write", "conf set servopos.position_max 3", "conf load") == "OK|OK|OK|"
    assert math.isnan(float(board.config["servopos.position_max"]))
    assert say(diagnostic, "conf default") == "OK|"
    assert board.config["servopos.position_max"] == 0.01
    assert (
        say(diagnostic, "conf enumerate servopos")
        == "servopos.position_min -0.01|servopos.position_max 0.01|OK|"
    )
    assert say(diagnostic, "conf set servo.voltage_mode_control 1") == "OK|"
    assert board.config["servo.voltage_mode_control"] is True


@pytest.mark.parametrize(
    ("line", "answer"),
    [
        ("conf get servopos.nothing", "ERR error reading|"),
        ("conf get nothing.at_all", "ERR unknown group|"),
        ("conf set servopos.position_max wide", "ERR error setting|"),
        ("conf set id.id 0", "ERR error setting|"),
        ("conf set id.id inf", "ERR error setting|"),
        ("conf set servopos.position_max", "ERR unknown subcommand|"),
        ("conf enumerate nothing", "ERR unknown group|"),
        ("conf", "ERR unknown subcommand|"),
        ("tel get nothing", "ERR unknown name|"),
        ("d dance", "ERR unknown subcommand|"),
        ("d pos 0 0", "ERR error parsing|"),
        ("d pos 0 0 1 z3", "ERR error parsing|"),
        ("flash", "ERR unknown command|"),
    ],
)
def test_mistakes_are_answered_like_the_firmware_does(line: str, answer: str) -> None:
    assert say(console()[1], line) == answer


def test_modes_can_be_commanded_by_text() -> None:
    board, diagnostic = console()
    assert say(diagnostic, "d pos nan 0 1.5 p0.5 d0.25 f0.1 t2 v-1 a-1") == "OK|"
    board.control(0.0, 0.0, 24.0, 0.001)
    assert board.mode == Mode.POSITION
    assert (board.command_kp_scale, board.command_kd_scale, board.command_feedforward) == (0.5, 0.25, 0.1)
    assert board.command_max_torque == 1.5
    assert board.command_timeout == pytest.approx(2.0, abs=0.01)
    for line, mode in (
        ("d brake", Mode.BRAKE),
        ("d zero 0 0 1", Mode.ZERO_VELOCITY),
        ("d stop", Mode.STOPPED),
    ):
        assert say(diagnostic, line) == "OK|"
        board.control(0.0, 0.0, 24.0, 0.001)
        assert board.mode == mode
    assert say(diagnostic, "d exact 1.25") == "OK|"
    assert board.position == 1.25


def test_a_change_of_id_takes_effect_at_once() -> None:
    board, diagnostic = console()
    say(diagnostic, "conf set id.id 9")
    assert board.id == 9


@pytest.mark.parametrize("channel", list(CHANNELS))
def test_telemetry_reads_back_through_the_vendors_schema_reader(channel: str) -> None:
    import io

    board, _ = console()
    kind = reader.Type.from_binary(io.BytesIO(schema(CHANNELS[channel])))
    stream = io.BytesIO(pack(CHANNELS[channel], values(channel, board)))
    result = kind.read(reader.Stream(stream))
    assert result._fields == tuple(member.name for member in CHANNELS[channel])
    assert stream.read() == b"", "the schema describes all bytes"


def test_text_and_periodic_telemetry() -> None:
    board, diagnostic = console()
    assert "servo_stats.mode 0|" in say(diagnostic, "tel fmt servo_stats 1", "tel get servo_stats")
    say(diagnostic, "tel rate servo_stats 100")
    assert say(diagnostic) == ""
    for _ in range(101):
        board.control(0.0, 0.0, 24.0, 0.001)
    assert say(diagnostic).count("servo_stats.mode") == 1
    say(diagnostic, "tel stop")
    for _ in range(200):
        board.control(0.0, 0.0, 24.0, 0.001)
    assert say(diagnostic) == ""
    assert say(diagnostic, "tel list") == "".join(f"{name}|" for name in CHANNELS) + "OK|"


def test_flow_control_repeats_a_lost_packet_and_forgets_it_for_a_new_client() -> None:
    _, diagnostic = console()
    line = b"conf get id.id\n"
    diagnostic.handle([(frames.STREAM_CLIENT_DATA, 1, 0, 0, len(line))], line)

    def poll(acknowledged: int, most: int = 2) -> tuple[int, bytes]:
        answer = diagnostic.handle([(frames.STREAM_CLIENT_POLL_FLOW, 1, most, 0, 0)], bytes([acknowledged]))
        return answer[2], answer[4:]

    assert poll(0) == (1, b"1\r")
    assert poll(0) == (1, b"1\r"), "the answer was lost: the same again"
    assert poll(1) == (2, b"\n")
    assert poll(0)[1] == b"", "a new client does not get the old answer"
    number, _ = poll(0)
    for _ in range(300):
        number, piece = poll(number)
        assert 1 <= number <= 255
        assert piece == b""


@settings(deadline=None, max_examples=150)
@given(
    st.lists(
        st.lists(
            st.one_of(
                st.sampled_from(
                    ["conf", "tel", "d", "get", "set", "pos", "exact", "rate", "schema", "servo_stats"]
                ),
                st.sampled_from(sorted(DEFAULTS)),
                st.floats().map(str),
                st.text(max_size=6),
            ),
            max_size=6,
        ),
        max_size=4,
    )
)
def test_no_text_breaks_a_board(lines: list[list[str]]) -> None:
    board, diagnostic = console()
    for words in lines:
        data = " ".join(words).encode()[:200] + b"\n"
        diagnostic.handle([(frames.STREAM_CLIENT_DATA, 1, 0, 0, len(data))], data)
        assert math.isfinite(board.control(0.0, 0.0, 24.0, 0.001))
    diagnostic.handle([(frames.STREAM_CLIENT_POLL, 1, 61, 0, 0)], b"")


def test_a_client_that_never_polls_cannot_fill_the_memory() -> None:
    _, diagnostic = console()
    line = b"conf enumerate\n"
    for _ in range(50):
        diagnostic.handle([(frames.STREAM_CLIENT_DATA, 1, 0, 0, len(line))], line)
    assert len(diagnostic._output) < 50_000
    long_line = b"x" * 60
    for _ in range(100):
        diagnostic.handle([(frames.STREAM_CLIENT_DATA, 1, 0, 0, len(long_line))], long_line)
    assert len(diagnostic._input) <= 1024


def test_binary_answers_carry_their_size() -> None:
    _, diagnostic = console()
    answer = say(diagnostic, "tel get firmware")
    head, _, rest = answer.partition("|")
    assert head == "emit firmware"
    blob = rest.encode("latin1")
    assert struct.unpack("<I", blob[:4])[0] == len(blob) - 4
