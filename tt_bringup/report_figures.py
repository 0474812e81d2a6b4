"""Pictures of a recording: what was seen, predicted, decided, commanded, and what happened."""

from __future__ import annotations

from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from tt_bringup.rally import Ball, Rally, States, prediction_errors
from tt_perception.rotation import matrix_from_quat
from tt_perception.table import NET_HEIGHT_M, NET_OVERHANG_M, TABLE_LENGTH_M, TABLE_WIDTH_M
from tt_planning.trajectory import sample
from tt_planning.types import HitPlan

FloatArray = NDArray[np.float64]
OUTCOME_COLOURS = {
    "returned": "#2ca02c",
    "out": "#ff9f1c",
    "net": "#8d6cab",
    "missed": "#d62728",
    "not_playable": "#9e9e9e",
    "unknown": "#555555",
}
SEEN, TRUE, PREDICTED, PLANNED = "#f28e2b", "#444444", "#2e86c1", "#c0392b"
STRIP_TITLES = (
    "1 seen: detections", "2 located: positions", "3 estimated: state", "4 predicted: path", "5 decided: hit",
    "6 commanded and measured", "7 what happened",
)  # fmt: skip
_SMALL, _TITLE = 9, 11  # points, in the strip
_STRIP_MARGINS = {"left": 0.045, "right": 0.99, "bottom": 0.09, "top": 0.89, "wspace": 0.26, "hspace": 0.42}
_HALF = 0.5 * TABLE_LENGTH_M


def figure(width: float, height: float, layout: Literal["constrained"] | None = "constrained") -> Any:
    """A matplotlib figure that belongs to no window."""
    from matplotlib.figure import Figure

    return Figure(figsize=(width, height), layout=layout)


def side_view(axes: Any) -> None:
    """Table and net from the side: y to the right, z up."""
    axes.plot((-_HALF, _HALF), (0, 0), color="#17486b", lw=3, solid_capstyle="butt")
    axes.plot((0, 0), (0, NET_HEIGHT_M), color="0.5", lw=1.5)
    axes.set_xlim(-2.1, 1.6)
    axes.set_ylim(-0.35, 0.95)
    axes.set_aspect("equal", adjustable="box")
    axes.set_xlabel("y, m", fontsize=_SMALL)


def top_view(axes: Any) -> None:
    """Table and net from above: y to the right, x down, as the robot on the left sees it."""
    half_x = 0.5 * TABLE_WIDTH_M
    axes.fill((-_HALF, _HALF, _HALF, -_HALF), (-half_x, -half_x, half_x, half_x), color="#d8e6f0", zorder=0)
    axes.plot((0, 0), (-half_x - NET_OVERHANG_M, half_x + NET_OVERHANG_M), color="0.5", lw=1.5)
    axes.plot((-_HALF, _HALF), (0, 0), color="white", lw=1, zorder=0)
    axes.set_xlim(-2.1, 2.2)
    axes.set_ylim(1.2, -1.2)
    axes.set_aspect("equal", adjustable="box")


def strip(rally: Rally, ball: Ball) -> Any:
    """Seven pictures of one ball, one per stage."""
    picture = figure(13.0, 6.0, layout=None)  # to find margins costs more time than to draw
    panels = picture.subplots(2, 4, gridspec_kw=_STRIP_MARGINS).ravel()
    panels[7].axis("off")
    for panel, title in zip(panels[:7], STRIP_TITLES, strict=True):
        panel.set_title(title, fontsize=_TITLE, y=1.0)  # to find its height costs a sixth of the drawing
        panel.tick_params(labelsize=_SMALL)
    states, truth = rally.states.between(ball.begin, ball.end), rally.truth.between(ball.begin, ball.end)
    plans = [plan for arrived, plan in rally.plans if ball.begin <= arrived <= ball.end]
    _seen(panels[0], rally, ball)
    _located(panels[1], rally, ball, truth)
    _estimated(panels[2], states, truth)
    _predicted(panels[3], rally, ball, truth, plans)
    _decided(panels[4], plans, rally.start_ns, ball)
    _commanded(panels[5], rally, ball)
    _happened(panels[6], states, truth, plans, ball)
    picture.suptitle(f"ball {ball.name}: {ball.outcome.replace('_', ' ')}", fontsize=_TITLE)
    return picture


