"""Puts a process onto the cores and memory it was granted, and reads back what the kernel made of it.

The thin shell around :mod:`scanflow.placement`, which decides. Standard library only, since an instance calls it before
it imports anything that starts threads.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from scanflow.errors import InvalidError, UnsupportedError
from scanflow.placement.cpulist import format_cpus, parse_cpus

PROC = Path("/proc")
NODES = Path("/sys/devices/system/node")

MPOL_BIND = 2
MPOL_PREFERRED_MANY = 5
_SET_MEMPOLICY = {"x86_64": 238, "aarch64": 237, "riscv64": 237, "ppc64le": 261, "s390x": 270}
_TICKS = os.sysconf("SC_CLK_TCK")
_ROUNDS = 16
_POLICY = re.compile(r"\S+ (prefer \(many\)\S*|\S+)")

SetPolicy = Callable[[int, Sequence[int]], int]
"""From a mode and nodes to 0 or an ``errno``."""


@dataclass(frozen=True, slots=True)
class Thread:
    """One thread, as the kernel sees it."""

    tid: int
    name: str
    state: str
    """``R`` running or ready to, ``S`` sleeping, ``D`` waiting for a disk."""

    cpus: tuple[int, ...]
    """Where it may run."""

    cpu_s: float
    """CPU time it has used."""


@dataclass(frozen=True, slots=True)
class Bound:
    """Where a process really may run."""

    threads: tuple[Thread, ...]
    memory_nodes: tuple[int, ...]
    """Nodes it takes memory from: those of its policy, else those of its cpuset."""

    policy: str
    """As the kernel writes it: ``default``, ``bind:0``; empty where it does not tell."""

    @property
    def cpus(self) -> tuple[int, ...]:
        return tuple(sorted({cpu for thread in self.threads for cpu in thread.cpus}))

    @property
    def running(self) -> int:
        """Threads that ran, or were ready to, at the moment of reading."""
        return sum(thread.state == "R" for thread in self.threads)

    def outside(self, cpus: Iterable[int]) -> tuple[Thread, ...]:
        granted = set(cpus)
        return tuple(thread for thread in self.threads if set(thread.cpus) - granted)


def apply(cpus: Sequence[int], memory_nodes: Sequence[int], *, strict: bool = True) -> str:
    """Bind this process to CPUs and memory, none meaning any, and say in a few words what was done about memory.

    Call it before anything starts threads: memory affinity is each thread's own, and only new threads inherit it.

    Raises:
        InvalidError: a CPU or node that this process may not use.
        UnsupportedError: this system has no affinity, or forbids it.
    """
    if cpus:
        bind(cpus)
    return bind_memory(memory_nodes, strict=strict) if memory_nodes else ""


def bind(cpus: Iterable[int], *, pid: int = 0, proc: Path = PROC) -> None:
    """Let every thread of a process (0: this one) run on these CPUs only; threads they start later inherit it.

    Raises:
        InvalidError: none of the CPUs may be used.
        UnsupportedError: this system has no CPU affinity, or the process is somebody else's.
        ProcessLookupError: there is no such process.
    """
    wanted = set(cpus)
    done: set[int] = set()
    for _ in range(_ROUNDS):  # a thread may start another while we look
        fresh = set(_tids(pid or os.getpid(), proc)) - done
        if not fresh:
            return
        for tid in fresh:
            _set_mask(tid, wanted)
        done |= fresh


def pin(cpus: Sequence[int], tids: Sequence[int]) -> None:
    """Put each of these threads onto one CPU: the first onto the first, in turn where there are more threads.

    Raises:
        InvalidError: none of the CPUs may be used.
        UnsupportedError: this system has no CPU affinity.
    """
    for place, tid in enumerate(tids):
        if cpus:
            _set_mask(tid, {cpus[place % len(cpus)]})


def bind_memory(
    nodes: Iterable[int], *, strict: bool = True, folder: Path = NODES, set_policy: SetPolicy | None = None
) -> str:
    """Take the memory of this thread, and of those it starts, from these NUMA nodes; say in a few words what was done.

    ``strict``: from nowhere else (``MPOL_BIND``); otherwise from there while it lasts. Where a machine has only these
    nodes there is nothing to do.

    Raises:
        InvalidError: none of the nodes may be used.
        UnsupportedError: the kernel has no memory affinity, or this container forbids it.
    """
    wanted, there = sorted(set(nodes)), _memory_nodes(folder)
    if len(there) < 2:
        return "one memory node: nothing to bind"
    if not set(there) - set(wanted):
        return "all memory nodes: nothing to bind"
    mode = MPOL_BIND if strict else MPOL_PREFERRED_MANY
    error = (set_policy or _set_mempolicy)(mode, wanted)
    if error == errno.EINVAL:
        raise InvalidError(
            f"Memory cannot be bound to the nodes {format_cpus(wanted)}: of {format_cpus(there)}, this process may use "
            "none of them. See: scanflow topology"
        )
    if error:
        raise UnsupportedError(
            f"Memory cannot be bound to nodes here ({os.strerror(error)}): the kernel or the container forbids it. "
            "Write affinity='cpu', or let the container: docker run --cap-add SYS_NICE"
        )
    return f"memory {'from' if strict else 'preferably from'} node {format_cpus(wanted)}"


def read_back(pid: int = 0, *, proc: Path = PROC) -> Bound:
    """Return where each thread of a process (0: this one) may run, and where its memory comes from.

    Raises:
        ProcessLookupError: there is no such process.
    """
    number = pid or os.getpid()
    found: list[Thread] = []
    for tid in _tids(number, proc):
        thread = _thread(proc / str(number) / "task" / str(tid), tid)
        if thread is not None:
            found.append(thread)
    policy = _policy(proc / str(number) / "numa_maps")
    kind, _, listed = policy.partition(":")
    if listed and kind.startswith(("bind", "prefer")):
        nodes = parse_cpus(listed)
    else:
        nodes = parse_cpus(_status(proc / str(number) / "status").get("Mems_allowed_list", ""))
    return Bound(tuple(found), nodes, policy)


def worked(before: Bound, after: Bound, *, share: float = 0.1) -> tuple[Thread, ...]:
    """Return the threads that worked between two readings, the busiest first.

    Those count that used at least ``share`` of the CPU time of the busiest: a pool's threads get about the same, and
    what merely waits for them gets next to none.
    """
    used = {thread.tid: thread.cpu_s for thread in before.threads}
    spent = {thread.tid: thread.cpu_s - used.get(thread.tid, 0.0) for thread in after.threads}
    most = max(spent.values(), default=0.0)
    busy = [thread for thread in after.threads if spent[thread.tid] > 0 and spent[thread.tid] >= share * most]
    return tuple(sorted(busy, key=lambda thread: (-spent[thread.tid], thread.tid)))


def _set_mask(tid: int, cpus: set[int]) -> None:
    if not hasattr(os, "sched_setaffinity"):
        raise UnsupportedError(f"{platform.system()} has no CPU affinity. Write affinity='any'.")
    try:
        os.sched_setaffinity(tid, cpus)
        got = os.sched_getaffinity(tid)
    except ProcessLookupError:
        return  # it has ended
    except PermissionError as error:
        raise UnsupportedError(f"The process {tid} cannot be bound to CPUs: it is another user's.") from error
    except (OSError, ValueError) as error:
        raise InvalidError(
            f"No process can be bound to the CPUs {format_cpus(cpus)!r}: none of them may be used here. "
            "See: scanflow topology"
        ) from error
    if missing := cpus - got:
        raise InvalidError(
            f"The CPUs {format_cpus(missing)!r} may not be used here, or are switched off; {format_cpus(got)!r} may. "
            "See: scanflow topology"
        )


def _set_mempolicy(mode: int, nodes: Sequence[int]) -> int:
    number = _SET_MEMPOLICY.get(platform.machine())
    if number is None or platform.system() != "Linux":
        return errno.ENOSYS
    bits = 8 * ctypes.sizeof(ctypes.c_ulong)
    words = (ctypes.c_ulong * (max(nodes) // bits + 1))()
    for node in nodes:
        words[node // bits] |= 1 << node % bits
    # The kernel reads one bit less than it is told.
    done = _syscall(number, ctypes.c_long(mode), words, ctypes.c_ulong(bits * len(words) + 1))
    return 0 if done == 0 else ctypes.get_errno()


def _syscall(number: int, *arguments: object) -> int:
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    return int(call(ctypes.c_long(number), *arguments))


def _memory_nodes(folder: Path) -> tuple[int, ...]:
    for name in ("has_memory", "has_normal_memory", "online"):
        try:
            return parse_cpus((folder / name).read_text(encoding="ascii"))
        except (OSError, InvalidError):
            continue
    return ()


def _tids(pid: int, proc: Path) -> list[int]:
    try:
        return sorted(int(task.name) for task in (proc / str(pid) / "task").iterdir())
    except FileNotFoundError:
        if not proc.is_dir():
            raise UnsupportedError(f"{platform.system()} does not tell where threads run: it has no /proc.") from None
        raise ProcessLookupError(errno.ESRCH, f"there is no process {pid}") from None


def _thread(folder: Path, tid: int) -> Thread | None:
    status = _status(folder / "status")
    try:
        # The name may hold anything, brackets and spaces too; the numbers begin after the last bracket.
        fields = (folder / "stat").read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
    except OSError:
        return None
    if len(fields) < 13 or "Cpus_allowed_list" not in status:
        return None
    return Thread(
        tid=tid,
        name=status.get("Name", ""),
        state=fields[0],
        cpus=parse_cpus(status["Cpus_allowed_list"]),
        cpu_s=_on_cpu(folder) or (int(fields[11]) + int(fields[12])) / _TICKS,
    )


def _on_cpu(folder: Path) -> float:
    """Return the CPU time from the scheduler, in nanoseconds rather than ticks; 0 where it does not keep it."""
    try:
        return int((folder / "schedstat").read_text(encoding="ascii").split()[0]) / 1e9
    except (OSError, ValueError, IndexError):
        return 0.0


def _status(path: Path) -> dict[str, str]:
    try:
        lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _policy(path: Path) -> str:
    """Return the policy of a process' first mapping, which is that of the process: reading on walks its memory."""
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            match = _POLICY.match(file.readline())
    except OSError:
        return ""
    return match[1] if match else ""
