"""Load the sensors and strategies of an agent: those of its modules, of its template, and of the application.

:func:`load_agent` runs the user's code.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from scanflow.agent.agent_records import JSON, Event
from scanflow.agent.strategy import Strategy
from scanflow.app.agent import Agent, Sensor, SensorFunction, collect_declarations
from scanflow.app.application import Application
from scanflow.app.parameters import FrozenDict
from scanflow.app_files import get_file
from scanflow.errors import InvalidError, NotFoundError, ScanflowError, UsageError, did_you_mean
from scanflow.knowledge.filters import parse_filter
from scanflow.modules import load_function, mark_loading
from scanflow.text.failures import parse_failure

__all__ = ["Declared", "collect_declarations", "load_agent"]

_ROOT = "_Root"  # agents' names have no capitals, so none collides with another's second folder

Template = Callable[[Application, Agent], object]
"""Declares the sensors and strategies of a built-in agent, by calling ``sensor`` and ``Strategy``."""


@dataclass(frozen=True, kw_only=True)
class Declared:
    """The sensors and strategies of an agent's modules and template."""

    sensors: tuple[SensorFunction[..., Any], ...]
    """With their effective triggers, nodes and parameters. Names are unique."""

    strategies: tuple[Strategy, ...]
    """Names are unique, and each ``sensor`` is one of the sensors."""

    def sensor(self, name: str) -> SensorFunction[..., Any]:
        """Return the sensor of this name, or raise a NotFoundError."""
        by_name = {sensor.name: sensor for sensor in self.sensors}
        if name not in by_name:
            raise NotFoundError(f"This agent has no sensor {name!r}.{did_you_mean(name, by_name)}")
        return by_name[name]

    def select_strategies(self, sensor: str) -> tuple[Strategy, ...]:
        """Return the strategies that are evaluated on the samples of a sensor."""
        return tuple(strategy for strategy in self.strategies if strategy.sensor == sensor)


def load_agent(app: Application, agent: Agent | str, *, template: Template | None = None) -> Declared:
    """Load an agent's modules, again on each call, and return its sensors and strategies.

    A sensor or strategy of the modules replaces the template's of the same name. An ``sf.Sensor`` of the application
    sets the trigger, nodes, filter and parameters of the function of its name, or names its own function. Modules are
    found relative to ``app.app_dir`` and may import each other, also relatively.

    Raises:
        NotFoundError: a module, a function or the agent does not exist.
        UsageError: a module cannot be loaded; the message has the line.
        InvalidError: the declarations are inconsistent."""
    agent = _get_agent(app, agent)
    folder = Path(app.app_dir).resolve()
    loader = _Loader(f"_agent_{agent.name.replace('-', '_')}", folder)
    built_in: list[Any] = []
    if template is not None:
        with collect_declarations() as built_in:
            template(app, agent)
    with collect_declarations() as declared:
        for name in agent.modules:
            loader.load(name)
        functions = {
            sensor.name: loader.load_function(sensor.function)
            for sensor in agent.sensors
            if sensor.function is not None
        }
    return _assemble(
        app, agent, [declaration for declaration in declared if _belongs_to(declaration, agent)], built_in, functions
    )


def _get_agent(app: Application, agent: Agent | str) -> Agent:
    if isinstance(agent, Agent):
        return agent
    by_name = {candidate.name: candidate for candidate in app.agents}
    if agent not in by_name:
        raise NotFoundError(f"Application {app.name!r} has no agent {agent!r}.{did_you_mean(agent, by_name)}")
    return by_name[agent]


def _belongs_to(declaration: Any, agent: Agent) -> bool:
    """Return whether a declaration belongs to the agent: a sensor that names another agent does not."""
    return not isinstance(declaration, SensorFunction) or declaration.agent in {None, agent.name}


