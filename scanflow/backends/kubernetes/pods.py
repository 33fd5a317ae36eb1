"""Why a pod does not run yet, or is not made, in words that say what to do. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from scanflow.backends.kubernetes.kinds import Manifest


class Pending(NamedTuple):
    """What a pod waits for."""

    reason: str
    """The cluster's word for it: ``Unschedulable``, ``ImagePullBackOff``."""

    message: str
    """The cluster's own words."""

    remedy: str
    """What to do; nothing, where it is to be waited for."""

    def __str__(self) -> str:
        said = f"{self.reason}: {self.message}" if self.message else self.reason
        return f"{said.rstrip('.')}. {self.remedy}".rstrip()


_ORDINARY: Final = {"ContainerCreating", "PodInitializing"}
"""A container's reasons to wait that pass by themselves, unless an event says more."""

_ABOUT_IMAGES: Final = {
    "ErrImageNeverPull",
    "ErrImagePull",
    "ImageInspectError",
    "ImagePullBackOff",
    "InvalidImageName",
}
_TELLING: Final = {"FailedAttachVolume", "FailedCreatePodSandBox", "FailedMapVolume", "FailedMount", "FailedScheduling"}
"""Reasons of events that say why a pod waits."""

_REMEDIES: Final = (
    ("insufficient cpu", "Ask for fewer cores, stop what holds them, or add a node. Look: kubectl describe nodes"),
    ("insufficient memory", "Ask for less memory, stop what holds it, or add a node. Look: kubectl describe nodes"),
    ("insufficient", "No node has what is asked for free. Look: kubectl describe nodes"),
    (
        "anti-affinity",
        "It must not share a node with what runs there: fewer instances, another apart_from, or more nodes.",
    ),
    ("topology spread", "It must be spread over more nodes than can take it: fewer instances, or more nodes."),
    (
        "node affinity/selector",
        "No node that could take it has the labels of its node_selector. Look: kubectl get nodes --show-labels",
    ),
    ("pod affinity", "What it is to be near runs nowhere yet, or where there is no room."),
    ("volume node affinity", "Its volume is on a node that cannot take it now."),
    (
        "persistentvolumeclaim",
        "Its claim has no volume: does SCANFLOW_KUBERNETES_STORAGE_CLASS name a class? Look: kubectl get pvc,sc",
    ),
    (
        "access modes",
        "Delete the claim, and set SCANFLOW_KUBERNETES_STORAGE_MODE=ReadWriteOnce or a class that can be mounted so.",
    ),
    ("secret", "Make the Secret, or take it out. Look: kubectl get secrets"),
    ("configmap", "Make the ConfigMap, or take it out. Look: kubectl get configmaps"),
    ("untolerated taint", "The nodes' taints keep it away. Look: kubectl describe nodes"),
    ("no nodes available", "The cluster has no node that is Ready. Look: kubectl get nodes"),
)
_DENIED: Final = (
    ("exceeded quota", "Raise the namespace's quota, or ask for less. Look: kubectl describe quota -n {namespace}"),
    (
        "failed quota",
        "Give them cores and memory, or set SCANFLOW_KUBERNETES_DEFAULT_CPU and SCANFLOW_KUBERNETES_DEFAULT_MEMORY.",
    ),
    (
        "failed calling webhook",
        "Is what serves it up? Look: kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations",
    ),
    ("denied the request", "Change what it objects to, or have whoever runs it let these pods in."),
    ("denied request", "Change what it objects to, or have whoever runs that policy let these pods in."),
    ("violates podsecurity", "Have the namespace's label pod-security.kubernetes.io/enforce allow it."),
    ("usage per", "Ask for what the namespace's LimitRange allows. Look: kubectl describe limits -n {namespace}"),
    ("error looking up service account", "Make the environment again: scanflow apply."),
)
"""Why no pod is made, in the words of the API server, and what to do."""

_PASSING: Final = ("failed calling webhook", "error looking up service account")
"""What may pass by itself."""

_IMAGE_REMEDY: Final = (
    "Nodes cannot pull the image: is it in a registry that they reach (scanflow build pushes to "
    "SCANFLOW_KUBERNETES_REGISTRY), and does SCANFLOW_KUBERNETES_PULL_SECRET name what they need to be let in?"
)


NODE_NOT_READY: Final = "NodeNotReady"
"""The cluster's word for a node whose kubelet is silent."""


