"""Draws an application: its workflows, services, models and agents, and what is declared to go from one to another."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

from markupsafe import Markup

from scanflow.app.agent import Agent
from scanflow.app.application import Application
from scanflow.app.quantities import format_count
from scanflow.app.workflow import Workflow
from scanflow.drawing import svg
from scanflow.drawing.graph_boxes import GraphNode, NodeKind
from scanflow.drawing.graph_drawing import draw_graph
from scanflow.drawing.graph_edges import GraphEdge

MODEL_PARAMETERS = frozenset({"model", "model_name"})
"""Parameters of steps that name a model of the registry."""

MODEL_ADDRESS = "models:/"
DETECTION = "scanflow.drift.detecting:detect"
"""The function of a step that reads the model it names, and makes none."""

TEMPLATE_DEFAULTS: Mapping[str, Mapping[str, str]] = {
    "tracker": {"checker": "checker"},
    "checker": {"detector_workflow": "detector"},
    "planner": {"training_workflow": "training", "executor": "executor"},
    "executor": {},
}
"""What the built-in templates call and run where their parameters do not say it."""

_NOT_RUN = frozenset({("checker", "training_workflow")})


class Part(NamedTuple):
    """A workflow, service, model or agent of an application. A service is an online workflow."""

    kind: NodeKind
    name: str

    @property
    def key(self) -> str:
        return f"{self.kind} {self.name}"


class PartLink(NamedTuple):
    """Something that goes from one part to another."""

    source: Part
    target: Part
    label: str = ""
    tooltip: str = ""


def draw_application(
    app: Application,
    *,
    states: Mapping[Part, str] | None = None,
    addresses: Mapping[Part, str] | None = None,
    links: Iterable[PartLink] = (),
    width: float = svg.WIDTH,
) -> Markup:
    """Draw an application.

    Args:
        app: The application.
        states: The states of parts, as far as they are known.
        addresses: The pages of parts.
        links: What was seen to go from one part to another, beside what is declared.
        width: Of the drawing, in pixels.
    """
    states, addresses = states or {}, addresses or {}
    details = _describe_parts(app)
    nodes = [
        GraphNode(
            name=part.key,
            label=part.name,
            kind=part.kind,
            state=states.get(part),
            detail=detail,
            tooltip=part.kind,
            address=addresses.get(part),
        )
        for part, detail in details.items()
    ]
    edges = [
        GraphEdge(source=link.source.key, target=link.target.key, label=link.label, tooltip=link.tooltip)
        for link in _merge(link for link in (*list_links(app), *links) if {link.source, link.target} <= set(details))
    ]
    return draw_graph(nodes, edges, title=f"The application {app.name} of team {app.team}", width=width)


def list_links(app: Application) -> Iterator[PartLink]:
    """Yield what is declared: which model a service serves and a step names, the backup of a service, and what the
    sensors and the parameters of an agent name."""
    for workflow in app.workflows:
        yield from _list_workflow_links(workflow)
    for agent in app.agents:
        yield from _list_agent_links(app, agent)


def _get_part(workflow: Workflow) -> Part:
    return Part("service" if workflow.type == "online" else "workflow", workflow.name)


def _describe_parts(app: Application) -> dict[Part, str]:
    """Return the parts with what is said of each, workflows first: they are drawn above what they make."""
    sizes = {"batch": "step", "online": "node", "mpi": "MPI job"}
    parts = {
        _get_part(workflow): format_count(len(workflow.nodes), sizes[workflow.type])
        for workflow in sorted(app.workflows, key=lambda workflow: workflow.type == "online")
    }
    links = [link for workflow in app.workflows for link in _list_workflow_links(workflow)]
    parts |= {end: "" for link in links for end in (link.source, link.target) if end.kind == "model"}
    templates = {agent.name: agent.template or "" for agent in app.agents}
    return parts | {Part("agent", name): "" if template == name else template for name, template in templates.items()}


def _list_workflow_links(workflow: Workflow) -> Iterator[PartLink]:
    own = _get_part(workflow)
    for service in workflow.services:
        if service.model is not None:
            name, version = _split_address(service.model)
            yield PartLink(Part("model", name), own, version, f"{service.name} of {workflow.name} is {service.model}")
    if workflow.serving is not None and workflow.serving.backup is not None:
        backup = Part("service", workflow.serving.backup)
        yield PartLink(backup, own, "backup", f"{backup.name} answers for {workflow.name} while that has no instance")
    for step in workflow.steps:
        for parameter, value in step.parameters.items():
            tooltip = f"the step {step.name} of {workflow.name} has {parameter}={value!r}"
            if isinstance(value, str) and value.startswith(MODEL_ADDRESS):
                yield PartLink(Part("model", _split_address(value)[0]), own, "read by", tooltip)
            elif isinstance(value, str) and value and parameter in MODEL_PARAMETERS:
                model = Part("model", value)
                is_reading = step.function == DETECTION
                yield PartLink(model, own, "read by", tooltip) if is_reading else PartLink(own, model, "", tooltip)


def _split_address(address: str) -> tuple[str, str]:
    """Return the name of ``models:/name@alias`` or ``models:/name/3``, and the alias or version."""
    name, separator, alias = address.removeprefix(MODEL_ADDRESS).partition("@")
    name, _, version = name.partition("/")
    return name, f"@{alias}" if separator else f"/{version}" if version else ""


def _list_agent_links(app: Application, agent: Agent) -> Iterator[PartLink]:
    own = Part("agent", agent.name)
    part_of_node = {node.name: _get_part(workflow) for workflow in app.workflows for node in workflow.nodes}
    for sensor in agent.sensors:
        for node in sensor.nodes:
            if node in part_of_node:
                tooltip = f"the sensor {sensor.name} of {agent.name} reads {node}"
                yield PartLink(part_of_node[node], own, "watched by", tooltip)
    workflows = {workflow.name: _get_part(workflow) for workflow in app.workflows}
    agents = {other.name: Part("agent", other.name) for other in app.agents}
    for parameter, value in {**TEMPLATE_DEFAULTS.get(agent.template or "", {}), **agent.parameters}.items():
        tooltip = f"{agent.name} has {parameter}={value!r}"
        for name in _list_texts(value):
            if parameter in agents and name in agents:
                yield PartLink(own, agents[name], "calls", tooltip)
            elif parameter.endswith("workflow") and name in workflows and (agent.template, parameter) not in _NOT_RUN:
                yield PartLink(own, workflows[name], "runs", tooltip)
            elif parameter == "nodes" and name in part_of_node:
                yield PartLink(part_of_node[name], own, "watched by", tooltip)
    yield from _list_service_links(app, agent)


def _list_service_links(app: Application, agent: Agent) -> Iterator[PartLink]:
    """Yield what the built-in templates do with services: count the predictions that these record, look how one does,
    and move the alias of its model."""
    own, online = Part("agent", agent.name), [workflow for workflow in app.workflows if workflow.type == "online"]
    named = [workflow for workflow in online if workflow.name == agent.parameters.get("service")]
    services = named or (online if len(online) == 1 and "service" not in agent.parameters else [])
    if agent.template == "tracker" and not agent.parameters.get("nodes"):
        for workflow in online:
            if workflow.serving is not None and workflow.serving.record:
                yield PartLink(_get_part(workflow), own, "predictions", f"{workflow.name} records its predictions")
    elif agent.template == "executor":
        for workflow in services:
            for link in _list_workflow_links(workflow):
                if link.source.kind == "model":
                    yield PartLink(own, link.source, "promotes", f"{agent.name} moves the alias of {link.source.name}")
    elif agent.template == "planner" or named:
        for workflow in services:
            yield PartLink(_get_part(workflow), own, "watched by", f"{agent.name} looks how {workflow.name} does")


def _list_texts(value: Any) -> list[str]:
    return [text for text in (value if isinstance(value, list | tuple) else [value]) if isinstance(text, str)]


def _merge(links: Iterable[PartLink]) -> Iterator[PartLink]:
    """Yield one link for all from one part to another, with what is said of each."""
    groups: dict[tuple[Part, Part], list[PartLink]] = {}
    for link in links:
        groups.setdefault((link.source, link.target), []).append(link)
    for (source, target), own in groups.items():
        labels, tooltips = (
            dict.fromkeys(filter(None, (getattr(link, field) for link in own))) for field in ("label", "tooltip")
        )
        yield PartLink(source, target, ", ".join(labels), "\n".join(tooltips))
