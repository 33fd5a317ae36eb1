"""Services, their instances and revisions as lines and tables."""

from __future__ import annotations

import json
import math
import shlex
from collections.abc import Mapping, Sequence
from typing import Any

from scanflow.app.quantities import format_count, format_duration
from scanflow.backends.device_text import format_uses
from scanflow.backends.service_records import Explanation, InstanceRecord, RevisionRecord, ServiceRecord, Shape
from scanflow.pki import find_authority_file, find_client_certificate
from scanflow.placement.cpulist import format_cpus
from scanflow_client.formatting.text import (
    MARKS,
    format_age,
    format_bytes,
    format_latency,
    format_optional,
    format_percent,
)
from scanflow_client.formatting.text_table import Screen, Table

MAX_EXAMPLE_VALUES = 16  # larger inputs are not written on a command line
_DATETIME = "2024-03-01T12:30:00"
_NAMELESS = frozenset({"input", "input-0"})
_EXAMPLES = {"BOOL": True, "BYTES": "text", "FP16": 0.5, "FP32": 0.5, "FP64": 0.5}


def format_service_line(record: ServiceRecord) -> str:
    grpc = f", gRPC {record.grpc}" if record.grpc else ""
    state = record.state if record.state != "backup" else f"answered by its backup {record.backup}"
    return f"{MARKS[record.state]} {record.name}  {state} at {record.url}{grpc}  ({format_shape(record.shape)})"


def format_shape(shape: Shape) -> str:
    """Return a shape as text: ``2 instances × 1 core, gpu=0.5, cpumem``."""
    cores = "" if shape.cores is None else f" × {shape.cores:g} {'core' if shape.cores == 1 else 'cores'}"
    gpu = f", gpu={shape.gpu}" if shape.gpu else ""
    return f"{format_count(shape.instances, 'instance')}{cores}{gpu}, {shape.affinity}"


def format_services(records: Sequence[ServiceRecord]) -> Screen:
    if not records:
        return ["No service is deployed. Deploy an online workflow: scanflow deploy app.py:WORKFLOW"]
    columns = ("service", "state", "url", "ready", "cores", "models", "rps", "p95")
    return [Table(columns, [_format_service_row(record) for record in records])]


def format_served_models(record: ServiceRecord) -> str:
    """Return the versions that answer, with their shares if there are several: ``cnn/3 90%, cnn/4 10%``."""
    serving = [revision for revision in record.revisions if not revision.shadow]
    shares = [f" {_format_share(revision)}" if len(serving) > 1 else "" for revision in serving]
    return ", ".join(map("{}{}".format, map(_format_models, serving), shares)) or "-"


def format_model_versions(record: ServiceRecord) -> str:
    """Return the versions that answer, and those that only get copies of requests: ``cnn/3, cnn/4 shadow``."""
    shadows = [f"{_format_models(revision)} shadow" for revision in record.revisions if revision.shadow]
    return ", ".join([format_served_models(record), *shadows])


def _format_models(revision: RevisionRecord) -> str:
    return ", ".join(dict.fromkeys(uri.removeprefix("models:/") for uri in revision.models.values())) or revision.id


def format_service(record: ServiceRecord) -> Screen:
    """Return a service in detail: state, errors, instances, revisions, and the next command."""
    screen: list[str | Table] = [format_service_line(record), *_format_errors(record)]
    screen += format_instances(record.instances, bound=record.shape.affinity in {"cpumem", "cpumempin"})
    screen.append(format_revisions(record.revisions))
    screen += _format_policy(record)
    if record.recorded or record.dropped:
        dropped = f", {record.dropped} dropped" if record.dropped else ""
        screen.append(f"Predictions recorded in the tracker: {record.recorded}{dropped}")
    return [*screen, _suggest_command(record)]


def _format_policy(record: ServiceRecord) -> list[str]:
    """Return what decides on the canary, and how far that is; none if a person does."""
    policy, canary = record.policy, next((each for each in record.revisions if each.role != "current"), None)
    if policy is None or canary is None:
        return []
    answered = format_count(canary.requests - canary.invalid, "request")
    limit = format_duration(policy.within_s)
    then = f"With {policy.after_requests} within {limit} it is promoted if {policy.rule}, and else removed."
    return [f"The canary {canary.id} has answered {answered}. {then}"]


