"""Attacks on an agent's own HTTP API: it calls the user's code."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.http_requests import HTTP
from tests.integration.test_agent_host import Hosted, StandInServer
from tests.security.test_control_plane_security import PAGES
from tests.server import bearer

pytestmark = pytest.mark.processes


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[Hosted]:
    server = StandInServer()
    server.start()
    agent = Hosted(tmp_path / "tracker", server).start()
    try:
        yield agent
    finally:
        agent.kill()
        server.stop()


def test_an_agent_answers_only_whoever_holds_the_home_s_token(agent: Hosted) -> None:
    good = bearer(agent.token)
    for path in ("/sensors/tick/fire", "/inbox", "/sensors/tick"):
        for page in PAGES:
            assert HTTP.post(agent.url + path, headers=page | good).status_code in {403, 421}
        assert HTTP.post(agent.url + path, json=[]).status_code == 401
        assert HTTP.post(agent.url + path, content=b"[]", headers=good).status_code == 415
    for path in ("/sensors", "/journal", "/openapi.json"):
        assert HTTP.get(agent.url + path).status_code == 401
        assert HTTP.get(agent.url + path, headers=bearer("scanflow_wrong")).status_code == 401
    assert HTTP.get(f"{agent.url}/healthz").json() == {"status": "alive"}
    assert HTTP.get(f"{agent.url}/sensors", headers=good).status_code == 200
    assert HTTP.post(f"{agent.url}/sensors/tick/fire", headers=good).status_code == 202
