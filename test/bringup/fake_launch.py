"""A small stand-in for `launch` and `launch_ros`: records what a launch file would start."""

from __future__ import annotations

import importlib.util
import sys
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any


@dataclass
class LaunchDescription:
    entities: list[Any]


class DeclareLaunchArgument:
    def __init__(self, name: str, *, default_value: str, description: str, choices: Any = None) -> None:
        self.name, self.default_value, self.description, self.choices = (
            name,
            default_value,
            description,
            choices,
        )


class SetEnvironmentVariable:
    def __init__(self, name: str, value: str) -> None:
        self.name, self.value = name, value


class OpaqueFunction:
    def __init__(self, *, function: Any, args: list[Any]) -> None:
        self.function, self.args = function, args


@dataclass
class Shutdown:
    reason: str


@dataclass
class Node:
    package: str
    executable: str
    name: str | None = None
    namespace: str = ""
    parameters: list[str] = field(default_factory=list)
    remappings: list[tuple[str, str]] = field(default_factory=list)
    arguments: list[str] = field(default_factory=list)
    ros_arguments: list[str] = field(default_factory=list)
    output: str = ""
    on_exit: list[Any] | None = None


@dataclass
class Context:
    launch_configurations: dict[str, str]


def install(monkeypatch: Any) -> None:
    """Makes `import launch` and `import launch_ros` find this module's classes."""
    modules = {
        "launch": {"LaunchDescription": LaunchDescription},
        "launch.actions": {
            "DeclareLaunchArgument": DeclareLaunchArgument,
            "OpaqueFunction": OpaqueFunction,
            "SetEnvironmentVariable": SetEnvironmentVariable,
            "Shutdown": Shutdown,
        },
        "launch_ros": {},
        "launch_ros.actions": {"Node": Node},
    }
    for name, members in modules.items():
        module = ModuleType(name)
        vars(module).update(members)
        monkeypatch.setitem(sys.modules, name, module)


def load(file: Path) -> LaunchDescription:
    """Runs a launch file up to its description."""
    spec = importlib.util.spec_from_file_location(file.stem.replace(".", "_"), file)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.generate_launch_description()


def nodes(description: LaunchDescription, **given: str) -> list[Node]:
    """The nodes that the launch file starts with these arguments."""
    values = {
        item.name: item.default_value for item in description.entities if hasattr(item, "default_value")
    }
    context = Context({**values, **given})
    started: list[Node] = []
    for entity in description.entities:
        if isinstance(entity, OpaqueFunction):
            started.extend(entity.function(context, *entity.args))
    return started
