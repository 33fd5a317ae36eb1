"""What the built-in agents ask of the server: runs and what they left, services, the label queue, and past actions."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from hashlib import sha256
from typing import Any, Literal

from scanflow.agent.context import Context
from scanflow.agent.records import JSON, Action, ActionState, Event, Verdict
from scanflow.backends.records import RunRecord
from scanflow.backends.service_records import ServiceRecord
from scanflow.errors import NotFoundError, UsageError
from scanflow.knowledge.port import KnowledgeBase
from scanflow.transport.server_client import ServerClient, path_of
from scanflow.unchanged_reads import UnchangedReads

RECENT = 100
"""How many of the newest runs of a workflow, and of the newest actions of a strategy, the agents look at."""

HAPPENS: tuple[Verdict, ...] = ("act", "queue", "approve")
"""The verdicts on what was done, is, or may be yet."""

MOST_LABELS = 10_000
"""How many the server is asked for at once."""

_PIECE = 1000
_LABELS = 250  # each takes the server some milliseconds, in which nobody else writes


class ControlPlane:
    """The server, as far as the built-in agents need it. Every method may raise ``UnavailableError``."""

    def __init__(self, server: ServerClient, *, unchanged: UnchangedReads | None = None) -> None:
        """``unchanged`` keeps what comes from the server's database alone: actions and labels."""
        self._server, self._unchanged = server, unchanged or UnchangedReads(None)

    def services(self) -> list[ServiceRecord]:
        return [ServiceRecord.model_validate(one) for one in self._server.get("/services")]

    def service(self, name: str) -> ServiceRecord:
        return ServiceRecord.model_validate(self._server.get(path_of("services", name)))

    def runs(
        self, *, limit: int = RECENT, app: str | None = None, team: str | None = None, workflow: str | None = None
    ) -> list[RunRecord]:
        """Return the newest runs first, without their tasks; of one application, team or workflow where it is named."""
        found = self._server.get("/runs", app=app, team=team, workflow=workflow, limit=limit)
        return [RunRecord.model_validate(one) for one in found]

    def run(self, name: str) -> RunRecord:
        return RunRecord.model_validate(self._server.get(path_of("runs", name)))

    def outputs(self, run: str, step: str) -> Any:
        """Return what a step left: a mapping, or a list of those for a step that fanned out."""
        return self._server.get(path_of("runs", run, "steps", step, "outputs"))

    def labels(self, app: str, *, state: Literal["wanted", "given"], team: str | None = None) -> list[dict[str, Any]]:
        """Return what waits in the label queue, the most critical first and not the whole of a long queue; or all that
        has a label, the newest first. None: of all teams."""
        found: dict[str, dict[str, Any]] = {}
        asked = 0
        while True:
            part = self._kept("/labels", app=app, team=team, state=state, limit=MOST_LABELS, offset=asked or None)
            fresh = {one["id"]: one for one in part if one["id"] not in found}  # the last given move the others on
            found |= fresh
            asked += len(part)
            if state == "wanted" or len(part) < MOST_LABELS or not fresh:
                return list(found.values())

    def want_labels(self, app: str, items: Sequence[Mapping[str, JSON]], *, team: str = "") -> list[dict[str, Any]]:
        """Add items to the label queue, and return them as they are there; an id that is known changes nothing."""
        found: list[dict[str, Any]] = []
        for start in range(0, len(items), _PIECE):
            piece = [dict(item) for item in items[start : start + _PIECE]]
            body = {"app": app, "team": team, "items": piece}
            found += self._server.post("/labels", body, key=f"{app}/{team}/{piece[0]['id']}/{len(piece)}")
        return found

    def give_labels(self, app: str, labels: Mapping[str, JSON], *, by: str, team: str | None = None) -> None:
        """Label items by their ids; the same label again changes nothing.

        Of some at a time all are taken, or none where one cannot be.
        """
        pairs = [{"id": id, "label": label} for id, label in labels.items()]
        for start in range(0, len(pairs), _LABELS):
            piece = pairs[start : start + _LABELS]
            body = {"app": app, "team": team, "via": by, "labels": piece}
            self._server.patch("/labels", body, key=sha256(json.dumps(body).encode()).hexdigest())

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
        """Return what agents of the application wanted and what became of it, the newest first, ``RECENT`` at most."""
        found = self._kept(
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

    def _kept(self, path: str, **parameters: Any) -> list[dict[str, Any]]:
        """Return what the server answers, which nobody is to change: it may be returned again."""
        key = (path, *sorted((name, repr(value)) for name, value in parameters.items()))
        found: list[dict[str, Any]] = self._unchanged.get(key, partial(self._server.get, path, **parameters))
        return found

    def tell(self, event: Event) -> None:
        self._server.post("/events", [event.model_dump(mode="json")])


def control_plane_of(context: Context) -> ControlPlane:
    if isinstance(context.services, ControlPlane):
        return context.services
    raise UsageError(
        f"The agent {context.agent!r} needs the server, for its runs and its label queue, and was started without one. "
        "Start it: scanflow up"
    )


def tell(context: Context, type: str, subject: str, **data: JSON) -> None:
    """Tell of something that the agent found out: ``drift.found``, ``model.judged``."""
    about = {"agent": context.agent, **data}
    control_plane_of(context).tell(Event(at=context.clock(), type=type, app=context.app, subject=subject, data=about))


def tracker_of(context: Context) -> KnowledgeBase:
    if context.tracker is not None:
        return context.tracker
    raise UsageError(
        f"The agent {context.agent!r} reads recorded predictions, and the application {context.app!r} has no tracker. "
        "Write sf.Application(tracker=sf.Tracker(), ...) and install scanflow[tracker]."
    )


def find_service(context: Context, name: str) -> ServiceRecord | None:
    """Return a service; None: there is none of that name."""
    try:
        return control_plane_of(context).service(name)
    except NotFoundError:
        return None


def newest_runs(context: Context, workflow: str) -> list[RunRecord]:
    return control_plane_of(context).runs(limit=RECENT, app=context.app, team=context.team, workflow=workflow)


def acted_on(context: Context, strategy: str) -> list[Action]:
    """Return what a strategy of the agent's own wanted that was done, is, or may be yet, the newest first: not what was
    refused, observed or only suggested."""
    return control_plane_of(context).actions(
        context.app, team=context.team, agent=context.agent, strategy=strategy, verdicts=HAPPENS
    )


def outputs_of(context: Context, run: str) -> dict[str, Any]:
    """Return what all steps of a run left, by ``NAME`` (of the last step that has it) and by ``STEP.NAME``."""
    control_plane, found = control_plane_of(context), dict[str, Any]()
    for step in dict.fromkeys(task.step for task in control_plane.run(run).tasks):
        try:
            outputs = control_plane.outputs(run, step)
        except NotFoundError:  # it left nothing
            continue
        if isinstance(outputs, Mapping):
            found |= {f"{step}.{name}": value for name, value in outputs.items()} | dict(outputs)
    return found
