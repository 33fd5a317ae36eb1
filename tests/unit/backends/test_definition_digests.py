"""Functions that do something else than before."""

from __future__ import annotations

import functools
from typing import Any

import pytest

import scanflow as sf
from scanflow.backends.definition import digest_functions, list_changed_steps

CODE = (
    "def f(x=1, *, y='a'):\n    'Say.'\n    values = {'p', 'q'}\n    return [n + 1 for n in range(x)], x in {3, 4}, y"
)


def digest(code: str, decorate: Any = lambda function: function) -> dict[str, str]:
    namespace: dict[str, Any] = {"__name__": "app"}
    exec(code, namespace)
    step = sf.step(decorate(namespace["f"]))
    return digest_functions(sf.Workflow(name="w", nodes=[step.bind(), sf.Executor(name="script", mainfile="a.py")]))


@pytest.mark.parametrize(("before", "after"), [("Say.", "Else."), ("def f", "\n# here\ndef f"), ("n + 1", "(n+1)")])
def test_how_a_function_is_written_does_not_count(before: str, after: str) -> None:
    assert list_changed_steps(digest(CODE), digest(CODE.replace(before, after))) == []


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("n + 1", "n + 2"),
        ("n + 1", "n - 1"),
        ("x=1", "x=2"),
        ("x=1", "x=1.0"),
        ("'a'", "'b'"),
        ("range", "list"),
        ("{3", "{5"),
    ],
)
def test_what_a_function_does_counts(before: str, after: str) -> None:
    assert list_changed_steps(digest(CODE), digest(CODE.replace(before, after))) == ["f"]


def test_a_decorated_function_counts_and_a_script_has_no_digest() -> None:
    def decorate(function: Any) -> Any:
        @functools.wraps(function)
        def inner(*args: Any, **kwargs: Any) -> Any:
            return function(*args, **kwargs)

        return inner

    before = digest(CODE, decorate)
    assert list_changed_steps(before, digest(CODE.replace("n + 1", "n + 2"), decorate)) == ["f"]
    assert list(before) == ["f"]
    assert list_changed_steps(before, {}) == []
