"""A server and an agent, as an attacker finds them: listening on loopback."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from scanflow.settings import Settings
from scanflow_server.auth import register_home
from scanflow_server.server_context import ServerContext, make_context
from scanflow_server.server_settings import ServerSettings
from scanflow_server.store.migrations import migrate
from tests.security.two_teams import HTTP, Two
from tests.unit.server.answering import answering


@pytest.fixture
def context(home: Path) -> Iterator[ServerContext]:
    context = make_context(ServerSettings(library=Settings(home=home, slots=2)))
    migrate(context.store)
    register_home(context)
    yield context
    context.store.close()


@pytest.fixture
def url(context: ServerContext) -> Iterator[str]:
    with answering(context) as address:
        yield f"{address}/api/v1"


@pytest.fixture(scope="session", autouse=True)
def closed_client() -> Iterator[None]:
    yield
    HTTP.close()


@pytest.fixture
def two(context: ServerContext, url: str) -> Two:
    return Two(context, url)
