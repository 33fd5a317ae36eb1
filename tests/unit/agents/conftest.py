"""Tests of the agents' host: those that are async run on a loop of their own, and what is tried again is so at once."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Iterator

import pytest
import stamina

from tests.waiting import patient

TIMEOUT_S = patient(240)


@pytest.hookimpl(tryfirst=True)
def pytest_pyfunc_call(pyfuncitem: pytest.Function) -> bool | None:
    test = pyfuncitem.obj
    if not inspect.iscoroutinefunction(test):
        return None

    async def run_with_timeout() -> None:
        async with asyncio.timeout(TIMEOUT_S):
            await test(**{name: pyfuncitem.funcargs[name] for name in inspect.signature(test).parameters})

    asyncio.run(run_with_timeout())
    return True


@pytest.fixture(autouse=True)
def _without_waiting() -> Iterator[None]:
    with stamina.set_testing(True, attempts=1_000_000):
        yield
