"""The overview: what waits for a person, what runs, and what agents did today."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final

from scanflow.agent.agent_records import Action, AgentView, Event
from scanflow.agent.formatting import MAX_VALUE_LENGTH, describe_changes
from scanflow.app.quantities import format_duration
from scanflow.backends.run_records import RunRecord
from scanflow.backends.service_records import ServiceRecord
from scanflow.errors import UnsupportedError
from scanflow.reports.loop_events import TYPES
from scanflow.reports.service_periods import describe_restart
from scanflow.text.printable import make_one_line
from scanflow_server.arbiter.started_runs import refresh_started_runs
from scanflow_server.arbiter.why import format_reason, format_request
from scanflow_server.control.agent_controller import describe_agent
from scanflow_server.dashboard.dashboard_page import DashboardPage, PageRequest, PageView
from scanflow_server.dashboard.device_table import build_device_table
from scanflow_server.dashboard.page_cells import FIRST_RUN, CellRow, CellTable, LinkCell, Moment, StateCell
from scanflow_server.dashboard.subject_links import build_action_address, build_agent_address, link_models
from scanflow_server.response_masking import build_text_mask
from scanflow_server.routes import application_routes, run_routes, service_routes
from scanflow_server.scope import restrict_team
from scanflow_server.store import agent_store, event_store, intent_store, label_store
from scanflow_server.store.secret_store import cache_maskers

_MAX_RUNS, _MAX_ACTIONS = 20, 100
_FAILED: Final = frozenset({"failed", "interrupted", "degraded", "backup", "unsupervised"})
_RECENT_S: Final = 7 * 86400.0
"""How long a drift without a decision is shown, in seconds."""


def load(request: PageRequest) -> PageView:
    app, team = request.query.get("app") or None, restrict_team(request.caller, request.query.get("team") or None)
    runs = run_routes.runs(request.context, request.caller, app=app, team=team, workflow=None, limit=_MAX_RUNS)
    services, agents = list_services(request, app=app, team=team), list_agents(request, app=app, team=team)
    actions = list_actions(request, app=app, team=team)
    today = datetime.fromtimestamp(request.now, request.zone).replace(hour=0, minute=0, second=0).timestamp()
    applications = application_routes.applications(request.context, request.caller)
    choices = {"app": sorted({row.name for row in applications}), "team": sorted({row.team for row in applications})}
    drifts = list_events(request, type=["drift.found"], app=app, team=team, limit=_MAX_ACTIONS)
    with request.context.store.read() as connection:
        labels = label_store.count_waiting(connection, own=team)
        reports = event_store.list_apps(connection, type=TYPES, team=team)
    return PageView.make(
        "Overview",
        request.build_command("scanflow status"),
        approvals=list_approvals(request, app=app, team=team),
        labels=labels,
        failures=list_failures(runs, services, agents),
        drifts=list_undecided_drifts(drifts, actions, since=request.now - _RECENT_S),
        running=build_run_table(sorted(runs, key=lambda run: run.state != "running")),
        services=CellTable.make(map(_build_service_row, services), "No service yet.", "scanflow demo --keep"),
        agents=CellTable.make(map(_build_agent_row, agents), "No agent yet.", "scanflow demo --keep"),
        devices=build_device_table(request),
        today=build_action_table(select_agents_actions(actions, since=today)),
        reports=[name for name in reports if app in {None, name}],
        choices={name: values for name, values in choices.items() if len(values) > 1},
        signs_in=request.signs_in,
    )


def list_services(request: PageRequest, *, app: str | None = None, team: str | None = None) -> list[ServiceRecord]:
    try:
        services = service_routes.services(request.context, request.caller)
    except UnsupportedError:  # the backend has no services
        return []
    return [service for service in services if app in {None, service.app} and team in {None, service.team}]


def list_agents(request: PageRequest, *, app: str | None = None, team: str | None = None) -> list[AgentView]:
    with request.context.store.read() as connection:
        rows = [row for row in agent_store.list_all(connection) if request.caller.can_see(row.team)]
    shown = [row for row in rows if app in {None, row.app} and team in {None, row.team}]
    return [describe_agent(request.context, row) for row in shown]


def list_actions(
    request: PageRequest, *, limit: int = _MAX_ACTIONS, offset: int = 0, **about: str | None
) -> list[Action]:
    """Return the newest actions that the caller may see, with their applications' secrets masked."""
    about["team"] = restrict_team(request.caller, about.get("team"))
    with request.context.store.read() as connection:
        mask = build_text_mask(cache_maskers(connection))
        listed = intent_store.list_actions(connection, limit=limit, offset=offset, mask=mask, **about)
    return refresh_started_runs(request.context, listed)


def list_approvals(request: PageRequest, **about: Any) -> list[tuple[Action, str]]:
    """Return the newest actions that wait for a person, and what each would change and why."""
    waiting = list_actions(request, **about, state="pending", verdict="approve")
    shapes = {f"service/{row.name}": row.shape.model_dump() for row in (list_services(request) if waiting else ())}
    return [(action, format_request(action, shapes.get(action.intent.target, {}))) for action in waiting]


