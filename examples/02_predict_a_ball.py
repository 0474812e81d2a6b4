"""Predicts where a ball goes: the pure estimation modules, no ROS.

.venv/bin/python examples/02_predict_a_ball.py
"""

import numpy as np

from tt_estimation.ball_models import NOMINAL
from tt_estimation.prediction import Predictor
from tt_estimation.types import BallState

state = BallState(
    stamp_ns=0,
    pos_table=np.array([0.0, 1.2, 0.25]),
    vel_table=np.array([0.0, -6.0, 1.0]),
    spin_table=np.array([50.0, 0.0, 0.0]),
    cov=np.diag([1e-6] * 3 + [1e-3] * 3 + [25.0] * 3),
)
prediction = Predictor(NOMINAL).predict(state, bounces_before=0)
x, y, _ = prediction.bounce_pos_table
print(f"bounces after {prediction.bounce_time_s:.3f} s at x = {x:.2f} m, y = {y:.2f} m")
sigma_cm = 100.0 * np.sqrt(np.diag(prediction.cov[-1]))
print(f"ends: {prediction.end.value}; uncertainty there {np.round(sigma_cm, 1)} cm")
