"""`tt identify`: ball constants from recorded flights, and the spin prior from measured ball states."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tt_bringup.choices import laws, worlds
from tt_perception.errors import TTError
from tt_perception.files import result_file, write_whole

if TYPE_CHECKING:
    from tt_estimation.identify import Identification
    from tt_estimation.spin_prior import SpinPrior
    from tt_perception.types import BallPosition


def main(
    bags: Annotated[
        list[Path] | None, typer.Argument(help="Recordings with ball/position or ball/state.")
    ] = None,
    *,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="YAML to write [default: ball_model.yaml or spin_prior.yaml]"),
    ] = None,
    report: Annotated[
        Path | None, typer.Option(help="HTML report to write [default: beside the YAML].")
    ] = None,
    start: Annotated[
        str, typer.Option(help="Ball model to start from, name or YAML.", autocompletion=worlds)
    ] = "nominal",
    law: Annotated[
        str,
        typer.Option(
            help="Lift law: auto, linear or saturating.",
            autocompletion=laws,
        ),
    ] = "auto",
    spin_prior: Annotated[
        Path | None,
        typer.Option(
            help="Ball states just after the hit (public JSON format): refit the spin prior to them."
        ),
    ] = None,
    temperature: Annotated[
        float | None, typer.Option(help="Air temperature, °C; sets the air density.")
    ] = None,
    pressure: Annotated[float | None, typer.Option(help="Air pressure at the place, Pa.")] = None,
    humidity: Annotated[float, typer.Option(help="Relative humidity, 0 to 1.")] = 0.5,
    namespace: Annotated[
        str | None, typer.Option(help="Namespace of the robot; found when left out.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Fits drag, lift, restitution and friction to recorded flights; writes a YAML that the nodes load and a
    report.
    """
    from tt_bringup.terminal import Progress, say
    from tt_estimation.model_file import load_model, save_model
    from tt_estimation.spin_prior import SHIPPED

    if not bags and spin_prior is None:
        raise TTError("name at least one bag, or --spin-prior FILE with ball states; see tt identify --help")
    prior = SHIPPED
    result: dict[str, Any] = {}
    lines: list[str] = []
    target = result_file(output, "ball_model.yaml", "--output") if bags else None
    if spin_prior is not None:
        file = result_file(output if not bags else None, "spin_prior.yaml", "--output")
        prior, facts = _refit_prior(spin_prior, file)
        result["spin_prior"] = facts
        lines += [
            f"spin prior from {facts['states']} incoming balls: residual standard deviation "
            + ", ".join(f"{s:.1f}" for s in facts["sigma_radps"])
            + f" rad/s about x, y, z; for balls of {-facts['high'][4]:.1f} to {-facts['low'][4]:.1f} m/s towards the "
            f"robot, wider outside; wrote {facts['file']}"
        ]
    if bags and target is not None:
        model = load_model(start)
        if (temperature is None) != (pressure is None):
            raise TTError("air density needs both --temperature (°C) and --pressure (Pa); give both or none")
        if temperature is not None and pressure is not None:
            from tt_estimation.air import air_density

            model = replace(model, air_density=air_density(temperature, pressure, humidity))
        from tt_estimation.identify import identify

        with Progress("reading") as bar:
            positions = [p for bag in bags for p in read_positions(bag, namespace)]
            say(f"tt: {len(positions)} ball positions in {len(bags)} recordings")
            found = identify(positions, model, prior, law, target.stem, lambda what: bar.update(what=what))
            save_model(found.model, target, _comment(found, bags))
            page = report or target.with_suffix(".html")
            bar.update(what="drawing the report")
            write_report(found, bags, page)
        result.update(as_result(found), model_file=str(target), report_file=str(page))
        lines += [*_lines(found), f"wrote {target} and {page}"]
    print(json.dumps(result) if as_json else "\n".join(lines))


