"""The checker: runs drift detection on new predictions, and requests labels for selected ones (Table 5.5, second row).

Processed detections are noted in the knowledge base. The sensors look for those without a note, at each event and at
each interval, so that a lost event, or an agent that was down, delays detections and loses none.
"""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

from pydantic import Field

import scanflow as sf
from scanflow.agent import primitives as do
from scanflow.agent.actions import Act
from scanflow.agent.context import Context
from scanflow.agent.sensors.sensor import sensor
from scanflow.agent.strategy import Strategy
from scanflow.app.agent import Agent
from scanflow.app.application import Application
from scanflow.app.model import Model, Whole
from scanflow.backends.run_records import RunRecord
from scanflow.drift.contract import DetectionOutputs, parse_detection_outputs
from scanflow.errors import InvalidError, NotFoundError, ScanflowError, UnavailableError
from scanflow.knowledge.model_cache import split_model_uri
from scanflow.knowledge.version_tags import CHAMPION, REFERENCE
from scanflow.plugins import explain_not_installed, list_plugins
from scanflow_agents.templates import bookmarks, label_queue
from scanflow_agents.templates.confirmation import DriftVerdict, evaluate_detection
from scanflow_agents.templates.detections import (
    MODEL_URI,
    MODEL_VERSION,
    REGIME,
    PastDetection,
    find_version_in_use,
    list_detections,
    list_open_windows,
)
from scanflow_agents.templates.label_requests import LabelRequests, count_labels_to_request, select_points
from scanflow_agents.templates.model_registry import RegisteredModel
from scanflow_agents.templates.planner_template import PlannerOptions
from scanflow_agents.templates.template_client import (
    get_control_plane,
    list_labels,
    list_newest_runs,
    list_strategy_actions,
    read_outputs,
    report_event,
    tracker_of,
)
from scanflow_agents.templates.template_options import RunOptions, check_parameters, get_workflow, has_parameter

CHECK = "check_predictions"

_MAX_PENDING = 5

_log = logging.getLogger(__name__)


class CheckerOptions(RunOptions):
    interval_s: float = Field(default=60.0, gt=0)
    """The interval at which it looks for detections whose events did not arrive, in seconds."""

    detector_workflow: str = "detector"
    """The batch workflow that detects drift. Its steps output ``drifted``, ``n_picked`` and, ideally, ``run_ids``."""

    detector: str = "default"
    """An installed detector: a built-in one, or another package's. ``default``: by the kind of data."""

    runs_parameter: str = "run_ids"
    """The workflow's parameter for the ids of the tracked runs with the new predictions."""

    detector_parameter: str = "detector"
    """The workflow's parameter for the detector. Empty: it is not passed."""

    reference_parameter: str = ""
    """The workflow's parameter for the training data of the model in use, from its version's tag, once a version was
    promoted. Empty: it is not passed."""

    model_name: str | None = None
    """The model with that tag; required with ``reference_parameter``."""

    alias: str = CHAMPION
    """The alias of its version in use."""

    detector_parameters: dict[str, Any] = Field(default_factory=dict)
    """Further parameters of the workflow."""

    budget: Whole = Field(default=24, ge=1)
    """The most detections in ``budget_window_s``."""

    give_up_after: Whole = Field(default=5, ge=1)
    """After this many failed detections of the same predictions, those are set aside and reported as ``drift.unknown``:
    otherwise they would block all later ones."""

    confirm: tuple[Annotated[Whole, Field(ge=1)], Annotated[Whole, Field(ge=1)]] = (2, 3)
    """Drift is an alarm when found in ``m`` of the last ``n`` checks, ``[m, n]``: ``[2, 3]``. ``[1, 1]``: in each."""

    sure_below: float = Field(default=1e-4, ge=0, le=1)
    """A check with a p-value at or below this is an alarm by itself. 0: none is."""

    min_effect: float = Field(default=0.05, ge=0, le=1)
    """Drift below this effect in all columns is no alarm: 0 to 1, see ``ColumnDrift.effect``. For detectors that name
    columns."""

    patience: Whole | None = Field(default=None, ge=1)
    """The most samples of one drift to request labels for. None: twice as many as are selected from its first
    window."""

    pending_parameter: str = "pending"
    """The detector workflow's parameter for the tracked runs of windows whose drift no model was trained on yet. It
    outputs whether another window has the same drift (``same_drift``); without the parameter, all have."""

    training_workflow: str = "training"
    """The batch workflow that retrains, for a planner: while it runs, no labels are requested again."""

    labeller: str | None = None
    """``file.py:function`` that labels selected points immediately. None: people do, with ``scanflow labels``."""

    labeller_parameters: dict[str, Any] = Field(default_factory=dict)
    """For the labeller, which finds them in ``context.parameters``: the reference to a key (``sf.secret``), say."""


