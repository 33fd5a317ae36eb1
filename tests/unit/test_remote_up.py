"""``up``, ``down`` and ``status`` over a server of a few lines: what is started, and that exactly this is stopped."""

from __future__ import annotations

import fcntl
import json
import os
import re
import socket
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import typer

from scanflow.deployer.remote_home import (
    UpProcess,
    UpState,
    delete_up_state,
    get_up_state_file,
    read_up_state,
    write_up_state,
)
from scanflow.errors import InvalidError, MissingExtraError, UnavailableError, UsageError
from scanflow.installation import explain_install
from scanflow.processes.daemon import Daemon
from scanflow.processes.ports import forget_ports
from scanflow.settings import Settings
from scanflow_client import control_plane
from scanflow_client.cli import server_commands
from scanflow_client.formatting.control_plane_text import format_status, format_up
from scanflow_client.formatting.text_table import Table
from tests.serving import reserve_ports
from tests.waiting import PATIENCE_S, wait_until

pytestmark = pytest.mark.processes

SERVER = """
import http.server, json, os, pathlib, signal, sys, time
home = pathlib.Path(os.environ["SCANFLOW_HOME"])
mood = (home / "mood").read_text() if (home / "mood").exists() else ""
if mood == "dies":
    sys.exit("RuntimeError: the store is broken")
if mood == "stubborn":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
agents = {"tracker": "running", "checker": "running" if mood == "broken" else "stopped"}

class Handler(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        path = self.path.removeprefix("/api/v1")
        listed = [{"app": "shop", "team": "default", "name": name, "state": state} for name, state in agents.items()]
        status = {"database": "sqlite", "started": 1.0, "agents": listed, "counts": {"runs": 2}, "pid": os.getpid()}
        answers = {"/readyz": "ok", "/status": status, "/agents": listed, "/services": [{"name": "digits"}]}
        ready = path != "/readyz" or mood != "never ready"
        self._answer(200 if ready else 503, answers[path])

    def do_DELETE(self):
        name = self.path.rpartition("/")[2]
        if mood == "broken" and name == "tracker":
            return self._answer(503, {"type": "urn:scanflow:error:UnavailableError", "detail": "The disk is full."})
        agents[name] = "stopped"
        noted = home / "server" / "agents" / "shop" / name / "own pid"
        if noted.exists():
            os.kill(int(noted.read_text()), signal.SIGTERM)
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

AGENT = """
import os, pathlib, signal, sys, time
folder, manner = pathlib.Path(sys.argv[1]), sys.argv[2]

def end(*_):
    while manner == "slow" and not (folder / "let go").exists():
        time.sleep(0.01)
    (folder / "tidied").touch()
    sys.exit()

signal.signal(signal.SIGTERM, signal.SIG_IGN if manner == "stubborn" else end)
(folder / "own pid").write_text(str(os.getpid()))
(folder / "ready").touch()
while True:
    signal.pause()
