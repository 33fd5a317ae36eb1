"""Build the pods that serve a revision, whichever engine creates them. Pure.

A pod has one container with the whole graph: a request takes one hop. Its configuration is in a ConfigMap whose name
has a hash of the content, so that a change replaces pods and none serves a mixture of two configurations.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from scanflow.app.parameters import select_secrets, select_texts
from scanflow.app.quantities import format_cpu, format_memory
from scanflow.app.secrets import list_secret_sources
from scanflow.backends.kubernetes.environment.manifests import build_env_from
from scanflow.backends.kubernetes.gpu_claims import build_claim_templates
from scanflow.backends.kubernetes.gpus import (
    DevicePlugin,
    GpuRequest,
    add_gpu_placement,
    build_gpu_request,
    build_gpu_variables,
)
from scanflow.backends.kubernetes.kinds import Manifest, build_manifest, drop_empty
from scanflow.backends.kubernetes.object_labels import REVISION, SERVICE, build_labels
from scanflow.backends.kubernetes.online.closed_routes import TLS_FOLDER, format_tls_secret_name
from scanflow.backends.kubernetes.online.traffic import GRPC_PORT, HTTP_PORT
from scanflow.backends.kubernetes.placement import build_instance_placement
from scanflow.backends.kubernetes.pod_spec import build_container_security, build_pod_security, build_secret_variables
from scanflow.backends.recorder import LOG_PREDICTIONS
from scanflow.backends.service_records import Shape
from scanflow.backends.service_spec import ServiceSpec, list_clients
from scanflow.backends.shapes import build_gpu_resources
from scanflow.instance_messages import DRAIN_IDLE_S, DesiredInstanceState, InstanceSpec, Recording, Revision, encode
from scanflow.placement.threads import build_thread_variables, check_overrides

MANAGEMENT_PORT: Final = 8082
CONTAINER: Final = "instance"
RECORDER: Final = "recorder"
"""The sidecar container that logs recorded predictions to the tracker."""

APP_DIR: Final = "/app"
TEMPLATE: Final = "scanflow.dev/template"
"""An annotation of pods: the hash of their template. Pods with another hash are replaced."""

LINGER_S: Final = 5.0
"""How long an instance accepts connections after SIGTERM, until proxies have removed its endpoint."""

_CONFIG: Final = "/scanflow/service"
_AUTH: Final = "/scanflow/auth"
_RECORDED_FOLDER: Final = "/scanflow/recorded"
_FILES: Final = f"{_RECORDED_FOLDER}/files"
_RECORDED_SIZE: Final = "320Mi"
"""Slightly more than :class:`~scanflow.instance_messages.Recording` buffers: a pod that exceeds it is evicted."""

_TMP: Final = "/tmp"  # noqa: S108 - a volume of the pod's own
_SLACK_S: Final = 10
_START_S: Final = 600
_FLUSH_S: Final = 20
"""The time to log the predictions that are still buffered when an instance has ended."""

TRACKER: Final = "MLFLOW_TRACKING_URI"
NAMESPACE: Final = "namespace"
"""The key in a service's details of the namespace that it is in, which is that of its ConfigMap."""


class MountedCode(NamedTuple):
    """The volumes and mounts of an application's files, if its image does not contain them."""

    volumes: Sequence[Manifest] = ()
    mounts: Sequence[Manifest] = ()


class PodOptions(NamedTuple):
    """The options of all pods of a service that are not part of its spec."""

    image: str
    """Used if the spec names none."""

    code: MountedCode = MountedCode()
    env: Mapping[str, str] = {}
    service_account: str | None = None
    pull_secret: str | None = None
    token_secret: str | None = None
    """The Secret with the ``token`` that requests must carry."""

    device_plugin: DevicePlugin = DevicePlugin()


