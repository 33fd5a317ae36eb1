"""The recorder: what is kept, in which files, and what is dropped and counted."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanflow.instance_messages import ModelFiles, Node, Recording, Revision
from scanflow_serving.messages import Tensor
from scanflow_serving.prediction_recorder import Recorder, Sampler

NODES = (Node(name="m", model=ModelFiles(name="cnn", version=3, path="")),)
RECORDED, DROPPED = "scanflow_recorded", "scanflow_dropped"


def tensor(name: str, *values: float) -> Tensor:
    return Tensor(name, "FP32", np.asarray([values], np.float32))


ONE: tuple[str, list[Tensor], list[Tensor]] = ("r", [tensor("x", 1)], [])


def record(
    folder: Path, *requests: tuple[str, Sequence[Tensor], Sequence[Tensor]], **changes: Any
) -> tuple[list[dict[str, np.ndarray]], Counter[str]]:
    counts: Counter[str] = Counter()

    def count(name: str, rows: int) -> None:
        counts[name] += rows

    options: dict[str, Any] = {"folder": str(folder), "flush_s": 3600.0, "rows": 1000, **changes}
    recording = Recording(**options)
    recorder = Recorder(recording, count=count, clock=lambda: 1000.5)
    for revision, inputs, outputs in requests:
        if recorder.should_keep(inputs):
            recorder.keep(Revision(id=revision, nodes=NODES), inputs, outputs)
    recorder.close()
    return [dict(np.load(path, allow_pickle=False)) for path in sorted(folder.glob("*.npz"))], counts


@given(fraction=st.floats(0, 1), count=st.integers(0, 2000))
def test_a_sample_is_as_large_as_was_requested(fraction: float, count: int) -> None:
    wanted = Sampler(fraction)
    assert abs(sum(wanted() for _ in range(count)) - fraction * count) <= 1


def test_predictions_lie_in_one_file_with_their_times_and_revision(tmp_path: Path) -> None:
    (records,), counts = record(
        tmp_path, ("r1", [tensor("x", 1, 2)], [tensor("y", 3)]), ("r1", [tensor("x", 4, 5)], [tensor("y", 6)])
    )
    assert {name: array.tolist() for name, array in records.items()} == {
        "input:x": [[1, 2], [4, 5]], "output:y": [[3], [6]], "time": [1000.5, 1000.5], "revision": "r1",
        "models": ["models:/cnn/3"],
    }  # fmt: skip
    assert counts == {RECORDED: 2}


def test_what_does_not_fit_together_lies_in_files_of_its_own(tmp_path: Path) -> None:
    records, _ = record(
        tmp_path, ("r1", [tensor("x", 1)], []), ("r2", [tensor("x", 1)], []), ("r1", [tensor("x", 1, 2)], [])
    )
    assert len(records) == 3


def test_texts_are_kept_whole(tmp_path: Path) -> None:
    words = np.asarray([b"one\0", b"", b"three"], object)
    (records,), _ = record(tmp_path, ("r", [Tensor("words", "BYTES", words)], []))
    whole, ends = records["input:words"].tobytes(), records["input:words:ends"].tolist()
    assert [whole[begin:end] for begin, end in zip([0, *ends], ends, strict=False)] == words.tolist()


@pytest.mark.parametrize(
    ("requests", "changes", "counted"),
    [
        (10 * [ONE], {"rows": 10}, {RECORDED: 10}),
        ([ONE], {"max_bytes": 3}, {DROPPED: 1}),
        (100 * [ONE], {"fraction": 0.25}, {RECORDED: 25}),
        ([("r", [Tensor("x", "FP32", np.zeros((7, 3), np.float32))], [])], {}, {RECORDED: 7}),
    ],
    ids=["written without waiting", "a full folder", "a fraction", "a request of several predictions"],
)
def test_what_is_kept_and_what_is_dropped_is_counted(
    tmp_path: Path, requests: list[Any], changes: dict[str, Any], counted: dict[str, int]
) -> None:
    records, counts = record(tmp_path, *requests, **changes)
    assert counts == counted
    assert sum(len(arrays["time"]) for arrays in records) == counts[RECORDED]


def test_a_folder_that_cannot_be_written_fails_nobody(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    assert record(tmp_path / "file", ONE)[1] == {DROPPED: 1}
