"""Primitives on online workflows: deploy them, change them without downtime, and delete them.

The requested shape is written to the service first, then to the stored application, so that the next deployment has it
too. An inverse restores both: its ``nodes`` are the application's values of nodes that the service's value alone would
not restore.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Self
from urllib.parse import urlsplit

from pydantic import Field, model_validator

from scanflow.agent.primitive_model import BuiltInPrimitive, PrimitiveContext, PrimitiveResult
from scanflow.agent.primitives.arguments import Copies, Cores, Count, Gpus, ModelAddress, Node, SomeMode, drop_none
from scanflow.agent.primitives.service_values import (
    INSTANCES,
    MODEL,
    assign_to_nodes,
    build_restore_arguments,
    find_canary,
    find_own_service,
    find_workflow,
    get_own_service,
    get_served_models,
    get_sizing,
    replace_services,
    store_values,
    summarize_service,
    wait_until_in_effect,
)
from scanflow.app.scaling import Scaling, ScalingMetric
from scanflow.app.workflow import Workflow
from scanflow.backends.service_change import Deployment, ServiceChange, Sizing
from scanflow.errors import InvalidError, NotFoundError, UnsupportedError, UsageError
from scanflow.placement.threads import compute_pool_size

if TYPE_CHECKING:
    from scanflow.backends.service_records import RevisionRecord, ServiceRecord, Shape

THRESHOLDS = ("metric", "target", "min", "max", "up", "down")
"""The fields of ``sf.Scaling`` that decide on the number of instances."""


class _SizingPrimitive(BuiltInPrimitive):
    """The number and size of a service's instances; missing arguments leave them unchanged."""

    kind = "online"

    instances: Copies = None
    cores: Cores = None
    gpu: Gpus = None
    affinity: SomeMode = None

    @property
    def sizing(self) -> dict[str, Any]:
        return drop_none({name: getattr(self, name) for name in ("instances", "cores", "gpu", "affinity")})

    @property
    def fields(self) -> tuple[str, ...]:
        names = {"instances": "replicas", "affinity": "affinity"}
        return tuple(dict.fromkeys(names.get(name, "resource") for name in self.sizing))


class DeployWorkflow(_SizingPrimitive):
    """Deploy an online workflow as a service. Omitted arguments come from the workflow. Undone by deleting it."""

    name = "deploy_workflow"
    writes = ("running", "replicas", "resource", "affinity")

    port: Annotated[int | None, Field(description="The HTTP port. Unset: the next free port.")] = None
    models: Mapping[str, str] | None = Field(default=None, init=False)
    """The versions to serve, by node, where the deleted service had other versions than the application."""

    @property
    def fields(self) -> tuple[str, ...]:
        return ("running", *super().fields)

    def carry_out(self, context: PrimitiveContext) -> PrimitiveResult:
        """Deploy the service; change a deployed one to the current application."""
        stored, workflow = context.workflow(self.workflow)
        app = stored.application
        if self.models:
            app = app.with_workflow(MODEL.set_values(workflow, self.models))
        before = find_own_service(context, self.workflow)
        if before is None:
            inverse = context.undo("delete_workflow", {"workflow": self.workflow})
        else:
            inverse = context.undo("apply_workflow_instance", get_sizing(before))
        sizing = Sizing(**self.sizing)
        record = context.deployer.deploy(
            Deployment(app, self.workflow, sizing=sizing, port=self.port, source=stored.source)
        )
        return PrimitiveResult(summarize_service(record), inverse)


class DeleteWorkflow(BuiltInPrimitive):
    """Delete a service. Undone by deploying it again."""

    name = "delete_workflow"
    kind = "online"
    writes = ("running",)

    def carry_out(self, context: PrimitiveContext) -> PrimitiveResult:
        """Drain in-flight requests, then delete the service."""
        before, result = find_own_service(context, self.workflow), {"service": self.workflow, "deleted": True}
        if before is None:
            if not context.tried:
                raise NotFoundError(f"There is no service {self.workflow!r}: it was deleted, or never deployed.")
            return PrimitiveResult(result, context.noted)
        workflow, served = find_workflow(context, self.workflow), get_served_models(before)
        declared_models = {} if workflow is None else {node.name: node.model for node in workflow.services}
        models = {node: model for node, model in served.items() if declared_models.get(node, model) != model}
        back = {**get_sizing(before), "port": _find_own_port(before), "models": models or None}
        inverse = context.undo("deploy_workflow", drop_none(back))
        try:
            context.deployer.delete(self.workflow)
        except NotFoundError:  # another client deleted it meanwhile, or the interrupted attempt has succeeded
            pass
        return PrimitiveResult(result, inverse)


