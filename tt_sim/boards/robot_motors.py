"""Stand-alone motors with the inertia, friction and weight that a robot's axes have.

Lets `tt sim bus --robot …` offer boards that feel like the robot without simulating it: axes do not influence
each other, and weight and inertia stay those of the pose the world is in.
"""

import math
from typing import TYPE_CHECKING

from tt_planning.robot import RobotModel
from tt_sim.boards.plant import MotorSpec

if TYPE_CHECKING:
    from tt_sim.world import World


def robot_motors(robot: RobotModel, world: "World") -> dict[int | str, MotorSpec]:
    """Return one `MotorSpec` per motor of a robot, by board id.

    Source: diagonal of MuJoCo's mass matrix and its bias force at the world's pose, divided by (2π turns)²
    and by 2π turns of the motor; damping from the URDF; end stops where the simulated robot has them.
    """
    import mujoco
    import numpy as np

    model, data = world.model, world.data
    mujoco.mj_forward(model, data)
    mass = np.zeros((model.nv, model.nv))
    # MuJoCo 3.4 changed the argument order of mj_fullM; multiplying by unit vectors works with every version.
    for k in range(model.nv):
        unit = np.zeros(model.nv)
        unit[k] = 1.0
        mujoco.mj_mulM(model, data, mass[k], unit)
    motors: dict[int | str, MotorSpec] = {}
    for motor, name, start, stops in zip(
        robot.motors, robot.joint_names, world.q, world.end_stops, strict=True
    ):
        dof = model.joint(name).dofadr[0]
        turns = motor.sign * motor.turns_per_unit
        gear = 2.0 * math.pi * turns  # rad of the motor per unit of the joint
        ends = sorted(float(turns * (end - motor.zero)) for end in stops)
        motors[motor.id] = MotorSpec(
            inertia=float(mass[dof, dof]) / gear**2,
            viscous=float(model.dof_damping[dof]) / gear**2,
            gravity=float(data.qfrc_bias[dof]) / gear,
            position=float(turns * (start - motor.zero)),
            lower=ends[0],
            upper=ends[1],
        )
    return motors
