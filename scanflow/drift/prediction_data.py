"""The data that agents pass to workflows: recorded predictions for a detection, labelled points for a training.

tracker = step_tracker()
new = collect(tracker, run_ids)  # new.x, new.ids, new.left_out
x, y = load_labelled_points(tracker, labels)
"""

from __future__ import annotations

import json
import os
import tempfile
import zipfile
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scanflow.drift.samples import Samples, concatenate_samples, is_table, take_rows, unpack_samples
from scanflow.errors import InvalidError, NotFoundError, did_you_mean
from scanflow.knowledge import open_knowledge
from scanflow.knowledge.knowledge_port import KnowledgeBase
from scanflow.knowledge.labelled_points import LABELS_FILE, read_json
from scanflow.settings import Settings

__all__ = ["PredictionData", "arrays_of", "collect", "load_labelled_points", "samples_of", "step_tracker"]

Prepare: TypeAlias = Callable[[NDArray[Any]], NDArray[Any]]
"""Converts one recorded input of a file, (n, ...), to samples (m, ...) of one shape. What cannot be converted
becomes NaN, or a ``ValueError`` for the whole file."""

_MAX_NAMED = 3


@dataclass(frozen=True, kw_only=True, eq=False)
class PredictionData:
    """Recorded predictions as arrays, and the predictions that could not be read."""

    x: Samples
    """n samples: the inputs sent to the service."""

    ids: list[str]
    """(n,): ``RUN:ROW``, unique."""

    left_out: tuple[str, ...] = ()
    """The skipped data, a line for each file: the file, the number of its predictions, and the reason."""

    n_left_out: int = 0
    """The number of skipped predictions; an unreadable file counts as one."""


def step_tracker() -> KnowledgeBase:
    """Return the knowledge base of the running step; outside a step, that of the home folder."""
    settings = Settings.from_environment()
    return open_knowledge(settings.home.expanduser(), os.environ.get("MLFLOW_TRACKING_URI") or settings.tracker_uri)


def collect(
    tracker: KnowledgeBase,
    run_ids: Sequence[str],
    *,
    input_name: str | None = None,
    prepare: Prepare | None = None,
    columns: Sequence[str] | None = None,
) -> PredictionData:
    """Return the inputs of recorded predictions, in the order of the runs.

    A service may take one thing in several forms, and its recorder keeps each as it came. Files that do not fit the
    others are left out and listed, as are samples that are not finite: one odd request must not keep the others from
    being looked at. Of several shapes, that of the most predictions is kept.

    Args:
        tracker: The knowledge base.
        run_ids: Tracked runs, each with one file that a service's recorder wrote.
        input_name: Which input of the service. None: the only one.
        prepare: Makes the forms alike, as the service's own transformer does. None: they are taken as they came.
        columns: The names of a table's columns: each was an input, or all are the columns of one. The samples are then
            a table, in which values may be missing.

    Raises:
        NotFoundError: the one run, or its file, is not there.
        InvalidError: there are none, or none can be used.
    """
    parts: dict[str, Samples] = {}
    left_out: dict[str, str] = {}
    count, problems = 0, list[NotFoundError | InvalidError]()
    for run_id in dict.fromkeys(run_ids):
        try:
            arrays = arrays_of(tracker, run_id)
            if columns is None:
                parts[run_id] = _prepare_input(arrays, run_id, input_name, prepare)
            else:
                parts[run_id] = _build_table(arrays, run_id, columns)
        except (NotFoundError, InvalidError) as error:
            left_out[run_id], count = str(error), count + 1
            problems.append(error)
    common = _get_most_common_shape(parts)
    xs: list[Samples] = []
    ids: list[str] = []
    for run_id, part in parts.items():
        if part.shape[1:] != common:
            left_out[run_id] = f"{run_id!r}: all {len(part)}, of the shape {part.shape[1:]}; most are {common}"
            count += len(part)
            continue
        finite = np.flatnonzero(_mark_finite_rows(part))
        if missing := len(part) - len(finite):
            left_out[run_id] = (
                f"{run_id!r}: {missing} of {len(part)}, with values that are not finite or have the wrong type"
            )
            count += missing
        xs.append(take_rows(part, finite))
        ids += [f"{run_id}:{row}" for row in finite]
    if not ids:
        if len(problems) == len(left_out) == 1:
            raise problems[0]
        raise InvalidError(_explain_nothing_usable(list(left_out.values())))
    return PredictionData(x=concatenate_samples(xs), ids=ids, left_out=tuple(left_out.values()), n_left_out=count)


def load_labelled_points(tracker: KnowledgeBase, run_id: str) -> tuple[Samples, NDArray[Any]]:
    """Load the labelled points of a tracked run that the planner logged: samples and labels (n,).

    Labels that are all numbers, or all texts, stay so. Else, as where a person mistyped one, all are texts: words as
    they are, the others as JSON has them.

    Raises:
        NotFoundError: a run, or its file, is not there.
        InvalidError: it has no points, or they are not where they say.
    """
    points = read_json(tracker, run_id, LABELS_FILE)
    if not points:
        raise InvalidError(f"The tracked run {run_id!r} has no labelled points.")
    return samples_of(tracker, points), _encode_labels([point["label"] for point in points])


