"""The port for backends that host agents; see :mod:`scanflow.backends.backend_port`."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from pydantic import SecretStr

from scanflow.backends.log_reader import LogReader

_DEFAULT_FILE = "app.py"


def ignore_message(_text: str) -> None:
    """Do nothing: the default observer."""


def format_start_command(source: str | None, agent: str) -> str:
    """Return the command that starts an agent from its application's file; None: ``app.py``."""
    return f"scanflow agents --start {shlex.quote(f'{source or _DEFAULT_FILE}:{agent}')}"


@dataclass(frozen=True, slots=True)
class HostedAgent:
    """The desired state of an agent: one process of the program ``scanflow_agents``."""

    app: str
    team: str
    name: str
    document: Mapping[str, Any]
    """The application, as ``scanflow.app.application_files`` writes it."""

    version: str
    """An agent that runs another version is restarted."""

    source: str | None = None
    """The application's file."""

    code: str = ""
    """A digest of the agent's own files when it was requested."""

    server: str | None = None
    """The address of the agent's server. None: it has none."""

    store: str | None = None
    """The server's database, if it is a SQLite file on this machine: an unmodified file holds no new events."""

    tracker: str | None = None
    """The tracker's address. None: the one in the home."""

    token: SecretStr | None = None
    """Authenticates this agent to the server. It is made at its start, and valid until its stop."""

    peer_token: SecretStr | None = None
    """Authenticates the agents of the application to each other, and the server to them; never to the server."""

    ca: str | None = None
    """The CA certificates, in PEM, that the server's certificate is verified with. None: the system's."""

    environment: Mapping[str, str] = field(default_factory=dict)
    """The server's environment variables, without secrets. Backends on other machines ignore it."""


@dataclass(frozen=True, slots=True)
class AgentProcess:
    """The observed state of an agent's process."""

    app: str
    team: str
    name: str
    alive: bool = False
    """Whether it runs, is starting, or is still terminating."""

    started: bool = False
    """Whether its program runs, and may send requests to the server."""

    version: str | None = None
    """The version it was last started with; None: it was never started."""

    code: str | None = None
    pid: int | None = None
    """Its process id, if it is on the server's machine."""

    url: str | None = None
    """Its address, if the backend assigns it; None: the one it reports itself, on the server's machine."""

    restarts: int = 0
    """How often the backend itself restarted it."""

    failure: str | None = None
    """Why it does not start or has ended; None: unknown."""

    ailment: str | None = None
    """The problem of an agent that runs."""


class AgentBackend(Protocol):
    """Hosts agents: processes that outlive their starter and keep their journal while stopped.

    An agent is identified by its application, its team and its name.
    """

    def start(self, agent: HostedAgent, *, observe: Callable[[str], object] = ignore_message) -> bool:
        """Reconcile an agent with its desired state. Idempotent and fast: callers repeat it in every loop.

        An agent of another version is stopped, and a later call starts it. One that died is restarted after a growing
        pause; then, unless the backend does that by itself, this returns True. ``observe`` is called with what others
        had removed of a running agent and was restored.

        Raises:
            UnsupportedError: the backend cannot host it; the message names the field.
        """
        ...

    def stop(self, app: str, team: str, name: str) -> None:
        """Stop an agent; it is killed after a grace period. Its data stays."""
        ...

    def show(self, app: str, team: str, name: str) -> AgentProcess:
        """Return the observed state of an agent; one that never ran is not alive."""
        ...

    def agents(self) -> list[AgentProcess]:
        """Return all agents that are alive, by application and name."""
        ...

    def logs(self, app: str, team: str, name: str) -> LogReader:
        """Return a reader of an agent's log.

        Raises:
            NotFoundError: it was never started.
        """
        ...
