"""Robots and boards for the control tests: the shipped gantry, and its boards on a pseudo-terminal."""

from __future__ import annotations

import contextlib
import math
import time
from collections.abc import Callable, Iterator

import pytest

from tt_control.dynamics import RigidBody
from tt_planning.robot import RobotModel, load_robot
from tt_sim.boards import BoardServer, BoardSpec, MotorSpec, SupplySpec

SUPPLY = SupplySpec(voltage_v=40.0, resistance_ohm=0.02, sinks_current=True)


def board_specs(robot: RobotModel, **config: float) -> list[BoardSpec]:
    """Boards configured as the robot file promises; `config` changes all of them (names with __ for dots)."""
    specs = []
    for motor, low, high in zip(robot.motors, robot.lower, robot.upper):
        turns = motor.sign * motor.turns_per_unit
        ends = sorted((turns * (low - 0.03 - motor.zero), turns * (high + 0.03 - motor.zero)))
        values: dict[str, float | int | bool] = {
            "servo.pid_position.kp": motor.kp,
            "servo.pid_position.ki": 0.0,
            "servo.pid_position.kd": motor.kd,
            "servopos.position_min": float(ends[0]),
            "servopos.position_max": float(ends[1]),
            "servo.max_power_W": 3000.0,
            "servo.override_board_max_power": True,
            "servo.timeout_max_torque_Nm": motor.max_torque,
        }
        values.update({k.replace("__", "."): v for k, v in config.items()})
        specs.append(BoardSpec(motor.id, config=values, max_torque_nm=motor.max_torque, home_state=2))
    return specs


def axes(robot: RobotModel, **changes: float) -> dict[int | str, MotorSpec]:
    """Uncoupled axes with the gantry's inertia and weight at its home pose; a loaded axis rests just below
    it.

    `changes` are fields of MotorSpec for every axis, in joint units for viscous and coulomb.
    """
    body = RigidBody.from_robot(robot)
    mass, weight = body.mass_matrix(robot.home), body.gravity(robot.home)
    motors: dict[int | str, MotorSpec] = {}
    for k, motor in enumerate(robot.motors):
        gear = 2.0 * math.pi * motor.sign * motor.turns_per_unit
        start = motor.sign * motor.turns_per_unit * (robot.home[k] - motor.zero)
        ends = sorted(
            motor.sign * motor.turns_per_unit * (e - motor.zero) for e in (robot.lower[k], robot.upper[k])
        )
        loaded = abs(weight[k]) > 1.0
        motors[motor.id] = MotorSpec(
            inertia=float(mass[k, k]) / gear**2,
            viscous=changes.get("viscous", float(body.friction.viscous[k])) / gear**2,
            coulomb=changes.get("coulomb", 0.0) / abs(gear),
            gravity=float(weight[k]) / gear,
            position=float(start),
            lower=float(start) - 0.001 if loaded else ends[0] - 0.01,
            upper=ends[1] + 0.01,
        )
    return motors


@pytest.fixture(scope="session")
def gantry() -> RobotModel:
    """The shipped four-axis gantry."""
    return load_robot("gantry4")


@pytest.fixture
def boards(gantry: RobotModel) -> Iterator[BoardServer]:
    """Four boards with the gantry's axes on a pseudo-terminal, in real time."""
    with BoardServer(board_specs(gantry), standalone=True, motors=axes(gantry), supply=SUPPLY) as server:
        yield server


def wait_for(condition: Callable[[], object], timeout_s: float = 10.0) -> bool:
    """Waits for a condition with a generous bound; returns whether it came."""
    end = time.monotonic() + timeout_s
    while not condition() and time.monotonic() < end:
        with contextlib.suppress(InterruptedError):
            time.sleep(0.002)
    return bool(condition())
