"""Many objects of a cluster: services, pods and nodes that are entries of the API server and nothing more, and a server
that looks after them.

The nodes have no kubelet and take no pod that does not name them: they are tainted and cordoned. What a kubelet would
say of a pod is written here, once. No program plays the kubelets: where it shares few cores with the API server it
answers for its nodes too late, and the cluster then counts what runs there as not ready, for good. All goes at the end.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

import scanflow as sf
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scanflow.backends.kubernetes.list_cache import OFTEN
from scanflow.backends.kubernetes.object_labels import derive_namespace
from scanflow.backends.kubernetes.online import instance_pods
from scanflow.backends.kubernetes.online.object_drift import REFRESH_S
from scanflow.backends.kubernetes.online.render import DEPLOYED_SETTINGS, extract_settings, render
from scanflow.backends.kubernetes.online.service_store import build_state_map
from scanflow.backends.service_desired import DesiredState
from scanflow.backends.service_records import Shape
from scanflow.backends.service_spec import ServiceSpec
from scanflow.instance_messages import Node, Revision
from tests.benchmarks.measure import Benchmark, Metric, NotMeasuredError, Section, pss_mib
from tests.server import ServerProcess

TEAM: Final = "bench"
ACCOUNT: Final = "many"
OWN: Final = {"SCANFLOW_KUBERNETES_GATEWAY_DOMAIN": "many.bench"}
"""Settings of no other server, so that none of the cluster's looks after these services."""

AT_ONCE: Final = 8
READY_S: Final = 600.0
SETTLES_S: Final = 300.0
WATCHED_S: Final = OFTEN * REFRESH_S
"""By then a server has looked often enough at everything for watches."""

TAINT: Final = {"key": "scanflow.dev/benchmark", "effect": "NoSchedule"}
SINCE: Final = "2026-01-01T00:00:00Z"
"""When all pods began."""

HASH: Final = {"pod-template-hash": "many"}
ADDRESS: Final = "192.0.2.1"
"""Of all pods: an address of documentation, which no machine has."""

SECTION = Section(group="cluster", title="A server and many objects", columns=("Scanflow",))


@dataclass(frozen=True, kw_only=True)
class Sizes:
    services: int = 500
    pods: int = 5000
    nodes: int = 1000
    idle_s: float = 30.0


def many(sizes: Sizes) -> Benchmark:
    def scanflow(folder: Path) -> Mapping[str, float]:
        settings = KubernetesSettings.from_environment()
        cluster = Cluster(settings)
        try:
            with objects(cluster, sizes) as app:
                (folder / "s.py").write_text("class S: pass\n")
                return {**_time_commands(folder, app, sizes), **_measure_controllers(folder, sizes)}
        finally:
            cluster.close()

    there = f"with {sizes.services:,} services, {sizes.pods:,} pods and {sizes.nodes:,} nodes"
    return Benchmark(
        name="many",
        section=SECTION,
        metrics=[
            Metric("services_s", f"the command `services` {there}", "s", bar=2),
            Metric("instances_s", "the command `services --json`, which has all instances", "s"),
            Metric("plan_s", "the command `plan` of an online workflow there", "s", bar=2),
            Metric("doing_nothing_s", "the command `--version`, which asks nothing", "s"),
            Metric("status_s", "`status` of a server there", "s", bar=2),
            Metric("listed_s", "`services` of a server there", "s", bar=2),
            Metric("reconcile_s", "the server's look at each of the services, the first", "s", bar=5),
            Metric("look_s", "the same, once a watch tells it of changes: median", "s"),
            Metric("asked_per_s", "requests to the API server, of an idle server", "/s", bar=5),
            Metric("memory_mb", "the server's memory", "MB", bar=300),
        ],
        contenders={"Scanflow": scanflow},
        how=(
            "nodes and pods are entries of the API server, and nothing runs; each service has all its objects, its "
            "pods one node, and all are ready; requests counted in the server for "
            f"{sizes.idle_s:g} s, once its watches have begun; memory as the kernel counts it, pages that are shared "
            "counted once"
        ),
        rounds=1,
        warm_up=False,
    )


