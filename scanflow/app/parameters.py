"""Parameters of frozen models: immutable copies of JSON values."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from datetime import date, time
from decimal import Decimal
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Annotated, Any, NoReturn
from uuid import UUID

from pydantic import AfterValidator, BeforeValidator, WrapValidator
from pydantic_core import PydanticKnownError

from scanflow.app.secrets import Secret, read_secret
from scanflow.errors import InvalidError
from scanflow.text.masking import SECRET_KEY, STARS, find_mask

MAX_DEPTH = 50  # far below where writers of JSON and YAML give up
MAX_BITS = 14_000  # Python reads and writes whole numbers of at most 4,300 digits
_PATH = type(Path())
_WRITTEN = (date, time, Decimal, UUID)  # whose text says all of them
_RESERVED_KEYS = frozenset({"$from", "$path", "$pickle", SECRET_KEY})


def _refuse(*_: Any, **__: Any) -> NoReturn:
    raise InvalidError(
        "Parameters cannot be changed in place. Make a changed copy: node.replace(parameters={...}), or "
        "workflow.with_parameters({...})."
    )


class FrozenDict(dict[str, Any]):
    if not TYPE_CHECKING:  # fields are typed as Mapping, which has none of these
        __setitem__ = __delitem__ = __ior__ = clear = pop = popitem = setdefault = update = _refuse

    def __reduce__(self) -> tuple[type[FrozenDict], tuple[dict[str, Any]]]:
        return FrozenDict, (dict(self),)


def to_plain(value: Any, what: str, *, special: Callable[[Any], Any] = lambda _: None, depth: int = 0) -> Any:
    """Copy ``value`` as JSON values; paths become text, and so do the keys of mappings.

    What ``special`` returns for a part, unless that is None, stands in its place. Errors begin with ``what``.
    """
    if depth > MAX_DEPTH:
        raise InvalidError(f"{what} is nested more than {MAX_DEPTH} levels deep. Write it to a file that a step reads.")
    if (replacement := special(value)) is not None:
        return replacement
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        return _check_text(str.__str__(value), what)
    if isinstance(value, PurePath):
        return _check_text(str(value), what)
    if isinstance(value, int | float):
        return _check_number(value, what)
    if isinstance(value, Mapping):
        return _check_keys(
            {key: to_plain(inner, what, special=special, depth=depth + 1) for key, inner in value.items()}, what
        )
    if isinstance(value, list | tuple | range):
        return [to_plain(inner, what, special=special, depth=depth + 1) for inner in value]
    if hasattr(value, "item") and getattr(value, "shape", None) == ():  # a number of NumPy's
        return to_plain(value.item(), what, depth=MAX_DEPTH)
    kind = type(value).__name__
    if isinstance(value, _WRITTEN):
        text = value.isoformat() if isinstance(value, date | time) else str(value)
        advice = f"Give its text, {text!r}, of which an annotation makes it again: {kind}"
    else:
        advice = "Use text, numbers, true/false, lists, mappings or paths; load or create other objects in a step"
    raise InvalidError(f"{what} is {with_article(kind)}, which cannot be serialized. {advice}.")


def is_exact_json(value: Any, *, is_exact_path: Callable[[Path], bool] = lambda _: False) -> bool:
    """Return whether a value has JSON's own types only, none of their subclasses, so that JSON gives it back as it is.

    A list or mapping that is in it twice, or in itself, would come back as two.

    ``is_exact_path``: whether a path, which has a mark of its own where there is one, is given back as it is.
    """
    seen = set[int]()

    def is_exact(inner: Any) -> bool:
        kind = type(inner)
        if kind is list or kind is dict:
            if id(inner) in seen:
                return False
            seen.add(id(inner))
            if kind is list:
                return all(map(is_exact, inner))
            return all(type(name) is str for name in inner) and all(map(is_exact, inner.values()))
        if kind is int:
            return bool(inner.bit_length() <= MAX_BITS)
        return inner is None or kind in {str, float, bool} or (kind is _PATH and is_exact_path(inner))

    return is_exact(value)


def to_plain_mapping(value: Any, *, special: Callable[[Any], Any] = lambda _: None) -> Any:
    """Copy a mapping of parameters; other values are returned unchanged, for the field's validation to reject."""
    if not isinstance(value, Mapping):
        return value
    copied = {key: to_plain(inner, f"the parameter {str(key)!r}", special=special) for key, inner in value.items()}
    return _check_keys(copied, "the mapping of parameters", reserved=frozenset())


