"""What a workflow's steps get of what the agents hand over: recorded predictions and labelled points, as arrays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scanflow.drift.prediction_data import collect, load_labelled_points
from scanflow.errors import InvalidError, NotFoundError
from scanflow.knowledge.memory import MemoryKnowledge


@pytest.fixture
def tracker() -> MemoryKnowledge:
    return MemoryKnowledge()


def record_run(tracker: MemoryKnowledge, folder: Path, **arrays: Any) -> str:
    file = folder / "171-1-0.npz"
    np.savez(file, **{name.replace("_", ":", 2): value for name, value in arrays.items()})
    return tracker.log_run("mnist", "data", artifacts=file).run_id


def test_predictions_of_several_runs_are_one_batch_with_ids_of_their_own(
    tracker: MemoryKnowledge, tmp_path: Path
) -> None:
    first = record_run(tracker, tmp_path, input_x=np.zeros((2, 3)), output_y=np.ones(2), time=np.ones(2))
    second = record_run(tracker, tmp_path, input_x=np.ones((1, 3)))
    data = collect(tracker, [first, second, first])
    assert data.x.tolist() == [[0, 0, 0], [0, 0, 0], [1, 1, 1]]
    assert data.ids == [f"{first}:0", f"{first}:1", f"{second}:0"]


def test_predictions_that_do_not_fit_are_reported(tracker: MemoryKnowledge, tmp_path: Path) -> None:
    single = record_run(tracker, tmp_path, input_x=np.zeros((2, 3)))
    two = record_run(tracker, tmp_path, input_x=np.zeros((2, 3)), input_z=np.zeros(2))
    empty = tracker.log_run("mnist", "data").run_id
    for runs, name, error, message in [
        ([], None, InvalidError, "no predictions"),
        ([two], None, InvalidError, "2 inputs"),
        ([single], "y", InvalidError, "no input 'y'"),
        ([empty], None, NotFoundError, empty),
        (["nobody"], None, NotFoundError, "nobody"),
    ]:
        with pytest.raises(error, match=message):
            collect(tracker, runs, input_name=name)
    assert len(collect(tracker, [two], input_name="z").x) == 2


def test_what_does_not_fit_is_left_out_and_reported_and_the_others_keep_their_ids(
    tracker: MemoryKnowledge, tmp_path: Path
) -> None:
    odd = record_run(tracker, tmp_path, input_x=np.zeros((2, 4)))
    first = record_run(tracker, tmp_path, input_x=np.array([[1.0, 2.0, 0.0], [np.nan, 0.0, 0.0], [3.0, 4.0, np.inf]]))
    second = record_run(tracker, tmp_path, input_x=np.ones((2, 3)))
    two = record_run(tracker, tmp_path, input_x=np.zeros((2, 3)), input_z=np.zeros(2))
    empty = tracker.log_run("mnist", "data").run_id
    data = collect(tracker, [two, empty, "nobody", odd, first, second])
    assert data.ids == [f"{first}:0", f"{second}:0", f"{second}:1"]
    assert data.x.tolist() == [[1, 2, 0], [1, 1, 1], [1, 1, 1]]
    assert data.n_left_out == 3 + 2 + 2
    reasons = (two, empty, "nobody", f"{odd!r}: all 2, of the shape (4,)", f"{first!r}: 2 of 3")
    assert [words in line for words, line in zip(reasons, data.left_out, strict=True)] == [True] * 5


def test_forms_that_a_service_takes_are_made_alike_before_they_are_joined(
    tracker: MemoryKnowledge, tmp_path: Path
) -> None:
    def prepare(part: Any) -> Any:
        if part.dtype.kind not in "if":
            raise ValueError("it is text")
        return part.reshape(-1, 4)

    square = record_run(tracker, tmp_path, input_x=np.zeros((2, 2, 2)))
    flat = record_run(tracker, tmp_path, input_x=np.ones((1, 4), dtype=int))
    text = record_run(tracker, tmp_path, input_x=np.array(["a"]))
    data = collect(tracker, [square, flat, text], prepare=prepare)
    assert data.x.tolist() == [[0] * 4, [0] * 4, [1] * 4]
    assert "it is text" in data.left_out[0]


def test_where_nothing_can_be_looked_at_it_says_why_and_what_to_do(tracker: MemoryKnowledge, tmp_path: Path) -> None:
    bad = [record_run(tracker, tmp_path, input_x=np.full((1, 3), np.nan)) for _ in range(5)]
    with pytest.raises(InvalidError, match=r"None of the predictions in 5 files.*prepare=") as error:
        collect(tracker, bad)
    assert bad[0] in str(error.value)
    assert "and 2 more" in str(error.value)
    hollow = record_run(tracker, tmp_path, input_x=np.zeros((0, 3)))
    with pytest.raises(InvalidError, match="no predictions"):
        collect(tracker, [hollow])


def test_labels_find_their_points_in_the_files_of_several_detections(tracker: MemoryKnowledge, tmp_path: Path) -> None:
    picked = tmp_path / "picked.npz"
    points: list[dict[str, Any]] = []
    for base in (10, 20):
        np.savez(picked, x=np.arange(base, base + 3))
        tracked = tracker.log_run("mnist", "data", artifacts=picked).run_id
        data = {"tracked": tracked, "file": "picked.npz"}
        points += [{"id": f"{base}:{at}", "data": {**data, "at": at}, "label": base + at} for at in (2, 0)]
    x, y = load_labelled_points(tracker, labels(tracker, tmp_path, points))
    assert sorted(x.tolist()) == [10, 12, 20, 22]
    assert x.tolist() == y.tolist()
    points[0]["data"] = {**points[0]["data"], "at": 3}
    with pytest.raises(InvalidError, match="has 3 points"):
        load_labelled_points(tracker, labels(tracker, tmp_path, points))
    points[0]["data"] = {}
    with pytest.raises(InvalidError, match="has no location"):
        load_labelled_points(tracker, labels(tracker, tmp_path, points))
    with pytest.raises(InvalidError, match="no labelled points"):
        load_labelled_points(tracker, labels(tracker, tmp_path, []))


@pytest.mark.parametrize(
    ("value", "array"),
    [
        ([3, 7], [3, 7]),
        (["cat", "dog"], ["cat", "dog"]),
        ([3, "thre"], ["3", "thre"]),
        ([1, True], ["1", "true"]),
        ([3, [4, 5]], ["3", "[4, 5]"]),
        ([None, {"a": 1}], ["null", '{"a": 1}']),
        ([3, 10**30], ["3", str(10**30)]),
    ],
)
def test_labels_of_several_kinds_are_an_array_that_a_file_holds(
    tracker: MemoryKnowledge, tmp_path: Path, value: list[Any], array: list[Any]
) -> None:
    np.savez(tmp_path / "picked.npz", x=np.arange(2))
    data = {"tracked": tracker.log_run("mnist", "data", artifacts=tmp_path / "picked.npz").run_id}
    points = [{"id": str(at), "data": {**data, "at": at}, "label": label} for at, label in enumerate(value)]
    _, y = load_labelled_points(tracker, labels(tracker, tmp_path, points))
    np.savez(tmp_path / "kept.npz", y=y)
    with np.load(tmp_path / "kept.npz", allow_pickle=False) as held:
        assert held["y"].tolist() == array


def labels(tracker: MemoryKnowledge, folder: Path, points: list[dict[str, Any]]) -> str:
    file = folder / "labels.json"
    file.write_text(json.dumps(points))
    return tracker.log_run("mnist", "data", artifacts=file).run_id


def test_a_table_comes_back_by_column_whole_or_one_by_one_with_text_and_missing_values(
    tracker: MemoryKnowledge, tmp_path: Path
) -> None:
    text = {"input_city": np.frombuffer(b"OsloRome", np.uint8), "input_city_ends": np.array([4, 4, 8])}
    apart = record_run(tracker, tmp_path, input_age=np.array([1.0, np.nan, 3.0]), **text)
    data = collect(tracker, [apart], columns=["age", "city"]).x
    assert data["city"].tolist() == ["Oslo", "", "Rome"]
    assert data["age"].isna().tolist() == [False, True, False]

    whole = record_run(tracker, tmp_path, input_rows=np.array([[5.0, 6.0]]))
    single = record_run(tracker, tmp_path, input_age=np.array([[1]]), input_wage=np.array([[2]]))
    both = collect(tracker, [whole, single], columns=["age", "wage"])
    assert both.x.to_numpy().tolist() == [[5.0, 6.0], [1.0, 2.0]]
    assert both.ids == [f"{whole}:0", f"{single}:0"]
    with pytest.raises(InvalidError, match="no column 'wage'"):
        collect(tracker, [apart], columns=["age", "wage"])
