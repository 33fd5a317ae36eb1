"""What the agents hand to workflows: recorded predictions to a detection, labelled points to a training.

tracker = step_tracker()
new = collect(tracker, run_ids)  # new.x, new.ids, new.left_out
x, y = labelled(tracker, labels)
"""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter, defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from scanflow.drift.samples import Samples, is_table, joined, rows, unpacked
from scanflow.errors import InvalidError, NotFoundError, did_you_mean
from scanflow.knowledge import open_knowledge
from scanflow.knowledge.labels import LABELS_FILE, read_json
from scanflow.knowledge.port import KnowledgeBase
from scanflow.settings import Settings

Prepare: TypeAlias = Callable[[NDArray[Any]], NDArray[Any]]
"""Makes what a file recorded of one input, (n, ...), into samples (m, ...) of one shape. What cannot be made into one
becomes NaN, or a ``ValueError`` for the file as a whole."""

_NAMED = 3


@dataclass(frozen=True, kw_only=True, eq=False)
class PredictionData:
    x: Samples
    """n samples: what was sent to the service."""

    ids: list[str]
    """(n,): ``RUN:ROW``, unlike any other's."""

    left_out: tuple[str, ...] = ()
    """What did not fit, a line for each file: which, how many of its predictions, and why."""

    n_left_out: int = 0
    """So many predictions that is; a file that cannot be read counts as one."""


def step_tracker() -> KnowledgeBase:
    """Return the knowledge base that a step is given; elsewhere, that of the home folder."""
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
    others are left out and told, as are samples that are not finite: one odd request must not keep the others from
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
    found: dict[str, Samples] = {}
    left: dict[str, str] = {}
    count, problems = 0, list[NotFoundError | InvalidError]()
    for run_id in dict.fromkeys(run_ids):
        try:
            arrays = arrays_of(tracker, run_id)
            if columns is None:
                found[run_id] = _part(arrays, run_id, input_name, prepare)
            else:
                found[run_id] = _table(arrays, run_id, columns)
        except (NotFoundError, InvalidError) as error:
            left[run_id], count = str(error), count + 1
            problems.append(error)
    common = _most_common(found)
    xs: list[Samples] = []
    ids: list[str] = []
    for run_id, part in found.items():
        if part.shape[1:] != common:
            left[run_id] = f"{run_id!r}: all {len(part)}, of the shape {part.shape[1:]}; most are {common}"
            count += len(part)
            continue
        kept = np.flatnonzero(_finite(part))
        if missing := len(part) - len(kept):
            left[run_id] = f"{run_id!r}: {missing} of {len(part)}, with values that are not finite, or none of its kind"
            count += missing
        xs.append(rows(part, kept))
        ids += [f"{run_id}:{row}" for row in kept]
    if not ids:
        if len(problems) == len(left) == 1:
            raise problems[0]
        raise InvalidError(_nothing(list(left.values())))
    return PredictionData(x=joined(xs), ids=ids, left_out=tuple(left.values()), n_left_out=count)


def labelled(tracker: KnowledgeBase, run_id: str) -> tuple[Samples, NDArray[Any]]:
    """Return the labelled points of a tracked run that the planner made: samples and labels (n,).

    Labels that are all numbers, or all texts, stay so. Else, as where a person mistyped one, all are texts: words as
    they are, the others as JSON has them.

    Raises:
        NotFoundError: a run, or its file, is not there.
        InvalidError: it has no points, or they are not where they say.
    """
    points = read_json(tracker, run_id, LABELS_FILE)
    if not points:
        raise InvalidError(f"The tracked run {run_id!r} has no labelled points.")
    return samples_of(tracker, points), _labels([point["label"] for point in points])


def samples_of(tracker: KnowledgeBase, points: Sequence[Mapping[str, Any]]) -> Samples:
    """Return the samples that points of a detection stand for, in their order.

    Raises:
        NotFoundError: a run, or its file, is not there.
        InvalidError: a point is not where it says.
    """
    files: defaultdict[tuple[str, str], list[int]] = defaultdict(list)
    for number, point in enumerate(points):
        data = point.get("data") or {}
        if "tracked" not in data or "at" not in data:
            raise InvalidError(f"The point {point.get('id')!r} does not say where it is: data.tracked and data.at.")
        files[str(data["tracked"]), str(data.get("file", "picked.npz"))].append(number)
    parts: list[Samples] = []
    order: list[int] = []
    for (tracked, name), some in files.items():
        x = unpacked("x", arrays_of(tracker, tracked, name=name))
        at = [int(points[number]["data"]["at"]) for number in some]
        if min(at) < 0 or max(at) >= len(x):
            raise InvalidError(f"The file {name!r} of {tracked!r} has {len(x)} points, and number {max(at)} is asked.")
        parts.append(rows(x, at))
        order += some
    return rows(joined(parts), np.argsort(order))


