"""Trajectories: continuous, inside their limits, never a jump; the keep-out volume; the wire forms."""

from xml.etree import ElementTree

import numpy as np
import pytest

from tt_perception.rotation import matrix_from_quat, quat_from_matrix
from tt_planning.keep_out import KeepOut, box_separation
from tt_planning.kinematics import gantry_rotation
from tt_planning.messages import (
    MessageError,
    hit_plan_from_msg,
    hit_plan_to_msg,
    joint_trajectory_from_msg,
    joint_trajectory_to_msg,
)
from tt_planning.robot import load_robot
from tt_planning.trajectory import NS_PER_S, TrajectoryGenerator, TrajectoryReason, sample
from tt_planning.types import HitKind, HitPlan, JointTrajectory
from tt_planning.urdf import origin

ROBOT = load_robot("gantry4")
ZERO = np.zeros(4)
MS = 1_000_000


def generator():
    """At rest in the ready pose at time 0."""
    made = TrajectoryGenerator(ROBOT)
    made.set_reference(ROBOT.ready, ZERO, ZERO, 0)
    return made


def plan_for(q, qd, hit_ns, capture_ns=0):
    """A hit plan whose pose and twist belong to these joints."""
    kin = TrajectoryGenerator(ROBOT).kinematics
    centre, rot = kin.forward(np.asarray(q, float))
    twist = kin.jacobian(np.asarray(q, float)) @ np.asarray(qd, float)
    return HitPlan(
        capture_ns,
        hit_ns,
        centre,
        quat_from_matrix(rot),
        twist[:3],
        twist[3:],
        HitKind.AIM,
        np.array([0.0, 0.75, 0.0]),
        0.1,
    )


def assert_inside_limits(trajectory):
    """Dense samples of a trajectory keep position, velocity and acceleration limits."""
    origin = trajectory.capture_stamp_ns
    for t in np.linspace(trajectory.times_s[0], trajectory.times_s[-1], 1500):
        q, qd, qdd = sample(trajectory, origin + round(t * NS_PER_S))
        assert (q >= ROBOT.lower - 1e-9).all() and (q <= ROBOT.upper + 1e-9).all()
        assert (np.abs(qd) <= ROBOT.max_vel * (1 + 1e-9)).all()
        assert (np.abs(qdd) <= ROBOT.max_acc * (1 + 1e-9)).all()


HITS = [
    ([0.3, 0.2, 0.2, 0.3], [0.0, 1.0, 0.0, -8.0]),
    ([-0.6, 0.0, -0.3, 0.6], [0.2, 1.8, 0.0, -4.0]),
    ([0.1, 0.3, 0.0, 0.1], [0.0, -0.5, 0.0, -12.0]),
    ([0.99, 0.1, 0.1, 0.2], [-0.3, 0.5, 0.0, -5.0]),
]


@pytest.mark.parametrize(
    ("q", "qd", "swing_s"), [(*hit, s) for hit in HITS for s in (0.45, 0.9) if s > 0.5 or hit[0][0] < 0.9]
)
def test_swing_reaches_the_planned_state_within_all_limits(q, qd, swing_s):
    """Also with plenty of time, when a single quintic would swing back beyond its limits."""
    made = generator()
    hit_ns = round(swing_s * NS_PER_S)
    result = made.hit(plan_for(q, qd, hit_ns), 0)
    assert result.reason is TrajectoryReason.OK
    at_q, at_qd, _ = sample(result.trajectory, hit_ns)
    np.testing.assert_allclose(at_q, q, atol=1e-9)
    np.testing.assert_allclose(at_qd, qd, atol=1e-7)
    assert_inside_limits(result.trajectory)
    end, speed, _ = sample(result.trajectory, round(result.trajectory.times_s[-1] * NS_PER_S) + 1)
    np.testing.assert_allclose(end, ROBOT.ready, atol=1e-9)
    np.testing.assert_allclose(speed, 0.0)


