"""Compares what the boards say with what the robot file promises; any difference forbids enabling.

Every problem is one line with the difference and the command that fixes it.
"""

from __future__ import annotations

import math

from tt_control import codes
from tt_control.bus import BoardInfo, JointMap
from tt_control.config import ControlConfig, HomingMethod, StopPolicy
from tt_planning.robot import Motor, RobotModel

KP, KI, KD = "servo.pid_position.kp", "servo.pid_position.ki", "servo.pid_position.kd"
LOWER, UPPER = "servopos.position_min", "servopos.position_max"
TIMEOUT_MODE, WATCHDOG = "servo.timeout_mode", "servo.default_timeout_s"
MAX_VOLTAGE, FAULT_TEMPERATURE = "servo.max_voltage", "servo.fault_temperature"
MAX_VELOCITY = "servo.max_velocity"
CONFIG_NAMES = (
    KP,
    KI,
    KD,
    LOWER,
    UPPER,
    TIMEOUT_MODE,
    WATCHDOG,
    MAX_VOLTAGE,
    FAULT_TEMPERATURE,
    MAX_VELOCITY,
)

# Older firmware lacks registers or modes this driver uses (zero velocity, brake, set output exact).
# The version changes when the meaning of a register does, so a newer one than known cannot be trusted.
OLDEST_REGISTER_MAP, NEWEST_REGISTER_MAP = 4, 6
# Gains may differ from the robot file by this share (text rounding).
_GAIN_SHARE = 0.02
# The boards' own watchdog, for commands without one, must not be longer than this.
_LONGEST_WATCHDOG_S = 0.5


def audit(infos: list[BoardInfo], robot: RobotModel, config: ControlConfig) -> tuple[str, ...]:
    """All problems, none when the boards may be enabled; `infos` in robot order."""
    problems: list[str] = []
    edges = _edges(robot)
    for j, (info, motor) in enumerate(zip(infos, robot.motors)):
        found = _presence(info, motor, [m.id for m in robot.motors])
        if not found:
            found = _identity(info, motor) + _health(info, motor, config)
            found += _reference(info, motor, config.homing[j].method)
            found += _settings(info, motor, edges[j], robot.max_vel[j], config.stop_policy[j])
        problems += found
    return tuple(problems)


def console_fix(board_id: int, name: str, value: float) -> str:
    """Commands for the vendor's console that set and store one configuration value."""
    return f"moteus_tool -t {board_id} -c, then: conf set {name} {value:.9g} and conf write"


def _edges(robot: RobotModel) -> list[tuple[float, float]]:
    """Joint limits as the boards count, rev, lower first."""
    joint_map = JointMap(robot.motors)
    pairs = zip(joint_map.rev_from_joint(robot.lower), joint_map.rev_from_joint(robot.upper))
    return [(float(min(a, b)), float(max(a, b))) for a, b in pairs]


def _presence(info: BoardInfo, motor: Motor, ids: list[int]) -> list[str]:
    if info.count == 0:
        return [
            f"{motor.joint}: no board answers to id {motor.id}; check its supply and cable, or its id with "
            f"moteus_tool -t {motor.id} --info"
        ]
    if info.count > 1:
        free = next(k for k in range(1, 127) if k not in ids)
        return [
            f"{motor.joint}: {info.count} boards answer to id {motor.id}; unplug one and give it another id: "
            + console_fix(motor.id, "id.id", free)
        ]
    return []


def _identity(info: BoardInfo, motor: Motor) -> list[str]:
    problems = []
    if info.register_map is None or info.firmware is None:
        problems.append(
            f"{motor.joint}: board {motor.id} does not tell its firmware; update it: moteus_tool -t {motor.id} --flash"
        )
    elif info.register_map < OLDEST_REGISTER_MAP:
        problems.append(
            f"{motor.joint}: firmware {_version(info.firmware)} of board {motor.id} has register map "
            f"{info.register_map}, at least {OLDEST_REGISTER_MAP} is needed; "
            f"update it: moteus_tool -t {motor.id} --flash"
        )
    elif info.register_map > NEWEST_REGISTER_MAP:
        problems.append(
            f"{motor.joint}: firmware {_version(info.firmware)} of board {motor.id} has register map "
            f"{info.register_map}, which is unknown here; the newest known one is {NEWEST_REGISTER_MAP}: update this "
            f"software, or flash an older firmware with moteus_tool -t {motor.id} --flash"
        )
    return problems