def arrays_of(tracker: KnowledgeBase, run_id: str, *, name: str | None = None) -> dict[str, NDArray[Any]]:
    """Return the arrays of a tracked run's ``.npz`` file: the one named, or the only one."""
    with tempfile.TemporaryDirectory() as folder:
        root = tracker.fetch_run_artifacts(run_id, Path(folder) / "files", path=name or "")
        found = sorted(root.rglob(name or "*.npz"))
        if len(found) != 1:
            raise NotFoundError(f"The tracked run {run_id!r} has {len(found)} files {name or '*.npz'}; one is needed.")
        try:
            with np.load(found[0], allow_pickle=False) as held:
                return {key: held[key] for key in held.files}
        except (OSError, ValueError) as error:
            raise InvalidError(f"The file {found[0].name!r} of {run_id!r} cannot be read: {error}.") from error


def _labels(values: Sequence[Any]) -> NDArray[Any]:
    """Return labels as an array (n,) that a file can hold: no objects, and no ``true`` that became 1."""
    if len({type(one) for one in values}) == 1 and isinstance(values[0], bool | int | float | str):
        found = np.asarray(values)
        if found.dtype != object:  # as numbers are that no computer counts with
            return found
    return np.asarray([one if isinstance(one, str) else json.dumps(one) for one in values])


def _part(arrays: dict[str, NDArray[Any]], run_id: str, name: str | None, prepare: Prepare | None) -> NDArray[Any]:
    part = _input(arrays, run_id, name)
    if prepare is not None:
        try:
            part = prepare(part)
        except ValueError as error:
            raise InvalidError(f"The predictions of {run_id!r} cannot be prepared: {error}") from error
    if part.ndim == 0:
        raise InvalidError(f"The predictions of {run_id!r} are one value without an axis.")
    return part


def _table(arrays: dict[str, NDArray[Any]], run_id: str, columns: Sequence[str]) -> Samples:
    import pandas as pd

    inputs = {key.removeprefix("input:"): value for key, value in arrays.items() if key.startswith("input:")}
    whole = next(iter(inputs.values())) if len(inputs) == 1 else None
    if whole is not None and whole.ndim == 2 and whole.shape[1] == len(columns) and set(inputs) != set(columns):
        return pd.DataFrame(whole, columns=list(columns))
    lacking = [name for name in columns if name not in inputs]
    if lacking:
        raise InvalidError(f"The predictions of {run_id!r} have no column {lacking[0]!r}. They have: {sorted(inputs)}")
    return pd.DataFrame({name: _column(inputs[name], inputs.get(f"{name}:ends")) for name in columns})


def _column(values: NDArray[Any], ends: NDArray[Any] | None) -> NDArray[Any]:
    """Return a column's values (n,); of text, its bytes are in a row, and ``ends`` says where each one ends."""
    if ends is None:
        return values.reshape(-1)
    text, starts = values.tobytes(), [0, *ends.ravel().tolist()]
    parts = [text[start:end].decode(errors="replace") for start, end in pairwise(starts)]
    return np.array([*parts, None], dtype=object)[:-1]


def _most_common(parts: dict[str, Samples]) -> tuple[int, ...]:
    """Return the shape of the most predictions; of equals, the one met first."""
    counts: Counter[tuple[int, ...]] = Counter()
    for part in parts.values():
        counts[part.shape[1:]] += len(part)
    return max(counts, key=lambda shape: counts[shape], default=())


def _finite(part: Samples) -> NDArray[np.bool_]:
    if is_table(part) or part.dtype.kind not in "fc":
        return np.ones(len(part), dtype=np.bool_)
    return np.asarray(np.isfinite(part).all(axis=tuple(range(1, part.ndim))), dtype=np.bool_)


def _nothing(left: Sequence[str]) -> str:
    if not left:
        return "There are no predictions to look at: the list of runs is empty, or their files are."
    rest = f"\n- and {len(left) - _NAMED} more" if len(left) > _NAMED else ""
    named = "\n".join(f"- {line}" for line in left[:_NAMED])
    return (
        f"None of the predictions in {len(left)} files can be looked at. Recorded is what was sent, before any "
        f"component had it: where that has several forms, have collect(prepare=...) make them alike.\n{named}{rest}"
    )


def _input(arrays: dict[str, NDArray[Any]], run_id: str, name: str | None) -> NDArray[Any]:
    inputs = {key.removeprefix("input:"): value for key, value in arrays.items() if key.startswith("input:")}
    if name is None and len(inputs) != 1:
        raise InvalidError(f"The predictions of {run_id!r} have {len(inputs)} inputs. Name one: {sorted(inputs)}")
    wanted = next(iter(inputs)) if name is None else name
    if wanted not in inputs:
        raise InvalidError(f"The predictions of {run_id!r} have no input {wanted!r}.{did_you_mean(wanted, inputs)}")
    return inputs[wanted]
