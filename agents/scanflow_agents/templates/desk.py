"""What the built-in agents ask of the server: runs and what they left, services, the label queue, and past actions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, Literal, Protocol, runtime_checkable

from scanflow.agent.context import Context
from scanflow.agent.records import JSON, Action, ActionState, Event, Verdict
from scanflow.backends.records import RunRecord
from scanflow.backends.service_records import Explanation, ServiceRecord
from scanflow.errors import NotFoundError, UsageError
from scanflow.knowledge.port import KnowledgeBase
from scanflow.transport.server import Server, path_of

__all__ = ["RECENT", "Desk", "ServerDesk", "acted_on", "desk_of", "newest_runs", "outputs_of", "tell", "tracker_of"]

RECENT = 100
"""How many of the newest runs of a workflow, and of the newest actions of a strategy, the agents look at."""

MOST_LABELS = 10_000
"""How many the server is asked for at once."""

_PIECE = 1000


@runtime_checkable
class Desk(Protocol):
    """The server, as far as the built-in agents need it. Every method may raise ``UnavailableError``."""

    def services(self) -> list[ServiceRecord]:
        """Return what is deployed."""
        ...

    def service(self, name: str) -> ServiceRecord:
        """Return one service; ``NotFoundError`` if there is none of that name."""
        ...

    def explain(self, name: str) -> Explanation:
        """Return why a service has as many instances as it has."""
        ...

    def runs(
        self, *, limit: int = RECENT, app: str | None = None, team: str | None = None, workflow: str | None = None
    ) -> list[RunRecord]:
        """Return the newest runs first, without their tasks; of one application, team or workflow where it is named."""
        ...

    def run(self, name: str) -> RunRecord:
        """Return a run with its tasks."""
        ...

    def outputs(self, run: str, step: str) -> Any:
        """Return what a step left: a mapping, or a list of those for a step that fanned out."""
        ...

    def labels(self, app: str, *, state: Literal["wanted", "given"], team: str | None = None) -> list[dict[str, Any]]:
        """Return what waits in the label queue, the most critical first and not the whole of a long queue; or all that
        was given a label, the last first. None: of all teams."""
        ...

    def want_labels(self, app: str, items: Sequence[Mapping[str, JSON]], *, team: str = "") -> list[dict[str, Any]]:
        """Put things into the label queue, and return them as they are there: the same id again changes nothing."""
        ...

    def give_label(self, app: str, id: str, label: JSON, *, by: str, team: str | None = None) -> None:
        """Label something; the same label again changes nothing."""
        ...

    def actions(
        self,
        app: str,
        *,
        team: str | None = None,
        agent: str | None = None,
        strategy: str | None = None,
        primitive: str | None = None,
        target: str | None = None,
        states: Collection[ActionState] = (),
        verdicts: Collection[Verdict] = (),
    ) -> list[Action]:
        """Return what agents of the application wanted and what became of it, the newest first, not more than
        ``RECENT``. Who looks for something names it: others may want anything at any rate."""
        ...

    def tell(self, event: Event) -> None:
        """Have something that an agent found out listed among the events, for people and other agents."""
        ...


class ServerDesk:
    """A :class:`Desk` over the server's HTTP API."""

    def __init__(self, server: Server) -> None:
        """Ask this server."""
        self._server = server

    def services(self) -> list[ServiceRecord]:
        """See :class:`Desk`."""
        return [ServiceRecord.model_validate(one) for one in self._server.get("/services")]

    def service(self, name: str) -> ServiceRecord:
        """See :class:`Desk`."""
        return ServiceRecord.model_validate(self._server.get(path_of("services", name)))

    def explain(self, name: str) -> Explanation:
        """See :class:`Desk`."""
        return Explanation.model_validate(self._server.get(path_of("services", name, "explain")))

    def runs(
        self, *, limit: int = RECENT, app: str | None = None, team: str | None = None, workflow: str | None = None
    ) -> list[RunRecord]:
        """See :class:`Desk`."""
        found = self._server.get("/runs", app=app, team=team, workflow=workflow, limit=limit)
        return [RunRecord.model_validate(one) for one in found]

    def run(self, name: str) -> RunRecord:
        """See :class:`Desk`."""
        return RunRecord.model_validate(self._server.get(path_of("runs", name)))

    def outputs(self, run: str, step: str) -> Any:
        """See :class:`Desk`."""
        return self._server.get(path_of("runs", run, "steps", step, "outputs"))

    def labels(self, app: str, *, state: Literal["wanted", "given"], team: str | None = None) -> list[dict[str, Any]]:
        """See :class:`Desk`."""
        found: dict[str, dict[str, Any]] = {}
        asked = 0
        while True:
            part = self._server.get("/labels", app=app, team=team, state=state, limit=MOST_LABELS, offset=asked or None)
            fresh = {one["id"]: one for one in part if one["id"] not in found}  # the last given move the others on
            found |= fresh
            asked += len(part)
            if state == "wanted" or len(part) < MOST_LABELS or not fresh:
                return list(found.values())

    def want_labels(self, app: str, items: Sequence[Mapping[str, JSON]], *, team: str = "") -> list[dict[str, Any]]:
        """See :class:`Desk`."""
        found: list[dict[str, Any]] = []
        for start in range(0, len(items), _PIECE):
            piece = [dict(item) for item in items[start : start + _PIECE]]
            body = {"app": app, "team": team, "items": piece}
            found += self._server.post("/labels", body, key=f"{app}/{team}/{piece[0]['id']}/{len(piece)}")
        return found

    def give_label(self, app: str, id: str, label: JSON, *, by: str, team: str | None = None) -> None:
        """See :class:`Desk`."""
        body = {"app": app, "team": team, "label": label, "by": by}
        self._server.post(path_of("labels", id), body, key=f"{app}/{team or ''}/{id}/{by}")

    def actions(
        self,
        app: str,
        *,
        team: str | None = None,
        agent: str | None = None,
        strategy: str | None = None,
        primitive: str | None = None,
        target: str | None = None,
        states: Collection[ActionState] = (),
        verdicts: Collection[Verdict] = (),
    ) -> list[Action]:
        """See :class:`Desk`."""
        found = self._server.get(
            "/intents",
            app=app,
            team=team,
            agent=agent,
            strategy=strategy,
            primitive=primitive,
            target=target,
            state=list(states) or None,
            verdict=list(verdicts) or None,
            limit=RECENT,
        )
        return [Action.model_validate(one) for one in found]

    def tell(self, event: Event) -> None:
        """See :class:`Desk`."""
        self._server.post("/events", [event.model_dump(mode="json")])


