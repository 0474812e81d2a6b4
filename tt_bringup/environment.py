"""Environment of every process of the stack: discovery, Fast DDS profile, memory and thread settings."""

from __future__ import annotations

import fcntl
import os
import re
import tempfile
import time
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tt_bringup.paths import fastdds_profile, install_prefix
from tt_perception.errors import TTError

# Domains up to 101 keep their ports below the ephemeral range of Linux.
FIRST_DOMAIN, LAST_DOMAIN = 1, 101
GRAPH_LABEL = "graph"
TRACEBACK_ENV = "TT_TRACEBACK"  # set: errors that are one line show where they come from
_LOCK_PATIENCE_S = 0.5  # who only looks at a lock holds it for a moment
_PORT_BASE, _PORTS_PER_DOMAIN = 7400, 250

_DEFAULTS = {
    # Nobody else on the network should see or move the robot unless the user says so.
    "ROS_AUTOMATIC_DISCOVERY_RANGE": "LOCALHOST",
    # Without these every image is mapped and unmapped anew, which doubles the latency of 1280×800 images.
    "MALLOC_MMAP_THRESHOLD_": "67108864",
    "MALLOC_TRIM_THRESHOLD_": "268435456",
    "MALLOC_TOP_PAD_": "16777216",
    # Each stage is one thread; pools of BLAS would only fight for the cores.
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "NUMBA_NUM_THREADS": "1",
    # A USB camera that gives no image holds its reader for so many seconds; OpenCV's own value is 10.
    "OPENCV_VIDEOIO_V4L_SELECT_TIMEOUT": "1",
}


def launch_environment() -> dict[str, str]:
    """What the launch files set: everything but the discovery range, which users of ROS choose themselves."""
    environment: dict[str, str] = {}
    apply_defaults(environment)
    return {name: value for name, value in environment.items() if not name.startswith(("ROS_", "AMENT_"))}


def apply_defaults(environment: MutableMapping[str, str]) -> None:
    """Sets what the user has not set."""
    for name, value in _DEFAULTS.items():
        environment.setdefault(name, value)
    # Jazzy reads the first name only, later releases the second.
    for name in ("FASTRTPS_DEFAULT_PROFILES_FILE", "FASTDDS_DEFAULT_PROFILES_FILE"):
        environment.setdefault(name, str(fastdds_profile()))
    if environment.get("NO_COLOR"):
        environment.setdefault("RCUTILS_COLORIZED_OUTPUT", "0")  # ROS does not know the wish of all programs
    prefix = install_prefix()
    known = environment.get("AMENT_PREFIX_PATH", "")
    if prefix is not None and str(prefix) not in known.split(os.pathsep):
        environment["AMENT_PREFIX_PATH"] = os.pathsep.join(filter(None, (str(prefix), known)))


@contextmanager
def free_domain(user_choice: str | None, label: str = "") -> Iterator[int]:
    """Reserves a ROS domain for the time of the block, so that two copies on one machine do not meet.

    Args:
        user_choice: ROS_DOMAIN_ID that the user set; taken whoever else is there, because they want to be met
            there. Only two graphs in one domain would take each other's messages for their own.
        label: what runs there; `GRAPH_LABEL` lets other commands join.

    Raises:
        TTError: no domain is free; the user's is none, or holds a graph already.
    """
    folder = _lock_folder()
    folder.mkdir(exist_ok=True)
    if user_choice:
        domain = checked_domain(user_choice)
        with (folder / str(domain)).open("a+") as lock:
            if _locked(lock, _LOCK_PATIENCE_S):
                _sign(lock, label)
            elif label == GRAPH_LABEL and (holder := _graph_in(lock)):
                raise TTError(
                    f"process {holder} runs a robot or simulation in ROS_DOMAIN_ID {domain} already; end it, set "
                    f"ROS_DOMAIN_ID to another number from 0 to {LAST_DOMAIN}, or unset it to get a free one"
                )
            yield domain
        return
    busy_ports = _bound_udp_ports()
    for domain in range(LAST_DOMAIN, FIRST_DOMAIN - 1, -1):
        port = _PORT_BASE + _PORTS_PER_DOMAIN * domain
        if any(port <= used < port + _PORTS_PER_DOMAIN for used in busy_ports):
            continue
        with (folder / str(domain)).open("a") as lock:
            if not _locked(lock):
                continue
            _sign(lock, label)
            yield domain
            return
    raise TTError("no free ROS domain: 101 copies run on this machine; end some, or set ROS_DOMAIN_ID")


def checked_domain(text: str) -> int:
    """The number of a ROS domain.

    Raises:
        TTError: it is none, or one whose ports Linux gives to others.
    """
    if not re.fullmatch("[0-9]{1,9}", text) or int(text) > LAST_DOMAIN:
        raise TTError(f"ROS_DOMAIN_ID is {text!r}, but must be a whole number from 0 to {LAST_DOMAIN}")
    return int(text)


def running_domains() -> list[int]:
    """Domains of the graphs that run on this machine under this user."""
    found = []
    for path in sorted(_lock_folder().glob("*")):
        with path.open() as lock:
            if path.name.isdigit() and _graph_in(lock) and not _locked(lock):
                found.append(int(path.name))
    return found


def _lock_folder() -> Path:
    # A folder per user, because nobody may open the locks of another.
    return Path(tempfile.gettempdir()) / f"tt_domains_{os.getuid()}"


def _locked(file: IO[str], patience_s: float = 0.0) -> bool:
    """Locks a file until it is closed; False when somebody else holds it."""
    end = time.monotonic() + patience_s
    while True:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= end:
                return False
            time.sleep(0.02)
        else:
            return True


def _sign(lock: IO[str], label: str) -> None:
    """Writes into a locked file what runs in its domain, and which process that is."""
    lock.truncate(0)
    lock.write(f"{label} {os.getpid()}")
    lock.flush()


def _graph_in(lock: IO[str]) -> str:
    """The process whose graph has the domain, as far as its file says; empty when it is no graph."""
    lock.seek(0)
    label, _, holder = lock.read().partition(" ")
    return holder if label == GRAPH_LABEL else ""


def _bound_udp_ports() -> set[int]:
    """UDP ports in use on this machine; empty where the kernel does not tell."""
    ports: set[int] = set()
    for table in ("/proc/net/udp", "/proc/net/udp6"):
        try:
            lines = Path(table).read_text().splitlines()[1:]
        except OSError:
            continue
        ports.update(int(line.split()[1].rsplit(":", 1)[1], 16) for line in lines)
    return ports
