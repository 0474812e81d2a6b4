"""One board without a bus: modes, watchdog, faults, limits and the control law."""

import math
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tt_sim.boards import Board, BoardSpec, Command, Fault, Mode
from tt_sim.boards.board import UNDER_VOLTAGE_V

DT = 0.001
WIDE: dict[str, float | int | bool] = {
    "servopos.position_min": -50.0,
    "servopos.position_max": 50.0,
    "servo.pid_position.kp": 20.0,
    "servo.pid_position.kd": 0.5,
    "servo.default_accel_limit": math.nan,
}


def make(config: dict[str, float | int | bool] | None = None, **spec: float) -> Board:
    board = Board(BoardSpec(1, config={**WIDE, **(config or {})}, enable_delay_s=0.0, **spec))  # type: ignore[arg-type]
    step(board)
    return board


def step(
    board: Board, position: float = 0.0, velocity: float = 0.0, volts: float = 24.0, count: int = 1
) -> float:
    torque = 0.0
    for _ in range(count):
        torque = board.control(position, velocity, volts, DT)
    return torque


def position_command(**fields: float) -> Command:
    command = Command(int(Mode.POSITION))
    for name, value in fields.items():
        setattr(command, name, value)
    return command


def enabled(board: Board, **fields: float) -> Board:
    board.command(position_command(timeout=math.nan, **fields))
    step(board)
    assert board.mode == Mode.POSITION
    return board


def test_torque_is_the_vendors_law() -> None:
    board = enabled(make(), position=0.1, velocity=2.0, feedforward=0.3, kp_scale=0.5, kd_scale=0.8)
    # The control position has moved on by velocity times the time since the command.
    expected = 0.5 * 20.0 * (board.control_position + 2.0 * DT - 0.04) + 0.8 * 0.5 * (2.0 - 0.7) + 0.3
    assert step(board, 0.04, 0.7) == pytest.approx(expected, rel=1e-9)
    assert board.control_torque == pytest.approx(expected)
    assert board.term_proportional + board.term_derivative + board.term_feedforward == pytest.approx(expected)


def test_an_omitted_position_means_zero_and_nan_means_hold() -> None:
    assert step(enabled(make()), 0.3) == pytest.approx(20.0 * -0.3)
    board = make()
    step(board, 0.5)
    board.command(position_command(position=math.nan, timeout=math.nan))
    assert step(board, 0.5, count=5) == 0.0
    assert board.control_position == 0.5


def test_a_hold_after_a_position_keeps_the_control_position() -> None:
    board = enabled(make(), position=0.2)
    board.command(position_command(position=math.nan, timeout=math.nan))
    assert step(board, 0.15) == pytest.approx(20.0 * 0.05)


def test_enabling_takes_its_time_and_shows_its_mode() -> None:
    board = Board(BoardSpec(1, config=WIDE, enable_delay_s=0.010))
    step(board)
    board.command(position_command(position=1.0, timeout=math.nan))
    modes = []
    for _ in range(12):
        assert step(board) == 0.0 or board.mode == Mode.POSITION
        modes.append(board.mode)
    assert modes[0] == Mode.ENABLING
    assert modes.index(Mode.POSITION) in (9, 10)


def test_unconfigured_boards_refuse_to_start_outside_a_hundredth_of_a_turn() -> None:
    board = Board(BoardSpec(1, enable_delay_s=0.0))
    step(board, 0.02)
    board.command(position_command(position=0.02))
    step(board, 0.02)
    assert (board.mode, board.fault) == (Mode.FAULT, Fault.START_OUTSIDE_LIMIT)
    board.stop()
    board.command(position_command(position=0.02, ignore_bounds=1.0))
    step(board, 0.02)
    assert board.mode == Mode.POSITION


def test_the_control_position_stops_at_the_bounds_and_torque_beyond_them_fades() -> None:
    board = enabled(make({"servopos.position_max": 0.1}), position=3.0)
    step(board)
    assert board.control_position == 0.1
    full = step(
        enabled(make({"servopos.position_max": 0.1}), feedforward=1.0, kp_scale=0.0, kd_scale=0.0), 0.09
    )
    half_board = enabled(make({"servopos.position_max": 0.1}), feedforward=1.0, kp_scale=0.0, kd_scale=0.0)
    half = step(half_board, 0.11)
    assert full == pytest.approx(1.0)
    assert half == pytest.approx(0.5)
    assert half_board.fault == Fault.LIMIT_POSITION_BOUNDS
    assert half_board.mode == Mode.POSITION, "a limiter code is no fault"


