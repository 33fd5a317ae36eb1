"""``scanflow up`` and ``down``: the server and MLflow's beside it, on loopback, below one home folder.

What is started is detached, and recorded with its start time, so that exactly that is stopped.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from scanflow.deployer.remote_home import Up, UpProcess, forget_up, read_up, up_file, write_up
from scanflow.errors import MissingExtraError, ScanflowError, UnavailableError, UsageError
from scanflow.home_token import ensure_home_token, home_token
from scanflow.knowledge.step_environment import tracker_place
from scanflow.private import open_home, open_private, private_folder
from scanflow.processes.daemon import Daemon
from scanflow.processes.files import is_locked, try_lock
from scanflow.processes.ports import forget_ports, next_port
from scanflow.settings import Settings
from scanflow.transport import ServerClient, is_reachable, path_of
from scanflow_client.shutdown import AgentShutdown

HOST = "127.0.0.1"
PORT = 46666  # of the server, unless another is given; if it is taken, the next free one
READY_S = 30.0  # the longest that the server may take to be ready; it takes about two seconds
GRACE_S = 10.0  # between SIGTERM and SIGKILL
ENDS_S = GRACE_S + 10.0  # the longest that ``down`` waits for one process to be gone
AGENT_S = 20.0  # the longest that one request to the server may take
AGENTS_END_S = 15.0  # the longest that agents may take to stop; the server kills them after 10 s
TELL_AFTER_S = 3.0  # after so long ``down`` says what it waits for
_PORTS_TRIED = 100
_POLL_S = 0.05
_SHOWN_LINES = 12
_LOG_BYTES = 16 * 2**20
_ANOTHER = (
    "their server was not started by scanflow up, so it is left alone. Its process is recorded in {lock!r}. Stop them "
    "through it, with its address in SCANFLOW_URL: scanflow agents APP --stop"
)
_NEEDS = ("alembic", "fastapi", "sqlalchemy", "uvicorn")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpResult:
    up: Up
    server: bool
    """Whether this call started the server; else it was up before."""

    tracker: bool
    notes: list[str] = field(default_factory=list)
    """Hints for people: another port, a tracker elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DownResult:
    stopped: list[str]
    left: list[str]
    """What still runs, and why."""

    running: list[str] = field(default_factory=list)
    """The agents that should have stopped and still run."""


def up(settings: Settings, *, port: int | None = None, tracker: bool = True) -> UpResult:
    """Start the server and the tracker, unless they are up, and return when the server is ready."""
    missing = [name for name in _NEEDS if find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            f"The server needs {', '.join(missing)}, which cannot be imported here. Install it: "
            "pip install 'scanflow[server]'"
        )
    home = settings.home.expanduser().absolute()
    ensure_home_token(home)
    with _only_one(home):
        before = read_up(home)
        notes: list[str] = []
        if before is None or not before.server.is_alive():
            server = _start(home, "server", ["scanflow_server"], _server_port(home, port, before, notes))
            old = _living(before.tracker) if before is not None else None
            found, fresh = Up(server=server, tracker=old, started=time.time()), True
        else:
            if port not in {None, before.server.port}:
                raise UsageError(f"The server is up on port {before.server.port} already. Stop it first: scanflow down")
            found, fresh = before.model_copy(update={"tracker": _living(before.tracker)}), False
        write_up(home, found)
        # Before the server's agents begin: they read through it, and would each load MLflow where it is not there.
        begun = _start_tracker(home, settings, before, found, notes) if tracker and found.tracker is None else None
        if begun is not None:
            found = found.model_copy(update={"tracker": begun})
            write_up(home, found)
        _wait_until_ready(found.server, settings)
        return UpResult(up=found, server=fresh, tracker=begun is not None, notes=notes)


