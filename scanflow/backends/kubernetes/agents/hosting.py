"""Host agents as Deployments of one pod. The cluster is the store: agents are found by their labels."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final, NamedTuple, TypeAlias

from scanflow.app.agent import Agent
from scanflow.app.application import Application
from scanflow.app.application_files import load_json
from scanflow.app.secrets import iterate_secrets
from scanflow.backends.agent_hosting import AgentProcess, HostedAgent, format_start_command, ignore_message
from scanflow.backends.kubernetes.agents.agent_manifests import (
    CODE,
    VERSION,
    build_objects,
    format_address,
    format_object_name,
    get_agent,
)
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.code_configmap import CODE_VOLUME, CodeConfigMap, build_code
from scanflow.backends.kubernetes.differences import format_recreation
from scanflow.backends.kubernetes.kinds import Manifest, get_condition, get_object_key
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scanflow.backends.kubernetes.list_cache import ListCache
from scanflow.backends.kubernetes.object_labels import AGENT, APP, MANAGED_SELECTOR, TEAM
from scanflow.backends.kubernetes.pod_logs import PodLogs
from scanflow.backends.kubernetes.pod_spec import check_pod_secrets
from scanflow.errors import NotFoundError, UsageError

SNAPSHOT_S: Final = 2.0
"""How long a snapshot of all agents is valid: two list requests in that time, for any number of agents."""

PARTS_S: Final = 10.0
"""The interval at which the other objects of all agents are listed, besides Deployments and pods."""

_PARTS: Final = ("ConfigMap", "PersistentVolumeClaim", "Service")

_Key: TypeAlias = tuple[str, str, str]


class _Snapshot(NamedTuple):
    deployments: dict[_Key, Manifest]
    pods: dict[_Key, list[Manifest]]
    at: float


class _Parts(NamedTuple):
    present: frozenset[_Key]
    """By kind, namespace and name."""

    at: float
    checked: set[_Key]
    """The agents that were compared with it."""


class KubernetesAgents:
    """See :class:`~scanflow.backends.agent_hosting.AgentBackend`. Kubelets restart agents that die."""

    def __init__(
        self,
        cluster: Callable[[], Cluster],
        settings: KubernetesSettings,
        *,
        ensure: Callable[[Application], str | None],
        list_cache: Callable[[], ListCache] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Host agents on a cluster.

        Args:
            cluster: Returns the cluster; called on first use.
            settings: The cluster's.
            ensure: Ensures the environment of an application, and returns the tracking URI of its pods.
            list_cache: Returns the watched lists of objects.
            clock: Monotonic seconds.
        """
        self._connect, self._settings, self._ensure, self._clock = cluster, settings, ensure, clock
        default = ListCache(cluster)
        self._list_cache = list_cache or (lambda: default)
        self._snapshot: _Snapshot | None = None
        self._parts: _Parts | None = None
        self._code_problems: dict[_Key, str] = {}  # why the ConfigMap of an agent's files cannot be recreated
        self._lock = threading.Lock()

    def start(self, agent: HostedAgent, *, observe: Callable[[str], object] = ignore_message) -> bool:
        if self.show(agent.app, agent.team, agent.name).version == agent.version:
            for manifest in self._list_missing(agent):
                self._cluster.apply(manifest, force=True)
                observe(format_recreation(manifest))
            return False
        agent, definition = self._resolve_agent(agent)
        code = _build_code(agent, definition, self._settings)
        objects = build_objects(agent, definition, self._settings, code)
        for manifest in [*([] if code is None else [code.config_map]), *objects]:
            self._cluster.apply(manifest, force=True)
        self._forget_snapshot()
        return False

    def stop(self, app: str, team: str, name: str) -> None:
        namespace = self._settings.derive_namespace(app, team)
        for kind in ("Deployment", "Service"):
            self._cluster.delete(kind, format_object_name(name), namespace)
        self._forget_snapshot()

    def show(self, app: str, team: str, name: str) -> AgentProcess:
        return self._describe_process((app, team, name), self._get_snapshot())

    def agents(self) -> list[AgentProcess]:
        snapshot = self._get_snapshot()
        return [self._describe_process(key, snapshot) for key in sorted({*snapshot.deployments, *snapshot.pods})]

    def _describe_process(self, key: _Key, snapshot: _Snapshot) -> AgentProcess:
        process = build_process(key, snapshot.deployments.get(key), snapshot.pods.get(key, []))
        problem = None if process.started else self._code_problems.get(key)
        return process if problem is None else replace(process, failure=problem)

    def logs(self, app: str, team: str, name: str) -> PodLogs:
        namespace, labels = self._settings.derive_namespace(app, team), f"{MANAGED_SELECTOR},{AGENT}={name}"
        if self._cluster.get("ConfigMap", format_object_name(name), namespace) is None:
            raise NotFoundError(f"The agent {app}/{name} was never started here. Start it: scanflow agents --start")
        return PodLogs(self._cluster, namespace, labels)

    @property
    def _cluster(self) -> Cluster:
        return self._connect()

    def _get_snapshot(self) -> _Snapshot:
        with self._lock:
            if self._snapshot is None or self._clock() - self._snapshot.at >= SNAPSHOT_S:
                now, labels = self._clock(), f"{MANAGED_SELECTOR},{AGENT}"
                deployments = self._list_cache().find("Deployment", labels)
                pods = self._list_cache().find("Pod", labels)
                by_agent: dict[_Key, list[Manifest]] = {}
                for pod in pods:
                    by_agent.setdefault(_get_agent_key(pod), []).append(pod)
                self._snapshot = _Snapshot(
                    {_get_agent_key(deployment): deployment for deployment in deployments}, by_agent, now
                )
            return self._snapshot

    def _forget_snapshot(self) -> None:
        with self._lock:
            self._snapshot = self._parts = None

    def _list_missing(self, agent: HostedAgent) -> list[Manifest]:
        """Return the missing objects of a started agent, except its Deployment; checked once per ``PARTS_S``."""
        with self._lock:
            if self._parts is None or self._clock() - self._parts.at >= PARTS_S:
                labels = f"{MANAGED_SELECTOR},{AGENT}"
                objects = [manifest for kind in _PARTS for manifest in self._list_cache().find(kind, labels)]
                objects += self._cluster.find("Secret", self._settings.namespace, labels=labels)[
                    0
                ]  # the rights do not include a watch
                self._parts = _Parts(frozenset(map(get_object_key, objects)), self._clock(), set())
            parts, key = self._parts, (agent.app, agent.team, agent.name)
            if key in parts.checked:
                return []
            parts.checked.add(key)
        namespace, name = self._settings.derive_namespace(agent.app, agent.team), format_object_name(agent.name)
        missing_kinds = [kind for kind in (*_PARTS, "Secret") if (kind, namespace, name) not in parts.present]
        code_map = self._find_missing_code(key, namespace)
        if not missing_kinds and code_map is None:
            return []
        agent, definition = self._resolve_agent(agent)
        missing = [
            manifest
            for manifest in build_objects(agent, definition, self._settings)
            if manifest["kind"] in missing_kinds
        ]
        return missing if code_map is None else [*missing, *self._rebuild_code(agent, definition, code_map)]

    def _find_missing_code(self, key: _Key, namespace: str) -> str | None:
        """Return the name of the missing ConfigMap with an agent's files, for which its pod waits."""
        self._code_problems.pop(key, None)
        snapshot = self._get_snapshot()
        deployment = snapshot.deployments.get(key)
        if deployment is None or self._describe_process(key, snapshot).started:
            return None
        volumes = deployment["spec"]["template"]["spec"].get("volumes", [])
        names = [volume["configMap"]["name"] for volume in volumes if volume["name"] == CODE_VOLUME]
        return next((name for name in names if self._cluster.get("ConfigMap", name, namespace) is None), None)

    def _rebuild_code(self, agent: HostedAgent, definition: Agent, name: str) -> list[Manifest]:
        """Return the ConfigMap ``name`` with an agent's files, unless they have changed since."""
        code = _build_code(agent, definition, self._settings)
        if code is not None and code.name == name:
            return [code.config_map]
        self._code_problems[agent.app, agent.team, agent.name] = (
            f"The ConfigMap {name} with its files was deleted, and the files have changed since. Start the agent with "
            f"the current files: {format_start_command(agent.source, agent.name)}"
        )
        return []

    def _resolve_agent(self, agent: HostedAgent) -> tuple[HostedAgent, Agent]:
        """Return an agent with the tracker of its environment, which is ensured, and its definition."""
        app = load_json(json.dumps(agent.document))
        own = get_agent(app, agent.name)
        check_pod_secrets(iterate_secrets([own.parameters, own.sensors]), who=f"Agent {own.name!r}")
        return replace(agent, tracker=self._ensure(app) or agent.tracker), get_agent(app, agent.name)


