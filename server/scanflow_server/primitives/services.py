"""Primitives on online workflows: served, changed while they serve, and ended.

What is wanted of the workflow is kept first in the service and then in the stored application, so that deploying it
again brings back what agents made of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import Field

from scanflow.agent.acts import Kind
from scanflow.app.quantities import parse_cpu
from scanflow.app.resources import AffinityMode
from scanflow.app.scaling import Scaling
from scanflow.app.service import Service
from scanflow.app.workflow import Workflow
from scanflow.backends.service_records import RevisionRecord, ServiceRecord
from scanflow.errors import NotFoundError, UnsupportedError, UsageError
from scanflow_server.primitives.arguments import Cores, Count, OfWorkflow, read
from scanflow_server.primitives.awaiting import in_effect
from scanflow_server.primitives.means import Done, Means

__all__ = [
    "apply_workflow_instance",
    "delete_workflow",
    "delete_workflow_instance",
    "deploy_workflow",
    "duplicate_workflow_instance",
    "served_models",
    "trial_of",
    "update_service_affinity",
    "update_service_resource",
    "update_workflow_replica",
    "update_workflow_traffic",
    "upgrade_service",
]

_Some = Annotated[int, Field(strict=True, ge=1)]


class Cut(OfWorkflow):
    """Arguments of ``apply_workflow_instance``: what is left out stays as it is."""

    instances: Count | None = None
    cores: Cores | None = None
    affinity: AffinityMode | None = None


class DeployWorkflow(Cut):
    """Arguments of ``deploy_workflow``."""

    port: int | None = None


class UpgradeService(OfWorkflow):
    """Arguments of ``upgrade_workflow`` for an online workflow."""

    kind: Kind | None = None
    model: str
    node: str | None = None


class UpdateAffinity(OfWorkflow):
    """Arguments of ``update_workflow_affinity`` for an online workflow."""

    kind: Kind | None = None
    affinity: AffinityMode


class UpdateResource(OfWorkflow):
    """Arguments of ``update_workflow_resource`` for an online workflow: cores of one instance."""

    kind: Kind | None = None
    cpu: float | str | None = None
    memory: int | str | None = None
    gpu: int | None = None


class UpdateReplica(OfWorkflow):
    """Arguments of ``update_workflow_replica``: a number of instances, or what decides it."""

    instances: Count | None = None
    metric: str | None = None
    target: float | None = None
    min: int | None = None
    max: int | None = None
    up: float | None = None
    down: float | None = None


class UpdateTraffic(OfWorkflow):
    """Arguments of ``update_workflow_traffic``."""

    model: str
    weight: float = 0.0
    shadow: bool = False
    node: str | None = None


class Several(OfWorkflow):
    """Arguments of ``duplicate_workflow_instance``."""

    count: _Some = 1


class Fewer(Several):
    """Arguments of ``delete_workflow_instance``."""

    instance: str | None = None


def deploy_workflow(means: Means, given: Mapping[str, Any]) -> Done:
    """Serve an online workflow; where it is served already, change it to what the application says now."""
    asked = read(DeployWorkflow, "deploy_workflow", given)
    kept, _ = means.workflow(asked.workflow)
    before = _found(means, asked.workflow)
    if before is None:
        inverse = means.undo("delete_workflow", {"workflow": asked.workflow})
    else:
        inverse = means.undo("apply_workflow_instance", _cut(before))
    record = means.deployer.deploy(
        kept.application,
        asked.workflow,
        instances=asked.instances,
        cores=asked.cores,
        affinity=asked.affinity,
        port=asked.port,
        source=kept.source,
    )
    return Done(_told(record), inverse)


def delete_workflow(means: Means, given: Mapping[str, Any]) -> Done:
    """Answer what is begun, then end the service."""
    asked = read(OfWorkflow, "delete_workflow", given)
    before = _found(means, asked.workflow)
    if before is None:
        if means.noted is None:
            raise NotFoundError(f"The service {asked.workflow!r} is not there: it is deleted already, or never was.")
        return Done({"service": asked.workflow, "deleted": True}, means.noted)
    port = urlsplit(before.url).port
    inverse = means.undo("deploy_workflow", {**_cut(before), **({} if port is None else {"port": port})})
    means.deployer.delete(asked.workflow)
    return Done({"service": asked.workflow, "deleted": True}, inverse)


def upgrade_service(means: Means, given: Mapping[str, Any]) -> Done:
    """Swap a model version in, without a failed request."""
    asked = read(UpgradeService, "upgrade_workflow", given)
    before = _mine(means, asked.workflow)
    models = served_models(before)
    node = asked.node or _node_of(models, asked.model) or ""
    if models.get(node) == asked.model and trial_of(before) is None:
        found = in_effect(means.deployer, before, lambda one: served_models(one).get(node) == asked.model)
        if means.noted is not None:  # by the try that was cut off, which did not come to that
            _keep(means, asked.workflow, lambda one: _served(one, node, asked.model))
        return Done({**_told(found), "model": asked.model}, means.noted)
    inverse = means.noted
    if node in models and models[node] != asked.model:
        arguments = {"workflow": asked.workflow, "model": models[node], "node": node}
        inverse = means.undo("upgrade_workflow", arguments)
    trial = trial_of(before)
    if trial is not None and trial.models.get(node) == asked.model:
        record = means.deployer.promote(asked.workflow)
    else:
        record = means.deployer.promote(asked.workflow, asked.model, node=asked.node)
    _keep(means, asked.workflow, lambda one: _served(one, node, asked.model))
    return Done({**_told(record), "model": asked.model}, inverse)


def update_workflow_traffic(means: Means, given: Mapping[str, Any]) -> Done:
    """Give a share of the requests, or a copy of each, to another version of a model. A share of 0 takes it back."""
    asked = read(UpdateTraffic, "update_workflow_traffic", given)
    before = _mine(means, asked.workflow)
    trial = trial_of(before)
    share = {"weight": asked.weight, "shadow": asked.shadow, "node": asked.node}
    on_trial = None if trial is None else next(iter(trial.models.values()), None)
    if asked.weight <= 0 and not asked.shadow and asked.model not in (() if trial is None else trial.models.values()):
        return Done({**_told(before), "model": asked.model, "weight": 0.0}, means.noted)
    back: dict[str, Any] = {"workflow": asked.workflow, "model": asked.model, "weight": 0.0, "node": asked.node}
    if trial is not None:
        changed = _changed_model(before, trial)
        model = on_trial if changed is None else changed[1]
        shared = 0.0 if trial.shadow else trial.weight
        back |= {"model": model or asked.model, "weight": shared, "shadow": trial.shadow}
    inverse = means.undo("update_workflow_traffic", _given(back))
    record = means.deployer.traffic(asked.workflow, asked.model, **share)  # type: ignore[arg-type]
    return Done({**_told(record), "model": asked.model, "weight": asked.weight, "shadow": asked.shadow}, inverse)


def update_service_affinity(means: Means, given: Mapping[str, Any]) -> Done:
    """Set where a service's instances may run, and move them there."""
    asked = read(UpdateAffinity, "update_workflow_affinity", given)
    before = _mine(means, asked.workflow)
    arguments = {"workflow": asked.workflow, "affinity": before.shape.affinity, "kind": "online"}
    inverse = means.undo("update_workflow_affinity", arguments)
    record = means.deployer.scale(asked.workflow, affinity=asked.affinity)
    _keep(means, asked.workflow, lambda one: one.replace(affinity=asked.affinity))
    return Done(_told(record), inverse)


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
    before = _mine(means, asked.workflow)
    inverse = means.noted
    if before.shape.cores is not None:  # cores that were not limited cannot be given back: a limit is only replaced
        arguments = {"workflow": asked.workflow, "cpu": before.shape.cores, "kind": "online"}
        inverse = means.undo("update_workflow_resource", arguments)
    record = means.deployer.scale(asked.workflow, cores=cores)
    _keep_cores(means, asked.workflow, cores)
    return Done(_told(record), inverse)


