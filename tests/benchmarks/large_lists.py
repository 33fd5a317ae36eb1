"""Every GET of the API and every page, of a server with a large store and a hundred runs that are driven.

The routes are read from the server's own OpenAPI document, so that none is left out: one whose parameters have no value
here ends the benchmark.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlencode

import httpx2

from tests.benchmarks.agents_lag import percentiles
from tests.benchmarks.control_server import API, TOKEN, give_token
from tests.benchmarks.large_store import FilledStore, StoreSize, fill_store
from tests.benchmarks.measure import Benchmark, Metric, NotMeasuredError, Places, Section, pss_mib
from tests.benchmarks.servers import Probe, Server, command_line, free_port, start_server
from tests.http_requests import http_client
from tests.server import bearer
from tests.waiting import wait_until

_LIMIT_MS = 100.0
_SLOW_SHOWN = 8
_STREAM = "text/event-stream"
_ELSEWHERE = {
    "/api/v1/services/{name}": "a service's supervisor answers",
    "/api/v1/services/{name}/explain": "a service's supervisor answers",
    "/api/v1/services/{name}/logs": "a service's own files",
    "/api/v1/agents/{app}/{agent}/journal": "the agent answers",
    "/api/v1/runs/{run}/steps/{step}/outputs": "a run's own files",
    "/api/v1/runs/{run}/steps/{step}/values": "a run's own files",
    "/api/v1/runs/{run}/tasks/{task}/logs": "a run's own files",
}
"""What is not in the store, whatever its size."""

_QUERIES: Mapping[str, Sequence[Any]] = {
    "app": ("bench", "seldom", "nobody"),
    "team": ("bench", "few", "nobody"),
    "workflow": ("training", "scoring"),
    "who": ("person-1", "seldom"),
    "refused": ("true",),
    "type": ("sample", "bench.rare", "model.*", "nothing.*"),
    "state": ("succeeded", "pending"),
    "verdict": ("act", "approve"),
    "agent": ("quick", "seldom"),
    "strategy": ("old", "seldom"),
    "primitive": ("upgrade_workflow", "seldom"),
    "target": ("workflow/other", "seldom"),
    "disputed": ("true",),
    "details": ("true",),
    "limit": ("1",),
    "seen": ("true",),
    "follow": ("false",),
    "stream": ("stderr",),
    "attempt": (1,),
    "step": ("wait",),
}
"""Values of filters that match much, little and nothing."""

_LABEL_STATES = ("wanted", "given")


@dataclass(frozen=True, kw_only=True)
class ListSize:
    store: StoreSize
    driven: int = 100
    requests: int = 100
    """Of each path, one after the other."""


LARGE = ListSize(store=StoreSize())


def large_lists(places: Places, section: Section, size: ListSize) -> Benchmark:
    def sample(folder: Path) -> Mapping[str, float]:
        home = folder / "scanflow"
        give_token(home)
        filled = fill_store(home, size.store)
        port = free_port()
        command: list[str | Path] = [places.python, "-m", "scanflow_server", "--home", home, "--port", str(port)]
        extra = {"SCANFLOW_MAX_RUNS": str(size.driven), "SCANFLOW_KEEP_EVENTS": "0", "SCANFLOW_KEEP_EVENTS_DAYS": "0"}
        with start_server(command, folder, port=port, probe=Probe(path="/readyz"), extra=extra) as server:
            wait_until(lambda: _count_driven(server) >= size.driven, "the runs are driven", patience_s=600)
            figures = measure_paths(server.url(""), filled, requests=size.requests)
            own = [process for process in server.processes() if "scanflow_server" in command_line(process)]
            memory = sum(map(pss_mib, own))
        for path, waits in sorted(figures.items(), key=lambda item: -item[1]["p99"])[:_SLOW_SHOWN]:
            print(f"    {waits['p99']:7.1f} ms p99, {waits['p50']:6.1f} ms p50: {path}", flush=True)
        slowest = max(figures.values(), key=lambda waits: waits["p99"])
        return {
            "ready_s": server.ready_s,
            "paths": len(figures),
            "over": sum(waits["p99"] > _LIMIT_MS for waits in figures.values()),
            "worst_p99": slowest["p99"],
            "worst_p50": max(waits["p50"] for waits in figures.values()),
            "mib": memory,
        }

    store = size.store
    return Benchmark(
        name="lists",
        section=section,
        metrics=[
            Metric("worst_p99", "the slowest of all GET and pages: p99", "ms", bar=_LIMIT_MS),
            Metric("worst_p50", "the slowest of all: p50", "ms"),
            Metric("over", f"paths with a p99 of more than {_LIMIT_MS:g} ms", "", bar=0),
            Metric("paths", "paths asked for, filters and pages of lists included", ""),
            Metric("mib", "memory of the server (PSS)", "MiB", bar=250),
            Metric("ready_s", "from the server's start until it is ready", "s"),
        ],
        contenders={"Scanflow": sample},
        how=(
            f"{store.queued:,} runs requested, {size.driven} of them driven at once, and {store.events:,} events, "
            f"{store.intents:,} intents, {store.labels:,} samples, {store.audit:,} entries of the audit log in the "
            f"store; every GET of the OpenAPI document and every page, by each of its filters, {size.requests} times "
            "one after the other on one connection"
        ),
        rounds=1,
        warm_up=False,
    )


def _count_driven(server: Server) -> int:
    return sum(any(word.endswith("wait.py") for word in command_line(process)) for process in server.processes())


def measure_paths(url: str, filled: FilledStore, *, requests: int) -> dict[str, dict[str, float]]:
    """Return ``p50``, ``p99`` and ``worst`` in milliseconds of each path."""
    with http_client(base_url=url, headers=bearer(TOKEN), timeout=60) as client:
        document = client.get(f"{API}/openapi.json").json()
        figures = {path: _measure_path(client, path, requests) for path in build_paths(document, filled)}
    with http_client(base_url=url, timeout=60, follow_redirects=False) as browser:
        signed_in = browser.post("/login", data={"token": TOKEN})
        if signed_in.status_code != 200:
            raise NotMeasuredError(f"The login was answered {signed_in.status_code}.")
        return figures | {path: _measure_path(browser, path, requests) for path in _build_pages(filled)}


def _measure_path(client: httpx2.Client, path: str, requests: int) -> dict[str, float]:
    waits_ms = list[float]()
    for number in range(requests + 1):
        began = time.perf_counter()
        reply = client.get(path)
        if number:  # the first fills caches
            waits_ms.append(1000 * (time.perf_counter() - began))
        if reply.status_code != 200:
            raise NotMeasuredError(f"GET {path} was answered {reply.status_code}: {reply.text[:300]}")
    return percentiles(waits_ms)


def build_paths(document: Mapping[str, Any], filled: FilledStore) -> list[str]:
    """Return the paths to ask for: each GET of the document as it is, by each of its filters, and its pages.

    Raises:
        NotMeasuredError: a route has a parameter that has no value here.
    """
    paths = list[str]()
    for route, methods in document["paths"].items():
        if "get" not in methods or route in _ELSEWHERE:
            continue
        operation = methods["get"]
        if list(operation["responses"]["200"]["content"]) == [_STREAM]:
            continue
        for path in _fill_route(route, filled):
            query = [parameter for parameter in operation.get("parameters", ()) if parameter["in"] == "query"]
            paths += [path, *(f"{path}?{text}" for text in _build_queries(route, query, filled))]
    return paths


def _fill_route(route: str, filled: FilledStore) -> list[str]:
    values = {"step": "wait", "task": "wait", "app": "bench", "agent": "agent-1"}
    if route.startswith(f"{API}/operations"):
        values["id"] = filled.operation
    elif route.startswith(f"{API}/intents"):
        values["id"] = filled.intent
    runs = [filled.ended_run]
    if route == f"{API}/runs/{{run}}":
        runs += [filled.queued_run, "@latest", f"@latest-{filled.size.queued // 2}"]
    names = set(re.findall(r"{(\w+)}", route))
    if missing := names - values.keys() - {"run"}:
        raise NotMeasuredError(f"The route {route!r} has parameters without a value here: {', '.join(missing)}.")
    choices = [{**values, "run": run} for run in (runs if "run" in names else runs[:1])]
    return [route.format(**{name: quote(value, safe="@") for name, value in choice.items()}) for choice in choices]


def _build_queries(route: str, query: Sequence[Mapping[str, Any]], filled: FilledStore) -> Iterator[str]:
    size = filled.size
    pages = {
        f"{API}/events after": (size.events // 2, size.events - 100),
        f"{API}/audit before": (size.audit // 2, 50),
        f"{API}/labels offset": (size.labels // 4, size.labels - 100),
        f"{API}/labels state": _LABEL_STATES,
        f"{API}/labels team": ("bench", "few"),
        f"{API}/applications/{{app}} team": ("bench",),
    }
    filters = dict[str, Sequence[Any]]()
    for parameter in query:
        name = parameter["name"]
        values = pages.get(f"{route} {name}", _QUERIES.get(name))
        if values is None:
            raise NotMeasuredError(f"The query {name!r} of {route!r} has no value here. Give it one.")
        filters[name] = values
        yield from (urlencode({name: value}) for value in values)
    if "type" in filters:
        yield from (
            urlencode({"type": type, "app": app, "after": after}, doseq=True)
            for type in (("sample",), ("bench.rare", "model.*"))
            for app in ("bench", "seldom")
            for after in (0, size.events // 2)
        )
    if "state" in filters and "offset" in filters:
        yield from (urlencode({"state": state, "offset": size.labels // 2 - 50}) for state in _LABEL_STATES)
        yield urlencode({"state": "wanted", "app": "bench", "team": "bench", "details": "true"})
    if "strategy" in filters:
        yield urlencode({"app": "bench", "team": "bench", "agent": "seldom", "verdict": "act", "target": "seldom"})
    if "workflow" in filters:
        yield urlencode({"app": "bench", "team": "bench", "workflow": "scoring"})


def _build_pages(filled: FilledStore) -> list[str]:
    query = urlencode({"app": "bench", "team": "bench", "id": filled.label})
    return ["/", "/login", "/labels", f"/labels?{query}", "/labels?app=bench&team=bench", "/reports/bench"]
