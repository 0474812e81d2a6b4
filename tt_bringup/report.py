"""One HTML file about a recording, with everything inside: send it, archive it, open it without a network."""

from __future__ import annotations

import base64
import html
import io
import time
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tt_bringup import report_figures as figures
from tt_bringup.latency_report import STAGE_WORDS, draw_budget
from tt_bringup.rally import Ball, Rally, ball_called
from tt_control.loop_stats import COLUMNS, WORDS
from tt_perception.errors import TTError
from tt_perception.files import write_whole

MAX_STRIPS = 8
_FIRST_DATE_NS = 10**18  # 2001; stamps before are those of a clock that began at zero
_LEVELS = {1: "warning", 2: "error", 3: "stale"}
_STYLE = """
body{font:15px/1.5 system-ui,sans-serif;max-width:1150px;margin:2em auto;padding:0 1em;color:#222;background:#fff}
h1{font-size:1.6em;margin-bottom:.1em} h2{font-size:1.2em;margin-top:2em;border-bottom:1px solid #ddd}
table{border-collapse:collapse;font-variant-numeric:tabular-nums} td,th{padding:.15em .8em;text-align:right}
td:first-child,th:first-child{text-align:left} th{border-bottom:1px solid #bbb;font-weight:600}
tr:nth-child(even) td{background:#f6f7f9} img{max-width:100%} .muted{color:#777}
.tiles{display:flex;gap:2em;flex-wrap:wrap}
.tile b{display:block;font-size:1.7em} .row{display:flex;flex-wrap:wrap;gap:1em} .row>div{flex:1 1 480px}
summary{cursor:pointer} .error{color:#b3261e} @media(max-width:700px){td,th{padding:.1em .3em}}
"""


class ReportError(TTError):
    """A report cannot be written."""


def write_report(
    rally: Rally,
    path: Path,
    ball_name: str | None = None,
    progress: Callable[[str, int, int], None] = lambda _what, _done, _total: None,
) -> dict[str, Any]:
    """Writes the report.

    Args:
        rally: the recording.
        path: HTML file to write.
        ball_name: draw the picture strip of this ball only; of the first few when left out.
        progress: told what is being drawn, how many parts are done, and of how many.

    Returns:
        The figures in the report, for `--json`.

    Raises:
        ReportError: there is no such ball, or the file cannot be written.
    """
    balls = rally.balls()
    chosen = _chosen(balls, ball_name)
    steps = len(chosen) + 2
    progress("landing map", 0, steps)
    parts = [_header(rally, balls)]
    aim = next(
        (plan.aim_table for _, plan in reversed(rally.plans) if np.isfinite(plan.aim_table).all()), None
    )
    parts.append(_balls_section(balls, aim))
    for k, ball in enumerate(chosen):
        progress(f"ball {ball.name}", k + 1, steps)
        parts.append(
            _details(f"ball {ball.name}: {ball.outcome.replace('_', ' ')}", figures.strip(rally, ball), ball)
        )
    if len(chosen) < len(balls) and ball_name is None:
        parts.append(
            f"<p class=muted>{len(balls) - len(chosen)} more balls: tt report --ball ID draws one.</p>"
        )
    progress("errors, jitter, latency", steps - 1, steps)
    parts.append(_quality_section(rally, balls))
    parts.append(_latency_section(rally))
    parts.append(_faults_section(rally))
    parts.append(_about_section(rally))
    title = html.escape(f"Table tennis robot: {rally.bag.path.name}")
    page = (
        "<!doctype html><html lang=en><head><meta charset=utf-8><meta name=viewport "
        f"content='width=device-width'><title>{title}</title><style>{_STYLE}</style></head><body>"
        + "\n".join(parts)
        + "</body></html>\n"
    )
    try:
        write_whole(path, page)
    except OSError as error:
        raise ReportError(f"cannot write {path}: {(error.strerror or str(error)).lower()}") from error
    return summary(rally, balls)


def summary(rally: Rally, balls: list[Ball]) -> dict[str, Any]:
    """The figures of a report as plain values."""
    outcomes = Counter(ball.outcome for ball in balls)
    gaps_ms = 1e3 * np.diff(np.sort(rally.joint_times)) if len(rally.joint_times) > 1 else np.empty(0)
    return {
        "bag": str(rally.bag.path),
        "duration_s": round(rally.duration, 2),
        "balls": len(balls),
        "outcomes": dict(sorted(outcomes.items())),
        "latency_ms": rally.latency.summary(),
        "joint_period_ms": round(float(np.median(gaps_ms)), 3) if len(gaps_ms) else None,
        "joint_gap_max_ms": round(float(gaps_ms.max()), 3) if len(gaps_ms) else None,
        "faults": [
            {"node": f.node, "level": _LEVELS.get(f.level, str(f.level)), "text": f.text, "count": f.count}
            for f in rally.faults
        ],
        "skipped": rally.skipped,
        "damage": rally.bag.damage,
        "missing": missing(rally),
    }


