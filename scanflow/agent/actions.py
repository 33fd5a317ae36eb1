"""The actions of a strategy, as values: a primitive (:class:`Act`), or a call to another agent (:class:`Call`)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator, BeforeValidator, Field

from scanflow.agent.agent_records import JSON
from scanflow.agent.primitive_model import Act
from scanflow.app.agent import Sensor
from scanflow.app.model import Model, as_tuple
from scanflow.app.parameters import FrozenDict, Parameters, to_plain
from scanflow.app.secrets import dump_secrets
from scanflow.app.triggers import CallReceive
from scanflow.names import check_name

__all__ = ["Act", "Call", "Doing", "call"]


def _serialize_list(value: Any) -> Any:
    if not isinstance(value, list | tuple):
        return value
    return tuple(to_plain(inner, f"the argument {index}") for index, inner in enumerate(value, 1))


class Call(Model):
    """A call to a sensor of another agent, or of the same."""

    agent: Annotated[str, AfterValidator(lambda name: check_name(name, "agent"))]
    """The name of the agent."""

    sensor: Annotated[str, AfterValidator(lambda name: Sensor(name=name, trigger=CallReceive()).name)]
    """The name of its sensor."""

    args: Annotated[Sequence[JSON], BeforeValidator(_serialize_list), AfterValidator(as_tuple)] = ()
    """Positional arguments for the sensor, as JSON values."""

    kwargs: Parameters = Field(default_factory=FrozenDict)
    """Arguments for the sensor by name, as JSON values."""

    key: str = ""
    """Idempotency key: the same key is never called twice. Empty: each call counts."""

    @property
    def path(self) -> str:
        """The route of the sensor: ``/sensors/NAME``."""
        return f"/sensors/{self.sensor}"

    def payload(self) -> Mapping[str, JSON]:
        """Return the body of the request to the other agent."""
        return {"args": list(self.args), "kwargs": {name: dump_secrets(value) for name, value in self.kwargs.items()}}

    def __str__(self) -> str:
        arguments = [
            *(repr(value) for value in self.args),
            *(f"{name}={value!r}" for name, value in self.kwargs.items()),
        ]
        return f"{self.agent}.{self.sensor}({', '.join(arguments)})"


Doing: TypeAlias = Act | Call
"""One action of a strategy."""


def call(agent: str, sensor: str, /, *args: Any, **kwargs: Any) -> Call:
    """Return a call to ``sensor`` of ``agent``, with JSON-serializable arguments."""
    return Call(agent=agent, sensor=sensor, args=args, kwargs=kwargs)
