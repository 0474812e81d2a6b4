"""The launch files, run against a stand-in for launch_ros: everything they name must exist."""

from __future__ import annotations

import os
from pathlib import Path

import fake_launch
import pytest
import yaml

from tt_bringup.graph_errors import GraphError
from tt_bringup.paths import share_dir

MODES = ("sim", "robot", "replay")
ROOT = Path(__file__).resolve().parents[2]
WANTED = {
    "namespace",
    "params_file",
    "use_sim_time",
    "log_level",
    "robot",
    "cameras",
    "composition",
    "rviz",
    "record",
}


@pytest.fixture(params=MODES)
def description(request, monkeypatch):
    fake_launch.install(monkeypatch)
    return fake_launch.load(share_dir() / "launch" / f"{request.param}.launch.py")


def declared(description):
    return {item.name: item for item in description.entities if hasattr(item, "default_value")}


def test_arguments_have_defaults_and_descriptions(description):
    items = declared(description)
    assert set(items) >= WANTED
    assert all(item.description and item.default_value is not None for item in items.values())


@pytest.mark.parametrize("composition", ["true", "false"])
def test_nodes_name_executables_and_files_that_exist(description, composition):
    started = fake_launch.nodes(description, composition=composition, record="true")
    assert started
    for node in started:
        assert node.package == "tt_bringup"
        assert os.access(ROOT / "scripts" / node.executable, os.X_OK)
        assert node.namespace == "tt"
        for file in node.parameters:
            assert yaml.safe_load(Path(file).read_text())
    composed = [node for node in started if node.executable == "compute_node"]
    assert len(composed) == (composition == "true")
    assert all(node.name is None for node in composed), "a name would rename every node of the process"


def test_the_users_parameter_file_comes_last(description, tmp_path):
    file = tmp_path / "mine.yaml"
    file.write_text("/**/latency_monitor: {ros__parameters: {window_s: 5.0}}")
    for node in fake_launch.nodes(description, params_file=str(file)):
        assert node.parameters[-1] == str(file)


def test_the_end_of_a_required_node_ends_the_launch(description):
    started = {node.executable: node for node in fake_launch.nodes(description)}
    assert started["compute_node"].on_exit
    assert started["latency_monitor"].on_exit is None, "launch_ros fails on an empty list"


def test_another_namespace_moves_the_joint_states(description):
    for node in fake_launch.nodes(description, namespace="left"):
        assert node.namespace == "left"
        assert ("/joint_states", "/left/joint_states") in node.remappings


def test_wrong_values_are_refused(description):
    with pytest.raises(GraphError, match="composition is 'maybe'"):
        fake_launch.nodes(description, composition="maybe")


def test_dds_is_set_up_unless_the_user_did(monkeypatch):
    fake_launch.install(monkeypatch)
    for name in ("FASTRTPS_DEFAULT_PROFILES_FILE", "FASTDDS_DEFAULT_PROFILES_FILE", "MALLOC_TOP_PAD_"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("MALLOC_MMAP_THRESHOLD_", "1")
    found = fake_launch.load(share_dir() / "launch" / "sim.launch.py")
    values = {item.name: item.value for item in found.entities if hasattr(item, "value")}
    assert Path(values["FASTRTPS_DEFAULT_PROFILES_FILE"]).is_file()
    assert "FASTDDS_DEFAULT_PROFILES_FILE" in values and "MALLOC_TOP_PAD_" in values
    assert "MALLOC_MMAP_THRESHOLD_" not in values
    assert "ROS_AUTOMATIC_DISCOVERY_RANGE" not in values, "robots on a network must be found"
