"""Idempotency keys: a write that is sent again with the same key is not done again."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from sqlalchemy import Connection, insert, select

from scanflow.errors import InvalidError
from scanflow_server.store.tables import keys

OWN = "intent/"
"""What the keys begin with that the server makes itself, and nobody else's do."""


def fingerprint(request: Any) -> str:
    """Return the digest of a request as it was sent, with nothing that changes by itself."""
    return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()


def find(connection: Connection, key: str | None, kind: str, mark: str) -> str | None:
    if key is None:
        return None
    row = connection.execute(select(keys).where(keys.c.key == key)).mappings().first()
    if row is None:
        return None
    if (row["kind"], row["fingerprint"]) != (kind, mark):
        raise InvalidError(f"The idempotency key {key!r:.80} was used for another request. Make a new key for each.")
    return str(row["target"])


def made(connection: Connection, key: str) -> str | None:
    """Return what was made for a key that this server has made itself: it stands for one request, however that is
    written by now."""
    target = connection.execute(select(keys.c.target).where(keys.c.key == key)).scalar()
    return None if target is None else str(target)


def keep(connection: Connection, key: str | None, kind: str, mark: str, *, target: str, at: float) -> None:
    if key is not None:
        connection.execute(insert(keys).values(key=key, kind=kind, target=target, fingerprint=mark, at=at))
