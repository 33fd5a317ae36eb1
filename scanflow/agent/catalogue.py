"""What is known of an operation primitive: a row of thesis Table 5.4, and how a row is made of a checked function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache, wraps
from types import NoneType
from typing import Any, Literal, ParamSpec, get_args, get_type_hints

from pydantic import ConfigDict, Field, TypeAdapter, ValidationError

from scanflow.agent.actions import Act, Kind
from scanflow.app.model import Model, short
from scanflow.errors import InvalidError, did_you_mean

P = ParamSpec("P")
Layer = Literal["application", "infrastructure"]
"""Thesis 5.2.3: what the workflow is to be, or which executors and instances there are."""

_ROWS = "__scanflow_rows__"
_WORDS: Mapping[Any, str] = {str: "text", int: "whole number", float: "number", bool: "true or false", dict: "mapping"}


class Parameter(Model):
    """A parameter of a primitive."""

    name: str
    type: str
    """In words: ``text``, ``whole number``, ``mapping``, ``any of cpu, cpumem``."""

    required: bool
    what: str


class Primitive(Model):
    """One operation, as it is listed: ``scanflow strategies primitives``."""

    name: str
    layer: Layer
    kind: Kind
    what: str
    """What it does, in one sentence."""

    target: str
    """What it writes to: ``workflow/NAME``, ``service/NAME`` or ``run/NAME``, with the parameter's name."""

    fields: tuple[str, ...]
    """What it may write of the target."""

    inverse: bool
    """Whether it can be undone."""

    parameters: tuple[Parameter, ...] = ()
    takes: tuple[str, ...] = Field(default=(), exclude=True)
    """Names of the function's parameters that this row has. Empty: all."""


def primitive(
    layer: Layer,
    kind: Kind,
    *,
    fields: tuple[str, ...],
    inverse: bool = True,
    takes: tuple[str, ...] = (),
    what: str | None = None,
    target: str | None = None,
) -> Callable[[Callable[P, Act]], Callable[P, Act]]:
    """Make a function one of the catalogue; above another ``@primitive``, add a row to it.

    Each parameter's annotation is ``Annotated[type, "what it is"]``. A wrong argument is an ``InvalidError`` that names
    the near parameter, not a ``TypeError``.

    Args:
        layer: The layer it works at.
        kind: The kind of workflow.
        fields: What it may write of the target.
        inverse: Whether it can be undone.
        takes: The parameters that this row has. Empty: all.
        what: What it does. None: as the docstring begins.
        target: What it writes to. None: the service or the workflow.
    """

    def decorate(function: Callable[P, Act]) -> Callable[P, Act]:
        row = Primitive(
            name=function.__name__,
            layer=layer,
            kind=kind,
            what=what or (inspect.getdoc(function) or "").partition(".")[0] + ".",
            target=target or ("service/WORKFLOW" if kind == "online" else "workflow/WORKFLOW"),
            fields=fields,
            inverse=inverse,
            takes=takes,
        )
        if _ROWS in vars(function):
            inner, rows = vars(function)[_ROWS]
            vars(function)[_ROWS] = (inner, (row, *rows))
            return function

        @wraps(function)
        def checked(*args: P.args, **kwargs: P.kwargs) -> Act:
            bound: Mapping[str, Any] = _checked(function, args, kwargs)
            return function(**bound)  # type: ignore[call-arg]  # by name, as they were bound

        vars(checked)[_ROWS] = (function, (row,))
        return checked

    return decorate


def rows_of(functions: Sequence[Callable[..., Act]]) -> tuple[Primitive, ...]:
    """Return the rows of these functions, in order."""
    found: list[Primitive] = []
    for one in functions:
        function, rows = vars(one)[_ROWS]
        known = tuple(_parameters(function))
        found += [
            row.replace(parameters=tuple(each for each in known if not row.takes or each.name in row.takes))
            for row in rows
        ]
    return tuple(found)


def _parameters(function: Callable[..., Act]) -> list[Parameter]:
    hints = get_type_hints(function, include_extras=True)
    found = []
    for name, one in inspect.signature(function).parameters.items():
        inner, *about = get_args(hints[name])
        found.append(
            Parameter(
                name=f"**{name}" if one.kind is one.VAR_KEYWORD else name,
                type=type_name(inner),
                required=one.default is one.empty and one.kind is not one.VAR_KEYWORD,
                what=next(text for text in about if isinstance(text, str)),
            )
        )
    return found


def type_name(hint: Any) -> str:
    """Return a type for people: ``text``, ``whole number``, ``mapping``."""
    if hint is Any:
        return "anything"
    if hint in _WORDS:
        return _WORDS[hint]
    parts = [part for part in get_args(hint) if part is not NoneType]
    if parts and all(isinstance(part, str) for part in parts):
        return f"any of {', '.join(parts)}"
    if getattr(hint, "__origin__", None) in {dict, Mapping}:
        return "mapping"
    return " or ".join(dict.fromkeys(type_name(part) for part in parts)) or str(hint)


def _checked(function: Callable[..., Act], args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
    who = f"The primitive {function.__name__!r}"
    signature = inspect.signature(function)
    in_order = [name for name, one in signature.parameters.items() if one.kind is one.POSITIONAL_OR_KEYWORD]
    open_ended = any(one.kind is one.VAR_KEYWORD for one in signature.parameters.values())
    named = {name for name, one in signature.parameters.items() if one.kind is not one.VAR_KEYWORD}
    if len(args) > len(in_order):
        raise InvalidError(f"{who} takes {', '.join(in_order)} without a name, and the others by theirs: name=value.")
    given = dict(zip(in_order, args, strict=False))
    for name, value in kwargs.items():
        if name in given:
            raise InvalidError(f"{who} was given {name!r} twice. Remove one.")
        if name not in named and not open_ended:
            raise InvalidError(f"{who} has no argument {name!r}.{did_you_mean(name, named)}")
        given[name] = value
    for name in named - set(given):
        if signature.parameters[name].default is inspect.Parameter.empty:
            raise InvalidError(f"{who} needs the argument {name!r}.")
    adapters = _adapters(function)
    for name in named & set(given):
        try:
            given[name] = adapters[name].validate_python(given[name])
        except ValidationError:
            wanted = type_name(get_args(get_type_hints(function, include_extras=True)[name])[0])
            raise InvalidError(f"{who}: {name} cannot be {short(given[name])}. It is {wanted}.") from None
    return given


@cache
def _adapters(function: Callable[..., Act]) -> Mapping[str, TypeAdapter[Any]]:
    """Return what checks each argument: strictly, so that neither ``"3"`` nor ``True`` is a number."""
    config = ConfigDict(strict=True, allow_inf_nan=False)
    hints = get_type_hints(function, include_extras=True)
    return {name: TypeAdapter(hint, config=config) for name, hint in hints.items() if name != "return"}
