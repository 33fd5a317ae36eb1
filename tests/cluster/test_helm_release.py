"""The platform on a real cluster: the chart is installed, used from outside, upgraded, rolled back and removed.

``SCANFLOW_KUBERNETES_REGISTRY`` names the registry, which is spoken to in plain HTTP; this checkout's code is put upon
of the images that it has. Needs the programs ``helm`` and ``kubectl``.
"""

from __future__ import annotations

import base64
import json
import os
import re
import shutil
import subprocess
import sys
import uuid
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.object_labels import derive_namespace
from scanflow.images.image_registry import has_image
from tests.cluster.images import CHECKOUT, refresh
from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(400)]

CHART = CHECKOUT / "deploy" / "helm" / "scanflow"
PATIENCE_S = 120.0
NAME = "scanflow"
FORWARDED = re.compile(r"Forwarding from (127\.0\.0\.1:\d+)")

NOTEBOOK = """
import os
import scanflow as sf

@sf.step
def make(count: int = 2) -> list:
    return list(range(count))

@sf.step
def total(numbers: list) -> int:
    return sum(numbers)

made = make.bind()
app = sf.Application(name="NAME", team="tests", workflows=[sf.Workflow(name="w", nodes=[made, total.bind(made)])])
client = sf.Client(os.environ["SCANFLOW_URL"], token=os.environ["SCANFLOW_TOKEN"], progress=False)
print(client.run(app, parameters={"count": 4}).state, client.output("total"))
"""


def run(*words: str, input: str | None = None, **environ: str) -> str:
    done = subprocess.run(
        words, input=input, capture_output=True, text=True, timeout=240, env={**os.environ, **environ}
    )
    assert done.returncode == 0, f"{words[:4]}: {done.stdout}{done.stderr}"
    return done.stdout


