"""`tt eval estimation`: how well the tracker knows the ball's future, beside simpler filters and the
limit.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from tt_perception.errors import TTError

_LIMITS = {"--fps": (10.0, 1000.0), "--sigma": (0.0001, 0.1), "--seen": (0.03, 1.0)}


def main(
    balls_file: Annotated[
        Path | None, typer.Option(help="Ball states in the public JSON format; sampled balls when left out.")
    ] = None,
    *,
    balls: Annotated[int, typer.Option(help="How many balls.", min=1, max=20_000)] = 200,
    fps: Annotated[list[str] | None, typer.Option(help="Image rates in Hz, separated by commas.")] = None,
    sigma: Annotated[
        list[str] | None, typer.Option(help="Noise per axis in m; values from 0.5 on are taken as mm.")
    ] = None,
    seen: Annotated[list[str] | None, typer.Option(help="Seconds observed after the hit.")] = None,
    worlds: Annotated[
        bool,
        typer.Option("--worlds/--no-worlds", help="Also the worlds deepmind and match, with identification."),
    ] = True,
    columns: Annotated[
        str, typer.Option(help="Estimators to compute, separated by commas; A, B and C alone take seconds.")
    ] = "A,B,C,ours,map",
    seed: Annotated[int, typer.Option(help="Of the noise.", min=0)] = 0,
    jobs: Annotated[int | None, typer.Option(help="Processes; all cores when left out.", min=1)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Compares gravity only (A), drag without spin (B), drag with the true spin (C), our tracker, and batch
    MAP.
    """
    from itertools import islice

    from tt_bringup.terminal import Progress, say
    from tt_sim import eval_estimation as ev
    from tt_sim.ball_server import load_balls, sample_balls

    sigmas = tuple(s * 1e-3 if s >= 0.5 else s for s in _numbers("--sigma", sigma, (0.001, 0.003, 0.010)))
    settings = ev.EvalSettings(
        fps=_checked("--fps", _numbers("--fps", fps, (60.0, 120.0, 240.0)), "Hz"),
        sigma_m=_checked("--sigma", sigmas, "m"),
        seen_s=tuple(sorted(_checked("--seen", _numbers("--seen", seen, (0.1, 0.2, 0.3)), "s"))),
        seed=seed,
        estimators=_columns(columns),
    )
    served = load_balls(balls_file) if balls_file else list(islice(sample_balls(seed), 4 * balls + 200))
    chosen = ev.choose_balls(served, balls)
    if len(chosen) < balls:
        say(f"tt: only {len(chosen)} of {balls} balls bounce once and reach the robot")
    with Progress("balls", total=len(chosen)) as bar:
        result = ev.evaluate(chosen, settings, jobs, bar.update)
        if worlds and "ours" in settings.estimators:
            result["worlds"] = ev.evaluate_worlds(
                served,
                min(balls, 200),
                settings,
                jobs,
                lambda label, done, total: bar.update(done, total, label),
            )
        bar.update(what="timing")
        result["timing_us"] = ev.timings(chosen)
    print(json.dumps(result) if as_json else "\n".join(_table(result)))


def _numbers(option: str, texts: list[str] | None, default: tuple[float, ...]) -> tuple[float, ...]:
    if not texts:
        return default
    try:
        return tuple(float(part) for text in texts for part in text.replace(",", " ").split())
    except ValueError:
        raise TTError(
            f"{option} {' '.join(texts)!r} is not a list of numbers; write e.g. {option} 60,120"
        ) from None


def _columns(text: str) -> tuple[str, ...]:
    from tt_sim.eval_estimation import ESTIMATORS

    names = {name.strip() for name in text.split(",")} - {""}
    unknown = sorted(names - set(ESTIMATORS))
    if unknown or not names:
        raise TTError(
            f"--columns {text!r}: {', '.join(unknown) or 'nothing'} is no column; allowed: {', '.join(ESTIMATORS)}"
        )
    return tuple(name for name in ESTIMATORS if name in names)


