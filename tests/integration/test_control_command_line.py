"""``scanflow up``, ``down``, ``status`` and ``events`` as a person meets them, with the real server and MLflow's."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import psutil
import pytest

import scanflow as sf
from scanflow.deployer.remote_home import Up, read_up
from scanflow.errors import UnavailableError
from scanflow.processes.daemon import Daemon
from scanflow.processes.identity import birth_of
from scanflow.settings import Settings
from scanflow_client import control_plane
from scanflow_client.demo.loop import run_loop
from tests.conftest import COMMAND, Cli
from tests.serving import unused_port
from tests.waiting import until

APP = """
import scanflow as sf

@sf.step
def load(count: int = 2) -> int:
    print("loading", count)
    return count

@sf.step
def fail(count: int) -> int:
    raise ValueError("no such luck")

app = sf.Application(
    name="demo",
    workflows=[
        sf.Workflow(name="w", nodes=[load.bind()]), sf.Workflow(name="bad", nodes=[fail.bind(1)])
    ],
)
"""

WATCH = """
import scanflow as sf
from scanflow.agent import sensor

@sensor(sf.every(hours=1))
def look():
    return 1
"""
WATCHED = """
import scanflow as sf
app = sf.Application(name="shop", agents=[sf.Agent(name="watcher", modules=["watch.py"])])
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    path = tmp_path / "app.py"
    path.write_text(APP)
    return path


@pytest.fixture
def up(cli: Cli, home: Path) -> Iterator[Up]:
    """A server that is up, without a tracker. It is stopped at the end."""
    done = cli("up", "--no-tracker", "--port", str(unused_port()))
    assert done.returncode == 0, done.stderr
    found = read_up(home)
    assert found is not None
    yield found
    control_plane.down(Settings(home=home))
    assert not found.server.is_alive()


def test_a_story_from_up_to_down(cli: Cli, home: Path, app: Path) -> None:
    assert "Nothing is up. Start it: scanflow up" in (nothing := cli("status")).stdout
    assert nothing.returncode == 3
    asked = cli("events")
    assert (asked.returncode, "Start it: scanflow up" in asked.stderr) == (3, True)
    raised = cli("up", "--no-tracker", "--port", str(unused_port()))
    assert raised.returncode == 0, raised.stderr
    found = read_up(home)
    assert found is not None
    try:
        assert f"The server is up: {found.server.url}" in raised.stdout
        assert f"The server is up already: {found.server.url}" in cli("up", "--no-tracker").stdout
        ran = cli("run", "app.py:w", "-p", "count=5")
        assert ran.returncode == 0, ran.stderr
        assert "✓ load" in ran.stdout
        assert cli("logs").stdout == "loading 5\n"
        happened = cli("events", "--type", "run.succeeded", "--json")
        assert [json.loads(line)["type"] for line in happened.stdout.splitlines()] == ["run.succeeded"]
        shown = cli("status")
        assert (shown.returncode, f"✓ server   {found.server.url}" in shown.stdout) == (0, True)
        failed = cli("run", "app.py:bad")
        assert failed.returncode == 1
        assert "ValueError: no such luck" in failed.stderr
    finally:
        ended = cli("down")
    assert f"Stopped the server at {found.server.url} (process {found.server.pid})." in ended.stdout
    assert not found.server.is_alive()
    assert "Nothing was up." in cli("down").stdout
    assert "loading 5" in cli("logs", cli("runs").stdout.splitlines()[-1].split()[0]).stdout  # without the server


