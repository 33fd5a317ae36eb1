"""What is shown of outputs and files, and what two runs differ in."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from scanflow.app.parameter_texts import parse_parameter_lines
from scanflow.backends.run_records import TaskRecord, TaskState
from scanflow.errors import InvalidError
from scanflow.names import StepName
from scanflow.reports.output_views import MAX_COLUMNS, MAX_LENGTH, OutputView, build_file_view, build_output_view
from scanflow.reports.run_differences import ValueDifference, list_differences, pair_tasks
from scanflow.text.times import round_up_now


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (0.5, OutputView("x", line="0.5")),
        (None, OutputView("x", line="null")),
        ("a word", OutputView("x", line="a word")),
        ("two\nlines\x1b[31m", OutputView("x", text="two\nlines")),
        ("é" * (MAX_LENGTH + 1), OutputView("x", text="é" * MAX_LENGTH, note="the beginning")),
        ([1, 2], OutputView("x", line="[1, 2]")),
        ([], OutputView("x", line="[]")),
        ([{}], OutputView("x", line="[{}]")),
        ({"a": [1] * 50}, None),
        ([{"a": 1}, {"b": "é"}], OutputView("x", columns=["a", "b"], rows=[["1", None], [None, "é"]])),
        ([{"a": 1}, {"a": [2]}], OutputView("x", line='[{"a": 1}, {"a": [2]}]')),
        ([{"a": 1}] * 11, OutputView("x", columns=["a"], rows=[["1"]] * 10, note="10 of 11 rows")),
    ],
)
def test_an_output_is_shown_by_what_it_is(value: Any, shown: OutputView | None) -> None:
    view = build_output_view("x", value)
    if shown is None:
        assert view.text.startswith('{\n  "a": [')
    else:
        assert view == shown


class Numbers(list[float]):
    """Counts how many of it were written."""

    written = 0

    def __iter__(self) -> Iterator[float]:
        for number in super().__iter__():
            self.written += 1
            yield number


def test_of_a_large_output_no_more_is_written_than_is_shown() -> None:
    numbers = Numbers([0.5] * 100_000)
    view = build_output_view("x", numbers)
    assert (view.text[:11], len(view.text), view.note) == ("[\n  0.5,\n  ", MAX_LENGTH, "the beginning")
    assert numbers.written < MAX_LENGTH


def test_a_wide_table_shows_its_first_columns() -> None:
    view = build_output_view("x", [{str(number): number for number in range(40)}])
    assert (len(view.columns), len(view.rows[0]), view.note) == (MAX_COLUMNS, MAX_COLUMNS, "12 of 40 columns")


@pytest.mark.parametrize(
    ("name", "content", "shown"),
    [
        ("a.csv", 'n,s\na,"1,5"\n', OutputView("a.csv", columns=["n", "s"], rows=[["a", "1,5"]])),
        ("a.TSV", "n\ts\na\t1\n", OutputView("a.TSV", columns=["n", "s"], rows=[["a", "1"]])),
        ("a.csv", "", OutputView("a.csv", columns=[], rows=[])),
        ("a.csv", "x" * 200_000, OutputView("a.csv", text="x" * MAX_LENGTH, note="the beginning")),
        ("notes.md", "# one", OutputView("notes.md", text="# one")),
        ("model.pkl", "x", None),
        ("page.html", "<b>", None),
        (".csv", "x", None),
    ],
)
def test_a_file_is_shown_by_its_name(name: str, content: str, shown: OutputView | None) -> None:
    assert build_file_view(name, content, is_whole=True) == shown


def test_the_first_rows_of_a_longer_file_are_said_to_be_that() -> None:
    rows = "n\n" + "".join(f"{number}\n" for number in range(11))
    notes = [build_file_view("a.csv", text, is_whole=whole) for text, whole in ((rows, True), ("n\n1\n", False))]
    assert [view.note for view in notes if view is not None] == ["the first rows"] * 2


def test_differences_are_those_of_either_side() -> None:
    first, second = {"a": "1", "b": "2", "c": "3"}, {"a": "1", "b": "x", "d": "4"}
    assert list_differences(first, second) == [
        ValueDifference("b", "2", "x"),
        ValueDifference("c", "3", None),
        ValueDifference("d", None, "4"),
    ]
    assert list_differences(first, first) == []


def make_task(name: str, state: TaskState) -> TaskRecord:
    return TaskRecord(task=StepName(name), step=name, state=state)


def test_tasks_that_ended_otherwise_come_first() -> None:
    first = [make_task("load", "succeeded"), make_task("fit", "failed")]
    second = [make_task("load", "succeeded"), make_task("fit", "succeeded"), make_task("score", "succeeded")]
    assert [pair.name for pair in pair_tasks(first, second)] == ["fit", "score", "load"]


def test_parameters_are_a_line_each() -> None:
    assert parse_parameter_lines(" a = 1 \n\nb=x=y\nc=") == {"a": "1", "b": "x=y", "c": ""}
    for line in ("a", "=1", "  = "):
        with pytest.raises(InvalidError, match="is not a parameter"):
            parse_parameter_lines(line)


@pytest.mark.parametrize("length", [0.0, 5.0, 100.0, 5_000.0, 1e6])
def test_a_time_until_which_is_drawn_stays_for_a_while(length: float) -> None:
    began = 1_800_000_000.3
    shown = {round_up_now(began + length * (1 + share / 1000), began) for share in range(0, 1000, 10)}
    assert min(shown) >= began + length
    assert max(shown) <= began + length * 2 + max(1.0, length / 32)
    assert len(shown) <= 1 + max(length, 66)
    if length >= 100:
        assert len(shown) <= 66, "at most 64 times while the length doubles"
