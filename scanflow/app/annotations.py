"""Checks of values by annotations: a value of its type stays as it is. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import date
from functools import lru_cache
from types import UnionType
from typing import (
    Annotated,
    Any,
    Literal,
    NotRequired,
    TypeAlias,
    Union,
    get_args,
    get_origin,
    get_type_hints,
    is_typeddict,
)

from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    InstanceOf,
    PlainValidator,
    PydanticSchemaGenerationError,
    PydanticUserError,
    TypeAdapter,
    ValidationError,
    WrapValidator,
)
from typing_extensions import TypedDict

from scanflow.app.parameters import is_exact_json
from scanflow.errors import InvalidError
from scanflow.text.masking import STARS, mask_secrets

Exact: TypeAlias = "bool | list[Exact] | dict[str, Exact]"
"""Which parts of a value an annotation only checks: all, none, or by a list's elements or a mapping's keys."""

_ADDRESS = re.compile(r"<function (?:[\w.]+<locals>\.)?(\S+) at 0x\w+>")
_VALIDATORS = (AfterValidator, BeforeValidator, PlainValidator, WrapValidator)
_REPLACED: Mapping[Any, Any] = {
    Iterable: InstanceOf[Iterable[Any]],  # pydantic would make a one-pass iterator of it
    Iterator: Any,
    Generator: Any,
    date: InstanceOf[date] | date,  # a datetime is one
}


def validate_value(value: Any, hint: Any, what: str, *, secret: bool = False) -> Any:
    """Return a value of its annotated type as it is, and JSON that stands for one (a date's text) as what it means."""
    if get_origin(hint) in {Union, UnionType} and any(_takes_unchanged(value, member) for member in get_args(hint)):
        return value
    converted = check_value(value, hint, what, secret=secret)
    is_json = converted is not value and is_exact_json(value)
    return _keep_scalars(value, _convert(value, hint, converted)) if is_json else value


def check_value(value: Any, hint: Any, what: str, *, secret: bool = False) -> Any:
    """Check a value by its annotation; return what pydantic makes of it.

    Raises:
        InvalidError: it does not fit; begins with ``what``. A ``secret`` value is not shown.
    """
    with suppress(TypeError):  # a TypedDict and a Protocol take no isinstance
        if hint is Any or (isinstance(hint, type) and isinstance(value, hint)):
            return value
    if (adapter := build_adapter(hint)) is None:
        return value
    try:
        return adapter.validate_python(value)
    except Exception as error:  # noqa: BLE001  a validator of the user's may raise what it likes
        if isinstance(error, ValidationError):
            causes = error.errors(include_url=False)
            telling = (cause for cause in causes if cause["type"] != "is_instance_of")  # of a date, how to write it
            reason = next(telling, causes[0])["msg"]
        else:
            reason = f"{type(error).__name__}: {error}"
        shown = STARS if secret else f"{mask_secrets(value)!r:.60}"
        raise InvalidError(f"{what} is {shown}, which is not {_format_type(hint)}: {reason}.") from None


def _convert(value: Any, hint: Any, converted: Any) -> Any:
    """Return JSON as what its type makes of it: functions beside the type (``AfterValidator``) only check, unless the
    type alone does not take the value."""
    plain = _drop_validators(hint)
    adapter = None if plain is hint else build_adapter(plain)
    with suppress(ValidationError):
        return converted if adapter is None else adapter.validate_python(value)
    return converted


def _drop_validators(hint: Any) -> Any:
    """Return an annotation without functions that validate."""
    arguments = get_args(hint)
    if get_origin(hint) is Annotated:
        kept = [note for note in arguments[1:] if not isinstance(note, _VALIDATORS)]
        inner = _drop_validators(arguments[0])
        if inner is arguments[0] and len(kept) == len(arguments) - 1:
            return hint
        return Annotated[(inner, *kept)] if kept else inner
    return _replace_arguments(hint, _drop_validators)


def _keep_scalars(value: Any, converted: Any) -> Any:
    """Return a converted value in which text and equal numbers are as they were (True is an int, and 2.0 for an int is
    2.0), and no key of a mapping is lost, as of a ``TypedDict`` that has more."""
    if isinstance(value, list) and isinstance(converted, list):
        return list(map(_keep_scalars, value, converted))
    if isinstance(value, dict) and type(converted) is dict and converted.keys() <= value.keys():
        keys = {key: key for key in converted}  # of their own type, as an enum's members that are text
        return {keys.get(key, key): _keep_scalars(inner, converted.get(key, inner)) for key, inner in value.items()}
    kinds = {type(value), type(converted)}
    return value if kinds <= {bool, int, float} or kinds == {str} else converted


def restore_exact(value: Any, converted: Any, exact: Exact) -> Any:
    """Return a converted value with those parts as they were that are to be kept exactly."""
    if exact is True:
        return value
    if isinstance(exact, dict) and type(converted) is dict:
        return {key: restore_exact(value.get(key), part, exact.get(key, False)) for key, part in converted.items()}
    if isinstance(exact, list) and isinstance(converted, list | tuple) and len(converted) == len(exact):
        restored = list(map(restore_exact, value, converted, exact))
        kind: Any = type(converted)
        return kind._make(restored) if hasattr(kind, "_make") else kind(restored)  # a NamedTuple takes its parts
    return converted


def _takes_unchanged(value: Any, hint: Any) -> bool:
    """Return whether a type takes a value as it is: a union is of the member that changes nothing, if there is one."""
    try:
        return find_difference(value, validate_value(value, hint, "")) is None
    except InvalidError:
        return False


def find_difference(value: Any, other: Any) -> tuple[Any, Any] | None:
    """Return the first parts of two values that are not equal or not of one type; None: they are the same."""
    if type(value) is not type(other):
        return value, other
    if isinstance(value, dict) and len(value) == len(other) and value.keys() != other.keys():
        value, other = list(value), list(other)
    elif isinstance(value, dict) and value.keys() == other.keys():
        keys = {key: key for key in other}
        pairs = [pair for key in value for pair in ((key, keys[key]), (value[key], other[key]))]
        return next((difference for pair in pairs if (difference := find_difference(*pair)) is not None), None)
    if isinstance(value, list | tuple) and len(value) == len(other):
        return next(filter(None, map(find_difference, value, other)), None)
    return None if value == other else (value, other)


def build_adapter(hint: Any) -> TypeAdapter[Any] | None:
    """Return a type's validator, by isinstance for types that pydantic does not know; None: there is none."""
    try:
        return _build_hashable_adapter(hint)
    except TypeError:  # as Annotated[int, []]
        return _build_hashable_adapter.__wrapped__(hint)


@lru_cache(maxsize=256)
def _build_hashable_adapter(hint: Any) -> TypeAdapter[Any] | None:
    try:
        hint = _replace_types(hint)
        plain = get_args(hint)[0] if get_origin(hint) is Annotated else hint
        return TypeAdapter(hint, config=None if _is_model(plain) else ConfigDict(arbitrary_types_allowed=True))
    except (PydanticSchemaGenerationError, PydanticUserError, NameError, TypeError):
        # Also a TypedDict of the typing module, and a class whose annotations are imported for type checkers only.
        return None


def _replace_types(hint: Any) -> Any:
    """Return an annotation with types in place of those that pydantic checks otherwise than Python has them."""
    origin: Any = get_origin(hint) or hint
    arguments = get_args(hint)
    if is_typeddict(hint) and not hasattr(hint, "__extra_items__"):
        return _replace_typed_dict(hint)
    if origin is Annotated:
        return Annotated[(_replace_types(arguments[0]), *arguments[1:])]
    try:
        if origin in _REPLACED:
            return _REPLACED[origin]
    except TypeError:  # the list of a Callable's arguments has no hash
        return hint
    return _replace_arguments(hint, _replace_types)


def _replace_typed_dict(hint: Any) -> Any:
    """Return a ``TypedDict`` that pydantic knows: before Python 3.12 it does not know those of ``typing``."""
    fields = {
        name: part if name in hint.__required_keys__ else NotRequired[part]
        for name, part in get_type_hints(hint).items()
    }
    return TypedDict(hint.__name__, fields)  # type: ignore[operator]


def _replace_arguments(hint: Any, replace: Callable[[Any], Any]) -> Any:
    origin: Any = get_origin(hint)
    arguments = get_args(hint)
    if not arguments or origin in {Literal, Callable}:
        return hint
    replaced = tuple(map(replace, arguments))
    if all(new is old for new, old in zip(replaced, arguments, strict=True)):
        return hint
    return Union[replaced] if origin in {Union, UnionType} else origin[replaced]  # noqa: UP007


def _is_model(hint: Any) -> bool:
    return (
        hasattr(hint, "__pydantic_core_schema__") or hasattr(hint, "__dataclass_fields__") or hasattr(hint, "__total__")
    )


def _format_type(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else _ADDRESS.sub(r"\1", str(hint))
