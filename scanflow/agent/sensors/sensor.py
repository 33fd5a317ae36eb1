"""The ``sensor`` decorator, in the thesis' spelling and in the modern one."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, ParamSpec, TypeVar, Unpack, overload

from scanflow.app.agent import SensorFunction, SensorOptions, declare_sensor
from scanflow.app.model import Model, shorten
from scanflow.app.triggers import Trigger
from scanflow.errors import InvalidError

__all__ = ["SensorFunction", "sensor"]

P = ParamSpec("P")
R = TypeVar("R")


@overload
def sensor(trigger: Callable[P, R], /) -> SensorFunction[P, R]: ...
@overload
def sensor(
    trigger: Trigger | None = None, /, *, executors: Sequence[str] = (), **options: Unpack[SensorOptions]
) -> Callable[[Callable[P, R]], SensorFunction[P, R]]: ...
def sensor(trigger: Any = None, /, *, executors: Sequence[str] = (), **options: Unpack[SensorOptions]) -> Any:
    """Declare a function as a sensor of the agent whose module is being loaded.

    ``@sensor(sf.every(hours=1), nodes=["predictor"])`` sets when it fires. Without a trigger (thesis listing 5.4), the
    ``sf.Sensor`` of the same name in the application sets it; where there is none, it fires when it is called.

    The function may have the parameters ``runs`` (the tracked runs), ``context``, ``event`` (that it fires on),
    ``args`` and ``kwargs`` (of the call); any other is taken from the call. It returns the sample: any JSON value.

    Args:
        trigger: When it fires.
        executors: The thesis' name for ``nodes``.
        options: See below.

    Options:
        nodes: The workflow nodes whose runs it gets. Empty: all nodes of the application.
        filter_string: A filter of those runs, in MLflow's filter language.
        name: The sensor's name. None: the function's name.
        limit_s: The timeout of a firing in seconds, which counts as an error. None: 60.
        grace_s: How late a scheduled firing may begin, in seconds; later it counts as missed. None: 60.
        misfire: ``skip``: firings due while the agent was down are only counted. None: one firing for all of them.

    Raises:
        InvalidError: an argument is invalid, or it decorates no function.
    """
    bare: Any = trigger
    if callable(bare) and not isinstance(bare, Model):
        return declare_sensor(bare, {}, trigger=None)
    nodes = options.get("nodes", ())
    for word, names in (("nodes", nodes), ("executors", executors)):
        if isinstance(names, str) or not isinstance(names, Sequence):
            raise InvalidError(f"@sensor: {word} cannot be {shorten(names)}. Write a list: {word}=['predictor'].")
    fields: SensorOptions = {**options, "nodes": tuple(dict.fromkeys([*nodes, *executors]))}

    def decorate(function: Callable[P, R]) -> SensorFunction[P, R]:
        return declare_sensor(function, fields, trigger=trigger)

    return decorate
