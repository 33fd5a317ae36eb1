"""Build the pods of a run: one unprivileged container with a read-only root file system. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, Final

from hera.workflows import models as argo

from scanflow.app.application import Application
from scanflow.app.executor import Executor
from scanflow.app.quantities import format_cpu
from scanflow.app.resources import Affinity
from scanflow.backends.kubernetes.batch import pod_layout
from scanflow.backends.kubernetes.batch.pod_settings import SMALL, PodSettings
from scanflow.backends.kubernetes.batch.storage_volumes import (
    build_outputs_volume,
    build_store_mounts,
    build_store_variables,
    build_store_volumes,
)
from scanflow.backends.kubernetes.environment.manifests import build_env_from
from scanflow.backends.kubernetes.gpus import add_gpu_placement, build_gpu_request, build_gpu_variables
from scanflow.backends.kubernetes.kinds import drop_empty
from scanflow.backends.kubernetes.placement import build_step_placement
from scanflow.backends.kubernetes.pod_spec import (
    build_container_security,
    build_helper_security,
    build_pod_security,
    build_secret_variables,
)

PROGRAM: Final = ("python", "-m", "scanflow.backends.kubernetes.batch.pod_step")
MOUNTS: Final[tuple[Mapping[str, Any], ...]] = (
    {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108  the pod's own
    {"name": "outputs", "mountPath": str(pod_layout.OUTPUTS)},
    {"name": "run", "mountPath": str(pod_layout.RUN_FILES), "readOnly": True},
    {"name": "keys", "mountPath": str(pod_layout.KEYS), "readOnly": True},
)
_HELPER_RESOURCES: Final = {"requests": {"cpu": "100m", "memory": "64Mi"}, "limits": {"cpu": "100m", "memory": "64Mi"}}
_GUARANTEED: Final = {
    "containers": [{"name": "wait", "resources": _HELPER_RESOURCES}],
    "initContainers": [{"name": "init", "resources": _HELPER_RESOURCES}],
}
"""Argo's own containers with limits: only a pod whose containers all have them gets cores of its own."""

_RESTRICTED: Final = json.dumps(
    {
        "containers": [{"name": "wait", "securityContext": build_helper_security()}],
        "initContainers": [{"name": "init", "securityContext": build_helper_security()}],
    }
)
"""Argo's own containers as the Pod Security Standard ``restricted`` has them, which it enforces for whole pods."""


def build_spec(pod_settings: PodSettings, run: str, templates: list[argo.Template]) -> argo.WorkflowSpec:
    return argo.WorkflowSpec(
        entrypoint="run",
        service_account_name=pod_settings.service_account,
        security_context=argo.PodSecurityContext.model_validate(build_pod_security()),
        image_pull_secrets=[argo.LocalObjectReference(name=pod_settings.pull_secret)]
        if pod_settings.pull_secret
        else None,
        pod_spec_patch=_RESTRICTED,
        pod_gc=argo.PodGC(strategy="OnPodCompletion", delete_delay_duration="10m"),
        ttl_strategy=argo.TTLStrategy(seconds_after_completion=pod_settings.keep_s),
        template_defaults=argo.Template(
            container=argo.Container(
                image=pod_settings.image,
                command=list(PROGRAM),
                working_dir=str(pod_layout.APP),
                env=_build_variables({"HOME": "/tmp", **build_store_variables(pod_settings.store)}),  # noqa: S108  its own
                env_from=[argo.EnvFromSource.model_validate(source) for source in build_env_from()],
                security_context=argo.SecurityContext.model_validate(build_container_security()),
                volume_mounts=[
                    argo.VolumeMount.model_validate(mount)
                    for mount in (*MOUNTS, *build_store_mounts(pod_settings.store_secret))
                ],
            )
        ),
        volumes=[argo.Volume.model_validate(volume) for volume in build_volumes(pod_settings, run)],
        templates=templates,
    )


def build_volumes(pod_settings: PodSettings, run: str) -> list[Mapping[str, Any]]:
    """Return the volumes of a run's pods."""
    return [
        {"name": "tmp", "emptyDir": {}},
        build_outputs_volume(pod_settings.claim, pod_settings.store),
        {"name": "run", "configMap": {"name": pod_layout.format_config_map_name(run)}},
        {"name": "keys", "secret": {"secretName": pod_layout.KEY_SECRET, "defaultMode": 0o440}},
        *build_store_volumes(pod_settings.store_secret),
        *pod_settings.volumes,
    ]


def build_step_template(
    pod_settings: PodSettings, app: Application, node: Executor, arguments: list[str], *, run: str
) -> argo.Template:
    """Return a step's template: its container, resources and placement."""
    resources = node.resources
    amounts: dict[str, Any] = {}
    if resources.cores is not None:
        amounts["cpu"] = format_cpu(resources.cores)
    if resources.memory_bytes is not None:
        amounts["memory"] = str(resources.memory)
    gpus = build_gpu_request(resources, pod_settings.device_plugin)
    limits = amounts | (gpus.limits if gpus else {})
    wanted = drop_empty(requests=limits, limits=limits, claims=gpus.claims if gpus else [])
    requirements = argo.ResourceRequirements.model_validate(wanted) if wanted else None
    image = pod_settings.select_image(node.name)
    extra = [argo.VolumeMount.model_validate(mount) for mount in image.mounts]
    secrets = build_secret_variables(secret.source for secret in node.secrets)
    variables = [argo.EnvVar.model_validate(variable) for variable in (*build_gpu_variables(gpus), *secrets)]
    container = argo.Container(
        image=image.image,
        args=arguments,
        resources=requirements,
        volume_mounts=extra or None,
        env=variables,  # beside those of the defaults
    )
    template = argo.Template(container=container)
    placement = add_gpu_placement(build_step_placement(node.affinity, app=app.name, team=app.team, run=run), gpus)
    template.node_selector = placement.get("nodeSelector")
    template.tolerations = [
        argo.Toleration.model_validate(toleration) for toleration in placement.get("tolerations", [])
    ] or None
    template.affinity = argo.Affinity.model_validate(placement["affinity"]) if "affinity" in placement else None
    patch = _GUARANTEED if isinstance(node.affinity, Affinity) and node.affinity.mode != "any" else {}
    patch = {**patch, **drop_empty(resourceClaims=placement.get("resourceClaims", []))}
    template.pod_spec_patch = json.dumps(patch) if patch else None
    return template


def build_small_template(pod_settings: PodSettings, arguments: list[str]) -> argo.Template:
    requirements = argo.ResourceRequirements.model_validate({"requests": SMALL})
    return argo.Template(container=argo.Container(image=pod_settings.image, args=arguments, resources=requirements))


def _build_variables(variables: Mapping[str, str]) -> list[argo.EnvVar]:
    return [argo.EnvVar(name=name, value=value) for name, value in variables.items()]
