"""Decide on a challenger, by both models' answers to the same labelled points; see docs/own-data.md.

A run is evaluated once. A version that waits for labels is evaluated again, with more of them, by a run of the same
workflow that does not train.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pydantic import Field

from scanflow.agent.context import Context
from scanflow.app.model import Number, Whole
from scanflow.backends.run_records import RunRecord
from scanflow.drift.contract import MAX_COLUMNS, TrainingOutputs, parse_training_outputs, read_purpose
from scanflow.drift.promotion import PromotionEvidence, decide
from scanflow.drift.slices import CURRENT, WINDOW
from scanflow.errors import InvalidError, NotFoundError
from scanflow.knowledge.knowledge_records import TrackedRun
from scanflow.knowledge.labelled_points import LABELS_FILE, OF_LABELS, read_json
from scanflow.knowledge.version_tags import PROMOTION, REFERENCE, format_rejection
from scanflow_agents.templates import bookmarks
from scanflow_agents.templates.bookmarks import RUN_FIELD
from scanflow_agents.templates.detections import (
    PastDetection,
    compute_most_labels,
    compute_recent_traffic,
    list_detections,
)
from scanflow_agents.templates.model_registry import RegisteredModel
from scanflow_agents.templates.template_client import (
    list_newest_runs,
    list_strategy_actions,
    read_outputs,
    report_event,
    tracker_of,
)
from scanflow_agents.templates.template_options import Options

RETRAIN = "retrain_model"

_VERSION, _MODEL, _VERDICT = "scanflow.version", "scanflow.model", "scanflow.verdict"


class PromotionOptions(Options):
    min_gain: Number = Field(default=0.0, ge=0, lt=1)
    """The lower bound of the gain over the expected traffic has to exceed this (Algorithm 1, line 7), 0 to 1."""

    margin: Number = Field(default=0.005, gt=0, lt=1)
    """The share of all answers that may be lost on one slice other than the current window: 0.005 is half a point."""

    worst: Number = Field(default=0.05, gt=0, lt=1)
    """The share of its own answers that such a slice may lose. Above it, a person decides."""

    returning: Number = Field(default=0.1, ge=0, lt=1)
    """The share of the expected traffic that is earlier data, even if there is none now."""

    min_n: Whole = Field(default=50, ge=1)
    """The fewest evaluated points of the current window for a promotion."""

    level: Number = Field(default=0.05, gt=0, lt=0.5)
    """The significance level: the probability that a challenger that is no better is promoted, over all evaluations."""

    patience: Whole | None = Field(default=None, ge=1)
    """The most samples of one drift that people label: a challenger waits for no more. None: twice as many as were
    selected from its first window."""


class Challengers:
    """The challengers from the runs of one training workflow, and the decisions on them."""

    def __init__(self, options: PromotionOptions, workflow: str, model: RegisteredModel) -> None:
        self._options, self._workflow, self._model = options, workflow, model
        self._evidence_by_run: dict[str, PromotionEvidence | None] = {}

    def evaluate_newest(self, context: Context) -> PromotionEvidence | None:
        """Decide on ended runs, report and note them; return the evidence on the newest challenger, if there is one.

        A run may be reported twice, if the agent ends before it is noted.
        """
        ended = [record for record in list_newest_runs(context, self._workflow) if record.state == "succeeded"]
        notes = bookmarks.list_notes(context, "learnt") if ended else []
        notes_by_run = {note.tags[RUN_FIELD]: note for note in notes if RUN_FIELD in note.tags}
        for record in reversed(ended):
            if str(record.name) not in notes_by_run:
                notes_by_run[str(record.name)] = self._record_run(context, record, list(notes_by_run.values()))
        for record in ended:
            run = str(record.name)
            if run not in self._evidence_by_run:
                look = int(notes_by_run[run].metrics.get("look", 1))
                outputs = read_outputs(context, record.name)
                self._evidence_by_run[run] = self._build_evidence(context, record, outputs, look)
            if (evidence := self._evidence_by_run[run]) is not None:
                return evidence
        return None

    def _record_run(self, context: Context, record: RunRecord, notes: list[TrackedRun]) -> TrackedRun:
        outputs, run = read_outputs(context, record.name), str(record.name)
        version = str(outputs.get("version"))
        before = [note for note in notes if note.tags.get(_VERSION) == version]
        spent = [note.metrics["look"] for note in before if note.metrics.get("n", 0) >= self._options.min_n]
        look = 1 + int(max(spent, default=0))
        evidence = self._evidence_by_run[run] = self._build_evidence(context, record, outputs, look)
        if evidence is None:
            return _note(context, record, outputs, tags={})
        self._reject(context, evidence)
        self._report(context, evidence, began=record.created)
        tags = {_VERSION: version, _MODEL: self._model.name, _VERDICT: evidence.verdict}
        metrics = {"look": float(look), "n": float(evidence.n)}
        # For a version that was evaluated before, this run only evaluated more points.
        noted_outputs = {**outputs, "labels": None} if before else outputs
        note = _note(context, record, noted_outputs, tags=tags, metrics=metrics, challenger=not before)
        self._keep_reference(context, evidence.version, run)
        return note

    def _keep_reference(self, context: Context, number: int | None, run: str) -> None:
        """Tag a version with its training data, so that predictions can be compared with it, whoever promotes it."""
        version = None if number is None else self._model.find_version(context, number)
        if version is not None and REFERENCE not in version.tags:
            self._model.tag(context, version.version, {REFERENCE: bookmarks.format_reference(context, run)})

    def _build_evidence(
        self, context: Context, record: RunRecord, outputs: Mapping[str, Any], look: int
    ) -> PromotionEvidence | None:
        run = str(record.name)
        try:
            training = parse_training_outputs(outputs)
            if training is None and _is_requested(context, run):
                raise InvalidError(
                    "The run has no output 'slices', so no decision is possible. Required outputs: docs/own-data.md"
                )
            if training is None:  # it trained a first model
                return None
            return self._decide(context, run, training, look)
        except InvalidError as error:
            version = outputs.get("version")
            return PromotionEvidence(
                verdict="wait",
                reason=f"The run {run} cannot be used for a decision. {error}",
                run=run,
                version=version if isinstance(version, int) else None,
            )

    def _decide(self, context: Context, run: str, training: TrainingOutputs, look: int) -> PromotionEvidence:
        options, points = self._options, _read_points(context, training.labels)
        past_windows = {data_slice.name.removeprefix(WINDOW) for data_slice in training.slices}
        windows = {str(point.get("run")) for point in points} - past_windows
        past = list_detections(context)
        decision = decide(
            training.slices,
            recent=compute_recent_traffic(past, windows),
            returning=options.returning,
            min_gain=options.min_gain,
            margin=options.margin,
            worst=options.worst,
            min_n=options.min_n,
            most_n=_estimate_most_points(
                [detection for detection in past if detection.run in windows], points, windows, options.patience
            ),
            level=options.level,
            look=look,
        )
        return decision.evidence(
            level=options.level,
            champion=training.champion_version,
            version=training.version,
            run=run,
            look=look,
            n_labelled=sum(read_purpose(point) == "evaluate" for point in points),
            drifted=_list_drifted_columns(context, points),
        )

    def _report(self, context: Context, evidence: PromotionEvidence, *, began: float) -> None:
        about: dict[str, Any] = {"run": evidence.run, "version": evidence.version, "champion": evidence.champion}
        if now := next((part for part in evidence.slices if part.name == CURRENT and part.n), None):
            about |= {"champion_metric": now.champion_right / now.n, "challenger_metric": now.challenger_right / now.n}
        about |= {
            "began": began,
            "metric": "accuracy",
            "better": evidence.verdict == "promote",
            "evidence": evidence.model_dump(mode="json"),
        }
        report_event(context, "model.judged", f"model/{self._model.name}", **about)

    def _reject(self, context: Context, evidence: PromotionEvidence) -> None:
        if evidence.verdict != "reject" or evidence.version is None:
            return
        champion, version = self._model.find_champion(context), self._model.find_version(context, evidence.version)
        compared = champion is not None and champion.version == evidence.champion
        if compared and version is not None and PROMOTION not in version.tags:
            self._model.tag(context, version.version, {PROMOTION: format_rejection(evidence.reason)})


def is_being_decided(context: Context) -> bool:
    """Return whether the promotion of the newest challenger, by agents or by a person, is still pending."""
    newest = next((note for note in bookmarks.list_notes(context, "learnt", limit=1) if _VERDICT in note.tags), None)
    if newest is None or newest.tags[_VERDICT] not in {"promote", "ask"}:
        return False
    version = RegisteredModel(newest.tags[_MODEL], "").find_version(context, int(newest.tags[_VERSION]))
    return version is not None and version.tags.get(PROMOTION) is None


def _estimate_most_points(
    past: Sequence[PastDetection], points: Sequence[Mapping[str, Any]], windows: Collection[str], patience: int | None
) -> int | None:
    """Return the number of evaluation points of the current windows once people have labelled all they will;
    None: unknown."""
    labelled = [point for point in points if str(point.get("run")) in windows]
    most = compute_most_labels(past, patience)
    if most is None or not labelled:
        return None
    n = sum(read_purpose(point) == "evaluate" for point in labelled)
    return n + n * max(0, most - len(labelled)) // len(labelled)


def _list_drifted_columns(context: Context, points: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the drifted columns according to the newest of the points' detections."""
    newest = bookmarks.find_newest_detection(context, {str(point.get("run")) for point in points})
    try:
        columns = None if newest is None else read_outputs(context, newest).get("columns")
    except NotFoundError:  # deleted meanwhile
        return []
    entries = columns if isinstance(columns, list) else []
    names = [str(column["name"]) for column in entries if isinstance(column, Mapping) and "name" in column]
    return names[:MAX_COLUMNS]


def _read_points(context: Context, labels: str | None) -> list[dict[str, Any]]:
    if labels is None:
        return []
    try:
        return read_json(tracker_of(context), labels, LABELS_FILE)
    except NotFoundError:  # deleted meanwhile
        return []


def _is_requested(context: Context, run: str) -> bool:
    actions = list_strategy_actions(context, RETRAIN)
    return any(isinstance(action.result, Mapping) and action.result.get("run") == run for action in actions)


def _note(
    context: Context,
    record: RunRecord,
    outputs: Mapping[str, Any],
    *,
    tags: Mapping[str, str],
    metrics: Mapping[str, float] | None = None,
    challenger: bool = False,
) -> TrackedRun:
    """Note the labels that a model was trained on: those that the run names, else the newest from before it started."""
    labels = outputs.get("labels")
    if challenger and not isinstance(labels, str):
        notes = bookmarks.list_notes(context, "labels")
        labels = next((note.run_id for note in notes if bookmarks.get_end_time(note) <= record.created), None)
    learnt = {OF_LABELS: labels} if isinstance(labels, str) else {}
    return bookmarks.note(context, "learnt", tags={RUN_FIELD: str(record.name), **learnt, **tags}, metrics=metrics)
