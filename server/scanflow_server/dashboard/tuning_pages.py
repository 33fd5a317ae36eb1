"""The pages of searches for the best configuration of a service: the list, and what one shown."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean, median
from typing import Any, Final
from urllib.parse import quote

from scanflow.knowledge.knowledge_records import TrackedRun
from scanflow.reports.search_drawings import draw_search_cuts, draw_search_frontier, list_arms
from scanflow.tuning.candidates import describe
from scanflow.tuning.result import TuningResult
from scanflow_server.background_reads import Reading
from scanflow_server.dashboard.page import Page, PageAction, PageRequest, PageView
from scanflow_server.dashboard.page_cells import Cell, CellTable, Link, Moment, StateCell
from scanflow_server.dashboard.service_pages import SIZE, format_latency
from scanflow_server.routes import application_routes
from scanflow_server.tuning_runs import Search, list_searches, load_search

_MAX_ROWS: Final = 50
_WIDTHS: Final = (960, 350)
_STATES: Final = {"finished": "succeeded"}


def load_searches(request: PageRequest) -> PageView:
    reading = read_searches(request)
    table = CellTable(
        ("state", "search", "service", "for", "cores", "best", "better by", "trials", "when"),
        list(map(_build_row, (reading.value or [])[:_MAX_ROWS])),
        "No search is logged of the applications that this server knows.",
        "scanflow tune NAME",
    )
    return PageView(title="Tuning", command="scanflow tune NAME", values={"reading": reading, "table": table})


def read_searches(request: PageRequest) -> Reading:
    applications = _list_applications(request)
    key = ("tuning", request.caller.team, applications)
    return request.context.background_reads.get(key, lambda: list_searches(request.context, applications))


def _list_applications(request: PageRequest) -> tuple[tuple[str, str], ...]:
    return tuple((row.name, row.team) for row in application_routes.applications(request.context, request.caller))


def _build_row(run: TrackedRun) -> list[Cell]:
    get, ratio = run.params.get, run.metrics.get("ratio")
    service = get("service", "")
    return [
        StateCell(_STATES.get(run.status, run.status)),
        Link(run.name, f"/tuning/{quote(run.run_id, safe='')}"),
        Link(service, f"/services/{quote(service, safe='')}") if service else None,
        get("goal", ""),
        get("cores", ""),
        f"{get('best.instances', '?')} × {get('best.cores', '?').removesuffix('.0')}, {get('best.affinity', '?')}",
        None if ratio is None else f"{ratio:.2f}×",
        f"{run.metrics.get('trials', 0):.0f}",
        Moment(run.started_at.timestamp()),
    ]


def load_one(request: PageRequest) -> PageView:
    id, applications = request.parameters["id"], _list_applications(request)
    key = ("tuning", request.caller.team, applications, id)
    reading = request.context.background_reads.get(key, lambda: read_search(request, id, applications))
    if reading.problem is not None:
        raise reading.problem
    values = {"reading": reading, "mlflow": f"/mlflow/#/runs/{quote(id, safe='')}", "columns": _COLUMNS}
    title = f"Search {reading.value['name']}" if reading.value else "Search"
    shown = reading.value or {"service": "NAME"}
    return PageView(title=title, command=f"scanflow tune {shown['service']}", values={**values, **shown})


_COLUMNS: Final = ("candidate", "requests/s", "p50", "p90", "p99", "better by")


def read_search(request: PageRequest, id: str, applications: tuple[tuple[str, str], ...]) -> Mapping[str, Any]:
    """Return what a page shows of a search, drawn once."""
    search = load_search(request.context, id, applications)
    return describe_search(search)


def describe_search(search: Search) -> Mapping[str, Any]:
    """Return what a page shows of a search. Pure.

    Raises:
        InvalidError: its file is not one that ``scanflow tune`` writes.
    """
    result, service, cores = search.result, search.service, search.cores
    frontier = {width: draw_search_frontier(service, result, width=width) for width in _WIDTHS}
    cuts = {width: draw_search_cuts(service, result, cores=cores, width=width) for width in _WIDTHS}
    winner = result.winner
    return {
        "name": search.run.name,
        "run": search.run,
        "service": service,
        "goal": result.goal,
        "cores": cores,
        "best": describe(result.best),
        "winner": None if winner is None else describe(winner),
        "comparison": result.comparison,
        "size": {} if winner is None else {name: str(getattr(winner, name)) for name in SIZE},
        "apply": None
        if winner is None
        else f"scanflow scale {service} {winner.instances} --cores {winner.cores:g} --affinity {winner.affinity}",
        "trials": CellTable(_COLUMNS, _build_rows(result), "Nothing was measured."),
        "frontier": frontier.get,
        "cuts": cuts.get,
    }


def _build_rows(result: TuningResult) -> list[list[Cell]]:
    scores = {trial.candidate: trial.compute_score(result.goal, result.default) for trial in result.trials}
    rows: list[list[Cell]] = []
    for candidate, measured in list_arms(result):
        failed = next((one.reason or "a request failed" for one in measured if one.failed), None)
        times = [median(getattr(one, name) for one in measured) for name in ("p50_s", "p90_s", "p99_s")]
        score = scores.get(candidate)
        rows.append(
            [
                f"{describe(candidate)}{' (as it is)' if candidate == result.default else ''}",
                None if failed else f"{fmean(one.rate for one in measured):.4g}",
                *(None if failed else format_latency(seconds) for seconds in times),
                failed or (None if score is None else f"{score:.2f}×" if score > 0 else "misses the bound"),
            ]
        )
    return rows


def read_again(request: PageRequest, _form: Mapping[str, str]) -> str:
    request.context.background_reads.forget(("tuning", request.caller.team, _list_applications(request)))
    return "/tuning"


PAGES: Final = (
    Page(path="/tuning", template="tuning", section="/tuning", load=load_searches),
    Page(path="/tuning/{id}", template="search", section="/tuning", load=load_one),
)
ACTIONS: Final = (PageAction(path="/tuning/read", perform=read_again),)
