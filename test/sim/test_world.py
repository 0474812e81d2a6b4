"""The simulated robot moves by its boards only, and its racket meets the ball as the ball's kernel says."""

from __future__ import annotations

import numpy as np
import pytest

from tt_control.bus import Drive, Setpoints
from tt_estimation.ball_models import NOMINAL
from tt_planning.kinematics import make_kinematics
from tt_planning.robot import load_robot
from tt_sim.ball import Surface
from tt_sim.ball_file import ServedBall
from tt_sim.direct_bus import DirectBus
from tt_sim.motors import robot_boards
from tt_sim.referee import Outcome
from tt_sim.simulation import Simulation
from tt_sim.world import World


@pytest.fixture(scope="module", params=["gantry4", "gantry5", "arm6"])
def robot(request):
    return load_robot(request.param)


def hold(robot, q) -> Setpoints:
    n = robot.joint_count
    out = Setpoints.idle(n, Drive.POSITION, 0.1)
    out.pos = np.asarray(q, float)
    out.kp_scale = out.kd_scale = np.ones(n)
    out.max_torque = robot.max_effort.copy()
    return out


def test_racket_pose_is_that_of_the_kinematics(robot):
    world = World(robot, NOMINAL, start=robot.ready)
    centre, rotation = make_kinematics(robot).forward(robot.ready)
    assert world.racket[:3] == pytest.approx(centre, abs=1e-9)
    assert world.racket[3:12].reshape(3, 3) == pytest.approx(rotation, abs=1e-9)


def test_racket_twist_is_the_jacobian_times_the_joint_velocity(robot):
    simulation = Simulation(robot, NOMINAL, start=robot.ready)
    world = simulation.world
    world.parked = False
    for _ in range(40):
        world.step()  # falls under gravity
    twist = make_kinematics(robot).jacobian(world.q) @ world.qd
    assert np.linalg.norm(world.qd) > 0.1
    assert world.racket[12:15] == pytest.approx(twist[:3], abs=1e-6)
    assert world.racket[15:18] == pytest.approx(twist[3:], abs=1e-6)


def test_motor_readings_are_joint_positions_in_turns(robot):
    world = World(robot, NOMINAL, start=robot.ready)
    for motor, q in zip(robot.motors, robot.ready, strict=True):
        turns, speed = world.read(motor.id)
        assert turns == pytest.approx(motor.sign * motor.turns_per_unit * (q - motor.zero))
        assert speed == 0.0


def test_torque_times_speed_is_the_same_power_on_both_sides():
    """A torque that balances gravity at the board holds the loaded axis still."""
    robot = load_robot("gantry4")
    world = World(robot, NOMINAL, start=robot.ready)
    weight_n = 9.81 * sum(world.model.body(name).mass[0] for name in ("z_carriage", "yaw_link", "pitch_link"))
    weight_n += 9.81 * world.model.body("racket").mass[0]
    motor = robot.motors[1]
    world.torques({motor.id: weight_n / (2 * np.pi * motor.sign * motor.turns_per_unit)})
    for _ in range(20):
        world.step()
    assert abs(world.qd[1]) < 0.02  # the hanging wrist swings a little


def test_boards_hold_the_robot_and_a_silent_bus_stops_it(robot):
    simulation = Simulation(robot, NOMINAL, start=robot.ready)
    simulation.boards = boards = robot_boards(robot, simulation.world)
    bus = DirectBus(robot, boards)
    target = np.asarray(robot.ready)
    for step in range(600):
        if step % 4 == 0:
            states = bus.cycle(hold(robot, target))
        simulation.step()
    assert all(states.mode == 10)
    # Without feedforward the axes sag by gravity over stiffness.
    assert simulation.world.q == pytest.approx(target, abs=0.06)
    for _ in range(300):
        simulation.step()
    assert all(b.mode == 11 for b in boards.boards)  # watchdog


def test_end_stops_bound_a_falling_axis_and_boards_start_from_there():
    robot = load_robot("gantry4")
    simulation = Simulation(robot, NOMINAL)
    simulation.boards = boards = robot_boards(robot, simulation.world)
    simulation.world.parked = False
    for _ in range(1500):
        simulation.step()
    z = simulation.world.q[1]
    assert robot.lower[1] - 0.008 < z < robot.lower[1]
    bus = DirectBus(robot, boards)
    for _ in range(20):
        states = bus.cycle(hold(robot, simulation.world.q))
        for _ in range(4):
            simulation.step()
    assert all(states.mode == 10), states.fault


def test_a_robot_that_was_never_switched_on_stands_until_its_boards_push(robot):
    simulation = Simulation(robot, NOMINAL)
    simulation.boards = boards = robot_boards(robot, simulation.world)
    for _ in range(300):
        simulation.step()
    assert np.array_equal(simulation.world.q, robot.home)
    bus = DirectBus(robot, boards)
    for _ in range(30):
        bus.cycle(hold(robot, robot.home + 0.01))
        for _ in range(4):
            simulation.step()
    assert not simulation.world.parked
    assert np.abs(simulation.world.q - robot.home).max() > 1e-3


def test_ball_hits_the_standing_racket_and_pushes_it():
    robot = load_robot("gantry4")
    simulation = Simulation(robot, NOMINAL, start=np.array([0.0, 0.1, 0.0, 0.0]))
    world = simulation.world
    world.model.opt.gravity[:] = 0.0
    world.parked = False
    centre = world.racket[:3].copy()
    simulation.serve(ServedBall(1, np.r_[centre + [0, 0.2, 0.07], 0, -8.0, 0, 0, 0, 0]))
    contacts = []
    for _ in range(60):
        contacts += simulation.step().contacts
    hit = contacts[0]
    assert hit.surface is Surface.RACKET
    assert hit.vel_after[1] == pytest.approx(-0.8 * hit.vel_before[1], rel=1e-6)
    assert world.qd[3] > 0.5  # pushed back above the pitch axis: the pitch turns


def test_ball_at_gives_the_state_between_steps_also_across_a_bounce():
    robot = load_robot("gantry4")
    simulation = Simulation(robot, NOMINAL, start=robot.ready)
    fine = Simulation(robot, NOMINAL, start=robot.ready, step_s=0.0001)
    ball = ServedBall(1, np.array([0.2, -0.5, 0.021, 0.1, -5.0, -3.0, 30, 0, 0]))
    simulation.serve(ball)
    fine.serve(ball)
    simulation.step()
    for k in range(1, 10):
        fine.step()
        assert simulation.ball_at(k * 1e-4) == pytest.approx(fine.world.ball.state, abs=1e-8)


def test_a_verdict_takes_the_ball_out_of_play():
    robot = load_robot("gantry4")
    simulation = Simulation(robot, NOMINAL, start=robot.ready)
    simulation.serve(ServedBall(5, np.array([0.7, 1.2, 0.3, 2.0, -5.0, 1.0, 0, 0, 0])))
    verdict = None
    while verdict is None:
        verdict = simulation.step().verdict
    assert verdict.ball_id == 5
    assert verdict.outcome in (Outcome.MISSED, Outcome.NOT_PLAYABLE)
    assert not simulation.ball_in_play
