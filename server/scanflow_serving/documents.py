"""Documents of an instance: metadata of the server and its models, and its state for the supervisor."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from scanflow import __version__
from scanflow.instance_messages import InstanceSpec
from scanflow_serving.component_graph import Graph
from scanflow_serving.messages import Headers, Response
from scanflow_serving.revisions import LoadedRevision
from scanflow_serving.signature import TensorSpec

_EXTENSIONS: Final = ("binary_tensor_data", "model_repository")
_CONTENT_TYPES: Final = {"json": "application/json", "datetime": "datetime"}
"""What BYTES hold that are more than text."""

_encoder: Final = msgspec.json.Encoder()


def to_response(document: object, headers: Headers = (), status: int = 200) -> Response:
    return Response(status, _encoder.encode(document), headers=headers)


def describe_server() -> dict[str, Any]:
    return {"name": "scanflow", "version": __version__, "extensions": _EXTENSIONS}


def describe_instance(spec: InstanceSpec, models: Iterable[str]) -> dict[str, Any]:
    return {
        "service": spec.service,
        "application": spec.app,
        "team": spec.team,
        "instance": spec.instance,
        "models": list(models),
        "infer": f"POST /v2/models/{spec.service}/infer",
        "others": ["GET /v2", f"GET /v2/models/{spec.service}", "POST /api/v1.0/predictions", "GET /metrics"],
    }


def describe_model(name: str, graph: Graph, versions: Iterable[str]) -> dict[str, Any]:
    """Return a model's metadata: the inputs of its root nodes, the outputs of its end node, and notes for people."""
    inputs: dict[str, TensorSpec] = {}
    for step in graph.roots:
        inputs |= {spec.name: spec for spec in step.component.signature.inputs}
    notes = [note for step in graph.steps for note in step.component.notes]
    return {
        "name": name,
        **({"notes": notes} if notes else {}),
        "versions": list(versions),
        "platform": graph.steps[0].component.platform if len(graph.steps) == 1 else "scanflow_graph",
        "inputs": [_describe_tensor(spec) for spec in inputs.values()],
        "outputs": [_describe_tensor(spec) for spec in graph.ends[0].component.signature.outputs],
    }


def list_models(models: Mapping[str, Iterable[str]], *, ready: bool) -> list[dict[str, Any]]:
    state = "READY" if ready else "UNAVAILABLE"
    return [
        {"name": name, "version": version, "state": state, "reason": ""}
        for name, versions in models.items()
        for version in versions
    ]


def list_revisions(loaded: Iterable[LoadedRevision]) -> list[dict[str, Any]]:
    return [
        {
            "id": revision.id,
            "weight": revision.weight,
            "shadow": revision.shadow,
            "requests": revision.response_count,
            "in_flight": revision.in_flight,
            **({"compared": revision.compared} if revision.shadow else {}),
        }
        for revision in loaded
    ]


def describe_process() -> dict[str, Any]:
    tasks = Path("/proc/self/task")
    return {
        "threads": len(os.listdir(tasks)) if tasks.is_dir() else 0,  # noqa: PTH208 - asked often, and only counted
        "cpus": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [],
    }


def find_rss_bytes() -> int | None:
    """Return the resident memory of this process, in bytes; None: it is unknown."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, LookupError, ValueError):
        return None


def get_thread_count(spec: InstanceSpec) -> int:
    """Return the number of threads for libraries."""
    text = spec.threads.get("SCANFLOW_THREADS") or os.environ.get("SCANFLOW_THREADS", "")
    return int(text) if text.isdigit() and int(text) > 0 else max(1, math.ceil(spec.cores))


def _describe_tensor(spec: TensorSpec) -> dict[str, Any]:
    described: dict[str, Any] = {"name": spec.name, "datatype": spec.datatype, "shape": spec.shape}
    if media := _CONTENT_TYPES.get(spec.content):
        described["parameters"] = {"content_type": media}
    return described