def missing(rally: Rally) -> list[str]:
    """Parts of a report that the recording has no data for."""
    has = {
        "detections": rally.detections,
        "ball states": len(rally.states),
        "predictions": rally.paths,
        "planned hits": rally.plans,
        "joint states": len(rally.joint_times),
        "latency stamps": len(rally.latency),
        "referee's results": rally.results,
    }
    return [name for name, found in has.items() if not found]


def _chosen(balls: list[Ball], name: str | None) -> list[Ball]:
    if name is None:
        return balls[:MAX_STRIPS]
    found = ball_called(balls, name)
    if found is None:
        known = ", ".join(ball.name for ball in balls[:20])
        raise ReportError(f"there is no ball {name!r} in the recording; it has {known or 'none'}")
    return [found]


def _header(rally: Rally, balls: list[Ball]) -> str:
    outcomes = Counter(ball.outcome for ball in balls)
    judged = sum(n for outcome, n in outcomes.items() if outcome not in ("unknown", "not_playable"))
    tiles = [(str(len(balls)), "balls")]
    if judged:
        tiles.append(
            (f"{100.0 * outcomes['returned'] / judged:.0f} %", f"of {judged} playable balls returned")
        )
        tiles += [(str(n), o.replace("_", " ")) for o, n in outcomes.most_common() if o != "returned"]
    total = rally.latency.summaries().get("end_to_end")
    if total is not None:
        tiles.append((f"{total.median:.1f} ms", "exposure to bus, median"))
    cells = "".join(f"<div class=tile><b>{a}</b>{html.escape(b)}</div>" for a, b in tiles)
    damage = (
        f"<p class=error>The bag is damaged: {html.escape(rally.bag.damage)}.</p>" if rally.bag.damage else ""
    )
    lacking = missing(rally)
    gone = f"<p class=muted>Not in this recording: {', '.join(lacking)}.</p>" if lacking else ""
    facts = [f"{rally.duration:.1f} s", f"{rally.bag.message_count} messages"]
    if rally.bag.start_ns > _FIRST_DATE_NS:
        facts.insert(0, time.strftime("%Y-%m-%d %H:%M:%S %Z", time.localtime(rally.bag.start_ns * 1e-9)))
    if robot := _robot(rally):
        facts.append(f"robot {robot}")
    return (
        f"<h1>{html.escape(rally.bag.path.name)}</h1><p class=muted>{html.escape(', '.join(facts))}</p>"
        f"{damage}{gone}<div class=tiles>{cells}</div>"
    )


def _robot(rally: Rally) -> str:
    """The robot as the recorded nodes named it; empty when they did not."""
    values = rally.bag.parameters().values()
    named = [str(v["robot"]) for v in values if isinstance(v, Mapping) and v.get("robot")]
    return named[0] if named else ""


def _balls_section(balls: list[Ball], aim: Any) -> str:
    if not balls:
        return "<h2>Balls</h2><p>No ball was in the air.</p>"
    rows = []
    for ball in balls:
        r = ball.result
        landing = r.get("landing_m")
        cells = [
            html.escape(ball.name),
            f"<span style='color:{figures.OUTCOME_COLOURS.get(ball.outcome, '#000')}'>"
            f"{html.escape(ball.outcome.replace('_', ' '))}</span>",
            html.escape(str(r.get("cause", ""))),
            f"{landing[0]:.2f}, {landing[1]:.2f}" if landing else "",
            _number(r.get("aim_error_m"), 100, "cm"),
            _number(r.get("contact_offset_m"), 100, "cm"),
            _number(r.get("net_clearance_m"), 100, "cm"),
            f"{ball.begin:.2f}",
        ]
        rows.append("<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>")
    head = "".join(
        f"<th>{h}</th>"
        for h in ("ball", "outcome", "why", "landed x, y m", "off aim", "off centre", "over net", "at s")
    )
    picture = _image(
        figures.landing_map(balls, None if aim is None else (float(aim[0]), float(aim[1]))),
        "where the balls came down",
    )
    return f"<h2>Balls</h2>{picture}<table><tr>{head}</tr>{''.join(rows)}</table><h2>Ball by ball</h2>"


def _details(title: str, picture: Any, ball: Ball) -> str:
    opened = " open" if ball.number <= 2 else ""
    image = _image(picture, f"{title}, stage by stage", 80)
    return f"<details{opened}><summary>{html.escape(title)}</summary>{image}</details>"


def _quality_section(rally: Rally, balls: list[Ball]) -> str:
    errors, jitter = figures.error_over_time(rally, balls), figures.loop_jitter(rally)
    left = right = ""
    if errors is not None:
        left = _image(errors, "error of the predicted point against the time left")
    if jitter is not None:
        right = _image(jitter, "times between joint states") + (
            "<p class=muted>As the joint states were recorded: what the middleware adds to the loop is in it.</p>"
        )
    left = left or "<p class=muted>No predictions to compare.</p>"
    right = (right or "<p class=muted>No joint states.</p>") + _motor_loop(rally.motor_values)
    return f"<div class=row><div><h2>Prediction error</h2>{left}</div><div><h2>Motor loop</h2>{right}</div></div>"