def test_watchdog_latches_the_timeout_mode_until_a_stop() -> None:
    board = make()
    board.command(position_command(position=0.0, timeout=0.025))
    step(board, count=24)
    assert board.mode == Mode.POSITION
    step(board, count=2)
    assert board.mode == Mode.TIMEOUT
    board.command(position_command(position=0.0, timeout=0.025))
    step(board)
    assert board.mode == Mode.TIMEOUT, "only a stop leaves the timeout mode"
    board.stop()
    board.command(position_command(position=0.0, timeout=0.025))
    step(board)
    assert board.mode == Mode.POSITION


def test_watchdog_default_comes_from_the_configuration_and_nan_switches_it_off() -> None:
    board = make({"servo.default_timeout_s": 0.05})
    board.command(position_command())
    step(board, count=49)
    assert board.mode == Mode.POSITION
    step(board, count=3)
    assert board.mode == Mode.TIMEOUT
    assert step(enabled(make(), position=0.1), count=1000) != 0.0


@pytest.mark.parametrize(
    ("mode", "check"),
    [
        (12, lambda t: t == pytest.approx(-0.5 * 2.0)),
        (0, lambda t: t == 0.0),
        (15, lambda t: t < 0.0),
        (10, lambda t: t < 0.0),
    ],
)
def test_timeout_modes_damp_drop_brake_or_hold(mode: int, check: Callable[[float], bool]) -> None:
    board = make({"servo.timeout_mode": mode})
    board.command(position_command(timeout=0.01))
    step(board, count=13)
    assert board.mode == Mode.TIMEOUT
    assert check(step(board, 0.1, 2.0))


def test_timeout_torque_is_limited_by_the_configuration() -> None:
    board = make({"servo.timeout_max_torque_Nm": 0.2})
    board.command(position_command(timeout=0.01))
    step(board, count=13)
    assert step(board, 0.0, 10.0) == pytest.approx(-0.2)
    assert board.fault == Fault.LIMIT_MAX_TORQUE


@pytest.mark.parametrize(
    ("spoil", "code"),
    [
        (lambda b: step(b, volts=47.0), Fault.OVER_VOLTAGE),
        (lambda b: step(b, volts=UNDER_VOLTAGE_V - 0.1), Fault.UNDER_VOLTAGE),
        (lambda b: setattr(b, "forced_temperature", 76.0), Fault.OVER_TEMPERATURE),
        (lambda b: setattr(b, "driver_fault", True), Fault.MOTOR_DRIVER),
        (lambda b: setattr(b, "encoder_ok", False), Fault.ENCODER),
        (lambda b: b.set_config("servo.fault_position_error", 0.001), Fault.POSITION_ERROR),
    ],
)
def test_faults_latch_until_a_stop_which_erases_the_code(
    spoil: Callable[[Board], object], code: Fault
) -> None:
    board = enabled(make(), position=0.1)
    spoil(board)
    step(board, volts=board.voltage, count=2)
    assert (board.mode, board.fault) == (Mode.FAULT, code)
    board.encoder_ok, board.driver_fault, board.forced_temperature = True, False, None
    board.temperature = 25.0
    board.set_config("servo.fault_position_error", math.nan)
    board.command(position_command())
    assert step(board) == 0.0
    assert (board.mode, board.fault) == (Mode.FAULT, code), "a command does not clear a fault"
    board.stop()
    assert (board.mode, board.fault) == (Mode.STOPPED, Fault.NONE)


def test_stopped_boards_do_not_mind_the_voltage() -> None:
    board = make()
    step(board, volts=60.0)
    assert board.mode == Mode.STOPPED


