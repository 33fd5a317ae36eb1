"""What tests of the server share: its store on both databases, and its application without controllers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from scanflow.http.home_token import ensure_home_token
from scanflow.settings import Settings
from scanflow_server.auth import register_home
from scanflow_server.server_context import ServerContext, make_context
from scanflow_server.server_settings import ServerSettings
from scanflow_server.store.base import Store, open_store
from scanflow_server.store.migrations import migrate
from tests.databases import Postgres, private_postgres
from tests.http_requests import NO_AUTHORITIES
from tests.server import bearer
from tests.unit.server.answering import answering
from tests.unit.server.server_rows import Api
from tests.waiting import patient


@pytest.fixture(scope="session")
def postgres() -> Iterator[Postgres]:
    with private_postgres() as server:
        yield server


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Use SQLite, and in modules that say so (``DATABASES``) PostgreSQL too."""
    if "database" in metafunc.fixturenames:
        metafunc.parametrize("database", getattr(metafunc.module, "DATABASES", ["sqlite"]), indirect=True)


@pytest.fixture
def database(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path / 'store.db'}"
    server: Postgres = request.getfixturevalue("postgres")
    return server.new_database()


@pytest.fixture
def store(database: str) -> Iterator[Store]:
    opened = open_store(database)
    migrate(opened)
    yield opened
    opened.close()


@pytest.fixture
def context(home: Path, database: str) -> Iterator[ServerContext]:
    """The parts of a server, of which nothing works yet."""
    settings = ServerSettings.model_validate({"library": Settings(home=home, slots=2), "database_url": database})
    settings.folder.mkdir(parents=True)
    context = make_context(settings, clock=lambda: 1_800_000_000.0)
    migrate(context.store)
    register_home(context)
    yield context
    context.store.close()


@pytest.fixture
def api(context: ServerContext) -> Iterator[Api]:
    """The server's application; no controller works, so nothing that is asked for is done."""
    headers = bearer(ensure_home_token(context.settings.home))
    options: dict[str, Any] = {"headers": headers, "timeout": patient(60), "verify": NO_AUTHORITIES}
    with answering(context) as url, Api(base_url=f"{url}/api/v1", **options) as client:
        client.context = context
        yield client
