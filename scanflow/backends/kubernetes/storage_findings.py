"""What the doctor says of outputs: whether a claim or an object store fits the cluster, and whether pods reach it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from scanflow.backends.findings import Finding
from scanflow.backends.kubernetes.batch.fetching import try_store
from scanflow.backends.kubernetes.batch.store_address import format_secret_command
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scanflow.backends.kubernetes.nodes import is_schedulable
from scanflow.backends.kubernetes.object_labels import MANAGED_SELECTOR
from scanflow.errors import AccessDeniedError, ScanflowError

_WHAT: Final = "outputs"
_PREFIX: Final = "SCANFLOW_KUBERNETES_"
_MAX_NAMED: Final = 5


def check_outputs_storage(cluster: Cluster, settings: KubernetesSettings, *, thorough: bool) -> Iterator[Finding]:
    """Yield what fits of a claim and a store; ``thorough``: also let a pod write, read and delete in the store."""
    if settings.outputs is None:
        yield _assess_claim(cluster, settings)
        return
    namespaces = _list_environments(cluster, settings)
    secret = settings.outputs_secret
    if secret is not None:
        lacking = [name for name in namespaces if cluster.get("Secret", secret, name) is None]
        for name in lacking[:_MAX_NAMED]:
            command = format_secret_command(secret, name)
            yield Finding("✗", _WHAT, f"{settings.outputs}: no Secret {secret!r} in {name}", command)
        namespaces = [name for name in namespaces if name not in lacking]
        if lacking and not namespaces:
            return
    how = "by the pods' own rights" if secret is None else f"with the Secret {secret!r}"
    where = f"{settings.outputs}, {how}"
    if not namespaces:
        yield Finding("–", _WHAT, f"{where}: there is no environment yet", "scanflow apply app.py, then this again")
    elif not thorough:
        yield Finding("✓", _WHAT, f"{where}; steps run on any node")
    else:
        yield _try_store(cluster, settings, namespaces[0], where)


def _assess_claim(cluster: Cluster, settings: KubernetesSettings) -> Finding:
    nodes = sum(is_schedulable(node) for node in cluster.find("Node")[0])
    if nodes <= 1:
        return Finding("✓", _WHAT, "on a claim, which fits: one node takes pods")
    if settings.storage_mode == "ReadWriteMany":
        return Finding("✓", _WHAT, f"on a claim that all {nodes} nodes mount")
    advice = (
        f"export {_PREFIX}OUTPUTS=s3://bucket/prefix, or {_PREFIX}STORAGE_MODE=ReadWriteMany with a class that has it"
    )
    return Finding("–", _WHAT, f"on a claim that one node mounts: an environment's steps share one of {nodes}", advice)


def _list_environments(cluster: Cluster, settings: KubernetesSettings) -> list[str]:
    if settings.namespace is not None:
        return [settings.namespace]
    try:
        namespaces, _ = cluster.find("Namespace", labels=MANAGED_SELECTOR)
    except AccessDeniedError:
        return []
    return sorted(namespace["metadata"]["name"] for namespace in namespaces)


def _try_store(cluster: Cluster, settings: KubernetesSettings, namespace: str, where: str) -> Finding:
    try:
        try_store(cluster, settings, namespace)
    except ScanflowError as error:
        return Finding("✗", _WHAT, f"{where}: {error}", f"kubectl -n {namespace} get secrets,events")
    return Finding("✓", _WHAT, f"{where}: a pod in {namespace} wrote, read and deleted there")
