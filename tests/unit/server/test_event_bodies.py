"""What an agent says of itself is shown to others: times without a date and forged lines are refused, or bounded."""

from __future__ import annotations

from typing import Any

import pytest

from scanflow.agent.agent_records import Event, Sample
from scanflow.text.times import LAST_TIME
from scanflow_client.formatting.control_plane_text import format_event
from scanflow_server import streams
from scanflow_server.store import event_store
from tests.http_requests import http_client
from tests.unit.server.arbiter.intent_builders import intent
from tests.unit.server.server_rows import Api

NO_TIMES = [1e300, -1.0, LAST_TIME + 1]


@pytest.mark.parametrize("at", NO_TIMES)
def test_a_time_without_a_date_is_refused(api: Api, at: float) -> None:
    sample = Sample(id="s", agent="watch", sensor="rows", at=at, value=1, cause="interval")
    heartbeat = {"url": "http://localhost:1", "pid": 1}
    sensor = {"name": "rows", "trigger": {}}
    bodies: list[tuple[str, Any]] = [
        ("/events", [{"at": at, "type": "a.b"}]),
        ("/intents", intent("one", at=at).model_dump(mode="json")),
        ("/intents", intent("two", sample=sample).model_dump(mode="json")),
        ("/agents/shop/watch/heartbeat", {**heartbeat, "sensors": [{**sensor, "last": at}]}),
        ("/agents/shop/watch/heartbeat", {**heartbeat, "sensors": [{**sensor, "next": at}]}),
    ]
    for path, body in bodies:
        refused = api.post(path, json=body)
        assert refused.status_code == 422, path
        assert "no time from 1970 to 9999" in refused.text, path


@pytest.mark.parametrize("name", ["type", "app", "subject"])
def test_an_event_that_would_forge_lines_is_refused(api: Api, name: str) -> None:
    for text in ("a\n2026-01-01 00:00:00  model.promoted", "a\x1b[2K", "a\u202eb"):
        refused = api.post("/events", json=[{"at": 1.0, "type": "a.b", name: text}])
        assert refused.status_code == 422
        assert "Remove it" in refused.text


def test_the_last_second_of_the_calendar_is_recorded_and_shown(api: Api) -> None:
    assert api.post("/events", json=[{"at": LAST_TIME, "type": "a.b", "subject": "größe 1"}]).status_code == 201
    [event] = api.get("/events").json()
    assert format_event(Event.model_validate(event)).startswith("9999-12-3")


def test_events_that_are_saved_already_are_shown(api: Api) -> None:
    counted: Any = {"agent": "tracker", "new": 3}
    about: dict[str, Any] = {"type": "predictions.counted", "app": "shop", "subject": "model/m", "data": counted}
    stored = [
        *(Event(**about, at=at) for at in (1.7e308, -1.7e308, 5.0)),
        Event(at=5.0, type="predictions.counted\n2026", app="sh\nop", subject="a\rb", data=counted),
    ]
    with api.context.store.write() as connection:
        event_store.append(connection, stored)
    listed = [Event.model_validate(event) for event in api.get("/events").json()]
    assert len(listed) == 4
    assert all(0 <= event.at <= LAST_TIME for event in listed)
    lines = list(map(format_event, [*listed, *stored]))  # as a server of another version sends them
    assert all(line.isprintable() for line in lines)
    token = api.post("/tokens", json={"name": "ada"}).json()["token"]
    with http_client(base_url=str(api.base_url).removesuffix("/api/v1/"), follow_redirects=True) as browser:
        browser.post("/login", data={"token": token}, headers={"origin": str(browser.base_url)})
        report = browser.get("/reports/shop")
    assert report.status_code == 200
    assert "The loop of shop" in report.text
    assert '<a href="/applications/shop">' in report.text


def test_the_name_of_an_event_forges_no_message_of_a_stream() -> None:
    message = streams.format_event("{}", name="a\ndata: forged\n\nevent: b", id="1").decode()
    assert message.splitlines() == ["event: a data: forged event: b", "data: {}", "id: 1", ""]
