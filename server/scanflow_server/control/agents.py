"""The controller of agents: those that are wanted run, each as a process of its own, and those that are not, end."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from scanflow.agent.records import AgentView
from scanflow.backends.agents import AgentProcess, HostedAgent
from scanflow.errors import UnavailableError
from scanflow.home_token import agents_token, home_token, token_hash
from scanflow.transport.clients import is_loopback, reply_of
from scanflow_server.context import ServerContext
from scanflow_server.control.loop import OUTSIDE_S, ErrorIsolation
from scanflow_server.store import agents, events
from scanflow_server.store.agents import AgentRow

_log = logging.getLogger(__name__)

MOST_ENTRIES = 5000
"""Of an agent's journal, that are asked for at once."""

_JOURNAL_S = 30.0
"""Longest that an agent may take to answer with them."""

_UNSETTLED_S = 0.5
"""Until agents are looked at again while one is starting or stopping."""

_SETTLED = frozenset({"running", "stopped", "silent"})


class AgentsController:
    def __init__(self, context: ServerContext) -> None:
        self._context, self._isolation = context, ErrorIsolation()
        self._states: dict[tuple[str, str], str] = {}

    def tick(self) -> float:
        with self._context.store.read() as connection:
            known = agents.list_all(connection)
        settled = True
        for one in known:
            state = None
            with self._isolation.of(f"The agent {one.app}/{one.name}"):
                process = process_of(self._context, one)
                if one.document is not None:
                    self._look(one, process)
                state = self._tell(one, process)
            settled = settled and state in _SETTLED
        return OUTSIDE_S if settled else _UNSETTLED_S

    def _look(self, one: AgentRow, process: AgentProcess) -> None:
        if one.wanted:
            if self._context.agents.start(_hosted(self._context, one, process), observe=partial(self._mended, one)):
                with self._context.store.write() as connection:
                    agents.count_restart(connection, one.app, one.name)
        elif process.alive:
            self._context.agents.stop(one.app, one.team, one.name)

    def _mended(self, one: AgentRow, text: str) -> None:
        _log.warning("The agent %s/%s: %s", one.app, one.name, text)
        subject, at, told = f"agent/{one.name}", self._context.clock(), {"text": text}
        with self._context.store.write() as connection:
            events.record(connection, "agent.mended", subject, at=at, app=one.app, team=one.team, data=told)

    def _tell(self, one: AgentRow, process: AgentProcess) -> str:
        state, place = view_of(self._context, one, process).state, (one.app, one.name)
        before, at = self._states.get(place), self._context.clock()
        if state == "silent" and before not in {None, "silent"}:
            with self._context.store.write() as connection:
                told = {"seen": self._context.heartbeats.latest(one).seen}
                events.record(
                    connection, "agent.missed", f"agent/{one.name}", at=at, app=one.app, team=one.team, data=told
                )
        self._states[place] = state
        return state


def view_of(context: ServerContext, one: AgentRow, process: AgentProcess | None = None) -> AgentView:
    """``process``: as it was just seen, by whoever has looked."""
    one, heard = context.heartbeats.latest(one), context.heartbeats.heard(one, context.clock())
    ours = one.document is not None
    process = process or process_of(context, one)
    alive = process.alive if ours else heard
    told = not ours or (
        process.started and process.pid in {None, one.pid} and process.version == version_of(context, one)
    )
    there = heard and told
    if not one.wanted and ours:
        state = "stopping" if alive else "stopped"
    elif there:
        state = "running"
    elif one.seen is None or not told:
        state = "starting"
    else:
        state = "silent"
    return AgentView.model_validate(
        {
            **one.model_dump(include={"name", "app", "team"}),
            "restarts": one.restarts + process.restarts,
            "state": state,
            "url": one.url if there else None,
            "sensors": one.sensors if there else None,
            "pid": process.pid if ours else one.pid if alive else None,
            "started": one.started if there else None,
            "error": (process.ailment if there else process.failure) if one.wanted else None,
        }
    )


def journal_of(context: ServerContext, one: AgentRow, *, after: int, limit: int) -> list[dict[str, Any]]:
    """Return what an agent says that it noted after an entry of that number.

    Raises:
        UnavailableError: it is not running, or not where this server may ask it.
    """
    process = process_of(context, one)
    view = view_of(context, one, process)
    if view.url is None:
        raise UnavailableError(
            f"The agent {view.full_name} is {view.state}, so its journal cannot be read. Start it: scanflow agents "
            f"--start app.py:{view.name}"
        )
    url = process.url or view.url
    if process.url is None and not (one.document is not None and is_loopback(url)):
        # Whoever says where an agent is, could have this server ask anything there, and send it the team's token.
        raise UnavailableError(
            f"The agent {view.full_name} was started elsewhere, at {url}, where this server does not ask it: GET "
            f"{url}/journal, with the token of its team"
        )
    token = _token(context, one)
    found: list[dict[str, Any]] = reply_of(
        url, f"/journal?after={after}&limit={limit}", token=token, timeout_s=_JOURNAL_S
    )
    return found


def process_of(context: ServerContext, one: AgentRow) -> AgentProcess:
    if one.document is None:  # it is hosted elsewhere
        return AgentProcess(one.app, one.team, one.name)
    return context.agents.show(one.app, one.team, one.name)


def _hosted(context: ServerContext, one: AgentRow, process: AgentProcess) -> HostedAgent:
    document, version, token = one.document or {}, version_of(context, one), _token(context, one)
    as_wanted = process.version == version and process.code is not None  # its files are read when it is told anew only
    return HostedAgent(
        app=one.app,
        team=one.team,
        name=one.name,
        document=document,
        version=version,
        source=one.source,
        code=process.code or "" if as_wanted else code_of(document, one.source, one.name),
        server=context.public_url or None,
        store=context.store.file,
        tracker=context.settings.library.tracker_uri,
        token=None if token is None else SecretStr(token),
        ca=None if (ca := context.settings.tls_ca) is None else ca.expanduser().read_text(encoding="ascii"),
        environment=context.environ,
    )


def version_of(context: ServerContext, one: AgentRow) -> str:
    # An agent that knows another address of ours, or a token that is not valid any more, would never be heard; one that
    # looks at another database would take for unchanged what is not.
    known = [token_hash(word)[:8] for word in (_token(context, one), context.store.file) if word is not None]
    return " ".join((str(one.generation), context.public_url, *known)).rstrip()


def _token(context: ServerContext, one: AgentRow) -> str | None:
    home = home_token(context.settings.home)
    return None if home is None else agents_token(home, one.app, one.team)


def code_of(document: Mapping[str, Any], source: str | None, agent: str) -> str:
    own: Mapping[str, Any] = next((one for one in document.get("agents", ()) if one.get("name") == agent), {})
    root = Path("/" if source is None else source).parent / str(document.get("app_dir", "."))
    modules = [root / str(module) for module in own.get("modules", ())]
    digest = hashlib.sha256()
    for folder in sorted({module.parent for module in modules}):
        for file in sorted(folder.glob("*.py")):
            digest.update(str(file).encode())
            with suppress(OSError):  # it is told by who loads it
                digest.update(file.read_bytes())
    return digest.hexdigest()


def has_other_code(process: AgentProcess, document: Mapping[str, Any], source: str | None) -> bool:
    return process.code is not None and process.code != code_of(document, source, process.name)
