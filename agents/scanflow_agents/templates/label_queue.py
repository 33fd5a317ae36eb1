"""Prepare selected points for the label queue, and call labeller functions."""

from __future__ import annotations

import math
from base64 import b64encode
from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import count, islice, zip_longest
from pathlib import Path
from threading import Lock
from typing import Any, TypeAlias

from scanflow.agent.agent_records import JSON
from scanflow.agent.context import Context
from scanflow.app.application import Application
from scanflow.app.model import Model, shorten
from scanflow.app.parameters import to_plain
from scanflow.app_files import get_file
from scanflow.drift.contract import read_purpose
from scanflow.errors import InvalidError, NotFoundError
from scanflow.knowledge.knowledge_port import KnowledgeBase
from scanflow.knowledge.labelled_points import read_json
from scanflow.modules import load_function
from scanflow_agents.templates import bookmarks
from scanflow_agents.templates.template_client import RECENT, get_control_plane, list_labels, tracker_of

Labeller: TypeAlias = Callable[[list[dict[str, Any]], Context], Mapping[str, JSON]]
"""Takes items of the queue (``id``, ``run``, ``data``, ``guess``, ``score``) and returns labels by id, possibly not for
all. Pictures are found by ``data``: in the file ``data["file"]`` of the tracked run ``data["tracked"]``, at
``data["at"]``."""

PICKED_JSON, PICKED_NPZ = "picked.json", "picked.npz"
MAX_VALUES, MAX_VALUE_LENGTH = 1000, 1000  # values of a row that are shown, and characters of a value


def read_picked_points(context: Context, run: str) -> tuple[str, list[dict[str, Any]]]:
    """Return the id of the tracked run with a detection's selected points, and the points."""
    tracker = tracker_of(context)
    runs = tracker.search_runs(context.app, context.team, f"tags.`{bookmarks.RUN_FIELD}` = '{run}'", limit=RECENT)
    tracked = next((tracked_run for tracked_run in runs if "n_picked" in tracked_run.metrics), None)
    if tracked is None:
        raise NotFoundError(
            f"The detection {run!r} logged no run with the metric 'n_picked' and the tag '{bookmarks.RUN_FIELD}'. Have "
            f"its step log both, with {PICKED_JSON!r} beside them."
        )
    points = read_json(tracker, tracked.run_id, PICKED_JSON)
    return tracked.run_id, _add_samples(tracker, tracked.run_id, points)


def build_items(points: Sequence[Mapping[str, Any]], *, run: str, tracked: str) -> list[dict[str, JSON]]:
    """Build items of the label queue from selected points. Pure.

    A point keeps its id if that is globally unique; a number is prefixed with its detection.
    """
    return [
        {
            "id": f"{run}/{point['id']}" if str(point["id"]).isdecimal() else str(point["id"]),
            "run": run,
            "purpose": read_purpose(point),
            "data": {
                "tracked": tracked,
                "file": PICKED_NPZ,
                "at": at,
                "index": point.get("index"),
                "predicted_in": point.get("run"),
                **({"shape": point["shape"]} if "shape" in point else {}),
            },
            **{name: point[name] for name in ("row", "picture") if name in point},
            "guess": point.get("guess"),
            "score": None if point.get("score") is None else float(point["score"]),
        }
        for at, point in enumerate(points)
    ]


def _add_samples(tracker: KnowledgeBase, tracked: str, points: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add what people need to label the points: ``row``, the values by column name, unless they have one; or
    ``picture``, a small PNG in base64, with the picture's ``shape``."""
    from scanflow.drift.prediction_data import arrays_of
    from scanflow.drift.samples import is_table, unpack_samples
    from scanflow.drift.thumbnail import encode_thumbnail

    samples: Any = []
    try:
        arrays = arrays_of(tracker, tracked, name=PICKED_NPZ)
        samples = unpack_samples("x", arrays)
    except (NotFoundError, InvalidError):  # without them a point can be labelled by its id alone
        arrays = {}
    columns = [str(name) for name in arrays.get("columns", ())]
    if is_table(samples):
        columns, samples = [str(name) for name in samples.columns], samples.to_numpy(dtype=object)
    shown_points: list[dict[str, Any]] = []
    for point, sample in zip_longest(points, samples[: len(points)]):
        if isinstance(row := point.get("row"), Mapping):
            point = {**point, "row": _format_row(row.items())}
        elif sample is not None and sample.ndim == 1:
            names = columns or (f"column {number}" for number in count())
            point = {**point, "row": _format_row(zip(names, sample.tolist(), strict=False))}
        elif sample is not None and (png := encode_thumbnail(sample)) is not None:
            point = {**point, "picture": b64encode(png).decode(), "shape": list(sample.shape)}
        shown_points.append(point)
    return shown_points


def _format_row(values: Iterable[tuple[str, Any]]) -> dict[str, JSON]:
    return {str(name): _to_json(value) for name, value in islice(values, MAX_VALUES)}


def _to_json(value: Any) -> JSON:
    value = _to_python_number(value)
    if value is None or isinstance(value, bool | int):
        return value
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return str(value)[:MAX_VALUE_LENGTH]


class Labelling(Model):
    """How many items waited, and how many of them were labelled."""

    wanted: int
    labelled: int


class SharedLabeller:
    """A labeller function shared by several sensors; calls are serialized, so that no item is labelled twice at a
    time."""

    def __init__(self, app: Application, locator: str) -> None:
        """Load the function ``file.py:name`` (in the application's folder) or ``package.module:name``."""
        self.locator = locator
        self._one_at_a_time = Lock()
        place, _, name = locator.partition(":")
        try:
            if not name:
                raise InvalidError("it names no function. Write 'file.py:function'")
            file = get_file(place, [Path(app.app_dir).resolve()]) if place.endswith(".py") else None
            self._labeller: Labeller = load_function(locator, file)
        except (NotFoundError, InvalidError) as error:
            raise InvalidError(f"The labeller {locator!r} cannot be used: {error}") from error

    def label_waiting(self, context: Context) -> Labelling:
        """Label all waiting items. Raises the labeller's errors."""
        with self._one_at_a_time:
            waiting = list_labels(context, "wanted")
            count = self._label_items(context, [dict(item) for item in waiting]) if waiting else 0
        return Labelling(wanted=len(waiting), labelled=count)

    def _label_items(self, context: Context, waiting: list[dict[str, Any]]) -> int:
        ids = {item["id"] for item in waiting}
        answer: Any = self._labeller(waiting, context)
        who = f"The labeller {self.locator!r}"
        if not isinstance(answer, Mapping):
            raise InvalidError(f"{who} returned {shorten(answer)}. Return a mapping from ids to labels.")
        if strange := [id for id in answer if id not in ids]:
            raise InvalidError(f"{who} labelled {shorten(strange[0])}, which was not requested.")
        labels = {
            str(id): to_plain(_to_python_number(label), f"The label of {id!r}")
            for id, label in answer.items()
            if label is not None
        }
        by = f"labeller {self.locator}"
        get_control_plane(context).give_labels(context.app, labels, by=by, team=context.team)
        return len(labels)


def _to_python_number(label: Any) -> Any:
    """Convert a NumPy number to a Python number."""
    return label.item() if getattr(label, "shape", None) == () and hasattr(label, "item") else label