def why_pending(pod: Manifest, events: Iterable[Manifest] = ()) -> Pending | None:
    """Return what a pod waits for, from its status and the events about it; None: it waits for nothing. One that runs
    waits for its node, where that does not answer.

    Args:
        pod: As the API server has it.
        events: Any; those about other objects are passed over.
    """
    status = pod.get("status", {})
    if status.get("phase", "Pending") in {"Succeeded", "Failed"}:
        return None
    waiting = _waiting(status)
    if waiting and waiting.reason not in _ORDINARY:
        return waiting
    if status.get("phase") == "Running":
        return _silent_node(pod)
    said = next(_events_about(pod, events), None)
    return _unschedulable(status) or said or waiting or Pending("Pending", "", "")


class Denied(NamedTuple):
    """Why the pods of a Deployment are not made."""

    deployment: str
    message: str
    """The API server's own words."""

    remedy: str
    passing: bool
    """Whether it may pass by itself."""

    def __str__(self) -> str:
        return f"no pod of the Deployment {self.deployment} is let in: {self.message.rstrip('.')}. {self.remedy}"


def why_denied(deployment: Manifest) -> Denied | None:
    """Return why a Deployment gets no more pods, as its status says of what is wanted now; None: nothing keeps them
    away."""
    metadata, status = deployment["metadata"], deployment.get("status", {})
    if status.get("observedGeneration", 0) < metadata.get("generation", 0):
        return None
    found = next((one for one in status.get("conditions") or () if one["type"] == "ReplicaFailure"), None)
    if found is None or found["status"] != "True":
        return None
    message = " ".join(str(found.get("message") or found.get("reason") or "").split())
    lowered, namespace = message.lower(), metadata["namespace"]
    remedy = next((remedy for words, remedy in _DENIED if words in lowered), "Look: kubectl get events -n {namespace}")
    passing = any(words in lowered for words in _PASSING)
    return Denied(f"{namespace}/{metadata['name']}", message, remedy.format(namespace=namespace), passing)


def _silent_node(pod: Manifest) -> Pending | None:
    """Return that a pod's node does not answer: the cluster has marked the pod as not ready, without a reason, and what
    its kubelet said of its containers stands."""
    conditions = {one["type"]: one for one in pod.get("status", {}).get("conditions") or ()}
    ready, containers = conditions.get("Ready", {}), conditions.get("ContainersReady", {})
    if ready.get("status") != "False" or ready.get("reason") or containers.get("status") != "True":
        return None
    node = pod["spec"].get("nodeName", "?")
    remedy = (
        f"Look: kubectl describe node {node}. Where it is dead for good, kubectl delete node {node} has what ran there "
        "counted as gone."
    )
    return Pending(NODE_NOT_READY, f"its node {node} does not answer", remedy)


def _unschedulable(status: Manifest) -> Pending | None:
    for condition in status.get("conditions", []):
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            return _pending(condition.get("reason", "Unschedulable"), condition.get("message", ""))
    return None


def _waiting(status: Manifest) -> Pending | None:
    """Return what the first container waits for that waits for more than its turn."""
    found = None
    for container in [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]:
        if waiting := container.get("state", {}).get("waiting"):
            pending = _pending(waiting.get("reason", "Waiting"), waiting.get("message", ""))
            if pending.reason not in _ORDINARY:
                return pending
            found = found or pending
    return found


def _events_about(pod: Manifest, events: Iterable[Manifest]) -> Iterator[Pending]:
    """Yield what events say about it and the claims that it mounts, the newest first."""
    name, uid = pod["metadata"]["name"], pod["metadata"].get("uid")
    mounted = [volume.get("persistentVolumeClaim", {}) for volume in pod.get("spec", {}).get("volumes", [])]
    claims = {claim["claimName"] for claim in mounted if "claimName" in claim}
    about = [
        event
        for event in events
        if (
            event.get("reason") in _TELLING
            and event.get("involvedObject", {}).get("name") == name
            and event["involvedObject"].get("uid") in {uid, None}
        )
        or (event.get("reason") == "ProvisioningFailed" and event.get("involvedObject", {}).get("name") in claims)
    ]
    for event in sorted(about, key=_when, reverse=True):
        yield _pending(event["reason"], event.get("message", ""))


def _when(event: Manifest) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp") or "")


def _pending(reason: str, message: str) -> Pending:
    if reason in _ABOUT_IMAGES:
        return Pending(reason, message, _IMAGE_REMEDY)
    lowered = message.lower()
    remedy = next((remedy for words, remedy in _REMEDIES if words in lowered), "")
    return Pending(reason, " ".join(message.split()), remedy)
