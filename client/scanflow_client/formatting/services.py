"""Services, their instances and revisions as lines and tables."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from scanflow.app.quantities import counted
from scanflow.backends.service_records import Explanation, InstanceRecord, RevisionRecord, ServiceRecord, Shape
from scanflow.placement.cpulist import format_cpus
from scanflow_client.formatting.table import Screen, Table
from scanflow_client.formatting.text import MARKS, ago, format_bytes, latency, optional, percent

MAX_EXAMPLE_VALUES = 16  # an input of more numbers is not written out on a command line
_EXAMPLES = {"BOOL": True, "BYTES": "text", "FP16": 0.5, "FP32": 0.5, "FP64": 0.5}


def service_line(record: ServiceRecord) -> str:
    grpc = f", gRPC {record.grpc}" if record.grpc else ""
    state = record.state if record.state != "backup" else f"answered by its backup {record.backup}"
    return f"{MARKS[record.state]} {record.name}  {state} at {record.url}{grpc}  ({shape_text(record.shape)})"


def shape_text(shape: Shape) -> str:
    """Return ``2 instances × 1 core, cpumem``."""
    cores = "" if shape.cores is None else f" × {shape.cores:g} {'core' if shape.cores == 1 else 'cores'}"
    return f"{counted(shape.instances, 'instance')}{cores}, {shape.affinity}"


def services_table(records: Sequence[ServiceRecord]) -> Table:
    return Table(
        ("service", "state", "url", "ready", "cores", "models", "rps", "p95"), [_service_row(one) for one in records]
    )


def models_of(record: ServiceRecord) -> str:
    """Return the versions that serve, with their shares if there are several: ``cnn/3 90%, cnn/4 10%``."""
    several = len(record.revisions) > 1
    found = []
    for one in record.revisions:
        names = ", ".join(dict.fromkeys(uri.removeprefix("models:/") for uri in one.models.values())) or one.id
        found.append(f"{names} {_share(one)}" if several else names)
    return ", ".join(found) or "-"


def service_screen(record: ServiceRecord) -> Screen:
    """Return a service in detail: state, errors, instances, revisions, and what to do next."""
    screen: list[str | Table] = [service_line(record), *_error_lines(record)]
    if any(one.place is not None for one in record.instances):
        heads = ("instance", "state", "node", "since", "requested", "granted", "cpus", "QoS", "threads", "memory")
        screen.append(Table((*heads, "in flight", "restarts"), [_placed_row(one) for one in record.instances]))
    elif record.instances:
        heads = ("instance", "state", "pid", "since", "cpus", "threads", "memory", "busy", "in flight", "restarts")
        bound = record.shape.affinity in {"cpumem", "cpumempin"}
        screen.append(Table(heads, [_instance_row(one, bound=bound) for one in record.instances]))
    columns = ("revision", "role", "share", "models", "requests", "errors", "p50", "p95")
    screen.append(Table(columns, [_revision_row(one) for one in record.revisions]))
    if record.recorded or record.dropped:
        dropped = f", {record.dropped} dropped" if record.dropped else ""
        screen.append(f"Predictions recorded in the tracker: {record.recorded}{dropped}")
    return [*screen, _next_command(record)]


def explanation_lines(found: Explanation) -> list[str]:
    head = f"{found.service}: {counted(found.instances, 'instance')}"
    if found.target <= 0:
        return [f"{head}. No autoscaling: give a node a scaling=sf.Scaling(...), or scale it yourself."]
    sample = "not measured yet" if found.sample is None else f"{found.sample:g}"
    return [
        f"{head}, evaluated {ago(found.at)}",
        f"  sample    {found.metric} = {sample}",
        f"  target    {found.target:g} (scale up above {found.up:g}, down below {found.down:g})",
        f"  formula   {found.formula}",
        f"  decision  {found.decision}",
    ]


def request_examples(record: ServiceRecord, inputs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return commands that request a prediction, ready to be pasted. ``inputs`` are the tensors that it declares."""
    declared: list[dict[str, Any]] = [
        {"name": one["name"], "shape": [max(size, 1) for size in one["shape"]], "datatype": one["datatype"]}
        for one in inputs
    ] or [{"name": "input", "shape": [1, 3], "datatype": "FP64"}]
    if any(math.prod(one["shape"]) > MAX_EXAMPLE_VALUES for one in declared):
        shape = "x".join(map(str, declared[0]["shape"][1:]))
        return [
            f"Its input: rows of {shape}, {declared[0]['datatype']}. See: curl -s {record.url}/v2/models/{record.name}",
            f"Request a prediction: scanflow predict {record.name} rows.npy",
        ]
    for one in declared:
        one["data"] = [_EXAMPLES.get(one["datatype"], 1)] * math.prod(one["shape"])
    rows = {one["name"]: _nested(one["data"], one["shape"]) for one in declared}
    body = json.dumps({"inputs": declared}, separators=(",", ":"))
    data = json.dumps(rows if len(rows) > 1 else next(iter(rows.values())))
    return [
        f"curl -s {record.url}/v2/models/{record.name}/infer -H 'content-type: application/json' -d '{body}'",
        f"Request a prediction: scanflow predict {record.name} --data '{data}'",
    ]


