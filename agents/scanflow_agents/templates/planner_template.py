"""The planner: retrains when enough points are labelled, and has a better model deployed (Table 5.5, third row).

Whether a challenger is promoted is decided from the registry each time, and not from an event: as long as a better
version is neither in use nor rejected, it is requested from the executor.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from pydantic import Field

import scanflow as sf
from scanflow.agent import primitives as do
from scanflow.agent.actions import Act, Call, call
from scanflow.agent.context import Context
from scanflow.agent.sensors.sensor import sensor
from scanflow.agent.strategy import Strategy
from scanflow.app.agent import Agent
from scanflow.app.application import Application
from scanflow.app.model import Model, Whole
from scanflow.drift.contract import read_purpose
from scanflow.drift.promotion import PromotionEvidence
from scanflow.errors import InvalidError
from scanflow.knowledge.knowledge_records import ModelVersion
from scanflow.knowledge.version_tags import find_obstacle
from scanflow_agents.templates import bookmarks, infrastructure, retuning, spreading, threshold_tuning
from scanflow_agents.templates.challengers import RETRAIN, Challengers, PromotionOptions
from scanflow_agents.templates.detections import select_version_points
from scanflow_agents.templates.live_accuracy import (
    AccuracyLoss,
    LossOptions,
    compute_loss,
    find_expected_accuracy,
    find_tolerance,
    measure_live_accuracy,
)
from scanflow_agents.templates.model_registry import RegisteredModel, format_model_uri
from scanflow_agents.templates.template_client import list_labels, report_event
from scanflow_agents.templates.template_options import (
    ModelOptions,
    RunOptions,
    bound_call,
    check_agent,
    check_parameters,
    get_model_node,
    get_service_workflow,
    get_workflow,
    has_parameter,
)

MAX_WAITS = 10
"""The most intervals that the planner waits for further labels."""


class PlannerOptions(
    RunOptions,
    ModelOptions,
    PromotionOptions,
    LossOptions,
    infrastructure.PlacementOptions,
    threshold_tuning.ScalingOptions,
    retuning.RetuneOptions,
):
    min_picked: Whole = Field(default=100, ge=1)
    """The number of new training labels that starts a retraining (Algorithm 1, line 4)."""

    training_workflow: str = "training"
    """The batch workflow that retrains. The outputs of its steps: docs/own-data.md."""

    labels_parameter: str = "labels"
    """The workflow's parameter for the id of the tracked run that has the labels, in ``labels.json``."""

    model_parameter: str = "model_uri"
    """The workflow's parameter for the champion's address. Empty: it is not passed."""

    evaluate_parameter: str = "evaluate"
    """The workflow's parameter for the address of a challenger to evaluate again, on more labels, instead of training
    another. Without it, a challenger waits for the next retraining."""

    training_parameters: dict[str, Any] = Field(default_factory=dict)
    """Further parameters of the workflow, such as ``{"retrain": True}``."""

    learn_from: str = Field(default="all", pattern="^(all|new)$")
    """Train on ``all`` labels, or only on ``new`` ones, which no model was trained on."""

    executor: str = "executor"
    """The name of the executor agent."""

    again_after_s: float = Field(default=60.0, ge=0)
    """The interval after which a pending retraining, or a better version that is not in use, is requested again, in
    seconds."""


def declare(app: Application, agent: Agent) -> None:
    options = PlannerOptions.from_agent(agent)
    training = get_workflow(app, agent, options.training_workflow, "training_workflow")
    executor = check_agent(app, agent, options.executor, "executor")
    name = options.model_name
    if name is None:
        _, name = get_model_node(agent, get_service_workflow(app, agent, options.service), options.node)
    model = RegisteredModel(name, options.alias)
    check_parameters(agent, training, _build_parameters(options, "", format_model_uri(name, 1)))
    challengers = Challengers(options, options.training_workflow, model)
    evaluates = has_parameter(training, options.evaluate_parameter)
    _declare_retraining(options, model, challengers if evaluates else None)
    _declare_change(app, options, model, challengers, executor, evaluates=evaluates)
    if not any((options.backup_workflow, options.target_p95_s, options.spread_affinity, options.retune)):
        return
    service = get_service_workflow(app, agent, options.service)
    if options.backup_workflow is not None:
        backup = get_workflow(app, agent, options.backup_workflow, "backup_workflow", online=True).name
        if backup == service.name:
            raise InvalidError(f"Agent {agent.name!r}: {backup!r} cannot be its own backup. Name another workflow.")
        linked = service.serving is not None and service.serving.backup == backup
        infrastructure.declare_failover(service.name, backup, options, linked=linked)
    if options.target_p95_s is not None:
        threshold_tuning.declare_scaling(service.name, options.target_p95_s, options)
    if options.spread_affinity is not None:
        spreading.declare_spreading(service.name, options.spread_affinity, options)
    if options.retune is not None:
        retuning.declare_retuning(agent, app.name, service.name, name, options)


