"""Stop one task of a running run, and record the request in an annotation of its Workflow."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

from scanflow.backends.kubernetes.batch.pod_layout import ASKED_TO_STOP
from scanflow.backends.kubernetes.batch.pod_process import PID_FILE
from scanflow.backends.kubernetes.batch.task_pod_logs import MAIN
from scanflow.backends.kubernetes.batch.workflow_facts import LiveWorkflow
from scanflow.backends.kubernetes.cluster import Cluster, retry_on_conflict
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.errors import NotFoundError, ScanflowError

_SIGNAL = f"import os, signal; os.kill(int(open({str(PID_FILE)!r}).read()), signal.SIGUSR1)"


def annotate(cluster: Cluster, workflow: Manifest, name: str, change: Callable[[Any], Any], *, empty: Any) -> Any:
    """Change the JSON value of an annotation of a Workflow, and return it. The change is retried on the new value where
    Argo or another process wrote the Workflow meanwhile.

    Raises:
        NotFoundError: the Workflow was deleted.
    """
    workflow_name, namespace = workflow["metadata"]["name"], workflow["metadata"]["namespace"]

    def attempt() -> Any:
        current = cluster.get("Workflow", workflow_name, namespace)
        if current is None:
            raise NotFoundError(f"The Workflow {namespace}/{workflow_name} is gone.")
        before = json.loads((current["metadata"].get("annotations") or {}).get(name) or json.dumps(empty))
        after = change(before)
        metadata = {"resourceVersion": current["metadata"]["resourceVersion"], "annotations": {name: json.dumps(after)}}
        cluster.patch("Workflow", workflow_name, namespace, {"metadata": metadata})
        return after

    return retry_on_conflict(f"The Workflow {namespace}/{workflow_name}", attempt)


def stop_running_task(cluster: Cluster, namespace: str, live: LiveWorkflow, task: str) -> None:
    """Stop a task. Its log is kept; it is not retried, and steps that depend on it do not start."""
    pods = [attempt.pod for attempt in live.observed.attempts if attempt.task == task]
    annotate(cluster, live.manifest, ASKED_TO_STOP, lambda asked: sorted({*asked, task}), empty=[])
    if not pods:
        return
    try:
        cluster.exec(pods[-1], namespace, ["python", "-c", _SIGNAL], container=MAIN)
    except NotFoundError:
        return
    except ScanflowError:  # its program has not begun yet, or exec is not allowed: its pod is ended instead
        if not end_on_node(cluster, pods[-1], namespace):
            cluster.delete("Pod", pods[-1], namespace, grace_s=10)


def end_on_node(cluster: Cluster, pod: str, namespace: str) -> bool:
    """End a pod through its node; return whether it has one. Its task then fails, while that of a deleted pod is
    retried."""
    manifest = cluster.get("Pod", pod, namespace)
    if manifest is None or not manifest["spec"].get("nodeName"):
        return False
    cluster.patch("Pod", pod, namespace, {"spec": {"activeDeadlineSeconds": 1}})
    return True
