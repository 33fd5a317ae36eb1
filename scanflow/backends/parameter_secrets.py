"""References to secrets in the parameters of a step. Pure."""

from __future__ import annotations

from typing import Any

from scanflow.app.secrets import Secret
from scanflow.backends.placed_secrets import SecretPath


def take_secrets(value: Any) -> tuple[Any, list[SecretPath]]:
    """Return a value with None in place of references to secrets, and where they stood. What has one is copied."""
    if isinstance(value, Secret):
        return None, [((), value.source)]
    if type(value) is dict:
        taken = {key: take_secrets(inner) for key, inner in value.items()}
        places: list[SecretPath] = [
            ((key, *path), source) for key, (_, inner) in taken.items() for path, source in inner
        ]
        return ({key: rest for key, (rest, _) in taken.items()}, places) if places else (value, [])
    if type(value) is list:
        parts = [take_secrets(inner) for inner in value]
        places = [((index, *path), source) for index, (_, inner) in enumerate(parts) for path, source in inner]
        return ([rest for rest, _ in parts], places) if places else (value, [])
    return value, []