def test_commands_go_to_the_server_that_is_named(
    cli: Cli, up: Up, app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = cli("token", "show").stdout.strip()
    monkeypatch.setenv("SCANFLOW_HOME", str(tmp_path / "another"))
    assert "There is no run yet" in cli("runs").stdout
    monkeypatch.setenv("SCANFLOW_URL", up.server.url)
    refused = cli("runs")
    assert (refused.returncode, "scanflow token show" in refused.stderr) == (2, True)
    monkeypatch.setenv("SCANFLOW_TOKEN", token)
    made = cli("token", "make", "ada").stdout.strip()
    assert cli("token", "make", "ada").returncode == 3
    monkeypatch.setenv("SCANFLOW_TOKEN", made)
    assert cli("run", "app.py:w").returncode == 0
    assert len(json.loads(cli("runs", "--json").stdout)) == 1
    monkeypatch.delenv("SCANFLOW_URL")
    assert "There is no run yet" in cli("runs").stdout
    monkeypatch.setenv("SCANFLOW_URL", "http://127.0.0.1:1")
    lost = cli("runs")
    assert lost.returncode == 3
    assert "The server at http://127.0.0.1:1 cannot be reached" in lost.stderr
    assert "scanflow up" in lost.stderr
    monkeypatch.setenv("SCANFLOW_URL", "over there")
    assert cli("runs").returncode == 2


def test_commands_work_on_when_the_server_was_killed_and_up_brings_it_back(cli: Cli, up: Up, app: Path) -> None:
    os.kill(up.server.pid, signal.SIGKILL)
    until(lambda: not up.server.is_alive(), "it is gone")
    assert cli("run", "app.py:w").returncode == 0
    again = cli("up", "--no-tracker", "--json")
    assert Up.model_validate_json(again.stdout).server.url == up.server.url
    assert len(json.loads(cli("runs", "--json").stdout)) == 1


def test_down_ends_the_agents_that_outlived_a_killed_server(cli: Cli, up: Up, home: Path, tmp_path: Path) -> None:
    (tmp_path / "watch.py").write_text(WATCH)
    (tmp_path / "app.py").write_text(WATCHED)
    started = cli("agents", "--start", "app.py")
    assert started.returncode == 0, started.stderr
    (attempts,) = (home / "server" / "agents").glob("*/*/attempts")
    agent = Daemon(attempts.parent)
    until(lambda: agent.alive, "the agent lives")
    os.kill(up.server.pid, signal.SIGKILL)
    until(lambda: not up.server.is_alive(), "the server is gone")
    assert agent.alive
    ended = cli("down")
    assert ended.returncode == 0, ended.stderr
    assert "Stopped the agent 'watcher' of shop." in ended.stdout
    assert not agent.alive


BLOCKING = """
import time
import scanflow as sf
from scanflow.agent import sensor

@sensor(sf.every(seconds=1))
async def look():
    open("blocked", "w").close()
    time.sleep(120)
"""


@pytest.mark.slow
def test_down_does_not_say_that_an_agent_is_stopped_before_it_is(cli: Cli, up: Up, home: Path, tmp_path: Path) -> None:
    blocked = tmp_path / "blocked"
    (tmp_path / "watch.py").write_text(BLOCKING.replace('"blocked"', repr(str(blocked))))
    (tmp_path / "app.py").write_text(WATCHED)
    started = cli("agents", "--start", "app.py")
    assert started.returncode == 0, started.stderr
    until(blocked.exists, "its sensor blocks")
    (attempts,) = (home / "server" / "agents").glob("*/*/attempts")
    agent = Daemon(attempts.parent)
    ended = cli("down")
    assert ended.returncode == 0, ended.stderr
    assert not agent.alive
    assert "Stopped the agent 'watcher' of shop" in ended.stdout
    assert "Waiting for watcher of shop to stop" in ended.stderr


def test_what_the_demo_advises_where_nothing_was_promoted_works_after_it(cli: Cli) -> None:
    with pytest.raises(UnavailableError) as advised:
        give_up()
    commands = re.findall(r"scanflow (\w+)", str(advised.value))
    assert commands[-2:] == ["why", "events"]
    try:
        for command in commands:
            done = cli(command, *(("--no-tracker", "--port", str(unused_port())) if command == "up" else ()))
            assert done.returncode == 0, done.stderr
    finally:
        cli("down")


def give_up() -> None:
    """Run the demo's loop without any time."""

    def look(*_: object) -> None:
        return

    server: Any = SimpleNamespace(get=lambda _: {"counts": {}}, events=lambda *_, **__: iter(()))
    traffic: Any = SimpleNamespace(send=look, answered=(), stop=look)
    run_loop(server, sf.Application(name="mnist"), traffic, models=dict, tell=look, look=look, timeout_s=0.0)


def test_events_are_followed_as_they_happen(cli: Cli, up: Up, app: Path, tmp_path: Path) -> None:
    command = [*COMMAND, "events", "--follow", "--json", "--type", "run.succeeded"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as watching:
        try:
            assert cli("run", "app.py:w").returncode == 0
            assert watching.stdout is not None
            told: dict[str, Any] = json.loads(watching.stdout.readline())
        finally:
            watching.kill()
    assert (told["type"], told["app"]) == ("run.succeeded", "demo")


@pytest.mark.slow
def test_mlflow_s_server_comes_up_over_the_same_tracker_and_goes_down_with_all_it_started(
    cli: Cli, home: Path, app: Path
) -> None:
    raised = cli("up", "--json", "--port", str(unused_port()))
    assert raised.returncode == 0, raised.stderr
    found = Up.model_validate_json(raised.stdout)
    assert found.tracker is not None
    tracker = found.tracker
    try:
        until(
            lambda: (json.loads(cli("status", "--json").stdout)["tracker"] or {}).get("ready"),
            f"MLflow answers; see {tracker.log}",
            patience_s=120,
        )
        assert (home / "tracker" / "mlflow.db").is_file()
        assert f"✓ tracker  {tracker.url}" in cli("status").stdout
        group = os.getpgid(tracker.pid)
    finally:
        ended = cli("down")
    assert f"Stopped the tracker at {tracker.url}" in ended.stdout
    assert not birth_of(tracker.pid)
    until(lambda: not living(group), "all that it started is gone")


def living(group: int) -> list[int]:
    """Return the processes of a group that have not ended."""
    return [one.pid for one in psutil.process_iter() if birth_of(one.pid) and group_of(one.pid) == group]


def group_of(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0
