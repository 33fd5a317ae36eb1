"""The client of a server's routes for agents, actions, events and labels, each named only here."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, overload
from urllib.parse import quote

from scanflow import transport
from scanflow.agent.agent_records import Action, ActionExplanation, ActionState, AgentView, Event, Verdict
from scanflow.app.quantities import parse_duration
from scanflow.errors import NotFoundError, UnavailableError
from scanflow.text.masking import mask_addresses
from scanflow_client.control_status import ControlStatus
from scanflow_client.listing import Listing
from scanflow_client.program import resolve_application

if TYPE_CHECKING:
    from scanflow.app.application import Application
    from scanflow.http.home_token import Role
    from scanflow.transport import ServerClient
    from scanflow_client.agent_replay import Replay

MAX_SEARCHED_ACTIONS = 10_000  # of the newest events


class ControlClient:
    """The methods of :class:`~scanflow_client.client.Client` that a server answers.

    All raise ``UnavailableError`` where there is none. An action may be named ``@latest``.
    """

    def __init__(self, connect: Callable[[], ServerClient]) -> None:
        """Connect on first use; ``connect`` returns the server, or raises ``UnavailableError``."""
        self._connect = connect

    @cached_property
    def server(self) -> ServerClient:
        return self._connect()

    def _link_pages(self, section: str, *names: str) -> dict[str, str]:
        """Return the addresses of pages of the dashboard, by the names that they are about."""
        return {name: f"{mask_addresses(self.server.url)}/{section}/{quote(name, safe='')}" for name in names}

    # Agents

    def agents(self, target: str | None = None) -> Listing[AgentView]:
        """Return the agents with the reports of their sensors: all, those of ``APP``, or ``APP:AGENT``."""
        from scanflow_client.agent_client import match_agents

        matched = match_agents(self.server.get(transport.build_path("agents")), target)
        return _list_agents(matched, detailed=target is not None)

    def start_agents(self, app: Application, *names: str, source: Path | None = None) -> Listing[AgentView]:
        """Start agents of an application, all if none is named. One that runs already restarts with the new code.

        ``source`` is the file of the application.
        """
        from scanflow.deployer.serialization import encode_application

        body = encode_application(resolve_application(app), self.server, source)
        selected = names or tuple(agent.name for agent in app.agents)
        return _list_agents(
            AgentView.model_validate(self.server.put(transport.build_path("agents", app.name, name), body))
            for name in selected
        )

    def stop_agents(self, target: str) -> Listing[AgentView]:
        """Stop the agents of ``APP``, or ``APP:AGENT``; their state is kept."""
        paths = [transport.build_path("agents", agent.app, agent.name) for agent in self.agents(target)]
        return _list_agents(AgentView.model_validate(self.server.delete(path)) for path in paths)

    def journal(self, agent: str) -> Listing[dict[str, Any]]:
        """Return an agent's samples, requests, decisions, errors and misses, the oldest first."""
        return Listing(self._read_journal(agent)[2], "agent_text:format_journal", agent=agent)

    @staticmethod
    def strategies(target: Application | str | None = None) -> Listing[dict[str, Any]]:
        """Return the strategies of an application's agents: when, if, then. ``target`` is the application, its file, or
        ``FILE:AGENT``; None: ``app.py`` here. The code is loaded in a separate process."""
        from scanflow_client.agent_replay import list_strategies

        application, listed = list_strategies(target)
        return Listing(listed, "agent_text:format_strategies", application=application)

    def replay(
        self,
        agent: str,
        file: Application | str | None = None,
        *,
        since: str | None = None,
        last: int | None = None,
        trace: Path | None = None,
    ) -> Replay:
        """Evaluate the current strategies of ``file`` on an agent's recorded samples. No action is taken.

        Args:
            agent: ``tracker`` or ``mnist:tracker``.
            file: An application, or its file. None: ``app.py`` here.
            since: Only samples since ``2h`` ago, or since ``2026-01-31T06:00``.
            last: Only the last samples, this many.
            trace: A saved trace, in place of the agent's journal; it needs no server.
        """
        from scanflow_client import agent_replay

        earliest = None if since is None else agent_replay.parse_moment(since, now=time.time())
        if trace is not None:
            return agent_replay.replay(*agent_replay.read_trace(agent, trace), file, since=earliest, last=last)
        recorded = self._read_journal(agent, advice=". Or replay a saved trace: --trace FILE")
        return agent_replay.replay(*recorded, file, since=earliest, last=last)

    def _read_journal(self, agent: str, *, advice: str = "") -> tuple[str, str, list[dict[str, Any]]]:
        """Return the application and the name of an agent, and the entries of its journal."""
        from scanflow_client.agent_client import read_journal, require_one_agent

        view = require_one_agent(self.agents(agent))
        return view.app, view.name, list(read_journal(self.server, view, advice=advice))

    # Actions

    def intents(
        self,
        *,
        state: ActionState | None = None,
        verdict: Verdict | None = None,
        app: str | None = None,
        team: str | None = None,
        agent: str | None = None,
        strategy: str | None = None,
        primitive: str | None = None,
        target: str | None = None,
        limit: int = 20,
    ) -> Listing[Action]:
        """Return the actions that agents and people requested, with their status, the newest first; filtered."""
        about = {
            "app": app,
            "team": team,
            "agent": agent,
            "strategy": strategy,
            "primitive": primitive,
            "target": target,
        }
        listed = self.server.get(transport.build_path("intents"), state=state, verdict=verdict, **about, limit=limit)
        actions = [*map(Action.model_validate, listed)]
        links = self._link_pages("actions", *(action.id for action in actions))
        return Listing(actions, "agent_text:format_actions", links=links)

    def approvals(self, *, limit: int = 1000) -> Listing[Action]:
        """Return the actions a person may approve: pending approvals, then suggestions, the newest first."""
        waiting = self.intents(state="pending", verdict="approve", limit=limit)
        suggested = self.intents(state="pending", verdict="suggest", limit=limit)
        links = {**waiting.links, **suggested.links}
        return Listing([*waiting, *suggested], "agent_text:format_approvals", links=links)

    def why(self, action: str = "@latest") -> ActionExplanation:
        """Explain why an action was taken or was not: sample, trigger, rule, decision, effect."""
        id = action
        if action == "@latest":
            id = _require_first(self.intents(limit=1), "No agent has requested an action yet.")
        return ActionExplanation.model_validate(self.server.get(transport.build_path("intents", id, "why")))

    def approve(self, action: str = "@latest", *, reason: str = "") -> Action:
        """Approve a pending action, which is then carried out. ``reason`` is recorded with it."""
        return self._decide(action, "approve", reason)

    def refuse(self, action: str = "@latest", *, reason: str = "") -> Action:
        """Refuse a pending action."""
        return self._decide(action, "refuse", reason)

    def revert(self, action: str = "@latest", *, reason: str = "") -> Action:
        """Undo an action that was carried out, by its inverse."""
        return self._decide(action, "revert", reason)

    def _decide(self, action: str, word: str, reason: str) -> Action:
        if action != "@latest":
            id = action
        elif word == "revert":
            id = _require_first(self.intents(state="succeeded", limit=1), "No action can be reverted.")
        else:
            id = _require_first(self.approvals(limit=1), "No action is waiting for approval.")
        return Action.model_validate(self.server.post(transport.build_path("intents", id, word), {"reason": reason}))

    # Labels

    def labels(
        self,
        *,
        app: str | None = None,
        team: str | None = None,
        state: Literal["wanted", "given"] | None = "wanted",
        disputed: bool | None = None,
        details: bool = True,
        limit: int | None = 100,
    ) -> Listing[dict[str, Any]]:
        """Return the samples that agents want labelled, the most critical first, or those that have a label.

        ``disputed``: people gave it several labels. ``details``: with rows, pictures and votes. ``limit`` None: all.
        """
        query = {"app": app, "team": team, "details": details, "disputed": disputed, "state": state}
        samples: dict[tuple[str, ...], dict[str, Any]] = {}
        while True:
            size, count = limit or MAX_SEARCHED_ACTIONS, len(samples)
            page = self.server.get(transport.build_path("labels"), **query, limit=size, offset=count or None)
            samples |= {(sample["app"], sample.get("team", ""), sample["id"]): sample for sample in page}
            if limit is not None or len(page) < size or len(samples) == count:
                return self._list_labels(samples.values(), state=state, disputed=bool(disputed), limit=size)

    def _list_labels(
        self, samples: Iterable[dict[str, Any]], *, state: str | None, disputed: bool, limit: int
    ) -> Listing[dict[str, Any]]:
        if state == "given" or disputed:
            return Listing(samples, "label_text:format_votes", disputed=disputed)
        return Listing(samples, "label_text:format_labels", limit=limit, page=f"{self.server.url}/labels")

    def give_labels(
        self,
        labels: Mapping[str, Any] | Iterable[Mapping[str, Any]],
        *,
        app: str | None = None,
        team: str | None = None,
        replace: bool = False,
    ) -> list[dict[str, Any]]:
        """Label samples of the queue by their ids: all of them, or none if one cannot be labelled.

        Args:
            labels: From id to label; or ``{"id": …, "label": …, "line": …}``, where errors are to name the line.
            app: The application of the queue; needed only if several have a sample of that id.
            team: The team of the queue, likewise.
            replace: Replace a label that you gave before.
        """
        pairs = (
            [{"id": id, "label": label} for id, label in labels.items()] if isinstance(labels, Mapping) else [*labels]
        )
        fields = {"labels": pairs, "app": app, "team": team, "replace": replace or None}
        body = {name: value for name, value in fields.items() if value is not None}
        return list(self.server.patch(transport.build_path("labels"), body)) if pairs else []

    # Events

    @overload
    def events(
        self,
        *,
        type: str | Sequence[str] | None = ...,
        app: str | None = ...,
        limit: int = ...,
        follow: Literal[False] = ...,
    ) -> Listing[Event]: ...
    @overload
    def events(
        self,
        *,
        type: str | Sequence[str] | None = ...,
        app: str | None = ...,
        limit: int = ...,
        follow: Literal[True],
        timeout_s: float | None = ...,
    ) -> Iterator[Event]: ...
    def events(
        self,
        *,
        type: str | Sequence[str] | None = None,
        app: str | None = None,
        limit: int = 50,
        follow: bool = False,
        timeout_s: float | None = None,
    ) -> Listing[Event] | Iterator[Event]:
        """Return the newest events in order; with ``follow``, yield them and then new ones as they happen.

        Args:
            type: Only of this type, or one of these: ``run.failed``, or ``run.*`` for all that begin so.
            app: Only events of this application.
            limit: Maximum number of past events.
            follow: Continue with new events.
            timeout_s: For this long. None: until the server ends, or the caller stops iterating.
        """
        # The server lists events after a number; those of a type are searched in the newest of all types.
        newest = self.newest_event()
        listed = self.events_so_far(max(0, newest - MAX_SEARCHED_ACTIONS), type=type, app=app)
        past = listed[max(0, len(listed) - limit) :]
        if not follow:
            return Listing(past, "control_plane_text:format_events")
        return self._follow(past, newest, type=type, app=app, timeout_s=timeout_s)

    def newest_event(self) -> int:
        """Return the number of the newest event; 0: there is none."""
        event = self.server.get(transport.build_path("events", "newest"))
        return 0 if event is None else int(event["id"])

    def events_so_far(
        self, after: int = 0, *, type: str | Sequence[str] | None = None, app: str | None = None
    ) -> list[Event]:
        """Return all events after a number that the server still keeps, in order."""
        events: list[Event] = []
        while True:
            page = self.server.get(
                transport.build_path("events"), after=after, type=type, app=app, limit=MAX_SEARCHED_ACTIONS
            )
            events += map(Event.model_validate, page)
            if len(page) < MAX_SEARCHED_ACTIONS:
                return events
            after = events[-1].id

    def events_after(
        self,
        number: int,
        *,
        type: str | Sequence[str] | None = None,
        app: str | None = None,
        timeout_s: float | None = None,
    ) -> Iterator[Event]:
        """Yield the events after a number as they happen."""
        path = transport.build_path("events")
        for message in self.server.events(path, after=str(number), timeout_s=timeout_s, type=type, app=app):
            yield Event.model_validate_json(message.data)

    def _follow(self, past: list[Event], newest: int, **options: Any) -> Iterator[Event]:
        yield from past
        yield from self.events_after(max([newest, *(event.id for event in past)]), **options)

    def tell(self, events: Sequence[Event]) -> list[Event]:
        """Publish events to the server, and return them as it recorded them."""
        body = [event.model_dump(mode="json") for event in events]
        return [Event.model_validate(event) for event in self.server.post(transport.build_path("events"), body)]

    # The server itself

    def status(self) -> ControlStatus:
        """Return the server's version, database, tracker, agents and counts."""
        return ControlStatus(self.server.get(transport.build_path("status")), url=mask_addresses(self.server.url))

    def tokens(self) -> Listing[dict[str, Any]]:
        """Return the tokens: name, role, team, and when each was made, revoked or expires."""
        return Listing(self.server.get(transport.build_path("tokens")), "control_plane_text:format_tokens")

    def audit(
        self, *, limit: int = 100, who: str | None = None, refused: bool = False, before: int | None = None
    ) -> Listing[dict[str, Any]]:
        """Return who changed or was refused what, from where: the newest first.

        Args:
            limit: The most entries, up to 1,000.
            who: Only of this token's name.
            refused: Only what was refused or failed.
            before: Only entries older than that of this number.
        """
        query = {"limit": limit, "who": who, "refused": refused or None, "before": before}
        return Listing(self.server.get(transport.build_path("audit"), **query), "control_plane_text:format_audit")

    def make_token(
        self, name: str, *, role: Role = "editor", team: str | None = None, expires: float | str | None = None
    ) -> dict[str, Any]:
        """Make a token; its secret is returned this once.

        Args:
            name: The holder's name, under which approvals and labels by the token are recorded.
            role: ``viewer`` reads; ``agent`` also sends intents, events and samples to label; ``editor`` also runs,
                deploys, changes, stops and approves; ``admin`` also makes and revokes tokens.
            team: The team that the token is limited to. None: that of your own token; with the home's token, all teams.
            expires: Lifetime: seconds, ``"12h"``, ``"30d"``. None: when it is revoked.
        """
        fields = {"role": role, "team": team, "expires_s": None if expires is None else parse_duration(expires)}
        return dict(self.server.post(transport.build_path("tokens"), {"name": name, **fields}))

    def revoke_token(self, name: str) -> dict[str, Any]:
        """Revoke a token."""
        return dict(self.server.delete(transport.build_path("tokens", name)))


def _list_agents(agents: Iterable[AgentView], *, detailed: bool = False) -> Listing[AgentView]:
    return Listing(agents, "agent_text:format_agents", detailed=detailed)


def raise_no_server(home: Path) -> ServerClient:
    """Raise ``UnavailableError``: this client has no server; its message says how to get one."""
    from scanflow.deployer.remote_home import read_up_state

    running = read_up_state(home)
    if running is not None and running.server.is_alive():
        then = "One is up: sf.Client.from_environment()"
    else:
        then = f"None is up in {str(home)!r}. Start it: scanflow up. Then, in Python: sf.Client.from_environment()"
    raise UnavailableError(f"Agents, actions, events and labels need a server, and this client has none. {then}")


def _require_first(actions: list[Action], nothing: str) -> str:
    if not actions:
        raise NotFoundError(f"{nothing} See: scanflow why")
    return actions[0].id
