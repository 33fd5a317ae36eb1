"""Attacks with a token of the wrong team, or of too small a role, on every route that there is."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_args

import httpx2
import pytest

from scanflow.backends.agent_hosting import HostedAgent
from scanflow.http.home_token import Role, read_home_token
from scanflow_server.app import create_app
from scanflow_server.arbiter.engine_assembly import build_engine
from scanflow_server.control.agent_controller import AgentsController
from scanflow_server.dashboard.dashboard_page import LIVE
from scanflow_server.dashboard.pages import ACTIONS, FILES, PAGES, Pages
from scanflow_server.page_sessions import Sessions
from scanflow_server.server_context import ServerContext
from scanflow_server.sign_in_settings import GroupRule, SignInSettings
from scanflow_server.store import label_store
from scanflow_server.token_roles import PERMISSIONS, Permission, TokenHolder, explain_refusal
from tests.http_requests import http_client
from tests.page_reader import log_in
from tests.permissions import permit_strategies
from tests.security.two_teams import APP, HTTP, INTENT, PNG, SENT, Two, batch
from tests.server import bearer
from tests.unit.server.answering import a_service
from tests.waiting import patient

NEEDED: Mapping[Permission, tuple[str, ...]] = {
    "read": (
        "GET /runs", "GET /runs/{run}", "GET /runs/{run}/events", "GET /runs/{run}/files",
        "GET /runs/{run}/steps/{step}/outputs", "GET /runs/{run}/steps/{step}/values",
        "GET /runs/{run}/tasks/{task}/logs", "GET /services", "GET /services/{name}", "GET /services/{name}/explain",
        "GET /services/{name}/logs", "GET /operations/{id}", "GET /operations/{id}/events", "GET /applications",
        "GET /applications/{app}", "GET /events", "GET /events/newest", "GET /agents", "GET /agents/{app}/{agent}",
        "GET /agents/{app}/{agent}/journal", "GET /agents/{app}/{agent}/strategies",
        "GET /intents", "GET /intents/{id}", "GET /intents/{id}/why", "GET /labels", "GET /status", "GET /metrics",
        "POST /logins", "GET /logins/{id}",
    ),
    "propose": (
        "POST /events", "POST /intents", "POST /labels", "POST /labels/{id}", "PATCH /labels",
        "POST /agents/{app}/{agent}/heartbeat", "PUT /agents/{app}/{agent}/strategies",
    ),
    "change": (
        "POST /runs", "POST /runs/plan", "POST /runs/{run}/resume", "POST /runs/{run}/spin", "POST /runs/{run}/stop",
        "POST /runs/{run}/tasks/{task}/stop", "POST /functions", "POST /services", "PATCH /services/{name}",
        "DELETE /services/{name}", "PUT /applications/{app}", "PUT /agents/{app}/{agent}",
        "DELETE /agents/{app}/{agent}",
    ),
    "approve": ("POST /intents/{id}/approve", "POST /intents/{id}/refuse", "POST /intents/{id}/revert"),
    "administer": ("GET /audit", "GET /tokens", "POST /tokens", "DELETE /tokens/{name}"),
}  # fmt: skip
"""What each route needs. Who adds a route decides here, and below what names its path and what it is sent."""

SAYS_THE_TEAM = {
    "POST /intents", "POST /labels", "POST /runs", "POST /runs/plan", "POST /services", "PUT /applications/{app}",
    "PUT /agents/{app}/{agent}", "POST /tokens",
}  # fmt: skip
"""Those whose body says another team: they are refused with 403. All others answer as if nothing were there."""


ROUTES = [route for routes in NEEDED.values() for route in routes]
NAMED = [route for route in ROUTES if "{" in route and route not in SAYS_THE_TEAM]


def test_every_route_is_among_those_that_are_attacked(context: ServerContext) -> None:
    described = create_app(context, control=False).openapi()["paths"]
    routes = {
        f"{method.upper()} {path.removeprefix('/api/v1')}" for path, methods in described.items() for method in methods
    }
    assert routes - {"GET /healthz", "GET /readyz"} == set(ROUTES)
    for path, methods in described.items():
        for method, route in methods.items():
            name = f"{method.upper()} {path.removeprefix('/api/v1')}"
            assert not route.get("requestBody", {}).get("required") or name in SENT, f"{name} is sent something"


@pytest.mark.parametrize("role", get_args(Role))
def test_each_role_is_let_do_what_it_may_and_nothing_else(two: Two, role: Any) -> None:
    headers, before = two.token(None, role), two.count_rows()
    for permission, routes in NEEDED.items():
        allowed = permission in PERMISSIONS[role]
        for route in routes:
            if allowed and permission != "read":
                continue  # it would be done
            response = two.ask(route, headers, two.nobodys)
            assert (response.status_code != 403) is allowed, (route, response.text)
            assert allowed or "scanflow token make" in response.json()["detail"], "it says who can change that"
    assert two.count_rows() == before


def test_what_another_team_has_is_answered_as_what_is_not_there(two: Two) -> None:
    headers, before = two.token("beta", "admin"), two.count_rows()
    for route in NAMED:
        response = two.ask(route, headers, two.alphas)
        assert response.status_code == 404, (route, response.text)
        texts = response.text
        for name, value in two.alphas.items():
            texts = texts.replace(value, two.nobodys[name])
        assert "alpha" not in texts, route
        assert two.ask(route, headers, two.nobodys).text == texts, route
    assert two.count_rows() == before


def test_no_list_tells_of_another_team(two: Two) -> None:
    beta, alpha = two.token("beta", "admin"), two.token("alpha", "admin")
    for route in [
        candidate
        for candidate in NEEDED["read"] + NEEDED["administer"]
        if candidate.startswith("GET") and "{" not in candidate
    ]:
        theirs, own = two.ask(route, beta, {}), two.ask(route, alpha, {})
        assert "alpha" not in theirs.text, route
        if route == "GET /metrics":
            assert {theirs.status_code, own.status_code} == {403}
        else:
            assert "alpha" in own.text, f"{route}: its own team sees it"
        if route == "GET /status":
            counts = [set(response.json()["counts"].values()) for response in (theirs, own)]
            assert (counts[0], theirs.json()["home"], theirs.json()["database"]) == ({0}, "", "")
            assert 0 not in counts[1]


@pytest.mark.parametrize("route", ["PATCH /labels", "POST /labels/{id}"])
def test_what_another_team_wants_labelled_is_not_labelled(two: Two, route: str) -> None:
    response = two.ask(route, two.token("beta", "editor"), two.alphas)
    assert response.status_code == 404
    with two.context.store.read() as connection:
        assert label_store.list_labels(connection, state="given") == []


def test_what_says_another_team_is_refused_before_anything_is_made(two: Two) -> None:
    headers, before = two.token("beta", "admin"), two.count_rows()
    for route in sorted(SAYS_THE_TEAM):
        answer = two.ask(route, headers, two.alphas)
        assert (answer.status_code, answer.json()["type"]) == (403, "urn:scanflow:error:ForbiddenError"), route
        assert "'beta'" in answer.json()["detail"]
    assert two.count_rows() == before


@pytest.mark.parametrize("filters", [{"team": "alpha"}, {"app": "alpha-app"}, {"app": "alpha-app", "team": "alpha"}])
def test_no_filter_leads_to_another_team_s_things(two: Two, filters: dict[str, str]) -> None:
    headers = two.token("beta", "viewer")
    for path in ("runs", "intents", "labels"):
        assert HTTP.get(f"{two.url}/{path}", params=filters, headers=headers).json() == []
    if "team" not in filters:
        assert HTTP.get(f"{two.url}/events", params=filters, headers=headers).json() == []
    response = HTTP.get(f"{two.url}/applications/alpha-app", params=filters, headers=headers)
    assert response.status_code in {404, 422}


def test_the_newest_run_is_the_team_s_own(two: Two) -> None:
    beta = two.token("beta", "viewer")
    assert HTTP.get(f"{two.url}/runs/@latest", headers=beta).status_code == 404
    own = two.enter_run("beta", "b")
    two.enter_run("alpha", "alpha-app")
    assert HTTP.get(f"{two.url}/runs/@latest", headers=beta).json()["name"] == own
    assert HTTP.get(f"{two.url}/runs/@latest-1", headers=beta).status_code == 404


def test_a_run_of_one_s_own_takes_no_application_of_another_team(two: Two) -> None:
    beta, own = two.token("beta", "editor"), two.enter_run("beta", "b")
    for what, more in (("resume", {}), ("spin", {"step": "fit"})):
        sent = HTTP.post(f"{two.url}/runs/{own}/{what}", json={"application": APP, **more}, headers=beta)
        assert sent.status_code == 403, sent.text


def test_a_key_that_another_team_has_used_tells_nothing(two: Two) -> None:
    mine = batch("mine", "beta")
    key = {"idempotency-key": "one"}
    ours = two.token("alpha", "editor") | key
    first = HTTP.post(f"{two.url}/runs", json={"application": {**mine, "team": "alpha"}}, headers=ours)
    assert first.status_code == 201, first.text
    beta = two.token("beta", "editor")
    theirs = HTTP.post(f"{two.url}/runs", json={"application": mine}, headers=beta | key)
    assert (theirs.status_code, theirs.json()["team"]) == (201, "beta")
    assert HTTP.post(f"{two.url}/runs", json={"application": mine}, headers=beta | key).json() == theirs.json()
    forged = HTTP.post(f"{two.url}/runs", json={"application": mine}, headers=beta | {"idempotency-key": "team/x"})
    assert forged.status_code == 422


def test_the_name_of_another_team_s_service_is_taken_and_no_more_is_said(two: Two) -> None:
    taken = {**APP, "name": "mine", "team": "beta", "agents": []}
    body = {"application": taken, "workflow": "alpha-service"}
    response = HTTP.post(f"{two.url}/services", json=body, headers=two.token("beta", "editor"))
    assert (response.status_code, "taken" in response.text, "alpha-app" in response.text) == (422, True, False)


def test_another_team_s_service_is_no_backup(two: Two) -> None:
    mine = a_service("mine", "ready").model_copy(update={"team": "beta"})
    others = two.context.deployer.services()
    two.context.deployer.services = lambda *_, **__: [mine, *others]  # type: ignore[method-assign]
    sent = {"json": {"backup": "alpha-service"}, "headers": two.token("beta", "editor")}
    response = HTTP.patch(f"{two.url}/services/mine", **sent)  # type: ignore[arg-type]
    assert (response.status_code, "alpha-service" in response.text) == (404, True)


def test_what_one_team_reports_another_does_not_receive(two: Two) -> None:
    reports = HTTP.post(f"{two.url}/events", json=SENT["POST /events"], headers=two.token("beta", "agent")).json()
    alpha = HTTP.get(f"{two.url}/events", headers=two.token("alpha", "viewer")).json()
    assert reports[0]["id"] not in [event["id"] for event in alpha], "not even under the name of its application"
    stream = {"accept": "text/event-stream"} | two.token("beta", "viewer")
    with HTTP.stream("GET", f"{two.url}/events?seen=true", headers=stream) as reply:
        lines = reply.iter_lines()
        first = [next(lines) for _ in range(3)]
    assert "alpha-thing" not in "".join(first)
    assert f"id: {reports[0]['id']}" in first


def test_an_open_stream_tells_nothing_more_when_its_token_is_revoked(two: Two) -> None:
    headers, agent = two.token("alpha", "viewer"), two.token("alpha", "agent")
    with HTTP.stream("GET", f"{two.url}/events", headers=headers | {"accept": "text/event-stream"}) as reply:
        blocks = reply.iter_text()
        assert "alpha-thing" in "".join(next(blocks) for _ in range(2))
        HTTP.delete(f"{two.url}/tokens/alpha-viewer", headers=two.home).raise_for_status()
        events = [{"at": 1.0, "type": "x", "app": "alpha-app", "subject": "later"}]
        HTTP.post(f"{two.url}/events", json=events, headers=agent).raise_for_status()
        with pytest.raises(httpx2.RemoteProtocolError):  # it is cut off
            assert not any("later" in block for block in blocks)


def test_a_page_of_labels_shows_its_own_team_s(two: Two) -> None:
    shown: dict[str, str] = {}
    for team, role in (("alpha", "viewer"), ("beta", "editor")):
        token = two.token(team, role)["authorization"].removeprefix("Bearer ")
        with http_client(
            base_url=two.root, follow_redirects=True, headers={"origin": two.root}, timeout=patient(60)
        ) as browser:
            log_in(browser, token)
            shown[team] = browser.get("/labels").text
            key = {"app": "alpha-app", "team": "alpha", "id": "alpha-sample"}
            with browser.stream("GET", "/live/nope") as stream:
                other = next(stream.iter_text())
            assert ("There is no page at" in other, "alpha-" in other) == (True, False)
            response = browser.post("/labels", data={**key, "label": "3"})
            assert response.status_code == (403 if team == "alpha" else 404), response.text
            if team == "alpha":
                assert browser.get("/labels/picture", params=key).content == PNG
            else:
                assert browser.get("/labels", params=key).status_code == 404
                assert browser.get("/labels/picture", params=key).status_code == 404
    assert ("alpha-sample" in shown["alpha"], "alpha-" in shown["beta"]) == (True, False)
    in_test_dashboard_safety = (
        {LIVE + page.path for page in PAGES}
        | {page.path for page in PAGES}
        | {action.path for action in ACTIONS}
        | {file.path for file in FILES}
    )
    attacked = {"/labels", "/labels/picture", "/reports/{app}", "/login", "/login/code", "/logout", "/static/{name}"}
    attacked |= in_test_dashboard_safety | {"/live/{path:path}"}
    attacked |= {file.path for file in FILES}  # in test_dashboard_safety, too
    assert _list_page_paths(two.context) == attacked, "each is attacked here"
    sign_in = SignInSettings(issuer="https://id.example", groups=(GroupRule("g", "t", "viewer"),))
    two.context.settings = two.context.settings.model_copy(update={"sign_in": sign_in})
    in_test_sign_in = {"/login/oidc", "/login/callback"}
    assert _list_page_paths(two.context) == attacked | in_test_sign_in


def _list_page_paths(context: ServerContext) -> set[str]:
    async def answer_nothing(*_: Any) -> None: ...

    async def find_nobody(_token_hash: str) -> None: ...

    sessions = Sessions(context, find_nobody)
    pages = Pages(answer_nothing, context=context, engine=build_engine(context), sessions=sessions)
    return {route.path for route in pages.routes}


def test_an_admin_of_a_team_gives_no_more_than_it_has(two: Two) -> None:
    alpha, beta = two.token("alpha", "admin"), two.token("beta", "admin")
    for team in ("alpha", None, "beta"):
        body = {"name": f"eve-{team or 'own'}", "team": team, "role": "admin"}
        response = HTTP.post(f"{two.url}/tokens", json=body, headers=beta)
        assert response.status_code == (403 if team == "alpha" else 201)
        assert team == "alpha" or response.json()["team"] == "beta"
    assert {token["team"] for token in HTTP.get(f"{two.url}/tokens", headers=beta).json()} == {"beta"}
    assert HTTP.delete(f"{two.url}/tokens/alpha-admin", headers=beta).status_code == 404
    assert HTTP.delete(f"{two.url}/tokens/home", headers=beta).status_code == 404
    assert HTTP.get(f"{two.url}/status", headers=alpha).status_code == 200


def test_a_token_is_not_valid_any_more_when_it_has_expired(two: Two) -> None:
    headers = two.token("beta", "viewer", expires_s=60)
    assert HTTP.get(f"{two.url}/runs", headers=headers).status_code == 200
    now = two.context.clock()
    two.context.clock = lambda: now + 61
    assert HTTP.get(f"{two.url}/runs", headers=headers).status_code == 401


def test_an_agent_s_token_reaches_its_own_team_alone_and_is_no_editor_s(two: Two) -> None:
    agent = hosted_token(two)
    assert two.ask("GET /runs/{run}", agent, two.alphas).status_code == 200
    assert two.ask("POST /agents/{app}/{agent}/heartbeat", agent, two.alphas).status_code == 204
    own = {**INTENT, "agent": "alpha-agent", "key": "alpha-agent/s/1"}
    assert two.ask("POST /intents", agent, {}, json=own).status_code == 200
    for route in (*NEEDED["change"], *NEEDED["approve"], *NEEDED["administer"]):
        assert two.ask(route, agent, two.alphas).status_code == 403, route
    entered = two.enter_run("beta", "b")
    assert two.ask("GET /runs/{run}", agent, {**two.alphas, "runs.run": entered}).status_code == 404


def hosted_token(two: Two) -> dict[str, str]:
    """Return the token that the host of the alphas' agent is given."""
    hosted: list[HostedAgent] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(two.context.agents, "start", lambda hosted_agent, **_: hosted.append(hosted_agent))
        AgentsController(two.context).tick()
    (agent_spec,) = hosted
    assert agent_spec.token is not None
    assert agent_spec.peer_token is not None
    home = str(read_home_token(two.context.settings.home))
    assert home not in str(agent_spec)
    assert HTTP.get(f"{two.url}/runs", headers=bearer(agent_spec.peer_token.get_secret_value())).status_code == 401
    return bearer(agent_spec.token.get_secret_value())


