"""Numbers of the motor controller with their defaults, and the `control` section of a robot YAML that changes
them.
"""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

import numpy as np

from tt_control.errors import ControlError
from tt_planning.robot import RobotModel


class StopPolicy(Enum):
    """What a motor does once it stands still and is no longer wanted."""

    HOLD = "hold"  # keeps its position under power: loaded axes must never drop
    BRAKE = "brake"  # windings shorted
    LIMP = "limp"  # driver off


class HomingMethod(Enum):
    """How a joint learns where it is."""

    ABSOLUTE = "absolute"  # the board already knows (output encoder, or zeroed by hand)
    END_STOP = "end_stop"  # slowly against a mechanical stop
    INDEX = "index"  # until the board passes the index of its encoder


@dataclass(frozen=True, slots=True)
class JointHoming:
    """Homing of one joint.

    Attributes:
        method: see `HomingMethod`.
        direction: −1 towards the lower stop, +1 towards the upper one.
        speed: m/s or rad/s.
        effort: N or N m beyond gravity and friction; the motor gives no more, and reaching it at standstill
            means the stop.
        stop_position: joint position at the stop, m or rad.
        backoff: how far to move away from the stop afterwards, m or rad.
        travel: give up after this distance; about the length of the axis.
    """

    method: HomingMethod = HomingMethod.ABSOLUTE
    direction: int = -1
    speed: float = 0.05
    effort: float = 10.0
    stop_position: float = 0.0
    backoff: float = 0.02
    travel: float = 3.0


@dataclass(frozen=True, slots=True)
class ControlConfig:
    """Everything the controller may be told besides the robot itself; times in s, the rest SI.

    Attributes:
        watchdog_s: boards stop by themselves after this silence.
        setpoint_age_s: how long a trajectory that ended while moving is extrapolated before the stop.
        future_s: a trajectory that starts later than this is refused.
        splice_linear, splice_angular: largest position step between the path in force and a new trajectory.
        limit_margin: share by which setpoints may exceed velocity and acceleration limits (rounding, jitter).
        outside_linear, outside_angular: how far outside its limits a joint may be measured; end stops lie
        there.
        over_speed: measured velocity over its limit that trips.
        tracking_linear, tracking_angular: allowed distance of a joint from its setpoint.
        tracking_ticks: for so many ticks in a row.
        missed_replies: so many in a row of one board trip.
        silent_ticks: so many exchanges in a row without any reply trip, or those of `watchdog_s` where these are
            more; nothing can be commanded meanwhile, and the boards' own watchdog acts before.
        brake_acc: share of the acceleration limit used by controlled stops.
        gentle_brake_acc: the same for stops that must not lift the supply voltage.
        gain: share of the boards' gains that is used; less makes the robot softer.
        soft_start_s: gains grow from `soft_start_gain` to 1 in this time after enable.
        soft_start_gain: share of the gains at enable.
        enable_timeout_s: boards must be in position mode by then.
        over_voltage_v: supply that trips; where the audit reads the board's own limit,
            `over_voltage_margin_v` below that one instead.
        over_voltage_margin_v: see above.
        under_voltage_v: least supply to enable.
        warm_c, hot_c: torque is reduced linearly from warm to hot; hot trips. Where the audit reads the
            board's fault temperature, hot is `hot_margin_c` below it and warm as far below hot as here.
        hot_margin_c: see above.
        hot_torque: share of torque left at `hot_c`.
        keep_out_margin_m: distance that the racket keeps from table and net.
        keep_out: whether to check it.
        command_delay_s: how much later than the tick the boards act; setpoints are sampled that much ahead.
        max_tick_gap_s: a longer pause between ticks trips, unless the boards' watchdog is longer still.
        home_speed: share of the velocity limits used to move to the home pose.
        viscous, coulomb: friction per joint for the feedforward, N s/m and N (N m s/rad and N m).
        motor_inertia: rotor inertia seen at the joint, kg or kg m².
        inertia_feedforward: whether acceleration and Coriolis terms are fed forward besides gravity.
        stop_policy: per joint. homing: per joint.
    """

    watchdog_s: float = 0.022
    setpoint_age_s: float = 0.05
    future_s: float = 5.0
    splice_linear: float = 0.03
    splice_angular: float = 0.25
    limit_margin: float = 0.1
    outside_linear: float = 0.02
    outside_angular: float = 0.08
    over_speed: float = 1.4
    tracking_linear: float = 0.06
    tracking_angular: float = 0.5
    tracking_ticks: int = 3
    missed_replies: int = 3
    silent_ticks: int = 10
    brake_acc: float = 0.8
    gentle_brake_acc: float = 0.3
    gain: float = 1.0
    soft_start_s: float = 0.4
    soft_start_gain: float = 0.2
    enable_timeout_s: float = 0.5
    over_voltage_v: float = 45.0
    over_voltage_margin_v: float = 1.0
    under_voltage_v: float = 10.0
    warm_c: float = 60.0
    hot_c: float = 72.0
    hot_margin_c: float = 3.0
    hot_torque: float = 0.3
    keep_out_margin_m: float = 0.004
    keep_out: bool = True
    command_delay_s: float = 0.0005
    max_tick_gap_s: float = 0.05
    home_speed: float = 0.1
    viscous: tuple[float, ...] = ()
    coulomb: tuple[float, ...] = ()
    motor_inertia: tuple[float, ...] = ()
    inertia_feedforward: bool = True
    stop_policy: tuple[StopPolicy, ...] = ()
    homing: tuple[JointHoming, ...] = field(default=())


