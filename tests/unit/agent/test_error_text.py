"""Errors as text: with their cause, and never cut before it."""

from __future__ import annotations

from scanflow.agent.error_text import format_error, shorten


def make_error(text: str, cause: BaseException) -> BaseException:
    error = RuntimeError(text)
    error.__cause__ = cause
    return error


def test_an_errors_cause_is_reported_once() -> None:
    assert (
        format_error(make_error("no data", OSError("disk full")))
        == "RuntimeError: no data, caused by OSError: disk full"
    )
    assert format_error(make_error("no data: disk full", OSError("disk full"))) == "RuntimeError: no data: disk full"
    assert format_error(make_error("", KeyError())) == "RuntimeError, caused by KeyError"
    error = RuntimeError("one")  # its own cause
    error.__cause__ = make_error("two", error)
    assert format_error(error) == "RuntimeError: one, caused by RuntimeError: two"


def test_a_long_text_keeps_its_end() -> None:
    text = "Could not: " + "x" * 500 + ": must be an int. Got 2.0"
    assert len(shorten(text, 100)) <= 100
    assert shorten(text, 100).endswith("must be an int. Got 2.0")
    assert shorten(text, 1000) == text
