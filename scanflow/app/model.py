"""The base of everything a user describes: frozen, checked when made, with errors that name the node.

pydantic's own error text is written for programmers of pydantic; ours says which node, which field, what was wrong and
what to write instead.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from pydantic import BaseModel, ConfigDict, SerializerFunctionWrapHandler, ValidationError, model_serializer
from pydantic_core import ErrorDetails

from scanflow.errors import InvalidError, did_you_mean

__all__ = ["Model", "as_tuple"]


class Model(BaseModel):
    """A frozen description, refused as a whole with an :class:`~scanflow.errors.InvalidError` when a part is wrong."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, validate_default=False)

    if not TYPE_CHECKING:  # type checkers keep the keyword-only signature that pydantic synthesises from the fields

        def __init__(self, **data: Any) -> None:
            try:
                super().__init__(**data)
            except ValidationError as error:
                raise InvalidError(_describe(type(self), data, error)) from error

    def replace(self, **changes: Any) -> Self:
        """Return a copy with fields replaced, checked again (``model_copy`` checks nothing and keeps derived values)."""
        return type(self)(**{**{name: getattr(self, name) for name in type(self).model_fields}, **changes})

    @model_serializer(mode="wrap")
    def _keep_kind(self, handler: SerializerFunctionWrapHandler) -> Any:
        """Write ``kind`` even where defaults are left out: a reader tells models apart by it."""
        kind = getattr(self, "kind", None)
        written = handler(self)
        return {"kind": kind, **written} if kind is not None and isinstance(written, dict) else written


def as_tuple(value: Any) -> Any:
    """Return a list as a tuple, so that a frozen model holds nothing that can be changed under it."""
    return tuple(value) if isinstance(value, list) else value


def _describe(model: type[BaseModel], data: Mapping[str, Any], error: ValidationError) -> str:
    name = data.get("name")
    subject = model.__name__ + (f" {name!r}" if isinstance(name, str) else "")
    return "\n".join(dict.fromkeys(_line(model, subject, detail) for detail in error.errors(include_url=False)))


def _line(model: type[BaseModel], subject: str, detail: ErrorDetails) -> str:
    loc = [str(part) for part in detail["loc"]]
    field = ".".join(loc)
    match detail["type"]:
        case "extra_forbidden":
            return f"{subject} has no field {field!r}.{did_you_mean(field, _fields(model))}"
        case "missing":
            return f"{subject} needs the field {field!r}."
        case "value_error" if isinstance(cause := detail.get("ctx", {}).get("error"), InvalidError):
            text = str(cause)
            return text if _names_itself(text) else f"{subject}: {text}"
        case _:
            reason = detail["msg"].removeprefix("Value error, ").replace("Input should", "it should")
            return f"{subject}: {field} cannot be {_short(detail['input'])}: {reason}."


def _fields(model: type[BaseModel]) -> Sequence[str]:
    return [name for name in model.model_fields if name != "kind"]


def _names_itself(text: str) -> bool:
    """A part that has a name of its own ("Executor 'train': ...") needs no other subject before it."""
    return text[:1].isupper() and not text.startswith("The ") and "'" in text.split(":", 1)[0]


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:57] + "..."
