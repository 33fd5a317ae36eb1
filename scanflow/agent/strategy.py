"""A strategy: WHEN a sensor fires IF a rule holds THEN act (thesis 5.3.1: events, constraints, actions)."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Sequence
from typing import Annotated, Any, TypeAlias

from pydantic import Field, PlainValidator, field_validator

from scanflow.agent.actions import Act, Call, Doing
from scanflow.agent.actuators.actuator import Actuator
from scanflow.agent.records import Autonomy, Guard
from scanflow.agent.rules import Rule, rule_of
from scanflow.app.agents import Sensor, SensorFunction, declare
from scanflow.app.model import Model, Whole, short
from scanflow.app.quantities import Seconds, Wait
from scanflow.app.triggers import AllOf, AnyOf, CallReceive, Cron, Date, EventTrigger, Interval, Trigger
from scanflow.errors import InvalidError

When: TypeAlias = SensorFunction[..., Any] | Sensor | Trigger | str
"""A sensor, its name, or a trigger alone."""

Then: TypeAlias = Doing | Callable[..., Any] | Sequence[Doing | Callable[..., Any]]
"""An act, a call, a function that returns those (or None, for nothing), or a list of all these."""

_TRIGGERS = (Interval, Date, Cron, CallReceive, EventTrigger, AllOf, AnyOf)


def _when(value: Any) -> Any:
    if isinstance(value, (SensorFunction, Sensor, str, *_TRIGGERS)):
        return value
    raise InvalidError(
        f"when cannot be {short(value)}. Give it a function decorated with @sensor, the name of a sensor, or a trigger "
        "such as sf.every(hours=1)."
    )


def _if(value: Any) -> Any:
    return None if value is None else rule_of(value)


def _then(value: Any) -> Any:
    wanted = tuple(value) if isinstance(value, list | tuple) else (value,)
    if not wanted:
        raise InvalidError("then is empty: nothing would be done. Give it a primitive or a call.")
    for one in wanted:
        if isinstance(one, Act | Call):
            continue
        if not callable(one) or (isinstance(one, type) and not issubclass(one, Act)):
            raise InvalidError(
                f"then cannot be {short(one)}. Write a primitive (do.run_workflow('training')), a call "
                "(call('checker', 'check_predictions')), a function that returns those, or a list."
            )
        plain = one.function if isinstance(one, Actuator) else one
        if inspect.iscoroutinefunction(plain):
            raise InvalidError(
                f"then has {getattr(one, '__name__', short(one))!r}, which is async. Write 'def' instead."
            )
    return wanted


class Strategy(Model):
    """WHEN a sensor fires, IF a rule holds for what it returned, THEN acts and calls are wanted.

    Made while an agent's module is loaded, it belongs to that agent; it need not be kept in a variable.
    """

    name: str
    when: Annotated[When, PlainValidator(_when)]
    """A sensor (or its name). A trigger alone also does: then the sample is what the call or event brought."""

    if_: Annotated[Callable[..., bool] | None, PlainValidator(_if)] = None
    """A function of what the sensor returned. None: always. See :mod:`scanflow.agent.decide` for its parameters."""

    then: Annotated[Then, PlainValidator(_then)]
    """What is wanted. A function gets the same values as the rule."""

    priority: Whole = 0
    """Of two that want the same field, the one with the higher wins."""

    autonomy: Autonomy = "auto"
    cool_down: Wait = 0.0
    """After an action on a target, how long it leaves that target alone. 0: not at all."""

    hysteresis: Wait = 0.0
    """For how long a change is left standing: within it, what takes the last one back is refused, so that nothing goes
    up and down by turns. 0: not at all. What is to act only after something has been so for a while says so in its
    rule: the sensor tells since when."""

    budget: Whole | None = Field(default=None, ge=1)
    """The most actions in ``budget_window``. None: as many as it wants."""

    budget_window: Seconds = 3600.0
    guard: Guard | None = None
    """What must not get worse through it, else it is undone."""

    @field_validator("name")
    @classmethod
    def _check_name(cls, name: str) -> str:
        if re.fullmatch(r"[a-z0-9]([-_a-z0-9]{0,61}[a-z0-9])?", name):
            return name
        better = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")[:63].strip("_") or "strategy"
        raise InvalidError(
            f"Strategy {short(name)}: a name is 1 to 63 lower-case letters, digits, '-' and '_'. Write "
            f"{better!r} instead."
        )

    def model_post_init(self, context: Any, /) -> None:  # noqa: ARG002  what pydantic calls
        """Add it to what the agent that is being loaded declares."""
        declare(self)

    @property
    def sensor(self) -> str:
        """The name of the sensor whose samples it decides on. A trigger alone has one named after the strategy."""
        if isinstance(self.when, str):
            return self.when
        if isinstance(self.when, SensorFunction | Sensor):
            return self.when.name
        return f"when_{self.name}".replace("-", "_")

    @property
    def rule(self) -> Rule | None:
        return None if self.if_ is None else rule_of(self.if_)

    @property
    def wanted(self) -> tuple[Doing | Callable[..., Any], ...]:
        """What it wants, always as a list."""
        return self.then if isinstance(self.then, tuple) else _then(self.then)
