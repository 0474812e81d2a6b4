"""Where the files that ship with the package are, in a source tree and in an installed prefix."""

from __future__ import annotations

import functools
import os
from pathlib import Path

from tt_perception.errors import TTError

PACKAGE = "tt_bringup"


@functools.lru_cache(maxsize=1)
def source_root() -> Path | None:
    """The root of the source tree this code runs from; None when it is installed."""
    root = Path(__file__).resolve().parent.parent
    return root if (root / "package.xml").is_file() and (root / "setup.py").is_file() else None


@functools.lru_cache(maxsize=1)
def install_prefix() -> Path | None:
    """The prefix with `share/tt_bringup` and `lib/tt_bringup`; None when the package is not installed."""
    marker = Path("share") / PACKAGE / "package.xml"
    parents = list(Path(__file__).resolve().parents)
    prefixes = [Path(entry) for entry in os.environ.get("AMENT_PREFIX_PATH", "").split(os.pathsep) if entry]
    for prefix in parents + prefixes:
        if (prefix / marker).is_file():
            return prefix
    return None


def share_dir() -> Path:
    """The folder that holds `config`, `launch`, `urdf` and `rviz`.

    Raises:
        TTError: the package was copied without its files.
    """
    if source_root() is not None:
        return Path(__file__).resolve().parent
    prefix = install_prefix()
    if prefix is None:
        raise TTError(f"share/{PACKAGE} is missing beside the Python package; install with pip or colcon")
    return prefix / "share" / PACKAGE


def shared_file(relative: str) -> Path:
    """A file that ships with the package, e.g. `shared_file("config/cameras/sim4.yaml")`.

    Raises:
        TTError: there is no such file; names its neighbours.
    """
    path = share_dir() / relative
    if not path.exists():
        near = sorted(item.name for item in path.parent.glob("*")) if path.parent.is_dir() else []
        raise TTError(
            f"{relative} does not ship with {PACKAGE}; in its folder: {', '.join(near) or '(nothing)'}"
        )
    return path


def fastdds_profile() -> Path:
    """The Fast DDS profile that every process of the stack uses."""
    return shared_file("config/fastdds.xml")


def default_run_dir() -> Path:
    """The folder of this run: `$TT_RUN_DIR`, set by the supervisor, or else the working directory."""
    return Path(os.environ.get("TT_RUN_DIR", "."))
