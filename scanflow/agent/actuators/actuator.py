"""The decorator that makes a function a call to another agent (thesis listing 5.6)."""

from __future__ import annotations

import asyncio
import inspect
import re
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from typing import Any

from scanflow.agent.actions import Call
from scanflow.agent.context import Context, current_or_none
from scanflow.app.agent import copy_function_attributes
from scanflow.app.model import shorten
from scanflow.errors import InvalidError, UsageError

_PATH = re.compile(r"/?sensors/([^/?#]+)/?")


@dataclass(frozen=True, kw_only=True, eq=False)
class Actuator:
    """A function whose result becomes a call to a sensor of an agent.

    Called inside a firing, it calls that agent: ``await`` it in an async function; in a plain one, which runs in a
    thread, it returns when the agent has accepted. :meth:`call` only makes the value, for ``then=`` of a strategy.
    """

    function: Callable[..., Any]
    """The function whose result is the argument of the call."""

    agent: str
    """The name of the agent that is called."""

    sensor: str
    """The name of the sensor that is called."""

    def __post_init__(self) -> None:
        copy_function_attributes(self, self.function)

    @property
    def name(self) -> str:
        """The name of the function."""
        return getattr(self.function, "__name__", "an actuator")

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Call the agent with the function's result for these arguments. Works only inside a firing."""
        context = current_or_none()
        if context is None:
            raise UsageError(
                f"The actuator {self.name!r} was called outside of a firing, where no agent can be reached. Write "
                f"{self.name}.call(...) for the call as a value, or use 'with use_context(Context(...)):', from "
                "scanflow.agent, in a test."
            )
        if _is_in_loop():
            return self._perform(context, args, kwargs)
        if inspect.iscoroutinefunction(self.function):
            raise UsageError(f"The actuator {self.name!r} is async. Call it from an async sensor, with 'await'.")
        return context.perform_soon(self.call(*args, **kwargs))

    def call(self, *args: Any, **kwargs: Any) -> Call:
        """Return the call for these arguments as a value."""
        if inspect.iscoroutinefunction(self.function):
            raise UsageError(
                f"The actuator {self.name!r} is async, so it cannot return a call as a value. Write 'def', not 'async "
                "def'."
            )
        return self._build_call(self._apply(args, kwargs))

    async def _perform(self, context: Context, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        returned = self._apply(args, kwargs)
        if isinstance(returned, Awaitable):
            returned = await returned
        return await context.perform(self._build_call(returned))

    def _apply(self, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Call the function. One with the parameters ``args`` and ``kwargs``, as in the thesis, gets them unpacked."""
        parameters = inspect.signature(self.function).parameters
        own = {name for name, parameter in parameters.items() if parameter.kind is parameter.POSITIONAL_OR_KEYWORD}
        if own == {"args", "kwargs"} and own == set(parameters):
            return self.function(args=args, kwargs=dict(kwargs))
        try:
            inspect.signature(self.function).bind(*args, **kwargs)
        except TypeError as error:
            raise InvalidError(
                f"The actuator {self.name!r}: {error}. Its signature is {self.name}{inspect.signature(self.function)}."
            ) from None
        return self.function(*args, **kwargs)

    def _build_call(self, returned: Any) -> Call:
        match returned:
            case None:
                args, kwargs = (), {}
            case Mapping():
                args, kwargs = (), dict(returned)
            case (list() | tuple() as positional, Mapping() as named):
                args, kwargs = tuple(positional), dict(named)
            case _:
                raise InvalidError(
                    f"The actuator {self.name!r} returned {shorten(returned)}. Return 'args, kwargs' (a list and a "
                    "mapping), a mapping alone, or nothing: they become the arguments of the call."
                )
        return Call(agent=self.agent, sensor=self.sensor, args=args, kwargs=kwargs)


def actuator(*, path: str, depender: str) -> Callable[[Callable[..., Any]], Actuator]:
    """Declare a function as a call to the sensor at ``path``, ``/sensors/NAME``, of the agent ``depender``."""
    match = _PATH.fullmatch(str(path))
    if match is None:
        raise InvalidError(f"@actuator: the path {shorten(path)} names no sensor. Write path='/sensors/NAME'.")
    checked = Call(agent=depender, sensor=match[1])

    def decorate(function: Callable[..., Any]) -> Actuator:
        target: Any = function
        if not callable(target) or isinstance(target, type):
            raise InvalidError(f"@actuator decorates functions; {shorten(target)} is not a function.")
        return Actuator(function=function, agent=checked.agent, sensor=checked.sensor)

    return decorate


def _is_in_loop() -> bool:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return False
    return True
