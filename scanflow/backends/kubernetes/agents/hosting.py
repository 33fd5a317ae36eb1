"""Agents as Deployments of one pod. The cluster is the store: whoever asks finds them by their labels."""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeAlias

from scanflow.app.agents import Agent
from scanflow.app.application import Application
from scanflow.app.files import load_json
from scanflow.backends.agents import AgentProcess, HostedAgent, ignored
from scanflow.backends.kubernetes.agents.manifests import CODE, VERSION, address_of, agent_of, name_of, objects_of
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.code import CODE_VOLUME, Code, code_of
from scanflow.backends.kubernetes.differences import made_again
from scanflow.backends.kubernetes.followed import Followed
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.labels import AGENT, APP, SELECTED, TEAM, namespace_of
from scanflow.backends.kubernetes.pod_logs import PodLogs
from scanflow.backends.kubernetes.settings import KubernetesSettings
from scanflow.errors import NotFoundError, UsageError

LOOK_S: Final = 2.0
"""How long what the cluster said of all agents is taken for true: two lists in so many seconds, however many agents."""

PARTS_S: Final = 10.0
"""How often what agents are made of is looked at, beside their Deployments; of all agents together."""

_PARTS: Final = ("ConfigMap", "PersistentVolumeClaim", "Service")

_Key: TypeAlias = tuple[str, str, str]


class _Seen(NamedTuple):
    deployments: dict[_Key, Manifest]
    pods: dict[_Key, list[Manifest]]
    at: float


class _Parts(NamedTuple):
    there: frozenset[_Key]
    """By kind, namespace and name."""

    at: float
    looked: set[_Key]
    """The agents that were held against it."""


