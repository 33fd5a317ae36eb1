"""The control plane and agents: what an answer takes, how soon a server is there, how late an agent is."""

from __future__ import annotations

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from tests.benchmarks.agents_lag import measure, percentiles
from tests.benchmarks.bodies import bodies
from tests.benchmarks.contention import label_writes, many_callers
from tests.benchmarks.control_server import API, acting_agent, ask, fill, read_outcomes, run_scanflow, time_requests
from tests.benchmarks.idle import idle
from tests.benchmarks.large_dashboard import LARGE_DASHBOARD, DashboardSize, large_dashboard
from tests.benchmarks.large_lists import LARGE, ListSize, large_lists
from tests.benchmarks.large_store import StoreSize
from tests.benchmarks.measure import Benchmark, Metric, NotMeasuredError, Places, Sampler, Section, run, wall_s
from tests.benchmarks.servers import Probe, free_port, start_server
from tests.waiting import wait_until

API_SECTION = Section(
    group="control",
    title="Requests to the server",
    columns=("Scanflow",),
    text="SQLite, the default. The server and the client share the machine's cores.",
)
LOAD_SECTION = Section(
    group="control",
    title="The server under load",
    columns=("Scanflow",),
    text="SQLite, the default. The server, its runs and the client share the machine's cores.",
)
UP_SECTION = Section(group="control", title="Start of the server", columns=("Scanflow", "Prefect"))
AGENT_SECTION = Section(
    group="control",
    title="An agent",
    columns=("Scanflow",),
    text="The server, the agent and the client share the machine's cores.",
)


@dataclass(frozen=True, kw_only=True)
class Sizes:
    runs: int = 10_000
    rate: float = 100.0
    seconds: float = 10.0
    """Of each kind of request."""

    sends: int = 5
    """Of each large body."""

    samples: int = 200
    pause_s: float = 0.1
    strategies: int = 1000
    lag_seconds: float = 20.0
    labels: int = 10_000
    lists: ListSize = LARGE
    dashboard: DashboardSize = LARGE_DASHBOARD
    idle_settles_s: float = 30.0
    idle_seconds: float = 60.0


_SMALL_STORE = StoreSize(
    queued=20, ended=20, events=2_000, intents=20, labels=2_000, operations=10, audit=200, agents=2
)
FULL = Sizes()
QUICK = Sizes(
    runs=30,
    rate=20.0,
    seconds=0.5,
    sends=1,
    samples=3,
    strategies=20,
    lag_seconds=2.5,
    labels=20,
    lists=ListSize(store=_SMALL_STORE, driven=2, requests=2),
    dashboard=DashboardSize(store=replace(_SMALL_STORE, queued=1), idle_s=1.0, rounds=1),
    idle_settles_s=1.0,
    idle_seconds=1.0,
)
"""Long enough to show that everything runs, and too short to tell anything."""


def control(places: Places, sizes: Sizes = FULL) -> list[Benchmark]:
    return [
        _api(places, sizes),
        bodies(places, API_SECTION, rounds=3, sends=sizes.sends),
        _benchmark_up(places),
        _action(places, sizes),
        _lag(sizes),
        label_writes(places, LOAD_SECTION, count=sizes.labels),
        many_callers(places, LOAD_SECTION, runs=sizes.runs, seconds=sizes.seconds),
        large_lists(places, LOAD_SECTION, sizes.lists),
        large_dashboard(places, LOAD_SECTION, sizes.dashboard),
        idle(places, settles_s=sizes.idle_settles_s, seconds=sizes.idle_seconds),
    ]


