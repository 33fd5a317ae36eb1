"""The knowledge base's contract, held by every adapter: in memory, MLflow on SQLite, MLflow behind a server."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from scanflow.errors import InvalidError, NotFoundError
from scanflow.http.home_token import ensure_home_token, make_step_token
from scanflow.knowledge import KnowledgeBase, MemoryKnowledge, open_knowledge
from scanflow.knowledge.mlflow.mlflow_socket import find_server_socket, is_listening
from scanflow.knowledge.step_environment import locate_tracker
from scanflow.testing.knowledge import KnowledgeBaseContract
from tests.server import ServerProcess
from tests.serving import reserve_port
from tests.tracker_process import answering, running


class TestInMemory(KnowledgeBaseContract):
    @pytest.fixture
    def knowledge(self) -> KnowledgeBase:
        return MemoryKnowledge()


class MlflowContract(KnowledgeBaseContract):
    def test_a_model_that_mlflow_keeps_beside_its_run_is_found(
        self, knowledge: KnowledgeBase, team: str, tmp_path: Path
    ) -> None:
        from mlflow import MlflowClient

        (tmp_path / "in").mkdir()
        (tmp_path / "in" / "MLmodel").write_text("flavors: {}")
        variables = knowledge.prepare("shop", team)
        run = knowledge.log_run("shop", team, artifacts=Path(__file__))
        client = MlflowClient(variables["MLFLOW_TRACKING_URI"])
        logged = client.create_logged_model(variables["MLFLOW_EXPERIMENT_ID"], name="net", source_run_id=run.run_id)
        client.log_model_artifacts(logged.model_id, str(tmp_path / "in"))
        client.finalize_logged_model(logged.model_id, "READY")
        knowledge.fetch_run_artifacts(run.run_id, tmp_path / "logged", path="net")
        assert (tmp_path / "logged" / "MLmodel").read_text() == "flavors: {}"
        with pytest.raises(NotFoundError, match="no artifact 'nte'"):
            knowledge.fetch_run_artifacts(run.run_id, tmp_path / "other", path="nte")

    def test_what_another_client_names_oddly_hides_nothing(
        self, knowledge: KnowledgeBase, team: str, model: str
    ) -> None:
        from mlflow import MlflowClient

        variables = knowledge.prepare("shop", team)
        run = knowledge.log_run("shop", team, name="diverged", metrics={"accuracy": 0.5}, artifacts=Path(__file__))
        client = MlflowClient(variables["MLFLOW_TRACKING_URI"])
        client.log_metric(run.run_id, "loss", float("nan"))
        assert [logged.metrics for logged in knowledge.search_runs("shop", team)] == [{"accuracy": 0.5}]
        marks = ("emoji😀", "per%cent%2Fslash", "it's", "both'\"", "back\\'", "new\nline", "back_'")
        odd = [*(f"{model} {mark}" for mark in marks), f"{model} "]
        for name in odd:
            client.create_registered_model(name)
            client.create_model_version(name, str(client.get_run(run.run_id).info.artifact_uri), run.run_id)
        knowledge.register_model(model, Path(__file__), app="shop", team=team)
        owned = knowledge.for_team(team).list_versions_by_model()
        assert {name: [version.name for version in versions] for name, versions in owned.items()} == {
            name: [name] for name in [*odd, model]
        }
        assert [*owned] == sorted(owned)
        for name in odd:
            assert knowledge.list_model_versions(name) == owned[name]
            with pytest.raises(InvalidError, match="A model cannot be called"):
                knowledge.set_model_alias(name, "champion", 1)

    def test_nothing_is_printed(
        self, knowledge: KnowledgeBase, team: str, model: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
    ) -> None:
        knowledge.prepare("shop", team)
        run = knowledge.log_run("shop", team, artifacts=Path(__file__))
        knowledge.fetch_run_artifacts(run.run_id, tmp_path / "run")
        knowledge.register_model(model, Path(__file__), app="shop", team=team)
        knowledge.fetch_model(model, tmp_path / "model")
        assert tuple(capfd.readouterr()) == ("", "")

    def test_a_run_that_goes_on_is_found_as_running(self, knowledge: KnowledgeBase, team: str) -> None:
        from mlflow import MlflowClient

        variables = knowledge.prepare("shop", team)
        begun = MlflowClient(variables["MLFLOW_TRACKING_URI"]).create_run(variables["MLFLOW_EXPERIMENT_ID"])
        (run,) = knowledge.search_runs("shop", team)
        assert (run.run_id, run.status, run.ended_at) == (begun.info.run_id, "running", None)


@pytest.mark.slow
@pytest.mark.filterwarnings("default")  # MLflow's own use of its libraries
class TestMlflowOnSqlite(MlflowContract):
    @pytest.fixture
    def knowledge(self, sqlite_knowledge: KnowledgeBase) -> KnowledgeBase:
        return sqlite_knowledge

    def test_what_another_client_writes_is_seen_at_once(self, knowledge: KnowledgeBase, team: str, model: str) -> None:
        from mlflow import MlflowClient

        variables = knowledge.prepare("shop", team)
        client = MlflowClient(variables["MLFLOW_TRACKING_URI"])
        knowledge.register_model(model, Path(__file__), app="shop", team=team)
        assert knowledge.search_runs("shop", team) == knowledge.search_runs("shop", team) == []
        assert knowledge.get_model(model).aliases == ()
        client.create_run(variables["MLFLOW_EXPERIMENT_ID"])
        client.set_registered_model_alias(model, "champion", "1")
        assert len(knowledge.search_runs("shop", team)) == 1
        assert knowledge.get_model(model).aliases == ("champion",)
        assert knowledge.list_model_versions(model)[0].aliases == ("champion",)


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.filterwarnings("default")
class TestMlflowThroughTheServerOfTheHome(MlflowContract):
    @pytest.fixture
    def knowledge(self, served_home: Path) -> KnowledgeBase:
        return open_knowledge(served_home, served=True)


class TeamContract(MlflowContract):
    """By a token of the team, which has all that there is without teams, and nothing else."""

    def test_two_applications_cannot_share_an_environment(self, knowledge: KnowledgeBase, team: str) -> None:
        with pytest.raises(InvalidError, match=f"a token of the team '{team}' cannot change that"):
            knowledge.prepare("a", f"b-{team}")
        knowledge.prepare("a-b", team)


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.filterwarnings("default")
class TestMlflowBehindTheServer(TeamContract):
    """By a token of the team alone: artifacts are streamed, and MLflow is not loaded."""

    @pytest.fixture
    def knowledge(
        self, tmp_path: Path, proxied_home: tuple[Path, str], team: str, monkeypatch: pytest.MonkeyPatch
    ) -> KnowledgeBase:
        home, url = proxied_home
        token = make_step_token(ensure_home_token(home), "shop", team)
        monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", token)  # of MLflow's own client, where a test has one
        return open_knowledge(tmp_path / "elsewhere", url, token=token)


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.filterwarnings("default")
class TestMlflowsClientBehindTheServer(TeamContract):
    """As steps and notebooks reach it, with MLflow's own client."""

    @pytest.fixture
    def knowledge(
        self, tmp_path: Path, proxied_home: tuple[Path, str], team: str, monkeypatch: pytest.MonkeyPatch
    ) -> KnowledgeBase:
        home, url = proxied_home
        token = make_step_token(ensure_home_token(home), "shop", team)
        monkeypatch.setenv("MLFLOW_TRACKING_TOKEN", token)
        return open_knowledge(tmp_path / "elsewhere", url)