def _seen(axes: Any, rally: Rally, ball: Ball) -> None:
    if not rally.detections:
        axes.text(0.5, 0.5, "no detections recorded", ha="center", fontsize=_SMALL)
        return
    for number, (camera, items) in enumerate(sorted(rally.detections.items())):
        uv = [d.uv for d in items if ball.begin <= d.seen <= ball.end and len(d.uv)]
        if uv:
            points = np.vstack(uv)
            axes.plot(points[:, 0], points[:, 1], ".", ms=2, color=f"C{number}", label=camera)
    axes.invert_yaxis()
    axes.set_aspect("equal", adjustable="datalim")
    axes.set_xlabel("u, px", fontsize=_SMALL)
    if axes.get_legend_handles_labels()[1]:
        axes.legend(fontsize=_SMALL, frameon=False)


def _located(axes: Any, rally: Rally, ball: Ball, truth: States) -> None:
    side_view(axes)
    if len(truth):
        axes.plot(truth.values[:, 1], truth.values[:, 2], color=TRUE, lw=0.8)
    inside = (rally.positions[:, 0] >= ball.begin) & (rally.positions[:, 0] <= ball.end)
    points = rally.positions[inside]
    axes.plot(points[:, 2], points[:, 3], ".", ms=2.5, color=SEEN)
    axes.set_ylabel("z, m", fontsize=_SMALL)


def _estimated(axes: Any, states: States, truth: States) -> None:
    for source, style, width in ((states, "-", 1.2), (truth, ":", 1.0)):
        if len(source):
            since = source.seen - (states.seen[0] if len(states) else source.seen[0])
            for axis, colour in zip(range(3), ("C0", "C1", "C2"), strict=True):
                axes.plot(since, source.values[:, 6 + axis], style, lw=width, color=colour)
    axes.set_xlabel("s after the first state; dotted: true", fontsize=_SMALL)
    axes.set_ylabel("spin x, y, z, rad/s", fontsize=_SMALL)


def _predicted(axes: Any, rally: Rally, ball: Ball, truth: States, plans: list[HitPlan]) -> None:
    side_view(axes)
    paths = [path for path in rally.paths if ball.begin <= path.seen <= ball.end]
    for i, path in enumerate(paths):
        shade = 0.15 + 0.75 * (i + 1) / len(paths)
        axes.plot(path.points[:, 1], path.points[:, 2], color=PREDICTED, lw=0.7, alpha=shade)
    if len(truth):
        axes.plot(truth.values[:, 1], truth.values[:, 2], color=TRUE, lw=0.8, ls=":")
    for plan in plans[-1:]:
        axes.plot(plan.racket_pos_table[1], plan.racket_pos_table[2], "o", ms=4, mfc="none", color=PLANNED)


def _decided(axes: Any, plans: list[HitPlan], start_ns: int, ball: Ball) -> None:
    if not plans:
        axes.text(0.5, 0.5, "no plan", ha="center", fontsize=_SMALL, transform=axes.transAxes)
        return
    made = np.array([(plan.capture_stamp_ns - start_ns) * 1e-9 - ball.begin for plan in plans])
    hit = np.array([(plan.hit_stamp_ns - start_ns) * 1e-9 - ball.begin for plan in plans])
    where = np.array([plan.racket_pos_table for plan in plans])
    for axis, name in ((0, "x"), (2, "z")):
        axes.plot(
            made, 100.0 * (where[:, axis] - where[-1, axis]), ".-", ms=3, lw=0.7, label=f"racket {name}, cm"
        )
    axes.plot(made, 1e3 * (hit - hit[-1]), ".-", ms=3, lw=0.7, color=PLANNED, label="hit time, ms")
    axes.axvline(hit[-1], color="0.6", lw=0.8, ls=":")
    axes.set_yscale("symlog", linthresh=1.0)
    axes.set_xlabel("s; dotted: hit; against the last plan", fontsize=_SMALL)
    axes.legend(fontsize=_SMALL, frameon=False)


def _commanded(axes: Any, rally: Rally, ball: Ball) -> None:
    inside = (rally.joint_times >= ball.begin) & (rally.joint_times <= ball.end)
    times = rally.joint_times[inside]
    for column, name in enumerate(rally.joint_names):
        axes.plot(times - ball.begin, rally.joints[inside, column], lw=1.2, color=f"C{column}", label=name)
    sent = [(arrived, t) for arrived, t in rally.trajectories if arrived <= ball.end]
    if sent and len(times):
        arrivals = np.array([arrived for arrived, _ in sent])
        wanted = np.full((len(times), len(rally.joint_names)), np.nan)
        for i, time in enumerate(times):
            at = int(np.searchsorted(arrivals, time)) - 1
            if at >= 0 and set(sent[at][1].joint_names) == set(rally.joint_names):
                stamp_ns = rally.start_ns + round(time * 1e9)
                order = [sent[at][1].joint_names.index(name) for name in rally.joint_names]
                wanted[i] = sample(sent[at][1], stamp_ns)[0][order]
        for column in range(len(rally.joint_names)):
            axes.plot(times - ball.begin, wanted[:, column], ":", lw=1.0, color=f"C{column}")
    axes.set_xlabel("s; dotted: commanded (m, rad)", fontsize=_SMALL)
    if rally.joint_names and len(times):
        axes.legend(fontsize=_SMALL, frameon=False, ncols=2)


