"""The pods that serve a revision, whichever engine makes them. Pure.

A pod holds one container with the whole graph: a request takes one hop. What it is told is in a ConfigMap whose name
has a hash of it, so that pods are replaced when it changes, and never serve half of two.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from scanflow.app.quantities import format_cpu, format_memory
from scanflow.backends.kubernetes.environment.manifests import variables_from
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.labels import REVISION, SERVICE, labels_of, namespace_of
from scanflow.backends.kubernetes.online.traffic import GRPC_PORT, HTTP_PORT
from scanflow.backends.kubernetes.placement import instance_placement
from scanflow.backends.kubernetes.security import container_security, pod_security
from scanflow.backends.recorder import LOG_PREDICTIONS
from scanflow.backends.service_records import Shape
from scanflow.backends.service_spec import ServiceSpec
from scanflow.placement.threads import check_overrides, thread_variables
from scanflow.wire import DRAIN_IDLE_S, Desired, InstanceSpec, Recording, Revision, encode

MANAGEMENT_PORT: Final = 8082
CONTAINER: Final = "instance"
RECORDER: Final = "recorder"
"""The container beside the instance, where predictions are recorded: it takes them to the tracker."""

APP_DIR: Final = "/app"
TEMPLATE: Final = "scanflow.dev/template"
"""An annotation of pods: the hash of all that they were made from. Those of another are replaced."""

LINGER_S: Final = 5.0
"""How long an instance takes connections on after it was told to end; proxies have heard of its end by then."""

_CONFIG: Final = "/scanflow/service"
_AUTH: Final = "/scanflow/auth"
_RECORDED: Final = "/scanflow/recorded"
_FILES: Final = f"{_RECORDED}/files"
_RECORDED_SIZE: Final = "320Mi"
"""Somewhat more than :class:`~scanflow.wire.Recording` lets wait: whoever has more than this is evicted."""

_TMP: Final = "/tmp"  # noqa: S108 - a volume of the pod's own
_SLACK_S: Final = 10
_START_S: Final = 600
_LAST_S: Final = 20
"""For the predictions that wait when an instance has ended."""

TRACKER: Final = "MLFLOW_TRACKING_URI"


class MountedCode(NamedTuple):
    """How an application's files come into its pods, where they are in no image of their own."""

    volumes: Sequence[Manifest] = ()
    mounts: Sequence[Manifest] = ()


class Given(NamedTuple):
    """What all pods of a service have, beside what its definition says."""

    image: str
    """Where the definition names none."""

    code: MountedCode = MountedCode()
    env: Mapping[str, str] = {}
    service_account: str | None = None
    pull_secret: str | None = None
    token_secret: str | None = None
    """The Secret with the ``token`` that requests must carry."""


def object_name(service: str, revision: str) -> str:
    """Return the name of a revision's objects: ``serving-r3``."""
    return f"{service}-{revision}"


def revision_labels(definition: ServiceSpec, revision: Revision) -> dict[str, str]:
    return labels_of(definition.app, definition.team, service=definition.workflow, revision=revision.id)


def selected(definition: ServiceSpec, revision: Revision | None = None) -> dict[str, str]:
    """Return the labels that select the pods of a service, or of one revision."""
    found = {SERVICE: definition.workflow}
    return found if revision is None else {**found, REVISION: revision.id}


def config_map(definition: ServiceSpec, revision: Revision, given: Given) -> Manifest:
    """Return what an instance of a revision is told."""
    data = {
        "instance.json": encode(_instance(definition, given)).decode(),
        "desired.json": encode(Desired(generation=definition.serves, revisions=(_alone(revision),))).decode(),
    }
    digest = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:10]
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": f"{object_name(definition.workflow, revision.id)}-{digest}",
            "namespace": namespace_of(definition.app, definition.team),
            "labels": revision_labels(definition, revision),
        },
        "immutable": True,
        "data": data,
    }


def pod_template(definition: ServiceSpec, revision: Revision, given: Given, *, container: str = CONTAINER) -> Manifest:
    """Return ``metadata`` and ``spec`` of a revision's pods; ``container`` is what an engine wants the name to be."""
    labels = revision_labels(definition, revision)
    config = config_map(definition, revision, given)["metadata"]["name"]
    serving = definition.serving
    grpc = [{"name": "grpc", "containerPort": GRPC_PORT, "protocol": "TCP"}] if serving.grpc_port != 0 else []
    volumes = [{"name": "service", "configMap": {"name": config}}, {"name": "tmp", "emptyDir": {}}, *given.code.volumes]
    mounts = [
        {"name": "service", "mountPath": _CONFIG, "readOnly": True},
        {"name": "tmp", "mountPath": _TMP},
        *given.code.mounts,
    ]
    recorder: list[Manifest] = []
    if serving.record > 0:
        volumes.append({"name": "recorded", "emptyDir": {"sizeLimit": _RECORDED_SIZE}})
        mounts.append({"name": "recorded", "mountPath": _RECORDED})
        recorder.append(_recorder(definition, given))
    if given.token_secret is not None:
        volumes.append({"name": "auth", "secret": {"secretName": given.token_secret, "defaultMode": 0o440}})
        mounts.append({"name": "auth", "mountPath": _AUTH, "readOnly": True})
    spec: Manifest = {
        **({"serviceAccountName": given.service_account} if given.service_account else {}),
        **({"imagePullSecrets": [{"name": given.pull_secret}]} if given.pull_secret else {}),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": int(LINGER_S + max(definition.limits.deadline_s, DRAIN_IDLE_S))
        + _SLACK_S
        + (_LAST_S if recorder else 0),
        "securityContext": pod_security(),
        "containers": [
            {
                "name": container,
                "image": definition.image or given.image,
                "command": ["python", "-m", "scanflow_serving.pod", _CONFIG],
                "workingDir": APP_DIR,
                "envFrom": variables_from(),
                "env": _environment(definition, given),
                "ports": [
                    {"name": "http", "containerPort": HTTP_PORT, "protocol": "TCP"},
                    *grpc,
                    {"name": "management", "containerPort": MANAGEMENT_PORT, "protocol": "TCP"},
                ],
                "resources": resources(definition.shape),
                "startupProbe": _probe("/v2/health/ready", HTTP_PORT, every_s=1, failures=_START_S),
                "readinessProbe": _probe("/v2/health/ready", HTTP_PORT, every_s=2, failures=2),
                "livenessProbe": _probe("/v2/health/live", MANAGEMENT_PORT, every_s=10, failures=6),
                "securityContext": container_security(),
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "volumeMounts": mounts,
            },
            *recorder,
        ],
        "volumes": volumes,
        **_placement(definition, revision),
    }
    metadata: Manifest = {"labels": labels, "annotations": _scraped()}
    digest = hashlib.sha256(json.dumps([metadata, spec], sort_keys=True).encode()).hexdigest()[:10]
    metadata["annotations"][TEMPLATE] = digest
    return {"metadata": metadata, "spec": spec}


