"""The planner: retrains when enough points are labelled, and has a better model put to use (Table 5.5, third row).

Whether a challenger takes over is decided from the registry each time, and not from an event: as long as a better
version is neither in use nor rejected, the executor is asked for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import Field

import scanflow as sf
from scanflow.agent import primitives as do
from scanflow.agent.actions import Act, call
from scanflow.agent.context import Context
from scanflow.agent.sensors.sensor import sensor
from scanflow.agent.strategy import Strategy
from scanflow.app.agents import Agent
from scanflow.app.application import Application
from scanflow.app.model import Whole
from scanflow.drift.contract import purpose_of
from scanflow.errors import InvalidError
from scanflow.knowledge.records import ModelVersion
from scanflow.knowledge.version_tags import BY_HAND, OUT_OF_USE, PROMOTED, PROMOTION, rejected
from scanflow_agents.templates import bookmarks, infrastructure, retuning, scaling, spreading
from scanflow_agents.templates.challengers import RETRAIN, Challengers, PromotionOptions
from scanflow_agents.templates.control_plane import control_plane_of, tell
from scanflow_agents.templates.live_accuracy import LossOptions, expected, loss_of, realised
from scanflow_agents.templates.model_registry import RegisteredModel, address_of
from scanflow_agents.templates.options import (
    OfModel,
    Starting,
    agent_named,
    has_parameter,
    model_named,
    service_named,
    takes,
    workflow_named,
)

MOST_WAITS = 10
"""So many intervals the planner waits at most for labels that still come."""


class PlannerOptions(
    Starting,
    OfModel,
    PromotionOptions,
    LossOptions,
    infrastructure.PlacementOptions,
    scaling.ScalingOptions,
    retuning.RetuneOptions,
):
    min_picked: Whole = Field(default=100, ge=1)
    """So many labels to learn from that no model has are worth a retraining (Algorithm 1, line 4)."""

    training_workflow: str = "training"
    """The batch workflow that retrains. What its steps leave: docs/own-data.md."""

    labels_parameter: str = "labels"
    """The workflow's parameter for the id of the tracked run that has the labels, in ``labels.json``."""

    model_parameter: str = "model_uri"
    """The workflow's parameter for the champion's address. Empty: it is not told."""

    evaluate_parameter: str = "evaluate"
    """The workflow's parameter for the address of a challenger that it is to evaluate again, on more labels, instead of
    training another. A workflow without it waits for the next retraining."""

    training_parameters: dict[str, Any] = Field(default_factory=dict)
    """Further parameters of the workflow, such as ``{"retrain": True}``."""

    learn_from: str = Field(default="all", pattern="^(all|new)$")
    """All labels that were ever given, or those alone that no model has learnt from."""

    budget: Whole = Field(default=4, ge=1)
    """The most retrainings in ``budget_window_s``: four a day."""

    executor: str = "executor"
    """The agent that is called."""

    again_after_s: float = Field(default=60.0, ge=0)
    """A retraining that is still needed, or a better version that is not in use, is asked for again after so long, in
    seconds."""


def declare(app: Application, agent: Agent) -> None:
    options = PlannerOptions.of(agent)
    training = workflow_named(app, agent, options.training_workflow, "training_workflow")
    executor = agent_named(app, agent, options.executor, "executor")
    name = options.model_name
    if name is None:
        _, name = model_named(agent, service_named(app, agent, options.service), options.node)
    model = RegisteredModel(name, options.alias)
    takes(agent, training, _parameters(options, {"batch": "", "champion": address_of(name, 1)}))
    challengers = Challengers(options, options.training_workflow, model)
    evaluates = has_parameter(training, options.evaluate_parameter)
    _declare_retraining(options, model, challengers if evaluates else None)
    _declare_change(app, options, model, challengers, executor, evaluates=evaluates)
    if options.backup_workflow is not None:
        backup = workflow_named(app, agent, options.backup_workflow, "backup_workflow", online=True).name
        service = service_named(app, agent, options.service)
        if backup == service.name:
            raise InvalidError(f"Agent {agent.name!r}: {backup!r} cannot stand in for itself. Name another workflow.")
        linked = service.serving is not None and service.serving.backup == backup
        infrastructure.declare_failover(service.name, backup, options, linked=linked)
    if options.target_p95_s is not None:
        scaling.declare_scaling(service_named(app, agent, options.service).name, options.target_p95_s, options)
    if options.spread_affinity is not None:
        spreading.declare_spreading(service_named(app, agent, options.service).name, options.spread_affinity, options)
    if options.retune is not None:
        service_name = service_named(app, agent, options.service).name
        retuning.declare_retuning(agent, app.name, service_name, name, options)


