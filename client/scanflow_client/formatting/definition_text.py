"""Applications, workflows and other definitions as lines and tables. Values of parameters are not shown."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from scanflow.agent.trigger_text import format_trigger
from scanflow.app.application import Application
from scanflow.app.plan import UNBOUNDED, plan_graph, plan_workflow
from scanflow.app.quantities import format_count
from scanflow.text.masking import mask_secrets
from scanflow_client.formatting.run_text import format_planned_steps
from scanflow_client.formatting.text import shorten, to_document, to_json
from scanflow_client.formatting.text_table import Screen, Table

if TYPE_CHECKING:
    from scanflow.agent.strategy import Strategy
    from scanflow.app.agent import Agent
    from scanflow.app.model import Model
    from scanflow.app.workflow import Workflow

_VALUES = frozenset({"env", "parameters"})
"""Fields of which only the names are shown: their values may be anything."""


def format_application(app: Application) -> Screen:
    """Return the workflows and agents of an application, and what they are made of."""
    rows: list[tuple[str, str, str]]
    rows = [(flow.type, flow.name, ", ".join(node.name for node in flow.nodes)) for flow in app.workflows]
    rows += [("agent", agent.name, ", ".join(filter(None, [agent.template, *agent.modules]))) for agent in app.agents]
    after = [] if app.workflows else ["It has no workflow yet: workflows=[sf.Workflow(...)]"]
    return [f"Application {app.name} of team {app.team}", Table(("kind", "name", "made of"), rows), *after]


def format_workflow(workflow: Workflow) -> Screen:
    """Return the nodes of a workflow in the order in which they run, without a look at a machine."""
    head = f"Workflow {workflow.name}, {workflow.type}: {format_count(len(workflow.nodes), 'node')}"
    if workflow.type == "mpi":
        _, *rest = format_definition(workflow.nodes[0])
        return [head, *rest]
    if workflow.type == "online":
        plan = plan_graph(workflow, (), memory_bytes=None, machine_cores=UNBOUNDED, machine_memory_bytes=UNBOUNDED)
    else:
        plan = plan_workflow(workflow, machine_cores=UNBOUNDED, machine_memory_bytes=UNBOUNDED)
    return [head, format_planned_steps(plan, online=workflow.type == "online")]


def format_agent(agent: Agent) -> Screen:
    """Return what an agent is made of, and when its sensors fire."""
    made_of = ", ".join(filter(None, [agent.template, *agent.modules]))
    head = f"Agent {agent.name}" + (f": {made_of}" if made_of else "")
    rows = [
        (sensor.name, format_trigger(sensor.trigger.model_dump(mode="json")), ", ".join(sensor.nodes) or "all")
        for sensor in agent.sensors
    ]
    return [head, *([Table(("sensor", "fires", "reads runs of"), rows)] if rows else [])]


def format_strategy(strategy: Strategy) -> Screen:
    """Return a strategy as a few lines: its limits, and what it does when and if."""
    from scanflow.agent.formatting import format_strategy_action
    from scanflow.agent.rules import explain

    then = [format_strategy_action(action) for action in strategy.actions]
    return [
        f"Strategy {strategy.name} ({strategy.autonomy})",
        f"  when  {strategy.sensor}",
        f"  if    {'always' if strategy.rule is None else explain(strategy.rule, {})}",
        *(f"  {'then' if number == 0 else '    '}  {call}" for number, call in enumerate(then)),
    ]


def format_definition(definition: Model) -> Screen:
    """Return the kind and name of a definition, and the fields that it sets."""
    document = to_document(definition)
    fields = document if isinstance(document, Mapping) else {}
    rows = [
        (name, _format_field(name, value))
        for name, value in mask_secrets(dict(fields)).items()
        if name in definition.model_fields_set - {"kind", "name"}
    ]
    head = f"{type(definition).__name__} {fields.get('name', '')}".rstrip()
    return [head, Table(("field", "value"), rows)] if rows else [head]


def _format_field(name: str, value: Any) -> str:
    if name in _VALUES and isinstance(value, Mapping):
        return ", ".join(value) or "none"
    return shorten(value if isinstance(value, str) else to_json(value))
