"""Ball models as YAML files: what `tt identify` writes and what nodes load by name or path."""

from __future__ import annotations

import dataclasses
import math
from pathlib import Path

import yaml

from tt_estimation.ball_models import MODELS, BallModel
from tt_perception.errors import TTError
from tt_perception.files import write_whole

_FIELDS = {f.name: f for f in dataclasses.fields(BallModel) if f.init and f.name != "name"}
# Wider than any ball and room, narrow enough to catch swapped or mistyped values.
_LIMITS = {
    "drag": (0.0, 2.0),
    "drag_slope": (-5.0, 5.0),
    "lift": (-1.0, 5.0),
    "lift_half_ratio": (0.0, 10.0),
    "air_density": (0.3, 2.0),
    "spin_decay": (0.0, 10.0),
    "table_restitution": (0.0, 1.0),
    "table_restitution_slope": (-0.5, 0.5),
    "table_friction": (0.0, 2.0),
    "racket_restitution": (0.0, 1.0),
    "racket_restitution_slope": (-0.5, 0.5),
    "racket_friction": (0.0, 5.0),
}


def load_model(name_or_path: str) -> BallModel:
    """A shipped model by name, or one from a YAML file with `ball_model: {name, drag, …}`.

    Constants that the file does not give are the nominal ones.

    Raises:
        TTError: unknown name, unreadable file, unknown key, or a value out of range.
    """
    if name_or_path in MODELS:
        return MODELS[name_or_path]
    path = Path(name_or_path)
    if not path.is_file():
        raise TTError(
            f"ball model {name_or_path!r} is neither a shipped model ({', '.join(MODELS)}) nor a file; "
            "give one of these names or the YAML written by `tt identify`"
        )
    try:
        document = yaml.safe_load(path.read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise TTError(f"ball model file {path} cannot be read: {str(error).splitlines()[0]}") from error
    values = document.get("ball_model") if isinstance(document, dict) else None
    if not isinstance(values, dict):
        raise TTError(f"ball model file {path} has no mapping 'ball_model'; write one with `tt identify`")
    name = str(values.get("name", path.stem))
    numbers: dict[str, float] = {}
    for key, value in values.items():
        if key == "name":
            continue
        if key not in _FIELDS:
            raise TTError(f"{path}: unknown constant {key!r}; allowed: {', '.join(_FIELDS)}")
        low, high = _LIMITS[key]
        if (
            isinstance(value, bool)
            or not isinstance(value, (int, float))
            or not math.isfinite(value)
            or not low <= value <= high
        ):
            raise TTError(f"{path}: {key} = {value!r}; allowed is a number from {low} to {high}")
        numbers[key] = float(value)
    return BallModel(name, **numbers)


def save_model(model: BallModel, path: Path, comment: str = "") -> None:
    """Write a model so that `load_model` reads it back; the file appears whole or not at all."""
    values: dict[str, object] = {"name": model.name}
    values.update({key: float(getattr(model, key)) for key in _FIELDS})
    text = "".join(f"# {line}\n" for line in comment.splitlines())
    text += yaml.safe_dump({"ball_model": values}, sort_keys=False, allow_unicode=True)
    write_whole(path, text)