@pytest.mark.parametrize(
    ("config", "state", "fields", "code"),
    [
        ({}, (0.0, 0.0), {"position": 1.0, "max_torque": 0.5}, Fault.LIMIT_MAX_TORQUE),
        ({"servo.max_current_A": 1.0}, (0.0, 0.0), {"position": 1.0}, Fault.LIMIT_MAX_CURRENT),
        (
            {"servo.max_power_W": 5.0},
            (0.0, 10.0),
            {"position": 10.0, "velocity": 10.0},
            Fault.LIMIT_MAX_POWER,
        ),
        (
            {"servo.max_velocity": 5.0},
            (0.0, 6.0),
            {"position": 10.0, "velocity": 6.0},
            Fault.LIMIT_MAX_VELOCITY,
        ),
        ({"motor.Kv": 10.0}, (0.0, 9.0), {"position": 10.0, "velocity": 9.0}, Fault.LIMIT_MAX_VOLTAGE),
    ],
)
def test_limiters_tell_their_code_without_faulting(
    config: dict[str, float | int | bool], state: tuple[float, float], fields: dict[str, float], code: Fault
) -> None:
    board = enabled(make({"servo.pid_position.kp": 100.0, **config}), **fields)
    step(board, *state)
    assert (board.mode, board.fault) == (Mode.POSITION, code)
    board.command(position_command(position=state[0], velocity=0.0, timeout=math.nan, kd_scale=0.0))
    step(board, state[0], 0.0)
    assert board.fault == Fault.NONE, "the code vanishes with its cause"


def test_torque_fades_when_the_board_gets_hot() -> None:
    board = enabled(make({"servo.max_current_A": 10.0}), position=10.0)
    cold = step(board)
    board.forced_temperature = 62.5  # half way through the margin of 25 K below 75 °C
    step(board)
    hot = step(board)
    assert board.fault == Fault.LIMIT_FET_TEMPERATURE
    assert 0.0 <= hot < 0.5 * cold


def test_flux_braking_reports_itself_near_the_maximum_voltage() -> None:
    board = enabled(make(), position=0.0)
    step(board, volts=44.5)
    assert board.fault == Fault.LIMIT_FLUX_BRAKING
    assert board.d_current < 0.0
    assert board.power > 0.0


def test_returned_power_above_its_limit_is_burnt_in_the_winding() -> None:
    # 0.5 N m/(rev/s) against 10 rev/s brakes with 5 N m: 314 W mechanical, little of it lost in the winding.
    motor = {"motor.Kv": 50.0, "motor.resistance_ohm": 0.02}
    free = enabled(make(motor), kp_scale=0.0)
    limited = enabled(make({**motor, "servo.max_regen_power_W": 10.0}), kp_scale=0.0)
    assert step(limited, 0.0, 10.0) == pytest.approx(step(free, 0.0, 10.0)), "the brake works all the same"
    assert free.power < -200.0
    assert limited.power == pytest.approx(-10.0)
    assert (free.fault, limited.fault) == (Fault.NONE, Fault.LIMIT_REGEN_POWER)


def test_stop_position_with_limits_is_the_documented_fault() -> None:
    board = make()
    board.command(position_command(position=math.nan, velocity=1.0, stop_position=0.5, velocity_limit=2.0))
    step(board)
    assert (board.mode, board.fault) == (Mode.FAULT, Fault.STOP_POSITION_DEPRECATED)


def test_stop_position_ends_a_velocity_command_there() -> None:
    board = make()
    board.command(position_command(position=math.nan, velocity=-1.0, stop_position=0.05, timeout=math.nan))
    step(board, count=100)
    assert board.control_position == pytest.approx(0.05)
    assert board.control_velocity == 0.0


def test_the_2026_default_acceleration_limit_delays_a_stream_that_forgot_minus_one() -> None:
    config = {"servo.default_accel_limit": 50.0}
    slow = enabled(make(config), position=0.1)
    fast = enabled(make(config), position=0.1, velocity_limit=-1.0, accel_limit=-1.0)
    assert slow.control_position < 0.001
    assert fast.control_position == pytest.approx(0.1)


@settings(deadline=None, max_examples=30)
@given(
    target=st.floats(-2.0, 2.0),
    final=st.floats(-1.0, 1.0),
    v_max=st.floats(1.0, 8.0),
    a_max=st.floats(4.0, 100.0),
    start=st.floats(-0.5, 0.5),
)
def test_limited_trajectories_obey_their_limits_and_arrive(
    target: float, final: float, v_max: float, a_max: float, start: float
) -> None:
    board = make()
    step(board, start)
    final = max(-0.5 * v_max, min(0.5 * v_max, final))
    command = position_command(
        position=target, velocity=final, velocity_limit=v_max, accel_limit=a_max, timeout=math.nan
    )
    board.command(command)
    step(board, start)
    last_v, last_x = board.control_velocity, board.control_position
    aim = target + final * DT
    for _ in range(40000):
        step(board, start)
        v, x = board.control_velocity, board.control_position
        aim += final * DT
        assert abs(v) <= v_max * 1.0001
        assert abs(v - last_v) <= a_max * DT * 2.01
        assert abs(x - last_x) <= v_max * DT * 1.01 + a_max * DT * DT
        last_v, last_x = v, x
        if board.trajectory_complete:
            break
    assert board.trajectory_complete
    assert x == pytest.approx(aim, abs=2e-3 + a_max * DT * DT)
    assert v == pytest.approx(final, abs=1e-9)


