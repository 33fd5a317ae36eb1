"""A primitive declared once: its fields are its arguments, and it says what it writes and how it is carried out.

The author of a strategy, the arbiter and the control plane use this one class. A package of a user's own adds one by an
entry point::

    [project.entry-points."scanflow.primitives"]
    warm_cache = "my_package:WarmCache"
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from types import NoneType
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, Literal, dataclass_transform, get_args, get_origin

from pydantic import AfterValidator, ConfigDict, Field, ValidationError
from pydantic_core import ErrorDetails

from scanflow.agent.primitive_context import PrimitiveContext, PrimitiveResult
from scanflow.app.model import Model, short
from scanflow.errors import InvalidError, UsageError, did_you_mean
from scanflow.names import check_name
from scanflow.plugins import load_plugin, plugin_names

__all__ = ["PrimitiveContext", "PrimitiveModel", "PrimitiveResult"]

Kind = Literal["batch", "online", "mpi"]
Layer = Literal["application", "infrastructure"]
"""Thesis 5.2.3: what the workflow is to be, or which executors and instances there are."""

_BOUNDS = frozenset({"greater_than", "greater_than_equal", "less_than", "less_than_equal", "too_short"})
_TYPES: Mapping[Any, str] = {str: "text", int: "whole number", float: "number", bool: "true or false", dict: "mapping"}


class Parameter(Model):
    """A parameter of a primitive, as it is listed."""

    name: str
    type: str
    """In words: ``text``, ``whole number``, ``mapping``, ``any of cpu, cpumem``."""

    required: bool
    what: str


class Primitive(Model):
    """One operation, as it is listed: ``scanflow strategies primitives``."""

    name: str
    layer: Layer
    kind: Kind
    what: str
    """What it does, in one sentence."""

    target: str
    """What it writes to: ``workflow/NAME``, ``service/NAME`` or ``run/NAME``, with the parameter's name."""

    fields: tuple[str, ...]
    """What it may write of the target."""

    inverse: bool
    """Whether it can be undone."""

    parameters: tuple[Parameter, ...] = ()


