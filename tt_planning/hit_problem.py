"""What the compiled hit search works on: the layout of its vectors, and the inputs of one decision in one tuple."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

FloatArray = NDArray[np.float64]

# Candidate vector.
X_RISE, X_FLIGHT, X_AIM_X, X_AIM_Y, X_PLACE, X_EXTRA, X_SIDE = range(7)
N_X = 7

# Robot vector.
# R_DEPTH: 0 gantry4, 1 gantry5, 2 any robot whose face moves along its normal (`free_stroke`).
R_DEPTH, R_BASE_X, R_BASE_Y, R_BASE_Z, R_LENGTH, R_OFFSET, R_FACE, R_HALF_W, R_HALF_H, R_HALF_T = range(10)
N_R = 10

# Noise vector: standard deviations of the actuators.
S_LINEAR, S_ANGLE, S_SPEED, S_TIME = range(4)

# Weights and limits of the cost.
W_LANDING, W_LOAD, W_EFFORT, W_CHANGE, W_NET, W_EDGE, W_LIMIT, W_AIMED, W_PLACE = range(9)
N_W = 9

# Result vector.
O_Q = 0  # joints, 5
O_QD = 5  # joint velocities, 5
O_POS = 10  # ball at contact, 3
O_NORMAL = 13  # 3
O_VOUT = 16  # outgoing ball velocity, 3
O_WOUT = 19  # outgoing spin, 3
O_LOAD = 22
O_P_HIT = 23
O_P_LAND = 24
O_ERROR = 25  # expected landing error, m
O_CODE = 26
O_CLEARANCE = 27
O_CENTRE = 28  # blade centre, 3
O_TIME = 31  # hit time, s after the capture
O_U = 32  # solved pitch, yaw, forward speed of the face, 3
N_O = 35

# Why a candidate is no good, in the order in which it is found.
C_OK, C_TIME, C_DEPTH, C_AIM, C_NET, C_LIMIT, C_TABLE = range(7)


class HitProblem(NamedTuple):
    """Inputs of one decision; times count from the capture stamp of the ball state, SI units, frame `table`.

    Every array must be writable and contiguous: a kernel is compiled again, for seconds, for arrays that are not.

    Attributes:
        times: of the samples of the predicted path, shape (n,).
        states: position, velocity, spin there, shape (n, 9).
        pos_cov: position covariance there, shape (n, 3, 3).
        state_cov: covariance of the ball state, shape (9, 9).
        earliest, latest: hits are looked for in between.
        p: ball parameters.
        rob: robot vector, `R_DEPTH` …
        lower, upper, max_vel, max_acc: joint limits, shape (joints,).
        start_time: when a motion decided now starts.
        q0, qd0, qdd0: joints, velocities, accelerations then, shape (joints,).
        noise: standard deviations of the actuators, `S_LINEAR` …
        weight: weights and limits of the cost, `W_LANDING` …
        table_box: centre and half extents of the table, shape (6,).
    """

    times: FloatArray
    states: FloatArray
    pos_cov: FloatArray
    state_cov: FloatArray
    earliest: float
    latest: float
    p: FloatArray
    rob: FloatArray
    lower: FloatArray
    upper: FloatArray
    max_vel: FloatArray
    max_acc: FloatArray
    start_time: float
    q0: FloatArray
    qd0: FloatArray
    qdd0: FloatArray
    noise: FloatArray
    weight: FloatArray
    table_box: FloatArray
