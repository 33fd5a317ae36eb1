"""What tests of whole processes share: a server, and the marker ``processes``."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server import ServerProcess

FOLDER = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Mark all tests of this folder: each starts processes."""
    for item in items:
        if FOLDER in item.path.parents:
            item.add_marker(pytest.mark.processes)


@pytest.fixture
def server(home: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(home)
    process.start()
    yield process
    process.close()
