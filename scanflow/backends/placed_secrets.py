"""Where secrets stand in parameters, and their values put there. Standard library only: a step's process imports it."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

SecretPath = tuple[Sequence[str | int], str]
"""The keys that lead to a secret in a value, and its reference."""


def place_secrets(value: Any, places: Iterable[SecretPath], secrets: Mapping[str, str]) -> Any:
    """Return a value with secrets put where their references stood; it is changed in place."""
    for path, source in places:
        if not path:
            return secrets[source]
        inner = value
        for key in path[:-1]:
            inner = inner[key]
        inner[path[-1]] = secrets[source]
    return value