def build_pod_options(definition: ServiceSpec) -> PodOptions:
    """Return the options of all pods of a service, as recorded when it was deployed."""
    details: Mapping[str, Any] = definition.details
    return PodOptions(
        image=definition.image or "",
        code=MountedCode(details.get("volumes") or (), details.get("mounts") or ()),
        env=details.get("env") or {},
        service_account=details.get("service_account"),
        pull_secret=details.get("pull_secret"),
        token_secret=details.get("token_secret"),
        device_plugin=DevicePlugin(**details.get("device_plugin") or {}),
    )


def format_object_name(service: str, revision: str) -> str:
    """Return the name of a revision's objects: ``serving-r3``."""
    return f"{service}-{revision}"


def get_namespace(definition: ServiceSpec) -> str:
    """Return the namespace that a service is in."""
    return str(definition.details[NAMESPACE])


def build_revision_labels(definition: ServiceSpec, revision: Revision) -> dict[str, str]:
    return build_labels(definition.app, definition.team, service=definition.workflow, revision=revision.id)


def build_pod_selector(definition: ServiceSpec, revision: Revision | None = None) -> dict[str, str]:
    """Return the labels that select the pods of a service, or of one revision."""
    labels = {SERVICE: definition.workflow}
    return labels if revision is None else {**labels, REVISION: revision.id}


def build_config_map(definition: ServiceSpec, revision: Revision, options: PodOptions) -> Manifest:
    """Return the ConfigMap with the configuration of a revision's instances."""
    data = {
        "instance.json": encode(_build_instance_spec(definition, options)).decode(),
        "desired.json": encode(
            DesiredInstanceState(generation=definition.serves, revisions=(_drop_traffic_share(revision),))
        ).decode(),
    }
    digest = hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()[:10]
    return build_manifest(
        "ConfigMap",
        {
            "name": f"{format_object_name(definition.workflow, revision.id)}-{digest}",
            "namespace": get_namespace(definition),
            "labels": build_revision_labels(definition, revision),
        },
        immutable=True,
        data=data,
    )


def build_pod_template(
    definition: ServiceSpec, revision: Revision, options: PodOptions, *, container: str = CONTAINER
) -> Manifest:
    """Return ``metadata`` and ``spec`` of a revision's pods; ``container`` is the name that the engine requires."""
    labels = build_revision_labels(definition, revision)
    config = build_config_map(definition, revision, options)["metadata"]["name"]
    serving = definition.serving
    sources = [
        *select_secrets(serving.env).values(),
        *list_secret_sources([node.parameters for node in revision.nodes]),
    ]
    gpus = build_gpu_request(build_gpu_resources(definition.shape), options.device_plugin)
    grpc = [{"name": "grpc", "containerPort": GRPC_PORT, "protocol": "TCP"}] if serving.grpc_port != 0 else []
    volumes = [
        {"name": "service", "configMap": {"name": config}},
        {"name": "tmp", "emptyDir": {}},
        *options.code.volumes,
    ]
    mounts = [
        {"name": "service", "mountPath": _CONFIG, "readOnly": True},
        {"name": "tmp", "mountPath": _TMP},
        *options.code.mounts,
    ]
    recorder: list[Manifest] = []
    if serving.record > 0:
        volumes.append({"name": "recorded", "emptyDir": {"sizeLimit": _RECORDED_SIZE}})
        mounts.append({"name": "recorded", "mountPath": _RECORDED_FOLDER})
        recorder.append(_build_recorder(definition, options))
    if definition.tls is not None:
        secret = {"secretName": format_tls_secret_name(definition.workflow), "defaultMode": 0o440}
        volumes.append({"name": "tls", "secret": secret})
        mounts.append({"name": "tls", "mountPath": TLS_FOLDER, "readOnly": True})
    scheme = None if definition.tls is None else "HTTPS"
    if options.token_secret is not None:
        volumes.append({"name": "auth", "secret": {"secretName": options.token_secret, "defaultMode": 0o440}})
        mounts.append({"name": "auth", "mountPath": _AUTH, "readOnly": True})
    spec: Manifest = {
        **({"serviceAccountName": options.service_account} if options.service_account else {}),
        **({"imagePullSecrets": [{"name": options.pull_secret}]} if options.pull_secret else {}),
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": int(LINGER_S + max(definition.limits.deadline_s, DRAIN_IDLE_S))
        + _SLACK_S
        + (_FLUSH_S if recorder else 0),
        "securityContext": build_pod_security(),
        "containers": [
            {
                "name": container,
                "image": definition.image or options.image,
                "command": ["python", "-m", "scanflow_serving.pod", _CONFIG],
                "workingDir": APP_DIR,
                "envFrom": build_env_from(),
                "env": [
                    *_build_environment(definition, options),
                    *build_gpu_variables(gpus),
                    *build_secret_variables(sources),
                ],
                "ports": [
                    {"name": "http", "containerPort": HTTP_PORT, "protocol": "TCP"},
                    *grpc,
                    {"name": "management", "containerPort": MANAGEMENT_PORT, "protocol": "TCP"},
                ],
                "resources": build_resources(definition.shape, gpus),
                "startupProbe": _build_probe(
                    "/v2/health/ready", HTTP_PORT, every_s=1, failures=_START_S, scheme=scheme
                ),
                "readinessProbe": _build_probe("/v2/health/ready", HTTP_PORT, every_s=2, failures=2, scheme=scheme),
                "livenessProbe": _build_probe("/v2/health/live", MANAGEMENT_PORT, every_s=10, failures=6),
                "securityContext": build_container_security(),
                "terminationMessagePolicy": "FallbackToLogsOnError",
                "volumeMounts": mounts,
            },
            *recorder,
        ],
        "volumes": volumes,
        **add_gpu_placement(_build_placement(definition, revision), gpus),
    }
    metadata: Manifest = {"labels": labels, "annotations": _build_scrape_annotations()}
    digest = hashlib.sha256(json.dumps([metadata, spec], sort_keys=True).encode()).hexdigest()[:10]
    metadata["annotations"][TEMPLATE] = digest
    return {"metadata": metadata, "spec": spec}