def format_instances(instances: Sequence[InstanceRecord], *, bound: bool = True) -> Screen:
    """Return instances, and their devices. ``bound``: their memory is of the nodes that they name."""
    if not instances:
        return []
    if any(instance.place is not None for instance in instances):
        heads = ("instance", "state", "node", "since", "requested", "granted", "cpus", "QoS", "threads", "memory")
        rows = [_format_placed_instance(instance) for instance in instances]
        table = Table((*heads, "in flight", "restarts"), rows)
    else:
        heads = ("instance", "state", "pid", "since", "cpus", "threads", "memory", "busy", "in flight", "restarts")
        table = Table(heads, [_format_instance(instance, bound=bound) for instance in instances])
    return [table, *format_uses((f"instance {instance.instance}", instance.devices) for instance in instances)]


def format_revisions(revisions: Sequence[RevisionRecord]) -> Table:
    columns = ("revision", "role", "share", "models", "requests", "errors", "p50", "p95")
    return Table(columns, [_format_revision(revision) for revision in revisions])


def format_explanation(explanation: Explanation) -> list[str]:
    head = f"{explanation.service}: {format_count(explanation.instances, 'instance')}"
    if explanation.target <= 0:
        return [f"{head}. No autoscaling: give a node a scaling=sf.Scaling(...), or scale it yourself."]
    sample = "not measured yet" if explanation.sample is None else f"{explanation.sample:g}"
    return [
        f"{head}, evaluated {format_age(explanation.at)}",
        f"  sample    {explanation.metric} = {sample}",
        f"  target    {explanation.target:g} (scale up above {explanation.up:g}, down below {explanation.down:g})",
        f"  formula   {explanation.formula}",
        f"  decision  {explanation.decision}",
    ]


def format_request_examples(
    record: ServiceRecord, inputs: Sequence[Mapping[str, Any]], *, needs_certificate: bool = False
) -> list[str]:
    """Return commands that request a prediction. ``inputs`` are the tensors that the service declares.

    ``needs_certificate``: whether it answers clients by their certificates; then two files are named where none is set.

    A table is written as records, an input of unnamed rows as a list. Where an example cannot be made, since it would
    be too long, or is JSON of a type that is not known, a file is named.
    """
    curl = _format_curl(record, needs_certificate=needs_certificate)
    declared: list[dict[str, Any]] = [
        {"name": tensor["name"], "shape": [max(size, 1) for size in tensor["shape"]], "datatype": tensor["datatype"]}
        for tensor in inputs
    ] or [{"name": "input", "shape": [1, 3], "datatype": "FP64"}]
    if any(math.prod(tensor["shape"]) > MAX_EXAMPLE_VALUES for tensor in declared):
        shape = "x".join(map(str, declared[0]["shape"][1:]))
        about = f"Its input: rows of {shape}, {declared[0]['datatype']}."
        return [
            f"{about} See: {curl}/v2/models/{record.name}",
            f"Request a prediction: scanflow predict {record.name} rows.npy",
        ]
    contents = {tensor["name"]: (tensor.get("parameters") or {}).get("content_type") for tensor in inputs}
    if taken := next((name for name, content in contents.items() if content == "application/json"), None):
        return [
            f"Its input {taken!r}: a JSON value for each row. See: {curl}/v2/models/{record.name}",
            f"Request a prediction: scanflow predict {record.name} rows.json",
        ]
    for tensor in declared:
        example = _DATETIME if contents.get(tensor["name"]) == "datetime" else _EXAMPLES.get(tensor["datatype"], 1)
        tensor["data"] = [example] * math.prod(tensor["shape"])
    rows = {tensor["name"]: _nest(tensor["data"], tensor["shape"]) for tensor in declared}
    body = shlex.quote(json.dumps({"inputs": declared}, separators=(",", ":")))
    data = shlex.quote(json.dumps(_write_rows(rows, declared)))
    return [
        f"{curl}/v2/models/{record.name}/infer -H 'content-type: application/json' -d {body}",
        f"Request a prediction: scanflow predict {record.name} --data {data}",
    ]


def _format_curl(record: ServiceRecord, *, needs_certificate: bool) -> str:
    if not record.url.startswith("https:"):
        return f"curl -s {record.url}"
    authority, certificate = find_authority_file(), find_client_certificate()
    options = [] if authority is None else ["--cacert", str(authority)]
    if certificate is not None or needs_certificate:
        file, key = certificate or ("FILE", "FILE")
        options += ["--cert", str(file), "--key", str(key)]
    return f"curl -s {shlex.join([*options, record.url])}"


