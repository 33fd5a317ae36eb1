"""The objects of one agent, from what is to be hosted. Pure."""

from __future__ import annotations

import json
from pathlib import PurePosixPath
from typing import Any, Final

from scanflow.app.agents import Agent
from scanflow.app.application import Application
from scanflow.backends.agents import HostedAgent
from scanflow.backends.kubernetes.code import APP_DIR, Code
from scanflow.backends.kubernetes.environment.manifests import PODS, variables_from
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.labels import AGENT, hashed, labels_of, namespace_of
from scanflow.backends.kubernetes.security import container_security, pod_security
from scanflow.backends.kubernetes.settings import KubernetesSettings
from scanflow.names import MAX_NAME

PORT: Final = 8080
VERSION: Final = "scanflow.dev/agent-version"
"""An annotation of the Deployment and its pods: what the agent was started with."""

CODE: Final = "scanflow.dev/agent-code"
FOLDER: Final = "/scanflow/agent"
"""Where the agent keeps what it learned, on its claim."""

_GRACE_S: Final = 15
_STATE_SIZE: Final = "1Gi"


def name_of(agent: str) -> str:
    """Return the name of an agent's objects."""
    plain = f"agent-{agent}"
    return plain if len(plain) <= MAX_NAME else hashed(plain, agent)


def address_of(app: str, team: str, agent: str) -> str:
    """Return where other pods find an agent."""
    return f"http://{name_of(agent)}.{namespace_of(app, team)}.svc:{PORT}"


def objects_of(
    agent: HostedAgent, described: Agent, settings: KubernetesSettings, code: Code | None = None
) -> list[Manifest]:
    """Return what an agent is made of, in the order in which it is made.

    Args:
        agent: What is to be hosted.
        described: The same agent, as its application says it.
        settings: Of the cluster.
        code: The agent's own files. None: it has none, or its image has them.
    """
    secrets = {
        "token": "" if agent.token is None else agent.token.get_secret_value(),
        **({} if agent.ca is None else {"ca.crt": agent.ca}),
    }
    return [
        {"apiVersion": "v1", "kind": "Secret", **_named(agent), "type": "Opaque", "stringData": secrets},
        {"apiVersion": "v1", "kind": "ConfigMap", **_named(agent), "data": {"agent.json": json.dumps(spec_of(agent))}},
        _claim(agent, settings),
        _service(agent),
        _deployment(agent, described, settings, code),
    ]


def spec_of(agent: HostedAgent) -> dict[str, Any]:
    """Return what the program that hosts the agent reads; the token is no part of it."""
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
        "url": address_of(agent.app, agent.team, agent.name),
    }


def agent_of(app: Application, name: str) -> Agent:
    return next(agent for agent in app.agents if agent.name == name)


def _named(agent: HostedAgent) -> Manifest:
    return {
        "metadata": {
            "name": name_of(agent.name),
            "namespace": namespace_of(agent.app, agent.team),
            "labels": labels_of(agent.app, agent.team, agent=agent.name),
        }
    }


def _claim(agent: HostedAgent, settings: KubernetesSettings) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        **_named(agent),
        "spec": {
            "accessModes": ["ReadWriteOnce"],
            "resources": {"requests": {"storage": _STATE_SIZE}},
            **({} if settings.storage_class is None else {"storageClassName": settings.storage_class}),
        },
    }


def _service(agent: HostedAgent) -> Manifest:
    return {
        "apiVersion": "v1",
        "kind": "Service",
        **_named(agent),
        "spec": {
            "type": "ClusterIP",
            "selector": _selected(agent),
            "ports": [{"name": "http", "port": PORT, "targetPort": "http", "protocol": "TCP"}],
        },
    }


def _selected(agent: HostedAgent) -> dict[str, str]:
    labels = labels_of(agent.app, agent.team, agent=agent.name)
    return {"app.kubernetes.io/managed-by": labels["app.kubernetes.io/managed-by"], AGENT: labels[AGENT]}


