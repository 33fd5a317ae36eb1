"""The base of users' descriptions: frozen, validated, with errors that name node and field."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import (
    BaseModel,
    BeforeValidator,
    ConfigDict,
    SerializerFunctionWrapHandler,
    ValidationError,
    ValidationInfo,
    model_serializer,
)
from pydantic_core import ErrorDetails

from scanflow.errors import InvalidError, did_you_mean
from scanflow.text.masking import mask_secrets


class Model(BaseModel):
    """A frozen description, rejected with an :class:`~scanflow.errors.InvalidError` if a part is invalid."""

    # Without use_attribute_docstrings: it reads and parses the source of every model when that is imported, which took
    # a fifth of the time that "hello world" takes.
    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    if not TYPE_CHECKING:  # type checkers keep the keyword-only signature that pydantic synthesises from the fields

        def __init__(self, *values: Any, **data: Any) -> None:
            if values:
                first = next(iter(type(self).model_fields))
                raise InvalidError(
                    f"{type(self).__name__} takes its fields by name. Write {type(self).__name__}({first}=..., ...)."
                )
            try:
                super().__init__(**data)
            except ValidationError as error:
                raise InvalidError(_describe_errors(type(self), data, error)) from error

        def __setattr__(self, name: str, value: Any) -> None:
            raise InvalidError(
                f"{_format_subject(type(self), self.__dict__)} cannot be changed. "
                f"Make a changed copy: .replace({name}=...)."
            )

    def __repr_args__(self) -> Iterable[tuple[str | None, Any]]:
        """Yield the fields without what looks like a secret: a notebook keeps what it shows in its file."""
        for name, value in super().__repr_args__():
            yield name, mask_secrets({name: value})[name] if isinstance(value, str | Mapping) else value

    def replace(self, **changes: Any) -> Self:
        """Return a copy with fields replaced, checked again (``model_copy`` checks nothing)."""
        return type(self)(**{**{name: getattr(self, name) for name in type(self).model_fields}, **changes})

    @model_serializer(mode="wrap")
    def _keep_kind(self, handler: SerializerFunctionWrapHandler) -> Any:
        """Write ``kind`` even where defaults are left out: a reader distinguishes models by it."""
        kind = getattr(self, "kind", None)
        written = handler(self)
        return {"kind": kind, **written} if kind is not None and isinstance(written, dict) else written


def find_duplicate(names: Iterable[str]) -> str | None:
    return next((name for name, count in Counter(names).items() if count > 1), None)


def as_tuple(value: Any) -> Any:
    return tuple(value) if isinstance(value, Sequence) and not isinstance(value, str | tuple) else value


def describe_choices(choices: Iterable[str]) -> dict[str, Any]:
    """Return the JSON schema of a text that is one of these, in upper or lower case."""
    names = list(choices)
    patterns = (re.sub("[A-Za-z]", lambda sign: f"[{sign[0].lower()}{sign[0].upper()}]", name) for name in names)
    return {"anyOf": [{"enum": names}, {"type": "string", "pattern": f"^({'|'.join(patterns)})$"}]}


def describe_key(title: str, key: str, example: str) -> dict[str, Any]:
    """Return the JSON schema of a mapping with one key, whose value is a text."""
    properties = {key: {"type": "string", "examples": [example]}}
    fields = {"properties": properties, "required": [key], "additionalProperties": False}
    return {"title": title, "type": "object", **fields}


def shorten(value: object) -> str:
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # a number of thousands of digits, a list inside itself
        return f"a {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."


def _refuse_booleans(value: Any, info: ValidationInfo) -> Any:
    if isinstance(value, bool):
        raise InvalidError(f"{info.field_name} cannot be {value!r}: it should be a number.")
    return value


Whole = Annotated[int, BeforeValidator(_refuse_booleans)]
Number = Annotated[float, BeforeValidator(_refuse_booleans)]


# pydantic's own words name types of Python's and of its own.
_REASONS = {
    "is_instance_of": "it should be a list",
    "sequence_str": "it should be a list",
    "list_type": "it should be a list",
    "too_short": "it needs at least {min_length}",
    "string_type": "it should be text (in a file, put it in quotes)",
    "dict_type": "it should be a mapping",
    "mapping_type": "it should be a mapping",
    "model_type": "it should be a {class_name}",
    "dataclass_type": "it should be a {class_name}",
    "union_tag_not_found": "it has no 'kind', which names its type",
    "model_attributes_type": "it has no 'kind', which names its type",
    "union_tag_invalid": "its kind should be one of {expected_tags}",
}


def _describe_errors(model: type[BaseModel], data: Mapping[str, Any], error: ValidationError) -> str:
    subject = _format_subject(model, data)
    return "\n".join(dict.fromkeys(_format_error(model, subject, detail) for detail in error.errors(include_url=False)))


def _format_subject(model: type[BaseModel], data: Mapping[str, Any]) -> str:
    name = data.get("name")
    return model.__name__ + (f" {shorten(name)}" if isinstance(name, str) else "")


def _format_error(model: type[BaseModel], subject: str, detail: ErrorDetails) -> str:
    field = ".".join(str(part) for part in detail["loc"])
    match detail["type"]:
        case "extra_forbidden":
            hint = _suggest_field(model, field) or did_you_mean(field, _list_fields(model))
            return f"{subject} has no field {shorten(field)}.{hint}"
        case "missing":
            return f"{subject} needs the field {field!r}."
        case "value_error" if isinstance(cause := detail.get("ctx", {}).get("error"), InvalidError):
            text = str(cause)
            return text if _is_named_in(text, subject) else f"{subject}: {text}"
        case _:
            return f"{subject}: {field} cannot be {shorten(detail['input'])}: {_format_reason(detail)}."


def _format_reason(detail: ErrorDetails) -> str:
    context = detail.get("ctx", {})
    if words := _REASONS.get(detail["type"]):
        return words.format(**context)
    return detail["msg"].removeprefix("Value error, ").replace("Input should", "it should")


def _suggest_field(model: type[BaseModel], field: str) -> str:
    """Suggest the field whose model has a misplaced field: ``memory`` belongs in ``resources``."""
    for name, own in model.model_fields.items():
        if isinstance(own.default, Model) and field in type(own.default).model_fields:
            return f" It belongs in {name}: {name}=sf.{type(own.default).__name__}({field}=...)."
    return ""


def _list_fields(model: type[BaseModel]) -> Sequence[str]:
    return [name for name in model.model_fields if name != "kind"]


def _is_named_in(text: str, subject: str) -> bool:
    """Return whether a text names its own subject ("Executor 'train': ...")."""
    return text.startswith(subject) or re.match(r"[A-Z]\w* ['\"]|The [\w ]+ name ", text) is not None
