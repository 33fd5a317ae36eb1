"""The engine of a server, made from its parts: how it looks at targets and at metrics, and carries actions out."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from sqlalchemy import select

from scanflow.agent.primitive_context import Applications, PrimitiveContext, PrimitiveResult
from scanflow.agent.primitives.serving import canary_of, served_models
from scanflow.agent.records import Intent, PrimitiveCall
from scanflow.app.executor import Executor
from scanflow.app.workflow import Workflow
from scanflow.backends.service_records import ServiceRecord
from scanflow.deployer import Deployer
from scanflow.errors import ScanflowError
from scanflow_server import primitives
from scanflow_server.arbiter.engine import ArbiterEngine
from scanflow_server.arbiter.intent_service import SINCE
from scanflow_server.commands import QueuedDeployer, carry_out
from scanflow_server.context import ServerContext
from scanflow_server.store import agents
from scanflow_server.store.tables import events


def make_engine(context: ServerContext) -> ArbiterEngine:
    applications = primitives.ApplicationStore(context)

    def perform(
        intent: Intent,
        call: PrimitiveCall,
        key: str,
        noted: PrimitiveCall | None,
        note: Callable[[PrimitiveCall], None],
    ) -> PrimitiveResult:
        if intent.source == "person":
            return carry_out(context, intent.id)
        app, team = intent.app, intent.team
        deployer, runs = QueuedDeployer(context, key, team=team), primitives.RequestedRuns(context, team)
        return primitives.carry_out(
            call, PrimitiveContext(deployer, applications, runs, app, team, key=key, noted=noted, note=note)
        )

    def measure(intent: Intent, metric: str) -> float | None:
        found = measured(context.deployer, metric, team=intent.team)
        return posted(context, intent.app, metric, team=intent.team) if found is None else found

    def alive(app: str, agent: str) -> bool:
        with context.store.read() as connection:
            found = agents.get(connection, app, agent)
        return found is not None and context.heartbeats.heard(found, context.clock())

    look = partial(observed, context.deployer, applications)
    return ArbiterEngine(context.store, perform, look=look, measure=measure, alive=alive, clock=context.clock)


def posted(context: ServerContext, app: str, metric: str, *, team: str) -> float | None:
    """Return a metric's newest value that was posted for a team's application, or for no certain one: that is an event
    of type ``metric`` about it, with ``value``. What is no number, or none that is finite, is not known."""
    mine = events.c.app.in_([app, ""]), events.c.team.in_([team, ""])
    query = select(events.c.data).where(events.c.type == "metric", events.c.subject == metric, *mine)
    with context.store.read() as connection:
        data = connection.execute(query.order_by(events.c.id.desc()).limit(1)).scalar()
    value = data.get("value") if isinstance(data, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:  # JSON's integers have no end
        return None
    return number if math.isfinite(number) else None


def observed(deployer: Deployer, applications: Applications, intent: Intent) -> dict[str, Any]:
    """Return those of an intent's fields that can be seen. What cannot be looked at now is left out."""
    kind, _, name = intent.target.partition("/")
    try:
        if kind == "service":
            found = {one.name: one for one in deployer.services() if one.team == intent.team}
            seen = _of_service(found[name]) if name in found else {"running": False}
        elif kind == "workflow":
            seen = _of_workflow(applications.get(intent.app, intent.team).application.workflow(name))
        else:
            return {}
    except ScanflowError:
        return {}
    return {field: seen[field] for field in (*intent.fields, SINCE) if field in seen}


def measured(deployer: Deployer, metric: str, *, team: str) -> float | None:
    """Return ``service.NAME.errors`` (a share of the requests, 0 before there are any), ``service.NAME.p95_s``,
    ``.p50_s`` or ``.rps`` of a team's service."""
    parts = metric.split(".")
    if len(parts) != 3 or parts[0] != "service":
        return None
    try:
        record = deployer.service(parts[1])
    except ScanflowError:
        return None
    current = record.current if record.team == team else None
    if current is None:
        return None
    if parts[2] == "errors":
        # Before its first request nothing has failed: a guard must see what fails from then on.
        return current.errors / current.requests if current.requests else 0.0
    values = {"p95_s": current.p95_s, "p50_s": current.p50_s, "rps": current.rps}
    return values.get(parts[2])


def _of_service(record: ServiceRecord) -> dict[str, Any]:
    trial = canary_of(record)
    share = None if trial is None else {"models": dict(trial.models), "weight": trial.weight, "shadow": trial.shadow}
    return {
        SINCE: record.created,
        "running": True,
        "replicas": record.shape.instances,
        "resource": record.shape.cores,
        "affinity": record.shape.affinity,
        "model": served_models(record),
        "traffic": share,
    }


def _of_workflow(workflow: Workflow) -> dict[str, Any]:
    seen: dict[str, Any] = {"parameters": {}, "resource": {}, "affinity": {}}
    for node in workflow.nodes:
        if isinstance(node, Executor):
            written = node.model_dump(mode="json")
            for field, name in (("parameters", "parameters"), ("resource", "resources"), ("affinity", "affinity")):
                seen[field][node.name] = seen[f"{node.name}.{field}"] = written[name]
    return seen