def _write_rows(rows: Mapping[str, Any], declared: Sequence[Mapping[str, Any]]) -> Any:
    """Return columns as records; the one input that is no column, or has no name, as its rows alone; others by name."""
    is_named = len(rows) > 1 or next(iter(rows)) not in _NAMELESS
    if is_named and all(tensor["shape"] == [1] for tensor in declared):
        return [{name: column[0] for name, column in rows.items()}]
    return rows if len(rows) > 1 else next(iter(rows.values()))


def _nest(flat: Sequence[Any], shape: Sequence[int]) -> Any:
    if len(shape) < 2:
        return list(flat) if shape else flat[0]
    size = len(flat) // shape[0]
    return [_nest(flat[place * size : (place + 1) * size], shape[1:]) for place in range(shape[0])]


def _suggest_command(record: ServiceRecord) -> str:
    if any((instance.waits_for or "").startswith("a GPU") for instance in record.instances):
        return "See who has which GPU: scanflow topology"
    if record.state in {"failed", "degraded"}:
        return f"See why: scanflow logs {record.name}"
    if any(revision.role != "current" for revision in record.revisions):
        decide = "Decide" if record.policy is None else "Or decide now"
        return f"{decide}: scanflow promote {record.name}, or scanflow rollback {record.name}"
    return f"Request a prediction: scanflow predict {record.name} --help"


def _format_errors(record: ServiceRecord) -> list[str]:
    change = f"The last change failed: {record.error}" if record.error and record.failed_change is not None else ""
    ends = [
        f"instance {instance.instance}: {instance.error}"
        for instance in record.instances
        if instance.error
        and instance.state in {"waiting", "failed"}
        and instance.error.partition(". Its log")[0] not in change
    ]
    waits = [f"instance {it.instance} waits for {it.waits_for}" for it in record.instances if it.waits_for]
    other = "" if not record.error or any(record.error in line for line in [change, *ends]) else record.error
    return [*filter(None, (change, other)), *ends, *waits]


def _format_service_row(record: ServiceRecord) -> tuple[str, ...]:
    serving = [revision for revision in record.revisions if not revision.shadow]
    rates = [revision.rps for revision in serving if revision.rps is not None]
    shape = record.shape
    return (
        record.name,
        f"{MARKS[record.state]} {record.state}",
        record.url,
        f"{record.ready}/{shape.instances}",
        "-" if shape.cores is None else f"{shape.cores * shape.instances:g}",
        format_model_versions(record),
        f"{sum(rates):.1f}" if rates else "-",
        format_latency(max((revision.p95_s for revision in serving if revision.p95_s is not None), default=None)),
    )


def _format_instance(instance: InstanceRecord, *, bound: bool) -> tuple[str, ...]:
    nodes = f" (memory of node {format_cpus(instance.memory_nodes)})" if bound and instance.memory_nodes else ""
    return (
        instance.instance,
        f"{MARKS[instance.state]} {instance.state}",
        format_optional(instance.pid),
        format_age(instance.began),
        f"{format_cpus(instance.cpus)}{nodes}" if instance.cpus else "any",
        format_optional(instance.threads),
        "-" if instance.rss_bytes is None else format_bytes(instance.rss_bytes),
        format_percent(instance.cpu_share, 0),
        str(instance.in_flight),
        str(instance.restarts),
    )


def _format_placed_instance(instance: InstanceRecord) -> tuple[str, ...]:
    """Return an instance of a cluster: its requested and granted resources, and its CPUs."""
    details = instance.model_extra or {}
    return (
        instance.instance,
        f"{MARKS[instance.state]} {instance.state}",
        format_optional(instance.place),
        format_age(instance.began),
        _format_amounts(details.get("requested")),
        _format_amounts(details.get("granted")),
        format_cpus(instance.cpus) if instance.cpus else "-",
        format_optional(details.get("qos")),
        format_optional(instance.threads),
        "-" if instance.rss_bytes is None else format_bytes(instance.rss_bytes),
        str(instance.in_flight),
        str(instance.restarts),
    )


def _format_amounts(amounts: Mapping[str, str] | None) -> str:
    return ", ".join(f"{name} {amount}" for name, amount in (amounts or {}).items()) or "-"


def _format_revision(revision: RevisionRecord) -> tuple[str, ...]:
    models = ", ".join(f"{node}={uri}" for node, uri in revision.models.items())
    counts = (str(revision.requests), str(revision.errors))
    return (
        revision.id,
        revision.role,
        _format_share(revision),
        format_optional(models),
        *counts,
        format_latency(revision.p50_s),
        format_latency(revision.p95_s),
    )


def _format_share(revision: RevisionRecord) -> str:
    return "shadow" if revision.shadow else f"{100 * revision.weight:.4g}%"
