"""The checker: has new predictions looked at for drift, and what the detector picked labelled (Table 5.5, second row).

Which detections were made use of is noted in the knowledge base. The sensors look for what is not noted yet, at each
event and at each interval, so an event that was lost, or an agent that was down, delays a detection and loses none.
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
from scanflow.agent.context import Context
from scanflow.agent.sensors.sensor import sensor
from scanflow.agent.strategy import Strategy
from scanflow.app.agents import Agent
from scanflow.app.application import Application
from scanflow.app.model import Whole
from scanflow.backends.records import RunRecord
from scanflow.drift.contract import DetectionOutputs, outputs_of_detection
from scanflow.errors import InvalidError, NotFoundError, ScanflowError, UnavailableError
from scanflow.knowledge.version_tags import CHAMPION, REFERENCE
from scanflow.plugins import not_installed, plugin_names
from scanflow_agents.templates import bookmarks, label_queue
from scanflow_agents.templates.confirmation import DriftVerdict, verdict_on
from scanflow_agents.templates.control_plane import (
    acted_on,
    control_plane_of,
    newest_runs,
    outputs_of,
    tell,
    tracker_of,
)
from scanflow_agents.templates.detections import (
    MODEL_URI,
    MODEL_VERSION,
    REGIME,
    PastDetection,
    newest_detections,
    open_windows,
    version_in_use,
)
from scanflow_agents.templates.label_requests import LabelRequests, samples_to_request, some_of
from scanflow_agents.templates.model_registry import RegisteredModel
from scanflow_agents.templates.options import Starting, has_parameter, takes, workflow_named
from scanflow_agents.templates.planner import PlannerOptions

CHECK = "check_predictions"

_MOST_PENDING = 5

_log = logging.getLogger(__name__)


class CheckerOptions(Starting):
    interval_s: float = Field(default=60.0, gt=0)
    """How often it looks for detections whose events did not arrive, in seconds."""

    detector_workflow: str = "detector"
    """The batch workflow that looks for drift. Its steps leave ``drifted``, ``n_picked`` and, best, ``run_ids``."""

    detector: str = "default"
    """An installed detector: one that ships, or another package's. ``default``: by the kind of data."""

    runs_parameter: str = "run_ids"
    """The workflow's parameter for the ids of the tracked runs with the new predictions."""

    detector_parameter: str = "detector"
    """The workflow's parameter for the detector. Empty: it is not told."""

    reference_parameter: str = ""
    """The workflow's parameter for what the model in use was trained on, as its version's tag says, once one was
    promoted. Empty: it is not told."""

    model_name: str | None = None
    """The model whose tag that is; needed with ``reference_parameter``."""

    alias: str = CHAMPION
    """What names its version in use."""

    detector_parameters: dict[str, Any] = Field(default_factory=dict)
    """Further parameters of the workflow."""

    budget: Whole = Field(default=24, ge=1)
    """The most detections in ``budget_window_s``."""

    give_up_after: Whole = Field(default=5, ge=1)
    """So many detections over the same predictions that fail, and those are set aside, told as ``drift.unknown``: they
    would keep all that come later from being looked at."""

    confirm: tuple[Annotated[Whole, Field(ge=1)], Annotated[Whole, Field(ge=1)]] = (2, 3)
    """Drift is an alarm when so many looks found it, of so many last ones: ``[2, 3]``. ``[1, 1]``: each is."""

    sure_below: float = Field(default=1e-4, ge=0, le=1)
    """A look with a p-value at or below this is an alarm by itself. 0: none is."""

    min_effect: float = Field(default=0.05, ge=0, le=1)
    """Drift in which no column moved by this is no alarm: 0 to 1, see ``ColumnDrift.effect``. It is for detectors that
    name columns."""

    patience: Whole | None = Field(default=None, ge=1)
    """So many samples of one drift people are asked to label, at most. None: twice as many as are picked of its first
    window."""

    pending_parameter: str = "pending"
    """The detector workflow's parameter for the tracked runs of windows whose drift no model has learnt from yet. It
    says whether another window has the same drift (``same_drift``); where it has no such parameter, all have."""

    training_workflow: str = "training"
    """The batch workflow that retrains, for a planner: what it learns from is not asked for again meanwhile."""

    labeller: str | None = None
    """``file.py:function`` that labels picked points at once. None: people do, with ``scanflow labels``."""


