"""Tests use what the product offers: no private name of other code."""

from __future__ import annotations

import ast

import pytest

from tests import private_names
from tests.grammar import parse_modules


@pytest.fixture(scope="module")
def modules() -> dict[str, ast.Module]:
    return parse_modules([private_names.TESTS])


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
self._own, cls._own, run.__dict__, run._replace(a=1), report._repr_html_(), os._exit(1)
monkeypatch.setattr(modules, "name", "_value")
from __future__ import annotations
for _ in range(3): print("_text", "a._text")
"""
    findings = private_names.find_in_modules({"tests/test_it.py": ast.parse(text)})
    names = "_first _second _third _fourth _fifth _sixth _seventh _eighth _ninth _tenth".split()
    assert [(finding.line, finding.name) for finding in findings] == list(enumerate(names, start=2))
