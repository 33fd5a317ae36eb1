"""The planner: retrains when enough points are labelled, and has a better model put to use (Table 5.5, third row).

Whether a challenger takes over is decided from the registry each time, and not from an event: as long as a better
version is neither in use nor rejected, the executor is asked for it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from pydantic import Field

import scanflow as sf
from scanflow.agent import primitives as do
from scanflow.agent.actions import call
from scanflow.agent.context import Context
from scanflow.agent.sensors.sensor import sensor
from scanflow.agent.strategy import Strategy
from scanflow.app.agents import Agent
from scanflow.app.application import Application
from scanflow.app.model import Number, Whole
from scanflow.backends.records import RunRecord
from scanflow.errors import InvalidError
from scanflow.knowledge.records import ModelVersion
from scanflow_agents.templates import bookmarks, infrastructure, scaling
from scanflow_agents.templates.control_plane import control_plane_of, newest_runs, outputs_of, tell
from scanflow_agents.templates.model_registry import (
    OUT_OF_USE,
    PROMOTED,
    PROMOTION,
    RegisteredModel,
    address_of,
    rejected,
)
from scanflow_agents.templates.options import (
    OfModel,
    Starting,
    agent_named,
    model_named,
    service_named,
    takes,
    workflow_named,
)


class PlannerOptions(Starting, OfModel, infrastructure.PlacementOptions, scaling.ScalingOptions):
    min_picked: Whole = Field(default=100, ge=1)
    """So many labels that no model has learnt from are worth a retraining (Algorithm 1, line 4)."""

    min_gain: Number = Field(default=0.0, ge=0)
    """By more than this the challenger's metric has to be above the champion's (Algorithm 1, line 7)."""

    metric: str = "accuracy"
    """Of the training workflow's outputs ``champion_METRIC`` and ``challenger_METRIC``, on the same samples."""

    training_workflow: str = "training"
    """The batch workflow that retrains. Its steps leave those two, ``version``, and best ``labels``."""

    labels_parameter: str = "labels"
    """The workflow's parameter for the id of the tracked run that has the labels, in ``labels.json``."""

    model_parameter: str = "model_uri"
    """The workflow's parameter for the champion's address. Empty: it is not told."""

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
    _declare_retraining(options, model)
    _declare_change(app, options, model, executor)
    if options.backup_workflow is not None:
        backup = workflow_named(app, agent, options.backup_workflow, "backup_workflow", online=True).name
        service = service_named(app, agent, options.service).name
        if backup == service:
            raise InvalidError(f"Agent {agent.name!r}: {backup!r} cannot stand in for itself. Name another workflow.")
        infrastructure.declare_failover(service, backup, options)
    if options.target_p95_s is not None:
        scaling.declare_scaling(service_named(app, agent, options.service).name, options.target_p95_s, options)
    if options.spread_affinity is not None:
        infrastructure.declare_spreading(
            service_named(app, agent, options.service).name, options.spread_affinity, options
        )


def _declare_retraining(options: PlannerOptions, model: RegisteredModel) -> None:
    least = options.min_picked
    seen: dict[str, frozenset[str]] = {}
    asked = [-math.inf]

    @sensor(sf.every(seconds=options.interval_s))
    def count_number_of_pickeddata(context: Context) -> dict[str, Any]:
        """Count the labels that no model has learnt from; if they are enough, keep them as a file to learn from."""
        # Before the notes are read: what is noted meanwhile is then among them.
        busy = bookmarks.at_work(context, options.training_workflow, "learnt", patience_s=60 + 2 * options.interval_s)
        given = control_plane_of(context).labels(context.app, state="given", team=context.team)
        learnt = bookmarks.learnt_ids(context, seen) if given else set()
        new = [one for one in given if one["id"] not in learnt]
        champion = model.champion(context)
        found: dict[str, Any] = {
            "picked": len(new),
            "labels": len(given),
            "busy": busy,
            "champion": None if champion is None else address_of(model.name, champion.version),
            "batch": None,
        }
        if len(new) >= least and busy is None and champion is not None:
            now = context.clock()
            if 0 <= now - asked[0] < options.again_after_s:  # what was refused is refused again for a while
                return found | {"busy": "it was asked for already"}
            asked[0] = now
            found["batch"] = bookmarks.save_labels(context, given if options.learn_from == "all" else new)
        return found

    def enough(found: dict[str, Any]) -> bool:
        return found["picked"] >= least and found["batch"] is not None

    Strategy(
        name="retrain_model",
        when=count_number_of_pickeddata,
        if_=enough,
        then=lambda found: do.run_workflow(options.training_workflow, parameters=_parameters(options, found)),
        autonomy=options.autonomy,
        cool_down=options.cool_down_s,
        budget=options.budget,
        budget_window=options.budget_window_s,
    )


