"""What runs cost on a cluster: until a run's Workflow is there, and what its steps take over those written by hand.

They need ``KUBECONFIG``, and the settings ``SCANFLOW_KUBERNETES_...`` that tests on a cluster need too. Each sample
makes a namespace of its own, and removes it.
"""

from __future__ import annotations

import os
import statistics
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import partial
from itertools import pairwise
from pathlib import Path
from typing import Any, Final, cast

import scanflow as sf
from scanflow.backends.backend_port import Models
from scanflow.backends.kubernetes.batch import pod_layout
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.environment.manifests import OUTPUTS
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.kubernetes import Kubernetes
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scanflow.backends.kubernetes.object_labels import derive_namespace
from scanflow.deployer import EmbeddedDeployer, RunRequest
from scanflow.settings import Settings
from tests.benchmarks.cluster_many import Sizes, many
from tests.benchmarks.measure import Benchmark, Metric, NotMeasuredError, Section

TEAM: Final = "bench"
STEPS: Final = 4
ENDED_S: Final = 300.0
FULL: Final = Sizes()
NOWHERE: Final = sf.Affinity(node_selector={"scanflow.dev/nowhere": "here"})
"""Of pods that are to take no core of those who are measured."""

SUBMIT_SECTION = Section(
    group="cluster",
    title="From a run to its Workflow",
    columns=("Scanflow", "its last request alone"),
    text="The API server shares the cores with what asks it, and with the rest of the cluster.",
)
STEP_SECTION = Section(
    group="cluster", title="Steps on Argo Workflows", columns=("Scanflow", "a Workflow written by hand")
)


class _CreatedError(Exception):
    """The Workflow was made: what is measured ends there."""


class _CountingCluster(Cluster):
    """A cluster that counts what it is asked, and goes no further than the Workflow."""

    asked = 0
    workflow: Manifest | None = None

    def create(self, manifest: Manifest, *, dry_run: bool = False) -> Manifest:
        created = super().create(manifest, dry_run=dry_run)
        if manifest["kind"] != "Workflow":
            return created
        self.workflow = created
        raise _CreatedError

    def fetch_json(self, method: str, path: str, **request: Any) -> Manifest:
        self.asked += 1
        return super().fetch_json(method, path, **request)

    def fetch_text(self, path: str, *, timeout_s: float | None = None) -> str:
        self.asked += 1
        return super().fetch_text(path, timeout_s=timeout_s)


class _Place:
    """An application of its own on the cluster."""

    def __init__(self, folder: Path, steps: int, affinity: sf.Affinity | str) -> None:
        (folder / "app").mkdir()
        (folder / "app" / "step.py").write_text("print(1)\n")
        nodes = [sf.Executor(name=f"s{number}", mainfile="step.py", affinity=affinity) for number in range(steps)]
        edges = [first >> other for first, other in pairwise(nodes)]
        workflow = sf.Workflow(name="w", nodes=nodes, edges=edges)
        name = f"bench{uuid.uuid4().hex[:6]}"
        self.folder, self.namespace = folder, derive_namespace(name, TEAM)
        self.app = sf.Application(name=name, team=TEAM, app_dir=str(folder / "app"), workflows=[workflow])
        self.settings = KubernetesSettings.from_environment(
            {"SCANFLOW_KUBERNETES_STORAGE_MODE": "ReadWriteOnce", **os.environ}
        )
        self.cluster = _CountingCluster(self.settings)

    def deployer(self) -> EmbeddedDeployer:
        settings = Settings(home=self.folder / "home")
        backend = Kubernetes(settings, lambda _: cast("Models", None))
        backend.__dict__["cluster"] = self.cluster
        return EmbeddedDeployer(settings, backend=backend)

    def submit(self, deployer: EmbeddedDeployer) -> Manifest:
        """Begin a run, and return once its Workflow is there."""
        try:
            deployer.run(RunRequest(self.app))
        except _CreatedError:
            assert self.cluster.workflow is not None
            return self.cluster.workflow
        raise NotMeasuredError("the run made no Workflow")