def test_replans_in_mid_swing_are_continuous():
    """Position, velocity and acceleration agree where the new motion takes over the old one."""
    made = generator()
    hit_ns = 600 * MS
    previous = made.hit(plan_for([0.3, 0.2, 0.2, 0.3], [0.0, 1.0, 0.0, -8.0], hit_ns), 0).trajectory
    for k in range(1, 40):
        now = k * 8 * MS
        q = [0.3 + 0.0005 * k, 0.2 - 0.0003 * k, 0.2, 0.3]
        result = made.hit(plan_for(q, [0.0, 1.0, 0.0, -8.0], hit_ns), now)
        if result.trajectory is None:
            assert result.reason is TrajectoryReason.LIMIT
            continue
        start_ns = result.trajectory.capture_stamp_ns + round(result.trajectory.times_s[0] * NS_PER_S)
        before = sample(previous, start_ns)
        for old, new in zip(
            before, (result.trajectory.pos[0], result.trajectory.vel[0], result.trajectory.acc[0])
        ):
            np.testing.assert_allclose(new, old, atol=1e-6)
        previous = result.trajectory
    assert_inside_limits(previous)


def test_impossible_requests_are_refused_and_the_motion_goes_on():
    """Each with its reason; the commanded trajectory stays the same object."""
    assert TrajectoryGenerator(ROBOT).ready(0).reason is TrajectoryReason.NO_REFERENCE
    made = generator()
    q, qd = HITS[0]
    before = made.current
    assert made.hit(plan_for(q, qd, 5 * MS), 0).reason is TrajectoryReason.TOO_LATE
    assert made.hit(plan_for(q, qd, -500 * MS), 0).reason is TrajectoryReason.TOO_LATE
    assert made.hit(plan_for(q, qd, 60 * MS), 0).reason is TrajectoryReason.LIMIT
    far = plan_for(q, qd, 600 * MS)
    deep = HitPlan(
        0,
        600 * MS,
        far.racket_pos_table + np.array([0.0, 0.1, 0.0]),
        far.racket_quat_xyzw,
        far.racket_vel_table,
        far.racket_angvel_table,
        HitKind.AIM,
        far.aim_table,
        0.1,
    )
    assert made.hit(deep, 0).reason is TrajectoryReason.UNREACHABLE
    for wrong in (plan_for(q, [0.0, np.nan, 0.0, 0.0], 600 * MS),):
        assert made.hit(wrong, 0).reason is TrajectoryReason.NOT_FINITE
    assert made.go_to(np.array([9.0, 0.0, 0.0, 0.0]), 0).reason is TrajectoryReason.LIMIT
    assert made.go_to(np.full(4, np.nan), 0).reason is TrajectoryReason.NOT_FINITE
    assert made.current is before


def test_stop_keeps_the_limits():
    """From full speed, and it ends at rest."""
    made = generator()
    made.hit(plan_for(*HITS[1], 500 * MS), 0)
    result = made.stop(440 * MS)
    assert result.reason is TrajectoryReason.OK
    assert_inside_limits(result.trajectory)
    np.testing.assert_allclose(result.trajectory.vel[-1], 0.0)


def test_racket_stays_out_of_the_table():
    """A low pose with the racket leaning over the table end is refused; the same pose upright is not."""
    made = generator()
    leaning = np.array([0.0, -0.20, 0.0, -1.0])
    assert made.go_to(leaning, 0).reason is TrajectoryReason.KEEP_OUT
    assert made.go_to(np.array([0.0, -0.20, 0.0, 0.3]), 0).reason is TrajectoryReason.OK


def test_path_clearance_is_never_above_what_sampling_finds():
    """The conservative bound along a path against dense samples of the same racket."""
    keep_out = KeepOut(ROBOT, margin_m=-1.0)
    q0, q1 = np.array([0.0, 0.0, 0.0, 0.4]), np.array([0.5, -0.1, 0.4, -0.9])
    path = JointTrajectory(
        0, ROBOT.joint_names, np.array([0.0, 0.3]), np.array([q0, q1]), np.zeros((2, 4)), np.zeros((2, 4))
    )
    dense = min(keep_out.clearance(sample(path, int(t * NS_PER_S))[0]) for t in np.linspace(0, 0.3, 3000))
    # A margin just above the dense minimum must be seen as broken, one well below as kept.
    assert not KeepOut(ROBOT, margin_m=dense + 1e-3).path_is_free(path)
    assert KeepOut(ROBOT, margin_m=dense - 1e-3).path_is_free(path)


