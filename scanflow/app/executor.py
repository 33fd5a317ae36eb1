"""The step of a batch workflow."""

from __future__ import annotations

import inspect
import json
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import PurePath
from typing import Annotated, Any, Literal, Self

from pydantic import AfterValidator, BeforeValidator, Field, PlainValidator, field_serializer, model_validator

from scanflow.app.edges import Linkable
from scanflow.app.model import Model, as_tuple
from scanflow.app.quantities import parse_duration
from scanflow.app.references import Condition, Ref, read_references, references_in
from scanflow.app.resources import Affinity, Resources
from scanflow.errors import InvalidError
from scanflow.names import check_name

__all__ = ["Duration", "Executor", "Retry", "Target"]

Duration = Annotated[float | str | None, BeforeValidator(lambda value: None if value is None else parse_duration(value))]
"""Seconds, or ``"90s"``, ``"15m"``, ``"1h30m"``; held as seconds. None: without limit."""

# What asks for a process of the step's own; a step inside the runner's process cannot honour these.
_NEEDS_A_PROCESS = ("requirements", "image", "resources", "affinity", "timeout", "env")


class Target(str):
    """A function's name, ``file.py:name`` or ``package.module:name``, and the function itself where it is at hand."""

    __slots__ = ("call",)
    call: Callable[..., Any] | None

    def __new__(cls, name: str, call: Callable[..., Any] | None = None) -> Target:
        """Name ``call``."""
        target = super().__new__(cls, name)
        target.call = call
        return target


def _target(value: Any) -> Target | None:
    if value is None or isinstance(value, Target):
        return value
    if not isinstance(value, str) or not all(value.rpartition(":")[::2]):
        raise InvalidError(f"The function {value!r} cannot be read. Write 'file.py:name' or 'package.module:name'.")
    return Target(value)


class Retry(Model):
    """How often a failed step is tried again, and how long to wait before each try. ``retries=3`` is short for it."""

    limit: int = Field(ge=0, le=100)
    """Tries after the first."""

    delay: Duration = 1.0
    """Wait before the first retry."""

    factor: float = Field(default=2.0, ge=1)
    """By how much each next wait is longer; 1 keeps it constant."""

    max_delay: Duration = 60.0
    """The longest wait."""

    def wait_s(self, failures: int) -> float:
        """Return the seconds to wait after the ``failures``-th failure (1 for the first)."""
        delay = float(self.delay or 0.0)
        longest = float(self.max_delay or delay)
        return min(delay * self.factor ** (failures - 1), longest)


