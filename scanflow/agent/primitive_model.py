"""The base class of primitives: the fields are the arguments; it declares what it writes and how it is carried out.

Strategy authors, the arbiter and the control plane share this class. Another package adds a primitive by an entry
point::

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

from scanflow.agent.primitive_context import PrimitiveContext, PrimitiveResult, SavedApplication
from scanflow.app.model import Model, shorten
from scanflow.errors import InvalidError, UsageError, did_you_mean
from scanflow.names import check_name
from scanflow.plugins import list_plugins, load_plugin

__all__ = ["PrimitiveContext", "PrimitiveModel", "PrimitiveResult", "SavedApplication"]

Kind = Literal["batch", "online", "mpi"]
Layer = Literal["application", "infrastructure"]
"""Thesis 5.2.3: whether it changes the definition of a workflow, or its executors and instances."""

_BOUNDS = frozenset({"greater_than", "greater_than_equal", "less_than", "less_than_equal", "too_short"})
_TYPES: Mapping[Any, str] = {str: "text", int: "whole number", float: "number", bool: "true or false", dict: "mapping"}


class Parameter(Model):
    """A parameter of a primitive, for listings."""

    name: str
    type: str
    """As text: ``text``, ``whole number``, ``mapping``, ``any of cpu, cpumem``."""

    required: bool
    what: str


class Primitive(Model):
    """A primitive, for listings: ``scanflow strategies primitives``."""

    name: str
    layer: Layer
    kind: Kind
    what: str
    """What it does, in one sentence."""

    target: str
    """What it writes to: ``workflow/NAME``, ``service/NAME`` or ``run/NAME``, with the parameter's name."""

    fields: tuple[str, ...]
    """The fields of the target that it may write."""

    inverse: bool
    """Whether it can be undone."""

    parameters: tuple[Parameter, ...] = ()


class Act:
    """A primitive with its arguments: an action of a strategy. Built by :mod:`scanflow.agent.primitives`."""

    name: ClassVar[str]
    """As strategies write it: ``do.NAME(...)``."""

    layer: ClassVar[Layer] = "application"
    """``application``: it changes the definition of a workflow. ``infrastructure``: its executors or instances."""

    kind: ClassVar[Kind] = "batch"
    """The kind of workflow that it applies to."""

    writes: ClassVar[tuple[str, ...]]
    """The fields of the target that it writes: two actions that write the same field conflict. One executor's field is
    ``EXECUTOR.FIELD``."""

    reversible: ClassVar[bool] = False
    """Whether it can be undone."""

    workflow: str
    """The name of the workflow or service."""

    @property
    def primitive(self) -> str:
        """The name of the primitive."""
        return self.name

    @property
    def workflow_kind(self) -> Kind | None:
        """The kind of workflow that it applies to; None: any kind that it has a row for."""
        return self.kind

    @property
    def target(self) -> str:
        """The resource that it changes: ``workflow/NAME``, ``service/NAME`` or ``run/NAME``."""
        return f"{'service' if self.workflow_kind == 'online' else 'workflow'}/{self.workflow}"

    @property
    def fields(self) -> tuple[str, ...]:
        """The fields of the target that it writes."""
        return self.writes

    @property
    def arguments(self) -> dict[str, Any]:
        """The arguments as JSON values, without those that are None by default."""
        raise NotImplementedError

    def is_given(self, argument: str) -> bool:
        """Return whether an argument was passed."""
        raise NotImplementedError

    def carry_out(self, context: PrimitiveContext) -> PrimitiveResult:
        """Execute the primitive. Idempotent: a retry with the same key must have no further effect."""
        raise NotImplementedError(f"{type(self).__name__} does not implement carry_out().")

    def __str__(self) -> str:
        return f"{self.primitive}({', '.join(f'{name}={value!r}' for name, value in self.arguments.items())})"


class JsonArguments(dict[str, Any]):
    """Arguments as JSON values, where null is a value and not a missing argument."""