class KubernetesAgents:
    """See :class:`~scanflow.backends.port.AgentBackend`. A pod that dies is started again by its kubelet."""

    def __init__(
        self,
        cluster: Callable[[], Cluster],
        settings: KubernetesSettings,
        *,
        ensure: Callable[[Application], str | None],
        followed: Callable[[], Followed] | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Host agents on a cluster.

        Args:
            cluster: Returns the cluster; not called before something is asked of it.
            settings: Of it.
            ensure: Makes the environment of an application, and returns the tracker that its pods log to.
            followed: Returns what tells of objects that are looked at again and again.
            clock: Monotonic seconds.
        """
        self._connect, self._settings, self._ensure, self._clock = cluster, settings, ensure, clock
        own = Followed(cluster)
        self._followed = followed or (lambda: own)
        self._seen: _Seen | None = None
        self._parts: _Parts | None = None
        self._lost: dict[_Key, str] = {}  # why an agent's own files cannot be made again
        self._lock = threading.Lock()

    def start(self, agent: HostedAgent, *, observe: Callable[[str], object] = ignored) -> bool:
        if self.show(agent.app, agent.team, agent.name).version == agent.version:
            for manifest in self._missing(agent):
                self._cluster.apply(manifest, force=True)
                observe(made_again(manifest))
            return False
        agent, described = self._described(agent)
        code = _code(agent, described)
        objects = objects_of(agent, described, self._settings, code)
        for manifest in [*([] if code is None else [code.config_map]), *objects]:
            self._cluster.apply(manifest, force=True)
        self._forget_look()
        return False

    def stop(self, app: str, team: str, name: str) -> None:
        namespace = namespace_of(app, team)
        for kind in ("Deployment", "Service"):
            self._cluster.delete(kind, name_of(name), namespace)
        self._forget_look()

    def show(self, app: str, team: str, name: str) -> AgentProcess:
        return self._process((app, team, name), self._look())

    def agents(self) -> list[AgentProcess]:
        seen = self._look()
        return [self._process(key, seen) for key in sorted({*seen.deployments, *seen.pods})]

    def _process(self, key: _Key, seen: _Seen) -> AgentProcess:
        found = process_of(key, seen.deployments.get(key), seen.pods.get(key, []))
        lost = None if found.started else self._lost.get(key)
        return found if lost is None else replace(found, failure=lost)

    def logs(self, app: str, team: str, name: str) -> PodLogs:
        namespace, labels = namespace_of(app, team), f"{SELECTED},{AGENT}={name}"
        if self._cluster.get("ConfigMap", name_of(name), namespace) is None:
            raise NotFoundError(f"The agent {app}/{name} was never started here. Start it: scanflow agents --start")
        return PodLogs(self._cluster, namespace, labels)

    @property
    def _cluster(self) -> Cluster:
        return self._connect()

    def _look(self) -> _Seen:
        with self._lock:
            if self._seen is None or self._clock() - self._seen.at >= LOOK_S:
                now, labels = self._clock(), f"{SELECTED},{AGENT}"
                deployments = self._followed().find("Deployment", labels)
                pods = self._followed().find("Pod", labels)
                by_agent: dict[_Key, list[Manifest]] = {}
                for pod in pods:
                    by_agent.setdefault(_key(pod), []).append(pod)
                self._seen = _Seen({_key(one): one for one in deployments}, by_agent, now)
            return self._seen

    def _forget_look(self) -> None:
        with self._lock:
            self._seen = self._parts = None

    def _missing(self, agent: HostedAgent) -> list[Manifest]:
        """Return what an agent that was started is made of and is not there, but for its Deployment; each is looked for
        once in some seconds."""
        with self._lock:
            if self._parts is None or self._clock() - self._parts.at >= PARTS_S:
                labels = f"{SELECTED},{AGENT}"
                found = [one for kind in _PARTS for one in self._followed().find(kind, labels)]
                found += self._cluster.find("Secret", labels=labels)[0]  # which nobody may watch
                self._parts = _Parts(frozenset(map(_place, found)), self._clock(), set())
            parts, key = self._parts, (agent.app, agent.team, agent.name)
            if key in parts.looked:
                return []
            parts.looked.add(key)
        namespace, name = namespace_of(agent.app, agent.team), name_of(agent.name)
        gone = [kind for kind in (*_PARTS, "Secret") if (kind, namespace, name) not in parts.there]
        lost = self._lost_files(key, namespace)
        if not gone and lost is None:
            return []
        agent, described = self._described(agent)
        missing = [one for one in objects_of(agent, described, self._settings) if one["kind"] in gone]
        return missing if lost is None else [*missing, *self._files(agent, described, lost)]

    def _lost_files(self, key: _Key, namespace: str) -> str | None:
        """Return the name of the ConfigMap with an agent's own files where its pod waits for it."""
        self._lost.pop(key, None)
        seen = self._look()
        deployment = seen.deployments.get(key)
        if deployment is None or self._process(key, seen).started:
            return None
        volumes = deployment["spec"]["template"]["spec"].get("volumes", [])
        named = [one["configMap"]["name"] for one in volumes if one["name"] == CODE_VOLUME]
        return next((one for one in named if self._cluster.get("ConfigMap", one, namespace) is None), None)

    def _files(self, agent: HostedAgent, described: Agent, name: str) -> list[Manifest]:
        """Return the ConfigMap ``name`` with an agent's own files, unless they have changed since it was made."""
        code = _code(agent, described)
        if code is not None and code.name == name:
            return [code.config_map]
        self._lost[agent.app, agent.team, agent.name] = (
            f"The ConfigMap {name} with its files was deleted, and they have changed since. Start it with what they "
            f"are now: scanflow agents --start app.py:{agent.name}"
        )
        return []

    def _described(self, agent: HostedAgent) -> tuple[HostedAgent, Agent]:
        """Return an agent with the tracker of its environment, which is made where it is not there, and what its
        application says of it."""
        app = load_json(json.dumps(agent.document))
        return replace(agent, tracker=self._ensure(app) or agent.tracker), agent_of(app, agent.name)


def _code(agent: HostedAgent, described: Agent) -> Code | None:
    """Return an agent's own files; None: it has none, or its image has them."""
    named = [sensor.function for sensor in described.sensors] + list(described.parameters.values())
    own = bool(described.modules) or any(isinstance(one, str) and ".py:" in one for one in named)
    if described.image is not None or not own:
        return None
    folder = Path("/" if agent.source is None else agent.source).parent / str(agent.document.get("app_dir", "."))
    if not folder.is_dir():
        raise UsageError(
            f"The server has no files of the agent {agent.app}/{agent.name}: there is no {str(folder)!r} where it is. "
            "Build an image that has them, and name it: scanflow build, Agent(image=...)"
        )
    return code_of(agent.app, agent.team, namespace_of(agent.app, agent.team), folder)


def process_of(key: _Key, deployment: Manifest | None, pods: Sequence[Manifest]) -> AgentProcess:
    """Return how an agent stands, from its Deployment and its pods."""
    pods = [pod for pod in pods if pod.get("status", {}).get("phase") not in {"Succeeded", "Failed"}]
    noted = {} if deployment is None else deployment["metadata"].get("annotations", {})
    version = noted.get(VERSION)
    current = [pod for pod in pods if pod["metadata"].get("annotations", {}).get(VERSION) == version]
    containers = [one for pod in current for one in pod.get("status", {}).get("containerStatuses", [])]
    started = (
        deployment is not None
        and any(one.get("ready", False) for one in containers)
        and not any("deletionTimestamp" in pod["metadata"] for pod in current)
    )
    return AgentProcess(
        *key,
        alive=deployment is not None or bool(pods),
        started=started,
        version=version,
        code=noted.get(CODE),
        url=None if deployment is None else address_of(*key),
        restarts=max((int(one.get("restartCount", 0)) for one in containers), default=0),
        failure=None if started or deployment is None else _failure(deployment, current, containers),
    )


def _failure(deployment: Manifest, pods: Sequence[Manifest], containers: Sequence[Manifest]) -> str | None:
    """Return why an agent does not come up, as the kubelet, the scheduler or the quota says it."""
    for one in containers:
        waiting = one.get("state", {}).get("waiting", {})
        ended = one.get("state", {}).get("terminated") or one.get("lastState", {}).get("terminated") or {}
        if words := str(ended.get("message", "")).strip():
            return words.splitlines()[-1]
        if ended.get("reason") == "OOMKilled":
            return "OOMKilled: it needed more memory than its resources grant. Give it more: Agent(resources=...)"
        if waiting.get("reason") not in {None, "ContainerCreating", "PodInitializing"}:
            return f"{waiting['reason']}: {waiting.get('message', '')}".rstrip(": ")
    for pod in pods:
        if unplaced := _condition(pod, "PodScheduled", "False"):
            return f"Pending: {unplaced}"
    return _condition(deployment, "ReplicaFailure", "True")


def _condition(found: Manifest, kind: str, status: str) -> str | None:
    conditions: Sequence[dict[str, Any]] = found.get("status", {}).get("conditions", [])
    return next((str(one.get("message")) for one in conditions if (one["type"], one["status"]) == (kind, status)), None)


def _place(found: Manifest) -> _Key:
    return found["kind"], found["metadata"]["namespace"], found["metadata"]["name"]


def _key(found: Manifest) -> _Key:
    labels = found["metadata"]["labels"]
    return labels[APP], labels[TEAM], labels[AGENT]