def _deployment(agent: HostedAgent, described: Agent, settings: KubernetesSettings, code: Code | None) -> Manifest:
    named, noted = _named(agent), {VERSION: agent.version, CODE: agent.code}
    named["metadata"]["annotations"] = noted
    pod = {
        "serviceAccountName": PODS,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "terminationGracePeriodSeconds": _GRACE_S,
        "securityContext": {**pod_security(), "fsGroupChangePolicy": "OnRootMismatch"},
        "containers": [_container(agent, described, settings, code)],
        "volumes": [
            {"name": "state", "persistentVolumeClaim": {"claimName": name_of(agent.name)}},
            {"name": "spec", "configMap": {"name": name_of(agent.name)}},
            {"name": "secret", "secret": {"secretName": name_of(agent.name), "defaultMode": 0o440}},
            {"name": "tmp", "emptyDir": {}},
            *([] if code is None else [code.volume]),
        ],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        **named,
        "spec": {
            "replicas": 1,
            "revisionHistoryLimit": 2,
            "strategy": {"type": "Recreate"},  # its journal has one writer
            "selector": {"matchLabels": _selected(agent)},
            "template": {
                "metadata": {"labels": labels_of(agent.app, agent.team, agent=agent.name), "annotations": noted},
                "spec": pod,
            },
        },
    }


def _container(agent: HostedAgent, described: Agent, settings: KubernetesSettings, code: Code | None) -> Manifest:
    probe = {"httpGet": {"path": "/healthz", "port": "http", "httpHeaders": [{"name": "Host", "value": "localhost"}]}}
    token = {"secretKeyRef": {"name": name_of(agent.name), "key": "token"}}
    environment = {
        "HOME": "/tmp",  # noqa: S108  the container's own
        "SCANFLOW_HOME": f"{FOLDER}/home",
        **({} if agent.server is None else {"SCANFLOW_URL": agent.server}),
        **({} if agent.tracker is None else {"SCANFLOW_TRACKER_URI": agent.tracker}),
        **({"SCANFLOW_TLS_CA": "/scanflow/secret/ca.crt"} if agent.ca is not None else {}),
    }
    return {
        "name": "agent",
        "image": described.image or settings.agent_image,
        "command": ["python", "-m", "scanflow_agents", FOLDER],
        "envFrom": variables_from(),
        "env": [
            *({"name": name, "value": value} for name, value in environment.items()),
            {"name": "SCANFLOW_TOKEN", "valueFrom": token},
        ],
        "ports": [{"name": "http", "containerPort": PORT, "protocol": "TCP"}],
        "resources": _resources(described),
        "startupProbe": {**probe, "periodSeconds": 2, "failureThreshold": 60, "timeoutSeconds": 5},
        "readinessProbe": {**probe, "periodSeconds": 5, "timeoutSeconds": 5},
        "livenessProbe": {**probe, "periodSeconds": 10, "failureThreshold": 6, "timeoutSeconds": 5},
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "securityContext": container_security(),
        "volumeMounts": [
            {"name": "state", "mountPath": FOLDER},
            {"name": "spec", "mountPath": f"{FOLDER}/agent.json", "subPath": "agent.json", "readOnly": True},
            {"name": "secret", "mountPath": "/scanflow/secret", "readOnly": True},
            {"name": "tmp", "mountPath": "/tmp"},  # noqa: S108
            *([] if code is None else [code.mount]),
        ],
    }


def _resources(described: Agent) -> Manifest:
    given = described.resources
    asked = {
        "cpu": "50m" if given.cores is None else f"{round(given.cores * 1000)}m",
        "memory": "256Mi" if given.memory is None else str(given.memory),
    }
    limits = {} if given.memory is None else {"memory": str(given.memory)}
    if given.cores is not None:
        limits["cpu"] = asked["cpu"]
    return {"requests": asked, **({"limits": limits} if limits else {})}
