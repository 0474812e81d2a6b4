"""`tt replay`: plays a recording into the live graph, or through the pure pipeline."""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tt_bringup.choices import beginnings, robots
from tt_bringup.topics import NAMESPACE, table_name
from tt_perception.errors import TTError

if TYPE_CHECKING:
    from tt_bringup.bags import Bag


_DETECTIONS = "{camera}/detections"
_START_S = 600.0  # until the computing nodes listen; the first start compiles their kernels


def main(
    bag: Annotated[Path, typer.Argument(help="The recording: a bag folder, or a .mcap or .db3 file.")],
    *,
    offline: Annotated[
        bool, typer.Option("--offline", help="Run the stages here, without ROS nodes, and compare.")
    ] = False,
    check: Annotated[
        bool, typer.Option("--check", help="With --offline: exit code 1 when positions or states differ.")
    ] = False,
    tolerance: Annotated[
        float | None,
        typer.Option(
            help="Largest difference that --check allows, SI units; each field has its own without it.",
            min=0.0,
        ),
    ] = None,
    begin: Annotated[
        str | None,
        typer.Option(
            "--from",
            help="With --offline, first input: images, detections, ball/position, ball/state.",
            autocompletion=beginnings,
        ),
    ] = None,
    images: Annotated[
        Path | None,
        typer.Option(help="With --offline: folder with pictures, one folder per camera with a stamps.csv."),
    ] = None,
    rate: Annotated[float, typer.Option(help="Speed; 0.1 is slow motion.", min=0.001, max=1000.0)] = 1.0,
    start: Annotated[
        float, typer.Option(help="Begin this many seconds into the bag.", min=0.0, max=1e9)
    ] = 0.0,
    stop: Annotated[
        float, typer.Option(help="End this many seconds into the bag; 0 plays all.", min=0.0, max=1e9)
    ] = 0.0,
    loop: Annotated[bool, typer.Option("--loop", help="Begin again at the end, until Ctrl-C.")] = False,
    all_topics: Annotated[
        bool, typer.Option("--all", help="Play everything, also what the nodes made, to look at it.")
    ] = False,
    topics: Annotated[str | None, typer.Option(help="Play only these topics, separated by commas.")] = None,
    remap: Annotated[list[str] | None, typer.Option(help="/old/topic:=/new/topic; may be repeated.")] = None,
    nodes: Annotated[
        bool, typer.Option("--nodes", help="Start the computing nodes too, and end them afterwards.")
    ] = False,
    clock: Annotated[bool, typer.Option(help="Publish the time of the recording on /clock.")] = True,
    wait: Annotated[
        float, typer.Option(help="Longest wait for listeners, seconds.", min=0.0, max=60.0)
    ] = 5.0,
    robot: Annotated[
        str | None,
        typer.Option(help="With --offline: another robot than the recorded one.", autocompletion=robots),
    ] = None,
    cameras: Annotated[Path | None, typer.Option(help="With --offline: another calibration file.")] = None,
    model: Annotated[str | None, typer.Option(help="With --offline: other ball constants.")] = None,
    namespace: Annotated[str | None, typer.Option(help="Namespace of the robot in the bag.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object on stdout.")] = False,
) -> None:
    """Plays what the hardware saw (detections, pictures, joint states) again.

    Into the live graph: with --nodes, or beside `ros2 launch tt_bringup replay.launch.py`; look at it with
    `tt view`. With --offline the same stages run in this process, as fast as they can; the result is the
    same at any speed.
    """
    live_only = {
        "--rate": rate != 1.0, "--start": start > 0.0, "--stop": stop > 0.0, "--loop": loop, "--all": all_topics,
        "--topics": topics is not None, "--remap": bool(remap), "--nodes": nodes,
    }  # fmt: skip
    offline_only = {
        "--check": check, "--from": begin is not None, "--images": images is not None, "--robot": robot is not None,
        "--cameras": cameras is not None, "--model": model is not None,
    }  # fmt: skip
    for name, given in (live_only if offline else offline_only).items():
        if given:
            raise TTError(f"{name} has no effect {'with' if offline else 'without'} --offline; leave it out")
    if tolerance is not None and not check:
        raise TTError("--tolerance is for --check; add it")
    if offline:
        choices = {"robot": robot, "cameras": cameras, "model": model, "begin": begin, "images": images}
        raise typer.Exit(_offline(bag, namespace, choices, check, tolerance, as_json))
    values: dict[str, Any] = {
        "bag": str(bag),
        "rate": rate,
        "start_s": start,
        "stop_s": stop,
        "loop": loop,
        "all_topics": all_topics,
        "clock": clock,
        "wait_s": wait,
    }
    if topics is not None:
        values["topics"] = [name.strip() for name in topics.split(",") if name.strip()]
        if not values["topics"]:
            raise TTError(f"--topics {topics!r} names no topic")
    if remap:
        values["remap"] = list(remap)
    with _nodes(bag, namespace) if nodes else contextlib.nullcontext():
        if nodes:
            values.update(wait_s=_START_S, wait_for_stages=True)
        code = _live(values, namespace or NAMESPACE, as_json)
    raise typer.Exit(code)


