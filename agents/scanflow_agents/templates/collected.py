"""What the agents hand to workflows, as arrays: for the steps of a detector's and a training's workflow.

A detector is given the ids of tracked runs with recorded predictions, a training that of a tracked run with labels:

    tracker = open_knowledge(Path("unused"), os.environ["MLFLOW_TRACKING_URI"])
    new = collect(tracker, run_ids)  # new.x, new.ids
    x, y = labelled(tracker, labels)
"""

from __future__ import annotations

import tempfile
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scanflow.errors import InvalidError, NotFoundError, did_you_mean
from scanflow.knowledge.port import KnowledgeBase
from scanflow_agents.templates.marks import LABELS_FILE, read_json

__all__ = ["Collected", "arrays_of", "collect", "labelled"]


@dataclass(frozen=True, kw_only=True, eq=False)
class Collected:
    """Recorded predictions."""

    x: NDArray[Any]
    """(n, ...): what was sent to the service."""

    ids: list[str]
    """(n,): ``RUN:ROW``, unlike any other's."""


def collect(tracker: KnowledgeBase, run_ids: Sequence[str], *, input_name: str | None = None) -> Collected:
    """Return the inputs of recorded predictions, in the order of the runs.

    Args:
        tracker: The knowledge base.
        run_ids: Tracked runs, each with one file that a service's recorder wrote.
        input_name: Which input of the service. None: the only one.

    Raises:
        NotFoundError: a run, or its file, is not there.
        InvalidError: there are none, or they do not fit together.
    """
    parts: list[NDArray[Any]] = []
    ids: list[str] = []
    for run_id in dict.fromkeys(run_ids):
        arrays = arrays_of(tracker, run_id)
        part = _input(arrays, run_id, input_name)
        if parts and part.shape[1:] != parts[0].shape[1:]:
            raise InvalidError(
                f"The predictions of {run_id!r} have the shape {part.shape[1:]}, those before {parts[0].shape[1:]}. "
                "Look at one kind at a time, or have the service's transformer make them alike."
            )
        parts.append(part)
        ids += [f"{run_id}:{row}" for row in range(len(part))]
    if not parts:
        raise InvalidError("There are no predictions to look at: the list of runs is empty.")
    return Collected(x=np.concatenate(parts), ids=ids)


def labelled(tracker: KnowledgeBase, run_id: str) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the labelled points of a tracked run that the planner made: samples (n, ...) and labels (n,).

    Raises:
        NotFoundError: a run, or its file, is not there.
        InvalidError: it has no points, or they are not where they say.
    """
    points = read_json(tracker, run_id, LABELS_FILE)
    if not points:
        raise InvalidError(f"The tracked run {run_id!r} has no labelled points.")
    files: defaultdict[tuple[str, str], list[dict[str, Any]]] = defaultdict(list)
    for point in points:
        data = point.get("data") or {}
        if "tracked" not in data or "at" not in data:
            raise InvalidError(f"The point {point.get('id')!r} does not say where it is: data.tracked and data.at.")
        files[str(data["tracked"]), str(data.get("file", "picked.npz"))].append(point)
    xs: list[NDArray[Any]] = []
    ys: list[Any] = []
    for (tracked, name), some in sorted(files.items()):
        x = arrays_of(tracker, tracked, name=name)["x"]
        at = [int(point["data"]["at"]) for point in some]
        if min(at) < 0 or max(at) >= len(x):
            raise InvalidError(f"The file {name!r} of {tracked!r} has {len(x)} points, and number {max(at)} is asked.")
        xs.append(x[at])
        ys += [point["label"] for point in some]
    return np.concatenate(xs), np.asarray(ys)


def arrays_of(tracker: KnowledgeBase, run_id: str, *, name: str | None = None) -> dict[str, NDArray[Any]]:
    """Return the arrays of a tracked run's ``.npz`` file: the one named, or the only one.

    Raises:
        NotFoundError: the run is not there, or has no such file.
        InvalidError: the file cannot be read.
    """
    with tempfile.TemporaryDirectory() as folder:
        root = tracker.fetch_run_artifacts(run_id, Path(folder) / "files", path=name or "")
        found = [root] if root.is_file() else sorted(root.rglob(name or "*.npz"))
        if len(found) != 1:
            raise NotFoundError(f"The tracked run {run_id!r} has {len(found)} files {name or '*.npz'}; one is needed.")
        try:
            with np.load(found[0], allow_pickle=False) as held:
                return {key: held[key] for key in held.files}
        except (OSError, ValueError) as error:
            raise InvalidError(f"The file {found[0].name!r} of {run_id!r} cannot be read: {error}.") from error


def _input(arrays: dict[str, NDArray[Any]], run_id: str, name: str | None) -> NDArray[Any]:
    inputs = {key.removeprefix("input:"): value for key, value in arrays.items() if key.startswith("input:")}
    if name is None and len(inputs) != 1:
        raise InvalidError(f"The predictions of {run_id!r} have {len(inputs)} inputs. Name one: {sorted(inputs)}")
    wanted = next(iter(inputs)) if name is None else name
    if wanted not in inputs:
        raise InvalidError(f"The predictions of {run_id!r} have no input {wanted!r}.{did_you_mean(wanted, inputs)}")
    return inputs[wanted]
