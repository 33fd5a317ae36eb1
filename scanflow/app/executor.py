"""The step of a batch workflow."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import cache, cached_property
from typing import Annotated, Any, Literal, NoReturn, Self

from pydantic import AfterValidator, BeforeValidator, Field, PlainSerializer, PlainValidator, model_validator

from scanflow.app.edges import Linkable
from scanflow.app.model import Model, Number, Whole, as_tuple, shorten
from scanflow.app.parameters import FrozenDict, Variables, to_plain, to_plain_mapping
from scanflow.app.quantities import Duration
from scanflow.app.references import RESULT, Condition, Ref, list_references, read_condition, read_reference
from scanflow.app.resources import Affinity, AffinityOrMode, Resources
from scanflow.app.secrets import Secret, iterate_secrets, read_secret
from scanflow.errors import InvalidError
from scanflow.names import check_locator, check_name

__all__ = ["Duration", "Executor", "Retry", "Target"]

# Fields that need a process of the step's own; a step inside the runner's process does not support them.
_NEEDS_A_PROCESS = ("requirements", "image", "resources", "affinity", "timeout", "env")


class Target(str):
    """A function's name, and the function itself if it is available."""

    __slots__ = ("call", "declared")
    call: Callable[..., Any] | None
    declared: Callable[..., Any] | None
    """What says which parameters the function takes: the function, or one without a body, made of its source."""

    def __new__(
        cls, name: str, call: Callable[..., Any] | None = None, *, declared: Callable[..., Any] | None = None
    ) -> Target:
        target = super().__new__(cls, name)
        target.call, target.declared = call, call or declared
        return target


def _to_target(value: Any) -> Target | None:
    if value is None or isinstance(value, Target):
        return value
    return Target(check_locator(value, "function"))


class Retry(Model):
    """The number of retries of a failed step, and the wait before each. ``retries=3`` is a short form."""

    limit: Whole = Field(ge=0, le=100)
    """Attempts after the first."""

    delay: Duration = 1.0
    """Wait before the first retry. None: no wait."""

    factor: Number = Field(default=2.0, ge=1)
    """The factor between consecutive waits; 1 keeps them constant."""

    max_delay: Duration = 60.0
    """The longest wait. None: the first wait."""

    def wait_s(self, failures: int) -> float:
        """Return the seconds to wait after the ``failures``-th failure (1 for the first)."""
        delay = float(self.delay or 0.0)
        longest = float(self.max_delay or delay)
        try:
            return min(delay * self.factor ** (failures - 1), longest)
        except OverflowError:
            return longest


@cache
def _get_process_defaults() -> Mapping[str, Any]:
    fields = Executor.model_fields
    return {name: fields[name].get_default(call_default_factory=True) for name in _NEEDS_A_PROCESS}


def _to_reference(value: Any) -> Any:
    return value.output if isinstance(value, Executor) else read_reference(value)


def _to_special(value: Any) -> Any:
    reference = _to_reference(value)
    return read_secret(value) if reference is None else reference


def _check_items(value: Any) -> Any:
    if value is None:
        return None
    if isinstance(ref := _to_reference(value), Ref):
        return ref
    if not isinstance(value, list | tuple | range):
        raise InvalidError(
            f"for_each cannot be {shorten(value)}. Give it a list, a step that returns a list, or an output that is a "
            "list: load['files']."
        )
    return tuple(to_plain(value, "an item of for_each", special=_to_special))


def _serialize_reference(value: Any) -> Any:
    """Serialize references only: pydantic alone would serialize a list as a reference, and write its text."""
    return value.model_dump(mode="json") if isinstance(value, Ref) else value


def _to_retry(value: Any) -> Any:
    if isinstance(value, Retry | Mapping):
        return value
    if isinstance(value, bool) or not isinstance(value, int):
        raise InvalidError(f"retries cannot be {shorten(value)}. Write retries=3, or sf.Retry(limit=3, delay='10s').")
    return Retry(limit=value)


def _check_requirements(value: Any) -> Any:
    texts = value if isinstance(value, list | tuple) else [value]
    if value is not None and not all(isinstance(text, str) and text.strip() for text in texts):
        raise InvalidError(
            f"requirements cannot be {shorten(value)}. Write a file's name ('requirements.txt') or a list "
            "(['numpy>=2'])."
        )
    return value


def _check_cache(value: Any) -> Any:
    if isinstance(value, bool) or (isinstance(value, str) and value):
        return value
    raise InvalidError(f"cache cannot be {shorten(value)}. Write True, False, or a version as text: cache='v2'.")


def _check_name(name: str) -> str:
    if name == "item":
        raise InvalidError("The executor name 'item' stands for the current item of a fan-out. Choose another.")
    return check_name(name, "executor")


