"""Environment of every process of the stack: discovery, Fast DDS profile, memory and thread settings."""

from __future__ import annotations

import fcntl
import os
import tempfile
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from tt_bringup.paths import fastdds_profile, install_prefix
from tt_perception.errors import TTError

# Domains up to 101 keep their ports below the ephemeral range of Linux.
FIRST_DOMAIN, LAST_DOMAIN = 1, 101
GRAPH_LABEL = "graph"
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
    prefix = install_prefix()
    known = environment.get("AMENT_PREFIX_PATH", "")
    if prefix is not None and str(prefix) not in known.split(os.pathsep):
        environment["AMENT_PREFIX_PATH"] = os.pathsep.join(filter(None, (str(prefix), known)))


@contextmanager
def free_domain(user_choice: str | None, label: str = "") -> Iterator[int]:
    """Reserves a ROS domain for the time of the block, so that two copies on one machine do not meet.

    Args:
        user_choice: ROS_DOMAIN_ID that the user set; taken as it is, because they want to be met there.
        label: what runs there; `GRAPH_LABEL` lets other commands join.

    Raises:
        TTError: no domain is free, or the user's is not a number.
    """
    if user_choice:
        if not user_choice.isdigit():
            raise TTError(f"ROS_DOMAIN_ID is {user_choice!r}, but must be a whole number from 0 to 101")
        yield int(user_choice)
        return
    busy_ports = _bound_udp_ports()
    folder = _lock_folder()
    folder.mkdir(exist_ok=True)
    for domain in range(LAST_DOMAIN, FIRST_DOMAIN - 1, -1):
        port = _PORT_BASE + _PORTS_PER_DOMAIN * domain
        if any(port <= used < port + _PORTS_PER_DOMAIN for used in busy_ports):
            continue
        with (folder / str(domain)).open("a") as lock:
            if not _locked(lock):
                continue
            lock.truncate(0)
            lock.write(label)
            lock.flush()
            yield domain
            return
    raise TTError("no free ROS domain: 101 copies run on this machine; end some, or set ROS_DOMAIN_ID")


def running_domains() -> list[int]:
    """Domains of the graphs that run on this machine under this user."""
    found = []
    for path in sorted(_lock_folder().glob("*")):
        with path.open() as lock:
            if path.name.isdigit() and lock.read() == GRAPH_LABEL and not _locked(lock):
                found.append(int(path.name))
    return found


def _lock_folder() -> Path:
    # A folder per user, because nobody may open the locks of another.
    return Path(tempfile.gettempdir()) / f"tt_domains_{os.getuid()}"


def _locked(file: IO[str]) -> bool:
    """Locks a file until it is closed; False when somebody else holds it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


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
