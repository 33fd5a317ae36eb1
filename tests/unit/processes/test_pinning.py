"""Binding that is really applied, in child processes, and read back from the kernel."""

from __future__ import annotations

import errno
import json
import os
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from scanflow.errors import InvalidError, UnsupportedError
from scanflow.processes import pinning
from scanflow.processes.pinning import Bound, Thread
from tests.unit.placement.trees import write

ALLOWED = sorted(os.sched_getaffinity(0))


def child(code: str) -> Any:
    """Run code in a process of its own and return what it printed as JSON."""
    prelude = "import json, os, sys, threading; from scanflow.processes import pinning\n"
    done = subprocess.run(
        [sys.executable, "-c", prelude + code], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_a_process_bound_to_a_cpu_stays_there_and_so_do_its_threads() -> None:
    told = child(
        f"""
pinning.apply([{ALLOWED[0]}], [0])
done = threading.Event()
threading.Thread(target=done.wait, daemon=True).start()
bound = pinning.read_back()
print(json.dumps([bound.cpus, len(bound.threads), bound.memory_nodes, bound.policy]))
"""
    )
    assert told == [[ALLOWED[0]], 2, [0], told[3]]


def test_threads_that_run_already_are_bound_too() -> None:
    told = child(
        f"""
done = threading.Event()
for _ in range(4):
    threading.Thread(target=done.wait, daemon=True).start()
pinning.bind([{ALLOWED[-1]}])
print(json.dumps([thread.cpus for thread in pinning.read_back().threads]))
"""
    )
    assert told == [[ALLOWED[-1]]] * 5


def test_another_process_is_bound_from_outside() -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        try:
            pinning.bind([ALLOWED[0]], pid=process.pid)
            assert pinning.read_back(process.pid).cpus == (ALLOWED[0],)
        finally:
            process.kill()


def test_each_thread_is_pinned_in_turn() -> None:
    told = child(
        f"""
done = threading.Event()
threads = [threading.Thread(target=done.wait, daemon=True) for _ in range(3)]
[thread.start() for thread in threads]
pinning.pin({ALLOWED[:2]}, [thread.native_id for thread in threads])
masks = {{thread.tid: thread.cpus for thread in pinning.read_back().threads}}
print(json.dumps([masks[thread.native_id] for thread in threads]))
"""
    )
    assert told == [[ALLOWED[place % len(ALLOWED[:2])]] for place in range(3)]


def test_a_cpu_that_may_not_be_used_is_refused() -> None:
    with pytest.raises(InvalidError, match=r"none of them may be used here\. See: scanflow topology"):
        pinning.bind([4095])
    assert sorted(os.sched_getaffinity(0)) == ALLOWED


def test_a_cpu_that_is_missing_among_others_is_named() -> None:
    told = child(
        f"""
try:
    pinning.bind([{ALLOWED[0]}, 4095])
except Exception as error:
    print(json.dumps(str(error)))
"""
    )
    assert told.startswith("The CPUs '4095' may not be used here")


def test_there_is_no_binding_of_a_process_that_has_ended() -> None:
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait(60)
    with pytest.raises(ProcessLookupError):
        pinning.read_back(ended.pid)


def test_what_runs_is_told_from_what_waits() -> None:
    bound = pinning.read_back()
    own = next(thread for thread in bound.threads if thread.tid == threading.get_native_id())
    assert own.state == "R"
    assert bound.running >= 1
    assert own.cpu_s > 0


def test_a_memory_policy_is_set_and_read_back() -> None:
    told = child("print(json.dumps([pinning._set_mempolicy(2, [0]), pinning.read_back().policy]))")
    if told[0] in {errno.ENOSYS, errno.EPERM}:
        pytest.skip(f"memory policies are not allowed here: {os.strerror(told[0])}")
    assert told == [0, "bind:0"]


class TestMemory:
    """What is asked of the kernel, on machines with several nodes."""

    def nodes(self, tmp_path: Path, listed: str) -> Path:
        return write(tmp_path, {"has_memory": listed})

    def test_one_node_needs_nothing(self, tmp_path: Path) -> None:
        assert pinning.bind_memory([0], folder=self.nodes(tmp_path, "0")) == "one memory node: nothing to bind"
        assert pinning.bind_memory([0], folder=tmp_path / "nothing") == "one memory node: nothing to bind"

    def test_all_nodes_need_nothing(self, tmp_path: Path) -> None:
        folder = self.nodes(tmp_path, "0-1")
        assert pinning.bind_memory([0, 1], folder=folder) == "all memory nodes: nothing to bind"

    @pytest.mark.parametrize(
        ("strict", "mode", "told"), [(True, 2, "memory from node 1"), (False, 5, "memory preferably from node 1")]
    )
    def test_a_node_is_bound(self, tmp_path: Path, strict: bool, mode: int, told: str) -> None:
        asked: list[tuple[int, list[int]]] = []

        def kernel(mode: int, nodes: Sequence[int]) -> int:
            asked.append((mode, list(nodes)))
            return 0

        folder = self.nodes(tmp_path, "0-3")
        assert pinning.bind_memory([1], strict=strict, folder=folder, set_policy=kernel) == told
        assert asked == [(mode, [1])]

    @pytest.mark.parametrize(
        ("error", "kind", "words"),
        [
            (errno.EINVAL, InvalidError, "may use none of them"),
            (errno.EPERM, UnsupportedError, "Operation not permitted.* --cap-add SYS_NICE"),
            (errno.ENOSYS, UnsupportedError, "affinity='cpu'"),
        ],
    )
    def test_a_kernel_that_refuses_is_told_of(
        self, tmp_path: Path, error: int, kind: type[Exception], words: str
    ) -> None:
        with pytest.raises(kind, match=words):
            pinning.bind_memory([1], folder=self.nodes(tmp_path, "0-1"), set_policy=lambda *_: error)


@pytest.mark.parametrize(
    ("line", "policy", "nodes"),
    [
        ("7f00 default file=/usr/bin/x mapped=2 N0=2", "default", (0, 1)),
        ("7f00 bind:1 anon=2", "bind:1", (1,)),
        ("7f00 bind=static:0-1 anon=2", "bind=static:0-1", (0, 1)),
        ("7f00 prefer (many):1 heap", "prefer (many):1", (1,)),
        ("", "", (0, 1)),
    ],
)
def test_the_policy_is_read_from_the_first_mapping(
    tmp_path: Path, line: str, policy: str, nodes: tuple[int, ...]
) -> None:
    status = "Name:\ta (b) c\nCpus_allowed_list:\t0-3\nMems_allowed_list:\t0-1"
    write(
        tmp_path,
        {
            "9/numa_maps": line,
            "9/status": status,
            "9/task/9/status": status,
            "9/task/9/stat": "9 (a (b) c) R " + " ".join(["0"] * 10) + " 150 50 0",
        },
    )
    bound = pinning.read_back(9, proc=tmp_path)
    assert (bound.policy, bound.memory_nodes, bound.cpus) == (policy, nodes, (0, 1, 2, 3))
    assert bound.threads[0].name == "a (b) c"
    assert bound.threads[0].cpu_s == 200 / os.sysconf("SC_CLK_TCK")


def test_threads_that_are_elsewhere_are_found() -> None:
    inside, outside = Thread(1, "a", "S", (0,), 0.0), Thread(2, "b", "S", (0, 5), 0.0)
    assert Bound((inside, outside), (0,), "").outside([0, 1]) == (outside,)


def test_the_threads_that_worked_are_those_that_used_time_like_the_busiest() -> None:
    before = Bound((Thread(1, "main", "S", (0,), 5.0), Thread(2, "idle", "S", (0,), 1.0)), (0,), "")
    after = Bound(
        (
            Thread(1, "main", "S", (0,), 5.01),
            Thread(2, "idle", "S", (0,), 1.0),
            Thread(3, "pool", "S", (0,), 0.9),
            Thread(4, "pool", "S", (0,), 1.0),
        ),
        (0,),
        "",
    )
    assert [thread.tid for thread in pinning.worked(before, after)] == [4, 3]
    assert pinning.worked(before, before) == ()