def refuse_mask(document: Any) -> Any:
    """Return a document that somebody sent or wrote; refuse a masked value, which would replace the real one.

    Raises:
        InvalidError: names the value.
    """
    if (place := find_mask(document)) is not None:
        raise InvalidError(f"The value of {place or 'a parameter'} is masked; send the value itself.")
    return document


def with_article(noun: str) -> str:
    return f"{'an' if noun[:1].lower() in 'aeio' or noun.startswith('MPI') else 'a'} {noun}"


Parameters = Annotated[
    Mapping[str, Any],
    BeforeValidator(lambda value: to_plain_mapping(value, special=read_secret)),
    AfterValidator(FrozenDict),
]
"""Plain values, or references to secrets, at any depth."""

Texts = Annotated[Mapping[str, str], AfterValidator(FrozenDict)]


def _read_variable(value: Any, _: object) -> str | Secret:
    if (reference := read_secret(value)) is not None:
        return reference
    if not isinstance(value, str):
        raise PydanticKnownError("string_type")
    return value


Variable = str | Secret
"""The value of an environment variable, or a reference to a secret."""


def _check_variables(env: Mapping[str, Variable]) -> Mapping[str, Variable]:
    for key, value in env.items():
        if not key or "=" in key or "\0" in key or (isinstance(value, str) and "\0" in value):
            raise InvalidError(
                f"env has {key!r:.60}={STARS}, which is not a valid environment variable. Write {{'NAME': 'value'}}."
            )
    return env


Variables = Annotated[
    Mapping[str, Annotated[Variable, WrapValidator(_read_variable)]],
    AfterValidator(FrozenDict),
    AfterValidator(_check_variables),
]


def select_texts(env: Mapping[str, Variable]) -> dict[str, str]:
    """Return the variables whose values are known: those that are no secrets."""
    return {name: value for name, value in env.items() if isinstance(value, str)}


def select_secrets(env: Mapping[str, Variable]) -> dict[str, str]:
    """Return where the variables that are secrets are: ``env:NAME`` and the like, by name."""
    return {name: value.source for name, value in env.items() if isinstance(value, Secret)}


def _check_text(value: str, what: str) -> str:
    try:
        value.encode()
    except UnicodeEncodeError as error:
        raise InvalidError(
            f"{what} is {value[:40]!r}, which is not valid Unicode ({error.reason}). Write other text."
        ) from None
    return value


def _check_number(value: float, what: str) -> float:
    if isinstance(value, int):
        if value.bit_length() > MAX_BITS:
            raise InvalidError(
                f"{what} is a number of more than 4,000 digits, which cannot be serialized. Write it as text."
            )
        return int(value)
    if not math.isfinite(value):
        raise InvalidError(
            f"{what} is {value!r}, which JSON cannot represent. Write None, or make it in a step: float('{value!r}')."
        )
    return float(value)


def _check_keys(value: Mapping[Any, Any], what: str, *, reserved: frozenset[str] = _RESERVED_KEYS) -> dict[str, Any]:
    keyed: dict[str, Any] = {}
    for key, inner in value.items():
        if isinstance(key, bool) or not isinstance(key, str | int):
            raise InvalidError(
                f"{what} has the key {key!r:.60}. A key is text or a whole number: make this mapping in a step, or "
                "give its pairs as a list."
            )
        name = _check_text(str.__str__(key) if isinstance(key, str) else str(key), what)
        if name in keyed:
            raise InvalidError(f"{what} has the key {name!r} twice, as text and as a number. Remove one.")
        if name in reserved:
            raise InvalidError(
                f"{what} has the key {name!r}, which scanflow reserves. A reference is {{'$from': 'step.output'}} with "
                "no other key; rename any other use of it."
            )
        keyed[name] = inner
    return keyed
