"""How services are told to people, as plain lines. Pure: no terminal, no colours."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from scanflow.app.quantities import format_duration
from scanflow.backends.service_records import Explanation, InstanceRecord, RevisionRecord, ServiceRecord, Shape
from scanflow.placement.cpulist import format_cpus
from scanflow_client.words import ago, counted, format_bytes

__all__ = [
    "SERVICE_MARKS",
    "error_lines",
    "explanation_lines",
    "instance_rows",
    "models_of",
    "next_for",
    "revision_rows",
    "service_line",
    "service_rows",
    "shape_words",
    "ways_to_ask",
]

SERVICE_MARKS = {
    "ready": "✓",
    "starting": "·",
    "degraded": "!",
    "backup": "!",
    "idle": "–",
    "failed": "✗",
    "unsupervised": "?",
    "draining": "·",
    "waiting": "↻",
}
MOST_EXAMPLE_VALUES = 16  # more numbers than these are not typed on a command line
_EXAMPLES = {"BOOL": True, "BYTES": "text", "FP16": 0.5, "FP32": 0.5, "FP64": 0.5}


def service_line(record: ServiceRecord) -> str:
    """Return one line on a service: mark, name, state, where, and how it is cut."""
    grpc = f", gRPC {record.grpc}" if record.grpc else ""
    state = record.state if record.state != "backup" else f"answered by its backup {record.backup}"
    return f"{SERVICE_MARKS[record.state]} {record.name}  {state} at {record.url}{grpc}  ({shape_words(record.shape)})"


def shape_words(shape: Shape) -> str:
    """Return ``2 instances × 1 core, cpumem``."""
    cores = "" if shape.cores is None else f" × {_amount(shape.cores)} {'core' if shape.cores == 1 else 'cores'}"
    return f"{counted(shape.instances, 'instance')}{cores}, {shape.affinity}"


def service_rows(records: Sequence[ServiceRecord]) -> list[tuple[str, ...]]:
    """Return a table of services: name, state, address, instances, cores, models, requests a second, latency."""
    return [
        (
            record.name,
            f"{SERVICE_MARKS[record.state]} {record.state}",
            record.url,
            f"{_ready(record)}/{record.shape.instances}",
            "-" if record.shape.cores is None else _amount(record.shape.cores * record.shape.instances),
            models_of(record),
            _rps(record.revisions),
            _latency(max((one.p95_s for one in _answering(record) if one.p95_s is not None), default=None)),
        )
        for record in records
    ]


def models_of(record: ServiceRecord) -> str:
    """Return the versions that serve, with their shares where there is more than one: ``cnn/3 90%, cnn/4 10%``."""
    several = len(record.revisions) > 1
    told = []
    for one in record.revisions:
        names = ", ".join(dict.fromkeys(uri.removeprefix("models:/") for uri in one.models.values())) or one.id
        told.append(f"{names} {_share(one)}" if several else names)
    return ", ".join(told) or "-"


def instance_rows(record: ServiceRecord) -> list[tuple[str, ...]]:
    """Return a table of a service's instances: name, state, process, since when, CPUs, threads, memory, restarts."""
    bound = record.shape.affinity in {"cpumem", "cpumempin"}
    return [
        (
            one.instance,
            f"{SERVICE_MARKS[one.state]} {one.state}",
            "-" if one.pid is None else str(one.pid),
            "-" if one.began is None else ago(one.began),
            _cpus(one, bound=bound),
            "-" if one.threads is None else str(one.threads),
            "-" if one.rss_bytes is None else format_bytes(one.rss_bytes),
            "-" if one.cpu_share is None else f"{one.cpu_share:.0%}",
            str(one.in_flight),
            str(one.restarts),
        )
        for one in record.instances
    ]


def error_lines(record: ServiceRecord) -> list[str]:
    """Return why the last change did not come into effect, and why instances ended."""
    change = [f"The last change did not come into effect: {record.error}"] if record.error else []
    return change + [
        f"instance {one.instance}: {one.error}"
        for one in record.instances
        if one.error
        and one.state in {"waiting", "failed"}
        and one.error.partition(". Its log")[0] not in (record.error or "")
    ]


def revision_rows(record: ServiceRecord) -> list[tuple[str, ...]]:
    """Return a table of what is served: revision, role, share, models, requests, errors, latencies."""
    return [
        (
            one.id,
            one.role,
            _share(one),
            ", ".join(f"{node}={uri}" for node, uri in one.models.items()) or "-",
            str(one.requests),
            str(one.errors),
            _latency(one.p50_s),
            _latency(one.p95_s),
        )
        for one in record.revisions
    ]


