"""Settings that are read from environment variables."""

from __future__ import annotations

import os
from collections.abc import Mapping
from typing import Any, TypeVar

from pydantic import BaseModel, SecretStr, ValidationError

from scanflow.errors import InvalidError

M = TypeVar("M", bound=BaseModel)


def read_settings(
    model: type[M],
    variables: Mapping[str, str],
    environ: Mapping[str, str] | None = None,
    *,
    given: Mapping[str, Any] | None = None,
) -> M:
    """Return settings with each field from its variable; an unset or empty variable keeps the default.

    Args:
        model: The settings' model.
        variables: The name of each field's variable.
        environ: Where the variables are; None: this process' own.
        given: Fields that are known already, which no variable changes; None and an empty text count as not given.

    Raises:
        InvalidError: A variable has no usable value; a secret's is not shown.
    """
    source = os.environ if environ is None else environ
    values: dict[str, Any] = {field: text for field, name in variables.items() if (text := source.get(name, ""))}
    fixed = {field: value for field, value in (given or {}).items() if value not in (None, "")}
    try:
        return model.model_validate(values | fixed)
    except ValidationError as error:
        first = error.errors()[0]
        field = str(first["loc"][0])
        shown = "" if _is_secret(model, field) else f"={first['input']!r:.60}"
        raise InvalidError(
            f"The environment variable {variables.get(field, field)}{shown} is invalid: "
            f"{first['msg'].removeprefix('Value error, ').rstrip('.')}. "
            "Change it, or unset it."
        ) from error


def list_variables(model: type[BaseModel], prefix: str) -> dict[str, str]:
    """Return the variable of each field: its name in capitals after ``prefix``."""
    return {field: f"{prefix}{field.upper()}" for field in model.model_fields}


def _is_secret(model: type[BaseModel], field: str) -> bool:
    return field in model.model_fields and SecretStr.__name__ in str(model.model_fields[field].annotation)