@dataclass
class LabelWait:
    """Waits while labels are still coming in, as a model trained meanwhile would have to be evaluated again."""

    patience_s: float
    count: int = 0
    since: float | None = None
    """The time at which waiting began."""

    def should_wait(self, count: int, *, more: bool, now: float) -> bool:
        """Return whether to wait, with ``count`` labels: some came since the last call, and ``more`` are requested."""
        came, self.count = count > self.count, count
        if not (came and more):
            self.since = None
            return False
        self.since = now if self.since is None else self.since
        return now - self.since < self.patience_s


class AccuracyReports:
    """Reports the accuracy of the model in use on labelled points, each once. A restarted agent starts over."""

    def __init__(self, model: RegisteredModel) -> None:
        self._model, self._reported = model, set[tuple[int, int]]()

    def report(self, context: Context, champion: ModelVersion, points: Sequence[Mapping[str, Any]]) -> None:
        tolerance = find_tolerance(champion)
        now = measure_live_accuracy(points, tolerance)
        if now is None or (champion.version, now.n) in self._reported:
            return
        self._reported.add((champion.version, now.n))
        about = {"version": champion.version, "expected": find_expected_accuracy(champion), "tolerance": tolerance}
        report_event(context, "accuracy.measured", f"model/{self._model.name}", **about, **asdict(now))


class LabelCounts(Model):
    """The labels that no model was trained on."""

    picked: int
    """Those to train on, without those to evaluate on."""

    labels: int
    busy: str | None
    """Why no model is trained now."""

    champion: str | None
    """The address of the model in use: ``models:/name/3``."""

    batch: str | None = None
    """The tracked run with the labels to train on."""

    costs: AccuracyLoss | None = None


class ChallengerComparison(Model):
    """The newest challenger, compared with the model in use."""

    run: str | None = None
    version: int | None = None
    gain: float | None = None
    verdict: str | None
    champion: int | None = None
    stands: str | None
    """Why it is not put to use."""

    evidence: PromotionEvidence | None = None

    batch: str | None = None
    """The tracked run with the labels to evaluate it on again."""


def is_better(comparison: ChallengerComparison) -> bool:
    return comparison.stands is None and comparison.verdict in {"promote", "ask"}


def has_labels(comparison: ChallengerComparison) -> bool:
    return comparison.batch is not None


