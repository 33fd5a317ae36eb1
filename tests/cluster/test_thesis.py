"""The thesis' listings on a real cluster, as printed but for addresses: 5.1 and 5.2 by Argo and by Seldon, and those of
an agent, 5.4 to 5.6, as a pod."""

from __future__ import annotations

import json
import os
import shutil
import socket
import uuid
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

import scanflow as sf
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.object_labels import build_selector, derive_namespace
from scanflow.client import ScanflowClient, ScanflowDeployerClient
from scanflow.errors import MissingExtraError, UnsupportedError
from scanflow.images.builders import get_builder
from scanflow.transport import ServerClient
from tests.cluster.batch import GIVEN
from tests.cluster.images import CHECKOUT, mounts, refresh
from tests.server import ServerProcess
from tests.thesis import LISTINGS, listing_5_1, write_steps
from tests.waiting import wait_until

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(300)]

PREDICTOR = """
class Predictor:
    def __init__(self, by=1):
        self.by = by

    def predict(self, X, names=None, meta=None):
        return X * self.by
"""
CHECKER = """
from scanflow.agent.sensors.sensor import sensor

@sensor()
async def analyze_check_predictions(args, kwargs):
    print("analysed:", len(kwargs["run_ids"]), flush=True)
"""

PREDICTIONS = """
import argparse, mlflow
parser = argparse.ArgumentParser()
parser.add_argument("--count", type=int)
with mlflow.start_run(run_name="predictor-batch"):
    mlflow.log_metric("n_predictions", parser.parse_args().count)
"""


