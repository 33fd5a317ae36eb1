"""Schema migrations: one module per step, in ``versions``."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from alembic.config import Config
from alembic.runtime.environment import EnvironmentContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text

from scanflow.errors import UsageError
from scanflow.files.private import open_private
from scanflow_server.store.base import Store, translate_errors
from scanflow_server.store.tables import metadata

_LOCK = 4_666_602
"""The advisory lock of PostgreSQL that one migration at a time holds."""


def migrate(store: Store) -> None:
    """Migrate the database to the current schema; concurrent callers wait for the first."""
    config, script = _load_script()
    with translate_errors(store.engine), _hold_migration_lock(store), store.engine.connect() as plain:
        connection = plain.execution_options(scanflow_writes=True)

        def list_steps(revision: Any, _context: Any) -> Any:
            if not revision:
                metadata.create_all(connection)
                return script._stamp_revs("head", revision)
            known_revisions = {script_revision.revision for script_revision in script.walk_revisions()}
            if unknown := sorted(set(revision) - known_revisions):
                raise UsageError(
                    f"The database {store.address!r} was migrated by a newer scanflow (unknown migration "
                    f"{unknown[0]!r}). Install that version, or use another database: SCANFLOW_DATABASE_URL"
                )
            return script._upgrade_revs("head", revision)

        with EnvironmentContext(config, script, fn=list_steps) as environment:
            environment.configure(connection=connection, transactional_ddl=True)
            with environment.begin_transaction():
                environment.run_migrations()
        connection.commit()


def _load_script() -> tuple[Config, ScriptDirectory]:
    config = Config()
    config.set_main_option("script_location", str(Path(__file__).parent).replace("%", "%%"))
    config.set_main_option("path_separator", "os")
    return config, ScriptDirectory.from_config(config)


@contextmanager
def _hold_migration_lock(store: Store) -> Iterator[None]:
    if store.engine.dialect.name == "sqlite":
        with open_private(Path(f"{store.engine.url.database}.lock"), "a") as file:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX)
            yield
        return
    with store.engine.connect() as connection:
        _call_lock_function(connection, "pg_advisory_lock")
        try:
            yield
        finally:
            _call_lock_function(connection, "pg_advisory_unlock")


def _call_lock_function(connection: Connection, function: str) -> None:
    connection.execute(text(f"SELECT {function}({_LOCK})"))
    connection.commit()
