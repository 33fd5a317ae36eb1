"""``scanflow up`` and ``down``: the server and MLflow's beside it, on loopback, below one home folder.

What is started is nobody's child, and written down with its time of birth, so that exactly that is stopped.
"""

from __future__ import annotations

import importlib.util
import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from scanflow.backends.local.births import birth_of
from scanflow.backends.local.detached import start_detached
from scanflow.backends.local.locks import is_held, try_lock
from scanflow.backends.local.services.ports import forget_ports, next_port
from scanflow.deployer.remote_home import Up, UpProcess, forget_up, read_up, up_file, write_up
from scanflow.errors import MissingExtraError, ScanflowError, UnavailableError, UsageError
from scanflow.knowledge.prepared import tracker_place
from scanflow.settings import Settings
from scanflow.transport import Server, answers, path_of
from scanflow_client.ending import Ending

__all__ = ["Down", "Raised", "down", "free_port", "look", "up"]

HOST = "127.0.0.1"
PORT = 46666
"""Of the server, unless another is asked for; where it is taken, the next free one."""

READY_S = 30.0
"""The longest that the server may take to be ready; it takes about two seconds."""

GRACE_S = 10.0
"""Between asking a process to end and ending it."""

AGENT_S = 20.0
"""The longest that asking one agent to end may take."""

AGENTS_END_S = 15.0
"""The longest that agents which were asked may take to end; the server makes them end after 10 s."""

TELL_AFTER_S = 3.0
"""After so long it is told what is waited for."""

_PORTS_TRIED = 100
_POLL_S = 0.05
_SHOWN_LINES = 12
_LOG_BYTES = 16 * 2**20
_ANOTHER = (
    "their server was not started by scanflow up, so it is left alone. Its process is written in {lock!r}. Stop them "
    "through it, with its address in SCANFLOW_URL: scanflow agents APP --stop"
)
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

    running: list[str] = field(default_factory=list)
    """The agents that were to end, and run on all the same."""


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
            server = _start_server(home, _server_port(home, port, before, notes))
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


def down(settings: Settings, *, tell: Callable[[str], None] = lambda _text: None) -> Down:
    """Stop what ``up`` started: the agents through the server, then the server and the tracker; nothing else.

    Agents outlive a server that is killed, and stopping one is the server's to do: it is started again for that. What
    the server cannot end is ended by the lock that it holds; what lives even so is remembered for the next ``down``.

    Args:
        settings: Of the home.
        tell: Is told in words what is waited for, where it takes long.

    Raises:
        UnavailableError: the home cannot be used, or another ``up`` or ``down`` is at work on it.
    """
    home = settings.home.expanduser().absolute()
    with _only_one(home):
        found, ending = read_up(home), Ending(home)
        server = found.server if found is not None and found.server.is_alive() else None
        lock = up_file(home).with_name("lock")
        another = server is None and is_held(lock)
        if server is None and not another and ending.living():
            server = _start_to_ask(home, settings, found, ending)
        if server is not None:
            ending.ask(_server(server.url, settings))
            ending.wait(AGENTS_END_S, tell=tell, tell_after_s=TELL_AFTER_S)
        stopped = []
        # Only itself: the processes that drive runs and serve models outlive it on purpose.
        if server is not None and server.end(grace_s=GRACE_S):
            stopped.append(f"the server at {server.url} (process {server.pid})")
        if not another:  # now, as a server that lives starts again what it wants
            ending.force(GRACE_S)
        tracker = None if found is None else found.tracker
        if tracker is not None and tracker.end(grace_s=GRACE_S, group=True):
            stopped.append(f"the tracker at {tracker.url} (process {tracker.pid})")
        if another:
            return Down(stopped=stopped, left=ending.left_to(_ANOTHER.format(lock=str(lock))))
        done = Down(stopped=[*ending.stopped, *stopped], left=ending.left, running=ending.running)
        if not done.running:
            forget_up(home)
        with suppress(UnavailableError):  # in some seconds they are nobody's in any case
            forget_ports(home)
        return done


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


def _start_server(home: Path, port: int) -> UpProcess:
    return _start([sys.executable, "-m", "scanflow_server"], home, port=port, log=up_file(home).with_name("server.log"))


def _start_to_ask(home: Path, settings: Settings, found: Up | None, ending: Ending) -> UpProcess | None:
    """Start a server, so that it ends the agents that outlived the one before; None: it cannot be started."""
    process: UpProcess | None = None
    try:
        process = _start_server(home, _server_port(home, None, found, []))
        write_up(home, Up(server=process, tracker=None if found is None else found.tracker, started=time.time()))
        _wait_until_ready(process, settings)
    except ScanflowError as error:
        ending.cannot_ask(error)
        if process is not None:
            process.end(grace_s=GRACE_S)
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
            raise UnavailableError(f"The server ended as soon as it was started. {_end_of(process.log)}")
        if time.monotonic() > give_up:
            raise UnavailableError(
                f"The server is not ready after {READY_S:.0f} s: {words} Look again: scanflow status. "
                f"{_end_of(process.log)}"
            )
        time.sleep(_POLL_S)


def _other_there(server: Server, process: UpProcess) -> str | None:
    """Return in words that another process answers at the address: another home's may have been there first."""
    try:
        pid = server.get(path_of("status")).get("pid")
    except ScanflowError as error:
        return f"Who answers at {process.url} does not say who it is: {error}"
    return None if pid == process.pid else f"The process {pid} answers at {process.url}, and not {process.pid}."


def _start_tracker(home: Path, settings: Settings, before: Up | None, found: Up, notes: list[str]) -> UpProcess | None:
    place = tracker_place(home, settings.tracker_uri)
    if place.artifact_root is None:
        notes.append("The tracker is a server already, which SCANFLOW_TRACKER_URI names; none was started.")
        return None
    if importlib.util.find_spec("mlflow") is None:
        notes.append("There is no tracker: MLflow is not installed. Install it: pip install 'scanflow[local]'")
        return None
    usual = found.server.port + 1 if before is None or before.tracker is None else before.tracker.port
    port = free_port(home, usual)
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


def free_port(home: Path, first: int) -> int:
    """Return a port that nobody listens on, from ``first`` on, and note it as the home's until it is listened on.

    Raises:
        UnavailableError: there is none.
    """
    port = next_port(first, tried=_PORTS_TRIED, host=HOST, whose=home)
    if port is not None:
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
