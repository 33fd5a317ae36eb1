"""Draws a service: its inference graph with the traffic, latency and errors on the edges, as far as they are known."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from markupsafe import Markup

from scanflow.app.quantities import format_count, format_duration
from scanflow.app.workflow import Workflow
from scanflow.app.workflow_drawing import build_node
from scanflow.backends.service_metrics import WINDOW_S
from scanflow.backends.service_records import NodeTraffic, RevisionRecord, ServiceRecord
from scanflow.drawing import svg
from scanflow.drawing.graph_boxes import GraphNode
from scanflow.drawing.graph_drawing import draw_graph
from scanflow.drawing.graph_edges import GraphEdge
from scanflow.placement.topology_drawing import PlacedProcess

REQUESTS = "requests"


def draw_service(record: ServiceRecord, workflow: Workflow | None = None, *, width: float = svg.WIDTH) -> Markup:
    """Draw the graph of a service: what each revision gets of the requests, and how its nodes do.

    Args:
        record: The service, with the traffic of the last minute.
        workflow: Its definition. None: a revision is one box.
        width: Of the drawing, in pixels.
    """
    detail = f"{record.ready} of {format_count(record.shape.instances, 'instance')}"
    nodes = [GraphNode(name=REQUESTS, label=record.name, kind="service", state=record.state, detail=detail)]
    edges = list[GraphEdge]()
    for revision in record.revisions:
        nodes += _list_nodes(revision, workflow, several=len(record.revisions) > 1)
        edges += _list_edges(revision, workflow, several=len(record.revisions) > 1)
    return draw_graph(nodes, edges, title=f"The service {record.name}: {record.state}", width=width)


def list_placed_instances(records: Iterable[ServiceRecord], address: str | None = None) -> list[PlacedProcess]:
    """Return the instances of services that run on this machine, for its drawing."""
    return [
        PlacedProcess(f"{record.name}/{instance.instance}", instance.cpus, address)
        for record in records
        for instance in record.instances
        if instance.place is None and instance.state not in {"waiting", "failed"}
    ]


def _get_key(revision: RevisionRecord, node: str) -> str:
    return f"{revision.id} {node}"


def _list_nodes(revision: RevisionRecord, workflow: Workflow | None, *, several: bool) -> Iterator[GraphNode]:
    """Yield the nodes of a revision; with several, each says whose it is."""
    role = f"{revision.role} revision {revision.id}"
    if workflow is None:
        detail = ", ".join(dict.fromkeys(uri.removeprefix("models:/") for uri in revision.models.values()))
        label = detail or revision.id
        yield GraphNode(
            name=_get_key(revision, ""),
            label=label,
            kind="service",
            detail=revision.role if several else "",
            tooltip=role,
        )
        return
    for service in workflow.services:
        node, model = build_node(service), revision.models.get(service.name)
        detail = node.detail if model is None else model.removeprefix("models:/")
        yield GraphNode(
            name=_get_key(revision, service.name),
            label=service.name,
            kind="service",
            detail=f"{revision.role}: {detail}" if several and revision.role != "current" else detail,
            tooltip=f"{node.tooltip}\n{role}",
        )


def _list_edges(revision: RevisionRecord, workflow: Workflow | None, *, several: bool) -> Iterator[GraphEdge]:
    parents = {"": ()} if workflow is None else workflow.parents
    share = "copies" if revision.shadow else f"{revision.weight:.0%}" if several else ""
    for node, own in parents.items():
        if not own:  # it takes the request
            yield _build_edge(
                REQUESTS,
                _get_key(revision, node),
                share=share,
                rps=revision.rps,
                p95_s=revision.p95_s,
                errors=revision.error_share or 0.0,
            )
        for parent in own:
            traffic = _find_traffic(revision, node, own, parent)
            yield _build_edge(
                _get_key(revision, parent),
                _get_key(revision, node),
                rps=None if traffic is None else traffic.rps,
                p95_s=None if traffic is None else traffic.p95_s,
                errors=0.0 if traffic is None else traffic.error_share,
            )


def _find_traffic(revision: RevisionRecord, node: str, parents: Sequence[str], parent: str) -> NodeTraffic | None:
    """Return what goes over an edge: what reached the node, but of several parents only the one's share."""
    traffic, source = revision.nodes.get(node), revision.nodes.get(parent)
    if traffic is None or len(parents) == 1 or source is None:
        return traffic
    return traffic.model_copy(update={"rps": min(traffic.rps, source.rps)})


def _build_edge(
    source: str, target: str, *, share: str = "", rps: float | None, p95_s: float | None, errors: float
) -> GraphEdge:
    """Return an edge with what is known of it. A share without requests is shown as well."""
    is_busy = rps is not None and rps > 0
    latency = "" if p95_s is None or not is_busy else _format_latency(p95_s)
    failing = f"{errors:.1%} errors" if errors else ""
    parts = [share, f"{rps:.3g}/s" if rps is not None else "", latency and f"p95 {latency}", failing]
    latency_line = f"95 % of the requests took at most {latency}" if latency else ""
    rate = "" if rps is None else f"{rps:.3g} requests a second in the last {WINDOW_S:.0f} s"
    words = [share and f"share: {share}", rate, latency_line, failing]
    return GraphEdge(
        source=source,
        target=target,
        label=" · ".join(filter(None, parts)),
        weight=rps,
        has_errors=errors > 0,
        tooltip="\n".join(filter(None, words)) or "no traffic is measured",
    )


def _format_latency(seconds: float) -> str:
    return f"{seconds * 1000:.3g} ms" if seconds < 1 else format_duration(seconds)
