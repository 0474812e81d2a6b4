"""One sentence for a name that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from tt_perception.errors import TTError


def checked_namespace(text: str) -> str:
    """A ROS namespace without slashes at its ends.

    Raises:
        TTError: it is none, or the root of all names.
    """
    namespace = text.strip("/")
    if not namespace.isascii() or not all(part.isidentifier() for part in namespace.split("/")):
        raise TTError(f"namespace is {text!r}, but must be words of letters, digits and _")
    return namespace


def nearest(name: str, known: Iterable[str], what: str) -> str:
    """Says that a name is unknown and names the nearest known one, or lists them all when none is near."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if near:
        return f"{name!r} is no {what}; did you mean {near[0]!r}?"
    return f"{name!r} is no {what}; known are: {', '.join(names) or '(none)'}"
