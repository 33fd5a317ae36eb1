"""Which points are labelled, what for, and by which of them models are evaluated: never by what one has learnt from."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import pytest

from scanflow.drift.evaluation import (
    check_target,
    compare_answers,
    compare_models,
    convert_labels,
    split_by_window,
    split_points,
)
from scanflow.drift.promotion import for_evaluation
from scanflow.drift.samples import (
    compute_digests,
    concatenate_samples,
    pack_samples,
    read_row,
    take_rows,
    unpack_samples,
)
from scanflow.drift.selection import CriticalPoint, ScoredSamples, select
from scanflow.drift.training import LabelledPoints
from scanflow.drift.training_data import TrainingData
from scanflow.errors import InvalidError
from scanflow.knowledge.memory import MemoryKnowledge

SHARE = 0.3


def table(count: int, *, seed: int = 0) -> pd.DataFrame:
    draw = np.random.default_rng(seed)
    return pd.DataFrame(
        {
            "age": draw.integers(18, 90, count),
            "wage": draw.normal(size=count),
            "city": draw.choice(np.array(["Rome", "Oslo", None], dtype=object), count),
        }
    )


def select_samples(x: Any, *, most: int = 100, seed: int = 0, weak: Any = None) -> list[CriticalPoint]:
    n = len(x)
    strange = np.arange(n, dtype=float) if weak is None else weak
    samples = ScoredSamples(
        ids=[f"r:{at}" for at in range(n)],
        runs=["r"] * n,
        guesses=[0] * n,
        strangeness=strange,
        uncertainty=np.ones(n),
        outliers=np.arange(n),
        features=np.random.default_rng(seed).normal(size=(n, 3)),
    )
    return select(x, samples, most=most, evaluation_share=SHARE, generator=np.random.default_rng(seed))


def test_the_prediction_of_a_point_may_be_an_amount() -> None:
    point = CriticalPoint(id="r:0", run="r", index=0, guess=21.5, score=0.5)
    assert CriticalPoint.model_validate_json(point.model_dump_json()).guess == 21.5
    assert CriticalPoint.model_validate_json(point.model_dump_json().replace("21.5", "21")).guess == 21


def test_a_share_of_the_labels_is_for_evaluation_and_by_digest() -> None:
    x = table(1000)
    points = select_samples(x)
    own = compute_digests(x)
    assert len(points) == 100
    assert sum(point.purpose == "evaluate" for point in points) == 30
    for point in points:
        assert for_evaluation(own[point.index].encode(), share=SHARE) == (point.purpose == "evaluate")
        assert point.row == read_row(x, point.index)


def test_points_for_evaluation_are_drawn_from_all_of_the_window_and_picks_are_not() -> None:
    x = np.random.default_rng(0).normal(size=(2000, 4))
    strange = np.arange(2000.0)
    points = [point for seed in range(20) for point in select_samples(x, seed=seed, weak=strange)]
    drawn = [point.index for point in points if point.purpose == "evaluate"]
    picked = [point.index for point in points if point.purpose == "train"]
    assert abs(np.mean(drawn) - 1000) < 4 * 2000 / np.sqrt(12 * len(drawn))
    assert np.mean(picked) > 1150


def test_whoever_labels_the_best_scores_first_labels_a_random_part_of_those_for_evaluation() -> None:
    first = sorted(select_samples(table(2000)), key=lambda point: -point.score)[:50]
    assert 10 <= sum(point.purpose == "evaluate" for point in first) <= 20


def test_alike_points_are_labelled_once() -> None:
    x = np.tile(np.random.default_rng(0).normal(size=(40, 4)), (10, 1))
    points = select_samples(x, most=400)
    assert len(points) == len({compute_digests(x)[point.index] for point in points}) <= 40


def test_a_digest_is_the_samples_whatever_its_numbers_type() -> None:
    pictures = np.random.default_rng(0).integers(0, 256, (5, 4, 4))
    assert compute_digests(pictures.astype(np.uint8)) == compute_digests(pictures.astype(np.float64))
    x = table(30)
    assert compute_digests(x) == compute_digests(x.astype({"age": np.float32, "wage": np.float32}))
    assert len(set(compute_digests(x))) == 30
    assert compute_digests(np.array([[0.0]])) == compute_digests(np.array([[-0.0]]))


def test_a_table_comes_back_from_a_file_as_it_was() -> None:
    x = table(20)
    x.loc[3, "wage"] = np.nan
    back = unpack_samples("x", pack_samples("x", x))
    assert list(back.columns) == list(x.columns)
    assert compute_digests(back) == compute_digests(x)
    assert compute_digests(take_rows(back, [3, 1])) == [compute_digests(x)[3], compute_digests(x)[1]]
    assert read_row(x, 3) is not None
    assert (read_row(x, 3) or {})["wage"] is None
    with pytest.raises(InvalidError, match="no array 'y'"):
        unpack_samples("y", pack_samples("x", x))


def test_what_is_for_evaluation_in_one_window_is_trained_on_in_none_also_when_it_comes_again() -> None:
    train, evaluate = split_points(
        ["a", "b", "c", "a", "d"],
        ["train", "evaluate", "train", "evaluate", "evaluate"],
        share=0.0,
        trained={"d"},
        clean={"c"},
    )
    assert train.tolist() == []  # a is for evaluation in another window, c is a clean point
    assert evaluate.tolist() == [1]  # a may have been learnt from, and d was


def test_over_many_windows_nothing_learnt_from_evaluates_and_the_reverse() -> None:
    base = table(300, seed=1)
    data = TrainingData.split(base, np.zeros(300, int), evaluation_share=SHARE)
    trained, clean = set(compute_digests(data.x_train)), set(compute_digests(data.x_clean))
    pool = concatenate_samples([base, table(400, seed=2)])
    seen: list[str] = []
    purposes: list[Any] = []
    ever_learnt: set[str] = set(trained)
    for window in range(6):
        draw = np.random.default_rng(window)
        x = take_rows(pool, draw.choice(len(pool), 300))
        points = select_samples(x, seed=window, most=80)
        seen += [compute_digests(x)[point.index] for point in points]
        purposes += [point.purpose for point in points]
        train, evaluate = split_points(seen, purposes, share=SHARE, trained=trained, clean=clean)
        judged = {seen[at] for at in evaluate} | clean
        ever_learnt |= {seen[at] for at in train}
        assert not judged & ever_learnt
        assert len(evaluate) > 10 * (window + 1)


def test_the_current_slice_is_of_the_windows_that_the_champion_does_not_know() -> None:
    windows = ["w1", "w2", "w1", "w3", "w3"]
    split = split_by_window(windows, {"w1"}, "w3")
    assert {name: at.tolist() for name, at in split.items()} == {"current": [1, 3, 4], "window w1": [0, 2]}
    split = split_by_window(windows, {"w1", "w2", "w3"}, "w3")
    assert {name: at.tolist() for name, at in split.items()} == {
        "current": [3, 4],
        "window w1": [0, 2],
        "window w2": [1],
    }


class Says:
    def __init__(self, *answers: Any) -> None:
        self.answers = np.array(answers)

    def predict(self, _: Any) -> Any:
        return self.answers


def test_both_models_answer_the_same_points() -> None:
    y = np.array([1, 2, 3, 4])
    counts = compare_models("current", y, y, champion=Says(1, 2, 0, 0), challenger=Says(0, 2, 3, 4), tolerance=None)
    assert (counts.n, counts.champion_right, counts.challenger_right, counts.gained, counts.lost) == (4, 2, 3, 2, 1)
    assert compare_models("current", y, y[:0], champion=Says(), challenger=Says(), tolerance=None).n == 0


def test_an_answer_is_right_as_its_labels_are_written_or_within_the_tolerance() -> None:
    assert compare_answers(np.array(["a", "b"]), np.array(["a", "c"]), None).tolist() == [True, False]
    assert compare_answers(np.array([1.0, 2.0]), np.array([1, 3]), None).tolist() == [True, False]
    assert compare_answers(np.array([1.0, 2.0]), np.array([1.4, 3.0]), 0.5).tolist() == [True, False]
    with pytest.raises(InvalidError, match="tolerance="):
        check_target(np.array([0.5, 1.0]), None)
    check_target(np.array([0.5, 1.0]), 0.1)
    check_target(np.array([0.0, 1.0]), None)


def test_labels_are_taken_as_the_training_data_has_them_and_others_are_reported() -> None:
    y, wrong = convert_labels([7, "7", 7.0, "thre", 77, 0], np.array([0, 7], dtype=np.uint8), None)
    assert y.dtype == np.uint8
    assert wrong == [3, 4]
    assert y[[0, 1, 2, 5]].tolist() == [7, 7, 7, 0]
    y, wrong = convert_labels(["yes", "no", 1], np.array(["no", "yes"]), None)
    assert (y[:2].tolist(), wrong) == (["yes", "no"], [2])
    y, wrong = convert_labels([True, "false"], np.array([0, 1]), None)
    assert (y.tolist(), wrong) == ([1, 0], [])
    y, wrong = convert_labels([1.5, "2.5", "x"], np.array([0.1]), 0.5)
    assert (y[:2].tolist(), wrong) == ([1.5, 2.5], [2])


def test_training_data_is_kept_and_found_by_model() -> None:
    tracker, x = MemoryKnowledge(), table(200)
    data = TrainingData.split(x, ["a"] * 200, evaluation_share=SHARE)
    assert 30 < len(data.y_clean) < 90
    assert not set(compute_digests(data.x_clean)) & set(compute_digests(data.x_train))
    data.save(tracker, "shop", "team", "wages", version=1)
    back = TrainingData.load(tracker, "shop", "team", "wages")
    assert compute_digests(back.x_train) == compute_digests(data.x_train) == compute_digests(back.x_reference)
    assert back.y_clean.tolist() == data.y_clean.tolist()
    with pytest.raises(Exception, match="Train a first model"):
        TrainingData.load(tracker, "shop", "team", "other")
    with pytest.raises(InvalidError, match="a label for each"):
        TrainingData.split(x, [1, 2], evaluation_share=SHARE)


def test_a_point_that_comes_in_several_windows_counts_once_in_a_slice() -> None:
    x = np.array([[1.0], [2.0], [1.0], [3.0]])
    clean = TrainingData.split(np.arange(40.0).reshape(-1, 1) + 10, np.zeros(40, int), evaluation_share=SHARE)
    points = [
        {"id": f"{window}:{at}", "run": window, "label": 0, "purpose": "evaluate"}
        for at, window in enumerate(["w1", "w1", "w2", "w2"])
    ]
    labelled_points = LabelledPoints.build(x, points, set(), clean, SHARE, None)
    assert {
        name: part.ravel().tolist()
        for name, (part, _) in labelled_points.group_by_slice(set(), "w2").items()
        if name != "clean"
    } == {"current": [1.0, 2.0, 3.0]}
    by_window = labelled_points.group_by_slice({"w1"}, "w2")
    assert [by_window[name][0].ravel().tolist() for name in ("current", "window w1")] == [[1.0, 3.0], [1.0, 2.0]]
