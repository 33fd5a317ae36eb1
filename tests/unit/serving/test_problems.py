"""Problem documents."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scanflow.http.problems import PROBLEM_JSON
from scanflow_serving.inference_problems import ProblemError, invalid, make_not_found


def document(problem: ProblemError) -> dict[str, Any]:
    response = problem.build_response()
    assert response.content_type == PROBLEM_JSON
    assert isinstance(response.body, bytes)
    read: dict[str, Any] = json.loads(response.body)
    return read


def test_a_problem_is_a_document_of_the_standard() -> None:
    assert document(ProblemError(400, "wrong", extra={"where": "there"})) == {
        "type": "about:blank",
        "title": "Bad Request",
        "status": 400,
        "detail": "wrong",
        "error": "wrong",
        "where": "there",
    }


@pytest.mark.parametrize(("seconds", "header"), [(0.0, "1"), (0.2, "1"), (1.2, "2"), (30.0, "30")])
def test_the_time_to_come_again_is_in_whole_seconds(seconds: float, header: str) -> None:
    assert ProblemError(429, "full", retry_after_s=seconds).build_response().headers == (("retry-after", header),)


@given(st.text(), st.integers(400, 599))
def test_any_text_is_a_document(words: str, status: int) -> None:
    read = document(ProblemError(status, words, extra={"frames": [words]}))
    assert read["status"] == status
    assert read["title"]


def test_bytes_that_are_no_text_are_a_document_too() -> None:
    assert document(ProblemError(500, "caf\udce9"))["detail"] == "caf\udce9"


def test_long_texts_are_cut() -> None:
    assert len(document(invalid("x" * 100_000))["detail"]) == 2000
    assert len(document(make_not_found("model", "x" * 100_000, ["a"]))["detail"]) < 200


def test_an_unknown_name_gets_the_nearest_suggested() -> None:
    assert document(make_not_found("model", "mnits", ["mnist", "iris"]))["detail"] == (
        "There is no model 'mnits' here. Did you mean 'mnist'?"
    )
