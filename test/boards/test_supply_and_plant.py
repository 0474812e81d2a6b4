"""Supply and stand-alone motors against closed forms, and boards that brake into a supply."""

import math

import pytest

from tt_perception.errors import TTError
from tt_sim.boards import BoardSet, BoardSpec, Command, Fault, Mode, MotorSpec, StandalonePlant, SupplySpec
from tt_sim.boards.supply import Supply

TWO_PI = 2.0 * math.pi
DT = 0.001
WIDE: dict[str, float | int | bool] = {"servopos.position_min": -500.0, "servopos.position_max": 500.0}


def run(plant: StandalonePlant, torque: float, seconds: float, dt: float = DT) -> None:
    for _ in range(round(seconds / dt)):
        plant.step({1: torque}, dt)


def test_torque_over_inertia_is_radians_per_second_squared() -> None:
    plant = StandalonePlant({1: MotorSpec(inertia=2e-3, viscous=0.0)})
    run(plant, 0.1, 0.5)
    position, velocity = plant.read(1)
    assert velocity * TWO_PI == pytest.approx(0.1 / 2e-3 * 0.5, rel=1e-6)
    assert position * TWO_PI == pytest.approx(0.5 * 0.1 / 2e-3 * 0.25, rel=0.01)


def test_viscous_friction_ends_at_torque_over_friction() -> None:
    plant = StandalonePlant({1: MotorSpec(inertia=1e-3, viscous=0.02)})
    run(plant, 0.5, 1.0)
    assert plant.read(1)[1] * TWO_PI == pytest.approx(0.5 / 0.02, rel=1e-3)


def test_coulomb_friction_sticks_and_decelerates_linearly() -> None:
    plant = StandalonePlant({1: MotorSpec(inertia=1e-3, viscous=0.0, coulomb=0.1)})
    run(plant, 0.09, 0.5)
    assert plant.read(1) == (0.0, 0.0)
    plant.set_state(1, 0.0, 5.0)
    run(plant, 0.0, 0.1)
    assert plant.read(1)[1] * TWO_PI == pytest.approx(5.0 * TWO_PI - 0.1 / 1e-3 * 0.1, rel=1e-6)
    run(plant, 0.0, 1.0)
    assert plant.read(1)[1] == 0.0


def test_weight_falls_to_the_end_stop_and_rests_there() -> None:
    plant = StandalonePlant({1: MotorSpec(inertia=1e-3, gravity=0.2, lower=-0.5, upper=0.5)})
    run(plant, 0.0, 2.0)
    position, velocity = plant.read(1)
    assert position == pytest.approx(-0.5)
    assert velocity == pytest.approx(0.0, abs=0.05)


def test_elastic_motor_swings_at_its_two_mass_frequency() -> None:
    spec = MotorSpec(inertia=1e-3, load_inertia=2e-3, stiffness=10.0, viscous=0.0)
    plant = StandalonePlant({1: spec})
    plant.set_state(1, 0.0)
    expected_hz = math.sqrt(10.0 * (1 / 1e-3 + 1 / 2e-3)) / TWO_PI
    # A short push starts the swing; zero crossings of the relative speed count it.
    run(plant, 1.0, 0.002)
    crossings, last = 0, 0.0
    for _ in range(2000):
        plant.step({1: 0.0}, 5e-4)
        relative = plant.read(1)[1] - plant.load(1)[1]
        crossings += relative * last < 0.0
        last = relative
    assert crossings / 2.0 == pytest.approx(expected_hz, rel=0.03)
    # Momentum of the push stays in the pair.
    momentum = (1e-3 * plant.read(1)[1] + 2e-3 * plant.load(1)[1]) * TWO_PI
    assert momentum == pytest.approx(1.0 * 0.002, rel=1e-6)


