"""``scanflow up`` and ``down``: the server and MLflow's beside it, on loopback, below one home folder.

Processes are detached and recorded with their start time, so that exactly these are stopped.
"""

from __future__ import annotations

import os
import sys
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from scanflow.app.quantities import format_duration
from scanflow.deployer.remote_home import (
    UpProcess,
    UpState,
    build_mlflow_url,
    delete_up_state,
    get_up_state_file,
    read_up_state,
    write_up_state,
)
from scanflow.errors import MissingExtraError, ScanflowError, UnavailableError, UsageError, end_sentence
from scanflow.files.private import create_private_folder, open_home, open_private
from scanflow.http.home_token import ensure_home_token, read_home_token
from scanflow.installation import explain_install
from scanflow.knowledge.mlflow.mlflow_socket import find_server_socket, is_listening
from scanflow.knowledge.step_environment import locate_tracker
from scanflow.processes.daemon import Daemon
from scanflow.processes.ports import forget_ports, reserve_port
from scanflow.processes.shared_files import is_locked, take_lock
from scanflow.settings import Settings
from scanflow.transport import ServerClient, build_path
from scanflow_client.server_address import LOOPBACK, ServerAddress, choose_server_address
from scanflow_client.shutdown import AgentShutdown

PORT = 46666  # of the server, unless another is given; if it is taken, the next free one
READY_S = 30.0  # the longest that the server may take to be ready; it takes about two seconds
GRACE_S = 10.0  # between SIGTERM and SIGKILL
ENDS_S = GRACE_S + 10.0  # the longest that ``down`` waits for one process to be gone
AGENT_S = 20.0  # the longest that one request to the server may take
AGENTS_END_S = 15.0  # the longest that agents may take to stop; the server kills them after 10 s
TELL_AFTER_S = 3.0  # after so long ``down`` says what it waits for
_PORT_ATTEMPTS = 100
_POLL_S = 0.05
_SHOWN_LINES = 12
_LOG_BYTES = 16 * 2**20
_FOREIGN_SERVER_MESSAGE = (
    "their server was not started by scanflow up, so it is not stopped. Its process is recorded in {lock!r}. Stop them "
    "through it, with its address in SCANFLOW_URL: scanflow agents APP --stop"
)
NEEDS = ("alembic", "fastapi", "sqlalchemy", "uvicorn")