@contextmanager
def _place(folder: Path, *, steps: int, affinity: sf.Affinity | str = "any") -> Iterator[_Place]:
    with _keep_volumes_mounted():
        place_ = _Place(folder, steps, affinity)
        try:
            yield place_
        finally:
            place_.cluster.delete("Namespace", place_.namespace)
            place_.cluster.close()


@contextmanager
def _keep_volumes_mounted() -> Iterator[None]:
    """Have the cluster's volumes mounted by one node, unless the environment says otherwise."""
    name = "SCANFLOW_KUBERNETES_STORAGE_MODE"
    is_set = name in os.environ
    os.environ.setdefault(name, "ReadWriteOnce")
    try:
        yield
    finally:
        if not is_set:
            del os.environ[name]


def cluster(*, submits: int = 20, steps: int = STEPS, sizes: Sizes = FULL) -> list[Benchmark]:
    """Return the benchmarks. None of them is measured where no cluster is named."""
    if not os.environ.get("KUBECONFIG"):
        return []
    return [_submit(submits), _steps(steps), many(sizes)]


def _submit(submits: int) -> Benchmark:
    def scanflow(folder: Path) -> Mapping[str, float]:
        with _place(folder, steps=3, affinity=NOWHERE) as here:
            here.submit(here.deployer())  # the environment is made, and all is imported
            firsts = [_took(here, lambda: here.submit(here.deployer())) for _ in range(max(1, submits // 5))]
            deployer = here.deployer()
            here.submit(deployer)
            more = [_took(here, lambda: here.submit(deployer)) for _ in range(submits)]
        return {**_medians("first", firsts), **_medians("more", more)}

    def alone(folder: Path) -> Mapping[str, float]:
        with _place(folder, steps=3, affinity=NOWHERE) as here:
            workflow = here.submit(here.deployer())
            copies = [_copy(workflow, f"copy-{number}") for number in range(submits)]
            return _medians("more", [_took(here, partial(_create_workflow, here, copy)) for copy in copies])

    return Benchmark(
        name="submit",
        section=SUBMIT_SECTION,
        metrics=[
            Metric("more_ms", "one more run of a client: until its Workflow is there, median", "ms", bar=150),
            Metric("more_cpu_ms", "the same: of a core, by the client", "ms"),
            Metric("more_asked", "the same: requests to the API server", ""),
            Metric("first_ms", "the first run of a client, which looks at each object of the environment", "ms"),
            Metric("first_cpu_ms", "the same: of a core, by the client", "ms"),
            Metric("first_asked", "the same: requests to the API server", ""),
        ],
        contenders={"Scanflow": scanflow, "its last request alone": alone},
        how=(
            f"a workflow of three steps, whose code a ConfigMap has; {submits} runs one after the other, from the call "
            "until the API server has answered that the Workflow is there, inside a process that has imported all; the "
            "pods are for a node that is not there. The other is the creation of the same Workflow, and nothing else"
        ),
        rounds=5,
        warm_up=False,
    )


def _create_workflow(here: _Place, manifest: Manifest) -> None:
    try:
        here.cluster.create(manifest)
    except _CreatedError:
        return


def _took(here: _Place, act: Callable[[], object]) -> tuple[float, float, int]:
    asked, cpu, began = here.cluster.asked, time.process_time(), time.perf_counter()
    act()
    return time.perf_counter() - began, time.process_time() - cpu, here.cluster.asked - asked


def _medians(key: str, took: list[tuple[float, float, int]]) -> dict[str, float]:
    wall, cpu, asked = (statistics.median(column) for column in zip(*took, strict=True))
    return {f"{key}_ms": 1000 * wall, f"{key}_cpu_ms": 1000 * cpu, f"{key}_asked": asked}


def _steps(steps: int) -> Benchmark:
    def scanflow(folder: Path) -> Mapping[str, float]:
        with _place(folder, steps=steps) as here:
            claim_s = _bind_claim(here)
            return {"seconds": _seconds(here.cluster, here.submit(here.deployer())), "claim_s": claim_s}

    def by_hand(folder: Path) -> Mapping[str, float]:
        with _place(folder, steps=steps) as here:
            _bind_claim(here)
            manifest = _by_hand(here, steps)
            _create_workflow(here, manifest)
            assert here.cluster.workflow is not None
            return {"seconds": _seconds(here.cluster, here.cluster.workflow)}

    return Benchmark(
        name="argo-steps",
        section=STEP_SECTION,
        metrics=[
            Metric(
                "seconds",
                f"a chain of {steps} steps, from its Workflow's creation to its end",
                "s",
                bar=1.05,
                against="a Workflow written by hand",
            ),
            Metric("claim_s", "before an environment's first run: until its claim has a volume", "s"),
        ],
        contenders={"Scanflow": scanflow, "a Workflow written by hand": by_hand},
        how=(
            f"a chain of {steps} steps, each a script that prints a line; the other is the same graph of containers of "
            "the same image, `python -c 'print(1)'`, with the same service account and nothing mounted; from the "
            "answer that the Workflow is there to its end, as a watch tells it, in an environment whose claim has its "
            "volume: a cluster makes that for the first pod that mounts it, once"
        ),
        rounds=5,
        warm_up=False,
    )


def _bind_claim(here: _Place) -> float:
    """Make the environment, and have the cluster make the volume of its claim; return how long that took in seconds."""
    workflow = here.submit(here.deployer())
    here.cluster.delete("Workflow", workflow["metadata"]["name"], here.namespace)
    mount = {"name": "outputs", "mountPath": str(pod_layout.OUTPUTS)}
    container = {"name": "bind", "image": here.settings.image, "command": ["true"], "volumeMounts": [mount]}
    volume = {"name": "outputs", "persistentVolumeClaim": {"claimName": OUTPUTS}}
    began = time.perf_counter()
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "bind", "namespace": here.namespace},
        "spec": {"restartPolicy": "Never", "containers": [container], "volumes": [volume]},
    }
    since = here.cluster.create(pod)["metadata"]["resourceVersion"]
    watched = here.cluster.watch("Pod", here.namespace, fields="metadata.name=bind", since=since, within_s=ENDED_S)
    if not any((seen.object.get("status") or {}).get("phase") == "Succeeded" for seen in watched):
        raise NotMeasuredError(f"the pod that mounts the claim did not end within {ENDED_S:g} s")
    return time.perf_counter() - began


def _by_hand(here: _Place, steps: int) -> Manifest:
    tasks = [
        {"name": f"s{number}", "template": "step", **({"dependencies": [f"s{number - 1}"]} if number else {})}
        for number in range(steps)
    ]
    container = {"image": here.settings.image, "command": ["python", "-c", "print(1)"]}
    templates = [{"name": "run", "dag": {"tasks": tasks}}, {"name": "step", "container": container}]
    return {
        "apiVersion": "argoproj.io/v1alpha1",
        "kind": "Workflow",
        "metadata": {"name": "by-hand", "namespace": here.namespace},
        "spec": {
            "entrypoint": "run",
            "serviceAccountName": "scanflow-step",
            "securityContext": {"runAsNonRoot": True, "runAsUser": 10001},
            "templates": templates,
        },
    }


def _copy(manifest: Manifest, name: str) -> Manifest:
    metadata = {key: manifest["metadata"][key] for key in ("namespace", "labels", "annotations")}
    return {key: manifest[key] for key in ("apiVersion", "kind", "spec")} | {"metadata": {**metadata, "name": name}}


def _seconds(cluster: Cluster, manifest: Manifest) -> float:
    """Return how long a Workflow takes from now on."""
    began, namespace, name = time.perf_counter(), manifest["metadata"]["namespace"], manifest["metadata"]["name"]
    since = manifest["metadata"]["resourceVersion"]
    for seen in cluster.watch("Workflow", namespace, fields=f"metadata.name={name}", since=since, within_s=ENDED_S):
        phase = (seen.object.get("status") or {}).get("phase")
        if phase == "Succeeded":
            return time.perf_counter() - began
        if phase in {"Failed", "Error"}:
            raise NotMeasuredError(f"the Workflow {name} has {phase}: {seen.object['status'].get('message')}")
    raise NotMeasuredError(f"the Workflow {name} did not end within {ENDED_S:g} s")