def update_workflow_replica(means: Means, given: Mapping[str, Any]) -> Done:
    """Set how many instances a service has, or what decides it: a metric and its target."""
    asked = read(UpdateReplica, "update_workflow_replica", given)
    wanted = {name: getattr(asked, name) for name in ("metric", "target", "min", "max", "up", "down")}
    wanted = {name: value for name, value in wanted.items() if value is not None}
    if (asked.instances is None) == (not wanted):
        raise UsageError(
            "update_workflow_replica takes either 'instances' or what decides it: 'metric', 'target', 'min', 'max'."
        )
    before = _mine(means, asked.workflow)
    if asked.instances is not None:
        return _scaled(means, before, asked.instances)
    kept, workflow = means.workflow(asked.workflow)
    node = next((one for one in workflow.services if one.scaling is not None), workflow.services[0])
    known = {} if node.scaling is None else node.scaling.model_dump(exclude_unset=True)
    scaling = Scaling(**{**known, **wanted})
    back: dict[str, Any] = {"instances": before.shape.instances}
    if node.scaling is not None:
        said = node.scaling.model_dump()
        back = {name: said[name] for name in ("metric", "target", "min", "max", "up", "down") if said[name] is not None}
    inverse = means.undo("update_workflow_replica", {"workflow": asked.workflow, **back})
    changed = _with_services(workflow, {node.name: node.replace(scaling=scaling)})
    app = kept.application.with_workflow(changed)
    cut = {name: value for name, value in _cut(before).items() if name in {"cores", "affinity"}}
    record = means.deployer.deploy(app, asked.workflow, source=kept.source, **cut)
    means.keep(changed)
    return Done({**_told(record), "scaling": scaling.model_dump(mode="json")}, inverse)


