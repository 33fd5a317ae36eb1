"""A Secret whose value is random: created once for a namespace, and the same for all who need it."""

from __future__ import annotations

import base64
from collections.abc import Callable

from scanflow.backends.kubernetes.api_errors import ConflictError
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kinds import Manifest, build_manifest
from scanflow.backends.kubernetes.object_labels import build_labels
from scanflow.errors import InvalidError, UnavailableError


def ensure_random_secret(
    cluster: Cluster, namespace: str, name: str, *, key: str, make: Callable[[], bytes], app: str, team: str
) -> bytes:
    """Return the value of a Secret, which is created where it is missing. Of two who create it, both return one's.

    Args:
        cluster: Where it is.
        namespace: Of the Secret.
        name: Of the Secret.
        key: What the value is under.
        make: Returns a new value.
        app: Of the labels.
        team: Of the labels.

    Raises:
        InvalidError: the Secret exists, and has no such value.
        UnavailableError: it was deleted in between.
    """
    secret = cluster.get("Secret", name, namespace)
    if secret is None:
        manifest: Manifest = build_manifest(
            "Secret",
            {"name": name, "namespace": namespace, "labels": build_labels(app, team)},
            type="Opaque",
            data={key: base64.b64encode(make()).decode("ascii")},
        )
        try:
            secret = cluster.create(manifest)
        except ConflictError:
            secret = cluster.get("Secret", name, namespace)
    if secret is None:
        raise UnavailableError(f"The Secret {namespace}/{name} was deleted just now. Try again.")
    if (value := read_secret(secret, key)) is None:
        raise InvalidError(f"The Secret {namespace}/{name} has no {key!r}. Delete it, and a new one is created.")
    return value


def read_secret(secret: Manifest | None, key: str) -> bytes | None:
    """Return a value of a Secret as the cluster has it; None: there is none."""
    encoded = ((secret or {}).get("data") or {}).get(key)
    return None if encoded is None else base64.b64decode(encoded)
