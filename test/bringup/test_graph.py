"""What each configuration starts, with which parameters, and which settings are refused."""

from __future__ import annotations

import ast
import itertools
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tt_bringup.graph import COMPUTE, GraphSettings, build_graph
from tt_bringup.graph_errors import GraphError
from tt_bringup.hardware import load_hardware
from tt_bringup.params_file import check_params_file, template
from tt_bringup.paths import share_dir
from tt_bringup.registry import NODES, parameter_tables
from tt_perception.errors import TTError

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def settings(tmp_path):
    return GraphSettings("sim", tmp_path / "run")


def names(graph):
    return [process.name for process in graph.processes]


@pytest.mark.parametrize(
    ("mode", "cameras"),
    [("sim", "detections"), ("sim", "images"), ("robot", ""), ("replay", "")],
)
@pytest.mark.parametrize("composition", [True, False])
def test_every_parameter_of_the_graph_is_known_to_its_node(settings, mode, cameras, composition):
    tables = {name: {spec.name for spec in table} for name, table in parameter_tables().items()}
    chosen = replace(settings, mode=mode, cameras=cameras, composition=composition)
    graph = build_graph(replace(chosen, record="bag", bag="bag"))
    for node, values in graph.parameters.items():
        table = "camera_node" if node.startswith("cam") else node
        assert set(values) <= tables[table] | {"use_sim_time"}, node


def test_composition_only_moves_the_computing_nodes(settings):
    composed, separate = build_graph(settings), build_graph(replace(settings, composition=False))
    assert set(composed.parameters) == set(separate.parameters)
    assert set(names(separate)) - set(names(composed)) == set(COMPUTE)
    assert set(names(composed)) - set(names(separate)) == {"compute_node"}


def test_the_simulated_hardware_outlives_the_motor_node(settings):
    assert [process.name for process in build_graph(settings).processes if process.stop_last] == ["sim_node"]


def test_simulated_time_is_given_to_all_but_its_source(settings):
    graph = build_graph(replace(settings, use_sim_time=True))
    late = {node for node, values in graph.parameters.items() if values.get("use_sim_time")}
    assert late == set(graph.parameters) - {"sim_node"}


def test_a_second_robot_gets_its_own_joint_states(settings):
    graph = build_graph(replace(settings, namespace="left"))
    for process in graph.processes:
        assert "/joint_states:=/left/joint_states" in graph.command(process)
        assert "__ns:=/left" in graph.command(process)


def test_robot_mode_starts_one_camera_node_per_chosen_camera(settings):
    hardware = load_hardware("")
    some = list(hardware.cameras)[:2]
    graph = build_graph(replace(settings, mode="robot", cameras=",".join(some)))
    assert [name for name in names(graph) if name.endswith("_node") and name[:-5] in hardware.cameras] == [
        f"{name}_node" for name in some
    ]
    assert graph.parameters["triangulation_node"]["camera_names"] == tuple(some)
    assert "autostart" not in graph.parameters["motor_node"], "a real robot moves only when told"


def test_rendering_cameras_follow_the_rate_and_delay_of_the_simulation(settings):
    graph = build_graph(
        replace(settings, cameras="images", parameters={"sim_node": {"fps": 60.0, "delay": 0.01}})
    )
    assert graph.parameters["sim_node"]["images"] is True
    for index in range(4):
        values = graph.parameters[f"cam{index}_node"]
        assert (values["camera"], values["backend"], values["fps"], values["delay"]) == (
            f"cam{index}",
            "sim",
            60,
            0.01,
        )


def test_parameter_file_holds_what_the_graph_says(settings):
    graph = build_graph(replace(settings, parameters={"sim_node": {"seed": 7}}))
    tree = yaml.safe_load(graph.write_parameters().read_text())
    assert tree["/**/sim_node"]["ros__parameters"]["seed"] == 7


def test_the_users_parameter_file_wins(settings, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("/**/sim_node: {ros__parameters: {seed: 5}}\n/**: {ros__parameters: {robot: gantry5}}\n")
    graph = build_graph(
        replace(settings, params_file=str(file), parameters={"sim_node": {"seed": 1, "fps": 90.0}})
    )
    assert graph.parameters["sim_node"]["fps"] == 90.0
    assert "seed" not in graph.parameters["sim_node"] and "robot" not in graph.parameters["trajectory_node"]
    assert graph.command(graph.processes[0])[-2:] == ["--params-file", str(file)]


def test_programs_of_ros_join_where_they_are_installed(settings, tmp_path, monkeypatch):
    alone = build_graph(settings)
    assert "robot_state_publisher" not in names(alone)
    assert alone.parameters["visualization_node"]["robot_markers"]
    for name in ("robot_state_publisher", "rviz2"):
        program = tmp_path / "lib" / name / name
        program.parent.mkdir(parents=True)
        program.touch(mode=0o755)
    monkeypatch.setenv("AMENT_PREFIX_PATH", f"/nowhere:{tmp_path}")
    graph = build_graph(replace(settings, rviz=True, use_sim_time=True))
    programs = {process.name: process for process in graph.processes if not process.module}
    assert set(programs) == {"robot_state_publisher", "rviz2"}
    assert not any(process.required for process in programs.values())
    assert "<robot" in graph.parameters["robot_state_publisher"]["robot_description"]
    assert not graph.parameters["visualization_node"]["robot_markers"], "rviz would draw the robot twice"
    assert graph.parameters["rviz2"]["use_sim_time"]
    command = graph.command(programs["robot_state_publisher"])
    assert command[0] == str(tmp_path / "lib" / "robot_state_publisher" / "robot_state_publisher")
    assert "joint_states:=/joint_states" in command
    assert "rviz2" not in names(build_graph(settings))


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"mode": "sims"}, "one of sim, robot, replay"),
        ({"robot": "gantry9"}, "gantry9"),
        ({"cameras": "movies"}, "one of detections, images"),
        ({"log_level": "loud"}, "one of debug"),
        ({"namespace": "my robot"}, "namespace"),
        ({"params_file": "nowhere.yaml"}, "nowhere.yaml"),
        ({"mode": "robot", "cameras": "", "hardware": "nowhere.yaml"}, "nowhere.yaml"),
        ({"mode": "robot", "cameras": "cam99"}, "cam99"),
        ({"parameters": {"simnode": {}}}, "simnode"),
    ],
)
def test_wrong_settings_are_refused(settings, change, words):
    with pytest.raises(TTError, match=words):
        build_graph(replace(settings, **change))