class UpdateWorkflowReplica(BuiltInPrimitive):
    """Set how many instances a service has (``instances=``), or the threshold that decides (``metric=, target=``).

    Thresholds that are not said stay as they are. ``scaling=`` replaces all of them; with ``scaling=None`` there are
    always as many as ``instances=`` says, or as there are then.
    """

    name = "update_workflow_replica"
    kind = "online"
    writes = ("replicas",)
    nulls = frozenset({"scaling"})

    instances: Copies = None
    metric: Annotated[ScalingMetric | None, Field(description="The metric that decides the number of instances.")] = (
        None
    )
    threshold: float | None = Field(
        default=None, alias="target", description="The target value of the metric per instance."
    )
    min: Annotated[int | None, Field(description="Fewest instances.")] = None
    max: Annotated[int | None, Field(description="Most instances.")] = None
    up: Annotated[float | None, Field(description="Above this, instances are added.")] = None
    down: Annotated[float | None, Field(description="Below this, instances are removed.")] = None
    scaling: Annotated[
        Mapping[str, Any] | None,
        Field(description="A whole sf.Scaling, in place of the other arguments; None: no scaling."),
    ] = None
    nodes: Mapping[str, Count] | None = Field(default=None, init=False)
    """The number of instances to write to these nodes of the application."""

    @property
    def thresholds(self) -> dict[str, Any]:
        """The passed thresholds. In an inverse, null beside others: ``up`` and ``down`` follow from the target."""
        values = {"target" if name == "threshold" else name: getattr(self, name) for name in _THRESHOLDS}
        thresholds = drop_none(values)
        return {
            **thresholds,
            **{name: None for name in ("up", "down") if thresholds and self.is_given(name) and name not in thresholds},
        }

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.is_given("scaling"):
            if self.thresholds or (self.scaling is not None and self.instances is not None):
                raise InvalidError(
                    "update_workflow_replica takes scaling= in place of all other arguments. Remove those; only "
                    "scaling=None may be combined with instances=."
                )
            if self.scaling is not None:
                Scaling(**self.scaling)
        elif self.metric is not None and self.instances is None:
            Scaling(**drop_none(self.thresholds))
        elif (self.instances is None) == (not self.thresholds):
            raise InvalidError(
                "update_workflow_replica takes either a number, instances=4, or a metric that decides it, "
                "metric='rps', "
                "target=100."
            )
        return self

    def carry_out(self, context: PrimitiveContext) -> PrimitiveResult:
        before = get_own_service(context, self.workflow)
        if self.instances is not None and not self.is_given("scaling"):
            return _scale(context, before, self.instances, nodes=self.nodes)
        return self._rescale(context, before)

    def _merge_scaling(self, workflow: Workflow) -> Scaling | None:
        if self.is_given("scaling"):
            return None if self.scaling is None else Scaling(**self.scaling)
        current = _find_scaling(workflow)
        merged = {**({} if current is None else current.model_dump(exclude_unset=True)), **self.thresholds}
        return Scaling(**drop_none(merged))

    def _rescale(self, context: PrimitiveContext, before: ServiceRecord) -> PrimitiveResult:

        def compute_values(workflow: Workflow) -> dict[str, int]:
            number = self.instances if self._merge_scaling(workflow) is None else None
            return {**({} if number is None else assign_to_nodes(workflow, number)), **(self.nodes or {})}

        def apply_scaling(workflow: Workflow) -> Workflow:
            return INSTANCES.set_values(
                _replace_scaling(workflow, self._merge_scaling(workflow)), compute_values(workflow)
            )

        _, workflow = context.workflow(self.workflow)
        current, scaling, was = _find_scaling(workflow), self._merge_scaling(workflow), before.shape.instances
        back: dict[str, Any] = {"scaling": None, "instances": was}
        if current is not None:
            whole = current.model_dump(mode="json")
            back = {"scaling": whole} if self.is_given("scaling") else {name: whole[name] for name in THRESHOLDS}
        more = build_restore_arguments(
            context,
            self.workflow,
            INSTANCES,
            compute_values,
            lambda changed_workflow: assign_to_nodes(changed_workflow, was) if current is None else {},
        )
        inverse = context.undo(self.name, {"workflow": self.workflow, **back, **more})
        fixed = None
        if scaling is None:  # the number is fixed from now on
            fixed = (was or 1) if self.instances is None else self.instances
        record = context.deployer.change(self.workflow, ServiceChange(scaling=scaling or "off", instances=fixed))
        context.update_workflow(self.workflow, apply_scaling)
        scaling_document = None if scaling is None else scaling.model_dump(mode="json")
        return PrimitiveResult({**summarize_service(record), "scaling": scaling_document}, inverse)


