"""The report of an application's agents as a page, generated from the server's events."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote

from scanflow.agent.agent_records import Event
from scanflow.backends.run_records import RunRecord
from scanflow.errors import NotFoundError, UnavailableError, UsageError, did_you_mean
from scanflow.names import format_environment_name
from scanflow.reports.event_report import list_compared_models, report_page
from scanflow.reports.loop_events import TYPES
from scanflow.reports.page import render_frame
from scanflow.reports.run_devices import list_run_devices
from scanflow.reports.tracker_links import TrackerLinks
from scanflow.settings import Settings
from scanflow.transport import build_path, fetch_json
from scanflow_client.control_client import ControlClient

_MAX_LABELS, _MAX_DETAILED = 10_000, 200


@dataclass(frozen=True, slots=True)
class Report:
    """A report of an application's agents, as a page in a file."""

    path: Path

    def __str__(self) -> str:
        return str(self.path)

    def _repr_html_(self) -> str:
        """Return the page in a frame of its own, which runs no scripts."""
        return render_frame(self.path.stem, self.path.read_text(encoding="utf-8"))


def save_report(client: ControlClient, app: str | None) -> Report:
    """Write the report of an application's agents below the home folder.

    ``app`` None: the only application that has agents.
    """
    home = Settings.from_environment().home.expanduser().absolute()
    return Report(write_report(client, app, home / "reports"))


def write_report(client: ControlClient, app: str | None, folder: Path) -> Path:
    """Write the report of an application's agents from the events that the server keeps, and return the file.

    ``app`` None: the only application that has agents.
    """
    events = client.events_so_far(type=TYPES)
    apps = sorted({event.app for event in events} - {""})
    if not apps:
        raise NotFoundError("No agent has reported an event yet. See which agents run: scanflow agents")
    if app is None and len(apps) > 1:
        raise UsageError(
            f"There are events of the applications {', '.join(apps)}. Name one: scanflow events --report --app "
            f"{apps[0]}"
        )
    name = app or apps[0]
    if name not in apps:
        raise NotFoundError(f"No agent of {name!r} has reported an event yet.{did_you_mean(name, apps)}")
    path = folder / f"{name}.html"
    app_events = [event for event in events if event.app == name]
    devices = list_run_devices(app_events, lambda run: fetch_run(client, run))
    links = fetch_tracker_links(client, name, app_events)
    page = report_page(name, app_events, fetch_labels(client, name), links=links, devices=devices)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        path.write_text(page, encoding="utf-8")
    except OSError as error:
        raise UnavailableError(f"The report cannot be written to {str(path)!r}: {error.strerror}.") from error
    return path


def fetch_labels(client: ControlClient, app: str) -> list[dict[str, Any]]:
    """Return the labelled samples of an application and some unlabelled ones; the newest of both with details."""
    samples = client.labels(app=app, state="given", details=False, limit=_MAX_LABELS)
    samples += client.labels(app=app, state="given", limit=_MAX_DETAILED)
    samples += client.labels(app=app, limit=_MAX_DETAILED)
    return list({(sample.get("team"), sample["id"]): sample for sample in samples}.values())


def fetch_run(client: ControlClient, name: str) -> RunRecord:
    return RunRecord.model_validate(client.server.get(build_path("runs", name)))


def fetch_tracker_links(client: ControlClient, app: str, events: Sequence[Event]) -> TrackerLinks:
    """Return the links to an application's runs and models in the server's tracker; none, if it has no web pages."""
    status = client.status()
    tracker, agents = status.get("tracker") or {}, status.get("agents") or []
    address, teams = str(tracker.get("url") or ""), {agent["team"] for agent in agents if agent["app"] == app}
    if not (address.startswith("http") and tracker.get("ready")):
        return TrackerLinks()
    document = None
    if len(teams) == 1:
        name = quote(format_environment_name(app, teams.pop()), safe="")
        document = fetch_json(f"{address.rstrip('/')}/api/2.0/mlflow/experiments/get-by-name?experiment_name={name}")
    experiment = document.get("experiment") if isinstance(document, dict) else None
    experiment_id = str(experiment.get("experiment_id") or "") if isinstance(experiment, dict) else ""
    return TrackerLinks(address, experiment_id, next(iter(list_compared_models(events)), ""))
