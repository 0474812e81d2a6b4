"""What a bag folder is, and whether one can be made at a place: known without importing what writes it."""

from __future__ import annotations

import contextlib
import os
import shutil
from pathlib import Path

from tt_perception.errors import TTError

MIN_FREE_BYTES = 100_000_000
SIDECAR = "recording.json"  # the custom data once more: metadata.yaml exists only after a clean end


class RecordError(TTError):
    """A recording cannot be started or continued."""


def check_bag_path(path: Path, min_free_bytes: int = MIN_FREE_BYTES) -> None:
    """Checks that a new bag folder can be made.

    Raises:
        RecordError: something has that name, the folder cannot be made, or the disk is nearly full.
    """
    path = path.absolute()
    try:
        if os.path.lexists(path):
            raise RecordError(f"{path} exists already and is not overwritten; choose another name")
        parent = next(folder for folder in path.parents if os.path.lexists(folder))
        *folders, last = path.relative_to(parent).parts
        for name in (*folders, f"{last}.mcap"):  # the file inside has the longest name
            with contextlib.suppress(FileNotFoundError):
                (parent / name).lstat()
    except OSError as error:
        raise RecordError(f"cannot record to {path}: {(error.strerror or str(error)).lower()}") from error
    if not parent.is_dir() or not os.access(parent, os.W_OK | os.X_OK):
        raise RecordError(f"cannot record to {path}: {parent} is no folder that you may write to")
    free = shutil.disk_usage(parent).free
    if free < min_free_bytes:
        raise RecordError(
            f"{free / 1e6:.0f} MB are free where {path} would go; recording needs at least "
            f"{min_free_bytes / 1e6:.0f} MB: make room or record elsewhere"
        )
