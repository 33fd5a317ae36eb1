"""The executor: deploys a model version, watches it, and updates the registry (Table 5.5, last row).

The service is changed by a primitive, which the arbiter guards and reverts. The registry is no target of Table 5.4's
primitives: a sensor reads the outcome of actions from the server and records it there, at each event and at each
interval. The champion's alias moves when a version has served for as long as its guard watches.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

from pydantic import Field

import scanflow as sf
from scanflow.agent import primitives as do
from scanflow.agent.actions import Act
from scanflow.agent.agent_records import Action, Autonomy, Guard, Verdict
from scanflow.agent.context import Context
from scanflow.agent.rules import rule
from scanflow.agent.sensors.sensor import sensor
from scanflow.agent.strategy import Strategy
from scanflow.app.agent import Agent
from scanflow.app.application import Application
from scanflow.app.model import Model, Number, Whole
from scanflow.backends.service_records import RevisionRecord
from scanflow.knowledge.knowledge_records import ModelVersion
from scanflow.knowledge.version_tags import (
    ACTION,
    AGAIN,
    BEFORE,
    BY_HAND,
    OUT_OF_USE,
    PROMOTED,
    PROMOTION,
    REFERENCE,
    describe_out_of_use,
    find_rejection,
    find_version_before,
    format_decision_tags,
    format_rejection,
)
from scanflow_agents.templates import bookmarks, model_changes
from scanflow_agents.templates.model_changes import (
    ON_APPROVAL,
    STRATEGY,
    describe_failure,
    find_served_model,
    get_model_uri,
)
from scanflow_agents.templates.model_registry import RegisteredModel, format_model_uri
from scanflow_agents.templates.template_client import HAPPENS, find_service, list_actions, report_event, tracker_of
from scanflow_agents.templates.template_options import DAY_S, ModelOptions, get_model_node, get_service_workflow

_RULES = {
    STRATEGY: "a version was requested, and nothing prevents it",
    ON_APPROVAL: "a version was requested that may be worse on some slice, and nothing else prevents it",
}


class ExecutorOptions(ModelOptions):
    interval_s: float = Field(default=60.0, gt=0)
    """The interval at which it checks the outcome of its actions, besides their events, in seconds."""

    guard: Literal["errors", "p95_s"] = "errors"
    """The guard's metric: the share of failed requests, or the 95th percentile of the latency."""

    guard_by: Number = Field(default=0.02, ge=0)
    """How much worse it may get."""

    guard_s: float = Field(default=60.0, ge=0)
    """How long it is watched, in seconds; then the alias moves."""

    settle_s: float = Field(default=2.0, ge=0)
    """How much longer the alias waits for a revert, in seconds."""

    cool_down_s: float = Field(default=0.0, ge=0)
    """The shortest time between changes of the model, in seconds."""

    budget: Whole | None = Field(default=None, ge=1)
    """The most changes a day. None: no limit."""


class VersionRequest(Model):
    """A request to put a version of the model to use."""

    version: int
    model: str
    """Its address: ``models:/name/3``."""

    run: str
    stands: str | None
    """Why it is not put to use."""

    evidence: dict[str, Any] | None
    """Why it is better, see :mod:`scanflow.drift.promotion`."""

    needs_approval: bool