def test_box_separation_is_a_lower_bound_of_the_distance():
    """Against the nearest of many points of both boxes."""
    rng = np.random.default_rng(5)
    box = np.array([0.0, 0.0, -0.38, 0.76, 1.37, 0.38])
    half = np.array([0.075, 0.007, 0.08])
    for _ in range(200):
        rot = matrix_from_quat(rng.normal(size=4))
        centre = np.array([0.4, -1.45, 0.05]) + 0.15 * rng.normal(size=3)
        points = centre + (rng.uniform(-1, 1, size=(400, 3)) * half) @ rot.T
        outside = np.maximum(np.abs(points - box[:3]) - box[3:], 0.0)
        nearest = np.linalg.norm(outside, axis=1).min()
        assert max(box_separation(centre, rot, half, box), 0.0) <= nearest + 1e-12


def test_messages_come_back_as_they_went():
    """Both wire forms."""
    made = generator()
    plan = plan_for(*HITS[0], 450 * MS, capture_ns=20 * MS)
    back = hit_plan_from_msg(hit_plan_to_msg(plan))
    assert (back.hit_stamp_ns, back.capture_stamp_ns, back.kind) == (450 * MS, 20 * MS, HitKind.AIM)
    np.testing.assert_array_equal(back.racket_pos_table, plan.racket_pos_table)
    np.testing.assert_array_equal(back.racket_vel_table, plan.racket_vel_table)
    trajectory = made.hit(plan, 50 * MS).trajectory
    again = joint_trajectory_from_msg(joint_trajectory_to_msg(trajectory))
    np.testing.assert_array_equal(again.pos, trajectory.pos)
    np.testing.assert_allclose(again.times_s, trajectory.times_s, atol=1e-9)
    message = joint_trajectory_to_msg(trajectory)
    message.points[1].positions = [0.0]
    with pytest.raises(MessageError, match="point 1"):
        joint_trajectory_from_msg(message)


def test_own_frame_is_kept_out_of():
    """What stands still of the robot counts as an obstacle: here the pedestal of the arm."""
    arm = load_robot("arm6")
    keep_out = KeepOut(arm)
    surroundings = KeepOut(arm, boxes=keep_out.boxes[:3])
    assert len(keep_out.boxes) == 4
    rng = np.random.default_rng(2)
    found = 0
    for _ in range(3000):
        q = rng.uniform(arm.lower, arm.upper)
        if surroundings.clearance(q) > 0.05 and keep_out.clearance(q) < 0.0:
            found += 1
            inside = JointTrajectory(
                0, arm.joint_names, np.array([0.0, 0.1]), np.array([q, q]), np.zeros((2, 6)), np.zeros((2, 6))
            )
            assert not keep_out.path_is_free(inside)
    assert found > 0


@pytest.mark.parametrize("name", ["gantry4", "gantry5"])
def test_racket_of_a_gantry_cannot_reach_the_parts_that_carry_it(name):
    """They move with it, so they are no obstacles: column and wrist block stay clear at every tilt."""
    robot = load_robot(name)
    root = ElementTree.fromstring(robot.urdf)
    last = "x_carriage" if name == "gantry4" else "y_carriage"
    boxes = []
    for link in (last, "z_carriage"):
        shape = root.find(f"link[@name='{link}']/visual")
        size = np.array([float(v) for v in shape.find("geometry/box").get("size").split()])
        boxes.append(np.concatenate([origin(shape)[:3, 3], 0.5 * size]))
    half = 0.5 * np.array([robot.racket.width, robot.racket.thickness, robot.racket.height])
    rot = np.empty((3, 3))
    for yaw in np.linspace(robot.lower[-2], robot.upper[-2], 13):
        for pitch in np.linspace(robot.lower[-1], robot.upper[-1], 13):
            gantry_rotation(yaw, pitch, rot)
            centre = robot.racket.length * rot[:, 2]
            beside = np.array([centre[0], centre[1], boxes[0][2]])  # the column is longer than the stroke
            for at, box in ((beside, boxes[0]), (centre, boxes[1])):
                assert box_separation(at, rot, half, box) > 0.01
