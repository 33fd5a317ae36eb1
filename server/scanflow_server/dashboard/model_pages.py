"""The pages of models: the list, and one with the road of its versions, and why each is in use or not."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final
from urllib.parse import quote

from scanflow.agent.agent_records import Event
from scanflow.agent.model_changer import ModelChange, ModelChanger
from scanflow.errors import NotFoundError
from scanflow.knowledge.knowledge_records import ModelVersion
from scanflow.reports.distributions import MAX_COLUMNS, draw_column
from scanflow.reports.loop_events import collect_versions, list_drifted_columns
from scanflow.reports.model_history import TYPES, VersionHistory, build_histories
from scanflow.reports.sections import POINTS, draw_history
from scanflow_server.background_reads import Reading
from scanflow_server.dashboard.action_pages import build_slice_table, read_reason
from scanflow_server.dashboard.dashboard_page import DashboardPage, PageAction, PageRequest, PageView
from scanflow_server.dashboard.overview_page import list_approvals, list_events, list_services
from scanflow_server.dashboard.page_cells import CellRow, CellTable, LinkCell, Moment
from scanflow_server.dashboard.page_windows import WINDOW, TableWindow, parse_number
from scanflow_server.dashboard.subject_links import build_action_address
from scanflow_server.model_decisions import begin_decision
from scanflow_server.registered_models import read_models
from scanflow_server.tuning_runs import open_tracker

_MAX_EVENTS: Final = 1_000


def load_models(request: PageRequest) -> PageView:
    (happened, reading, models), services = _read_models(request), list_services(request)
    rows = [_build_row(name, build_histories(versions, happened, services)) for name, versions in models.items()]
    window = TableWindow.read(request)
    return PageView.make(
        "Models",
        "scanflow models",
        reading=reading,
        table=CellTable.make(rows[window.start :][:WINDOW], "No model is registered yet.", "scanflow demo"),
        **window.list_neighbours(len(rows) - window.start),
    )


def _read_models(request: PageRequest) -> tuple[list[Event], Reading, dict[str, list[ModelVersion]]]:
    """Return what happened to models, and the models as they were read last."""
    happened = list_events(request, type=TYPES, limit=_MAX_EVENTS)
    newest, is_opened = happened[-1].id if happened else 0, not request.is_live
    return happened, *read_models(request.context, request.caller.team, newest=newest, is_opened=is_opened)


def _build_row(name: str, histories: Sequence[VersionHistory]) -> CellRow:
    used = next((history for history in histories if history.in_use), None)
    newest = histories[0] if histories else None
    return {
        "model": LinkCell(name, f"/models/{quote(name, safe='')}"),
        "in use": None if used is None else f"version {used.version}",
        "since": Moment(None if used is None else used.since),
        "served by": None if used is None else ", ".join(used.services),
        "versions": len(histories),
        "newest": None if newest is None else f"version {newest.version}",
        "decided of it": None if newest is None else newest.verdict,
    }


def load_model(request: PageRequest) -> PageView:
    name, window = request.parameters["model"], TableWindow.read(request)
    happened, reading, models = _read_models(request)
    if not (name in models or reading.is_loading or reading.problem):
        raise NotFoundError(f"There is no model {name!r:.100}. List the models: scanflow models")
    versions = models.get(name, [])
    histories = build_histories(versions, happened, list_services(request))
    road, drift = collect_versions(happened, model=name), _find_drift(happened, name)
    uris = {version.uri for version in versions}
    waiting = [
        (action, wanted) for action, wanted in list_approvals(request) if action.intent.arguments.get("model") in uris
    ]
    return PageView.make(
        f"Model {name}",
        f"scanflow models {shlex.quote(name)}",
        reading=reading,
        mlflow=f"/mlflow/#/models/{quote(name, safe='')}",
        road=partial(draw_history, road) if road else None,
        about_points=POINTS,
        histories=[(history, _list_facts(history)) for history in histories[window.start :][:WINDOW]],
        build_slices=build_slice_table,
        waiting=waiting,
        drift=drift,
        columns=[] if drift is None else list(map(draw_column, list_drifted_columns(drift)[:MAX_COLUMNS])),
        **window.list_neighbours(len(histories) - window.start),
    )


def _find_drift(happened: Sequence[Event], name: str) -> Event | None:
    """Return the newest detection of drift in the applications that tell of the model."""
    apps = {event.app for event in happened if event.subject == f"model/{name}"}
    return next((event for event in reversed(happened) if event.type == "drift.found" and event.app in apps), None)


def _list_facts(history: VersionHistory) -> list[LinkCell]:
    """Return links to what a version comes from, and is used by."""
    return [
        *(LinkCell(f"served by {name}", f"/services/{quote(name, safe='')}") for name in history.services),
        *([LinkCell("why", build_action_address(history.action))] if history.action else []),
        *([LinkCell(f"trained by run {history.run}", f"/runs/{quote(history.run, safe='')}")] if history.run else []),
        *([LinkCell(f"after drift in run {history.drift}", f"/runs/{history.drift}")] if history.drift else []),
    ]


def _decide(request: PageRequest, form: Mapping[str, str], decide: Callable[..., ModelChange]) -> str:
    """Promote or reject a version as ``scanflow models`` does: of the caller's team's models, by what it may."""
    name, version, reason = request.parameters["model"], request.parameters["version"], read_reason(form)
    context, caller = request.context, request.caller
    caller.check("change", caller.team)
    if (number := parse_number(version, max_digits=9)) is None:
        raise NotFoundError(f"The model {name!r:.100} has no version {version!r:.20}.")
    action = begin_decision(
        context, request.engine, caller, open_tracker(context), lambda to: decide(to, name, number, why=reason)
    )
    return f"/models/{quote(name, safe='')}" if action is None else build_action_address(action)


SERVED: Final = (
    DashboardPage(path="/models", template="models", load=load_models),
    DashboardPage(path="/models/{model}", template="model", load=load_model),
    PageAction(path="/models/{model}/{version}/promote", perform=partial(_decide, decide=ModelChanger.promote)),
    PageAction(path="/models/{model}/{version}/reject", perform=partial(_decide, decide=ModelChanger.reject)),
)
