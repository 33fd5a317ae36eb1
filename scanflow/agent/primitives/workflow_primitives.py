"""Primitives for batch and online workflows: on the steps of the former from the next run on, and on the instances of
the latter without downtime."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

from scanflow.agent.primitive_model import BuiltInPrimitive, Kind, Primitive, PrimitiveContext, PrimitiveResult
from scanflow.agent.primitives.arguments import CoreCount, ModelAddress, Node, Placed, ResourceArguments, Settings
from scanflow.agent.primitives.batch_primitives import (
    add_avoided_services,
    get_affinity,
    get_resources,
    set_affinity,
    set_resources,
    update_steps,
    upgrade_steps,
)
from scanflow.agent.primitives.service_values import (
    AFFINITY,
    CORES,
    MODEL,
    assign_to_nodes,
    build_restore_arguments,
    find_canary,
    get_own_service,
    get_served_models,
    store_values,
    summarize_service,
    wait_until_in_effect,
)
from scanflow.app.resources import AffinityMode
from scanflow.app.workflow import Workflow
from scanflow.backends.service_change import ServiceChange
from scanflow.errors import InvalidError, UnsupportedError

BatchOrOnline: TypeAlias = Literal["batch", "online"]


class _WorkflowPrimitive(BuiltInPrimitive):
    workflow_type: BatchOrOnline = Field(default="online", alias="kind", description="The kind of workflow.")

    @property
    def workflow_kind(self) -> Kind | None:
        return self.workflow_type if self.is_given("workflow_type") else None

    @property
    def target(self) -> str:
        return f"{'service' if self.workflow_type == 'online' else 'workflow'}/{self.workflow}"

    def carry_out(self, context: PrimitiveContext) -> PrimitiveResult:
        """Change the steps of a batch workflow, or the service of an online one."""
        batch = context.workflow(self.workflow)[1].type == "batch"
        return self.change_steps(context) if batch else self.change_service(context)

    def change_steps(self, context: PrimitiveContext) -> PrimitiveResult:
        raise NotImplementedError

    def change_service(self, context: PrimitiveContext) -> PrimitiveResult:
        raise NotImplementedError


class UpgradeWorkflow(_WorkflowPrimitive):
    """Give an online workflow another model version (``model=``), or a batch one other parameters (``parameters=``)."""

    name = "upgrade_workflow"
    writes = ("model", "parameters")

    model: ModelAddress | None = Field(
        default=None, description="The version: 'models:/name/3' or 'models:/name@alias'."
    )
    node: Node = None
    parameters: Settings = None
    workflow_type: BatchOrOnline = Field(
        default="online", alias="kind", description="The kind of workflow. Unset: 'online' with a model, else 'batch'."
    )
    nodes: Mapping[str, str] | None = Field(default=None, init=False)
    """The models to write to these nodes of the application, such as an alias."""

    @model_validator(mode="before")
    @classmethod
    def _infer_type(cls, values: Any) -> Any:
        return {"kind": "batch" if values.get("model") is None else "online", **values} if values else values

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.workflow_type == "online" and (self.model is None or self.parameters is not None):
            raise InvalidError("upgrade_workflow of an online workflow takes a model: model='models:/name/3'.")
        if self.workflow_type == "batch" and (self.model is not None or self.node is not None or not self.parameters):
            raise InvalidError("upgrade_workflow of a batch workflow takes parameters: parameters={'epochs': 3}.")
        return self

    @property
    def fields(self) -> tuple[str, ...]:
        return ("model",) if self.workflow_type == "online" else ("parameters",)

    @classmethod
    def rows(cls) -> tuple[Primitive, ...]:
        batch = cls.row("batch", "Set parameters of a batch workflow for all its later runs.", fields=("parameters",))
        online = cls.row("online", "Replace the served model version, without a failed request.", fields=("model",))
        return (
            batch.replace(
                parameters=tuple(parameter for parameter in batch.parameters if parameter.name not in {"model", "node"})
            ),
            online.replace(
                parameters=tuple(parameter for parameter in online.parameters if parameter.name != "parameters")
            ),
        )

    def change_steps(self, context: PrimitiveContext) -> PrimitiveResult:
        return upgrade_steps(context, self.workflow, self.parameters or {})

    def change_service(self, context: PrimitiveContext) -> PrimitiveResult:
        model = self.model or ""
        before = get_own_service(context, self.workflow)
        models = get_served_models(before)
        node = self.node or _find_node(models, model) or ""
        values = {**({node: model} if node in models else {}), **(self.nodes or {})}
        if (
            node in models
            and find_canary(before) is None
            and models[node] in {model, _find_swapped_version(context, model, models)}
        ):
            seen = wait_until_in_effect(
                context.deployer, before, lambda service: get_served_models(service).get(node) == models[node]
            )
            if context.tried:  # the interrupted attempt may not have stored them
                store_values(context, self.workflow, MODEL, lambda _: values)
            return PrimitiveResult({**summarize_service(seen), "model": model}, context.noted)
        inverse = context.noted
        if node in models and models[node] != model:
            back = {node: models[node]}
            more = build_restore_arguments(context, self.workflow, MODEL, lambda _: values, lambda _: back)
            arguments = {"workflow": self.workflow, "model": models[node], "node": node, **more}
            inverse = context.undo(self.name, arguments)
        trial = find_canary(before)
        if trial is not None and trial.models.get(node) == model:
            change = ServiceChange(promote=True)
        else:
            change = ServiceChange(model=model, node=self.node)
        record = context.deployer.change(self.workflow, change)
        store_values(context, self.workflow, MODEL, lambda _: values)
        return PrimitiveResult({**summarize_service(record), "model": model}, inverse)


class UpdateWorkflowAffinity(_WorkflowPrimitive):
    """Set where the executors of a batch workflow, or the instances of an online one, may run."""

    name = "update_workflow_affinity"
    writes = ("affinity",)

    affinity: AffinityMode | None = Field(
        kw_only=False, description="Where it may run: on any core, on exclusive cores, and so on."
    )
    avoid_services: Annotated[
        list[str] | None, Field(description="Online workflows whose cores the steps of a batch workflow avoid.")
    ] = None
    nodes: Mapping[str, Placed] | None = Field(default=None, init=False)
    """The affinities to write to these nodes of the application."""

    executors: Mapping[str, Placed] | None = Field(default=None, init=False)
    """The affinities of steps, by name."""

    @model_validator(mode="before")
    @classmethod
    def _set_default_affinity(cls, values: Any) -> Any:
        return {"affinity": None, **values} if values and values.keys() & {"executors", "avoid_services"} else values

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.affinity is None and self.executors is None and self.avoid_services is None:
            raise InvalidError(f"The primitive {self.name!r} needs the argument 'affinity'.")
        if self.avoid_services is not None and (self.affinity is not None or self.workflow_type == "online"):
            raise InvalidError(
                f"{self.name} takes avoid_services= only with kind='batch': a service cannot avoid another."
            )
        return self

    @classmethod
    def rows(cls) -> tuple[Primitive, ...]:
        return (
            cls.row("batch", "Set where every executor of a batch workflow may run, from its next run on."),
            cls.row("online", "Set where a service's instances may run, and move them there."),
        )

    def change_steps(self, context: PrimitiveContext) -> PrimitiveResult:
        steps = [step.name for step in context.workflow(self.workflow)[1].steps]
        if self.avoid_services is not None:
            changes = dict.fromkeys(steps, add_avoided_services(self.avoid_services))
        else:
            affinities = dict.fromkeys(steps, self.affinity) if self.executors is None else self.executors
            changes = {name: set_affinity(value) for name, value in affinities.items()}
        return update_steps(context, self, changes, get_affinity)

    def change_service(self, context: PrimitiveContext) -> PrimitiveResult:
        before = get_own_service(context, self.workflow)
        was = before.shape.affinity

        def compute_values(workflow: Workflow) -> dict[str, Any]:
            return {**assign_to_nodes(workflow, self.affinity), **(self.nodes or {})}

        more = build_restore_arguments(
            context, self.workflow, AFFINITY, compute_values, lambda workflow: assign_to_nodes(workflow, was)
        )
        inverse = context.undo(self.name, {"workflow": self.workflow, "affinity": was, "kind": "online", **more})
        record = context.deployer.change(self.workflow, ServiceChange(affinity=self.affinity))
        store_values(context, self.workflow, AFFINITY, compute_values)
        return PrimitiveResult(summarize_service(record), inverse)


class _StepResources(BaseModel):
    """The resources of one step; null: no limit."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    cpu: float | str | None = None
    memory: int | str | None = None
    gpu: int | float | str | None = None


