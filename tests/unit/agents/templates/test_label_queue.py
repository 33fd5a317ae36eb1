"""What people see of the points that they are to label."""

from __future__ import annotations

import base64
import json
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from scanflow.drift.samples import pack_samples
from scanflow.errors import InvalidError
from scanflow_agents.templates import bookmarks
from scanflow_agents.templates.label_queue import build_items, read_picked_points
from tests.unit.agents.templates.fakes import LoopHarness


def build_queue_items(
    harness: LoopHarness, folder: Path, points: list[dict[str, Any]], arrays: dict[str, Any] | None
) -> list[Any]:
    files = folder / "files"
    files.mkdir(exist_ok=True)
    points = [{"index": 7, "run": "before", "guess": 3, "score": 0.5, **point} for point in points]
    (files / "picked.json").write_text(json.dumps(points))
    if arrays is not None:
        np.savez(files / "picked.npz", **arrays)
    harness.tracker.log_run(
        "mnist", "data", tags={bookmarks.RUN_FIELD: "calm-otter-1"}, metrics={"n_picked": 2.0}, artifacts=files
    )
    tracked, picked_points = read_picked_points(harness.context("checker"), "calm-otter-1")
    return build_items(picked_points, run="calm-otter-1", tracked=tracked)


def test_a_row_is_seen_with_its_columns_names(harness: LoopHarness, tmp_path: Path) -> None:
    x = np.array([[1.5, np.nan], [2.5, 3.0]])
    points: list[dict[str, Any]] = [{"id": "a"}, {"id": "b", "purpose": "evaluate", "row": {"city": "Vic"}}]
    item, other = build_queue_items(harness, tmp_path, points, {"x": x, "columns": np.array(["latitude", "rooms"])})
    assert (item["row"], item["purpose"]) == ({"latitude": 1.5, "rooms": None}, "train")
    assert (other["row"], other["purpose"]) == ({"city": "Vic"}, "evaluate")
    assert "picture" not in item


def test_a_table_that_a_detection_packed_is_seen_as_it_was(harness: LoopHarness, tmp_path: Path) -> None:
    table = pd.DataFrame({"rooms": [3, 4], "price": [1.5, np.nan], "city": ["Vic", None], "new": [True, False]})
    item, other = build_queue_items(harness, tmp_path, [{"id": "a"}, {"id": "b"}], pack_samples("x", table))
    assert item["row"] == {"rooms": 3, "price": 1.5, "city": "Vic", "new": True}
    assert other["row"] == {"rooms": 4, "price": None, "city": None, "new": False}
    json.dumps([item, other], allow_nan=False)


def test_columns_without_names_are_numbered(harness: LoopHarness, tmp_path: Path) -> None:
    points: list[dict[str, Any]] = [{"id": "a"}, {"id": "b"}]
    item, _ = build_queue_items(harness, tmp_path, points, {"x": np.zeros((2, 2))})
    assert item["row"] == {"column 0": 0.0, "column 1": 0.0}


def test_a_row_is_cut_and_cleaned_to_what_the_queue_takes(harness: LoopHarness, tmp_path: Path) -> None:
    fields: dict[str, Any] = {"a": float("nan"), "b": "x" * 5000, "c": [1]} | {
        str(number): True for number in range(2000)
    }
    (item,) = build_queue_items(harness, tmp_path, [{"id": "a", "row": fields}], None)
    assert (item["row"]["a"], len(item["row"]["b"]), item["row"]["c"], item["row"]["0"]) == (None, 1000, "[1]", True)
    assert len(item["row"]) == 1000


def test_a_picture_is_seen_and_its_size_is_shown(harness: LoopHarness, tmp_path: Path) -> None:
    item, _ = build_queue_items(
        harness, tmp_path, [{"id": "a"}, {"id": "b"}], {"x": np.zeros((2, 28, 28), dtype=np.uint8)}
    )
    assert base64.b64decode(item["picture"])[1:4] == b"PNG"
    assert (item["data"]["shape"], "row" in item) == ([28, 28], False)


def test_a_point_that_is_not_in_the_file_is_requested_by_its_id_alone(harness: LoopHarness, tmp_path: Path) -> None:
    assert [sorted(item) for item in build_queue_items(harness, tmp_path, [{"id": "a"}], None)] == [
        ["data", "guess", "id", "purpose", "run", "score"]
    ]
    with pytest.raises(InvalidError, match="has the purpose 'both'"):
        build_queue_items(harness, tmp_path, [{"id": "a", "purpose": "both"}], None)
