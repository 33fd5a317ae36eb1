"""What tests of whole processes share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.server import ServerProcess


@pytest.fixture
def server(home: Path) -> Iterator[ServerProcess]:
    process = ServerProcess(home)
    process.start()
    yield process
    process.close()