class UpdateWorkflowResource(_WorkflowPrimitive, ResourceArguments):
    """Set the resources of the executors of a batch workflow, or of the instances of an online one."""

    name = "update_workflow_resource"
    writes = ("resource",)

    nodes: Mapping[str, CoreCount | None] | None = Field(default=None, init=False)
    """The cores to write to these nodes of the application; null: no limit."""

    executors: Mapping[str, _StepResources] | None = Field(default=None, init=False)
    """The resources of steps, by name."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.executors is None:
            self.get_changed_resources()
        return self

    @classmethod
    def rows(cls) -> tuple[Primitive, ...]:
        return (
            cls.row("batch", "Set the resources of every executor of a batch workflow, from its next run on."),
            cls.row("online", "Set the resources of each of a service's instances."),
        )

    def change_steps(self, context: PrimitiveContext) -> PrimitiveResult:
        if self.executors is None:
            changes = {
                step.name: set_resources(self.get_changed_resources())
                for step in context.workflow(self.workflow)[1].steps
            }
        else:
            changes = {
                name: set_resources(resources.model_dump(exclude_unset=True))
                for name, resources in self.executors.items()
            }
        return update_steps(context, self, changes, get_resources)

    def change_service(self, context: PrimitiveContext) -> PrimitiveResult:
        """Set the cores of each of its instances."""
        if self.memory is not None or self.gpu:
            field = "gpu" if self.gpu else "memory"
            raise UnsupportedError(
                f"{self.name} cannot change {field!r} of a running service. Change it in the application, and deploy "
                "again."
            )
        if self.cpu is None:
            raise InvalidError(f"{self.name} changes nothing of the service. Set cpu=.")
        cores = float(self.cpu)
        before = get_own_service(context, self.workflow)
        was, inverse = before.shape.cores, context.noted

        def compute_values(workflow: Workflow) -> dict[str, float | None]:
            return {**_divide_cores(workflow, cores), **(self.nodes or {})}

        if was is not None:  # unlimited cores cannot be restored: a limit can only be replaced
            more = build_restore_arguments(
                context, self.workflow, CORES, compute_values, lambda workflow: _divide_cores(workflow, was)
            )
            arguments = {"workflow": self.workflow, "cpu": was, "kind": "online", **more}
            inverse = context.undo(self.name, arguments)
        record = context.deployer.change(self.workflow, ServiceChange(cores=cores))
        store_values(context, self.workflow, CORES, compute_values)
        return PrimitiveResult(summarize_service(record), inverse)


def _find_node(models: Mapping[str, str], model: str) -> str | None:
    """Return the node for a model version: the one with that model, or the only one with a model."""
    name = model.removeprefix("models:/").partition("@")[0].partition("/")[0]
    same = [node for node, served in models.items() if served.startswith((f"models:/{name}/", f"models:/{name}@"))]
    fitting = same or list(models)
    return fitting[0] if len(fitting) == 1 else None


def _find_swapped_version(context: PrimitiveContext, model: str, models: Mapping[str, str]) -> str | None:
    """Return the version that an earlier attempt swapped in for an alias, as recorded; services do not record it."""
    was = None if context.noted is None else context.noted.arguments
    if was is None or "@" not in model:
        return None
    served = models.get(str(was.get("node")))
    return served if served != was.get("model") else None


def _divide_cores(workflow: Workflow, cores: float) -> dict[str, float | None]:
    """Divide an instance's cores among the nodes, in their previous proportions; equally where those are not set."""
    node_cores = [node.resources.cores for node in workflow.services]
    total = sum(value for value in node_cores if value is not None)
    even = any(value is None for value in node_cores) or not total
    shares = [cores / len(node_cores) if even else cores * (value or 0.0) / total for value in node_cores]
    return {node.name: round(share, 3) for node, share in zip(workflow.services, shares, strict=True)}
