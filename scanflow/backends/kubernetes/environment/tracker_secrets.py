"""The token of an environment's tracker, which it asks every request for, and the one that the environment's pods have.

The tracker's own token (``CREDENTIALS``) signs that of the pods (``PODS_SECRET``), which track and register and can
do nothing else there. Neither is a part of the pure manifests: the first is random, and made once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from scanflow.app.application import Application
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.environment import tracker
from scanflow.backends.kubernetes.environment.manifests import POD_CREDENTIALS
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.labels import build_labels
from scanflow.backends.kubernetes.random_secret import ensure_random_secret, read_secret
from scanflow.backends.kubernetes.settings import KubernetesSettings
from scanflow.http.home_token import make_step_token, make_token

PODS_VARIABLE: Final = "MLFLOW_TRACKING_TOKEN"


def ensure_tracker_secrets(cluster: Cluster, app: Application, settings: KubernetesSettings) -> Iterator[str]:
    """Create the tokens for the tracker that an environment's pods use, unless they exist; yield what was done.

    Where pods use a tracker that has no token of ours, those of an earlier one are deleted: none is sent to a stranger.
    """
    namespace = settings.derive_namespace(app.name, app.team)
    key = _ensure_key(cluster, app, settings, namespace)
    if key is None:
        for name in (tracker.CREDENTIALS, POD_CREDENTIALS):
            if cluster.get("Secret", name, namespace) is not None and cluster.delete("Secret", name, namespace):
                yield f"Secret {name}: removed"
        return
    token = make_step_token(key, app.name, app.team)
    live = cluster.get("Secret", POD_CREDENTIALS, namespace)
    if _read_token(live) != token:
        cluster.apply(_build_pods_secret(app, namespace, token), force=True)
        yield f"Secret {POD_CREDENTIALS}: {'created' if live is None else 'changed'}"


def read_tracker_token(cluster: Cluster, app: Application, settings: KubernetesSettings) -> str | None:
    """Return the token with which an environment's pods use its tracker; None: they need none of ours."""
    return _read_token(cluster.get("Secret", POD_CREDENTIALS, settings.derive_namespace(app.name, app.team)))


def _ensure_key(cluster: Cluster, app: Application, settings: KubernetesSettings, namespace: str) -> str | None:
    """Return the token of the tracker that pods use; None: it has none of ours."""
    if app.tracker is None or app.tracker.uri is not None:
        return None
    if settings.tracker_uri is not None:
        return None if settings.tracker_token is None else settings.tracker_token.get_secret_value()
    return ensure_random_secret(
        cluster,
        namespace,
        tracker.CREDENTIALS,
        key=tracker.KEY_VARIABLE,
        make=lambda: make_token().encode(),
        app=app.name,
        team=app.team,
    ).decode()


def _build_pods_secret(app: Application, namespace: str, token: str) -> Manifest:
    metadata = {"name": POD_CREDENTIALS, "namespace": namespace, "labels": build_labels(app.name, app.team)}
    data = {PODS_VARIABLE: token}
    return {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "Opaque", "stringData": data}


def _read_token(secret: Manifest | None) -> str | None:
    token = read_secret(secret, PODS_VARIABLE)
    return None if token is None else token.decode()