class Executor(Linkable):
    """One step of a batch workflow: a script (``mainfile``) or a ``@sf.step`` function.

    A script is run as ``python <mainfile> --name value ...``. What a step leaves in its output folder
    (``$SCANFLOW_OUTPUT_DIR``), and the values it names with ``sf.output``, are there for later steps.
    """

    kind: Literal["executor"] = "executor"
    """What tells nodes apart in files."""

    name: Annotated[str, AfterValidator(_check_name)]
    """Unique in the workflow; lower-case letters, digits and ``-``."""

    mainfile: str | None = None
    """A script, relative to the application's folder."""

    function: Annotated[str | None, PlainValidator(_to_target, json_schema_input_type=str | None)] = None
    """``file.py:name`` or ``package.module:name``; set by ``@sf.step``."""

    parameters: Annotated[
        Mapping[str, Any],
        BeforeValidator(lambda value: to_plain_mapping(value, special=_to_special)),
        AfterValidator(FrozenDict),
    ] = Field(default_factory=FrozenDict)
    """Plain values, references to earlier steps' outputs (``other["accuracy"]``), or to secrets (``sf.secret``)."""

    requirements: Annotated[
        str | Sequence[str] | None, BeforeValidator(_check_requirements), AfterValidator(as_tuple)
    ] = None
    """A file, or a list, of requirements: the step runs in a cached environment of its own."""

    image: str | None = None
    """A container image, for backends that run containers."""

    env: Variables = Field(default_factory=FrozenDict)
    """Environment variables: texts, or references to secrets."""

    resources: Resources = Resources()
    """The resources of one attempt."""

    affinity: AffinityOrMode = None
    """Where the step may run. None: anywhere."""

    retries: Annotated[Retry | int, BeforeValidator(_to_retry)] = Retry(limit=0)
    """Attempts after the first failure; a number, or a :class:`Retry` with waits."""

    timeout: Duration = None
    """The timeout of an attempt; then its whole process group is terminated."""

    for_each: Annotated[
        Ref | Sequence[Any] | None, BeforeValidator(_check_items), PlainSerializer(_serialize_reference)
    ] = None
    """A list, or a reference to one: the step runs once for each item, which ``sf.item`` stands for."""

    when: Annotated[Condition | None, BeforeValidator(read_condition)] = None
    """The step runs only if this condition holds; else it is skipped."""

    cache: Annotated[bool | str, BeforeValidator(_check_cache)] = False
    """Reuse an earlier run's outputs if code, parameters and input files are the same. Text: a version to bump when
    something else changes."""

    refresh_cache: bool = False
    """Run a cached step although its outputs are in the cache, and put the new ones there."""

    in_process: bool = False
    """Run a cheap function inside the runner's process, without isolation and limits."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        who = f"Executor {self.name!r}"
        if (not self.mainfile) == (self.function is None) or self.mainfile == "":
            raise InvalidError(f"{who} needs either a 'mainfile' (a script) or a @sf.step function, not both.")
        for key in self.parameters:
            if not key or key.startswith("-") or any(sign in key for sign in " =\n\0"):
                raise InvalidError(f"{who} has the parameter {key!r}, which cannot become an option '--name value'.")
        if self.for_each is None and any(ref.step is None for ref in self.references):
            raise InvalidError(f"{who} uses sf.item but has no for_each. Give it the list of items: for_each=...")
        if isinstance(self.for_each, Ref | tuple) and any(ref.step is None for ref in list_references(self.for_each)):
            raise InvalidError(f"{who} uses sf.item in its for_each, which has no item. Give it a list, or a step.")
        if self.in_process:
            self._check_in_process(who)
        return self

    def _check_in_process(self, who: str) -> None:
        if self.function is None:
            raise InvalidError(
                f"{who} is a script, which cannot run in_process. Remove in_process, or write a @sf.step."
            )
        for field, default in _get_process_defaults().items():
            if getattr(self, field) != default:
                raise InvalidError(
                    f"{who} is in_process, where {field!r} is not supported. Remove {field!r}, or in_process=True."
                )
        if self.secrets:
            raise InvalidError(
                f"{who} is in_process, where secrets are not supported: what it prints could not be masked. Remove "
                f"{self.secrets[0]!r}, or in_process=True."
            )

    @property
    def output(self) -> Ref:
        """A reference to all that the step returns."""
        return Ref(step=self.name)

    def __getitem__(self, output: str) -> Ref:
        """Return a reference to a named output, or to a key of the mapping that the function returns."""
        if output == RESULT and self.function is not None:
            raise InvalidError(
                f"{self.name}['result'] may be all that the function returns, or a key of it. Write {self.name}.output "
                "for all of it, or return that key under another name."
            )
        return Ref(step=self.name, output=output)

    def __iter__(self) -> NoReturn:
        raise InvalidError(
            f"The result of {self.name!r} is known only at run time, so it cannot be iterated over here. Run a step "
            f"for each of its items: step.map({self.name})."
        )

    @cached_property
    def references(self) -> tuple[Ref, ...]:
        """The references to other steps' outputs in its parameters, its items and its condition."""
        return tuple(list_references([self.parameters, self.for_each, self.when]))

    @cached_property
    def secrets(self) -> tuple[Secret, ...]:
        """The secrets that it refers to, each once."""
        return tuple(dict.fromkeys(iterate_secrets([self.parameters, self.for_each, self.env])))

    @property
    def target(self) -> Target | None:
        """The function of the step, and the file or module that it is in. None: it is a script."""
        return _to_target(self.function)

    @property
    def avoid_services(self) -> Sequence[str]:
        """The online workflows whose cores the step avoids."""
        return self.affinity.avoid_services if isinstance(self.affinity, Affinity) else ()

    @property
    def settable(self) -> tuple[str, ...]:
        """The parameters that can be set: the given ones, and those of its function, if they are known."""
        call = None if self.target is None else self.target.declared
        own = () if call is None else inspect.signature(getattr(call, "function", call)).parameters
        return tuple(dict.fromkeys([*self.parameters, *own]))

    @property
    def retry(self) -> Retry:
        """Its retries, also where they are given as a number."""
        return self.retries if isinstance(self.retries, Retry) else Retry(limit=self.retries)

    @property
    def timeout_s(self) -> float | None:
        """Its timeout in seconds. None: it has none."""
        return None if self.timeout is None else float(self.timeout)
