"""Processing records of the built-in agents in the knowledge base, so that everything is processed once.

Notes are tracked runs of the application with a tag ``scanflow.kind``. ``checked``: a processed detection, with the
time up to which predictions were checked. ``labels``: a file of labelled points for training. ``learnt``: a successful
training run, and its labels, if any. ``changed``: a change of a stream, with the time up to which it was read. A note
is written after the work that it records: interrupted work is repeated, which is idempotent.
"""

from __future__ import annotations

import hashlib
import json
import tempfile
from collections.abc import Callable, Collection, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, Literal

from scanflow.agent.context import Context
from scanflow.agent.sensors.sensed_runs import Run, list_runs
from scanflow.drift.contract import read_purpose
from scanflow.knowledge.knowledge_records import TrackedRun
from scanflow.knowledge.labelled_points import LABELS_FILE, OF_LABELS, read_json
from scanflow_agents.clock_errors import AHEAD_S
from scanflow_agents.templates.template_client import RECENT, list_actions, list_newest_runs, tracker_of

Kind = Literal["checked", "labels", "learnt", "changed"]

KIND = "scanflow.kind"
RUN_FIELD = "scanflow.run"
DIGEST = "scanflow.digest"
MODELS = "scanflow.model_version"
"""Of recorded predictions: the addresses of the models that made them, ``models:/name/3``, joined by commas."""

PREDICTIONS = f"tags.`{KIND}` = 'predictions'"
"""The filter of tracked runs that are recorded predictions: one for each file of a service."""


def note(
    context: Context,
    kind: Kind,
    *,
    tags: Mapping[str, str],
    metrics: Mapping[str, float] | None = None,
    file: Path | None = None,
) -> TrackedRun:
    whole = {**tags, KIND: kind, "scanflow.agent": context.agent}
    tracker = tracker_of(context)
    return tracker.log_run(context.app, context.team, name=kind, tags=whole, metrics=metrics, artifacts=file)


def list_notes(context: Context, kind: Kind, clause: str = "", *, limit: int = 2 * RECENT) -> list[TrackedRun]:
    text = " and ".join(part for part in (f"tags.`{KIND}` = '{kind}'", clause) if part)
    return tracker_of(context).search_runs(context.app, context.team, text, limit=limit)


def list_noted_runs(context: Context, kind: Kind) -> set[str]:
    """Return the workflow runs that have a note of a kind."""
    return {entry.tags[RUN_FIELD] for entry in list_notes(context, kind) if RUN_FIELD in entry.tags}


def find_unfinished_run(context: Context, workflow: str, kind: Kind, *, interval_s: float) -> str | None:
    """Return a run of the workflow whose outcome is not processed yet, if there is one.

    Such a run is requested, or active, or has succeeded without a note; the last counts for a minute and two intervals
    of the agent that processes it, so that one with unusable outputs does not block others forever.
    """
    # Before the runs are read, so that they include those of actions that have ended meanwhile.
    actions = list_actions(
        context, primitive="run_workflow", target=f"workflow/{workflow}", states=("pending", "running")
    )
    for intent in [*context.wanted(), *(action.intent for action in actions)]:
        identity = (intent.app, intent.team, intent.primitive, intent.target)
        if identity == (context.app, context.team, "run_workflow", f"workflow/{workflow}"):
            return f"requested by {intent.agent}: {intent.id}"
    runs, since = list_newest_runs(context, workflow), context.clock() - 60 - 2 * interval_s
    for run in runs:
        if run.state == "running":
            return str(run.name)
    ended = [run for run in runs if run.state == "succeeded" and since < run.created + (run.seconds or 0.0)]
    made_use_of = list_noted_runs(context, kind) if ended else set()
    return next((str(run.name) for run in ended if run.name not in made_use_of), None)


def get_check_time(context: Context) -> float:
    """Return the time up to which predictions were checked, in seconds since the epoch; 0: none were.

    Notes of a clock that was ahead, and was set back, do not count: no predictions would be new until it has caught up.
    Theirs are checked once more.
    """
    latest = context.clock() + AHEAD_S
    untils = (entry.metrics.get("until", 0.0) for entry in list_notes(context, "checked"))
    return max((until for until in untils if until <= latest), default=0.0)