def _namespace_of_detections(bag: Bag, namespace: str | None) -> str:
    """Where the nodes must be to hear the recorded cameras.

    Raises:
        TTError: there are no detections, none in the given namespace, or several robots.
    """
    topics = [name for name, count in bag.counts.items() if count and table_name(name) == _DETECTIONS]
    found = sorted({name.rsplit("/", 2)[0].strip("/") for name in topics})
    if not found:
        raise TTError(
            f"{bag.path} has no detections for the nodes; --offline replays pictures and positions too"
        )
    wanted = None if namespace is None else namespace.strip("/")
    if wanted not in found and (wanted is not None or len(found) > 1):
        what = "has no detections there" if wanted is not None else "holds several robots"
        raise TTError(f"{bag.path} {what}; choose with --namespace: {', '.join(found)}")
    return wanted or found[0]


@contextlib.contextmanager
def _nodes(path: Path, namespace: str | None) -> Iterator[None]:
    """The computing nodes with the robot and the calibration of the recording, for the time of the block."""
    from tt_bringup.bags import open_bag
    from tt_bringup.graph import GraphSettings, build_graph
    from tt_bringup.replay import recorded_files
    from tt_bringup.supervisor import Supervisor, isolated_environment, run_directory
    from tt_bringup.terminal import say

    bag = open_bag(path)
    namespace = _namespace_of_detections(bag, namespace)
    robot, cameras = recorded_files(bag)
    with run_directory() as folder, isolated_environment() as environment:
        settings = GraphSettings("replay", folder, robot, cameras, namespace=namespace, use_sim_time=True)
        graph = build_graph(settings)
        with Supervisor(graph, environment) as supervisor:
            supervisor.start()
            names = ", ".join(process.name for process in graph.processes)
            say(f"started {names}; the first start compiles for one to three minutes")
            say("tt view, tt record and tt latency --live find them")
            yield
            supervisor.check()


