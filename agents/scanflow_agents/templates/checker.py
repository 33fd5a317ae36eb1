"""The checker: has new predictions looked at for drift, and what the detector picked labelled (Table 5.5, second row).

Which detections were made use of is noted in the knowledge base. The sensors look for what is not noted yet, at each
event and at each interval, so an event that was lost, or an agent that was down, delays a detection and loses none.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import Field

import scanflow as sf
from scanflow.agent import primitives as do
from scanflow.agent.actions import Act
from scanflow.agent.context import Context
from scanflow.agent.sensors.sensor import sensor
from scanflow.agent.strategy import Strategy
from scanflow.app.agents import Agent
from scanflow.app.application import Application
from scanflow.app.model import Whole
from scanflow.backends.records import RunRecord
from scanflow.errors import InvalidError, NotFoundError, ScanflowError, UnavailableError
from scanflow.knowledge.port import KnowledgeBase
from scanflow.plugins import not_installed, plugin_names
from scanflow_agents.templates import bookmarks, label_queue
from scanflow_agents.templates.control_plane import (
    ControlPlane,
    acted_on,
    control_plane_of,
    newest_runs,
    outputs_of,
    tell,
    tracker_of,
)
from scanflow_agents.templates.failed_detections import Failures, failures_of
from scanflow_agents.templates.model_registry import champion_of
from scanflow_agents.templates.options import Starting, takes, workflow_named

CHECK = "check_predictions"

_log = logging.getLogger(__name__)


class CheckerOptions(Starting):
    """Parameters of the checker."""

    interval_s: float = Field(default=60.0, gt=0)
    """How often it looks for detections whose events did not arrive, in seconds."""

    detector_workflow: str = "detector"
    """The batch workflow that looks for drift. Its steps leave ``drifted``, ``n_picked`` and, best, ``run_ids``."""

    detector: str = "autoencoder"
    """An installed detector: one that ships, or another package's."""

    runs_parameter: str = "run_ids"
    """The workflow's parameter for the ids of the tracked runs with the new predictions."""

    detector_parameter: str = "detector"
    """The workflow's parameter for the detector. Empty: it is not told."""

    reference_parameter: str = ""
    """The workflow's parameter for what the model in use was trained on, as its version's tag says, once one was
    promoted. Empty: it is not told."""

    model_name: str | None = None
    """The model whose tag that is; needed with ``reference_parameter``."""

    alias: str = "champion"
    """What names its version in use."""

    detector_parameters: dict[str, Any] = Field(default_factory=dict)
    """Further parameters of the workflow."""

    budget: Whole = Field(default=24, ge=1)
    """The most detections in ``budget_window_s``."""

    give_up_after: Whole = Field(default=5, ge=1)
    """So many detections over the same predictions that fail, and those are set aside, told as ``drift.unknown``: they
    would keep all that come later from being looked at."""

    labeller: str | None = None
    """``file.py:function`` that labels picked points at once. None: people do, with ``scanflow labels``."""


def declare(app: Application, agent: Agent) -> None:
    """Declare the checker's sensors and strategy.

    Raises:
        InvalidError: a parameter is wrong.
    """
    options = _checked(app, agent)

    @sensor(sf.on_call())
    def check_predictions(
        run_ids: list[str], context: Context, predictions: int = 0, since: float = 0.0
    ) -> dict[str, Any]:
        """Take new predictions over from the tracker, without those that were checked meanwhile."""
        control_plane, tracker = control_plane_of(context), tracker_of(context)
        fresh = _fresh(tracker, run_ids, since=since, until=bookmarks.checked_until(tracker, context))
        failures = _failures(control_plane, context, options, fresh)
        aside = failures.given_up(options.give_up_after)
        if aside:
            _mark_unknown(tracker, context, options, aside, failures)
        return {
            "run_ids": [run_id for run_id in fresh if run_id not in aside],
            "set_aside": aside,
            "failed": max(failures.counts.values(), default=0),
            "predictions": predictions,
            "busy": bookmarks.at_work(
                control_plane,
                tracker,
                context,
                options.detector_workflow,
                "checked",
                patience_s=60 + 2 * options.interval_s,
            ),
            "reference": _reference(tracker, options),
        }

    def anything_to_check(found: dict[str, Any]) -> bool:
        return len(found["run_ids"]) > 0 and found["busy"] is None

    def detect(found: dict[str, Any]) -> Act:
        return do.run_workflow(options.detector_workflow, parameters=_parameters(options, found))

    Strategy(
        name=CHECK,
        when=check_predictions,
        if_=anything_to_check,
        then=detect,
        autonomy=options.autonomy,
        cool_down=options.cool_down_s,
        budget=options.budget,
        budget_window=options.budget_window_s,
    )

    locator = options.labeller
    labeller = None if locator is None else label_queue.SharedLabeller(app, locator)
    _declare_use(app, options, labeller)
    if labeller is not None:

        @sensor(sf.every(seconds=options.interval_s))
        def label_picked(context: Context) -> dict[str, Any]:
            """Have the labeller label what still waits."""
            return labeller.label_waiting(control_plane_of(context), context)


