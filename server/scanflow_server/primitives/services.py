"""Primitives on online workflows: served, changed while they serve, and ended.

What is wanted of the workflow is kept first in the service and then in the stored application, so that deploying it
again brings back what agents made of it. An inverse gives both back: ``nodes`` is what the application said of nodes
where the service's value would not have it say that again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from scanflow.agent.actions import Kind
from scanflow.agent.primitive_model import PrimitiveResult
from scanflow.app.quantities import parse_cpu
from scanflow.app.resources import AffinityMode
from scanflow.app.workflow import Workflow
from scanflow.backends.service_change import ServiceChange, Sizing
from scanflow.backends.service_records import RevisionRecord, ServiceRecord
from scanflow.errors import NotFoundError, UnsupportedError, UsageError
from scanflow_server.primitives.action_context import ActionContext
from scanflow_server.primitives.arguments import Cores, Count, OfWorkflow, Placed, read
from scanflow_server.primitives.nodes import AFFINITY, CORES, MODEL, each, given_back, keep, wanted
from scanflow_server.primitives.rollout_wait import in_effect
from scanflow_server.primitives.served import canary_of, cut_of, found, given_only, mine, served_models, summary_of

__all__ = [
    "apply_workflow_instance",
    "canary_of",
    "delete_workflow",
    "deploy_workflow",
    "served_models",
    "update_service_affinity",
    "update_service_resource",
    "update_workflow_traffic",
    "upgrade_service",
]


class Cut(OfWorkflow):
    """Arguments of ``apply_workflow_instance``: what is left out stays as it is."""

    instances: Count | None = None
    cores: Cores | None = None
    affinity: AffinityMode | None = None


class DeployWorkflow(Cut):
    """Arguments of ``deploy_workflow``."""

    port: int | None = None
    models: dict[str, str] | None = None
    """The versions to serve, by node, where they are not those that the application names: what was deleted."""


class UpgradeService(OfWorkflow):
    """Arguments of ``upgrade_workflow`` for an online workflow."""

    kind: Kind | None = None
    model: str
    node: str | None = None
    nodes: dict[str, str] | None = None
    """What the application is to name for these nodes: an alias, say."""


class UpdateServiceAffinity(OfWorkflow):
    """Arguments of ``update_workflow_affinity`` for an online workflow."""

    kind: Kind | None = None
    affinity: AffinityMode
    nodes: dict[str, Placed] | None = None
    """What the application is to say of these nodes."""


class UpdateServiceResource(OfWorkflow):
    """Arguments of ``update_workflow_resource`` for an online workflow: cores of one instance."""

    kind: Kind | None = None
    cpu: float | str | None = None
    memory: int | str | None = None
    gpu: int | None = None
    nodes: dict[str, Cores | None] | None = None
    """What the application is to say of these nodes; null: not limited."""


class UpdateTraffic(OfWorkflow):
    """Arguments of ``update_workflow_traffic``."""

    model: str
    weight: float = 0.0
    shadow: bool = False
    node: str | None = None


def deploy_workflow(context: ActionContext, given: Mapping[str, Any]) -> PrimitiveResult:
    """Serve an online workflow; where it is served already, change it to what the application says now."""
    asked = read(DeployWorkflow, "deploy_workflow", given)
    kept, workflow = context.workflow(asked.workflow)
    app = kept.application
    if asked.models:
        app = app.with_workflow(MODEL.written(workflow, asked.models))
    before = found(context, asked.workflow)
    if before is None:
        inverse = context.undo("delete_workflow", {"workflow": asked.workflow})
    else:
        inverse = context.undo("apply_workflow_instance", cut_of(before))
    record = context.deployer.deploy(
        app,
        asked.workflow,
        sizing=Sizing(instances=asked.instances, cores=asked.cores, affinity=asked.affinity),
        port=asked.port,
        source=kept.source,
    )
    return PrimitiveResult(summary_of(record), inverse)


def delete_workflow(context: ActionContext, given: Mapping[str, Any]) -> PrimitiveResult:
    """Drain in-flight requests, then delete the service."""
    asked = read(OfWorkflow, "delete_workflow", given)
    before = found(context, asked.workflow)
    if before is None:
        if not context.tried:
            raise NotFoundError(f"The service {asked.workflow!r} is not there: it is deleted already, or never was.")
        return PrimitiveResult({"service": asked.workflow, "deleted": True}, context.noted)
    workflow, served = wanted(context, asked.workflow), served_models(before)
    named = {} if workflow is None else {one.name: one.model for one in workflow.services}
    models = {node: model for node, model in served.items() if named.get(node, model) != model}
    back = {**cut_of(before), "port": urlsplit(before.url).port, "models": models or None}
    inverse = context.undo("deploy_workflow", given_only(back))
    try:
        context.deployer.delete(asked.workflow)
    except NotFoundError:  # somebody else was quicker, or the try that was cut off has come to its end
        pass
    return PrimitiveResult({"service": asked.workflow, "deleted": True}, inverse)


def upgrade_service(context: ActionContext, given: Mapping[str, Any]) -> PrimitiveResult:
    """Swap a model version in, without a failed request."""
    asked = read(UpgradeService, "upgrade_workflow", given)
    before = mine(context, asked.workflow)
    models = served_models(before)
    node = asked.node or _node_of(models, asked.model) or ""
    wished = {node: asked.model} if node in models else {}
    said = {**wished, **(asked.nodes or {})}
    if (
        node in models
        and canary_of(before) is None
        and models[node] in {asked.model, _swapped_in(context, asked, models)}
    ):
        seen = in_effect(context.deployer, before, lambda one: served_models(one).get(node) == models[node])
        if context.tried:  # the try that was cut off may not have come to that
            keep(context, asked.workflow, MODEL, lambda _: said)
        return PrimitiveResult({**summary_of(seen), "model": asked.model}, context.noted)
    inverse = context.noted
    if node in models and models[node] != asked.model:
        back = {node: models[node]}
        more = given_back(context, asked.workflow, MODEL, lambda _: said, lambda _: back)
        arguments = {"workflow": asked.workflow, "model": models[node], "node": node, **more}
        inverse = context.undo("upgrade_workflow", arguments)
    trial = canary_of(before)
    if trial is not None and trial.models.get(node) == asked.model:
        change = ServiceChange(promote=True)
    else:
        change = ServiceChange(model=asked.model, node=asked.node)
    record = context.deployer.change(asked.workflow, change)
    keep(context, asked.workflow, MODEL, lambda _: said)
    return PrimitiveResult({**summary_of(record), "model": asked.model}, inverse)


def update_workflow_traffic(context: ActionContext, given: Mapping[str, Any]) -> PrimitiveResult:
    """Give a share of the requests, or a copy of each, to another version of a model. A share of 0 takes it back."""
    asked = read(UpdateTraffic, "update_workflow_traffic", given)
    before = mine(context, asked.workflow)
    trial = canary_of(before)
    changed = None if trial is None else _changed_model(before, trial)
    model, node = asked.model, asked.node
    if asked.weight <= 0 and not asked.shadow:
        if context.reverting and changed is not None and _is_alias(model) and _same_name(model, changed[1]):
            node, model = changed  # what it was the canary as; the alias may be another version by now
        on_trial = () if trial is None else trial.models.values()
        if model not in on_trial and (trial is None or not _is_alias(model)):
            return PrimitiveResult({**summary_of(before), "model": asked.model, "weight": 0.0}, context.noted)
    back: dict[str, Any] = {"workflow": asked.workflow, "model": asked.model, "weight": 0.0, "node": asked.node}
    if trial is not None and changed is not None:
        shared = 0.0 if trial.shadow else trial.weight
        back |= {"model": changed[1], "weight": shared, "shadow": trial.shadow}
        if asked.node is not None:
            back["node"] = changed[0]
    inverse = context.undo("update_workflow_traffic", given_only(back))
    change = ServiceChange(model=model, node=node, weight=asked.weight, shadow=asked.shadow)
    record = context.deployer.change(asked.workflow, change)
    return PrimitiveResult(
        {**summary_of(record), "model": asked.model, "weight": asked.weight, "shadow": asked.shadow}, inverse
    )


def update_service_affinity(context: ActionContext, given: Mapping[str, Any]) -> PrimitiveResult:
    """Set where a service's instances may run, and move them there."""
    asked = read(UpdateServiceAffinity, "update_workflow_affinity", given)
    before = mine(context, asked.workflow)
    was = before.shape.affinity

    def said(workflow: Workflow) -> dict[str, Any]:
        return {**each(workflow, asked.affinity), **(asked.nodes or {})}

    more = given_back(context, asked.workflow, AFFINITY, said, lambda workflow: each(workflow, was))
    arguments = {"workflow": asked.workflow, "affinity": was, "kind": "online", **more}
    inverse = context.undo("update_workflow_affinity", arguments)
    record = context.deployer.change(asked.workflow, ServiceChange(affinity=asked.affinity))
    keep(context, asked.workflow, AFFINITY, said)
    return PrimitiveResult(summary_of(record), inverse)