def samples_of(tracker: KnowledgeBase, points: Sequence[Mapping[str, Any]]) -> Samples:
    """Load the samples of a detection's points, in their order.

    Raises:
        NotFoundError: a run, or its file, is not there.
        InvalidError: a point is not where it says.
    """
    files: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for number, point in enumerate(points):
        data = point.get("data") or {}
        if "tracked" not in data or "at" not in data:
            raise InvalidError(f"The point {point.get('id')!r} has no location: data.tracked and data.at are missing.")
        files[str(data["tracked"]), str(data.get("file", "picked.npz"))].append(number)
    parts: list[Samples] = []
    order: list[int] = []
    for (tracked, name), numbers in files.items():
        x = unpack_samples("x", arrays_of(tracker, tracked, name=name))
        at = [int(points[number]["data"]["at"]) for number in numbers]
        if min(at) < 0 or max(at) >= len(x):
            raise InvalidError(
                f"The file {name!r} of {tracked!r} has {len(x)} points, but point {max(at)} was requested."
            )
        parts.append(take_rows(x, at))
        order += numbers
    return take_rows(concatenate_samples(parts), np.argsort(order))


def arrays_of(tracker: KnowledgeBase, run_id: str, *, name: str | None = None) -> dict[str, NDArray[Any]]:
    """Load the arrays of a tracked run's ``.npz`` file: the one named, or the only one."""
    with tempfile.TemporaryDirectory() as folder:
        root = tracker.fetch_run_artifacts(run_id, Path(folder) / "files", path=name or "")
        files = sorted(root.rglob(name or "*.npz"))
        if len(files) != 1:
            raise NotFoundError(
                f"The tracked run {run_id!r} has {len(files)} files {name or '*.npz'}; exactly one is needed."
            )
        try:
            with np.load(files[0], allow_pickle=False) as file:
                return {key: file[key] for key in file.files}
        except (OSError, ValueError, EOFError, zipfile.BadZipFile) as error:
            raise InvalidError(f"The file {files[0].name!r} of {run_id!r} cannot be read: {error}.") from error


def _encode_labels(values: Sequence[Any]) -> NDArray[Any]:
    """Return labels as an array (n,) that a file can hold: no objects, and no ``true`` that became 1."""
    if len({type(value) for value in values}) == 1 and isinstance(values[0], bool | int | float | str):
        labels = np.asarray(values)
        if labels.dtype != object:  # as numbers are that no computer counts with
            return labels
    return np.asarray([value if isinstance(value, str) else json.dumps(value) for value in values])


def _prepare_input(
    arrays: dict[str, NDArray[Any]], run_id: str, name: str | None, prepare: Prepare | None
) -> NDArray[Any]:
    part = _select_input(arrays, run_id, name)
    if prepare is not None:
        try:
            part = prepare(part)
        except ValueError as error:
            raise InvalidError(f"The predictions of {run_id!r} cannot be prepared: {error}") from error
    if part.ndim == 0:
        raise InvalidError(f"The predictions of {run_id!r} are one value without an axis.")
    return part


def _build_table(arrays: dict[str, NDArray[Any]], run_id: str, columns: Sequence[str]) -> Samples:
    import pandas as pd

    inputs = {key.removeprefix("input:"): value for key, value in arrays.items() if key.startswith("input:")}
    whole = next(iter(inputs.values())) if len(inputs) == 1 else None
    if whole is not None and whole.ndim == 2 and whole.shape[1] == len(columns) and set(inputs) != set(columns):
        return pd.DataFrame(whole, columns=list(columns))
    lacking = [name for name in columns if name not in inputs]
    if lacking:
        raise InvalidError(f"The predictions of {run_id!r} have no column {lacking[0]!r}. They have: {sorted(inputs)}")
    return pd.DataFrame({name: _decode_column(inputs[name], inputs.get(f"{name}:ends")) for name in columns})


def _decode_column(values: NDArray[Any], ends: NDArray[Any] | None) -> NDArray[Any]:
    """Return a column's values (n,); text is concatenated bytes, and ``ends`` has the end of each value."""
    if ends is None:
        return values.reshape(-1)
    text, starts = values.tobytes(), [0, *ends.ravel().tolist()]
    parts = [text[start:end].decode(errors="replace") for start, end in pairwise(starts)]
    return np.array([*parts, None], dtype=object)[:-1]


def _get_most_common_shape(parts: dict[str, Samples]) -> tuple[int, ...]:
    """Return the most common shape of the predictions; of equally common ones, the first."""
    counts: Counter[tuple[int, ...]] = Counter()
    for part in parts.values():
        counts[part.shape[1:]] += len(part)
    return max(counts, key=lambda shape: counts[shape], default=())


def _mark_finite_rows(part: Samples) -> NDArray[np.bool_]:
    if is_table(part) or part.dtype.kind not in "fc":
        return np.ones(len(part), dtype=np.bool_)
    return np.asarray(np.isfinite(part).all(axis=tuple(range(1, part.ndim))), dtype=np.bool_)


def _explain_nothing_usable(left_out: Sequence[str]) -> str:
    if not left_out:
        return "There are no predictions to examine: the list of runs is empty, or their files are empty."
    rest = f"\n- and {len(left_out) - _MAX_NAMED} more" if len(left_out) > _MAX_NAMED else ""
    named = "\n".join(f"- {line}" for line in left_out[:_MAX_NAMED])
    return (
        f"None of the predictions in {len(left_out)} files can be examined. Recorded predictions contain the requests "
        f"as they were sent: if these have several forms, convert them with collect(prepare=...).\n{named}{rest}"
    )


def _select_input(arrays: dict[str, NDArray[Any]], run_id: str, name: str | None) -> NDArray[Any]:
    inputs = {key.removeprefix("input:"): value for key, value in arrays.items() if key.startswith("input:")}
    if name is None and len(inputs) != 1:
        raise InvalidError(f"The predictions of {run_id!r} have {len(inputs)} inputs. Name one: {sorted(inputs)}")
    wanted = next(iter(inputs)) if name is None else name
    if wanted not in inputs:
        raise InvalidError(f"The predictions of {run_id!r} have no input {wanted!r}.{did_you_mean(wanted, inputs)}")
    return inputs[wanted]