def _declare_change(app: Application, options: PlannerOptions, model: RegisteredModel, executor: str) -> None:
    min_gain = options.min_gain
    ended = sf.on_event("run.succeeded", workflow=options.training_workflow, app=app.name)
    asked: dict[int, float] = {}

    @sensor(sf.any_of(ended, sf.every(seconds=options.interval_s)))
    def retraining_ended(context: Context) -> dict[str, Any]:
        """Compare the newest challenger with the champion, by what they were judged at on the same samples."""
        newest: dict[str, Any] | None = None
        known = bookmarks.noted_runs(context, "learnt")
        for record in newest_runs(context, options.training_workflow):
            if record.state != "succeeded" or (newest is not None and record.name in known):
                continue
            outputs = outputs_of(context, record.name)
            judged = _judged(outputs, options.metric)
            if record.name not in known:
                if judged is not None:
                    _tell(context, options, model, record, judged)
                _note_learnt(context, record, {} if judged is None else outputs, challenger=judged is not None)
            if judged is None:  # it trained a first model, and no challenger
                continue
            newest = newest or {"run": str(record.name), **judged}
        if newest is None:
            return {"gain": None, "stands": "nothing was retrained yet"}
        found, now = _compared(context, model, newest), context.clock()
        if found["stands"] is None and found["gain"] > min_gain:
            if 0 <= now - asked.get(found["version"], -math.inf) < options.again_after_s:
                return {**found, "stands": "it was asked for already"}
            asked[found["version"]] = now
        return found

    def better(found: dict[str, Any]) -> bool:
        return found["stands"] is None and found["gain"] > min_gain

    Strategy(
        name="update_model",
        when=retraining_ended,
        if_=better,
        then=lambda found: call(executor, "change_model", version=found["version"], run=found["run"]),
        autonomy=options.autonomy,
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
    if version.tags.get(PROMOTION) in {PROMOTED, OUT_OF_USE}:
        return "another client took it out of use"
    if champion is not None and judged_against is not None and judged_against != champion.version:
        return f"it was compared with version {judged_against}, and {champion.version} is in use"
    return None


def _parameters(options: PlannerOptions, found: Mapping[str, Any]) -> dict[str, Any]:
    given = {**options.training_parameters, options.labels_parameter: found["batch"]}
    return given | ({options.model_parameter: found["champion"]} if options.model_parameter else {})


def _judged(outputs: Mapping[str, Any], metric: str) -> dict[str, Any] | None:
    """Return a challenger's version and both metrics, if the outputs tell of one."""
    names = {"champion_metric": f"champion_{metric}", "challenger_metric": f"challenger_{metric}", "version": "version"}
    values = {name: outputs.get(own) for name, own in names.items()}
    against = outputs.get("champion_version")
    if any(isinstance(value, bool) or not isinstance(value, int | float) for value in values.values()):
        return None
    if not all(math.isfinite(value) for value in values.values() if value is not None):
        return None
    return values | {"champion": against if isinstance(against, int) else None}


def _tell(
    context: Context, options: PlannerOptions, model: RegisteredModel, record: RunRecord, judged: Mapping[str, Any]
) -> None:
    """Tell how a challenger did. It may be told twice, where the agent ends before it is noted."""
    gain = judged["challenger_metric"] - judged["champion_metric"]
    about = {"run": str(record.name), "metric": options.metric, "better": gain > options.min_gain, **judged}
    tell(context, "model.judged", f"model/{model.name}", **about)


def _compared(context: Context, model: RegisteredModel, newest: dict[str, Any]) -> dict[str, Any]:
    number = int(newest["version"])
    version = model.version(context, number)
    champion = model.champion(context)  # after the version: its alias moves before it is tagged
    gone = "its version was deleted"
    return {
        **newest,
        "version": number,
        "champion": None if champion is None else champion.version,
        "gain": newest["challenger_metric"] - newest["champion_metric"],
        "stands": gone if version is None else stands_against(version, champion, judged_against=newest["champion"]),
    }


def _note_learnt(context: Context, record: RunRecord, outputs: Mapping[str, Any], *, challenger: bool) -> None:
    """Note what labels a model has learnt from: those that the run says, else the newest from before it began."""
    labels = outputs.get("labels")
    if challenger and not isinstance(labels, str):
        made = bookmarks.noted(context, "labels")
        labels = next((one.run_id for one in made if bookmarks.time_of(one) <= record.created), None)
    tags = {bookmarks.OF_RUN: str(record.name)} | ({bookmarks.OF_LABELS: labels} if isinstance(labels, str) else {})
    bookmarks.note(context, "learnt", tags=tags)