def update_service_resource(context: ActionContext, given: Mapping[str, Any]) -> PrimitiveResult:
    """Set the cores of each of a service's instances."""
    asked = read(UpdateServiceResource, "update_workflow_resource", given)
    if asked.memory is not None or asked.gpu:
        field = "gpu" if asked.gpu else "memory"
        raise UnsupportedError(
            f"update_workflow_resource: the embedded backend cannot change {field!r} of a service that runs. Change it "
            "in the application, and deploy again."
        )
    if asked.cpu is None:
        raise UsageError("update_workflow_resource was given nothing to change. Give it 'cpu'.")
    cores = float(parse_cpu(asked.cpu))
    before = mine(context, asked.workflow)
    was, inverse = before.shape.cores, context.noted

    def said(workflow: Workflow) -> dict[str, float | None]:
        return {**_shares(workflow, cores), **(asked.nodes or {})}

    if was is not None:  # cores that were not limited cannot be given back: a limit is only replaced
        more = given_back(context, asked.workflow, CORES, said, lambda workflow: _shares(workflow, was))
        arguments = {"workflow": asked.workflow, "cpu": was, "kind": "online", **more}
        inverse = context.undo("update_workflow_resource", arguments)
    record = context.deployer.change(asked.workflow, ServiceChange(cores=cores))
    keep(context, asked.workflow, CORES, said)
    return PrimitiveResult(summary_of(record), inverse)


