"""Kinematics: closed form and numerical inverse, Jacobians, and the contract of the inverse."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tt_planning.ik import IkReason, angle_between
from tt_planning.kinematics import GantryKinematics, joint_velocity, make_kinematics
from tt_planning.robot import load_robot
from tt_planning.serial_arm import SerialKinematics

ROBOTS = {name: load_robot(name) for name in ("gantry4", "gantry5", "arm6")}
ARM = SerialKinematics(ROBOTS["arm6"])


def poses(robot, count, seed=0):
    """Joint positions across the limits."""
    rng = np.random.default_rng(seed)
    return robot.lower + rng.uniform(size=(count, robot.joint_count)) * (robot.upper - robot.lower)


@pytest.mark.parametrize("name", ROBOTS)
def test_jacobian_agrees_with_finite_differences(name):
    """Linear and angular rows."""
    robot = ROBOTS[name]
    kin = make_kinematics(robot)
    h = 1e-6
    for q in poses(robot, 10):
        jac = kin.jacobian(q)
        for j in range(robot.joint_count):
            step = np.zeros(robot.joint_count)
            step[j] = h
            (pa, ra), (pb, rb) = kin.forward(q + step), kin.forward(q - step)
            np.testing.assert_allclose((pa - pb) / (2 * h), jac[:3, j], atol=1e-8)
            spin = (ra - rb) / (2 * h) @ kin.forward(q)[1].T
            np.testing.assert_allclose([spin[2, 1], spin[0, 2], spin[1, 0]], jac[3:, j], atol=1e-8)


@pytest.mark.parametrize("name", ("gantry4", "gantry5"))
def test_gantry_formula_equals_its_urdf(name):
    """The closed form and the chain read from the URDF are the same robot."""
    robot = ROBOTS[name]
    closed, chain = GantryKinematics(robot), SerialKinematics(robot)
    for q in poses(robot, 20):
        for a, b in zip(closed.forward(q), chain.forward(q)):
            np.testing.assert_allclose(a, b, atol=1e-12)
        np.testing.assert_allclose(closed.jacobian(q), chain.jacobian(q), atol=1e-12)


@pytest.mark.parametrize("name", ROBOTS)
def test_forward_and_jacobian_agree_with_mujoco(name):
    """The rigid-body engine reads the same URDF."""
    mujoco = pytest.importorskip("mujoco")
    robot = ROBOTS[name]
    model = mujoco.MjModel.from_xml_string(robot.urdf)
    data = mujoco.MjData(model)
    body = model.body("racket").id
    kin = make_kinematics(robot)
    for q in poses(robot, 10):
        data.qpos[:] = q
        mujoco.mj_forward(model, data)
        pos, rot = kin.forward(q)
        np.testing.assert_allclose(data.xpos[body], pos, atol=1e-9)
        np.testing.assert_allclose(data.xmat[body].reshape(3, 3), rot, atol=1e-9)
        linear, angular = np.zeros((3, model.nv)), np.zeros((3, model.nv))
        mujoco.mj_jac(model, data, linear, angular, pos, body)
        np.testing.assert_allclose(np.vstack([linear, angular]), kin.jacobian(q), atol=1e-9)


@pytest.mark.parametrize("name", ROBOTS)
def test_forward_agrees_with_pinocchio(name):
    """Second oracle for the same chain."""
    pin = pytest.importorskip("pinocchio", reason="pinocchio is not installed")
    robot = ROBOTS[name]
    model = pin.buildModelFromXML(robot.urdf)
    data = model.createData()
    frame = model.getFrameId("racket")
    kin = make_kinematics(robot)
    for q in poses(robot, 10):
        pin.framesForwardKinematics(model, data, q)
        pos, rot = kin.forward(q)
        np.testing.assert_allclose(data.oMf[frame].translation, pos, atol=1e-9)
        np.testing.assert_allclose(data.oMf[frame].rotation, rot, atol=1e-9)


@pytest.mark.parametrize("name", ("gantry4", "gantry5"))
def test_gantry_inverse_returns_the_joints(name):
    """Round trip over the whole joint range."""
    robot = ROBOTS[name]
    kin = GantryKinematics(robot)
    for q in poses(robot, 50):
        pos, rot = kin.forward(q)
        result = kin.inverse(pos, rot[:, 1], robot.home)
        assert result.success
        np.testing.assert_allclose(result.q, q, atol=1e-9)


def test_gantry4_reports_the_depth_it_cannot_reach():
    """Nothing but the distance along y is wrong."""
    robot = ROBOTS["gantry4"]
    kin = GantryKinematics(robot)
    pos, rot = kin.forward(robot.ready)
    result = kin.inverse(pos + np.array([0.0, 0.05, 0.0]), rot[:, 1], robot.home)
    assert not result.success
    assert result.reason is IkReason.DEPTH
    assert result.residual_m == pytest.approx(0.05)


@settings(max_examples=60, deadline=None)
@given(
    st.tuples(*[st.floats(-3.0, 3.0)] * 3),
    st.tuples(*[st.floats(-1.0, 1.0)] * 3),
    st.lists(st.sampled_from([-1e3, -4.0, -1.0, 0.0, 0.5, 4.0, 1e3, float("nan")]), min_size=6, max_size=6),
)
def test_arm_inverse_never_lies(pos, normal, seed):
    """Success means small residuals; joints are inside their limits whatever pose and seed are."""
    result = ARM.inverse(np.array(pos), np.array(normal), np.array(seed))
    robot = ROBOTS["arm6"]
    assert np.isfinite(result.q).all()
    assert (result.q >= robot.lower).all() and (result.q <= robot.upper).all()
    if result.success:
        centre, rot = ARM.forward(result.q)
        assert np.linalg.norm(centre - pos) <= 1e-4
        assert angle_between(rot[:, 1], np.array(normal)) <= 1e-3
        assert result.reason is IkReason.OK
    else:
        assert result.reason is not IkReason.OK


def test_arm_reaches_the_hitting_volume_also_from_seeds_on_limits():
    """Poses in front of the middle of the table end."""
    robot = ROBOTS["arm6"]
    found = total = 0
    for x in (-0.5, -0.2, 0.1, 0.4):
        for z in (0.1, 0.3):
            for seed in (robot.ready, robot.lower, robot.upper):
                normal = np.array([-0.2 * x, 0.92, 0.38])
                total += 1
                found += ARM.inverse(np.array([x, -1.6, z]), normal, seed).success
    assert found == total


def test_either_face_of_the_racket_may_hit():
    """A pose that shows its back is a success when both faces count."""
    robot = ROBOTS["arm6"]
    pos, rot = ARM.forward(robot.ready)
    result = ARM.inverse(pos, -rot[:, 1], robot.ready, either_face=True, seeds=1)
    assert result.success
    np.testing.assert_allclose(result.q, robot.ready, atol=1e-6)


@pytest.mark.parametrize("name", ("gantry4", "gantry5"))
def test_joint_velocity_inverts_the_jacobian(name):
    """A twist that the robot can make comes from the joint velocities that made it."""
    robot = ROBOTS[name]
    kin = GantryKinematics(robot)
    qd = np.linspace(-1.0, 1.0, robot.joint_count)
    q = robot.ready + 0.1
    twist = kin.jacobian(q) @ qd
    np.testing.assert_allclose(joint_velocity(kin, q, twist[:3], twist[3:], 0.15), qd, atol=1e-9)
