"""Find and end what test runs leave behind.

`python3 tests/leftovers.py` ends what killed runs left, `python3 tests/leftovers.py RUN` what that one has started.

Every process that a test starts inherits the variable `TEST_RUN`, however it was detached: ``PID.START`` of the pytest
that started it, behind that of the one around it, if any. Only the standard library is used: `.ci/run` begins with it.
"""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path

MARK = "TEST_RUN"
_SEPARATOR = ","
_ATTEMPTS = 100
_PAUSE_S = 0.1
_PAUSE = threading.Event()


def mark_this_process() -> str:
    """Let all that this process starts from now on carry its mark, which is returned."""
    run = identify(os.getpid())
    assert run is not None
    around = [name for name in os.environ.get(MARK, "").split(_SEPARATOR) if name]
    os.environ[MARK] = _SEPARATOR.join([*around, run])
    return run


def identify(pid: int) -> str | None:
    """Return ``PID.START``, which no later process has: ids are used again. None: there is no such process."""
    fields = _read_status(pid)
    return f"{pid}.{fields[19]}" if fields and fields[0] != "Z" else None


def find_processes(is_wanted: Callable[[str], bool]) -> list[int]:
    """Return the ids of marked processes whose run is wanted, and of all that these started, shims first."""
    marked = {pid for pid in _process_ids() if any(map(is_wanted, _read_markers(pid)))}
    family = marked | _find_descendants(marked)
    spared = {os.getpid(), *_find_ancestors(os.getpid())}
    return sorted(family - spared, key=lambda pid: ("shim" not in read_command(pid), pid))


def end_processes(is_wanted: Callable[[str], bool]) -> list[str]:
    """Kill the processes of the runs that are wanted until none is left; return their command lines.

    Shims are killed first, since they start again what they watch.

    Raises:
        RuntimeError: Some are still there after ten seconds.
    """
    ended: dict[int, str] = {}
    for _ in range(_ATTEMPTS):
        there = [pid for pid in find_processes(is_wanted) if not _is_zombie(pid)]
        if not there:
            return list(ended.values())
        for pid in there:
            ended.setdefault(pid, read_command(pid) or f"process {pid}")
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        _PAUSE.wait(_PAUSE_S)
    raise RuntimeError(f"Could not be ended: {', '.join(ended.values())}")


def end_leftovers() -> list[str]:
    """End what the runs left whose pytest is not there any more; return the command lines."""
    return end_processes(lambda run: not _is_alive(run))


def end_run(run: str) -> list[str]:
    """End what a run's tests have started and left; return the command lines."""
    return end_processes(lambda name: name == run)


def _is_alive(run: str) -> bool:
    pid = run.partition(".")[0]
    return pid.isdigit() and identify(int(pid)) == run


def _read_status(pid: int) -> list[str]:
    """Return the fields of proc(5)'s ``stat`` from the state on, or none where the process has gone."""
    return _read(pid, "stat").rpartition(")")[2].split()


def _is_zombie(pid: int) -> bool:
    return _read_status(pid)[:1] in ([], ["Z"])


def _read_markers(pid: int) -> list[str]:
    for entry in _read(pid, "environ").split("\0"):
        name, _, value = entry.partition("=")
        if name == MARK:
            return value.split(_SEPARATOR)
    return []


def read_command(pid: int) -> str:
    """Return a process' command line; empty text: it has gone."""
    return _read(pid, "cmdline").replace("\0", " ").strip()


def _read(pid: int, name: str) -> str:
    try:
        return Path(f"/proc/{pid}/{name}").read_bytes().decode(errors="replace")
    except OSError:  # it has gone, or is another user's
        return ""


def _process_ids() -> list[int]:
    return [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]


def find_children(pid: int) -> list[int]:
    """Return the ids of the processes that a process has started itself."""
    return [child for child, parent in _find_parents().items() if parent == pid]


def _find_parents() -> dict[int, int]:
    return {pid: int(fields[1]) for pid in _process_ids() if (fields := _read_status(pid))}


def _find_descendants(pids: set[int]) -> set[int]:
    parents, descendants = _find_parents(), set[int]()
    while more := {pid for pid, parent in parents.items() if parent in pids | descendants} - descendants:
        descendants |= more
    return descendants


def _find_ancestors(pid: int) -> set[int]:
    parents, descendants = _find_parents(), set[int]()
    while (pid := parents.get(pid, 0)) > 1:
        descendants.add(pid)
    return descendants


if __name__ == "__main__":
    for line in end_run(sys.argv[1]) if sys.argv[1:] else end_leftovers():
        print(f"Ended, left by a test run: {line:.150}")
