"""What a trajectory must be before the controller follows it; every refusal is one sentence."""

from __future__ import annotations

import difflib

import numpy as np

from tt_control.config import ControlConfig
from tt_planning.robot import RobotModel
from tt_planning.types import JointTrajectory

NS_PER_S = 1_000_000_000
# Knots may lie this far outside the limits (rounding on the wire); the limiter clamps them.
_ROUNDING = 1e-6


class Refused(Exception):
    """A trajectory that will not be followed; the text is the reason."""


def accept(
    trajectory: JointTrajectory,
    robot: RobotModel,
    config: ControlConfig,
    now_ns: int,
    stands: np.ndarray | None = None,
) -> JointTrajectory:
    """The trajectory with its columns in robot order.

    Args:
        trajectory: what was sent. robot: joints and limits. config: how far ahead it may start.
        now_ns: time of arrival.
        stands: where the joints are commanded to be, m or rad, shape (n,). A joint that was enabled outside its
            limits, such as one that lies on its end stop, may stay there or come in, but not go farther out.

    Raises:
        Refused: joints, sizes, times, numbers or positions that must not reach the motors.
    """
    order = _order(trajectory.joint_names, robot.joint_names)
    times = np.asarray(trajectory.times_s, dtype=float)
    shape = (len(times), len(robot.joint_names))
    columns = {}
    for name in ("pos", "vel", "acc"):
        values = np.asarray(getattr(trajectory, name), dtype=float)
        if values.shape != shape:
            raise Refused(f"{name} has shape {values.shape}; it must be knots × joints, here {shape}")
        if not np.isfinite(values).all():
            raise Refused(f"{name} holds a number that is not finite")
        columns[name] = np.ascontiguousarray(values[:, order])
    if len(times) == 0:
        raise Refused("it has no knots")
    if not np.isfinite(times).all() or (np.diff(times) <= 0.0).any():
        raise Refused("its times are not finite and ascending")
    _check_positions(columns["pos"], robot, robot.home if stands is None else stands)
    start_s = (trajectory.capture_stamp_ns - now_ns) / NS_PER_S + times[0]
    end_s = (trajectory.capture_stamp_ns - now_ns) / NS_PER_S + times[-1]
    if end_s < 0.0:
        raise Refused(f"it ended {-end_s:.3f} s ago; check that all clocks agree")
    if start_s > config.future_s:
        raise Refused(
            f"it starts in {start_s:.3f} s; at most {config.future_s:g} s ahead are allowed, "
            "check that all clocks agree"
        )
    return JointTrajectory(trajectory.capture_stamp_ns, robot.joint_names, times, **columns)


def _order(names: tuple[str, ...], wanted: tuple[str, ...]) -> list[int]:
    for name in names:
        if name not in wanted:
            near = difflib.get_close_matches(name, wanted, n=1)
            hint = f"did you mean '{near[0]}'?" if near else f"the joints are {', '.join(wanted)}"
            raise Refused(f"joint '{name}' is unknown; {hint}")
        if names.count(name) > 1:
            raise Refused(f"joint '{name}' is named twice")
    missing = [name for name in wanted if name not in names]
    if missing:
        raise Refused(f"it lacks {', '.join(missing)}; give all joints")
    return [names.index(name) for name in wanted]


def _check_positions(pos: np.ndarray, robot: RobotModel, stands: np.ndarray) -> None:
    lower, upper = np.minimum(robot.lower, stands), np.maximum(robot.upper, stands)
    outside = (pos < lower - _ROUNDING) | (pos > upper + _ROUNDING)
    if outside.any():
        k, j = (int(v) for v in np.argwhere(outside)[0])
        raise Refused(
            f"knot {k} puts {robot.joint_names[j]} at {pos[k, j]:.4g}; "
            f"allowed is {robot.lower[j]:.4g} to {robot.upper[j]:.4g}"
        )
