"""``scanflow up``, ``down``, ``status`` and ``events`` as a person meets them, with the real server and MLflow's."""

from __future__ import annotations

import json
import os
import re
import signal
import ssl
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen

import psutil
import pytest

import scanflow as sf
from scanflow.deployer.remote_home import UpProcess, UpState, read_up_state
from scanflow.errors import UnavailableError
from scanflow.processes.daemon import Daemon
from scanflow.processes.identity import read_start_time
from scanflow.processes.shims import read_started
from scanflow.settings import Settings
from scanflow_client import control_plane
from scanflow_client.demo.loop import run_loop
from tests.conftest import COMMAND, Cli
from tests.serving import reserve_ports
from tests.waiting import wait_until

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
    agents=[sf.Agent(name="watcher", modules=["watch.py"])],
)
"""

WATCH = """
import time
import scanflow as sf
from scanflow.agent import sensor

@sensor(sf.every(seconds=1))
async def look():
    open(BLOCKED, "w").close()
    time.sleep(SECONDS)
"""


@pytest.fixture
def app(tmp_path: Path) -> Path:
    path = tmp_path / "app.py"
    path.write_text(APP)
    return path


@pytest.fixture
def port() -> Iterator[int]:
    with reserve_ports(2) as (port, _for_the_tracker):
        yield port


@pytest.fixture
def up_state(quick_cli: Cli, home: Path, port: int) -> Iterator[UpState]:
    done = quick_cli("up", "--no-tracker", "--port", str(port))
    assert done.returncode == 0, done.stderr
    state = read_up_state(home)
    assert state is not None
    yield state
    control_plane.stop_control_plane(Settings(home=home))
    assert not state.server.is_alive()


LOGS = """
import mlflow
import scanflow as sf

@sf.step
def train() -> int:
    mlflow.log_metric("loss", 0.5)
    return 7

