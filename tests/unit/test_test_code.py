"""Tests reach no private name of other code, and assert a sentence of the product in few places."""

from __future__ import annotations

import ast

import pytest

from tests import private_names, sentences
from tests.grammar import CHECKOUT, parse_modules

TOLD = "The control plane is not running. Start it: scanflow up"


@pytest.fixture(scope="module")
def modules() -> dict[str, ast.Module]:
    return parse_modules([CHECKOUT / "tests"])


def test_no_test_reaches_a_private_name(modules: dict[str, ast.Module]) -> None:
    assert not private_names.find_in_modules(modules), (
        "Use a public function or a constructor's argument, or give the product the one that it lacks."
    )


def test_each_exception_is_still_reached(modules: dict[str, ast.Module]) -> None:
    keys = {
        key
        for path, module in modules.items()
        for finding in private_names.find_in_module(path, module)
        for key in private_names.list_keys(finding)
    }
    assert private_names.EXCEPTIONS.keys() <= keys


def test_every_way_to_a_private_name_is_noticed_and_nothing_else_is() -> None:
    text = """
import scanflow._first
from scanflow import _second
from scanflow._third import run
batcher._fourth = []
super()._fifth()
monkeypatch.setattr(modules, "_sixth", {})
monkeypatch.setattr(f"{MODULE}._seventh", {})
patch("scanflow.modules._eighth.run")
getattr(batcher, "_ninth")
run.self._tenth
self._own, cls._own, run.__dict__, run._replace(a=1), report._repr_mimebundle_(), os._exit(1)
monkeypatch.setattr(modules, "name", "_value")
from __future__ import annotations
for _ in range(3): print("_text", "a._text")
"""
    findings = private_names.find_in_modules({"tests/test_it.py": ast.parse(text)})
    names = "_first _second _third _fourth _fifth _sixth _seventh _eighth _ninth _tenth".split()
    assert [(finding.line, finding.name) for finding in findings] == list(enumerate(names, start=2))


def test_no_sentence_is_asserted_in_many_files(modules: dict[str, ast.Module]) -> None:
    assert not sentences.find_repeated(modules), (
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
    assert sentences.find_repeated({f"tests/test_{name}.py": ast.parse(text) for name in "abcd"}) == {}
