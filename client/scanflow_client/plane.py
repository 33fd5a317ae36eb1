"""``scanflow up`` and ``down``: the server and MLflow's beside it, on loopback, below one home folder.

What is started is nobody's child, and written down with its time of birth, so that exactly that is stopped.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scanflow.backends.local.births import birth_of
from scanflow.backends.local.detached import start_detached
from scanflow.backends.local.locks import is_held, try_lock
from scanflow.backends.local.services.ports import is_free
from scanflow.deployer.remote_home import Up, UpProcess, forget_up, read_up, up_file, write_up
from scanflow.errors import MissingExtraError, ScanflowError, UnavailableError, UsageError
from scanflow.knowledge.prepared import tracker_place
from scanflow.settings import Settings
from scanflow.transport import Server, answers, path_of

__all__ = ["Down", "Raised", "down", "look", "up"]

HOST = "127.0.0.1"
PORT = 46666
"""Of the server, unless another is asked for; where it is taken, the next free one."""

READY_S = 30.0
"""The longest that the server may take to be ready; it takes about two seconds."""

GRACE_S = 10.0
"""Between asking a process to end and ending it."""

AGENT_S = 20.0
"""The longest that asking one agent to end may take."""

_PORTS_TRIED = 100
_POLL_S = 0.05
_SHOWN_LINES = 12
_LOG_BYTES = 16 * 2**20
_NEEDS = ("alembic", "fastapi", "sqlalchemy", "uvicorn")


@dataclass(frozen=True, slots=True, kw_only=True)
class Raised:
    """What ``up`` did."""

    up: Up
    server: bool
    """Whether the server was started by this call; else it was up before."""

    tracker: bool
    notes: list[str] = field(default_factory=list)
    """What a person should know: another port, a tracker that is elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Down:
    """What ``down`` did."""

    stopped: list[str]
    left: list[str]
    """What goes on, and why."""


def up(settings: Settings, *, port: int | None = None, tracker: bool = True) -> Raised:
    """Start what is not up of server and tracker, and return when the server is ready.

    Raises:
        MissingExtraError: what the server is made of is not installed.
        UsageError: the port is taken, or the server is up on another.
        UnavailableError: it did not become ready; the end of its log is in the message.
    """
    missing = [name for name in _NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            f"The server needs {', '.join(missing)}, which cannot be imported here. Install it: "
            "pip install 'scanflow[server]'"
        )
    home = settings.home.expanduser().absolute()
    with _only_one(home):
        before = read_up(home)
        server = before.server if before is not None and before.server.is_alive() else None
        notes: list[str] = []
        fresh = server is None
        if server is None:
            server = _start_server(home, _server_port(port, before, notes))
        elif port is not None and port != server.port:
            raise UsageError(f"The server is up on port {server.port} already. Stop it first: scanflow down")
        old = (
            before.tracker if before is not None and before.tracker is not None and before.tracker.is_alive() else None
        )
        found = Up(server=server, tracker=old, started=before.started if before and not fresh else time.time())
        write_up(home, found)
        _wait_until_ready(found.server, settings)
        begun = _start_tracker(home, settings, before, found, notes) if tracker and old is None else None
        if begun is not None:
            found = found.model_copy(update={"tracker": begun})
            write_up(home, found)
        return Raised(up=found, server=fresh, tracker=begun is not None, notes=notes)


def down(settings: Settings) -> Down:
    """Stop what ``up`` started: the agents through the server, then the server and the tracker; nothing else.

    Agents outlive a server that is killed, and stopping one is the server's to do: it is started again for that.

    Raises:
        UnavailableError: it did not become ready; the end of its log is in the message.
    """
    home = settings.home.expanduser().absolute()
    with _only_one(home):
        found = read_up(home)
        if found is None:
            return Down(stopped=[], left=[])
        if not found.server.is_alive() and _agents_run(home):
            found = found.model_copy(update={"server": _start_server(home, _server_port(None, found, []))})
            write_up(home, found)
            _wait_until_ready(found.server, settings)
        stopped, left = _stop_agents(found.server, settings) if found.server.is_alive() else ([], [])
        # Only itself: the processes that drive runs and serve models outlive it on purpose.
        if found.server.end(grace_s=GRACE_S):
            stopped.append(f"the server at {found.server.url} (process {found.server.pid})")
        if found.tracker is not None and found.tracker.end(grace_s=GRACE_S, group=True):
            stopped.append(f"the tracker at {found.tracker.url} (process {found.tracker.pid})")
        forget_up(home)
        return Down(stopped=stopped, left=left)


def look(settings: Settings) -> dict[str, Any]:
    """Return what is up: of the server named by the settings, else of the one of the home folder."""
    found = None if settings.url else read_up(settings.home)
    if settings.url is None and (found is None or not found.server.is_alive()):
        return {"up": False, "server": None, "tracker": None, "status": None}
    url = settings.url or (found.server.url if found else "")
    ready, words = _server(url, settings).is_ready()
    pid = found.server.pid if found else None
    told: dict[str, Any] = {
        "up": True,
        "server": {"url": url, "pid": pid, "ready": ready, "reason": None if ready else words},
        "tracker": None,
        "status": None,
    }
    if found is not None and found.tracker is not None:
        alive = found.tracker.is_alive()
        told["tracker"] = {
            "url": found.tracker.url,
            "pid": found.tracker.pid,
            "alive": alive,
            "ready": alive and answers(f"{found.tracker.url}/health"),
            "log": found.tracker.log,
        }
    try:
        told["status"] = _server(url, settings).get(path_of("status"))
    except UnavailableError as error:
        told["server"] |= {"ready": False, "reason": str(error)}
    return told


