"""The pages of searches for the best configuration of a service: the list, and what one shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final
from urllib.parse import quote

from scanflow.knowledge.knowledge_records import TrackedRun
from scanflow.reports.search_drawings import draw_search_cuts, draw_search_frontier, summarize_arms
from scanflow.tuning.candidates import describe
from scanflow_server.dashboard.dashboard_page import DashboardPage, PageRequest, PageView
from scanflow_server.dashboard.overview_page import list_services
from scanflow_server.dashboard.page_cells import CellRow, CellTable, LinkCell, Moment, StateCell
from scanflow_server.dashboard.service_pages import SIZE
from scanflow_server.routes import application_routes
from scanflow_server.tuning_runs import Search, list_searches, load_search

_MAX_ROWS: Final = 50
_WIDTHS: Final = (960, 350)
_STATES: Final = {"finished": "succeeded"}


def load_searches(request: PageRequest) -> PageView:
    applications, context = _list_applications(request), request.context
    key = ("tuning", request.caller.team, applications)
    reading = context.background_reads.get(
        key, lambda: list_searches(context, applications), is_opened=not request.is_live
    )
    table = CellTable.make(
        map(_build_row, (reading.value or [])[:_MAX_ROWS]),
        "No search is logged of the applications that this server knows.",
        "scanflow tune NAME",
    )
    return PageView.make("Tuning", "scanflow tune NAME", reading=reading, table=table)


def _list_applications(request: PageRequest) -> tuple[tuple[str, str], ...]:
    """Return the stored applications, each with its team, and those of which a service is deployed: it was perhaps
    without this server."""
    stored = {(row.name, row.team) for row in application_routes.applications(request.context, request.caller)}
    return tuple(sorted(stored | {(record.app, record.team) for record in list_services(request)}))


def _build_row(run: TrackedRun) -> CellRow:
    get, ratio = run.params.get, run.metrics.get("ratio")
    service = get("service", "")
    instances, cores, gpu, affinity = (get(f"best.{name}", "?") for name in SIZE)
    return {
        "state": StateCell(_STATES.get(run.status, run.status)),
        "search": LinkCell(run.name, f"/tuning/{quote(run.run_id, safe='')}"),
        "service": LinkCell(service, f"/services/{quote(service, safe='')}") if service else None,
        "for": get("goal", ""),
        "cores": get("cores", ""),
        "best": f"{instances} × {cores.removesuffix('.0')}{'' if gpu in {'0', '?'} else f', gpu={gpu}'}, {affinity}",
        "better by": None if ratio is None else f"{ratio:.2f}×",
        "trials": f"{run.metrics.get('trials', 0):.0f}",
        "when": Moment(run.started_at.timestamp()),
    }


def load_one(request: PageRequest) -> PageView:
    id, applications, context = request.parameters["id"], _list_applications(request), request.context
    key = ("tuning", request.caller.team, applications, id)
    reading = context.background_reads.get(key, lambda: describe_search(load_search(context, id, applications)))
    if reading.problem is not None:
        raise reading.problem
    shown: Mapping[str, Any] = reading.value or {"service": "NAME"}
    title = f"Search for {shown['service']}" if reading.value else "Search"
    mlflow = f"/mlflow/#/runs/{quote(id, safe='')}"
    return PageView.make(title, f"scanflow tune {shown['service']}", reading=reading, mlflow=mlflow, **shown)


def describe_search(search: Search) -> Mapping[str, Any]:
    """Return what a page shows of a search, drawn once. Pure."""
    result, service, winner = search.result, search.service, search.result.winner
    frontier = {width: draw_search_frontier(service, result, width=width) for width in _WIDTHS}
    cuts = {width: draw_search_cuts(service, result, cores=search.cores, width=width) for width in _WIDTHS}
    size = {} if winner is None else {name: str(getattr(winner, name)) for name in SIZE}
    return {
        "service": service,
        "search": search,
        "winner": None if winner is None else describe(winner),
        "best": describe(result.best),
        "size": size,
        "arms": summarize_arms(result),
        "frontier": lambda width: frontier[width],
        "cuts": lambda width: cuts[width],
    }


SERVED: Final = (
    DashboardPage(path="/tuning", template="tuning", load=load_searches),
    DashboardPage(path="/tuning/{id}", template="search", load=load_one),
)