def test_velocity_only_limit_moves_at_that_speed() -> None:
    board = enabled(make(), position=1.0, velocity_limit=2.0)
    step(board, count=250)
    assert board.control_position == pytest.approx(2.0 * 0.251, abs=0.003)
    step(board, count=400)
    assert board.control_position == pytest.approx(1.0)
    assert board.trajectory_complete


def test_stay_within_pushes_back_only_outside() -> None:
    board = make()
    command = Command(int(Mode.STAY_WITHIN))
    command.lower_bound, command.upper_bound, command.timeout = -0.1, 0.1, math.nan
    board.command(command)
    step(board)
    assert step(board, 0.05) == 0.0
    assert step(board, 0.2) == pytest.approx(20.0 * -0.1)
    command.lower_bound = math.nan
    assert step(board, -3.0) == 0.0


def test_brake_is_a_damper_and_zero_velocity_uses_kd() -> None:
    board = make()
    board.command(Command(int(Mode.BRAKE)))
    step(board)
    assert step(board, 0.0, 1.0) < 0.0 < step(board, 0.0, -1.0)
    command = Command(int(Mode.ZERO_VELOCITY))
    command.kd_scale = 0.5
    board.command(command)
    step(board)
    assert step(board, 7.0, 1.0) == pytest.approx(-0.5 * 0.5)


def test_current_mode_gives_torque_by_the_torque_constant() -> None:
    board = Board(BoardSpec(1, config=WIDE, enable_delay_s=0.0, max_torque_nm=5.0))
    step(board)
    command = Command(int(Mode.CURRENT))
    command.q_current = 20.0
    board.command(command)
    assert step(board) == pytest.approx(1.0)  # 5 N m at 100 A
    assert board.q_current == pytest.approx(20.0)


def test_position_reference_at_power_up_and_set_output() -> None:
    def reading(home_state: int) -> Board:
        board = Board(BoardSpec(1, config=WIDE, home_state=home_state))
        step(board, 3.3)
        return board

    assert reading(2).position == pytest.approx(3.3)
    assert reading(1).position == pytest.approx(0.3), "an encoder on the rotor knows one turn only"
    board = reading(0)
    assert board.position == 0.0
    board.set_output_exact(1.25)
    step(board, 3.4)
    assert (board.position, board.home_state) == (pytest.approx(1.35), 2)
    board = reading(1)
    board.set_output_nearest(3.1)
    step(board, 3.3)
    assert board.position == pytest.approx(3.3)


def test_encoder_noise_and_steps() -> None:
    board = make(encoder_noise_rev=1e-3)
    samples = []
    for _ in range(2000):
        step(board, 0.5)
        samples.append(board.position - 0.5)
    assert sum(samples) / 2000 == pytest.approx(0.0, abs=1e-4)
    assert math.sqrt(sum(s * s for s in samples) / 2000) == pytest.approx(1e-3, rel=0.1)
    board = make(encoder_step_rev=0.01)
    step(board, 0.1234)
    assert board.position == pytest.approx(0.12)


def test_torque_stays_finite_whatever_the_command() -> None:
    for fields in (
        {"kp_scale": math.nan},
        {"feedforward": math.nan},
        {"position": math.inf, "feedforward": -math.inf},
    ):
        assert math.isfinite(step(enabled(make(), **fields), 0.1))


def test_integral_term_winds_to_its_limit_only() -> None:
    board = enabled(make({"servo.pid_position.ki": 50.0, "servo.pid_position.ilimit": 0.4}), position=0.1)
    step(board, 0.0, count=1000)
    assert board.term_integral == pytest.approx(0.4)
    assert board.term_proportional == pytest.approx(2.0)


def test_a_reset_forgets_what_was_not_stored() -> None:
    board = make()
    board.set_config("servopos.position_max", 1.5)
    board.flash = dict(board.config)
    board.set_config("servopos.position_max", 2.5)
    board.reset()
    assert board.config["servopos.position_max"] == 1.5
    assert board.mode == Mode.STOPPED
