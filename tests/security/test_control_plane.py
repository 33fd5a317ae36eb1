"""Attacks on the control plane: by a page in the user's browser, by DNS rebinding, and by whoever has no token."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import httpx
import pytest

from scanflow.agent.records import Action, Decision
from scanflow.home_token import ensure_home_token, home_token, token_file
from scanflow_server.app import OPEN_PATHS, create_app
from scanflow_server.auth import home_owner
from scanflow_server.context import ServerContext
from scanflow_server.main import main
from scanflow_server.store import intents
from tests.server import bearer
from tests.unit.server.arbiter.making import intent

EVIL = {"origin": "https://evil.example"}
REBOUND = {"host": "evil.example:46666", "origin": "http://evil.example:46666"}
PAGES = [EVIL, REBOUND, {"sec-fetch-site": "cross-site"}, {"sec-fetch-site": "same-site"}, {"origin": "null"}]
SHELL = {
    "application": {
        "schema": "scanflow/v1",
        "name": "evil",
        "app_dir": "/tmp",
        "workflows": [
            {
                "name": "w",
                "nodes": [
                    {"kind": "executor", "name": "x", "function": "subprocess:getoutput", "parameters": {"cmd": "id"}}
                ],
            }
        ],
    },
    "parameters": {},
}


@pytest.fixture
def token(context: ServerContext) -> dict[str, str]:
    return bearer(ensure_home_token(context.settings.home))


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("authenticated", [False, True])
def test_a_page_runs_no_program(url: str, token: dict[str, str], page: dict[str, str], authenticated: bool) -> None:
    sent = httpx.post(f"{url}/runs", json=SHELL, headers=page | (token if authenticated else {}))
    assert sent.status_code in {403, 421}, sent.text
    assert sent.headers["content-type"] == "application/problem+json"
    assert httpx.get(f"{url}/runs", headers=token).json() == []


def test_without_a_token_no_program_runs(url: str, token: dict[str, str]) -> None:
    assert httpx.post(f"{url}/runs", json=SHELL).status_code == 401
    assert httpx.get(f"{url}/runs", headers=token).json() == []


@pytest.mark.parametrize("path", ["/services/x/rollback", "/services/x/promote", "/runs/@latest/stop", "/events"])
def test_no_post_passes_from_another_origin(url: str, token: dict[str, str], path: str) -> None:
    for page in PAGES:
        assert httpx.post(url + path, headers=page).status_code in {403, 421}
    plain = {"content-type": "text/plain"} | token
    refused = httpx.post(url + path, content=b"[]", headers=plain)
    assert (refused.status_code, "application/json" in refused.json()["detail"]) == (415, True)


def test_no_route_answers_without_a_valid_token(context: ServerContext, url: str, token: dict[str, str]) -> None:
    made = httpx.post(f"{url}/tokens", json={"name": "ada"}, headers=token).json()["token"]
    assert httpx.get(f"{url}/status", headers=bearer(made)).status_code == 200
    httpx.delete(f"{url}/tokens/ada", headers=token).raise_for_status()
    root = url.removesuffix("/api/v1")
    described = create_app(context, control=False).openapi()["paths"]
    paths = {root + path: list(methods) for path, methods in described.items()} | {f"{url}/openapi.json": ["get"]}
    assert len(paths) > 30
    for path, methods in paths.items():
        for method in methods:
            for headers in ({}, bearer("scanflow_wrong"), bearer(made)):
                status = httpx.request(method, path, headers=headers).status_code
                assert (status == 401) is (path.removeprefix(root) not in OPEN_PATHS), (method, path, headers)


def test_why_it_is_not_ready_is_for_its_own(url: str, context: ServerContext, token: dict[str, str]) -> None:
    context.settings.folder.rename(context.settings.folder.with_name("elsewhere"))
    ready = f"{url.removesuffix('/api/v1')}/readyz"
    assert str(context.settings.home) not in httpx.get(ready).text
    assert str(context.settings.home) in httpx.get(ready, headers=token).json()["detail"]


def test_who_approves_is_who_the_token_says(context: ServerContext, url: str, token: dict[str, str]) -> None:
    decision = Decision(intent="i1", verdict="approve", reason="A person decides.", at=5.0)
    wanted = intent("i1", autonomy="approve")
    with context.store.write() as connection:
        stored = Action(id="i1", intent=wanted, state="pending", decision=decision, began=None, ended=None)
        intents.add(connection, intents.ActionRow(action=stored, tries=0))
    assert httpx.post(f"{url}/intents/i1/approve", json={"by": "the boss"}, headers=token).status_code == 422
    ada = bearer(httpx.post(f"{url}/tokens", json={"name": "ada"}, headers=token).json()["token"])
    httpx.post(f"{url}/intents/i1/refuse", json={"reason": "no"}, headers=ada).raise_for_status()
    assert any("ada" in line for line in httpx.get(f"{url}/intents/i1/why", headers=token).json()["lines"])


def test_nobody_is_given_the_name_of_who_holds_the_home(url: str, token: dict[str, str]) -> None:
    for name, status in ((home_owner(), 422), ("home", 409), ("Not A Name", 422)):
        assert httpx.post(f"{url}/tokens", json={"name": name}, headers=token).status_code == status
    assert httpx.delete(f"{url}/tokens/home", headers=token).status_code == 400


def test_the_store_and_the_list_hold_no_token(context: ServerContext, url: str, token: dict[str, str]) -> None:
    made = httpx.post(f"{url}/tokens", json={"name": "ada"}, headers=token).json()["token"]
    assert made not in httpx.get(f"{url}/tokens", headers=token).text
    files = [one for one in context.settings.folder.rglob("*") if one.is_file()]
    assert files
    secrets = {made.encode(), str(home_token(context.settings.home)).encode()}
    assert not any(secret in one.read_bytes() for one in files for secret in secrets)


def test_a_home_is_closed_to_other_users(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    first = ensure_home_token(home)
    assert ensure_home_token(home) == first
    assert (stat.S_IMODE(home.stat().st_mode), stat.S_IMODE(token_file(home).stat().st_mode)) == (0o700, 0o600)


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.0.2.1"])
def test_a_server_is_not_opened_to_other_machines_in_the_clear(
    home: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, host: str
) -> None:
    monkeypatch.setenv("SCANFLOW_SERVER_HOST", host)
    assert main(["--port", "0"]) == 2
    assert "SCANFLOW_TLS_CERT" in capsys.readouterr().err
    assert not home.exists()


@pytest.mark.parametrize("name", ["tls_cert", "tls_key"])
def test_half_of_a_certificate_is_refused(context: ServerContext, tmp_path: Path, name: str) -> None:
    half: dict[str, Any] = {name: tmp_path / "a.pem"}
    with pytest.raises(Exception, match="Set both"):
        context.settings.model_copy(update=half).check_exposure()
