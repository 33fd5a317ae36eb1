"""The command line of a script, read by argparse."""

from __future__ import annotations

import argparse

import pytest
from hypothesis import assume, given
from hypothesis import strategies as some

from scanflow.backends.step_process import iterate_options


def read_back(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser(allow_abbrev=False)
    for option in ("--name", "--other"):
        parser.add_argument(option)
    parser.add_argument("--fast", "-f", action="store_true")
    return parser.parse_args(words)


@pytest.mark.parametrize("value", ["--fast", "-f", "-", "-1e-5", "--other=1", "-5", "-.5", "a --fast", "=", ""])
def test_a_value_arrives_as_one_whatever_it_begins_with(value: str) -> None:
    parsed = read_back(*iterate_options({"name": value, "other": "x"}, who="Executor 'a'"))
    assert vars(parsed) == {"name": value, "other": "x", "fast": False}


@given(some.text(alphabet=some.characters(exclude_categories=["Cs"], exclude_characters="\0")))
def test_every_text_arrives_as_it_was_given(value: str) -> None:
    assume(value != "--")  # which argparse drops from ``--name=--`` before Python 3.13
    assert read_back(*iterate_options({"name": value}, who="Executor 'a'")).name == value


def test_other_values_are_strings_of_their_own_as_they_always_were() -> None:
    words = iterate_options({"lr": -0.5, "n": 3, "to": "a b", "none": None}, who="Executor 'a'")
    assert list(words) == ["--lr", "-0.5", "--n", "3", "--to", "a b"]
