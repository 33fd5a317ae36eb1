"""Users' modules that a test loads are gone after it."""

from __future__ import annotations

import sys
from collections.abc import Iterator

import pytest


@pytest.fixture(scope="session")
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def no_users_modules(anyio_backend: str) -> Iterator[None]:
    path = list(sys.path)
    yield
    sys.path[:] = path
    for name in [name for name in sys.modules if name == "user" or name.startswith(("user_", "_user_"))]:
        del sys.modules[name]
