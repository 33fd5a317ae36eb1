"""Rules: the constraint of a strategy as a plain function of the sensor's value, and its explanation as text."""

from __future__ import annotations

import ast
import functools
import inspect
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType
from typing import Any, overload

from pydantic import BaseModel

from scanflow.agent.function_source import find_function
from scanflow.app.agent import copy_function_attributes
from scanflow.app.model import shorten
from scanflow.errors import InvalidError


@dataclass(frozen=True, kw_only=True, eq=False)
class Rule:
    """A rule function with its name in explanations."""

    function: Callable[..., Any]
    """The function."""

    name: str
    """The name that explanations show."""

    def __post_init__(self) -> None:
        copy_function_attributes(self, self.function)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


@overload
def rule(function: Callable[..., bool], /) -> Rule: ...
@overload
def rule(name: str, /) -> Callable[[Callable[..., bool]], Rule]: ...
def rule(function_or_name: Callable[..., bool] | str, /) -> Rule | Callable[[Callable[..., bool]], Rule]:
    """Name a rule for explanations: ``@rule``, or ``@rule("enough predictions to check")``."""
    if not isinstance(function_or_name, str):
        return make_rule(function_or_name)
    if not function_or_name.strip():
        raise InvalidError('@rule("") has no name. Write one, such as @rule("enough predictions"), or @rule alone.')
    return lambda function: Rule(function=make_rule(function).function, name=function_or_name)


def make_rule(function: Any) -> Rule:
    """Make a rule of a function, named after it; a lambda has no name."""
    if isinstance(function, Rule):
        return function
    if not callable(function) or isinstance(function, type):
        raise InvalidError(f"A rule is a function that returns True or False; {shorten(function)} is not a function.")
    plain = function.func if isinstance(function, functools.partial) else function
    name = getattr(plain, "__name__", type(plain).__name__)
    if (
        inspect.iscoroutinefunction(function)
        or inspect.isgeneratorfunction(function)
        or inspect.isasyncgenfunction(function)
    ):
        raise InvalidError(
            f"The rule {name!r} is not a plain function. Wait and read data in the sensor; a rule only evaluates "
            "values."
        )
    return Rule(function=function, name="" if name == "<lambda>" else name)


def explain(rule: Rule, values: Mapping[str, Any]) -> str:
    """Describe a rule: its name, its source and the values: ``enough: n >= least, n=1204, least=1000``.

    Where the source is unavailable, or changed since it was loaded, only the name and the values are given.
    """
    plain = rule.function.func if isinstance(rule.function, functools.partial) else rule.function
    if plain is not rule.function and rule.name != getattr(plain, "__name__", ""):
        return rule.name  # a sentence, in place of a function that was adapted
    code = getattr(plain, "__code__", None)
    source = _read_source(code) if isinstance(code, CodeType) else None
    shown = {name: shorten(value) for name, value in values.items() if source is None or name in source.names}
    if source is not None:
        shown |= {name: shorten(value) for name, value in _list_constants(plain, source.names - set(values))}
        for name, key in source.looked_up:
            mapping = values.get(name)
            if isinstance(mapping, Mapping) and key in mapping:
                shown[f"{name}[{key!r}]"] = shorten(mapping[key])
        for name, field in source.fields:
            model = values.get(name)
            if isinstance(model, BaseModel) and field in type(model).model_fields:
                shown[f"{name}.{field}"] = shorten(getattr(model, field))
    text = ": ".join(part for part in (rule.name, source.text if source else "") if part) or "a rule without a name"
    return ", ".join([text, *(f"{name}={shown_value}" for name, shown_value in shown.items())])


@dataclass(frozen=True, kw_only=True)
class _Source:
    text: str
    names: frozenset[str]
    looked_up: tuple[tuple[str, Any], ...]
    """``parameters["least"]``, as ``("parameters", "least")``."""

    fields: tuple[tuple[str, str], ...]
    """``counts.due``, as ``("counts", "due")``."""


def _list_constants(function: Callable[..., Any], names: frozenset[str]) -> Iterator[tuple[str, Any]]:
    """Yield the plain values from the rule's closure and module: thresholds."""
    code = function.__code__
    cells = dict(zip(code.co_freevars, function.__closure__ or (), strict=False))
    for name in sorted(names):
        try:
            value = cells[name].cell_contents if name in cells else function.__globals__[name]
        except (KeyError, ValueError):  # a builtin, or a variable that has no value yet
            continue
        if isinstance(value, bool | int | float | str):
            yield name, value


@lru_cache(maxsize=4096)
def _read_source(code: CodeType) -> _Source | None:
    """Return the expression that a function returns, if that is all it does and its file is unchanged."""
    match find_function(code):
        case ast.Lambda(body=body):
            returned = body
        case ast.FunctionDef(body=[*doc, ast.Return(value=ast.expr() as body)]) if _is_docstring(doc):
            returned = body
        case _:
            return None
    text = " ".join(ast.unparse(returned).split())
    return _Source(
        text=text if len(text) <= 200 else text[:197] + "...",
        names=frozenset(node.id for node in ast.walk(returned) if isinstance(node, ast.Name)),
        looked_up=tuple(_list_lookups(returned)),
        fields=tuple(_list_fields(returned)),
    )


def _list_lookups(body: ast.expr) -> Iterator[tuple[str, Any]]:
    for node in ast.walk(body):
        match node:
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=key)):
                yield name, key


def _list_fields(body: ast.expr) -> Iterator[tuple[str, str]]:
    for node in ast.walk(body):
        match node:
            case ast.Attribute(value=ast.Name(id=name), attr=field):
                yield name, field


def _is_docstring(statements: list[ast.stmt]) -> bool:
    match statements:
        case [] | [ast.Expr(value=ast.Constant(value=str()))]:
            return True
    return False
