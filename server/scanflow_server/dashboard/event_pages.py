"""The pages of events: the newest that a filter lets through, and one with all its data."""

from __future__ import annotations

import json
from typing import Any, Final

from scanflow.agent.agent_records import Event
from scanflow.errors import NotFoundError
from scanflow.reports.distributions import MAX_COLUMNS, draw_column
from scanflow.reports.loop_events import list_drifted_columns
from scanflow_server.dashboard.dashboard_page import DashboardPage, PageRequest, PageView
from scanflow_server.dashboard.page_cells import FIRST_RUN, CellRow, CellTable, LinkCell, Moment
from scanflow_server.dashboard.page_windows import WINDOW, list_numbered_neighbours, parse_number
from scanflow_server.dashboard.subject_links import link_subject, list_links
from scanflow_server.scope import restrict_team
from scanflow_server.store import event_store


def load_events(request: PageRequest) -> PageView:
    type, team = request.filters.get("type"), restrict_team(request.caller, request.filters.get("team"))
    about: Any = {name: request.filters.get(name) for name in ("app", "subject", "text")}
    about |= {"type": [type] if type else [], "team": team, "before": parse_number(request.query.get("before", ""))}
    with request.context.store.read() as connection:
        types = event_store.list_types(connection, team=team)
        newest = event_store.list_newest(connection, limit=WINDOW + 1, **about)[::-1]
    return PageView.make(
        "Events",
        request.build_command("scanflow events", type="--type {}", app="--app {}"),
        table=CellTable.make(map(_build_row, newest[:WINDOW]), "No event yet.", FIRST_RUN),
        types=types,
        **list_numbered_neighbours(request, [event.id for event in newest]),
    )


def load_event(request: PageRequest) -> PageView:
    id = parse_number(request.parameters["id"])
    with request.context.store.read() as connection:
        event = None if id is None else event_store.find(connection, id, team=request.caller.team)
    if event is None:
        raise NotFoundError(f"There is no event {request.parameters['id']!r:.40}. Old events are forgotten.")
    is_of_action = event.type == "intent" or event.type.startswith("action.")
    return PageView.make(
        f"Event {event.id}: {event.type}",
        event=event,
        subject=link_subject(event.subject, event.app),
        links=list_links(event.app, event.data, {"action": event.data.get("id")} if is_of_action else {}),
        data=json.dumps(event.data, indent=2, ensure_ascii=False),
        columns=[draw_column(column) for column in list_drifted_columns(event)[:MAX_COLUMNS]],
    )


def _build_row(event: Event) -> CellRow:
    return {
        "when": Moment(event.at),
        "event": LinkCell(f"{event.id} {event.type}", f"/events/{event.id}"),
        "about": link_subject(event.subject, event.app),
        "application": event.app,
        "data": json.dumps(event.data, ensure_ascii=False) if event.data else None,
    }


SERVED: Final = (
    DashboardPage(path="/events", template="events", load=load_events),
    DashboardPage(path="/events/{id}", template="event", load=load_event),
)