def _declare_use(app: Application, options: CheckerOptions, labeller: label_queue.SharedLabeller | None) -> None:
    ended = sf.on_event("run.succeeded", workflow=options.detector_workflow, app=app.name)

    @sensor(sf.any_of(ended, sf.every(seconds=options.interval_s)))
    def detection_ended(context: Context) -> dict[str, Any]:
        """Put into the label queue what ended detections picked."""
        control_plane, tracker = control_plane_of(context), tracker_of(context)
        made: list[dict[str, Any]] = []
        errors: list[str] = []
        for record in _not_noted(control_plane, tracker, context, options.detector_workflow):
            try:
                found = _use(control_plane, tracker, context, record)
            except UnavailableError:
                raise
            except ScanflowError as error:  # this one stays to be looked at, and the next ones are not kept waiting
                errors.append(f"{record.name}: {error}")
                continue
            made.append(found)
            if labeller is None:
                continue
            try:
                found["labelled"] = labeller.label_waiting(control_plane, context)["labelled"]
            except Exception as error:  # noqa: BLE001  whatever it raises, its sensor asks it again
                _log.warning("The labeller %r failed", labeller.locator, exc_info=True)
                errors.append(f"{labeller.locator}: {type(error).__name__}: {error}")
        return {"detections": made, "errors": errors}


def drifted(outputs: Mapping[str, Any]) -> bool:
    """Say whether a detection's outputs tell of drift. Pure.

    Raises:
        InvalidError: they do not say.
    """
    value = outputs.get("drifted")
    if value is None:
        raise InvalidError("No step left an output 'drifted'. Write sf.output('drifted', ...) in the detector's step.")
    if isinstance(value, str) or not isinstance(value, bool | int | float):
        raise InvalidError(f"The output 'drifted' is {value!r}. Write true or false, or 1 or 0.")
    return bool(value)


def until_of(tracker: KnowledgeBase, outputs: Mapping[str, Any], record: RunRecord, *, settled_s: float = 1.0) -> float:
    """Return up to when a detection has looked at predictions.

    That is the end of the last tracked run it was given, if it leaves ``run_ids``; else, when it began.
    """
    given = outputs.get("run_ids")
    ends = [_ended(tracker, str(run_id)) for run_id in (given if isinstance(given, list) else [])]
    return max((end for end in ends if end is not None), default=record.created - settled_s)


def _tell(context: Context, *, workflow: str, found: Mapping[str, Any], looked: Any) -> None:
    """Tell what a detection found. It may be told twice, where the agent ends before it is noted."""
    kind = "drift.found" if found["drifted"] else "drift.none"
    about = {name: found[name] for name in ("run", "anomalies", "picked")}
    tell(context, kind, f"workflow/{workflow}", **about, predictions=looked if isinstance(looked, int) else None)


def _failures(
    control_plane: ControlPlane, context: Context, options: CheckerOptions, run_ids: Sequence[str]
) -> Failures:
    if not run_ids:
        return Failures()
    records = newest_runs(control_plane, context, options.detector_workflow)
    if not any(one.state == "failed" for one in records):
        return Failures()
    actions = acted_on(control_plane, context, CHECK)
    return failures_of(actions, records, run_ids, parameter=options.runs_parameter)


