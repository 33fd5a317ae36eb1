"""``up``, ``down`` and ``status`` over a server of a few lines: what is started, and that exactly this is stopped."""

from __future__ import annotations

import os
import signal
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from scanflow.deployer.remote_home import read_up, up_file
from scanflow.errors import MissingExtraError, UnavailableError, UsageError
from scanflow.settings import Settings
from scanflow_client import plane
from scanflow_client.control_words import agent_rows, raised_lines, status_lines
from tests.serving import unused_port
from tests.waiting import until

SERVER = """
import http.server, json, os, pathlib, signal, sys, time
home = pathlib.Path(os.environ["SCANFLOW_HOME"])
mood = (home / "mood").read_text() if (home / "mood").exists() else ""
if mood == "dies":
    sys.exit("RuntimeError: the store is broken")
if mood == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
agents = {"tracker": "running", "checker": "stopped"}

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        path = self.path.removeprefix("/api/v1")
        listed = [{"app": "shop", "name": name, "state": state} for name, state in agents.items()]
        answers = {
            "/readyz": "ok",
            "/status": {"version": "0", "database": "sqlite", "started": 1.0, "agents": listed, "counts": {"runs": 2}},
            "/agents": listed,
            "/services": [{"name": "digits"}],
        }
        ready = path != "/readyz" or mood != "never ready"
        self._answer(200 if ready else 503, answers[path])

    def do_DELETE(self):
        agents[self.path.rpartition("/")[2]] = "stopped"
        self._answer(200, {})

    def _answer(self, status, document):
        body = json.dumps(document).encode()
        self.send_response(status)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

place = (os.environ["SCANFLOW_SERVER_HOST"], int(os.environ["SCANFLOW_SERVER_PORT"]))
http.server.ThreadingHTTPServer(place, Handler).serve_forever()
"""


