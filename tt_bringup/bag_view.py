"""Views of a recording at any time."""

from __future__ import annotations

import bisect

import numpy as np

from tt_bringup.rally import Rally
from tt_bringup.viewer import View

BALL_SHOWN_S = 0.1
PLAN_SHOWN_S = 0.6
LANDING_SHOWN_S = 2.0
TRAIL_S = 0.5


class BagView:
    """Looks up what was known at a time: the newest of everything that had arrived by then."""

    def __init__(self, rally: Rally) -> None:
        self._rally = rally
        self._path_times = [path.arrived for path in rally.paths]
        self._plan_times = [arrived for arrived, _ in rally.plans]
        self._result_times = [arrived for arrived, _ in rally.results]
        self._detection_times = {name: [d.arrived for d in items] for name, items in rally.detections.items()}
        self._balls = rally.balls()

    def at(self, time_s: float) -> View:
        """The view at a time, seconds after the start of the recording."""
        rally, view = self._rally, View(time_s)
        i = int(np.searchsorted(rally.joint_times, time_s, side="right")) - 1
        if i >= 0:
            view.joints = dict(zip(rally.joint_names, map(float, rally.joints[i]), strict=True))
        states = rally.states
        i = int(np.searchsorted(states.arrived, time_s, side="right")) - 1
        if i >= 0 and time_s - states.arrived[i] < BALL_SHOWN_S:
            view.ball = (states.values[i, :3], states.cov[i], states.values[i, 6:])
            first = int(np.searchsorted(states.arrived, time_s - TRAIL_S))
            view.trail = states.values[first : i + 1, :3]
        i = bisect.bisect_right(self._path_times, time_s) - 1
        if i >= 0 and time_s - self._path_times[i] < BALL_SHOWN_S:
            view.path = rally.paths[i].points
        i = bisect.bisect_right(self._plan_times, time_s) - 1
        if i >= 0 and time_s - self._plan_times[i] < PLAN_SHOWN_S:
            plan = rally.plans[i][1]
            view.racket_pos, view.racket_quat = plan.racket_pos_table, plan.racket_quat_xyzw
            view.racket_vel, view.aim = plan.racket_vel_table, plan.aim_table
        i = bisect.bisect_right(self._result_times, time_s) - 1
        if i >= 0 and time_s - self._result_times[i] < LANDING_SHOWN_S:
            landing = rally.results[i][1].get("landing_m")
            view.landing = None if landing is None else np.asarray(landing, float)
        for name, times in self._detection_times.items():
            i = bisect.bisect_right(times, time_s) - 1
            if i >= 0 and time_s - times[i] < BALL_SHOWN_S:
                view.uv[name] = rally.detections[name][i].uv
        view.text = self._words(time_s)
        return view

    def _words(self, time_s: float) -> str:
        ball = next((ball for ball in self._balls if ball.begin <= time_s <= ball.end), None)
        words = f"{time_s:.2f} s"
        return words if ball is None else f"{words} · ball {ball.name}: {ball.outcome.replace('_', ' ')}"
