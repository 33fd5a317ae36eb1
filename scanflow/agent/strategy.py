"""A strategy: WHEN a sensor fires IF a rule holds THEN act (thesis 5.3.1: events, constraints, actions)."""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeAlias

from pydantic import AfterValidator, Field, PlainValidator

from scanflow.agent.actions import Act, Call, Doing
from scanflow.agent.actuators.actuator import Actuator
from scanflow.agent.agent_records import Autonomy, Guard
from scanflow.agent.rules import Rule, make_rule
from scanflow.app.agent import Sensor, SensorFunction, declare
from scanflow.app.model import Model, Whole, shorten
from scanflow.app.parameters import FrozenDict
from scanflow.app.quantities import Seconds, Wait
from scanflow.app.triggers import AllOf, AnyOf, CallReceive, Cron, Date, EventTrigger, Interval, Trigger
from scanflow.errors import InvalidError, did_you_mean

When: TypeAlias = SensorFunction[..., Any] | Sensor | Trigger | str
"""A sensor, its name, or a bare trigger."""

Then: TypeAlias = Doing | Callable[..., Any] | Sequence[Doing | Callable[..., Any]]
"""A primitive, a call, a function that returns those (or None), or a list of these."""

May: TypeAlias = Mapping[str, str | Sequence[str]]
"""Primitives by name, with their targets: ``{"run_workflow": "workflow/training", "stop_workflow": "run/*"}``."""

_TARGET = re.compile(r"\*|[a-z]+/(\*|[^/*\s]+)")
_TRIGGERS = (Interval, Date, Cron, CallReceive, EventTrigger, AllOf, AnyOf)


def _validate_when(value: Any) -> Any:
    if isinstance(value, (SensorFunction, Sensor, str, *_TRIGGERS)):
        return value
    raise InvalidError(
        f"when cannot be {shorten(value)}. Give it a function decorated with @sensor, the name of a sensor, or a "
        "trigger such as sf.every(hours=1)."
    )


def _validate_if(value: Any) -> Any:
    return None if value is None else make_rule(value)


def _validate_then(value: Any) -> Any:
    actions = tuple(value) if isinstance(value, list | tuple) else (value,)
    if not actions:
        raise InvalidError("'then' is empty. Give it a primitive or a call.")
    for action in actions:
        if isinstance(action, Act | Call):
            continue
        if not callable(action) or (isinstance(action, type) and not issubclass(action, Act)):
            raise InvalidError(
                f"'then' cannot be {shorten(action)}. Write a primitive (do.run_workflow('training')), a call "
                "(call('checker', 'check_predictions')), a function that returns those, or a list."
            )
        plain = action.function if isinstance(action, Actuator) else action
        if inspect.iscoroutinefunction(plain):
            raise InvalidError(
                f"'then' has {getattr(action, '__name__', shorten(action))!r}, which is async. Write 'def' instead."
            )
    return actions


def _validate_may(value: Any) -> Any:
    from scanflow.agent.primitives import catalogue

    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise InvalidError(
            f"'may' cannot be {shorten(value)}. Write primitives with their targets: "
            "may={'run_workflow': 'workflow/training'}."
        )
    primitives = {primitive.name for primitive in catalogue()}
    may: dict[str, tuple[str, ...]] = {}
    for primitive, targets in value.items():
        if primitive not in primitives:
            raise InvalidError(
                f"'may' names {shorten(primitive)}, which is not a primitive."
                f"{did_you_mean(str(primitive), primitives)} See: scanflow strategies primitives"
            )
        may[primitive] = (targets,) if isinstance(targets, str) else tuple(targets)
        for target in may[primitive]:
            if _TARGET.fullmatch(str(target)) is None:
                raise InvalidError(
                    f"'may' has the target {shorten(target)} for {primitive!r}. Write 'workflow/NAME', 'service/NAME', "
                    "'run/NAME', with * as the name for any, or '*'."
                )
    return FrozenDict(may)


def _check_name(name: str) -> str:
    if re.fullmatch(r"[a-z0-9]([-_a-z0-9]{0,61}[a-z0-9])?", name):
        return name
    better = re.sub(r"[^a-z0-9]+", "_", name.lower()).strip("_")[:63].strip("_") or "strategy"
    raise InvalidError(
        f"Strategy {shorten(name)}: a name is 1 to 63 lower-case letters, digits, '-' and '_'. Write "
        f"{better!r} instead."
    )


class Strategy(Model):
    """WHEN a sensor fires, IF a rule holds for its value, THEN primitives and calls are requested.

    Created while an agent's module is loaded, it belongs to that agent; no variable is needed.
    """

    name: Annotated[str, AfterValidator(_check_name)]
    """Unique in the agent."""

    when: Annotated[When, PlainValidator(_validate_when)]
    """A sensor or its name. With a bare trigger, the sample is the payload of the call or event."""

    if_: Annotated[Callable[..., bool] | None, PlainValidator(_validate_if)] = None
    """A function of the sensor's value. None: always. See :mod:`scanflow.agent.decide` for its parameters."""

    then: Annotated[Then, PlainValidator(_validate_then)]
    """The actions. A function gets the same values as the rule."""

    may: Annotated[May | None, PlainValidator(_validate_may)] = None
    """What the functions in ``then`` may request: primitives by name, with their targets. None: the primitives and
    targets that are in their code. Anything else waits for approval by a person."""

    priority: Whole = 0
    """Of two intents for the same field, the one with the higher priority wins."""

    autonomy: Autonomy = "auto"
    """``observe``: actions are only recorded. ``suggest``: they are proposed to people. ``approve``: they wait for a
    person. ``auto``: they are carried out."""

    cool_down: Wait = 0.0
    """How long it waits after an action before it acts on the same target again. 0: not at all."""

    hysteresis: Wait = 0.0
    """How long a change stays in place: until then a reverse change is refused, against oscillation. 0: not at all.
    For a condition that must have held for a while, have the sensor return the time when it began, and compare that in
    the rule."""

    budget: Whole | None = Field(default=None, ge=1)
    """The maximum number of actions in ``budget_window``. None: no limit."""

    budget_window: Seconds = 3600.0
    """The period of ``budget``, in seconds."""

    guard: Guard | None = None
    """A metric that must not get worse after its actions, else they are reverted."""

    def model_post_init(self, context: Any, /) -> None:  # noqa: ARG002  what pydantic calls
        """Register the strategy with the agent that is being loaded."""
        declare(self)

    @property
    def sensor(self) -> str:
        """The name of its sensor. For a bare trigger, a sensor is named after the strategy."""
        if isinstance(self.when, str):
            return self.when
        if isinstance(self.when, SensorFunction | Sensor):
            return self.when.name
        return f"when_{self.name}".replace("-", "_")

    @property
    def rule(self) -> Rule | None:
        """Its rule, with a name. None: its actions always follow."""
        return None if self.if_ is None else make_rule(self.if_)

    @property
    def actions(self) -> tuple[Doing | Callable[..., Any], ...]:
        """The actions in ``then``, always as a tuple."""
        return self.then if isinstance(self.then, tuple) else _validate_then(self.then)
