"""Draws a workflow as it is declared: steps and what they depend on, the graph of a service, or an MPI job."""

from __future__ import annotations

from typing import assert_never

from markupsafe import Markup

from scanflow.app.executor import Executor
from scanflow.app.mpi import MPIWorkload
from scanflow.app.quantities import format_count
from scanflow.app.references import Ref
from scanflow.app.service import Service
from scanflow.app.workflow import Workflow
from scanflow.drawing import svg
from scanflow.drawing.graph_boxes import GraphNode
from scanflow.drawing.graph_drawing import draw_graph
from scanflow.drawing.graph_edges import GraphEdge


def draw_workflow(workflow: Workflow, *, width: float = svg.WIDTH) -> Markup:
    """Draw the graph of a workflow, of any type."""
    nodes = [build_node(node) for node in workflow.nodes]
    edges = [GraphEdge(source=parent, target=name) for name, own in workflow.parents.items() for parent in own]
    return draw_graph(nodes, edges, title=f"The workflow {workflow.name}", width=width)


def build_node(node: Executor | Service | MPIWorkload) -> GraphNode:
    """Return what is drawn of a node: its name, and the most telling of what is declared of it."""
    if isinstance(node, Executor):
        tooltip = "\n".join(filter(None, [node.mainfile or node.function, _describe_condition(node)]))
        return GraphNode(name=node.name, detail=_describe_fan_out(node), tooltip=tooltip)
    if isinstance(node, Service):
        runs = node.model or node.implementation or ""
        detail = runs.removeprefix("models:/") if node.role == "MODEL" else node.role.lower().replace("_", " ")
        return GraphNode(name=node.name, kind="service", detail=detail, tooltip=f"{node.role}: {runs}")
    if isinstance(node, MPIWorkload):
        detail = f"{format_count(node.n_tasks, 'rank')} on {format_count(node.n_nodes, 'node')}"
        return GraphNode(name=node.name, detail=detail, tooltip=node.mainfile)
    assert_never(node)


def _describe_fan_out(step: Executor) -> str:
    if step.for_each is None:
        return "" if step.when is None else "on a condition"
    if isinstance(step.for_each, Ref):
        return f"for each of {step.for_each!s}"
    return format_count(len(step.for_each), "task")


def _describe_condition(step: Executor) -> str:
    return "" if step.when is None else f"when {step.when}"
