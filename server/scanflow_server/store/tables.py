"""The tables. Times: seconds since the epoch."""

from __future__ import annotations

from sqlalchemy import (
    JSON,
    BigInteger,
    Boolean,
    Column,
    Float,
    Index,
    Integer,
    MetaData,
    String,
    Table,
    Text,
    false,
    text,
)
from sqlalchemy import UniqueConstraint as Unique

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s_%(referred_table_name)s",
        "pk": "pk_%(table_name)s",
    }
)
"""All tables. A change needs a migration: ``store/migrations``."""

_NAME = 128
_JSON = JSON(none_as_null=True)
_COUNTED = BigInteger().with_variant(Integer, "sqlite")  # SQLite autoincrements only INTEGER

applications = Table(
    "applications",
    metadata,
    Column("name", String(_NAME), primary_key=True),
    Column("team", String(_NAME), primary_key=True),
    Column("document", _JSON, nullable=False),
    Column("source", Text),
    Column("revision", Integer, nullable=False),  # counts its changes
    Column("updated", Float, nullable=False),
)

runs = Table(
    "runs",
    metadata,
    Column("name", String(_NAME), primary_key=True),
    Column("app", String(_NAME), nullable=False),
    Column("team", String(_NAME), nullable=False),
    Column("workflow", String(_NAME), nullable=False),
    Column("created", Float, nullable=False),
    Column("definition", _JSON),  # to enter in the backend's journal; null: the run was there before
    Column("source", Text),
    Column("drive", Integer, nullable=False),  # the number of drives so far
    Column("asked", _JSON, nullable=False),  # the request of the newest drive
    Column("stop", Boolean, nullable=False),  # whether the newest drive should stop
    Column("active", Boolean, nullable=False, index=True),  # whether the newest drive is not known to have ended
    Column("outcome", String(32)),
    Column("problem", _JSON),
)

events = Table(
    "events",
    metadata,
    Column("id", _COUNTED, primary_key=True, autoincrement=True),
    Column("at", Float, nullable=False),
    Column("type", String(_NAME), nullable=False, index=True),
    Column("app", String(_NAME), nullable=False),
    Column("team", String(_NAME), nullable=False, server_default="", index=True),  # empty: no team
    Column("subject", Text, nullable=False),
    Column("data", _JSON, nullable=False),
    Index(None, "app", "type", "id"),
    Index(None, "team", "type", "id"),
    sqlite_autoincrement=True,
)
"""The event log, append-only; numbered in the order in which events become visible."""

agents = Table(
    "agents",
    metadata,
    Column("app", String(_NAME), primary_key=True),
    Column("name", String(_NAME), primary_key=True),
    Column("team", String(_NAME), nullable=False),
    Column("document", _JSON),  # the application, where this server is to run the agent
    Column("source", Text),
    Column("wanted", Boolean, nullable=False),
    Column("generation", Integer, nullable=False),
    Column("url", Text),
    Column("pid", BigInteger),
    Column("started", Float),
    Column("seen", Float),
    Column("restarts", Integer, nullable=False),
    Column("sensors", _JSON),  # as it reported last
    Column("token_salt", String(64)),  # random, made at its start; null: it has no token
    Column("token_hash", String(64)),  # SHA-256, in hexadecimal
    Column("strategies", String(64)),  # the digest of those in the table below; null: none are stored yet
    Column("reported", String(64)),  # the digest of those that it reported last
)

strategies = Table(
    "strategies",
    metadata,
    Column("app", String(_NAME), primary_key=True),
    Column("agent", String(_NAME), primary_key=True),
    Column("name", String(_NAME), primary_key=True),
    Column("limits", _JSON, nullable=False),
)
"""What the strategies of each agent may do, as of its deployment."""

keys = Table(
    "idempotency_keys",
    metadata,
    Column("key", String(256), primary_key=True),
    Column("kind", String(32), nullable=False),
    Column("target", String(_NAME), nullable=False),
    Column("fingerprint", String(64), nullable=False),
    Column("at", Float, nullable=False),
)

audit = Table(
    "audit",
    metadata,
    Column("id", _COUNTED, primary_key=True, autoincrement=True),
    Column("at", Float, nullable=False, index=True),
    Column("who", String(_NAME), nullable=False),
    Column("role", String(32), nullable=False),
    Column("team", String(_NAME)),
    Column("address", String(64), nullable=False),
    Column("method", String(16), nullable=False),
    Column("path", Text, nullable=False),
    Column("status", Integer, nullable=False),
    Column("what", Text, nullable=False),
    sqlite_autoincrement=True,
)
"""Who changed or was refused what: append-only, and numbered in order."""

tokens = Table(
    "tokens",
    metadata,
    Column("name", String(_NAME), primary_key=True),
    Column("hash", String(64), nullable=False, unique=True),  # SHA-256, in hexadecimal
    Column("created", Float, nullable=False),
    Column("revoked", Float),
    Column("role", String(16), nullable=False, server_default="viewer"),
    Column("team", String(_NAME)),  # null: all teams
    Column("expires", Float),
    Column("person", String(_NAME), index=True),  # who made it by signing in; null: an admin made it
)
"""Hashes of the tokens that this server accepts, never the tokens."""