def down(settings: Settings, *, tell: Callable[[str], None] = lambda _text: None) -> DownResult:
    """Stop what ``up`` started: the agents through the server, then the server and the tracker; nothing else.

    Agents outlive a server that is killed, and only the server stops them for good: it is started again for that. An
    agent that the server cannot stop is signalled; one that lives even so is left for the next ``down``. ``tell`` is
    called with what is waited for, if that takes long.
    """
    home = settings.home.expanduser().absolute()
    with _only_one(home):
        found, agents = read_up(home), AgentShutdown(home)
        server = None if found is None else _living(found.server)
        lock = up_file(home).with_name("lock")
        another = server is None and is_locked(lock)
        if server is None and not another and agents.living():
            server = _start_to_stop(home, settings, found, agents)
        if server is not None:
            agents.request(_server(server.url, settings))
            agents.wait(AGENTS_END_S, tell=tell, tell_after_s=TELL_AFTER_S)
        # The processes that drive runs and serve models outlive it on purpose.
        stopped = _end("server", server)
        if not another:  # after the server, which would start them again
            agents.kill(ENDS_S)
        stopped += _end("tracker", None if found is None else found.tracker)
        if another:
            return DownResult(stopped=stopped, left=agents.left_to(_ANOTHER.format(lock=str(lock))))
        done = DownResult(stopped=[*agents.stopped, *stopped], left=agents.left, running=agents.running)
        if not done.running:
            forget_up(home)
        with suppress(UnavailableError):  # they expire in some seconds
            forget_ports(home)
        return done


def look(settings: Settings) -> dict[str, Any]:
    """Return what is up: of the server named by the settings, else of the one of the home folder."""
    found = None if settings.url else read_up(settings.home)
    if settings.url is None and (found is None or not found.server.is_alive()):
        return {"up": False, "server": None, "tracker": None, "status": None}
    url = settings.url or (found.server.url if found else "")
    server = _server(url, settings)
    ready, words = server.is_ready()
    status = None
    try:
        status = server.get(path_of("status"))
    except UnavailableError as error:
        ready, words = False, str(error)
    pid = found.server.pid if found else None
    told = {"url": url, "pid": pid, "ready": ready, "reason": None if ready else words}
    return {"up": True, "server": told, "tracker": _look_at(found.tracker) if found else None, "status": status}


def _look_at(tracker: UpProcess | None) -> dict[str, Any] | None:
    if tracker is None:
        return None
    alive = tracker.is_alive()
    ready = alive and is_reachable(f"{tracker.url}/health")
    return {"url": tracker.url, "pid": tracker.pid, "alive": alive, "ready": ready, "log": tracker.log}


def _living(process: UpProcess | None) -> UpProcess | None:
    return process if process is not None and process.is_alive() else None


def _end(name: str, process: UpProcess | None) -> list[str]:
    """End a process, and return what was ended, in words."""
    ended = process is not None and process.end(patience_s=ENDS_S)
    return [f"the {name} at {process.url} (process {process.pid})"] if process and ended else []


def _server(url: str, settings: Settings) -> ServerClient:
    """Return the server of the home, by the home's own token, or the one that the settings name."""
    token = settings.token_for(url) if settings.url else home_token(settings.home)
    return ServerClient(url, token=token, timeout_s=AGENT_S)


def _server_port(home: Path, wanted: int | None, before: Up | None, notes: list[str]) -> int:
    if wanted is not None:
        if next_port(wanted, tried=1, host=HOST, whose=home) is None:
            raise UsageError(f"The port {wanted} is taken by another program. Name a free one, or none: scanflow up")
        return wanted
    usual = PORT if before is None else before.server.port  # who speaks to it expects it where it was
    port = free_port(home, usual)
    if port != usual:
        notes.append(f"Port {usual} is taken by another program, so it listens on {port}.")
    return port


def _start_to_stop(home: Path, settings: Settings, found: Up | None, agents: AgentShutdown) -> UpProcess | None:
    """Start a server that stops the agents which outlived the one before; None: it cannot be started."""
    process: UpProcess | None = None
    try:
        process = _start(home, "server", ["scanflow_server"], _server_port(home, None, found, []))
        write_up(home, Up(server=process, tracker=None if found is None else found.tracker, started=time.time()))
        _wait_until_ready(process, settings)
    except ScanflowError as error:
        agents.server_failed(error)
        if process is not None:
            process.end(patience_s=ENDS_S)
        return None
    return process


