"""Binds a process to the cores and memory nodes of its grant.

:mod:`scanflow.placement` decides, this module applies. Standard library only, since an instance calls it before it
imports anything that starts threads.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from scanflow.errors import InvalidError, UnsupportedError
from scanflow.placement.cpulist import format_cpus, parse_cpus

NODES = Path("/sys/devices/system/node")
_TASKS = Path("/proc/self/task")

MPOL_BIND = 2
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237, "riscv64": 237, "ppc64le": 261, "s390x": 270}
_ROUNDS = 16

SetPolicy = Callable[[int, Sequence[int]], int]
"""Takes a mode and nodes; returns 0 or an ``errno``."""


def apply(cpus: Sequence[int], memory_nodes: Sequence[int]) -> str:
    """Bind this process to CPUs and memory nodes (none: any), and return a short description of the memory binding.

    Call it before anything starts threads: memory affinity is each thread's own, and only new threads inherit it.

    Raises:
        InvalidError: a CPU or node that this process may not use.
        UnsupportedError: this system has no affinity, or forbids it.
    """
    if cpus:
        bind(cpus)
    return bind_memory(memory_nodes) if memory_nodes else ""


def bind(cpus: Iterable[int]) -> None:
    """Bind every thread of this process to these CPUs; threads started later inherit it.

    Raises:
        InvalidError: one of the CPUs may not be used.
        UnsupportedError: this system has no CPU affinity.
    """
    mask, done = set(cpus), set[int]()
    for _ in range(_ROUNDS):  # a thread may start another while we look
        fresh = _list_threads() - done
        if not fresh:
            return
        for tid in fresh:
            _set_mask(tid, mask)
        done |= fresh


def pin(cpus: Sequence[int], tids: Sequence[int]) -> None:
    """Pin each thread to one CPU: the first to the first, round-robin if there are more threads.

    Raises:
        InvalidError: one of the CPUs may not be used.
        UnsupportedError: this system has no CPU affinity.
    """
    for place, tid in enumerate(tids):
        if cpus:
            _set_mask(tid, {cpus[place % len(cpus)]})


def bind_memory(nodes: Iterable[int], *, folder: Path = NODES, set_policy: SetPolicy | None = None) -> str:
    """Allocate the memory of this thread, and of those it starts, from these NUMA nodes only; return a description.

    If the machine has only these nodes there is nothing to do.

    Raises:
        InvalidError: none of the nodes may be used.
        UnsupportedError: the kernel has no memory affinity, or this container forbids it.
    """
    requested, available = sorted(set(nodes)), _read_memory_nodes(folder)
    if len(available) < 2:
        return "one memory node: nothing to bind"
    if not set(available) - set(requested):
        return "all memory nodes: nothing to bind"
    error = (set_policy or _set_mempolicy)(MPOL_BIND, requested)
    if error == errno.EINVAL:
        raise InvalidError(
            f"Memory cannot be bound to the nodes {format_cpus(requested)}: this process may use none of "
            f"them; the machine has {format_cpus(available)}. See: scanflow topology"
        )
    if error:
        raise UnsupportedError(
            f"Memory cannot be bound to nodes here ({os.strerror(error)}): the kernel or the container forbids it. "
            "Write affinity='cpu', or allow it: docker run --cap-add SYS_NICE"
        )
    return f"memory from node {format_cpus(requested)}"


def _set_mask(tid: int, cpus: set[int]) -> None:
    if not hasattr(os, "sched_setaffinity"):
        raise UnsupportedError(f"{platform.system()} has no CPU affinity. Write affinity='any'.")
    try:
        os.sched_setaffinity(tid, cpus)
        actual = os.sched_getaffinity(tid)
    except ProcessLookupError:
        return  # it has ended
    except PermissionError as error:
        raise UnsupportedError(f"The process {tid} cannot be bound to CPUs: it belongs to another user.") from error
    except (OSError, ValueError) as error:
        raise InvalidError(
            f"No process can be bound to the CPUs {format_cpus(cpus)!r}: none of them may be used here. "
            "See: scanflow topology"
        ) from error
    if missing := cpus - actual:
        raise InvalidError(
            f"The CPUs {format_cpus(missing)!r} may not be used here, or are switched off; {format_cpus(actual)!r} "
            "may. See: scanflow topology"
        )


def _set_mempolicy(mode: int, nodes: Sequence[int]) -> int:
    number = _SET_MEMPOLICY.get(platform.machine())
    if number is None or platform.system() != "Linux":
        return errno.ENOSYS
    bits = 8 * ctypes.sizeof(ctypes.c_ulong)
    words = (ctypes.c_ulong * (max(nodes) // bits + 1))()
    for node in nodes:
        words[node // bits] |= 1 << node % bits
    # The kernel reads one bit less than the given number.
    status = _call_kernel(number, ctypes.c_long(mode), words, ctypes.c_ulong(bits * len(words) + 1))
    return 0 if status == 0 else ctypes.get_errno()


def _call_kernel(number: int, *arguments: object) -> int:
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    return int(call(ctypes.c_long(number), *arguments))


def _read_memory_nodes(folder: Path) -> tuple[int, ...]:
    for name in ("has_memory", "has_normal_memory", "online"):
        try:
            return parse_cpus((folder / name).read_text(encoding="ascii"))
        except (OSError, InvalidError):
            continue
    return ()


def _list_threads() -> set[int]:
    try:
        return {int(task.name) for task in _TASKS.iterdir()}
    except FileNotFoundError:
        raise UnsupportedError(f"{platform.system()} does not report where threads run: it has no /proc.") from None
