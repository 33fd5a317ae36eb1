"""A server that is measured: with runs in its store, with an agent that acts, and asked at a steady rate."""

from __future__ import annotations

import json
import time
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any

from scanflow.agent.agent_records import Action, Decision, Event, Intent
from scanflow.app.application_files import dump_document
from scanflow.application_loading import load_application
from scanflow.backends.local.layout import Home
from scanflow.deployer import EmbeddedDeployer, RunRequest
from scanflow.http.home_token import get_token_file
from scanflow.settings import Settings
from scanflow_server.server_settings import ServerSettings
from scanflow_server.store import event_store, intent_store, run_store
from scanflow_server.store.base import open_store
from scanflow_server.store.migrations import migrate
from scanflow_server.store.run_store import DriveRequest, RequestedRun
from tests.benchmarks.measure import NotMeasuredError
from tests.benchmarks.servers import Probe, free_port, start_server
from tests.load import LoadError, steady_load
from tests.server import bearer
from tests.waiting import wait_until

TOKEN = "scanflow_benchmark"
"""What the homes of measured servers and agents take for their token."""

API = "/api/v1"

APP = """
import scanflow as sf
train = sf.Executor(name="train", mainfile="agent.py", parameters={"n": 0})
app = sf.Application(
    name="bench",
    team="bench",
    workflows=[sf.Workflow(name=name, nodes=[train]) for name in ("training", "called", "heard")],
    agents=[sf.Agent(name="quick", modules=["agent.py"])],
)
"""
AGENT = """
import scanflow as sf
from scanflow.agent import Strategy, sensor, primitives as do

@sensor(sf.on_call())
def poke(n):
    return n

@sensor(sf.on_event("bench.poke"))
def told(event):
    return event.data["n"]

def strategy(name, when):
    Strategy(name=name, when=when, then=lambda n: do.upgrade_workflow(name, parameters={"n": n}))

strategy("called", poke)
strategy("heard", told)
"""


def give_token(home: Path) -> None:
    home.mkdir(parents=True, exist_ok=True)
    get_token_file(home).write_text(TOKEN)


@contextmanager
def run_scanflow(python: Path, folder: Path) -> Iterator[str]:
    port = free_port()
    give_token(folder / "scanflow")
    command: list[str | Path] = [python, "-m", "scanflow_server", "--home", folder / "scanflow", "--port", str(port)]
    with start_server(command, folder, port=port, probe=Probe(path="/readyz")) as server:
        yield server.url("")


