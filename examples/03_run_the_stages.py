"""Runs all computing stages over the inputs of a recording, in one process and without waiting.

.venv/bin/python examples/03_run_the_stages.py test/tools/data/golden_rally
"""

import sys

from tt_bringup import replay
from tt_bringup.bags import open_bag
from tt_planning.pipeline import Pipeline

bag = open_bag(sys.argv[1])
settings = replay.settings_from_bag(bag)
pipeline = Pipeline(settings.robot, settings.model, settings.cameras, settings.config)
plan = None
for event in replay.events(bag, settings):
    outputs = pipeline.step(event)
    plan = outputs.plans[-1] if outputs.plans else plan
if plan is None:
    print("no ball could be returned")
else:
    x, y, z = plan.racket_pos_table
    print(f"last plan ({plan.kind.value}): racket at x = {x:.2f}, y = {y:.2f}, z = {z:.2f} m")