def apply_workflow_instance(context: ActionContext, given: Mapping[str, Any]) -> PrimitiveResult:
    """Resize a service to so many instances of this size; with nothing given, start what is missing."""
    asked = read(Cut, "apply_workflow_instance", given)
    before = mine(context, asked.workflow)  # asked for, it is watched from now on, and what is missing is started
    wanted_now = given_only({name: getattr(asked, name) for name in ("instances", "cores", "affinity")})
    if not wanted_now:
        return PrimitiveResult(summary_of(before))
    back = {name: value for name, value in cut_of(before).items() if name in wanted_now or name == "workflow"}
    inverse = context.noted
    if back.keys() >= wanted_now.keys():  # as above: what was not limited cannot be given back, nor a part of it alone
        inverse = context.undo("apply_workflow_instance", back)
    return PrimitiveResult(summary_of(context.deployer.change(asked.workflow, ServiceChange(**wanted_now))), inverse)


def _node_of(models: Mapping[str, str], model: str) -> str | None:
    """Return the node that a model's version is for: the one with that model, or the only one with any."""
    name = model.removeprefix("models:/").partition("@")[0].partition("/")[0]
    same = [node for node, served in models.items() if served.startswith((f"models:/{name}/", f"models:/{name}@"))]
    fitting = same or list(models)
    return fitting[0] if len(fitting) == 1 else None


def _changed_model(record: ServiceRecord, trial: RevisionRecord) -> tuple[str, str] | None:
    current = served_models(record)
    return next(((node, model) for node, model in trial.models.items() if current.get(node) != model), None)


def _is_alias(model: str) -> bool:
    return "@" in model


def _same_name(one: str, other: str) -> bool:
    """Say whether two addresses are of the same registered model."""
    return one.partition("@")[0].rstrip("/") == other.rpartition("/")[0]


def _swapped_in(context: ActionContext, asked: UpgradeService, models: Mapping[str, str]) -> str | None:
    """Return the version that an earlier try has swapped in for an alias, as its note tells; a record names none."""
    was = None if context.noted is None else context.noted.arguments
    if was is None or not _is_alias(asked.model):
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
