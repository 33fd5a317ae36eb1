"""Report tasks on nodes that do not answer, which Argo sees only once their pods are deleted."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Final

from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.object_labels import build_selector
from scanflow.backends.kubernetes.pods import NODE_NOT_READY, explain_pending
from scanflow.backends.run_records import EnvironmentReady, Observer, Waiting
from scanflow.errors import UnavailableError
from scanflow.names import RunName, StepName

CHECK_S: Final = 20.0
"""How often the pods of a run are listed: a cluster takes 40 s to notice that a node does not answer."""


class SilentNodes:
    """Checks the nodes of a run's running pods from time to time."""

    def __init__(
        self,
        cluster: Cluster,
        namespace: str,
        run: RunName,
        *,
        observe: Observer,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._cluster, self._namespace, self._run = cluster, namespace, run
        self._observe, self._clock, self._last = observe, clock, clock()
        self._since: dict[StepName, float] = {}

    def check(self, running: Mapping[str, StepName]) -> None:
        """Report each task whose node stopped answering or answers again; ``running``: the tasks by pod."""
        now = self._clock()
        if not (running or self._since) or now - self._last < CHECK_S:
            return
        self._last = now
        try:
            pods, _ = self._cluster.find(
                "Pod", self._namespace, labels=build_selector(run=self._run), fields="status.phase=Running"
            )
        except UnavailableError:
            return  # reported by the watch of the Workflow
        silent: set[StepName] = set()
        for pod in pods:
            task, why = running.get(pod["metadata"]["name"]), explain_pending(pod)
            if task is None or why is None or why.reason != NODE_NOT_READY:
                continue
            silent.add(task)
            if task not in self._since:
                self._since[task] = now
                self._observe(Waiting(run=self._run, what=f"the node of {task}", why=str(why)))
        for task in set(self._since) - silent:
            self._observe(
                EnvironmentReady(run=self._run, what=f"the node of {task}", seconds=now - self._since.pop(task))
            )
