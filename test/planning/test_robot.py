"""Robot descriptions: the benchmark's limits, and one clear line for everything that is wrong."""

import math
import re
import shutil

import numpy as np
import pytest

from tt_planning.errors import RobotError
from tt_planning.robot import available_robots, load_robot


def test_gantry_limits_are_those_of_the_benchmark():
    """Changing a limit changes every published number."""
    robot = load_robot("gantry4")
    assert robot.joint_names == ("x", "z", "yaw", "pitch")
    np.testing.assert_allclose(robot.lower, [-1.0, -0.25, -math.pi / 3, -math.pi / 3])
    np.testing.assert_allclose(robot.upper, [1.0, 0.60, math.pi / 3, math.pi / 3])
    np.testing.assert_allclose(robot.max_vel, [3.0, 3.0, 20.0, 20.0])
    np.testing.assert_allclose(robot.max_acc, [40.0, 30.0, 600.0, 600.0])
    assert robot.base_pos_table[1] == -1.55
    deep = load_robot("gantry5")
    assert (deep.lower[1], deep.upper[1], deep.max_vel[1], deep.max_acc[1]) == (-2.10, -1.45, 3.0, 30.0)


@pytest.mark.parametrize("name", available_robots())
def test_effort_limits_allow_the_accelerations(name):
    """Inertia times acceleration plus gravity stays below what the YAML promises, in home and ready."""
    mujoco = pytest.importorskip("mujoco")
    robot = load_robot(name)
    model = mujoco.MjModel.from_xml_string(robot.urdf)
    data = mujoco.MjData(model)
    for q in (robot.home, robot.ready):
        data.qpos[:] = q
        for joint in range(robot.joint_count):
            data.qacc[:] = 0.0
            data.qacc[joint] = robot.max_acc[joint]
            mujoco.mj_inverse(model, data)
            assert (np.abs(data.qfrc_inverse) < robot.max_effort).all()


@pytest.fixture
def folder(tmp_path):
    """A copy of gantry4 to break."""
    robot = load_robot("gantry4")
    (tmp_path / "config" / "robots").mkdir(parents=True)
    (tmp_path / "urdf").mkdir()
    shutil.copy(robot.urdf_path, tmp_path / "urdf" / "gantry4.urdf")
    source = robot.urdf_path.parents[1] / "config" / "robots" / "gantry4.yaml"
    shutil.copy(source, tmp_path / "config" / "robots" / "gantry4.yaml")
    return tmp_path


@pytest.mark.parametrize(
    ("file", "old", "new", "says"),
    [
        ("yaml", "velocity: 3.0", "velocty: 3.0", "did you mean 'velocity'"),
        ("yaml", "velocity: 3.0", "velocity: 0.0", "velocity is 0"),
        ("yaml", "velocity: 3.0", "velocity: .nan", "finite number"),
        ("yaml", "lower: -1.0", "lower: 2.0", "not below upper"),
        ("yaml", "id: 2", "id: 1", "used twice"),
        ("yaml", "ready: {x: 0.0", "ready: {x: 5.0", "ready.x is 5"),
        ("yaml", "kinematics: gantry", "kinematics: magic", "allowed are gantry and serial"),
        ("yaml", "gantry4.urdf", "nothing.urdf", "does not exist"),
        ("urdf", '<link name="racket">', '<link name="bat">', "no link 'racket'"),
        ("urdf", '<joint name="z"', '<joint name="height"', "same joints in the same order"),
        (
            "urdf",
            '<box size="0.15 0.014 0.16"/>',
            '<mesh filename="bat.stl"/>',
            "mesh bat.stl does not exist",
        ),
        ("urdf", "</robot>", "", "not a readable URDF"),
    ],
)
def test_bad_description_is_one_clear_line(folder, file, old, new, says):
    """The text names the entry and what is allowed."""
    path = folder / ("config/robots/gantry4.yaml" if file == "yaml" else "urdf/gantry4.urdf")
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new, 1))
    with pytest.raises(RobotError, match=re.escape(says)) as caught:
        load_robot(folder / "config" / "robots" / "gantry4.yaml")
    assert "\n" not in str(caught.value)


def test_unknown_robot_names_the_known_ones():
    """A typing error shows what there is."""
    with pytest.raises(RobotError, match="arm6, gantry4, gantry5"):
        load_robot("gantry6")
