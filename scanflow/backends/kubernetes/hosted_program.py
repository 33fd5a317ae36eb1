"""Host a program of scanflow inside the cluster: one pod with the rights of a server, while the caller watches it."""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kinds import KINDS, Manifest, build_manifest
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scanflow.backends.kubernetes.object_labels import MANAGER
from scanflow.backends.kubernetes.permissions import SUBRESOURCES, USED_VERBS, get_group
from scanflow.backends.kubernetes.pod_spec import build_container_security, build_pod_security
from scanflow.backends.kubernetes.pods import explain_pending
from scanflow.errors import UnavailableError

CONTAINER: Final = "program"
_POLL_S: Final = 10.0
_START_S: Final = 300.0
_HOME: Final = "/tmp/scanflow"  # noqa: S108 - a volume of the pod's own
_REMOVED_SETTINGS: Final = {"kubeconfig", "context", "platform_namespace"}


def build_program_manifests(
    name: str, command: Sequence[str], environment: Mapping[str, str], settings: KubernetesSettings
) -> list[Manifest]:
    """Return the objects of a program, in their order of creation. Pure."""
    labels = {"app.kubernetes.io/managed-by": MANAGER, "app.kubernetes.io/component": CONTAINER}
    own: Manifest = {"name": name, "namespace": name, "labels": labels}
    everywhere: Manifest = {"name": name, "labels": labels}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    subjects = [{"kind": "ServiceAccount", "name": name, "namespace": name}]
    return [
        build_manifest("Namespace", everywhere),
        build_manifest("ServiceAccount", own),
        build_manifest("ClusterRole", everywhere, rules=_build_rules()),
        build_manifest("ClusterRoleBinding", everywhere, roleRef=role, subjects=subjects),
        build_manifest("Pod", own, spec=_build_pod(name, command, environment, settings)),
    ]


def _build_rules() -> list[Manifest]:
    """Return the RBAC rules of a server: the rights that the doctor checks."""
    rules = [
        {"apiGroups": [get_group(kind)], "resources": [KINDS[kind].plural], "verbs": list(verbs)}
        for kind, verbs in USED_VERBS.items()
    ]
    rules += [
        {"apiGroups": [group], "resources": [name], "verbs": [verb]} for name, (group, verb) in SUBRESOURCES.items()
    ]
    steps = {"apiGroups": ["argoproj.io"], "resources": ["workflowtaskresults"], "verbs": ["create", "patch"]}
    return [*rules, steps]


def _build_pod(
    name: str, command: Sequence[str], environment: Mapping[str, str], settings: KubernetesSettings
) -> Manifest:
    image = settings.server_image
    settings_variables = {
        f"SCANFLOW_KUBERNETES_{field.upper()}": _format_value(value)
        for field, value in _list_changed_settings(settings).items()
    }
    variables = {
        "HOME": "/tmp",  # noqa: S108
        "SCANFLOW_HOME": _HOME,
        "SCANFLOW_BACKEND": "kubernetes",
        **settings_variables,
        "SCANFLOW_KUBERNETES_IMAGE": image,
        "SCANFLOW_KUBERNETES_IMAGE_COMPLETE": "1",
        "SCANFLOW_KUBERNETES_PLATFORM_NAMESPACE": name,
        **environment,
    }
    address = {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}}
    return {
        "serviceAccountName": name,
        "restartPolicy": "Never",
        "enableServiceLinks": False,
        **({"imagePullSecrets": [{"name": settings.pull_secret}]} if settings.pull_secret else {}),
        "securityContext": build_pod_security(),
        "containers": [
            {
                "name": CONTAINER,
                "image": image,
                "command": list(command),
                "workingDir": "/tmp",  # noqa: S108
                "env": [address, *({"name": key, "value": value} for key, value in sorted(variables.items()))],
                "resources": {"requests": {"cpu": "100m", "memory": "512Mi"}},
                "securityContext": build_container_security(),
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "volumeMounts": [{"name": "tmp", "mountPath": "/tmp"}],  # noqa: S108
            }
        ],
        "volumes": [{"name": "tmp", "emptyDir": {}}],
    }


def _list_changed_settings(settings: KubernetesSettings) -> dict[str, object]:
    return {
        name: value
        for name, value in settings.model_dump(exclude_defaults=True).items()
        if name not in _REMOVED_SETTINGS
    }


def _format_value(value: object) -> str:
    return str(int(value)) if isinstance(value, bool) else str(value)


class Program:
    """See :class:`~scanflow.backends.backend_port.HostedProgram`."""

    def __init__(self, cluster: Cluster, name: str) -> None:
        self._cluster, self._name = cluster, name

    def lines(self) -> Iterator[str]:
        self._wait_until_begun()
        rest = b""
        for part in self._cluster.log(self._name, self._name, follow=True, within_s=600):
            *lines, rest = (rest + part).split(b"\n")
            yield from (line.decode("utf-8", "replace") for line in lines)
        if rest:
            yield rest.decode("utf-8", "replace")

    def read(self, path: str) -> str:
        return self._cluster.exec(self._name, self._name, ["cat", path], container=CONTAINER)

    def _wait_until_begun(self) -> None:
        field_selector = f"metadata.name={self._name}"
        waited = 0.0
        while waited < _START_S:
            pods, version = self._cluster.find("Pod", self._name, fields=field_selector)
            if any(pod.get("status", {}).get("phase") in {"Running", "Succeeded", "Failed"} for pod in pods):
                return
            for _ in self._cluster.watch("Pod", self._name, fields=field_selector, since=version, within_s=_POLL_S):
                break
            else:
                waited += _POLL_S
        pods, _ = self._cluster.find("Pod", self._name, fields=field_selector)
        events, _ = self._cluster.find("Event", self._name)
        reasons = [str(pending) for pod in pods if (pending := explain_pending(pod, events))]
        raise UnavailableError(f"The pod {self._name} does not start. {' '.join(reasons)}")


@contextmanager
def host_program(
    cluster: Cluster, settings: KubernetesSettings, command: Sequence[str], environment: Mapping[str, str]
) -> Iterator[Program]:
    """Yield the program while it runs, and delete its objects at the end."""
    name = f"scanflow-program-{secrets.token_hex(3)}"
    created: list[Manifest] = []
    try:
        for manifest in build_program_manifests(name, command, environment, settings):
            created.append(manifest)
            cluster.apply(manifest)
        yield Program(cluster, name)
    finally:
        for manifest in reversed(created):
            metadata = manifest["metadata"]
            cluster.delete(manifest["kind"], metadata["name"], metadata.get("namespace"))
