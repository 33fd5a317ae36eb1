"""What a workflow's steps get of what the agents hand over: recorded predictions and labelled points, as arrays."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from scanflow.errors import InvalidError, NotFoundError
from scanflow.knowledge.memory import MemoryKnowledge
from scanflow_agents.templates.collected import collect, labelled


@pytest.fixture
def tracker() -> MemoryKnowledge:
    return MemoryKnowledge()


def recorded(tracker: MemoryKnowledge, folder: Path, **arrays: Any) -> str:
    file = folder / "171-1-0.npz"
    np.savez(file, **{name.replace("_", ":"): value for name, value in arrays.items()})
    return tracker.log_run("mnist", "data", artifacts=file).run_id


def test_predictions_of_several_runs_are_one_batch_with_ids_of_their_own(
    tracker: MemoryKnowledge, tmp_path: Path
) -> None:
    first = recorded(tracker, tmp_path, input_x=np.zeros((2, 3)), output_y=np.ones(2), time=np.ones(2))
    second = recorded(tracker, tmp_path, input_x=np.ones((1, 3)))
    found = collect(tracker, [first, second, first])
    assert found.x.tolist() == [[0, 0, 0], [0, 0, 0], [1, 1, 1]]
    assert found.ids == [f"{first}:0", f"{first}:1", f"{second}:0"]


def test_predictions_that_do_not_fit_are_told(tracker: MemoryKnowledge, tmp_path: Path) -> None:
    one = recorded(tracker, tmp_path, input_x=np.zeros((2, 3)))
    wide = recorded(tracker, tmp_path, input_x=np.zeros((2, 4)))
    two = recorded(tracker, tmp_path, input_x=np.zeros((2, 3)), input_z=np.zeros(2))
    empty = tracker.log_run("mnist", "data").run_id
    for runs, name, error, said in [
        ([], None, InvalidError, "no predictions"),
        ([one, wide], None, InvalidError, "the shape"),
        ([two], None, InvalidError, "2 inputs"),
        ([one], "y", InvalidError, "no input 'y'"),
        ([empty], None, NotFoundError, empty),
        (["nobody"], None, NotFoundError, "nobody"),
    ]:
        with pytest.raises(error, match=said):
            collect(tracker, runs, input_name=name)
    assert len(collect(tracker, [two], input_name="z").x) == 2


def test_labels_find_their_points_in_the_files_of_several_detections(tracker: MemoryKnowledge, tmp_path: Path) -> None:
    picked = tmp_path / "picked.npz"
    points: list[dict[str, Any]] = []
    for base in (10, 20):
        np.savez(picked, x=np.arange(base, base + 3))
        tracked = tracker.log_run("mnist", "data", artifacts=picked).run_id
        data = {"tracked": tracked, "file": "picked.npz"}
        points += [{"id": f"{base}:{at}", "data": {**data, "at": at}, "label": base + at} for at in (2, 0)]
    x, y = labelled(tracker, labels(tracker, tmp_path, points))
    assert sorted(x.tolist()) == [10, 12, 20, 22]
    assert x.tolist() == y.tolist()
    points[0]["data"] = {**points[0]["data"], "at": 3}
    with pytest.raises(InvalidError, match="has 3 points"):
        labelled(tracker, labels(tracker, tmp_path, points))
    points[0]["data"] = {}
    with pytest.raises(InvalidError, match="does not say where"):
        labelled(tracker, labels(tracker, tmp_path, points))
    with pytest.raises(InvalidError, match="no labelled points"):
        labelled(tracker, labels(tracker, tmp_path, []))


def labels(tracker: MemoryKnowledge, folder: Path, points: list[dict[str, Any]]) -> str:
    file = folder / "labels.json"
    file.write_text(json.dumps(points))
    return tracker.log_run("mnist", "data", artifacts=file).run_id