@dataclass
class Coming:
    """Whether labels still come: who labels goes on, and a model trained meanwhile would be evaluated once more."""

    patience_s: float
    count: int = 0
    since: float | None = None
    """When it began to wait."""

    def waits(self, count: int, *, more: bool, now: float) -> bool:
        """Say whether to wait, with ``count`` labels given: some came since it was asked, and ``more`` are wanted."""
        came, self.count = count > self.count, count
        if not (came and more):
            self.since = None
            return False
        self.since = now if self.since is None else self.since
        return now - self.since < self.patience_s


def _declare_retraining(options: PlannerOptions, model: RegisteredModel, challengers: Challengers | None) -> None:
    """``challengers``: those that are evaluated again, on more labels, before another is trained."""
    least = options.min_picked
    seen: dict[str, frozenset[str]] = {}
    asked = [-math.inf]
    told: set[tuple[int, int]] = set()
    coming = Coming(patience_s=MOST_WAITS * options.interval_s)

    def tell_accuracy(context: Context, champion: ModelVersion, points: Sequence[Mapping[str, Any]]) -> None:
        now = realised(points)
        if now is None or (champion.version, now.n) in told:
            return
        told.add((champion.version, now.n))
        about = {"version": champion.version, "expected": expected(champion)}
        tell(context, "accuracy.measured", f"model/{model.name}", **about, **asdict(now))

    @sensor(sf.every(seconds=options.interval_s))
    def count_number_of_pickeddata(context: Context) -> dict[str, Any]:
        """Count the labels that no model has learnt from; if they are enough, keep them as a file to learn from."""
        # Before the notes are read: what is noted meanwhile is then among them.
        busy = bookmarks.at_work(context, options.training_workflow, "learnt", patience_s=60 + 2 * options.interval_s)
        given = control_plane_of(context).labels(context.app, state="given", team=context.team)
        learnt = bookmarks.learnt_ids(context, seen) if given else set()
        to_learn = [one for one in given if purpose_of(one) == "train"]
        new = [one for one in to_learn if one["id"] not in learnt]
        champion = model.champion(context)
        found: dict[str, Any] = {
            "picked": len(new),
            "labels": len(given),
            "busy": busy,
            "champion": None if champion is None else address_of(model.name, champion.version),
            "batch": None,
            "costs": None,
        }
        unseen = [one for one in given if one["id"] not in learnt]
        if champion is not None:
            tell_accuracy(context, champion, unseen)
        enough = len(new) >= least and busy is None and champion is not None
        wanted = control_plane_of(context).labels(context.app, state="wanted", team=context.team) if enough else []
        if coming.waits(len(given), more=len(wanted) > 0, now=context.clock()):
            return found | {"busy": "labels are coming"}
        if enough and challengers is not None and (waits := _waiting(context, model, challengers)) is not None:
            return found | {"busy": waits}
        if enough and champion is not None:
            if options.retrain_when != "drift":
                found["costs"] = loss_of(context, options, champion, unseen)
                if not found["costs"]["too_much"]:
                    return found
            now = context.clock()
            if 0 <= now - asked[0] < options.again_after_s:  # what was refused is refused again for a while
                return found | {"busy": "it was asked for already"}
            asked[0] = now
            left_out = set() if options.learn_from == "all" else learnt & {one["id"] for one in to_learn}
            these = [one for one in given if one["id"] not in left_out]
            found["batch"] = bookmarks.save_labels(context, these)
        return found

    def enough(found: dict[str, Any]) -> bool:
        return found["picked"] >= least and found["batch"] is not None

    Strategy(
        name=RETRAIN,
        when=count_number_of_pickeddata,
        if_=enough,
        then=lambda found: do.run_workflow(options.training_workflow, parameters=_parameters(options, found)),
        autonomy=options.autonomy,
        cool_down=options.cool_down_s,
        budget=options.budget,
        budget_window=options.budget_window_s,
    )


