"""An agent's HTTP API: which bodies it refuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import httpx2
import pytest

from scanflow.http.body_limits import MAX_BODY_BYTES
from scanflow_agents.host.http_api import make_api

NO_HOST: Any = None
"""No request gets as far as the agent."""


@pytest.mark.parametrize("path", ["/inbox", "/sensors/tick", "/sensors/tick/fire"])
def test_a_body_that_is_too_large_is_refused_with_or_without_a_declared_length(path: str) -> None:
    sent = list[int]()

    async def blocks() -> AsyncIterator[bytes]:
        while True:
            sent.append(2**16)
            yield b" " * 2**16

    async def post(content: Any) -> httpx2.Response:
        transport = httpx2.ASGITransport(make_api(NO_HOST, tokens=["secret"], hosts=()))
        headers = {"authorization": "Bearer secret", "content-type": "application/json"}
        async with httpx2.AsyncClient(transport=transport, base_url="http://localhost", headers=headers) as client:
            return await client.post(path, content=content)

    for content in (b" " * (MAX_BODY_BYTES + 1), blocks()):
        refused = asyncio.run(post(content))
        assert (refused.status_code, "at most 1 MiB" in refused.json()["detail"]) == (413, True)
    assert sum(sent) == MAX_BODY_BYTES + 2**16
    assert asyncio.run(post(b" " * MAX_BODY_BYTES)).status_code == 422
