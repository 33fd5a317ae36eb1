"""Checks of values by annotations: a value of its type stays as it is. Pure."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from contextlib import suppress
from datetime import date
from functools import lru_cache
from types import UnionType
from typing import Annotated, Any, Literal, TypeAlias, Union, get_args, get_origin

from pydantic import (
    ConfigDict,
    InstanceOf,
    PydanticSchemaGenerationError,
    PydanticUserError,
    TypeAdapter,
    ValidationError,
)

from scanflow.app.parameters import is_exact_json
from scanflow.errors import InvalidError
from scanflow.text.masking import STARS, mask_secrets

Exact: TypeAlias = "bool | list[Exact] | dict[str, Exact]"
"""Which parts of a value an annotation only checks: all, none, or by a list's elements or a mapping's keys."""

_REPLACED: Mapping[Any, Any] = {
    Iterable: InstanceOf[Iterable[Any]],  # pydantic would make a one-pass iterator of it
    Iterator: Any,
    Generator: Any,
    date: InstanceOf[date] | date,  # a datetime is one
}


def validate_value(value: Any, hint: Any, what: str, *, secret: bool = False) -> Any:
    """Return a value of its annotated type as it is, and JSON that stands for one (a date's text) as what it means."""
    with suppress(TypeError):  # a TypedDict and a Protocol take no isinstance
        if hint is Any or (isinstance(hint, type) and isinstance(value, hint)):
            return value
    if get_origin(hint) in {Union, UnionType} and any(_takes_unchanged(value, member) for member in get_args(hint)):
        return value
    adapter = build_adapter(hint)
    if adapter is None:
        return value
    try:
        converted = adapter.validate_python(value)
        return _keep_scalars(value, converted) if is_exact_json(value) else value
    except ValidationError as error:
        reason = error.errors(include_url=False)[0]["msg"]
        shown = STARS if secret else f"{mask_secrets(value)!r:.60}"
        raise InvalidError(f"{what} is {shown}, which is not {_format_type(hint)}: {reason}.") from None


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
    if origin is Annotated:
        return Annotated[(_replace_types(arguments[0]), *arguments[1:])]
    try:
        if origin in _REPLACED:
            return _REPLACED[origin]
    except TypeError:  # the list of a Callable's arguments has no hash
        return hint
    if not arguments or origin in {Literal, Callable}:
        return hint
    replaced = tuple(map(_replace_types, arguments))
    if all(new is old for new, old in zip(replaced, arguments, strict=True)):
        return hint
    return Union[replaced] if origin in {Union, UnionType} else origin[replaced]  # noqa: UP007


def _is_model(hint: Any) -> bool:
    return (
        hasattr(hint, "__pydantic_core_schema__") or hasattr(hint, "__dataclass_fields__") or hasattr(hint, "__total__")
    )


def _format_type(hint: Any) -> str:
    return hint.__name__ if isinstance(hint, type) else str(hint)
