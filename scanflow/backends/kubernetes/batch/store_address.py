"""The address of an environment's outputs in an object store, and the Secret with which pods reach it."""

from __future__ import annotations

from typing import Final

from scanflow.backends.kubernetes.batch.pod_layout import KEY_SECRET
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scanflow.errors import NotFoundError

_GENERATION_CHARS: Final = 8


def locate_store(cluster: Cluster, settings: KubernetesSettings, namespace: str) -> str | None:
    """Return the address of an environment's outputs in an object store; None: they are on a claim.

    It has a part that is new with each environment of that name, as its pickles' key is: what an earlier one, or that
    of another cluster, left in the bucket is not taken for this one's.
    """
    if settings.outputs is None:
        return None
    secret = cluster.get("Secret", KEY_SECRET, namespace)
    generation = "new" if secret is None else str(secret["metadata"]["uid"])[:_GENERATION_CHARS]
    return f"{settings.outputs}/{namespace}/{generation}"


def check_store_secret(cluster: Cluster, settings: KubernetesSettings, namespace: str) -> None:
    """Raise for a store whose Secret is not there.

    Raises:
        NotFoundError: with what to write.
    """
    name = settings.outputs_secret
    if settings.outputs and name and cluster.get("Secret", name, namespace) is None:
        raise NotFoundError(
            f"There is no Secret {name!r} in the namespace {namespace!r} (SCANFLOW_KUBERNETES_OUTPUTS_SECRET), with "
            f"which pods reach {settings.outputs}. Make it: {format_secret_command(name, namespace)}"
        )


def format_secret_command(name: str, namespace: str) -> str:
    """Return the command that makes the Secret of a store."""
    return (
        f"kubectl -n {namespace} create secret generic {name} --from-literal=AWS_ACCESS_KEY_ID=... "
        "--from-literal=AWS_SECRET_ACCESS_KEY=... --from-literal=AWS_REGION=... --from-literal=AWS_ENDPOINT_URL=..."
    )
