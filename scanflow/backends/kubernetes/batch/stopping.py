"""Ends one task of a run that goes on, and notes on its Workflow that this was asked for."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from scanflow.backends.kubernetes.batch.facts import Live
from scanflow.backends.kubernetes.batch.layout import ASKED_TO_STOP
from scanflow.backends.kubernetes.batch.pod_logs import MAIN
from scanflow.backends.kubernetes.batch.process import PID_FILE
from scanflow.backends.kubernetes.cluster import Cluster, until_unchanged
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.errors import NotFoundError, ScanflowError

_SIGNAL = f"import os, signal; os.kill(int(open({str(PID_FILE)!r}).read()), signal.SIGUSR1)"


def annotate(cluster: Cluster, workflow: Manifest, name: str, change: Callable[[Any], Any], *, empty: Any) -> Any:
    """Change the JSON value of an annotation of a Workflow; return what it then is. Another's change meanwhile is kept:
    the value is changed as it is now, again where Argo or another wrote the Workflow this moment.

    Raises:
        NotFoundError: the Workflow is gone.
    """
    own, namespace = workflow["metadata"]["name"], workflow["metadata"]["namespace"]

    def attempt() -> Any:
        found = cluster.get("Workflow", own, namespace)
        if found is None:
            raise NotFoundError(f"The Workflow {namespace}/{own} is gone.")
        before = json.loads((found["metadata"].get("annotations") or {}).get(name) or json.dumps(empty))
        after = change(before)
        metadata = {"resourceVersion": found["metadata"]["resourceVersion"], "annotations": {name: json.dumps(after)}}
        cluster.patch("Workflow", own, namespace, {"metadata": metadata})
        return after

    return until_unchanged(f"The Workflow {namespace}/{own}", attempt)


def stop_running_task(cluster: Cluster, namespace: str, live: Live, task: str) -> None:
    """Ask a task to end. What stays of it is its log: it is not tried again, and what needs it does not start."""
    pods = [one.pod for one in live.observed.attempts if one.task == task]
    annotate(cluster, live.manifest, ASKED_TO_STOP, lambda asked: sorted({*asked, task}), empty=[])
    if not pods:
        return
    try:
        cluster.exec(pods[-1], namespace, ["python", "-c", _SIGNAL], container=MAIN)
    except NotFoundError:
        return
    except ScanflowError:  # its program has not begun yet, or nobody may run commands: its pod is ended instead
        if not end_on_node(cluster, pods[-1], namespace):
            cluster.delete("Pod", pods[-1], namespace, grace_s=10)


def end_on_node(cluster: Cluster, pod: str, namespace: str) -> bool:
    """Have a pod ended by the node that it is on, and say whether it is on one. Its task has then failed, where that of
    a pod that is deleted is tried again."""
    found = cluster.get("Pod", pod, namespace)
    if found is None or not found["spec"].get("nodeName"):
        return False
    cluster.patch("Pod", pod, namespace, {"spec": {"activeDeadlineSeconds": 1}})
    return True
