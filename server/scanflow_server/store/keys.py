"""Idempotency keys: a write that is repeated with the same key takes effect once."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, insert, select

from scanflow.errors import InvalidError
from scanflow_server.store.base import Store
from scanflow_server.store.tables import keys

OWN_PREFIX = "intent/"
"""The prefix of the keys that the server creates itself; clients' keys never have it."""


def compute_fingerprint(request: Any) -> str:
    """Return the digest of a request as it was sent."""
    return hashlib.sha256(json.dumps(request, sort_keys=True).encode()).hexdigest()


def find(connection: Connection, key: str | None, kind: str, mark: str) -> str | None:
    if key is None:
        return None
    row = connection.execute(select(keys).where(keys.c.key == key)).mappings().first()
    if row is None:
        return None
    if (row["kind"], row["fingerprint"]) != (kind, mark):
        raise InvalidError(
            f"The idempotency key {key!r:.80} was used for another request. Use a new key for each request."
        )
    return str(row["target"])


def find_own(connection: Connection, key: str) -> str | None:
    """Return the target of a key that this server created: it identifies one request, whatever its form now."""
    target = connection.execute(select(keys.c.target).where(keys.c.key == key)).scalar()
    return None if target is None else str(target)


def record(connection: Connection, key: str | None, kind: str, mark: str, *, target: str, at: float) -> None:
    if key is not None:
        connection.execute(insert(keys).values(key=key, kind=kind, target=target, fingerprint=mark, at=at))


@dataclass(frozen=True, slots=True)
class IdempotentRequest:
    """A request with the key that a client, or the server itself, gave it."""

    kind: str
    key: str | None
    mark: str | None
    """The digest of the request, which has to be the same for the same key. None: the key alone identifies it."""

    def find_earlier_target(self, store: Store) -> str | None:
        """Return the target of an earlier request with this key, if any."""
        with store.read() as connection:
            return self.find(connection)

    def find(self, connection: Connection) -> str | None:
        if self.mark is None:
            return None if self.key is None else find_own(connection, self.key)
        return find(connection, self.key, self.kind, self.mark)

    def keep(self, connection: Connection, target: str, *, at: float) -> None:
        record(connection, self.key, self.kind, self.mark or compute_fingerprint(self.key), target=target, at=at)