def test_supply_sags_under_load_by_its_resistance() -> None:
    supply = Supply(SupplySpec(voltage_v=24.0, resistance_ohm=0.1, idle_w=0.0))
    volts = supply.step(200.0, DT)
    assert volts == pytest.approx(24.0 - 200.0 / volts * 0.1, rel=1e-9)


def test_returned_energy_charges_the_bus_as_a_capacitor() -> None:
    supply = Supply(SupplySpec(voltage_v=24.0, capacitance_f=0.01, idle_w=0.0, sinks_current=False))
    for _ in range(100):
        supply.step(-50.0, DT)
    assert 0.5 * 0.01 * (supply.voltage_v**2 - 24.0**2) == pytest.approx(50.0 * 0.1, rel=0.01)
    battery = Supply(SupplySpec(voltage_v=24.0, resistance_ohm=0.1, sinks_current=True, idle_w=0.0))
    for _ in range(100):
        battery.step(-50.0, DT)
    assert battery.voltage_v == pytest.approx(24.0 + 50.0 / 24.0 * 0.1, abs=0.02)


def braking(supply: SupplySpec, config: dict[str, float | int | bool]) -> tuple[BoardSet, float]:
    """A spinning flywheel is stopped by its board; returns the boards and the highest voltage seen."""
    plant = StandalonePlant({1: MotorSpec(inertia=0.02, viscous=0.0)})
    plant.set_state(1, 0.0, 12.0)
    boards = BoardSet([BoardSpec(1, config={**WIDE, **config}, enable_delay_s=0.0)], plant, supply)
    command = Command(int(Mode.POSITION))
    command.position, command.kp_scale, command.timeout = math.nan, 0.0, math.nan
    command.velocity_limit = command.accel_limit = -1.0
    boards.boards[0].command(command)
    highest = 0.0
    for _ in range(400):
        plant.step(boards.control(DT), DT)
        highest = max(highest, boards.supply.voltage_v)
    return boards, highest


def test_braking_into_a_supply_that_takes_nothing_trips_the_over_voltage_fault() -> None:
    config = {
        "servo.pid_position.kd": 0.6,
        "servo.flux_brake_margin_voltage": -100.0,
        "motor.resistance_ohm": 0.01,
    }
    boards, highest = braking(SupplySpec(capacitance_f=0.002, sinks_current=False), config)
    assert boards.boards[0].fault == Fault.OVER_VOLTAGE
    assert boards.boards[0].mode == Mode.FAULT
    assert highest > 46.0


def test_flux_braking_or_a_brake_resistor_keeps_the_same_stop_below_the_limit() -> None:
    config: dict[str, float | int | bool] = {"servo.pid_position.kd": 0.3, "motor.resistance_ohm": 0.05}
    boards, highest = braking(SupplySpec(capacitance_f=0.004, sinks_current=False), config)
    assert boards.boards[0].mode == Mode.POSITION
    assert 40.0 < highest < 46.0
    boards, highest = braking(SupplySpec(capacitance_f=0.004, brake_v=30.0, sinks_current=False), config)
    assert boards.boards[0].mode == Mode.POSITION
    assert highest < 40.0


@pytest.mark.parametrize(
    "make",
    [
        lambda: MotorSpec(inertia=0.0),
        lambda: MotorSpec(viscous=-1.0),
        lambda: MotorSpec(lower=1.0, upper=1.0),
        lambda: MotorSpec(stiffness=5.0),
        lambda: SupplySpec(voltage_v=80.0),
        lambda: SupplySpec(capacitance_f=0.0),
        lambda: BoardSpec(0),
        lambda: BoardSpec(1, config={"servopos.position_mim": 1.0}),
        lambda: BoardSpec(1, encoder_noise_rev=math.nan),
        lambda: BoardSet([], StandalonePlant({})),
        lambda: BoardSet([BoardSpec(1), BoardSpec(1)], StandalonePlant({1: MotorSpec()})),
    ],
)
def test_impossible_hardware_is_refused(make: object) -> None:
    with pytest.raises(TTError):
        make()  # type: ignore[operator]
