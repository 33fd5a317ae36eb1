"""Descriptions of an application's agents, and functions declared as their sensors."""

from __future__ import annotations

import inspect
import keyword
import re
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from types import FunctionType
from typing import Annotated, Any, Generic, Literal, ParamSpec, Self, TypedDict, TypeVar, Unpack

from pydantic import AfterValidator, BeforeValidator, Field, model_validator

from scanflow.app.cell_classes import explain_file
from scanflow.app.model import Model, as_tuple, find_duplicate, shorten
from scanflow.app.parameters import FrozenDict, Parameters
from scanflow.app.quantities import Seconds
from scanflow.app.resources import Resources
from scanflow.app.triggers import CallReceive, Trigger
from scanflow.errors import InvalidError, did_you_mean
from scanflow.names import check_locator, check_name
from scanflow.plugins import explain_not_installed, list_plugins

Misfire = Literal["run_once", "skip"]
"""How firings that came due while the agent was down are handled: one firing for all of them, or none."""

P = ParamSpec("P")
R = TypeVar("R")

_collection: ContextVar[list[Any] | None] = ContextVar("scanflow_declared", default=None)


def _check_name(name: str) -> str:
    if not name.isidentifier() or keyword.iskeyword(name):
        better = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")
        better = better if better.isidentifier() and not keyword.iskeyword(better) else f"on_{better}".rstrip("_")
        raise InvalidError(f"Sensor {name!r} needs a Python identifier as its name. Write {better!r} instead.")
    return name


class Sensor(Model):
    """A function that an agent runs on a trigger, to observe runs (thesis listing 5.4)."""

    name: Annotated[str, AfterValidator(_check_name)]
    """The name of the function that is called with the runs found."""

    trigger: Trigger
    """When it fires: ``sf.every(hours=1)``."""

    nodes: Annotated[Sequence[str], AfterValidator(as_tuple)] = ()
    """The workflow nodes that produced the runs. Empty: all nodes of the application."""

    filter_string: str | None = None
    """A filter of those runs, in MLflow's filter language."""

    function: Annotated[str, AfterValidator(lambda value: check_locator(value, "function"))] | None = None
    """``file.py:name`` or ``package.module:name``. Unset: the template's function of that name."""

    parameters: Parameters = Field(default_factory=FrozenDict)
    """Parameters of the function, by name."""

    limit_s: Seconds | None = None
    """The timeout of a firing, in seconds, or text such as ``"5m"``. None: 60 s."""

    grace_s: Seconds | None = None
    """The longest delay of a scheduled firing before it counts as missed, in seconds. None: 60 s."""

    misfire: Misfire | None = None
    """How firings that the agent missed while it was down are handled. None: it fires once for all of them."""


class SensorOptions(TypedDict, total=False):
    """The fields of a :class:`Sensor` that a decorator takes."""

    nodes: Sequence[str]
    filter_string: str | None
    name: str | None
    limit_s: float | str | None
    grace_s: float | str | None
    misfire: Misfire | None


def _check_modules(modules: Any) -> Any:
    for module in modules if isinstance(modules, list | tuple) else ():
        own = inspect.unwrap(module) if callable(module) else module
        if isinstance(own, type | FunctionType):
            file, move = explain_file(own, "watch.py")
            raise InvalidError(
                f"modules has {own.__name__!r} itself, and an agent, which outlives this process, loads its files. "
                f"Write modules=['{file}'].{move}"
            )
    return modules


def _check_template(name: str | None) -> str | None:
    if name is not None and name not in list_plugins("templates"):
        raise InvalidError(explain_not_installed("templates", name))
    return name


