"""A world around a migrated store, of each kind of database."""

from __future__ import annotations

import pytest

from scanflow_server.store.base import Store
from tests.unit.server.arbiter.standin import World


@pytest.fixture
def world(store: Store) -> World:
    return World(store)
