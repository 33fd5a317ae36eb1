"""Primitives that are there for batch workflows and for online ones: for the steps of the one, from its next run on,
and for the instances of the other, while they serve."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

from scanflow.agent.primitive_model import BuiltIn, Kind, Primitive, PrimitiveContext, PrimitiveResult
from scanflow.agent.primitives.arguments import CoreCount, ModelAddress, Node, OfResources, Placed, Settings
from scanflow.agent.primitives.batch import (
    affinity_of,
    resources_of,
    update_steps,
    upgrade_steps,
    with_affinity,
    with_avoided,
    with_resources,
)
from scanflow.agent.primitives.serving import (
    AFFINITY,
    CORES,
    MODEL,
    canary_of,
    each,
    given_back,
    in_effect,
    keep,
    mine,
    served_models,
    summary_of,
)
from scanflow.app.resources import AffinityMode
from scanflow.app.workflow import Workflow
from scanflow.backends.service_change import ServiceChange
from scanflow.errors import InvalidError, UnsupportedError

BatchOrOnline: TypeAlias = Literal["batch", "online"]


class _OfEither(BuiltIn):
    of: BatchOrOnline = Field(default="online", alias="kind", description="Which kind of workflow it is.")

    @property
    def workflow_kind(self) -> Kind | None:
        return self.of if self.is_given("of") else None

    @property
    def target(self) -> str:
        return f"{'service' if self.of == 'online' else 'workflow'}/{self.workflow}"

    def carry_out(self, context: PrimitiveContext) -> PrimitiveResult:
        """Change the steps of a batch workflow, or the service of an online one."""
        batch = context.workflow(self.workflow)[1].type == "batch"
        return self.change_steps(context) if batch else self.change_service(context)

    def change_steps(self, context: PrimitiveContext) -> PrimitiveResult:
        raise NotImplementedError

    def change_service(self, context: PrimitiveContext) -> PrimitiveResult:
        raise NotImplementedError


class UpgradeWorkflow(_OfEither):
    """Give an online workflow another model version (``model=``), or a batch one other parameters (``parameters=``)."""

    name = "upgrade_workflow"
    writes = ("model", "parameters")

    model: ModelAddress | None = Field(
        default=None, description="The version: 'models:/name/3' or 'models:/name@alias'."
    )
    node: Node = None
    parameters: Settings = None
    of: BatchOrOnline = Field(
        default="online",
        alias="kind",
        description="Which kind of workflow it is. Unset: 'online' with a model, else 'batch'.",
    )
    nodes: Mapping[str, str] | None = Field(default=None, init=False)
    """What the application is to name for these nodes: an alias, say."""

    @model_validator(mode="before")
    @classmethod
    def _of_what(cls, given: Any) -> Any:
        return {"kind": "batch" if given.get("model") is None else "online", **given} if given else given

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.of == "online" and (self.model is None or self.parameters is not None):
            raise InvalidError("upgrade_workflow of an online workflow takes a model: model='models:/name/3'.")
        if self.of == "batch" and (self.model is not None or self.node is not None or not self.parameters):
            raise InvalidError("upgrade_workflow of a batch workflow takes parameters: parameters={'epochs': 3}.")
        return self

    @property
    def fields(self) -> tuple[str, ...]:
        return ("model",) if self.of == "online" else ("parameters",)

    @classmethod
    def rows(cls) -> tuple[Primitive, ...]:
        batch = cls.row("batch", "Set parameters of a batch workflow for all its later runs.", fields=("parameters",))
        online = cls.row("online", "Swap a model version in, without a failed request.", fields=("model",))
        return (
            batch.replace(parameters=tuple(one for one in batch.parameters if one.name not in {"model", "node"})),
            online.replace(parameters=tuple(one for one in online.parameters if one.name != "parameters")),
        )

    def change_steps(self, context: PrimitiveContext) -> PrimitiveResult:
        return upgrade_steps(context, self.workflow, self.parameters or {})

    def change_service(self, context: PrimitiveContext) -> PrimitiveResult:
        model = self.model or ""
        before = mine(context, self.workflow)
        models = served_models(before)
        node = self.node or _node_of(models, model) or ""
        said = {**({node: model} if node in models else {}), **(self.nodes or {})}
        if (
            node in models
            and canary_of(before) is None
            and models[node] in {model, _swapped_in(context, model, models)}
        ):
            seen = in_effect(context.deployer, before, lambda one: served_models(one).get(node) == models[node])
            if context.tried:  # the attempt that was cut off may not have come to that
                keep(context, self.workflow, MODEL, lambda _: said)
            return PrimitiveResult({**summary_of(seen), "model": model}, context.noted)
        inverse = context.noted
        if node in models and models[node] != model:
            back = {node: models[node]}
            more = given_back(context, self.workflow, MODEL, lambda _: said, lambda _: back)
            arguments = {"workflow": self.workflow, "model": models[node], "node": node, **more}
            inverse = context.undo(self.name, arguments)
        trial = canary_of(before)
        if trial is not None and trial.models.get(node) == model:
            change = ServiceChange(promote=True)
        else:
            change = ServiceChange(model=model, node=self.node)
        record = context.deployer.change(self.workflow, change)
        keep(context, self.workflow, MODEL, lambda _: said)
        return PrimitiveResult({**summary_of(record), "model": model}, inverse)


class UpdateWorkflowAffinity(_OfEither):
    """Set where the executors of a batch workflow, or the instances of an online one, may run."""

    name = "update_workflow_affinity"
    writes = ("affinity",)

    affinity: AffinityMode | None = Field(
        kw_only=False, description="Where it may run: any core, cores of its own, and so on."
    )
    avoid_services: Annotated[
        list[str] | None, Field(description="Online workflows whose cores the steps of a batch one keep off.")
    ] = None
    nodes: Mapping[str, Placed] | None = Field(default=None, init=False)
    """What the application is to say of these nodes of a service."""

    executors: Mapping[str, Placed] | None = Field(default=None, init=False)
    """What these steps are to say, each its own."""

    @model_validator(mode="before")
    @classmethod
    def _for_each(cls, given: Any) -> Any:
        return {"affinity": None, **given} if given and given.keys() & {"executors", "avoid_services"} else given

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.affinity is None and self.executors is None and self.avoid_services is None:
            raise InvalidError(f"The primitive {self.name!r} needs the argument 'affinity'.")
        if self.avoid_services is not None and (self.affinity is not None or self.of == "online"):
            raise InvalidError(f"{self.name} takes avoid_services= alone, with kind='batch': services avoid nobody.")
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
            changes = dict.fromkeys(steps, with_avoided(self.avoid_services))
        else:
            wanted = dict.fromkeys(steps, self.affinity) if self.executors is None else self.executors
            changes = {name: with_affinity(value) for name, value in wanted.items()}
        return update_steps(context, self, changes, affinity_of)

    def change_service(self, context: PrimitiveContext) -> PrimitiveResult:
        before = mine(context, self.workflow)
        was = before.shape.affinity

        def said(workflow: Workflow) -> dict[str, Any]:
            return {**each(workflow, self.affinity), **(self.nodes or {})}

        more = given_back(context, self.workflow, AFFINITY, said, lambda workflow: each(workflow, was))
        inverse = context.undo(self.name, {"workflow": self.workflow, "affinity": was, "kind": "online", **more})
        record = context.deployer.change(self.workflow, ServiceChange(affinity=self.affinity))
        keep(context, self.workflow, AFFINITY, said)
        return PrimitiveResult(summary_of(record), inverse)


class _SomeResources(BaseModel):
    """What one step is to have; null: no limit."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)

    cpu: float | str | None = None
    memory: int | str | None = None
    gpu: int | None = None


