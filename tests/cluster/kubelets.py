"""The kubelets of a cluster that `.ci/cluster` has brought up on this machine: killed, and started again."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.nodes import is_schedulable
from tests.leftovers import MARK, identify
from tests.waiting import wait_until

LAB, CACHE = (os.environ.get(name, "") for name in ("SCANFLOW_LAB", "SCANFLOW_KUBE_CACHE"))  # tests see no variable
MINE = pytest.mark.skipif(
    not (LAB and CACHE), reason="SCANFLOW_LAB and SCANFLOW_KUBE_CACHE name no cluster of this machine's own processes"
)
"""Of tests that kill the kubelets of a cluster."""

STARTS = 2
"""How often `up` is tried: a killed kubelet may leave a socket that its successor removes while it ends."""


@contextmanager
def killed_kubelet(cluster: Cluster, node: str) -> Iterator[None]:
    """Kill a node's kubelet; at the end it is started again, and its node is ready."""
    pid = _pid(node)
    os.kill(pid, signal.SIGKILL)
    try:
        yield
    finally:
        _start(pid, node)
        wait_until(lambda: _is_ready(cluster, node), f"{node} is ready again")


def _pid(node: str) -> int:
    """Return the process of a node's kubelet, if it is the one that was noted."""
    noted = Path(CACHE, "lab", "pids", f"kubelet-{node}.pid")
    pid, began = noted.read_text(encoding="ascii").split()
    stat = Path("/proc", pid, "stat").read_text(encoding="ascii")
    assert stat.rpartition(")")[2].split()[19] == began, f"the kubelet of {node} does not run"
    return int(pid)


def _start(dead: int, node: str) -> None:
    output, program = "", Path(LAB, "up")
    variables = {name: text for name, text in os.environ.items() if name != MARK}
    if around := [run for run in os.environ.get(MARK, "").split(",") if run != identify(os.getpid())]:
        variables[MARK] = ",".join(around)  # it is the cluster's, and is not ended with this run of tests
    for _ in range(STARTS):
        done = subprocess.run([program], env=variables, capture_output=True, text=True, check=False)
        if done.returncode == 0 and _pid(node) != dead:
            return
        output = done.stderr
    raise AssertionError(f"the kubelet of {node} did not start again: {output[-2000:]}")


def _is_ready(cluster: Cluster, node: str) -> bool:
    nodes, _ = cluster.find("Node", fields=f"metadata.name={node}")
    return bool(nodes) and is_schedulable(nodes[0])