def _server(url: str, settings: Settings) -> Server:
    return Server(url, token=settings.secret, timeout_s=AGENT_S)


def _server_port(wanted: int | None, before: Up | None, notes: list[str]) -> int:
    if wanted is not None:
        if not is_free(HOST, wanted):
            raise UsageError(f"The port {wanted} is taken by another program. Name a free one, or none: scanflow up")
        return wanted
    usual = PORT if before is None else before.server.port  # who speaks to it expects it where it was
    port = _free_port(usual)
    if port != usual:
        notes.append(f"Port {usual} is taken by another program, so it listens on {port}.")
    return port


def _start_server(home: Path, port: int) -> UpProcess:
    return _start([sys.executable, "-m", "scanflow_server"], home, port=port, log=up_file(home).with_name("server.log"))


def _wait_until_ready(process: UpProcess, settings: Settings) -> None:
    server = _server(process.url, settings)
    give_up = time.monotonic() + READY_S
    while True:
        ready, words = server.is_ready()
        if ready:
            return
        if not process.is_alive():
            raise UnavailableError(f"The server ended as soon as it was started. {_end_of(process.log)}")
        if time.monotonic() > give_up:
            raise UnavailableError(
                f"The server is not ready after {READY_S:.0f} s: {words} Look again: scanflow status. "
                f"{_end_of(process.log)}"
            )
        time.sleep(_POLL_S)


def _start_tracker(home: Path, settings: Settings, before: Up | None, found: Up, notes: list[str]) -> UpProcess | None:
    place = tracker_place(home, settings.tracker_uri)
    if place.artifact_root is None:
        notes.append("The tracker is a server already, which SCANFLOW_TRACKER_URI names; none was started.")
        return None
    if importlib.util.find_spec("mlflow") is None:
        notes.append("There is no tracker: MLflow is not installed. Install it: pip install 'scanflow[local]'")
        return None
    usual = found.server.port + 1 if before is None or before.tracker is None else before.tracker.port
    port = _free_port(usual)
    command = [sys.executable, "-m", "scanflow_client.tracker_program", str(port)]
    return _start(command, home, port=port, log=up_file(home).with_name("tracker.log"))


def _start(command: Sequence[str], home: Path, *, port: int, log: Path) -> UpProcess:
    log.parent.mkdir(parents=True, exist_ok=True)
    if log.exists() and log.stat().st_size > _LOG_BYTES:
        log.replace(log.with_suffix(".old.log"))
    pid = start_detached(command, log=log, environment=_environment(home, port, os.environ))
    return UpProcess(pid=pid, birth=birth_of(pid), port=port, url=f"http://{HOST}:{port}", log=str(log))


def _environment(home: Path, port: int, inherited: Mapping[str, str]) -> dict[str, str]:
    """Return this process' variables, but for the server it would speak to: that is the one being started."""
    kept = {name: value for name, value in inherited.items() if name != "SCANFLOW_URL"}
    place = {"SCANFLOW_SERVER_HOST": HOST, "SCANFLOW_SERVER_PORT": str(port)}
    return kept | place | {"SCANFLOW_HOME": str(home), "PYTHONUNBUFFERED": "1"}


def _agents_run(home: Path) -> bool:
    """Say whether any agent's process lives: each holds the lock of its folder."""
    return any(is_held(lock) for lock in up_file(home).parent.glob("agents/*/*/lock"))


def _stop_agents(process: UpProcess, settings: Settings) -> tuple[list[str], list[str]]:
    server = _server(process.url, settings)
    stopped: list[str] = []
    try:
        for agent in server.get(path_of("agents")):
            if agent.get("state") in {"stopped", "failed"}:
                continue
            server.delete(path_of("agents", agent["app"], agent["name"]))
            stopped.append(f"the agent {agent['name']!r} of {agent['app']}")
        served = [one["name"] for one in server.get(path_of("services"))]
    except ScanflowError as error:
        return stopped, [f"Agents that may run were not stopped: {error}"]
    if served:
        return stopped, [f"{', '.join(served)} go on answering. End one: scanflow delete {served[0]}"]
    return stopped, []


def _free_port(first: int) -> int:
    for port in range(first, min(first + _PORTS_TRIED, 65536)):
        if is_free(HOST, port):
            return port
    raise UnavailableError(f"No port from {first} to {first + _PORTS_TRIED - 1} is free. Name one: scanflow up --port")


@contextmanager
def _only_one(home: Path) -> Iterator[None]:
    """Let one ``up`` or ``down`` at a time work on a home folder."""
    path = up_file(home).with_name("up.lock")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        file = path.open("a+", encoding="ascii")
    except OSError as error:
        raise UnavailableError(
            f"{str(path.parent)!r} cannot be used: {error.strerror}. Fix it, or name another home."
        ) from error
    import fcntl

    with file:
        give_up = time.monotonic() + READY_S * 2
        while not try_lock(file.fileno(), fcntl.LOCK_EX):
            if time.monotonic() > give_up:
                raise UnavailableError(
                    "Another 'scanflow up' or 'down' is at work on this home. Wait for it, or end it."
                )
            time.sleep(_POLL_S)
        yield


def _end_of(log: str) -> str:
    try:
        with Path(log).open(encoding="utf-8", errors="replace") as file:
            lines = deque(file, maxlen=_SHOWN_LINES)
    except OSError:
        return f"It left no log at {log!r}."
    return f"The end of its log, {log!r}:\n{''.join(lines).rstrip()}"