@pytest.fixture
def standin(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    """A server of a few lines in the real one's place, and the settings of a home for it. What is up is stopped."""
    package = tmp_path / "path" / "scanflow_server"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(SERVER)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    monkeypatch.setattr(plane, "PORT", unused_port())
    monkeypatch.setattr(plane, "GRACE_S", 2.0)
    settings = Settings(home=home)
    yield settings
    plane.down(settings)


def set_mood(home: Path, mood: str) -> None:
    home.mkdir(exist_ok=True)
    (home / "mood").write_text(mood)


def test_what_is_up_is_ready_noted_and_nobody_s_child(standin: Settings) -> None:
    raised = plane.up(standin, tracker=False)
    assert (raised.server, raised.tracker, raised.notes) == (True, False, [])
    assert read_up(standin.home) == raised.up
    assert raised.up.server.port == plane.PORT
    parent = Path(f"/proc/{raised.up.server.pid}/stat").read_text().rpartition(")")[2].split()[1]
    assert int(parent) != os.getpid()
    told = plane.look(standin)
    assert (told["up"], told["server"]["ready"], told["status"]["counts"]) == (True, True, {"runs": 2})
    lines = status_lines(told)
    assert lines[0].startswith(f"✓ server   {raised.up.server.url}  process {raised.up.server.pid}")
    assert lines[-1] == "  runs: 2"
    assert agent_rows(told)[0][:3] == ("tracker", "shop", "running")


def test_up_twice_is_up_once(standin: Settings) -> None:
    first = plane.up(standin, tracker=False)
    second = plane.up(standin, tracker=False)
    assert (second.server, second.up) == (False, first.up)
    assert "The server is up already" in raised_lines(second)[0]
    with pytest.raises(UsageError, match=f"up on port {plane.PORT} already. Stop it first: scanflow down"):
        plane.up(standin, port=unused_port(), tracker=False)


def test_down_stops_the_agents_and_the_server_and_says_what_goes_on(standin: Settings) -> None:
    raised = plane.up(standin, tracker=False)
    done = plane.down(standin)
    assert done.stopped == [
        "the agent 'tracker' of shop",
        f"the server at {raised.up.server.url} (process {raised.up.server.pid})",
    ]
    assert done.left == ["digits go on answering. End one: scanflow delete digits"]
    assert not raised.up.server.is_alive()
    assert read_up(standin.home) is None
    assert plane.down(standin) == plane.Down(stopped=[], left=[])
    assert status_lines(plane.look(standin)) == ["Nothing is up. Start it: scanflow up"]


def test_down_leaves_a_process_alone_that_only_has_the_same_id(standin: Settings) -> None:
    raised = plane.up(standin, tracker=False)
    text = up_file(standin.home).read_text()
    up_file(standin.home).write_text(text.replace(raised.up.server.birth, "7"))
    assert plane.down(standin).stopped == []
    assert raised.up.server.is_alive()
    assert raised.up.server.end(grace_s=5.0)


def test_a_server_that_does_not_end_is_made_to(standin: Settings) -> None:
    set_mood(standin.home, "stubborn")
    raised = plane.up(standin, tracker=False)
    plane.down(standin)
    assert not raised.up.server.is_alive()


def test_a_server_that_was_killed_is_started_again_where_it_was(standin: Settings) -> None:
    first = plane.up(standin, port=unused_port(), tracker=False)
    os.kill(first.up.server.pid, signal.SIGKILL)
    until(lambda: not first.up.server.is_alive(), "it is gone")
    assert plane.look(standin)["up"] is False
    second = plane.up(standin, tracker=False)
    assert second.server
    assert second.up.server.url == first.up.server.url
    assert second.up.server.pid != first.up.server.pid


def test_a_port_that_was_asked_for_and_is_taken_is_said_and_no_other_is_used(standin: Settings) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        with pytest.raises(UsageError, match="is taken by another program"):
            plane.up(standin, port=other.getsockname()[1], tracker=False)
    assert read_up(standin.home) is None


def test_the_usual_port_when_it_is_taken_is_passed_over_and_said(
    standin: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        monkeypatch.setattr(plane, "PORT", other.getsockname()[1])
        raised = plane.up(standin, tracker=False)
    assert raised.up.server.port != plane.PORT
    assert raised.notes == [f"Port {plane.PORT} is taken by another program, so it listens on {raised.up.server.port}."]


def test_a_server_that_ends_at_once_is_told_with_the_end_of_its_log(standin: Settings) -> None:
    set_mood(standin.home, "dies")
    with pytest.raises(UnavailableError, match="ended as soon as it was started") as error:
        plane.up(standin, tracker=False)
    assert str(error.value).endswith("RuntimeError: the store is broken")


def test_a_server_that_is_never_ready_is_told_and_can_be_stopped(
    standin: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plane, "READY_S", 1.0)
    set_mood(standin.home, "never ready")
    with pytest.raises(UnavailableError, match="not ready after 1 s"):
        plane.up(standin, tracker=False)
    assert status_lines(plane.look(standin))[0].startswith("✗ server")
    assert any("the server at" in one for one in plane.down(standin).stopped)


def test_without_the_server_s_libraries_the_command_that_installs_them_is_said(
    standin: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(plane, "_NEEDS", ("fastapi", "no_such_library"))
    with pytest.raises(MissingExtraError, match=r"needs no_such_library, .* pip install 'scanflow\[server\]'"):
        plane.up(standin)


def test_a_tracker_that_is_elsewhere_is_not_started_here(standin: Settings) -> None:
    raised = plane.up(standin.model_copy(update={"tracker_uri": "http://mlflow:5000"}))
    assert raised.up.tracker is None
    assert "SCANFLOW_TRACKER_URI names" in raised.notes[0]


def test_a_home_that_cannot_be_written_is_said_to_be_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UnavailableError, match="cannot be used: Not a directory"):
        plane.up(Settings(home=tmp_path / "file"))


def test_the_server_that_is_started_does_not_speak_to_another(
    standin: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCANFLOW_URL", "http://elsewhere:1")
    raised = plane.up(standin, tracker=False)
    variables = Path(f"/proc/{raised.up.server.pid}/environ").read_text()
    assert "elsewhere" not in variables
    assert "SCANFLOW_URL names another server" in raised_lines(raised, elsewhere="http://elsewhere:1")[1]
