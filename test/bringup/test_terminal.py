"""Progress is seen on a terminal and nowhere else, leaves nothing behind, and messages stay whole beside it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

import pytest
from on_terminal import left_standing, on_terminal

from tt_bringup.terminal import COLUMNS

CLI = ("-m", "tt_bringup.cli")
WORK = """
import time
from tt_bringup.terminal import Progress, say
begin = time.monotonic()
with Progress("counting " + 80 * "x" if {wide} else "counting", total=5000) as bar:
    for k in range(5001):
        bar.update(k, note="and a note")
        if k == 2500:
            say("half of it")
        time.sleep(1e-4)
    {end}
print("done")
"""


def work(wide: bool = False, end: str = "") -> str:
    return WORK.format(wide=wide, end=end)


def frames(terminal: str) -> list[str]:
    """What the line of progress showed, one drawing after the other."""
    return [part for part in re.split(r"[\r\n]|\x1b\[K", terminal) if part.startswith("counting")]


def test_a_terminal_shows_how_far_it_is_and_nothing_stays():
    ran = on_terminal("-c", work())
    numbers = [int(re.search(r"(\d+) of 5000", shown).group(1)) for shown in frames(ran.terminal)]
    assert numbers == sorted(numbers) and len(set(numbers)) > 2 and numbers[-1] > numbers[0]
    assert len(numbers) <= 20, "drawn a few times a second, however often it is told"
    assert ran.out == "done\n" and left_standing(ran.terminal) == ["half of it"]


@pytest.mark.parametrize("columns", [40, COLUMNS, 200])
def test_a_line_of_progress_never_wraps(columns: int):
    ran = on_terminal("-c", work(wide=True), columns=columns)
    assert max(map(len, frames(ran.terminal))) == min(columns, COLUMNS) - 1


@pytest.mark.parametrize("end", ["raise SystemExit('bad luck')", "raise KeyboardInterrupt"])
def test_errors_and_ctrl_c_leave_a_clean_terminal(end: str):
    ran = on_terminal("-c", work(end=end))
    assert ran.code and frames(ran.terminal) and not ran.out
    assert not any("counting  [" in line for line in left_standing(ran.terminal))


@pytest.mark.parametrize("terminal", ["dumb", ""])
def test_nothing_moves_in_a_pipe_or_on_a_terminal_that_cannot(terminal: str):
    if terminal:
        shown = on_terminal("-c", work(), TERM=terminal).terminal.replace("\r\n", "\n")
    else:
        shown = subprocess.run(
            [sys.executable, "-c", work()], capture_output=True, text=True, check=True, timeout=60
        ).stderr
    assert shown == "half of it\n"


def test_a_measuring_command_shows_progress_beside_clean_json():
    ran = on_terminal(*CLI, "bench", "bus", "--cycles", "100", "--json")
    assert ran.code == 0 and json.loads(ran.out)["cycles"] == 100
    assert re.search(r"timing cycles  \[[#.]+\]  \d+ of 300", ran.terminal)
    assert not left_standing(ran.terminal)


def test_a_recording_shows_its_time_and_ends_clean_with_ctrl_c(tmp_path):
    bag = tmp_path / "bag"
    ran = on_terminal(
        *CLI, "record", str(bag), "--duration", "60",
        interrupt_at=lambda shown: "of 60 s  " in shown and "messages" in shown, NO_COLOR="1",
    )  # fmt: skip
    standing = left_standing(ran.terminal)
    assert any(line.startswith(f"{bag}: ") for line in standing), standing
    assert not any("of 60 s" in line for line in standing) and not ran.out
    colours = set(re.findall(r"\x1b\[[0-9;]*m", ran.terminal))
    assert not colours, "NO_COLOR holds for the log lines of ROS too"


def test_a_page_in_the_log_of_a_ci_has_no_colours():
    words = [sys.executable, *CLI, "sim", "--help"]
    ci = {**os.environ, "GITHUB_ACTIONS": "true", "TERMINAL_WIDTH": str(COLUMNS)}
    page = subprocess.run(words, capture_output=True, text=True, check=True, timeout=60, env=ci).stdout
    assert "--balls" in page and "\x1b" not in page
    assert max(len(line) for line in page.splitlines()) <= COLUMNS