class PredictionsToCheck(Model):
    """New predictions, and what their detection gets beside them."""

    run_ids: list[str]
    """The tracked runs with the predictions."""

    set_aside: list[str]
    """Those that are not checked any more, since their detections failed."""

    failed: int
    """The most failed detections of one of them."""

    predictions: int
    busy: str | None
    """The detection that is running."""

    reference: str | None
    """What the model in use was trained on."""

    pending: list[str]
    """Tracked runs with drift that no model was trained on yet."""


class DetectionOutcome(Model):
    """What was done with an ended detection."""

    run: str
    drifted: bool
    anomalies: int
    picked: int
    """The points that were put into the label queue."""

    labelled: int = 0


class EndedDetections(Model):
    detections: list[DetectionOutcome]
    errors: list[str]


def declare(app: Application, agent: Agent) -> None:
    options = _check_options(app, agent)
    distinguishes = _can_distinguish_drifts(app, agent, options)

    @sensor(sf.on_call())
    def check_predictions(
        run_ids: list[str], context: Context, predictions: int = 0, since: float = 0.0
    ) -> PredictionsToCheck:
        """Receive new predictions from the tracker, without those that were checked meanwhile."""
        # Before the notes are read, so that those of a detection that ends meanwhile are: its predictions would be
        # checked again, and the second check would confirm the first.
        busy = bookmarks.find_unfinished_run(
            context, options.detector_workflow, "checked", interval_s=options.interval_s
        )
        fresh = _filter_unchecked(context, run_ids, since=since, until=bookmarks.get_check_time(context))
        failures = _collect_failures(context, options, fresh)
        aside = [run_id for run_id in fresh if failures.counts[run_id] >= options.give_up_after]
        if aside:
            _mark_unknown(context, options, aside, failures)
        return PredictionsToCheck(
            run_ids=[run_id for run_id in fresh if run_id not in aside],
            set_aside=aside,
            failed=max(failures.counts.values(), default=0),
            predictions=predictions,
            busy=busy,
            reference=_find_reference(context, options),
            pending=_list_pending_runs(context) if distinguishes else [],
        )

    def anything_to_check(check: PredictionsToCheck) -> bool:
        return len(check.run_ids) > 0 and check.busy is None

    def detect(check: PredictionsToCheck) -> Act:
        parameters = _build_parameters(options, check.run_ids, reference=check.reference, pending=check.pending)
        return do.run_workflow(options.detector_workflow, parameters=parameters)

    Strategy(
        name=CHECK,
        when=check_predictions,
        if_=anything_to_check,
        then=detect,
        cool_down=options.cool_down_s,
        **options.limits,
    )

    locator = options.labeller
    labeller = None if locator is None else label_queue.SharedLabeller(app, locator)
    _declare_use(app, options, labeller, _build_label_requests(app, options, distinguishes=distinguishes))
    if labeller is not None:

        @sensor(sf.every(seconds=options.interval_s))
        def label_picked(context: Context) -> label_queue.Labelling:
            """Have the labeller label what still waits in the queue."""
            return labeller.label_waiting(context)