def _wait_until_ready(process: UpProcess, settings: Settings) -> None:
    server = _server(process.url, settings)
    give_up = time.monotonic() + READY_S
    while True:
        ready, words = server.is_ready()
        if ready:
            if (other := _other_there(server, process)) is None:
                return
            words = other
        if not process.is_alive():
            raise UnavailableError(f"The server exited as soon as it was started. {_end_of(process.log)}")
        if time.monotonic() > give_up:
            raise UnavailableError(
                f"The server is not ready after {READY_S:.0f} s: {words} Look again: scanflow status. "
                f"{_end_of(process.log)}"
            )
        time.sleep(_POLL_S)


def _other_there(server: ServerClient, process: UpProcess) -> str | None:
    """Return an error if another process answers at the address: another home's may have been there first."""
    try:
        pid = server.get(path_of("status")).get("pid")
    except ScanflowError as error:
        return f"What answers at {process.url} does not say which process it is: {error}"
    return None if pid == process.pid else f"The process {pid} answers at {process.url}, not {process.pid}."


def _start_tracker(home: Path, settings: Settings, before: Up | None, found: Up, notes: list[str]) -> UpProcess | None:
    place = tracker_place(home, settings.tracker_uri)
    if place.artifact_root is None:
        notes.append("The tracker is a server already, which SCANFLOW_TRACKER_URI names; none was started.")
        return None
    if find_spec("mlflow") is None:
        notes.append("There is no tracker: MLflow is not installed. Install it: pip install 'scanflow[local]'")
        return None
    usual = found.server.port + 1 if before is None or before.tracker is None else before.tracker.port
    port = free_port(home, usual)
    return _start(home, "tracker", ["scanflow_client.mlflow_server", str(port)], port)


def _start(home: Path, name: str, command: Sequence[str], port: int) -> UpProcess:
    log = up_file(home).with_name(f"{name}.log")
    private_folder(log.parent)
    if log.exists() and log.stat().st_size > _LOG_BYTES:
        log.replace(log.with_suffix(".old.log"))
    folder = log.parent / "daemons" / name
    # The address of a server is that of the one being started.
    kept = {name: value for name, value in os.environ.items() if name != "SCANFLOW_URL"}
    place = {"SCANFLOW_SERVER_HOST": HOST, "SCANFLOW_SERVER_PORT": str(port)}
    environment = kept | place | {"SCANFLOW_HOME": str(home), "PYTHONUNBUFFERED": "1"}
    daemon = Daemon(folder)
    daemon.start([sys.executable, "-m", *command], log=log, environment=environment, grace_s=GRACE_S)
    return UpProcess(folder=folder, pid=daemon.pid or 0, port=port, url=f"http://{HOST}:{port}", log=str(log))


def free_port(home: Path, first: int) -> int:
    """Return a free port, from ``first`` on, and reserve it for the home until it is used."""
    port = next_port(first, tried=_PORTS_TRIED, host=HOST, whose=home)
    if port is not None:
        return port
    raise UnavailableError(f"No port from {first} to {first + _PORTS_TRIED - 1} is free. Name one: scanflow up --port")


@contextmanager
def _only_one(home: Path) -> Iterator[None]:
    """Let one ``up`` or ``down`` at a time use a home folder."""
    import fcntl

    path = up_file(home).with_name("up.lock")
    try:
        private_folder(open_home(path.parent.parent) / path.parent.name)
        file = open_private(path, "a+", encoding="ascii")
    except OSError as error:
        raise UnavailableError(
            f"{str(path.parent)!r} cannot be used: {error.strerror}. Fix it, or name another home."
        ) from error
    with file:
        give_up = time.monotonic() + READY_S * 2
        while not try_lock(file.fileno(), fcntl.LOCK_EX):
            if time.monotonic() > give_up:
                raise UnavailableError("Another 'scanflow up' or 'down' is using this home. Wait for it, or stop it.")
            time.sleep(_POLL_S)
        yield


def _end_of(log: str) -> str:
    try:
        with Path(log).open(encoding="utf-8", errors="replace") as file:
            lines = deque(file, maxlen=_SHOWN_LINES)
    except OSError:
        return f"There is no log at {log!r}."
    return f"The end of its log, {log!r}:\n{''.join(lines).rstrip()}"
