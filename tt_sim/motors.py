"""Motor boards of a simulated robot, from its motor map: gains, limits and an absolute encoder each."""

from __future__ import annotations

from tt_planning.robot import RobotModel
from tt_sim.boards import BoardSet, BoardSpec, SupplySpec
from tt_sim.world import World

# A 44 V pack that takes the braking energy back; the linear axes need 30 V at full speed.
SUPPLY = SupplySpec(voltage_v=44.0, resistance_ohm=0.03, sinks_current=True)
MAX_POWER_W = 3000.0
# The boards' own position bounds lie beyond the mechanical stops: a board must start where an axis can rest.
BOUND_MARGIN_M = 0.006
BOUND_MARGIN_RAD = 0.03


def board_specs(robot: RobotModel, world: World) -> list[BoardSpec]:
    """One board per motor, configured for the axis it drives."""
    specs = []
    for motor, stops, linear in zip(robot.motors, world.end_stops, world.is_linear, strict=True):
        margin = BOUND_MARGIN_M if linear else BOUND_MARGIN_RAD
        turns = motor.sign * motor.turns_per_unit
        outside = (stops[0] - margin, stops[1] + margin)
        bounds = sorted(turns * (stop - motor.zero) for stop in outside)
        config: dict[str, float | int | bool] = {
            "servo.pid_position.kp": motor.kp,
            "servo.pid_position.ki": 0.0,
            "servo.pid_position.kd": motor.kd,
            "servopos.position_min": float(bounds[0]),
            "servopos.position_max": float(bounds[1]),
            # Boards for 56 V: with the vendor's 46 V default they would flux-brake all the time at this
            # supply.
            "servo.max_voltage": 56.0,
            "servo.max_power_W": MAX_POWER_W,
            "servo.override_board_max_power": True,
            "servo.timeout_max_torque_Nm": motor.max_torque,
        }
        specs.append(BoardSpec(motor.id, config=config, max_torque_nm=motor.max_torque, home_state=2))
    return specs


def robot_boards(robot: RobotModel, world: World) -> BoardSet:
    """The boards of a robot on one bus; the world is what they move."""
    return BoardSet(board_specs(robot, world), world, SUPPLY)
