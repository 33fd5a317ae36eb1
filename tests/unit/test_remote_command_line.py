"""Where the command line does its work, decided once, and how it tells of the control plane."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest
from typer.testing import CliRunner, Result

from scanflow.agent.agent_records import Event
from scanflow.deployer import EmbeddedDeployer, RemoteDeployer
from scanflow.deployer.remote_home import UpProcess, UpState, write_up_state
from scanflow.errors import UnavailableError, UsageError
from scanflow.knowledge.step_environment import locate_tracker
from scanflow.settings import Settings
from scanflow.transport import ServerClient
from scanflow_client.cli import command_options
from scanflow_client.cli.command_tree import app
from scanflow_client.control_client import ControlClient
from scanflow_server import mlflow_server

URL = "http://127.0.0.1:46666"


def note(home: Path) -> Path:
    """Note a server that runs as long as somebody holds the FIFO of its attempt, whose folder is returned."""
    attempt = home / "server" / "daemons" / "server" / "attempts" / "1"
    attempt.mkdir(parents=True)
    os.mkfifo(attempt / "alive")
    server = UpProcess(folder=attempt.parent.parent, pid=os.getpid(), port=1, url=URL, log="/l")
    write_up_state(home, UpState(server=server, started=1.0))
    return attempt


def test_a_server_of_this_home_that_is_up_does_the_work(home: Path) -> None:
    assert isinstance(command_options.open_deployer(), EmbeddedDeployer)
    with pytest.raises(UnavailableError, match=r"No server is up .* Start it: scanflow up"):
        command_options.connect_server()
    with (note(home) / "alive").open("r+b", buffering=0):
        assert isinstance(command_options.open_deployer(), RemoteDeployer)
        assert command_options.connect_server().url == URL
    assert isinstance(command_options.open_deployer(), EmbeddedDeployer), "the server is gone"


def test_a_token_is_a_secret() -> None:
    settings = Settings.from_environment({"SCANFLOW_URL": URL, "SCANFLOW_TOKEN": "abc"})
    assert settings.url == URL
    assert settings.find_token("https://elsewhere") == "abc"
    assert Settings.from_environment({}).find_token("https://elsewhere") is None
    assert "abc" not in f"{settings!r} {settings} {settings.model_dump_json()}"


def run(monkeypatch: pytest.MonkeyPatch, handler: Callable[[httpx2.Request], httpx2.Response], *words: str) -> Result:
    standin = ControlClient(lambda: ServerClient(URL, transport=httpx2.MockTransport(handler)))
    monkeypatch.setattr("scanflow_client.cli.server_commands.open_client", lambda: standin)
    return CliRunner().invoke(app, ["events", *words], catch_exceptions=False)


def test_events_are_printed_and_followed_from_the_last_one_on(monkeypatch: pytest.MonkeyPatch) -> None:
    past = Event(id=4, at=1.0, type="run.failed", app="shop", subject="run/a", data={"step": "train"})
    later = Event(id=5, at=2.0, type="run.failed", app="shop", subject="run/b")
    asked: list[httpx2.Request] = []

    def handle(request: httpx2.Request) -> httpx2.Response:
        if request.url.path.endswith("/newest"):
            return httpx2.Response(200, json=past.model_dump(mode="json"))
        asked.append(request)
        if "last-event-id" in request.headers:
            return httpx2.Response(200, content=f"id: 5\ndata: {later.model_dump_json()}\n\n".encode())
        return httpx2.Response(200, json=[past.model_dump(mode="json")])

    done = run(monkeypatch, handle, "--follow", "--type", "run.failed")
    first, second = done.stdout.splitlines()
    assert first.endswith('run/a  {"step": "train"}')
    assert second.endswith("run/b")
    assert asked[1].headers["last-event-id"] == "4"
    assert {call.url.params["type"] for call in asked} == {"run.failed"}
    as_json = run(monkeypatch, handle, "--json")
    assert [Event.model_validate_json(line) for line in as_json.stdout.splitlines()] == [past]

    def handle_none(request: httpx2.Request) -> httpx2.Response:
        return httpx2.Response(200, json=None if request.url.path.endswith("/newest") else [])

    assert "There is no event yet" in run(monkeypatch, handle_none).stdout
    mistyped = run(monkeypatch, handle_none, "--type", "drift.fond")
    assert "no event of type 'drift.fond'" in mistyped.stdout
    assert mistyped.stderr.rstrip().endswith("agents of your own may. Did you mean 'drift.found'?")
    assert run(monkeypatch, handle_none, "--type", "drift.*").stderr == ""


def test_mlflow_s_server_gets_the_tracker_of_the_home_by_its_environment(tmp_path: Path) -> None:
    place = locate_tracker(tmp_path, "postgresql://me:secret@host/mlflow")
    variables = mlflow_server.build_environment(place)
    assert variables["_MLFLOW_SERVER_FILE_STORE"] == "postgresql://me:secret@host/mlflow"
    assert variables["_MLFLOW_SERVER_ARTIFACT_ROOT"] == (tmp_path / "tracker" / "artifacts").as_uri()


@pytest.mark.parametrize("missing", ["MLFLOW_BACKEND_STORE_URI", "MLFLOW_ARTIFACTS_DESTINATION", mlflow_server.TOKEN])
def test_mlflow_s_server_listens_on_a_port_with_a_token_alone(missing: str) -> None:
    variables = {
        "MLFLOW_BACKEND_STORE_URI": "sqlite:////f",
        "MLFLOW_ARTIFACTS_DESTINATION": "/f",
        mlflow_server.TOKEN: "t",
    }
    assert mlflow_server.build_port_environment(variables)["_MLFLOW_SERVER_ARTIFACT_ROOT"] == "mlflow-artifacts:/"
    with pytest.raises(UsageError, match=f"needs {missing}"):
        mlflow_server.build_port_environment({**variables, missing: ""})
