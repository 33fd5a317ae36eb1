"""Sentences of the product are asserted word for word in few places, so that rewording one changes few tests."""

from __future__ import annotations

import ast

import pytest

from tests import sentences
from tests.grammar import parse_modules

TOLD = "The control plane is not running. Start it: scanflow up"


def test_no_sentence_is_asserted_in_many_files() -> None:
    assert not sentences.find_repeated(parse_modules([sentences.TESTS])), (
        "Assert it where it is made; elsewhere the error's type, its status, or the names that the sentence has."
    )


@pytest.mark.parametrize(
    "text",
    [
        f"assert text == {TOLD!r}",
        "assert f'{name}: the control plane is not running' in text",
        "with pytest.raises(UsageError, match=r'control plane is not running\\.'): start()",
    ],
)
def test_each_form_of_an_assertion_is_counted_once_a_file(text: str) -> None:
    module = ast.parse(text)
    files = {"tests/test_a.py": module, "tests/test_b.py": module}
    assert sentences.find_repeated(files) == {}
    assert "control plane is not running" in sentences.find_repeated({**files, "tests/test_c.py": module})


@pytest.mark.parametrize("text", [f"print({TOLD!r})", "assert state == 'not running'", "assert x == 'a b c d e f g'"])
def test_what_is_not_asserted_or_is_no_sentence_may_be_repeated(text: str) -> None:
    modules = {f"tests/test_{name}.py": ast.parse(text) for name in "abcd"}
    assert sentences.find_repeated(modules) == {}