def declare(app: Application, agent: Agent) -> None:
    options = _checked(app, agent)
    distinguishes = _distinguishes_drifts(app, agent, options)

    @sensor(sf.on_call())
    def check_predictions(
        run_ids: list[str], context: Context, predictions: int = 0, since: float = 0.0
    ) -> dict[str, Any]:
        """Take new predictions over from the tracker, without those that were checked meanwhile."""
        fresh = _fresh(context, run_ids, since=since, until=bookmarks.checked_until(context))
        failures = _failures(context, options, fresh)
        aside = [run_id for run_id in fresh if failures.counts[run_id] >= options.give_up_after]
        if aside:
            _mark_unknown(context, options, aside, failures)
        return {
            "run_ids": [run_id for run_id in fresh if run_id not in aside],
            "set_aside": aside,
            "failed": max(failures.counts.values(), default=0),
            "predictions": predictions,
            "busy": bookmarks.at_work(
                context, options.detector_workflow, "checked", patience_s=60 + 2 * options.interval_s
            ),
            "reference": _reference(context, options),
            "pending": _pending(context) if distinguishes else [],
        }

    def anything_to_check(found: dict[str, Any]) -> bool:
        return len(found["run_ids"]) > 0 and found["busy"] is None

    Strategy(
        name=CHECK,
        when=check_predictions,
        if_=anything_to_check,
        then=lambda found: do.run_workflow(options.detector_workflow, parameters=_parameters(options, found)),
        autonomy=options.autonomy,
        cool_down=options.cool_down_s,
        budget=options.budget,
        budget_window=options.budget_window_s,
    )

    locator = options.labeller
    labeller = None if locator is None else label_queue.SharedLabeller(app, locator)
    _declare_use(app, options, labeller, _label_requests(app, options, distinguishes=distinguishes))
    if labeller is not None:

        @sensor(sf.every(seconds=options.interval_s))
        def label_picked(context: Context) -> dict[str, Any]:
            """Have the labeller label what still waits."""
            return labeller.label_waiting(context)


def _label_requests(app: Application, options: CheckerOptions, *, distinguishes: bool) -> LabelRequests:
    planner = next((one for one in app.agents if one.template == "planner"), None)
    found = None if planner is None else PlannerOptions.of(planner)
    batch = {one.name for one in app.workflows if one.type == "batch"}
    return LabelRequests(
        patience=options.patience,
        distinguishes=distinguishes,
        training_workflow=options.training_workflow if options.training_workflow in batch else None,
        training_interval_s=options.interval_s if found is None else found.interval_s,
        least=1 if found is None else found.min_picked,
    )


def _declare_use(
    app: Application, options: CheckerOptions, labeller: label_queue.SharedLabeller | None, requests: LabelRequests
) -> None:
    ended = sf.on_event("run.succeeded", workflow=options.detector_workflow, app=app.name)

    @sensor(sf.any_of(ended, sf.every(seconds=options.interval_s)))
    def detection_ended(context: Context) -> dict[str, Any]:
        """Put into the label queue what ended detections picked."""
        made: list[dict[str, Any]] = []
        errors: list[str] = []
        for record in _not_noted(context, options.detector_workflow):
            try:
                found = _use(context, options, record, requests)
            except UnavailableError:
                raise
            except ScanflowError as error:  # this one stays to be looked at, and the next ones are not kept waiting
                errors.append(f"{record.name}: {error}")
                continue
            made.append(found)
            if labeller is None:
                continue
            try:
                found["labelled"] = labeller.label_waiting(context)["labelled"]
            except Exception as error:  # noqa: BLE001  whatever it raises, its sensor asks it again
                _log.warning("The labeller %r failed", labeller.locator, exc_info=True)
                errors.append(f"{labeller.locator}: {type(error).__name__}: {error}")
        return {"detections": made, "errors": errors}


def _until(context: Context, detection: DetectionOutputs, record: RunRecord) -> float:
    """Return up to when a detection has looked at predictions.

    That is the end of the last tracked run it was given, if it leaves ``run_ids``; else, a second before it began.
    """
    ends = [_ended(context, run_id) for run_id in detection.run_ids or ()]
    return max((end for end in ends if end is not None), default=record.created - 1.0)


