"""The controller of agents: starts the requested ones, each in a process of its own, and stops the others."""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

from pydantic import SecretStr

from scanflow.agent.agent_records import AgentView
from scanflow.backends.agent_hosting import AgentProcess, HostedAgent, format_start_command
from scanflow.errors import UnavailableError
from scanflow.http.home_token import derive_agent_token, derive_peer_token, hash_token, make_salt, read_home_token
from scanflow.transport.clients import fetch_reply, is_loopback
from scanflow_server.controller_loop import EXTERNAL_POLL_S, ErrorIsolation
from scanflow_server.server_context import ServerContext
from scanflow_server.store import agent_store, event_store
from scanflow_server.store.agent_store import AgentRow
from scanflow_server.store.secret_store import load_masker

_log = logging.getLogger(__name__)

MAX_ENTRIES = 5000
"""The most entries of an agent's journal per request."""

_JOURNAL_S = 30.0
"""The timeout of that request, in seconds."""

_UNSETTLED_POLL_S = 0.5
"""The interval between checks while an agent is starting or stopping, in seconds."""

_SETTLED_STATES = frozenset({"running", "stopped", "silent"})


class AgentsController:
    def __init__(self, context: ServerContext) -> None:
        self._context, self._isolation = context, ErrorIsolation()
        self._states: dict[tuple[str, str], str] = {}

    def tick(self) -> float:
        with self._context.store.read() as connection:
            rows = agent_store.list_all(connection)
        settled = True
        for agent in rows:
            state = None
            with self._isolation.isolate(f"The agent {agent.app}/{agent.name}"):
                process = get_process(self._context, agent)
                if agent.document is not None:
                    agent = self._reconcile(agent, process)
                state = self._update_state(agent, process)
            settled = settled and state in _SETTLED_STATES
        return EXTERNAL_POLL_S if settled else _UNSETTLED_POLL_S

    def _reconcile(self, agent: AgentRow, process: AgentProcess) -> AgentRow:
        if agent.wanted and (renewed := self._ensure_token(agent)) is not None:
            agent = renewed
            if self._context.agents.start(
                _make_hosted_agent(self._context, agent, process), observe=partial(self._record_repair, agent)
            ):
                with self._context.store.write() as connection:
                    agent_store.count_restart(connection, agent.app, agent.name)
        elif not agent.wanted and process.alive:
            self._context.agents.stop(agent.app, agent.team, agent.name)
        return agent

    def _ensure_token(self, agent: AgentRow) -> AgentRow | None:
        """Return an agent with a token that this server can derive, made anew if it has none; None: it is stopped."""
        home = read_home_token(self._context.settings.home)
        if home is None:
            return agent
        token = _derive_token(self._context, agent)
        if token is not None and hash_token(token) == agent.token_hash:
            return agent
        salt = make_salt()
        digest = hash_token(derive_agent_token(home, agent.app, agent.team, agent.name, salt))
        with self._context.store.write() as connection:
            renewed = agent_store.put_token(connection, agent, salt=salt, digest=digest)
        self._context.token_notifier.notify()
        return renewed

    def _record_repair(self, agent: AgentRow, text: str) -> None:
        _log.warning("The agent %s/%s: %s", agent.app, agent.name, text)
        subject, at, data = f"agent/{agent.name}", self._context.clock(), {"text": text}
        with self._context.store.write() as connection:
            event_store.record(connection, "agent.mended", subject, at=at, app=agent.app, team=agent.team, data=data)

    def _update_state(self, agent: AgentRow, process: AgentProcess) -> str:
        state, place = describe_agent(self._context, agent, process).state, (agent.app, agent.name)
        before, at = self._states.get(place), self._context.clock()
        if state == "silent" and before not in {None, "silent"}:
            with self._context.store.write() as connection:
                data = {"seen": self._context.heartbeats.refresh(agent).seen}
                event_store.record(
                    connection, "agent.missed", f"agent/{agent.name}", at=at, app=agent.app, team=agent.team, data=data
                )
        self._states[place] = state
        return state


def describe_agent(context: ServerContext, agent: AgentRow, process: AgentProcess | None = None) -> AgentView:
    """Return the status of an agent. ``process``: its process, if the caller has just looked it up."""
    agent, heard = context.heartbeats.refresh(agent), context.heartbeats.is_alive(agent, context.clock())
    ours = agent.document is not None
    process = process or get_process(context, agent)
    alive = process.alive if ours else heard
    is_current = not ours or (
        process.started and process.pid in {None, agent.pid} and process.version == compute_version(context, agent)
    )
    there = heard and is_current
    if not agent.wanted and ours:
        state = "stopping" if alive else "stopped"
    elif there:
        state = "running"
    elif agent.seen is None or not is_current:
        state = "starting"
    else:
        state = "silent"
    error = _describe_error(agent, process.ailment if there else process.failure) if agent.wanted else None
    return AgentView.model_validate(
        {
            **agent.model_dump(include={"name", "app", "team"}),
            "restarts": agent.restarts + process.restarts,
            "state": state,
            "url": agent.url if there else None,
            "sensors": agent.sensors if there else None,
            "pid": process.pid if ours else agent.pid if alive else None,
            "started": agent.started if there else None,
            "error": None if error is None else _mask(context, agent, error),
        }
    )


