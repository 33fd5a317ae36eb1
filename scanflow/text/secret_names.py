"""Which names are of secrets: of variables, options, members of documents, and parameters of addresses. Pure."""

from __future__ import annotations

import re
from functools import lru_cache
from itertools import pairwise
from typing import Any

MAX_TOKEN_COUNT_LENGTH = 8
"""A shorter number under a name such as ``max_tokens`` is a number of tokens."""

_WORDS = frozenset(
    "accesskey accesstoken apikey auth authorization authtoken bearer cookie credential credentials dsn passcode "
    "passphrase passwd password privatekey pw pwd secret secretkey secrets token tokens".split()
)
_ABOUT = frozenset(
    "budget column count dir enabled expiry field file folder length name path policy provider required ttl "
    "type".split()
)
"""A name that ends so is about a secret: ``token_type``, ``--token-file``, ``secretName``."""

_KEYS = "access account api auth encryption hmac master private secret signing ssh".split()
_PAIRS = frozenset({*((kind, "key") for kind in _KEYS), ("db", "pass"), ("smtp", "pass"), ("user", "pass")})
_PARTS = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+")
_COUNTS = frozenset("count length limit max min n num number size".split())
_OF_TEXTS = frozenset("begin bos cls end eos image mask pad sep special start stop text unk vocab word".split())
"""Words of names of tokens of texts, as ``pad_token`` of language models."""

_SIGNATURES = frozenset({"sig", "signature", "x-amz-signature", "x-goog-signature"})
"""Parameters of an address that let anybody in who has it."""


_MAX_KEPT_NAME = 256
"""Whether a longer name looks secret is not kept: a long text without spaces may be one."""


def looks_secret(name: str) -> bool:
    """Return whether this is a secret's name: ``HF_TOKEN``, ``train.api_key``; not ``max_tokens``, ``tokenizer``."""
    return _looks_secret(name) if len(name) <= _MAX_KEPT_NAME else _looks_secret.__wrapped__(name)


@lru_cache(maxsize=4096)
def _looks_secret(name: str) -> bool:
    parts = _split_name(name)
    if parts and parts[-1] in _ABOUT:
        return False
    if any(pair in _PAIRS for pair in pairwise(parts)):
        return True
    words = _WORDS.intersection(parts)
    return bool(words) and not (words <= {"token", "tokens"} and (_COUNTS | _OF_TEXTS).intersection(parts))


def _split_name(name: str) -> list[str]:
    return [part[0].lower() for part in _PARTS.finditer(name)]


def takes_secret(name: str, value: str) -> bool:
    """Return whether a text given to a name is a secret. ``pwd`` is a password, or a folder as Apptainer's and a
    shell's; a number of tokens is none."""
    if not looks_secret(name):
        return False
    words = _split_name(name)
    is_folder = words == ["pwd"] and value.startswith("/")
    is_number = not {"token", "tokens"}.isdisjoint(words) and value.isdigit() and len(value) < MAX_TOKEN_COUNT_LENGTH
    return not is_folder and not is_number


def names_secret(name: str) -> bool:
    """Return whether a parameter of an address is a secret."""
    return looks_secret(name) or name.lower() in _SIGNATURES


def is_token_count(name: str, value: Any) -> bool:
    """Return whether this is a number of tokens, as of a text."""
    return isinstance(value, int | float) and "tokens" in {part.lower() for part in _PARTS.findall(name)}