def _assemble(
    app: Application,
    agent: Agent,
    declared: Sequence[Any],
    built_in: Sequence[Any],
    functions: Mapping[str, SensorFunction[..., Any] | Callable[..., Any]],
) -> Declared:
    who = f"Agent {agent.name!r}"
    strategies = _index_by_name(built_in, Strategy, who) | _index_by_name(declared, Strategy, who)
    in_code = _index_by_name(built_in, SensorFunction, who) | _index_by_name(declared, SensorFunction, who)
    sensors = dict(in_code)
    for description in agent.sensors:
        sensors[description.name] = _merge_description(description, in_code, functions.get(description.name), who)
    for strategy in strategies.values():
        _ensure_sensor(strategy, sensors, who)
    for sensor in sensors.values():
        _check_sensor(app, sensor, who)
    if not sensors:
        raise InvalidError(f"{who} has no sensor: none of its modules declares one. Decorate a function: @sensor(...).")
    complete = (_with_parameters(sensor, agent) for sensor in sensors.values())
    return Declared(sensors=tuple(complete), strategies=tuple(strategies.values()))


def _index_by_name(declarations: Iterable[Any], kind: type[Any], who: str) -> dict[str, Any]:
    named: dict[str, Any] = {}
    for declaration in declarations:
        if isinstance(declaration, kind):
            if declaration.name in named:
                noun = "sensors" if kind is SensorFunction else "strategies"
                raise InvalidError(f"{who} has two {noun} named {declaration.name!r}. Rename one.")
            named[declaration.name] = declaration
    return named


def _merge_description(
    sensor: Sensor,
    in_code: Mapping[str, SensorFunction[..., Any]],
    function: SensorFunction[..., Any] | Callable[..., Any] | None,
    who: str,
) -> SensorFunction[..., Any]:
    """Return the sensor function that the application's description refers to, with that description."""
    original = function if function is not None else in_code.get(sensor.name)
    if original is None:
        raise NotFoundError(
            f"{who}: the sensor {sensor.name!r} has no function. Decorate one of that name with @sensor in a module of "
            f"the agent, or write function='file.py:name'.{did_you_mean(sensor.name, in_code)}"
        )
    if not isinstance(original, SensorFunction):
        return SensorFunction(function=original, sensor=sensor)
    merged = sensor.replace(
        nodes=sensor.nodes or original.sensor.nodes,
        filter_string=sensor.filter_string if sensor.filter_string is not None else original.sensor.filter_string,
        limit_s=original.sensor.limit_s if sensor.limit_s is None else sensor.limit_s,
        grace_s=original.sensor.grace_s if sensor.grace_s is None else sensor.grace_s,
        misfire=sensor.misfire or original.sensor.misfire,
    )
    return SensorFunction(function=original.function, sensor=merged)


def _ensure_sensor(strategy: Strategy, sensors: dict[str, SensorFunction[..., Any]], who: str) -> None:
    """Check that the strategy's sensor exists; create one for a bare trigger."""
    when, name = strategy.when, strategy.sensor
    if isinstance(when, SensorFunction | str):
        if name not in sensors:
            raise InvalidError(
                f"{who}: the strategy {strategy.name!r} waits for the sensor {name!r}, which the agent does not have."
                f"{did_you_mean(name, sensors)}"
            )
        return
    if isinstance(when, Sensor):
        if when.function is not None:
            raise InvalidError(
                f"{who}: the strategy {strategy.name!r} has an sf.Sensor with a function of its own. Put that into the "
                f"agent's sensors, and write when={when.name!r}."
            )
        sensors[name] = _merge_description(when, sensors, None, who)
    elif name in sensors:
        raise InvalidError(f"{who}: the sensor {name!r} has the name of the strategy's trigger. Rename the sensor.")
    else:
        sensors[name] = SensorFunction(function=_return_payload, sensor=Sensor(name=name, trigger=when))


def _return_payload(event: Event | None, args: list[JSON], kwargs: dict[str, JSON]) -> JSON:
    """Return the payload of the firing: the event's data, or the call's arguments."""
    if event is not None:
        return {"type": event.type, "subject": event.subject, **event.data}
    if kwargs:
        return kwargs
    return args[0] if len(args) == 1 else args or None


