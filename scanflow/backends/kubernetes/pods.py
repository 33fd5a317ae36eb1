"""Explain why a pod is pending, or is not created, with a remedy. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final, NamedTuple

from scanflow.backends.kubernetes.kinds import Manifest, get_condition


class Pending(NamedTuple):
    """Why a pod is pending."""

    reason: str
    """The cluster's reason: ``Unschedulable``, ``ImagePullBackOff``."""

    message: str
    """The cluster's message."""

    remedy: str
    """What to do; empty: wait."""

    def __str__(self) -> str:
        text = f"{self.reason}: {self.message}" if self.message else self.reason
        return f"{text.rstrip('.')}. {self.remedy}".rstrip()


_ORDINARY: Final = {"ContainerCreating", "PodInitializing"}
"""A container's waiting reasons that are temporary, unless an event says more."""

_IMAGE_REASONS: Final = {
    "ErrImageNeverPull",
    "ErrImagePull",
    "ImageInspectError",
    "ImagePullBackOff",
    "InvalidImageName",
}
_TELLING: Final = {"FailedAttachVolume", "FailedCreatePodSandBox", "FailedMapVolume", "FailedMount", "FailedScheduling"}
"""Reasons of events that explain why a pod is pending."""

_REMEDIES: Final = (
    ("insufficient cpu", "Ask for fewer cores, stop pods that hold them, or add a node. Look: kubectl describe nodes"),
    ("insufficient memory", "Ask for less memory, stop pods that hold it, or add a node. Look: kubectl describe nodes"),
    ("insufficient", "No node has the requested resources free. Look: kubectl describe nodes"),
    (
        "anti-affinity",
        "It must not share a node with the pods that run there: fewer instances, another apart_from, or more nodes.",
    ),
    ("topology spread", "It must be spread over more nodes than can take it: fewer instances, or more nodes."),
    (
        "node affinity/selector",
        "No node that could take it has the labels of its node_selector. Look: kubectl get nodes --show-labels",
    ),
    ("pod affinity", "The pods of its affinity run nowhere yet, or on nodes without room."),
    ("volume node affinity", "Its volume is on a node that cannot take it now."),
    (
        "persistentvolumeclaim",
        "Its claim has no volume: does SCANFLOW_KUBERNETES_STORAGE_CLASS name a class? Look: kubectl get pvc,sc",
    ),
    (
        "access modes",
        "Delete the claim, and set SCANFLOW_KUBERNETES_STORAGE_MODE=ReadWriteOnce or a class with that access mode.",
    ),
    ("secret", "Create the Secret, or remove the reference to it. Look: kubectl get secrets"),
    ("configmap", "Create the ConfigMap, or remove the reference to it. Look: kubectl get configmaps"),
    ("untolerated taint", "The nodes' taints keep it away. Look: kubectl describe nodes"),
    ("no nodes available", "The cluster has no node that is Ready. Look: kubectl get nodes"),
)
_DENIAL_REMEDIES: Final = (
    ("exceeded quota", "Raise the namespace's quota, or ask for less. Look: kubectl describe quota -n {namespace}"),
    (
        "must specify limits",
        "It asks for limits of all containers: have a LimitRange give defaults. Look: kubectl get quota -n {namespace}",
    ),
    (
        "failed quota",
        "Give them cores and memory, or set SCANFLOW_KUBERNETES_DEFAULT_CPU and SCANFLOW_KUBERNETES_DEFAULT_MEMORY.",
    ),
    (
        "failed calling webhook",
        "Is the webhook's server up? Look: kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations",
    ),
    ("denied the request", "Change what it rejects, or ask its administrator to allow these pods."),
    ("denied request", "Change what it rejects, or ask the policy's administrator to allow these pods."),
    ("violates podsecurity", "Have the namespace's label pod-security.kubernetes.io/enforce allow it."),
    ("usage per", "Ask for what the namespace's LimitRange allows. Look: kubectl describe limits -n {namespace}"),
    ("error looking up service account", "Create the environment again: scanflow apply."),
)
"""Parts of the API server's messages about refused pods, and the remedies."""

_DENIED: Final = ("is forbidden:", "is invalid:", "denied the request", "denied request")
"""Parts of messages that say that a pod was refused."""

_PASSING: Final = ("failed calling webhook", "error looking up service account")
"""Refusals that may be temporary."""

_IMAGE_REMEDY: Final = (
    "Nodes cannot pull the image: is it in a registry that they reach (scanflow build pushes to "
    "SCANFLOW_KUBERNETES_REGISTRY), and does SCANFLOW_KUBERNETES_PULL_SECRET name a Secret with access to it?"
)


