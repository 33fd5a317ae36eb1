"""What the tests of the model server share."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session", autouse=True)
def anyio_backend() -> str:
    return "asyncio"
