"""CPU priorities: processes that serve requests are scheduled soon, those that prepare work yield the CPUs.

Standard library only, and cheap: an instance calls it before it imports anything else.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from pathlib import Path

_SCHED_SETATTR = {"x86_64": 314, "aarch64": 274, "riscv64": 274, "ppc64le": 355, "s390x": 345}
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")
"""``struct sched_attr`` (sched_setattr(2)): size, policy, flags, nice, priority, runtime, deadline, period."""

_RESET_ON_FORK = 1
_SLICE_NS = 100_000
"""The shortest time slice that the kernel accepts; its default is 2.8 ms on two cores."""

_LOW_NICENESS = 10
"""The niceness of preparing work: it gets a tenth of a CPU that another process fully uses."""


def take_short_slices(*, inherited: bool) -> bool:
    """Request the shortest time slice for every thread of this process; return whether the kernel accepted it.

    From Linux 6.12 on (EEVDF), a thread with short slices that is woken by a request runs at once rather than when
    another's slice is over. It gets no more CPU in all, and needs no privilege. Older kernels change nothing.
    ``inherited``: whether threads and processes that it starts later have the same.
    """
    number = _SCHED_SETATTR.get(platform.machine())
    if number is None or platform.system() != "Linux":
        return False
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    flags = 0 if inherited else _RESET_ON_FORK
    taken = True
    for task in os.listdir("/proc/self/task"):  # noqa: PTH208 - only the names are of use
        tid = int(task)
        try:
            nice = os.getpriority(os.PRIO_PROCESS, tid)
        except ProcessLookupError:
            continue  # it has ended
        attributes = _ATTRIBUTES.pack(_ATTRIBUTES.size, os.SCHED_OTHER, flags, nice, 0, _SLICE_NS, 0, 0)
        taken &= int(call(ctypes.c_long(number), ctypes.c_int(tid), attributes, ctypes.c_uint(0))) == 0
    return taken


def yield_cpu(pid: int, behind: bool) -> bool:
    """Lower the CPU priority of that process' session, or restore it; return whether that was possible.

    Unlike its own niceness, that of its session's scheduling group (``sched_autogroup``) can be taken back without
    privilege. A session that another process leads is left as it is: the terminal that somebody works in is one.
    """
    try:
        if os.getsid(pid) != pid:
            return False
        Path(f"/proc/{pid}/autogroup").write_text(str(_LOW_NICENESS if behind else 0), encoding="ascii")
    except OSError:
        return False  # there is none, or it was changed a moment ago
    return True