app = sf.Application(name="demo", workflows=[sf.Workflow(name="w", nodes=[train.bind()])], tracker=sf.Tracker())
"""


def test_over_tls_everything_of_the_home_trusts_its_own_authority(
    cli: Cli, quick_cli: Cli, home: Path, app: Path, port: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    app.write_text(LOGS)
    raised = cli("up", "--tls", "--port", str(port))
    assert raised.returncode == 0, raised.stderr
    try:
        url = f"https://127.0.0.1:{port}"
        authority = home / "pki" / "authority.pem"
        assert f"The server is up: {url}" in raised.stdout
        assert f"SCANFLOW_TLS_CA={authority}" in raised.stdout
        monkeypatch.setenv("SCANFLOW_TOKEN", quick_cli("token", "show").stdout.strip())
        monkeypatch.setenv("SCANFLOW_URL", url)  # as from another machine
        ran = cli("run", "app.py")
        assert (ran.returncode, "train = 7" in ran.stdout) == (0, True), ran.stderr
        context = ssl.create_default_context(cafile=authority)
        with urlopen(f"https://localhost:{port}/login", context=context) as page:
            assert page.headers["strict-transport-security"] is None  # loopback has other programs, too
        with pytest.raises(URLError, match="CERTIFICATE_VERIFY_FAILED"):
            urlopen(f"{url}/healthz")
        (home / "pki" / "authority.pem").rename(home / "kept.pem")
        refused = quick_cli("status")
        assert (refused.returncode, "CERTIFICATE_VERIFY_FAILED" in refused.stdout + refused.stderr) == (3, True)
        (home / "kept.pem").rename(home / "pki" / "authority.pem")
        monkeypatch.delenv("SCANFLOW_URL")
        assert "is up without" not in quick_cli("up", "--tls").stderr
    finally:
        monkeypatch.delenv("SCANFLOW_URL", raising=False)
        ended = cli("down")
    assert f"Stopped the server at {url}" in ended.stdout


def test_a_session_from_up_to_down(cli: Cli, quick_cli: Cli, home: Path, app: Path, port: int) -> None:
    nothing = quick_cli("status")
    assert (nothing.returncode, "Start it: scanflow up" in nothing.stdout) == (3, True)
    asked = quick_cli("events")
    assert (asked.returncode, "Start it: scanflow up" in asked.stderr) == (3, True)
    raised = cli("up", "--no-tracker", "--port", str(port))
    assert raised.returncode == 0, raised.stderr
    state = read_up_state(home)
    assert state is not None
    try:
        assert f"The server is up: {state.server.url}" in raised.stdout
        assert f"The server is up already: {state.server.url}" in cli("up", "--no-tracker").stdout
        assert demo_s_advice() == ["up", "why", "events"]
        assert [quick_cli(word).returncode for word in ("why", "events")] == [0, 0]
        command = [*COMMAND, "events", "--follow", "--json", "--type", "run.succeeded"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watching:
            try:
                ran = cli("run", "app.py:w", "-p", "count=5")
                assert watching.stdout is not None
                document: dict[str, Any] = json.loads(watching.stdout.readline())
            finally:
                watching.kill()
        assert (ran.returncode, "✓ load" in ran.stdout) == (0, True), ran.stderr
        assert (document["type"], document["app"]) == ("run.succeeded", "demo")
        assert quick_cli("logs").stdout == "loading 5\n"
        happened = quick_cli("events", "--type", "run.succeeded", "--json")
        assert [json.loads(line)["type"] for line in happened.stdout.splitlines()] == ["run.succeeded"]
        shown = quick_cli("status")
        assert (shown.returncode, f"✓ server   {state.server.url}" in shown.stdout) == (0, True)
        failed = cli("run", "app.py:bad")
        assert (failed.returncode, "ValueError: no such luck" in failed.stderr) == (1, True)
    finally:
        ended = cli("down")
    assert f"Stopped the server at {state.server.url} (process {state.server.pid})." in ended.stdout
    assert not state.server.is_alive()
    assert "Nothing was running." in quick_cli("down").stdout
    assert "loading 5" in quick_cli("logs", document["subject"].removeprefix("run/")).stdout  # without the server


def demo_s_advice() -> list[str]:
    """Return the commands that the demo advises where nothing was promoted in its time."""

    def ignore(*_: object) -> None:
        return

    server: Any = SimpleNamespace(newest_event=lambda: 0, events_after=lambda *_, **__: iter(()))
    traffic: Any = SimpleNamespace(send=ignore)
    app = sf.Application(name="mnist")
    with pytest.raises(UnavailableError) as advised:
        run_loop(server, app, traffic, models=dict, tell=ignore, look=ignore, timeout_s=0.0)
    return re.findall(r"scanflow (\w+)", str(advised.value))


def test_commands_go_to_the_server_that_is_named(
    quick_cli: Cli, up_state: UpState, app: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    token = quick_cli("token", "show").stdout.strip()
    monkeypatch.setenv("SCANFLOW_HOME", str(tmp_path / "another"))
    assert "There is no run yet" in quick_cli("runs").stdout
    monkeypatch.setenv("SCANFLOW_URL", up_state.server.url)
    refused = quick_cli("runs")
    assert (refused.returncode, "scanflow token show" in refused.stderr) == (2, True)
    monkeypatch.setenv("SCANFLOW_TOKEN", token)
    ada_token = quick_cli("token", "make", "ada").stdout.strip()
    assert quick_cli("token", "make", "ada").returncode == 3
    monkeypatch.setenv("SCANFLOW_TOKEN", ada_token)
    assert quick_cli("run", "app.py:w").returncode == 0
    assert len(json.loads(quick_cli("runs", "--json").stdout)) == 1
    monkeypatch.delenv("SCANFLOW_URL")
    assert "There is no run yet" in quick_cli("runs").stdout
    monkeypatch.setenv("SCANFLOW_URL", "http://127.0.0.1:1")
    lost = quick_cli("runs")
    assert lost.returncode == 3
    assert "The server at http://127.0.0.1:1 cannot be reached" in lost.stderr
    assert "scanflow up" in lost.stderr
    monkeypatch.setenv("SCANFLOW_URL", "over there")
    assert quick_cli("runs").returncode == 2


def start_agent(cli: Cli, home: Path, folder: Path, *, seconds: float) -> Daemon:
    blocked = folder / "blocked"
    (folder / "watch.py").write_text(WATCH.replace("BLOCKED", repr(str(blocked))).replace("SECONDS", str(seconds)))
    started = cli("agents", "--start", "app.py")
    assert started.returncode == 0, started.stderr
    wait_until(blocked.exists, "its sensor fires")
    (attempts,) = (home / "server" / "agents").glob("*/*/attempts")
    return Daemon(attempts.parent)


def test_a_killed_server_ends_neither_commands_nor_agents(
    quick_cli: Cli, up_state: UpState, home: Path, app: Path, tmp_path: Path
) -> None:
    agent = start_agent(quick_cli, home, tmp_path, seconds=0.0)

    def kill(server: UpProcess) -> None:
        (attempt,) = (server.folder / "attempts").iterdir()
        started = read_started(attempt)
        assert started is not None
        os.kill(started["shim"], signal.SIGKILL)  # else it starts another server
        os.kill(server.pid, signal.SIGKILL)
        wait_until(lambda: not server.is_alive(), "the server is gone")
        assert agent.alive

    kill(up_state.server)
    assert quick_cli("run", "app.py:w").returncode == 0
    again = UpState.model_validate_json(quick_cli("up", "--no-tracker", "--json").stdout)
    assert again.server.url == up_state.server.url
    assert len(json.loads(quick_cli("runs", "--json").stdout)) == 1
    kill(again.server)
    ended = quick_cli("down")
    assert ended.returncode == 0, ended.stderr
    assert "Stopped the agent 'watcher' of demo." in ended.stdout
    assert not agent.alive


@pytest.mark.slow
def test_down_does_not_say_that_an_agent_is_stopped_before_it_is(
    quick_cli: Cli, up_state: UpState, home: Path, app: Path, tmp_path: Path
) -> None:
    agent = start_agent(quick_cli, home, tmp_path, seconds=120.0)
    ended = quick_cli("down")
    assert ended.returncode == 0, ended.stderr
    assert not agent.alive
    assert "Stopped the agent 'watcher' of demo" in ended.stdout
    assert "Waiting for watcher of demo to stop" in ended.stderr


@pytest.mark.slow
def test_mlflow_s_server_comes_up_over_the_same_tracker_and_goes_down_with_all_it_started(
    cli: Cli, quick_cli: Cli, home: Path, port: int
) -> None:
    raised = cli("up", "--json", "--port", str(port))
    assert raised.returncode == 0, raised.stderr
    state = UpState.model_validate_json(raised.stdout)
    assert state.tracker is not None
    tracker = state.tracker
    try:
        wait_until(
            lambda: (json.loads(quick_cli("status", "--json").stdout)["tracker"] or {}).get("ready"),
            f"MLflow answers; see {tracker.log}",
        )
        wait_until((home / "tracker" / "mlflow.db").is_file, "its database is made")
        assert f"✓ tracker  {tracker.url}" in quick_cli("status").stdout
        group = os.getpgid(tracker.pid)
    finally:
        ended = cli("down")
    assert f"Stopped the tracker at {tracker.url}" in ended.stdout
    assert not read_start_time(tracker.pid)
    processes = psutil.process_iter
    wait_until(
        lambda: not any(read_start_time(process.pid) and find_group(process.pid) == group for process in processes()),
        "all of it is gone",
    )


def find_group(pid: int) -> int:
    try:
        return os.getpgid(pid)
    except ProcessLookupError:
        return 0
