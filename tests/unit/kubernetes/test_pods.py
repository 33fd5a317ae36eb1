"""Why a pod does not run yet."""

from __future__ import annotations

from typing import Any

import pytest

from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.pods import explain_denial, explain_pending

SCHEDULED = {"type": "PodScheduled", "status": "True"}


def pod(phase: str = "Pending", **status: Any) -> Manifest:
    return {"kind": "Pod", "metadata": {"name": "one", "uid": "1"}, "status": {"phase": phase, **status}}


def unschedulable(message: str) -> Manifest:
    condition = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": message}
    return pod(conditions=[condition])


def waiting(reason: str, message: str = "", phase: str = "Pending") -> Manifest:
    state = {"waiting": {"reason": reason, "message": message}}
    return pod(phase, conditions=[SCHEDULED], containerStatuses=[{"name": "main", "state": state}])


def event(reason: str, message: str, *, name: str = "one", at: str = "2026-01-01T00:00:00Z") -> Manifest:
    about = {"kind": "Pod", "name": name, "uid": "1"}
    return {"reason": reason, "message": message, "lastTimestamp": at, "metadata": {}, "involvedObject": about}


@pytest.mark.parametrize("phase", ["Running", "Succeeded", "Failed"])
def test_a_pod_that_runs_or_has_ended_waits_for_nothing(phase: str) -> None:
    assert explain_pending(pod(phase, containerStatuses=[{"name": "main", "state": {"running": {}}}])) is None


@pytest.mark.parametrize(
    ("ready", "silent"),
    [
        ({"status": "False"}, True),
        ({"status": "True"}, False),
        ({"status": "False", "reason": "ReadinessGatesNotReady"}, False),
    ],
)
def test_a_pod_that_the_cluster_takes_for_not_ready_is_on_a_node_that_does_not_answer(
    ready: dict[str, str], *, silent: bool
) -> None:
    conditions = [{"type": "ContainersReady", "status": "True"}, {"type": "Ready", **ready}]
    why = explain_pending({**pod("Running", conditions=conditions), "spec": {"nodeName": "node1"}})
    assert (why is not None) is silent
    if why is not None:
        assert str(why).startswith("NodeNotReady: its node node1 does not answer. Look: kubectl describe node node1.")
        assert "kubectl delete node node1" in why.remedy


@pytest.mark.parametrize(
    ("message", "remedy"),
    [
        ("0/3 nodes are available: 1 node(s) had untolerated taint {a: }, 2 Insufficient cpu.", "fewer cores"),
        ("0/3 nodes are available: 3 Insufficient memory.", "less memory"),
        ("0/3 nodes are available: 3 Insufficient nvidia.com/gpu.", "No node has the requested resources"),
        ("0/2 nodes are available: 2 node(s) didn't match Pod's node affinity/selector.", "node_selector"),
        ("0/2 nodes are available: 2 node(s) didn't match pod anti-affinity rules.", "more nodes"),
        ("0/2 nodes are available: 2 node(s) didn't match pod topology spread constraints.", "spread"),
        ("pod has unbound immediate PersistentVolumeClaims.", "STORAGE_CLASS"),
        ('persistentvolumeclaim "scanflow-outputs" not found', "STORAGE_CLASS"),
        ("no nodes available to schedule pods", "kubectl get nodes"),
    ],
)
def test_a_pod_that_fits_nowhere_says_what_to_do(message: str, remedy: str) -> None:
    explanation = explain_pending(unschedulable(message))
    assert explanation is not None
    assert explanation.reason == "Unschedulable"
    assert remedy in explanation.remedy
    assert message.rstrip(".") in str(explanation)


@pytest.mark.parametrize("reason", ["ErrImagePull", "ImagePullBackOff", "InvalidImageName"])
def test_an_image_that_cannot_be_pulled_is_named(reason: str) -> None:
    explanation = explain_pending(waiting(reason, 'Back-off pulling image "shop/app:1"'))
    assert explanation is not None
    assert "shop/app:1" in str(explanation)
    assert "scanflow build" in explanation.remedy


def test_a_container_that_is_restarted_again_and_again_waits_though_its_pod_runs() -> None:
    explanation = explain_pending(waiting("CrashLoopBackOff", "back-off 10s restarting failed container", "Running"))
    assert explanation is not None
    assert explanation.reason == "CrashLoopBackOff"