class UpdateWorkflowResource(_OfEither, OfResources):
    """Set what the executors of a batch workflow, or the instances of an online one, may use."""

    name = "update_workflow_resource"
    writes = ("resource",)

    nodes: Mapping[str, CoreCount | None] | None = Field(default=None, init=False)
    """Cores that the application is to say of these nodes of a service; null: not limited."""

    executors: Mapping[str, _SomeResources] | None = Field(default=None, init=False)
    """What these steps are to have, each its own."""

    @model_validator(mode="after")
    def _check(self) -> Self:
        if self.executors is None:
            self.changed_resources()
        return self

    @classmethod
    def rows(cls) -> tuple[Primitive, ...]:
        return (
            cls.row("batch", "Set what every executor of a batch workflow may use, from its next run on."),
            cls.row("online", "Set what each of a service's instances may use."),
        )

    def change_steps(self, context: PrimitiveContext) -> PrimitiveResult:
        if self.executors is None:
            changes = {
                step.name: with_resources(self.changed_resources()) for step in context.workflow(self.workflow)[1].steps
            }
        else:
            changes = {name: with_resources(one.model_dump(exclude_unset=True)) for name, one in self.executors.items()}
        return update_steps(context, self, changes, resources_of)

    def change_service(self, context: PrimitiveContext) -> PrimitiveResult:
        """Set the cores of each of its instances."""
        if self.memory is not None or self.gpu:
            field = "gpu" if self.gpu else "memory"
            raise UnsupportedError(
                f"{self.name} cannot change {field!r} of a service that runs. Change it in the application, and deploy "
                "again."
            )
        if self.cpu is None:
            raise InvalidError(f"{self.name} changes nothing of the service. Say cpu=.")
        cores = float(self.cpu)
        before = mine(context, self.workflow)
        was, inverse = before.shape.cores, context.noted

        def said(workflow: Workflow) -> dict[str, float | None]:
            return {**_shares(workflow, cores), **(self.nodes or {})}

        if was is not None:  # cores that were not limited cannot be given back: a limit is only replaced
            more = given_back(context, self.workflow, CORES, said, lambda workflow: _shares(workflow, was))
            arguments = {"workflow": self.workflow, "cpu": was, "kind": "online", **more}
            inverse = context.undo(self.name, arguments)
        record = context.deployer.change(self.workflow, ServiceChange(cores=cores))
        keep(context, self.workflow, CORES, said)
        return PrimitiveResult(summary_of(record), inverse)


def _node_of(models: Mapping[str, str], model: str) -> str | None:
    """Return the node that a model's version is for: the one with that model, or the only one with any."""
    name = model.removeprefix("models:/").partition("@")[0].partition("/")[0]
    same = [node for node, served in models.items() if served.startswith((f"models:/{name}/", f"models:/{name}@"))]
    fitting = same or list(models)
    return fitting[0] if len(fitting) == 1 else None


def _swapped_in(context: PrimitiveContext, model: str, models: Mapping[str, str]) -> str | None:
    """Return the version that an earlier attempt has swapped in for an alias, as it recorded; a service names none."""
    was = None if context.noted is None else context.noted.arguments
    if was is None or "@" not in model:
        return None
    served = models.get(str(was.get("node")))
    return served if served != was.get("model") else None


def _shares(workflow: Workflow, cores: float) -> dict[str, float | None]:
    """Share an instance's cores out among the nodes, as they shared them before; equally where they did not say."""
    own = [one.resources.cores for one in workflow.services]
    total = sum(value for value in own if value is not None)
    even = any(value is None for value in own) or not total
    shares = [cores / len(own) if even else cores * (value or 0.0) / total for value in own]
    return {one.name: round(share, 3) for one, share in zip(workflow.services, shares, strict=True)}
