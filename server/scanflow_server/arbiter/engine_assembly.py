"""Build a server's engine: how it observes targets, reads metrics and carries actions out."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

from sqlalchemy import Connection, select

from scanflow.agent.agent_records import Intent, PrimitiveCall, StrategyLimits
from scanflow.agent.primitive_context import Applications, PrimitiveContext, PrimitiveResult
from scanflow.agent.primitives.service_values import find_canary, get_served_models
from scanflow.app.executor import Executor
from scanflow.app.secrets import list_secret_sources
from scanflow.app.workflow import Workflow
from scanflow.backends.service_records import SHARES, ServiceRecord
from scanflow.deployer import Deployer
from scanflow.errors import ScanflowError
from scanflow_server import primitives
from scanflow_server.arbiter.arbiter_engine import ArbiterEngine
from scanflow_server.arbiter.intent_service import CREATED_FIELD
from scanflow_server.server_context import ServerContext
from scanflow_server.service_drivers import ServiceDrivers, TeamDeployer
from scanflow_server.store import agent_store
from scanflow_server.store.tables import events


def build_engine(context: ServerContext) -> ArbiterEngine:
    applications, drivers = primitives.ApplicationStore(context), ServiceDrivers(context)

    def perform(
        intent: Intent,
        call: PrimitiveCall,
        key: str,
        noted: PrimitiveCall | None,
        note: Callable[[PrimitiveCall], None],
    ) -> PrimitiveResult:
        if intent.source == "person":
            return drivers.carry_out(intent)
        app, team = intent.app, intent.team
        deployer, runs = TeamDeployer(context, drivers, intent, key), primitives.RequestedRuns(context, team)
        return primitives.carry_out(
            call, PrimitiveContext(deployer, applications, runs, app, team, key=key, noted=noted, note=note)
        )

    def measure(intent: Intent, metric: str) -> float | None:
        value = measure_service(context.deployer, metric, team=intent.team)
        return read_posted_metric(context, intent.app, metric, team=intent.team) if value is None else value

    def alive(app: str, agent: str) -> bool:
        with context.store.read() as connection:
            row = agent_store.find(connection, app, agent)
        return row is not None and context.heartbeats.is_alive(row, context.clock())

    look = partial(observe_target, context.deployer, applications)
    return ArbiterEngine(
        context.store, perform, look=look, limits=find_limits, measure=measure, alive=alive, clock=context.clock
    )


def find_limits(connection: Connection, intent: Intent) -> StrategyLimits | None:
    """Return what an intent's strategy may do, as stored when its agent was deployed; None: its team's agent of that
    name does not run, or has no such strategy."""
    row = agent_store.find(connection, intent.app, intent.agent)
    if row is None or row.team != intent.team or row.strategies is None or not row.wanted:
        return None
    limits = agent_store.find_limits(connection, intent.app, intent.agent, intent.strategy)
    if limits is None or not any(list_secret_sources(intent.arguments)):
        return limits
    return limits.model_copy(update={"secrets": tuple(list_secret_sources(row.document))})


def read_posted_metric(context: ServerContext, app: str, metric: str, *, team: str) -> float | None:
    """Return a metric's newest value that was posted for a team's application, or for none in particular: an event of
    type ``metric`` with ``value``. None: it is not a finite number."""
    filters = events.c.app.in_([app, ""]), events.c.team.in_([team, ""])
    query = select(events.c.data).where(events.c.type == "metric", events.c.subject == metric, *filters)
    with context.store.read() as connection:
        data = connection.execute(query.order_by(events.c.id.desc()).limit(1)).scalar()
    value = data.get("value") if isinstance(data, dict) else None
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    try:
        number = float(value)
    except OverflowError:  # JSON's integers are unbounded
        return None
    return number if math.isfinite(number) else None


def observe_target(deployer: Deployer, applications: Applications, intent: Intent) -> dict[str, Any]:
    """Return the observable fields of an intent's target, without those that cannot be read now."""
    kind, _, name = intent.target.partition("/")
    try:
        if kind == "service":
            services = {service.name: service for service in deployer.services() if service.team == intent.team}
            seen = _describe_service(services[name]) if name in services else {"running": False}
        elif kind == "workflow":
            seen = _describe_workflow(applications.get(intent.app, intent.team).application.workflow(name))
        else:
            return {}
    except ScanflowError:
        return {}
    return {field: seen[field] for field in (*intent.fields, CREATED_FIELD) if field in seen}


def measure_service(deployer: Deployer, metric: str, *, team: str) -> float | None:
    """Return ``service.NAME.errors`` (a share of the requests, 0 before there are any), ``service.NAME.p95_s``,
    ``.p50_s``, ``.rps``, ``.cpu``, ``.gpu``, ``.gpu_memory`` or ``.gpu_power_w`` of a team's service."""
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
        # 0 before the first request, so that a guard sees failures from then on.
        return current.errors / valid if (valid := current.requests - current.invalid) else 0.0
    if parts[2] == "gpu_power_w":
        return record.gpu_power_w
    for metric in SHARES:
        if metric == parts[2]:
            return record.compute_share(metric)
    values = {"p95_s": current.p95_s, "p50_s": current.p50_s, "rps": current.rps}
    return values.get(parts[2])


def _describe_service(record: ServiceRecord) -> dict[str, Any]:
    trial = find_canary(record)
    share = None if trial is None else {"models": dict(trial.models), "weight": trial.weight, "shadow": trial.shadow}
    return {
        CREATED_FIELD: record.created,
        "running": True,
        "replicas": record.shape.instances,
        "resource": record.shape.cores,
        "affinity": record.shape.affinity,
        "model": get_served_models(record),
        "traffic": share,
    }


def _describe_workflow(workflow: Workflow) -> dict[str, Any]:
    seen: dict[str, Any] = {"parameters": {}, "resource": {}, "affinity": {}}
    for node in workflow.nodes:
        if isinstance(node, Executor):
            written = node.model_dump(mode="json")
            for field, name in (("parameters", "parameters"), ("resource", "resources"), ("affinity", "affinity")):
                seen[field][node.name] = seen[f"{node.name}.{field}"] = written[name]
    return seen
