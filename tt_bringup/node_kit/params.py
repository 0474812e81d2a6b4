"""Parameter tables: one frozen dataclass per node, from which everything about its parameters derives.

ROS declarations, the check of what a user wrote, YAML templates and the docs all read the same fields:

    @dataclass(frozen=True)
    class BallStateParams:
        gate: float = param(0.99, ge=0, le=1, live=True, doc="Share of good measurements that pass.")
"""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, TypeVar

from tt_bringup.names import nearest
from tt_perception.errors import TTError

_META = "tt_param"
_SCALARS: dict[type, str] = {bool: "bool", int: "int", float: "float", str: "str"}
P = TypeVar("P")


class ParameterError(TTError):
    """A parameter has a wrong name, type or value."""


@dataclasses.dataclass(frozen=True)
class ParamSpec:
    """What is known about one parameter.

    Attributes:
        name: parameter name.
        type: `bool`, `int`, `float`, `str`, or one of these followed by `[]` for a list.
        default: value when nobody sets it; tuples for lists.
        unit: SI unit, empty when it has none.
        choices: allowed values, empty when any.
        ge: smallest allowed value; None when unbounded.
        le: largest allowed value; None when unbounded.
        gt: the value must be greater than this; None when unbounded.
        lt: the value must be less than this; None when unbounded.
        live: may change while the node runs.
        doc: one or two sentences.
    """

    name: str
    type: str
    default: Any
    unit: str = ""
    choices: tuple[Any, ...] = ()
    ge: float | None = None
    le: float | None = None
    gt: float | None = None
    lt: float | None = None
    live: bool = False
    doc: str = ""

    @property
    def allowed(self) -> str:
        """The allowed values in words, with unit; empty when anything of the type is allowed."""
        if self.choices:
            return "one of " + ", ".join(str(choice) for choice in self.choices)
        limits = [(">=", self.ge), (">", self.gt), ("<=", self.le), ("<", self.lt)]
        words = [f"{sign} {value:g}" for sign, value in limits if value is not None]
        return " and ".join(words) + (f" {self.unit}" if words and self.unit else "")


def param(
    default: Any,
    *,
    unit: str = "",
    choices: Sequence[Any] = (),
    ge: float | None = None,
    le: float | None = None,
    gt: float | None = None,
    lt: float | None = None,
    live: bool = False,
    doc: str = "",
) -> Any:
    """Declares one parameter as a dataclass field; the arguments are those of `ParamSpec`."""
    if isinstance(default, list):
        default = tuple(default)
    meta = {"unit": unit, "choices": tuple(choices), "live": live, "doc": doc}
    bounds = {"ge": ge, "le": le, "gt": gt, "lt": lt}
    return dataclasses.field(default=default, metadata={_META: {**meta, **bounds}})


def param_table(cls: type) -> tuple[ParamSpec, ...]:
    """Reads the parameters of a node from its dataclass, in the order they were written."""
    hints = typing.get_type_hints(cls)
    specs = []
    for item in dataclasses.fields(cls):
        meta = item.metadata.get(_META, {})
        specs.append(ParamSpec(item.name, _type_name(cls, item.name, hints[item.name]), item.default, **meta))
    return tuple(specs)


def build_params(cls: type[P], values: Mapping[str, Any], node: str, ignore: Iterable[str] = ()) -> P:
    """Makes the parameters of a node from what a user gave.

    Args:
        cls: parameter dataclass.
        values: name to value; names that are missing keep their default.
        node: node name, for the messages.
        ignore: names in `values` that belong to others.

    Raises:
        ParameterError: a name is unknown, or a value has a wrong type or is not allowed.
    """
    specs = {spec.name: spec for spec in param_table(cls)}
    skipped = set(ignore)
    checked = {}
    for name, value in values.items():
        if name in specs:
            checked[name] = check_value(specs[name], value, node)
        elif name not in skipped:
            raise ParameterError(nearest(name, specs, f"parameter of {node}"))
    try:
        return cls(**checked)
    except ValueError as error:
        raise ParameterError(f"{node}: {error}") from error


def check_value(spec: ParamSpec, value: Any, node: str) -> Any:
    """Converts a value to the type of the parameter and checks its bounds.

    Whole numbers are accepted where a float is wanted; nothing else is converted, because a parameter
    that silently means something else is worse than a refused one.

    Raises:
        ParameterError: wrong type or not allowed.
    """
    where = f"{node}: parameter {spec.name}"
    kind, is_list = spec.type.removesuffix("[]"), spec.type.endswith("[]")
    if is_list:
        if value is None:
            value = ()
        if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
            raise ParameterError(f"{where} is {value!r}, but must be a list of {kind}")
        converted: Any = tuple(_convert(kind, item, where) for item in value)
        items: tuple[Any, ...] = converted
    else:
        converted = _convert(kind, value, where)
        items = (converted,)
    for item in items:
        if not _is_allowed(spec, item):
            unit = f" {spec.unit}" if spec.unit else ""
            raise ParameterError(f"{where} is {item!r}{unit}, but must be {spec.allowed or 'finite'}")
    return converted


def _type_name(cls: type, name: str, hint: Any) -> str:
    if hint in _SCALARS:
        return _SCALARS[hint]
    arguments = typing.get_args(hint)
    if typing.get_origin(hint) is tuple and len(arguments) == 2 and arguments[0] in _SCALARS:
        return _SCALARS[arguments[0]] + "[]"
    raise TypeError(
        f"{cls.__name__}.{name}: a parameter is bool, int, float, str or tuple[one of these, ...]"
    )


def _convert(kind: str, value: Any, where: str) -> Any:
    if kind == "bool" and isinstance(value, bool):
        return value
    if kind == "str" and isinstance(value, str):
        return value
    if kind in ("int", "float") and not isinstance(value, bool):
        if isinstance(value, int):
            return float(value) if kind == "float" else value
        if isinstance(value, float) and kind == "float":
            return value
    words = {"bool": "true or false", "int": "a whole number", "float": "a number", "str": "a text"}
    raise ParameterError(f"{where} is {value!r}, but must be {words[kind]}")


def _is_allowed(spec: ParamSpec, value: Any) -> bool:
    if spec.choices:
        return value in spec.choices
    if isinstance(value, float) and math.isnan(value):
        return False
    if isinstance(value, (bool, str)):
        return True
    return (
        (spec.ge is None or value >= spec.ge)
        and (spec.le is None or value <= spec.le)
        and (spec.gt is None or value > spec.gt)
        and (spec.lt is None or value < spec.lt)
    )
