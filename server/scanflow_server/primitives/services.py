"""Primitives on online workflows: served, changed while they serve, and ended.

What is wanted of the workflow is kept first in the service and then in the stored application, so that deploying it
again brings back what agents made of it. An inverse gives both back: ``nodes`` is what the application said of nodes
where the service's value would not have it say that again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any
from urllib.parse import urlsplit

from scanflow.agent.acts import Kind
from scanflow.app.quantities import parse_cpu
from scanflow.app.resources import AffinityMode
from scanflow.app.workflow import Workflow
from scanflow.backends.service_records import RevisionRecord, ServiceRecord
from scanflow.errors import NotFoundError, UnsupportedError, UsageError
from scanflow_server.primitives.arguments import Cores, Count, OfWorkflow, Placed, read
from scanflow_server.primitives.awaiting import in_effect
from scanflow_server.primitives.means import Done, Means
from scanflow_server.primitives.nodes import AFFINITY, CORES, MODEL, each, given_back, keep, wanted
from scanflow_server.primitives.served import cut_of, found, given_only, mine, served_models, told, trial_of

__all__ = [
    "apply_workflow_instance",
    "delete_workflow",
    "deploy_workflow",
    "served_models",
    "trial_of",
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


class UpdateAffinity(OfWorkflow):
    """Arguments of ``update_workflow_affinity`` for an online workflow."""

    kind: Kind | None = None
    affinity: AffinityMode
    nodes: dict[str, Placed] | None = None
    """What the application is to say of these nodes."""


class UpdateResource(OfWorkflow):
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


def deploy_workflow(means: Means, given: Mapping[str, Any]) -> Done:
    """Serve an online workflow; where it is served already, change it to what the application says now."""
    asked = read(DeployWorkflow, "deploy_workflow", given)
    kept, workflow = means.workflow(asked.workflow)
    app = kept.application
    if asked.models:
        app = app.with_workflow(MODEL.written(workflow, asked.models))
    before = found(means, asked.workflow)
    if before is None:
        inverse = means.undo("delete_workflow", {"workflow": asked.workflow})
    else:
        inverse = means.undo("apply_workflow_instance", cut_of(before))
    record = means.deployer.deploy(
        app,
        asked.workflow,
        instances=asked.instances,
        cores=asked.cores,
        affinity=asked.affinity,
        port=asked.port,
        source=kept.source,
    )
    return Done(told(record), inverse)


def delete_workflow(means: Means, given: Mapping[str, Any]) -> Done:
    """Answer what is begun, then end the service."""
    asked = read(OfWorkflow, "delete_workflow", given)
    before = found(means, asked.workflow)
    if before is None:
        if not means.tried:
            raise NotFoundError(f"The service {asked.workflow!r} is not there: it is deleted already, or never was.")
        return Done({"service": asked.workflow, "deleted": True}, means.noted)
    workflow, served = wanted(means, asked.workflow), served_models(before)
    named = {} if workflow is None else {one.name: one.model for one in workflow.services}
    models = {node: model for node, model in served.items() if named.get(node, model) != model}
    back = {**cut_of(before), "port": urlsplit(before.url).port, "models": models or None}
    inverse = means.undo("deploy_workflow", given_only(back))
    try:
        means.deployer.delete(asked.workflow)
    except NotFoundError:  # somebody else was quicker, or the try that was cut off has come to its end
        pass
    return Done({"service": asked.workflow, "deleted": True}, inverse)


def upgrade_service(means: Means, given: Mapping[str, Any]) -> Done:
    """Swap a model version in, without a failed request."""
    asked = read(UpgradeService, "upgrade_workflow", given)
    before = mine(means, asked.workflow)
    models = served_models(before)
    node = asked.node or _node_of(models, asked.model) or ""
    wished = {node: asked.model} if node in models else {}
    said = {**wished, **(asked.nodes or {})}
    if node in models and trial_of(before) is None and models[node] in {asked.model, _swapped_in(means, asked, models)}:
        seen = in_effect(means.deployer, before, lambda one: served_models(one).get(node) == models[node])
        if means.tried:  # the try that was cut off may not have come to that
            keep(means, asked.workflow, MODEL, lambda _: said)
        return Done({**told(seen), "model": asked.model}, means.noted)
    inverse = means.noted
    if node in models and models[node] != asked.model:
        back = {node: models[node]}
        more = given_back(means, asked.workflow, MODEL, lambda _: said, lambda _: back)
        arguments = {"workflow": asked.workflow, "model": models[node], "node": node, **more}
        inverse = means.undo("upgrade_workflow", arguments)
    trial = trial_of(before)
    if trial is not None and trial.models.get(node) == asked.model:
        record = means.deployer.promote(asked.workflow)
    else:
        record = means.deployer.promote(asked.workflow, asked.model, node=asked.node)
    keep(means, asked.workflow, MODEL, lambda _: said)
    return Done({**told(record), "model": asked.model}, inverse)


def update_workflow_traffic(means: Means, given: Mapping[str, Any]) -> Done:
    """Give a share of the requests, or a copy of each, to another version of a model. A share of 0 takes it back."""
    asked = read(UpdateTraffic, "update_workflow_traffic", given)
    before = mine(means, asked.workflow)
    trial = trial_of(before)
    changed = None if trial is None else _changed_model(before, trial)
    model, node = asked.model, asked.node
    if asked.weight <= 0 and not asked.shadow:
        if means.reverting and changed is not None and _is_alias(model) and _same_name(model, changed[1]):
            node, model = changed  # what it was put on trial as; the alias may be another version by now
        on_trial = () if trial is None else trial.models.values()
        if model not in on_trial and (trial is None or not _is_alias(model)):
            return Done({**told(before), "model": asked.model, "weight": 0.0}, means.noted)
    back: dict[str, Any] = {"workflow": asked.workflow, "model": asked.model, "weight": 0.0, "node": asked.node}
    if trial is not None and changed is not None:
        shared = 0.0 if trial.shadow else trial.weight
        back |= {"model": changed[1], "weight": shared, "shadow": trial.shadow}
        if asked.node is not None:
            back["node"] = changed[0]
    inverse = means.undo("update_workflow_traffic", given_only(back))
    record = means.deployer.traffic(asked.workflow, model, weight=asked.weight, shadow=asked.shadow, node=node)
    return Done({**told(record), "model": asked.model, "weight": asked.weight, "shadow": asked.shadow}, inverse)


def update_service_affinity(means: Means, given: Mapping[str, Any]) -> Done:
    """Set where a service's instances may run, and move them there."""
    asked = read(UpdateAffinity, "update_workflow_affinity", given)
    before = mine(means, asked.workflow)
    was = before.shape.affinity

    def said(workflow: Workflow) -> dict[str, Any]:
        return {**each(workflow, asked.affinity), **(asked.nodes or {})}

    more = given_back(means, asked.workflow, AFFINITY, said, lambda workflow: each(workflow, was))
    arguments = {"workflow": asked.workflow, "affinity": was, "kind": "online", **more}
    inverse = means.undo("update_workflow_affinity", arguments)
    record = means.deployer.scale(asked.workflow, affinity=asked.affinity)
    keep(means, asked.workflow, AFFINITY, said)
    return Done(told(record), inverse)