@pytest.mark.parametrize("where", ["home", "later", "secrets", "around"])
def test_a_server_on_a_cluster_hands_none_of_its_files_to_a_team(two: Two, tmp_path: Path, where: str) -> None:
    home = two.context.settings.home
    library = two.context.settings.library.model_copy(update={"backend": "kubernetes"})
    two.context.settings = two.context.settings.model_copy(update={"library": library})
    beta, folder = (
        two.token("beta", "editor"),
        {"home": home, "later": home / "runs/new", "secrets": tmp_path}.get(where),
    )
    app_dir = str(folder or home / ".." / "..")
    for body in ({"app_dir": app_dir}, {"app_dir": "/nowhere/at/all"}):
        source = {"source": app_dir} if "nowhere" in body["app_dir"] else {}
        app = {"application": {**batch("mine", "beta"), **body}, **source}
        response = HTTP.put(f"{two.url}/applications/mine", json=app, headers=beta)
        assert (response.status_code, "SCANFLOW_TEAM_FOLDERS" in response.text) == (403, True), app_dir
    two.context.settings = two.context.settings.model_copy(update={"team_folders": f"/x:{tmp_path}"})
    app = {"application": {**batch("mine", "beta"), "app_dir": str(tmp_path)}}
    assert HTTP.put(f"{two.url}/applications/mine", json=app, headers=beta).status_code == 200