_THRESHOLDS = ("metric", "threshold", "min", "max", "up", "down")


class UpdateWorkflowTraffic(BuiltInPrimitive):
    """Route a share of the requests, or with ``shadow`` a copy of each, to another version of a model."""

    name = "update_workflow_traffic"
    kind = "online"
    writes = ("traffic",)

    model: ModelAddress = Field(kw_only=False)
    weight: Annotated[float, Field(ge=0, le=1, description="Share of the requests, from 0 to 1.")] = 0.0
    shadow: Annotated[bool, Field(description="Copy the requests, and only count the responses.")] = False
    node: Node = None

    def carry_out(self, context: PrimitiveContext) -> PrimitiveResult:
        """Route the share of requests; a share of 0 removes the canary."""
        before = get_own_service(context, self.workflow)
        canary = find_canary(before)
        changed = None if canary is None else _find_changed_model(before, canary)
        model, node = self.model, self.node
        if self.weight <= 0 and not self.shadow:
            if context.reverting and changed is not None and _is_alias(model) and _is_same_model(model, changed[1]):
                node, model = changed  # the canary's version; the alias may refer to another one by now
            canary_models = () if canary is None else canary.models.values()
            if model not in canary_models and (canary is None or not _is_alias(model)):
                return PrimitiveResult({**summarize_service(before), "model": self.model, "weight": 0.0}, context.noted)
        back: dict[str, Any] = {"workflow": self.workflow, "model": self.model, "weight": 0.0, "node": self.node}
        if canary is not None and changed is not None:
            shared = 0.0 if canary.shadow else canary.weight
            back |= {"model": changed[1], "weight": shared, "shadow": canary.shadow}
            if self.node is not None:
                back["node"] = changed[0]
        inverse = context.undo(self.name, drop_none(back))
        change = ServiceChange(model=model, node=node, weight=self.weight, shadow=self.shadow)
        record = context.deployer.change(self.workflow, change)
        traffic = {"model": self.model, "weight": self.weight, "shadow": self.shadow}
        return PrimitiveResult({**summarize_service(record), **traffic}, inverse)


class ApplyWorkflowInstance(_SizingPrimitive):
    """Resize a service (instances, cores, GPUs) without downtime. Omitted arguments change nothing."""

    name = "apply_workflow_instance"
    layer = "infrastructure"
    writes = ("replicas", "resource", "affinity")

    threads: Annotated[int | None, Field(ge=1, description="Threads in each of an instance's pools.")] = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.sizing:
            raise InvalidError("apply_workflow_instance changes nothing. Set instances=, cores=, gpu= or affinity=.")
        return self

    @property
    def sizing(self) -> dict[str, Any]:
        return {**super().sizing, **drop_none({"threads": self.threads})}

    def carry_out(self, context: PrimitiveContext) -> PrimitiveResult:
        before = get_own_service(context, self.workflow)
        more = {"gpu": before.shape.gpu, "threads": _compute_pool_threads(before.shape)}
        sizing = {**get_sizing(before), **drop_none(more)}
        back = {name: value for name, value in sizing.items() if name in self.sizing or name == "workflow"}
        inverse = context.noted
        if back.keys() >= self.sizing.keys():  # unlimited values cannot be restored, nor only a part of the others
            inverse = context.undo(self.name, back)
        return PrimitiveResult(
            summarize_service(context.deployer.change(self.workflow, ServiceChange(**self.sizing))), inverse
        )


