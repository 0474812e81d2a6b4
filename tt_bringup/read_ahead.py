"""Opens and reads a recording in a process of its own, while this one loads libraries and kernels.

Imports nothing that takes long, so that the reading begins at once.
"""

from __future__ import annotations

import multiprocessing
import os
import pickle
import sys
from collections.abc import Callable, Collection
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tt_bringup.bags import Bag


class ReadAhead:
    """A recording that is being read.

    A context manager: the process ends with it, however that ends.

    Args:
        path: bag folder or file.
        choose: says of the opened bag which topics to keep in memory; a function of a module.
    """

    def __init__(self, path: Path, choose: Callable[[Bag], Collection[str]]) -> None:
        self._path, self._choose = path, choose
        self._process: Any = None
        if sys.platform != "linux":  # a process that is not a copy would have to load everything itself
            return
        # Through memory that both have: a pipe holds 64 kB and would make one wait for the other.
        self._shared = os.fdopen(os.memfd_create("recording"), "w+b")
        context = multiprocessing.get_context("fork")
        self._process = context.Process(target=_serve, args=(self._shared, path, choose), daemon=True)
        self._process.start()

    def __enter__(self) -> ReadAhead:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.join()
            self._shared.close()

    def bag(self) -> Bag:
        """Waits for the bag.

        Raises:
            BagError: it cannot be read.
        """
        if self._process is None:
            return _read(self._path, self._choose)
        self._process.join()
        if self._process.exitcode:  # what happened shows when it happens here
            return _read(self._path, self._choose)
        self._shared.seek(0)
        found = pickle.load(self._shared)  # written by `_serve`
        if isinstance(found, Exception):
            raise found
        return found  # type: ignore[no-any-return]


def _serve(shared: Any, path: Path, choose: Callable[[Bag], Collection[str]]) -> None:
    try:
        found: Any = _read(path, choose)
    except KeyboardInterrupt:
        sys.exit(1)
    except Exception as error:
        found = error
    pickle.dump(found, shared, pickle.HIGHEST_PROTOCOL)
    shared.flush()
    os._exit(0)  # freeing a recording piece by piece would take a tenth of the time of reading it


def _read(path: Path, choose: Callable[[Bag], Collection[str]]) -> Bag:
    from tt_bringup.bags import open_bag
    from tt_bringup.garbage import no_collections

    with no_collections():
        bag = open_bag(path)
        bag.keep(choose(bag))
    return bag
