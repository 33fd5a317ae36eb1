"""The thesis' listings 5.1, 5.2 and 6.1 as they stand there, but for addresses, paths, and a local deployer."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest

import scanflow as sf
from scanflow.client import ScanflowClient, ScanflowDeployClient, ScanflowDeployerClient
from scanflow.errors import InvalidError, StepFailedError, UnsupportedError, UsageError
from scanflow.testing.memory_cluster import MemoryCluster
from scanflow_client.thesis import Awaited
from tests.thesis import listing_5_1, write_steps


@pytest.fixture
def app(tmp_path: Path, home: Path) -> sf.Application:
    write_steps(tmp_path)
    return listing_5_1(str(tmp_path)).replace(tracker=None)


def test_listing_5_1_describes_what_the_modern_spelling_does() -> None:
    load = sf.Executor(name="load-data", mainfile="loaddata.py", parameters={"app_name": "mnist", "team_name": "data"})
    paths = {"x_train": "train_images", "y_train": "train_labels", "x_test": "test_images", "y_test": "test_labels"}
    data = {f"{name}_path": f"/workflow/load-data/mnist/data/mnist/{file}.npy" for name, file in paths.items()}
    model = sf.Executor(
        name="modeling-cnn1",
        mainfile="modeling.py",
        parameters={"model_name": "mnist_cnn", "epochs": 1, **data},
        requirements="req_modeling.txt",
    )
    workflow = sf.Workflow(name="mnist-wf", nodes=[load, model], edges=load >> model)
    modern = sf.Application(name="mnist", team="data", workflows=[workflow], tracker=sf.Tracker(port=46668))
    assert listing_5_1(".", "req_modeling.txt") == modern


@pytest.mark.processes
def test_listing_5_2_runs_it_on_this_machine(app: sf.Application, home: Path) -> None:
    deployer_client = ScanflowDeployerClient(user_type="local", deployer="local", verbose=False)
    (run,) = deployer_client.run_app(app=app)
    assert (run.state, run.app, run.workflow) == ("succeeded", "mnist", "mnist-wf")
    client = sf.Client(home=home)
    assert client.output("modeling-cnn1", "read", run=run.name) == ["mnist"] * 4
    assert client.output("modeling-cnn1", "epochs", run=run.name) == 1
    assert list(deployer_client.delete_app(app=app)) == []

    async def run_workflow() -> Any:
        awaiting = ScanflowDeployClient(deployer="local", verbose=False)
        assert await awaiting.create_environment(app=app) == "scanflow-mnist-data"
        return await awaiting.run_workflow(
            app_name="mnist", team_name="data", workflow=app.workflows[0], app_dir=str(app.app_dir)
        )

    assert asyncio.run(run_workflow()).state == "succeeded"


@pytest.mark.processes
def test_a_failure_is_an_error_and_never_false(app: sf.Application, tmp_path: Path) -> None:
    (tmp_path / "modeling.py").write_text("raise ValueError('no such epoch')\n")
    with pytest.raises(StepFailedError, match="ValueError: no such epoch"):
        ScanflowDeployerClient(verbose=False).run_app(app)


def listing_6_1(i: int, benchmark: str, expstr: str, n_tasks: int, n_nodes: int) -> sf.Workflow:
    client = ScanflowClient()
    # mpi workloads
    mpi = client.ScanflowMPIWorkload(
        name=f"{benchmark}", mainfile=f"{benchmark}-{expstr}.yaml", nTasks=n_tasks, nNodes=n_nodes
    )
    # workflow
    return client.ScanflowWorkflow(type="mpi", name=f"{benchmark}{i}", nodes=[mpi], output_dir="/home")


def test_listing_6_1_describes_what_the_modern_spelling_does() -> None:
    mpi = sf.MPIWorkload(name="hpccdgemm", mainfile="hpccdgemm-exp1-baseline.yaml", n_tasks=16, n_nodes=4)
    assert listing_6_1(7, "hpccdgemm", "exp1-baseline", 16, 4) == sf.Workflow(
        name="hpccdgemm7", type="mpi", nodes=[mpi], output_dir="/home"
    )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        *(({"deployer": name}, f"deployer={name!r} is not known.") for name in ("", "LOCAL", "nomad")),
        ({"k8s_config_file": "/nowhere/config"}, "'k8s_config_file' is not supported by deployer='local'."),
        ({"scanflow_autoconfig_server_uri": "http://127.0.0.1:1"}, "'scanflow_autoconfig_server_uri' is not supported"),
        ({"verbos": True}, "'verbos' is not supported by deployer='local'. Did you mean 'verbose'?"),
        ({"deployer": "argo", "verbos": True}, "'verbos' is not supported by deployer='argo'. Did you mean 'verbose'?"),
        ({"user_type": "remote"}, "user_type='remote' is not known. Known: incluster, local."),
    ],
)
def test_an_option_that_cannot_be_honoured_is_refused_by_name(options: dict[str, Any], message: str) -> None:
    with pytest.raises(UnsupportedError) as error:
        ScanflowDeployerClient(**options)
    assert message in str(error.value)
    with pytest.raises(UnsupportedError, match=r"builder='kaniko' is not known. Known: buildah, docker, podman."):
        ScanflowClient(builder="kaniko")


def test_a_client_with_a_builder_builds_and_pushes_an_applications_images(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "docker").write_text('#!/bin/sh\necho "$1 of an image"\n')
    (tmp_path / "docker").chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setenv("SCANFLOW_HOME", str(tmp_path / "home"))
    (tmp_path / "app").mkdir()
    (tmp_path / "app" / "a.py").write_text("print()")
    client = ScanflowClient(builder="docker", registry="registry.example.com")
    steps = client.ScanflowWorkflow(name="w", nodes=[client.ScanflowExecutor(name="a", mainfile="a.py")])
    app = client.ScanflowApplication("x", str(tmp_path / "app"), "data", workflows=[steps])
    assert client.build_ScanflowApplication(app, trackerPort=1).tracker == sf.Tracker(port=1)
    assert capfd.readouterr().err == "build of an image\npush of an image\n"
    (record,) = (tmp_path / "home" / "images").glob("*.json")
    assert f"registry.example.com/scanflow/x:{record.stem}" in record.read_text()
    client.build_ScanflowApplication(app)
    assert capfd.readouterr().err == "", "it is there already"


def test_a_server_is_to_be_named_where_one_is_to_do_the_work(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(UsageError, match=r"user_type='incluster' runs everything on a server. Name it"):
        ScanflowDeployerClient(user_type="incluster", deployer="argo")
    monkeypatch.setenv("SCANFLOW_URL", "http://127.0.0.1:1")
    app = sf.Application(name="mnist", team="data")
    client = ScanflowDeployerClient(user_type="incluster", deployer="argo", verbose=False)
    assert client.create_environment(app) == "scanflow-mnist-data"


@pytest.fixture
def cluster(home: Path, monkeypatch: pytest.MonkeyPatch) -> MemoryCluster:
    cluster = MemoryCluster()
    monkeypatch.setattr("scanflow.backends.kubernetes.cluster.Cluster", lambda _: cluster)
    return cluster


@pytest.mark.parametrize("deployer", ["argo", "seldon", "kserve", "volcano", "kubernetes"])
def test_listing_5_2_makes_and_cleans_the_environment_of_a_cluster(deployer: str, cluster: MemoryCluster) -> None:
    app = sf.Application(name="mnist", team="data", tracker=sf.Tracker(port=46668))
    client = ScanflowDeployerClient(
        user_type="local", deployer=deployer, k8s_config_file="/home/guest/.kube/config", verbose=False
    )
    assert client.create_environment(app=app) == "scanflow-mnist-data"
    assert cluster.get("Service", "tracker", "scanflow-mnist-data")
    assert client.apply(app).changed == ()
    assert client.clean(app).namespace_removed
    assert cluster.get("Namespace", "scanflow-mnist-data") is None


def test_the_options_of_a_deployer_reach_the_backend(home: Path) -> None:
    client = ScanflowDeployerClient(deployer="seldon", k8s_config_file="/nowhere/config", verbose=False)
    with pytest.raises(UsageError, match=r"No cluster could be found.*/nowhere/config"):
        client.create_environment(sf.Application(name="mnist", team="data"))


def test_scaling_in_the_terms_of_keda_and_of_an_hpa_is_that_of_this_version() -> None:
    client = ScanflowClient()
    trigger = client.ScalerTriggerPrometheus(
        serverAddress="http://prometheus:9090", metricName="istio_requests_total", query="sum(...)", threshold="'20'"
    )
    scaling = client.KedaSpec(
        triggers=[trigger], minReplicaCount=3, maxReplicaCount=10, pollingInterval=10, cooldownPeriod=10
    )
    assert scaling == sf.Scaling(metric="rps", target=20, min=3, max=10, polling=10, cool_down=10)
    target = client.MetricTarget(average_utilization=50, type="Utilization")
    metric = client.AutoscalingMetric(type="Resource", resource=client.ResourceMetricSource("cpu", target))
    assert client.HpaSpec(metric, 1, 4) == sf.Scaling(metric="cpu", target=0.5, min=1, max=4)
    service = client.ScanflowService(
        name="predictor",
        mainfile="Predictor.py",
        service_type="MODEL",
        base_image="python:3.12",
        parameters=[
            {"name": "to", "value": "2", "type": "STRING"},
            {"name": "by", "value": "2", "type": "INT"},
            {"name": "loud", "value": "True", "type": "BOOL"},
        ],
        resources=client.V1ResourceRequirements(requests={"cpu": "1"}, limits={"cpu": "2", "memory": "1Gi"}),
    )
    workflow = client.ScanflowWorkflow(name="online", nodes=[service], type="online", kedaSpec=scaling)
    assert workflow.nodes[0] == sf.Service(
        name="predictor",
        implementation="Predictor.py:Predictor",
        image="python:3.12",
        parameters={"to": "2", "by": 2, "loud": True},
        resources=sf.Resources(cpu=2, memory="1Gi"),
        scaling=scaling,
    )


def _refusals(client: ScanflowClient) -> dict[str, Callable[[], object]]:
    def trigger(metric: str = "requests", threshold: str = "1") -> Any:
        return client.ScalerTriggerPrometheus("http://p", metric, "q", threshold)

    step = client.ScanflowExecutor(name="a", mainfile="a.py")
    scaling = sf.Scaling(metric="rps", target=1)
    return {
        "KedaSpec has 0 triggers": client.KedaSpec,
        "metricName='temperature'": lambda: client.KedaSpec([trigger("temperature")]),
        "threshold='many' is not a number": lambda: client.KedaSpec([trigger(threshold="many")]),
        "An HPA by 'memory'": lambda: client.ResourceMetricSource("memory", client.MetricTarget(50)),
        "An HPA by 'Pods' metrics": lambda: client.AutoscalingMetric("Pods"),
        "A target of type 'Value'": lambda: client.MetricTarget(type="Value", value="3"),
        "'s3://a/model' is not a registered model": lambda: client.ScanflowService(name="s", modelUri="s3://a/model"),
        "the parameter 'by' is 'two' of type 'INT'": lambda: client.ScanflowService(
            name="s", mainfile="s.py", parameters=[{"name": "by", "value": "two", "type": "INT"}]
        ),
        "endpoint is not part": lambda: client.ScanflowService(name="s", mainfile="s.py", endpoint={"type": "MODEL"}),
        "Only services scale": lambda: client.ScanflowWorkflow("w", [step], kedaSpec=scaling),
        "resources of a workflow": lambda: client.ScanflowWorkflow("w", [step], resources=sf.Resources(cpu=1)),
        r"V1Affinity is not part of this version. Write sf.Affinity": lambda: client.V1Affinity(),  # noqa: PLW0108  refused when asked for
        r"Write sf.cron": lambda: client.ScanflowAgentSensor_CronTrigger("0 * * * *"),
        "The resource 'disk' cannot be requested": lambda: client.V1ResourceRequirements({"disk": 1}),
    }


@pytest.mark.parametrize("message", list(_refusals(ScanflowClient())))
def test_what_cannot_be_said_in_those_terms_is_refused_with_what_to_write(message: str) -> None:
    with pytest.raises(UnsupportedError, match=message):
        _refusals(ScanflowClient())[message]()


def test_none_stands_for_not_given_as_it_does_in_the_thesis() -> None:
    client = ScanflowClient()
    step = client.ScanflowExecutor(name="a", mainfile="a.py", requirements=None, base_image=None, timeout=None)
    assert step == sf.Executor(name="a", mainfile="a.py")
    assert client.ScanflowWorkflow(name="w", nodes=[step]) == sf.Workflow(name="w", nodes=[step])
    tracked = sf.Application(name="x", tracker=sf.Tracker(uri="sqlite:///runs.db"))
    assert client.build_ScanflowApplication(tracked, trackerPort=1) == tracked
    app = client.ScanflowApplication(app_name="x", app_dir=".", team_name="t")
    assert app == sf.Application(name="x", team="t")
    assert client.ScanflowService(name="s", model="models:/a/1", image=None) == sf.Service(
        name="s", model="models:/a/1"
    )
    assert client.ScanflowExecutor(name="a", mainfile="a.py", base_image="python:3.12").image == "python:3.12"
    assert client.ScanflowAgent(name="p", template="planner") == sf.Agent(name="p", template="planner")


def test_a_misspelt_field_is_refused_as_in_the_modern_spelling() -> None:
    client = ScanflowClient()
    with pytest.raises(InvalidError, match=r"Executor 'a' has no field 'parametrs'. Did you mean 'parameters'?"):
        client.ScanflowExecutor(name="a", mainfile="a.py", parametrs={})
    with pytest.raises(InvalidError, match=r"MPIWorkload 'a' has no field 'nTask'. Did you mean 'n_tasks'?"):
        client.ScanflowMPIWorkload(name="a", mainfile="a", nTask=3)


def test_a_value_that_may_be_awaited_is_also_that_value() -> None:
    async def take(value: Awaitable[Any]) -> Any:
        return await value

    text, numbers = Awaited("abc"), Awaited([1, 2])
    assert asyncio.run(take(text)) == "abc"
    assert text == "abc"
    assert text == Awaited("abc")
    assert text != "abd"
    assert (str(text), repr(text), hash(text), text.upper()) == ("abc", "'abc'", hash("abc"), "ABC")
    assert (list(numbers), len(numbers), numbers[1], bool(Awaited([]))) == ([1, 2], 2, 2, False)
    assert copy.deepcopy(numbers) == pickle.loads(pickle.dumps(numbers)) == [1, 2]
    with pytest.raises(AttributeError):
        _ = text.no_such
