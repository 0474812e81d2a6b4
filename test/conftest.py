"""What all tests share: the public ball file, and ROS processes that meet nobody and leave nothing behind."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from hypothesis import settings

# The same examples in every run, without a clock: what fails here fails again. HYPOTHESIS_PROFILE=default explores.
settings.register_profile("repeatable", derandomize=True, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "repeatable"))

ROOT = Path(__file__).resolve().parent.parent
BALLS = Path("shared") / "data" / "ball_states_even.json"
MATCH_CAP_S = 10.0


def _isolate_ros() -> contextlib.ExitStack:
    """Sets the ROS environment of this test process, before anything imports rclpy."""
    from tt_bringup.environment import apply_defaults, free_domain

    held = contextlib.ExitStack()
    domain = held.enter_context(free_domain(os.environ.get("ROS_DOMAIN_ID")))
    os.environ["ROS_DOMAIN_ID"] = str(domain)
    os.environ["ROS_LOG_DIR"] = held.enter_context(tempfile.TemporaryDirectory(prefix="tt_test_log_"))
    os.environ.setdefault("TERMINAL_WIDTH", "100")
    apply_defaults(os.environ)
    return held


_held = _isolate_ros()


def pytest_sessionfinish() -> None:
    """Frees the ROS domain and removes the logs."""
    _held.close()


@pytest.fixture(scope="session")
def ball_file() -> Path:
    """The public ball states; skips where they are not available."""
    path = Path(os.environ.get("TT_BALLS_FILE", ROOT.parent / BALLS))
    if not path.is_file():
        pytest.skip("public ball states not found; set TT_BALLS_FILE to the JSON file")
    return path


def _take_signals() -> None:
    """In a child: a test that ran a node in this process has left signals ignored, and children inherit that."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


class Processes:
    """Starts processes in sessions of their own and ends every one of them."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *words: str, **environment: str) -> subprocess.Popen[str]:
        """Starts a command; stdout and stderr are pipes of text."""
        process = subprocess.Popen(
            words,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=self._folder,
            env={**os.environ, **environment},
            start_new_session=True,
            preexec_fn=_take_signals,
        )
        self._started.append(process)
        return process

    def python(self, *words: str, **environment: str) -> subprocess.Popen[str]:
        """Starts Python with these arguments."""
        return self.start(sys.executable, *words, **environment)

    def end(self) -> None:
        """Asks every process to end, then kills what is left of its session."""
        for process in self._started:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
        for process in self._started:
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.communicate(timeout=5.0)
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            with contextlib.suppress(ValueError, subprocess.TimeoutExpired):
                process.communicate(timeout=5.0)


@pytest.fixture
def processes(tmp_path: Path) -> Iterator[Processes]:
    """Starts processes; all are ended after the test."""
    started = Processes(tmp_path)
    yield started
    started.end()


@pytest.fixture
def wait_for() -> Callable[[Callable[[], bool]], None]:
    """Waits until a condition holds, at most ten seconds."""

    def wait(condition: Callable[[], bool], cap_s: float = MATCH_CAP_S) -> None:
        end = time.monotonic() + cap_s
        while not condition():
            assert time.monotonic() < end, "waited too long"
            time.sleep(0.01)

    return wait