@dataclass(frozen=True, kw_only=True)
class _Failures:
    """Which detections over some predictions failed. One that was stopped has not."""

    counts: Counter[str] = field(default_factory=Counter)
    """How many, by the tracked run with the predictions."""

    newest: RunRecord | None = None


def _failures(context: Context, options: CheckerOptions, run_ids: Sequence[str]) -> _Failures:
    runs = newest_runs(context, options.detector_workflow) if run_ids else []
    failed = [one for one in runs if one.state == "failed"]
    if not failed:
        return _Failures()
    given: dict[str, set[str]] = {}
    for action in acted_on(context, CHECK):
        run = action.result.get("run") if isinstance(action.result, Mapping) else None
        parameters = action.intent.arguments.get("parameters")
        ids = parameters.get(options.runs_parameter) if isinstance(parameters, Mapping) else None
        given[str(run)] = {str(one) for one in ids} if isinstance(ids, list) else set()
    mine = [(record, given.get(str(record.name), set()) & set(run_ids)) for record in failed]
    return _Failures(
        counts=Counter(run_id for _, ids in mine for run_id in ids),
        newest=next((record for record, ids in mine if ids), None),
    )


def _mark_unknown(context: Context, options: CheckerOptions, run_ids: Sequence[str], failures: _Failures) -> None:
    """Have predictions looked at no more, and tell that nobody knows of them. It may be told twice, where the agent
    ends before it is noted."""
    newest = failures.newest
    run, why = ("", None) if newest is None else (str(newest.name), newest.error)
    tries = min(failures.counts[run_id] for run_id in run_ids)
    subject = f"workflow/{options.detector_workflow}"
    tell(context, "drift.unknown", subject, run=run, error=why, tries=tries, files=len(run_ids))
    _log.warning("%d detections of the same predictions failed, the last one is %r: %s", tries, run, why)
    ends = [end for run_id in run_ids if (end := _ended(context, run_id)) is not None]
    metrics = {"set_aside": float(len(run_ids)), "until": max(ends, default=0.0)}
    # Not noted as that run's: who resumes it has its outcome made use of yet.
    bookmarks.note(context, "checked", tags={"scanflow.failed": run}, metrics=metrics)


def _checked(app: Application, agent: Agent) -> CheckerOptions:
    options = CheckerOptions.of(agent)
    if options.detector not in plugin_names("detectors"):
        raise InvalidError(f"Agent {agent.name!r}: {not_installed('detectors', options.detector)}")
    if options.reference_parameter and options.model_name is None:
        raise InvalidError(f"Agent {agent.name!r}: reference_parameter needs the model whose it is: model_name.")
    workflow = workflow_named(app, agent, options.detector_workflow, "detector_workflow")
    takes(agent, workflow, _parameters(options, {"run_ids": [], "reference": "", "pending": []}))
    return options


def _parameters(options: CheckerOptions, found: Mapping[str, Any]) -> dict[str, Any]:
    given: dict[str, Any] = {**options.detector_parameters, options.runs_parameter: found["run_ids"]}
    if options.detector_parameter:
        given[options.detector_parameter] = options.detector
    if options.reference_parameter and found["reference"] is not None:
        given[options.reference_parameter] = found["reference"]
    if found["pending"]:
        given[options.pending_parameter] = found["pending"]
    return given


def _reference(context: Context, options: CheckerOptions) -> str | None:
    if not options.reference_parameter or options.model_name is None:
        return None
    champion = RegisteredModel(options.model_name, options.alias).champion(context)
    return None if champion is None else champion.tags.get(REFERENCE)


def _pending(context: Context) -> list[str]:
    """Return the tracked runs of the newest windows whose drift no model has learnt from yet."""
    asked = [one for one in open_windows(context, newest_detections(context)) if one.picked][:_MOST_PENDING]
    found: list[str] = []
    for one in asked:
        try:
            found += outputs_of_detection(outputs_of(context, one.run)).run_ids or ()
        except (NotFoundError, InvalidError):  # deleted meanwhile
            continue
    return found


def _distinguishes_drifts(app: Application, agent: Agent, options: CheckerOptions) -> bool:
    workflow = workflow_named(app, agent, options.detector_workflow, "detector_workflow")
    return bool(options.pending_parameter) and has_parameter(workflow, options.pending_parameter)