def list_events(
    request: PageRequest, *, type: Sequence[str], limit: int, app: str | None = None, team: str | None = None,
    subject: str | None = None,
) -> list[Event]:  # fmt: skip
    """Return the newest events of these types that the caller may see, the oldest of them first."""
    own = restrict_team(request.caller, team)
    with request.context.store.read() as connection:
        return event_store.list_newest(connection, type=type, app=app, team=own, subject=subject, limit=limit)


def list_undecided_drifts(drifts: Iterable[Event], actions: Sequence[Action], *, since: float) -> list[Event]:
    """Return the newest drift of each application since when no action of the application followed. Pure."""
    newest = {event.app: event for event in sorted(drifts, key=lambda event: event.at) if event.at >= since}
    decided = {action.intent.app: action.intent.at for action in reversed(actions)}
    return [event for event in newest.values() if decided.get(event.app, 0.0) < event.at]


def select_agents_actions(actions: Iterable[Action], *, since: float) -> list[Action]:
    """Return what agents requested or had done since then, and not what people did themselves. Pure."""
    own = (action for action in actions if action.intent.source == "agent")
    return [action for action in own if max(action.intent.at, action.began or 0.0) >= since]


def build_action_table(actions: Iterable[Action], restarts: Iterable[Event] = ()) -> CellTable:
    """Return a table of actions, and of restarts of instances, the newest first."""
    entries = [(action.began or action.intent.at, _build_action_row(action)) for action in actions]
    entries += [(event.at, _build_restart_row(event)) for event in restarts]
    entries.sort(key=lambda entry: entry[0], reverse=True)
    return CellTable.make(({**row, "when": Moment(at)} for at, row in entries), "No action yet.", "scanflow demo")


def build_action_state(action: Action) -> StateCell:
    """Return an action's state; of one that started a run, that run with its own."""
    if (run := action.started_run) is None or not isinstance(action.result, dict):
        return StateCell(action.state)
    return StateCell("started", LinkCell(f"{run}: {action.result.get('state') or 'unknown'}", f"/runs/{run}"))


def _build_action_row(action: Action) -> CellRow:
    return {
        "state": build_action_state(action),
        "action": LinkCell(f"{action.intent.primitive} {action.intent.target}", build_action_address(action.id)),
        "changes": describe_changes(action) or None,
        "by": action.intent.agent,
        "why": make_one_line(format_reason(action), MAX_VALUE_LENGTH),
    }


def _build_restart_row(event: Event) -> CellRow:
    link, why = LinkCell(describe_restart(event), f"/events/{event.id}"), str(event.data.get("error") or "")
    return {"state": StateCell("interrupted"), "action": link, "changes": None, "by": None, "why": why}


def build_run_table(runs: Iterable[RunRecord]) -> CellTable:
    rows = [build_run_row(run, "run", f"/runs/{run.name}") for run in runs]
    return CellTable.make(rows, "No run yet.", FIRST_RUN)


def build_run_row(run: RunRecord, column: str, address: str) -> CellRow:
    """Return a row of a run, whose name leads to an address."""
    took = None if run.seconds is None else format_duration(run.seconds)
    return {
        "state": StateCell(run.state),
        column: LinkCell(run.name, address),
        "workflow": f"{run.app}: {run.workflow}",
        "took": Moment(run.created, goes_on=True) if run.state == "running" else took,
        "started": Moment(run.created),
    }


def _build_service_row(service: ServiceRecord) -> CellRow:
    return {
        "state": StateCell(service.state),
        "service": LinkCell(service.name, f"/services/{service.name}"),
        "application": service.app,
        "models": link_models(service),
    }


def _build_agent_row(agent: AgentView) -> CellRow:
    link = LinkCell(agent.full_name, build_agent_address(agent.app, agent.name))
    return {"state": StateCell(agent.state), "agent": link, "error": agent.error}


def list_failures(
    runs: Sequence[RunRecord], services: Sequence[ServiceRecord], agents: Sequence[AgentView]
) -> list[tuple[LinkCell, str, str]]:
    """Return links to what failed, with its state and its error; of each workflow, the newest run that does not run
    any more. Pure."""
    failed = list[tuple[LinkCell, str, str]]()
    newest = {(run.app, run.team, run.workflow): run for run in reversed(runs) if run.state != "running"}
    for run in newest.values():
        if run.state in _FAILED:
            error = ", ".join(filter(None, (f"{run.app}: {run.workflow}", run.error)))
            failed.append((LinkCell(f"run {run.name}", f"/runs/{run.name}"), run.state, error))
    for record in services:
        if record.state in _FAILED:
            link = LinkCell(f"service {record.name}", f"/services/{record.name}")
            failed.append((link, record.state, record.error or ""))
    for view in agents:
        if view.state == "silent" or view.error:
            link = LinkCell(f"agent {view.full_name}", build_agent_address(view.app, view.name))
            failed.append((link, view.state, view.error or ""))
    return failed


SERVED: Final = (DashboardPage(path="/", template="overview", load=load),)
