"""Runs a graph as child processes, and leaves none behind, whatever happens.

Every child has a session of its own, so that Ctrl-C reaches the supervisor alone, which then ends them in
the right order: the motors first, the simulated hardware last. Should the supervisor itself be killed, the
kernel ends the nodes (see node_kit.run).
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from tt_bringup.environment import GRAPH_LABEL, apply_defaults, free_domain
from tt_bringup.graph import Graph, Process
from tt_bringup.graph_errors import GraphError, NodeDiedError
from tt_bringup.node_kit.run import SUPERVISED_ENV

STOP_GRACE_S = 6.0
KILL_GRACE_S = 2.0
_POLL_S = 0.01
_TAIL_BYTES = 4000
_GOOD_NEWS = re.compile(r"\s*\[(DEBUG|INFO)\]")
_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


@dataclass
class Child:
    """A started process.

    Attributes:
        name: its name in the graph.
        process: handle.
        log: file with its output.
        required: the graph stops when it ends.
        missed: its early or bad end is told.
        stop_last: ends after the others.
    """

    name: str
    process: subprocess.Popen[bytes]
    log: Path
    required: bool
    missed: bool
    stop_last: bool


class Supervisor:
    """Starts the processes of a graph, watches them, and ends them.

    Use it as a context manager: leaving the block ends every process, also after an exception. Inside the
    block SIGINT, SIGTERM and SIGHUP are only noted; `check()` turns them into KeyboardInterrupt at a moment
    when nothing is half done.

    Attributes:
        environment: environment of the children.
        interrupted: number of the signal that asked to stop; 0 when none did.
        losses: names of processes that ended early or badly although the run wants what they make.
    """

    def __init__(
        self, graph: Graph, environment: Mapping[str, str], tell: Callable[[str], None] = lambda _: None
    ) -> None:
        """Prepares; nothing is started yet.

        Args:
            graph: what to run.
            environment: environment for the children, with ROS_DOMAIN_ID.
            tell: gets a line about each of the `losses`.
        """
        self._graph = graph
        self._children: list[Child] = []
        self._old_handlers: dict[int, Any] = {}
        self._tell = tell
        self.interrupted = 0
        self.losses: list[str] = []
        self.environment = {**environment, SUPERVISED_ENV: str(os.getpid())}
        self.environment["TT_RUN_DIR"] = str(graph.settings.run_dir)
        self.environment.setdefault("ROS_LOG_DIR", str(graph.settings.run_dir / "ros_log"))
        apply_defaults(self.environment)

    def __enter__(self) -> Supervisor:
        """Begins to note signals."""
        for number in _SIGNALS:
            self._old_handlers[number] = signal.signal(number, self._note)
        return self

    def __exit__(self, *_: object) -> None:
        """Ends every process and gives the signals back."""
        try:
            self.stop()
        finally:
            for number, handler in self._old_handlers.items():
                signal.signal(number, handler)

    @property
    def pids(self) -> dict[str, int]:
        """Process ids by name."""
        return {child.name: child.process.pid for child in self._children}

    def start(self) -> None:
        """Writes the parameter file and starts all processes.

        Raises:
            GraphError: a program cannot be started.
        """
        self._graph.write_parameters()
        logs = self._graph.settings.run_dir / "log"
        logs.mkdir(parents=True, exist_ok=True)
        for process in self._graph.processes:
            command = self._graph.command(process)
            self._children.append(self._spawn(process, command, logs))

    def check(self) -> None:
        """Looks once whether all is well.

        Raises:
            KeyboardInterrupt: a signal asked to stop.
            NodeDiedError: a required process has ended.
        """
        if self.interrupted:
            raise KeyboardInterrupt
        for child in self._children:
            code = child.process.poll()
            if code is not None and child.required:
                raise NodeDiedError(f"{self._obituary(child, code)}; the other nodes were stopped")
        self._look_for_losses()

    def wait(self, done: Callable[[], bool] = lambda: False, cap_s: float = float("inf")) -> bool:
        """Waits until `done`, at most `cap_s` seconds, while it watches the processes.

        Returns:
            What `done` said last.

        Raises:
            KeyboardInterrupt: a signal asked to stop.
            NodeDiedError: a required process has ended.
        """
        end = time.monotonic() + cap_s
        while not done():
            self.check()
            if time.monotonic() > end:
                return False
            time.sleep(_POLL_S)
        return True

    def stop(self) -> None:
        """Ends every process: a polite signal first, SIGKILL for those who do not listen."""
        stubborn = False
        self._look_for_losses()
        for last in (False, True):
            group = [child for child in self._children if child.stop_last == last]
            for child in group:
                if child.process.poll() is None:
                    child.process.send_signal(signal.SIGTERM)
            stubborn |= not _joined(group, STOP_GRACE_S)
            for child in group:
                _kill_session(child.process.pid)
            _joined(group, KILL_GRACE_S)
        self._look_for_losses(ended=True)
        unclean = stubborn or any((child.process.returncode or 0) < 0 for child in self._children)
        self._children.clear()
        if unclean:
            clean_shared_memory()

    def _look_for_losses(self, ended: bool = False) -> None:
        """Tells of processes that ended: by themselves, or badly when all were `ended`."""
        for child in self._children:
            code = child.process.poll()
            if child.missed and code is not None and (code or not ended) and child.name not in self.losses:
                self.losses.append(child.name)
                self._tell(self._obituary(child, code))

    def _spawn(self, wanted: Process, command: Sequence[str], logs: Path) -> Child:
        name, log = wanted.name, logs / f"{wanted.name}.log"
        with log.open("wb") as file:
            try:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.DEVNULL,
                    stdout=file,
                    stderr=subprocess.STDOUT,
                    cwd=self._graph.settings.run_dir,
                    env=self.environment,
                    start_new_session=True,
                )
            except OSError as error:
                raise GraphError(f"{name} cannot be started: {command[0]}: {error.strerror}") from error
        return Child(name, process, log, wanted.required, wanted.missed, wanted.stop_last)

    def _obituary(self, child: Child, code: int) -> str:
        how = f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with exit code {code}"
        words = _last_line(child.log)
        return f"{child.name} {how}" + (f": {words}" if words else "")

    def _note(self, number: int, _frame: FrameType | None) -> None:
        self.interrupted = number


@contextlib.contextmanager
def run_directory(keep: bool = False) -> Iterator[Path]:
    """A fresh folder for the files of one run; removed at the end, but kept for a look when a node died."""
    folder = Path(tempfile.mkdtemp(prefix="tt_run_"))
    try:
        yield folder
    except NodeDiedError as error:
        raise NodeDiedError(f"{error} (logs: {folder}/log)") from None
    except BaseException:
        if not keep:
            shutil.rmtree(folder, ignore_errors=True)
        raise
    if not keep:
        shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def isolated_environment() -> Iterator[dict[str, str]]:
    """Environment for one run: a free ROS domain, so that another copy on this machine is not met.

    The same values are set for this process, because it talks to its nodes.
    """
    with free_domain(os.environ.get("ROS_DOMAIN_ID"), GRAPH_LABEL) as domain:
        apply_defaults(os.environ)
        old = os.environ.get("ROS_DOMAIN_ID")
        os.environ["ROS_DOMAIN_ID"] = str(domain)
        try:
            yield dict(os.environ)
        finally:
            if old is None:
                del os.environ["ROS_DOMAIN_ID"]
            else:
                os.environ["ROS_DOMAIN_ID"] = old


def clean_shared_memory() -> None:
    """Removes shared-memory segments that killed processes left; segments in use are not touched."""
    tool = Path(sys.prefix) / "bin" / "fastdds"
    if tool.exists():
        path = f"{tool.parent}{os.pathsep}{os.environ.get('PATH', '')}"
        with contextlib.suppress(OSError, subprocess.TimeoutExpired):
            subprocess.run(
                [str(tool), "shm", "clean"],
                check=False,
                capture_output=True,
                timeout=10.0,
                env={**os.environ, "PATH": path},
            )


def _joined(children: Sequence[Child], cap_s: float) -> bool:
    end = time.monotonic() + cap_s
    while any(child.process.poll() is None for child in children):
        if time.monotonic() > end:
            return False
        time.sleep(_POLL_S)
    return True


def _kill_session(pid: int) -> None:
    """Kills what is left of a child's session, also processes that it started itself."""
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)


def _last_line(log: Path) -> str:
    """The last thing a process wrote that may tell why it ended: anything but what ROS logs when all is well."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - _TAIL_BYTES))
            lines = file.read().decode(errors="replace").strip().splitlines()
    except OSError:
        return ""
    return next((line.strip() for line in reversed(lines) if line.strip() and not _GOOD_NEWS.match(line)), "")
