"""Ball constants as small named objects, and the parameter vector that the kernels read.

A `BallModel` is drag + lift + contact laws. The kernels in `flight` and `contact` take its `params` vector,
so that one compiled kernel serves every model. Index constants `P_*` name the entries.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
from numpy.typing import NDArray

from tt_perception.table import BALL_MASS_KG, BALL_RADIUS_M

FloatArray = NDArray[np.float64]

GRAVITY_MPS2 = 9.81
AIR_DENSITY_KGPM3 = 1.225  # ISA, sea level, 15 °C

# Entries of the parameter vector.
P_G = 0  # gravity, m/s²
P_K = 1  # ½ ρ A / m, 1/m
P_CD0 = 2  # drag coefficient at S = 0
P_CD1 = 3  # slope of the drag coefficient with the spin ratio S
P_CL = 4  # lift: C_L = P_CL · S (linear) or P_CL · S / (P_CLS + S) (saturating)
P_CLS = 5  # half-saturation spin ratio; 0 selects the linear law
P_DECAY = 6  # spin decay rate, 1/s
P_RADIUS = 7  # ball radius, m
P_E_TABLE = 8  # table restitution at vanishing impact speed
P_E_TABLE1 = 9  # its change per m/s of impact speed
P_MU_TABLE = 10  # table friction
P_E_RACKET = 11  # racket restitution at vanishing impact speed
P_E_RACKET1 = 12  # its change per m/s of impact speed
P_MU_RACKET = 13  # racket friction
N_PARAMS = 14


@dataclass(frozen=True, slots=True)
class BallModel:
    """Flight and contact constants of a table tennis ball.

    Flight: m dv/dt = m g − ½ρ C_D(S) A |v| v + ½ρ A r (C_L(S)/S) (ω × v), with the spin ratio
    S = r |ω × v̂| / |v|. Contact: see `contact`.

    Attributes:
        name: how configuration files call it.
        drag: C_D at S = 0.
        drag_slope: change of C_D per unit of S.
        lift: C_M of the linear law C_L = C_M S, or the plateau of the saturating law.
        lift_half_ratio: spin ratio of half saturation; 0 for the linear law.
        air_density: kg/m³.
        spin_decay: 1/s, spin decays as exp(−rate · t).
        table_restitution, table_restitution_slope: e = e₀ + slope · |v_n|.
        table_friction: Coulomb coefficient.
        racket_restitution, racket_restitution_slope, racket_friction: the same for the racket.
    """

    name: str
    drag: float = 0.47
    drag_slope: float = 0.0
    lift: float = 0.6
    lift_half_ratio: float = 0.0
    air_density: float = AIR_DENSITY_KGPM3
    spin_decay: float = 0.0
    table_restitution: float = 0.876
    table_restitution_slope: float = 0.0
    table_friction: float = 0.25
    racket_restitution: float = 0.8
    racket_restitution_slope: float = 0.0
    racket_friction: float = 0.5
    params: FloatArray = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        area = np.pi * BALL_RADIUS_M**2
        p = np.zeros(N_PARAMS)
        p[P_G] = GRAVITY_MPS2
        p[P_K] = 0.5 * self.air_density * area / BALL_MASS_KG
        p[P_CD0] = self.drag
        p[P_CD1] = self.drag_slope
        p[P_CL] = self.lift
        p[P_CLS] = self.lift_half_ratio
        p[P_DECAY] = self.spin_decay
        p[P_RADIUS] = BALL_RADIUS_M
        p[P_E_TABLE] = self.table_restitution
        p[P_E_TABLE1] = self.table_restitution_slope
        p[P_MU_TABLE] = self.table_friction
        p[P_E_RACKET] = self.racket_restitution
        p[P_E_RACKET1] = self.racket_restitution_slope
        p[P_MU_RACKET] = self.racket_friction
        p.setflags(write=False)
        object.__setattr__(self, "params", p)

    def with_values(self, **changes: float) -> BallModel:
        """A copy with some constants replaced."""
        return replace(self, **changes)  # type: ignore[arg-type]


NOMINAL = BallModel("nominal")
"""Defaults of the analytic model; drop test 30 cm → 23 cm without air, Nakashima 2010 friction."""

DEEPMIND = BallModel("deepmind", drag=0.471, lift=1.33, table_restitution=0.975, table_friction=0.10)
"""What the public MuJoCo ball of D'Ambrosio et al. (2024) amounts to."""

MATCH = BallModel(
    "match",
    drag=0.482,
    drag_slope=-0.015,
    lift=0.327,
    lift_half_ratio=0.368,
    table_restitution=0.873,
    table_friction=0.25,
)
"""Spin-ratio dependent drag and saturating lift, as match data support."""

MODELS: dict[str, BallModel] = {m.name: m for m in (NOMINAL, DEEPMIND, MATCH)}
