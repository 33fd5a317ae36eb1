"""MLflow's REST API without MLflow, and how it is known whether there is a server to speak it to."""

from __future__ import annotations

import json
import signal
import stat
import subprocess
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
import pytest

from scanflow.errors import AlreadyRunningError, NotFoundError, UnavailableError, UsageError
from scanflow.knowledge.mlflow.artifacts import append_path
from scanflow.knowledge.mlflow.connection import MlflowConnection
from scanflow.knowledge.mlflow.experiments import items
from scanflow.knowledge.mlflow.mlflow_socket import find_server_socket, is_listening, listen_as_server
from scanflow.knowledge.mlflow.rest_client import LocalFiles, RestClient
from scanflow.knowledge.step_environment import locate_tracker
from scanflow.transport.mlflow_api import MlflowApi, MlflowApiError
from tests.waiting import PATIENCE_S, wait_until

_CONNECTION = "scanflow.knowledge.mlflow.connection"

Handler = Callable[[httpx2.Request], httpx2.Response]


def api(handler: Handler) -> MlflowApi:
    return MlflowApi("http://127.0.0.1:5000", transport=httpx2.MockTransport(handler))


def client(handler: Handler) -> RestClient:
    return RestClient("http://127.0.0.1:5000", api=api(handler))


def make_refusal(status: int, code: str) -> Handler:
    return lambda _: httpx2.Response(status, json={"error_code": code, "message": "No."})


def test_what_it_refuses_keeps_mlflows_code() -> None:
    with pytest.raises(MlflowApiError, match=r"^No\.$") as caught:
        api(make_refusal(404, "RESOURCE_DOES_NOT_EXIST")).get("/runs/get", {"run_id": "r"})
    assert caught.value.error_code == "RESOURCE_DOES_NOT_EXIST"
    assert client(make_refusal(404, "RESOURCE_DOES_NOT_EXIST")).get_experiment_by_name("shop") is None
    with pytest.raises(MlflowApiError):
        client(make_refusal(400, "INVALID_PARAMETER_VALUE")).get_experiment_by_name("shop")


def test_what_is_no_mlflow_and_what_does_not_answer_are_distinguished() -> None:
    def raise_lost(request: httpx2.Request) -> httpx2.Response:
        raise httpx2.ReadError("gone", request=request)

    with pytest.raises(MlflowApiError, match="POST /runs/delete: 502 <html>") as caught:
        api(lambda _: httpx2.Response(502, text="<html>")).post("/runs/delete", {"run_id": "r"})
    assert caught.value.error_code == "INTERNAL_ERROR"
    with pytest.raises(MlflowApiError, match="200 hello"):
        api(lambda _: httpx2.Response(200, text="hello")).get("/runs/get", {})
    with pytest.raises(UnavailableError, match=r"127\.0\.0\.1:5000 does not answer: ReadError: gone"):
        api(raise_lost).get("/runs/get", {})


def test_what_is_not_given_is_not_sent() -> None:
    seen: list[tuple[str, Any]] = []

    def answer(request: httpx2.Request) -> httpx2.Response:
        seen.append((str(request.url.query, "ascii"), json.loads(request.content or "null")))
        return httpx2.Response(200, json={})

    api(answer).get("/model-versions/search", {"filter": "name = 'a'", "page_token": None})
    api(answer).post("/experiments/create", {"name": "shop", "artifact_location": None})
    assert seen == [("filter=name+%3D+%27a%27", None), ("", {"name": "shop"})]


def test_all_pages_are_read() -> None:
    def page(request: httpx2.Request) -> httpx2.Response:
        first = request.url.params.get("page_token") is None
        models = [{"name": "a", "latest_versions": [{}]}] if first else [{"name": "b"}]
        return httpx2.Response(200, json={"registered_models": models, "next_page_token": "2" if first else ""})

    registered_models = items(partial(client(page).search_registered_models, max_results=1))
    assert [(model.name, len(model.latest_versions)) for model in registered_models] == [("a", 1), ("b", 0)]


def test_the_address_of_a_model_that_mlflow_keeps_is_followed() -> None:
    def answer(request: httpx2.Request) -> httpx2.Response:
        if request.url.path.endswith("/get-download-uri"):
            return httpx2.Response(200, json={"artifact_uri": "models:/m-1"})
        assert request.url.path.endswith("/logged-models/m-1")
        return httpx2.Response(200, json={"model": {"info": {"artifact_uri": "file:///models/m-1"}}})

    assert client(answer).get_model_version_download_uri("net", "3") == "file:///models/m-1"


@pytest.mark.parametrize("name", ["plain", "with spaces, #1 & 数据"])
def test_artifacts_are_files_here(tmp_path: Path, name: str) -> None:
    root = tmp_path / name
    (root / "model" / "below").mkdir(parents=True)
    (root / "model" / "below" / "file").write_text("1")
    for uri in (root.as_uri(), str(root)):
        files = LocalFiles(append_path(uri, "model"))
        assert [(artifact.path, artifact.is_dir) for artifact in files.list_artifacts(None)] == [("below", True)]
        assert [(artifact.path, artifact.is_dir) for artifact in files.list_artifacts("below")] == [
            ("below/file", False)
        ]
        assert files.list_artifacts("below/file") == files.list_artifacts("nothing") == []
        for number, path in enumerate(("", "below/file", "nothing")):
            out = tmp_path / f"{len(uri)}-{number}"
            out.mkdir()
            files.download_artifacts(path, str(out))
            assert [file.relative_to(out).as_posix() for file in out.rglob("*") if file.is_file()] == (
                [] if path == "nothing" else ["below/file"]
            )


