"""The pages of events: filters, windows, one event, and who sees which."""

from __future__ import annotations

from typing import Any

from scanflow.agent.agent_records import Event
from scanflow_server.server_context import ServerContext
from scanflow_server.store import event_store
from tests.page_reader import PageReader
from tests.unit.server.page_browser import browsing
from tests.unit.server.server_rows import Api

DATABASES = ["sqlite", "postgresql"]


def add_events(context: ServerContext, *more: dict[str, Any], team: str = "tests") -> list[int]:
    new = [Event.model_validate({"at": 1.0, "type": "run.failed", "app": "shop", **event}) for event in more]
    with context.store.write() as connection:
        return [event.id for event in event_store.append(connection, new, team=team)]


def list_shown(page: PageReader) -> list[int]:
    """Return the numbers of the events in a page's table."""
    numbers = (address.rpartition("/")[2] for address in page.links.values() if address.startswith("/events/"))
    return sorted(map(int, numbers))


def test_events_are_filtered_by_what_they_are_about_and_say(api: Api, context: ServerContext) -> None:
    run, drift, other = add_events(
        context,
        {"subject": "run/fox-1", "data": {"error": 'Größe "100 %" <b>'}},
        {"type": "drift.found", "subject": "workflow/detector", "data": {"run": "fox-1", "agent": "checker"}},
        {"type": "drift.none", "app": "other", "data": {"error": "100"}},
    )
    with browsing(api) as ada:
        for query, numbers in (
            ("", [run, drift, other]),
            ("?type=drift.found", [drift]),
            ("?type=drift.*", [drift, other]),
            ("?app=shop", [run, drift]),
            ("?subject=run/fox-1", [run]),
            ("?text=FOX-1", [drift]),
            ("?text=gr%C3%B6%C3%9Fe", [run]),
            ('?text="100 %25"', []),
            ("?text=100 %25", [run]),
            ("?text=100&app=other", [other]),
            (f"?before={other}", [run, drift]),
            ("?before=x", [run, drift, other]),
        ):
            assert list_shown(ada.read(f"/events{query}")) == numbers, query
        page = ada.get("/events")
        assert "&lt;b&gt;" in page
        assert PageReader(page).links[f"{drift} drift.found"] == f"/events/{drift}"
        assert {"/runs/fox-1", "/runs?app=shop&workflow=detector"} <= PageReader(page).addresses
        assert 'value="a&#34;b"' in ada.get('/events?text=a"b')
        drifted = ada.read(f"/events/{drift}")
        assert {"/runs/fox-1", "/agents/shop/checker", "/runs?app=shop&workflow=detector"} <= drifted.addresses


def test_older_events_are_windows_away(api: Api, context: ServerContext) -> None:
    numbers = add_events(context, *({"type": f"t.{n % 3}"} for n in range(120)))
    with browsing(api) as ada:
        newest = ada.read("/events?app=shop")
        assert list_shown(newest) == numbers[70:]
        assert "← Newer" not in newest.links
        second = ada.read(newest.links["Older →"])
        assert list_shown(second) == numbers[20:70]
        assert list_shown(ada.read(second.links["← Newer"])) == numbers[70:]
        last = ada.read(second.links["Older →"])
        assert (list_shown(last), "Older →" in last.links) == (numbers[:20], False)


def test_an_action_is_named_by_its_events(api: Api, context: ServerContext) -> None:
    (intent,) = add_events(context, {"type": "intent", "subject": "service/s", "data": {"id": "a1", "agent": "person"}})
    with browsing(api) as ada:
        addresses = ada.read(f"/events/{intent}").addresses
    assert {"/actions/a1", "/services/s"} <= addresses
    assert "/agents/shop/person" not in addresses


def test_events_of_another_team_and_secrets_are_not_seen(api: Api, context: ServerContext) -> None:
    (secret,) = add_events(context, {"data": {"password": "tops3cret", "url": "http://a:b3cret@host"}}, team="alpha")
    with browsing(api) as ada, browsing(api, "eve", "viewer", "beta") as eve:
        for path in ("/events", f"/events/{secret}"):
            page = ada.get(path)
            assert "password" in page
            assert "tops3cret" not in page
            assert "b3cret" not in page
        assert list_shown(ada.read("/events?text=b3cret")) == []
        for query in ("", "?team=alpha", "?type=run.failed"):
            assert list_shown(eve.read(f"/events{query}")) == []
        assert "run.failed" not in eve.get("/events"), "not even its type"
        for id in (str(secret), "0", "x", "9" * 30, "%C2%B2"):
            missing = eve.client.get(f"/events/{id}")
            assert (missing.status_code, "There is no event" in missing.text) == (404, True), id
