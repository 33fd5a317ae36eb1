"""The executor: puts a model version to use, watches it, and keeps the registry true to it (Table 5.5, last row).

The service is changed by a primitive, which the arbiter guards and takes back. The registry is no target of Table
5.4's primitives: what became of an action is read from the server and noted there by a sensor, at each event and at
each interval. The champion's alias moves when a version has served for as long as its guard watches.
"""

from __future__ import annotations

from functools import partial
from typing import Any, Literal

from pydantic import Field

import scanflow as sf
from scanflow.agent import primitives as do
from scanflow.agent.actions import Act
from scanflow.agent.context import Context
from scanflow.agent.records import Action, Autonomy, Guard, Verdict
from scanflow.agent.sensors.sensor import sensor
from scanflow.agent.strategy import Strategy
from scanflow.app.agents import Agent
from scanflow.app.application import Application
from scanflow.app.model import Number, Whole
from scanflow.knowledge.records import ModelVersion
from scanflow.knowledge.version_tags import (
    ACTION,
    AGAIN,
    BEFORE,
    BY_HAND,
    OUT_OF_USE,
    PROMOTED,
    PROMOTION,
    REFERENCE,
    rejected,
    rejection,
    version_before,
)
from scanflow_agents.templates import bookmarks, model_changes
from scanflow_agents.templates.control_plane import HAPPENS, control_plane_of, find_service, tell, tracker_of
from scanflow_agents.templates.model_changes import ON_APPROVAL, STRATEGY, served, version_address, went_wrong
from scanflow_agents.templates.model_registry import RegisteredModel, address_of
from scanflow_agents.templates.options import OfModel, model_named, service_named
from scanflow_agents.templates.service_metrics import declare_metrics


class ExecutorOptions(OfModel):
    interval_s: float = Field(default=60.0, gt=0)
    """How often it looks what became of its actions, beside their events, in seconds."""

    guard: Literal["errors", "p95_s"] = "errors"
    """What must not get worse: the share of failed requests, or the 95th percentile of the latency."""

    guard_by: Number = Field(default=0.02, ge=0)
    """By how much it may."""

    guard_s: float = Field(default=60.0, ge=0)
    """For how long it is watched, in seconds; then the alias moves."""

    settle_s: float = Field(default=2.0, ge=0)
    """How much longer the alias waits for a version to be taken back, in seconds."""

    cool_down_s: float = Field(default=0.0, ge=0)
    """How long the service keeps a model at least, in seconds."""

    budget: Whole | None = Field(default=None, ge=1)
    """The most changes a day. None: as many as are asked for."""


def declare(app: Application, agent: Agent) -> None:
    options = ExecutorOptions.of(agent)
    service = service_named(app, agent, options.service)
    node, found_model = model_named(agent, service, options.node)
    model = RegisteredModel(options.model_name or found_model, options.alias)

    @sensor(sf.on_call())
    def change_model(
        version: int, context: Context, run: str = "", again: bool = False, evidence: dict[str, Any] | None = None
    ) -> dict[str, Any]:
        """Take a wish for a version, with the evidence that it is better, which is kept with the action.

        ``again`` asks for one that was rejected, or taken out of use, before.
        """
        wanted = tracker_of(context).get_model(model.name, int(version))
        if again and rejected(wanted.tags) is not None:
            wanted = model.tag(context, wanted.version, {PROMOTION: AGAIN})
        address = address_of(model.name, wanted.version)
        actions = _changes(context, service.name)  # before the service: it shows what came of those that have ended
        ended, record = model_changes.settled(actions), find_service(context, service.name)
        why = rejected(wanted.tags)
        if record is None:
            stands: str | None = f"the service {service.name!r} is not deployed"
        elif served(record, node) == address:
            stands = "it is served"
        elif why is not None:
            stands = f"it was rejected: {why}"
        else:
            stands = model_changes.not_noted_yet(ended, wanted) or model_changes.on_its_way(
                actions, context, address, watched_s=options.guard_s + options.settle_s
            )
            if stands is None:
                out = model_changes.taken_out(ended, address, record, node)
                stands = _out_of_use(context, model, wanted, out, again=again)
        found = {"version": wanted.version, "model": address, "run": run, "stands": stands, "evidence": evidence}
        return {**found, "needs_approval": (evidence or {}).get("verdict") == "ask"}

    def change(found: dict[str, Any]) -> Act:
        return do.upgrade_workflow(service.name, model=found["model"], node=node)

    guard = Guard(
        metric=f"service.{service.name}.{options.guard}", worse="higher", by=options.guard_by, within_s=options.guard_s
    )
    approval: Autonomy = options.autonomy if options.autonomy in {"observe", "suggest"} else "approve"
    autonomies: dict[str, Autonomy] = {STRATEGY: options.autonomy, ON_APPROVAL: approval}
    for name, autonomy in autonomies.items():
        Strategy(
            name=name,
            when=change_model,
            if_=partial(_is_to_be_changed, needs_approval=name == ON_APPROVAL),
            then=change,
            priority=10,  # one for both: what one has put to use, the other replaces
            autonomy=autonomy,
            cool_down=options.cool_down_s,
            budget=options.budget,
            budget_window=86_400.0,
            guard=guard,
        )

    _declare_watching(app, agent, options, service.name, node, model)
    declare_metrics(service.name, options.interval_s)


