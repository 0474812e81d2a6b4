"""Reads a recording without ROS nodes: how many balls, how fast, how long from exposure to bus.

.venv/bin/python examples/01_read_a_recording.py my_rally
"""

import sys

import numpy as np

from tt_bringup.bags import open_bag
from tt_bringup.rally import load_rally

bag = open_bag(sys.argv[1])
print(f"{bag.path}: {bag.message_count} messages in {bag.duration_s:.1f} s {bag.damage}")

rally = load_rally(bag)
for ball in rally.balls():
    states = rally.states.between(ball.begin, ball.end)
    if len(states):
        speed = np.linalg.norm(states.values[:, 3:6], axis=1)
        spin = np.linalg.norm(states.values[:, 6:], axis=1)
        print(f"ball {ball.name}: {ball.outcome}, {speed[0]:.1f} m/s, spin {np.median(spin):.0f} rad/s")

total = rally.latency.summaries().get("end_to_end")
print(f"exposure to bus: median {total.median:.1f} ms" if total else "no latency stamps recorded")
