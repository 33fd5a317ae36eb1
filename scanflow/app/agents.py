"""An application's agents, as they are described; what runs them lives elsewhere."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, Field, field_validator, model_validator

from scanflow.app.model import Model, as_tuple
from scanflow.app.resources import Resources
from scanflow.app.triggers import Trigger
from scanflow.errors import InvalidError
from scanflow.names import check_name

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

    function: str | None = None
    """``file.py:name`` or ``package.module:name``. Unset: the template's function of that name."""

    parameters: Mapping[str, Any] = Field(default_factory=dict)

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if not name.isidentifier():
            raise InvalidError(f"Sensor {name!r}: a sensor is called by its name. Write {name.replace('-', '_')!r} instead.")
        return name


class Agent(Model):
    """A long-running process that senses, decides and acts."""

    name: str
    template: AgentTemplate | None = None
    """The built-in behaviour it starts from. None: only what you give it."""

    sensors: Annotated[Sequence[Sensor], AfterValidator(as_tuple)] = ()
    modules: Annotated[Sequence[str], AfterValidator(as_tuple)] = ()
    """Files with the agent's own sensors, rules and actuators, relative to the application's folder."""

    parameters: Mapping[str, Any] = Field(default_factory=dict)
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
