"""The operation primitives of thesis Table 5.4, in snake_case: what they are (:data:`CATALOGUE`), and functions that
return one as a value, an :class:`~scanflow.agent.actions.Act`, after checking its arguments. Nothing here acts.

Twenty rows over seventeen names: ``upgrade_workflow``, ``update_workflow_affinity`` and ``update_workflow_resource``
are there for batch workflows and for online ones, told apart by their argument ``kind``.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any, TypeAlias

from scanflow.agent.actions import Act, Kind
from scanflow.agent.catalogue import Parameter, Primitive, primitive, rows_of
from scanflow.agent.primitive_arguments import (
    above_zero,
    both_spellings,
    cut_fields,
    executor_field,
    instance_count,
    model_address,
    named,
    resources_given,
    service_target,
    target_of_kind,
    workflow_target,
)
from scanflow.agent.primitive_model import installed_primitive, installed_primitives
from scanflow.app.resources import AffinityMode
from scanflow.app.scaling import Scaling, ScalingMetric
from scanflow.errors import InvalidError, NotFoundError, did_you_mean

__all__ = [
    "CATALOGUE",
    "Parameter",
    "Primitive",
    "act_of",
    "apply_workflow_instance",
    "catalogue",
    "delete_workflow",
    "delete_workflow_instance",
    "deploy_workflow",
    "duplicate_workflow_instance",
    "run_executor",
    "run_workflow",
    "stop_executor",
    "stop_workflow",
    "update_executor_affinity",
    "update_executor_resource",
    "update_workflow_affinity",
    "update_workflow_replica",
    "update_workflow_resource",
    "update_workflow_traffic",
    "upgrade_executor",
    "upgrade_workflow",
]

_UNSAID: Any = object()
"""Stands for an argument that was not given where None says something."""


Batch: TypeAlias = Annotated[str, "The batch workflow's name."]
Online: TypeAlias = Annotated[str, "The online workflow's name."]
Either: TypeAlias = Annotated[str, "The workflow's name."]
KindOf: TypeAlias = Annotated[Kind, "Which kind of workflow it is."]
Step: TypeAlias = Annotated[str, "The executor's name."]
Mode: TypeAlias = Annotated[AffinityMode, "Where it may run: any core, cores of its own, and so on."]
Cpu: TypeAlias = Annotated[float | str | None, "Cores, as 2, 0.5 or '500m'."]
Memory: TypeAlias = Annotated[str | int | None, "Bytes, as '512Mi' or a number."]
Gpu: TypeAlias = Annotated[int | None, "Whole GPUs."]
Settings: TypeAlias = Annotated[
    Mapping[str, Any] | None, "Parameters to set: 'epochs', or 'train.epochs' for one step."
]
More: TypeAlias = Annotated[Any, "Parameters, written as arguments."]
ModelAddress: TypeAlias = Annotated[str, "The version: 'models:/name/3' or 'models:/name@alias'."]
Node: TypeAlias = Annotated[str | None, "The node whose model it is. Unset: the only one with a model."]
Copies: TypeAlias = Annotated[int | None, "How many instances."]
Cores: TypeAlias = Annotated[float | None, "Cores of one instance."]
SomeMode: TypeAlias = Annotated[AffinityMode | None, "Where an instance may run."]


@primitive("application", "batch", fields=("running",))
def run_workflow(workflow: Batch, *, parameters: Settings = None, **more: More) -> Act:
    """Start a batch workflow: ``run_workflow("training", retrain=True)``. Undone by stopping the run."""
    return _act(
        "run_workflow",
        workflow_target(workflow),
        ["running"],
        workflow=workflow,
        parameters=both_spellings(parameters, more),
    )


@primitive("application", "batch", fields=("running",), inverse=False, target="workflow/WORKFLOW or run/RUN")
def stop_workflow(
    workflow: Batch, *, run: Annotated[str | None, "The run's name. Unset: all that go on."] = None
) -> Act:
    """Stop a run, or every run of the workflow that goes on."""
    target = workflow_target(workflow) if run is None else f"run/{named(run, 'run')}"
    return _act("stop_workflow", target, ["running"], workflow=workflow, run=run)


@primitive(
    "application",
    "batch",
    fields=("parameters",),
    takes=("workflow", "kind", "parameters"),
    what="Set parameters of a batch workflow for all its later runs.",
)
@primitive(
    "application",
    "online",
    fields=("model",),
    takes=("workflow", "kind", "model", "node"),
    what="Swap a model version in, without a failed request.",
)
def upgrade_workflow(
    workflow: Either,
    *,
    model: Annotated[str | None, "The version: 'models:/name/3' or 'models:/name@alias'."] = None,
    node: Node = None,
    parameters: Settings = None,
    kind: Annotated[Kind | None, "Which kind of workflow it is. Unset: 'online' with a model, else 'batch'."] = None,
) -> Act:
    """Give an online workflow another model version (``model=``), or a batch one other parameters (``parameters=``)."""
    kind = kind or ("online" if model is not None else "batch")
    if kind == "online":
        if model is None or parameters is not None:
            raise InvalidError("upgrade_workflow of an online workflow takes a model: model='models:/name/3'.")
        checked = model_address(model)
        return _act(
            "upgrade_workflow",
            service_target(workflow),
            ["model"],
            "online",
            workflow=workflow,
            kind=kind,
            model=checked,
            node=node,
        )
    if model is not None or node is not None or not parameters:
        raise InvalidError("upgrade_workflow of a batch workflow takes parameters: parameters={'epochs': 3}.")
    return _act(
        "upgrade_workflow",
        workflow_target(workflow),
        ["parameters"],
        workflow=workflow,
        kind=kind,
        parameters=both_spellings(parameters, {}),
    )


@primitive(
    "application",
    "batch",
    fields=("affinity",),
    what="Set where every executor of a batch workflow may run, from its next run on.",
)
@primitive(
    "application", "online", fields=("affinity",), what="Set where a service's instances may run, and move them there."
)
def update_workflow_affinity(workflow: Either, affinity: Mode, *, kind: KindOf = "online") -> Act:
    """Set where the executors of a batch workflow, or the instances of an online one, may run."""
    return _act(
        "update_workflow_affinity",
        target_of_kind(workflow, kind),
        ["affinity"],
        kind,
        workflow=workflow,
        affinity=affinity,
        kind=kind,
    )


@primitive(
    "application",
    "batch",
    fields=("resource",),
    what="Set what every executor of a batch workflow may use, from its next run on.",
)
@primitive("application", "online", fields=("resource",), what="Set what each of a service's instances may use.")
def update_workflow_resource(
    workflow: Either, *, cpu: Cpu = None, memory: Memory = None, gpu: Gpu = None, kind: KindOf = "online"
) -> Act:
    """Set what the executors of a batch workflow, or the instances of an online one, may use."""
    granted = resources_given("update_workflow_resource", cpu, memory, gpu)
    return _act(
        "update_workflow_resource",
        target_of_kind(workflow, kind),
        ["resource"],
        kind,
        workflow=workflow,
        kind=kind,
        **granted,
    )


@primitive("infrastructure", "batch", fields=("EXECUTOR.running",))
def run_executor(
    workflow: Batch,
    executor: Step,
    *,
    run: Annotated[str, "The past run. Unset: the workflow's newest."] = "@latest",
    parameters: Settings = None,
    **more: More,
) -> Act:
    """Run one executor again, on the inputs it had in a past run. Undone by stopping it."""
    target, field = workflow_target(workflow), executor_field(executor, "running")
    return _act(
        "run_executor",
        target,
        [field],
        workflow=workflow,
        executor=executor,
        run=named(run, "run"),
        parameters=both_spellings(parameters, more),
    )


@primitive("infrastructure", "batch", fields=("EXECUTOR.running",), inverse=False)
def stop_executor(
    workflow: Batch, executor: Step, *, run: Annotated[str, "The run. Unset: the workflow's newest."] = "@latest"
) -> Act:
    """Stop one executor of a run: a replicated one, say, when another has finished the task."""
    target, field = workflow_target(workflow), executor_field(executor, "running")
    return _act("stop_executor", target, [field], workflow=workflow, executor=executor, run=named(run, "run"))


@primitive("infrastructure", "batch", fields=("EXECUTOR.parameters",))
def upgrade_executor(workflow: Batch, executor: Step, *, parameters: Settings = None, **more: More) -> Act:
    """Set parameters of one executor for all later runs: ``upgrade_executor("training", "load-data", days=30)``."""
    settings = both_spellings(parameters, more)
    if not settings:
        raise InvalidError("upgrade_executor needs a parameter to set: upgrade_executor('training', 'load', days=30).")
    target, field = workflow_target(workflow), executor_field(executor, "parameters")
    return _act("upgrade_executor", target, [field], workflow=workflow, executor=executor, parameters=settings)


@primitive("infrastructure", "batch", fields=("EXECUTOR.affinity",))
def update_executor_affinity(workflow: Batch, executor: Step, affinity: Mode) -> Act:
    """Set where one executor may run, from the next run on."""
    target, field = workflow_target(workflow), executor_field(executor, "affinity")
    return _act("update_executor_affinity", target, [field], workflow=workflow, executor=executor, affinity=affinity)


@primitive("infrastructure", "batch", fields=("EXECUTOR.resource",))
def update_executor_resource(
    workflow: Batch, executor: Step, *, cpu: Cpu = None, memory: Memory = None, gpu: Gpu = None
) -> Act:
    """Set what one executor may use, from the next run on."""
    target, field = workflow_target(workflow), executor_field(executor, "resource")
    granted = resources_given("update_executor_resource", cpu, memory, gpu)
    return _act("update_executor_resource", target, [field], workflow=workflow, executor=executor, **granted)


@primitive("application", "online", fields=("running", "replicas", "resource", "affinity"))
def deploy_workflow(
    workflow: Online,
    *,
    instances: Copies = None,
    cores: Cores = None,
    affinity: SomeMode = None,
    port: Annotated[int | None, "The port of HTTP. Unset: the next that is free."] = None,
) -> Act:
    """Serve an online workflow. What is not said is as the workflow says. Undone by deleting it."""
    fields = ["running", *cut_fields(instances, cores, affinity)]
    return _act(
        "deploy_workflow",
        service_target(workflow),
        fields,
        "online",
        workflow=workflow,
        instances=instance_count(instances),
        cores=above_zero("cores", cores),
        affinity=affinity,
        port=port,
    )


@primitive("application", "online", fields=("running",))
def delete_workflow(workflow: Online) -> Act:
    """End a service. Undone by deploying it again."""
    return _act("delete_workflow", service_target(workflow), ["running"], "online", workflow=workflow)


@primitive("application", "online", fields=("replicas",))
def update_workflow_replica(
    workflow: Online,
    *,
    instances: Copies = None,
    metric: Annotated[ScalingMetric | None, "What decides, in place of a number."] = None,
    target: Annotated[float | None, "The value of the metric that each instance should see."] = None,
    min: Annotated[int | None, "Fewest instances."] = None,  # noqa: A002  sf.Scaling's word
    max: Annotated[int | None, "Most instances."] = None,  # noqa: A002
    up: Annotated[float | None, "Above this, instances are added."] = None,
    down: Annotated[float | None, "Below this, instances are taken away."] = None,
    scaling: Annotated[
        Mapping[str, Any] | None, "All of sf.Scaling, in place of what decides; None: nothing decides any more."
    ] = _UNSAID,
) -> Act:
    """Set how many instances a service has (``instances=``), or the threshold that decides (``metric=, target=``).

    Thresholds that are not said stay as they are. ``scaling=`` replaces all of them; with ``scaling=None`` there are
    always as many as ``instances=`` says, or as there are then.
    """
    thresholds = {"metric": metric, "target": target, "min": min, "max": max, "up": up, "down": down}
    given: dict[str, Any] = {name: value for name, value in thresholds.items() if value is not None}
    if scaling is not _UNSAID:
        return _rescaled(workflow, scaling, instances, given)
    if (instances is None) == (not given):
        raise InvalidError(
            "update_workflow_replica takes either a number, instances=4, or what decides it, metric='rps', target=100."
        )
    if given:
        Scaling(**given)
    return _act(
        "update_workflow_replica",
        service_target(workflow),
        ["replicas"],
        "online",
        workflow=workflow,
        instances=instance_count(instances),
        **given,
    )


@primitive("application", "online", fields=("traffic",))
def update_workflow_traffic(
    workflow: Online,
    model: ModelAddress,
    *,
    weight: Annotated[float, "Share of the requests, from 0 to 1."] = 0.0,
    shadow: Annotated[bool, "Copy the requests, and only count the answers."] = False,
    node: Node = None,
) -> Act:
    """Give a share of the requests, or with ``shadow`` a copy of each, to another version of a model."""
    if not 0 <= weight <= 1:
        raise InvalidError(f"update_workflow_traffic: weight {weight!r} is no share. Write a number from 0 to 1.")
    return _act(
        "update_workflow_traffic",
        service_target(workflow),
        ["traffic"],
        "online",
        workflow=workflow,
        model=model_address(model),
        weight=weight,
        shadow=shadow,
        node=node,
    )


@primitive("infrastructure", "online", fields=("replicas", "resource", "affinity"))
def apply_workflow_instance(
    workflow: Online, *, instances: Copies = None, cores: Cores = None, affinity: SomeMode = None
) -> Act:
    """Resize a service (instances, cores) without downtime. What is not given stays as it is."""
    fields = cut_fields(instances, cores, affinity)
    if not fields:
        raise InvalidError("apply_workflow_instance changes nothing. Say instances=, cores= or affinity=.")
    return _act(
        "apply_workflow_instance",
        service_target(workflow),
        fields,
        "online",
        workflow=workflow,
        instances=instance_count(instances),
        cores=above_zero("cores", cores),
        affinity=affinity,
    )


@primitive("infrastructure", "online", fields=("replicas",))
def delete_workflow_instance(
    workflow: Online,
    *,
    count: Annotated[int, "How many to take away."] = 1,
    instance: Annotated[str | None, "Which one. Unset: the backend chooses."] = None,
) -> Act:
    """Take instances of a service away: one, ``count``, or a named one."""
    if instance is not None and count != 1:
        raise InvalidError("delete_workflow_instance takes a name or a count, and not both. Remove one.")
    return _act(
        "delete_workflow_instance",
        service_target(workflow),
        ["replicas"],
        "online",
        workflow=workflow,
        count=above_zero("count", count),
        instance=instance,
    )


@primitive("infrastructure", "online", fields=("replicas",))
def duplicate_workflow_instance(workflow: Online, *, count: Annotated[int, "How many to add."] = 1) -> Act:
    """Add instances to a service, cut as those it has."""
    return _act(
        "duplicate_workflow_instance",
        service_target(workflow),
        ["replicas"],
        "online",
        workflow=workflow,
        count=above_zero("count", count),
    )


_FUNCTIONS: Mapping[str, Callable[..., Act]] = {
    function.__name__: function
    for function in (
        run_workflow,
        stop_workflow,
        upgrade_workflow,
        update_workflow_affinity,
        update_workflow_resource,
        run_executor,
        stop_executor,
        upgrade_executor,
        update_executor_affinity,
        update_executor_resource,
        deploy_workflow,
        delete_workflow,
        update_workflow_replica,
        update_workflow_traffic,
        apply_workflow_instance,
        delete_workflow_instance,
        duplicate_workflow_instance,
    )
}

CATALOGUE: tuple[Primitive, ...] = rows_of(list(_FUNCTIONS.values()))
"""The twenty rows of thesis Table 5.4."""


def act_of(primitive: str, arguments: Mapping[str, Any]) -> Act:
    """Return the primitive of that name with these arguments, checked: what was sent or kept as JSON, read back.

    Raises:
        NotFoundError: there is no such primitive.
        InvalidError: an argument is wrong.
    """
    if primitive in _FUNCTIONS:
        return _FUNCTIONS[primitive](**arguments)
    installed = installed_primitive(primitive)
    if installed is None:
        raise NotFoundError(
            f"There is no primitive {primitive!r}.{did_you_mean(primitive, _FUNCTIONS)} See: scanflow strategies "
            "primitives"
        )
    return installed(**arguments).act()


def catalogue() -> tuple[Primitive, ...]:
    """Return all primitives: those of the thesis, and those that installed packages add."""
    return (*CATALOGUE, *installed_primitives())


if not TYPE_CHECKING:  # else a checker would take any name for a primitive

    def __getattr__(name: str) -> Callable[..., Act]:
        if name.startswith("_") or installed_primitive(name) is None:
            raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
        return lambda **arguments: act_of(name, arguments)


def _act(primitive: str, target: str, fields: list[str], act_kind: Kind = "batch", /, **arguments: Any) -> Act:
    given = {name: value for name, value in arguments.items() if value is not None}
    return Act(primitive=primitive, kind=act_kind, arguments=given, target=target, fields=fields)


def _rescaled(
    workflow: str, scaling: Mapping[str, Any] | None, instances: int | None, thresholds: Mapping[str, Any]
) -> Act:
    """Return what replaces all that decides on the instances of a service."""
    if thresholds or (scaling is not None and instances is not None):
        raise InvalidError(
            "update_workflow_replica takes scaling= in place of all else that decides. Remove the others; only with "
            "scaling=None may instances= say how many there are."
        )
    if scaling is not None:
        Scaling(**scaling)
    given = {"workflow": workflow, "instances": instance_count(instances)}
    act = _act("update_workflow_replica", service_target(workflow), ["replicas"], "online", **given)
    return act.replace(arguments={**act.arguments, "scaling": scaling})
