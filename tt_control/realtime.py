"""Real-time scheduling, as far as the system allows: every option is best effort and says when it failed."""

from __future__ import annotations

import ctypes
import gc
import os
import sys
from dataclasses import dataclass

_MCL_CURRENT, _MCL_FUTURE = 1, 2


@dataclass(frozen=True, slots=True)
class RealTimeOptions:
    """What the I/O thread asks the system for.

    Attributes:
        priority: SCHED_FIFO priority 1…99; 0 for none.
        cpu: core to stay on; −1 for any.
        lock_memory: keep all pages in memory.
        freeze_gc: leave what exists now out of garbage collection.
    """

    priority: int = 0
    cpu: int = -1
    lock_memory: bool = False
    freeze_gc: bool = True


def enter_real_time(options: RealTimeOptions) -> list[str]:
    """Applies the options to the calling thread (memory and gc: the process); returns one warning per
    failure.
    """
    warnings = []
    if options.freeze_gc:
        gc.collect()
        gc.freeze()
    if options.priority > 0:
        try:
            os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(options.priority))
        except (OSError, AttributeError) as error:
            warnings.append(
                f"no real-time priority {options.priority} ({error}); the loop runs with normal priority. Add "
                "'@realtime - rtprio 98' to /etc/security/limits.d and the user to that group"
            )
    if options.cpu >= 0:
        try:
            os.sched_setaffinity(0, {options.cpu})
        except (OSError, AttributeError) as error:
            warnings.append(
                f"cannot stay on CPU {options.cpu} ({error}); allowed are 0 to {(os.cpu_count() or 1) - 1}"
            )
    if options.lock_memory:
        warnings += _lock_memory()
    return warnings


def _lock_memory() -> list[str]:
    if not sys.platform.startswith("linux"):
        return ["memory can be locked on Linux only"]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mlockall(_MCL_CURRENT | _MCL_FUTURE) != 0:
        text = os.strerror(ctypes.get_errno())
        return [f"cannot lock memory ({text}); raise 'memlock' in /etc/security/limits.d"]
    return []