@contextmanager
def objects(cluster: Cluster, sizes: Sizes) -> Iterator[sf.Application]:
    """Make the services with all that each has, and their pods on fake nodes; yield an application of that place."""
    name = f"many{uuid.uuid4().hex[:6]}"
    namespace = derive_namespace(name, TEAM)
    nodes = [f"{name}-{number}" for number in range(sizes.nodes)]
    services = [_spec(name, number, sizes.pods // sizes.services) for number in range(sizes.services)]
    try:
        cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
        account = {"name": ACCOUNT, "namespace": namespace}
        cluster.apply({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account})
        _apply_to_all(lambda machine: cluster.create(_node(machine)), nodes)
        step = max(1, len(nodes) // len(services))
        placed = list(zip(services, nodes[::step] * len(services), strict=False))
        _apply_to_all(lambda pair: _create_pods(cluster, *pair), placed)
        _apply_to_all(lambda pair: _serve(cluster, *pair), placed)
        _until_ready(cluster, namespace, services)
        node = sf.Service(name="s", implementation="s.py:S")
        yield sf.Application(
            name=name, team=TEAM, workflows=[sf.Workflow(name=f"{name}-new", type="online", nodes=[node])]
        )
    finally:
        cluster.delete("Namespace", namespace)
        _apply_to_all(lambda machine: cluster.delete("Node", machine), nodes)


def _apply_to_all(act: Callable[[Any], object], over: Iterable[Any]) -> None:
    with ThreadPoolExecutor(AT_ONCE) as pool:
        for _ in pool.map(act, over):
            pass


def _node(name: str) -> Manifest:
    fields = {"cpu": "8", "memory": "32Gi", "pods": "110"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name},
        "spec": {"taints": [TAINT], "unschedulable": True},
        "status": {"allocatable": fields, "capacity": fields},
    }


def _spec(app: str, number: int, instances: int) -> ServiceSpec:
    name = f"{app}-{number}"
    settings = KubernetesSettings.from_environment({**os.environ, **OWN})
    return ServiceSpec(
        app=app,
        team=TEAM,
        workflow=name,
        app_dir="/app",
        deployment=1,
        serves=1,
        shape=Shape(instances=instances),
        revisions=(Revision(id="r1", nodes=(Node(name="s", implementation="s.py:S", file="/app/s.py"),)),),
        image="scanflow/base:latest",
        details={
            instance_pods.NAMESPACE: settings.derive_namespace(app, TEAM),
            "service_account": ACCOUNT,
            DEPLOYED_SETTINGS: extract_settings(settings),
        },
    )


def _deployment(definition: ServiceSpec, node: str) -> Manifest:
    """Return a service's Deployment, whose pods are for one node."""
    manifest = render(definition, KubernetesSettings()).revisions[0].workload
    manifest["spec"] |= {"replicas": definition.shape.instances, "paused": True}
    manifest["spec"]["template"]["spec"] |= {"nodeName": node, "tolerations": [{"operator": "Exists"}]}
    return manifest


def _create_pods(cluster: Cluster, definition: ServiceSpec, node: str) -> None:
    """Make a service's pods, before what owns them.

    A controller manager makes 20 requests a second, and each pod that it has to make takes several: it adopts these. It
    has to know them by then, so they are made first, those of all services. It also says of each new pod that it is not
    ready where its node is not; so that they are ready is written afterwards.
    """
    deployment = _deployment(definition, node)
    for number in range(definition.shape.instances):
        cluster.create(_pod(deployment, number))


def _serve(cluster: Cluster, definition: ServiceSpec, node: str) -> None:
    """Make all that a service has but its pods, which become ready."""
    rendering = render(definition, KubernetesSettings())
    (revision,) = rendering.revisions
    state = DesiredState(
        name=definition.workflow, port=8080, created=1.0, settled=1, generation=1, definition=definition
    )
    deployment = _deployment(definition, node)
    for number in range(definition.shape.instances):
        pod = _pod(deployment, number)
        name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
        cluster.patch("Pod", name, namespace, {"status": _running(pod)}, subresource="status")
    services = [revision.service, *rendering.routes]
    for service in services:  # no proxy of a node has to know them: no packet ever goes there
        service["metadata"]["labels"]["service.kubernetes.io/service-proxy-name"] = "none"
    for manifest in (build_state_map(state), revision.config_map, *services):
        cluster.create(manifest)
    cluster.create(_replica_set(cluster.create(deployment)))


def _pod(deployment: Manifest, number: int) -> Manifest:
    """Return one of a Deployment's pods, which has no owner yet."""
    own, template = deployment["metadata"], deployment["spec"]["template"]
    metadata = {
        **template["metadata"],
        "name": f"{own['name']}-many-{number}",
        "namespace": own["namespace"],
        "labels": {**template["metadata"]["labels"], **HASH},
    }
    at_once = {"terminationGracePeriodSeconds": 0}  # no kubelet says that it has ended
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {**template["spec"], **at_once}}


def _running(pod: Manifest) -> Manifest:
    """Return what a kubelet says of a pod that is ready."""
    conditions = ("PodScheduled", "Initialized", "ContainersReady", "Ready")
    return {
        "phase": "Running",
        "startTime": SINCE,
        "hostIP": ADDRESS,
        "podIP": ADDRESS,
        "podIPs": [{"ip": ADDRESS}],
        "conditions": [{"type": kind, "status": "True", "lastTransitionTime": SINCE} for kind in conditions],
        "containerStatuses": [
            {
                "name": container["name"],
                "image": container["image"],
                "imageID": "",
                "ready": True,
                "started": True,
                "restartCount": 0,
                "state": {"running": {"startedAt": SINCE}},
            }
            for container in pod["spec"]["containers"]
        ],
    }


def _replica_set(deployment: Manifest) -> Manifest:
    """Return the ReplicaSet of a Deployment that is there, for the pods that are there."""
    own, template = deployment["metadata"], deployment["spec"]["template"]
    labels = {**template["metadata"]["labels"], **HASH}
    owner = {"apiVersion": "apps/v1", "kind": "Deployment", "name": own["name"], "uid": own["uid"], "controller": True}
    return {
        "apiVersion": "apps/v1",
        "kind": "ReplicaSet",
        "metadata": {
            "name": f"{own['name']}-many",
            "namespace": own["namespace"],
            "labels": labels,
            "ownerReferences": [owner],
        },
        "spec": {
            "replicas": deployment["spec"]["replicas"],
            "selector": {"matchLabels": labels},
            "template": {**template, "metadata": {**template["metadata"], "labels": labels}},
        },
    }


def _until_ready(cluster: Cluster, namespace: str, services: Sequence[ServiceSpec]) -> None:
    """Wait until the controllers have adopted all pods, and have counted them."""
    until, pause = time.monotonic() + READY_S, threading.Event()
    count = sum(service.shape.instances for service in services)
    while (ready := sum(_ready(deployment) for deployment in cluster.find("Deployment", namespace)[0])) < count:
        if time.monotonic() > until:
            raise NotMeasuredError(f"{ready} of {count} pods are counted as ready after {READY_S:g} s")
        pause.wait(2)


def _ready(deployment: Manifest) -> int:
    ready_count: int = deployment.get("status", {}).get("readyReplicas", 0)
    return ready_count


def _time_commands(folder: Path, app: sf.Application, sizes: Sizes) -> dict[str, float]:
    """Time commands, each a process of its own."""
    instances, listed = _command(folder, "services", "--json")
    own = [entry for entry in json.loads(listed) if entry["app"] == app.name]
    if (len(own), sum(len(service["instances"]) for service in own)) != (sizes.services, sizes.pods):
        raise NotMeasuredError(f"{len(own)} services were listed, not {sizes.services}")
    (folder / "app.py").write_text(
        "import scanflow as sf\n"
        f"w = sf.Workflow(name={app.workflows[0].name!r}, type='online', "
        "nodes=[sf.Service(name='s', implementation='s.py:S')])\n"
        f"app = sf.Application(name={app.name!r}, team={TEAM!r}, workflows=[w])\n"
    )
    return {
        "services_s": _command(folder, "services")[0],
        "instances_s": instances,
        "plan_s": _command(folder, "plan", "app.py")[0],
        "doing_nothing_s": _command(folder, "--version")[0],
    }


def _command(folder: Path, *words: str) -> tuple[float, str]:
    environ = {**os.environ, "SCANFLOW_BACKEND": "kubernetes", "SCANFLOW_HOME": str(folder / "home")}
    began = time.perf_counter()
    done = subprocess.run(
        [sys.executable, "-m", "scanflow_client", *words], cwd=folder, env=environ, capture_output=True, text=True
    )
    took = time.perf_counter() - began
    if done.returncode != 0:
        raise NotMeasuredError(f"scanflow {words[0]}: {done.stderr[-500:]}")
    return took, done.stdout


class _Counted(ServerProcess):
    """A server whose requests to the API server are counted."""

    @property
    def command(self) -> list[str]:
        return [sys.executable, "-m", "tests.benchmarks.counted_server", str(self.counts)]

    @property
    def counts(self) -> Path:
        return self.home.parent / "counts.json"

    def read_counts(self) -> dict[str, Any]:
        try:
            document: dict[str, Any] = json.loads(self.counts.read_text())
        except FileNotFoundError:
            return {"asked": 0, "ticks": []}
        return document


def _measure_controllers(folder: Path, sizes: Sizes) -> dict[str, float]:
    server = _Counted(folder / "server", environ={**os.environ, **OWN, "SCANFLOW_BACKEND": "kubernetes"})
    pause = threading.Event()
    try:
        server.start()
        until, watched = time.monotonic() + SETTLES_S, time.monotonic() + WATCHED_S
        while len(server.read_counts()["ticks"]) < 10 or time.monotonic() < watched:
            if time.monotonic() > until:
                raise NotMeasuredError(f"the server did not look: {server.log.read_text()[-500:]}")
            pause.wait(0.5)
        before = server.read_counts()
        pause.wait(sizes.idle_s)
        after = server.read_counts()
        ticks = after["ticks"]
        return {
            "status_s": _took(server, "/status"),
            "listed_s": _took(server, "/services"),
            "reconcile_s": ticks[0],
            "look_s": statistics.median(ticks[len(before["ticks"]) :]),
            "asked_per_s": (after["asked"] - before["asked"]) / sizes.idle_s,
            "memory_mb": pss_mib(psutil.Process(server.pid)) * 1024 * 1024 / 1e6,
        }
    finally:
        server.close()


def _took(server: ServerProcess, path: str) -> float:
    began = time.perf_counter()
    reply = server.api.get(path)
    if reply.status_code != 200:
        raise NotMeasuredError(f"GET {path}: {reply.status_code}: {reply.text[:300]}")
    return time.perf_counter() - began
