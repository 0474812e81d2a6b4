"""`tt report`: one HTML page about a recording."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from tt_bringup.choices import robots


def main(
    bag: Annotated[Path, typer.Argument(help="The recording.")],
    *,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="HTML file; <bag>.html in this folder when left out."),
    ] = None,
    ball: Annotated[str | None, typer.Option(help="Id of one ball to draw or film.")] = None,
    video: Annotated[Path | None, typer.Option(help="Also film the ball into this MP4.")] = None,
    slow: Annotated[float, typer.Option(help="Speed of the film.", min=0.01, max=2.0)] = 0.25,
    robot: Annotated[
        str, typer.Option(help="Robot, where the recording does not say.", autocompletion=robots)
    ] = "gantry4",
    namespace: Annotated[str | None, typer.Option(help="Namespace of the robot.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Writes rallies, outcomes, pictures of each ball, landing map, errors, latency, jitter and faults.

    The file holds everything: no network, no other files.
    """
    from tt_bringup.bags import open_bag, saying_damage
    from tt_bringup.garbage import no_collections
    from tt_bringup.rally import ball_called, load_rally
    from tt_bringup.report import ReportError, write_report
    from tt_bringup.terminal import Progress, say
    from tt_planning.robot import load_robot

    if video is not None and video.suffix.lower() != ".mp4":
        raise ReportError(f"--video {str(video)!r} must end in .mp4")
    model = load_robot(robot)
    path = output or Path(f"{bag.resolve().name.removesuffix('.mcap').removesuffix('.db3')}.html")
    recording = open_bag(bag)
    with saying_damage(recording), Progress("reading") as bar, no_collections():
        rally = load_rally(recording, namespace)
        result = write_report(
            rally, path, ball, lambda what, done, total: bar.update(done, total, f"drawing {what}")
        )
        result["report"] = str(path)
        if video is not None:
            from tt_bringup.video import write_video

            balls = rally.balls()
            chosen = next(iter(balls), None) if ball is None else ball_called(balls, ball)
            if chosen is None:
                raise ReportError(f"{bag} has no ball to film")
            bar.update(what=f"filming ball {chosen.name}")
            urdf = rally.urdf or model.urdf
            result["video_frames"] = write_video(rally, chosen, video, urdf, slow, bar.update)
            result["video"] = str(video)
    for reason, count in list(rally.skipped.items())[:5]:
        say(f"tt: {count} messages skipped: {reason}")
    say(f"wrote {path}" + (f" and {video}" if video is not None else ""))
    if as_json:
        print(json.dumps(result))
