"""What an instance says of itself: metadata of the server and its models, and its state for the supervisor."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from scanflow import __version__
from scanflow.wire import InstanceSpec
from scanflow_serving.declared import TensorSpec
from scanflow_serving.graph import Graph
from scanflow_serving.messages import Headers, Response
from scanflow_serving.revisions import Loaded

_EXTENSIONS: Final = ("binary_tensor_data", "model_repository")
_encoder: Final = msgspec.json.Encoder()


def as_json(document: object, headers: Headers = (), status: int = 200) -> Response:
    return Response(status, _encoder.encode(document), headers=headers)


def server() -> dict[str, Any]:
    return {"name": "scanflow", "version": __version__, "extensions": _EXTENSIONS}


def about(spec: InstanceSpec, models: Iterable[str]) -> dict[str, Any]:
    return {
        "service": spec.service,
        "application": spec.app,
        "team": spec.team,
        "instance": spec.instance,
        "models": list(models),
        "infer": f"POST /v2/models/{spec.service}/infer",
        "others": ["GET /v2", f"GET /v2/models/{spec.service}", "POST /api/v1.0/predictions", "GET /metrics"],
    }


def model(name: str, graph: Graph, versions: Iterable[str]) -> dict[str, Any]:
    """Return a model's metadata: the inputs of the nodes that take the request, the outputs of those that answer."""
    inputs: dict[str, TensorSpec] = {}
    for step in graph.roots:
        inputs |= {spec.name: spec for spec in step.component.declared.inputs}
    return {
        "name": name,
        "versions": list(versions),
        "platform": graph.steps[0].component.platform if len(graph.steps) == 1 else "scanflow_graph",
        "inputs": [_described(spec) for spec in inputs.values()],
        "outputs": [_described(spec) for spec in graph.ends[0].component.declared.outputs],
    }


def index(models: Mapping[str, Iterable[str]], *, ready: bool) -> list[dict[str, Any]]:
    state = "READY" if ready else "UNAVAILABLE"
    return [
        {"name": name, "version": version, "state": state, "reason": ""}
        for name, versions in models.items()
        for version in versions
    ]


def revisions(loaded: Iterable[Loaded]) -> list[dict[str, Any]]:
    return [
        {
            "id": one.id,
            "weight": one.weight,
            "shadow": one.shadow,
            "requests": one.answered,
            "in_flight": one.in_flight,
            **({"compared": one.compared} if one.shadow else {}),
        }
        for one in loaded
    ]


def this_process() -> dict[str, Any]:
    tasks = Path("/proc/self/task")
    return {
        "threads": len(os.listdir(tasks)) if tasks.is_dir() else 0,  # noqa: PTH208 - asked often, and only counted
        "cpus": sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else [],
    }


def rss_bytes() -> int | None:
    """Return the memory that this process has in use; None: this system does not say."""
    try:
        return int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, LookupError, ValueError):
        return None


def threads_of(spec: InstanceSpec) -> int:
    """Return how many threads a library that asks for a number may have."""
    said = spec.threads.get("SCANFLOW_THREADS") or os.environ.get("SCANFLOW_THREADS", "")
    return int(said) if said.isdigit() and int(said) > 0 else max(1, math.ceil(spec.cores))


def _described(spec: TensorSpec) -> dict[str, Any]:
    return {"name": spec.name, "datatype": spec.datatype, "shape": spec.shape}