def _build_label_requests(app: Application, options: CheckerOptions, *, distinguishes: bool) -> LabelRequests:
    planner = next((agent for agent in app.agents if agent.template == "planner"), None)
    planner_options = None if planner is None else PlannerOptions.from_agent(planner)
    batch = {workflow.name for workflow in app.workflows if workflow.type == "batch"}
    return LabelRequests(
        patience=options.patience,
        distinguishes=distinguishes,
        training_workflow=options.training_workflow if options.training_workflow in batch else None,
        training_interval_s=options.interval_s if planner_options is None else planner_options.interval_s,
        least=1 if planner_options is None else planner_options.min_picked,
    )


def _declare_use(
    app: Application, options: CheckerOptions, labeller: label_queue.SharedLabeller | None, requests: LabelRequests
) -> None:
    ended = sf.on_event("run.succeeded", workflow=options.detector_workflow, app=app.name)

    @sensor(sf.any_of(ended, sf.every(seconds=options.interval_s)))
    def detection_ended(context: Context) -> EndedDetections:
        """Process ended detections: add their selected points to the label queue."""
        detections: list[DetectionOutcome] = []
        errors: list[str] = []
        for record in _list_new_detections(context, options.detector_workflow):
            try:
                detection = _process_detection(context, options, record, requests)
            except UnavailableError:
                raise
            except ScanflowError as error:  # this one is retried, and does not block the next ones
                errors.append(f"{record.name}: {error}")
                continue
            if labeller is not None:
                try:
                    detection = detection.replace(labelled=labeller.label_waiting(context).labelled)
                except Exception as error:  # noqa: BLE001  its own sensor retries it
                    _log.warning("The labeller %r failed", labeller.locator, exc_info=True)
                    errors.append(f"{labeller.locator}: {type(error).__name__}: {error}")
            detections.append(detection)
        return EndedDetections(detections=detections, errors=errors)


def _compute_end(context: Context, detection: DetectionOutputs, record: RunRecord) -> float:
    """Return the time up to which a detection has checked predictions.

    That is the end of its last tracked run, if it outputs ``run_ids``; else, a second before it began.
    """
    ends = [_find_end_time(context, run_id) for run_id in detection.run_ids or ()]
    return max((end for end in ends if end is not None), default=record.created - 1.0)


@dataclass(frozen=True, kw_only=True)
class _Failures:
    """The failed detections over some predictions, without stopped ones."""

    counts: Counter[str] = field(default_factory=Counter)
    """Their number, by the tracked run with the predictions."""

    newest: RunRecord | None = None


def _collect_failures(context: Context, options: CheckerOptions, run_ids: Sequence[str]) -> _Failures:
    runs = list_newest_runs(context, options.detector_workflow) if run_ids else []
    failed = [record for record in runs if record.state == "failed"]
    if not failed:
        return _Failures()
    inputs_by_run: dict[str, set[str]] = {}
    for action in list_strategy_actions(context, CHECK):
        run = action.result.get("run") if isinstance(action.result, Mapping) else None
        parameters = action.intent.arguments.get("parameters")
        ids = parameters.get(options.runs_parameter) if isinstance(parameters, Mapping) else None
        inputs_by_run[str(run)] = {str(run_id) for run_id in ids} if isinstance(ids, list) else set()
    affected = [(record, inputs_by_run.get(str(record.name), set()) & set(run_ids)) for record in failed]
    return _Failures(
        counts=Counter(run_id for _, ids in affected for run_id in ids),
        newest=next((record for record, ids in affected if ids), None),
    )