def explanation_lines(found: Explanation) -> list[str]:
    """Return why a service has as many instances as it has."""
    if found.target <= 0:
        decides = "Nothing decides on that: give a node a scaling=sf.Scaling(...), or scale it by hand."
        return [f"{found.service}: {counted(found.instances, 'instance')}. {decides}"]
    sample = "nothing measured yet" if found.sample is None else f"{found.sample:g}"
    return [
        f"{found.service}: {counted(found.instances, 'instance')}, looked at {ago(found.at)}",
        f"  sample    {found.metric} = {sample}",
        f"  target    {found.target:g} (more above {found.up:g}, fewer below {found.down:g})",
        f"  formula   {found.formula}",
        f"  decision  {found.decision}",
    ]


def next_for(record: ServiceRecord) -> str:
    """Return the one command to use next."""
    if record.state in {"failed", "degraded"}:
        return f"See why: scanflow logs {record.name}"
    if any(one.role != "current" for one in record.revisions):
        return f"Decide: scanflow promote {record.name}, or scanflow rollback {record.name}"
    return f"Ask it: scanflow predict {record.name} --help"


def ways_to_ask(record: ServiceRecord, inputs: Sequence[Mapping[str, Any]]) -> list[str]:
    """Return commands that ask a service for a prediction, ready to be pasted; ``inputs`` is what it, or the model in
    it, declares: names, types and shapes."""
    declared: list[dict[str, Any]] = [_declared(one) for one in inputs]
    if not declared:
        declared = [{"name": "input", "shape": [1, 3], "datatype": "FP64"}]
    if any(math.prod(one["shape"]) > MOST_EXAMPLE_VALUES for one in declared):
        shape = "x".join(map(str, declared[0]["shape"][1:]))
        return [
            f"Its input: rows of {shape}, {declared[0]['datatype']}. See: curl -s {record.url}/v2/models/{record.name}",
            f"Ask it: scanflow predict {record.name} rows.npy",
        ]
    filled: list[dict[str, Any]] = [{**one, "data": _examples(one)} for one in declared]
    body = json.dumps({"inputs": filled}, separators=(",", ":"))
    first = _nested(filled[0]["data"], filled[0]["shape"])
    data = first if len(filled) == 1 else {one["name"]: _nested(one["data"], one["shape"]) for one in filled}
    return [
        f"curl -s {record.url}/v2/models/{record.name}/infer -H 'content-type: application/json' -d '{body}'",
        f"Ask it: scanflow predict {record.name} --data '{json.dumps(data)}'",
    ]


def _declared(tensor: Mapping[str, Any]) -> dict[str, Any]:
    shape = [max(size, 1) for size in tensor["shape"]]
    return {"name": tensor["name"], "shape": shape, "datatype": tensor["datatype"]}


def _examples(tensor: Mapping[str, Any]) -> list[Any]:
    return [_EXAMPLES.get(tensor["datatype"], 1)] * math.prod(tensor["shape"])


def _nested(flat: Sequence[Any], shape: Sequence[int]) -> Any:
    if len(shape) < 2:
        return list(flat) if shape else flat[0]
    size = len(flat) // shape[0]
    return [_nested(flat[place * size : (place + 1) * size], shape[1:]) for place in range(shape[0])]


def _ready(record: ServiceRecord) -> int:
    return sum(one.state == "ready" for one in record.instances)


def _answering(record: ServiceRecord) -> list[RevisionRecord]:
    return [one for one in record.revisions if not one.shadow]


def _rps(revisions: Sequence[RevisionRecord]) -> str:
    rates = [one.rps for one in revisions if one.rps is not None and not one.shadow]
    return f"{sum(rates):.1f}" if rates else "-"


def _share(revision: RevisionRecord) -> str:
    return "shadow" if revision.shadow else f"{100 * revision.weight:.4g}%"


def _cpus(one: InstanceRecord, *, bound: bool) -> str:
    nodes = f" (memory of node {format_cpus(one.memory_nodes)})" if bound and one.memory_nodes else ""
    return f"{format_cpus(one.cpus)}{nodes}" if one.cpus else "any"


def _latency(seconds: float | None) -> str:
    if seconds is None:
        return "-"
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else format_duration(seconds)


def _amount(number: float) -> str:
    return f"{number:g}"