def _happened(axes: Any, states: States, truth: States, plans: list[HitPlan], ball: Ball) -> None:
    top_view(axes)
    track = truth if len(truth) else states
    axes.plot(track.values[:, 1], track.values[:, 0], color=TRUE, lw=1.0)
    for plan in plans[-1:]:
        along = matrix_from_quat(plan.racket_quat_xyzw)[:, 0] * 0.075
        ends = np.array((plan.racket_pos_table - along, plan.racket_pos_table + along))
        axes.plot(ends[:, 1], ends[:, 0], color=PLANNED, lw=2)
        axes.plot(plan.aim_table[1], plan.aim_table[0], "+", color="#2ca02c", ms=8)
    landing = ball.result.get("landing_m")
    if landing:
        axes.plot(landing[1], landing[0], "o", ms=5, color=OUTCOME_COLOURS.get(ball.outcome, "black"))
    axes.set_xlabel("y, m", fontsize=_SMALL)


def landing_map(balls: list[Ball], aim: tuple[float, float] | None) -> Any:
    """Where balls came down, by outcome."""
    picture = figure(6.2, 3.6)
    axes = picture.subplots()
    top_view(axes)
    for outcome, colour in OUTCOME_COLOURS.items():
        points = [b.result["landing_m"] for b in balls if b.outcome == outcome and b.result.get("landing_m")]
        if points:
            x, y = np.array(points)[:, :2].T
            axes.plot(
                y, x, "o", ms=5, color=colour, alpha=0.8, label=f"{outcome.replace('_', ' ')} ({len(x)})"
            )
    if aim is not None:
        axes.plot(aim[1], aim[0], "+", ms=12, color="black", label="aim")
    axes.set_xlabel("y, m (robot on the left)")
    axes.set_ylabel("x, m")
    if axes.get_legend_handles_labels()[1]:
        axes.legend(fontsize=8, frameon=False, loc="upper right")
    return picture


def error_over_time(rally: Rally, balls: list[Ball]) -> Any | None:
    """Error of the predicted hit point against the time left; None when nothing can be compared."""
    rows = [errors for ball in balls if len(errors := prediction_errors(rally, ball))]
    if not rows:
        return None
    picture = figure(6.2, 3.6)
    axes = picture.subplots()
    for errors in rows:
        axes.plot(1e3 * errors[:, 0], 100.0 * errors[:, 1], lw=0.6, color=PREDICTED, alpha=0.35)
    points = np.vstack(rows)
    edges = np.arange(0.0, max(0.1, points[:, 0].max()) + 0.05, 0.05)
    index = np.digitize(points[:, 0], edges)
    centres = [(points[index == k, 0].mean(), np.median(points[index == k, 1])) for k in np.unique(index)]
    x, y = np.array(centres).T
    axes.plot(1e3 * x, 100.0 * y, "o-", color=PLANNED, lw=1.5, ms=4, label="median of 50 ms")
    axes.set_yscale("log")
    axes.invert_xaxis()
    axes.set_xlabel("ms before the ball passes the hit plane")
    axes.set_ylabel("error of the predicted point, cm")
    axes.legend(frameon=False, fontsize=8)
    axes.spines[["top", "right"]].set_visible(False)
    return picture


def loop_jitter(rally: Rally) -> Any | None:
    """How regular the motor loop is, from the stamps of the joint states; None without them."""
    if len(rally.joint_times) < 10:
        return None
    gaps_ms = 1e3 * np.diff(np.sort(rally.joint_times))
    period = float(np.median(gaps_ms))
    picture = figure(6.2, 3.0)
    axes = picture.subplots()
    deviation = np.clip(gaps_ms - period, -2 * period, 5 * period)
    axes.hist(deviation, bins=120, color="#4c78a8")
    axes.set_yscale("log")
    axes.set_xlabel(f"ms from the usual {period:.2f} ms between joint states (outermost bars: and beyond)")
    axes.set_ylabel("cycles")
    p99 = float(np.percentile(np.abs(gaps_ms - period), 99))
    axes.set_title(f"99 % within ±{p99:.2f} ms; longest gap {gaps_ms.max():.1f} ms", fontsize=9)
    axes.spines[["top", "right"]].set_visible(False)
    return picture