def read_positions(path: Path, namespace: str | None = None) -> list[BallPosition]:
    """Ball positions of a recording in order of stamps, from ball/position, or else from ball/state.

    Raises:
        TTError: neither topic was recorded, or the bag cannot be read.
    """
    import numpy as np

    from tt_bringup.bags import open_bag, saying_damage
    from tt_bringup.terminal import say
    from tt_estimation.messages import ball_state_from_msg
    from tt_perception.messages import MessageError, ball_position_from_msg
    from tt_perception.types import BallPosition

    bag = open_bag(path)
    topic = bag.find("ball/position", namespace)
    is_state = topic is None
    if topic is None:
        topic = bag.find("ball/state", namespace)
    if topic is None:
        names = ", ".join(sorted(name for name, count in bag.counts.items() if count)) or "nothing"
        raise TTError(
            f"{path} has neither ball/position nor ball/state (it holds {names}); record one of them with `tt record`"
        )
    positions: list[BallPosition] = []
    refused: dict[str, int] = {}
    with saying_damage(bag):
        messages = [message for _, _, message in bag.decoded([topic])]
    for message in messages:
        try:
            if is_state:
                state = ball_state_from_msg(message)
                # States are filtered: taking them as positions is second best, but better than nothing.
                positions.append(BallPosition(state.stamp_ns, state.pos_table, state.cov[:3, :3].copy()))
            else:
                position = ball_position_from_msg(message)
                # Single camera rays say little about where along the ray the ball is.
                if np.linalg.eigvalsh(position.cov)[-1] < 0.1**2:
                    positions.append(position)
        except MessageError as error:
            refused[str(error)] = refused.get(str(error), 0) + 1
    for text, count in refused.items():
        say(f"tt: {path}: {count} messages refused: {text}")
    if not positions and refused:
        raise TTError(f"{path}: no usable message on {topic}: {next(iter(refused))}")
    return sorted(positions, key=lambda p: p.stamp_ns)


def as_result(found: Identification) -> dict[str, Any]:
    """The JSON object of an identification; infinite deviations become null."""
    parameters = {}
    for name, parameter in found.parameters.items():
        entry = parameter.as_json()
        if entry["sigma"] == float("inf"):
            entry["sigma"] = None  # type: ignore[assignment]
        parameters[name] = entry
    return {
        "parameters": parameters,
        "residual_before_m": found.residual_before_m,
        "residual_after_m": found.residual_after_m,
        "law": found.law,
        "flights": found.flights,
        "bounces": found.bounces,
        "dropped_flights": found.dropped,
        "noise_scale": found.noise_scale,
    }


def write_report(found: Identification, bags: list[Path], path: Path) -> None:
    """One HTML page with the constants, residuals before and after, and the correlations of the constants."""
    import html

    import numpy as np

    rows = []
    for name, p in found.parameters.items():
        value = f"{p.value:.4f} ± {1.96 * p.sigma:.4f}" if p.determined else f"{p.value:.4f} (kept)"
        rows.append(
            f"<tr><td>{name}</td><td>{value}</td><td>{html.escape(p.reason or 'determined')}</td></tr>"
        )
    axis = np.abs(np.concatenate((found.before, found.after))).max() if len(found.before) else 0.0
    pictures = _residual_picture(found, float(axis)) + _correlation_picture(found)
    page = f"""<!doctype html><html lang="en"><head><meta charset="utf-8"><title>Ball identification</title>
<style>body{{font-family:sans-serif;max-width:60em;margin:2em auto;padding:0 1em}}td,th{{padding:.3em .8em;
text-align:left;border-bottom:1px solid #ccc}}img{{max-width:100%}}</style></head><body>
<h1>Ball constants</h1>
<p>{found.flights} flights with {found.bounces} table bounces from {html.escape(", ".join(map(str, bags)))};
{found.dropped} flights left out because their residuals are unlike the others'. Lift law: {found.law}.</p>
<p>Residual per axis: {1e3 * found.residual_before_m:.2f} mm with the constants to start from,
{1e3 * found.residual_after_m:.2f} mm with these. Residuals are {found.noise_scale:.2f} times what the covariances of
the positions promise.</p>
<table><tr><th>constant</th><th>value, 95 % interval</th><th></th></tr>{"".join(rows)}</table>
{pictures}</body></html>
"""
    write_whole(path, page)