def _nested(flat: Sequence[Any], shape: Sequence[int]) -> Any:
    if len(shape) < 2:
        return list(flat) if shape else flat[0]
    size = len(flat) // shape[0]
    return [_nested(flat[place * size : (place + 1) * size], shape[1:]) for place in range(shape[0])]


def _next_command(record: ServiceRecord) -> str:
    if record.state in {"failed", "degraded"}:
        return f"See why: scanflow logs {record.name}"
    if any(one.role != "current" for one in record.revisions):
        return f"Decide: scanflow promote {record.name}, or scanflow rollback {record.name}"
    return f"Request a prediction: scanflow predict {record.name} --help"


def _error_lines(record: ServiceRecord) -> list[str]:
    change = [f"The last change failed: {record.error}"] if record.error else []
    return change + [
        f"instance {one.instance}: {one.error}"
        for one in record.instances
        if one.error
        and one.state in {"waiting", "failed"}
        and one.error.partition(". Its log")[0] not in (record.error or "")
    ]


def _service_row(record: ServiceRecord) -> tuple[str, ...]:
    serving = [one for one in record.revisions if not one.shadow]
    rates = [one.rps for one in serving if one.rps is not None]
    shape = record.shape
    return (
        record.name,
        f"{MARKS[record.state]} {record.state}",
        record.url,
        f"{record.ready}/{shape.instances}",
        "-" if shape.cores is None else f"{shape.cores * shape.instances:g}",
        models_of(record),
        f"{sum(rates):.1f}" if rates else "-",
        latency(max((one.p95_s for one in serving if one.p95_s is not None), default=None)),
    )


def _instance_row(one: InstanceRecord, *, bound: bool) -> tuple[str, ...]:
    nodes = f" (memory of node {format_cpus(one.memory_nodes)})" if bound and one.memory_nodes else ""
    return (
        one.instance,
        f"{MARKS[one.state]} {one.state}",
        optional(one.pid),
        ago(one.began),
        f"{format_cpus(one.cpus)}{nodes}" if one.cpus else "any",
        optional(one.threads),
        "-" if one.rss_bytes is None else format_bytes(one.rss_bytes),
        percent(one.cpu_share, 0),
        str(one.in_flight),
        str(one.restarts),
    )


def _placed_row(one: InstanceRecord) -> tuple[str, ...]:
    """Return an instance of a cluster: what it asked for, beside what it was given and which CPUs it may use there."""
    details = one.model_extra or {}
    return (
        one.instance,
        f"{MARKS[one.state]} {one.state}",
        optional(one.place),
        ago(one.began),
        _amounts(details.get("requested")),
        _amounts(details.get("granted")),
        format_cpus(one.cpus) if one.cpus else "-",
        optional(details.get("qos")),
        optional(one.threads),
        "-" if one.rss_bytes is None else format_bytes(one.rss_bytes),
        str(one.in_flight),
        str(one.restarts),
    )


def _amounts(said: Mapping[str, str] | None) -> str:
    return ", ".join(f"{name} {amount}" for name, amount in (said or {}).items()) or "-"


def _revision_row(one: RevisionRecord) -> tuple[str, ...]:
    models = ", ".join(f"{node}={uri}" for node, uri in one.models.items())
    counts = (str(one.requests), str(one.errors))
    return (one.id, one.role, _share(one), optional(models), *counts, latency(one.p50_s), latency(one.p95_s))


def _share(revision: RevisionRecord) -> str:
    return "shadow" if revision.shadow else f"{100 * revision.weight:.4g}%"
