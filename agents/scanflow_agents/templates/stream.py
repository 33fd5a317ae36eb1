"""The stream agent: follows one number of each prediction with a streaming detector, and has the predictions checked
for drift as soon as it changes, before there are as many as the tracker waits for.

After a restart, the predictions since the last change are read again from the knowledge base.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from pydantic import Field

import scanflow as sf
from scanflow.agent.actions import Call, call
from scanflow.agent.context import Context
from scanflow.agent.sensors.sensed_runs import Run
from scanflow.agent.sensors.sensor import sensor
from scanflow.agent.strategy import Strategy
from scanflow.app.agent import Agent
from scanflow.app.application import Application
from scanflow.app.model import Model, Whole
from scanflow.errors import InvalidError, NotFoundError
from scanflow_agents.templates import bookmarks
from scanflow_agents.templates.checker_template import CHECK
from scanflow_agents.templates.template_client import report_event, tracker_of
from scanflow_agents.templates.template_options import Options, bound_call, check_agent, find_checked_model

if TYPE_CHECKING:
    from scanflow.drift.streaming import ScaledStream

SCORE = "score"

_log = logging.getLogger(__name__)


class StreamOptions(Options):
    interval_s: float = Field(default=60.0, gt=0)
    """The interval at which it looks for new predictions, in seconds."""

    column: str = SCORE
    """The number that is followed: ``score``, the highest number of the output, which falls where a classifier gets
    unsure; or the name of an input with one number a row."""

    detector: str = "adwin"
    """``adwin``, ``page-hinkley`` or ``kswin``: see docs/drift.md."""

    checker: str = "checker"
    """The agent that is called when the stream changed. Empty: the change is only reported, as ``stream.changed``."""

    nodes: tuple[str, ...] = ()
    """The services whose predictions are followed. Empty: all, as for a tracker; without ``checker``, all there are."""

    filter_string: str = bookmarks.PREDICTIONS
    """The filter of tracked runs with predictions."""

    settled_s: float = Field(default=1.0, ge=0)
    """Runs that ended less than this ago, in seconds, are read the next time, as they may still be being written."""

    most_runs: Whole = Field(default=200, ge=1)
    """The most files that are read at a time, the oldest first; after a restart, the newest since the last change."""


class StreamChange(Model):
    """Where the mean of a stream changed."""

    column: str
    detector: str
    before: float
    after: float


class StreamReading(Model):
    """The predictions that were read at one firing."""

    changed: StreamChange | None
    numbers: int
    left_out: int
    """Files that could not be read."""

    began: bool
    """Whether these are the first since the agent started."""

    run_ids: list[str]
    """The tracked runs to check."""

    since: float
    """The end time of the last checked predictions."""


@dataclass
class _StreamState:
    """The state of the stream since its last change."""

    stream: ScaledStream
    until: float | None = None
    """The end time of the newest file read. None: none was read since the agent started."""

    runs: list[str] = field(default_factory=list)
    """The files that were read and, as far as is known, not checked, the newest last."""


def declare(app: Application, agent: Agent) -> None:
    from scanflow.drift.prediction_data import arrays_of
    from scanflow.drift.streaming import ScaledStream

    options = StreamOptions.from_agent(agent)
    try:
        followed = _StreamState(ScaledStream(options.detector))
    except InvalidError as error:
        raise InvalidError(f"Agent {agent.name!r}: {error}") from error
    model = find_checked_model(app, options.checker)

    @sensor(sf.every(seconds=options.interval_s))
    def followed_stream(context: Context) -> StreamReading:
        """Read new predictions, up to where the stream changed."""
        nonlocal followed
        begins, numbers, left_out = followed.until is None, 0, 0
        changed: StreamChange | None = None
        for run in _list_unread(context, options, followed, model):
            try:
                values = extract_numbers(arrays_of(tracker_of(context), run.run_id), options.column)
            except (NotFoundError, InvalidError) as error:  # one invalid file does not block the others
                _log.warning("The predictions of %s cannot be followed: %s", run.run_id, error)
                left_out, values = left_out + 1, np.empty(0)
            followed.until, numbers = bookmarks.get_end_time(run), numbers + len(values)
            followed.runs = [*followed.runs, run.run_id][-options.most_runs :]
            at = next((at for at, value in enumerate(values.tolist()) if followed.stream.update(value)), None)
            if at is not None:
                changed = StreamChange(
                    column=options.column,
                    detector=options.detector,
                    before=followed.stream.mean,
                    after=float(values[at:].mean()),
                )
                about, files = changed.model_dump(mode="json"), len(followed.runs)
                report_event(context, "stream.changed", f"agent/{context.agent}", files=files, **about)
                bookmarks.note(context, "changed", tags={}, metrics={"until": followed.until})
                break
        reading = StreamReading(
            changed=changed,
            numbers=numbers,
            left_out=left_out,
            began=begins,
            run_ids=list(followed.runs) if changed else [],
            since=bookmarks.get_check_time(context),
        )
        if changed:
            followed = _StreamState(ScaledStream(options.detector), followed.until)
        return reading

    if not options.checker:
        return
    checker = check_agent(app, agent, options.checker, "checker")

    def has_changed(reading: StreamReading) -> bool:
        return reading.changed is not None

    def check(reading: StreamReading) -> Call:
        return call(checker, CHECK, run_ids=reading.run_ids, predictions=reading.numbers)

    Strategy(
        name="check_changed_stream",
        when=followed_stream,
        if_=has_changed,
        then=check,
        autonomy=bound_call(options.autonomy),
    )


def extract_numbers(arrays: Mapping[str, NDArray[Any]], column: str) -> NDArray[np.float64]:
    """Return one number for each prediction of a recorded file, shape (n,), in order of time, without non-finite ones.

    Raises:
        InvalidError: there is no such column, or it has several numbers a row.
    """
    side, name = ("output:", None) if column == SCORE else ("input:", column)
    columns = {key.removeprefix(side): value for key, value in arrays.items() if key.startswith(side)}
    array = columns.get(column) if name else next(iter(columns.values())) if len(columns) == 1 else None
    if array is None or array.dtype.kind not in "biuf" or array.ndim == 0:
        raise InvalidError(
            f"There is no numeric column {column!r}. Inputs: {_list_columns(arrays, 'input:')}; outputs, of which "
            f"one is needed for {SCORE!r}: {_list_columns(arrays, 'output:')}."
        )
    rows = array.reshape(len(array), -1).astype(np.float64)
    if name and rows.shape[1] != 1:
        raise InvalidError(f"The column {column!r} has {rows.shape[1]} numbers per row; only one can be followed.")
    values: NDArray[np.float64] = rows.max(axis=1)
    times = arrays.get("time")
    if times is not None and times.shape == values.shape:
        values = values[np.argsort(times, kind="stable")]
    return values[np.isfinite(values)]


def _list_columns(arrays: Mapping[str, NDArray[Any]], side: str) -> list[str]:
    return sorted(key.removeprefix(side) for key in arrays if key.startswith(side) and not key.endswith(":ends"))


def _list_unread(context: Context, options: StreamOptions, followed: _StreamState, model: str | None) -> Sequence[Run]:
    """Return the files to read, the oldest first; after a start, those since the last change."""
    since = followed.until
    if since is None:
        since = max((note.metrics.get("until", 0.0) for note in bookmarks.list_notes(context, "changed")), default=0.0)
    until = context.clock() - options.settled_s
    runs = bookmarks.list_predictions(
        context, filter_string=options.filter_string, nodes=options.nodes, model=model, after=since, until=until
    )
    if followed.until is None:
        return runs[-options.most_runs :]
    return bookmarks.select_oldest(runs, options.most_runs, least=0, size=lambda _: 0.0)
