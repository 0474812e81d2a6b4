"""Scripted failures: the script text, and what each failure does to frames and motors."""

import math

import pytest

from tt_perception.errors import TTError
from tt_sim.boards import BoardSet, BoardSpec, Command, Failure, Fault, Mode, MotorSpec, StandalonePlant
from tt_sim.boards.failures import KINDS
from tt_sim.boards.line import LineAdapter

DT = 0.001
WIDE: dict[str, float | int | bool] = {"servopos.position_min": -5.0, "servopos.position_max": 5.0}
QUERY = b"\x11\x00\x11\x0f"


def boards_in_position(*ids: int) -> BoardSet:
    boards = BoardSet(
        [BoardSpec(i, config=WIDE, enable_delay_s=0.0) for i in ids],
        StandalonePlant({i: MotorSpec() for i in ids}),
    )
    for board in boards.boards:
        command = Command(int(Mode.POSITION))
        command.position, command.timeout = 0.1, math.nan
        board.command(command)
    run(boards, 0.002)
    return boards


def run(boards: BoardSet, seconds: float) -> dict[int | str, float]:
    torques: dict[int | str, float] = {}
    for _ in range(round(seconds / DT)):
        torques = boards.control(DT)
    return torques


def answers(boards: BoardSet, board_id: int) -> list[tuple[float, int, bytes]]:
    with boards.lock:
        return boards.handle(0x8000 | board_id, QUERY)


def test_script_lines_name_time_kind_boards_options_and_duration() -> None:
    failure = Failure.parse("t=2.5 late 1,3 4 delay=0.05 for=0.5")
    assert failure == Failure("late", (1, 3, 4), 2.5, 0.5, {"delay": 0.05})
    assert Failure.parse("unplug") == Failure("unplug")
    assert Failure.parse("overvoltage volts=50").option("volts") == 50.0
    assert Failure.parse("undervoltage").option("volts") < 4.0


@pytest.mark.parametrize(
    ("text", "needle"),
    [
        ("", "names no kind"),
        ("t=1", "names no kind"),
        ("explode 3", "explode"),
        ("dead", "needs board ids"),
        ("unplug 3", "whole bus"),
        ("dead three", "three"),
        ("t=x dead 3", "t=x"),
        ("t=-1 dead 3", "t=-1"),
        ("dead 3 delay=1", "delay"),
        ("late 3 delay=nan", "nan"),
        ("dead 9", "no simulated board has id 9"),
    ],
)
def test_wrong_script_lines_say_what_is_wrong(text: str, needle: str) -> None:
    with pytest.raises(TTError, match=needle):
        boards_in_position(1, 2, 3).fail(text)


def test_a_dead_board_neither_answers_nor_drives_and_comes_back_stopped() -> None:
    boards = boards_in_position(1, 2)
    boards.fail("t=0.010 dead 2 for=0.010")
    assert run(boards, 0.005)[2] != 0.0
    torques = run(boards, 0.006)
    assert torques[2] == 0.0
    assert torques[1] != 0.0
    assert answers(boards, 2) == []
    assert len(answers(boards, 1)) == 1
    run(boards, 0.011)
    assert len(answers(boards, 2)) == 1
    assert boards.board(2).mode == Mode.STOPPED


def test_a_silent_board_keeps_driving() -> None:
    boards = boards_in_position(1)
    boards.fail("silent 1")
    assert answers(boards, 1) == []
    assert run(boards, 0.002)[1] != 0.0


def test_late_replies_carry_their_delay_and_lossy_ones_vanish_at_the_given_rate() -> None:
    boards = boards_in_position(1, 2)
    boards.fail("late 1 delay=0.04")
    boards.fail("lossy 2 p=0.25")
    assert answers(boards, 1)[0][0] == 0.04
    received = sum(len(answers(boards, 2)) for _ in range(1000))
    assert 700 < received < 800


@pytest.mark.parametrize(
    ("text", "code"),
    [
        ("encoder 1", Fault.ENCODER),
        ("driver 1", Fault.MOTOR_DRIVER),
        ("overtemperature 1", Fault.OVER_TEMPERATURE),
        ("overvoltage", Fault.OVER_VOLTAGE),
        ("undervoltage", Fault.UNDER_VOLTAGE),
    ],
)
def test_faults_by_script_end_with_their_cause_and_a_stop(text: str, code: Fault) -> None:
    boards = boards_in_position(1)
    boards.fail(text + " for=0.005")
    run(boards, 0.003)
    board = boards.board(1)
    assert (board.mode, board.fault) == (Mode.FAULT, code)
    run(boards, 0.010)
    assert board.fault == code, "latched although the cause is gone"
    board.stop()
    run(boards, 0.001)
    assert board.fault == Fault.NONE
    assert board.encoder_validity == 3


def test_a_reset_stops_the_board_at_once() -> None:
    boards = boards_in_position(1)
    boards.fail("reset 1")
    assert boards.board(1).mode == Mode.STOPPED


def test_a_mute_adapter_says_nothing_at_all() -> None:
    boards = boards_in_position(1)
    adapter = LineAdapter(boards)
    boards.fail("mute for=0.005")
    assert adapter.feed(b"can send 8001 1100 BF\n") == []
    run(boards, 0.006)
    assert adapter.feed(b"can send 8001 1100 BF\n") != []


def test_every_kind_is_described() -> None:
    assert all(text for _, text, _ in KINDS.values())
