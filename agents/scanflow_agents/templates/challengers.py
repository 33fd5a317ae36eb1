"""What is decided of a challenger: by both models' answers to the same labelled points, see docs/own-data.md.

A run is judged once. A version that waits for labels is judged again, with more of them, by a run of the same workflow
that evaluates it and trains nothing.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from pydantic import Field

from scanflow.agent.context import Context
from scanflow.app.model import Number, Whole
from scanflow.backends.records import RunRecord
from scanflow.drift.contract import MOST_COLUMNS, TrainingOutputs, outputs_of_training, purpose_of
from scanflow.drift.promotion import decide
from scanflow.drift.slices import CURRENT, WINDOW
from scanflow.errors import InvalidError, NotFoundError
from scanflow.knowledge.labels import LABELS_FILE, OF_LABELS, read_json
from scanflow.knowledge.records import TrackedRun
from scanflow.knowledge.version_tags import PROMOTION, REFERENCE, rejection
from scanflow_agents.templates import bookmarks
from scanflow_agents.templates.bookmarks import OF_RUN
from scanflow_agents.templates.control_plane import acted_on, newest_runs, outputs_of, tell, tracker_of
from scanflow_agents.templates.detections import PastDetection, most_labels, newest_detections, recent_traffic
from scanflow_agents.templates.model_registry import RegisteredModel
from scanflow_agents.templates.options import Options

RETRAIN = "retrain_model"

_VERSION, _MODEL, _VERDICT = "scanflow.version", "scanflow.model", "scanflow.verdict"


class PromotionOptions(Options):
    min_gain: Number = Field(default=0.0, ge=0, lt=1)
    """The lower end of the gain over the traffic to be expected has to be above this (Algorithm 1, line 7), 0 to 1."""

    margin: Number = Field(default=0.005, gt=0, lt=1)
    """Of all answers, so many may be lost on one slice other than the current window: 0.005 is half a point."""

    worst: Number = Field(default=0.05, gt=0, lt=1)
    """Of its own answers, such a slice may lose so many. Where more may be lost, a person decides."""

    returning: Number = Field(default=0.1, ge=0, lt=1)
    """The share of the traffic to be expected that is data of before, though nobody sends any now."""

    min_n: Whole = Field(default=50, ge=1)
    """The fewest evaluated points of the current window that a challenger is promoted by."""

    level: Number = Field(default=0.05, gt=0, lt=0.5)
    """How often a challenger that is no better is promoted, at most, however often it is judged."""

    patience: Whole | None = Field(default=None, ge=1)
    """So many samples of one drift people label at most: a challenger waits for no more. None: twice as many as were
    picked of its first window."""


class Challengers:
    """What the runs of one training workflow made, and what was decided of it."""

    def __init__(self, options: PromotionOptions, workflow: str, model: RegisteredModel) -> None:
        self._options, self._workflow, self._model = options, workflow, model
        self._known: dict[str, dict[str, Any] | None] = {}

    def newest(self, context: Context) -> dict[str, Any] | None:
        """Decide on what ended, tell of it and note it; return the evidence on the newest challenger, if there is one.

        It may be told twice, where the agent ends before it is noted.
        """
        ended = [one for one in newest_runs(context, self._workflow) if one.state == "succeeded"]
        notes = bookmarks.noted(context, "learnt") if ended else []
        known = {one.tags[OF_RUN]: one for one in notes if OF_RUN in one.tags}
        for record in reversed(ended):
            if str(record.name) not in known:
                known[str(record.name)] = self._first_seen(context, record, list(known.values()))
        for record in ended:
            run = str(record.name)
            if run not in self._known:
                look = int(known[run].metrics.get("look", 1))
                self._known[run] = self._evidence(context, record, outputs_of(context, record.name), look)
            if (found := self._known[run]) is not None:
                return found
        return None

    def _first_seen(self, context: Context, record: RunRecord, notes: list[TrackedRun]) -> TrackedRun:
        outputs, run = outputs_of(context, record.name), str(record.name)
        version = str(outputs.get("version"))
        before = [one for one in notes if one.tags.get(_VERSION) == version]
        spent = [one.metrics["look"] for one in before if one.metrics.get("n", 0) >= self._options.min_n]
        look = 1 + int(max(spent, default=0))
        evidence = self._known[run] = self._evidence(context, record, outputs, look)
        if evidence is None:
            return _note(context, record, outputs, tags={})
        self._reject(context, evidence)
        self._tell(context, evidence)
        tags = {_VERSION: version, _MODEL: self._model.name, _VERDICT: str(evidence["verdict"])}
        metrics = {"look": float(look), "n": float(evidence["n"])}
        # Of a version that was judged before, this run has evaluated more points, and it has learnt nothing.
        given = {**outputs, "labels": None} if before else outputs
        made = _note(context, record, given, tags=tags, metrics=metrics, challenger=not before)
        self._keep_reference(context, evidence["version"], run)
        return made

    def _keep_reference(self, context: Context, number: Any, run: str) -> None:
        """Keep with a version what it was trained on, whoever promotes it: its predictions are compared with that."""
        version = self._model.version(context, number) if isinstance(number, int) else None
        if version is not None and REFERENCE not in version.tags:
            self._model.tag(context, number, {REFERENCE: bookmarks.reference_of(context, run)})

    def _evidence(
        self, context: Context, record: RunRecord, outputs: Mapping[str, Any], look: int
    ) -> dict[str, Any] | None:
        run = str(record.name)
        try:
            found = outputs_of_training(outputs)
            if found is None and _requested(context, run):
                raise InvalidError(
                    "It left no output 'slices', and nothing can be decided. What such a run has to leave: "
                    "docs/own-data.md"
                )
            if found is None:  # it trained a first model
                return None
            return self._decided(context, run, found, look)
        except InvalidError as error:
            version = outputs.get("version")
            nothing: dict[str, Any] = {"champion": None, "gain": None, "n": 0, "needed": 0, "slices": []}
            about = {"run": run, "version": version if isinstance(version, int) else None}
            return {"verdict": "wait", "reason": f"The run {run} cannot be judged by. {error}", **about, **nothing}

    def _decided(self, context: Context, run: str, found: TrainingOutputs, look: int) -> dict[str, Any]:
        options, points = self._options, _points(context, found.labels)
        windows = {str(one.get("run")) for one in points} - {one.name.removeprefix(WINDOW) for one in found.slices}
        past = newest_detections(context)
        decision = decide(
            found.slices,
            recent=recent_traffic(past, windows),
            returning=options.returning,
            min_gain=options.min_gain,
            margin=options.margin,
            worst=options.worst,
            min_n=options.min_n,
            most_n=_most_n([one for one in past if one.run in windows], points, windows, options.patience),
            level=options.level,
            look=look,
        )
        return decision.evidence(
            level=options.level,
            champion=found.champion_version,
            version=found.version,
            run=run,
            look=look,
            n_labelled=sum(purpose_of(point) == "evaluate" for point in points),
            drifted=_drifted(context, points),
        )

    def _tell(self, context: Context, evidence: dict[str, Any]) -> None:
        about: dict[str, Any] = {name: evidence[name] for name in ("run", "version", "champion")}
        for part in evidence["slices"]:
            if part["name"] == CURRENT and part["n"]:
                about |= {f"{who}_metric": part[f"{who}_right"] / part["n"] for who in ("champion", "challenger")}
        better = evidence["verdict"] == "promote"
        subject = f"model/{self._model.name}"
        tell(context, "model.judged", subject, **about, metric="accuracy", better=better, evidence=evidence)

    def _reject(self, context: Context, evidence: Mapping[str, Any]) -> None:
        if evidence["verdict"] != "reject":
            return
        champion, version = self._model.champion(context), self._model.version(context, int(evidence["version"]))
        compared = champion is not None and champion.version == evidence["champion"]
        if compared and version is not None and PROMOTION not in version.tags:
            self._model.tag(context, version.version, {PROMOTION: rejection(str(evidence["reason"]))})


def is_being_decided(context: Context) -> bool:
    """Say whether the newest challenger is to be put to use, by agents or by a person, and is not yet."""
    newest = next((one for one in bookmarks.noted(context, "learnt", limit=1) if _VERDICT in one.tags), None)
    if newest is None or newest.tags[_VERDICT] not in {"promote", "ask"}:
        return False
    version = RegisteredModel(newest.tags[_MODEL], "").version(context, int(newest.tags[_VERSION]))
    return version is not None and version.tags.get(PROMOTION) is None


def _most_n(
    past: Sequence[PastDetection], points: Sequence[Mapping[str, Any]], windows: Collection[str], patience: int | None
) -> int | None:
    """Return how many points of the current windows for evaluation there will be, when people label as many as they
    ever do; None: nobody knows."""
    labelled = [one for one in points if str(one.get("run")) in windows]
    most = most_labels(past, patience)
    if most is None or not labelled:
        return None
    n = sum(purpose_of(one) == "evaluate" for one in labelled)
    return n + n * max(0, most - len(labelled)) // len(labelled)


def _drifted(context: Context, points: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return the columns that the newest of the points' detections says have drifted."""
    newest = bookmarks.newest_detection(context, {str(point.get("run")) for point in points})
    try:
        columns = None if newest is None else outputs_of(context, newest).get("columns")
    except NotFoundError:  # deleted meanwhile
        return []
    some = columns if isinstance(columns, list) else []
    return [str(one["name"]) for one in some if isinstance(one, Mapping) and "name" in one][:MOST_COLUMNS]


def _points(context: Context, labels: str | None) -> list[dict[str, Any]]:
    if labels is None:
        return []
    try:
        return read_json(tracker_of(context), labels, LABELS_FILE)
    except NotFoundError:  # deleted meanwhile
        return []


def _requested(context: Context, run: str) -> bool:
    actions = acted_on(context, RETRAIN)
    return any(isinstance(one.result, Mapping) and one.result.get("run") == run for one in actions)


def _note(
    context: Context,
    record: RunRecord,
    outputs: Mapping[str, Any],
    *,
    tags: Mapping[str, str],
    metrics: Mapping[str, float] | None = None,
    challenger: bool = False,
) -> TrackedRun:
    """Note what labels a model has learnt from: those that the run says, else the newest from before it began."""
    labels = outputs.get("labels")
    if challenger and not isinstance(labels, str):
        made = bookmarks.noted(context, "labels")
        labels = next((one.run_id for one in made if bookmarks.time_of(one) <= record.created), None)
    learnt = {OF_LABELS: labels} if isinstance(labels, str) else {}
    return bookmarks.note(context, "learnt", tags={OF_RUN: str(record.name), **learnt, **tags}, metrics=metrics)
