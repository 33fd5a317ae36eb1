"""What a place must do so that agents run there: part of the port; see :mod:`scanflow.backends.port`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from pydantic import SecretStr

from scanflow.backends.port import LogReader


def ignored(_text: str) -> None:
    """Tell nobody."""


@dataclass(frozen=True, slots=True)
class HostedAgent:
    """An agent that is to run, as one process of the program ``scanflow_agents``."""

    app: str
    team: str
    name: str
    document: Mapping[str, Any]
    """The application, as ``scanflow.app.files`` writes it."""

    version: str
    """What runs with another version is started anew."""

    source: str | None = None
    """The file that the application came from."""

    code: str = ""
    """A digest of the agent's own files, when it was asked for."""

    server: str | None = None
    """Where the agent finds its server. None: it has none."""

    store: str | None = None
    """The server's database, where that is a SQLite file of the server's machine: what is kept in it is as it was for
    as long as nobody writes to it."""

    tracker: str | None = None
    """The tracker's address. None: the one in the home."""

    token: SecretStr | None = None
    """Lets it in at the server and at the other agents of the application, for its own team's things alone."""

    ca: str | None = None
    """The certificates, in PEM, that the server's is checked against. None: the usual ones."""

    environment: Mapping[str, str] = field(default_factory=dict)
    """Of the server's process, without its secrets. A place that is not on its machine hands none of it on."""


@dataclass(frozen=True, slots=True)
class AgentProcess:
    """How the process of an agent stands."""

    app: str
    team: str
    name: str
    alive: bool = False
    """Whether it runs, is about to, or is still ending."""

    started: bool = False
    """Whether its program runs: what the server hears may be from it."""

    version: str | None = None
    """What it was last started with; None: it never was."""

    code: str | None = None
    pid: int | None = None
    """Its process, where that is on the server's machine."""

    url: str | None = None
    """Where it answers, where the place decides that; None: where it says that it is, on the server's machine."""

    restarts: int = 0
    """How often the place itself started it again."""

    failure: str | None = None
    """Why it does not come up, or ended; None: nothing that is known."""

    ailment: str | None = None
    """What is wrong with one that works."""


class AgentBackend(Protocol):
    """Hosts agents: each a process that outlives whoever asks for it, and keeps what it learns (its journal) while it
    is stopped, too. An agent is known by its application, its team, and its name in there."""

    def start(self, agent: HostedAgent, *, observe: Callable[[str], object] = ignored) -> bool:
        """Have an agent running as this says. Idempotent, and quick: whoever wants it repeats this at every look.

        What runs as another version is asked to end, and a later call starts it. What died is started again, after a
        growing pause; then, where not the place does that by itself, this returns True. ``observe`` is told what others
        had removed of one that runs, and that it was made again.

        Raises:
            UnsupportedError: the place cannot host it, and says which field is why.
        """
        ...

    def stop(self, app: str, team: str, name: str) -> None:
        """Ask an agent to end, if it runs; it is made to after a grace period. What it kept stays."""
        ...

    def show(self, app: str, team: str, name: str) -> AgentProcess:
        """Return how an agent stands; of one that never was, that it is not alive."""
        ...

    def agents(self) -> list[AgentProcess]:
        """Return all that were started and are alive, by application and name."""
        ...

    def logs(self, app: str, team: str, name: str) -> LogReader:
        """Return a reader of what an agent writes.

        Raises:
            NotFoundError: it was never started.
        """
        ...
