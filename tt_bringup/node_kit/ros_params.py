"""Binds a parameter table to a ROS node: overrides are checked, values declared, live changes accepted."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rcl_interfaces.msg import (
    FloatingPointRange,
    IntegerRange,
    ParameterDescriptor,
    SetParametersResult,
)
from rclpy.parameter import Parameter

from tt_bringup.node_kit.params import ParamSpec, build_params, check_value, param_table
from tt_perception.errors import TTError

# Names that rclpy itself understands on every node.
_BUILT_IN = ("use_sim_time", "start_type_description_service")
_BUILT_IN_PREFIX = "qos_overrides."
_UNBOUNDED = 1e300


@dataclasses.dataclass(frozen=True)
class _NoParams:
    """For nodes without parameters."""


class ParameterBinding:
    """The parameters of one node.

    Attributes:
        params: current values.
    """

    def __init__(self, node: Any, params_class: type | None, on_change: Callable[[Any, Any], None]) -> None:
        """Checks what the user gave and declares every parameter.

        Raises:
            ParameterError: unknown name, wrong type or value.
        """
        self._node, self._on_change = node, on_change
        cls = params_class or _NoParams
        self._specs = {spec.name: spec for spec in param_table(cls)}
        overrides = {name: value.value for name, value in node._parameter_overrides.items()}
        foreign = [name for name in overrides if name in _BUILT_IN or name.startswith(_BUILT_IN_PREFIX)]
        foreign += [
            name for name in overrides if name not in self._specs and name in _wildcard_names(sys.argv)
        ]
        self.params: Any = build_params(cls, overrides, node.get_name(), foreign)
        for spec in self._specs.values():
            value = getattr(self.params, spec.name)
            plain = list(value) if isinstance(value, tuple) else value
            node.declare_parameter(spec.name, plain, _descriptor(spec, plain), ignore_override=True)
        node.add_on_set_parameters_callback(self._on_set)

    def _on_set(self, changes: list[Parameter]) -> SetParametersResult:
        mine = [change for change in changes if change.name in self._specs]
        if not mine:
            return SetParametersResult(successful=True)
        name = self._node.get_name()
        try:
            values = {
                change.name: check_value(self._specs[change.name], change.value, name) for change in mine
            }
            new = dataclasses.replace(self.params, **values)
            self._on_change(self.params, new)
        except (TTError, ValueError) as error:
            return SetParametersResult(successful=False, reason=str(error))
        self.params = new
        return SetParametersResult(successful=True)


def _descriptor(spec: ParamSpec, value: Any) -> ParameterDescriptor:
    unit = f" [{spec.unit}]" if spec.unit else ""
    descriptor = ParameterDescriptor(
        description=spec.doc + unit, read_only=not spec.live, additional_constraints=spec.allowed
    )
    # rclpy cannot tell the type of an empty list; check_value guards it instead.
    descriptor.dynamic_typing = value == []
    if spec.ge is not None or spec.le is not None:
        low, high = spec.ge, spec.le
        if spec.type == "float":
            bounds = FloatingPointRange(
                from_value=float(-_UNBOUNDED if low is None else low),
                to_value=float(_UNBOUNDED if high is None else high),
            )
            descriptor.floating_point_range = [bounds]
        elif spec.type == "int":
            limits = IntegerRange(
                from_value=-(2**62) if low is None else int(low),
                to_value=2**62 if high is None else int(high),
            )
            descriptor.integer_range = [limits]
    return descriptor


def _wildcard_names(argv: list[str]) -> set[str]:
    """Parameters given to all nodes at once (`/**:`): they need not mean something to each of them.

    Only names that some node of the stack knows count, so that a typing error is still found.
    """
    files = [argv[index + 1] for index, word in enumerate(argv[:-1]) if word == "--params-file"]
    names: set[str] = set()
    for file in files:
        import yaml

        tree = yaml.safe_load(Path(file).read_text()) or {}
        section = tree.get("/**") if isinstance(tree, dict) else None
        values = section.get("ros__parameters") if isinstance(section, dict) else None
        names.update(values if isinstance(values, dict) else ())
    if not names:
        return set()
    from tt_bringup.registry import all_parameter_names

    return names & all_parameter_names()
