"""`tt view`: the scene in a browser, live or from a recording."""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
import webbrowser
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tt_bringup.choices import robots

if TYPE_CHECKING:
    from tt_bringup.bags import Bag
    from tt_bringup.rally import Rally
    from tt_bringup.viewer import Viewer

FRAME_S = 1.0 / 30.0
PREVIEW_S = 0.1


def main(
    bag: Annotated[Path | None, typer.Argument(help="A recording; the running graph when left out.")] = None,
    *,
    port: Annotated[int, typer.Option(help="Port; 0 for any free one.", min=0, max=65535)] = 8080,
    host: Annotated[
        str, typer.Option(help="Address to listen on; 0.0.0.0 lets other computers look.")
    ] = "127.0.0.1",
    allow_motion: Annotated[
        bool, typer.Option("--allow-motion", help="Show buttons and sliders that move the robot.")
    ] = False,
    open_browser: Annotated[bool, typer.Option("--open", help="Open the browser of this computer.")] = False,
    robot: Annotated[
        str, typer.Option(help="Robot, where the recording does not say.", autocompletion=robots)
    ] = "gantry4",
    cameras: Annotated[
        Path | None, typer.Option(help="Calibration file; simulated cameras without it.")
    ] = None,
    namespace: Annotated[str | None, typer.Option(help="Namespace of the robot.")] = None,
    at: Annotated[float, typer.Option(help="Begin this many seconds into the recording.", min=0.0)] = 0.0,
    seconds: Annotated[float, typer.Option(help="End after this time; 0 runs until Ctrl-C.", min=0.0)] = 0.0,
    timing: Annotated[
        bool, typer.Option("--timing", help="Tell when the first browser has drawn its first picture.")
    ] = False,
    as_json: Annotated[
        bool, typer.Option("--json", help="Print JSON objects on stdout, one a line.")
    ] = False,
) -> None:
    """Shows table, robot, ball, prediction, planned hit and cameras; serve, stop and e-stop from the browser.

    Only this computer can connect unless --host says otherwise.
    """
    from tt_bringup.names import checked_namespace
    from tt_bringup.read_ahead import ReadAhead

    if namespace is not None:
        namespace = checked_namespace(namespace)
    with ReadAhead(bag, _robots) if bag is not None else contextlib.nullcontext() as reading:
        from tt_bringup.viewer import LOCALHOST, Viewer
        from tt_perception.camera import default_sim_cameras, load_cameras
        from tt_planning.robot import load_robot

        model = load_robot(robot)
        rig = load_cameras(cameras) if cameras is not None else default_sim_cameras()
        size = (model.racket.width, model.racket.thickness, model.racket.height)
        recording = reading.bag() if reading is not None else None
        urdf = _urdf(recording, namespace) if recording is not None else ""
    viewer = Viewer(urdf or model.urdf, rig, size, host, port)
    if timing:
        viewer.on_first_picture(lambda: _tell_time(as_json))
    if host != LOCALHOST:
        print(f"tt: other computers can open {viewer.url} too", file=sys.stderr)
    if as_json:
        print(json.dumps({"url": viewer.url}), flush=True)
    print(f"{viewer.url}  (Ctrl-C ends)", file=sys.stderr, flush=True)
    if open_browser and not webbrowser.open(viewer.url):
        print(f"tt: no browser was found here; open {viewer.url} yourself", file=sys.stderr)
    end = time.monotonic() + seconds if seconds > 0.0 else float("inf")
    try:
        # Reading a long recording takes longer than drawing a table, and would hold the drawing up.
        viewer.complete()
        if recording is not None:
            from tt_bringup.bags import saying_damage
            from tt_bringup.garbage import no_collections
            from tt_bringup.rally import load_rally
            from tt_bringup.terminal import Progress

            with saying_damage(recording), no_collections(), Progress("reading"):
                rally = load_rally(recording, namespace)
            _show_bag(viewer, rally, at, end)
        else:
            from tt_bringup.live_view import show_live

            show_live(viewer, model, namespace or "tt", allow_motion, end)
    except KeyboardInterrupt:
        pass
    finally:
        viewer.close()


def _robots(bag: Bag) -> list[str]:
    """Topics with a description of a robot."""
    return [topic for topic in bag.counts if topic.endswith("/robot_description")]


def _urdf(bag: Bag, namespace: str | None) -> str:
    """The recorded robot description; empty without one."""
    topic = bag.find("robot_description", namespace)
    if topic is None:
        return ""
    found = next(bag.messages([topic]), None)
    return "" if found is None else str(bag.decode(*found).data)


def _tell_time(as_json: bool) -> None:
    """Tells the age of this process."""
    ticks = int(Path("/proc/self/stat").read_text().rsplit(")", 1)[1].split()[19])
    age_s = time.clock_gettime(time.CLOCK_BOOTTIME) - ticks / os.sysconf("SC_CLK_TCK")
    print(f"first picture after {age_s:.2f} s", file=sys.stderr, flush=True)
    if as_json:
        print(json.dumps({"first_picture_s": round(age_s, 3)}), flush=True)


def _show_bag(viewer: Viewer, rally: Rally, at: float, end: float) -> None:
    from tt_bringup.bag_view import BagView
    from tt_bringup.latency import END_TO_END
    from tt_bringup.rally import prediction_errors

    views, balls = BagView(rally), rally.balls()
    moved = [True]
    starts = [(f"{ball.name}: {ball.outcome.replace('_', ' ')}", ball.begin) for ball in balls]
    timeline = viewer.timeline(rally.duration, starts, lambda _: moved.__setitem__(0, True))
    if at > 0.0 or balls:
        timeline.go(at or balls[0].begin)
    durations = rally.latency.durations_ms()
    if END_TO_END in durations:
        values, captures = durations[END_TO_END]
        viewer.plot("latency, exposure to bus", 1e-9 * (captures - rally.start_ns), values, "s", "ms")
    begin = timeline.time_s
    first = next((ball for ball in balls if ball.end >= begin), None)
    if first is not None:
        timeline.show_ball(first.number)
        _plot_errors(viewer, prediction_errors(rally, first))
    shown_ball, previewed = first.number if first is not None else 0, 0.0
    before = time.monotonic()
    while (now := time.monotonic()) < end:
        timeline.advance(now - before)
        before = now
        if moved[0] or timeline.playing:
            moved[0] = False
            view = views.at(timeline.time_s)
            viewer.show(view)
            if now - previewed > PREVIEW_S or not timeline.playing:
                previewed = now
                viewer.preview(view)
            ball = next((b for b in balls if b.begin <= view.time_s <= b.end), None)
            if ball is not None and ball.number != shown_ball:
                shown_ball = ball.number
                timeline.show_ball(ball.number)
                _plot_errors(viewer, prediction_errors(rally, ball))
        time.sleep(max(0.0, FRAME_S - (time.monotonic() - now)))


def _plot_errors(viewer: Viewer, errors: Any) -> None:
    """Rows of time to the hit (s), distance (m); see `prediction_errors`."""
    if len(errors):
        viewer.plot("prediction error", -1e3 * errors[:, 0], 100.0 * errors[:, 1], "ms to the hit", "cm")
