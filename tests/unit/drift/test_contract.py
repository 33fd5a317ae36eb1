"""What a detection's and a training's outputs have to say, and the errors where they do not."""

from __future__ import annotations

from typing import Any

import pytest

from scanflow.drift.contract import is_right, parse_detection_outputs, parse_training_outputs, read_purpose
from scanflow.drift.slices import Slice
from scanflow.errors import InvalidError

CURRENT = {"name": "current", "n": 60, "champion_right": 30, "challenger_right": 45, "gained": 20}
TRAINING = {
    "version": 3,
    "champion_version": 1,
    "labels": "abc",
    "champion_accuracy": 0.5,
    "challenger_accuracy": 0.75,
    "slices": [CURRENT],
}


def test_a_detection_needs_only_to_say_whether_the_data_drifted() -> None:
    outputs = parse_detection_outputs({"drifted": 0})
    assert (outputs.drifted, outputs.n_picked, outputs.n_newdata, outputs.columns) == (False, 0, None, ())
    columns = [{"name": f"c{number}"} for number in range(12)]
    outputs = parse_detection_outputs(
        {"drifted": 1, "n_picked": 5, "n_evaluation": 2, "p_value": 0.01, "columns": columns}
    )
    assert (outputs.drifted, outputs.n_evaluation, outputs.p_value, len(outputs.columns)) == (True, 2, 0.01, 10)
    outputs = parse_detection_outputs({"drifted": 1, "same_drift": 1, "regimes": {"clean": 0.7, "window w": 0.3}})
    assert (outputs.same_drift, outputs.regimes) == (True, {"clean": 0.7, "window w": 0.3})


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({}, "No step wrote an output 'drifted'"),
        ({"drifted": "yes"}, "'drifted' is 'yes'"),
        ({"drifted": 1, "n_picked": -1}, "'n_picked' as -1"),
        ({"drifted": 1, "p_value": "low"}, "'p_value' as 'low'"),
        ({"drifted": 1, "columns": ["age"]}, "objects with a 'name'"),
        ({"drifted": 0, "regimes": ["clean"]}, "not shares by name"),
        ({"drifted": 0, "regimes": {"clean": "all"}}, "'clean' as 'all'"),
    ],
)
def test_what_is_wrong_with_a_detection_is_said_with_the_page_that_tells_more(
    outputs: dict[str, Any], message: str
) -> None:
    with pytest.raises(InvalidError, match=message):
        parse_detection_outputs(outputs)


def test_a_training_is_read_with_its_slices() -> None:
    outputs = parse_training_outputs(TRAINING | {"version": "3"})
    assert outputs is not None
    assert (outputs.version, outputs.champion_version, outputs.labels) == (3, 1, "abc")
    assert outputs.slices == (Slice(name="current", n=60, champion_right=30, challenger_right=45, gained=20),)


def test_a_training_of_a_first_model_compares_nothing() -> None:
    assert parse_training_outputs({"version": 1, "accuracy": 0.9}) is None


@pytest.mark.parametrize(
    ("outputs", "message"),
    [
        ({"slices": None}, "no output 'slices'"),
        ({"champion_version": None}, "no output 'champion_version'"),
        ({"slices": []}, "not a list of objects"),
        ({"slices": [CURRENT | {"n": None}]}, "needs name, n, champion_right"),
        ({"slices": [CURRENT | {"name": "clean"}]}, "Name one 'current'"),
        ({"slices": [CURRENT, CURRENT]}, "Name one 'current'"),
        ({"slices": [CURRENT | {"gained": 99}]}, "cannot have"),
        ({"challenger_accuracy": float("nan")}, "not a finite number"),
    ],
)
def test_what_is_wrong_with_a_training_is_said(outputs: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidError, match=message):
        parse_training_outputs(TRAINING | outputs)


def test_a_point_is_for_training_unless_it_says_otherwise() -> None:
    assert read_purpose({"id": "r:1"}) == "train"
    assert read_purpose({"id": "r:1", "purpose": "evaluate"}) == "evaluate"
    with pytest.raises(InvalidError, match="'r:1' has the purpose 'both'"):
        read_purpose({"id": "r:1", "purpose": "both"})


@pytest.mark.parametrize(
    ("guess", "label", "tolerance", "expected"),
    [
        ("dog", "dog", None, True),
        (3, 4, None, False),
        (3.0, 3.0, None, True),
        (21.8, 22, None, None),
        (21.8, "22", 0.5, True),
        (21.8, 25, 3, False),
        (21.8, "many", 3, False),
    ],
)
def test_an_amount_is_right_within_the_tolerance_and_of_unknown_truth_without_one(
    guess: Any, label: Any, tolerance: float | None, expected: bool | None
) -> None:
    assert is_right(guess, label, tolerance) is expected
