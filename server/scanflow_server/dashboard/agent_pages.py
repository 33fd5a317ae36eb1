"""The pages of agents: the list, and one with its sensors, what it saw and decided, its strategies and its journal."""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from scanflow.agent.agent_records import AgentView, Sample, SensorReport, StrategyLimits
from scanflow.agent.formatting import describe_entry
from scanflow.agent.sample_events import parse_samples
from scanflow.agent.strategy_limits import format_calls
from scanflow.agent.trigger_text import format_trigger
from scanflow.app.quantities import format_duration
from scanflow.errors import ScanflowError, UnsupportedError
from scanflow.reports.agent_lanes import draw_agent_lanes
from scanflow.reports.decision_drawing import draw_agent_decisions
from scanflow.reports.loop_events import LOOP_TYPES, select_loop_events
from scanflow_server.bodies import AppBody
from scanflow_server.control.agent_controller import describe_agent, fetch_journal
from scanflow_server.dashboard.dashboard_page import DashboardPage, PageAction, PageRequest, PageView
from scanflow_server.dashboard.overview_page import build_action_table, list_actions, list_agents, list_events
from scanflow_server.dashboard.page_cells import CellRow, CellTable, FoldedCell, LinkCell, Moment, StateCell
from scanflow_server.dashboard.page_windows import list_numbered_neighbours, parse_number
from scanflow_server.dashboard.subject_links import build_action_address, build_agent_address
from scanflow_server.routes import agent_routes
from scanflow_server.scope import get_agent
from scanflow_server.store.agent_store import AgentRow
from scanflow_server.store.secret_store import load_masker

MAX_EVENTS, _MAX_ACTIONS, _MAX_NUMBER = 200, 30, 2**53
_JOURNAL_ROWS: Final = 20
_MAX_JSON_LENGTH: Final = 4_000
"""The most characters of an entry's JSON."""

_JOURNAL_S: Final = 2.0
"""How long a page waits for an agent's journal."""


def load_agents(request: PageRequest) -> PageView:
    app, views = request.query.get("app") or None, list_agents(request)
    shown = [view for view in views if app in {None, view.app}]
    newest = list_events(request, type=LOOP_TYPES, app=app, limit=MAX_EVENTS)
    apps, loops = sorted({view.app for view in views}), select_loop_events(newest)
    return PageView.make(
        "Agents",
        "scanflow agents" if app is None else f"scanflow agents {app}",
        choices={"app": apps} if len(apps) > 1 else {},
        apps=apps,
        table=CellTable.make(map(_build_agent_row, shown), "No agent yet.", "scanflow demo --keep"),
        lanes=partial(draw_agent_lanes, loops, zone=request.zone) if loops else None,
    )


def _build_agent_row(view: AgentView) -> CellRow:
    sensors = view.sensors or ()
    return {
        "state": StateCell(view.state),
        "agent": LinkCell(view.full_name, build_agent_address(view.app, view.name)),
        "team": view.team,
        "sensors": len(sensors) or None,
        "last fired": Moment(max((sensor.last for sensor in sensors if sensor.last is not None), default=None)),
        "missed": sum(sensor.missed for sensor in sensors) or None,
        "errors": sum(sensor.errors for sensor in sensors) or None,
        "restarts": view.restarts or None,
        "error": view.error,
    }


def load_agent(request: PageRequest) -> PageView:
    row = _get_row(request)
    view, before = describe_agent(request.context, row), parse_number(request.query.get("before", ""))
    actions = list_actions(request, app=row.app, team=row.team, agent=row.name, limit=_MAX_ACTIONS)
    about: Any = {"app": row.app, "team": row.team, "subject": f"agent/{row.name}"}
    happened = list_events(request, type=["sample"], limit=MAX_EVENTS, **about)
    samples = list(parse_samples(row.name, happened))
    journal, no_journal = list[dict[str, Any]](), ""
    try:
        journal = _read_journal(request, row, before=_MAX_NUMBER if before is None else before)
    except ScanflowError as error:  # it does not run, or not here
        no_journal = str(error)
    draw = partial(draw_agent_decisions, samples, actions, address=build_action_address, zone=request.zone)
    return PageView.make(
        f"Agent {view.full_name}",
        f"scanflow agents {view.full_name}",
        agent=view,
        address=build_agent_address(row.app, row.name),
        is_ours=row.document is not None,
        wanted=row.wanted,
        sensors=_build_sensor_table(view.sensors or (), samples),
        draw=draw if samples or actions else None,
        actions=build_action_table(actions),
        strategies=CellTable.make(
            map(_build_strategy_row, agent_routes.strategies(request.context, request.caller, row)),
            "It has reported no strategy: what it requests waits for approval.",
        ),
        journal=CellTable.make(map(_build_entry_row, journal[:_JOURNAL_ROWS]), "Its journal has no entry."),
        # A rule is the user's program, which never runs in the server's process: whoever has its file replays it.
        replay=f"scanflow replay {view.full_name} {shlex.quote(row.source or 'app.py')} --last {max(len(samples), 1)}",
        no_journal=no_journal,
        **list_numbered_neighbours(request, [entry["id"] for entry in journal], _JOURNAL_ROWS),
    )


