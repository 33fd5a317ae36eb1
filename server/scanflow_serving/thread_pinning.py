"""CPUMEMPIN inside an instance: pins each compute thread to one CPU.

Those are the workers, and the pool threads of libraries (BLAS, OpenMP, TensorFlow, ONNX Runtime). Libraries start some
of them with the first calls, where they inherit the affinity of the calling worker; so the instance scans for new
threads from time to time.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from scanflow.processes.pinning import pin
from scanflow_serving.component_threads import Engine

_TASKS: Final = "/proc/self/task"
_SERVERS: Final = ("grpc", "event_engine", "lifeguard", "resolver", "libuv", "timer")
"""Name prefixes of threads that serve connections."""


class Pinning:
    def __init__(self, cpus: Sequence[int], engine: Engine, excluded: set[int]) -> None:
        """Pin nothing yet; ``excluded``: ids of threads that do not compute; others may add to it."""
        self._cpus = tuple(cpus)
        self._engine = engine
        self._excluded = excluded
        self._pinned: dict[int, int] = {}

    def exclude(self) -> None:
        """Exclude the current threads: they do not compute."""
        if self._cpus:
            workers = {worker.native_id for worker in self._engine.workers}
            self._excluded |= {tid for tid in _list_threads() if tid not in workers}

    def update(self) -> dict[str, list[int]]:
        """Pin new threads; return the affinity of each pinned thread, as the kernel reports it."""
        if not self._cpus:
            return {}
        threads = _list_threads()
        self._pinned = {tid: cpu for tid, cpu in self._pinned.items() if tid in threads}
        workers = [tid for worker in self._engine.workers if (tid := worker.native_id) is not None and tid in threads]
        python = {thread.native_id for thread in threading.enumerate()}
        pools = sorted(tid for tid in threads if tid not in self._excluded | python and not _is_server_thread(tid))
        for tid in (*workers, *pools):
            if tid not in self._pinned:
                cpu = self._cpus[len(self._pinned) % len(self._cpus)]
                try:
                    pin((cpu,), (tid,))
                except ProcessLookupError:
                    continue  # it has ended
                self._pinned[tid] = cpu
        return {str(tid): _get_affinity(tid) for tid in self._pinned}


def _list_threads() -> set[int]:
    try:
        return {int(name) for name in os.listdir(_TASKS)}  # noqa: PTH208 - only the names are of use
    except FileNotFoundError:
        return set()


def _is_server_thread(tid: int) -> bool:
    try:
        return Path(f"{_TASKS}/{tid}/comm").read_text(errors="replace").startswith(_SERVERS)
    except OSError:
        return True  # it has ended


def _get_affinity(tid: int) -> list[int]:
    try:
        return sorted(os.sched_getaffinity(tid))
    except ProcessLookupError:
        return []