_READS = {
    "runs": ("GET /runs, the newest 20", "/runs"),
    "run": ("GET /runs/{run}", "/runs/{run}"),
    "events": ("GET /events, 100 of them", "/events?after=0&limit=100"),
    "intents": ("GET /intents, the newest 100", "/intents?limit=100"),
}
_WRITES: Mapping[str, tuple[str, str, Any]] = {
    "tell": (
        "POST /events, one",
        "/events",
        [{"at": 1.0, "type": "sample", "app": "bench", "subject": "agent/quick", "data": {"value": 3}}],
    ),
    "label": (
        "POST /labels, of one that is in the queue",
        "/labels",
        {"app": "bench", "items": [{"id": "one", "run": "made-up-1", "score": 0.5}]},
    ),
}


def _api(places: Places, sizes: Sizes) -> Benchmark:
    def sample(folder: Path) -> Mapping[str, float]:
        names = fill(folder / "scanflow", sizes.runs)
        metrics: dict[str, float] = {}
        with run_scanflow(places.python, folder) as url:

            def note(key: str, path: str, body: Any = None) -> None:
                time_requests(url, path, body, rate=sizes.rate, seconds=min(1.0, sizes.seconds))  # so that it is warm
                took = time_requests(url, path, body, rate=sizes.rate, seconds=sizes.seconds)
                metrics.update({f"{key}_{name}": value for name, value in took.items()})

            for key, (_, path) in _READS.items():
                note(key, path.format(run=names[len(names) // 2]))
            for key, (_, path, body) in _WRITES.items():
                note(key, path, body)
        return metrics

    metrics = []
    for key, (what, *_) in {**_READS, **_WRITES}.items():
        metrics += [Metric(f"{key}_p99", f"{what}: p99", "ms", bar=50), Metric(f"{key}_p50", "the same: p50", "ms")]
    return Benchmark(
        name="api",
        section=API_SECTION,
        metrics=metrics,
        contenders={"Scanflow": sample},
        how=(
            f"{sizes.runs:,} runs in the store, with {2 * sizes.runs:,} events and {sizes.runs // 10:,} intents; each "
            f"kind of request {sizes.rate:g} times a second for {sizes.seconds:g} s from 16 connections, whether or "
            "not those before are answered, after a second unrecorded; latency counted from when a request was due"
        ),
        rounds=3,
        warm_up=False,
    )


def _benchmark_up(places: Places) -> Benchmark:
    def scanflow(folder: Path) -> Mapping[str, float]:
        command = places.ours / "scanflow"
        try:
            return {"ready_s": wall_s([command, "up", "--port", str(free_port())], folder, timeout_s=120)}
        finally:
            run([command, "down"], folder, timeout_s=120)

    def prefect(folder: Path) -> Mapping[str, float]:
        port = free_port()
        command: list[str | Path] = [places.peers / "prefect", *f"server start --host 127.0.0.1 --port {port}".split()]
        with start_server(command, folder, port=port, probe=Probe(path="/api/health")) as server:
            return {"ready_s": server.ready_s}

    return Benchmark(
        name="up",
        section=UP_SECTION,
        metrics=[Metric("ready_s", "from the command until the server is ready", "s", bar=3)],
        contenders={"Scanflow": scanflow, "Prefect": prefect},
        how=(
            "an empty home folder; `scanflow up`, which returns when the server is ready, while MLflow's still comes "
            "up; `prefect server start` until `/api/health` answers, asked every 5 ms"
        ),
        rounds=5,
    )


def _action(places: Places, sizes: Sizes) -> Benchmark:
    def sample(folder: Path) -> Mapping[str, float]:
        with acting_agent(places.python, folder) as (server, agent):
            called = _took(server, agent, "called", sizes)
            heard = _took(server, agent, "heard", sizes)
        return {**called, **heard}

    metrics = []
    for key, what in (("called", "a call of a sensor"), ("heard", "an event told to the server")):
        metrics += [
            Metric(f"{key}_p50", f"{what}, until the action begins: median", "ms", bar=50),
            Metric(f"{key}_p99", "the same: p99", "ms", bar=50),
            Metric(f"{key}_worst", "the same: the longest", "ms"),
            Metric(f"{key}_over", "the same, until the action is over: median", "ms"),
        ]
    return Benchmark(
        name="action",
        section=AGENT_SECTION,
        metrics=metrics,
        contenders={"Scanflow": sample},
        how=(
            f"{sizes.samples} times, one after the other, {sizes.pause_s:g} s apart: `POST /sensors/poke` of the "
            "agent, or `POST /events` of the server, which the agent hears; its strategy wants `upgrade_workflow` with "
            "other parameters; from before the request is sent to the times that the server notes of the action"
        ),
        rounds=3,
        warm_up=False,
    )


def _took(server: str, agent: str, strategy: str, sizes: Sizes) -> dict[str, float]:
    sent, pause = dict[int, float](), threading.Event()

    def send(number: int) -> None:
        sent[number] = time.time()
        if strategy == "called":
            ask(agent, "POST", "/sensors/poke", {"args": [number]})
        else:
            event = {"at": sent[number], "type": "bench.poke", "app": "bench", "data": {"n": number}}
            ask(server, "POST", f"{API}/events", [event])
        pause.wait(sizes.pause_s)

    def is_over(number: int) -> bool:
        return number in read_outcomes(server, strategy)

    def has_action() -> bool:
        send(-len(sent))
        return bool(read_outcomes(server, strategy))

    wait_until(
        has_action, "the agent acts"
    )  # what is told before it listens is not heard; and the first opens connections
    wait_until(partial(is_over, 1 - len(sent)), "the last of those is over")
    counted = range(1, sizes.samples + 1)
    try:
        for number in counted:  # one after the other: of two that wait the later loses
            send(number)
            wait_until(partial(is_over, number), "what was wanted is done")
    except AssertionError as error:
        raise NotMeasuredError(str(error)) from error
    outcomes = {number: outcome for number, outcome in read_outcomes(server, strategy).items() if number in counted}
    if failed := [
        outcome["error"] or outcome["decision"]["reason"]
        for outcome in outcomes.values()
        if outcome["state"] != "succeeded"
    ]:
        raise NotMeasuredError(f"{len(failed)} actions failed: {failed[0]}")
    began = percentiles([1000 * (outcomes[number]["began"] - sent[number]) for number in counted])
    over = percentiles([1000 * (outcomes[number]["ended"] - sent[number]) for number in counted])
    return {
        f"{strategy}_p50": began["p50"],
        f"{strategy}_p99": began["p99"],
        f"{strategy}_worst": began["worst"],
        f"{strategy}_over": over["p50"],
    }


def _lag(sizes: Sizes) -> Benchmark:
    def with_plain(plain: int) -> Sampler:
        def sample(_folder: Path) -> Mapping[str, float]:
            lag = measure(sizes.strategies, plain, sizes.lag_seconds)
            in_ms = {f"lag_{key}": 1000 * lag[f"{key}_s"] for key in ("p50", "p99", "worst")}
            return {**in_ms, "missed": lag["missed"], "fired": lag["fired"], "cpu": lag["cpu_share"]}

        return sample

    return Benchmark(
        name="lag",
        section=AGENT_SECTION,
        metrics=[
            Metric("lag_p99", f"{sizes.strategies:,} strategies at 1 s in one agent: p99 of the lag", "ms", bar=250),
            Metric("lag_p50", "the same: median", "ms"),
            Metric("lag_worst", "the same: the longest", "ms"),
            Metric("missed", "the same: missed, and counted as such", ""),
            Metric("fired", "the same: fired", ""),
            Metric("cpu", "the same: of a core, by the agent", "×"),
        ],
        contenders={"Scanflow": with_plain(0), "Scanflow, plain functions": with_plain(sizes.strategies)},
        how=(
            f"{sizes.strategies:,} sensors, each `sf.every(seconds=1)` with a strategy of its own, for "
            f"{sizes.lag_seconds:g} s; `async` functions, and plain ones, which are called in threads; the lag is the "
            "time at which a sensor's function begins less the time for which it was due"
        ),
        rounds=3,
        warm_up=False,
    )