@pytest.fixture
def app_name(cluster: Cluster, home: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """A name of its own for the listing's application, whose environment is removed at the end."""
    for name, text in {"SCANFLOW_KUBERNETES_STORAGE_MODE": "ReadWriteOnce", **GIVEN}.items():
        monkeypatch.setenv(name, text)
    name = f"mnist{uuid.uuid4().hex[:6]}"
    yield name
    cluster.delete("Namespace", derive_namespace(name, "data"))


@pytest.fixture
def registry(monkeypatch: pytest.MonkeyPatch) -> str:
    """The registry that built images are pushed to."""
    registry = GIVEN.get("SCANFLOW_KUBERNETES_REGISTRY")
    if not registry:
        pytest.skip("SCANFLOW_KUBERNETES_REGISTRY names no registry")
    try:
        get_builder()
    except MissingExtraError as error:
        pytest.skip(str(error))
    monkeypatch.setenv("SCANFLOW_IMAGES_INSECURE", "1")
    monkeypatch.setenv("SCANFLOW_IMAGES_OPTIONS", " ".join(["--network host", *mounts()]))
    return registry


def test_listings_5_1_and_5_2_build_and_run_an_application_by_argo(
    app_name: str, cluster: Cluster, registry: str, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / "app"
    folder.mkdir()
    write_steps(folder)
    (folder / "req_modeling.txt").write_text("humanize==4.9.0\n")
    monkeypatch.setenv("SCANFLOW_KUBERNETES_IMAGE", f"{registry}/{refresh(CHECKOUT, registry)}")
    build_app = listing_5_1(
        str(folder),
        "req_modeling.txt",
        app_name=app_name,
        client=ScanflowClient(scanflow_server_uri="http://172.30.0.50:46666", registry=registry, verbose=False),
    )

    deployerClient = ScanflowDeployerClient(  # noqa: N806  as printed
        user_type="local", deployer="argo", k8s_config_file=os.environ["KUBECONFIG"], verbose=False
    )
    assert deployerClient.create_environment(app=build_app) == derive_namespace(app_name, "data")
    (run,) = deployerClient.run_app(app=build_app)
    deployerClient.delete_app(app=build_app)

    assert (run.state, run.workflow) == ("succeeded", "mnist-wf")
    client = sf.Client(home=home, backend="kubernetes")
    assert client.output("modeling-cnn1", "read", run=run.name) == [app_name] * 4
    (workflow,), _ = cluster.find("Workflow", run.namespace)
    assert workflow["status"]["phase"] == "Succeeded"
    tracker = cluster.get("Deployment", "tracker", run.namespace)
    assert tracker is not None, "trackerPort=46668 asks for one"
    assert deployerClient.clean_environment(build_app) == []
    assert cluster.get("Namespace", run.namespace) is None


def test_listing_5_2_and_the_terms_of_notebooks_serve_an_application_by_seldon(
    app_name: str, cluster: Cluster, base_image: str, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    try:
        cluster.find("SeldonDeployment", "default")
    except UnsupportedError as error:
        pytest.skip(str(error))
    monkeypatch.setenv("SCANFLOW_KUBERNETES_IMAGE", base_image)
    monkeypatch.setenv("SCANFLOW_KUBERNETES_PROMETHEUS", "http://prometheus.monitoring:9090")
    (tmp_path / "Predictor.py").write_text(PREDICTOR)
    client = ScanflowClient(scanflow_server_uri="http://172.30.0.50:46666", verbose=False)
    trigger = client.ScalerTriggerPrometheus(
        serverAddress="http://prometheus.monitoring:9090", metricName="requests_total", query="sum(...)", threshold="20"
    )
    predictor = client.ScanflowService(
        name="predictor",
        mainfile="Predictor.py",
        service_type="MODEL",
        parameters=[{"name": "by", "value": "3", "type": "INT"}],
        resources=client.V1ResourceRequirements(requests={"cpu": "100m", "memory": "128Mi"}),
    )
    online = client.ScanflowWorkflow(
        name="predictor",
        nodes=[predictor],
        type="online",
        kedaSpec=client.KedaSpec(triggers=[trigger], minReplicaCount=1, maxReplicaCount=2),
    )
    build_app = client.build_ScanflowApplication(
        client.ScanflowApplication(app_name, str(tmp_path), "data", workflows=[online])
    ).replace(tracker=None)

    deployerClient = ScanflowDeployerClient(  # noqa: N806  as printed
        user_type="local", deployer="seldon", k8s_config_file=os.environ["KUBECONFIG"], verbose=False
    )
    namespace = str(deployerClient.create_environment(app=build_app))
    (record,) = deployerClient.run_app(app=build_app)
    assert record.state == "ready"
    assert deployerClient.predict("predictor", [4]).tolist() == [12]
    (served,), _ = cluster.find("SeldonDeployment", namespace)
    assert "seldon.io/no-engine" in json.dumps(served["spec"])
    assert len(cluster.find("ScaledObject", namespace)[0]) == 1
    deployerClient.delete_app(app=build_app)
    assert cluster.find("SeldonDeployment", namespace)[0] == []

    again = deployerClient.deploy_workflow(app_name, "data", online, str(tmp_path))
    assert again.state == "ready"
    deployerClient.delete_workflow(app_name, "data", online)
    assert cluster.find("ScaledObject", namespace)[0] == []
    deployerClient.clean_environment(build_app)
    assert cluster.get("Namespace", namespace) is None


def test_the_agents_of_listings_5_4_to_5_6_run_as_pods_and_one_calls_the_other(
    app_name: str, cluster: Cluster, tmp_path: Path, home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    registry = GIVEN.get("SCANFLOW_KUBERNETES_REGISTRY")
    if not registry:
        pytest.skip("SCANFLOW_KUBERNETES_REGISTRY names no registry")
    monkeypatch.setenv("SCANFLOW_KUBERNETES_AGENT_IMAGE", refresh(CHECKOUT, registry, "scanflow/agent"))
    agents = tmp_path / "app" / "agents"
    agents.mkdir(parents=True)
    for listing in LISTINGS.glob("*.txt"):
        shutil.copy(listing, agents / f"{listing.stem.split('_', 2)[2]}.py")
    (agents / "checks.py").write_text(CHECKER)
    (tmp_path / "app" / "predict.py").write_text(PREDICTIONS)
    client = ScanflowClient(verbose=False)
    often = sf.Sensor(name="count_number_of_predictions", trigger=sf.every(seconds=5))
    called = sf.Sensor(name="analyze_check_predictions", trigger=sf.on_call())
    tracker = client.ScanflowAgent(name="tracker", sensors=[often], modules=["agents/custom_sensors.py"])
    checker = client.ScanflowAgent(name="checker", sensors=[called], modules=["agents/checks.py"])
    predictor = client.ScanflowExecutor(name="predictor", mainfile="predict.py", parameters={"count": 1000})
    batch = client.ScanflowWorkflow(name="batch", nodes=[predictor], type="batch")
    folder = str(tmp_path / "app")
    build_app = client.build_ScanflowApplication(
        client.ScanflowApplication(app_name, folder, "data", workflows=[batch], agents=[tracker, checker]),
        trackerPort=46668,
    )
    environ = {"SCANFLOW_BACKEND": "kubernetes", "SCANFLOW_BEHIND_PROXY": "1"}
    server = ServerProcess(tmp_path / "server", host=_own_address(cluster), environ=environ)
    server.start()
    try:
        monkeypatch.setenv("SCANFLOW_TOKEN", server.token)
        deployerClient = ScanflowDeployerClient(  # noqa: N806  as printed
            user_type="incluster", deployer="argo", scanflow_server_uri=server.url, verbose=False
        )
        deployerClient.create_environment(app=build_app)
        deployerClient.start_agents(app_name, "data", build_app.agents, folder)
        wait_until(lambda: _states(deployerClient, app_name) == {"running"}, "both agents run", patience_s=120)
        (run,) = deployerClient.run_app(app=build_app)
        assert run.state == "succeeded"
        wait_until(
            lambda: "analysed: 1" in _read_pod_output(cluster, derive_namespace(app_name, "data"), "checker"),
            "the tracker's sensor has counted 1000 predictions, and called the checker's",
            patience_s=90,
        )
        wait_until(
            lambda: all(_count_firings(deployerClient, app_name)),
            "both have said that their sensors fired",
            patience_s=20,
        )
        _delete_of_an_agent(cluster, derive_namespace(app_name, "data"), server)
    finally:
        server.close()


def _count_firings(client: ScanflowDeployerClient, app: str) -> list[int]:
    return [sum(sensor.fired for sensor in agent.sensors or ()) for agent in client.agents(app)]


def _delete_of_an_agent(cluster: Cluster, namespace: str, server: ServerProcess) -> None:
    """Delete the Service of one as somebody would; see that it is made again, and told of."""
    cluster.delete("Service", "agent-checker", namespace)
    wanted = f"recreated the Service {namespace}/agent-checker, which another client deleted"

    def list_messages() -> list[Any]:
        with closing(ServerClient(server.url, token=server.token)) as client:
            return [event["data"]["text"] for event in client.get("/events", type="agent.mended")]

    wait_until(lambda: list_messages() == [wanted], "the event agent.mended", patience_s=30)
    assert cluster.get("Service", "agent-checker", namespace) is not None


def _read_pod_output(cluster: Cluster, namespace: str, agent: str) -> str:
    """Return what an agent's pods have printed."""
    pods, _ = cluster.find("Pod", namespace, labels=build_selector(agent=agent))
    return b"".join(part for pod in pods for part in cluster.log(pod["metadata"]["name"], namespace)).decode()


def _states(client: ScanflowDeployerClient, app: str) -> set[str]:
    return {f"{agent.error or agent.state}" for agent in client.agents(app)}


def _own_address(cluster: Cluster) -> str:
    """Return this machine's address as the cluster's nodes see it."""
    api = urlsplit(cluster.address)
    with socket.create_connection((api.hostname or "", api.port or 443), timeout=5) as connection:
        return str(connection.getsockname()[0])
