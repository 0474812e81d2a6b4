"""Files that appear whole or not at all."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from pathlib import Path

from tt_perception.errors import TTError


@contextlib.contextmanager
def whole_file(path: Path) -> Iterator[Path]:
    """Name of a temporary file beside `path`, with its ending, that becomes `path` once it has been written.

    A crash or a full disk leaves an older file as it was. What is no ordinary file, such as /dev/stdout, is written
    directly.
    """
    if path.exists() and not path.is_file():
        yield path
        return
    target = path.resolve()  # behind a link
    partial = target.with_name(f".{target.stem}.part{target.suffix}")
    try:
        yield partial
        partial.replace(target)
    except OSError as error:
        error.filename, error.filename2 = str(path), None
        raise
    finally:
        partial.unlink(missing_ok=True)


def write_whole(path: Path, text: str) -> None:
    """Write a text file so that it appears whole or not at all."""
    with whole_file(path) as partial:
        partial.write_text(text, encoding="utf-8")


def result_file(given: Path | None, usual: str, option: str) -> Path:
    """Where to write a result: the file that was named, or the usual one, which must not hold an earlier result.

    Raises:
        TTError: none was named and the usual file exists.
    """
    if given is not None:
        return given
    if Path(usual).exists():
        raise TTError(f"{usual} is here already; name the file with {option}, also to write that one again")
    return Path(usual)
