"""The decorator that makes a function a sensor, in the thesis' spelling and in the modern one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar, overload

from scanflow.app.agents import Misfire, SensorFunction, declared_sensor
from scanflow.app.model import Model, short
from scanflow.app.triggers import Trigger
from scanflow.errors import InvalidError

__all__ = ["SensorFunction", "sensor"]

P = ParamSpec("P")
R = TypeVar("R")


@overload
def sensor(trigger: Callable[P, R], /) -> SensorFunction[P, R]: ...
@overload
def sensor(
    trigger: Trigger | None = None,
    /,
    *,
    nodes: Sequence[str] = (),
    filter_string: str | None = None,
    executors: Sequence[str] = (),
    name: str | None = None,
    limit_s: float | str | None = None,
    grace_s: float | str | None = None,
    misfire: Misfire | None = None,
) -> Callable[[Callable[P, R]], SensorFunction[P, R]]: ...
def sensor(
    trigger: Any = None,
    /,
    *,
    nodes: Sequence[str] = (),
    filter_string: str | None = None,
    executors: Sequence[str] = (),
    name: str | None = None,
    limit_s: float | str | None = None,
    grace_s: float | str | None = None,
    misfire: Misfire | None = None,
) -> Any:
    """Make a function a sensor of the agent whose module this is.

    ``@sensor(sf.every(hours=1), nodes=["predictor"])`` says when it fires. Without a trigger (thesis listing 5.4) an
    ``sf.Sensor`` of the same name in the application says it; where there is none, it fires when it is called.

    The function may ask for, by the names of its parameters: ``runs`` (the tracked runs it looks at), ``context``,
    ``event`` (what it fires on), ``args`` and ``kwargs`` (of the call); anything else is taken from the call. What it
    returns is the sample: anything that JSON can hold.

    Args:
        trigger: When it fires.
        nodes: The workflow nodes whose runs it is given. Empty: the whole application's.
        filter_string: Which of those runs, in MLflow's filter language.
        executors: The thesis' older word for ``nodes``.
        name: What it is called by. None: the function's name.
        limit_s: After so many seconds a firing is given up, and counts as an error. None: 60.
        grace_s: How late a firing of a schedule may begin, in seconds; later it counts as missed. None: 60.
        misfire: ``skip``: what fell due while the agent was down is only counted. None: it fires once for all of it.

    Raises:
        InvalidError: one of these is wrong, or it decorates no function.
    """
    bare: Any = trigger
    if callable(bare) and not isinstance(bare, Model):
        return declared_sensor(bare, trigger=None)
    for word, given in (("nodes", nodes), ("executors", executors)):
        if isinstance(given, str) or not isinstance(given, Sequence):
            raise InvalidError(f"@sensor: {word} cannot be {short(given)}. Write a list: {word}=['predictor'].")
    looked_at = tuple(dict.fromkeys([*nodes, *executors]))

    def decorate(function: Callable[P, R]) -> SensorFunction[P, R]:
        return declared_sensor(
            function,
            trigger=trigger,
            nodes=looked_at,
            filter_string=filter_string,
            name=name,
            limit_s=limit_s,
            grace_s=grace_s,
            misfire=misfire,
        )

    return decorate
