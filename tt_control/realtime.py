"""Real-time scheduling, as far as the system allows: every option is best effort and says when it failed."""

from __future__ import annotations

import ctypes
import gc
import os
import platform
import sys
import threading
from dataclasses import dataclass

_MCL_CURRENT, _MCL_FUTURE = 1, 2
# Number of the system call sched_setattr; the C library has no function for it.
_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274}
_SHORT_SLICE_NS = 100_000  # the shortest that Linux takes


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
    ask_for_short_slices()
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


class _SchedAttr(ctypes.Structure):
    """Struct sched_attr of linux/sched/types.h, first version."""

    _fields_ = (
        ("size", ctypes.c_uint32),
        ("policy", ctypes.c_uint32),
        ("flags", ctypes.c_uint64),
        ("nice", ctypes.c_int32),
        ("priority", ctypes.c_uint32),
        ("runtime", ctypes.c_uint64),
        ("deadline", ctypes.c_uint64),
        ("period", ctypes.c_uint64),
    )


def ask_for_short_slices() -> bool:
    """Lets the calling thread take a core at once from threads that compute for longer, without any rights.

    Linux 6.12 and later let a waking thread with a shorter time slice interrupt a running one with a longer one;
    by default all have the same, and the waking thread may wait 4 ms for the next tick of the scheduler. Older
    kernels and threads with a real-time policy are left as they are.

    Returns:
        Whether the kernel took it.
    """
    number = _SCHED_SETATTR.get(platform.machine())
    if not sys.platform.startswith("linux") or number is None or os.sched_getscheduler(0) != os.SCHED_OTHER:
        return False
    thread = threading.get_native_id()
    attributes = _SchedAttr(ctypes.sizeof(_SchedAttr), os.SCHED_OTHER, runtime=_SHORT_SLICE_NS)
    attributes.nice = os.getpriority(os.PRIO_PROCESS, thread)
    return int(ctypes.CDLL(None).syscall(number, thread, ctypes.byref(attributes), 0)) == 0


def _lock_memory() -> list[str]:
    if not sys.platform.startswith("linux"):
        return ["memory can be locked on Linux only"]
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.mlockall(_MCL_CURRENT | _MCL_FUTURE) != 0:
        text = os.strerror(ctypes.get_errno())
        return [f"cannot lock memory ({text}); raise 'memlock' in /etc/security/limits.d"]
    return []