NODE_NOT_READY: Final = "NodeNotReady"
"""The cluster's reason for a node whose kubelet does not answer."""


def explain_pending(pod: Manifest, events: Iterable[Manifest] = ()) -> Pending | None:
    """Return why a pod is pending, from its status and its events; None: it is not. A running pod on a node that does
    not answer is pending too.

    Args:
        pod: Its object.
        events: Of its namespace; those of other objects are ignored.
    """
    status = pod.get("status", {})
    if status.get("phase", "Pending") in {"Succeeded", "Failed"}:
        return None
    waiting = _explain_waiting(status)
    if waiting and waiting.reason not in _ORDINARY:
        return waiting
    if status.get("phase") == "Running":
        return _explain_silent_node(pod)
    event = next(_explain_events(pod, events), None)
    return _explain_unschedulable(status) or event or waiting or Pending("Pending", "", "")


class PodDenial(NamedTuple):
    """Why the pods of a Deployment are not created."""

    deployment: str
    message: str
    """The API server's message."""

    remedy: str
    passing: bool
    """Whether it may be temporary."""

    def __str__(self) -> str:
        return f"no pod of the Deployment {self.deployment} can be created: {self.message.rstrip('.')}. {self.remedy}"


def explain_denial(deployment: Manifest) -> PodDenial | None:
    """Return why a Deployment's pods are refused, by the status of its current generation; None: they are not."""
    metadata, status = deployment["metadata"], deployment.get("status", {})
    if status.get("observedGeneration", 0) < metadata.get("generation", 0):
        return None
    condition = get_condition(status, "ReplicaFailure")
    if condition.get("status") != "True":
        return None
    message = " ".join(str(condition.get("message") or condition.get("reason") or "").split())
    namespace = metadata["namespace"]
    passing = any(words in message.lower() for words in _PASSING)
    return PodDenial(f"{namespace}/{metadata['name']}", message, _get_denial_remedy(message, namespace), passing)


def explain_denied_pod(message: str, namespace: str) -> str | None:
    """Return a message about a pod that was refused, with a remedy; None: it says something else."""
    text = " ".join(message.split())
    if not any(words in text.lower() for words in _DENIED):
        return None
    return f"{text.rstrip('.')}. {_get_denial_remedy(text, namespace)}"


def _get_denial_remedy(message: str, namespace: str) -> str:
    lowered = message.lower()
    remedy = next(
        (remedy for words, remedy in _DENIAL_REMEDIES if words in lowered), "Look: kubectl get events -n {namespace}"
    )
    return remedy.format(namespace=namespace)


def _explain_silent_node(pod: Manifest) -> Pending | None:
    """Detect that a pod's node does not answer: the pod is marked as not ready without a reason, while its containers
    are still reported as ready."""
    ready, containers = (get_condition(pod.get("status"), kind) for kind in ("Ready", "ContainersReady"))
    if ready.get("status") != "False" or ready.get("reason") or containers.get("status") != "True":
        return None
    node = pod["spec"].get("nodeName", "?")
    remedy = (
        f"Look: kubectl describe node {node}. If the node is dead for good, kubectl delete node {node} marks its pods "
        "as gone."
    )
    return Pending(NODE_NOT_READY, f"its node {node} does not answer", remedy)


def _explain_unschedulable(status: Manifest) -> Pending | None:
    condition = get_condition(status, "PodScheduled")
    if condition.get("status") != "False":
        return None
    return _build_pending(condition.get("reason", "Unschedulable"), condition.get("message", ""))


def _explain_waiting(status: Manifest) -> Pending | None:
    """Return the reason of the first container with more than a temporary one, else a temporary one."""
    first = None
    for container in [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]:
        if waiting := container.get("state", {}).get("waiting"):
            pending = _build_pending(waiting.get("reason", "Waiting"), waiting.get("message", ""))
            if pending.reason not in _ORDINARY:
                return pending
            first = first or pending
    return first


def _explain_events(pod: Manifest, events: Iterable[Manifest]) -> Iterator[Pending]:
    """Yield the reasons in events of a pod and of its claims, the newest first."""
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
    for event in sorted(about, key=_read_event_time, reverse=True):
        yield _build_pending(event["reason"], event.get("message", ""))


def _read_event_time(event: Manifest) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or event["metadata"].get("creationTimestamp") or "")


def _build_pending(reason: str, message: str) -> Pending:
    if reason in _IMAGE_REASONS:
        return Pending(reason, message, _IMAGE_REMEDY)
    lowered = message.lower()
    remedy = next((remedy for words, remedy in _REMEDIES if words in lowered), "")
    return Pending(reason, " ".join(message.split()), remedy)