@dataclass(frozen=True, slots=True, kw_only=True)
class UpResult:
    up: UpState
    server: bool
    """Whether this call started the server; else it was up before."""

    tracker: bool
    notes: list[str] = field(default_factory=list)
    """Hints for users: another port, a tracker elsewhere."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DownResult:
    stopped: list[str]
    left: list[str]
    """Descriptions of what still runs, and why."""

    running: list[str] = field(default_factory=list)
    """The agents that should have stopped but still run."""


def start_control_plane(
    settings: Settings, *, port: int | None = None, tracker: bool = True, tls: bool = False
) -> UpResult:
    """Start the server and the tracker unless they are up, and wait until the server is ready.

    ``tls``: serve over TLS, with a certificate of the home's own authority unless one is given.
    """
    missing = [name for name in NEEDS if find_spec(name) is None]
    if missing:
        raise MissingExtraError(
            f"The server needs {', '.join(missing)}, which cannot be imported here. {explain_install('server')}"
        )
    home = settings.home.expanduser().absolute()
    locate_tracker(home, settings.tracker_uri)  # refuses a path that addresses of databases cannot hold
    ensure_home_token(home)
    with _lock_home(home):
        before = read_up_state(home)
        notes: list[str] = []
        if before is None or keep_if_alive(before.server) is None:
            address = choose_server_address(home, tls=tls or settings.tls)
            server = _start_server(home, address, choose_server_port(home, port, before, notes, address.host))
            if address.authority is not None:
                notes.append(f"Clients elsewhere trust it by this file: SCANFLOW_TLS_CA={address.authority}")
            old = keep_if_alive(before.tracker) if before is not None else None
            if old is not None:  # it is behind this server from now on
                old = old.model_copy(update={"port": server.port, "url": build_mlflow_url(server.url)})
            running, fresh = UpState(server=server, tracker=old, started=time.time()), True
        else:
            if port not in {None, before.server.port}:
                raise UsageError(f"The server is up on port {before.server.port} already. Stop it first: scanflow down")
            if tls and not before.server.url.startswith("https:"):
                raise UsageError("The server is up without TLS already. Stop it first: scanflow down")
            running, fresh = before.model_copy(update={"tracker": keep_if_alive(before.tracker)}), False
        write_up_state(home, running)
        # Before the server starts agents: they use the tracker's server, and would each load MLflow without it.
        tracker_process = (
            _start_tracker(home, settings, running, notes) if tracker and running.tracker is None else None
        )
        if tracker_process is not None:
            running = running.model_copy(update={"tracker": tracker_process})
            write_up_state(home, running)
        _wait_until_ready(running.server, settings)
        return UpResult(up=running, server=fresh, tracker=tracker_process is not None, notes=notes)


def stop_control_plane(settings: Settings, *, tell: Callable[[str], None] = lambda _text: None) -> DownResult:
    """Stop what ``scanflow up`` started: the agents through the server, then the server and the tracker.

    Agents outlive a killed server, and only a server stops them for good: it is started again for that. An agent that
    the server cannot stop is signalled; one that survives that is left for the next ``scanflow down``. ``tell`` is
    called with a message about a long wait.
    """
    home = settings.home.expanduser().absolute()
    with _lock_home(home):
        running, agents = read_up_state(home), AgentShutdown(home)
        server = None if running is None else keep_if_alive(running.server)
        lock = get_up_state_file(home).with_name("lock")
        another = server is None and is_locked(lock)
        if server is None and not another and agents.list_living():
            server = _start_server_to_stop_agents(home, settings, running, agents)
        if server is not None:
            agents.request(_connect(server.url, settings))
            agents.wait(AGENTS_END_S, tell=tell, tell_after_s=TELL_AFTER_S)
        # The processes that drive runs and serve models outlive it on purpose.
        stopped = end_process("server", server)
        if not another:  # after the server, which would start them again
            agents.kill(ENDS_S)
        stopped += end_process("tracker", None if running is None else running.tracker)
        if another:
            return DownResult(
                stopped=stopped, left=agents.describe_living(_FOREIGN_SERVER_MESSAGE.format(lock=str(lock)))
            )
        done = DownResult(stopped=[*agents.stopped, *stopped], left=agents.problems, running=agents.running)
        if not done.running:
            delete_up_state(home)
        with suppress(UnavailableError):  # they expire in some seconds
            forget_ports(home)
        return done


def read_status(settings: Settings) -> dict[str, Any]:
    """Return the status of the server that the settings name, else of the home folder's."""
    running = None if settings.url else read_up_state(settings.home)
    if settings.url is None and (running is None or not running.server.is_alive()):
        return {"up": False, "server": None, "tracker": None, "status": None}
    url = settings.url or (running.server.url if running else "")
    server = _connect(url, settings)
    ready, reason = server.is_ready()
    status = None
    try:
        status = server.get(build_path("status"))
    except UnavailableError as error:
        ready, reason = False, str(error)
        if running is not None and ServerClient.found_no_listener(error):  # its process lives
            age = format_duration(time.time() - running.started)
            reason = f"it does not listen yet, {age} after its start. Its log: {running.server.log}"
    pid = running.server.pid if running else None
    server_status = {"url": url, "pid": pid, "ready": ready, "reason": None if ready else reason}
    return {
        "up": True,
        "server": server_status,
        "tracker": _describe_tracker(running.tracker, settings) if running else None,
        "status": status,
    }


def _describe_tracker(tracker: UpProcess | None, settings: Settings) -> dict[str, Any] | None:
    if tracker is None:
        return None
    alive = tracker.is_alive()
    socket = find_server_socket(locate_tracker(settings.home.expanduser(), settings.tracker_uri))
    ready = alive and socket is not None and is_listening(socket)
    return {"url": tracker.url, "pid": tracker.pid, "alive": alive, "ready": ready, "log": tracker.log}


def keep_if_alive(process: UpProcess | None) -> UpProcess | None:
    """Return a process that runs under its shim. One whose shim was killed is ended: nobody would start it again, and
    on its port no other can listen."""
    if process is None or process.is_alive():
        return process
    process.daemon.stop()
    return None


def end_process(name: str, process: UpProcess | None) -> list[str]:
    """End a process, and return its description if it was ended."""
    process = keep_if_alive(process)
    ended = process is not None and process.terminate(patience_s=ENDS_S)
    return [f"the {name} at {process.url} (process {process.pid})"] if process and ended else []


def _connect(url: str, settings: Settings) -> ServerClient:
    """Return a client of the home's server, by the home's token, or of the server that the settings name."""
    token = settings.find_token(url) if settings.url else read_home_token(settings.home)
    return ServerClient(url, token=token, timeout_s=AGENT_S)


def choose_server_port(
    home: Path, requested: int | None, before: UpState | None, notes: list[str], host: str = LOOPBACK
) -> int:
    if requested is not None:
        if reserve_port(requested, tried=1, host=host, whose=home) is None:
            raise UsageError(f"The port {requested} is taken by another program. Name a free one, or none: scanflow up")
        return requested
    usual = PORT if before is None else before.server.port  # clients expect the previous port
    port = reserve_home_port(home, usual, host)
    if port != usual:
        notes.append(f"Port {usual} is taken by another program, so it listens on {port}.")
    return port


def _start_server_to_stop_agents(
    home: Path, settings: Settings, recorded: UpState | None, agents: AgentShutdown
) -> UpProcess | None:
    """Start a server to stop the agents that outlived the previous one; None: it cannot be started."""
    process: UpProcess | None = None
    try:
        address = choose_server_address(home, tls=recorded is not None and recorded.server.url.startswith("https:"))
        process = _start_server(home, address, choose_server_port(home, None, recorded, [], address.host))
        write_up_state(
            home, UpState(server=process, tracker=None if recorded is None else recorded.tracker, started=time.time())
        )
        _wait_until_ready(process, settings)
    except ScanflowError as error:
        agents.record_failure(error)
        if process is not None:
            process.terminate(patience_s=ENDS_S)
        return None
    return process