def declare(app: Application, agent: Agent) -> None:
    options = ExecutorOptions.from_agent(agent)
    service = get_service_workflow(app, agent, options.service)
    node, node_model = get_model_node(agent, service, options.node)
    model = RegisteredModel(options.model_name or node_model, options.alias)

    @sensor(sf.on_call())
    def change_model(
        version: int, context: Context, run: str = "", again: bool = False, evidence: dict[str, Any] | None = None
    ) -> VersionRequest:
        """Receive a request for a version, with the evidence that it is better, which is stored with the action.

        ``again`` requests one that was rejected, or withdrawn, before.
        """
        wanted = tracker_of(context).get_model(model.name, int(version))
        if again and find_rejection(wanted.tags) is not None:
            wanted = model.tag(context, wanted.version, {PROMOTION: AGAIN})
        address = format_model_uri(model.name, wanted.version)
        actions = _list_changes(context, service.name)  # before the service, which shows the effect of ended ones
        ended, record = model_changes.filter_ended(actions), find_service(context, service.name)
        why = find_rejection(wanted.tags)
        if record is None:
            stands: str | None = f"the service {service.name!r} is not deployed"
        elif find_served_model(record, node) == address:
            stands = "it is served"
        elif why is not None:
            stands = f"it was rejected: {why}"
        else:
            stands = model_changes.describe_unrecorded_failure(ended, wanted) or model_changes.describe_pending_change(
                actions, context, address, watched_s=options.guard_s + options.settle_s
            )
            if stands is None:
                out = model_changes.find_withdrawn_change(ended, address, record, node)
                person = None if out is None else _find_person(context, service.name, out)
                stands = _record_out_of_use(context, model, wanted, out, person, again=again)
        return VersionRequest(
            version=wanted.version,
            model=address,
            run=run,
            stands=stands,
            evidence=evidence,
            needs_approval=(evidence or {}).get("verdict") == "ask",
        )

    def change(request: VersionRequest) -> Act:
        return do.upgrade_workflow(service.name, model=request.model, node=node)

    guard = Guard(
        metric=f"service.{service.name}.{options.guard}", worse="higher", by=options.guard_by, within_s=options.guard_s
    )
    approval: Autonomy = options.autonomy if options.autonomy in {"observe", "suggest"} else "approve"
    autonomies: dict[str, Autonomy] = {STRATEGY: options.autonomy, ON_APPROVAL: approval}
    for name, autonomy in autonomies.items():
        Strategy(
            name=name,
            when=change_model,
            if_=rule(_RULES[name])(partial(_is_to_be_changed, needs_approval=name == ON_APPROVAL)),
            then=change,
            priority=10,  # the same for both, so that one replaces what the other deployed
            autonomy=autonomy,
            cool_down=options.cool_down_s,
            budget=options.budget,
            budget_window=DAY_S,
            guard=guard,
        )

    _declare_watching(app, agent, options, service.name, node, model)
    _declare_metrics(service.name, options.interval_s)


def _declare_watching(
    app: Application, agent: Agent, options: ExecutorOptions, service: str, node: str, model: RegisteredModel
) -> None:
    match_fields = {"agent": agent.name, "primitive": do.upgrade_workflow.name, "app": app.name}
    events = [sf.on_event(f"action.{what}", **match_fields) for what in ("succeeded", "failed", "reverted")]

    @sensor(sf.any_of(*events, sf.every(seconds=options.interval_s)))
    def model_changed(context: Context) -> dict[str, Any]:
        """Record the outcome of the newest changes in the registry."""
        wanted, refused = _list_changes(context, service), _list_changes(context, service, ("refuse",))
        actions = model_changes.filter_ended(wanted)
        changes: list[dict[str, Any]] = []
        fresh = [
            (version, action)
            for newest, action in model_changes.map_newest_by_version(actions, model.name)
            if (version := model.find_version(context, newest)) is not None
            and not model_changes.is_recorded(action, version)
        ]
        record = find_service(context, service) if fresh else None
        now_served = None if record is None else find_served_model(record, node)
        in_effect = next((action.id for action in actions if model_changes.has_taken_effect(action, now_served)), None)
        for version, action in fresh:
            verdict = model_changes.evaluate_change(
                action,
                now=context.clock(),
                watched_s=options.guard_s + options.settle_s,
                is_newest=action.id == in_effect,
                is_served=now_served == get_model_uri(action),
            )
            if verdict == "promote":
                _promote(context, model, version, action)
            elif verdict == "reject":
                _reject(context, model, version, action)
            changes.append({"version": version.version, "action": action.id, "state": action.state, "verdict": verdict})
        for newest, action in model_changes.list_refused(refused, wanted, model.name):
            version = model.find_version(context, newest)
            if version is not None and version.tags.get(ACTION) != action.id:
                _reject(context, model, version, action)
                changes.append({"version": newest, "action": action.id, "state": action.state, "verdict": "reject"})
        return {"changes": changes}


def _declare_metrics(service: str, interval_s: float) -> None:
    """Declare a sensor that reports a service's requests, errors and latency while the executor runs."""
    previous: dict[str, RevisionRecord] = {}
    looked: list[float] = []

    @sensor(sf.every(seconds=interval_s))
    def service_measured(context: Context) -> dict[str, Any]:
        """Report each revision's requests since the last check, if there were any."""
        if (record := find_service(context, service)) is None:
            looked.clear()
            previous.clear()
            return {"requests": 0}
        now, total = context.clock(), 0
        for revision in record.revisions:
            # Requests before the first check have no known period.
            before = previous.get(revision.id) or (RevisionRecord(id=revision.id) if looked else revision)
            again = revision.requests < before.requests  # it was restarted, and counts from 0
            requests = revision.requests - (0 if again else before.requests)
            errors = max(0, revision.errors - (0 if again else before.errors))
            previous[revision.id], total = revision, total + requests
            if requests:
                about: dict[str, Any] = {"requests": requests, "errors": errors, "p95_s": revision.p95_s}
                about |= {"since": looked[0], "version": format_version(revision)}
                report_event(context, "service.measured", f"service/{service}", **about)
        looked[:] = [now]
        return {"requests": total}