def _reference(info: BoardInfo, motor: Motor, method: HomingMethod) -> list[str]:
    if method is HomingMethod.ABSOLUTE and (info.home_state or 0) < 2:
        return [
            f"{motor.joint}: board {motor.id} does not know where the joint is (home state {info.home_state}); "
            f"move it to 0 by hand and run moteus_tool -t {motor.id} --zero-offset, or give it a homing method"
        ]
    return []


def _health(info: BoardInfo, motor: Motor, config: ControlConfig) -> list[str]:
    problems = []
    if codes.is_fault(info.fault):
        problems.append(
            f"{motor.joint}: board {motor.id} reports {codes.describe(info.fault)} at {info.voltage_v:.1f} V; "
            "remove the cause, then call motors/clear_fault"
        )
    if info.encoder_validity is not None and not info.encoder_validity & 0b10:
        problems.append(
            f"{motor.joint}: the encoder of board {motor.id} gives no valid position; check its magnet"
        )
    if not info.voltage_v >= config.under_voltage_v:
        problems.append(
            f"{motor.joint}: {info.voltage_v:.1f} V at board {motor.id}, at least {config.under_voltage_v:g} V "
            "are needed; switch the motor supply on"
        )
    if not info.temperature_c < config.warm_c:
        problems.append(
            f"{motor.joint}: board {motor.id} has {info.temperature_c:.0f} °C, less than {config.warm_c:g} °C is "
            "needed to start; let it cool"
        )
    return problems


def _settings(
    info: BoardInfo, motor: Motor, edge: tuple[float, float], max_vel: float, policy: StopPolicy
) -> list[str]:
    problems = []
    c = info.config
    missing = [name for name in CONFIG_NAMES if name not in c]
    if missing:
        return [
            f"{motor.joint}: board {motor.id} does not answer for {', '.join(missing)}; update its firmware"
        ]
    for name, wanted in ((KP, motor.kp), (KD, motor.kd), (KI, 0.0)):
        allowed = _GAIN_SHARE * wanted if wanted else 1e-6
        if abs(c[name] - wanted) > allowed:
            problems.append(
                f"{motor.joint}: {name} is {c[name]:.6g}, the robot file says {wanted:.6g}; "
                + console_fix(motor.id, name, wanted)
            )
    for name, board, joint, is_enough in (
        (LOWER, c[LOWER], edge[0], c[LOWER] <= edge[0] + 1e-6),
        (UPPER, c[UPPER], edge[1], c[UPPER] >= edge[1] - 1e-6),
    ):
        if not (is_enough or math.isnan(board)):
            problems.append(
                f"{motor.joint}: {name} is {board:.6g} rev, the joint needs {joint:.6g} rev; "
                + console_fix(motor.id, name, joint)
            )
    needed = abs(motor.turns_per_unit) * max_vel
    if c[MAX_VELOCITY] < needed:
        problems.append(
            f"{motor.joint}: {MAX_VELOCITY} is {c[MAX_VELOCITY]:.6g} rev/s, the joint needs {needed:.6g}; "
            + console_fix(motor.id, MAX_VELOCITY, 1.2 * needed)
        )
    if policy is StopPolicy.HOLD and int(c[TIMEOUT_MODE]) not in (12, 15):
        problems.append(
            f"{motor.joint}: gravity loads this joint, and {TIMEOUT_MODE} {int(c[TIMEOUT_MODE])} would drop it when "
            "the computer falls silent; " + console_fix(motor.id, TIMEOUT_MODE, 12)
        )
    if not 0.0 < c[WATCHDOG] <= _LONGEST_WATCHDOG_S:
        problems.append(
            f"{motor.joint}: {WATCHDOG} is {c[WATCHDOG]:.6g} s, allowed is up to {_LONGEST_WATCHDOG_S:g} s; "
            + console_fix(motor.id, WATCHDOG, 0.1)
        )
    return problems


def _version(firmware: int) -> str:
    return ".".join(str(firmware >> shift & 0xFF) for shift in (16, 8, 0))