def apply_workflow_instance(means: Means, given: Mapping[str, Any]) -> Done:
    """Cut a service into so many instances of this size; with nothing said, bring up what is missing."""
    asked = read(Cut, "apply_workflow_instance", given)
    before = _mine(means, asked.workflow)  # asked for, it is watched from now on, and what is missing is started
    wanted = {name: getattr(asked, name) for name in ("instances", "cores", "affinity")}
    wanted = {name: value for name, value in wanted.items() if value is not None}
    if not wanted:
        return Done(_told(before))
    back = {name: value for name, value in _cut(before).items() if name in wanted or name == "workflow"}
    inverse = means.undo("apply_workflow_instance", back)
    return Done(_told(means.deployer.scale(asked.workflow, **wanted)), inverse)


def duplicate_workflow_instance(means: Means, given: Mapping[str, Any]) -> Done:
    """Add instances to a service, cut as those it has."""
    asked = read(Several, "duplicate_workflow_instance", given)
    before = _mine(means, asked.workflow)
    return _scaled(means, before, _instances_before(means, before) + asked.count, keep=False)


def delete_workflow_instance(means: Means, given: Mapping[str, Any]) -> Done:
    """Take instances of a service away."""
    asked = read(Fewer, "delete_workflow_instance", given)
    if asked.instance is not None:
        raise UnsupportedError(
            "delete_workflow_instance: the embedded backend chooses which instance goes, and cannot honour 'instance': "
            f"{asked.instance!r}. Give it a 'count'."
        )
    before = _mine(means, asked.workflow)
    left = _instances_before(means, before) - asked.count
    if left < 1:
        raise UsageError(
            f"The service {asked.workflow!r} has {_instances_before(means, before)} instances, and {asked.count} fewer "
            "would leave none. End it with delete_workflow, or give it a scaling with min=0."
        )
    return _scaled(means, before, left, keep=False)


def served_models(record: ServiceRecord) -> dict[str, str]:
    """Return, for each node that is a registered model, the version that is served."""
    return dict(next((one.models for one in record.revisions if one.role == "current"), {}))


def trial_of(record: ServiceRecord) -> RevisionRecord | None:
    """Return the version on trial, if there is one."""
    return next((one for one in record.revisions if one.role != "current"), None)