def _declare_retraining(options: PlannerOptions, model: RegisteredModel, challengers: Challengers | None) -> None:
    """Declare the retraining strategy; ``challengers`` are evaluated again on more labels before another is trained."""
    least = options.min_picked
    seen: dict[str, frozenset[str]] = {}
    last_request = [-math.inf]
    accuracies = AccuracyReports(model)
    label_wait = LabelWait(patience_s=MAX_WAITS * options.interval_s)

    @sensor(sf.every(seconds=options.interval_s))
    def count_number_of_pickeddata(context: Context) -> LabelCounts:
        """Count the labels that no model was trained on; if they are enough, store them as a training file."""
        # Before the notes are read, so that those written meanwhile are included.
        busy = bookmarks.find_unfinished_run(
            context, options.training_workflow, "learnt", interval_s=options.interval_s
        )
        labels = list_labels(context, "given")
        learnt = bookmarks.read_learnt_ids(context, seen) if labels else set()
        to_learn = [label for label in labels if read_purpose(label) == "train"]
        new = [label for label in to_learn if label["id"] not in learnt]
        champion = model.find_champion(context)
        counts = LabelCounts(
            picked=len(new),
            labels=len(labels),
            busy=busy,
            champion=None if champion is None else format_model_uri(model.name, champion.version),
        )
        unseen: Sequence[Mapping[str, Any]] = [label for label in labels if label["id"] not in learnt]
        if champion is not None:
            unseen = select_version_points(context, unseen, champion.version)
            accuracies.report(context, champion, unseen)
        enough = len(new) >= least and busy is None and champion is not None
        wanted = list_labels(context, "wanted") if enough else []
        if label_wait.should_wait(len(labels), more=len(wanted) > 0, now=context.clock()):
            return counts.replace(busy="labels are still coming in")
        if enough and challengers is not None and (waits := _describe_waiting(context, model, challengers)) is not None:
            return counts.replace(busy=waits)
        if enough and champion is not None:
            if options.retrain_when != "drift":
                costs = compute_loss(context, options, champion, unseen)
                counts = counts.replace(costs=costs)
                if not costs.too_much:
                    return counts
            now = context.clock()
            if 0 <= now - last_request[0] < options.again_after_s:  # a refusal lasts for a while
                return counts.replace(busy="it was already requested")
            last_request[0] = now
            left_out = set() if options.learn_from == "all" else learnt & {label["id"] for label in to_learn}
            selected = [label for label in labels if label["id"] not in left_out]
            counts = counts.replace(batch=bookmarks.save_labels(context, selected))
        return counts

    def enough_labels(counts: LabelCounts) -> bool:
        return counts.picked >= least and counts.batch is not None

    def retrain(counts: LabelCounts) -> Act:
        parameters = _build_parameters(options, counts.batch, counts.champion)
        return do.run_workflow(options.training_workflow, parameters=parameters)

    Strategy(
        name=RETRAIN,
        when=count_number_of_pickeddata,
        if_=enough_labels,
        then=retrain,
        cool_down=options.cool_down_s,
        **options.limits,
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
    requested_at: dict[tuple[str, int | None], float] = {}

    def is_repeated(what: str, version: int | None, now: float) -> bool:
        if 0 <= now - requested_at.get((what, version), -math.inf) < options.again_after_s:
            return True
        requested_at[what, version] = now
        return False

    @sensor(sf.any_of(ended, sf.every(seconds=options.interval_s)))
    def retraining_ended(context: Context) -> ChallengerComparison:
        """Decide on the newest challenger, by its and the champion's predictions for the same points."""
        evidence = challengers.evaluate_newest(context)
        if evidence is None:
            return ChallengerComparison(verdict=None, stands="no model was retrained yet")
        comparison, now = _compare_challenger(context, model, evidence), context.clock()
        if is_better(comparison) and is_repeated("use", comparison.version, now):
            return comparison.replace(stands="it was already requested")
        if comparison.stands is None and comparison.verdict == "wait" and evidence.needed and evaluates:
            more = _list_labels_to_evaluate(context, options, evidence)
            if more and not is_repeated("evaluate", comparison.version, now):
                return comparison.replace(batch=bookmarks.save_labels(context, more))
        return comparison

    def request_change(comparison: ChallengerComparison) -> Call:
        evidence = {} if comparison.evidence is None else comparison.evidence.model_dump(mode="json")
        return call(executor, "change_model", version=comparison.version, run=comparison.run, evidence=evidence)

    Strategy(
        name="update_model",
        when=retraining_ended,
        if_=is_better,
        then=request_change,
        autonomy=bound_call(options.autonomy),
    )

    def evaluate(comparison: ChallengerComparison) -> Act | None:
        if comparison.version is None or comparison.evidence is None or comparison.evidence.champion is None:
            return None
        champion = format_model_uri(model.name, comparison.evidence.champion)
        parameters = _build_parameters(options, comparison.batch, champion)
        evaluated = {options.evaluate_parameter: format_model_uri(model.name, comparison.version)}
        return do.run_workflow(options.training_workflow, parameters=parameters | evaluated)

    if evaluates:
        Strategy(name="evaluate_again", when=retraining_ended, if_=has_labels, then=evaluate, **options.limits)


def _build_parameters(options: PlannerOptions, batch: str | None, champion: str | None) -> dict[str, Any]:
    parameters = {**options.training_parameters, options.labels_parameter: batch}
    return parameters | ({options.model_parameter: champion} if options.model_parameter else {})


def _describe_waiting(context: Context, model: RegisteredModel, challengers: Challengers) -> str | None:
    """Describe that the newest challenger waits for labels, if it does."""
    evidence = challengers.evaluate_newest(context)
    if evidence is None or evidence.verdict != "wait" or not evidence.needed:
        return None
    waits = f"version {evidence.version} waits for {evidence.needed} more evaluation points"
    return waits if _compare_challenger(context, model, evidence).stands is None else None


def _compare_challenger(context: Context, model: RegisteredModel, evidence: PromotionEvidence) -> ChallengerComparison:
    comparison = ChallengerComparison(
        run=evidence.run,
        version=evidence.version,
        gain=evidence.gain,
        verdict=evidence.verdict,
        stands=None,
        evidence=evidence,
    )
    if comparison.version is None:
        return comparison.replace(stands=evidence.reason)
    version = model.find_version(context, comparison.version)
    champion = model.find_champion(context)  # after the version: its alias moves before it is tagged
    gone = "its version was deleted"
    return comparison.replace(
        champion=None if champion is None else champion.version,
        stands=gone if version is None else find_obstacle(version, champion, judged_against=evidence.champion),
    )


def _list_labels_to_evaluate(
    context: Context, options: PlannerOptions, evidence: PromotionEvidence
) -> list[dict[str, Any]]:
    """Return all labels, once there are as many more evaluation points as a challenger waits for."""
    labels = list_labels(context, "given")
    more = sum(read_purpose(label) == "evaluate" for label in labels) - evidence.n_labelled
    if more < evidence.needed:
        return []
    busy = bookmarks.find_unfinished_run(context, options.training_workflow, "learnt", interval_s=options.interval_s)
    return [] if busy else labels