def _residual_picture(found: Identification, largest: float) -> str:
    import numpy as np

    figure, axes = _figure(1, 2, (10.0, 3.6))
    limit = 1e3 * max(1e-4, float(np.percentile(np.abs(found.before), 99.5))) if largest else 1.0
    bins = np.linspace(-limit, limit, 61)
    for residuals, label in ((found.before, "before"), (found.after, "after")):
        axes[0].hist(1e3 * residuals.ravel(), bins=bins, histtype="step", label=label)
        order = np.argsort(found.times)
        pieces = [piece for piece in np.array_split(order, 25) if len(piece)]
        t = [float(found.times[piece].mean()) for piece in pieces]
        rms = [1e3 * float(np.sqrt(np.mean(residuals[piece] ** 2))) for piece in pieces]
        axes[1].plot(t, rms, marker=".", label=label)
    axes[0].set_xlabel("residual, mm")
    axes[0].set_ylabel("count")
    axes[1].set_xlabel("time since the hit, s")
    axes[1].set_ylabel("residual per axis, mm rms")
    axes[1].set_ylim(bottom=0.0)
    for axis in axes:
        axis.legend()
    return _image(figure, "residuals before and after")


def _correlation_picture(found: Identification) -> str:
    if not found.fitted:
        return ""
    figure, axis = _figure(1, 1, (5.0, 4.2))
    shown = axis.imshow(found.correlation, vmin=-1.0, vmax=1.0, cmap="RdBu_r")
    names = [name.replace("_", " ") for name in found.fitted]
    axis.set_xticks(range(len(names)), names, rotation=40, ha="right")
    axis.set_yticks(range(len(names)), names)
    for i in range(len(names)):
        for j in range(len(names)):
            axis.text(j, i, f"{found.correlation[i, j]:.2f}", ha="center", va="center", fontsize=8)
    figure.colorbar(shown, label="correlation")
    return _image(figure, "correlation of the constants")


def _figure(rows: int, columns: int, size: tuple[float, float]) -> tuple[Any, Any]:
    from tt_sim.figures import pyplot

    return pyplot().subplots(rows, columns, figsize=size, layout="constrained")


def _image(figure: Any, title: str) -> str:
    from tt_sim.figures import png_uri

    return f'<h2>{title.capitalize()}</h2><img alt="{title}" src="{png_uri(figure)}">'


def _refit_prior(path: Path, target: Path) -> tuple[SpinPrior, dict[str, Any]]:
    import numpy as np

    from tt_estimation.spin_prior import fit_spin_prior, save_spin_prior
    from tt_sim.ball_server import load_balls

    states = np.array([ball.state for ball in load_balls(path)])
    prior = fit_spin_prior(states)
    incoming = states[states[:, 4] < 0.0]
    save_spin_prior(prior, target, f"fitted by tt identify to {len(incoming)} incoming balls of {path.name}")
    halves = fit_spin_prior(incoming[::2]), incoming[1::2]
    return prior, {
        "states": len(incoming),
        "sigma_radps": np.sqrt(np.diagonal(prior.covariance)).tolist(),
        "low": prior.low.tolist(),
        "high": prior.high.tolist(),
        # Fitted to every second ball, tested on the others: 3 is honest.
        "held_out_mahalanobis2": _mahalanobis2(*halves),
        "file": str(target),
    }


def _mahalanobis2(prior: SpinPrior, states: Any) -> float:
    import numpy as np

    total = 0.0
    for state in states:
        near = prior.at(state[:6])
        residual = state[6:] - near.mean(state[:3], state[3:6])
        total += float(residual @ np.linalg.solve(near.covariance, residual))
    return total / len(states)


def _comment(found: Identification, bags: list[Path]) -> str:
    lines = [f"identified by tt identify from {', '.join(b.name for b in bags)}: {found.flights} flights"]
    for name, p in found.parameters.items():
        text = f"± {1.96 * p.sigma:.4g} (95 %)" if p.determined else "not determined, kept"
        lines.append(f"{name}: {text}")
    return "\n".join(lines)


def _lines(found: Identification) -> list[str]:
    lines = [
        f"{found.flights} flights, {found.bounces} bounces, {found.dropped} left out; lift law {found.law}"
    ]
    for name, p in found.parameters.items():
        if p.determined:
            lines.append(f"  {name:<18} {p.value:8.4f} ± {1.96 * p.sigma:.4f}")
        else:
            lines.append(f"  {name:<18} {p.value:8.4f} not determined: {p.reason}")
    lines.append(
        f"residual per axis {1e3 * found.residual_before_m:.2f} mm before, {1e3 * found.residual_after_m:.2f} mm after"
    )
    return lines