_PER_JOINT = ("viscous", "coulomb", "motor_inertia")
# Outside of these a number switches a protection off, or makes a motion no robot can follow. The others may be
# any number from 0 on.
_RANGES: dict[str, tuple[float, float]] = {
    "watchdog_s": (0.005, 0.1),
    "setpoint_age_s": (0.0, 0.5),
    "future_s": (0.1, 60.0),
    "splice_linear": (0.0, 0.1),
    "splice_angular": (0.0, 1.0),
    "limit_margin": (0.0, 0.5),
    "outside_linear": (0.0, 0.2),
    "outside_angular": (0.0, 1.0),
    "over_speed": (1.0, 3.0),
    "tracking_linear": (0.001, 0.5),
    "tracking_angular": (0.01, 3.0),
    "tracking_ticks": (1, 50),
    "missed_replies": (1, 50),
    "silent_ticks": (1, 100),
    "brake_acc": (0.05, 1.0),
    "gentle_brake_acc": (0.05, 1.0),
    "gain": (0.01, 1.0),
    "soft_start_s": (0.0, 10.0),
    "soft_start_gain": (0.01, 1.0),
    "enable_timeout_s": (0.05, 10.0),
    "over_voltage_v": (5.0, 60.0),
    "under_voltage_v": (0.0, 60.0),
    "warm_c": (0.0, 150.0),
    "hot_c": (0.0, 150.0),
    "hot_torque": (0.0, 1.0),
    "command_delay_s": (0.0, 0.01),
    "max_tick_gap_s": (0.01, 0.5),
    "home_speed": (0.005, 0.5),
}