class Act:
    """A primitive with its arguments: what a strategy wants done. Made by :mod:`scanflow.agent.primitives`."""

    name: ClassVar[str]
    """As strategies write it: ``do.NAME(...)``."""

    layer: ClassVar[Layer] = "application"
    kind: ClassVar[Kind] = "batch"
    writes: ClassVar[tuple[str, ...]]
    """The fields of the target that it writes: two actions that write the same one conflict. One executor's field is
    ``EXECUTOR.FIELD``."""

    reversible: ClassVar[bool] = False
    """Whether it can be undone."""

    workflow: str

    @property
    def primitive(self) -> str:
        return self.name

    @property
    def workflow_kind(self) -> Kind | None:
        """The kind of workflow that it is for; None: any that it has a row for."""
        return self.kind

    @property
    def target(self) -> str:
        """What it changes: ``workflow/NAME``, ``service/NAME`` or ``run/NAME``."""
        return f"{'service' if self.workflow_kind == 'online' else 'workflow'}/{self.workflow}"

    @property
    def fields(self) -> tuple[str, ...]:
        return self.writes

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments, as JSON holds them; those that are left to their default None are not there."""
        raise NotImplementedError

    def said(self, argument: str) -> bool:
        """Say whether an argument was given."""
        raise NotImplementedError

    def carry_out(self, context: PrimitiveContext) -> PrimitiveResult:
        """Do it, and return what was done. Called again with the same key after a kill, it must be as if done once."""
        raise NotImplementedError(f"{type(self).__name__} does not say how it is carried out.")

    def __str__(self) -> str:
        return f"{self.primitive}({', '.join(f'{name}={value!r}' for name, value in self.arguments.items())})"


class AsWritten(dict[str, Any]):
    """Arguments as JSON holds them, where null says something, and is not an argument that was left out."""


class PrimitiveModel(Act, Model):
    """One operation. Subclass it: the fields are the arguments, the docstring's first sentence says what it does."""

    workflow: str = Field(kw_only=False)
    """The name of the workflow, or service, that it is about."""

    if not TYPE_CHECKING:  # type checkers keep the signature that is synthesised from the fields

        def __init__(self, /, *args: Any, **given: Any) -> None:
            given = dict(args[0]) if args and isinstance(args[0], AsWritten) else self._given(args, given)
            try:
                super().__init__(**given)
            except InvalidError as error:
                if isinstance(error.__cause__, ValidationError):
                    raise InvalidError(self._message(error.__cause__)) from None
                raise

    @property
    def arguments(self) -> dict[str, Any]:
        dumped = self.model_dump(mode="json", by_alias=True)
        return {
            argument: dumped[argument]
            for name, argument in self._arguments().items()
            if getattr(self, name) is not None or self.said(name)
        }

    def said(self, argument: str) -> bool:
        return argument in self.model_fields_set

    @property
    def of_inverses(self) -> list[str]:
        """What was given of the arguments that only inverses have."""
        return [name for name, field in type(self).model_fields.items() if field.init is False and self.said(name)]

    @classmethod
    def row(cls, kind: Kind | None = None, what: str = "", **changes: Any) -> Primitive:
        """Return it as it is listed, for one kind of workflow."""
        kind = kind or cls.kind
        given: dict[str, Any] = {
            "name": cls.name,
            "layer": cls.layer,
            "kind": kind,
            "what": what or (inspect.getdoc(cls) or "").partition(".")[0] + ".",
            "target": "service/WORKFLOW" if kind == "online" else "workflow/WORKFLOW",
            "fields": cls.writes,
            "inverse": cls.reversible,
            "parameters": tuple(cls._parameters()),
        }
        return Primitive(**{**given, **changes})

    @classmethod
    def rows(cls) -> tuple[Primitive, ...]:
        return (cls.row(),)

    @classmethod
    def _parameters(cls) -> list[Parameter]:
        return [
            Parameter(
                name=argument,
                type=type_name(field.annotation),
                required=field.is_required(),
                what=field.description or "",
            )
            for field, argument in zip(cls.model_fields.values(), cls._arguments().values(), strict=True)
            if field.init is not False
        ]

    @classmethod
    def _arguments(cls) -> dict[str, str]:
        return {name: field.alias or name for name, field in cls.model_fields.items()}

    @classmethod
    def _given(cls, args: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        in_order = [name for name, field in cls.model_fields.items() if field.kw_only is False]
        if len(args) > len(in_order):
            names = ", ".join(in_order)
            raise InvalidError(f"{cls._who()} takes {names} without a name, and the others by theirs: name=value.")
        given = dict(zip(in_order, args, strict=False))
        if doubled := sorted(given.keys() & named.keys()):
            raise InvalidError(f"{cls._who()} was given {doubled[0]!r} twice. Remove one.")
        return {**given, **named}

    @classmethod
    def _message(cls, error: ValidationError) -> str:
        return "\n".join(dict.fromkeys(cls._line(detail) for detail in error.errors(include_url=False)))

    @classmethod
    def _line(cls, detail: ErrorDetails) -> str:
        argument = str(detail["loc"][0]) if detail["loc"] else ""
        names = cls._arguments()
        match detail["type"]:
            case "extra_forbidden" if len(detail["loc"]) == 1:
                return f"{cls._who()} has no argument {argument!r}.{did_you_mean(argument, names.values())}"
            case "missing" if len(detail["loc"]) == 1:
                return f"{cls._who()} needs the argument {argument!r}."
            case "value_error" if isinstance(cause := detail.get("ctx", {}).get("error"), InvalidError):
                return str(cause)
            case kind if kind in _BOUNDS or (len(detail["loc"]) > 1 and not detail["type"].endswith("_type")):
                where = ".".join(str(part) for part in detail["loc"])
                reason = detail["msg"].replace("Input should", "it should")
                return f"{cls._who()}: {where} cannot be {short(detail['input'])}: {reason}."
        field = next((cls.model_fields[name] for name, known in names.items() if known == argument), None)
        wanted = "" if field is None else f" It is {type_name(field.annotation)}."
        return f"{cls._who()}: {argument} cannot be {short(detail['input'])}.{wanted}"

    @classmethod
    def _who(cls) -> str:
        return f"The primitive {cls.name!r}"


WorkflowName = Annotated[str, AfterValidator(lambda name: check_name(name, "workflow"))]

if TYPE_CHECKING:  # what type checkers are to make of the models below: what is in order may be given without a name

    @dataclass_transform(kw_only_default=True, field_specifiers=(Field,))
    class _Checked(Act):
        @classmethod
        def row(cls, kind: Kind | None = None, what: str = "", **changes: Any) -> Primitive: ...

        @classmethod
        def rows(cls) -> tuple[Primitive, ...]: ...

else:
    _Checked = PrimitiveModel


class BuiltIn(_Checked):
    """A primitive of thesis Table 5.4.

    An argument that its author gives as None is left out, but for those in ``nulls``. Those that it has no name for are
    put into the mapping ``rest``.
    """

    reversible = True
    nulls: ClassVar[frozenset[str]] = frozenset()
    rest: ClassVar[str] = ""

    workflow: WorkflowName = Field(kw_only=False, description="The workflow's name.")

    if not TYPE_CHECKING:
        model_config = ConfigDict(strict=True)  # neither "3" nor True is a number

        @classmethod
        def _given(cls, args: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
            given = super()._given(args, named)
            if cls.rest:
                known = set(cls._arguments().values())
                more = {name: given.pop(name) for name in list(given) if name not in known}
                held = given.pop(cls.rest, None) or {}
                if isinstance(held, Mapping):
                    if doubled := sorted(held.keys() & more.keys()):
                        raise InvalidError(f"The parameter {doubled[0]!r} is given twice. Remove one.")
                    held = {**held, **more} or None
                given[cls.rest] = held
            return {name: value for name, value in given.items() if value is not None or name in cls.nulls}

        @classmethod
        def _parameters(cls) -> list[Parameter]:
            what = "Parameters, written as arguments."
            more = Parameter(name="**more", type="anything", required=False, what=what)
            return [*super()._parameters(), *([more] if cls.rest else [])]


def type_name(hint: Any) -> str:
    """Return a type for people: ``text``, ``whole number``, ``mapping``."""
    if hint is Any:
        return "anything"
    if hint in _TYPES:
        return _TYPES[hint]
    if get_origin(hint) is Annotated:
        return type_name(get_args(hint)[0])
    parts = [part for part in get_args(hint) if part is not NoneType]
    if parts and all(isinstance(part, str) for part in parts):
        return f"any of {', '.join(parts)}"
    if get_origin(hint) in {dict, Mapping}:
        return "mapping"
    return " or ".join(dict.fromkeys(type_name(part) for part in parts)) or str(hint)


def installed_primitive(name: str) -> type[PrimitiveModel] | None:
    """Return the primitive that a package adds under that name; None: none does."""
    if name not in plugin_names("primitives"):
        return None
    found = load_plugin("primitives", name)
    if not (isinstance(found, type) and issubclass(found, PrimitiveModel) and found.name == name):
        raise UsageError(f"The entry point {name!r} of 'scanflow.primitives' is no PrimitiveModel of that name.")
    return found