def _recorder(definition: ServiceSpec, given: Given) -> Manifest:
    """Return the container that takes recorded predictions to the tracker: MLflow's client, which needs more memory
    than an instance, and none of its cores. It ends after the instance."""
    words = {
        "home": f"{_TMP}/scanflow",
        "tracker_uri": given.env.get(TRACKER),
        "app": definition.app,
        "team": definition.team,
        "service": definition.workflow,
    }
    asked = {"cpu": "20m", "memory": "192Mi"}
    alone = {"cpu": "100m", "memory": "512Mi"}  # limits are requests, or the instance got no cores of its own
    return {
        "name": RECORDER,
        "image": definition.image or given.image,
        "command": ["python", "-m", "scanflow.backends.recorder", "--beside", _FILES, LOG_PREDICTIONS],
        "args": [json.dumps(words, sort_keys=True)],
        "envFrom": variables_from(),
        "env": _environment(definition, given),
        "resources": {"requests": asked, "limits": {"memory": "512Mi"}}
        if definition.shape.affinity == "any"
        else {"requests": alone, "limits": dict(alone)},
        "securityContext": container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": "tmp", "mountPath": _TMP}, {"name": "recorded", "mountPath": _RECORDED}],
    }


def template_hash(template: Manifest) -> str:
    found: str = template["metadata"]["annotations"][TEMPLATE]
    return found


def resources(shape: Shape) -> Manifest:
    """Return requests and limits. Cores of its own are given to pods only whose requests are their limits, in cores
    and memory, and whose cores are whole (Guaranteed)."""
    wanted: dict[str, str] = {}
    if shape.cores is not None:
        wanted["cpu"] = format_cpu(shape.cores)
    if shape.memory_bytes is not None:
        wanted["memory"] = format_memory(shape.memory_bytes)
    return {"requests": wanted, "limits": dict(wanted)} if wanted else {}


def threads_of(shape: Shape, env: Mapping[str, str]) -> dict[str, str]:
    """Return the thread variables of an instance. One that is granted no cores has a thread in each pool.

    Raises:
        InvalidError: a variable of the workflow's own is beyond the cores.
    """
    cores = shape.cores or 1.0
    check_overrides(env, max(cores, shape.pool_threads or 0))
    return thread_variables(shape.pool_threads or cores, env)


def _instance(definition: ServiceSpec, given: Given) -> InstanceSpec:
    shape, port = definition.shape, definition.serving.grpc_port
    return InstanceSpec(
        service=definition.workflow,
        app=definition.app,
        team=definition.team,
        instance="",
        folder=f"{_TMP}/scanflow",
        desired="",
        address=f"{definition.workflow}.{namespace_of(definition.app, definition.team)}:{HTTP_PORT}",
        http_port=HTTP_PORT,
        management_port=MANAGEMENT_PORT,
        grpc_port=None if port == 0 else GRPC_PORT,
        host="0.0.0.0",  # noqa: S104 - of the pod: who may connect is the cluster's matter
        app_dir=APP_DIR,
        auth=f"file:{_AUTH}/token" if given.token_secret else "",
        pin_threads=shape.affinity == "cpumempin",
        threads=shape.threads,
        cores=shape.cores or 1.0,
        limits=definition.limits,
        recording=Recording(folder=_FILES, fraction=definition.serving.record) if definition.serving.record else None,
        linger_s=LINGER_S,
        aliases=definition.aliases,
    )


def _alone(revision: Revision) -> Revision:
    """Return a revision as its own pods serve it: how much of the traffic they get is decided before them."""
    return Revision(id=revision.id, nodes=revision.nodes)


def _environment(definition: ServiceSpec, given: Given) -> list[Manifest]:
    plain = {**given.env, **dict(definition.serving.env)}
    found: list[Manifest] = [{"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]
    return found + [{"name": name, "value": value} for name, value in sorted(plain.items())]


def _placement(definition: ServiceSpec, revision: Revision) -> Manifest:
    spread = instance_placement((), selected(definition, revision))
    return {**({"nodeSelector": dict(definition.place)} if definition.place else {}), **spread}


def _probe(path: str, port: int, *, every_s: int, failures: int) -> Manifest:
    get: dict[str, Any] = {"path": path, "port": port, "httpHeaders": [{"name": "Host", "value": "localhost"}]}
    return {"httpGet": get, "periodSeconds": every_s, "failureThreshold": failures, "timeoutSeconds": 5}


def _scraped() -> dict[str, str]:
    return {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(MANAGEMENT_PORT),
        "prometheus.io/path": "/metrics",
    }
