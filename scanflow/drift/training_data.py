"""The first training data of a model and its clean evaluation points, as stored in the knowledge base.

It is a tracked run of the application with the tags ``scanflow.kind = dataset`` and ``scanflow.model``, and one
``.npz`` file with ``x_train``, ``y_train``, ``x_clean``, ``y_clean``, and ``x_reference`` where detectors are to
compare with other samples than those that were trained on.
"""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scanflow.drift.evaluation import are_for_evaluation
from scanflow.drift.prediction_data import arrays_of
from scanflow.drift.samples import Samples, compute_digests, is_table, pack_samples, take_rows, unpack_samples
from scanflow.errors import InvalidError, NotFoundError, UsageError
from scanflow.knowledge.knowledge_port import KnowledgeBase
from scanflow.knowledge.knowledge_records import TrackedRun

DATASET, MODEL_TAG = "dataset", "scanflow.model"

FIRST_VERSION = "scanflow.first_version"
"""Tag with the first version of the model that was trained on the data."""

_MIN_ROWS = 20


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingData:
    x_train: Samples
    y_train: NDArray[Any]
    x_clean: Samples
    y_clean: NDArray[Any]
    x_reference: Samples

    @classmethod
    def split(cls, x: Samples, y: Any, *, evaluation_share: float) -> TrainingData:
        """Split samples and labels by each sample's digest: a share is for evaluation, and equal samples stay together.

        Raises:
            InvalidError: they do not belong together, or are too few.
        """
        x = x.reset_index(drop=True) if is_table(x) else np.asarray(x)
        labels = np.asarray(y)
        labels = np.array([str(label) for label in labels]) if labels.dtype.kind == "O" else labels
        if labels.shape != (len(x),) or len(x) < _MIN_ROWS:
            raise InvalidError(
                f"There are {len(x)} samples and labels of the shape {labels.shape}. Give a label for each of at least "
                f"{_MIN_ROWS} samples: (x, y)."
            )
        for_evaluation = are_for_evaluation(compute_digests(x), evaluation_share)
        x_train = take_rows(x, ~for_evaluation)
        return cls(
            x_train=x_train,
            y_train=labels[~for_evaluation],
            x_clean=take_rows(x, for_evaluation),
            y_clean=labels[for_evaluation],
            x_reference=x_train,
        )

    def save(self, tracker: KnowledgeBase, app: str, team: str, model: str, *, version: int) -> None:
        """Store the data as the model's newest; ``version`` is the first that was trained on it."""
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / f"{DATASET}.npz"
            arrays = {"y_train": self.y_train, "y_clean": self.y_clean}
            arrays |= pack_samples("x_train", self.x_train) | pack_samples("x_clean", self.x_clean)
            np.savez_compressed(file, **arrays)  # type: ignore[arg-type]  # its own keyword is no array
            tags = {"scanflow.kind": DATASET, MODEL_TAG: model, FIRST_VERSION: str(version)}
            tracker.log_run(app, team, name=DATASET, tags=tags, artifacts=file)

    @classmethod
    def exists(cls, tracker: KnowledgeBase, app: str, team: str, model: str) -> bool:
        return bool(_list_runs(tracker, app, team, model))

    @classmethod
    def load(
        cls, tracker: KnowledgeBase, app: str, team: str, model: str, *, in_use: int | None = None
    ) -> TrainingData:
        """Load the newest data stored for a model; ``in_use``: its version that is compared with the data.

        Raises:
            NotFoundError: none was.
            UsageError: that version is older than the first that was trained on the data.
        """
        runs = _list_runs(tracker, app, team, model)
        if not runs:
            raise NotFoundError(
                f"No training data is stored for the model {model!r} of {app}/{team}. Train a first model: run the "
                "workflow of sf.drift.retraining(fit=..., data=...) once by hand, without labels."
            )
        first = int(runs[0].tags.get(FIRST_VERSION) or 0)
        if in_use is not None and in_use < first:
            raise UsageError(
                f"Version {in_use} of the model {model!r} is in use, but was not trained on the data that is stored "
                f"for it: version {first} was the first. Put that to use: scanflow models promote {model} {first} "
                "--why TEXT. Or give the model of this workflow a name of its own."
            )
        arrays = arrays_of(tracker, runs[0].run_id)
        x_train = unpack_samples("x_train", arrays)
        has_reference = any(name.partition(":")[0] == "x_reference" for name in arrays)
        return cls(
            x_train=x_train,
            y_train=arrays["y_train"],
            x_clean=unpack_samples("x_clean", arrays),
            y_clean=arrays["y_clean"],
            x_reference=unpack_samples("x_reference", arrays) if has_reference else x_train,
        )


def _list_runs(tracker: KnowledgeBase, app: str, team: str, model: str) -> Sequence[TrackedRun]:
    """Return the tracked run with the newest data; none: nothing is stored."""
    query = f"tags.`scanflow.kind` = '{DATASET}' and tags.`{MODEL_TAG}` = '{model}'"
    return tracker.search_runs(app, team, query, limit=1)
