"""An application's agents, as they are described; what runs them lives elsewhere."""

from __future__ import annotations

import keyword
import re
from collections.abc import Sequence
from typing import Annotated, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from scanflow.app.model import Model, as_tuple
from scanflow.app.parameters import Fixed, Parameters
from scanflow.app.resources import Resources
from scanflow.app.triggers import Trigger
from scanflow.errors import InvalidError
from scanflow.names import check_locator, check_name

__all__ = ["Agent", "AgentTemplate", "Sensor"]

AgentTemplate = Literal["tracker", "checker", "planner", "executor"]


class Sensor(Model):
    """What an agent looks at, and when (thesis listing 5.4)."""

    name: str
    """A Python identifier: the name of the function that is called with what was found."""

    trigger: Trigger
    nodes: Annotated[Sequence[str], AfterValidator(as_tuple)] = ()
    """The workflow nodes whose tracked runs are looked at. Empty: the whole application's."""

    filter_string: str | None = None
    """Which of those runs, in MLflow's filter language."""

    function: Annotated[
        str | None, AfterValidator(lambda value: None if value is None else check_locator(value, "function"))
    ] = None
    """``file.py:name`` or ``package.module:name``. Unset: the template's function of that name."""

    parameters: Parameters = Field(default_factory=Fixed)

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not name.isidentifier() or keyword.iskeyword(name):
            better = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_")
            better = better if better.isidentifier() and not keyword.iskeyword(better) else f"on_{better}".rstrip("_")
            raise InvalidError(
                f"Sensor {name!r} is called by its name, so that has to be a Python name. Write {better!r} instead."
            )
        return name


class Agent(Model):
    """A long-running process that senses, decides and acts."""

    name: str
    template: AgentTemplate | None = None
    """The built-in behaviour it starts from. None: only what you give it."""

    sensors: Annotated[Sequence[Sensor], AfterValidator(as_tuple)] = ()
    modules: Annotated[Sequence[str], AfterValidator(as_tuple)] = ()
    """Files with the agent's own sensors, rules and actuators, relative to the application's folder."""

    parameters: Parameters = Field(default_factory=Fixed)
    """The template's thresholds."""

    image: str | None = None
    resources: Resources = Resources()

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        return check_name(name, "agent")

    @model_validator(mode="after")
    def _check(self) -> Self:
        who = f"Agent {self.name!r}"
        if self.template is None and not self.sensors and not self.modules:
            raise InvalidError(f"{who} would do nothing. Give it a 'template', 'sensors' or 'modules'.")
        names = [sensor.name for sensor in self.sensors]
        for name in names:
            if names.count(name) > 1:
                raise InvalidError(f"{who} has two sensors named {name!r}. Rename one.")
        return self
