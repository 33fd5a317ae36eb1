"""The report of an application's agents as a caller may see it, from the events and labels of the store."""

from __future__ import annotations

from datetime import tzinfo
from functools import partial
from typing import Any, Final

from scanflow.errors import NotFoundError
from scanflow.reports.event_report import report_page
from scanflow.reports.loop_events import TYPES
from scanflow.reports.run_devices import list_run_devices
from scanflow_server.scope import get_own_run
from scanflow_server.server_context import ServerContext
from scanflow_server.store import event_store, label_store
from scanflow_server.token_roles import TokenHolder

_MAX_EVENTS: Final = 1_000
"""The newest events of an application that its report is made of."""

MAX_LABELS: Final = 2_000
MAX_DETAILS: Final = 300
"""The newest labels of the detections among them; and those whose rows and pictures are read, of which a report shows
those of the last detection."""


def render_application_report(context: ServerContext, caller: TokenHolder, app: str, zone: tzinfo) -> str:
    """Return the report as a page; NotFoundError: no agent of the application has reported anything to this caller."""
    with context.store.read() as connection:
        events = event_store.list_newest(connection, type=TYPES, app=app, team=caller.team, limit=_MAX_EVENTS)
        runs = {str(event.data.get("run")) for event in events if event.type == "drift.found"}
        about: Any = {"app": app, "own": caller.team, "state": "given", "runs": runs}
        labels = label_store.list_labels(connection, **about, details=True, limit=MAX_DETAILS)
        labels += label_store.list_labels(connection, **about, limit=MAX_LABELS, offset=MAX_DETAILS)
    if not events:
        raise NotFoundError(f"No agent of {app!r} has reported anything yet.")
    devices = list_run_devices(events, partial(get_own_run, context, caller))
    details = [label.model_dump(mode="json") for label in labels]
    return report_page(app, events, details, zone=zone, devices=devices, back=f"/applications/{app}")
