"""Primitives on how many instances a service has, and on what decides that."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

from pydantic import Field

from scanflow.app.scaling import Scaling
from scanflow.app.workflow import Workflow
from scanflow.backends.service_records import ServiceRecord
from scanflow.errors import UnsupportedError, UsageError
from scanflow_server.primitives.arguments import Count, OfWorkflow, read
from scanflow_server.primitives.awaiting import in_effect
from scanflow_server.primitives.means import Done, Means
from scanflow_server.primitives.nodes import INSTANCES, MODEL, each, given_back, keep, with_services
from scanflow_server.primitives.served import cut_of, mine, served_models, told

__all__ = ["delete_workflow_instance", "duplicate_workflow_instance", "update_workflow_replica"]

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


def update_workflow_replica(means: Means, given: Mapping[str, Any]) -> Done:
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
    before = mine(means, asked.workflow)
    if asked.instances is not None and not anew:
        return _scaled(means, before, asked.instances, nodes=asked.nodes)
    return _rescaled(means, before, asked, thresholds, anew=anew)


def _rescaled(
    means: Means, before: ServiceRecord, asked: UpdateReplica, thresholds: Mapping[str, Any], *, anew: bool
) -> Done:
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

    kept, workflow = means.workflow(asked.workflow)
    known, scaling = _scaling(workflow), decided(workflow)
    back: dict[str, Any] = {"scaling": None, "instances": before.shape.instances}
    if known is not None:
        whole = known.model_dump(mode="json")
        back = {"scaling": whole} if anew else {name: whole[name] for name in THRESHOLDS}
    more = given_back(
        means, asked.workflow, INSTANCES, said, lambda one: each(one, before.shape.instances) if known is None else {}
    )
    inverse = means.undo("update_workflow_replica", {"workflow": asked.workflow, **back, **more})
    cut = {name: value for name, value in cut_of(before).items() if name in {"cores", "affinity"}}
    if scaling is None:
        instances = max(before.shape.instances, 1) if asked.instances is None else asked.instances
    else:  # it decides from here on
        instances = min(max(before.shape.instances, scaling.min), scaling.max)
    served = MODEL.written(changed(workflow), served_models(before))  # whoever promoted it: that is not asked for here
    app = kept.application.with_workflow(served)
    record = means.deployer.deploy(app, asked.workflow, source=kept.source, instances=instances, **cut)
    means.keep(asked.workflow, changed)
    return Done({**told(record), "scaling": None if scaling is None else scaling.model_dump(mode="json")}, inverse)


def duplicate_workflow_instance(means: Means, given: Mapping[str, Any]) -> Done:
    """Add instances to a service, cut as those it has."""
    asked = read(Several, "duplicate_workflow_instance", given)
    before = mine(means, asked.workflow)
    return _scaled(means, before, _instances_before(means, before) + asked.count, lasting=False)


def delete_workflow_instance(means: Means, given: Mapping[str, Any]) -> Done:
    """Take instances of a service away."""
    asked = read(Fewer, "delete_workflow_instance", given)
    if asked.instance is not None:
        raise UnsupportedError(
            "delete_workflow_instance: the embedded backend chooses which instance goes, and cannot honour 'instance': "
            f"{asked.instance!r}. Give it a 'count'."
        )
    before = mine(means, asked.workflow)
    left = _instances_before(means, before) - asked.count
    if left < 1:
        raise UsageError(
            f"The service {asked.workflow!r} has {_instances_before(means, before)} instances, and {asked.count} fewer "
            "would leave none. End it with delete_workflow, or give it a scaling with min=0."
        )
    return _scaled(means, before, left, lasting=False)


def _scaled(
    means: Means, before: ServiceRecord, instances: int, *, lasting: bool = True, nodes: Mapping[str, int] | None = None
) -> Done:
    """``lasting``: it is what the application wants from now on, and not one moment's need."""
    was = before.shape.instances

    def said(workflow: Workflow) -> dict[str, int]:
        return {**each(workflow, instances), **(nodes or {})} if lasting else {}

    more = given_back(means, before.name, INSTANCES, said, lambda workflow: each(workflow, was))
    arguments = {"workflow": before.name, "instances": was, **more}
    inverse = means.undo("update_workflow_replica", arguments)
    if before.shape.instances == instances:
        record = in_effect(means.deployer, before, lambda one: one.shape.instances == instances)
    else:
        record = means.deployer.scale(before.name, instances=instances)
    if lasting:
        keep(means, before.name, INSTANCES, said)
    return Done(told(record), inverse)


def _instances_before(means: Means, before: ServiceRecord) -> int:
    """Return how many instances there were before the first try."""
    noted = None if means.noted is None else means.noted.arguments.get("instances")
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