@pytest.mark.parametrize("name", ["", "file/bag", "n" * 300])
def test_a_bag_that_cannot_be_made_is_refused(settings, tmp_path, name):
    (tmp_path / "file").touch()
    with pytest.raises(TTError, match="not overwritten|cannot record to"):
        build_graph(replace(settings, record=str(tmp_path / name)))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[1, 2", "not YAML"),
        ("just words", "must map node names"),
        ("/**/sim_node: {seed: 1}", "ros__parameters"),
        ("/**/simnode: {ros__parameters: {seed: 1}}", "did you mean 'sim_node'"),
        ("sim_node: {ros__parameters: {seed: 1}}", "write '/\\*\\*/sim_node'"),
        ("/other/sim_node: {ros__parameters: {seed: 1}}", "names no node"),
        ("/**/sim_node: {ros__parameters: 3}", "must map parameter names"),
    ],
)
def test_parameter_files_with_sections_nobody_reads_are_refused(tmp_path, text, words):
    file = tmp_path / "params.yaml"
    file.write_text(text)
    with pytest.raises(GraphError, match=words):
        check_params_file(file, (), "tt")


@pytest.mark.parametrize("section", ["/**", "/**/sim_node", "/tt/sim_node", "/*/sim_node"])
def test_sections_that_ros_understands_pass(tmp_path, section):
    file = tmp_path / "params.yaml"
    file.write_text(f"{section}: {{ros__parameters: {{seed: 1}}}}")
    check_params_file(file, (), "tt")


def test_nested_sections_pass(tmp_path):
    file = tmp_path / "params.yaml"
    file.write_text("tt:\n  sim_node:\n    ros__parameters: {seed: 1}\n")
    check_params_file(file, (), "tt")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "must hold"),
        ("kameras: {}", "did you mean 'cameras'"),
        ("cameras: [a, b]", "must map each camera name"),
        ("motors: 3", "must map parameter names"),
        ("a: [", "not YAML"),
    ],
)
def test_wrong_hardware_files_are_refused(tmp_path, text, words):
    file = tmp_path / "hardware.yaml"
    file.write_text(text)
    with pytest.raises(GraphError, match=words):
        load_hardware(str(file))


def test_templates_are_parameter_files_with_the_defaults(tmp_path):
    for node, table in parameter_tables().items():
        values = yaml.safe_load(template(node, table))[f"/**/{node}"]["ros__parameters"]
        for spec in table:
            default = list(spec.default) if isinstance(spec.default, tuple) else spec.default
            assert values[spec.name] == default, f"{node}.{spec.name}"


def test_every_parameter_is_documented():
    bare = [
        f"{node}.{spec.name}" for node, table in parameter_tables().items() for spec in table if not spec.doc
    ]
    assert not bare


def test_every_node_has_an_executable_wrapper():
    for entry in NODES:
        script = ROOT / "scripts" / entry.executable
        assert os.access(script, os.X_OK), f"scripts/{entry.executable} is not executable"
        assert f"-m {entry.module} " in script.read_text()
    assert {path.name for path in (ROOT / "scripts").iterdir()} == {entry.executable for entry in NODES}


def test_launch_files_import_nothing_of_ros_before_they_run():
    for file in (share_dir() / "launch").glob("*.launch.py"):
        imports = [
            node
            for node in ast.parse(file.read_text()).body
            if isinstance(node, (ast.Import, ast.ImportFrom))
        ]
        assert [node.module for node in imports] == ["tt_bringup.launching"]


def test_importing_the_pure_parts_does_not_import_ros():
    words = ["tt_perception.triangulation", "tt_estimation.flight", "tt_planning.quintic", "tt_bringup.cli"]
    code = f"import sys; {'; '.join(f'import {word}' for word in words)}; sys.exit('rclpy' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_graph_names_are_unique(settings):
    for composition, rviz in itertools.product([True, False], repeat=2):
        found = names(build_graph(replace(settings, composition=composition, rviz=rviz, record="bag")))
        assert len(found) == len(set(found))