def _mark_unknown(context: Context, options: CheckerOptions, run_ids: Sequence[str], failures: _Failures) -> None:
    """Set predictions aside, and report them as unknown. They may be reported twice, if the agent ends before they are
    noted."""
    newest = failures.newest
    run, why = ("", None) if newest is None else (str(newest.name), newest.error or _find_cause(context, newest))
    tries = min(failures.counts[run_id] for run_id in run_ids)
    subject = f"workflow/{options.detector_workflow}"
    report_event(context, "drift.unknown", subject, run=run, error=why, tries=tries, files=len(run_ids))
    _log.warning("%d detections of the same predictions failed; the last one is %r: %s", tries, run, why)
    ends = [end for run_id in run_ids if (end := _find_end_time(context, run_id)) is not None]
    metrics = {"set_aside": float(len(run_ids)), "until": max(ends, default=0.0)}
    # Not noted for that run: if it is resumed, its outcome is still processed.
    bookmarks.note(context, "checked", tags={"scanflow.failed": run}, metrics=metrics)


def _find_cause(context: Context, record: RunRecord) -> str | None:
    """Return the cause of the first task that failed; None: none did, or the run was deleted."""
    try:
        tasks = get_control_plane(context).run(str(record.name)).tasks
    except NotFoundError:
        return None
    failures = ((task.task, task.failure) for task in tasks if task.failure is not None)
    return next((f"{task}: {failure.cause or failure.summary}" for task, failure in failures), None)


def _check_options(app: Application, agent: Agent) -> CheckerOptions:
    options = CheckerOptions.from_agent(agent)
    if options.detector not in list_plugins("detectors"):
        raise InvalidError(f"Agent {agent.name!r}: {explain_not_installed('detectors', options.detector)}")
    if options.reference_parameter and options.model_name is None:
        raise InvalidError(f"Agent {agent.name!r}: reference_parameter needs model_name, the model with the reference.")
    workflow = get_workflow(app, agent, options.detector_workflow, "detector_workflow")
    check_parameters(agent, workflow, _build_parameters(options, [], reference="", pending=[]))
    return options


def _build_parameters(
    options: CheckerOptions, run_ids: list[str], *, reference: str | None, pending: list[str]
) -> dict[str, Any]:
    parameters: dict[str, Any] = {**options.detector_parameters, options.runs_parameter: run_ids}
    if options.detector_parameter:
        parameters[options.detector_parameter] = options.detector
    if options.reference_parameter and reference is not None:
        parameters[options.reference_parameter] = reference
    if pending:
        parameters[options.pending_parameter] = pending
    return parameters


def _find_reference(context: Context, options: CheckerOptions) -> str | None:
    if not options.reference_parameter or options.model_name is None:
        return None
    champion = RegisteredModel(options.model_name, options.alias).find_champion(context)
    return None if champion is None else champion.tags.get(REFERENCE)


def _list_pending_runs(context: Context) -> list[str]:
    """Return the tracked runs of the newest windows whose drift no model was trained on yet."""
    windows = list_open_windows(context, list_detections(context))
    pending = [detection for detection in windows if detection.picked][:_MAX_PENDING]
    run_ids: list[str] = []
    for detection in pending:
        try:
            run_ids += parse_detection_outputs(read_outputs(context, detection.run)).run_ids or ()
        except (NotFoundError, InvalidError):  # deleted meanwhile
            continue
    return run_ids


def _can_distinguish_drifts(app: Application, agent: Agent, options: CheckerOptions) -> bool:
    workflow = get_workflow(app, agent, options.detector_workflow, "detector_workflow")
    return bool(options.pending_parameter) and has_parameter(workflow, options.pending_parameter)


def _filter_unchecked(context: Context, run_ids: Sequence[str], *, since: float, until: float) -> list[str]:
    """Return the runs that were not checked; ``since`` is the check time that the caller knew, ``until`` the latest."""
    unique = list(dict.fromkeys(run_ids))
    if until <= since:
        return unique
    return [run_id for run_id in unique if (_find_end_time(context, run_id) or 0.0) > until]


def _find_end_time(context: Context, run_id: str) -> float | None:
    try:
        return bookmarks.get_end_time(tracker_of(context).get_run(run_id))
    except NotFoundError:  # deleted meanwhile
        return None