def _fresh(context: Context, run_ids: Sequence[str], *, since: float, until: float) -> list[str]:
    """Return the runs that were not checked; ``since`` says what the caller knew, ``until`` what is known now."""
    unique = list(dict.fromkeys(run_ids))
    if until <= since:
        return unique
    return [run_id for run_id in unique if (_ended(context, run_id) or 0.0) > until]


def _ended(context: Context, run_id: str) -> float | None:
    try:
        return bookmarks.time_of(tracker_of(context).get_run(run_id))
    except NotFoundError:  # deleted meanwhile
        return None


def _not_noted(context: Context, workflow: str) -> list[RunRecord]:
    """Return the detections that ended well and were not made use of, the oldest first."""
    ended = [one for one in newest_runs(context, workflow) if one.state == "succeeded"]
    known = bookmarks.noted_runs(context, "checked") if ended else set()
    return [one for one in reversed(ended) if one.name not in known]


def _use(context: Context, options: CheckerOptions, record: RunRecord, requests: LabelRequests) -> dict[str, Any]:
    """Make use of one detection, note it, and return what it found. That may be told twice, where the agent ends before
    it is noted."""
    outputs, run = outputs_of(context, record.name), str(record.name)
    detection = outputs_of_detection(outputs)
    past = [one for one in newest_detections(context) if one.run != run]
    windows = requests.windows(context, detection, past) if detection.drifted else []
    verdict = verdict_on(
        outputs,
        [one.counts for one in itertools.takewhile(lambda one: not one.drifted, past)],
        confirm=options.confirm,
        sure_below=options.sure_below,
        min_effect=options.min_effect,
    )
    in_use = version_in_use(context, detection.model_uri) if detection.model_uri else None
    outdated = in_use not in {None, detection.model_version}
    if outdated:
        verdict = replace(verdict, counts=False, why=f"version {in_use} is in use since")
    elif windows and verdict.kind == "suspected" and detection.same_drift:
        verdict = DriftVerdict("found", True, f"it is the drift of {windows[0].run}")
    found: dict[str, Any] = {
        "run": run,
        "drifted": verdict.kind == "found",
        "anomalies": detection.n_anomalies,
        "picked": 0,
        "labelled": 0,
    }
    if found["drifted"] and detection.n_picked and not outdated:
        found["picked"] = _ask(context, run, windows, requests)
    goes_on = found["drifted"] and not found["picked"] and (windows or outdated)
    kind = "continues" if goes_on else verdict.kind
    about = {name: found[name] for name in ("run", "anomalies", "picked")} | {"predictions": detection.n_newdata}
    figures = ("statistic", "threshold", "p_value", "columns")
    about |= {name: outputs[name] for name in figures if outputs.get(name) is not None}
    about |= {"why": verdict.why} if verdict.why else {}
    if kind != "continues" or not (past and past[0].continues):  # that it goes on is told once
        tell(context, f"drift.{kind}", f"workflow/{record.workflow}", **about)
    metrics = {name: float(found[name]) for name in ("drifted", "anomalies", "picked")}
    metrics |= {"until": _until(context, detection, record), "counts": float(verdict.counts)}
    metrics |= {"same": float(bool(windows)), "predictions": float(detection.n_newdata or 0)}
    metrics |= {f"{REGIME}{name}": share for name, share in detection.regimes.items()}
    metrics |= {} if detection.model_version is None else {MODEL_VERSION: float(detection.model_version)}
    tags = {bookmarks.OF_RUN: run, **({MODEL_URI: detection.model_uri} if detection.model_uri else {})}
    bookmarks.note(context, "checked", tags=tags, metrics=metrics)
    return found


def _ask(context: Context, run: str, windows: Sequence[PastDetection], requests: LabelRequests) -> int:
    """Put into the label queue what a detection picked, as far as people are to be asked for it."""
    tracked, points = label_queue.picked_points(context, run)
    items = label_queue.items_of(points, run=run, tracked=tracked)
    wanted = control_plane_of(context).labels(context.app, state="wanted", team=context.team)
    count = samples_to_request(
        len(points),
        windows,
        waiting=sum(one["run"] != run for one in wanted),
        busy=bool(windows) and requests.busy(context),
        patience=requests.patience,
    )
    if count:
        control_plane_of(context).want_labels(context.app, some_of(items, count), team=context.team)
    return count