def _get_row(request: PageRequest) -> AgentRow:
    return get_agent(request.context, request.caller, request.parameters["app"], request.parameters["agent"])


def _read_journal(request: PageRequest, row: AgentRow, *, before: int) -> list[dict[str, Any]]:
    """Return the newest entries before a number, the newest first, one more than a window, with secrets masked."""
    entries = fetch_journal(request.context, row, before=before, limit=_JOURNAL_ROWS + 1, timeout_s=_JOURNAL_S)
    with request.context.store.read() as connection:
        masked: list[dict[str, Any]] = load_masker(connection, row.app, row.team).mask(entries)
    return masked[::-1]


def _build_sensor_table(sensors: Sequence[SensorReport], samples: Sequence[Sample]) -> CellTable:
    lags = {sample.sensor: lag for sample in samples if (lag := sample.lag_s) is not None}
    rows: list[CellRow] = [
        {
            "sensor": sensor.name,
            "fires": format_trigger(sensor.trigger),
            "last": Moment(sensor.last),
            "lag": None if sensor.name not in lags else format_duration(lags[sensor.name]),
            "next": Moment(sensor.next),
            "fired": sensor.fired,
            "missed": sensor.missed or None,
            "errors": sensor.errors or None,
        }
        for sensor in sensors
    ]
    return CellTable.make(rows, "It is not running: nothing is known of its sensors.", "scanflow agents --start")


def _build_strategy_row(strategy: StrategyLimits) -> CellRow:
    guard, budget_window = strategy.guard, format_duration(strategy.budget_window_s)
    return {
        "strategy": strategy.name,
        "autonomy": strategy.autonomy,
        "priority": strategy.priority,
        "may": ", ".join(format_calls(strategy.calls)) or "only senses",
        "cool-down": format_duration(strategy.cool_down_s) if strategy.cool_down_s else None,
        "budget": None if strategy.budget is None else f"{strategy.budget} in {budget_window}",
        "guard": None if guard is None else f"{guard.metric}, {guard.worse} by {guard.by:g} is worse",
    }


def _build_entry_row(entry: Mapping[str, Any]) -> CellRow:
    kind, body = str(entry["kind"]), json.dumps(entry["body"], ensure_ascii=False, indent=2)
    shown = body if len(body) <= _MAX_JSON_LENGTH else f"{body[:_MAX_JSON_LENGTH]}…"
    return {
        "when": Moment(entry["at"]),
        "kind": kind,
        "of": str(entry["subject"]),
        "what, and why": FoldedCell(describe_entry(kind, entry["body"]), shown, f"entry-{entry['id']}"),
    }


def _start(request: PageRequest, _form: Mapping[str, str]) -> str:
    row = _get_row(request)
    request.caller.check("change", row.team)
    if row.document is None:
        raise UnsupportedError("The agent is hosted elsewhere, and not started by this server.")
    body = AppBody(application=row.document, source=row.source)
    agent_routes.start(request.context, request.caller, row.app, row.name, body)
    return build_agent_address(row.app, row.name)


def _stop(request: PageRequest, _form: Mapping[str, str]) -> str:
    row = _get_row(request)
    request.caller.check("change", row.team)
    agent_routes.stop(request.context, request.caller, row)
    return build_agent_address(row.app, row.name)


SERVED: Final = (
    DashboardPage(path="/agents", template="agents", load=load_agents),
    DashboardPage(path="/agents/{app}/{agent}", template="agent", load=load_agent),
    PageAction(path="/agents/{app}/{agent}/start", perform=_start),
    PageAction(path="/agents/{app}/{agent}/stop", perform=_stop),
)