class Release:
    """One installation of the chart, in a namespace of its own."""

    def __init__(self, cluster: Cluster, tag: str, folder: Path) -> None:
        self.cluster, self.tag, self.folder = cluster, tag, folder
        self.namespace = f"scanflow-helm-{uuid.uuid4().hex[:6]}"
        small = {"requests": {"cpu": "50m", "memory": "128Mi"}}
        self.values: dict[str, Any] = {
            "server": {"image": {"tag": tag}, "resources": small, "home": {"size": "1Gi"}},
            "tracker": {"enabled": False},
            "kubernetes": {"storageMode": "ReadWriteOnce"},
        }

    def helm(self, command: str, *words: str) -> str:
        return run("helm", command, NAME, *words, "--namespace", self.namespace)

    def put(self, command: str, *words: str) -> str:
        file = self.folder / "values.yaml"
        file.write_text(json.dumps(self.values))
        return self.helm(command, str(CHART), "--values", str(file), "--wait", "--timeout", "3m", *words)

    def secret(self, name: str, key: str) -> str:
        secret = self.cluster.get("Secret", name, self.namespace)
        assert secret is not None
        return base64.b64decode(secret["data"][key]).decode()

    def pod(self) -> str:
        """Return the pod of the server that acts, once its kubelet says that it runs: a server that has just begun may
        act before that, and nobody is forwarded to it yet."""
        pods, _ = self.cluster.find("Pod", self.namespace, labels="scanflow.dev/leader=true")
        running = [
            str(manifest["metadata"]["name"])
            for manifest in pods
            if manifest.get("status", {}).get("phase") == "Running"
        ]
        return running[0] if running else ""

    @contextmanager
    def open_client(self) -> Iterator[Callable[..., str]]:
        """Reach the server from outside the cluster, as its notes say; yields what runs a command of scanflow, or with
        ``program=`` a file of Python."""
        (self.folder / "ca.crt").write_text(self.secret(f"{NAME}-tls", "ca.crt"))
        wait_until(lambda: bool(self.pod()), "a server acts", patience_s=PATIENCE_S)
        words = ["kubectl", "-n", self.namespace, "port-forward", f"pod/{self.pod()}", ":46666"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as forward:
            try:
                assert forward.stdout is not None
                match = FORWARDED.search(line := forward.stdout.readline())
                assert match is not None, line
                environ = {
                    "SCANFLOW_URL": f"https://{match.group(1)}",
                    "SCANFLOW_TOKEN": self.secret(f"{NAME}-token", "token"),
                    "SCANFLOW_TLS_CA": str(self.folder / "ca.crt"),
                    "SCANFLOW_HOME": str(self.folder / "home"),
                }

                def run_client(*arguments: str, program: Path | None = None) -> str:
                    what = ("-m", "scanflow_client") if program is None else (str(program),)
                    return run(sys.executable, *what, *arguments, **environ)

                yield run_client
            finally:
                forward.terminate()


@contextmanager
def make_release(cluster: Cluster, folder: Path, *, more: Sequence[str] = ()) -> Iterator[Release]:
    """Give a release that is not installed yet, of images with this checkout's code; it is removed at the end.

    ``more``: names of images that it needs beside those of the server, agents and instances.
    """
    for program in ("helm", "kubectl"):
        if shutil.which(program) is None:
            pytest.skip(f"the program {program} is not installed")
    registry = os.environ.get("SCANFLOW_KUBERNETES_REGISTRY")
    if not registry:
        pytest.skip("SCANFLOW_KUBERNETES_REGISTRY names no registry")
    names = ["scanflow/server", "scanflow/agent", "scanflow/base", *more]
    for name in names:
        if not has_image(f"{registry}/{name}:latest", insecure=True):
            pytest.skip(f"the registry has no image {name}: python -m tests.cluster.images --name {name}")
    tags = [refresh(CHECKOUT, registry, name).rpartition(":")[2] for name in names]
    release = Release(cluster, tags[0], folder)
    try:
        yield release
    finally:
        subprocess.run(
            ["helm", "uninstall", NAME, "--namespace", release.namespace], capture_output=True, timeout=120, check=False
        )
        for kind in ("ClusterRole", "ClusterRoleBinding"):
            cluster.delete(kind, f"{release.namespace}-{NAME}")
        cluster.delete("Namespace", release.namespace)


@pytest.fixture(scope="module")
def release(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Release]:
    with make_release(cluster, tmp_path_factory.mktemp("release")) as release:
        release.put("install", "--create-namespace")
        yield release


def test_the_server_is_reached_from_outside_over_tls_with_its_token(release: Release) -> None:
    with release.open_client() as scanflow:
        status = json.loads(scanflow("status", "--json"))
    assert "scanflow" in json.dumps(status)
    lease = release.cluster.get("Lease", NAME, release.namespace)
    assert lease is not None
    assert lease["spec"]["holderIdentity"] == release.pod()


def test_an_agent_runs_as_a_pod_and_its_journal_is_kept_when_it_is_stopped(release: Release, tmp_path: Path) -> None:
    name = f"helm{uuid.uuid4().hex[:6]}"
    (tmp_path / "app.py").write_text(
        "import scanflow as sf\n"
        f"app = sf.Application(name={name!r}, team='tests', agents=[sf.Agent(name='checker', template='tracker')])\n"
    )
    namespace = derive_namespace(name, "tests")

    def list_agents(scanflow: Callable[..., str]) -> list[dict[str, Any]]:
        document: list[dict[str, Any]] = json.loads(scanflow("agents", name, "--json"))
        return document

    try:
        with release.open_client() as scanflow:
            scanflow("agents", "--start", str(tmp_path / "app.py"))
            wait_until(lambda: list_agents(scanflow)[0]["state"] == "running", "the agent runs", patience_s=PATIENCE_S)
            assert list_agents(scanflow)[0]["url"] == f"http://agent-checker.{namespace}.svc:8080"
            journal = json.loads(scanflow("agents", f"{name}:checker", "--journal", "--json"))
            assert journal == [], "it is read, and nothing has happened yet"
            scanflow("agents", "--stop", f"{name}:checker")
            wait_until(
                lambda: list_agents(scanflow)[0]["state"] == "stopped", "the agent has ended", patience_s=PATIENCE_S
            )
        assert release.cluster.get("Deployment", "agent-checker", namespace) is None
        assert release.cluster.get("PersistentVolumeClaim", "agent-checker", namespace) is not None
    finally:
        release.cluster.delete("Namespace", namespace)


def test_a_notebook_s_steps_run_in_pods_that_the_server_in_its_pod_asks_for(release: Release, tmp_path: Path) -> None:
    name = f"helm{uuid.uuid4().hex[:6]}"
    (tmp_path / "notebook.py").write_text(NOTEBOOK.replace("NAME", name))
    try:
        with release.open_client() as scanflow:
            assert scanflow(program=tmp_path / "notebook.py").split() == ["succeeded", "6"]
        runs, _ = release.cluster.find("Workflow", derive_namespace(name, "tests"))
        assert [run["status"]["phase"] for run in runs] == ["Succeeded"]
    finally:
        release.cluster.delete("Namespace", derive_namespace(name, "tests"))


def test_an_upgrade_and_a_rollback_keep_the_token_the_certificate_and_what_the_server_knows(release: Release) -> None:
    def read_secrets() -> Sequence[str]:
        secrets = [release.secret(f"{NAME}-token", "token"), release.secret(f"{NAME}-tls", "tls.crt")]
        with release.open_client() as scanflow:
            return [*secrets, scanflow("token", "list", "--json")]

    def most_runs() -> str:
        deployment = release.cluster.get("Deployment", NAME, release.namespace)
        assert deployment is not None
        env = deployment["spec"]["template"]["spec"]["containers"][0]["env"]
        return next(str(variable["value"]) for variable in env if variable["name"] == "SCANFLOW_MAX_RUNS")

    with release.open_client() as scanflow:
        scanflow("token", "make", "ada")
    before, first = read_secrets(), release.pod()
    release.values["server"]["maxRuns"] = 3
    release.put("upgrade")
    assert (read_secrets(), most_runs()) == (before, "3")
    assert release.pod() != first
    release.helm("rollback", "1", "--wait", "--timeout", "3m")
    assert (read_secrets(), most_runs()) == (before, "8")


def test_what_holds_data_and_secrets_stays_when_the_release_is_removed(release: Release) -> None:
    release.helm("uninstall", "--wait", "--timeout", "2m")
    for kind in ("Deployment", "Service", "Role", "PodDisruptionBudget", "NetworkPolicy"):
        leftovers, _ = release.cluster.find(kind, release.namespace)
        assert leftovers == []
    assert release.cluster.get("ClusterRole", f"{release.namespace}-{NAME}") is None
    assert release.cluster.get("PersistentVolumeClaim", f"{NAME}-home", release.namespace) is not None
    assert release.secret(f"{NAME}-token", "token").startswith("scanflow_")