def list_predictions(
    context: Context, *, filter_string: str, nodes: Sequence[str], model: str | None, after: float, until: float
) -> list[Run]:
    """Return the recorded predictions of ``after < end <= until``, the oldest first.

    ``model``: without ``nodes``, predictions of which it is known that other models made them are left out.
    """
    workflows = () if context.application is None else context.application.workflows
    runs = list_runs(
        tracker_of(context),
        context.app,
        context.team,
        nodes=nodes,
        filter_string=filter_string,
        workflows=workflows,
        after=after,
        until=until,
    )
    chosen = runs if nodes or model is None else [run for run in runs if _may_be_of_model(run, model)]
    return sorted(chosen, key=lambda run: (get_end_time(run), run.run_id))


def _may_be_of_model(run: TrackedRun, model: str) -> bool:
    addresses = run.tags.get(MODELS, "")
    return not addresses or any(address.startswith(f"models:/{model}/") for address in addresses.split(","))


def select_oldest(runs: Sequence[Run], most: int, *, least: float, size: Callable[[Run], float]) -> list[Run]:
    """Return about the ``most`` oldest runs in order, or more if those have less than ``least`` in total; all or
    none of the runs with the same end time, as only that time separates them from later runs."""
    held = accumulate(size(run) for run in runs)
    enough = next((count for count, total in enumerate(held, start=1) if total >= least), len(runs))
    cut = max(most, enough)
    if len(runs) <= cut:
        return list(runs)
    last = get_end_time(runs[cut])
    before = [run for run in runs if get_end_time(run) < last]
    return before if len(before) >= enough else [run for run in runs if get_end_time(run) <= last]


def find_newest_detection(context: Context, runs: Collection[str]) -> str | None:
    """Return the detection with the newest note."""
    notes = list_notes(context, "checked") if runs else []
    return next((run for entry in notes if (run := entry.tags.get(RUN_FIELD, "")) in runs), None)


def get_end_time(run: TrackedRun) -> float:
    """Return when a run ended, in seconds since the epoch; 0: it is active."""
    return 0.0 if run.ended_at is None else run.ended_at.timestamp()


def save_labels(context: Context, labels: Sequence[Mapping[str, Any]]) -> str:
    """Store labelled points as a training file, once, and return the id of its tracked run."""
    fields = ("id", "run", "data", "guess", "score", "label")
    points = [{**{name: label.get(name) for name in fields}, "purpose": read_purpose(label)} for label in labels]
    points.sort(key=lambda point: str(point["id"]))
    text = json.dumps(points, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:32]
    if existing := list_notes(context, "labels", f"tags.`{DIGEST}` = '{digest}'", limit=1):
        return existing[0].run_id
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / LABELS_FILE
        file.write_text(text, encoding="utf-8")
        return note(context, "labels", tags={DIGEST: digest}, metrics={"labels": float(len(points))}, file=file).run_id


def read_learnt_ids(context: Context, seen: dict[str, frozenset[str]]) -> set[str]:
    """Return the ids of the labelled points that a model was trained on; ``seen`` caches the files."""
    files = {entry.tags[OF_LABELS] for entry in list_notes(context, "learnt") if OF_LABELS in entry.tags}
    for run_id in files - set(seen):
        seen[run_id] = frozenset(str(point["id"]) for point in read_json(tracker_of(context), run_id, LABELS_FILE))
    return {id for run_id in files for id in seen[run_id]}


def find_learnt_labels(context: Context, run: str) -> str | None:
    """Return the tracked run with the labels of a training run, if there is a note of it."""
    notes = list_notes(context, "learnt", f"tags.`{RUN_FIELD}` = '{run}'", limit=1)
    return notes[0].tags.get(OF_LABELS) if notes else None


def format_reference(context: Context, run: str) -> str:
    """Return the address of a training run's data, for the tag ``scanflow.reference``."""
    labels = find_learnt_labels(context, run)
    return f"run/{run}" if labels is None else f"runs:/{labels}/{LABELS_FILE}"
