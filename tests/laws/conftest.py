"""What the laws share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.conftest import home_in
from tests.server import ServerProcess


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with home_in(tmp_path_factory.mktemp("laws-server")) as folder:
        process = ServerProcess(folder)
        process.start()
        yield process
        process.close()
