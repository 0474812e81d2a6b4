"""Turns the process graph into launch_ros actions; the three launch files call `describe`.

`launch` and `launch_ros` come with ROS 2 and are imported only when a launch file runs.
"""

from __future__ import annotations

import atexit
import os
import shutil
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tt_bringup.environment import launch_environment
from tt_bringup.graph import CAMERA_MODES, LOG_LEVELS, Graph, GraphSettings, Process, build_graph
from tt_bringup.graph_errors import GraphError
from tt_bringup.node_kit.run import SUPERVISED_ENV
from tt_bringup.topics import NAMESPACE

_BOOLEANS = ("true", "false")


@dataclass(frozen=True)
class Argument:
    """One launch argument.

    Attributes:
        name: its name.
        default: value when it is left out.
        description: one sentence.
        choices: allowed values; empty for any.
    """

    name: str
    default: str
    description: str
    choices: tuple[str, ...] = ()


_COMMON = (
    Argument("namespace", NAMESPACE, "ROS namespace of all nodes; give each robot on a network its own."),
    Argument("params_file", "", "YAML file with parameters that win over the defaults; see tt params."),
    Argument("use_sim_time", "false", "Nodes take their time from /clock.", _BOOLEANS),
    Argument("log_level", "info", "Log level of all nodes.", LOG_LEVELS),
    Argument("robot", "gantry4", "Name of a shipped robot, or path of a robot YAML file."),
    Argument("composition", "true", "Run the computing stages in one process.", _BOOLEANS),
    Argument("rviz", "false", "Start rviz2 when it is installed.", _BOOLEANS),
    Argument("record", "false", "Record a bag: true, false, or the folder to write."),
)
_OWN = {
    "sim": (
        Argument("cameras", "detections", "What the simulated cameras deliver.", CAMERA_MODES),
        Argument("scene", "false", "Images show a person, a second ball and changing light.", _BOOLEANS),
    ),
    "robot": (
        Argument("hardware", "", "YAML file with cameras (driver, serial number) and motor bus (device)."),
        Argument("cameras", "", "Cameras of the hardware file to use, separated by commas; empty for all."),
    ),
    "replay": (
        Argument("bag", "", "Bag to play; empty to play one by other means, such as ros2 bag play --clock."),
        Argument("rate", "1.0", "Playing speed."),
        Argument("loop", "false", "Begin again at the end.", _BOOLEANS),
        Argument("cameras", "", "Camera calibration file; empty for the simulated cameras."),
    ),
}


def arguments(mode: str) -> tuple[Argument, ...]:
    """The arguments of a launch file: the common ones and its own."""
    changed = {"use_sim_time": "true"} if mode == "replay" else {}
    common = tuple(
        Argument(item.name, changed.get(item.name, item.default), item.description, item.choices)
        for item in _COMMON
    )
    return common + _OWN[mode]


def settings_from(mode: str, values: dict[str, str], run_dir: Path) -> GraphSettings:
    """Makes graph settings from the texts of a launch command line.

    Raises:
        GraphError: a value is not allowed.
    """
    texts = {item.name: values.get(item.name, item.default) for item in arguments(mode)}
    for item in arguments(mode):
        if item.choices and texts[item.name].lower() not in item.choices:
            allowed = ", ".join(item.choices)
            raise GraphError(f"{item.name} is {texts[item.name]!r}, but must be one of {allowed}")
    record = texts["record"]
    if record.lower() in _BOOLEANS:
        record = _bag_name() if record.lower() == "true" else ""
    try:
        rate = float(texts.get("rate", "1.0"))
    except ValueError:
        raise GraphError(f"rate is {texts['rate']!r}, but must be a number") from None
    return GraphSettings(
        mode=mode,
        run_dir=run_dir,
        robot=texts["robot"],
        cameras=texts["cameras"],
        scene=texts.get("scene", "false").lower() == "true",
        hardware=texts.get("hardware", ""),
        namespace=texts["namespace"],
        use_sim_time=texts["use_sim_time"].lower() == "true",
        composition=texts["composition"].lower() == "true",
        rviz=texts["rviz"].lower() == "true",
        record=record,
        log_level=texts["log_level"],
        params_file=texts["params_file"],
        bag=texts.get("bag", ""),
        rate=rate,
        loop=texts.get("loop", "false").lower() == "true",
    )


def describe(mode: str) -> Any:
    """The launch description of one mode; called by the launch files."""
    from launch import LaunchDescription
    from launch.actions import DeclareLaunchArgument, OpaqueFunction, SetEnvironmentVariable

    declared = [
        DeclareLaunchArgument(
            item.name,
            default_value=item.default,
            description=item.description,
            **({"choices": list(item.choices)} if item.choices else {}),
        )
        for item in arguments(mode)
    ]
    environment = [
        SetEnvironmentVariable(name, value)
        for name, value in launch_environment().items()
        if name not in os.environ
    ]
    # ros2 launch ended by SIGTERM leaves its nodes behind; these end with it.
    environment.append(SetEnvironmentVariable(SUPERVISED_ENV, str(os.getpid())))
    return LaunchDescription([*declared, *environment, OpaqueFunction(function=_actions, args=[mode])])


def _actions(context: Any, mode: str) -> list[Any]:
    values = {
        item.name: context.launch_configurations.get(item.name, item.default) for item in arguments(mode)
    }
    run_dir = Path(tempfile.mkdtemp(prefix="tt_run_"))
    atexit.register(shutil.rmtree, run_dir, ignore_errors=True)
    graph = build_graph(settings_from(mode, values, run_dir))
    graph.write_parameters()
    return [_node(graph, process) for process in graph.processes]


def _node(graph: Graph, process: Process) -> Any:
    from launch.actions import Shutdown
    from launch_ros.actions import Node

    single = process.nodes == (process.name,)
    settings = graph.settings
    user_file = [settings.params_file] if settings.params_file else []
    return Node(
        package=process.package,
        executable=process.executable,
        # A name or a namespace here would rename every node of a composed process; those know their names.
        name=process.name if single else None,
        namespace=settings.namespace,
        parameters=[str(graph.params_path), *user_file],
        remappings=list(process.remappings),
        arguments=list(process.arguments),
        ros_arguments=["--log-level", settings.log_level],
        output="screen",
        # An empty list is not the same: launch fails on it when the process ends.
        on_exit=[Shutdown(reason=f"{process.name} ended")] if process.required else None,
    )


def _bag_name() -> str:
    from datetime import datetime

    return f"recording_{datetime.now():%Y-%m-%d_%H-%M-%S}"
