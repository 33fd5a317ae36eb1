"""What the server says is wrong with an agent, and the events that agents listen to."""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from scanflow.agent.agent_records import AgentView, Event
from scanflow.processes.background_jobs import Job
from scanflow_server.control.agent_controller import compute_version, describe_agent
from scanflow_server.routes import event_routes as routes
from scanflow_server.server_context import ServerContext
from scanflow_server.store import agent_store, event_store
from tests.unit.server.server_rows import Api, read_from_store


@pytest.fixture
def folder(context: ServerContext) -> Path:
    with context.store.write() as connection:
        row = agent_store.put(connection, app="a", name="tracker", team="t", document={"v": 1}, source=None)
    host_folder = Job(context.settings.folder / "agents" / "a" / "tracker").path / "host"
    host_folder.mkdir(parents=True)
    (host_folder.parent / "version").write_text(
        compute_version(context, row)
    )  # as its controller does when it starts it
    return host_folder


def view(context: ServerContext) -> AgentView:
    row = read_from_store(context.store, agent_store.find, "a", "tracker")
    return describe_agent(context, row)


@pytest.mark.parametrize(
    ("log", "error"),
    [
        ("Traceback (most recent call last):\n  File x\nModuleNotFoundError: No module named 'y'\n", "ModuleNotFound"),
        ("Traceback (most recent call last):\n  File x\nKeyError: 1\n2026 INFO it is at http://x\n", None),
        ("2026 INFO agent tracker is at http://127.0.0.1:1\n", None),
        ("", None),
    ],
)
def test_one_that_ended_without_a_message_is_reported_with_the_last_line_of_its_traceback(
    context: ServerContext, folder: Path, log: str, error: str | None
) -> None:
    assert folder.is_dir()
    Job(context.settings.folder / "agents" / "a" / "tracker").log.write_text(log)
    problem = view(context).error
    assert problem is None if error is None else str(problem).startswith(error)


def test_what_fails_in_one_that_works_is_reported(
    context: ServerContext, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "failure.json").write_text(json.dumps({"error": "of the last time"}))
    (folder / "ailment.json").write_text(json.dumps({"error": "the sensor fails"}))
    assert view(context).error == "of the last time", "it is not there yet"
    with context.store.write() as connection:
        agent_store.record_address(
            connection, app="a", name="tracker", url="http://127.0.0.1:1", pid=7, at=context.clock()
        )
    monkeypatch.setattr("scanflow.processes.background_jobs.Job.pid", 7)
    assert (view(context).state, view(context).error) == ("running", "the sensor fails")
    (folder / "ailment.json").write_text("torn")
    assert view(context).error is None


def append(context: ServerContext, *types: str) -> list[Event]:
    with context.store.write() as connection:
        return event_store.append(connection, [Event(at=1.0, type=type, app="a") for type in types])


def test_the_newest_event_is_reported(api: Api) -> None:
    assert api.get("/events/newest").json() is None
    last = append(api.context, "a", "b")[-1]
    assert api.get("/events/newest").json() == last.model_dump(mode="json")


@contextmanager
def open_stream(api: Api, **asked: Any) -> Iterator[Iterator[tuple[str, dict[str, Any]]]]:
    with api.stream("GET", "/events", params=asked, headers={"accept": "text/event-stream"}) as reply:

        def parse_events() -> Iterator[tuple[str, dict[str, Any]]]:
            name = ""
            for line in reply.iter_lines():
                if line.startswith("event: "):
                    name = line.removeprefix("event: ")
                if line.startswith("data: "):
                    yield name, json.loads(line.removeprefix("data: "))

        yield parse_events()


def test_a_stream_tells_now_and_then_up_to_which_event_none_was_wanted(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(routes, "SEEN_INTERVAL_S", 0.0)
    with open_stream(api, type="made", seen="true") as stream:
        append(api.context, "sold", "sold")
        name, event = next(stream)
        assert (name, event["type"]) == ("events.seen", "sold")
        append(api.context, "made")
        while name != "made":
            name, event = next(stream)
        assert event["id"] == 3
