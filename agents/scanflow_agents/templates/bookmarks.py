"""What the built-in agents note in the knowledge base, so that nothing is looked at twice and nothing left out.

Notes are tracked runs of the application with a tag ``scanflow.kind``. ``checked``: a detection was made use of, with
the time up to which predictions were looked at. ``labels``: a file of labelled points, to learn from. ``learnt``: a
training run that ended well, and the labels it was given, if any. ``changed``: a stream had changed, with the time up
to which it was read. A note is written after what it tells of: what was cut off before is done again, and doing it
again changes nothing.
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
from scanflow.agent.sensors.runs import Run, find_runs
from scanflow.drift.contract import purpose_of
from scanflow.knowledge.labels import LABELS_FILE, OF_LABELS, read_json
from scanflow.knowledge.records import TrackedRun
from scanflow_agents.host.sensor_state import AHEAD_S
from scanflow_agents.templates.control_plane import RECENT, control_plane_of, newest_runs, tracker_of

Kind = Literal["checked", "labels", "learnt", "changed"]

KIND = "scanflow.kind"
OF_RUN = "scanflow.run"
DIGEST = "scanflow.digest"
PREDICTIONS = f"tags.`{KIND}` = 'predictions'"
"""Which tracked runs are recorded predictions: one for each file that a service wrote."""


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


def noted(context: Context, kind: Kind, clause: str = "", *, limit: int = 2 * RECENT) -> list[TrackedRun]:
    text = " and ".join(part for part in (f"tags.`{KIND}` = '{kind}'", clause) if part)
    return tracker_of(context).search_runs(context.app, context.team, text, limit=limit)


def noted_runs(context: Context, kind: Kind) -> set[str]:
    """Return the workflow runs that notes of a kind are about."""
    return {one.tags[OF_RUN] for one in noted(context, kind) if OF_RUN in one.tags}


def at_work(context: Context, workflow: str, kind: Kind, *, patience_s: float) -> str | None:
    """Return a run of the workflow whose outcome is not made use of yet, if there is one.

    Such a run is wanted and not begun, or goes on, or has ended well and is not noted; the last counts for
    ``patience_s`` seconds, so that one with outputs that nobody can use does not keep others back for ever.
    """
    known = control_plane_of(context).actions(  # before the runs are read: what is no longer wanted is then among those
        context.app,
        team=context.team,
        primitive="run_workflow",
        target=f"workflow/{workflow}",
        states=("pending", "running"),
    )
    for intent in [*context.wanted(), *(one.intent for one in known)]:
        wanted = (intent.app, intent.team, intent.primitive, intent.target)
        if wanted == (context.app, context.team, "run_workflow", f"workflow/{workflow}"):
            return f"wanted by {intent.agent}: {intent.id}"
    runs, now = newest_runs(context, workflow), context.clock()
    for one in runs:
        if one.state == "running":
            return str(one.name)
    ended = [one for one in runs if one.state == "succeeded" and now < one.created + (one.seconds or 0.0) + patience_s]
    made_use_of = noted_runs(context, kind) if ended else set()
    return next((str(one.name) for one in ended if one.name not in made_use_of), None)


def checked_until(context: Context) -> float:
    """Return up to when predictions were looked at, in seconds since the epoch; 0: none were.

    What was noted by a clock that was ahead, and is not any more, does not count: nothing would be new until it is
    there again. What it told of is looked at once more.
    """
    latest = context.clock() + AHEAD_S
    untils = (one.metrics.get("until", 0.0) for one in noted(context, "checked"))
    return max((until for until in untils if until <= latest), default=0.0)


def predictions(context: Context, *, filter_string: str, nodes: Sequence[str], after: float, until: float) -> list[Run]:
    """Return the recorded predictions of ``after < end <= until``, the oldest first."""
    workflows = () if context.application is None else context.application.workflows
    found = find_runs(
        tracker_of(context),
        context.app,
        context.team,
        nodes=nodes,
        filter_string=filter_string,
        workflows=workflows,
        after=after,
        until=until,
    )
    return sorted(found, key=lambda run: (time_of(run), run.run_id))


def oldest(runs: Sequence[Run], most: int, *, least: float, size: Callable[[Run], float]) -> list[Run]:
    """Return about the ``most`` oldest of runs in order, and more where those do not hold ``least`` together; never a
    part of those that ended at one moment: what comes next is told from them by its time alone."""
    held = accumulate(size(run) for run in runs)
    enough = next((count for count, total in enumerate(held, start=1) if total >= least), len(runs))
    cut = max(most, enough)
    if len(runs) <= cut:
        return list(runs)
    last = time_of(runs[cut])
    before = [run for run in runs if time_of(run) < last]
    return before if len(before) >= enough else [run for run in runs if time_of(run) <= last]


def newest_detection(context: Context, runs: Collection[str]) -> str | None:
    """Return which of some detections was noted last."""
    notes = noted(context, "checked") if runs else []
    return next((run for one in notes if (run := one.tags.get(OF_RUN, "")) in runs), None)


def time_of(run: TrackedRun) -> float:
    """Return when a run ended, in seconds since the epoch; 0: it goes on."""
    return 0.0 if run.ended_at is None else run.ended_at.timestamp()


def save_labels(context: Context, labels: Sequence[Mapping[str, Any]]) -> str:
    """Keep labelled points as a file to learn from, once, and return the id of the tracked run that has it."""
    kept = ("id", "run", "data", "guess", "score", "label")
    points = [{**{name: one.get(name) for name in kept}, "purpose": purpose_of(one)} for one in labels]
    points.sort(key=lambda one: str(one["id"]))
    text = json.dumps(points, sort_keys=True)
    digest = hashlib.sha256(text.encode()).hexdigest()[:32]
    if known := noted(context, "labels", f"tags.`{DIGEST}` = '{digest}'", limit=1):
        return known[0].run_id
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / LABELS_FILE
        file.write_text(text, encoding="utf-8")
        return note(context, "labels", tags={DIGEST: digest}, metrics={"labels": float(len(points))}, file=file).run_id


def learnt_ids(context: Context, seen: dict[str, frozenset[str]]) -> set[str]:
    """Return the ids of the labelled points that a model has learnt from; ``seen`` keeps files that were read."""
    files = {one.tags[OF_LABELS] for one in noted(context, "learnt") if OF_LABELS in one.tags}
    for run_id in files - set(seen):
        seen[run_id] = frozenset(str(one["id"]) for one in read_json(tracker_of(context), run_id, LABELS_FILE))
    return {id for run_id in files for id in seen[run_id]}


def learnt_labels(context: Context, run: str) -> str | None:
    """Return the tracked run with the labels that a training run was given, if that is noted."""
    found = noted(context, "learnt", f"tags.`{OF_RUN}` = '{run}'", limit=1)
    return found[0].tags.get(OF_LABELS) if found else None


def reference_of(context: Context, run: str) -> str:
    """Return where what a training run was given is, as the tag ``scanflow.reference`` has it."""
    labels = learnt_labels(context, run)
    return f"run/{run}" if labels is None else f"runs:/{labels}/{LABELS_FILE}"