def _checked(option: str, values: tuple[float, ...], unit: str) -> tuple[float, ...]:
    low, high = _LIMITS[option]
    for value in values:
        if not low <= value <= high:
            raise TTError(f"{option} {value:g} {unit} is out of range; allowed is {low:g} to {high:g} {unit}")
    if not values:
        raise TTError(f"{option} is empty; give one number or several, separated by commas")
    return tuple(dict.fromkeys(values))


def _judged(judged: dict[str, Any], key: str, width: int, digits: int) -> str:
    mean = judged[f"{key}_mean"]
    if mean is None:
        return f"{'-':>{width}}"
    return f"{mean:{width - 1}.{digits}f}{' ' if judged[f'{key}_within_95'] else '!'}"


def _table(result: dict[str, Any]) -> list[str]:
    from tt_sim.eval_estimation import ESTIMATORS

    first = result["cells"][0]
    names = [name for name in ESTIMATORS if name in first]
    honest = "drawn_spin" in first
    lines = [
        "median (90 %) error at y = -1.6 m in cm; share without prediction where it is not 0",
        f"{'fps':>4} {'sigma':>6} {'seen':>7}"
        + "".join(f"{name:>18}" for name in names)
        + (f"{'ours/map':>10}" if "map" in names and "ours" in names else "")
        + (f"{'spin':>7}{'NEES':>9}{'NIS':>8}{'NEES*':>9}{'NIS*':>8}" if honest else ""),
    ]
    for cell in [*result["cells"], *result["after_bounce_cells"]]:
        seen = "bounce" if cell["seen_s"] is None else f"{cell['seen_s']:.2f} s"
        line = f"{cell['fps']:4.0f} {1e3 * cell['sigma_m']:3.0f} mm {seen:>7}"
        for name in names:
            e = cell[name]
            if e["median_m"] is None:
                line += f"{'-':>18}"
                continue
            missing = f" {100 * e['no_prediction']:.0f} %" if e["no_prediction"] >= 0.005 else ""
            text = f"{100 * e['median_m']:.2f} ({100 * e['p90_m']:.1f}){missing}"
            line += f"{text:>18}"
        if "ours_over_map" in cell:
            line += f"{cell['ours_over_map']:10.2f}" if cell["ours_over_map"] is not None else f"{'-':>10}"
        if honest:
            spin = cell["spin_error_radps"]
            line += f"{spin:7.1f}" if spin is not None else f"{'-':>7}"
            for judged in (cell, cell["drawn_spin"]):
                line += _judged(judged, "nees", 9, 1) + _judged(judged, "nis", 8, 2)
        lines.append(line)
    if honest:
        c = result["consistent"]
        lines.append(
            "! outside the 95 % bounds; NEES is honest at 9, NIS at 3; * spins drawn from the prior (model = truth)"
        )
        for key, label in (("drawn_spin", "drawn spins"), ("measured_spin", "measured spins")):
            lines.append(
                f"within 95 % bounds, {label}: NEES in {c[key]['nees']}, NIS in {c[key]['nis']} of {c['cells']} cells"
            )
    for name, world in result.get("worlds", {}).items():
        lines.append(f"world {name}, lift law identified as {world['law']}:")
        for when in ("before", "after", "truth"):
            parts = []
            for key, label in (
                ("constants", "constants alone"),
                ("seen", "0.3 s seen"),
                ("after_bounce", "after the bounce"),
            ):
                e = world[when][key] if key == "constants" else world[when][key]["ours"]
                parts.append(
                    f"{label} {100 * e['median_m']:.2f} cm" if e["median_m"] is not None else f"{label} -"
                )
            lines.append(f"  {when:>6}: " + ", ".join(parts))
    t = result["timing_us"]
    lines.append(
        f"time per call: flight to the plane {t['flight_to_plane']:.1f} µs, filter step {t['ekf_step']:.1f} µs, "
        f"prediction with covariance {t['prediction']:.0f} µs"
    )
    return lines
