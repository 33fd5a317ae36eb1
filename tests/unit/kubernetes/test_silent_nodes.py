"""What is told of tasks whose nodes do not answer."""

from __future__ import annotations

from scanflow.backends.kubernetes.batch.workflow_driver import NODES_CHECK_S, SilentNodes
from scanflow.backends.kubernetes.object_labels import build_labels
from scanflow.backends.run_records import EnvironmentReady, Event, Waiting
from scanflow.names import RunName, StepName
from scanflow.testing.memory_cluster import MemoryCluster

NAMESPACE, RUN = "scanflow-shop-data", RunName("calm-otter-417")
RUNNING = {"train-1": StepName("train"), "load-1": StepName("load")}


class Watched:
    """Two running pods, and what is told of their nodes as a clock goes on."""

    def __init__(self) -> None:
        self.cluster, self.events, self.now = MemoryCluster(namespaces=(NAMESPACE,)), list[Event](), 0.0
        self.nodes = SilentNodes(self.cluster, NAMESPACE, RUN, observe=self.events.append, clock=lambda: self.now)
        for number, name in enumerate(RUNNING):
            metadata = {"name": name, "namespace": NAMESPACE, "labels": build_labels("shop", "data", run=RUN)}
            spec = {"nodeName": f"node{number}", "containers": [{"name": "main", "image": "base"}]}
            self.cluster.create({"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec})
            self.mark(name, "True")

    def mark(self, pod: str, ready: str) -> None:
        conditions = [{"type": "ContainersReady", "status": "True"}, {"type": "Ready", "status": ready}]
        status = {"status": {"phase": "Running", "conditions": conditions}}
        self.cluster.patch("Pod", pod, NAMESPACE, status, subresource="status")

    def look(self) -> list[Event]:
        """Look when it is time, and return what was told of it."""
        self.now += NODES_CHECK_S
        self.nodes.check(RUNNING)
        events, self.events[:] = list(self.events), []
        return events


def test_a_silent_node_is_reported_once_and_so_is_its_return() -> None:
    watched = Watched()
    assert watched.look() == []
    watched.mark("train-1", "False")
    (event,) = watched.look()
    assert isinstance(event, Waiting)
    assert event.why.startswith("NodeNotReady: its node node0 does not answer.")
    assert watched.look() == []
    watched.mark("train-1", "True")
    (event,) = watched.look()
    assert isinstance(event, EnvironmentReady)
    assert (event.what, event.seconds) == ("the node of train", 2 * NODES_CHECK_S)


def test_pods_are_requested_from_time_to_time_and_not_without_a_running_task() -> None:
    watched = Watched()
    before = len(watched.cluster.calls)
    watched.nodes.check(RUNNING)
    watched.now = NODES_CHECK_S
    watched.nodes.check({})
    assert len(watched.cluster.calls) == before
    watched.nodes.check(RUNNING)
    watched.nodes.check(RUNNING)
    assert len(watched.cluster.calls) == before + 1


def test_an_api_server_that_is_away_is_called_again() -> None:
    watched = Watched()
    watched.mark("train-1", "False")
    watched.cluster.down = True
    assert watched.look() == []
    watched.cluster.down = False
    assert len(watched.look()) == 1
