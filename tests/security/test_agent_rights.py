"""What an agent's token may do: what the stored strategies of that agent may, for as long as it runs."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from scanflow.agent.agent_records import PermittedCall, StrategyLimits
from scanflow.backends.agent_hosting import HostedAgent
from scanflow.backends.memory.memory_backend import MemoryAgents
from scanflow.http.home_token import read_home_token
from scanflow_server.control.agent_controller import AgentsController
from scanflow_server.server_context import ServerContext
from scanflow_server.store import agent_store, intent_store
from tests.http_requests import http_client
from tests.server import bearer
from tests.unit.server.server_rows import read_from_store
from tests.waiting import patient, wait_until

HTTP = http_client(timeout=patient(60))
HERE = {"url": "http://127.0.0.1:9", "pid": 5}
SCALE = StrategyLimits(
    name="scale",
    calls=(PermittedCall(primitive="update_workflow_replica", target="service/serve"),),
    autonomy="approve",
    priority=1,
)
INTENT: dict[str, Any] = {
    "id": "i1", "app": "shop", "team": "red", "agent": "watcher", "strategy": "scale",
    "primitive": "update_workflow_replica", "arguments": {"workflow": "serve", "instances": 4},
    "target": "service/serve", "fields": ["replicas"], "key": "watcher/scale/1", "at": 5.0, "autonomy": "approve",
    "priority": 1,
}  # fmt: skip


class Hosting(MemoryAgents):
    """Hosts agents in memory, and keeps what they were given."""

    def __init__(self) -> None:
        super().__init__()
        self.agents_by_name: dict[str, HostedAgent] = {}

    def start(self, agent: HostedAgent, **more: Any) -> bool:
        self.agents_by_name[agent.name] = agent
        return super().start(agent, **more)


class Shop:
    """A server that runs the agents ``watcher`` and ``other`` of the team red."""

    def __init__(self, context: ServerContext, url: str, folder: Path) -> None:
        self.context, self.url, self.folder = context, url, folder
        self.hosting, self.token_count = Hosting(), 0
        context.agents = self.hosting
        self.home = bearer(str(read_home_token(context.settings.home)))
        self.controller = AgentsController(context)
        for name in ("watcher", "other"):
            self.deploy(name)

    def deploy(self, name: str, *, modules: tuple[str, ...] = ("a.py",)) -> None:
        document = {
            "schema": "scanflow/v1",
            "name": "shop",
            "team": "red",
            "app_dir": str(self.folder),
            "workflows": [],
            "agents": [{"name": agent, "modules": list(modules)} for agent in ("watcher", "other")],
        }
        self.ask("PUT", f"/agents/shop/{name}", self.home, {"application": document}).raise_for_status()
        for _ in range(2):  # one of another generation is stopped first
            self.controller.tick()

    def ask(self, method: str, path: str, headers: dict[str, str], body: Any = None) -> httpx2.Response:
        return HTTP.request(method, f"{self.url}{path}", headers=headers, json=body)

    def own_token(self, name: str = "watcher") -> dict[str, str]:
        token = self.hosting.agents_by_name[name].token
        assert token is not None
        return bearer(token.get_secret_value())

    def report(self, *strategies: StrategyLimits, headers: dict[str, str] | None = None) -> httpx2.Response:
        body = [strategy.model_dump(mode="json") for strategy in strategies]
        return self.ask("PUT", "/agents/shop/watcher/strategies", headers or self.own_token(), body)

    def make_token(self, team: str = "red", role: str = "agent") -> dict[str, str]:
        self.token_count += 1
        body = {"name": f"by-hand-{self.token_count}", "team": team, "role": role}
        response = self.ask("POST", "/tokens", self.home, body)
        response.raise_for_status()
        return bearer(response.json()["token"])

    def want(self, headers: dict[str, str], **changes: Any) -> dict[str, Any]:
        reply = self.ask("POST", "/intents", headers, {**INTENT, **changes})
        assert reply.status_code == 200, reply.text
        decision: dict[str, Any] = reply.json()
        return decision


@pytest.fixture(scope="module", autouse=True)
def closed_strategies() -> Iterator[None]:
    yield
    HTTP.close()


@pytest.fixture
def shop(context: ServerContext, url: str, tmp_path: Path) -> Shop:
    return Shop(context, url, tmp_path)


EXCESSES: dict[str, dict[str, Any]] = {
    "autonomy": {"autonomy": "auto"},
    "priority": {"priority": 1000},
    "primitive": {"primitive": "delete_workflow", "arguments": {"workflow": "serve"}, "fields": ["running"]},
    "target": {"arguments": {"workflow": "pay", "instances": 4}, "target": "service/pay"},
    "strategy": {"strategy": "of nobody"},
    "agent": {"agent": "other", "key": "other/scale/1"},
    "unknown agent": {"agent": "nobody", "key": "nobody/scale/1"},
    "all": {
        "autonomy": "auto",
        "priority": 1000,
        "primitive": "delete_workflow",
        "arguments": {"workflow": "serve"},
        "fields": ["running"],
        "budget": None,
    },
}


@pytest.mark.parametrize("what", list(EXCESSES))
def test_with_a_token_made_by_hand_nothing_is_carried_out_that_the_saved_strategies_do_not_have(
    shop: Shop, what: str
) -> None:
    assert shop.report(SCALE.model_copy(update={"autonomy": "approve" if what == "autonomy" else "auto"})).is_success
    by_hand = shop.make_token()
    decision = shop.want(by_hand, **{"autonomy": "auto", **EXCESSES[what]})
    assert decision["verdict"] == "approve", "a person is asked"
    assert "Approve it: scanflow approve" in decision["reason"]
    stored = read_from_store(shop.context.store, intent_store.get, "i1")
    assert (stored.action.state, stored.intent.priority <= 1) == ("pending", True)
    with shop.context.store.read() as connection:
        assert intent_store.list_due(connection) == [], "nothing is to be done"


@pytest.mark.parametrize("who", ["own", "by hand", "home"])
def test_what_the_saved_strategy_has_is_carried_out_whoever_sends_it(shop: Shop, who: str) -> None:
    shop.report(SCALE.model_copy(update={"autonomy": "auto"}))
    headers = {"own": shop.own_token(), "by hand": shop.make_token(), "home": shop.home}[who]
    less = {"id": "j1", "key": "watcher/less/1"}
    assert shop.want(headers, **less, autonomy="suggest")["verdict"] == "suggest", "less stays as it is"
    assert shop.want(headers, autonomy="auto")["verdict"] == "act"


def test_until_an_agent_has_reported_its_strategies_its_intents_wait_for_approval(shop: Shop) -> None:
    assert shop.want(shop.own_token(), autonomy="auto")["verdict"] == "approve"


def test_what_an_agent_reports_first_is_saved_until_it_is_deployed_again(shop: Shop) -> None:
    more = SCALE.model_copy(update={"autonomy": "auto", "priority": 1000})
    assert shop.report(SCALE).status_code == 204
    assert shop.report(more).status_code == 204
    path = "/agents/shop/watcher/strategies"
    assert shop.ask("GET", path, shop.home).json() == [SCALE.model_dump(mode="json")]
    assert shop.want(shop.own_token(), autonomy="auto")["verdict"] == "approve"
    assert "Deploy it again" in shop.ask("GET", "/agents/shop/watcher", shop.home).json()["error"]
    before = shop.own_token()
    shop.deploy("watcher")
    assert shop.own_token() != before, "the same application starts anew, as its strategies are others"
    assert shop.ask("GET", path, shop.home).json() == []
    shop.report(more)
    assert shop.ask("GET", "/agents/shop/watcher", shop.home).json()["error"] is None
    assert shop.want(shop.own_token(), id="i2", key="watcher/scale/2", autonomy="auto")["verdict"] in {"act", "queue"}


def test_strategies_are_saved_for_the_agent_itself_and_for_an_editor_alone(shop: Shop) -> None:
    for headers in (shop.make_token(), shop.own_token("other"), shop.make_token(role="viewer")):
        assert shop.report(SCALE, headers=headers).status_code == 403
    for headers in (shop.make_token("blue"), shop.make_token("blue", "editor")):
        assert shop.report(SCALE, headers=headers).status_code == 404
    assert read_from_store(shop.context.store, agent_store.find, "shop", "watcher").strategies is None
    assert shop.report(SCALE, headers=shop.make_token(role="editor")).status_code == 204
    changed = shop.ask("GET", "/events?after=0", shop.home).text
    assert '"agent.limits"' in changed, "who widens what an agent may do leaves a trace"
    doubled = shop.report(SCALE, SCALE)
    assert (doubled.status_code, "two strategies named 'scale'" in doubled.text) == (422, True)


def test_what_an_editor_stores_differs_from_the_report_and_ends_with_the_next_deployment(shop: Shop) -> None:
    shop.report(SCALE)
    wider = SCALE.model_copy(update={"autonomy": "auto", "priority": 1000})
    assert shop.report(wider, headers=shop.make_token(role="editor")).status_code == 204
    assert "Deploy it again" in shop.ask("GET", "/agents/shop/watcher", shop.home).json()["error"]
    shop.deploy("watcher")
    assert shop.ask("GET", "/agents/shop/watcher/strategies", shop.home).json() == []


def test_a_secret_in_an_action_as_a_value_is_compared_and_not_shown(shop: Shop) -> None:
    arguments: dict[str, Any] = {"workflow": "train", "parameters": {"password": "hunter2-hunter2"}}
    call = PermittedCall(primitive="run_workflow", target="workflow/train", arguments=arguments)
    shop.report(StrategyLimits(name="scale", calls=(call,)))
    shown = shop.ask("GET", "/agents/shop/watcher/strategies", shop.home)
    assert (shown.status_code, "hunter2" in shown.text) == (200, False)
    wanted = {"primitive": "run_workflow", "target": "workflow/train", "fields": ["running"], "priority": 0}
    other = {"id": "i2", "key": "watcher/scale/2", "arguments": {"workflow": "train"}}
    refused = shop.want(shop.own_token(), **{**wanted, **other}, autonomy="auto")
    assert (refused["verdict"], "hunter2" in refused["reason"]) == ("approve", False)
    assert shop.want(shop.own_token(), **wanted, arguments=arguments, autonomy="auto")["verdict"] == "act"


def test_what_an_earlier_deployment_reports_is_not_saved_for_the_next_one(
    shop: Shop, monkeypatch: pytest.MonkeyPatch
) -> None:
    earlier = shop.own_token()
    assert shop.report(headers=earlier).status_code == 204
    monkeypatch.setattr(shop.context.token_notifier, "notify", lambda: None)  # as where another server changes tokens
    shop.deploy("watcher", modules=("b.py",))
    assert shop.report(SCALE, headers=earlier).status_code == 401
    assert read_from_store(shop.context.store, agent_store.find, "shop", "watcher").strategies is None


@pytest.mark.parametrize(
    ("method", "path", "body"),
    [
        ("POST", "/intents", {**INTENT, "agent": "other", "key": "other/scale/1"}),
        ("POST", "/intents", {**INTENT, "app": "till"}),
        ("POST", "/intents", {**INTENT, "key": "other/scale/1"}),
        ("POST", "/agents/shop/other/heartbeat", HERE),
        ("PUT", "/agents/shop/other/strategies", []),
        ("POST", "/events", [{"at": 1.0, "type": "sample", "app": "shop", "subject": "agent/other"}]),
        ("POST", "/events", [{"at": 1.0, "type": "x", "app": "shop", "subject": "y", "data": {"agent": "other"}}]),
        ("POST", "/events", [{"at": 1.0, "type": "x", "app": "till", "subject": "y"}]),
        ("POST", "/labels", {"app": "till", "items": [{"id": "a"}]}),
        ("PATCH", "/labels", {"app": "till", "labels": [{"id": "a", "label": 1}]}),
    ],
)
def test_an_agent_s_own_token_speaks_for_no_other_agent(shop: Shop, method: str, path: str, body: Any) -> None:
    refused = shop.ask(method, path, shop.own_token(), body)
    assert (refused.status_code, "for that agent alone" in refused.json()["detail"]) == (403, True)


def test_an_agent_s_own_token_speaks_for_that_agent(shop: Shop) -> None:
    event = {"at": 1.0, "type": "sample", "app": "shop", "subject": "agent/watcher", "data": {"agent": "watcher"}}
    for method, path, body in (
        ("POST", "/agents/shop/watcher/heartbeat", HERE),
        ("POST", "/events", [event]),
        ("POST", "/events", [{**event, "subject": "model/m", "app": "", "data": {}}]),
        ("POST", "/labels", {"app": "shop", "team": "red", "items": [{"id": "a"}]}),
        ("PATCH", "/labels", {"labels": [{"id": "a", "label": 1}]}),
    ):
        assert shop.ask(method, path, shop.own_token(), body).is_success, path


def test_a_token_is_made_at_an_agent_s_start_and_is_gone_at_its_end(shop: Shop) -> None:
    first, other = shop.own_token(), shop.own_token("other")
    assert first != other
    shop.controller.tick()
    assert shop.own_token() == first, "it is the same for as long as the agent runs"
    shop.deploy("watcher", modules=("b.py",))
    second = shop.own_token()
    assert [shop.ask("GET", "/runs", headers).status_code for headers in (first, second, other)] == [401, 200, 200]
    shop.ask("DELETE", "/agents/shop/watcher", shop.home)
    assert [shop.ask("GET", "/runs", headers).status_code for headers in (second, other)] == [401, 200]
    shop.report(SCALE, headers=shop.home)
    assert shop.want(shop.make_token())["verdict"] == "approve"
    reason = shop.want(shop.make_token("red", "editor"), id="i2", key="watcher/scale/2")["reason"]
    assert "no strategy 'scale' of a running agent" in reason, "one that was stopped acts no more"


def test_agents_and_their_tokens_outlive_the_server(shop: Shop) -> None:
    own, version = shop.own_token(), shop.hosting.show("shop", "red", "watcher").version
    shop.hosting.agents_by_name.clear()
    AgentsController(shop.context).tick()  # as of a server that was started anew
    assert (shop.own_token(), shop.hosting.show("shop", "red", "watcher").version) == (own, version)
    assert shop.ask("GET", "/runs", own).status_code == 200


def test_the_database_does_not_hold_a_token_nor_what_makes_one_alone(shop: Shop) -> None:
    row = read_from_store(shop.context.store, agent_store.find, "shop", "watcher")
    token = shop.own_token()["authorization"].removeprefix("Bearer ")
    assert token not in row.model_dump_json()
    assert row.token_salt is not None
    other = read_from_store(shop.context.store, agent_store.find, "shop", "other")
    assert len({row.token_salt, row.token_hash, other.token_salt}) == 3


def test_a_heartbeat_of_an_unknown_agent_makes_none_and_tells_nothing_of_another_team_s(shop: Shop) -> None:
    blue = shop.make_token("blue")
    texts = []
    for name in ("watcher", "nobody"):
        refused = shop.ask("POST", f"/agents/shop/{name}/heartbeat", blue, HERE)
        assert refused.status_code == 404
        texts.append(refused.text.replace(name, "NAME"))
    assert texts[0] == texts[1]
    for number in range(3):
        assert (
            shop.ask(
                "POST",
                f"/agents/shop/made-{number}/heartbeat",
                shop.make_token(role="editor") if not number else shop.home,
                HERE,
            ).status_code
            == 404
        )
    with shop.context.store.read() as connection:
        assert {row.name for row in agent_store.list_all(connection)} == {"watcher", "other"}


def test_a_token_made_by_hand_does_not_say_where_an_agent_is(shop: Shop) -> None:
    by_hand = shop.make_token()
    assert shop.ask("POST", "/agents/shop/watcher/heartbeat", shop.own_token(), HERE).status_code == 204
    for body in (HERE, {**HERE, "url": "http://127.0.0.1:666"}):
        assert shop.ask("POST", "/agents/shop/watcher/heartbeat", by_hand, body).status_code == 403
    assert read_from_store(shop.context.store, agent_store.find, "shop", "watcher").url == HERE["url"]


def test_the_stream_of_a_stopped_agent_ends(shop: Shop) -> None:
    headers = {**shop.own_token(), "accept": "text/event-stream"}
    with HTTP.stream("GET", f"{shop.url}/events", headers=headers) as reply:
        assert reply.status_code == 200
        wait_until(lambda: shop.context.streams.open == 1, "the stream is open")
        shop.ask("DELETE", "/agents/shop/watcher", shop.home)
        wait_until(lambda: shop.context.streams.open == 0, "the server has ended it")
