"""HTML report of `tt eval returns`: landing map, hit map, failures by cause, one ball step by step."""

from __future__ import annotations

import html
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from tt_perception.files import write_whole
from tt_perception.table import (
    BALL_RADIUS_M,
    NET_HEIGHT_M,
    NET_OVERHANG_M,
    TABLE_HEIGHT_M,
    TABLE_LENGTH_M,
    TABLE_WIDTH_M,
)
from tt_sim.ball_file import ServedBall
from tt_sim.eval_returns import PERFECT, BallOutcome, EvalSettings, reachable_ids, trace_ball
from tt_sim.figures import png_uri, pyplot
from tt_sim.rally import RallyRecord
from tt_sim.referee import Outcome

_COLOUR = {
    Outcome.RETURNED: "#2a9d5c",
    Outcome.OUT: "#e09f3e",
    Outcome.NET: "#7b5ea7",
    Outcome.MISSED: "#d1495b",
    Outcome.NOT_PLAYABLE: "#9a9a9a",
}
_STRIP_FRAMES = 8
_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:62rem;margin:2rem auto;padding:0 1rem;color:#222}
table{border-collapse:collapse;margin:1rem 0}
td,th{padding:.25rem .8rem;border-bottom:1px solid #ddd;text-align:right}
td:first-child,th:first-child{text-align:left}img{max-width:100%}figcaption,.dim{color:#666;font-size:.9em}
"""


def write_report(
    path: Path,
    settings: EvalSettings,
    balls: Sequence[ServedBall],
    outcomes: Sequence[BallOutcome],
    summary: dict[str, Any],
    strip_ball: int | None = None,
) -> None:
    """Write one self-contained HTML page.

    Args:
        path: file to write.
        settings: what was evaluated.
        balls: the balls.
        outcomes: of `evaluate`.
        summary: of `summary`.
        strip_ball: id of the ball of the picture strip; when None a reachable ball that the first planner
            failed on, else the first one.
    """
    parts = [
        f"<h1>Returns: {html.escape(settings.robot)}</h1>",
        f"<p>{summary['balls']} balls, world {settings.world}, constants {settings.believed}, delivery "
        f"delay {1e3 * settings.delay_s:.0f} ms, σ {1e3 * settings.sigma_m:.1f} mm, {settings.fps:.0f} Hz, "
        f"seed {settings.seed}. Reachable with perfect knowledge: <b>{100 * summary['reachable']:.1f} %</b>.</p>",
        _planner_table(summary),
    ]
    for name in settings.planners:
        mine = [o for o in outcomes if o.planner == name]
        parts.append(f"<h2>{html.escape(name)}</h2>")
        parts.append(_figure(_maps(mine, settings), "Left: first landing after the hit. Right: where the ball "
                             "met the racket, or was nearest to it, seen from behind the robot."))  # fmt: skip
        parts.append(_figure(_causes(mine, reachable_ids(outcomes)), "Failures by cause; dark: balls that "
                             "somebody returned."))  # fmt: skip
    parts.append(_strip_section(settings, balls, outcomes, strip_ball))
    page = (
        f"<!doctype html><meta charset='utf-8'><title>Returns</title><style>{_STYLE}</style>{''.join(parts)}"
    )
    write_whole(path, page)


def _planner_table(summary: dict[str, Any]) -> str:
    columns = ("returned", "hit", "missed", "out", "net", "not_playable")
    rows = ["<tr><th>planner</th>" + "".join(f"<th>{c.replace('_', ' ')}</th>" for c in columns)]
    rows[0] += "<th>of reachable</th><th>landing error, median / p90</th><th>decision, median / p99</th></tr>"
    for name, row in summary["planners"].items():
        cells = [f"{100 * row[c]:.1f} %" for c in columns]
        reachable = summary["reachable"]
        cells.append(f"{100 * row['returned'] / reachable:.1f} %" if reachable else "–")
        error, time = row["landing_error_m"], row["decision_us"]
        cells.append(
            "–" if error["median"] is None else f"{100 * error['median']:.1f} / {100 * error['p90']:.1f} cm"
        )
        cells.append("–" if time["median"] is None else f"{time['median']:.0f} / {time['p99']:.0f} µs")
        rows.append(f"<tr><td>{html.escape(name)}</td>" + "".join(f"<td>{c}</td>" for c in cells) + "</tr>")
    return "<table>" + "".join(rows) + "</table>"


def _figure(figure: Any, caption: str) -> str:
    return f"<figure><img src='{png_uri(figure)}'><figcaption>{caption}</figcaption></figure>"


def _maps(outcomes: Sequence[BallOutcome], settings: EvalSettings) -> Any:
    figure, (landing, meeting) = pyplot().subplots(1, 2, figsize=(10, 4.6), layout="constrained")
    _draw_table_top(landing)
    for outcome in Outcome:
        points = [
            o.result.landing_table for o in outcomes if o.result.outcome is outcome and o.result.landing_table
        ]
        if points:
            landing.scatter(*np.array(points).T, s=9, color=_COLOUR[outcome], label=outcome.value)
        met = [o.result.meet_table for o in outcomes if o.result.outcome is outcome and o.result.meet_table]
        if met:
            across, _, height = np.array(met).T
            meeting.scatter(
                across, height, s=9, color=_COLOUR[outcome], label=outcome.value.replace("_", " ")
            )
    landing.plot(*settings.aim, "k+", markersize=12)
    landing.set(xlim=(-2, 2), ylim=(-2, 3), xlabel="x, m", ylabel="y, m", title="landing", aspect="equal")
    meeting.axhline(0.0, color="#1d3557", linewidth=2)
    meeting.set(xlim=(-1.4, 1.4), ylim=(-0.6, 1.2), xlabel="x, m", ylabel="z, m", title="ball at the racket")
    meeting.legend(fontsize=8, loc="upper right")
    return figure


def _draw_table_top(axes: Any) -> None:
    half_x, half_y = TABLE_WIDTH_M / 2, TABLE_LENGTH_M / 2
    axes.fill([-half_x, half_x, half_x, -half_x], [-half_y, -half_y, half_y, half_y], color="#dbe7f3")
    net = half_x + NET_OVERHANG_M
    axes.plot([-net, net], [0, 0], color="#1d3557", linewidth=2)


def _causes(outcomes: Sequence[BallOutcome], reachable: set[int]) -> Any:
    every = Counter(o.reason for o in outcomes if o.reason)
    lost = Counter(o.reason for o in outcomes if o.reason and o.ball_id in reachable)
    names = [name for name, _ in every.most_common(12)][::-1]
    height = 0.6 + 0.32 * max(len(names), 1)
    figure, axes = pyplot().subplots(figsize=(10, height), layout="constrained")
    axes.barh(names, [every[n] for n in names], color="#e8c4c9")
    axes.barh(names, [lost[n] for n in names], color="#b23a48")
    axes.set_xlabel("balls")
    return figure


def _strip_section(
    settings: EvalSettings,
    balls: Sequence[ServedBall],
    outcomes: Sequence[BallOutcome],
    strip_ball: int | None,
) -> str:
    planner = settings.planners[0]
    reachable = reachable_ids(outcomes)
    failed = [o.ball_id for o in outcomes if o.planner == planner and o.reason and o.ball_id in reachable]
    chosen = strip_ball if strip_ball is not None else (failed or [balls[0].ball_id])[0]
    ball = next((b for b in balls if b.ball_id == chosen), None)
    if ball is None:
        return f"<p class='dim'>Ball {chosen} was not among these balls: no picture strip.</p>"
    outcome, record = trace_ball(settings, ball, PERFECT if planner == PERFECT else planner)
    words = outcome.reason or "returned"
    return f"<h2>Ball {chosen}, {html.escape(planner)}: {html.escape(words)}</h2>" + _figure(
        _strip(record), "Top: from above. Bottom: from the side. Ball with its path, racket as a line, "
        "planned racket in grey."
    )  # fmt: skip


def _strip(record: RallyRecord) -> Any:
    trace = record.trace
    assert trace is not None
    times, ball, racket = np.array(trace.times_s), np.array(trace.ball), np.array(trace.racket)
    normal = np.array(trace.normal)
    figure, rows = pyplot().subplots(
        2, _STRIP_FRAMES, figsize=(17, 5.2), layout="constrained", sharey="row", height_ratios=(2.3, 1.0)
    )
    contact = record.result.contact_time_s
    for column, at in enumerate(_frame_times(times[-1], contact)):
        k = int(np.argmin(np.abs(times - at)))
        top, side = rows[0][column], rows[1][column]
        _draw_table_top(top)
        top.plot(ball[: k + 1, 0], ball[: k + 1, 1], color="#e76f51", linewidth=1)
        top.plot(ball[k, 0], ball[k, 1], "o", color="#e76f51", markersize=5)
        _draw_blade(top, racket[k], normal[k], (0, 1), 0.075, "#b23a48")
        top.set(xlim=(-1.1, 1.1), ylim=(-2.1, 2.0), aspect="equal", title=f"{times[k]:.3f} s")
        half = TABLE_LENGTH_M / 2
        side.plot([-half, half], [0, 0], color="#1d3557", linewidth=2)
        side.plot([0, 0], [0, NET_HEIGHT_M], color="#1d3557", linewidth=1)
        side.plot(ball[: k + 1, 1], ball[: k + 1, 2], color="#e76f51", linewidth=1)
        side.plot(ball[k, 1], ball[k, 2], "o", color="#e76f51", markersize=5)
        _draw_blade(side, racket[k], normal[k], (1, 2), 0.08, "#b23a48")
        plan = record.last_plan
        if plan is not None:
            side.plot(*plan.racket_pos_table[1:], "x", color="#888")
            top.plot(*plan.racket_pos_table[:2], "x", color="#888")
        side.set(xlim=(-2.1, 2.0), ylim=(-TABLE_HEIGHT_M / 2, 1.3), aspect="equal")
        if contact is not None and abs(times[k] - contact) < BALL_RADIUS_M:
            side.set_xlabel("contact")
    return figure


def _frame_times(end_s: float, contact_s: float | None) -> np.ndarray:
    """Times of the pictures; with a contact half of them lead to it."""
    if contact_s is None:
        return np.linspace(0.0, end_s, _STRIP_FRAMES)
    before = np.linspace(0.0, contact_s, _STRIP_FRAMES // 2 + 1)
    after = np.linspace(contact_s, end_s, _STRIP_FRAMES // 2)[1:]
    return np.concatenate([before, after])


def _draw_blade(
    axes: Any, centre: Any, normal: Any, plane: tuple[int, int], half: float, colour: str
) -> None:
    """The blade as a line perpendicular to the projected normal."""
    a, b = plane
    along = np.array([-normal[b], normal[a]])
    length = np.hypot(*along)
    along = along / length * half if length > 1e-6 else np.array([half, 0.0])
    axes.plot(
        [centre[a] - along[0], centre[a] + along[0]],
        [centre[b] - along[1], centre[b] + along[1]],
        color=colour,
        linewidth=3,
    )
