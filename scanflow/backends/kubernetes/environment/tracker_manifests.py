"""An environment's own tracker, MLflow: its manifests, which are pure, and the tokens for it.

The tracker asks every request for a token. Its own (``CREDENTIALS``) signs that of the environment's pods
(``POD_CREDENTIALS``), which track and register and can do nothing else there. Neither is a part of the manifests: the
first is random, and made once.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from scanflow.app.application import Application
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kinds import Manifest, build_manifest
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scanflow.backends.kubernetes.object_labels import build_labels
from scanflow.backends.kubernetes.pod_spec import build_container_security, build_pod_security
from scanflow.backends.kubernetes.random_secret import ensure_random_secret, read_secret
from scanflow.errors import UnsupportedError
from scanflow.http.home_token import make_step_token, make_token

NAME: Final = "tracker"
CLAIM: Final = "scanflow-tracker"
CREDENTIALS: Final = "scanflow-tracker"
"""The Secret with the token that the tracker asks for."""

POD_CREDENTIALS: Final = "scanflow-tracker-pods"
"""The Secret with the token that pods need for the environment's tracker, if that has one of ours."""

PODS_VARIABLE: Final = "MLFLOW_TRACKING_TOKEN"
KEY_VARIABLE: Final = "SCANFLOW_TRACKER_TOKEN"
DEFAULT_PORT: Final = 5000
_FILES: Final = "/scanflow/tracker"


def has_own_tracker(app: Application, settings: KubernetesSettings) -> bool:
    """Return whether an application wants a tracker, and neither it nor the settings name an existing one."""
    return settings.tracker_uri is None and app.tracker is not None and app.tracker.uri is None


def resolve_tracker_uri(app: Application, settings: KubernetesSettings) -> str | None:
    """Return the tracking URI of an environment's pods; None: MLflow's default."""
    if app.tracker is not None and app.tracker.secret is not None:
        raise UnsupportedError(
            f"Application {app.name!r}: the backend 'kubernetes' does not support Tracker.uri as the secret "
            f"{app.tracker.secret!r}. Write the address without user and password, and put MLFLOW_TRACKING_USERNAME "
            "and MLFLOW_TRACKING_PASSWORD into the Secret scanflow-env of the namespace."
        )
    if app.tracker is not None and app.tracker.uri is not None:
        return app.tracker.uri
    if has_own_tracker(app, settings):
        return f"http://{NAME}.{settings.derive_namespace(app.name, app.team)}.svc:{_get_port(app)}"
    return settings.tracker_uri


def build_service(app: Application, metadata: Manifest) -> Manifest:
    """Return the Service of the tracker."""
    return build_manifest(
        "Service",
        {"name": NAME, **metadata},
        spec={
            "selector": _build_selector(metadata),
            "ports": [{"name": "http", "port": _get_port(app), "targetPort": DEFAULT_PORT, "protocol": "TCP"}],
        },
    )


def build_deployment(
    app: Application, settings: KubernetesSettings, metadata: Manifest, *, account: str, keeps_files: bool
) -> Manifest:
    """Return the Deployment of the tracker: one pod, since SQLite has one writer, recreated on changes."""
    volumes: list[Manifest] = [{"name": "tmp", "emptyDir": {}}]
    mounts = [{"name": "tmp", "mountPath": "/tmp"}]  # noqa: S108  the container's own
    if keeps_files:
        volumes.append({"name": "files", "persistentVolumeClaim": {"claimName": CLAIM}})
        mounts.append({"name": "files", "mountPath": _FILES})
    probe = {"httpGet": {"path": "/health", "port": "http"}, "periodSeconds": 5, "timeoutSeconds": 5}
    container: dict[str, Any] = {
        "name": NAME,
        "image": settings.tracker_image,
        "command": ["python", "-m", "scanflow_server.mlflow_server"],
        "args": ["--port", str(DEFAULT_PORT), "--environment", f"{app.name}/{app.team}"],
        "env": [
            {"name": "HOME", "value": "/tmp"},  # noqa: S108  the container's own
            {"name": KEY_VARIABLE, "valueFrom": {"secretKeyRef": {"name": CREDENTIALS, "key": KEY_VARIABLE}}},
            *(_FILE_VARIABLES if keeps_files else ()),
        ],
        "ports": [{"name": "http", "containerPort": DEFAULT_PORT, "protocol": "TCP"}],
        "startupProbe": {**probe, "failureThreshold": 60},
        "readinessProbe": probe,
        "livenessProbe": {**probe, "periodSeconds": 20, "failureThreshold": 3},
        "resources": {"requests": {"cpu": "50m", "memory": "256Mi"}, "limits": {"memory": "2Gi"}},
        "securityContext": build_container_security(),
        "volumeMounts": mounts,
    }
    if settings.tracker_secret:
        container["envFrom"] = [{"secretRef": {"name": settings.tracker_secret}}]
    return build_manifest(
        "Deployment",
        {"name": NAME, **metadata},
        spec={
            "replicas": 1,
            "strategy": {"type": "Recreate"},
            "selector": {"matchLabels": _build_selector(metadata)},
            "template": {
                "metadata": {"labels": metadata["labels"]},
                "spec": {
                    "serviceAccountName": account,
                    "automountServiceAccountToken": False,
                    "enableServiceLinks": False,
                    "securityContext": build_pod_security(),
                    "containers": [container],
                    "volumes": volumes,
                },
            },
        },
    )


_FILE_VARIABLES: Final = (
    {"name": "MLFLOW_BACKEND_STORE_URI", "value": f"sqlite:///{_FILES}/mlflow.db"},
    {"name": "MLFLOW_ARTIFACTS_DESTINATION", "value": f"{_FILES}/artifacts"},
)


def _build_selector(metadata: Manifest) -> dict[str, str]:
    component = {name: value for name, value in metadata["labels"].items() if name.endswith("/component")}
    return {"app.kubernetes.io/managed-by": metadata["labels"]["app.kubernetes.io/managed-by"], **component}


def _get_port(app: Application) -> int:
    return (app.tracker.port if app.tracker else None) or DEFAULT_PORT


def ensure_tracker_secrets(cluster: Cluster, app: Application, settings: KubernetesSettings) -> Iterator[str]:
    """Create the tokens for the tracker that an environment's pods use, unless they exist; yield what was done.

    Where pods use a tracker that has no token of ours, those of an earlier one are deleted: none is sent to a stranger.
    """
    namespace = settings.derive_namespace(app.name, app.team)
    key = _ensure_key(cluster, app, settings, namespace)
    if key is None:
        for name in (CREDENTIALS, POD_CREDENTIALS):
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
        CREDENTIALS,
        key=KEY_VARIABLE,
        make=lambda: make_token().encode(),
        app=app.name,
        team=app.team,
    ).decode()


def _build_pods_secret(app: Application, namespace: str, token: str) -> Manifest:
    metadata = {"name": POD_CREDENTIALS, "namespace": namespace, "labels": build_labels(app.name, app.team)}
    data = {PODS_VARIABLE: token}
    return build_manifest("Secret", metadata, type="Opaque", stringData=data)


def _read_token(secret: Manifest | None) -> str | None:
    token = read_secret(secret, PODS_VARIABLE)
    return None if token is None else token.decode()