def _declare_change(
    app: Application,
    options: PlannerOptions,
    model: RegisteredModel,
    challengers: Challengers,
    executor: str,
    *,
    evaluates: bool,
) -> None:
    ended = sf.on_event("run.succeeded", workflow=options.training_workflow, app=app.name)
    asked: dict[tuple[str, int], float] = {}

    def again_so_soon(what: str, version: int, now: float) -> bool:
        if 0 <= now - asked.get((what, version), -math.inf) < options.again_after_s:
            return True
        asked[what, version] = now
        return False

    @sensor(sf.any_of(ended, sf.every(seconds=options.interval_s)))
    def retraining_ended(context: Context) -> dict[str, Any]:
        """Decide on the newest challenger, by its and the champion's answers to the same points."""
        evidence = challengers.newest(context)
        if evidence is None:
            return {"verdict": None, "stands": "nothing was retrained yet", "batch": None}
        found, now = _compared(context, model, evidence), context.clock()
        if better(found) and again_so_soon("use", found["version"], now):
            return {**found, "stands": "it was asked for already"}
        if found["stands"] is None and found["verdict"] == "wait" and evidence["needed"] and evaluates:
            more = _more_to_evaluate(context, options, evidence)
            if more and not again_so_soon("evaluate", found["version"], now):
                found["batch"] = bookmarks.save_labels(context, more)
        return found

    def better(found: dict[str, Any]) -> bool:
        return found["stands"] is None and found["verdict"] in {"promote", "ask"}

    Strategy(
        name="update_model",
        when=retraining_ended,
        if_=better,
        then=lambda found: call(
            executor, "change_model", version=found["version"], run=found["run"], evidence=found["evidence"]
        ),
        autonomy=options.autonomy,
    )

    def labels_came(found: dict[str, Any]) -> bool:
        return found["batch"] is not None

    def evaluate(found: dict[str, Any]) -> Act:
        given = _parameters(options, {**found, "champion": address_of(model.name, found["evidence"]["champion"])})
        given[options.evaluate_parameter] = address_of(model.name, found["version"])
        return do.run_workflow(options.training_workflow, parameters=given)

    if evaluates:
        Strategy(
            name="evaluate_again",
            when=retraining_ended,
            if_=labels_came,
            then=evaluate,
            autonomy=options.autonomy,
            budget=options.budget,
            budget_window=options.budget_window_s,
        )


def stands_against(
    version: ModelVersion, champion: ModelVersion | None, *, judged_against: int | None = None
) -> str | None:
    """Return what keeps a challenger from taking over, other than its metric; None: nothing. Pure."""
    if champion is not None and champion.version == version.version:
        return "it is in use"
    if (why := rejected(version.tags)) is not None:
        return f"it was rejected: {why}"
    if champion is not None and champion.version > version.version:
        return f"the version in use, {champion.version}, is newer"
    if version.tags.get(PROMOTION) in {PROMOTED, BY_HAND, OUT_OF_USE}:
        return "another client took it out of use"
    if champion is not None and judged_against is not None and judged_against != champion.version:
        return f"it was compared with version {judged_against}, and {champion.version} is in use"
    return None


def _parameters(options: PlannerOptions, found: Mapping[str, Any]) -> dict[str, Any]:
    given = {**options.training_parameters, options.labels_parameter: found["batch"]}
    return given | ({options.model_parameter: found["champion"]} if options.model_parameter else {})


def _waiting(context: Context, model: RegisteredModel, challengers: Challengers) -> str | None:
    """Say that the newest challenger waits for labels that people can give, if it does."""
    evidence = challengers.newest(context)
    if evidence is None or evidence["verdict"] != "wait" or not evidence["needed"]:
        return None
    waits = f"version {evidence['version']} waits for {evidence['needed']} more points to evaluate by"
    return waits if _compared(context, model, evidence)["stands"] is None else None


def _compared(context: Context, model: RegisteredModel, evidence: dict[str, Any]) -> dict[str, Any]:
    found = {name: evidence[name] for name in ("run", "version", "gain", "verdict")}
    if evidence["version"] is None:
        return {**found, "champion": None, "stands": evidence["reason"], "evidence": evidence, "batch": None}
    version = model.version(context, evidence["version"])
    champion = model.champion(context)  # after the version: its alias moves before it is tagged
    gone = "its version was deleted"
    return {
        **found,
        "champion": None if champion is None else champion.version,
        "stands": gone if version is None else stands_against(version, champion, judged_against=evidence["champion"]),
        "evidence": evidence,
        "batch": None,
    }


def _more_to_evaluate(context: Context, options: PlannerOptions, evidence: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Return all labels, once there are as many more points for evaluation as a challenger waits for."""
    given = control_plane_of(context).labels(context.app, state="given", team=context.team)
    more = sum(purpose_of(one) == "evaluate" for one in given) - evidence["n_labelled"]
    if more < evidence["needed"]:
        return []
    patience_s = 60 + 2 * options.interval_s
    return [] if bookmarks.at_work(context, options.training_workflow, "learnt", patience_s=patience_s) else given