def _motor_loop(values: Mapping[str, str]) -> str:
    """What the motor loop said of itself at the end, over its whole run; empty when it said nothing."""
    if "run_ticks" not in values:
        return ""
    rows = "".join(
        f"<tr><td>{words}</td>"
        + "".join(f"<td>{_shown(values, f'run_{key}_{column}_ms', 2)}</td>" for column in COLUMNS)
        + "</tr>"
        for key, words in WORDS.items()
        if any(f"run_{key}_{column}_ms" in values for column in COLUMNS)  # older recordings have fewer
    )
    head = "".join(f"<th>{column}</th>" for column in ("ms", *COLUMNS))
    losses = (
        f"{_shown(values, 'run_ticks')} ticks, {_shown(values, 'run_skipped_ticks')} lost, "
        f"{_shown(values, 'bus_losses')} losses of the adapter"
    )
    return (
        "<p class=muted>As the loop measured itself, since it was first enabled:</p>"
        f"<table><tr>{head}</tr>{rows}</table><p class=muted>{losses}</p>"
    )


def _shown(values: Mapping[str, str], name: str, digits: int = 0) -> str:
    """A number that a node told; a question mark where it told none."""
    try:
        return f"{float(values[name]):.{digits}f}"
    except (KeyError, ValueError):
        return "?"


def _latency_section(rally: Rally) -> str:
    summaries = rally.latency.summaries()
    if not summaries:
        return "<h2>Latency</h2><p class=muted>No latency stamps were recorded.</p>"
    rows = "".join(
        f"<tr><td>{html.escape(STAGE_WORDS[name])}</td><td>{s.count}</td><td>{s.median:.2f}</td><td>{s.p95:.2f}</td>"
        f"<td>{s.p99:.2f}</td><td>{s.max:.2f}</td><td class=muted>{s.max_capture_ns}</td></tr>"
        for name, s in summaries.items()
    )
    head = "".join(
        f"<th>{h}</th>" for h in ("stage", "captures", "median", "p95", "p99", "max", "capture of the max")
    )
    warnings = "".join(f"<p class=error>{html.escape(text)}</p>" for text in rally.latency.warnings())
    picture = _image(draw_budget(rally.latency), "latency of each stage against published systems")
    return f"<h2>Latency, ms</h2>{picture}<table><tr>{head}</tr>{rows}</table>{warnings}"


def _faults_section(rally: Rally) -> str:
    if not rally.faults:
        return "<h2>Faults</h2><p>No node reported anything.</p>"
    rows = "".join(
        f"<tr><td>{html.escape(f.node)}</td><td>{_LEVELS.get(f.level, f.level)}</td><td>{f.first:.1f}</td>"
        f"<td>{f.last:.1f}</td><td>{f.count}</td><td style='text-align:left'>{html.escape(f.text)}</td></tr>"
        for f in rally.faults[:60]
    )
    head = "".join(f"<th>{h}</th>" for h in ("node", "level", "first s", "last s", "times", "text"))
    return f"<h2>Faults</h2><table><tr>{head}</tr>{rows}</table>"


def _about_section(rally: Rally) -> str:
    rows = [
        (k, v)
        for k, v in sorted(rally.bag.custom.items())
        if k not in ("parameters",) and v not in ("", "{}")
    ]
    rows += [(f"skipped: {reason}", str(n)) for reason, n in rally.skipped.items()]
    rows += [(f"unknown type: {topic}", kind) for topic, kind in rally.bag.unknown_types().items()]
    cells = "".join(f"<tr><td>{html.escape(k)}</td><td>{html.escape(v)}</td></tr>" for k, v in rows)
    topics = "".join(
        f"<tr><td>{html.escape(t)}</td><td>{n}</td><td>{html.escape(rally.bag.types[t])}</td></tr>"
        for t, n in sorted(rally.bag.counts.items())
    )
    return (
        f"<h2>About the recording</h2><table>{cells}</table><details><summary>topics</summary><table>{topics}"
        "</table></details>"
    )


def _number(value: Any, scale: float, unit: str) -> str:
    return f"{scale * float(value):.1f} {unit}" if isinstance(value, (int, float)) else ""


def _image(picture: Any, words: str, dpi: int = 100) -> str:
    """The picture as an element; `words` stand for it where it cannot be seen."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    picture.set_dpi(dpi)
    buffer = io.BytesIO()
    FigureCanvasAgg(picture).print_png(buffer)  # savefig would draw everything twice
    data = base64.b64encode(buffer.getvalue()).decode()
    return f"<img alt={html.escape(words, quote=True)!r} src='data:image/png;base64,{data}'>"
