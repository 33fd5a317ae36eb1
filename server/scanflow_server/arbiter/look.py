"""Looking at a target: what its fields are at this moment, and what a metric of it is."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from scanflow.agent.records import Intent
from scanflow.app.executor import Executor
from scanflow.app.workflow import Workflow
from scanflow.backends.service_records import ServiceRecord
from scanflow.deployer import Deployer
from scanflow.errors import NotFoundError, ScanflowError
from scanflow_server.primitives.action_context import Applications
from scanflow_server.primitives.services import canary_of, served_models

Look = Callable[[Intent], Mapping[str, Any]]
"""Return those of an intent's fields that can be seen, as they are; and, under ``SINCE``, since when its target is
there, where that is known."""

SINCE = "created"

Measure = Callable[[str, str], float | None]
"""Return what a metric is, for an application, by their names; None: nobody knows."""


def observed(deployer: Deployer, applications: Applications, intent: Intent) -> dict[str, Any]:
    """Return those of an intent's fields that can be seen. What cannot be looked at now is left out."""
    kind, _, name = intent.target.partition("/")
    try:
        if kind == "service":
            found = {one.name: one for one in deployer.services()}
            seen = _of_service(found[name]) if name in found else {"running": False}
        elif kind == "workflow":
            seen = _of_workflow(applications.get(intent.app, intent.team).application.workflow(name))
        else:
            return {}
    except ScanflowError:
        return {}
    return {field: seen[field] for field in (*intent.fields, SINCE) if field in seen}


def measured(deployer: Deployer, metric: str) -> float | None:
    """Return ``service.NAME.errors`` (a share of the requests), ``service.NAME.p95_s``, ``.p50_s`` or ``.rps``."""
    parts = metric.split(".")
    if len(parts) != 3 or parts[0] != "service":
        return None
    try:
        record = deployer.service(parts[1])
    except (NotFoundError, ScanflowError):
        return None
    current = record.current
    if current is None:
        return None
    if parts[2] == "errors":
        return current.errors / current.requests if current.requests else None
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
