"""Primitives on how many instances a service has, and on what decides that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from scanflow.agent.primitive_model import PrimitiveResult
from scanflow.app.scaling import Scaling
from scanflow.app.workflow import Workflow
from scanflow.backends.service_change import ServiceChange
from scanflow.backends.service_records import ServiceRecord
from scanflow.errors import UnsupportedError, UsageError
from scanflow_server.primitives.action_context import ActionContext
from scanflow_server.primitives.arguments import Count, OfWorkflow, read
from scanflow_server.primitives.nodes import INSTANCES, each, given_back, keep, with_services
from scanflow_server.primitives.rollout_wait import in_effect
from scanflow_server.primitives.served import mine, summary_of

THRESHOLDS = ("metric", "target", "min", "max", "up", "down")
"""What decides on the number of instances, of what ``sf.Scaling`` says."""

_OPEN = ("up", "down")
"""Those that may be left to the target."""

_Some = Annotated[int, Field(strict=True, ge=1)]


class UpdateReplica(OfWorkflow):
    """Arguments of ``update_workflow_replica``: a number of instances, or what decides it."""

    instances: Count | None = None
    metric: str | None = None
    target: float | None = None
    min: int | None = None
    max: int | None = None
    up: float | None = None
    """Null beside the others: as the target says. What is left out stays as it is."""

    down: float | None = None
    scaling: dict[str, Any] | None = None
    """The whole of what decides, in place of what did; null: nothing decides any more, and ``instances`` says how many
    there are."""

    nodes: dict[str, Count] | None = None
    """How many instances the application is to say for these nodes."""


class Several(OfWorkflow):
    """Arguments of ``duplicate_workflow_instance``."""

    count: _Some = 1


class Fewer(Several):
    """Arguments of ``delete_workflow_instance``."""

    instance: str | None = None


def update_workflow_replica(context: ActionContext, given: Mapping[str, Any]) -> PrimitiveResult:
    """Set how many instances a service has, or what decides it: a metric and its target."""
    asked = read(UpdateReplica, "update_workflow_replica", given)
    thresholds = {name: getattr(asked, name) for name in THRESHOLDS if getattr(asked, name) is not None}
    if thresholds:
        thresholds |= {name: None for name in _OPEN if name in asked.model_fields_set and getattr(asked, name) is None}
    anew = "scaling" in asked.model_fields_set
    if anew and (thresholds or (asked.scaling is not None and asked.instances is not None)):
        raise UsageError(
            "update_workflow_replica takes 'scaling' in place of all else that decides. Remove the others; only where "
            "it is null may 'instances' say how many there are."
        )
    if not anew and (asked.instances is None) == (not thresholds):
        raise UsageError(
            "update_workflow_replica takes either 'instances' or what decides it: 'metric', 'target', 'min', 'max'."
        )
    before = mine(context, asked.workflow)
    if asked.instances is not None and not anew:
        return _scaled(context, before, asked.instances, nodes=asked.nodes)
    return _rescaled(context, before, asked, thresholds, anew=anew)


def _rescaled(
    context: ActionContext, before: ServiceRecord, asked: UpdateReplica, thresholds: Mapping[str, Any], *, anew: bool
) -> PrimitiveResult:
    """Change what decides on the number of instances; ``anew``: replace all of it."""

    def decided(workflow: Workflow) -> Scaling | None:
        known = _scaling(workflow)
        if anew:
            return None if asked.scaling is None else Scaling(**asked.scaling)
        merged = {**({} if known is None else known.model_dump(exclude_unset=True)), **thresholds}
        return Scaling(**{name: value for name, value in merged.items() if value is not None})

    def said(workflow: Workflow) -> dict[str, int]:
        number = asked.instances if decided(workflow) is None else None
        return {**({} if number is None else each(workflow, number)), **(asked.nodes or {})}

    def changed(workflow: Workflow) -> Workflow:
        return INSTANCES.written(_deciding(workflow, decided(workflow)), said(workflow))

    _, workflow = context.workflow(asked.workflow)
    known, scaling = _scaling(workflow), decided(workflow)
    back: dict[str, Any] = {"scaling": None, "instances": before.shape.instances}
    if known is not None:
        whole = known.model_dump(mode="json")
        back = {"scaling": whole} if anew else {name: whole[name] for name in THRESHOLDS}
    more = given_back(
        context, asked.workflow, INSTANCES, said, lambda one: each(one, before.shape.instances) if known is None else {}
    )
    inverse = context.undo("update_workflow_replica", {"workflow": asked.workflow, **back, **more})
    change = ServiceChange(scaling=scaling or "off", instances=_fixed(before, asked) if scaling is None else None)
    record = context.deployer.change(asked.workflow, change)
    context.keep(asked.workflow, changed)
    return PrimitiveResult(
        {**summary_of(record), "scaling": None if scaling is None else scaling.model_dump(mode="json")}, inverse
    )


def _fixed(before: ServiceRecord, asked: UpdateReplica) -> int:
    """Return how many instances there are once nothing decides on their number."""
    return max(before.shape.instances, 1) if asked.instances is None else asked.instances


def duplicate_workflow_instance(context: ActionContext, given: Mapping[str, Any]) -> PrimitiveResult:
    """Add instances to a service, cut as those it has."""
    asked = read(Several, "duplicate_workflow_instance", given)
    before = mine(context, asked.workflow)
    return _scaled(context, before, _instances_before(context, before) + asked.count, lasting=False)


def delete_workflow_instance(context: ActionContext, given: Mapping[str, Any]) -> PrimitiveResult:
    """Take instances of a service away."""
    asked = read(Fewer, "delete_workflow_instance", given)
    if asked.instance is not None:
        raise UnsupportedError(
            "delete_workflow_instance: the embedded backend chooses which instance goes, and cannot honour 'instance': "
            f"{asked.instance!r}. Give it a 'count'."
        )
    before = mine(context, asked.workflow)
    left = _instances_before(context, before) - asked.count
    if left < 1:
        raise UsageError(
            f"The service {asked.workflow!r} has {_instances_before(context, before)} instances, and {asked.count} "
            "fewer would leave none. End it with delete_workflow, or give it a scaling with min=0."
        )
    return _scaled(context, before, left, lasting=False)


def _scaled(
    context: ActionContext,
    before: ServiceRecord,
    instances: int,
    *,
    lasting: bool = True,
    nodes: Mapping[str, int] | None = None,
) -> PrimitiveResult:
    """``lasting``: it is what the application wants from now on, and not one moment's need."""
    was = before.shape.instances

    def said(workflow: Workflow) -> dict[str, int]:
        return {**each(workflow, instances), **(nodes or {})} if lasting else {}

    more = given_back(context, before.name, INSTANCES, said, lambda workflow: each(workflow, was))
    arguments = {"workflow": before.name, "instances": was, **more}
    inverse = context.undo("update_workflow_replica", arguments)
    if before.shape.instances == instances:
        record = in_effect(context.deployer, before, lambda one: one.shape.instances == instances)
    else:
        record = context.deployer.change(before.name, ServiceChange(instances=instances))
    if lasting:
        keep(context, before.name, INSTANCES, said)
    return PrimitiveResult(summary_of(record), inverse)


def _instances_before(context: ActionContext, before: ServiceRecord) -> int:
    """Return how many instances there were before the first try."""
    noted = None if context.noted is None else context.noted.arguments.get("instances")
    return noted if isinstance(noted, int) else before.shape.instances


def _scaling(workflow: Workflow) -> Scaling | None:
    """Return what decides on the number of instances: all nodes are in one, so it is the first that says."""
    return next((one.scaling for one in workflow.services if one.scaling is not None), None)


def _deciding(workflow: Workflow, scaling: Scaling | None) -> Workflow:
    """Return the workflow with that scaling, in place of the one that decided; None: with none at all."""
    saying = [one for one in workflow.services if one.scaling is not None]
    if scaling is None:
        return with_services(workflow, {one.name: one.replace(scaling=None) for one in saying})
    node = saying[0] if saying else workflow.services[0]
    return with_services(workflow, {node.name: node.replace(scaling=scaling)})
