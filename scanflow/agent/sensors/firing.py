"""Fire a sensor: bind its arguments by parameter name, and convert its result to JSON."""

from __future__ import annotations

import asyncio
import inspect
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pydantic import BaseModel

from scanflow.agent.agent_records import JSON, Event
from scanflow.agent.context import Context, use_context
from scanflow.agent.sensors.sensed_runs import Run
from scanflow.app.agent import SensorFunction
from scanflow.app.parameters import to_plain
from scanflow.errors import InvalidError, did_you_mean

_VARIABLE = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


@dataclass(frozen=True, kw_only=True)
class Firing:
    context: Context
    runs: Sequence[Run] = ()
    event: Event | None = None
    args: Sequence[JSON] = ()
    kwargs: Mapping[str, JSON] = field(default_factory=dict)


def has_parameter(sensor: SensorFunction[..., Any], what: str) -> bool:
    """Return whether the sensor's function has a parameter, such as ``runs``, ``context`` or ``event``."""
    return what in inspect.signature(sensor.function).parameters


async def fire(sensor: SensorFunction[..., Any], inputs: Firing) -> JSON:
    """Call the sensor, a plain function in a thread, and return its result as JSON.

    Cancelling stops an async sensor; a plain function continues in its thread, and its result is ignored.

    Raises:
        InvalidError: the call does not match the sensor's parameters, or its result is not JSON-serializable.
        Exception: whatever the sensor raises.
    """
    bound = _bind(sensor, inputs)
    with use_context(inputs.context):
        if inspect.iscoroutinefunction(sensor.function):
            value = await sensor.function(*bound.args, **bound.kwargs)
        else:
            value = await asyncio.to_thread(sensor.function, *bound.args, **bound.kwargs)
            if inspect.isawaitable(value):
                value = await value
    result: JSON = to_plain(value, f"The result of the sensor {sensor.name!r}", special=_record)
    return result


def _record(value: Any) -> Any:
    return value.model_dump(mode="json") if isinstance(value, BaseModel) else None


def _bind(sensor: SensorFunction[..., Any], inputs: Firing) -> inspect.BoundArguments:
    """Bind the arguments: reserved names from the inputs, the others from the call, by position or by name."""
    signature = inspect.signature(sensor.function)
    who = f"The sensor {sensor.name!r}"
    reserved: dict[str, Any] = {"runs": list(inputs.runs), "context": inputs.context, "event": inputs.event}
    reserved |= {"args": list(inputs.args), "kwargs": dict(inputs.kwargs)}
    rest, named = list(inputs.args), dict(inputs.kwargs)
    used = {
        name for name, parameter in signature.parameters.items() if name in reserved and parameter.kind not in _VARIABLE
    }
    if doubled := sorted(used & set(named)):
        raise InvalidError(f"{who} was called with {doubled[0]!r}, which is a reserved name. Rename it.")
    values: dict[str, Any] = {}
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.VAR_POSITIONAL:
            values[name], rest = tuple(rest), []
        elif parameter.kind is parameter.VAR_KEYWORD:
            values[name], named = named, {}
        elif name in used:
            values[name] = reserved[name]
        elif name in named:
            values[name] = named.pop(name)
        elif rest and parameter.kind is not parameter.KEYWORD_ONLY:
            values[name] = rest.pop(0)
        elif parameter.default is inspect.Parameter.empty:
            raise InvalidError(f"{who} needs the argument {name!r}. Its signature is {sensor.name}{signature}.")
    if rest and "args" not in used:
        raise InvalidError(
            f"{who} was called with {len(rest)} arguments too many. Its signature is {sensor.name}{signature}."
        )
    if named and "kwargs" not in used:
        unknown = next(iter(named))
        raise InvalidError(
            f"{who} has no parameter {unknown!r}.{did_you_mean(unknown, set(signature.parameters) - used)}"
        )
    return inspect.BoundArguments(signature, OrderedDict(values))
