"""The simulated room: the robot of a URDF in MuJoCo, table and net, and one event-based ball.

Torques enter per motor id and positions leave per motor id, in the units the boards use (turns and N m at
the board's output), so that nothing but the motor bus moves the robot. The racket's motion over a step is
handed to the ball; the ball's impulse is handed back to the robot.
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import mujoco
import numpy as np
from numpy.typing import NDArray

from tt_control.config import control_config
from tt_estimation.ball_models import BallModel
from tt_perception.table import (
    BALL_MASS_KG,
    BALL_RADIUS_M,
    NET_HEIGHT_M,
    NET_OVERHANG_M,
    TABLE_LENGTH_M,
    TABLE_WIDTH_M,
)
from tt_planning.robot import RobotModel
from tt_sim.ball import N_RACKET, NET_THICKNESS_M, TABLE_THICKNESS_M, Ball, BallContact, Surface
from tt_sim.errors import SimError

FloatArray = NDArray[np.float64]

STEP_S = 0.001
# Mechanical end stops lie this far beyond the limits in use; the controller tolerates 8 mm and 0.04 rad.
END_STOP_MARGIN_M = 0.004
END_STOP_MARGIN_RAD = 0.02
END_STOP_SOLREF = (0.005, 1.0)  # stiff: the heaviest axis sinks in by less than 1 mm


def build_model(robot: RobotModel, step_s: float = STEP_S) -> mujoco.MjModel:
    """MuJoCo model of the robot with table and net; only racket against table and net can collide.

    Raises:
        SimError: MuJoCo cannot read the URDF.
    """
    try:
        spec = mujoco.MjSpec.from_file(str(robot.urdf_path))
    except ValueError as error:
        raise SimError(f"MuJoCo cannot read {robot.urdf_path}: {str(error).splitlines()[0]}") from None
    spec.option.timestep = step_s
    spec.option.integrator = mujoco.mjtIntegrator.mjINT_IMPLICITFAST
    spec.option.gravity = [0.0, 0.0, -9.81]
    for body in spec.bodies:
        for geom in body.geoms:
            collides = body.name == robot.racket.link
            geom.contype = geom.conaffinity = int(collides)
    rotors = control_config(robot, robot.control).motor_inertia
    for name, lower, upper, rotor in zip(robot.joint_names, robot.lower, robot.upper, rotors, strict=True):
        joint = spec.joint(name)
        joint.armature = rotor  # the URDF has no place for what the gears make of the rotor
        slide = joint.type == mujoco.mjtJoint.mjJNT_SLIDE
        margin = END_STOP_MARGIN_M if slide else END_STOP_MARGIN_RAD
        joint.range = [lower - margin, upper + margin]
        joint.solref_limit = END_STOP_SOLREF
    boxes = {
        "table_top": (
            (0.0, 0.0, -TABLE_THICKNESS_M / 2),
            (TABLE_WIDTH_M / 2, TABLE_LENGTH_M / 2, TABLE_THICKNESS_M / 2),
        ),
        "net": (
            (0.0, 0.0, NET_HEIGHT_M / 2),
            (TABLE_WIDTH_M / 2 + NET_OVERHANG_M, NET_THICKNESS_M / 2, NET_HEIGHT_M / 2),
        ),
    }
    for name, (pos, size) in boxes.items():
        spec.worldbody.add_geom(
            name=name, type=mujoco.mjtGeom.mjGEOM_BOX, pos=pos, size=size, rgba=[0.1, 0.25, 0.5, 1.0]
        )
    return spec.compile()


class World:
    """Robot, table, net and ball, stepped together.

    Args:
        robot: the robot to build.
        ball_model: flight and contact laws of the ball.
        step_s: physics step.
        start: joint positions at the start; home when None.

    Attributes:
        end_stops: lower and upper mechanical stop per joint, shape (n, 2), m or rad.
        is_linear: True for linear axes, shape (n,).
        parked: the robot stands as if held by a parking brake; the first torque releases it for good.
    """

    def __init__(
        self,
        robot: RobotModel,
        ball_model: BallModel,
        step_s: float = STEP_S,
        start: FloatArray | None = None,
    ) -> None:
        self.robot = robot
        self.step_s = step_s
        self.time_s = 0.0
        self.model = build_model(robot, step_s)
        self.data = mujoco.MjData(self.model)
        racket = robot.racket
        self.ball = Ball(ball_model, (racket.width, racket.thickness, racket.height))
        self.ball_in_play = False
        self.parked = True
        joints = [self.model.joint(name) for name in robot.joint_names]
        slide = mujoco.mjtJoint.mjJNT_SLIDE
        self.end_stops = np.array([j.range for j in joints])
        self.is_linear = np.array([j.type[0] == slide for j in joints])
        self._qpos = np.array([j.qposadr[0] for j in joints])
        self._dof = np.array([j.dofadr[0] for j in joints])
        self._racket_body = self.model.body(racket.link).id
        # Turns per joint unit with sign; joint force = torque · dω/dq̇ = torque · 2π · turns per unit.
        self._turns = np.array([m.sign * m.turns_per_unit for m in robot.motors])
        self._zero = np.array([m.zero for m in robot.motors])
        self._force = 2.0 * math.pi * self._turns
        self.motor_ids = tuple(m.id for m in robot.motors)
        self._index: dict[int | str, int] = {motor: k for k, motor in enumerate(self.motor_ids)}
        self._torque = np.zeros(len(robot.motors))
        self._racket_start = np.zeros(N_RACKET)
        self._racket_end = np.zeros(N_RACKET)
        self._velocity = np.zeros(6)
        self.reset(robot.home if start is None else start)

    def reset(self, q: FloatArray) -> None:
        """Robot at rest at `q`, no ball, time zero."""
        mujoco.mj_resetData(self.model, self.data)
        self.data.qpos[self._qpos] = q
        self.time_s = 0.0
        self.ball_in_play = False
        self.parked = True
        self._torque[:] = 0.0
        mujoco.mj_step1(self.model, self.data)
        self._read_racket(self._racket_end)

    @property
    def q(self) -> FloatArray:
        """Joint positions in robot order."""
        return self.data.qpos[self._qpos]

    @property
    def qd(self) -> FloatArray:
        """Joint velocities in robot order."""
        return self.data.qvel[self._dof]

    @property
    def racket(self) -> FloatArray:
        """Racket sample now (N_RACKET,); a view that the next step overwrites."""
        return self._racket_end

    def torques(self, torque_nm: Mapping[int | str, float]) -> None:
        """Torque of each motor (its id) at its board's output, N m, until the next call; others keep theirs."""
        for motor, value in torque_nm.items():
            self._torque[self._index[motor]] = value

    def read(self, motor: int | str) -> tuple[float, float]:
        """Position (turns) and velocity (turns/s) of the output of a motor (its id), as its board sees them."""
        k = self._index[motor]
        turns = self._turns[k]
        q = self.data.qpos[self._qpos[k]]
        qd = self.data.qvel[self._dof[k]]
        return float(turns * (q - self._zero[k])), float(turns * qd)

    def serve(self, state: FloatArray) -> None:
        """Put a new ball into play at `state` (position, velocity, spin)."""
        self.ball.reset(state, self.time_s)
        self.ball_in_play = True

    def remove_ball(self) -> None:
        """Take the ball out of play."""
        self.ball_in_play = False

    def step(self) -> list[BallContact]:
        """Advance by one physics step.

        Returns:
            The ball's contacts during the step.
        """
        if self.parked:
            self.parked = not self._torque.any()
        if self.parked:
            self._racket_start[:] = self._racket_end
        else:
            self._step_robot()
        contacts: list[BallContact] = []
        if self.ball_in_play:
            contacts = self.ball.advance(self.step_s, self._racket_start, self._racket_end)
            for contact in contacts:
                if contact.surface is Surface.RACKET:
                    self._push_racket(contact)
        self.time_s += self.step_s
        return contacts

    def _step_robot(self) -> None:
        self.data.qfrc_applied[self._dof] += self._force * self._torque
        mujoco.mj_step2(self.model, self.data)
        self.data.qfrc_applied[:] = 0.0
        mujoco.mj_step1(self.model, self.data)
        self._racket_start, self._racket_end = self._racket_end, self._racket_start
        self._read_racket(self._racket_end)

    def _read_racket(self, out: FloatArray) -> None:
        data, body = self.data, self._racket_body
        mujoco.mj_objectVelocity(self.model, data, mujoco.mjtObj.mjOBJ_XBODY, body, self._velocity, 0)
        out[0:3] = data.xpos[body]
        out[3:12] = data.xmat[body]
        out[12:15] = self._velocity[3:]
        out[15:18] = self._velocity[:3]

    def _push_racket(self, contact: BallContact) -> None:
        """The ball's impulse acts on the robot as a force over the next step."""
        force = -BALL_MASS_KG * (contact.vel_after - contact.vel_before) / self.step_s
        point = contact.pos_table - BALL_RADIUS_M * contact.normal_table
        mujoco.mj_applyFT(
            self.model, self.data, force, np.zeros(3), point, self._racket_body, self.data.qfrc_applied
        )