"""


StartAgent = Callable[..., Path]


@pytest.fixture
def agent(home: Path) -> Iterator[StartAgent]:
    started: list[Daemon] = []

    def start(name: str, manner: str = "willing") -> Path:
        folder = home / "server" / "agents" / "shop" / name
        folder.mkdir(parents=True)
        command = [sys.executable, "-c", AGENT, str(folder), manner]
        started.append(Daemon(folder))
        grace_s = 0.2 if manner == "stubborn" else PATIENCE_S  # what ends when asked is not hurried
        assert started[-1].start(command, log=folder / "log", grace_s=grace_s)
        wait_until((folder / "ready").exists, "the agent is there")
        return folder

    yield start
    for process in started:
        process.kill()
        assert process.wait(PATIENCE_S)


@pytest.fixture
def standin(home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Settings]:
    package = tmp_path / "path" / "scanflow_server"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "__main__.py").write_text(SERVER)
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(control_plane, "READY_S", PATIENCE_S)
    monkeypatch.setattr(control_plane, "GRACE_S", 0.2)
    monkeypatch.setattr(control_plane, "ENDS_S", PATIENCE_S)
    monkeypatch.setattr(control_plane, "AGENTS_END_S", PATIENCE_S)
    monkeypatch.setattr(control_plane, "TELL_AFTER_S", 0.1)
    settings = Settings(home=home)
    with reserve_ports(3) as (port, *_):
        monkeypatch.setattr(control_plane, "PORT", port)
        yield settings
        control_plane.stop_control_plane(settings)


def set_mood(home: Path, mood: str) -> None:
    home.mkdir(exist_ok=True)
    (home / "mood").write_text(mood)


def start_up(settings: Settings, port: int | None = None) -> control_plane.UpResult:
    return control_plane.start_control_plane(settings, port=port, tracker=False)


def test_up_and_down_are_a_pair(standin: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SCANFLOW_URL", "http://elsewhere:1")
    raised = start_up(standin)
    server = raised.up.server
    assert (raised.server, raised.tracker, raised.notes) == (True, False, [])
    assert (read_up_state(standin.home), server.port) == (raised.up, control_plane.PORT)
    assert "SCANFLOW_URL names another server" in format_up(raised, server_url="http://elsewhere:1")[1]
    assert "elsewhere" not in Path(f"/proc/{server.pid}/environ").read_text()
    parent = Path(f"/proc/{server.pid}/stat").read_text().rpartition(")")[2].split()[1]
    assert int(parent) != os.getpid()
    looks: list[dict[str, Any]] = []

    def ready() -> bool:
        looks.append(control_plane.read_status(standin))
        return bool(looks[-1]["server"]["ready"])

    wait_until(ready, "it says that it is ready")  # a look gives it a second
    look = looks[-1]
    assert (look["up"], look["status"]["counts"]) == (True, {"runs": 2})
    first, *_, counts, table = format_status(look)
    assert str(first).startswith(f"✓ server   {server.url}  process {server.pid}")
    assert counts == "  runs: 2"
    assert isinstance(table, Table)
    assert table.rows[0][:3] == ("tracker", "shop", "running")

    again = start_up(standin)
    assert (again.server, again.up) == (False, raised.up)
    assert "The server is up already" in format_up(again)[0]
    with pytest.raises(UsageError, match=f"up on port {control_plane.PORT} already. Stop it first: scanflow down"):
        start_up(standin, server.port + 1)

    done = control_plane.stop_control_plane(standin)
    assert done.stopped == ["the agent 'tracker' of shop", f"the server at {server.url} (process {server.pid})"]
    assert done.left == ["Services keep serving: digits. Delete one: scanflow delete digits"]
    assert (server.is_alive(), read_up_state(standin.home)) == (False, None)
    assert control_plane.stop_control_plane(standin) == control_plane.DownResult(stopped=[], left=[])
    assert format_status(control_plane.read_status(standin)) == [
        "The control plane is not running. Start it: scanflow up"
    ]


def test_a_taken_port_is_refused_or_passed_over(
    standin: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    set_mood(standin.home, "stubborn")
    taken = control_plane.PORT
    with socket.create_server(("127.0.0.1", taken)):
        with pytest.raises(UsageError, match="is taken by another program"):
            start_up(standin, taken)
        assert read_up_state(standin.home) is None
        raised = start_up(standin)
    port = raised.up.server.port
    assert port == taken + 1
    assert raised.notes == [f"Port {taken} is taken by another program, so it listens on {port}."]
    control_plane.stop_control_plane(standin)
    assert not raised.up.server.is_alive(), "a server that does not end is made to"
    assert control_plane.reserve_home_port(tmp_path / "other", port) == port, (
        "what is down leaves its port to other homes"
    )
    forget_ports(tmp_path / "other")


def test_a_server_that_is_never_ready_can_be_stopped(standin: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    set_mood(standin.home, "dies")
    with pytest.raises(UnavailableError, match=r"(?s)exited as soon as it was .*RuntimeError: the store is broken$"):
        start_up(standin)
    monkeypatch.setattr(control_plane, "READY_S", 1.0)
    set_mood(standin.home, "never ready")
    with pytest.raises(UnavailableError, match="not ready after 1 s"):
        start_up(standin)
    assert str(format_status(control_plane.read_status(standin))[0]).startswith("✗ server")
    assert any("the server at" in line for line in control_plane.stop_control_plane(standin).stopped)


def test_missing_libraries_name_their_extra(standin: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_plane, "NEEDS", ("fastapi", "no_such_library"))
    how = re.escape(explain_install("server"))
    with pytest.raises(MissingExtraError, match=f"needs no_such_library, .* {how}"):
        control_plane.start_control_plane(standin)


def test_a_tracker_that_is_elsewhere_is_not_started_here(standin: Settings) -> None:
    raised = control_plane.start_control_plane(standin.model_copy(update={"tracker_uri": "http://mlflow:5000"}))
    assert raised.up.tracker is None
    assert "SCANFLOW_TRACKER_URI names" in raised.notes[0]


@pytest.mark.parametrize("odd", ["%", "?"])
def test_a_home_that_no_address_can_hold_is_refused_before_anything_starts(tmp_path: Path, odd: str) -> None:
    home = tmp_path / f"home {odd}20"
    with pytest.raises(InvalidError, match="an address cannot contain"):
        control_plane.start_control_plane(Settings(home=home))
    assert not home.exists()


def test_a_home_that_cannot_be_written_is_said_to_be_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UnavailableError, match=r"cannot be (used|stored): (Not a directory|File exists)"):
        control_plane.start_control_plane(Settings(home=tmp_path / "file"))


def test_another_s_server_is_not_our_own(standin: Settings, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    other = start_up(standin).up.server
    # Both chose it before either listened.
    monkeypatch.setattr(control_plane, "choose_server_port", lambda *_: other.port)
    with pytest.raises(UnavailableError, match=r"(?s)exited as soon as it was started.*Address already in use"):
        start_up(Settings(home=tmp_path / "late"))
    assert other.is_alive()


def test_a_port_is_another_home_s_to_choose_only_when_it_is_free(standin: Settings, tmp_path: Path) -> None:
    path, other = tmp_path / "one", tmp_path / "other"
    first = control_plane.reserve_home_port(path, control_plane.PORT)
    assert control_plane.reserve_home_port(other, first) != first
    assert control_plane.reserve_home_port(path, first) == first
    with pytest.raises(UsageError, match="is taken by another"):
        start_up(standin, first)
    forget_ports(path)
    assert control_plane.reserve_home_port(other, first) == first
    forget_ports(other)


def test_a_note_of_what_is_up_comes_back_whole_or_counts_as_none(tmp_path: Path) -> None:
    server = UpProcess(folder=tmp_path / "daemon", pid=7, port=1, url="http://127.0.0.1:1", log="/l")
    note = UpState(server=server, started=1.5)
    write_up_state(tmp_path, note)
    assert read_up_state(tmp_path) == note
    assert [path.name for path in get_up_state_file(tmp_path).parent.iterdir()] == ["up.json"]
    assert (server.is_alive(), server.terminate(patience_s=1.0)) == (False, False)
    for _ in range(2):
        delete_up_state(tmp_path)
        assert read_up_state(tmp_path) is None
    for text in ("", "{", "[]", '{"server": {"pid": "many"}}', "\x00"):
        get_up_state_file(tmp_path).write_text(text)
        assert read_up_state(tmp_path) is None


# Agents that take their time, or do not end


def test_down_waits_for_an_agent_that_tidies_up_and_says_so(standin: Settings, agent: StartAgent) -> None:
    folder = agent("tracker", "slow")
    start_up(standin)
    messages: list[str] = []

    def tell(text: str) -> None:
        messages.append(text)
        (folder / "let go").touch()

    done = control_plane.stop_control_plane(standin, tell=tell)
    assert (folder / "tidied").exists()
    assert (done.stopped[0], done.running) == ("the agent 'tracker' of shop", [])
    assert messages == [f"Waiting for tracker of shop to stop, for at most {PATIENCE_S:.0f} s."]


def test_a_stubborn_agent_is_killed(standin: Settings, agent: StartAgent, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(control_plane, "AGENTS_END_S", 0.3)
    folder = agent("tracker", "stubborn")
    start_up(standin)
    done = control_plane.stop_control_plane(standin)
    assert not Daemon(folder).alive
    pid = (folder / "own pid").read_text()
    assert f"the agent 'tracker' of shop (process {pid}), which the server did not stop" in done.stopped
    assert (done.running, read_up_state(standin.home)) == ([], None)


def test_an_agent_the_server_cannot_end_is_ended_too(standin: Settings, agent: StartAgent) -> None:
    set_mood(standin.home, "broken")
    folders = [agent("tracker"), agent("checker")]
    start_up(standin)
    done = control_plane.stop_control_plane(standin)
    assert all((folder / "tidied").exists() and not Daemon(folder).alive for folder in folders)
    assert "the agent 'checker' of shop" in done.stopped
    assert any(line.startswith("the agent 'tracker' of shop (process ") for line in done.stopped)
    assert any("The disk is full." in line and "the next 'scanflow up' starts it again" in line for line in done.left)
    assert done.running == []


def test_agents_are_ended_without_a_server_too(standin: Settings, agent: StartAgent) -> None:
    daemon = Daemon(agent("tracker"))
    assert control_plane.stop_control_plane(standin).stopped[0] == "the agent 'tracker' of shop"
    set_mood(standin.home, "dies")
    other = Daemon(agent("checker"))
    done = control_plane.stop_control_plane(standin)
    assert any("exited as soon as it was started" in line for line in done.left)
    assert (daemon.alive, other.alive, read_up_state(standin.home)) == (False, False, None)


def test_an_agent_that_runs_on_all_the_same_is_reported_and_remembered(
    standin: Settings, agent: StartAgent, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    set_mood(standin.home, "broken")
    folder = agent("tracker", "stubborn")
    start_up(standin)
    with monkeypatch.context() as impatient:
        impatient.setattr(Daemon, "wait", lambda _daemon, _timeout_s=None: False)
        impatient.setattr(control_plane, "ENDS_S", 0.0)
        impatient.setattr(Daemon, "stop", lambda _daemon: None)
        with pytest.raises(typer.Exit) as ended:
            server_commands.down(as_json=True)
    assert ended.value.exit_code == 3
    done = json.loads(capsys.readouterr().out)
    assert done["running"] == ["tracker of shop"]
    assert not any("tracker" in line for line in done["stopped"])
    (message,) = [line for line in done["left"] if "still runs" in line]
    assert message.startswith("The agent 'tracker' of shop still runs.")
    assert message.endswith("try again: scanflow down")
    assert read_up_state(standin.home) is not None
    assert control_plane.stop_control_plane(standin).running == []
    assert not Daemon(folder).alive


def test_the_agents_of_a_server_that_up_did_not_start_are_left_to_it(standin: Settings, agent: StartAgent) -> None:
    folder = agent("tracker")
    raised = start_up(standin)
    delete_up_state(standin.home)
    with (standin.home / "server" / "lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        done = control_plane.stop_control_plane(standin)
        assert Daemon(folder).alive
    assert done.stopped == []
    assert "was not started by scanflow up" in done.left[0]
    assert raised.up.server.terminate(patience_s=PATIENCE_S)


def test_what_is_up_in_a_home_that_was_moved_is_found_there(tmp_path: Path) -> None:
    before, now = tmp_path / "before", tmp_path / "now"
    folder = before / "server" / "daemons"
    server, tracker = (
        UpProcess(folder=folder / name, pid=1, port=2, url="http://x", log=str(before / "server" / f"{name}.log"))
        for name in ("server", "tracker")
    )
    write_up_state(before, up := UpState(server=server, tracker=tracker, started=0.0))
    assert read_up_state(before) == up
    before.rename(now)
    moved = read_up_state(now)
    assert moved is not None
    assert moved.tracker is not None
    assert moved.server.folder == now / "server" / "daemons" / "server"
    assert moved.tracker.log == str(now / "server" / "tracker.log")
