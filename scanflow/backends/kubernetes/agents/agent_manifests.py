"""Build the objects of a hosted agent. Pure."""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from typing import Any, Final

from scanflow.app.agent import Agent
from scanflow.app.application import Application
from scanflow.app.secrets import iterate_secrets
from scanflow.backends.agent_hosting import HostedAgent
from scanflow.backends.kubernetes.code_configmap import APP_DIR, CodeConfigMap
from scanflow.backends.kubernetes.environment.manifests import PODS, build_env_from
from scanflow.backends.kubernetes.kinds import Manifest, build_manifest
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scanflow.backends.kubernetes.object_labels import AGENT, append_hash, build_labels
from scanflow.backends.kubernetes.pod_spec import build_container_security, build_pod_security, build_secret_variables
from scanflow.names import MAX_NAME

PORT: Final = 8080
VERSION: Final = "scanflow.dev/agent-version"
"""An annotation of the Deployment and its pods: the version of the agent when it was started."""

CODE: Final = "scanflow.dev/agent-code"
FOLDER: Final = "/scanflow/agent"
"""The folder of the agent's state, on its claim."""

_GRACE_S: Final = 15
_STATE_SIZE: Final = "1Gi"


def format_object_name(agent: str) -> str:
    """Return the name of an agent's objects."""
    plain = f"agent-{agent}"
    return plain if len(plain) <= MAX_NAME else append_hash(plain, agent)


def format_address(namespace: str, agent: str) -> str:
    """Return the URL of an agent for other pods."""
    return f"http://{format_object_name(agent)}.{namespace}.svc:{PORT}"


def build_objects(
    agent: HostedAgent, definition: Agent, settings: KubernetesSettings, code: CodeConfigMap | None = None
) -> list[Manifest]:
    """Return the objects of an agent, in the order of creation.

    Args:
        agent: The agent to host.
        definition: The same agent, as its application defines it.
        settings: The cluster's.
        code: The agent's files. None: it has none, or its image contains them.
    """
    secrets = {
        "token": "" if agent.token is None else agent.token.get_secret_value(),
        "peer_token": "" if agent.peer_token is None else agent.peer_token.get_secret_value(),
        **({} if agent.ca is None else {"ca.crt": agent.ca}),
    }
    metadata = _build_metadata(agent, settings)
    return [
        build_manifest("Secret", metadata, type="Opaque", stringData=secrets),
        build_manifest("ConfigMap", metadata, data={"agent.json": json.dumps(build_spec(agent, settings))}),
        _build_claim(metadata, settings),
        _build_service(agent, metadata),
        _build_deployment(agent, metadata, definition, settings, code),
    ]


def build_spec(agent: HostedAgent, settings: KubernetesSettings) -> dict[str, Any]:
    """Return the configuration of the agent's host program, without the tokens."""
    source = None if agent.source is None else str(PurePosixPath(APP_DIR) / PurePosixPath(agent.source).name)
    return {
        "application": {**agent.document, "app_dir": "."},
        "source": source,
        "agent": agent.name,
        "server": agent.server,
        "home": f"{FOLDER}/home",
        "tracker_uri": agent.tracker,
        "host": "0.0.0.0",  # noqa: S104  of the pod; every request needs the token
        "port": PORT,
        "url": format_address(settings.derive_namespace(agent.app, agent.team), agent.name),
    }


def get_agent(app: Application, name: str) -> Agent:
    return next(agent for agent in app.agents if agent.name == name)


def _build_metadata(agent: HostedAgent, settings: KubernetesSettings) -> Manifest:
    return {
        "name": format_object_name(agent.name),
        "namespace": settings.derive_namespace(agent.app, agent.team),
        "labels": build_labels(agent.app, agent.team, agent=agent.name),
    }


def _build_claim(metadata: Manifest, settings: KubernetesSettings) -> Manifest:
    storage_class = {} if settings.storage_class is None else {"storageClassName": settings.storage_class}
    resources = {"requests": {"storage": _STATE_SIZE}}
    spec = {"accessModes": ["ReadWriteOnce"], "resources": resources, **storage_class}
    return build_manifest("PersistentVolumeClaim", metadata, spec=spec)


def _build_service(agent: HostedAgent, metadata: Manifest) -> Manifest:
    ports = [{"name": "http", "port": PORT, "targetPort": "http", "protocol": "TCP"}]
    return build_manifest(
        "Service", metadata, spec={"type": "ClusterIP", "selector": _build_selector(agent), "ports": ports}
    )