sessions = Table(
    "sessions",
    metadata,
    Column("id_hash", String(64), primary_key=True),  # of the cookie's value: SHA-256, in hexadecimal
    Column("key_hash", String(64), nullable=False),
    Column("token_hash", String(64), nullable=False),
    Column("is_own", Boolean, nullable=False),  # whether the token is for it alone
    Column("ends", Float, nullable=False, index=True),
)
"""Sessions of browsers, of which only hashes are here: no row lets anyone in."""

# Literally as in the index, without bound values: else no database uses the partial index.
OPEN = text("(state IN ('pending', 'running') OR guard_until IS NOT NULL OR reverting IS NOT NULL)")
"""Intents that are open: waiting, running, guarded or being reverted."""

intents = Table(
    "intents",
    metadata,
    Column("number", _COUNTED, primary_key=True, autoincrement=True),
    Column("id", String(_NAME), nullable=False, unique=True),
    Column("app", String(_NAME), nullable=False),
    Column("team", String(_NAME), nullable=False),
    Column("key", Text, nullable=False),
    Column("place", Text, nullable=False),
    Column("strategy", Text, nullable=False),
    Column("state", String(16), nullable=False, index=True),
    Column("verdict", String(16), nullable=False),
    Column("decided", Float, nullable=False),
    Column("document", _JSON, nullable=False),  # the Action
    Column("approved_by", Text),
    Column("due", Float),  # when to process it again
    Column("tries", Integer, nullable=False),
    Column("guard_before", Float),
    Column("guard_until", Float),
    Column("reverting", Text),  # who is reverting it
    Column("request", _JSON),  # a person's, of a change of a service
    Column("progress", _JSON),  # of the changes of services that it made
    Column("drivers", _JSON),  # the names of those that made them, and have ended
    Column("record", _JSON),  # of the service, after the last one
    Column("problem", _JSON),  # that ended the last one
    Unique("app", "team", "key"),
    Index(None, "place", "decided"),
    Index(None, "strategy", "decided"),
    Index("ix_intents_open", "place", sqlite_where=OPEN, postgresql_where=OPEN),
    sqlite_autoincrement=True,
)

fields = Table(
    "fields",
    metadata,
    Column("place", String(512), primary_key=True),
    Column("field", String(256), primary_key=True),
    Column("strategy", Text),
    Column("app", String(_NAME)),
    Column("agent", String(_NAME)),
    Column("intent", String(_NAME)),
    Column("priority", Integer, nullable=False),
    Column("until", Float, nullable=False),
    Column("written", _JSON),  # {"value": ...}; null: unknown
    Column("foreign_value", _JSON),
    Column("foreign_since", Float),
)
"""The owner and last written value of fields, and since when their value differs."""

trail = Table(
    "trail",
    metadata,
    Column("number", _COUNTED, primary_key=True, autoincrement=True),
    Column("intent", String(_NAME), nullable=False, index=True),
    Column("at", Float, nullable=False),
    Column("text", Text, nullable=False),
    sqlite_autoincrement=True,
)

labels = Table(
    "labels",
    metadata,
    Column("number", _COUNTED, primary_key=True, autoincrement=True),
    Column("app", String(_NAME), nullable=False),
    Column("id", String(256), nullable=False),
    Column("run", Text, nullable=False),
    Column("data", _JSON, nullable=False),
    Column("guess", _JSON),
    Column("score", Float),
    Column("state", String(16), nullable=False),
    Column("label", _JSON),
    Column("by", Text),
    Column("asked", Float, nullable=False),
    Column("given", Float),
    Column("team", String(_NAME), nullable=False),
    Column("purpose", String(16), nullable=False, server_default="train"),
    Column("disputed", Boolean, nullable=False, server_default=false()),
    Column("row", _JSON),  # its values, by the names of its columns
    Column("picture", Text),  # or a PNG of it, in base64
    Unique("app", "team", "id"),
    Index(None, "app", "state"),
    Index(None, "id"),
    sqlite_autoincrement=True,
)
"""Samples to label. One without a team belongs to any team of the application."""

votes = Table(
    "label_votes",
    metadata,
    Column("number", _COUNTED, primary_key=True, autoincrement=True),
    Column("app", String(_NAME), nullable=False),
    Column("team", String(_NAME), nullable=False),
    Column("id", String(256), nullable=False),
    Column("label", _JSON, nullable=False),
    Column("by", Text, nullable=False),
    Column("at", Float, nullable=False),
    Index(None, "id", "app", "team"),
    sqlite_autoincrement=True,
)
"""The votes on samples, append-only: the newest of a labeller counts."""

notified = Table(
    "notified", metadata, Column("webhook", String(512), primary_key=True), Column("event", BigInteger, nullable=False)
)
"""The last event that was sent to each webhook."""

stored_bytes = Table(
    "stored_bytes",
    metadata,
    Column("team", String(_NAME), primary_key=True),  # empty: no team
    Column("bytes", BigInteger, nullable=False),
)
"""How much each team's events, samples, requested runs and functions take."""

marks = Table(
    "event_marks",
    metadata,
    Column("number", BigInteger, primary_key=True, autoincrement=False),
    Column("at", Float, nullable=False),
    Column("gone", Boolean, nullable=False),  # whether the events up to this one are deleted; at most one row
)
"""The newest event at a time, and the event up to which all are deleted."""
