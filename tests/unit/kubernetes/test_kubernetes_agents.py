"""Agents on a cluster: their objects, and what is read back of them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from scanflow.app.agent import Agent
from scanflow.app.application import Application
from scanflow.app.application_files import dump_document, load_json
from scanflow.app.resources import Resources
from scanflow.backends.agent_hosting import HostedAgent
from scanflow.backends.kubernetes.agents.agent_manifests import VERSION, build_objects
from scanflow.backends.kubernetes.agents.hosting import KubernetesAgents
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scanflow.backends.kubernetes.object_labels import derive_namespace
from scanflow.errors import UsageError
from scanflow.testing.agents import KEY, AgentsContract
from scanflow.testing.memory_cluster import MemoryCluster
from tests.manifests import assert_manifests

NAMESPACE = derive_namespace("shop", "red")
PRIVATE = SecretStr("scanflow_" + "t" * 8)
PEERS = SecretStr("peers-secret")


class Clock:
    now = 0.0

    def __call__(self) -> float:
        self.now += 10.0  # what the cluster said is never taken for true twice
        return self.now


def runs_pods(cluster: MemoryCluster, deployment: dict[str, Any]) -> None:
    """Play the controllers and a kubelet: one pod of the newest template, ready at once."""
    name = f"{deployment['metadata']['name']}-pod"
    template = deployment["spec"]["template"]
    if (old := cluster.get("Pod", name, NAMESPACE)) is not None:
        if old["metadata"]["annotations"][VERSION] == template["metadata"]["annotations"][VERSION]:
            return
        cluster.delete("Pod", name, NAMESPACE)
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": deployment["metadata"]["name"]}
    cluster.create(
        {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": NAMESPACE,
                **template["metadata"],
                "ownerReferences": [{**owner, "uid": deployment["metadata"]["uid"]}],
            },
            "spec": template["spec"],
            "status": {"phase": "Running", "containerStatuses": [{"name": "agent", "ready": True, "restartCount": 1}]},
        }
    )
    cluster.logs[NAMESPACE, name] = b"agent watcher of shop\n"


@pytest.fixture
def cluster() -> MemoryCluster:
    cluster = MemoryCluster(namespaces=("default", NAMESPACE))
    cluster.play("Deployment", runs_pods)
    return cluster


def make_agents(cluster: MemoryCluster) -> KubernetesAgents:
    return KubernetesAgents(lambda: cluster, KubernetesSettings(), ensure=lambda _app: None, clock=Clock())


class TestKubernetesAgents(AgentsContract):
    @pytest.fixture
    def agents(self, cluster: MemoryCluster) -> KubernetesAgents:
        return make_agents(cluster)


def agent(**changes: Any) -> HostedAgent:
    own = Agent(name="watcher", template="tracker", **changes)
    app = Application(name="shop", team="red", agents=[own])
    return HostedAgent(
        *KEY,
        document=dump_document(app),
        version="1 https://scanflow.scanflow.svc:46666",
        source="/home/ada/shop/app.py",
        code="c0de",
        server="https://scanflow.scanflow.svc:46666",
        tracker="http://tracker.scanflow-shop-red.svc:5000",
        token=PRIVATE,
        peer_token=PEERS,
        ca="-----BEGIN CERTIFICATE-----\n",
    )


def test_the_objects_of_an_agent() -> None:
    hosted_agent = agent(resources=Resources(cpu=0.5, memory="512Mi"))
    own = load_json(json.dumps(hosted_agent.document)).agents[0]
    objects = build_objects(hosted_agent, own, KubernetesSettings(storage_class="fast"))
    for token in (PRIVATE, PEERS):
        assert token.get_secret_value() not in json.dumps(
            [manifest for manifest in objects if manifest["kind"] != "Secret"]
        )
    assert_manifests("agent", *objects)


def test_an_agent_that_runs_as_wanted_costs_two_lists_in_two_seconds_however_often_it_is_looked_at(
    cluster: MemoryCluster,
) -> None:
    now = [0.0]
    agents = KubernetesAgents(lambda: cluster, KubernetesSettings(), ensure=lambda _app: None, clock=lambda: now[0])
    for _ in range(2):
        agents.start(agent())
    cluster.calls.clear()
    for _ in range(25):
        agents.start(agent())
        now[0] += 0.1
    assert [call.kind for call in cluster.calls] == ["Deployment", "Pod"]


def test_what_a_person_deletes_is_made_again(cluster: MemoryCluster) -> None:
    agents = make_agents(cluster)
    agents.start(agent())
    cluster.delete("Deployment", "agent-watcher", NAMESPACE)
    agents.start(agent())
    assert agents.show(*KEY).started


@pytest.mark.parametrize("kind", ["Service", "Secret", "ConfigMap", "PersistentVolumeClaim"])
def test_what_a_person_deletes_of_an_agent_that_runs_is_named_and_made_again(cluster: MemoryCluster, kind: str) -> None:
    messages: list[str] = []
    agents = KubernetesAgents(lambda: cluster, KubernetesSettings(), ensure=lambda _app: "http://own", clock=Clock())
    agents.start(agent(), observe=messages.append)
    before = cluster.get(kind, "agent-watcher", NAMESPACE)
    cluster.delete(kind, "agent-watcher", NAMESPACE)
    agents.start(agent(), observe=messages.append)
    after = cluster.get(kind, "agent-watcher", NAMESPACE)
    assert before is not None
    assert after is not None
    assert (after.get("spec"), after.get("data")) == (before.get("spec"), before.get("data"))
    agents.start(agent(), observe=messages.append)
    assert messages == [f"recreated the {kind} {NAMESPACE}/agent-watcher, which another client deleted"]


def test_what_agents_are_made_of_is_looked_at_once_in_ten_seconds(cluster: MemoryCluster) -> None:
    now = [0.0]
    agents = KubernetesAgents(lambda: cluster, KubernetesSettings(), ensure=lambda _app: None, clock=lambda: now[0])
    agents.start(agent())
    cluster.calls.clear()
    for _ in range(90):
        agents.start(agent())
        now[0] += 0.1
    looked = [call.kind for call in cluster.calls if call.kind not in {"Deployment", "Pod"}]
    assert sorted(looked) == ["ConfigMap", "PersistentVolumeClaim", "Secret", "Service"]
    assert {call.verb for call in cluster.calls} <= {"find", "watch"}


@pytest.mark.parametrize(
    ("status", "failure"),
    [
        (
            {"containerStatuses": [{"state": {"waiting": {"reason": "ErrImagePull", "message": "not found"}}}]},
            "ErrImagePull: not found",
        ),
        (
            {
                "containerStatuses": [
                    {
                        "state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 10s"}},
                        "lastState": {
                            "terminated": {"message": "Traceback\nModuleNotFoundError: No module named 'y'\n"}
                        },
                    }
                ]
            },
            "ModuleNotFoundError: No module named 'y'",
        ),
        (
            {"containerStatuses": [{"state": {}, "lastState": {"terminated": {"reason": "OOMKilled"}}}]},
            "OOMKilled: it needed more memory than its resources grant. Give it more: Agent(resources=...)",
        ),
        (
            {"conditions": [{"type": "PodScheduled", "status": "False", "message": "0/2 nodes: Insufficient cpu"}]},
            "Pending: 0/2 nodes: Insufficient cpu",
        ),
        ({"containerStatuses": [{"state": {"waiting": {"reason": "ContainerCreating"}}}]}, None),
    ],
)
def test_why_an_agent_does_not_come_up_is_shown(
    cluster: MemoryCluster, status: dict[str, Any], failure: str | None
) -> None:
    agents = make_agents(cluster)
    agents.start(agent())
    bare = {"phase": "Pending", "containerStatuses": [], "conditions": []}
    cluster.edit("Pod", "agent-watcher-pod", NAMESPACE, {"status": {**bare, **status}})
    agent_status = agents.show(*KEY)
    assert (agent_status.alive, agent_status.started, agent_status.failure) == (True, False, failure)


@pytest.mark.parametrize("named", [{"modules": ["watch.py"]}, {"parameters": {"labeller": "watch.py:label"}}])
def test_an_agents_own_files_are_mounted_and_where_they_are_missing_an_image_is_requested(
    cluster: MemoryCluster, tmp_path: Path, named: dict[str, Any]
) -> None:
    hosted_agent = replace(agent(**named), source=str(tmp_path / "app.py"))
    (tmp_path / "watch.py").write_text("LEAST = 1\n")
    agents = make_agents(cluster)
    agents.start(hosted_agent)
    deployment = cluster.get("Deployment", "agent-watcher", NAMESPACE)
    assert deployment is not None
    (container,) = deployment["spec"]["template"]["spec"]["containers"]
    assert "/app" in [mount["mountPath"] for mount in container["volumeMounts"]]
    spec = cluster.get("ConfigMap", "agent-watcher", NAMESPACE)
    assert spec is not None
    assert json.loads(spec["data"]["agent.json"])["source"] == "/app/app.py"
    with pytest.raises(UsageError, match=r"scanflow build, Agent\(image="):
        agents.start(replace(hosted_agent, source="/gone/app.py", version="2"))


def test_an_agents_own_files_are_made_again_where_its_pod_waits_for_them_and_no_others(
    cluster: MemoryCluster, tmp_path: Path
) -> None:
    hosted_agent, file = replace(agent(modules=["watch.py"]), source=str(tmp_path / "app.py")), tmp_path / "watch.py"
    file.write_text("LEAST = 1\n")
    agents, messages = make_agents(cluster), list[str]()
    agents.start(hosted_agent, observe=messages.append)
    names = [config_map["metadata"]["name"] for config_map in cluster.find("ConfigMap", NAMESPACE)[0]]
    (code,) = [name for name in names if name.startswith("code-")]
    cluster.delete("ConfigMap", code, NAMESPACE)
    agents.start(hosted_agent, observe=messages.append)
    assert messages == [], "its pod has them"
    cluster.edit("Pod", "agent-watcher-pod", NAMESPACE, {"status": {"phase": "Pending", "containerStatuses": []}})
    file.write_text("LEAST = 2\n")
    agents.start(hosted_agent, observe=messages.append)
    assert (messages, cluster.get("ConfigMap", code, NAMESPACE)) == ([], None)
    assert f"The ConfigMap {code} with its files was deleted, and the files have" in str(agents.show(*KEY).failure)
    file.write_text("LEAST = 1\n")
    agents.start(hosted_agent, observe=messages.append)
    assert messages == [f"recreated the ConfigMap {NAMESPACE}/{code}, which another client deleted"]
    assert cluster.get("ConfigMap", code, NAMESPACE) is not None
    assert agents.show(*KEY).failure is None