def _check_sensor(app: Application, sensor: SensorFunction[..., Any], who: str) -> None:
    nodes = {node.name for workflow in app.workflows for node in workflow.nodes}
    nodes |= {workflow.name for workflow in app.workflows if workflow.type == "online"}
    if unknown := [node for node in sensor.sensor.nodes if nodes and node not in nodes]:
        raise InvalidError(
            f"{who}: the sensor {sensor.name!r} refers to {unknown[0]!r}, which is not a node of any workflow of "
            f"{app.name!r}.{did_you_mean(unknown[0], nodes)}"
        )
    try:
        parse_filter(sensor.sensor.filter_string or "")
    except UsageError as error:
        raise InvalidError(f"{who}: the sensor {sensor.name!r}: {error}") from error


def _with_parameters(sensor: SensorFunction[..., Any], agent: Agent) -> SensorFunction[..., Any]:
    merged = FrozenDict({**agent.parameters, **sensor.sensor.parameters})
    return SensorFunction(
        function=sensor.function, sensor=sensor.sensor.replace(parameters=merged), timed=sensor.timed, agent=agent.name
    )


class _Loader:
    """Loads the files of a folder as a package of the agent, so that relative imports work."""

    def __init__(self, package: str, folder: Path) -> None:
        self._package = package
        self._folder = folder
        for name in [name for name in sys.modules if name.partition(".")[0].partition(_ROOT)[0] == package]:
            del sys.modules[name]
        importlib.invalidate_caches()
        self._roots: dict[Path, str] = {}

    def load(self, name: str) -> ModuleType:
        """Load a file once and return its module."""
        path = get_file(name, [self._folder])
        # The unresolved path first: a cluster mounts files as links into a folder whose name has dots.
        paths = [Path(os.path.normpath(path)), path.resolve()]
        file = next((candidate for candidate in paths if candidate.is_relative_to(self._folder)), paths[-1])
        root = self._folder if file.is_relative_to(self._folder) else file.parent
        parts = file.relative_to(root).with_suffix("").parts
        if path.suffix != ".py" or any("." in part for part in parts):
            raise InvalidError(
                f"The module {name!r} cannot be loaded: its path must end in '.py' and have no other dot."
            )
        full = ".".join((self._get_root(root), *parts))
        try:
            with mark_loading(path):
                module = importlib.import_module(full)
        except ScanflowError as error:
            frames = traceback.extract_tb(error.__traceback__)
            where = [frame.lineno for frame in frames if frame.filename == str(path.resolve())]
            at = f", line {where[-1]}" if where else ""
            raise UsageError(f"{name}{at}: {error}") from error
        except (Exception, SystemExit) as error:  # whatever a user's file raises is the user's to see
            failure = parse_failure(traceback.format_exc(), summary="", own_folder=str(Path(__file__).parents[1]))
            raise UsageError("\n  ".join([f"{name} cannot be loaded:", *failure.lines()])) from error
        if module.__file__ is None or Path(module.__file__).resolve() != path.resolve():
            raise InvalidError(
                f"The module {name!r} cannot be loaded: a folder of the same name hides it. Rename one of the two."
            )
        return module

    def load_function(self, locator: str) -> Callable[..., Any]:
        """Return the function at ``file.py:name`` or ``package.module:name``."""
        place, _, name = locator.partition(":")
        if not place.endswith(".py"):
            return load_function(locator, None)
        module = self.load(place)
        if not hasattr(module, name):
            raise NotFoundError(f"{place!r} has no {name!r}.{did_you_mean(name, vars(module))}")
        target: Any = getattr(module, name)
        if not callable(target):
            raise InvalidError(f"{locator!r} is not a function.")
        function: Callable[..., Any] = target
        return function

    def _get_root(self, folder: Path) -> str:
        if folder not in self._roots:
            name = self._package if not self._roots else f"{self._package}{_ROOT}{len(self._roots)}"
            root = ModuleType(name)
            root.__path__ = [str(folder)]
            sys.modules[name] = root
            if str(folder) not in sys.path:  # for "import rules" without a dot
                sys.path.insert(0, str(folder))
            self._roots[folder] = name
        return self._roots[folder]
