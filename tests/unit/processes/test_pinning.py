"""Binding that is really applied, in child processes, and asked of the kernel."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from scanflow.errors import InvalidError, UnsupportedError
from scanflow.processes import pinning
from tests.unit.placement.trees import write
from tests.waiting import patient

ALLOWED = sorted(os.sched_getaffinity(0))
PRELUDE = """
import json, os, threading
from pathlib import Path
from scanflow.processes import pinning
done = threading.Event()
def start():
    thread = threading.Thread(target=done.wait, daemon=True)
    thread.start()
    return thread.native_id
def masks():
    return [sorted(os.sched_getaffinity(int(task.name))) for task in Path("/proc/self/task").iterdir()]
"""


def child(code: str) -> Any:
    """Run code in a process of its own and return what it printed as JSON."""
    done = subprocess.run(
        [sys.executable, "-c", PRELUDE + code], capture_output=True, text=True, timeout=patient(120), check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


@pytest.mark.processes
def test_a_bound_process_stays_with_the_threads_it_has_and_those_it_starts() -> None:
    bound = f"[start() for _ in range(4)]; pinning.apply([{ALLOWED[-1]}], [0]); start(); print(json.dumps(masks()))"
    assert child(bound) == [[ALLOWED[-1]]] * 6


@pytest.mark.processes
def test_each_thread_is_pinned_in_turn() -> None:
    result = child(
        f"tids = [start() for _ in range(3)]; pinning.pin({ALLOWED[:2]}, tids)\n"
        "print(json.dumps([sorted(os.sched_getaffinity(tid)) for tid in tids]))"
    )
    assert result == [[ALLOWED[place % len(ALLOWED[:2])]] for place in range(3)]


@pytest.mark.processes
def test_a_cpu_that_may_not_be_used_is_refused_and_named() -> None:
    with pytest.raises(InvalidError, match=r"none of them may be used here\. See: scanflow topology"):
        pinning.bind([4095])
    assert sorted(os.sched_getaffinity(0)) == ALLOWED
    refused = (
        f"try:\n    pinning.bind([{ALLOWED[0]}, 4095])\nexcept Exception as error:\n    print(json.dumps(str(error)))"
    )
    assert child(refused).startswith("The CPUs '4095' may not be used here")


@pytest.mark.processes
def test_a_memory_policy_is_what_the_kernel_has_then() -> None:
    result = child(
        "error = pinning._set_mempolicy(2, [0])\n"
        "print(json.dumps([error, Path('/proc/self/numa_maps').read_text().split()[1]]))"
    )
    if result[0] in {errno.ENOSYS, errno.EPERM}:
        pytest.skip(f"memory policies are not allowed here: {os.strerror(result[0])}")
    assert result == [0, "bind:0"]


def nodes(tmp_path: Path, listed: str) -> Path:
    return write(tmp_path, {"has_memory": listed})


def test_memory_is_bound_where_there_is_a_choice(tmp_path: Path) -> None:
    asked: list[tuple[int, list[int]]] = []

    def kernel(mode: int, nodes: Sequence[int]) -> int:
        asked.append((mode, list(nodes)))
        return 0

    assert pinning.bind_memory([0], folder=nodes(tmp_path, "0")) == "one memory node: nothing to bind"
    assert pinning.bind_memory([0], folder=tmp_path / "nothing") == "one memory node: nothing to bind"
    assert pinning.bind_memory([0, 1], folder=nodes(tmp_path, "0-1")) == "all memory nodes: nothing to bind"
    text = pinning.bind_memory([1], folder=nodes(tmp_path, "0-3"), set_policy=kernel)
    assert (text, asked) == ("memory from node 1", [(pinning.MPOL_BIND, [1])])


@pytest.mark.parametrize(
    ("error", "kind", "words"),
    [
        (errno.EINVAL, InvalidError, "may use none of them"),
        (errno.EPERM, UnsupportedError, "Operation not permitted.* --cap-add SYS_NICE"),
        (errno.ENOSYS, UnsupportedError, "affinity='cpu'"),
    ],
)
def test_a_kernel_that_refuses_is_reported(tmp_path: Path, error: int, kind: type[Exception], words: str) -> None:
    with pytest.raises(kind, match=words):
        pinning.bind_memory([1], folder=nodes(tmp_path, "0-1"), set_policy=lambda *_: error)