def _list_new_detections(context: Context, workflow: str) -> list[RunRecord]:
    """Return the successful detections that were not processed, the oldest first."""
    ended = [record for record in list_newest_runs(context, workflow) if record.state == "succeeded"]
    noted_runs = bookmarks.list_noted_runs(context, "checked") if ended else set()
    return [record for record in reversed(ended) if record.name not in noted_runs]


def _process_detection(
    context: Context, options: CheckerOptions, record: RunRecord, requests: LabelRequests
) -> DetectionOutcome:
    """Process one detection, note it, and return its outcome. It may be reported twice, if the agent ends before it is
    noted."""
    outputs, run = read_outputs(context, record.name), str(record.name)
    detection = parse_detection_outputs(outputs)
    past = [previous for previous in list_detections(context) if previous.run != run]
    windows = requests.list_windows(context, detection, past) if detection.drifted else []
    verdict = evaluate_detection(
        outputs,
        [previous.counts for previous in itertools.takewhile(lambda previous: not previous.drifted, past)],
        confirm=options.confirm,
        sure_below=options.sure_below,
        min_effect=options.min_effect,
    )
    in_use = find_version_in_use(context, detection.model_uri) if detection.model_uri else None
    outdated = in_use not in {None, detection.model_version}
    if outdated:
        verdict = replace(verdict, counts=False, why=f"version {in_use} came into use since then")
    elif windows and verdict.kind == "suspected" and detection.same_drift:
        verdict = DriftVerdict("found", True, f"it is the same drift as in {windows[0].run}")
    drifted, picked, anomalies = verdict.kind == "found", 0, detection.n_anomalies
    if drifted and detection.n_picked and not outdated:
        picked = _request_labels(context, run, windows, requests)
    kind = "continues" if drifted and not picked and (windows or outdated) else verdict.kind
    about: dict[str, Any] = {"run": run, "anomalies": anomalies, "picked": picked, "predictions": detection.n_newdata}
    about |= {} if detection.n_samples is None else {"samples": detection.n_samples}
    if detection.model_uri and detection.model_version is not None:
        about |= {"model": split_model_uri(detection.model_uri)[0], "version": detection.model_version}
    statistics = ("statistic", "threshold", "p_value", "columns")
    about |= {name: outputs[name] for name in statistics if outputs.get(name) is not None}
    about |= {"why": verdict.why} if verdict.why else {}
    if kind != "continues" or not (past and past[0].continues):  # that it continues is reported once
        report_event(context, f"drift.{kind}", f"workflow/{record.workflow}", **about)
    metrics = {"drifted": float(drifted), "anomalies": float(anomalies), "picked": float(picked)}
    metrics |= {"until": _compute_end(context, detection, record), "counts": float(verdict.counts)}
    metrics |= {"same": float(bool(windows)), "predictions": float(detection.n_newdata or 0)}
    metrics |= {f"{REGIME}{name}": share for name, share in detection.regimes.items()}
    metrics |= {} if detection.model_version is None else {MODEL_VERSION: float(detection.model_version)}
    tags = {bookmarks.RUN_FIELD: run, **({MODEL_URI: detection.model_uri} if detection.model_uri else {})}
    bookmarks.note(context, "checked", tags=tags, metrics=metrics)
    return DetectionOutcome(run=run, drifted=drifted, anomalies=anomalies, picked=picked)


def _request_labels(context: Context, run: str, windows: Sequence[PastDetection], requests: LabelRequests) -> int:
    """Add a detection's selected points to the label queue, as far as labels are to be requested."""
    tracked, points = label_queue.read_picked_points(context, run)
    items = label_queue.build_items(points, run=run, tracked=tracked)
    wanted = list_labels(context, "wanted")
    count = count_labels_to_request(
        len(points),
        windows,
        waiting=sum(label["run"] != run for label in wanted),
        busy=bool(windows) and requests.is_busy(context),
        patience=requests.patience,
    )
    if count:
        get_control_plane(context).want_labels(context.app, select_points(items, count), team=context.team)
    return count
