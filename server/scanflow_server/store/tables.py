"""The tables of runs, operations, applications, agents, events and idempotency keys. Times: seconds since the epoch."""

from __future__ import annotations

from sqlalchemy import JSON, BigInteger, Boolean, Column, Float, Integer, String, Table, Text

from scanflow_server.store.base import metadata

_NAME = 128
_JSON = JSON(none_as_null=True)
_COUNTED = BigInteger().with_variant(Integer, "sqlite")  # SQLite counts up only what is of type INTEGER

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
"""Applications as they were last sent."""

runs = Table(
    "runs",
    metadata,
    Column("name", String(_NAME), primary_key=True),
    Column("app", String(_NAME), nullable=False),
    Column("team", String(_NAME), nullable=False),
    Column("workflow", String(_NAME), nullable=False),
    Column("created", Float, nullable=False),
    Column("definition", _JSON),  # what to enter in the backend's journal; none where it was there before us
    Column("source", Text),
    Column("drive", Integer, nullable=False),  # how often it was asked to be driven
    Column("asked", _JSON, nullable=False),  # what the newest drive is to do
    Column("stop", Boolean, nullable=False),  # whether the newest drive is to be stopped
    Column("active", Boolean, nullable=False, index=True),  # whether the newest drive is not known to have ended
    Column("outcome", String(32)),
    Column("problem", _JSON),
)
"""Runs that somebody asked this server for."""

operations = Table(
    "operations",
    metadata,
    Column("number", _COUNTED, primary_key=True, autoincrement=True),
    Column("id", String(_NAME), nullable=False, unique=True),
    Column("kind", String(32), nullable=False),
    Column("service", String(_NAME), nullable=False),
    Column("app", String(_NAME), nullable=False),
    Column("request", _JSON, nullable=False),
    Column("created", Float, nullable=False),
    Column("state", String(32), nullable=False, index=True),
    Column("ended", Float),
    Column("progress", _JSON),
    Column("result", _JSON),
    Column("problem", _JSON),
    sqlite_autoincrement=True,
)
"""Changes of services that somebody asked for."""

events = Table(
    "events",
    metadata,
    Column("id", _COUNTED, primary_key=True, autoincrement=True),
    Column("at", Float, nullable=False),
    Column("type", String(_NAME), nullable=False, index=True),
    Column("app", String(_NAME), nullable=False),
    Column("subject", Text, nullable=False),
    Column("data", _JSON, nullable=False),
    sqlite_autoincrement=True,
)
"""What happened, never changed; numbered in the order in which it can be seen."""

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
)
"""Agents: which are wanted, and where they say that they are."""

keys = Table(
    "idempotency_keys",
    metadata,
    Column("key", String(256), primary_key=True),
    Column("kind", String(32), nullable=False),
    Column("target", String(_NAME), nullable=False),
    Column("fingerprint", String(64), nullable=False),
    Column("at", Float, nullable=False),
)
"""What was made for which idempotency key."""

tokens = Table(
    "tokens",
    metadata,
    Column("name", String(_NAME), primary_key=True),
    Column("hash", String(64), nullable=False, unique=True),  # SHA-256, in hexadecimal
    Column("created", Float, nullable=False),
    Column("revoked", Float),
)
"""Who may ask this server: hashes of tokens, never tokens."""
