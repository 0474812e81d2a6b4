"""Ball files: the public JSON format, checked value by value.

A ball file is a JSON list of objects with `id`, `pos_x`, `pos_y`, `pos_z` (m), `vel_x`, `vel_y`, `vel_z`
(m/s), `w_vel_x`, `w_vel_y`, `w_vel_z` (rad/s): the state right after the opponent's hit, origin at the centre
of the table top (format of the public "Competitive Robot Table Tennis: Initial Ball States", D'Ambrosio et
al. 2025).
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tt_estimation.ball_models import MODELS, BallModel
from tt_sim.errors import BallFileError, SimError

FloatArray = NDArray[np.float64]

FIELDS = ("pos_x", "pos_y", "pos_z", "vel_x", "vel_y", "vel_z", "w_vel_x", "w_vel_y", "w_vel_z")

# Bounds that no table tennis shot exceeds: they catch millimetres, degrees and swapped columns.
MAX_POSITION_M = 6.0
MAX_SPEED_MPS = 45.0  # the fastest measured smashes are near 32 m/s
MAX_SPIN_RADPS = 1500.0  # 14 000 rpm; the strongest measured loops are near 9 000 rpm


@dataclass(frozen=True, slots=True)
class ServedBall:
    """A ball right after the opponent's hit.

    Attributes:
        ball_id: id in the file, or the number of the sampled ball.
        state: position (m), velocity (m/s), spin (rad/s) in `table`, shape (9,).
    """

    ball_id: int
    state: FloatArray


def load_balls(path: str | Path) -> list[ServedBall]:
    """Read a ball file.

    Raises:
        BallFileError: missing file, not JSON, not the format, a value that is not finite or out of range.
    """
    path = Path(path)
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "is not UTF-8 text"
        raise BallFileError(
            f"cannot read ball file {path}: {reason}; give --balls-file a JSON file"
        ) from None
    if not text.strip():
        raise BallFileError(f"ball file {path} is empty; it must hold a JSON list of balls")
    try:
        rows = json.loads(text)
    except (json.JSONDecodeError, RecursionError) as error:
        where = f" (line {error.lineno}: {error.msg})" if isinstance(error, json.JSONDecodeError) else ""
        raise BallFileError(f"ball file {path} is not valid JSON{where}; is the download complete?") from None
    if not isinstance(rows, list):
        raise BallFileError(
            f"ball file {path} holds a JSON {type(rows).__name__}; it must be a list of balls"
        )
    if not rows:
        raise BallFileError(f"ball file {path} holds no ball; it must list at least one")
    return [_ball(path, index, row) for index, row in enumerate(rows)]


def _ball(path: Path, index: int, row: object) -> ServedBall:
    if not isinstance(row, dict):
        raise BallFileError(
            f"ball file {path}, entry {index}: {type(row).__name__} instead of an object with id, pos_x, …"
        )
    ball_id = row.get("id")
    if isinstance(ball_id, bool) or not isinstance(ball_id, int):
        raise BallFileError(f"ball file {path}, entry {index}: id is {ball_id!r}; it must be an integer")
    state = np.empty(9)
    for column, name in enumerate(FIELDS):
        if name not in row:
            raise BallFileError(
                f"ball file {path}, entry {index} (id {ball_id}): field {name} is missing; "
                f"each ball needs id, {', '.join(FIELDS)}"
            )
        value = row[name]
        if isinstance(value, int) and not isinstance(value, bool):
            value = float(min(max(value, -(10**9)), 10**9))  # a JSON integer may exceed any float
        if not isinstance(value, float):
            raise BallFileError(
                f"ball file {path}, entry {index} (id {ball_id}): {name} is {value!r}; it must be a number"
            )
        if not math.isfinite(value):
            raise BallFileError(
                f"ball file {path}, entry {index} (id {ball_id}): {name} is {value}; it must be finite"
            )
        state[column] = value
    limits = ((0, 3, MAX_POSITION_M, "m"), (3, 6, MAX_SPEED_MPS, "m/s"), (6, 9, MAX_SPIN_RADPS, "rad/s"))
    for first, last, limit, unit in limits:
        worst = first + int(np.argmax(np.abs(state[first:last])))
        if abs(state[worst]) > limit:
            hint = (
                "; are positions and velocities in millimetres? They must be in metres" if first < 6 else ""
            )
            raise BallFileError(
                f"ball file {path}, entry {index} (id {ball_id}): {FIELDS[worst]} is {state[worst]:g} {unit},"
                f" beyond ±{limit:g} {unit}{hint}"
            )
    return ServedBall(ball_id, state)


def world_model(name: str) -> BallModel:
    """The ball laws of a simulated world by name.

    Raises:
        SimError: unknown name.
    """
    if name not in MODELS:
        raise SimError(f"world '{name}' is unknown; choose one of {', '.join(MODELS)}")
    return MODELS[name]