def format_version(revision: RevisionRecord) -> str:
    """Format the version of a revision: ``V3`` for a registered model, with names for several, else the revision's
    id."""
    models = [address.removeprefix("models:/").rpartition("/") for address in revision.models.values()]
    if len(models) == 1:
        return f"V{models[0][2]}"
    return ", ".join(f"{name} V{number}" for name, _, number in models) or revision.id


def _is_to_be_changed(request: VersionRequest, *, needs_approval: bool) -> bool:
    return request.stands is None and request.needs_approval is needs_approval


def _list_changes(context: Context, service: str, verdicts: tuple[Verdict, ...] = HAPPENS) -> list[Action]:
    """Return the agent's changes of the service's model, the newest first."""
    return list_actions(
        context, agent=context.agent, primitive=do.upgrade_workflow.name, target=f"service/{service}", verdicts=verdicts
    )


def _find_person(context: Context, service: str, change: Action) -> str | None:
    """Return the person who changed the service's model last, if that was after a change."""
    actions = list_actions(context, target=f"service/{service}", verdicts=HAPPENS)
    newest = next((action for action in actions if {"model", "traffic"} & {*action.intent.fields}), None)
    if newest is None or newest.intent.source != "person" or newest.intent.at < change.intent.at:
        return None
    return newest.intent.agent


def _record_out_of_use(
    context: Context,
    model: RegisteredModel,
    version: ModelVersion,
    out: Action | None,
    person: str | None,
    *,
    again: bool,
) -> str | None:
    """Record that a person withdrew a version, as the server's history is limited, and explain it; or record that it is
    requested again.

    ``out`` is the change to it that was undone, and ``person`` who undid it, if still known.
    """
    promotion = version.tags.get(PROMOTION)
    asked = promotion == AGAIN and (out is None or version.tags.get(ACTION) == out.id)
    if asked or (out is None and promotion != OUT_OF_USE):
        return None
    if again:
        model.tag(context, version.version, {PROMOTION: AGAIN} | ({} if out is None else {ACTION: out.id}))
        return None
    if promotion not in {PROMOTED, BY_HAND, OUT_OF_USE}:
        version = model.tag(context, version.version, {PROMOTION: OUT_OF_USE, **format_decision_tags(person, "")})
    why = f"{person} took it out of use" if person else describe_out_of_use(version.tags, None, number=version.version)
    return f"{why}. Request it with again=True"


def _promote(context: Context, model: RegisteredModel, version: ModelVersion, action: Action) -> None:
    champion, number = model.find_champion(context), version.version
    before = None if champion is None else champion.version
    if before not in {None, number}:
        model.tag(context, number, {BEFORE: str(before)})
    model.set_champion(context, number)
    approval = {"by": action.approved_by, "why": action.approved_why} if action.approved_by else {}
    about = {"version": number, "before": before, "action": action.id, **approval}
    report_event(context, "model.promoted", f"model/{model.name}", **about)
    tags = {PROMOTION: PROMOTED, ACTION: action.id, **format_decision_tags(action.approved_by, action.approved_why)}
    if run := version.tags.get(bookmarks.RUN_FIELD, ""):
        tags[REFERENCE] = bookmarks.format_reference(context, run)
    model.tag(context, number, tags)


def _reject(context: Context, model: RegisteredModel, version: ModelVersion, action: Action) -> None:
    before, champion, number = find_version_before(version.tags), model.find_champion(context), version.version
    is_champion = champion is not None and champion.version == number
    if is_champion and before is not None and model.find_version(context, before) is not None:
        model.set_champion(context, before)
    why = describe_failure(action) or action.state
    if not (model_changes.is_stuck(version) and version.tags.get(ACTION) == action.id):  # that was reported before
        report_event(context, "model.rejected", f"model/{model.name}", version=number, why=why, action=action.id)
    person = action.decision.by if action.state == "refused" else action.reverted_by
    model.tag(
        context, number, {PROMOTION: format_rejection(why), ACTION: action.id, **format_decision_tags(person, "")}
    )