_SERVE = """
import sys
from pathlib import Path
from scanflow.knowledge.mlflow.mlflow_socket import listen_as_server
from scanflow.knowledge.step_environment import locate_tracker
listener = listen_as_server(locate_tracker(Path(sys.argv[1])))
print("listening", flush=True)
sys.stdin.read()
"""


@pytest.mark.processes
@pytest.mark.parametrize("folder", ["home", "a" * 120], ids=["short", "longer than an address may be"])
def test_a_tracker_is_served_for_as_long_as_the_process_that_listens_lives(tmp_path: Path, folder: str) -> None:
    home = tmp_path / folder
    place, other = locate_tracker(home), locate_tracker(home, "sqlite:////elsewhere.db")
    assert find_server_socket(place) is None
    command = [sys.executable, "-c", _SERVE, str(home)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "listening\n"
            path = find_server_socket(place)
            assert path is not None
            assert is_listening(path)
            assert stat.S_IMODE(path.stat().st_mode) == 0o600, "nobody else connects"
            assert find_server_socket(other) is None
            with pytest.raises(AlreadyRunningError):
                listen_as_server(place)
        finally:
            process.send_signal(signal.SIGKILL)
            process.wait(PATIENCE_S)
    wait_until(lambda: find_server_socket(place) is None, "the lock is given up")
    assert not is_listening(path), "what it left is no server"


def test_a_tracker_that_is_served_is_called_without_mlflow(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And so is one elsewhere whose token is known; one without waits for no process that starts."""
    sockets, waited = [tmp_path / "sock"], list[str]()

    def note(text: str) -> AbstractContextManager[None]:
        waited.append(text)
        return nullcontext()

    monkeypatch.setattr(f"{_CONNECTION}.find_server_socket", lambda _: next(iter(sockets), None))
    monkeypatch.setattr(f"{_CONNECTION}.is_listening", lambda path: note(path.name))
    monkeypatch.setattr(f"{_CONNECTION}.check_database", lambda _: note("sqlite"))
    monkeypatch.setattr(f"{_CONNECTION}.make_database", lambda *_: None)
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: note("http"))
    monkeypatch.setattr("mlflow.MlflowClient", lambda **_: "MLflow")
    place, elsewhere = locate_tracker(tmp_path), locate_tracker(tmp_path, "http://127.0.0.1:9/mlflow")
    light = MlflowConnection(place, connect_timeout_s=1, served=True)
    full = MlflowConnection(place, connect_timeout_s=1)
    connection = MlflowConnection(elsewhere, connect_timeout_s=1, token="t")
    with light.open("look") as first, full.open("look") as two, connection.open("look") as three:
        assert (type(first), two, type(three)) == (RestClient, "MLflow", RestClient)
    sockets.clear()
    with light.open("look") as first, MlflowConnection(elsewhere, connect_timeout_s=1).open("look") as two:
        assert (first, two) == ("MLflow", "MLflow")
    assert waited == ["sock", "sqlite", "http", "sqlite", "http"]


@pytest.mark.parametrize(
    ("code", "kind"),
    [
        ("RESOURCE_DOES_NOT_EXIST", NotFoundError),
        ("PERMISSION_DENIED", UsageError),
        ("INTERNAL_ERROR", UnavailableError),
    ],
)
def test_what_the_server_refuses_is_raised_as_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str, kind: type[Exception]
) -> None:
    monkeypatch.setattr("urllib.request.urlopen", lambda *_, **__: nullcontext())
    place = locate_tracker(tmp_path, "http://127.0.0.1:9")
    light = MlflowConnection(place, connect_timeout_s=1, token="t")
    with pytest.raises(kind, match=r"Could not look in http://127\.0\.0\.1:9: No\."), light.open("look"):
        raise MlflowApiError(code, "No.")


def test_what_a_run_keeps_elsewhere_is_written_there_by_mlflow(monkeypatch: pytest.MonkeyPatch) -> None:
    from mlflow.store.artifact import artifact_repository_registry

    written: list[tuple[str, ...]] = []

    class Repository:
        def __init__(self, uri: str, **_: str) -> None:
            self.uri = uri

        def log_artifacts(self, *arguments: str) -> None:
            written.append((self.uri, *arguments))

    info = {"run_id": "r", "start_time": 1, "artifact_uri": "s3://bucket/r"}
    monkeypatch.setattr(artifact_repository_registry, "get_artifact_repository", Repository)
    client(lambda _: httpx2.Response(200, json={"run": {"info": info}})).log_artifacts("r", "/here", "below")
    assert written == [("s3://bucket/r", "/here", "below")]
