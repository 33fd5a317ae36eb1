from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanflow.wire import Recording
from scanflow_serving.messages import Tensor
from scanflow_serving.recorder import Recorder, Sampler


class Counted:
    def __init__(self, folder: Path, **changes: object) -> None:
        self.recorded = self.dropped = 0
        settings = {"flush_s": 3600.0, "rows": 1000} | changes
        self.recorder = Recorder(
            Recording(folder=str(folder), **settings),  # type: ignore[arg-type]
            recorded=self._recorded,
            dropped=self._dropped,
            clock=lambda: 1000.5,
        )

    def _recorded(self, rows: int) -> None:
        self.recorded += rows

    def _dropped(self, rows: int) -> None:
        self.dropped += rows


def tensor(name: str, *values: float) -> Tensor:
    return Tensor(name, "FP32", np.asarray([values], np.float32))


def files(folder: Path) -> list[dict[str, np.ndarray]]:
    return [dict(np.load(path, allow_pickle=False)) for path in sorted(folder.glob("*.npz"))]


@given(fraction=st.floats(0, 1), count=st.integers(0, 2000))
def test_a_sample_is_as_large_as_was_asked_for(fraction: float, count: int) -> None:
    wanted = Sampler(fraction)
    assert abs(sum(wanted() for _ in range(count)) - fraction * count) <= 1


def test_predictions_lie_in_one_file_with_their_times_and_revision(tmp_path: Path) -> None:
    kept = Counted(tmp_path)
    kept.recorder.note("r1", [tensor("x", 1, 2)], [tensor("y", 3)])
    kept.recorder.note("r1", [tensor("x", 4, 5)], [tensor("y", 6)])
    kept.recorder.close()
    (found,) = files(tmp_path)
    assert found["input:x"].tolist() == [[1, 2], [4, 5]]
    assert found["output:y"].tolist() == [[3], [6]]
    assert found["time"].tolist() == [1000.5, 1000.5]
    assert str(found["revision"]) == "r1"
    assert (kept.recorded, kept.dropped) == (2, 0)


def test_what_does_not_fit_together_lies_in_files_of_its_own(tmp_path: Path) -> None:
    kept = Counted(tmp_path)
    kept.recorder.note("r1", [tensor("x", 1)], [])
    kept.recorder.note("r2", [tensor("x", 1)], [])
    kept.recorder.note("r1", [tensor("x", 1, 2)], [])
    kept.recorder.close()
    assert len(files(tmp_path)) == 3


def test_texts_are_kept_whole(tmp_path: Path) -> None:
    kept = Counted(tmp_path)
    words = np.asarray([b"one\0", b"", b"three"], object)
    kept.recorder.note("r", [Tensor("words", "BYTES", words)], [])
    kept.recorder.close()
    (found,) = files(tmp_path)
    whole, ends = found["input:words"].tobytes(), found["input:words:ends"].tolist()
    assert [whole[begin:end] for begin, end in zip([0, *ends], ends, strict=False)] == words.tolist()


def test_enough_predictions_are_written_without_waiting(tmp_path: Path) -> None:
    kept = Counted(tmp_path, rows=10)
    for _ in range(10):
        kept.recorder.note("r", [tensor("x", 1)], [])
    kept.recorder.close()
    assert kept.recorded == 10


def test_a_full_folder_drops_and_counts(tmp_path: Path) -> None:
    kept = Counted(tmp_path, max_bytes=10)
    kept.recorder.note("r", [tensor("x", 1, 2, 3)], [])
    kept.recorder.close()
    assert files(tmp_path) == []
    assert (kept.recorded, kept.dropped) == (0, 1)


def test_a_folder_that_cannot_be_written_fails_nobody(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    kept = Counted(tmp_path / "file")
    kept.recorder.note("r", [tensor("x", 1)], [])
    kept.recorder.close()
    assert (kept.recorded, kept.dropped) == (0, 1)


def test_a_fraction_is_kept_and_the_rest_is_not_called_dropped(tmp_path: Path) -> None:
    kept = Counted(tmp_path, fraction=0.25)
    for _ in range(100):
        kept.recorder.note("r", [tensor("x", 1)], [])
    kept.recorder.close()
    assert (kept.recorded, kept.dropped) == (25, 0)


@pytest.mark.parametrize("rows", [1, 7])
def test_a_request_of_several_predictions_counts_each(tmp_path: Path, rows: int) -> None:
    kept = Counted(tmp_path)
    kept.recorder.note("r", [Tensor("x", "FP32", np.zeros((rows, 3), np.float32))], [])
    kept.recorder.close()
    (found,) = files(tmp_path)
    assert len(found["time"]) == kept.recorded == rows
