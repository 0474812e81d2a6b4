"""Loads the compiler of the kernels in less time than it takes by itself."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Iterator

# numba imports these only to see whether they are there; no kernel here uses them, and they take a quarter of a second.
_LOOKED_FOR = ("coverage", "scipy")


def load_numba() -> None:
    """Makes numba ready to load kernels, which a process that is copied from this one need not do again."""
    with _hidden(_LOOKED_FOR):
        import numpy as np

        from tt_estimation.ekf import is_covariance

        is_covariance(np.eye(3))


@contextlib.contextmanager
def _hidden(modules: tuple[str, ...]) -> Iterator[None]:
    """Modules that are not loaded yet cannot be imported for a while."""
    hidden = [name for name in modules if name not in sys.modules]
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type]
    try:
        yield
    finally:
        for name in hidden:
            del sys.modules[name]
