"""The thesis' listings 5.1, 5.2 and 6.1 as they stand there, but for addresses, paths, and a local deployer."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import Awaitable
from pathlib import Path
from typing import Any

import pytest

import scanflow as sf
from scanflow.client import ScanflowClient, ScanflowDeployClient, ScanflowDeployerClient
from scanflow.errors import InvalidError, StepFailedError, UnsupportedError
from scanflow_client.thesis import Awaited

LOAD = """
import argparse, os, pathlib
parser = argparse.ArgumentParser()
parser.add_argument("--app_name")
parser.add_argument("--team_name")
given = parser.parse_args()
data = pathlib.Path(os.environ["SCANFLOW_OUTPUT_DIR"], "mnist/data/mnist")
data.mkdir(parents=True)
for name in ("train_images", "train_labels", "test_images", "test_labels"):
    (data / f"{name}.npy").write_text(given.app_name)
"""
MODELING = """
import argparse, pathlib
parser = argparse.ArgumentParser()
for name in ("model_name", "epochs", "x_train_path", "y_train_path", "x_test_path", "y_test_path"):
    parser.add_argument(f"--{name}")
given = parser.parse_args()
import scanflow
paths = [value for name, value in vars(given).items() if name.endswith("_path")]
scanflow.output("read", [pathlib.Path(path).read_text() for path in paths])
scanflow.output("epochs", int(given.epochs))
"""


def listing_5_1(app_dir: str, requirements: str | None = None) -> sf.Application:
    app_name = "mnist"
    team_name = "data"
    client = ScanflowClient(scanflow_server_uri="http://127.0.0.1:46666", verbose=False)

    # define application
    executor1 = client.ScanflowExecutor(
        name="load-data", mainfile="loaddata.py", parameters={"app_name": app_name, "team_name": "data"}
    )
    executor2 = client.ScanflowExecutor(
        name="modeling-cnn1",
        mainfile="modeling.py",
        parameters={
            "model_name": "mnist_cnn",
            "epochs": 1,
            "x_train_path": "/workflow/load-data/mnist/data/mnist/train_images.npy",
            "y_train_path": "/workflow/load-data/mnist/data/mnist/train_labels.npy",
            "x_test_path": "/workflow/load-data/mnist/data/mnist/test_images.npy",
            "y_test_path": "/workflow/load-data/mnist/data/mnist/test_labels.npy",
        },
        requirements=requirements,
    )
    dependency1 = client.ScanflowDependency(dependee="load-data", depender="modeling-cnn1")
    workflow1 = client.ScanflowWorkflow(
        name="mnist-wf", nodes=[executor1, executor2], edges=[dependency1], type="batch", output_dir="/workflow"
    )
    app = client.ScanflowApplication(app_name=app_name, app_dir=app_dir, team_name=team_name, workflows=[workflow1])
    # build application
    return client.build_ScanflowApplication(app=app, trackerPort=46668)


@pytest.fixture
def app(tmp_path: Path, home: Path) -> sf.Application:
    (tmp_path / "loaddata.py").write_text(LOAD)
    (tmp_path / "modeling.py").write_text(MODELING)
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


def test_listing_6_1_is_refused_by_the_backend_that_runs_no_mpi_yet(home: Path) -> None:
    async def run_workflow() -> Any:
        workflow = listing_6_1(0, "hpccdgemm", "exp1-baseline", 16, 4)
        client = ScanflowDeployerClient(user_type="local", deployer="local", verbose=False)
        return await client.run_workflow(app_name="mpi", team_name="dataengineer", workflow=workflow)

    with pytest.raises(UnsupportedError, match="Workflow 'hpccdgemm0' is of type 'mpi'"):
        asyncio.run(run_workflow())


@pytest.mark.parametrize(
    ("options", "told"),
    [
        *(
            ({"deployer": name}, f"deployer='{name}' is no part of this version, which runs on this machine. Write dep")
            for name in ("argo", "volcano", "seldon", "kubernetes", "", "LOCAL")
        ),
        ({"k8s_config_file": "/nowhere/config"}, "'k8s_config_file' is of no use to deployer='local'."),
        ({"scanflow_autoconfig_server_uri": "http://127.0.0.1:1"}, "'scanflow_autoconfig_server_uri' is of no use"),
        ({"verbos": True}, "'verbos' is of no use to deployer='local'. Did you mean 'verbose'?"),
        ({"user_type": "incluster"}, "user_type='incluster' is no part of this version"),
    ],
)
def test_an_option_that_cannot_be_honoured_is_refused_by_name(options: dict[str, Any], told: str) -> None:
    with pytest.raises(UnsupportedError) as error:
        ScanflowDeployerClient(**options)
    assert told in str(error.value)
    with pytest.raises(UnsupportedError, match=r"builder='docker': images are not built in this version. Remove it."):
        ScanflowClient(builder="docker")


def test_none_means_not_given_as_it_does_in_the_thesis() -> None:
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