def _offline(
    path: Path,
    namespace: str | None,
    choices: dict[str, Any],
    check: bool,
    tolerance: float | None,
    as_json: bool,
) -> int:
    from tt_bringup.garbage import no_collections
    from tt_bringup.quick_numba import load_numba
    from tt_bringup.read_ahead import ReadAhead
    from tt_bringup.terminal import Progress, say

    with no_collections(), ReadAhead(path, _what_is_replayed) as reading:
        load_numba()
        from tt_bringup import replay
        from tt_bringup.bags import saying_damage
        from tt_bringup.replay_compare import comparison_lines
        from tt_bringup.replay_planning import PlanningProcess

        if choices["begin"] not in (None, *replay.BEGINNINGS):
            raise TTError(f"--from {choices['begin']} is none of {', '.join(replay.BEGINNINGS)}")
        bag = reading.bag()
    two_cores = len(os.sched_getaffinity(0)) > 1
    with saying_damage(bag), no_collections(), Progress("reading", unit="s") as bar:
        settings = replay.settings_from_bag(bag, namespace=namespace, **choices)
        two = PlanningProcess(bag, settings) if two_cores else contextlib.nullcontext()
        with two as planning, _saying_compilation():
            result = replay.run_offline(
                bag, settings, planning, lambda at_s: bar.update(at_s, bag.duration_s, "replaying")
            )
    comparisons = result.comparisons
    for reason, count in list(result.skipped.items())[:5]:
        say(f"tt: {count} messages skipped: {reason}")
    unknown = bag.unknown_types()
    for topic, kind in unknown.items():
        say(f"tt: {topic} is skipped: type {kind} is not installed")
    differing = [row.topic for row in comparisons if check and _differs(row, tolerance)]
    if as_json:
        print(
            json.dumps(
                {
                    "bag": str(path),
                    "begin": settings.begin,
                    "events": result.events,
                    "outputs": result.made,
                    "decisions": result.decisions,
                    "comparison": {row.topic: row.as_dict() for row in comparisons},
                    "skipped": result.skipped,
                    "unknown_types": unknown,
                    "damage": bag.damage,
                    "wall_s": round(result.wall_s, 3),
                    "bag_s": round(result.bag_s, 3),
                    "differing": differing,
                }
            )
        )
    else:
        speed = result.bag_s / result.wall_s if result.wall_s > 0.0 else 0.0
        times = f"{speed:.0f}" if speed > 9.5 else f"{speed:.2g}"
        print(f"{result.events} events from {settings.begin}: {result.wall_s:.2f} s, {times} times real time")
        print("\n".join(comparison_lines(comparisons)))
        if result.decisions:
            print("decisions: " + ", ".join(f"{name} {n}" for name, n in sorted(result.decisions.items())))
    if differing:
        allowed = "the tolerances" if tolerance is None else f"{tolerance:g}"
        say(f"tt: {', '.join(differing)} differ from the recording by more than {allowed}")
        return 1
    return 0


def _what_is_replayed(bag: Bag) -> list[str]:
    """Topics that are read more than once; pictures are too large to keep."""
    names = {_DETECTIONS, "ball/position", "ball/state", "hit_plan", "joint_trajectory", "latency"}
    return [topic for topic in bag.counts if table_name(topic) in names]


@contextlib.contextmanager
def _saying_compilation() -> Iterator[None]:
    """Says so once when a kernel is not in the cache yet."""
    from numba.core import event

    from tt_bringup.terminal import say

    class Listener(event.Listener):
        said = False

        def on_start(self, event: Any) -> None:
            if not self.said:
                say("tt: compiling the kernels: the first time this takes one to three minutes")
            self.said = True

        def on_end(self, event: Any) -> None:
            pass

    with event.install_listener("numba:compile", Listener()):
        yield


def _differs(row: Any, tolerance: float | None) -> bool:
    """Plans and trajectories depend on when the processor got to them, so only the stages before are
    judged.
    """
    if row.topic not in ("ball/position", "ball/state"):
        return False
    return row.paired < row.recorded or any(
        field.largest > (field.tolerance if tolerance is None else tolerance) for field in row.fields
    )


def _live(values: dict[str, Any], namespace: str, as_json: bool) -> int:
    from rclpy.clock import Clock, ClockType
    from rclpy.parameter import Parameter

    from tt_bringup.node_kit import run_node
    from tt_bringup.replay_node import ReplayNode
    from tt_bringup.terminal import PERIOD_S, Progress, say

    nodes: list[ReplayNode] = []
    bar = Progress("waiting for listeners", unit="s")

    def tell() -> None:
        node = nodes[0]
        if node.position_s is not None:
            played = f"{sum(node.counts.values())} messages"
            bar.update(node.position_s, node.length_s, "playing", played)

    def make() -> ReplayNode:
        overrides = [Parameter(name, value=value) for name, value in values.items()]
        nodes.append(ReplayNode(namespace=namespace, parameter_overrides=overrides))
        if bar.is_shown:
            nodes[0].create_timer(PERIOD_S, tell, clock=Clock(clock_type=ClockType.STEADY_TIME))
        return nodes[-1]

    try:
        with bar:
            run_node(make, args=["tt replay"])
    except SystemExit as end:
        if end.code:
            return end.code if isinstance(end.code, int) else 1
    node = nodes[0]
    if node.error:
        raise TTError(node.error)
    played = sum(node.counts.values())
    say(f"played {played} messages on {len(node.counts)} topics")
    if as_json:
        print(
            json.dumps(
                {"played": node.counts, "nobody_listened": sorted(node.nobody), "skipped": node.skipped}
            )
        )
    return 0