@pytest.mark.processes
@pytest.mark.slow
@pytest.mark.filterwarnings("default")
class TestMlflowServer(MlflowContract):
    @pytest.fixture
    def knowledge(self, tmp_path: Path, tracking_server: str) -> KnowledgeBase:
        return open_knowledge(tmp_path / "home", tracking_server)


@pytest.fixture(scope="session")
def sqlite_knowledge(tmp_path_factory: pytest.TempPathFactory) -> KnowledgeBase:
    """One database for the session: MLflow takes seconds to make each."""
    pytest.importorskip("mlflow")
    return open_knowledge(tmp_path_factory.mktemp("hömé with spaces, #1 & 数据"))


@pytest.fixture(scope="session")
def tracking_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    pytest.importorskip("mlflow")
    folder = tmp_path_factory.mktemp("server")
    with reserve_port() as port:
        yield from serve_mlflow(folder, port)


@pytest.fixture(scope="session")
def served_home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Return a home whose tracker has a server, as ``scanflow up`` starts it."""
    pytest.importorskip("mlflow")
    home = tmp_path_factory.mktemp("sérved home, #2")
    place = locate_tracker(home)

    def listens() -> bool:
        path = find_server_socket(place)
        return path is not None and is_listening(path)

    command = [sys.executable, "-m", "scanflow_server.mlflow_server"]
    yield from (home for _ in running(command, home, listens, SCANFLOW_HOME=str(home)))


@pytest.fixture(scope="session")
def proxied_home(served_home: Path) -> Iterator[tuple[Path, str]]:
    """Return the same home, and the address of MLflow behind the home's server."""
    server = ServerProcess(served_home)
    server.start()
    try:
        yield served_home, f"{server.url}/mlflow"
    finally:
        server.close()


def serve_mlflow(folder: Path, port: int) -> Iterator[str]:
    """Start MLflow's server there, and return its address."""
    command = [sys.executable, "-m", "mlflow", "server", "--host", "127.0.0.1", "--port", str(port), "--workers", "1"]
    command += ["--backend-store-uri", f"sqlite:///{folder / 'db.sqlite'}"]
    command += ["--artifacts-destination", str(folder / "files")]
    no_jobs = {"MLFLOW_DISABLE_TELEMETRY": "true", "MLFLOW_SERVER_ENABLE_JOB_EXECUTION": "false"}
    yield from answering(command, folder, port, **no_jobs)
