"""The one list of the nodes of each configuration; launch files and the supervisor both start from it.

Pure: nothing is started or imported here. A process holds one node, or several in the composed process.
Parameters are kept per node and written to one YAML file, so that a user's file can win over each.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from tt_bringup.graph_errors import GraphError
from tt_bringup.hardware import load_hardware
from tt_bringup.names import checked_namespace
from tt_bringup.params_file import check_params_file
from tt_bringup.paths import shared_file
from tt_bringup.record_path import check_bag_path
from tt_bringup.registry import node_entry
from tt_bringup.topics import NAMESPACE, TOPICS, absolute_name, remappings

MODES = ("sim", "robot", "replay")
CAMERA_MODES = ("detections", "images")
LOG_LEVELS = ("debug", "info", "warn", "error", "fatal")
COMPUTE = ("triangulation_node", "ball_state_node", "hit_planner_node", "trajectory_node")
PARAMS_FILE = "params.yaml"
BUS_LINK = "motors"
SERVE_INTERVAL_S = 2.0  # between balls when nobody asks for them
# Rendered images: four small cameras at half the rate are what two cores can draw and search.
IMAGES_RIG = "config/cameras/sim4_640x480.yaml"
IMAGES_FPS = 60.0
IMAGES_PIXEL_SIGMA = 0.4  # error of the detector on rendered images
SIM_DELAY_S = 0.03


@dataclass(frozen=True)
class GraphSettings:
    """What a user chooses about a graph.

    Attributes:
        mode: `sim` (simulated hardware), `robot` (real hardware) or `replay` (no hardware, data from a bag).
        robot: name of a shipped robot or path of its YAML file.
        cameras: sim: `detections` or `images`; robot: names of the cameras to use, separated by commas, empty
            for all of the hardware file; replay: calibration file, empty for the simulated cameras.
        scene: sim with images: a person, a second ball and changing light.
        hardware: YAML file with cameras and motor bus of the real robot.
        namespace: ROS namespace of all nodes.
        use_sim_time: nodes take their time from /clock.
        composition: computing stages share one process.
        visualization: publish markers.
        rviz: start rviz2 when it is installed.
        record: bag folder to record to; empty for none.
        log_level: of all nodes.
        params_file: parameters of the user; they win over everything else.
        bag: replay: the bag to play; empty when something else plays it.
        rate: replay: playing speed.
        loop: replay: begin again at the end.
        run_dir: folder for the files of this run.
        parameters: more parameters per node name.
    """

    mode: str
    run_dir: Path
    robot: str = "gantry4"
    cameras: str = "detections"
    scene: bool = False
    hardware: str = ""
    namespace: str = NAMESPACE
    use_sim_time: bool = False
    composition: bool = True
    visualization: bool = True
    rviz: bool = False
    record: str = ""
    log_level: str = "info"
    params_file: str = ""
    bag: str = ""
    rate: float = 1.0
    loop: bool = False
    parameters: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)


@dataclass(frozen=True)
class Process:
    """One process to start.

    Attributes:
        name: unique name of the process; also the node name when it holds a single node.
        executable: file in `lib/<package>`.
        package: ROS package of the executable.
        module: Python module to run; empty for programs of other packages.
        nodes: names of the nodes inside.
        remappings: pairs from, to.
        arguments: more command line arguments.
        required: the graph stops when it ends.
        missed: the graph goes on when it ends early or badly, but that is told and makes the run a failure.
        stop_last: ends after the others, because they need it for a controlled stop.
        condition: when this process is part of the graph, in words.
    """

    name: str
    executable: str
    package: str = "tt_bringup"
    module: str = ""
    nodes: tuple[str, ...] = ()
    remappings: tuple[tuple[str, str], ...] = ()
    arguments: tuple[str, ...] = ()
    required: bool = True
    missed: bool = False
    stop_last: bool = False
    condition: str = "always"


@dataclass(frozen=True)
class Graph:
    """Processes of a configuration and the parameters of their nodes.

    Attributes:
        settings: what the graph was made from.
        processes: in starting order.
        parameters: node name to parameters.
    """

    settings: GraphSettings
    processes: tuple[Process, ...]
    parameters: Mapping[str, Mapping[str, Any]]

    @property
    def params_path(self) -> Path:
        """The parameter file that `write_parameters` writes."""
        return self.settings.run_dir / PARAMS_FILE

    def write_parameters(self) -> Path:
        """Writes the parameters of all nodes to the run folder."""
        import yaml

        tree = {
            f"/**/{name}": {"ros__parameters": _plain(values)}
            for name, values in self.parameters.items()
            if values
        }
        self.settings.run_dir.mkdir(parents=True, exist_ok=True)
        self.params_path.write_text(yaml.safe_dump(tree, sort_keys=False))
        return self.params_path

    def ros_arguments(self, process: Process) -> list[str]:
        """`--ros-args` and everything behind it."""
        settings = self.settings
        words = ["--ros-args", "-r", f"__ns:=/{settings.namespace}", "--log-level", settings.log_level]
        if len(process.nodes) == 1 and process.nodes[0] == process.name:
            words += ["-r", f"__node:={process.name}"]
        for old, new in process.remappings:
            words += ["-r", f"{old}:={new}"]
        words += ["--params-file", str(self.params_path)]
        if settings.params_file:
            words += ["--params-file", settings.params_file]
        return words

    def command(self, process: Process) -> list[str]:
        """The command line that starts a process without launch_ros."""
        if process.module:
            return [sys.executable, "-m", process.module, *process.arguments, *self.ros_arguments(process)]
        program = find_executable(process.package, process.executable)
        return [str(program), *process.arguments, *self.ros_arguments(process)]


def build_graph(settings: GraphSettings) -> Graph:
    """Makes the process list of a configuration.

    Raises:
        TTError: a setting is not allowed; hardware file, robot or parameter file is missing or wrong; nothing can be
            recorded there.
    """
    settings = _checked(settings)
    processes: list[Process] = []
    parameters: dict[str, dict[str, Any]] = {}
    renamings = remappings(settings.namespace)

    def add(
        executable: str, name: str = "", condition: str = "always", values: Mapping[str, Any] | None = None
    ) -> None:
        entry = node_entry(executable)
        node = name or entry.node_name
        processes.append(
            Process(
                node,
                executable,
                module=entry.module,
                nodes=(node,),
                remappings=renamings,
                required=executable in ("sim_node", "motor_node", "camera_node", *COMPUTE),
                missed=executable == "record_node",
                # The motors of the simulation are part of it: it must outlive the motor node's stop.
                stop_last=executable == "sim_node",
                condition=condition,
            )
        )
        parameters[node] = dict(values or {})

    calibration = ""
    camera_names: tuple[str, ...] = ()
    if settings.mode == "sim":
        link = str(settings.run_dir / BUS_LINK)
        images = settings.cameras == "images"
        simulated: dict[str, Any] = {
            "robot": settings.robot,
            "device": link,
            "serve_interval": SERVE_INTERVAL_S,
        }
        if images:
            calibration = str(shared_file(IMAGES_RIG))
            simulated.update(images=True, camera_file=calibration, fps=IMAGES_FPS)
        if settings.use_sim_time:
            simulated["time_scale"] = 0.0  # somebody must publish /clock: at the pace the machine sustains
        add("sim_node", condition="sim", values=simulated)
        if images:
            for camera, values in _simulated_cameras(settings, calibration).items():
                add("camera_node", f"{camera}_node", "robot; sim with images; one per camera", values)
        motors = {"device": link, "autostart": True, "enable_at_start": True}
        add("motor_node", condition="sim, robot", values={"robot": settings.robot, **motors})
    elif settings.mode == "robot":
        hardware = load_hardware(settings.hardware)
        calibration = hardware.calibration
        add("motor_node", condition="sim, robot", values={"robot": settings.robot, **hardware.motors})
        camera_names = hardware.selected(settings.cameras)
        for camera in camera_names:
            values = {"camera": camera, "cameras": calibration, **hardware.cameras[camera]}
            add("camera_node", f"{camera}_node", "robot; sim with images; one per camera", values)
    else:
        calibration = settings.cameras
        if settings.bag:
            player = {"bag": str(Path(settings.bag).absolute()), "rate": settings.rate, "loop": settings.loop}
            add("replay_node", condition="replay, with a bag", values=player)

    triangulation_values: dict[str, Any] = {"cameras": calibration, "camera_names": camera_names}
    if settings.mode == "sim" and settings.cameras == "images":
        triangulation_values["pixel_sigma"] = IMAGES_PIXEL_SIGMA
    compute: dict[str, dict[str, Any]] = {
        "triangulation_node": triangulation_values,
        "ball_state_node": {},
        "hit_planner_node": {"robot": settings.robot},
        "trajectory_node": {"robot": settings.robot},
    }
    if settings.composition:
        entry = node_entry("compute_node")
        processes.append(
            Process(
                "compute_node",
                "compute_node",
                module=entry.module,
                nodes=COMPUTE,
                remappings=renamings,
                condition="composition",
            )
        )
        parameters.update({name: dict(values) for name, values in compute.items()})
    else:
        for name, values in compute.items():
            add(name, condition="not composition", values=values)

    add("latency_monitor")
    if settings.visualization:
        # Where this program is installed, rviz draws the robot from its transforms.
        drawn = find_executable("robot_state_publisher", "robot_state_publisher") is not None
        values = {"robot": settings.robot, "cameras": calibration, "robot_markers": not drawn}
        add("visualization_node", condition="visualization", values=values)
    if settings.record:
        add("record_node", condition="record", values={"bag": settings.record})
    for process, values in _foreign_processes(settings, renamings):
        processes.append(process)
        parameters[process.name] = values
    merged = _merged(settings, parameters)
    if settings.params_file:
        given = check_params_file(Path(settings.params_file), parameters, settings.namespace)
        # ROS reads both files; a name in both with two types would keep the type of the first.
        for node, values in merged.items():
            for name in given.get(node, ()):
                values.pop(name, None)
    return Graph(settings, tuple(processes), merged)


def find_executable(package: str, executable: str) -> Path | None:
    """The file ROS would start: `lib/<package>/<executable>` in a prefix of AMENT_PREFIX_PATH, or None."""
    for prefix in filter(None, os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep)):
        path = Path(prefix) / "lib" / package / executable
        if os.access(path, os.X_OK):
            return path
    return None


def _checked(settings: GraphSettings) -> GraphSettings:
    def one_of(what: str, value: str, allowed: Sequence[str]) -> None:
        if value not in allowed:
            raise GraphError(f"{what} is {value!r}, but must be one of {', '.join(allowed)}")

    one_of("mode", settings.mode, MODES)
    one_of("log_level", settings.log_level, LOG_LEVELS)
    if settings.mode == "sim":
        one_of("cameras", settings.cameras, CAMERA_MODES)
    namespace = checked_namespace(settings.namespace)
    if settings.record:
        check_bag_path(Path(settings.record))
    from tt_planning.robot import load_robot

    load_robot(settings.robot)
    return replace(
        settings,
        namespace=namespace,
        params_file=str(Path(settings.params_file).absolute()) if settings.params_file else "",
        robot=_absolute_if_file(settings.robot),
        record=str(Path(settings.record).absolute()) if settings.record else "",
        run_dir=settings.run_dir.absolute(),
    )


def _merged(
    settings: GraphSettings, parameters: Mapping[str, Mapping[str, Any]]
) -> dict[str, dict[str, Any]]:
    merged = {}
    for name, values in parameters.items():
        merged[name] = {**values, **settings.parameters.get(name, {})}
        # The node that makes the simulated time cannot take its own time from it.
        if settings.use_sim_time and name not in ("sim_node", "replay_node"):
            merged[name]["use_sim_time"] = True
    unknown = ", ".join(sorted(set(settings.parameters) - set(parameters)))
    if unknown:
        raise GraphError(f"no node {unknown} in this graph; it has {', '.join(parameters)}")
    return merged


def _simulated_cameras(settings: GraphSettings, calibration: str) -> dict[str, dict[str, Any]]:
    """Camera nodes that render their images; trigger rate and delay are those of the simulation."""
    from tt_perception.camera import load_cameras

    chosen = settings.parameters.get("sim_node", {})
    shared = {
        "backend": "sim",
        "cameras": calibration,
        "delay": chosen.get("delay", SIM_DELAY_S),
        "fps": chosen.get("fps", IMAGES_FPS),
        "scene": settings.scene,
    }
    return {camera.name: {"camera": camera.name, **shared} for camera in load_cameras(calibration)}


def _foreign_processes(
    settings: GraphSettings, renamings: tuple[tuple[str, str], ...]
) -> list[tuple[Process, dict[str, Any]]]:
    """Programs of ROS itself with their parameters: part of the graph where they are installed."""
    found: list[tuple[Process, dict[str, Any]]] = []

    def add(name: str, condition: str, values: dict[str, Any], **more: Any) -> None:
        if find_executable(name, name) is not None:
            process = Process(
                name, name, package=name, nodes=(name,), required=False, condition=condition, **more
            )
            found.append((process, values))

    from tt_planning.robot import load_robot

    joint_states = renamings[0][1] if renamings else "/joint_states"
    # The visualization node publishes robot_description already, also where this program is missing.
    renamed = (("joint_states", joint_states), ("robot_description", "robot_description_of_tf"))
    description = {"robot_description": load_robot(settings.robot).urdf}
    add("robot_state_publisher", "when installed", description, remappings=renamed)
    if settings.rviz:
        view = ("-d", str(shared_file("rviz/table_tennis.rviz")))
        # The shipped view names the topics of the usual namespace.
        moved = [row.name for row in TOPICS if not row.name.startswith(("/", "{"))]
        pairs = [(absolute_name(name), absolute_name(name, settings.namespace)) for name in moved]
        add("rviz2", "rviz, when installed", {}, arguments=view, remappings=tuple(pairs) if renamings else ())
    return found


def _absolute_if_file(name: str) -> str:
    return str(Path(name).absolute()) if name.endswith((".yaml", ".yml")) else name


def _plain(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: list(value) if isinstance(value, tuple) else value for name, value in values.items()}