def build_instance_claims(definition: ServiceSpec) -> list[Manifest]:
    """Return the template of what instances claim, if they claim GPUs."""
    asking, plugin = build_gpu_resources(definition.shape), build_pod_options(definition).device_plugin
    namespace = get_namespace(definition)
    return build_claim_templates([asking], plugin, app=definition.app, team=definition.team, namespace=namespace)


def _build_recorder(definition: ServiceSpec, options: PodOptions) -> Manifest:
    """Return the sidecar container that logs recorded predictions to the tracker with MLflow's client.

    It needs more memory than an instance, uses none of its cores, and ends after it.
    """
    arguments = {
        "home": f"{_TMP}/scanflow",
        "tracker_uri": options.env.get(TRACKER),
        "app": definition.app,
        "team": definition.team,
        "service": definition.workflow,
    }
    shared = {"cpu": "20m", "memory": "192Mi"}
    dedicated = {
        "cpu": "100m",
        "memory": "512Mi",
    }  # limits equal requests (Guaranteed), or the instance got no exclusive cores
    return {
        "name": RECORDER,
        "image": definition.image or options.image,
        "command": ["python", "-m", "scanflow.backends.recorder", "--beside", _FILES, LOG_PREDICTIONS],
        "args": [json.dumps(arguments, sort_keys=True)],
        "envFrom": build_env_from(),
        "env": _build_environment(definition, options) + _name_secrets(select_secrets(definition.serving.env)),
        "resources": {"requests": shared, "limits": {"memory": "512Mi"}}
        if definition.shape.affinity == "any"
        else {"requests": dedicated, "limits": dict(dedicated)},
        "securityContext": build_container_security(),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "volumeMounts": [{"name": "tmp", "mountPath": _TMP}, {"name": "recorded", "mountPath": _RECORDED_FOLDER}],
    }


def get_template_hash(template: Manifest) -> str:
    digest: str = template["metadata"]["annotations"][TEMPLATE]
    return digest


