"""A namespace that somebody made, and all that works in it with the stock role ``admin`` of it alone."""

from __future__ import annotations

import base64
import os
import secrets
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

import scanflow as sf
from scanflow.application_loading import load_application
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kubernetes import Kubernetes
from scanflow.backends.kubernetes.object_labels import derive_namespace
from scanflow.backends.service_change import Deployment, ServiceChange
from scanflow.deployer import EmbeddedDeployer, RunRequest, TaskLog
from scanflow.deployer.direct_predictions import predict
from scanflow.knowledge.model_cache import ModelCache
from scanflow.settings import Settings
from tests.waiting import patient, wait_until

pytestmark = [
    pytest.mark.cluster,
    pytest.mark.timeout(600),
    pytest.mark.skipif(shutil.which("kubectl") is None, reason="the program kubectl is not installed"),
]
IMAGE = os.environ.get("SCANFLOW_TEST_MPI_IMAGE", "lab/mpi:1")
APP, TEAM = "rights", f"t{secrets.token_hex(3)}"
APPLICATION = """\
import scanflow as sf


@sf.step
def load() -> int:
    print("loaded")
    return 20


@sf.step
def train(value: int, fails: bool = {fails}) -> int:
    if fails:
        raise SystemExit("not yet")
    return value + 1


small, data = sf.Resources(cpu=0.05, memory="64Mi"), load.bind()
model = sf.Service(name="double", implementation="model.py:Double")
ring = sf.MPIWorkload(name="ring", mainfile="ring.py", n_tasks=2, resources_per_task=small)
app = sf.Application(
    name="{app}",
    team="{team}",
    workflows=[
        sf.Workflow(name="flow", nodes=[data, train.bind(data)]),
        sf.Workflow(name="{app}-{team}", type="online", nodes=[model]),
        sf.Workflow(name="job", type="mpi", nodes=[ring]),
    ],
)
"""
FILES = {
    "model.py": "class Double:\n    def predict(self, X):\n        return X * 2\n",
    "ring.py": "from mpi4py import MPI\nprint(MPI.COMM_WORLD.Get_rank(), flush=True)\n",
}


def kubectl(*words: str) -> str:
    return subprocess.run(["kubectl", *words], check=True, capture_output=True, text=True, timeout=patient(60)).stdout


@pytest.fixture(scope="module")
def namespace(cluster: Cluster) -> Iterator[str]:
    """The namespace, of a name that says nothing of the application, and beside it one for its user."""
    name = f"rights-{secrets.token_hex(3)}"
    for namespace in (name, f"{name}-user"):
        cluster.create({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}})
    kubectl("-n", f"{name}-user", "create", "serviceaccount", "ada")
    kubectl("-n", name, "create", "rolebinding", "ada", "--clusterrole=admin", f"--serviceaccount={name}-user:ada")
    yield name
    for namespace in (name, f"{name}-user"):
        cluster.delete("Namespace", namespace)


@pytest.fixture(scope="module")
def kubeconfig(cluster: Cluster, namespace: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The kubeconfig of who has the role."""
    user = f"{namespace}-user"
    metadata = {"name": "ada", "namespace": user, "annotations": {"kubernetes.io/service-account.name": "ada"}}
    cluster.create(
        {"apiVersion": "v1", "kind": "Secret", "metadata": metadata, "type": "kubernetes.io/service-account-token"}
    )

    def read_token() -> str:
        secret = cluster.get("Secret", "ada", user) or {}
        return base64.b64decode(secret.get("data", {}).get("token", "")).decode()

    wait_until(read_token, "the account has a token")
    config = yaml.safe_load(Path(os.environ["KUBECONFIG"]).read_text(encoding="utf-8"))
    config["users"] = [{"name": "ada", "user": {"token": read_token()}}]
    for context in config["contexts"]:
        context["context"]["user"] = "ada"
    path = tmp_path_factory.mktemp("ada") / "config"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    path.chmod(0o600)
    return path


@pytest.fixture
def deployer(
    settings: Settings,
    namespace: str,
    kubeconfig: Path,
    base_image: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> Iterator[EmbeddedDeployer]:
    own = {"KUBECONFIG": str(kubeconfig), "NAMESPACE": namespace, "IMAGE": base_image, "MPI_IMAGE": IMAGE}
    own |= {"STORAGE_MODE": "ReadWriteOnce", "STORAGE_SIZE": "1Gi"}
    for name, text in own.items():
        monkeypatch.setenv(f"SCANFLOW_KUBERNETES_{name}", text)
    models = ModelCache(tmp_path / "models", lambda: pytest.fail("There is no model."))
    backend = Kubernetes(settings, lambda _: models)
    yield EmbeddedDeployer(settings, backend=backend)
    backend.cluster.close()


def write(folder: Path, *, fails: bool = False) -> sf.Application:
    files = {**FILES, "app.py": APPLICATION.format(app=APP, team=TEAM, fails=fails)}
    for name, text in files.items():
        (folder / name).write_text(text, encoding="utf-8")
    return load_application(str(folder / "app.py"))[0]


def read(deployer: EmbeddedDeployer, run: str, task: str) -> bytes:
    return b"".join(part.data for part in deployer.logs(TaskLog(run, task)))


def test_runs_services_and_the_end_of_all_of_it(
    deployer: EmbeddedDeployer, cluster: Cluster, namespace: str, tmp_path: Path
) -> None:
    app = write(tmp_path, fails=True)
    failed = deployer.run(RunRequest(app, "flow"))
    assert (failed.state, failed.model_dump()["namespace"]) == ("failed", namespace)
    record = deployer.run(RunRequest(write(tmp_path), run=failed.name))
    assert deployer.outputs(record.name, "train") == {"result": 21}
    assert read(deployer, record.name, "load") == b"loaded\n"
    service = f"{APP}-{TEAM}"
    deployer.deploy(Deployment(app, service))
    [outputs] = predict(deployer, service, [[1, 2]]).outputs.values()
    assert outputs.tolist() == [[2, 4]]
    assert deployer.change(service, ServiceChange(instances=2)).shape.instances == 2
    assert [listed.name for listed in deployer.services()] == [service]
    deployer.delete(service)
    deleted = deployer.environments(app).delete(app)
    assert (deleted.namespace_removed, "PersistentVolumeClaim scanflow-outputs" in deleted.removed) == (False, True)
    assert cluster.get("Namespace", namespace) is not None
    assert cluster.get("Namespace", derive_namespace(APP, TEAM)) is None


def test_what_the_doctor_tells_the_owner_of_the_cluster_to_run_is_enough_for_a_job(
    deployer: EmbeddedDeployer, cluster: Cluster, tmp_path: Path
) -> None:
    if not cluster.has_kind("Job"):
        pytest.skip("the cluster has no Volcano")
    for finding in deployer.backend.doctor():
        if finding.what == "rights" and finding.mark == "✗":
            subprocess.run(["bash", "-c", finding.advice], check=True, timeout=patient(60))
    assert [finding.found for finding in deployer.backend.doctor() if finding.mark == "✗"] == []
    record = deployer.run(RunRequest(write(tmp_path), "job"))
    assert record.state == "succeeded"
    assert {b"0", b"1"} <= set(read(deployer, record.name, "ring").split())