def _build_selector(agent: HostedAgent) -> dict[str, str]:
    labels = build_labels(agent.app, agent.team, agent=agent.name)
    return {"app.kubernetes.io/managed-by": labels["app.kubernetes.io/managed-by"], AGENT: labels[AGENT]}


def _build_deployment(
    agent: HostedAgent, metadata: Manifest, definition: Agent, settings: KubernetesSettings, code: CodeConfigMap | None
) -> Manifest:
    annotations = {VERSION: agent.version, CODE: agent.code}
    pod = {
        "serviceAccountName": PODS,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": _GRACE_S,
        "securityContext": {**build_pod_security(), "fsGroupChangePolicy": "OnRootMismatch"},
        "containers": [_build_container(agent, definition, settings, code)],
        "volumes": [
            {"name": "state", "persistentVolumeClaim": {"claimName": format_object_name(agent.name)}},
            {"name": "spec", "configMap": {"name": format_object_name(agent.name)}},
            {"name": "secret", "secret": {"secretName": format_object_name(agent.name), "defaultMode": 0o440}},
            {"name": "tmp", "emptyDir": {}},
            *([] if code is None else [code.volume]),
        ],
    }
    return build_manifest(
        "Deployment",
        {**metadata, "annotations": annotations},
        spec={
            "replicas": 1,
            "revisionHistoryLimit": 2,
            "strategy": {"type": "Recreate"},  # its journal has one writer
            "selector": {"matchLabels": _build_selector(agent)},
            "template": {"metadata": {"labels": dict(metadata["labels"]), "annotations": annotations}, "spec": pod},
        },
    )


def _build_container(
    agent: HostedAgent, definition: Agent, settings: KubernetesSettings, code: CodeConfigMap | None
) -> Manifest:
    probe = {"httpGet": {"path": "/healthz", "port": "http", "httpHeaders": [{"name": "Host", "value": "localhost"}]}}
    tokens = {"SCANFLOW_TOKEN": "token", "SCANFLOW_PEER_TOKEN": "peer_token"}
    environment = {
        "HOME": "/tmp",  # noqa: S108  the container's own
        "SCANFLOW_HOME": f"{FOLDER}/home",
        **({} if agent.server is None else {"SCANFLOW_URL": agent.server}),
        **({} if agent.tracker is None else {"SCANFLOW_TRACKER_URI": agent.tracker}),
        **({"SCANFLOW_TLS_CA": "/scanflow/secret/ca.crt"} if agent.ca is not None else {}),
    }
    return {
        "name": "agent",
        "image": definition.image or settings.agent_image,
        "command": ["python", "-m", "scanflow_agents", FOLDER],
        "envFrom": build_env_from(),
        "env": [
            *({"name": name, "value": value} for name, value in environment.items()),
            *(
                {"name": name, "valueFrom": {"secretKeyRef": {"name": format_object_name(agent.name), "key": key}}}
                for name, key in tokens.items()
            ),
            *build_secret_variables(
                secret.source for secret in iterate_secrets([definition.parameters, definition.sensors])
            ),
        ],
        "ports": [{"name": "http", "containerPort": PORT, "protocol": "TCP"}],
        "resources": _build_resources(definition),
        "startupProbe": {**probe, "periodSeconds": 2, "failureThreshold": 60, "timeoutSeconds": 5},
        "readinessProbe": {**probe, "periodSeconds": 5, "timeoutSeconds": 5},
        "livenessProbe": {**probe, "periodSeconds": 10, "failureThreshold": 6, "timeoutSeconds": 5},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": build_container_security(),
        "volumeMounts": [
            {"name": "state", "mountPath": FOLDER},
            {"name": "spec", "mountPath": f"{FOLDER}/agent.json", "subPath": "agent.json", "readOnly": True},
            {"name": "secret", "mountPath": "/scanflow/secret", "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108
            *([] if code is None else [code.mount]),
        ],
    }


def _build_resources(definition: Agent) -> Manifest:
    resources = definition.resources
    requests = {
        "cpu": "50m" if resources.cores is None else f"{round(resources.cores * 1000)}m",
        "memory": "256Mi" if resources.memory is None else str(resources.memory),
    }
    limits = {} if resources.memory is None else {"memory": str(resources.memory)}
    if resources.cores is not None:
        limits["cpu"] = requests["cpu"]
    return {"requests": requests, **({"limits": limits} if limits else {})}