def _declare_watching(
    app: Application, agent: Agent, options: ExecutorOptions, service: str, node: str, model: RegisteredModel
) -> None:
    mine = {"agent": agent.name, "primitive": do.upgrade_workflow.name, "app": app.name}
    told = [sf.on_event(f"action.{what}", **mine) for what in ("succeeded", "failed", "reverted")]

    @sensor(sf.any_of(*told, sf.every(seconds=options.interval_s)))
    def model_changed(context: Context) -> dict[str, Any]:
        """Note in the registry what became of the newest changes."""
        wanted, refused = _changes(context, service), _changes(context, service, ("refuse",))
        actions = model_changes.settled(wanted)
        made: list[dict[str, Any]] = []
        fresh = [
            (version, action)
            for newest, action in model_changes.by_version(actions, model.name)
            if (version := model.version(context, newest)) is not None and not model_changes.is_noted(action, version)
        ]
        record = find_service(context, service) if fresh else None
        now_served = None if record is None else served(record, node)
        in_effect = next((one.id for one in actions if model_changes.took_effect(one, now_served)), None)
        for version, action in fresh:
            verdict = model_changes.verdict_on(
                action,
                now=context.clock(),
                watched_s=options.guard_s + options.settle_s,
                is_newest=action.id == in_effect,
                is_served=now_served == version_address(action),
            )
            if verdict == "promote":
                _promote(context, model, version, action)
            elif verdict == "reject":
                _reject(context, model, version, action)
            made.append({"version": version.version, "action": action.id, "state": action.state, "verdict": verdict})
        for newest, action in model_changes.turned_down(refused, wanted, model.name):
            version = model.version(context, newest)
            if version is not None and version.tags.get(ACTION) != action.id:
                _reject(context, model, version, action)
                made.append({"version": newest, "action": action.id, "state": action.state, "verdict": "reject"})
        return {"changes": made}


def _is_to_be_changed(found: dict[str, Any], *, needs_approval: bool) -> bool:
    return found["stands"] is None and found["needs_approval"] is needs_approval


def _changes(context: Context, service: str, verdicts: tuple[Verdict, ...] = HAPPENS) -> list[Action]:
    """Return the agent's changes of the service's model, the newest first."""
    return control_plane_of(context).actions(
        context.app,
        team=context.team,
        agent=context.agent,
        primitive=do.upgrade_workflow.name,
        target=f"service/{service}",
        verdicts=verdicts,
    )


def _out_of_use(
    context: Context, model: RegisteredModel, version: ModelVersion, out: Action | None, *, again: bool
) -> str | None:
    """Say that a person took a version out of use, and note it, for the server forgets; or that it is asked for again.

    ``out`` is the change to it that another client undid, if that is still known.
    """
    said = version.tags.get(PROMOTION)
    asked = said == AGAIN and (out is None or version.tags.get(ACTION) == out.id)
    if asked or (out is None and said != OUT_OF_USE):
        return None
    if again:
        model.tag(context, version.version, {PROMOTION: AGAIN} | ({} if out is None else {ACTION: out.id}))
        return None
    if said not in {PROMOTED, BY_HAND, OUT_OF_USE}:
        model.tag(context, version.version, {PROMOTION: OUT_OF_USE})
    return "another client took it out of use. Ask for it with again=True"


def _promote(context: Context, model: RegisteredModel, version: ModelVersion, action: Action) -> None:
    champion, number = model.champion(context), version.version
    before = None if champion is None else champion.version
    if before not in {None, number}:
        model.tag(context, number, {BEFORE: str(before)})
    model.name_champion(context, number)
    tell(context, "model.promoted", f"model/{model.name}", version=number, before=before, action=action.id)
    tags = {PROMOTION: PROMOTED, ACTION: action.id}
    if run := version.tags.get(bookmarks.OF_RUN, ""):
        tags[REFERENCE] = bookmarks.reference_of(context, run)
    model.tag(context, number, tags)


def _reject(context: Context, model: RegisteredModel, version: ModelVersion, action: Action) -> None:
    before, champion, number = version_before(version.tags), model.champion(context), version.version
    is_champion = champion is not None and champion.version == number
    if is_champion and before is not None and model.version(context, before) is not None:
        model.name_champion(context, before)
    why = went_wrong(action) or action.state
    if not (model_changes.is_stuck(version) and version.tags.get(ACTION) == action.id):  # of that, people were told
        tell(context, "model.rejected", f"model/{model.name}", version=number, why=why, action=action.id)
    model.tag(context, number, {PROMOTION: rejection(why), ACTION: action.id})
