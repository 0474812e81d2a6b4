"""After the warm-up nothing is compiled any more: a kernel that compiles during a ball loses the ball."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

_SCRIPT = """
import importlib, pkgutil, sys
from numba.core.dispatcher import Dispatcher
import tt_estimation, tt_perception, tt_planning
sys.path.insert(0, sys.argv[1])
from test_pipeline import rally
from tt_estimation.ball_models import NOMINAL
from tt_estimation.prediction import Predictor
from tt_estimation.warm_up import warm_up
from tt_perception.camera import default_sim_cameras
from tt_planning.pipeline import Event, Joints, Pipeline
from tt_planning.planners import make_planner
from tt_planning.robot import load_robot
from tt_planning.warm_up import warm_up_generator, warm_up_planner

def kernels():
    counts = {}
    for package in (tt_estimation, tt_planning):
        for module in pkgutil.iter_modules(package.__path__):
            if module.name.endswith("node") or module.name == "messages":
                continue
            for name, value in vars(importlib.import_module(f"{package.__name__}.{module.name}")).items():
                if isinstance(value, Dispatcher):
                    counts[f"{module.name}.{name}"] = len(value.signatures)
    return counts

robot = load_robot("gantry4")
planner = make_planner("ours", robot, NOMINAL)
warm_up(NOMINAL)
warm_up_planner(planner, robot, NOMINAL)
warm_up_generator(robot)
before = kernels()
pipeline = Pipeline(robot, NOMINAL, default_sim_cameras(), planner=planner)
pipeline.step(Event(1, Joints(robot.ready)))
trajectories = 0
for seed in (1, 2):
    for event in rally(seed):
        trajectories += len(pipeline.step(Event(event.now_ns, event.data)).trajectories)
grown = [name for name, count in kernels().items() if count != before[name]]
print(trajectories > 20, grown)
"""


def test_nothing_is_compiled_after_the_warm_up() -> None:
    here = Path(__file__).parent
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, str(here)], capture_output=True, text=True, check=False, timeout=500
    )
    assert done.stdout.split("\n")[0] == "True []", done.stdout + done.stderr