class Agent(Model):
    """A long-running process that senses, decides and acts."""

    name: Annotated[str, AfterValidator(lambda name: check_name(name, "agent"))]
    """Unique in the application; lower-case letters, digits and ``-``."""

    template: Annotated[str | None, AfterValidator(_check_template)] = None
    """``tracker``, ``checker``, ``planner``, ``executor``, or that of an installed package. None: only its own
    sensors and modules."""

    sensors: Annotated[Sequence[Sensor], AfterValidator(as_tuple)] = ()
    """Sensors that the application declares: a trigger, nodes, filter and parameters for functions of the template or
    the modules."""

    modules: Annotated[Sequence[str], BeforeValidator(_check_modules), AfterValidator(as_tuple)] = ()
    """Files with the agent's own sensors, rules and actuators, relative to the application's folder."""

    parameters: Parameters = Field(default_factory=FrozenDict)
    """Parameters of the template, and of the agent's own modules."""

    image: str | None = None
    """A container image, for backends that run containers."""

    resources: Resources = Resources()
    """The resources of the agent's process."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        who = f"Agent {self.name!r}"
        if self.template is None and not self.sensors and not self.modules:
            raise InvalidError(f"{who} would do nothing. Give it a 'template', 'sensors' or 'modules'.")
        if self.resources.gpu:
            raise InvalidError(f"{who} asks for a GPU, and agents get none. Remove gpu from its resources.")
        if doubled := find_duplicate(sensor.name for sensor in self.sensors):
            raise InvalidError(f"{who} has two sensors named {doubled!r}. Rename one.")
        return self

    def sensor(
        self, trigger: Trigger, **options: Unpack[SensorOptions]
    ) -> Callable[[Callable[P, R]], SensorFunction[P, R]]:
        """Make a function a sensor of this agent: ``@agent.sensor(sf.every(hours=1))``. Options: see ``sf.Sensor``.

        The agent stays as it is: the sensor is found when the module that declares it is loaded, so the file belongs
        into ``modules``.
        """
        return lambda function: declare_sensor(function, options, trigger=trigger, agent=self.name)


def copy_function_attributes(wrapper: object, function: Callable[..., Any]) -> None:
    """Give an object that wraps a function the function's name and docstring."""
    for word in ("__name__", "__qualname__", "__doc__", "__module__"):
        vars(wrapper)[word] = getattr(function, word, None)
    vars(wrapper)["__wrapped__"] = function


@dataclass(frozen=True, kw_only=True, eq=False)
class SensorFunction(Generic[P, R]):
    """A function that is a sensor. It can still be called as a function."""

    function: Callable[P, R]
    """The function that is called."""

    sensor: Sensor
    """The trigger and the options that it was declared with."""

    timed: bool = True
    """Whether a trigger was given. If not, the application's sensor of the same name has it, else it fires on a
    call."""

    agent: str | None = None
    """The agent it belongs to. None: the one whose module declares it."""

    def __post_init__(self) -> None:
        copy_function_attributes(self, self.function)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        return self.function(*args, **kwargs)

    @property
    def name(self) -> str:
        """The name of the sensor."""
        return self.sensor.name

    @property
    def trigger(self) -> Trigger:
        """When it fires."""
        return self.sensor.trigger


def declare_sensor(
    function: Callable[P, R], options: SensorOptions, *, trigger: Trigger | None, agent: str | None = None
) -> SensorFunction[P, R]:
    """Declare ``function`` as a sensor of the agent that is being loaded."""
    candidate: Any = function
    if not callable(candidate) or isinstance(candidate, SensorFunction | type):
        raise InvalidError(f"A sensor needs a function; {shorten(candidate)} is not one.")
    own = str(options.get("name") or getattr(candidate, "__name__", type(candidate).__name__))
    if unknown := next((word for word in options if word not in SensorOptions.__annotations__), None):
        raise InvalidError(f"A sensor has no option {unknown!r}.{did_you_mean(unknown, SensorOptions.__annotations__)}")
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        raise InvalidError(f"The sensor {own!r} yields. Return one value instead, such as a list.")
    if own == "<lambda>":
        raise InvalidError("A sensor needs a name, and a lambda has none. Give it one: name='count'.")
    fields: dict[str, Any] = {**options, "name": own, "trigger": CallReceive() if trigger is None else trigger}
    sensor = SensorFunction(function=function, sensor=Sensor(**fields), timed=trigger is not None, agent=agent)
    declare(sensor)
    return sensor


@contextmanager
def collect_declarations() -> Iterator[list[Any]]:
    """Collect the declarations made in the block. An inner collection does not add to an outer one."""
    collected: list[Any] = []
    token = _collection.set(collected)
    try:
        yield collected
    finally:
        _collection.reset(token)


def declare(thing: object) -> None:
    """Add a declaration to the agent that is being loaded; without one, do nothing."""
    collected = _collection.get()
    if collected is not None:
        collected.append(thing)
