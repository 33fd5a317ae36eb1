"""Attacks on the control plane: by a page in the user's browser, by DNS rebinding, and by whoever has no token."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from scanflow.agent.agent_records import Action, Decision
from scanflow.errors import UsageError
from scanflow.http.home_token import ensure_home_token, get_token_file, read_home_token
from scanflow_server.app import OPEN_PATHS, create_app
from scanflow_server.auth import get_home_owner, register_home
from scanflow_server.main import main
from scanflow_server.server_context import ServerContext
from scanflow_server.store import intent_store
from tests.http_requests import HTTP
from tests.server import bearer
from tests.unit.server.arbiter.intent_builders import intent

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
    sent = HTTP.post(f"{url}/runs", json=SHELL, headers=page | (token if authenticated else {}))
    assert sent.status_code in {403, 421}, sent.text
    assert sent.headers["content-type"] == "application/problem+json"
    assert HTTP.get(f"{url}/runs", headers=token).json() == []


def test_without_a_token_no_program_runs(url: str, token: dict[str, str]) -> None:
    assert HTTP.post(f"{url}/runs", json=SHELL).status_code == 401
    assert HTTP.get(f"{url}/runs", headers=token).json() == []


@pytest.mark.parametrize("path", ["/services/x/rollback", "/services/x/promote", "/runs/@latest/stop", "/events"])
def test_no_form_passes_from_another_origin(url: str, token: dict[str, str], path: str) -> None:
    for page in PAGES:
        assert HTTP.post(url + path, headers=page).status_code in {403, 421}
    plain = {"content-type": "text/plain"} | token
    refused = HTTP.post(url + path, content=b"[]", headers=plain)
    assert (refused.status_code, "application/json" in refused.json()["detail"]) == (415, True)


def test_no_route_answers_without_a_valid_token(
    context: ServerContext, url: str, token: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("scanflow_server.audit.MAX_DELAY_S", 0.0)  # some 200 wrong tokens
    new_token = HTTP.post(f"{url}/tokens", json={"name": "ada"}, headers=token).json()["token"]
    assert HTTP.get(f"{url}/status", headers=bearer(new_token)).status_code == 200
    HTTP.delete(f"{url}/tokens/ada", headers=token).raise_for_status()
    root = url.removesuffix("/api/v1")
    described = create_app(context, control=False).openapi()["paths"]
    paths = {root + path: list(methods) for path, methods in described.items()} | {f"{url}/openapi.json": ["get"]}
    assert len(paths) > 30
    for path, methods in paths.items():
        for method in methods:
            for headers in ({}, bearer("scanflow_wrong"), bearer(new_token)):
                status = HTTP.request(method, path, headers=headers).status_code
                assert (status == 401) is (path.removeprefix(root) not in OPEN_PATHS), (method, path, headers)


def test_why_it_is_not_ready_is_for_its_own(url: str, context: ServerContext, token: dict[str, str]) -> None:
    context.settings.folder.rename(context.settings.folder.with_name("elsewhere"))
    ready = f"{url.removesuffix('/api/v1')}/readyz"
    assert str(context.settings.home) not in HTTP.get(ready).text
    assert str(context.settings.home) in HTTP.get(ready, headers=token).json()["detail"]


def test_who_approves_is_who_the_token_says(context: ServerContext, url: str, token: dict[str, str]) -> None:
    decision = Decision(intent="i1", verdict="approve", reason="A person decides.", at=5.0)
    wanted = intent("i1", autonomy="approve")
    with context.store.write() as connection:
        stored = Action(id="i1", intent=wanted, state="pending", decision=decision, began=None, ended=None)
        intent_store.add(connection, intent_store.ActionRow(action=stored, tries=0))
    assert HTTP.post(f"{url}/intents/i1/approve", json={"by": "the boss"}, headers=token).status_code == 422
    ada = bearer(HTTP.post(f"{url}/tokens", json={"name": "ada"}, headers=token).json()["token"])
    HTTP.post(f"{url}/intents/i1/refuse", json={"reason": "no"}, headers=ada).raise_for_status()
    assert any("ada" in line for line in HTTP.get(f"{url}/intents/i1/why", headers=token).json()["lines"])


def test_nobody_is_given_the_name_of_who_holds_the_home(url: str, token: dict[str, str]) -> None:
    for name, status in ((get_home_owner(), 422), ("home", 409), ("Not A Name", 422)):
        assert HTTP.post(f"{url}/tokens", json={"name": name}, headers=token).status_code == status
    assert HTTP.delete(f"{url}/tokens/home", headers=token).status_code == 400


def test_the_store_and_the_list_hold_no_token(context: ServerContext, url: str, token: dict[str, str]) -> None:
    new_token = HTTP.post(f"{url}/tokens", json={"name": "ada"}, headers=token).json()["token"]
    assert new_token not in HTTP.get(f"{url}/tokens", headers=token).text
    files = [file for file in context.settings.folder.rglob("*") if file.is_file()]
    assert files
    secrets = {new_token.encode(), str(read_home_token(context.settings.home)).encode()}
    assert not any(secret in file.read_bytes() for file in files for secret in secrets)


def test_a_home_is_closed_to_other_users(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir(mode=0o755)
    first = ensure_home_token(home)
    assert ensure_home_token(home) == first
    assert (stat.S_IMODE(home.stat().st_mode), stat.S_IMODE(get_token_file(home).stat().st_mode)) == (0o700, 0o600)


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


def test_behind_a_proxy_it_may_be_reached_in_the_clear_and_still_needs_a_token(context: ServerContext) -> None:
    open_to_all = context.settings.model_copy(update={"host": "0.0.0.0"})
    with pytest.raises(UsageError, match="SCANFLOW_BEHIND_PROXY=1"):
        open_to_all.check_exposure()
    open_to_all.model_copy(update={"behind_proxy": True}).check_exposure()


def test_a_token_that_is_given_becomes_the_home_s_and_is_passed_to_no_process(
    context: ServerContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SCANFLOW_SERVER_TOKEN", "scanflow_given")
    first = register_home(context)
    context.settings = context.settings.model_copy(update={"token": SecretStr("scanflow_given")})
    assert (register_home(context), first) != ("scanflow_given", "scanflow_given")
    assert read_home_token(context.settings.home) == "scanflow_given"
    assert get_token_file(context.settings.home).stat().st_mode & 0o777 == 0o600
    assert "scanflow_given" not in str(context.environ)