def build_resources(shape: Shape, gpus: GpuRequest | None = None) -> Manifest:
    """Return requests and limits.

    Kubelets grant exclusive cores only to Guaranteed pods, whose requests equal their limits, and only whole cores.
    """
    quantities: dict[str, str] = {}
    if shape.cores is not None:
        quantities["cpu"] = format_cpu(shape.cores)
    if shape.memory_bytes is not None:
        quantities["memory"] = format_memory(shape.memory_bytes)
    quantities |= gpus.limits if gpus else {}
    claims = gpus.claims if gpus else []
    return drop_empty(requests=quantities, limits=dict(quantities), claims=claims)


def compute_threads(shape: Shape, env: Mapping[str, str]) -> dict[str, str]:
    """Return the thread variables of an instance; without requested cores, one thread in each pool.

    Raises:
        InvalidError: a variable that the workflow sets exceeds the cores.
    """
    cores = shape.cores or 1.0
    check_overrides(env, max(cores, shape.pool_threads or 0))
    return build_thread_variables(shape.pool_threads or cores, env)


def _build_instance_spec(definition: ServiceSpec, options: PodOptions) -> InstanceSpec:
    shape, port = definition.shape, definition.serving.grpc_port
    return InstanceSpec(
        service=definition.workflow,
        app=definition.app,
        team=definition.team,
        instance="",
        folder=f"{_TMP}/scanflow",
        desired="",
        address=f"{definition.workflow}.{get_namespace(definition)}:{HTTP_PORT}",
        http_port=HTTP_PORT,
        management_port=MANAGEMENT_PORT,
        grpc_port=None if port == 0 else GRPC_PORT,
        host="0.0.0.0",  # noqa: S104 - of the pod: network policies control access
        app_dir=APP_DIR,
        auth=f"file:{_AUTH}/token" if options.token_secret else "",
        pin_threads=shape.affinity == "cpumempin",
        threads=shape.threads,
        cores=shape.cores or 1.0,
        limits=definition.limits,
        recording=Recording(folder=_FILES, fraction=definition.serving.record) if definition.serving.record else None,
        secrets=select_secrets(definition.serving.env),
        linger_s=LINGER_S,
        aliases=definition.aliases,
        tls=definition.tls,
        clients=list_clients(definition.serving),
    )


def _drop_traffic_share(revision: Revision) -> Revision:
    """Return a revision without its weight: traffic is split before it reaches the pods."""
    return Revision(id=revision.id, nodes=revision.nodes)


def _build_environment(definition: ServiceSpec, options: PodOptions) -> list[Manifest]:
    plain = {**options.env, **select_texts(definition.serving.env)}
    variables: list[Manifest] = [{"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}]
    return variables + [{"name": name, "value": value} for name, value in sorted(plain.items())]


def _name_secrets(references: Mapping[str, str]) -> list[Manifest]:
    """Return variables with the secrets themselves, for a program of ours that prints none of them."""
    return [
        {**variable, "name": name}
        for name, source in sorted(references.items())
        for variable in build_secret_variables([source])
    ]


def _build_placement(definition: ServiceSpec, revision: Revision) -> Manifest:
    spread = build_instance_placement((), build_pod_selector(definition, revision))
    return {**({"nodeSelector": dict(definition.place)} if definition.place else {}), **spread}


def _build_probe(path: str, port: int, *, every_s: int, failures: int, scheme: str | None = None) -> Manifest:
    get: dict[str, Any] = {"path": path, "port": port, "httpHeaders": [{"name": "Host", "value": "localhost"}]}
    get |= drop_empty(scheme=scheme)
    return {"httpGet": get, "periodSeconds": every_s, "failureThreshold": failures, "timeoutSeconds": 5}


def _build_scrape_annotations() -> dict[str, str]:
    return {
        "prometheus.io/scrape": "true",
        "prometheus.io/port": str(MANAGEMENT_PORT),
        "prometheus.io/path": "/metrics",
    }