def _build_code(agent: HostedAgent, definition: Agent, settings: KubernetesSettings) -> CodeConfigMap | None:
    """Return the ConfigMap of an agent's files; None: it has none, or its image contains them."""
    references = [sensor.function for sensor in definition.sensors] + list(definition.parameters.values())
    has_files = bool(definition.modules) or any(
        isinstance(reference, str) and ".py:" in reference for reference in references
    )
    if definition.image is not None or not has_files:
        return None
    folder = Path("/" if agent.source is None else agent.source).parent / str(agent.document.get("app_dir", "."))
    if not folder.is_dir():
        raise UsageError(
            f"The server has no files of the agent {agent.app}/{agent.name}: it has no folder {str(folder)!r}. "
            "Build an image that has them, and name it: scanflow build, Agent(image=...)"
        )
    return build_code(agent.app, agent.team, settings.derive_namespace(agent.app, agent.team), folder)


def build_process(key: _Key, deployment: Manifest | None, pods: Sequence[Manifest]) -> AgentProcess:
    """Return the state of an agent, from its Deployment and its pods."""
    pods = [pod for pod in pods if pod.get("status", {}).get("phase") not in {"Succeeded", "Failed"}]
    annotations = {} if deployment is None else deployment["metadata"].get("annotations", {})
    version = annotations.get(VERSION)
    current = [pod for pod in pods if pod["metadata"].get("annotations", {}).get(VERSION) == version]
    containers = [status for pod in current for status in pod.get("status", {}).get("containerStatuses", [])]
    started = (
        deployment is not None
        and any(status.get("ready", False) for status in containers)
        and not any("deletionTimestamp" in pod["metadata"] for pod in current)
    )
    return AgentProcess(
        *key,
        alive=deployment is not None or bool(pods),
        started=started,
        version=version,
        code=annotations.get(CODE),
        url=None if deployment is None else format_address(deployment["metadata"]["namespace"], key[2]),
        restarts=max((int(status.get("restartCount", 0)) for status in containers), default=0),
        failure=None if started or deployment is None else _explain_failure(deployment, current, containers),
    )


def _explain_failure(deployment: Manifest, pods: Sequence[Manifest], containers: Sequence[Manifest]) -> str | None:
    """Return why an agent does not start, as the kubelet, the scheduler or the quota reports."""
    for status in containers:
        waiting = status.get("state", {}).get("waiting", {})
        ended = status.get("state", {}).get("terminated") or status.get("lastState", {}).get("terminated") or {}
        if message := str(ended.get("message", "")).strip():
            return message.splitlines()[-1]
        if ended.get("reason") == "OOMKilled":
            return "OOMKilled: it needed more memory than its resources grant. Give it more: Agent(resources=...)"
        if waiting.get("reason") not in {None, "ContainerCreating", "PodInitializing"}:
            return f"{waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")
    for pod in pods:
        scheduled = get_condition(pod.get("status"), "PodScheduled")
        if scheduled.get("status") == "False":
            return f"Pending: {scheduled.get('message')}"
    failure = get_condition(deployment.get("status"), "ReplicaFailure")
    return str(failure.get("message")) if failure.get("status") == "True" else None


def _get_agent_key(manifest: Manifest) -> _Key:
    labels = manifest["metadata"]["labels"]
    return labels[APP], labels[TEAM], labels[AGENT]
