"""Rigid-body dynamics of a serial robot: M(q) q̈ + C(q, q̇) q̇ + g(q) + f(q̇) = τ + τ_ext.

MuJoCo is the engine for mass matrix and recursive Newton-Euler; the Christoffel matrix, friction, forward
dynamics, energy, power and elastic joints are ours, because MuJoCo has no function for them. Units: m, rad,
kg, N and N m. Sources: Featherstone (2008), chapters 5 and 6; Spong (1987) for elastic joints.
"""

from __future__ import annotations

from dataclasses import dataclass

import mujoco
import numpy as np
from numpy.typing import ArrayLike, NDArray

from tt_control.errors import ControlError
from tt_planning.robot import RobotModel

FloatArray = NDArray[np.float64]
GRAVITY_M_S2 = 9.81
# Speed below which Coulomb friction fades, m/s or rad/s: far below any swing, far above encoder noise.
COULOMB_SPEED = 0.02
# Step of the central differences of M(q): rounding and truncation errors are both near 1e-10 here.
_STEP = 1e-5


@dataclass(frozen=True, slots=True)
class Friction:
    """f(q̇) = viscous q̇ + coulomb tanh(q̇ / speed), per joint.

    Attributes:
        viscous: N s/m or N m s/rad, shape (n,).
        coulomb: N or N m, shape (n,).
        speed: where the Coulomb part has 76 % of its value, m/s or rad/s.
    """

    viscous: FloatArray
    coulomb: FloatArray
    speed: float = COULOMB_SPEED

    def __post_init__(self) -> None:
        """Refuses friction that would drive the joints.

        Raises:
            ControlError: a negative or non-finite coefficient.
        """
        for name in ("viscous", "coulomb"):
            values = np.asarray(getattr(self, name), dtype=float)
            if not np.isfinite(values).all() or (values < 0).any():
                raise ControlError(f"{name} friction is {values.tolist()}; every entry must be 0 or more")
        if not self.speed > 0:
            raise ControlError(f"friction speed is {self.speed}; it must be more than 0")

    def effort(self, qd: FloatArray) -> FloatArray:
        """Effort that friction takes at these velocities, shape (n,)."""
        return self.viscous * qd + self.coulomb * np.tanh(qd / self.speed)


