"""The thesis' tracker client (listing 5.3), between two knowledge bases in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from scanflow.app.application import Application
from scanflow.app.executor import Executor
from scanflow.app.workflow import Workflow
from scanflow.errors import InvalidError, NotFoundError, UnsupportedError
from scanflow.knowledge import MemoryKnowledge
from scanflow_client.tracker import ScanflowTrackerClient


@pytest.fixture
def central() -> MemoryKnowledge:
    return MemoryKnowledge()


@pytest.fixture
def local() -> MemoryKnowledge:
    return MemoryKnowledge()


@pytest.fixture
def two_trackers(central: MemoryKnowledge, local: MemoryKnowledge) -> ScanflowTrackerClient:
    return ScanflowTrackerClient(central=central, local=local, verbose=False)


@pytest.fixture
def alone(local: MemoryKnowledge) -> ScanflowTrackerClient:
    return ScanflowTrackerClient(local=local)


@pytest.fixture
def app() -> Application:
    train = Workflow(name="train", nodes=[Executor(name="fit", mainfile="fit.py")])
    return Application(name="mnist", team="data", workflows=[train])


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "in").mkdir()
    (tmp_path / "in" / "weights").write_text("1")
    return tmp_path / "in"


def test_an_application_goes_to_the_central_tracker_unless_said_otherwise(
    two_trackers: ScanflowTrackerClient, central: MemoryKnowledge, local: MemoryKnowledge, app: Application
) -> None:
    two_trackers.save_app_meta(app)
    assert central.get_application("mnist", "data") == app
    with pytest.raises(NotFoundError):
        local.get_application("mnist", "data")
    two_trackers.save_app_meta(app, tolocal=True)
    assert two_trackers.get_app_meta("mnist", "data", fromlocal=True) == app


def test_each_save_of_an_application_can_be_had_by_its_id(alone: ScanflowTrackerClient, app: Application) -> None:
    first = alone.save_app_meta(app)
    alone.save_app_meta(app.replace(app_dir="other"))
    assert alone.get_app_meta("mnist", "data").app_dir == "other"
    assert alone.download_app("mnist", "data", run_id=first.version) == app
    assert alone.download_workflow("mnist", "data", "train") == app.workflows[0]
    with pytest.raises(NotFoundError, match="Did you mean 'train'"):
        alone.download_workflow("mnist", "data", "trian")
    with pytest.raises(NotFoundError, match="no agent 'checker'"):
        alone.download_agent("mnist", "data", "checker")


def test_the_description_can_be_had_as_a_file(alone: ScanflowTrackerClient, app: Application, tmp_path: Path) -> None:
    alone.save_app_meta(app)
    path = alone.download_app_meta("mnist", "data", local_dir=tmp_path)
    assert path == tmp_path / "mnist" / "data" / "mnist.json"
    assert '"mnist"' in path.read_text()


def test_an_applications_folder_comes_back(alone: ScanflowTrackerClient, files: Path, tmp_path: Path) -> None:
    alone.save_app_artifacts(app_name="mnist", team_name="data", app_dir=files)
    folder = alone.download_app_artifacts("mnist", "data", local_dir=tmp_path / "out")
    assert folder == tmp_path / "out" / "mnist" / "data"
    assert (folder / "weights").read_text() == "1"
    with pytest.raises(InvalidError, match="nothing is overwritten"):
        alone.download_app_artifacts("mnist", "data", local_dir=tmp_path / "out")


def test_a_shared_model_is_copied_with_what_is_known_of_it(
    two_trackers: ScanflowTrackerClient, central: MemoryKnowledge, local: MemoryKnowledge, files: Path, tmp_path: Path
) -> None:
    run = local.log_run("lab", "science", name="fit", params={"depth": 3}, metrics={"accuracy": 0.9})
    local.register_model("mnist_cnn", files, app="lab", team="science", run_id=run.run_id, tags={"note": "good"})
    shared = two_trackers.save_app_model(app_name="mnist", team_name="data", model_name="mnist_cnn")
    assert (shared.version, shared.aliases) == (1, ("production",))
    assert shared.tags == {"note": "good", "scanflow.app": "mnist", "scanflow.team": "data"}
    assert shared.run_id is not None
    copied = central.get_run(shared.run_id)
    assert (copied.name, copied.params, copied.metrics) == ("fit", {"depth": "3"}, {"accuracy": 0.9})
    assert copied.environment == "scanflow-mnist-data"
    central.fetch_model("mnist_cnn", tmp_path / "out", version="production")
    assert (tmp_path / "out" / "weights").read_text() == "1"


def test_the_production_version_comes_first(
    two_trackers: ScanflowTrackerClient, local: MemoryKnowledge, files: Path
) -> None:
    for note in ("one", "two", "three"):
        local.register_model("m", files, app="lab", team="science", tags={"note": note})
    assert two_trackers.save_app_model("mnist", "data", "m").tags["note"] == "three"
    local.set_model_alias("m", "production", 2)
    assert two_trackers.save_app_model("mnist", "data", "m").tags["note"] == "two"
    assert two_trackers.save_app_model("mnist", "data", "m", model_version=1).tags["note"] == "one"


def test_with_one_tracker_models_are_marked(alone: ScanflowTrackerClient, local: MemoryKnowledge, files: Path) -> None:
    local.register_model("m", files, app="lab", team="science")
    shared = alone.save_app_model("mnist", "data", "m")
    assert shared.aliases == ("production",)
    assert shared.tags["scanflow.team"] == "data"
    assert len(local.list_model_versions("m")) == 1
    assert alone.download_app_model("m") == shared


def test_a_shared_model_can_be_taken(
    two_trackers: ScanflowTrackerClient, central: MemoryKnowledge, local: MemoryKnowledge, files: Path, tmp_path: Path
) -> None:
    central.register_model("m", files, app="mnist", team="data", tags={"note": "good"})
    taken = two_trackers.download_app_model("m", local_dir=tmp_path / "out")
    assert local.get_model("m", "production") == taken
    assert taken.tags["note"] == "good"
    assert (tmp_path / "out" / "weights").read_text() == "1"


def test_a_model_nobody_knows_says_so(two_trackers: ScanflowTrackerClient, local: MemoryKnowledge, files: Path) -> None:
    local.register_model("mnist_cnn", files, app="lab", team="science")
    with pytest.raises(NotFoundError, match="Did you mean 'mnist_cnn'"):
        two_trackers.save_app_model("mnist", "data", "mnist_cmm")


def test_logged_files_come(alone: ScanflowTrackerClient, local: MemoryKnowledge, files: Path, tmp_path: Path) -> None:
    run = local.log_run("mnist", "data", artifacts=files)
    alone.download_artifacts("weights", run_id=run.run_id, local_dir=tmp_path / "out")
    assert (tmp_path / "out" / "weights").read_text() == "1"


def test_another_tracker_than_mlflow_is_refused() -> None:
    with pytest.raises(UnsupportedError, match=r"tracker='mlflwo'.*Did you mean 'mlflow'"):
        ScanflowTrackerClient(tracker="mlflwo")


def test_the_listing_of_the_thesis_opens_the_address_it_gives(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("mlflow")
    monkeypatch.setenv("SCANFLOW_HOME", str(tmp_path))
    client = ScanflowTrackerClient(scanflow_tracker_local_uri="http://127.0.0.1:46668", verbose=False)
    assert client.find_tracker_uri(islocal=True) == client.find_tracker_uri() == "http://127.0.0.1:46668"
    two = ScanflowTrackerClient("http://127.0.0.1:46667", "http://127.0.0.1:46668")
    assert (two.find_tracker_uri(), two.find_tracker_uri(islocal=True)) == (
        "http://127.0.0.1:46667",
        "http://127.0.0.1:46668",
    )
