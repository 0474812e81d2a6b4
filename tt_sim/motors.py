"""Motor boards of a simulated robot, from its motor map: gains, limits and an absolute encoder each."""

from __future__ import annotations

from tt_planning.robot import RobotModel
from tt_sim.boards import BoardPlant, BoardSet, BoardSpec, SupplySpec
from tt_sim.world import END_STOP_MARGIN_M

# A 44 V pack that takes the braking energy back; the linear axes need 30 V at full speed.
SUPPLY = SupplySpec(voltage_v=44.0, resistance_ohm=0.03, sinks_current=True)
MAX_POWER_W = 3000.0


def board_specs(robot: RobotModel) -> list[BoardSpec]:
    """One board per motor, configured for the axis it drives."""
    specs = []
    for motor, lower, upper in zip(robot.motors, robot.lower, robot.upper, strict=True):
        turns = motor.sign * motor.turns_per_unit
        ends = sorted(
            (
                turns * (lower - END_STOP_MARGIN_M - motor.zero),
                turns * (upper + END_STOP_MARGIN_M - motor.zero),
            )
        )
        config: dict[str, float | int | bool] = {
            "servo.pid_position.kp": motor.kp,
            "servo.pid_position.ki": 0.0,
            "servo.pid_position.kd": motor.kd,
            "servopos.position_min": float(ends[0]),
            "servopos.position_max": float(ends[1]),
            # Boards for 56 V: the vendor's 46 V default would brake by flux all the time at this supply.
            "servo.max_voltage": 56.0,
            "servo.max_power_W": MAX_POWER_W,
            "servo.override_board_max_power": True,
            "servo.timeout_max_torque_Nm": motor.max_torque,
        }
        specs.append(BoardSpec(motor.id, config=config, max_torque_nm=motor.max_torque, home_state=2))
    return specs


def robot_boards(robot: RobotModel, plant: BoardPlant) -> BoardSet:
    """The boards of a robot on one bus."""
    return BoardSet(board_specs(robot), plant, SUPPLY)