class PrimitiveModel(Act, Model):
    """One operation. Subclass it: the fields are the arguments, the docstring's first sentence says what it does."""

    workflow: str = Field(kw_only=False)
    """The name of the workflow or service."""

    if not TYPE_CHECKING:  # type checkers keep the signature that is synthesised from the fields

        def __init__(self, /, *args: Any, **arguments: Any) -> None:
            arguments = (
                dict(args[0]) if args and isinstance(args[0], JsonArguments) else self._bind_arguments(args, arguments)
            )
            try:
                super().__init__(**arguments)
            except InvalidError as error:
                if isinstance(error.__cause__, ValidationError):
                    raise InvalidError(self._format_error(error.__cause__)) from None
                raise

    @property
    def arguments(self) -> dict[str, Any]:
        dumped = self.model_dump(mode="json", by_alias=True)
        return {
            argument: dumped[argument]
            for name, argument in self._list_arguments().items()
            if getattr(self, name) is not None or self.is_given(name)
        }

    def is_given(self, argument: str) -> bool:
        return argument in self.model_fields_set

    @property
    def inverse_arguments(self) -> list[str]:
        """The passed arguments that only inverses may have."""
        return [name for name, field in type(self).model_fields.items() if field.init is False and self.is_given(name)]

    @classmethod
    def row(cls, kind: Kind | None = None, what: str = "", **changes: Any) -> Primitive:
        """Return its listing for one kind of workflow."""
        kind = kind or cls.kind
        fields: dict[str, Any] = {
            "name": cls.name,
            "layer": cls.layer,
            "kind": kind,
            "what": what or (inspect.getdoc(cls) or "").partition(".")[0] + ".",
            "target": "service/WORKFLOW" if kind == "online" else "workflow/WORKFLOW",
            "fields": cls.writes,
            "inverse": cls.reversible,
            "parameters": tuple(cls._list_parameters()),
        }
        return Primitive(**{**fields, **changes})

    @classmethod
    def rows(cls) -> tuple[Primitive, ...]:
        """Return its listings: one for each kind of workflow that it applies to."""
        return (cls.row(),)

    @classmethod
    def _list_parameters(cls) -> list[Parameter]:
        return [
            Parameter(
                name=argument,
                type=format_type(field.annotation),
                required=field.is_required(),
                what=field.description or "",
            )
            for field, argument in zip(cls.model_fields.values(), cls._list_arguments().values(), strict=True)
            if field.init is not False
        ]

    @classmethod
    def _list_arguments(cls) -> dict[str, str]:
        return {name: field.alias or name for name, field in cls.model_fields.items()}

    @classmethod
    def _bind_arguments(cls, args: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
        in_order = [name for name, field in cls.model_fields.items() if field.kw_only is False]
        if len(args) > len(in_order):
            names = ", ".join(in_order)
            raise InvalidError(
                f"{cls._describe()} takes only these positional arguments: {names}. Pass the others as name=value."
            )
        arguments = dict(zip(in_order, args, strict=False))
        if doubled := sorted(arguments.keys() & named.keys()):
            raise InvalidError(f"{cls._describe()} got the argument {doubled[0]!r} twice. Remove one.")
        return {**arguments, **named}

    @classmethod
    def _format_error(cls, error: ValidationError) -> str:
        return "\n".join(dict.fromkeys(cls._format_detail(detail) for detail in error.errors(include_url=False)))

    @classmethod
    def _format_detail(cls, detail: ErrorDetails) -> str:
        argument = str(detail["loc"][0]) if detail["loc"] else ""
        names = cls._list_arguments()
        match detail["type"]:
            case "extra_forbidden" if len(detail["loc"]) == 1:
                return f"{cls._describe()} has no argument {argument!r}.{did_you_mean(argument, names.values())}"
            case "missing" if len(detail["loc"]) == 1:
                return f"{cls._describe()} needs the argument {argument!r}."
            case "value_error" if isinstance(cause := detail.get("ctx", {}).get("error"), InvalidError):
                return str(cause)
            case kind if kind in _BOUNDS or (len(detail["loc"]) > 1 and not detail["type"].endswith("_type")):
                where = ".".join(str(part) for part in detail["loc"])
                reason = detail["msg"].replace("Input should", "it should")
                return f"{cls._describe()}: {where} cannot be {shorten(detail['input'])}: {reason}."
        field = next((cls.model_fields[name] for name, alias in names.items() if alias == argument), None)
        expected = "" if field is None else f" Expected: {format_type(field.annotation)}."
        return f"{cls._describe()}: {argument} cannot be {shorten(detail['input'])}.{expected}"

    @classmethod
    def _describe(cls) -> str:
        return f"The primitive {cls.name!r}"


WorkflowName = Annotated[str, AfterValidator(lambda name: check_name(name, "workflow"))]

if TYPE_CHECKING:  # the signatures of the models below for type checkers: fields with kw_only=False are positional

    @dataclass_transform(kw_only_default=True, field_specifiers=(Field,))
    class _Checked(Act):
        @classmethod
        def row(cls, kind: Kind | None = None, what: str = "", **changes: Any) -> Primitive: ...

        @classmethod
        def rows(cls) -> tuple[Primitive, ...]: ...

else:
    _Checked = PrimitiveModel


class BuiltInPrimitive(_Checked):
    """A primitive of thesis Table 5.4.

    Arguments that are None are dropped, except those in ``nulls``. Unknown arguments go into the mapping ``rest``.
    """

    reversible = True
    nulls: ClassVar[frozenset[str]] = frozenset()
    rest: ClassVar[str] = ""

    workflow: WorkflowName = Field(kw_only=False, description="The workflow's name.")

    if not TYPE_CHECKING:
        model_config = ConfigDict(strict=True)  # neither "3" nor True is a number

        @classmethod
        def _bind_arguments(cls, args: Sequence[Any], named: Mapping[str, Any]) -> dict[str, Any]:
            arguments = super()._bind_arguments(args, named)
            if cls.rest:
                names = set(cls._list_arguments().values())
                more = {name: arguments.pop(name) for name in list(arguments) if name not in names}
                rest = arguments.pop(cls.rest, None) or {}
                if isinstance(rest, Mapping):
                    if doubled := sorted(rest.keys() & more.keys()):
                        raise InvalidError(f"The parameter {doubled[0]!r} is given twice. Remove one.")
                    rest = {**rest, **more} or None
                arguments[cls.rest] = rest
            return {name: value for name, value in arguments.items() if value is not None or name in cls.nulls}

        @classmethod
        def _list_parameters(cls) -> list[Parameter]:
            what = "Parameters, as keyword arguments."
            more = Parameter(name="**more", type="anything", required=False, what=what)
            return [*super()._list_parameters(), *([more] if cls.rest else [])]


def format_type(hint: Any) -> str:
    """Format a type for people: ``text``, ``whole number``, ``mapping``."""
    if hint is Any:
        return "anything"
    if hint in _TYPES:
        return _TYPES[hint]
    if get_origin(hint) is Annotated:
        return format_type(get_args(hint)[0])
    parts = [part for part in get_args(hint) if part is not NoneType]
    if parts and all(isinstance(part, str) for part in parts):
        return f"any of {', '.join(parts)}"
    if get_origin(hint) in {dict, Mapping}:
        return "mapping"
    return " or ".join(dict.fromkeys(format_type(part) for part in parts)) or str(hint)


def load_primitive(name: str) -> type[PrimitiveModel] | None:
    """Return the primitive that an installed package registers under a name; None: there is none."""
    if name not in list_plugins("primitives"):
        return None
    primitive = load_plugin("primitives", name)
    if not (isinstance(primitive, type) and issubclass(primitive, PrimitiveModel) and primitive.name == name):
        raise UsageError(f"The entry point {name!r} of 'scanflow.primitives' is not a PrimitiveModel of that name.")
    return primitive
