"""The built-in agents' client of the server: runs and their outputs, services, the label queue, and past actions."""

from __future__ import annotations

import json
from collections.abc import Collection, Mapping, Sequence
from functools import partial
from hashlib import sha256
from importlib.util import find_spec
from typing import Any, Literal

from scanflow.agent.agent_records import JSON, Action, ActionState, Event, Verdict
from scanflow.agent.context import Context
from scanflow.backends.run_records import RunRecord
from scanflow.backends.service_records import ServiceRecord
from scanflow.errors import NotFoundError, UsageError
from scanflow.files.unchanged_reads import UnchangedReads
from scanflow.http.body_limits import split_batches
from scanflow.installation import explain_install
from scanflow.knowledge.knowledge_port import KnowledgeBase
from scanflow.transport.server_client import ServerClient, build_path

__all__ = ["tracker_of"]

RECENT = 100
"""The number of newest runs of a workflow, and of newest actions of a strategy, that the agents read."""

HAPPENS: tuple[Verdict, ...] = ("act", "queue", "approve")
"""The verdicts on actions that were done, are being done, or may still be."""

MAX_LABELS = 10_000
"""The page size of requests for labels."""

_PIECE = 1000
_LABELS = 250  # each blocks other writers of the server for some milliseconds


class ControlPlane:
    """The part of the server's API that the built-in agents need. Every method may raise ``UnavailableError``."""

    def __init__(self, server: ServerClient, *, unchanged: UnchangedReads | None = None) -> None:
        """``unchanged`` caches reads of the server's database: actions and labels."""
        self._server, self._unchanged = server, unchanged or UnchangedReads(None)

    def services(self) -> list[ServiceRecord]:
        return [ServiceRecord.model_validate(document) for document in self._server.get("/services")]

    def service(self, name: str) -> ServiceRecord:
        return ServiceRecord.model_validate(self._server.get(build_path("services", name)))

    def runs(
        self, *, limit: int = RECENT, app: str | None = None, team: str | None = None, workflow: str | None = None
    ) -> list[RunRecord]:
        """Return runs, the newest first, without their tasks; optionally of one application, team or workflow."""
        documents = self._server.get("/runs", app=app, team=team, workflow=workflow, limit=limit)
        return [RunRecord.model_validate(document) for document in documents]

    def run(self, name: str) -> RunRecord:
        return RunRecord.model_validate(self._server.get(build_path("runs", name)))

    def outputs(self, run: str, step: str) -> Any:
        """Return the outputs of a step: a mapping, or a list of mappings for a step that fanned out."""
        return self._server.get(build_path("runs", run, "steps", step, "outputs"))

    def labels(self, app: str, *, state: Literal["wanted", "given"], team: str | None = None) -> list[dict[str, Any]]:
        """Return items of the label queue: those that wait, the most critical first and only the first page; or all
        with a label, the newest first. ``team`` None: of all teams."""
        labels: dict[str, dict[str, Any]] = {}
        offset = 0
        while True:
            page = self._get_unchanged(
                "/labels", app=app, team=team, state=state, limit=MAX_LABELS, offset=offset or None
            )
            # The newest labels shift the others, so that pages may overlap.
            fresh = {label["id"]: label for label in page if label["id"] not in labels}
            labels |= fresh
            offset += len(page)
            if state == "wanted" or len(page) < MAX_LABELS or not fresh:
                return list(labels.values())

    def want_labels(self, app: str, items: Sequence[Mapping[str, JSON]], *, team: str = "") -> list[dict[str, Any]]:
        """Add items to the label queue, and return them as stored; existing ids are not changed."""
        labels: list[dict[str, Any]] = []
        for piece in split_batches(map(dict, items), _measure_item, max_items=_PIECE):
            body = {"app": app, "team": team, "items": piece}
            labels += self._server.post("/labels", body, key=f"{app}/{team}/{piece[0]['id']}/{len(piece)}")
        return labels

    def give_labels(self, app: str, labels: Mapping[str, JSON], *, by: str, team: str | None = None) -> None:
        """Label items by their ids; repeating a label has no effect.

        Each batch is stored as a whole, or not at all if one label is invalid.
        """
        pairs = [{"id": id, "label": label} for id, label in labels.items()]
        for piece in split_batches(pairs, _measure_item, max_items=_LABELS):
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
        """Return the actions of the application's agents, the newest first, ``RECENT`` at most."""
        documents = self._get_unchanged(
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
        return [Action.model_validate(document) for document in documents]

    def _get_unchanged(self, path: str, **parameters: Any) -> list[dict[str, Any]]:
        """Return the server's response, which may be cached and must not be mutated."""
        key = (path, *sorted((name, repr(value)) for name, value in parameters.items()))
        documents: list[dict[str, Any]] = self._unchanged.get(key, partial(self._server.get, path, **parameters))
        return documents

    def send_event(self, event: Event) -> None:
        self._server.post("/events", [event.model_dump(mode="json")])


def _measure_item(item: Mapping[str, JSON]) -> int:
    return len(json.dumps(item))


def get_control_plane(context: Context) -> ControlPlane:
    if isinstance(context.services, ControlPlane):
        return context.services
    raise UsageError(
        f"The agent {context.agent!r} needs the server for its runs and its label queue, but was started without one. "
        "Start it: scanflow up"
    )


def report_event(context: Context, type: str, subject: str, **data: JSON) -> None:
    """Report an event of the agent: ``drift.found``, ``model.judged``."""
    about = {"agent": context.agent, **data}
    event = Event(at=context.clock(), type=type, app=context.app, subject=subject, data=about)
    get_control_plane(context).send_event(event)


def tracker_of(context: Context) -> KnowledgeBase:
    """Return the tracker of an agent's application, or raise a UsageError that says why there is none."""
    if context.tracker is not None:
        return context.tracker
    if find_spec("mlflow") is None:
        how = f"MLflow is not installed here. {explain_install('local')}"
    else:
        how = "Write sf.Application(tracker=sf.Tracker(), ...)."
    raise UsageError(
        f"The agent {context.agent!r} reads recorded predictions, but the application {context.app!r} has no tracker. "
        + how
    )


def find_service(context: Context, name: str) -> ServiceRecord | None:
    """Return a service; None: there is none of that name."""
    try:
        return get_control_plane(context).service(name)
    except NotFoundError:
        return None


def list_newest_runs(context: Context, workflow: str) -> list[RunRecord]:
    return get_control_plane(context).runs(limit=RECENT, app=context.app, team=context.team, workflow=workflow)


def list_actions(context: Context, **filters: Any) -> list[Action]:
    """Return the actions of the application's agents: see :meth:`ControlPlane.actions`."""
    return get_control_plane(context).actions(context.app, team=context.team, **filters)


def list_labels(context: Context, state: Literal["wanted", "given"]) -> list[dict[str, Any]]:
    """Return items of the application's label queue: see :meth:`ControlPlane.labels`."""
    return get_control_plane(context).labels(context.app, state=state, team=context.team)


def list_strategy_actions(context: Context, strategy: str) -> list[Action]:
    """Return the actions of one of the agent's strategies, the newest first, without those that were refused, observed
    or only suggested."""
    return list_actions(context, agent=context.agent, strategy=strategy, verdicts=HAPPENS)


def read_outputs(context: Context, run: str) -> dict[str, Any]:
    """Return the outputs of all steps of a run, by ``NAME`` (of the last step that has it) and by ``STEP.NAME``."""
    control_plane, outputs = get_control_plane(context), dict[str, Any]()
    for step in dict.fromkeys(task.step for task in control_plane.run(run).tasks):
        try:
            step_outputs = control_plane.outputs(run, step)
        except NotFoundError:  # it has none
            continue
        if isinstance(step_outputs, Mapping):
            outputs |= {f"{step}.{name}": value for name, value in step_outputs.items()} | dict(step_outputs)
    return outputs
