"""Primitives on online workflows: served, changed while they serve, and ended.

What is wanted of the workflow is kept first in the service and then in the stored application, so that deploying it
again brings back what agents made of it. An inverse gives both back: ``nodes`` is what the application said of nodes
where the service's value would not have it say that again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from scanflow.agent.primitive_model import BuiltIn, PrimitiveContext, PrimitiveResult
from scanflow.agent.primitives.arguments import Copies, Cores, Count, ModelAddress, Node, SomeMode, given_only
from scanflow.agent.primitives.serving import (
    INSTANCES,
    MODEL,
    canary_of,
    cut_of,
    each,
    found,
    given_back,
    in_effect,
    keep,
    mine,
    served_models,
    summary_of,
    wanted,
    with_services,
)
from scanflow.app.scaling import Scaling, ScalingMetric
from scanflow.app.workflow import Workflow
from scanflow.backends.service_change import Deployment, ServiceChange, Sizing
from scanflow.errors import InvalidError, NotFoundError, UnsupportedError, UsageError
from scanflow.placement.threads import pool_size

if TYPE_CHECKING:
    from scanflow.backends.service_records import RevisionRecord, ServiceRecord, Shape

THRESHOLDS = ("metric", "target", "min", "max", "up", "down")
"""What decides on the number of instances, of what ``sf.Scaling`` says."""


class _OfCut(BuiltIn):
    """How many instances a service has, and how large they are; what is left out stays as it is."""

    kind = "online"

    instances: Copies = None
    cores: Cores = None
    affinity: SomeMode = None

    @property
    def cut(self) -> dict[str, Any]:
        return given_only({name: getattr(self, name) for name in ("instances", "cores", "affinity")})

    @property
    def fields(self) -> tuple[str, ...]:
        names = {"instances": "replicas", "cores": "resource", "affinity": "affinity", "threads": "resource"}
        return tuple(dict.fromkeys(names[name] for name in self.cut))


class DeployWorkflow(_OfCut):
    """Serve an online workflow. What is not said is as the workflow says. Undone by deleting it."""

    name = "deploy_workflow"
    writes = ("running", "replicas", "resource", "affinity")

    port: Annotated[int | None, Field(description="The port of HTTP. Unset: the next that is free.")] = None
    models: Mapping[str, str] | None = Field(default=None, init=False)
    """The versions to serve, by node, where they are not those that the application names: what was deleted."""

    @property
    def fields(self) -> tuple[str, ...]:
        return ("running", *super().fields)

    def carry_out(self, context: PrimitiveContext) -> PrimitiveResult:
        """Serve it; where it is served already, change it to what the application says now."""
        kept, workflow = context.workflow(self.workflow)
        app = kept.application
        if self.models:
            app = app.with_workflow(MODEL.written(workflow, self.models))
        before = found(context, self.workflow)
        if before is None:
            inverse = context.undo("delete_workflow", {"workflow": self.workflow})
        else:
            inverse = context.undo("apply_workflow_instance", cut_of(before))
        sizing = Sizing(**self.cut)
        record = context.deployer.deploy(
            Deployment(app, self.workflow, sizing=sizing, port=self.port, source=kept.source)
        )
        return PrimitiveResult(summary_of(record), inverse)


class DeleteWorkflow(BuiltIn):
    """End a service. Undone by deploying it again."""

    name = "delete_workflow"
    kind = "online"
    writes = ("running",)

    def carry_out(self, context: PrimitiveContext) -> PrimitiveResult:
        """Drain in-flight requests, then delete the service."""
        before, result = found(context, self.workflow), {"service": self.workflow, "deleted": True}
        if before is None:
            if not context.tried:
                raise NotFoundError(f"The service {self.workflow!r} is not there: it is deleted already, or never was.")
            return PrimitiveResult(result, context.noted)
        workflow, served = wanted(context, self.workflow), served_models(before)
        named = {} if workflow is None else {one.name: one.model for one in workflow.services}
        models = {node: model for node, model in served.items() if named.get(node, model) != model}
        back = {**cut_of(before), "port": _own_port(before), "models": models or None}
        inverse = context.undo("deploy_workflow", given_only(back))
        try:
            context.deployer.delete(self.workflow)
        except NotFoundError:  # somebody else was quicker, or the attempt that was cut off has come to its end
            pass
        return PrimitiveResult(result, inverse)


class UpdateWorkflowReplica(BuiltIn):
    """Set how many instances a service has (``instances=``), or the threshold that decides (``metric=, target=``).

    Thresholds that are not said stay as they are. ``scaling=`` replaces all of them; with ``scaling=None`` there are
    always as many as ``instances=`` says, or as there are then.
    """

    name = "update_workflow_replica"
    kind = "online"
    writes = ("replicas",)
    nulls = frozenset({"scaling"})

    instances: Copies = None
    metric: Annotated[ScalingMetric | None, Field(description="What decides, in place of a number.")] = None
    threshold: float | None = Field(
        default=None, alias="target", description="The value of the metric that each instance should see."
    )
    min: Annotated[int | None, Field(description="Fewest instances.")] = None
    max: Annotated[int | None, Field(description="Most instances.")] = None
    up: Annotated[float | None, Field(description="Above this, instances are added.")] = None
    down: Annotated[float | None, Field(description="Below this, instances are taken away.")] = None
    scaling: Annotated[
        Mapping[str, Any] | None,
        Field(description="All of sf.Scaling, in place of what decides; None: nothing decides any more."),
    ] = None
    nodes: Mapping[str, Count] | None = Field(default=None, init=False)
    """How many instances the application is to say for these nodes."""

    @property
    def thresholds(self) -> dict[str, Any]:
        """What is given of them. In an inverse, null beside others means ``up`` and ``down`` as the target says."""
        values = {"target" if name == "threshold" else name: getattr(self, name) for name in _THRESHOLDS}
        given = given_only(values)
        return {
            **given,
            **{name: None for name in ("up", "down") if given and self.is_given(name) and name not in given},
        }

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.is_given("scaling"):
            if self.thresholds or (self.scaling is not None and self.instances is not None):
                raise InvalidError(
                    "update_workflow_replica takes scaling= in place of all else that decides. Remove the others; only "
                    "with scaling=None may instances= say how many there are."
                )
            if self.scaling is not None:
                Scaling(**self.scaling)
        elif self.metric is not None and self.instances is None:
            Scaling(**given_only(self.thresholds))
        elif (self.instances is None) == (not self.thresholds):
            raise InvalidError(
                "update_workflow_replica takes either a number, instances=4, or what decides it, metric='rps', "
                "target=100."
            )
        return self

    def carry_out(self, context: PrimitiveContext) -> PrimitiveResult:
        before = mine(context, self.workflow)
        if self.instances is not None and not self.is_given("scaling"):
            return _scaled(context, before, self.instances, nodes=self.nodes)
        return self._rescaled(context, before)

    def _decided(self, workflow: Workflow) -> Scaling | None:
        if self.is_given("scaling"):
            return None if self.scaling is None else Scaling(**self.scaling)
        known = _scaling(workflow)
        merged = {**({} if known is None else known.model_dump(exclude_unset=True)), **self.thresholds}
        return Scaling(**given_only(merged))

    def _rescaled(self, context: PrimitiveContext, before: ServiceRecord) -> PrimitiveResult:

        def said(workflow: Workflow) -> dict[str, int]:
            number = self.instances if self._decided(workflow) is None else None
            return {**({} if number is None else each(workflow, number)), **(self.nodes or {})}

        def changed(workflow: Workflow) -> Workflow:
            return INSTANCES.written(_deciding(workflow, self._decided(workflow)), said(workflow))

        _, workflow = context.workflow(self.workflow)
        known, scaling, was = _scaling(workflow), self._decided(workflow), before.shape.instances
        back: dict[str, Any] = {"scaling": None, "instances": was}
        if known is not None:
            whole = known.model_dump(mode="json")
            back = {"scaling": whole} if self.is_given("scaling") else {name: whole[name] for name in THRESHOLDS}
        more = given_back(context, self.workflow, INSTANCES, said, lambda one: each(one, was) if known is None else {})
        inverse = context.undo(self.name, {"workflow": self.workflow, **back, **more})
        fixed = None
        if scaling is None:  # nothing decides on the number any more
            fixed = (was or 1) if self.instances is None else self.instances
        record = context.deployer.change(self.workflow, ServiceChange(scaling=scaling or "off", instances=fixed))
        context.keep(self.workflow, changed)
        told = None if scaling is None else scaling.model_dump(mode="json")
        return PrimitiveResult({**summary_of(record), "scaling": told}, inverse)


_THRESHOLDS = ("metric", "threshold", "min", "max", "up", "down")


class UpdateWorkflowTraffic(BuiltIn):
    """Give a share of the requests, or with ``shadow`` a copy of each, to another version of a model."""

    name = "update_workflow_traffic"
    kind = "online"
    writes = ("traffic",)

    model: ModelAddress = Field(kw_only=False)
    weight: Annotated[float, Field(ge=0, le=1, description="Share of the requests, from 0 to 1.")] = 0.0
    shadow: Annotated[bool, Field(description="Copy the requests, and only count the answers.")] = False
    node: Node = None

    def carry_out(self, context: PrimitiveContext) -> PrimitiveResult:
        """Route them so. A share of 0 takes it back."""
        before = mine(context, self.workflow)
        trial = canary_of(before)
        changed = None if trial is None else _changed_model(before, trial)
        model, node = self.model, self.node
        if self.weight <= 0 and not self.shadow:
            if context.reverting and changed is not None and _is_alias(model) and _same_name(model, changed[1]):
                node, model = changed  # what it was the canary as; the alias may be another version by now
            on_trial = () if trial is None else trial.models.values()
            if model not in on_trial and (trial is None or not _is_alias(model)):
                return PrimitiveResult({**summary_of(before), "model": self.model, "weight": 0.0}, context.noted)
        back: dict[str, Any] = {"workflow": self.workflow, "model": self.model, "weight": 0.0, "node": self.node}
        if trial is not None and changed is not None:
            shared = 0.0 if trial.shadow else trial.weight
            back |= {"model": changed[1], "weight": shared, "shadow": trial.shadow}
            if self.node is not None:
                back["node"] = changed[0]
        inverse = context.undo(self.name, given_only(back))
        change = ServiceChange(model=model, node=node, weight=self.weight, shadow=self.shadow)
        record = context.deployer.change(self.workflow, change)
        told = {"model": self.model, "weight": self.weight, "shadow": self.shadow}
        return PrimitiveResult({**summary_of(record), **told}, inverse)


class ApplyWorkflowInstance(_OfCut):
    """Resize a service (instances, cores) without downtime. What is not given stays as it is."""

    name = "apply_workflow_instance"
    layer = "infrastructure"
    writes = ("replicas", "resource", "affinity")

    threads: Annotated[int | None, Field(ge=1, description="Threads in each of an instance's pools.")] = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.cut:
            raise InvalidError("apply_workflow_instance changes nothing. Say instances=, cores= or affinity=.")
        return self

    @property
    def cut(self) -> dict[str, Any]:
        return {**super().cut, **given_only({"threads": self.threads})}

    def carry_out(self, context: PrimitiveContext) -> PrimitiveResult:
        before = mine(context, self.workflow)
        cut = {**cut_of(before), **given_only({"threads": _pool_threads(before.shape)})}
        back = {name: value for name, value in cut.items() if name in self.cut or name == "workflow"}
        inverse = context.noted
        if back.keys() >= self.cut.keys():  # what was not limited cannot be given back, nor a part of it alone
            inverse = context.undo(self.name, back)
        return PrimitiveResult(summary_of(context.deployer.change(self.workflow, ServiceChange(**self.cut))), inverse)


class DeleteWorkflowInstance(BuiltIn):
    """Take instances of a service away: one, ``count``, or a named one."""

    name = "delete_workflow_instance"
    layer = "infrastructure"
    kind = "online"
    writes = ("replicas",)

    count: Annotated[int, Field(ge=1, description="How many to take away.")] = 1
    instance: Annotated[str | None, Field(description="Which one. Unset: the backend chooses.")] = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.instance is not None and self.count != 1:
            raise InvalidError("delete_workflow_instance takes a name or a count, and not both. Remove one.")
        return self

    def carry_out(self, context: PrimitiveContext) -> PrimitiveResult:
        if self.instance is not None:
            raise UnsupportedError(
                "delete_workflow_instance: which instance goes is the backend's choice, and cannot honour 'instance': "
                f"{self.instance!r}. Give it a 'count'."
            )
        before = mine(context, self.workflow)
        there = _instances_before(context, before)
        if there - self.count < 1:
            raise UsageError(
                f"The service {self.workflow!r} has {there} instances, and {self.count} fewer would leave none. End it "
                "with delete_workflow, or give it a scaling with min=0."
            )
        return _scaled(context, before, there - self.count, lasting=False)


class DuplicateWorkflowInstance(BuiltIn):
    """Add instances to a service, cut as those it has."""

    name = "duplicate_workflow_instance"
    layer = "infrastructure"
    kind = "online"
    writes = ("replicas",)

    count: Annotated[int, Field(ge=1, description="How many to add.")] = 1

    def carry_out(self, context: PrimitiveContext) -> PrimitiveResult:
        before = mine(context, self.workflow)
        return _scaled(context, before, _instances_before(context, before) + self.count, lasting=False)


def _changed_model(record: ServiceRecord, trial: RevisionRecord) -> tuple[str, str] | None:
    current = served_models(record)
    return next(((node, model) for node, model in trial.models.items() if current.get(node) != model), None)


def _pool_threads(shape: Shape) -> int | None:
    """Return the threads in each of an instance's pools; None: nobody said, nor how many cores it has."""
    if shape.pool_threads is not None or shape.cores is None:
        return shape.pool_threads
    return pool_size(shape.cores)


def _is_alias(model: str) -> bool:
    return "@" in model


def _same_name(one: str, other: str) -> bool:
    """Say whether two addresses are of the same registered model."""
    return one.partition("@")[0].rstrip("/") == other.rpartition("/")[0]


def _scaled(
    context: PrimitiveContext,
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
    inverse = context.undo("update_workflow_replica", {"workflow": before.name, "instances": was, **more})
    if before.shape.instances == instances:
        record = in_effect(context.deployer, before, lambda one: one.shape.instances == instances)
    else:
        record = context.deployer.change(before.name, ServiceChange(instances=instances))
    if lasting:
        keep(context, before.name, INSTANCES, said)
    return PrimitiveResult(summary_of(record), inverse)


def _instances_before(context: PrimitiveContext, before: ServiceRecord) -> int:
    """Return how many instances there were before the first attempt."""
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


def _own_port(record: ServiceRecord) -> int | None:
    """Return the port that a service was given; None behind a Gateway, whose one port leads to services by paths."""
    url = urlsplit(record.url)
    return None if url.path.strip("/") else url.port
