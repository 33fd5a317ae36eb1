"""Masks parameters that look like secrets. Standard library only: a step's process imports it."""

from __future__ import annotations

import re
from collections.abc import Mapping
from itertools import pairwise
from typing import Any

STARS = "***"
_WORDS = frozenset(
    "apikey auth authorization bearer credential credentials dsn passphrase passwd password pwd secret secrets token "
    "tokens".split()
)
_PAIRS = frozenset({("api", "key"), ("access", "key"), ("private", "key"), ("secret", "key"), ("signing", "key")})
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_COUNTS = frozenset("count length limit max min n num number size".split())


def looks_secret(name: str) -> bool:
    """Return whether this is a secret's name: ``HF_TOKEN``, ``train.api_key``; not ``max_tokens``, ``tokenizer``."""
    parts = [part.lower() for part in _PARTS.findall(name)]
    if any(pair in _PAIRS for pair in pairwise(parts)):
        return True
    words = _WORDS.intersection(parts)
    return bool(words) and not (words <= {"token", "tokens"} and _COUNTS.intersection(parts))


def mask_secrets(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: _mask_value(name, value) for name, value in values.items()}


def _mask_value(name: str, value: Any) -> Any:
    if looks_secret(str(name)) and value is not None:
        return STARS
    if isinstance(value, Mapping):
        return mask_secrets(value)
    if isinstance(value, list | tuple):
        return [_mask_value("", inner) for inner in value]
    return value
