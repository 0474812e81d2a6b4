"""Where every node lives: executable, module, node class, parameter table."""

from __future__ import annotations

import dataclasses
import importlib
import inspect
from dataclasses import dataclass
from typing import Any

from tt_bringup.node_kit.params import ParamSpec, param_table


@dataclass(frozen=True)
class NodeEntry:
    """One executable of the package.

    Attributes:
        executable: file name in `lib/tt_bringup`.
        module: Python module with `main()`.
        name: node name when it differs from the executable.
        parts: executables whose nodes this one composes; empty for a single node.
    """

    executable: str
    module: str
    name: str = ""
    parts: tuple[str, ...] = ()

    @property
    def node_name(self) -> str:
        """Name of the node unless it is remapped."""
        return self.name or self.executable

    def params_class(self) -> type | None:
        """The parameter dataclass: the one in the module whose name ends in `Params`. Imports the module."""
        if self.parts:
            return None
        return find_params_class(importlib.import_module(self.module))


NODES: tuple[NodeEntry, ...] = (
    NodeEntry("camera_node", "tt_perception.camera_node"),
    NodeEntry("triangulation_node", "tt_perception.triangulation_node"),
    NodeEntry("ball_state_node", "tt_estimation.ball_state_node"),
    NodeEntry("hit_planner_node", "tt_planning.hit_planner_node"),
    NodeEntry("trajectory_node", "tt_planning.trajectory_node"),
    NodeEntry("motor_node", "tt_control.motor_node"),
    NodeEntry("sim_node", "tt_sim.sim_node"),
    NodeEntry("latency_monitor", "tt_bringup.latency_monitor_node"),
    NodeEntry("visualization_node", "tt_bringup.visualization_node"),
    NodeEntry("record_node", "tt_bringup.record_node", "recorder"),
    NodeEntry("replay_node", "tt_bringup.replay_node"),
    NodeEntry(
        "compute_node",
        "tt_bringup.compute_node",
        parts=("triangulation_node", "ball_state_node", "hit_planner_node", "trajectory_node"),
    ),
)


def node_entry(executable: str) -> NodeEntry:
    """The entry of an executable; KeyError when there is none."""
    return {entry.executable: entry for entry in NODES}[executable]


def find_params_class(module: Any) -> type | None:
    """The parameter dataclass that a node module defines or imports from its own part; None without one."""
    own = [
        cls
        for name, cls in inspect.getmembers(module, inspect.isclass)
        if name.endswith("Params") and dataclasses.is_dataclass(cls)
    ]
    own.sort(key=lambda cls: cls.__module__ != module.__name__)
    return own[0] if own else None


def parameter_tables() -> dict[str, tuple[ParamSpec, ...]]:
    """Parameters of every node by node name; imports every node module."""
    tables = {}
    for entry in NODES:
        cls = entry.params_class()
        if cls is not None:
            tables[entry.node_name] = param_table(cls)
    return tables


def all_parameter_names() -> set[str]:
    """Names that mean something to at least one node."""
    return {spec.name for table in parameter_tables().values() for spec in table}
