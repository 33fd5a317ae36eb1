"""A harness around a migrated store, of each kind of database."""

from __future__ import annotations

import pytest

from scanflow_server.store.base import Store
from tests.unit.server.arbiter.arbiter_harness import ArbiterHarness


@pytest.fixture
def harness(store: Store) -> ArbiterHarness:
    return ArbiterHarness(store)