def update_service_resource(means: Means, given: Mapping[str, Any]) -> Done:
    """Set the cores of each of a service's instances."""
    asked = read(UpdateResource, "update_workflow_resource", given)
    if asked.memory is not None or asked.gpu:
        field = "gpu" if asked.gpu else "memory"
        raise UnsupportedError(
            f"update_workflow_resource: the embedded backend cannot change {field!r} of a service that runs. Change it "
            "in the application, and deploy again."
        )
    if asked.cpu is None:
        raise UsageError("update_workflow_resource was given nothing to change. Give it 'cpu'.")
    cores = float(parse_cpu(asked.cpu))
    before = mine(means, asked.workflow)
    was, inverse = before.shape.cores, means.noted

    def said(workflow: Workflow) -> dict[str, float | None]:
        return {**_shares(workflow, cores), **(asked.nodes or {})}

    if was is not None:  # cores that were not limited cannot be given back: a limit is only replaced
        more = given_back(means, asked.workflow, CORES, said, lambda workflow: _shares(workflow, was))
        arguments = {"workflow": asked.workflow, "cpu": was, "kind": "online", **more}
        inverse = means.undo("update_workflow_resource", arguments)
    record = means.deployer.scale(asked.workflow, cores=cores)
    keep(means, asked.workflow, CORES, said)
    return Done(told(record), inverse)


def apply_workflow_instance(means: Means, given: Mapping[str, Any]) -> Done:
    """Cut a service into so many instances of this size; with nothing said, bring up what is missing."""
    asked = read(Cut, "apply_workflow_instance", given)
    before = mine(means, asked.workflow)  # asked for, it is watched from now on, and what is missing is started
    wanted_now = given_only({name: getattr(asked, name) for name in ("instances", "cores", "affinity")})
    if not wanted_now:
        return Done(told(before))
    back = {name: value for name, value in cut_of(before).items() if name in wanted_now or name == "workflow"}
    inverse = means.noted
    if back.keys() >= wanted_now.keys():  # as above: what was not limited cannot be given back, nor a part of it alone
        inverse = means.undo("apply_workflow_instance", back)
    return Done(told(means.deployer.scale(asked.workflow, **wanted_now)), inverse)


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


def _swapped_in(means: Means, asked: UpgradeService, models: Mapping[str, str]) -> str | None:
    """Return the version that an earlier try has swapped in for an alias, as its note tells; a record names none."""
    was = None if means.noted is None else means.noted.arguments
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
