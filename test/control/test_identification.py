"""Inertia and friction of joints: exact data, noisy data, and the simulated boards within 5 %."""

from __future__ import annotations

import numpy as np
import pytest

from test.control.conftest import axes
from test.control.lockstep import Bench
from tt_control.controller import State
from tt_control.dynamics import RigidBody
from tt_control.errors import ControlError
from tt_control.gains import joint_units
from tt_control.identification import Chirp, identify, mean_effort, soft_gains
from tt_planning.types import JointTrajectory
from tt_sim.boards import StandalonePlant


def simulated(m=2.0, b=5.0, c=3.0, g=20.0, noise=0.0, rate=250.0):
    chirp = Chirp(0.0, 0.4, 6.0)
    times = np.arange(0.0, chirp.duration_s, 1.0 / rate)
    q, qd, qdd = chirp.sample(times)
    effort = m * qdd + b * qd + c * np.sign(qd) + g
    effort[:-1] = 0.5 * (effort[:-1] + effort[1:])
    rng = np.random.default_rng(1)
    return times, q, qd + noise * rng.normal(size=len(q)), effort + 20 * noise * rng.normal(size=len(q))


def test_chirp_stays_in_its_bounds_and_ends_at_rest():
    chirp = Chirp(0.2, 0.5, 8.0)
    q, qd, qdd = chirp.sample(np.linspace(0, chirp.duration_s, 20001))
    assert np.abs(qd).max() < 1.1 * 0.5 and np.abs(qdd).max() < 1.25 * 8.0
    for end in (0, -1):
        assert (q[end], qd[end], qdd[end]) == pytest.approx((0.2, 0.0, 0.0), abs=1e-3)


def test_exact_data_give_the_constants():
    found = identify(*simulated())
    assert (found.inertia, found.viscous, found.coulomb, found.gravity) == pytest.approx(
        (2, 5, 3, 20), rel=5e-3
    )


def test_noise_is_reflected_in_the_uncertainty():
    quiet, loud = identify(*simulated(noise=0.002)), identify(*simulated(noise=0.02))
    assert loud.inertia == pytest.approx(2.0, rel=0.05) and loud.sigma[0] > 3 * quiet.sigma[0]
    assert abs(quiet.inertia - 2.0) < 5 * quiet.sigma[0] + 0.01


def test_single_spikes_do_not_matter():
    times, q, qd, effort = simulated()
    effort[::97] += 300.0
    found = identify(times, q, qd, effort)
    assert found.inertia == pytest.approx(2.0, rel=0.03)


def test_standing_still_is_refused():
    t = np.linspace(0, 10, 2500)
    with pytest.raises(ControlError, match="move more"):
        identify(t, t * 0, t * 0, t * 0)


@pytest.mark.parametrize(("joint", "coulomb"), [("x", 8.0), ("z", 8.0), ("yaw", 0.05), ("pitch", 0.05)])
def test_simulated_axes_within_five_percent(gantry, joint, coulomb):
    """The whole way: chirp as a trajectory through controller and boards, constants from their replies."""
    bench = Bench(gantry, plant=StandalonePlant(axes(gantry, coulomb=coulomb)))
    bench.controller.gain = soft_gains(gantry)
    bench.start()
    j = gantry.joint_names.index(joint)
    q0 = np.array(bench.controller.limiter.q)
    speed, acceleration = 0.12 * gantry.max_vel[j], 0.2 * gantry.max_acc[j]
    chirp = Chirp(float(q0[j]) + 0.2, speed, acceleration, duration_s=8.0)
    bench.offer(bench.path(q0 + np.eye(4)[j] * 0.2, 0.5))
    bench.run(0.6)
    times = np.arange(0.0, chirp.duration_s, 0.02)
    pos, vel, acc = (np.tile(a, (len(times), 1)) for a in (q0, q0 * 0, q0 * 0))
    pos[:, j], vel[:, j], acc[:, j] = chirp.sample(times)
    start = bench.clock.now_ns()
    path = JointTrajectory(start, gantry.joint_names, times + 0.02, pos, vel, acc)
    assert bench.offer(path).ok
    log = []
    bench.loop.on_tick = lambda t, s, m: log.append(
        (t * 1e-9, m.pos[j], m.vel[j], m.torque[j], s.pos[j], s.vel[j], s.torque[j])
    )
    bench.run(chirp.duration_s)
    assert bench.controller.state is State.ACTIVE, bench.controller.reason
    t, q, qd, reply, *commands = np.array(log).T
    motor = gantry.motors[j]
    gains = joint_units(motor.kp, motor.kd, motor.turns_per_unit)
    share = bench.controller.gain[j]
    found = identify(t, q, qd, mean_effort(t, reply, *commands, share * gains.kp, share * gains.kv))
    body = bench.controller._body
    mass, weight = body.mass_matrix(gantry.home)[j, j], body.gravity(gantry.home)[j]
    assert found.inertia == pytest.approx(mass, rel=0.05)
    assert found.viscous == pytest.approx(RigidBody.from_robot(gantry).friction.viscous[j], rel=0.05)
    assert found.coulomb == pytest.approx(coulomb, rel=0.05)
    assert found.gravity == pytest.approx(weight, abs=0.5)
