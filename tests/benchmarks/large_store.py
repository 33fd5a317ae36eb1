"""A home with a large store, written by the store's own code: queued runs, a million events, intents, labels, audit."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, Table, insert

from scanflow.app.application_files import dump_document
from scanflow.application_loading import load_application
from scanflow.backends.local.layout import Home
from scanflow.deployer import EmbeddedDeployer, RunRequest
from scanflow.settings import Settings
from scanflow_server.server_settings import ServerSettings
from scanflow_server.store import agent_store, application_store, intent_store, run_store, tables
from scanflow_server.store.base import Store, open_store
from scanflow_server.store.migrations import migrate
from scanflow_server.store.run_store import DriveRequest, RequestedRun
from tests.benchmarks.control_server import build_action, copy_runs, give_token

APP = """
import scanflow as sf
wait = sf.Executor(name="wait", mainfile="wait.py")
app = sf.Application(
    name="bench", team="bench", workflows=[sf.Workflow(name=name, nodes=[wait]) for name in ("training", "scoring")]
)
"""
WAIT = "import time\ntime.sleep(100_000)\n"

_BATCH = 20_000
_TYPES = (
    "sample",
    "sample",
    "sample",
    "run.started",
    "run.succeeded",
    "agent.decided",
    "drift.none",
    "predictions.counted",
)
"""Of events, in turn: as often as an agent that looks at data sends them."""


@dataclass(frozen=True, kw_only=True)
class StoreSize:
    queued: int = 10_000
    """Runs that wait for their turn or are driven."""

    ended: int = 2_000
    events: int = 1_000_000
    intents: int = 5_000
    labels: int = 20_000
    operations: int = 1_000
    audit: int = 50_000
    agents: int = 20


@dataclass(frozen=True, kw_only=True)
class FilledStore:
    """What is in it, to be asked for by name."""

    ended_run: str
    queued_run: str
    operation: str
    intent: str
    label: str
    size: StoreSize


def fill_store(home: Path, size: StoreSize, *, say: Callable[[str], None] = print) -> FilledStore:
    """Write a home of that size; the newest runs are the queued ones."""
    began = time.monotonic()

    def report(text: str) -> None:
        say(f"    {time.monotonic() - began:5.1f} s: {text}")

    give_token(home)
    (home / "app.py").write_text(APP)
    (home / "wait.py").write_text(WAIT)
    document, queued, ended = _fill_journal(home, size)
    report(f"{len(queued) + len(ended):,} runs in the journal")
    store = open_store(ServerSettings(library=Settings(home=home)).database)
    try:
        migrate(store)
        _fill_runs(store, document, queued, ended)
        report("runs in the store")
        _insert(store, tables.events, _generate_events(size.events), report)
        _insert(store, tables.audit, _generate_audit(size.audit), report)
        _insert(store, tables.labels, _generate_labels(size.labels), report)
        with store.write() as connection:
            _fill_others(connection, size)
        report("intents, operations and agents")
    finally:
        store.close()
    return FilledStore(
        ended_run=ended[len(ended) // 2],
        queued_run=queued[-1],
        operation="change-000000000001",
        intent="made-up-1",
        label="sample-1",
        size=size,
    )


def _fill_journal(home: Path, size: StoreSize) -> tuple[dict[str, Any], list[str], list[str]]:
    app, source, _ = load_application(str(home / "app.py"))
    deployer = EmbeddedDeployer(Settings(home=home))
    ended = deployer.batch.enter(deployer.define(RunRequest(app, "training", source=source))).name
    deployer.batch.give_up(ended, "for a benchmark")
    journal = Home(home).journal
    old = [f"ended-{number}" for number in range(size.ended - 1)]
    copy_runs(journal, ended, old)
    first = deployer.batch.enter(deployer.define(RunRequest(app, "training", source=source))).name
    new = [f"queued-{number}" for number in range(size.queued - 1)]
    copy_runs(journal, first, new)
    return {"application": dump_document(app), "parameters": {}}, [first, *new], [ended, *old]


def _fill_runs(store: Store, document: dict[str, Any], queued: list[str], ended: list[str]) -> None:
    at = time.time()
    shared: dict[str, Any] = {"app": "bench", "team": "bench", "workflow": "training", "definition": document}
    with store.write() as connection:
        application_store.put(
            connection, name="bench", team="bench", document=document["application"], source=None, at=at
        )
        for number, name in enumerate([*ended, *queued]):
            active = number >= len(ended)
            run = RequestedRun(
                name=name,
                **shared,
                created=at - len(ended) - len(queued) + number,
                asked=DriveRequest(action="run"),
                active=active,
                outcome=None if active else "failed",
            )
            run_store.add(connection, run)


def _generate_events(count: int) -> Iterator[dict[str, Any]]:
    at = time.time() - count
    data = {"value": 0.25, "column": "age", "rows": 913, "outliers": 225, "window": [0, 60]}
    for number in range(count):
        rare = number % 200_000 == 7
        yield {
            "at": at + number,
            "type": "bench.rare"
            if rare
            else "model.judged"
            if number % 10_000 == 9
            else _TYPES[number // 2 % len(_TYPES)],
            "app": "seldom" if rare else "bench" if number % 2 else f"app-{number % 100}",
            "team": "few" if rare else "bench" if number % 2 else f"team-{number % 10}",
            "subject": f"agent/{number % 20}",
            "data": {**data, "agent": f"agent-{number % 20}", "run": f"ended-{number % 1000}"},
        }


def _generate_audit(count: int) -> Iterator[dict[str, Any]]:
    at = time.time() - count
    for number in range(count):
        yield {
            "at": at + number,
            "who": "seldom" if number == 1 else f"person-{number % 10}",
            "role": "editor",
            "team": "bench" if number % 2 else "few",
            "address": "127.0.0.1",
            "method": "POST",
            "path": "/api/v1/runs",
            "status": 403 if number == 1 else 201,
            "what": "bench:training",
        }


def _generate_labels(count: int) -> Iterator[dict[str, Any]]:
    at = time.time() - count
    for number in range(count):
        is_labelled = number % 2 == 0
        yield {
            "app": "bench",
            "team": "bench",
            "id": f"sample-{number}",
            "run": f"detect-{number // 200}",
            "data": {"index": number},
            "guess": 3,
            "score": (number * 7919 % 1000) / 1000,
            "state": "given" if is_labelled else "wanted",
            "label": 3 if is_labelled else None,
            "by": "ada" if is_labelled else None,
            "asked": at + number,
            "given": at + number if is_labelled else None,
            "purpose": "train",
            "disputed": number % 1000 == 0,
            "row": {f"column_{column}": column * 0.5 for column in range(20)},
            "picture": None,
        }


def _insert(store: Store, table: Table, rows: Iterator[Mapping[str, Any]], report: Callable[[str], None]) -> None:
    count = 0
    while batch := list(islice(rows, _BATCH)):
        with store.write() as connection:
            connection.execute(insert(table), batch)
        count += len(batch)
        if count % (10 * _BATCH) == 0:
            report(f"{count:,} of {table.name}")
    report(f"{count:,} of {table.name}, all")


def _fill_others(connection: Connection, size: StoreSize) -> None:
    for number in range(size.intents):
        intent_store.add(connection, build_action(number))
        intent_store.append_trail(connection, f"made-up-{number}", 1.0, "Allowed: no conflict.")
    for number in range(size.operations):
        row, id = build_action(number), f"change-{number:012x}"
        about: dict[str, Any] = {"source": "person", "primitive": "change", "target": "service/served"}
        intent = row.intent.model_copy(update={"id": id, "key": f"person/{id}", **about})
        change = {"id": id, "intent": intent, "began": 1.0, "ended": 2.0}
        intent_store.add(connection, row.replace(action=change, request={}, progress=("done",), drivers=(id,)))
    for number in range(size.agents):
        name = f"agent-{number}"
        agent_store.put(connection, app="bench", name=name, team="bench", document={}, source=None)
        agent_store.mark_unwanted(connection, "bench", name)
