"""A detector of streams at work: follows one number of each prediction, in the order they came, and has the predictions
checked for drift as soon as it changes, before there are as many as the tracker waits for.

What it has seen since the last change is read again from the knowledge base when the agent is restarted.
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
from scanflow.agent.sensors.runs import Run
from scanflow.agent.sensors.sensor import sensor
from scanflow.agent.strategy import Strategy
from scanflow.app.agents import Agent
from scanflow.app.application import Application
from scanflow.app.model import Whole
from scanflow.errors import InvalidError, NotFoundError
from scanflow_agents.templates import bookmarks
from scanflow_agents.templates.checker import CHECK
from scanflow_agents.templates.control_plane import tell, tracker_of
from scanflow_agents.templates.options import Options, agent_named

if TYPE_CHECKING:
    from scanflow.drift.streaming import ScaledStream

SCORE = "score"

_log = logging.getLogger(__name__)


class StreamOptions(Options):
    interval_s: float = Field(default=60.0, gt=0)
    """How often it looks for new predictions, in seconds."""

    column: str = SCORE
    """What is followed of each prediction: ``score``, the highest number of the answer, which falls where a classifier
    gets unsure; or the name of an input with one number a row."""

    detector: str = "adwin"
    """``adwin``, ``page-hinkley`` or ``kswin``: see docs/drift.md."""

    checker: str = "checker"
    """The agent that is called when the stream has changed. Empty: it is told only, as ``stream.changed``."""

    nodes: tuple[str, ...] = ()
    """Services whose predictions are followed. Empty: all."""

    filter_string: str = bookmarks.PREDICTIONS
    """Which tracked runs are predictions."""

    settled_s: float = Field(default=1.0, ge=0)
    """What ended less than this ago, in seconds, is read the next time: it may still be being written."""

    most_runs: Whole = Field(default=200, ge=1)
    """So many files are read at a look, the oldest first; and after a restart, the newest since the last change."""


@dataclass
class _Followed:
    """What is known of the stream since its last change."""

    stream: ScaledStream
    until: float | None = None
    """When the newest file that was read ended. None: nothing was read since the agent began."""

    runs: list[str] = field(default_factory=list)
    """The files that were read and nobody has checked, as far as is known, the newest last."""


def declare(app: Application, agent: Agent) -> None:
    from scanflow.drift.prediction_data import arrays_of
    from scanflow.drift.streaming import ScaledStream

    options = StreamOptions.of(agent)
    try:
        followed = _Followed(ScaledStream(options.detector))
    except InvalidError as error:
        raise InvalidError(f"Agent {agent.name!r}: {error}") from error

    @sensor(sf.every(seconds=options.interval_s))
    def followed_stream(context: Context) -> dict[str, Any]:
        """Read the predictions that came, up to where the stream changed."""
        nonlocal followed
        begins, numbers, left_out = followed.until is None, 0, 0
        changed: dict[str, Any] | None = None
        for run in _unread(context, options, followed):
            try:
                values = numbers_of(arrays_of(tracker_of(context), run.run_id), options.column)
            except (NotFoundError, InvalidError) as error:  # one odd file keeps the others from nothing
                _log.warning("The predictions of %s are not followed: %s", run.run_id, error)
                left_out, values = left_out + 1, np.empty(0)
            followed.until, numbers = bookmarks.time_of(run), numbers + len(values)
            followed.runs = [*followed.runs, run.run_id][-options.most_runs :]
            at = next((at for at, value in enumerate(values.tolist()) if followed.stream.update(value)), None)
            if at is not None:
                changed = {"column": options.column, "detector": options.detector}
                changed |= {"before": followed.stream.mean, "after": float(values[at:].mean())}
                tell(context, "stream.changed", f"agent/{context.agent}", files=len(followed.runs), **changed)
                bookmarks.note(context, "changed", tags={}, metrics={"until": followed.until})
                break
        found: dict[str, Any] = {"changed": changed, "numbers": numbers, "left_out": left_out, "began": begins}
        found |= {"run_ids": list(followed.runs) if changed else [], "since": bookmarks.checked_until(context)}
        if changed:
            followed = _Followed(ScaledStream(options.detector), followed.until)
        return found

    if not options.checker:
        return
    checker = agent_named(app, agent, options.checker, "checker")

    def check(found: dict[str, Any]) -> Call:
        return call(checker, CHECK, run_ids=found["run_ids"], predictions=found["numbers"])

    Strategy(
        name="check_changed_stream",
        when=followed_stream,
        if_=lambda found: found["changed"] is not None,
        then=check,
        autonomy=options.autonomy,
    )


def numbers_of(arrays: Mapping[str, NDArray[Any]], column: str) -> NDArray[np.float64]:
    """Return one number for each prediction of a recorded file, (n,), in the order that they came; those that are not
    finite are left out.

    Raises:
        InvalidError: there is no such column, or it is no single number.
    """
    side, name = ("output:", None) if column == SCORE else ("input:", column)
    found = {key.removeprefix(side): value for key, value in arrays.items() if key.startswith(side)}
    given = found.get(column) if name else next(iter(found.values())) if len(found) == 1 else None
    if given is None or given.dtype.kind not in "biuf" or given.ndim == 0:
        raise InvalidError(
            f"There is no column {column!r} of numbers. Inputs: {_names(arrays, 'input:')}; outputs, of which one is "
            f"needed for {SCORE!r}: {_names(arrays, 'output:')}."
        )
    rows = given.reshape(len(given), -1).astype(np.float64)
    if name and rows.shape[1] != 1:
        raise InvalidError(f"The column {column!r} has {rows.shape[1]} numbers a row, and one is followed.")
    values: NDArray[np.float64] = rows.max(axis=1)
    times = arrays.get("time")
    if times is not None and times.shape == values.shape:
        values = values[np.argsort(times, kind="stable")]
    return values[np.isfinite(values)]


def _names(arrays: Mapping[str, NDArray[Any]], side: str) -> list[str]:
    return sorted(key.removeprefix(side) for key in arrays if key.startswith(side) and not key.endswith(":ends"))


def _unread(context: Context, options: StreamOptions, followed: _Followed) -> Sequence[Run]:
    """Return the files to be read, the oldest first; when the agent begins, those since the last change."""
    since = followed.until
    if since is None:
        since = max((one.metrics.get("until", 0.0) for one in bookmarks.noted(context, "changed")), default=0.0)
    until = context.clock() - options.settled_s
    found = bookmarks.predictions(
        context, filter_string=options.filter_string, nodes=options.nodes, after=since, until=until
    )
    if followed.until is None:
        return found[-options.most_runs :]
    return bookmarks.oldest(found, options.most_runs, least=0, size=lambda _: 0.0)