class RigidBody:
    """Dynamics of one robot.

    One object holds one workspace and is not thread-safe; returned arrays belong to the caller.

    Args:
        model: MuJoCo model with hinge and slide joints only.
        armature: reflected rotor inertia per joint (r² J_m), shape (n,); zero when None.
        friction: joint friction; none when None.

    Attributes:
        n: number of joints.
        is_linear: which joints slide, shape (n,).
    """

    def __init__(
        self, model: mujoco.MjModel, armature: ArrayLike | None = None, friction: Friction | None = None
    ) -> None:
        """Prepares the workspace.

        Raises:
            ControlError: ball or free joints, or an inertia that is negative.
        """
        if model.nq != model.nv:
            raise ControlError(
                "the dynamics need hinge and slide joints only; this model has ball or free joints"
            )
        self.n = n = int(model.nv)
        self._model = model
        self._data = mujoco.MjData(model)
        self.armature = np.zeros(n) if armature is None else np.asarray(armature, dtype=float).reshape(n)
        if not (self.armature >= 0).all():
            raise ControlError(
                f"reflected inertias are {self.armature.tolist()}; every entry must be 0 or more"
            )
        self.friction = friction or Friction(np.zeros(n), np.zeros(n))
        # What MuJoCo would add by itself is taken out: armature and damping are ours.
        model.dof_armature[:] = 0.0
        model.dof_damping[:] = 0.0
        self.is_linear = np.asarray(model.jnt_type == mujoco.mjtJoint.mjJNT_SLIDE)
        self._mass = np.zeros((n, n))
        self._column, self._unit = np.zeros(n), np.eye(n)
        self._effort = np.zeros(n)
        # Looking one of these up takes as long as a kinematics pass.
        self._qpos, self._qvel, self._qacc = self._data.qpos, self._data.qvel, self._data.qacc
        self._is_frictionless = not (self.friction.viscous.any() or self.friction.coulomb.any())

    @classmethod
    def from_urdf(
        cls, urdf: str, armature: ArrayLike | None = None, friction: Friction | None = None
    ) -> RigidBody:
        """Reads a URDF text; friction defaults to the URDF's `dynamics` damping and friction.

        Raises:
            ControlError: MuJoCo cannot read it.
        """
        try:
            model = mujoco.MjModel.from_xml_string(urdf)
        except ValueError as error:
            raise ControlError(f"MuJoCo cannot read the URDF: {str(error).splitlines()[0]}") from None
        model.opt.gravity[:] = (0.0, 0.0, -GRAVITY_M_S2)
        if friction is None:
            friction = Friction(model.dof_damping.flatten(), model.dof_frictionloss.flatten())
        return cls(model, armature, friction)

    @classmethod
    def from_robot(
        cls, robot: RobotModel, armature: ArrayLike | None = None, friction: Friction | None = None
    ) -> RigidBody:
        """Dynamics of a robot description; joints in robot order, which is the URDF's order."""
        return cls.from_urdf(robot.urdf, armature, friction)

    # ------------------------------------------------------------------ terms

    def mass_matrix(self, q: FloatArray) -> FloatArray:
        """M(q) with reflected inertias on the diagonal, symmetric positive definite, shape (n, n)."""
        self._place(q)
        mujoco.mj_crb(self._model, self._data)
        # mj_fullM changed its arguments within MuJoCo 3; multiplying by unit vectors works with every
        # version.
        for k in range(self.n):
            mujoco.mj_mulM(self._model, self._data, self._column, self._unit[k])
            self._mass[:, k] = self._column
        mass = self._mass + np.diag(self.armature)
        return 0.5 * (mass + mass.T)

    def gravity(self, q: FloatArray) -> FloatArray:
        """g(q): effort that holds the robot still, shape (n,)."""
        return self._newton_euler(q, np.zeros(self.n), np.zeros(self.n))

    def coriolis_matrix(self, q: FloatArray, qd: FloatArray) -> FloatArray:
        """C(q, q̇) from Christoffel symbols, shape (n, n); with it Ṁ − 2 C is skew-symmetric.

        C_ij = ½ Σ_k (∂M_ij/∂q_k + ∂M_ik/∂q_j − ∂M_jk/∂q_i) q̇_k. The derivatives are central differences
        of M, exact to about 1e-9 of its entries.
        """
        slope = self.mass_derivative(q)
        first = slope @ qd
        second = np.einsum("ikj,k->ij", slope, qd)
        third = np.einsum("jki,k->ij", slope, qd)
        return 0.5 * (first + second - third)

    def mass_derivative(self, q: FloatArray) -> FloatArray:
        """∂M_ij/∂q_k, shape (n, n, n)."""
        q = np.asarray(q, dtype=float)
        slope = np.empty((self.n, self.n, self.n))
        for k in range(self.n):
            step = np.zeros(self.n)
            step[k] = _STEP
            slope[:, :, k] = (self.mass_matrix(q + step) - self.mass_matrix(q - step)) / (2.0 * _STEP)
        return slope

    # ------------------------------------------------------------------ dynamics

    def inverse(self, q: FloatArray, qd: FloatArray, qdd: FloatArray) -> FloatArray:
        """Effort for a motion, friction and reflected inertia included, shape (n,)."""
        effort = self._newton_euler(q, qd, qdd) + self.armature * qdd
        return effort if self._is_frictionless else effort + self.friction.effort(qd)

    def forward(
        self, q: FloatArray, qd: FloatArray, effort: FloatArray, external: FloatArray | None = None
    ) -> FloatArray:
        """Acceleration under joint efforts, by a Cholesky solve, shape (n,)."""
        bias = self._newton_euler(q, qd, np.zeros(self.n)) + self.friction.effort(qd)
        right = effort - bias if external is None else effort + external - bias
        lower = np.linalg.cholesky(self.mass_matrix(q))
        half = np.linalg.solve(lower, right)
        return np.linalg.solve(lower.T, half)

    def _place(self, q: FloatArray) -> None:
        self._qpos[:] = q
        mujoco.mj_kinematics(self._model, self._data)
        mujoco.mj_comPos(self._model, self._data)

    def _newton_euler(self, q: FloatArray, qd: FloatArray, qdd: FloatArray) -> FloatArray:
        model, data = self._model, self._data
        self._qpos[:], self._qvel[:], self._qacc[:] = q, qd, qdd
        mujoco.mj_kinematics(model, data)
        mujoco.mj_comPos(model, data)
        mujoco.mj_comVel(model, data)
        mujoco.mj_rne(model, data, 1, self._effort)
        return self._effort.copy()

    # ------------------------------------------------------------------ energy

    def energy(self, q: FloatArray, qd: FloatArray) -> tuple[float, float]:
        """Kinetic and potential energy, J; the potential one is zero when all masses lie at z = 0."""
        kinetic = 0.5 * float(qd @ self.mass_matrix(q) @ qd)
        self._place(q)
        height = self._data.xipos[:, 2] @ self._model.body_mass
        return kinetic, GRAVITY_M_S2 * float(height)

    def power(self, qd: FloatArray, effort: FloatArray) -> float:
        """Rate of change of the energy, W: Ė = q̇ᵀτ − q̇ᵀf(q̇)."""
        return float(qd @ effort - qd @ self.friction.effort(qd))


def reflected_inertia(ratio: float, rotor_inertia: float) -> float:
    """Rotor inertia as the joint feels it, r² J_m; ratio in rad of the rotor per m or rad of the joint."""
    return ratio * ratio * rotor_inertia


@dataclass(frozen=True, slots=True)
class ElasticJoints:
    """Joints driven through springs: M q̈ + C q̇ + g + f = K(θ − q), J θ̈ + B θ̇ + K(θ − q) = τ.

    Attributes:
        stiffness: K, N/m or N m/rad at the joint, shape (n,).
        rotor_inertia: J, reflected to the joint, kg or kg m².
        rotor_damping: B, N s/m or N m s/rad.
    """

    stiffness: FloatArray
    rotor_inertia: FloatArray
    rotor_damping: FloatArray

    def accelerations(
        self,
        body: RigidBody,
        q: FloatArray,
        qd: FloatArray,
        theta: FloatArray,
        theta_d: FloatArray,
        effort: FloatArray,
    ) -> tuple[FloatArray, FloatArray]:
        """Link and rotor accelerations; `body` must not carry the rotors as reflected inertia too."""
        spring = self.stiffness * (theta - q)
        rotor = (effort - self.rotor_damping * theta_d - spring) / self.rotor_inertia
        return body.forward(q, qd, spring), rotor

    def energy(self, q: FloatArray, theta: FloatArray, theta_d: FloatArray) -> float:
        """Energy in springs and rotors, J."""
        stretch = theta - q
        return 0.5 * float(stretch @ (self.stiffness * stretch) + theta_d @ (self.rotor_inertia * theta_d))