def fill(home: Path, count: int) -> list[str]:
    home.mkdir(parents=True)
    (home / "app.py").write_text(APP)
    (home / "agent.py").write_text(AGENT)
    app, source, _ = load_application(str(home / "app.py"))
    deployer = EmbeddedDeployer(Settings(home=home))
    first = deployer.batch.enter(deployer.define(RunRequest(app, "training", source=source)))
    deployer.batch.give_up(first.name, "for a benchmark")
    names = [f"made-up-{number}" for number in range(count - 1)]
    copy_runs(Home(home).journal, first.name, names)
    document = {"application": dump_document(app), "parameters": {}}
    settings = ServerSettings(library=Settings(home=home))
    store = open_store(settings.database)
    try:
        migrate(store)
        with store.write() as connection:
            for number, name in enumerate([first.name, *names]):
                at = time.time() - count + number
                about: dict[str, Any] = {"app": "bench", "team": "bench", "workflow": "training"}
                requested_run = RequestedRun(
                    name=name,
                    **about,
                    created=at,
                    definition=document,
                    asked=DriveRequest(action="run"),
                    active=False,
                    outcome="failed",
                )
                run_store.add(connection, requested_run)
                events = [Event(at=at, type=f"run.{what}", app="bench", subject=f"run/{name}") for what in _STORY]
                event_store.append(connection, events)
            for number in range(count // 10):
                intent_store.add(connection, build_action(number))
    finally:
        store.close()
    return [first.name, *names]


_STORY = ("started", "failed")


def copy_runs(journal: Path, name: str, names: Sequence[str]) -> None:
    """Enter copies of a run in the journal, each with a folder of its own that is not made yet."""
    import sqlite3

    connection = sqlite3.connect(journal)
    with connection:
        columns = "app, team, workflow, state, created, seconds, source, definition, error"
        query = f"INSERT INTO runs (name, folder, {columns}) SELECT ?, replace(folder, ?, ?), {columns} FROM runs"
        connection.executemany(f"{query} WHERE name = ?", [(copy, name, copy, name) for copy in names])
        rest = "task, step, state, attempts, began, seconds, exit_code, cpu_s, max_rss_bytes, origin, failure"
        connection.execute(
            f"INSERT INTO tasks (run, {rest}) SELECT other, {rest} FROM tasks, "
            "(SELECT id AS other FROM runs WHERE name IN (SELECT value FROM json_each(?))) "
            "WHERE run = (SELECT id FROM runs WHERE name = ?)",
            (json.dumps(names), name),
        )
    connection.close()


def build_action(number: int) -> intent_store.ActionRow:
    id, at = f"made-up-{number}", 1_700_000_000.0 + number
    intent = Intent(
        id=id,
        app="bench",
        team="bench",
        agent="quick" if number else "seldom",
        strategy="old",
        primitive="upgrade_workflow",
        arguments={"workflow": "training", "kind": "batch", "parameters": {"n": number}},
        target="workflow/other",
        fields=("parameters",),
        key=f"quick/old/{number}",
        at=at,
    )
    decision = Decision(intent=id, verdict="act", reason="Allowed: no conflict.", at=at)
    return intent_store.ActionRow(
        action=Action(
            id=id,
            intent=intent,
            state="succeeded",
            decision=decision,
            began=at,
            ended=at + 0.1,
            result={"run": "ended-1"},
        )
    )


def time_requests(
    url: str, path: str, body: Any = None, *, method: str | None = None, rate: float, seconds: float
) -> dict[str, float]:
    """Ask at a steady rate, answered or not, and return ``p50`` and ``p99`` in milliseconds from when each was due."""
    text = None if body is None else json.dumps(body)
    load_of = partial(steady_load, connections=16, requests=max(1, round(rate * seconds)), rate=rate, method=method)
    try:
        with load_of(f"{url}{API}{path}", text, headers=bearer(TOKEN)) as load:
            result = load.read_result(timeout_s=seconds + 60)
    except LoadError as error:
        raise NotMeasuredError(str(error)) from error
    if result.failed:
        raise NotMeasuredError(f"{path}: {result.failed} of {result.requests} failed: {dict(result.reasons)}")
    figures = result.metrics()
    return {"p50": figures.p50_s * 1000, "p99": figures.p99_s * 1000}


def ask(url: str, method: str, path: str, body: Any = None, **headers: str) -> Any:
    data = None if body is None else json.dumps(body).encode()
    request = urllib.request.Request(
        f"{url}{path}", data, {"content-type": "application/json", **bearer(TOKEN), **headers}, method=method
    )
    with urllib.request.urlopen(request, timeout=60) as answer:
        return json.load(answer)


@contextmanager
def acting_agent(python: Path, folder: Path) -> Iterator[tuple[str, str]]:
    home = folder / "scanflow"
    home.mkdir()
    (home / "app.py").write_text(APP)
    (home / "agent.py").write_text(AGENT)
    app, source, _ = load_application(str(home / "app.py"))
    body = {"application": dump_document(app), "source": str(source)}
    with run_scanflow(python, folder) as url:
        place = f"{API}/agents/bench/quick"
        ask(url, "PUT", place, body)
        wait_until(lambda: ask(url, "GET", place)["state"] == "running", "the agent is there")
        yield url, ask(url, "GET", place)["url"]
        ask(url, "DELETE", place)
        wait_until(lambda: ask(url, "GET", place)["state"] == "stopped", "the agent has ended")


def read_outcomes(url: str, strategy: str) -> dict[int, dict[str, Any]]:
    return {
        action["intent"]["arguments"]["parameters"]["n"]: action
        for action in ask(url, "GET", f"{API}/intents?limit=1000")
        if action["intent"]["strategy"] == strategy and action["ended"] is not None
    }