def _mark_unknown(
    tracker: KnowledgeBase, context: Context, options: CheckerOptions, run_ids: Sequence[str], failures: Failures
) -> None:
    """Have predictions looked at no more, and tell that nobody knows of them. It may be told twice, where the agent
    ends before it is noted."""
    newest = failures.newest
    run, why = ("", None) if newest is None else (str(newest.name), newest.error)
    tries = min(failures.counts[run_id] for run_id in run_ids)
    subject = f"workflow/{options.detector_workflow}"
    tell(context, "drift.unknown", subject, run=run, error=why, tries=tries, files=len(run_ids))
    _log.warning("%d detections of the same predictions failed, the last one is %r: %s", tries, run, why)
    ends = [end for run_id in run_ids if (end := _ended(tracker, run_id)) is not None]
    metrics = {"set_aside": float(len(run_ids)), "until": max(ends, default=0.0)}
    # Not noted as that run's: who resumes it has its outcome made use of yet.
    bookmarks.note(tracker, context, "checked", tags={"scanflow.failed": run}, metrics=metrics)


def _checked(app: Application, agent: Agent) -> CheckerOptions:
    options = CheckerOptions.of(agent)
    if options.detector not in plugin_names("detectors"):
        raise InvalidError(f"Agent {agent.name!r}: {not_installed('detectors', options.detector)}")
    if options.reference_parameter and options.model_name is None:
        raise InvalidError(f"Agent {agent.name!r}: reference_parameter needs the model whose it is: model_name.")
    workflow = workflow_named(app, agent, options.detector_workflow, "detector_workflow")
    takes(agent, workflow, _parameters(options, {"run_ids": [], "reference": ""}))
    return options


def _parameters(options: CheckerOptions, found: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the detector workflow is run with. Pure."""
    given: dict[str, Any] = {**options.detector_parameters, options.runs_parameter: found["run_ids"]}
    if options.detector_parameter:
        given[options.detector_parameter] = options.detector
    if options.reference_parameter and found["reference"] is not None:
        given[options.reference_parameter] = found["reference"]
    return given


def _reference(tracker: KnowledgeBase, options: CheckerOptions) -> str | None:
    if not options.reference_parameter or options.model_name is None:
        return None
    champion = champion_of(tracker, options.model_name, options.alias)
    return None if champion is None else champion.tags.get("scanflow.reference")


def _fresh(tracker: KnowledgeBase, run_ids: Sequence[str], *, since: float, until: float) -> list[str]:
    """Return the runs that were not checked; ``since`` says what the caller knew, ``until`` what is known now."""
    unique = list(dict.fromkeys(run_ids))
    if until <= since:
        return unique
    return [run_id for run_id in unique if (_ended(tracker, run_id) or 0.0) > until]


def _ended(tracker: KnowledgeBase, run_id: str) -> float | None:
    try:
        return bookmarks.time_of(tracker.get_run(run_id))
    except NotFoundError:  # deleted meanwhile
        return None


def _not_noted(control_plane: ControlPlane, tracker: KnowledgeBase, context: Context, workflow: str) -> list[RunRecord]:
    """Return the detections that ended well and were not made use of, the oldest first."""
    ended = [one for one in newest_runs(control_plane, context, workflow) if one.state == "succeeded"]
    known = bookmarks.noted_runs(tracker, context, "checked") if ended else set()
    return [one for one in reversed(ended) if one.name not in known]


def _use(control_plane: ControlPlane, tracker: KnowledgeBase, context: Context, record: RunRecord) -> dict[str, Any]:
    """Make use of one detection, and note it; return what it found."""
    outputs, run = outputs_of(control_plane, record.name), str(record.name)
    found: dict[str, Any] = {
        "run": run,
        "drifted": drifted(outputs),
        "anomalies": int(outputs.get("n_anomalies") or 0),
        "picked": 0,
        "labelled": 0,
    }
    if found["drifted"] and int(outputs.get("n_picked") or 0) > 0:
        tracked, points = label_queue.picked_points(tracker, context, run)
        control_plane.want_labels(
            context.app, label_queue.items_of(points, run=run, tracked=tracked), team=context.team
        )
        found["picked"] = len(points)
    _tell(context, workflow=record.workflow, found=found, looked=outputs.get("n_newdata"))
    metrics = {name: float(found[name]) for name in ("drifted", "anomalies", "picked")}
    metrics["until"] = until_of(tracker, outputs, record)
    bookmarks.note(tracker, context, "checked", tags={bookmarks.OF_RUN: run}, metrics=metrics)
    return found
