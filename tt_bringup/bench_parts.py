"""Every time that README and docs claim, measured on this machine; each part can be chosen.

A part returns rows of times in milliseconds. Parts that start commands time them from the call to their end, as
a user would; those need a recording.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from tt_perception.errors import TTError

_BROWSERS = ("chromium", "chromium-browser", "google-chrome")
_PAGE_GONE_S = 3.0  # the browser takes so long to forget the page before
_CAP_S = 120.0


class BenchError(TTError):
    """A part of the benchmark cannot run here."""


@dataclass(frozen=True)
class Settings:
    """What is measured on.

    Attributes:
        robot: name of a shipped robot or path of its YAML file.
        rallies: balls for the computing stages.
        repeats: calls of other functions, a tenth of it for started commands (at least one).
        bag: a recording, None when there is none.
    """

    robot: str = "gantry4"
    rallies: int = 10
    repeats: int = 300
    bag: Path | None = None


@dataclass(frozen=True)
class Row:
    """Times of one thing in ms, and how many calls; None for what was not measured."""

    name: str
    min_ms: float
    median_ms: float
    p95_ms: float | None
    max_ms: float | None
    count: int


def _row(name: str, times_ms: Sequence[float]) -> Row:
    low, median, p95, high = map(float, np.percentile(times_ms, (0, 50, 95, 100)))
    return Row(name, low, median, p95, high, len(times_ms))


def stages(settings: Settings) -> list[Row]:
    """Stage by stage over simulated rallies: filter, prediction, decision, trajectory, and the whole chain."""
    from tt_bringup.benchmark import bench_single_stages, bench_stages
    from tt_planning.robot import load_robot

    robot = load_robot(settings.robot)
    timings = bench_single_stages(robot, settings.rallies)
    timings += bench_stages(robot, settings.rallies, lambda _: None)
    return [_row(t.name, [1e-3 * value for value in t.times_us]) for t in timings]


def detection(settings: Settings) -> list[Row]:
    """Ball detection in a picture of 1280×800, in full and around the expected ball; location by four cameras."""
    from tt_sim.eval_perception import PerceptionEvalConfig, measure_times

    found = measure_times(PerceptionEvalConfig(), settings.repeats)
    words = {
        "detect_full": "detection, whole picture",
        "detect_roi": "detection, region",
        "triangulate": "location, four views",
    }
    return [
        Row(words[name], 1e-3 * found[f"{name}_min"], 1e-3 * found[name], None, None, settings.repeats)
        for name in words
    ]


def dynamics(settings: Settings) -> list[Row]:
    """Inverse dynamics of the robot, once per motor tick."""
    from tt_control.dynamics import RigidBody
    from tt_planning.robot import load_robot

    robot = load_robot(settings.robot)
    body = RigidBody.from_robot(robot)
    rng = np.random.default_rng(1)
    q, qd, qdd = (rng.uniform(-0.2, 0.2, robot.joint_count) for _ in range(3))
    return [_row("inverse dynamics", _times(lambda: body.inverse(q, qd, qdd), settings.repeats))]


def bus(settings: Settings) -> list[Row]:
    """One cycle of the motor bus over four simulated boards on a pseudo-terminal."""
    from tt_sim.boards.bench import bench_cycle

    cycles = max(10, settings.repeats)
    found = bench_cycle(4, cycles)["cycle_us"]
    low, median, p95, high = (1e-3 * found[column] for column in ("min", "median", "p95", "max"))
    return [Row("motor bus, four boards", low, median, p95, high, cycles)]


def start(settings: Settings) -> list[Row]:
    """`tt --help`, as a user starts it."""
    return [_row("tt --help", _command_times(settings, "--help"))]


def replay(settings: Settings) -> list[Row]:
    """`tt replay BAG --offline`."""
    return [_of_recording("tt replay --offline", settings, "replay", "{bag}", "--offline", "--json")]


def report(settings: Settings) -> list[Row]:
    """`tt report BAG`."""
    return [_of_recording("tt report", settings, "report", "{bag}", "--output", "{folder}/report.html")]


def viewer(settings: Settings) -> list[Row]:
    """From `tt view BAG` to the first picture in a headless browser that is running already."""
    program = next((path for path in map(shutil.which, _BROWSERS) if path), None)
    if program is None:
        raise BenchError(f"no browser: install one of {', '.join(_BROWSERS)}")
    bag = _recording(settings)
    with tempfile.TemporaryDirectory() as folder, _browser(program, Path(folder)) as port:
        times = []
        for _ in range(_commands(settings)):
            time.sleep(_PAGE_GONE_S)
            times.append(_first_picture_ms(bag, port))
    return [_row("tt view, first picture", tuple(times))]


PARTS: dict[str, Callable[[Settings], list[Row]]] = {
    "stages": stages,
    "detection": detection,
    "dynamics": dynamics,
    "bus": bus,
    "start": start,
    "replay": replay,
    "report": report,
    "viewer": viewer,
}


def run(
    names: tuple[str, ...], settings: Settings, progress: Callable[[str], None]
) -> tuple[list[Row], dict[str, str]]:
    """Measures the chosen parts.

    Args:
        names: of `PARTS`.
        settings: what is measured on.
        progress: told which part runs.

    Returns:
        All rows, and by part why it was left out.

    Raises:
        BenchError: there is no such part.
    """
    unknown = [name for name in names if name not in PARTS]
    if unknown:
        raise BenchError(f"there is no part {unknown[0]!r}; there are {', '.join(PARTS)}")
    rows: list[Row] = []
    skipped: dict[str, str] = {}
    for name in names:
        progress(name)
        try:
            rows += PARTS[name](settings)
        except BenchError as error:
            skipped[name] = str(error)
    return rows, skipped


def _times(action: Callable[[], Any], repeats: int) -> tuple[float, ...]:
    action()
    times = []
    for _ in range(repeats):
        begin = time.perf_counter()
        action()
        times.append(1e3 * (time.perf_counter() - begin))
    return tuple(times)


def _commands(settings: Settings) -> int:
    return max(1, min(5, settings.repeats // 10))


def _command_times(settings: Settings, *words: str) -> tuple[float, ...]:
    call = [sys.executable, "-m", "tt_bringup.cli", *words]

    def action() -> None:
        done = subprocess.run(call, capture_output=True, text=True, timeout=_CAP_S, check=False)
        if done.returncode:
            raise BenchError(f"tt {' '.join(words)}: {done.stderr.strip().splitlines()[-1:]}")

    return _times(action, _commands(settings))


def _of_recording(name: str, settings: Settings, *words: str) -> Row:
    bag = _recording(settings)
    with tempfile.TemporaryDirectory() as folder:
        return _row(name, _command_times(settings, *(w.format(bag=bag, folder=folder) for w in words)))


def _recording(settings: Settings) -> Path:
    if settings.bag is None:
        raise BenchError("give a recording with --bag; tt sim --balls 20 --record FOLDER makes one")
    return settings.bag


@contextmanager
def _browser(program: str, folder: Path) -> Iterator[int]:
    """A headless browser without a page; gives the port on which it takes orders."""
    options = ("--headless=new", "--no-sandbox", "--use-angle=swiftshader", "--enable-unsafe-swiftshader",
               "--window-size=1200,800", "--remote-debugging-port=0", f"--user-data-dir={folder}",
               "--no-first-run", "--disable-extensions", "about:blank")  # fmt: skip
    quiet = subprocess.DEVNULL
    process = subprocess.Popen([program, *options], stdout=quiet, stderr=quiet)
    try:
        file, end = folder / "DevToolsActivePort", time.monotonic() + _CAP_S
        while not file.is_file() or "\n" not in file.read_text():
            if process.poll() is not None or time.monotonic() > end:
                raise BenchError(f"{program} does not start")
            time.sleep(0.02)
        yield int(file.read_text().split()[0])
    finally:
        process.terminate()
        process.wait()


def _first_picture_ms(bag: Path, browser_port: int) -> float:
    words = ("-m", "tt_bringup.cli", "view", str(bag), "--port", "0", "--timing", "--json")
    process = subprocess.Popen(
        [sys.executable, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=os.environ
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        if not line:
            raise BenchError("tt view did not start")
        url = json.loads(line)["url"]
        order = urllib.request.Request(f"http://127.0.0.1:{browser_port}/json/new?{url}", method="PUT")
        with urllib.request.urlopen(order, timeout=_CAP_S) as answer:
            page = json.load(answer)["id"]
        taken = 1e3 * float(json.loads(process.stdout.readline())["first_picture_s"])
        with urllib.request.urlopen(f"http://127.0.0.1:{browser_port}/json/close/{page}", timeout=_CAP_S):
            return taken
    finally:
        process.terminate()
        process.wait()
