"""One firing of a sensor: what it is given, by the names of its parameters, and what becomes of its result."""

from __future__ import annotations

import asyncio
import inspect
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from scanflow.agent.context import Context, firing
from scanflow.agent.records import JSON, Event
from scanflow.agent.sensors.runs import Run
from scanflow.app.agents import SensorFunction
from scanflow.app.parameters import plain
from scanflow.errors import InvalidError, did_you_mean

_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True, kw_only=True)
class Firing:
    context: Context
    runs: Sequence[Run] = ()
    event: Event | None = None
    args: Sequence[JSON] = ()
    kwargs: Mapping[str, JSON] = field(default_factory=dict)


def wants(sensor: SensorFunction[..., Any], what: str) -> bool:
    """Say whether the sensor asks for ``runs``, ``context`` or ``event``: what it does not, need not be found."""
    return what in inspect.signature(sensor.function).parameters


async def fire(sensor: SensorFunction[..., Any], given: Firing) -> JSON:
    """Call the sensor, a plain function in a thread, and return what it returned as JSON.

    Cancelling ends an async sensor; a plain one goes on in its thread, and its result is not looked at.

    Raises:
        InvalidError: the call does not fit the sensor's parameters, or its result is nothing that JSON can hold.
        Exception: whatever the sensor raises.
    """
    bound = _bound(sensor, given)
    with firing(given.context):
        if inspect.iscoroutinefunction(sensor.function):
            value = await sensor.function(*bound.args, **bound.kwargs)
        else:
            value = await asyncio.to_thread(sensor.function, *bound.args, **bound.kwargs)
            if inspect.isawaitable(value):
                value = await value
    result: JSON = plain(value, f"What the sensor {sensor.name!r} returned", special=_record)
    return result


def _record(value: Any) -> Any:
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else None


def _bound(sensor: SensorFunction[..., Any], given: Firing) -> inspect.BoundArguments:
    """Return the arguments: those with a name of ours by it, the others from the call, in order or by name."""
    signature = inspect.signature(sensor.function)
    who = f"The sensor {sensor.name!r}"
    ours: dict[str, Any] = {"runs": list(given.runs), "context": given.context, "event": given.event}
    ours |= {"args": list(given.args), "kwargs": dict(given.kwargs)}
    rest, named = list(given.args), dict(given.kwargs)
    used = {name for name, one in signature.parameters.items() if name in ours and one.kind not in _VARIABLE}
    if doubled := sorted(used & set(named)):
        raise InvalidError(f"{who} was called with {doubled[0]!r}, which is not the caller's to give. Rename it.")
    values: dict[str, Any] = {}
    for name, one in signature.parameters.items():
        if one.kind is one.VAR_POSITIONAL:
            values[name], rest = tuple(rest), []
        elif one.kind is one.VAR_KEYWORD:
            values[name], named = named, {}
        elif name in used:
            values[name] = ours[name]
        elif name in named:
            values[name] = named.pop(name)
        elif rest and one.kind is not one.KEYWORD_ONLY:
            values[name] = rest.pop(0)
        elif one.default is inspect.Parameter.empty:
            raise InvalidError(f"{who} needs {name!r}, and was not given it. It is {sensor.name}{signature}.")
    if rest and "args" not in used:
        raise InvalidError(f"{who} was called with {len(rest)} arguments too many. It is {sensor.name}{signature}.")
    if named and "kwargs" not in used:
        unknown = next(iter(named))
        raise InvalidError(
            f"{who} has no parameter {unknown!r}.{did_you_mean(unknown, set(signature.parameters) - used)}"
        )
    return inspect.BoundArguments(signature, OrderedDict(values))