def _wait_until_ready(process: UpProcess, settings: Settings) -> None:
    server = _connect(process.url, settings)
    give_up = time.monotonic() + READY_S
    while True:
        ready, reason = server.is_ready()
        if ready:
            if (other := _describe_other_process(server, process)) is None:
                return
            reason = other
        if not process.is_alive():
            raise UnavailableError(f"The server exited as soon as it was started. {_read_log_tail(process.log)}")
        if time.monotonic() > give_up:
            raise UnavailableError(
                f"The server, process {process.pid}, runs, but is not ready after {READY_S:.0f} s: "
                f"{end_sentence(reason)} Check again: scanflow status. {_read_log_tail(process.log)}"
            )
        time.sleep(_POLL_S)


def _describe_other_process(server: ServerClient, process: UpProcess) -> str | None:
    """Return an error if another process answers at the address, such as another home's server; else None."""
    try:
        pid = server.get(build_path("status")).get("pid")
    except ScanflowError as error:
        return f"The server at {process.url} does not report its process: {error}"
    return None if pid == process.pid else f"The process {pid} answers at {process.url}, not {process.pid}."


def _start_tracker(home: Path, settings: Settings, running: UpState, notes: list[str]) -> UpProcess | None:
    place = locate_tracker(home, settings.tracker_uri)
    if place.artifact_root is None:
        notes.append("SCANFLOW_TRACKER_URI names a tracker server, so none was started.")
        return None
    if find_spec("mlflow") is None:
        notes.append(f"There is no tracker: MLflow is not installed. {explain_install('local')}")
        return None
    url = build_mlflow_url(running.server.url)
    return _start_process(home, "tracker", ["scanflow_server.mlflow_server"], running.server.port, url)


def _start_server(home: Path, address: ServerAddress, port: int) -> UpProcess:
    url = address.format_url(port)
    public = {"SCANFLOW_PUBLIC_URL": os.environ.get("SCANFLOW_PUBLIC_URL") or url}  # for agents, which may check it
    return _start_process(home, "server", ["scanflow_server"], port, url, environment=address.environment | public)


def _start_process(
    home: Path, name: str, command: Sequence[str], port: int, url: str, *, environment: Mapping[str, str] | None = None
) -> UpProcess:
    log = get_up_state_file(home).with_name(f"{name}.log")
    create_private_folder(log.parent)
    if log.exists() and log.stat().st_size > _LOG_BYTES:
        log.replace(log.with_suffix(".old.log"))
    folder = log.parent / "daemons" / name
    # Children must not use another server's address.
    inherited = {name: value for name, value in os.environ.items() if name != "SCANFLOW_URL"}
    place = {"SCANFLOW_SERVER_PORT": str(port), "SCANFLOW_HOME": str(home), "PYTHONUNBUFFERED": "1"}
    variables = {**inherited, **(environment or {}), **place}
    daemon = Daemon(folder)
    argv = [sys.executable, "-m", *command]
    daemon.start(argv, log=log, environment=variables, grace_s=GRACE_S, restart=True)
    return UpProcess(folder=folder, pid=daemon.pid or 0, port=port, url=url, log=str(log))


def reserve_home_port(home: Path, first: int, host: str = LOOPBACK) -> int:
    """Return a free port of ``host``, from ``first`` on, and reserve it for the home until it is used."""
    port = reserve_port(first, tried=_PORT_ATTEMPTS, host=host, whose=home)
    if port is not None:
        return port
    raise UnavailableError(
        f"No port from {first} to {first + _PORT_ATTEMPTS - 1} is free. Name one: scanflow up --port"
    )


@contextmanager
def _lock_home(home: Path) -> Iterator[None]:
    """Hold the lock of a home folder, so that one ``up`` or ``down`` at a time changes it."""
    path = get_up_state_file(home).with_name("up.lock")
    try:
        create_private_folder(open_home(path.parent.parent) / path.parent.name)
        file = open_private(path, "a+", encoding="ascii")
    except OSError as error:
        raise UnavailableError(
            f"{str(path.parent)!r} cannot be used: {error.strerror}. Fix it, or name another home."
        ) from error
    with file:
        if not take_lock(file.fileno(), READY_S * 2):
            raise UnavailableError("Another 'scanflow up' or 'down' is using this home. Wait for it, or stop it.")
        yield


def _read_log_tail(log: str) -> str:
    try:
        with Path(log).open(encoding="utf-8", errors="replace") as file:
            text = "".join(deque(file, maxlen=_SHOWN_LINES)).rstrip()
    except OSError:
        return f"There is no log at {log!r}."
    return f"The end of its log, {log!r}:\n{text}" if text else f"Its log, {log!r}, is still empty."