def desk_of(context: Context) -> Desk:
    """Return the server, as the firing's context has it.

    Raises:
        UsageError: the agent was started without a server.
    """
    if isinstance(context.services, Desk):
        return context.services
    raise UsageError(
        f"The agent {context.agent!r} needs the server, for its runs and its label queue, and was started without one. "
        "Start it: scanflow up"
    )


def tell(context: Context, type: str, subject: str, **data: JSON) -> None:
    """Tell of something that the agent found out: ``drift.found``, ``model.judged``. See :mod:`scanflow.agent.told`."""
    about = {"agent": context.agent, **data}
    desk_of(context).tell(Event(at=context.clock(), type=type, app=context.app, subject=subject, data=about))


def tracker_of(context: Context) -> KnowledgeBase:
    """Return the knowledge base.

    Raises:
        UsageError: the application has none.
    """
    if context.tracker is not None:
        return context.tracker
    raise UsageError(
        f"The agent {context.agent!r} reads recorded predictions, and the application {context.app!r} has no tracker. "
        "Write sf.Application(tracker=sf.Tracker(), ...) and install scanflow[tracker]."
    )


def newest_runs(desk: Desk, context: Context, workflow: str) -> list[RunRecord]:
    """Return the newest runs of one workflow of the application, the newest first."""
    return desk.runs(limit=RECENT, app=context.app, team=context.team, workflow=workflow)


def acted_on(desk: Desk, context: Context, strategy: str) -> list[Action]:
    """Return what a strategy of the agent's own wanted that was done, is, or may be yet, the newest first: not what was
    refused, observed or only suggested."""
    return desk.actions(
        context.app,
        team=context.team,
        agent=context.agent,
        strategy=strategy,
        verdicts=("act", "queue", "approve"),
    )


def outputs_of(desk: Desk, run: str) -> dict[str, Any]:
    """Return what all steps of a run left, by ``NAME`` (of the last step that has it) and by ``STEP.NAME``."""
    found: dict[str, Any] = {}
    for step in dict.fromkeys(task.step for task in desk.run(run).tasks):
        try:
            outputs = desk.outputs(run, step)
        except NotFoundError:  # it left nothing
            continue
        if isinstance(outputs, Mapping):
            found |= {f"{step}.{name}": value for name, value in outputs.items()} | dict(outputs)
    return found
