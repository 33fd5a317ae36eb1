"""What an application's agents did, as a page: from the server's events to a file."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from scanflow.agent.records import Event
from scanflow.errors import NotFoundError, UnavailableError, UsageError, did_you_mean
from scanflow.names import environment_name
from scanflow.reports.event_report import judged_models, report_page
from scanflow.reports.loop_events import TYPES
from scanflow.reports.tracker_links import TrackerLinks
from scanflow.transport import json_of

if TYPE_CHECKING:
    from scanflow_client.control_client import ControlClient

_MOST_LABELS, _MOST_DETAILED = 10_000, 200


@dataclass(frozen=True, slots=True)
class Report:
    """What an application's agents did, as a page in a file."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    def _repr_html_(self) -> str:
        """Return the page in a frame of its own, which runs no scripts."""
        page, style = escape(self.path.read_text(encoding="utf-8")), "width:100%;height:40em;border:0"
        return f'<iframe sandbox title="{escape(self.path.stem)}" style="{style}" srcdoc="{page}"></iframe>'


def write_report(client: ControlClient, app: str | None, folder: Path) -> Path:
    """Write what an application's agents did, as far as the server keeps it, and return the file.

    ``app`` None: the only application that has agents.
    """
    told = client.events_so_far(type=TYPES)
    apps = sorted({event.app for event in told})
    if not apps:
        raise NotFoundError("No agent has told of anything yet. See which are at work: scanflow agents")
    if app is None and len(apps) > 1:
        raise UsageError(f"Agents of {', '.join(apps)} are at work. Name one: scanflow events --report --app {apps[0]}")
    name = app or apps[0]
    if name not in apps:
        raise NotFoundError(f"No agent of {name!r} has told of anything yet.{did_you_mean(name, apps)}")
    path = folder / f"{name}.html"
    mine = [event for event in told if event.app == name]
    page = report_page(name, mine, labels_so_far(client, name), links=tracker_links(client, name, mine))
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise UnavailableError(f"The report cannot be written to {str(path)!r}: {error.strerror}.") from error
    return path


def labels_so_far(client: ControlClient, app: str) -> list[dict[str, Any]]:
    """Return the labelled points of an application, and some that wait; the newest of both with what they are."""
    listed = client.labels(app=app, state="given", details=False, limit=_MOST_LABELS)
    listed += client.labels(app=app, state="given", limit=_MOST_DETAILED)
    listed += client.labels(app=app, limit=_MOST_DETAILED)
    return list({(one.get("team"), one["id"]): one for one in listed}.values())


def tracker_links(client: ControlClient, app: str, told: Sequence[Event]) -> TrackerLinks:
    """Return where the server's tracker shows an application's runs and models; nowhere, where it has no pages."""
    status = client.status()
    tracker, agents = status.get("tracker") or {}, status.get("agents") or []
    address, teams = str(tracker.get("url") or ""), {one["team"] for one in agents if one["app"] == app}
    if not (address.startswith("http") and tracker.get("ready")):
        return TrackerLinks()
    found = None
    if len(teams) == 1:
        asked = quote(environment_name(app, teams.pop()), safe="")
        found = json_of(f"{address.rstrip('/')}/api/2.0/mlflow/experiments/get-by-name?experiment_name={asked}")
    experiment = found.get("experiment") if isinstance(found, dict) else None
    known = str(experiment.get("experiment_id") or "") if isinstance(experiment, dict) else ""
    return TrackerLinks(address, known, next(iter(judged_models(told)), ""))