@pytest.mark.parametrize("place", ["http://evil.example:80", "http://127.0.0.1:80"])
def test_an_agent_elsewhere_is_not_called_for_its_journal_and_sent_no_token(
    two: Two, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    asked: list[str] = []
    monkeypatch.setattr("scanflow_server.control.agent_controller.fetch_reply", lambda url, *_, **__: asked.append(url))
    at = {"url": place, "pid": 5}
    permit_strategies(two.context.store, app="any", agent="evil", team="beta")  # as an earlier release let it be
    HTTP.post(f"{two.url}/agents/any/evil/heartbeat", json=at, headers=two.token("beta", "agent")).raise_for_status()
    reply = HTTP.get(f"{two.url}/agents/any/evil/journal", headers=two.token("beta", "viewer"))
    assert (reply.status_code, "outside this server" in reply.text, asked) == (503, True, [])


def test_why_a_caller_may_not_says_who_can_help() -> None:
    ada = TokenHolder("ada", "viewer", "vision")
    assert explain_refusal(ada, "read", "vision") is None
    refusal = explain_refusal(ada, "change", "vision")
    assert refusal is not None
    assert "the role 'editor'" in refusal
    assert "--team vision --role editor" in refusal
    assert "all teams" in str(explain_refusal(ada, "read", None))
    assert explain_refusal(TokenHolder("root", "admin"), "administer", None) is None