class Executor(Linkable):
    """One step of a batch workflow: a script (``mainfile``) or a ``@sf.step`` function.

    A script is run as ``python <mainfile> --name value ...``, with one pair for each parameter. What a step leaves in its
    output folder (``$SCANFLOW_OUTPUT_DIR``), and the values it names with ``sf.output``, are there for later steps.
    """

    kind: Literal["executor"] = "executor"

    name: str
    """Unique in the workflow; lower-case letters, digits and ``-``."""

    mainfile: str | None = None
    """A script, relative to the application's folder."""

    function: Annotated[str | None, PlainValidator(_target)] = None
    """A function as ``file.py:name`` or ``package.module:name``; made by ``@sf.step``."""

    parameters: Mapping[str, Any] = Field(default_factory=dict)
    """Plain values, or references to earlier steps' outputs (``other["accuracy"]``)."""

    requirements: Annotated[str | Sequence[str] | None, AfterValidator(as_tuple)] = None
    """A requirements file, or a list of requirements. The step then runs in a cached environment of its own."""

    image: str | None = None
    """A container image, for backends that run containers."""

    env: Mapping[str, str] = Field(default_factory=dict)
    """Environment variables of this step only."""

    resources: Resources = Resources()
    affinity: Annotated[Affinity | str | None, BeforeValidator(Affinity.coerce)] = None

    retries: Annotated[
        Retry | int, BeforeValidator(lambda value: Retry(limit=value) if isinstance(value, int) else value)
    ] = Retry(limit=0)
    """Tries after the first failed one; a number, or a :class:`Retry` with waits."""

    timeout: Duration = None
    """The longest one try may take; then its whole process group is ended."""

    for_each: Annotated[Ref | Sequence[Any] | None, BeforeValidator(read_references), AfterValidator(as_tuple)] = None
    """A list, or a reference to one: the step runs once for each item, which ``sf.item`` stands for."""

    when: Condition | None = None
    """The step runs only if this holds; else it is skipped."""

    cache: bool | str = False
    """Reuse the outputs of an earlier run with the same code, parameters and input files. Text is a version to change."""

    in_process: bool = False
    """Run a cheap function inside the runner's process: no isolation, and no limit can be put on it."""

    @field_serializer("for_each")
    def _write_for_each(self, value: Ref | Sequence[Any] | None) -> Any:
        # Left to itself, pydantic tries the reference's serializer on a list too, and writes its text.
        return value.model_dump(mode="json") if isinstance(value, Ref) else value

    @model_validator(mode="before")
    @classmethod
    def _prepare(cls, data: Any) -> Any:
        if not isinstance(data, dict):
            return data
        data = dict(data)
        name = data.get("name")
        if isinstance(name, str):
            check_name(name, "executor")
        parameters = data.get("parameters")
        if isinstance(parameters, Mapping):
            data["parameters"] = {str(key): _plain(value, str(key), name) for key, value in parameters.items()}
        if isinstance(data.get("for_each"), Executor):
            data["for_each"] = data["for_each"].output
        return data

    @model_validator(mode="after")
    def _check(self) -> Self:
        who = f"Executor {self.name!r}"
        if (self.mainfile is None) == (self.function is None):
            raise InvalidError(f"{who} needs either a 'mainfile' (a script) or a @sf.step function, and not both.")
        for key in self.parameters:
            if not key or key.startswith("-") or any(sign in key for sign in " =\n\0"):
                raise InvalidError(f"{who} has the parameter {key!r}, which cannot become an option '--name value'.")
        if self.for_each is None and any(ref.step is None for ref in self.references):
            raise InvalidError(f"{who} uses sf.item but has no for_each. Give it the list to run over: for_each=...")
        if self.in_process:
            self._check_in_process(who)
        return self

    def _check_in_process(self, who: str) -> None:
        if self.function is None:
            raise InvalidError(f"{who} is a script, which cannot run in_process. Remove in_process, or write a @sf.step.")
        for field in _NEEDS_A_PROCESS:
            if getattr(self, field) != type(self).model_fields[field].get_default(call_default_factory=True):
                raise InvalidError(
                    f"{who} is in_process, where {field!r} cannot be honoured. Remove {field!r}, or in_process=True."
                )

    @property
    def output(self) -> Ref:
        """What the step's function returns (its output ``result``)."""
        return Ref(step=self.name)

    def __getitem__(self, output: str) -> Ref:
        """Return a reference to a named output, or to a key of the mapping that the function returns."""
        return Ref(step=self.name, output=output)

    @cached_property
    def references(self) -> tuple[Ref, ...]:
        """Every reference this step makes: in its parameters, its list, its condition."""
        return tuple(references_in([self.parameters, self.for_each, self.when]))

    @property
    def target(self) -> Target | None:
        """The function, if the step is one."""
        return _target(self.function)

    @property
    def settable(self) -> tuple[str, ...]:
        """The parameters that can be set: those given, and those that its function has where that is at hand."""
        call = None if self.target is None else self.target.call
        own = () if call is None else inspect.signature(getattr(call, "function", call)).parameters
        return tuple(dict.fromkeys([*self.parameters, *own]))

    @property
    def retry(self) -> Retry:
        """The retry policy, whichever way it was written."""
        return self.retries if isinstance(self.retries, Retry) else Retry(limit=self.retries)

    @property
    def timeout_s(self) -> float | None:
        """The time limit of one try in seconds."""
        return None if self.timeout is None else float(self.timeout)


def _plain(value: Any, key: str, owner: object) -> Any:
    """Return a parameter's value as JSON can hold it; nodes become references to their output, paths become text."""
    if isinstance(value, Executor):
        return value.output
    if isinstance(value, Ref):
        return value
    if isinstance(value, PurePath):
        return str(value)
    if isinstance(value, Mapping) and "$from" not in value:
        return {str(name): _plain(inner, key, owner) for name, inner in value.items()}
    if isinstance(value, list | tuple):
        return [_plain(inner, key, owner) for inner in value]
    if isinstance(value, Mapping):
        return read_references(value)
    try:
        json.dumps(value)
    except (TypeError, ValueError):
        raise InvalidError(
            f"Executor {owner!r}: the parameter {key!r} is a {type(value).__name__}, which cannot be written down. Use "
            "text, numbers, true/false, lists, mappings or paths; have a step load or make anything else."
        ) from None
    return value