def _scaled(means: Means, before: ServiceRecord, instances: int, *, keep: bool = True) -> Done:
    """``keep``: it is what the application wants from now on, and not one moment's need."""
    arguments = {"workflow": before.name, "instances": before.shape.instances}
    inverse = means.undo("update_workflow_replica", arguments)
    if before.shape.instances == instances:
        record = in_effect(means.deployer, before, lambda one: one.shape.instances == instances)
    else:
        record = means.deployer.scale(before.name, instances=instances)
    if keep:
        _keep(means, before.name, lambda one: one.replace(instances=instances))
    return Done(_told(record), inverse)


def _instances_before(means: Means, before: ServiceRecord) -> int:
    """Return how many instances there were before the first try."""
    noted = None if means.noted is None else means.noted.arguments.get("instances")
    return noted if isinstance(noted, int) else before.shape.instances


def _mine(means: Means, name: str) -> ServiceRecord:
    record = means.deployer.service(name)
    if (record.app, record.team) != (means.app, means.team):
        raise UsageError(
            f"The service {name!r} is of the application {record.app!r} of the team {record.team!r}, and not of "
            f"{means.app!r} of {means.team!r}. An agent changes what is its own application's."
        )
    return record


def _found(means: Means, name: str) -> ServiceRecord | None:
    return _mine(means, name) if any(one.name == name for one in means.deployer.services()) else None


def _cut(record: ServiceRecord) -> dict[str, Any]:
    shape = record.shape
    cut = {"instances": shape.instances, "cores": shape.cores, "affinity": shape.affinity}
    return {"workflow": record.name, **_given(cut)}


def _given(arguments: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value is not None}


def _told(record: ServiceRecord) -> dict[str, Any]:
    shape = record.shape
    return {
        "service": record.name,
        "state": record.state,
        "instances": shape.instances,
        "cores": shape.cores,
        "affinity": shape.affinity,
    }


def _node_of(models: Mapping[str, str], model: str) -> str | None:
    """Return the node that a model's version is for: the one with that model, or the only one with any."""
    name = model.removeprefix("models:/").partition("@")[0].partition("/")[0]
    same = [node for node, served in models.items() if served.startswith((f"models:/{name}/", f"models:/{name}@"))]
    fitting = same or list(models)
    return fitting[0] if len(fitting) == 1 else None


def _changed_model(record: ServiceRecord, trial: RevisionRecord) -> tuple[str, str] | None:
    current = served_models(record)
    return next(((node, model) for node, model in trial.models.items() if current.get(node) != model), None)


def _served(one: Service, node: str, model: str) -> Service:
    return one.replace(model=model) if one.model is not None and one.name == node else one


def _keep(means: Means, name: str, change: Any) -> None:
    """Change the nodes of the workflow as it is wanted, where the application still has it."""
    workflow = _wanted(means, name)
    if workflow is not None:
        means.keep(_with_services(workflow, {one.name: change(one) for one in workflow.services}))


def _keep_cores(means: Means, name: str, cores: float) -> None:
    """Share an instance's cores out among the nodes, as they shared them before; equally where they did not say."""
    workflow = _wanted(means, name)
    if workflow is None:
        return
    own = [one.resources.cores for one in workflow.services]
    total = sum(value for value in own if value is not None)
    even = any(value is None for value in own) or not total
    shares = [cores / len(own) if even else cores * (value or 0.0) / total for value in own]
    changed = {
        one.name: one.replace(resources=one.resources.replace(cpu=round(share, 3)))
        for one, share in zip(workflow.services, shares, strict=True)
    }
    means.keep(_with_services(workflow, changed))


def _wanted(means: Means, name: str) -> Workflow | None:
    try:
        return means.workflow(name)[1]
    except NotFoundError:
        return None


def _with_services(workflow: Workflow, changed: Mapping[str, Service]) -> Workflow:
    return workflow.replace(nodes=tuple(changed.get(one.name, one) for one in workflow.nodes))
