"""One sentence for a name that does not exist."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


def nearest(name: str, known: Iterable[str], what: str) -> str:
    """Says that a name is unknown and names the nearest known one, or lists them all when none is near."""
    names = list(known)
    near = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    if near:
        return f"{name!r} is no {what}; did you mean {near[0]!r}?"
    return f"{name!r} is no {what}; known are: {', '.join(names) or '(none)'}"