def test_what_events_say_is_more_than_that_a_container_is_being_created() -> None:
    events = [
        event("FailedMount", 'MountVolume.SetUp failed for volume "v": secret "keys" not found'),
        event("FailedMount", "of another pod", name="two", at="2026-01-02T00:00:00Z"),
        event("Scheduled", "Successfully assigned", at="2026-01-02T00:00:00Z"),
    ]
    explanation = explain_pending(waiting("ContainerCreating"), events)
    assert explanation is not None
    assert (explanation.reason, "Create the Secret" in explanation.remedy) == ("FailedMount", True)
    assert str(explain_pending(waiting("ContainerCreating"))) == "ContainerCreating."


def test_a_claim_that_cannot_be_provisioned_is_what_its_pod_waits_for() -> None:
    pod = {
        "metadata": {"name": "a-pod"},
        "spec": {"volumes": [{"persistentVolumeClaim": {"claimName": "scanflow-outputs"}}, {"emptyDir": {}}]},
        "status": {"phase": "Pending"},
    }
    event = {
        "metadata": {},
        "reason": "ProvisioningFailed",
        "message": "NodePath only supports ReadWriteOnce and ReadWriteOncePod (1.22+) access modes",
        "involvedObject": {"kind": "PersistentVolumeClaim", "name": "scanflow-outputs"},
    }
    explanation = str(explain_pending(pod, [event]))
    assert "only supports ReadWriteOnce" in explanation
    assert "SCANFLOW_KUBERNETES_STORAGE_MODE=ReadWriteOnce" in explanation
    elsewhere = {**event, "involvedObject": {"kind": "PersistentVolumeClaim", "name": "other"}}
    assert str(explain_pending(pod, [elsewhere])) == "Pending."


def test_the_newest_event_counts() -> None:
    events = [event("FailedMount", "old"), event("FailedAttachVolume", "new", at="2026-01-02T00:00:00Z")]
    explanation = explain_pending(pod(conditions=[SCHEDULED]), events)
    assert explanation is not None
    assert explanation.message == "new"


def test_a_pod_that_nobody_has_looked_at_is_pending() -> None:
    assert str(explain_pending(pod())) == "Pending."


def deployment(message: str, *, status: str = "True", observed: int = 2) -> Manifest:
    condition = {"type": "ReplicaFailure", "status": status, "reason": "FailedCreate", "message": message}
    return {
        "metadata": {"name": "serving-r1", "namespace": "shop", "generation": 2},
        "status": {"observedGeneration": observed, "conditions": [condition]},
    }


@pytest.mark.parametrize(
    ("message", "remedy", "passing"),
    [
        (
            'pods "a" is forbidden: exceeded quota: q, requested: pods=1, used: pods=1, limited: pods=1',
            "kubectl describe quota -n shop",
            False,
        ),
        ('pods "a" is forbidden: failed quota: q: must specify cpu', "SCANFLOW_KUBERNETES_DEFAULT_CPU", False),
        ('admission webhook "w" denied the request: no', "Change what it rejects", False),
        ("pods \"a\" is forbidden: ValidatingAdmissionPolicy 'p' with binding 'b' denied request: no", "policy", False),
        ('pods "a" is forbidden: violates PodSecurity "restricted:latest": runAsNonRoot', "pod-security", False),
        ('pods "a" is forbidden: maximum cpu usage per Container is 1', "LimitRange", False),
        ('Internal error occurred: failed calling webhook "w": no endpoints available', "webhook's server up", True),
        ('pods "a" is forbidden: error looking up service account shop/s: not found', "scanflow apply", True),
        ("something else", "kubectl get events -n shop", False),
    ],
)
def test_pods_that_are_not_made_say_why_and_what_to_do(message: str, remedy: str, passing: bool) -> None:
    explanation = explain_denial(deployment(message))
    assert explanation is not None
    assert explanation.passing is passing
    assert str(explanation).startswith(f"no pod of the Deployment shop/serving-r1 can be created: {message}. ")
    assert remedy in explanation.remedy


def test_what_kept_pods_away_before_the_last_change_is_not_said_of_it() -> None:
    assert explain_denial(deployment("exceeded quota: q", observed=1)) is None
    assert explain_denial(deployment("exceeded quota: q", status="False")) is None
    assert explain_denial({"metadata": {"name": "a", "namespace": "b", "generation": 1}}) is None