class DeleteWorkflowInstance(BuiltInPrimitive):
    """Remove instances of a service: one, ``count``, or a named one."""

    name = "delete_workflow_instance"
    layer = "infrastructure"
    kind = "online"
    writes = ("replicas",)

    count: Annotated[int, Field(ge=1, description="The number of instances to remove.")] = 1
    instance: Annotated[str | None, Field(description="The instance to remove. Unset: the backend chooses.")] = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.instance is not None and self.count != 1:
            raise InvalidError("delete_workflow_instance takes either a name or a count. Remove one.")
        return self

    def carry_out(self, context: PrimitiveContext) -> PrimitiveResult:
        if self.instance is not None:
            raise UnsupportedError(
                "delete_workflow_instance: the backend chooses the instance, so it does not support 'instance': "
                f"{self.instance!r}. Use 'count'."
            )
        before = get_own_service(context, self.workflow)
        there = _count_instances_before(context, before)
        if there - self.count < 1:
            raise UsageError(
                f"The service {self.workflow!r} has {there} instances, and removing {self.count} would leave none. "
                "Delete it with delete_workflow, or set a scaling with min=0."
            )
        return _scale(context, before, there - self.count, lasting=False)


class DuplicateWorkflowInstance(BuiltInPrimitive):
    """Add instances to a service, sized like its existing ones."""

    name = "duplicate_workflow_instance"
    layer = "infrastructure"
    kind = "online"
    writes = ("replicas",)

    count: Annotated[int, Field(ge=1, description="The number of instances to add.")] = 1

    def carry_out(self, context: PrimitiveContext) -> PrimitiveResult:
        before = get_own_service(context, self.workflow)
        return _scale(context, before, _count_instances_before(context, before) + self.count, lasting=False)


def _find_changed_model(record: ServiceRecord, canary: RevisionRecord) -> tuple[str, str] | None:
    current = get_served_models(record)
    return next(((node, model) for node, model in canary.models.items() if current.get(node) != model), None)


def _compute_pool_threads(shape: Shape) -> int | None:
    """Return the threads in each of an instance's pools; None: neither the threads nor the cores are set."""
    if shape.pool_threads is not None or shape.cores is None:
        return shape.pool_threads
    return compute_pool_size(shape.cores)


def _is_alias(model: str) -> bool:
    return "@" in model


def _is_same_model(alias: str, address: str) -> bool:
    """Return whether two addresses are of the same registered model."""
    return alias.partition("@")[0].rstrip("/") == address.rpartition("/")[0]


def _scale(
    context: PrimitiveContext,
    before: ServiceRecord,
    instances: int,
    *,
    lasting: bool = True,
    nodes: Mapping[str, int] | None = None,
) -> PrimitiveResult:
    """Set the number of instances; ``lasting``: also in the stored application."""
    was = before.shape.instances

    def compute_values(workflow: Workflow) -> dict[str, int]:
        return {**assign_to_nodes(workflow, instances), **(nodes or {})} if lasting else {}

    more = build_restore_arguments(
        context, before.name, INSTANCES, compute_values, lambda workflow: assign_to_nodes(workflow, was)
    )
    inverse = context.undo("update_workflow_replica", {"workflow": before.name, "instances": was, **more})
    if before.shape.instances == instances:
        record = wait_until_in_effect(context.deployer, before, lambda service: service.shape.instances == instances)
    else:
        record = context.deployer.change(before.name, ServiceChange(instances=instances))
    if lasting:
        store_values(context, before.name, INSTANCES, compute_values)
    return PrimitiveResult(summarize_service(record), inverse)


def _count_instances_before(context: PrimitiveContext, before: ServiceRecord) -> int:
    """Return the number of instances before the first attempt."""
    noted = None if context.noted is None else context.noted.arguments.get("instances")
    return noted if isinstance(noted, int) else before.shape.instances


def _find_scaling(workflow: Workflow) -> Scaling | None:
    """Return the scaling of a workflow: of the first node that has one, as all nodes share the instances."""
    return next((node.scaling for node in workflow.services if node.scaling is not None), None)


def _replace_scaling(workflow: Workflow, scaling: Scaling | None) -> Workflow:
    """Replace the scaling of a workflow; None: remove it."""
    scaled_nodes = [node for node in workflow.services if node.scaling is not None]
    if scaling is None:
        return replace_services(workflow, {node.name: node.replace(scaling=None) for node in scaled_nodes})
    node = scaled_nodes[0] if scaled_nodes else workflow.services[0]
    return replace_services(workflow, {node.name: node.replace(scaling=scaling)})


def _find_own_port(record: ServiceRecord) -> int | None:
    """Return the service's own port; None behind a Gateway, which routes to services by paths."""
    url = urlsplit(record.url)
    return None if url.path.strip("/") else url.port
