"""`tt eval perception`: perception against known truth."""

from __future__ import annotations

import json
import sys
from typing import Annotated

import typer


def main(
    balls: Annotated[int, typer.Option(help="Rallies to render.", min=1, max=10000)] = 20,
    fps: Annotated[float, typer.Option(help="Trigger rate, Hz.", min=1.0, max=1000.0)] = 120.0,
    size: Annotated[str, typer.Option(help="Image size, WIDTHxHEIGHT.")] = "1280x800",
    points: Annotated[int, typer.Option(help="Points per row of the outlier simulation.", min=100)] = 5000,
    seed: Annotated[int, typer.Option(help="Seed of balls and noise.", min=0)] = 1,
    colour: Annotated[bool, typer.Option("--colour", help="Colour images and an orange ball.")] = False,
    plain: Annotated[bool, typer.Option("--plain", help="No person, second ball or changing light.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Renders rallies seen by four cameras, detects and triangulates the ball, and compares with the truth.

    Then triangulates simulated pixels with outliers, and measures the time of each stage. The scene holds a
    person, a second ball, flickering and drifting light unless `--plain` is given.
    """
    from dataclasses import replace

    import cv2

    from tt_bringup.terminal import Progress
    from tt_perception.errors import TTError
    from tt_sim.eval_perception import PerceptionEvalConfig, evaluate
    from tt_sim.render import RenderConfig

    cv2.setNumThreads(1)  # as in the camera nodes
    try:
        width, height = (int(part) for part in size.lower().split("x"))
        if not (160 <= width <= 4096 and 120 <= height <= 4096):
            raise ValueError
    except ValueError:
        print(f"tt eval perception: size {size!r} must be WIDTHxHEIGHT, e.g. 640x480", file=sys.stderr)
        raise typer.Exit(2) from None
    config = PerceptionEvalConfig(
        balls=balls, fps=fps, width=width, height=height, seed=seed, outlier_points=points
    )
    render = RenderConfig() if plain else config.render
    if colour:
        render = replace(render, colour=True, ball_colour="orange")
    try:
        with Progress("rendering rallies") as bar:
            result = evaluate(
                replace(config, render=render), lambda what, done, total: bar.update(done, total, what)
            )
    except TTError as error:
        print(f"tt eval perception: {error}", file=sys.stderr)
        raise typer.Exit(2) from None
    if as_json:
        print(json.dumps(result))
        return
    rendered, timing = result["rendered"], result["timing_us"]
    print(
        f"rendered: {rendered['frames']} triggers of 4 × {width}×{height} px at {fps:g} Hz\n"
        f"  3-D error   median {rendered['median_m'] * 1e3:.2f} mm, 95 % {rendered['p95_m'] * 1e3:.2f} mm, "
        f"max {rendered['max_m'] * 1e3:.1f} mm\n"
        f"  pixel error median {rendered['pixel_median']:.3f} px\n"
        f"  positions   {100 * rendered['detected_share']:.2f} % of the triggers with the ball in 2 or more views\n"
        f"  covariance  {100 * rendered['covariance_within_95']:.1f} % of the errors in the 95 % ellipsoid\n"
        f"  false candidates {rendered['false_candidates_per_image']:.2f} per image"
    )
    print("outliers (mean error, failures):")
    for row in result["outliers"]:
        print(
            f"  {row['cameras']} cameras, {100 * row['share']:.0f} %: {row['error_m'] * 100:.2f} cm, "
            f"{100 * row['failures']:.2f} %"
        )
    print(
        f"time: full frame {timing['detect_full']:.0f} µs, region {timing['detect_roi']:.0f} µs, "
        f"triangulation {timing['triangulate']:.0f} µs (medians)"
    )
