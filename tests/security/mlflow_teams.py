"""MLflow behind a server for several teams: what tests do there, and what a team sees."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from scanflow.http.home_token import make_step_token
from scanflow.knowledge import open_knowledge
from scanflow.knowledge.mlflow.mlflow_socket import find_server_socket, is_listening
from scanflow.knowledge.step_environment import locate_tracker
from tests.server import ServerProcess, bearer
from tests.waiting import PATIENCE_S, wait_until

EXPERIMENTS = [str(number) for number in range(30)]
ARTIFACTS = "/api/2.0/mlflow-artifacts/artifacts"


@dataclass(frozen=True)
class TeamsServer:
    """A server's MLflow, with tokens by who has them."""

    server: ServerProcess
    tokens: Mapping[str, str]
    database: str

    def send(self, caller: str, method: str, path: str, **content: Any) -> httpx2.Response:
        headers = {**bearer(self.tokens[caller]), **content.pop("headers", {})}
        at = path if path.startswith(("/api/", "/ajax-api/", "/g", "/model-versions/get", "/v1/")) else _api(path)
        return self.server.api.request(method, f"{self.server.url}/mlflow{at}", headers=headers, **content)

    def do(self, caller: str, method: str, path: str, **content: Any) -> Any:
        reply = self.send(caller, method, path, **content)
        assert reply.status_code == 200, (path, reply.text)
        return reply.json()

    @contextmanager
    def client(self, caller: str) -> Iterator[Any]:
        """MLflow's own client, by a token."""
        from mlflow import MlflowClient

        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("MLFLOW_TRACKING_TOKEN", self.tokens[caller])
            yield MlflowClient(f"{self.server.url}/mlflow")


def _api(path: str) -> str:
    return f"/api/2.0/mlflow{path}"


@contextmanager
def serve_teams(home: Path, database: str | None) -> Iterator[TeamsServer]:
    """Serve a home's tracker, made before there were teams, at its server's door."""
    place = locate_tracker(home, database)
    write_old_rows(home, database)
    variables = {"SCANFLOW_HOME": str(home), **({} if database is None else {"SCANFLOW_TRACKER_URI": database})}
    command = [sys.executable, "-m", "scanflow_server.mlflow_server"]
    with (home / "mlflow.log").open("wb") as log:
        mlflow = subprocess.Popen(command, env={**os.environ, **variables}, stderr=log)
    server = ServerProcess(home, environ=variables)
    try:
        wait_until(lambda: (path := find_server_socket(place)) is not None and is_listening(path), "MLflow listens")
        server.start()
        tokens = {"owner": server.token, "step": make_step_token(server.token, "shop", "alpha")}
        for name, role, team in (
            ("alpha", "editor", "alpha"), ("beta", "editor", "beta"), ("viewer", "viewer", "beta"),
            ("default", "editor", "default"),
        ):  # fmt: skip
            response = server.api.post("/tokens", json={"name": name, "role": role, "team": team})
            tokens[name] = response.json()["token"]
        yield TeamsServer(server, tokens, place.tracking_uri)
    finally:
        server.close()
        mlflow.terminate()
        mlflow.wait(PATIENCE_S)


def write_old_rows(home: Path, database: str | None) -> None:
    """Write what there was before teams: some of no team, some that says its team in the one way or another."""
    from mlflow import MlflowClient

    knowledge = open_knowledge(home, database)
    own = knowledge.prepare("shop", "alpha")["MLFLOW_EXPERIMENT_ID"]
    client = MlflowClient(locate_tracker(home, database).tracking_uri)
    nobody = client.create_run(client.create_experiment("old-work"))
    for name, run, tags in (
        ("old-model", nobody, {}),
        ("old-of-run", client.create_run(own), {}),
        ("old-of-version", nobody, {"scanflow.team": "alpha"}),
    ):
        client.create_registered_model(name)
        client.create_model_version(name, f"{run.info.artifact_uri}/model", run.info.run_id, tags=tags)


def do_work(client: Any, name: str, folder: Path) -> None:
    """Make something of each kind by MLflow's client."""
    from mlflow.entities import Metric, Param, RunTag

    (folder / "secret.txt").write_text(name)
    experiment = client.create_experiment(f"{name}-work", tags={"purpose": name})
    run = client.create_run(experiment, tags={"made": name}, run_name=name)
    client.log_batch(run.info.run_id, [Metric("m", 1.5, 1, 0)], [Param("p", name)], [RunTag("t", name)])
    client.log_artifact(run.info.run_id, str(folder / "secret.txt"), "model")
    client.set_terminated(run.info.run_id)
    client.create_registered_model(f"{name}-model", tags={"kind": name})
    client.create_model_version(f"{name}-model", f"{run.info.artifact_uri}/model", run.info.run_id, tags={"t": name})
    client.set_registered_model_alias(f"{name}-model", "champion", "1")
    client.set_model_version_tag(f"{name}-model", "1", "stage", "done")
    logged = client.create_logged_model(experiment, name=f"{name}-logged", source_run_id=run.info.run_id)
    client.finalize_logged_model(logged.model_id, "READY")
    client.delete_experiment(client.create_experiment(f"{name}-deleted"))


def see(client: Any) -> dict[str, list[Any]]:
    """Return all that MLflow's client shows, without numbers and times: to compare it with what another one shows."""
    from mlflow.entities import ViewType

    experiments = _read_pages(partial(client.search_experiments, ViewType.ALL, max_results=2))
    runs = client.search_runs(EXPERIMENTS, run_view_type=ViewType.ALL)
    models = _read_pages(partial(client.search_registered_models, max_results=2))
    versions = [version for model in models for version in client.search_model_versions(f"name = '{model.name}'")]
    logged = client.search_logged_models(EXPERIMENTS)
    everyones = client.search_model_versions()
    assert sorted(map(_describe_version, everyones)) == sorted(map(_describe_version, versions))
    return {
        "experiments": sorted(
            (experiment.name, experiment.lifecycle_stage, _tags(experiment)) for experiment in experiments
        ),
        "runs": sorted(
            (run.info.run_name, str(run.data.params), str(run.data.metrics), _tags(run.data)) for run in runs
        ),
        "files": sorted(str(_list_files(client, run.info.run_id)) for run in runs),
        "models": sorted((item.name, str({**item.aliases}).replace("'", ""), _tags(item)) for item in models),
        "versions": sorted(map(_describe_version, versions)),
        "logged models": sorted((logged_model.name, str(logged_model.status)) for logged_model in logged),
    }


def _read_pages(search: Callable[..., Any]) -> list[Any]:
    rows, token = [], None
    while token != "":
        page = search(page_token=token)
        rows += page
        token = page.token or ""
    return rows


def _tags(entity: Any) -> str:
    shown = {
        key: value for key, value in entity.tags.items() if not key.startswith("mlflow.") and key != "scanflow.team"
    }
    return str(sorted(shown.items()))


def _describe_version(version: Any) -> tuple[str, str, str]:
    return version.name, str(version.version), _tags(version)


def _list_files(client: Any, run: str) -> list[tuple[str, str]]:
    below = [file.path for folder in client.list_artifacts(run) for file in client.list_artifacts(run, folder.path)]
    return [(path, Path(client.download_artifacts(run, path)).read_text()) for path in below]
