"""References to secrets: they say where a value is, and stand for it until the step, instance or agent runs."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, NoReturn, Self

from pydantic import BeforeValidator, model_serializer, model_validator

from scanflow.app.model import Model, describe_key
from scanflow.errors import InvalidError
from scanflow.files.secret_sources import read_secret_source
from scanflow.text.masking import SECRET_KEY

_ENV = re.compile(r"env:[A-Za-z_][A-Za-z0-9_]*")
_FILE = re.compile(r"file:[^\0\n\r]+")
_K8S = re.compile(r"k8s:[a-z0-9]([-a-z0-9.]*[a-z0-9])?/[-._a-zA-Z0-9]+")
_FORMS = "env:NAME, file:PATH or k8s:SECRET/KEY"


class Secret(Model):
    """A reference to a secret; the value is in no definition, record or manifest.

    In files: ``{"$secret": "env:NAME"}``.
    """

    source: str
    """``env:NAME``, ``file:PATH`` (relative to the application's folder) or ``k8s:SECRET/KEY``."""

    @model_validator(mode="before")
    @classmethod
    def _read(cls, data: Any) -> Any:
        return {"source": data[SECRET_KEY]} if isinstance(data, Mapping) and set(data) == {SECRET_KEY} else data

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not any(form.fullmatch(self.source) for form in (_ENV, _FILE, _K8S)):
            # What is given may be the secret itself, so that it is not repeated.
            raise InvalidError(f"sf.secret takes a reference to a secret, not the secret itself. Write {_FORMS}.")
        return self

    @classmethod
    def __get_pydantic_json_schema__(cls, *_: Any) -> dict[str, Any]:
        """Return the schema of a reference in a file."""
        return describe_key(cls.__name__, SECRET_KEY, "env:NAME")

    @model_serializer
    def _write(self) -> dict[str, str]:
        return {SECRET_KEY: self.source}

    def __repr__(self) -> str:
        return f"sf.secret({self.source!r})"

    def __str__(self) -> NoReturn:
        raise InvalidError(
            f"The value of {self!r} is known only where it is used, so it cannot be a part of a text. Pass it as a "
            "parameter or variable of its own, or refer to a secret that is the whole text."
        )

    def __format__(self, spec: str) -> str:
        return str(self)

    def __bool__(self) -> NoReturn:
        raise InvalidError(f"The value of {self!r} is known only where it is used, so it cannot be tested here.")

    def read(self) -> str:
        """Return the value, for code of sensors, rules and actuators, which get references in their parameters.

        What an agent prints and reports has its secrets masked. Steps and services get values, and need not call this.

        Raises:
            InvalidError: there is no secret where it refers to one.
        """
        return read_secret_source(self.source, Path())

    @property
    def kind(self) -> str:
        """``env``, ``file`` or ``k8s``."""
        return self.source.partition(":")[0]

    @property
    def place(self) -> str:
        """Where the secret is: the part of the reference after its kind."""
        return self.source.partition(":")[2]


def secret(source: str) -> Any:
    """Return a reference to a secret, a :class:`Secret`, for parameters, ``env``, addresses of trackers and webhooks.

    To type checkers it is any value, as it stands for one.

    Args:
        source: ``env:NAME``, a variable of the process that starts steps; ``file:PATH``, a file there, relative to the
            application's folder; or ``k8s:SECRET/KEY``, a key of a Secret in the environment's namespace.

    Raises:
        InvalidError: it is none of these.
    """
    if not isinstance(source, str):
        raise InvalidError(f"sf.secret takes a reference to a secret. Write {_FORMS}.")
    return Secret(source=source)


def read_secret(value: Any) -> Secret | None:
    """Convert ``{"$secret": ...}`` to a reference; return references unchanged, None for anything else."""
    if isinstance(value, Mapping) and set(value) == {SECRET_KEY}:
        reference: Secret = secret(value[SECRET_KEY])
        return reference
    return value if isinstance(value, Secret) else None


def dump_secrets(value: Any) -> Any:
    """Return a value with references to secrets as JSON has them."""
    if isinstance(value, Secret):
        return {SECRET_KEY: value.source}
    if type(value) is dict:
        return {name: dump_secrets(inner) for name, inner in value.items()}
    return [dump_secrets(inner) for inner in value] if type(value) is list else value


def iterate_secrets(value: Any) -> Iterator[Secret]:
    """Yield the references to secrets inside a value or model, at any depth, in their order."""
    if isinstance(value, Secret):
        yield value
    elif isinstance(value, Mapping):
        for inner in value.values():
            yield from iterate_secrets(inner)
    elif isinstance(value, list | tuple):
        for inner in value:
            yield from iterate_secrets(inner)
    elif isinstance(value, Model):
        for name in type(value).model_fields:
            yield from iterate_secrets(getattr(value, name))


def list_secret_sources(document: Any) -> Iterator[str]:
    """Yield the sources of references inside a document of JSON, at any depth."""
    if isinstance(document, Mapping):
        if set(document) == {SECRET_KEY}:
            yield str(document[SECRET_KEY])
            return
        document = list(document.values())
    if isinstance(document, list | tuple):
        for inner in document:
            yield from list_secret_sources(inner)


def _to_source(value: Any) -> Any:
    reference = read_secret(value)
    return value if reference is None else reference.source


SecretText = Annotated[str, BeforeValidator(_to_source, json_schema_input_type=str | Secret)]
"""A text that may be a reference: ``sf.secret("env:NAME")`` is kept as ``env:NAME``."""
