"""Dynamics: properties on every shipped robot and on random chains, and an independent implementation as
oracle.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tt_control.dynamics import ElasticJoints, Friction, RigidBody, reflected_inertia
from tt_control.errors import ControlError
from tt_planning.robot import load_robot

ROBOTS = ("gantry4", "gantry5", "arm6")


def random_chain(seed: int, joints: int) -> str:
    """URDF of a serial chain with random axes, offsets, masses and inertias."""
    rng = np.random.default_rng(seed)
    parts = [
        '<robot name="chain"><mujoco><compiler fusestatic="false" balanceinertia="false"/></mujoco><link name="l0"/>'
    ]
    for k in range(joints):
        axis = rng.normal(size=3)
        axis /= np.linalg.norm(axis)
        xyz, rpy, com = rng.uniform(-0.3, 0.3, 3), rng.uniform(-1, 1, 3), rng.uniform(-0.1, 0.1, 3)
        kind = "prismatic" if rng.random() < 0.3 else "revolute"
        half = rng.uniform(0.1, 0.3, 3)
        mass = rng.uniform(0.5, 3.0)
        ixx, iyy, izz = (mass / 12 * (half[(i + 1) % 3] ** 2 + half[(i + 2) % 3] ** 2) for i in range(3))
        parts.append(
            f'<joint name="j{k}" type="{kind}"><parent link="l{k}"/><child link="l{k + 1}"/>'
            f'<origin xyz="{xyz[0]} {xyz[1]} {xyz[2]}" rpy="{rpy[0]} {rpy[1]} {rpy[2]}"/>'
            f'<axis xyz="{axis[0]} {axis[1]} {axis[2]}"/><limit lower="-3" upper="3" velocity="9" effort="99"/></joint>'
            f'<link name="l{k + 1}"><inertial><origin xyz="{com[0]} {com[1]} {com[2]}"/><mass value="{mass}"/>'
            f'<inertia ixx="{ixx}" iyy="{iyy}" izz="{izz}" ixy="0" ixz="0" iyz="0"/></inertial></link>'
        )  # fmt: skip
    return "".join(parts) + "</robot>"


def bodies():
    for name in ROBOTS:
        robot = load_robot(name)
        yield pytest.param(robot.urdf, id=name)
    for seed, joints in ((1, 3), (2, 5), (3, 7)):
        yield pytest.param(random_chain(seed, joints), id=f"chain{joints}")


@pytest.fixture(params=list(bodies()))
def urdf(request):
    return request.param


@pytest.fixture
def body(urdf):
    n = RigidBody.from_urdf(urdf).n
    return RigidBody.from_urdf(urdf, 0.01 * np.ones(n), Friction(0.2 * np.ones(n), 0.1 * np.ones(n)))


def states(body, count=5):
    rng = np.random.default_rng(4)
    for _ in range(count):
        yield tuple(rng.uniform(-1.0, 1.0, body.n) * s for s in (0.8, 2.0, 5.0))


def test_mass_matrix_is_symmetric_and_positive_definite(body):
    for q, _, _ in states(body):
        mass = body.mass_matrix(q)
        assert np.allclose(mass, mass.T, atol=1e-12) and np.linalg.eigvalsh(mass).min() > 0


def test_m_dot_minus_two_c_is_skew(body):
    for q, qd, _ in states(body):
        m_dot = body.mass_derivative(q) @ qd
        skew = m_dot - 2.0 * body.coriolis_matrix(q, qd)
        assert np.allclose(skew, -skew.T, atol=1e-7 * max(1.0, np.abs(m_dot).max()))


def test_terms_add_up_to_the_inverse_dynamics(body):
    for q, qd, qdd in states(body):
        parts = body.mass_matrix(q) @ qdd + body.coriolis_matrix(q, qd) @ qd + body.gravity(q)
        assert parts + body.friction.effort(qd) == pytest.approx(body.inverse(q, qd, qdd), abs=1e-6)


def test_forward_undoes_inverse(body):
    for q, qd, qdd in states(body):
        push = 0.3 * qdd
        effort = body.inverse(q, qd, qdd)
        assert body.forward(q, qd, effort) == pytest.approx(qdd, abs=1e-8)
        assert body.forward(q, qd, effort - push, push) == pytest.approx(qdd, abs=1e-8)


def test_gravity_is_the_gradient_of_the_potential(body):
    h = 1e-6
    for q, _, _ in states(body, 3):
        still = np.zeros(body.n)
        slope = [
            (body.energy(q + h * e, still)[1] - body.energy(q - h * e, still)[1]) / (2 * h)
            for e in np.eye(body.n)
        ]
        assert body.gravity(q) == pytest.approx(np.array(slope), abs=1e-6)


def test_energy_balance_along_a_motion(body):
    """Ė = q̇ᵀτ − q̇ᵀf, checked by integrating with small steps."""
    q, qd, _ = next(states(body))
    effort = 0.3 * np.ones(body.n)
    dt, work = 1e-4, 0.0
    start = sum(body.energy(q, qd))
    for _ in range(300):
        half = qd + 0.5 * dt * body.forward(q, qd, effort)
        middle = q + 0.5 * dt * qd
        acc = body.forward(middle, half, effort)
        work += dt * body.power(half, effort)
        q, qd = q + dt * half, qd + dt * acc
    assert sum(body.energy(q, qd)) - start == pytest.approx(work, abs=1e-4 * max(1.0, abs(work)))


def test_pinocchio_agrees(urdf):
    pin = pytest.importorskip("pinocchio", reason="pinocchio is an oracle only: pip install pin")
    body = RigidBody.from_urdf(urdf, friction=None)
    plain = RigidBody.from_urdf(urdf, friction=Friction(np.zeros(body.n), np.zeros(body.n)))
    model = pin.buildModelFromXML(urdf)
    model.armature[:] = 0.0
    data = model.createData()
    for q, qd, qdd in states(plain):
        assert plain.inverse(q, qd, qdd) == pytest.approx(pin.rnea(model, data, q, qd, qdd), abs=1e-8)
        mass = pin.crba(model, data, q)
        mass = np.triu(mass) + np.triu(mass, 1).T
        assert np.allclose(plain.mass_matrix(q), mass, atol=1e-9)
        assert np.allclose(
            plain.coriolis_matrix(q, qd), pin.computeCoriolisMatrix(model, data, q, qd), atol=1e-5
        )


def test_gantry_masses_by_hand(gantry):
    """What moves with x is everything; z carries all but the x carriage."""
    body = RigidBody.from_robot(gantry)
    mass = body.mass_matrix(gantry.home)
    assert mass[0, 0] == pytest.approx(6 + 2 + 0.35 + 0.17 + 0.17)
    assert mass[1, 1] == pytest.approx(2 + 0.35 + 0.17 + 0.17)
    assert body.gravity(gantry.home)[1] == pytest.approx(9.81 * 2.69)
    assert body.is_linear.tolist() == [True, True, False, False]


@given(st.floats(-50, 50), st.floats(0, 10), st.floats(0, 10))
@settings(max_examples=50)
def test_friction_always_takes_energy(qd, viscous, coulomb):
    effort = Friction(np.array([viscous]), np.array([coulomb])).effort(np.array([qd]))
    assert float(effort[0] * qd) >= 0.0


def test_friction_that_drives_is_refused():
    with pytest.raises(ControlError, match="0 or more"):
        Friction(np.array([-0.1]), np.array([0.0]))


def test_reflected_inertia_counts_squared():
    assert reflected_inertia(50.0, 2e-5) == pytest.approx(0.05)


def test_elastic_joints_keep_their_energy_and_become_stiff(gantry):
    """Spong's model without damping conserves energy; with a stiff spring it moves like the rigid robot."""
    rotor = np.array([2.0, 1.0, 2e-4, 2e-3])
    n = gantry.joint_count
    none = Friction(np.zeros(n), np.zeros(n))
    body = RigidBody.from_robot(gantry, friction=none)
    elastic = ElasticJoints(np.array([2e4, 2e4, 5.0, 20.0]), rotor, np.zeros(n))
    q, qd = np.array([0.0, 0.1, 0.1, 0.2]), np.zeros(n)
    theta, theta_d = q + np.array([0.005, -0.003, 0.05, 0.02]), np.zeros(n)

    def total():
        return sum(body.energy(q, qd)) + elastic.energy(q, theta, theta_d)

    start, dt = total(), 2e-5
    for _ in range(1500):
        acc, rotor_acc = elastic.accelerations(body, q, qd, theta, theta_d, np.zeros(n))
        qd, theta_d = qd + dt * acc, theta_d + dt * rotor_acc
        q, theta = q + dt * qd, theta + dt * theta_d
    assert total() == pytest.approx(start, abs=2e-3)

    rigid = RigidBody.from_robot(gantry, rotor, none)
    stiff = ElasticJoints(1e8 * np.ones(n), rotor, np.zeros(n))
    q, effort = gantry.home.copy(), np.array([40.0, 60.0, 0.1, 0.2])
    theta = q + (effort - rotor * rigid.forward(q, np.zeros(n), effort)) / 1e8
    acc, rotor_acc = stiff.accelerations(body, q, np.zeros(n), theta, np.zeros(n), effort)
    assert acc == pytest.approx(rigid.forward(q, np.zeros(n), effort), rel=1e-6, abs=1e-6)
    assert rotor_acc == pytest.approx(acc, rel=1e-6, abs=1e-6)


def test_models_that_are_no_joint_robots_are_refused():
    import mujoco

    ball = "<mujoco><worldbody><body><freejoint/><geom size='.1' mass='1'/></body></worldbody></mujoco>"
    with pytest.raises(ControlError, match="hinge and slide"):
        RigidBody(mujoco.MjModel.from_xml_string(ball))
    with pytest.raises(ControlError, match="cannot read"):
        RigidBody.from_urdf("<robot")
