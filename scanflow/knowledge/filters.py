"""The filter language of run searches: a subset of MLflow's with one meaning everywhere.

Clauses joined by ``and``. A clause is ``tags.KEY``, ``params.KEY`` or ``metrics.KEY``, a comparison, and a value::

    tags.stage = 'train' and params.`learning rate` != "0.1" and metrics.accuracy >= 0.95

Tags and parameters are text in single or double quotes, compared with ``=`` and ``!=``; metrics are numbers, compared
with ``=``, ``!=``, ``<``, ``<=``, ``>`` and ``>=``. A key that is not plain is written in backquotes. A run without
the key matches no clause on it, not even ``!=``. Everything else MLflow has (``or``, ``like``, ``attributes``) is
refused.
"""

from __future__ import annotations

import math
import operator
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from scanflow.errors import UnsupportedError

_EXAMPLE = "tags.stage = 'train' and metrics.accuracy > 0.9"
_SUBJECT = re.compile(
    r"\s*(?P<kind>tags?|params?|parameters?|metrics?)\.(?:`(?P<quoted>[^`]+)`|(?P<plain>[A-Za-z_][\w./:\-]*))\s*"
)
_COMPARISON = re.compile(r"(?P<op>!=|<=|>=|=|<|>)\s*")
_TEXT = re.compile(r"'(?P<single>[^']*)'|\"(?P<double>[^\"]*)\"")
_NUMBER = re.compile(r"[+-]?(?:\d+\.?\d*|\.\d+)(?:[eE][+-]?\d+)?(?![\w.])")
_AND = re.compile(r"\s+and(?=\s)", re.IGNORECASE)
_OPERATORS: Mapping[str, Callable[[Any, Any], bool]] = {
    "=": operator.eq,
    "!=": operator.ne,
    "<": operator.lt,
    "<=": operator.le,
    ">": operator.gt,
    ">=": operator.ge,
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Clause:
    kind: Literal["tags", "params", "metrics"]
    key: str
    comparison: str
    value: str | float

    def holds(self, values: Mapping[str, str] | Mapping[str, float]) -> bool:
        return self.key in values and _OPERATORS[self.comparison](values[self.key], self.value)


def parse_filter(text: str) -> tuple[Clause, ...]:
    clauses: list[Clause] = []
    at = 0
    while text[at:].strip():
        if clauses:
            joint = _AND.match(text, at)
            if joint is None:
                raise _build_error(text, at, "clauses are joined by 'and'")
            at = joint.end()
        clause, at = _parse_clause(text, at)
        clauses.append(clause)
    return tuple(clauses)


def matches(
    clauses: tuple[Clause, ...], *, tags: Mapping[str, str], params: Mapping[str, str], metrics: Mapping[str, float]
) -> bool:
    values: dict[str, Mapping[str, str] | Mapping[str, float]] = {"tags": tags, "params": params, "metrics": metrics}
    return all(clause.holds(values[clause.kind]) for clause in clauses)


def to_mlflow(clauses: tuple[Clause, ...]) -> str:
    """Format the clauses for MLflow, without those that its parser cannot carry, such as quotes in a text.

    Omitting a clause only widens the search: the caller checks each run with :func:`matches`.
    """
    return " and ".join(written for clause in clauses if (written := _format_clause(clause)))


def _format_clause(clause: Clause) -> str:
    subject = f"{clause.kind}.`{clause.key}` {clause.comparison}"
    if not isinstance(clause.value, str):
        return f"{subject} {clause.value!r}"
    return f"{subject} '{clause.value}'" if re.fullmatch(r"[\w .,:;/@+=()\-]*", clause.value) else ""


def _parse_clause(text: str, at: int) -> tuple[Clause, int]:
    subject = _SUBJECT.match(text, at)
    if subject is None:
        raise _build_error(text, at, "a clause begins with tags.KEY, params.KEY or metrics.KEY")
    comparison = _COMPARISON.match(text, subject.end())
    if comparison is None:
        raise _build_error(text, subject.end(), "a comparison is one of = != < <= > >=")
    kind = _parse_kind(subject["kind"])
    key = subject["quoted"] or subject["plain"]
    op, start = comparison["op"], comparison.end()
    if kind == "metrics":
        number = _NUMBER.match(text, start)
        if number is None or not math.isfinite(float(number[0])):
            raise _build_error(text, start, "a metric is compared with a finite number")
        return Clause(kind=kind, key=key, comparison=op, value=float(number[0])), number.end()
    if op not in {"=", "!="}:
        raise _build_error(text, subject.end(), f"{kind} are text, which is compared with = or !=")
    quoted = _TEXT.match(text, start)
    if quoted is None:
        raise _build_error(text, start, f"{kind} are compared with text in quotes")
    value = quoted["single"] if quoted["single"] is not None else quoted["double"]
    return Clause(kind=kind, key=key, comparison=op, value=value), quoted.end()


def _parse_kind(word: str) -> Literal["tags", "params", "metrics"]:
    if word.startswith("t"):
        return "tags"
    return "params" if word.startswith("p") else "metrics"


def _build_error(text: str, at: int, why: str) -> UnsupportedError:
    rest = text[at:].strip()
    return UnsupportedError(
        f"The filter {text!r:.200} is invalid at {rest!r:.40}: {why}. Write clauses such as {_EXAMPLE!r}."
    )