def _mask(context: ServerContext, agent: AgentRow, text: str) -> str:
    with context.store.read() as connection:
        return load_masker(connection, agent.app, agent.team).mask_text(text)


def _describe_error(agent: AgentRow, failure: str | None) -> str | None:
    if failure is not None or not agent.has_other_strategies:
        return failure
    return (
        "Its strategies are not those that it was deployed with. What exceeds those waits for approval. Deploy it "
        f"again: {format_start_command(agent.source, agent.name)}"
    )


def fetch_journal(
    context: ServerContext,
    agent: AgentRow,
    *,
    after: int = 0,
    before: int | None = None,
    limit: int,
    timeout_s: float = _JOURNAL_S,
) -> list[dict[str, Any]]:
    """Return the entries of an agent's journal after a number; or the newest before one; the oldest of them first.

    Raises:
        UnavailableError: it is not running, or not where this server may ask it.
    """
    process = get_process(context, agent)
    view = describe_agent(context, agent, process)
    if view.url is None:
        raise UnavailableError(
            f"The agent {view.full_name} is {view.state}, so its journal cannot be read. Start it: "
            f"{format_start_command(agent.source, agent.name)}"
        )
    url = process.url or view.url
    if process.url is None and not (agent.document is not None and is_loopback(url)):
        # A reported address could point anywhere, and this server would send it the team's token.
        raise UnavailableError(
            f"The agent {view.full_name} runs at {url}, outside this server, which does not read its journal there. "
            f"Read it yourself: GET {url}/journal, with the token of its team"
        )
    token = _derive_peer_token(context, agent)
    which = f"after={after}" if before is None else f"before={before}"
    entries: list[dict[str, Any]] = fetch_reply(
        url, f"/journal?{which}&limit={limit}", token=token, timeout_s=timeout_s
    )
    return entries


def get_process(context: ServerContext, agent: AgentRow) -> AgentProcess:
    if agent.document is None:  # it is hosted elsewhere
        return AgentProcess(agent.app, agent.team, agent.name)
    return context.agents.show(agent.app, agent.team, agent.name)


def _make_hosted_agent(context: ServerContext, agent: AgentRow, process: AgentProcess) -> HostedAgent:
    document, version = agent.document or {}, compute_version(context, agent)
    token, peer_token = _derive_token(context, agent), _derive_peer_token(context, agent)
    as_wanted = process.version == version and process.code is not None  # its files are read only for a new generation
    return HostedAgent(
        app=agent.app,
        team=agent.team,
        name=agent.name,
        document=document,
        version=version,
        source=agent.source,
        code=process.code or "" if as_wanted else compute_code_hash(document, agent.source, agent.name),
        server=context.public_url or None,
        store=context.store.file,
        tracker=context.settings.library.tracker_uri,
        token=None if token is None else SecretStr(token),
        peer_token=None if peer_token is None else SecretStr(peer_token),
        ca=None if (ca := context.settings.tls_ca) is None else ca.expanduser().read_text(encoding="ascii"),
        environment=context.environ,
    )


def compute_version(context: ServerContext, agent: AgentRow) -> str:
    # An agent with an outdated server address or token could not send heartbeats; one with another database would miss
    # changes.
    words = (_derive_peer_token(context, agent), context.store.file, agent.token_hash)
    hashes = [hash_token(word)[:8] for word in words if word is not None]
    return " ".join((str(agent.generation), context.public_url, *hashes)).rstrip()


def _derive_token(context: ServerContext, agent: AgentRow) -> str | None:
    """Return the token of an agent for this server; None: it has none."""
    home = read_home_token(context.settings.home)
    if home is None or agent.token_salt is None:
        return None
    return derive_agent_token(home, agent.app, agent.team, agent.name, agent.token_salt)


def _derive_peer_token(context: ServerContext, agent: AgentRow) -> str | None:
    home = read_home_token(context.settings.home)
    return None if home is None else derive_peer_token(home, agent.app, agent.team)


def compute_code_hash(document: Mapping[str, Any], source: str | None, agent: str) -> str:
    own: Mapping[str, Any] = next(
        (declared for declared in document.get("agents", ()) if declared.get("name") == agent), {}
    )
    root = Path("/" if source is None else source).parent / str(document.get("app_dir", "."))
    modules = [root / str(module) for module in own.get("modules", ())]
    digest = hashlib.sha256()
    for folder in sorted({module.parent for module in modules}):
        for file in sorted(folder.glob("*.py")):
            digest.update(str(file).encode())
            with suppress(OSError):  # the loader reports it
                digest.update(file.read_bytes())
    return digest.hexdigest()


def has_other_code(process: AgentProcess, document: Mapping[str, Any], source: str | None) -> bool:
    return process.code is not None and process.code != compute_code_hash(document, source, process.name)
