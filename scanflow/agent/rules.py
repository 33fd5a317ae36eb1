"""Rules: the constraint of a strategy, as a plain function of what the sensor returned; and how one is explained."""

from __future__ import annotations

import ast
import inspect
import linecache
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache
from types import CodeType
from typing import Any, overload

from scanflow.app.model import short
from scanflow.errors import InvalidError


@dataclass(frozen=True, kw_only=True, eq=False)
class Rule:
    """A rule with the name that explanations call it by. Called, it is still the function."""

    function: Callable[..., Any]
    name: str

    def __post_init__(self) -> None:
        for word in ("__name__", "__qualname__", "__doc__", "__module__"):
            vars(self)[word] = getattr(self.function, word, None)
        vars(self)["__wrapped__"] = self.function

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


@overload
def rule(function: Callable[..., bool], /) -> Rule: ...
@overload
def rule(name: str, /) -> Callable[[Callable[..., bool]], Rule]: ...
def rule(given: Callable[..., bool] | str, /) -> Rule | Callable[[Callable[..., bool]], Rule]:
    """Name a rule for explanations: ``@rule``, or ``@rule("enough predictions to check")``."""
    if not isinstance(given, str):
        return rule_of(given)
    if not given.strip():
        raise InvalidError('@rule("") has no name. Write one, such as @rule("enough predictions"), or @rule alone.')
    return lambda function: Rule(function=rule_of(function).function, name=given)


def rule_of(given: Any) -> Rule:
    """Return a function as a rule, named after itself; a lambda has no name."""
    if isinstance(given, Rule):
        return given
    if not callable(given) or isinstance(given, type):
        raise InvalidError(f"A rule is a function that returns True or False; {short(given)} is not one.")
    name = getattr(given, "__name__", type(given).__name__)
    if inspect.iscoroutinefunction(given) or inspect.isgeneratorfunction(given) or inspect.isasyncgenfunction(given):
        raise InvalidError(f"The rule {name!r} is no plain function. Let the sensor wait and look; a rule only judges.")
    return Rule(function=given, name="" if name == "<lambda>" else name)


def explain(rule: Rule, values: Mapping[str, Any]) -> str:
    """Return the rule in words: its name, what it compares, and the values: ``enough: n >= least, n=1204, least=1000``.

    Where the source is not at hand, or was changed since it was loaded, only the name and the values are told.
    """
    code = getattr(rule.function, "__code__", None)
    source = _source(code) if isinstance(code, CodeType) else None
    shown = {name: short(value) for name, value in values.items() if source is None or name in source.names}
    if source is not None:
        shown |= {name: short(value) for name, value in _constants(rule.function, source.names - set(values))}
        for name, key in source.looked_up:
            held = values.get(name)
            if isinstance(held, Mapping) and key in held:
                shown[f"{name}[{key!r}]"] = short(held[key])
    said = ": ".join(part for part in (rule.name, source.text if source else "") if part) or "a rule without a name"
    return ", ".join([said, *(f"{name}={text}" for name, text in shown.items())])


@dataclass(frozen=True, kw_only=True)
class _Source:
    text: str
    names: frozenset[str]
    looked_up: tuple[tuple[str, Any], ...]
    """``parameters["least"]``, as ``("parameters", "least")``."""


def _constants(function: Callable[..., Any], names: frozenset[str]) -> Iterator[tuple[str, Any]]:
    """Yield the plain values that a rule compares with and was not given: thresholds of its module."""
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
def _source(code: CodeType) -> _Source | None:
    """Return what a function returns, if that is all it does and its file still says so."""
    linecache.checkcache(code.co_filename)
    bodies, codes = _functions("".join(linecache.getlines(code.co_filename)))
    places = {(line, column, end_line, end) for line, end_line, column, end in code.co_positions()}
    found = [
        body
        for line, name, place, body in bodies
        if (line, name) == (code.co_firstlineno, code.co_name) and place in places and code in codes
    ]
    if len(found) != 1:
        return None
    text = " ".join(ast.unparse(found[0]).split())
    return _Source(
        text=text if len(text) <= 200 else text[:197] + "...",
        names=frozenset(node.id for node in ast.walk(found[0]) if isinstance(node, ast.Name)),
        looked_up=tuple(_looked_up(found[0])),
    )


def _looked_up(body: ast.expr) -> Iterator[tuple[str, Any]]:
    for node in ast.walk(body):
        match node:
            case ast.Subscript(value=ast.Name(id=name), slice=ast.Constant(value=key)):
                yield name, key


@lru_cache(maxsize=8)
def _functions(text: str) -> tuple[tuple[tuple[int, str, tuple[int | None, ...], ast.expr], ...], frozenset[CodeType]]:
    """Return each function of a file that only returns an expression (its line, its name, where that is, and it), and
    the code of all its functions."""
    try:
        tree = ast.parse(text)
        codes = frozenset(_nested(compile(text, "<rules>", "exec", dont_inherit=True)))
    except (SyntaxError, ValueError, RecursionError):
        return (), frozenset()
    found: list[tuple[int, str, tuple[int | None, ...], ast.expr]] = []
    for node in ast.walk(tree):
        match node:
            case ast.Lambda(body=body):
                found.append((node.lineno, "<lambda>", _place(body), body))
            case ast.FunctionDef(name=name, body=[*doc, ast.Return(value=ast.expr() as body)]) if _only_doc(doc):
                first = min([node.lineno, *(one.lineno for one in node.decorator_list)])
                found.append((first, name, _place(body), body))
    return tuple(found), codes


def _nested(code: CodeType) -> Iterator[CodeType]:
    for one in code.co_consts:
        if isinstance(one, CodeType):
            yield one
            yield from _nested(one)


def _only_doc(statements: list[ast.stmt]) -> bool:
    match statements:
        case [] | [ast.Expr(value=ast.Constant(value=str()))]:
            return True
    return False


def _place(node: ast.expr) -> tuple[int | None, ...]:
    return (node.lineno, node.col_offset, node.end_lineno, node.end_col_offset)