def control_config(robot: RobotModel, section: Mapping[str, Any] | None = None) -> ControlConfig:
    """Defaults for a robot, changed by the `control` section of its YAML.

    The section holds any scalar of `ControlConfig`, and tables by joint name for `viscous`, `coulomb`,
    `motor_inertia`, `stop_policy` (hold, brake or limp) and `homing` (fields of `JointHoming`).
    A joint without a stop policy holds when gravity loads it at the home pose, else it goes limp.

    Raises:
        ControlError: unknown entry, wrong type, or a value that cannot work or would switch a protection off.
    """
    section = dict(section or {})
    names = [f.name for f in dataclasses.fields(ControlConfig)]
    for key in section:
        _known(str(key), names, "control")
    values: dict[str, Any] = {}
    for f in dataclasses.fields(ControlConfig):
        if f.name in section and f.name not in (*_PER_JOINT, "stop_policy", "homing"):
            values[f.name] = _scalar(f.name, section[f.name], f.default)
            _check_range(f.name, values[f.name])
    for key in _PER_JOINT:
        table = _by_joint(robot, key, section.get(key, {}))
        values[key] = tuple(_scalar(f"{key}.{n}", table.get(n, 0.0), 0.0) for n in robot.joint_names)
    policies = _by_joint(robot, "stop_policy", section.get("stop_policy", {}))
    loaded = _loaded(robot)
    values["stop_policy"] = tuple(
        _choice(StopPolicy, f"stop_policy.{n}", policies[n])
        if n in policies
        else (StopPolicy.HOLD if loaded[k] else StopPolicy.LIMP)
        for k, n in enumerate(robot.joint_names)
    )
    homing = _by_joint(robot, "homing", section.get("homing", {}))
    values["homing"] = tuple(_homing(n, homing.get(n, {})) for n in robot.joint_names)
    config = ControlConfig(**values)
    if not config.warm_c < config.hot_c:
        raise ControlError(
            f"control.warm_c is {config.warm_c:g}; it must be below control.hot_c, which is {config.hot_c:g}"
        )
    return config


def _loaded(robot: RobotModel) -> list[bool]:
    from tt_control.dynamics import RigidBody

    gravity = RigidBody.from_robot(robot).gravity(np.asarray(robot.home))
    return [bool(abs(g) > 0.005 * e) for g, e in zip(gravity, robot.max_effort)]


def _known(key: str, names: list[str], where: str) -> None:
    if key not in names:
        near = difflib.get_close_matches(key, names, n=1)
        hint = f"did you mean '{near[0]}'?" if near else f"allowed are {', '.join(names)}"
        raise ControlError(f"{where} has an unknown entry '{key}'; {hint}")


def _by_joint(robot: RobotModel, key: str, table: Any) -> Mapping[str, Any]:
    if not isinstance(table, Mapping):
        raise ControlError(f"control.{key} must be a table by joint name ({', '.join(robot.joint_names)})")
    for name in table:
        _known(str(name), list(robot.joint_names), f"control.{key}")
    return table


def _scalar(name: str, value: Any, default: Any) -> Any:
    if isinstance(default, bool):
        if isinstance(value, bool):
            return value
        raise ControlError(f"control.{name} is {value!r}; it must be true or false")
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not np.isfinite(value) or value < 0:
        raise ControlError(f"control.{name} is {value!r}; it must be a number, 0 or more")
    return int(value) if isinstance(default, int) else float(value)


def _check_range(name: str, value: float) -> None:
    low, high = _RANGES.get(name, (0.0, np.inf))
    if not low <= value <= high:
        raise ControlError(f"control.{name} is {value:g}; allowed is {low:g} to {high:g}")


def _choice(kind: Any, name: str, value: Any) -> Any:
    try:
        return kind(value)
    except ValueError:
        allowed = ", ".join(item.value for item in kind)
        raise ControlError(f"control.{name} is {value!r}; allowed are {allowed}") from None


def _homing(joint: str, table: Any) -> JointHoming:
    fields = {f.name: f.default for f in dataclasses.fields(JointHoming)}
    if not isinstance(table, Mapping):
        raise ControlError(f"control.homing.{joint} must be a table with the entries {', '.join(fields)}")
    values: dict[str, Any] = {}
    for key, value in table.items():
        _known(str(key), list(fields), f"control.homing.{joint}")
        where = f"homing.{joint}.{key}"
        if key == "method":
            values[key] = _choice(HomingMethod, where, value)
        elif key == "direction":
            if value not in (-1, 1):
                raise ControlError(f"control.{where} is {value!r}; allowed are -1 and 1")
            values[key] = int(value)
        elif key == "stop_position":
            if isinstance(value, bool) or not isinstance(value, (int, float)) or not np.isfinite(value):
                raise ControlError(f"control.{where} is {value!r}; it must be a number")
            values[key] = float(value)
        else:
            values[key] = _scalar(where, value, fields[key])
            if values[key] == 0.0:
                raise ControlError(f"control.{where} is 0; it must be more than 0")
    return JointHoming(**values)
