"""The operation primitives of thesis Table 5.4, in snake_case: what they are (:data:`CATALOGUE`), and functions that
return one as a value, an :class:`~scanflow.agent.acts.Act`, after checking its arguments. Nothing here acts.

Twenty rows over seventeen names: ``upgrade_workflow``, ``update_workflow_affinity`` and ``update_workflow_resource``
are there for batch workflows and for online ones, told apart by their argument ``kind``.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Annotated, Any, TypeAlias

from scanflow.agent.acts import Act, Kind
from scanflow.agent.catalogue import Parameter, Primitive, primitive, rows_of
from scanflow.app.parameters import plain_mapping
from scanflow.app.resources import AffinityMode, Resources
from scanflow.app.scaling import Scaling, ScalingMetric
from scanflow.errors import InvalidError, NotFoundError, did_you_mean
from scanflow.names import check_name

__all__ = [
    "CATALOGUE",
    "Parameter",
    "Primitive",
    "act_of",
    "apply_workflow_instance",
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

_MODEL = re.compile(r"models:/[^/@\s]+[/@][^/@\s]+")

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
    return _act("run_workflow", _workflow(workflow), ["running"], workflow=workflow, parameters=_both(parameters, more))


@primitive("application", "batch", fields=("running",), inverse=False, target="workflow/WORKFLOW or run/RUN")
def stop_workflow(
    workflow: Batch, *, run: Annotated[str | None, "The run's name. Unset: all that go on."] = None
) -> Act:
    """Stop a run, or every run of the workflow that goes on."""
    target = _workflow(workflow) if run is None else f"run/{_text(run, 'run')}"
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
        checked = _model(model)
        return _act(
            "upgrade_workflow",
            _service(workflow),
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
        _workflow(workflow),
        ["parameters"],
        workflow=workflow,
        kind=kind,
        parameters=_both(parameters, {}),
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
        _either(workflow, kind),
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
    granted = _resources("update_workflow_resource", cpu, memory, gpu)
    return _act(
        "update_workflow_resource", _either(workflow, kind), ["resource"], kind, workflow=workflow, kind=kind, **granted
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
    """Run one executor anew, on the inputs it had in a past run. Undone by stopping it."""
    target, field = _workflow(workflow), _field(executor, "running")
    return _act(
        "run_executor",
        target,
        [field],
        workflow=workflow,
        executor=executor,
        run=_text(run, "run"),
        parameters=_both(parameters, more),
    )


@primitive("infrastructure", "batch", fields=("EXECUTOR.running",), inverse=False)
def stop_executor(
    workflow: Batch, executor: Step, *, run: Annotated[str, "The run. Unset: the workflow's newest."] = "@latest"
) -> Act:
    """Stop one executor of a run: a replicated one, say, when another has finished the task."""
    target, field = _workflow(workflow), _field(executor, "running")
    return _act("stop_executor", target, [field], workflow=workflow, executor=executor, run=_text(run, "run"))


@primitive("infrastructure", "batch", fields=("EXECUTOR.parameters",))
def upgrade_executor(workflow: Batch, executor: Step, *, parameters: Settings = None, **more: More) -> Act:
    """Set parameters of one executor for all later runs: ``upgrade_executor("training", "load-data", days=30)``."""
    settings = _both(parameters, more)
    if not settings:
        raise InvalidError("upgrade_executor needs a parameter to set: upgrade_executor('training', 'load', days=30).")
    target, field = _workflow(workflow), _field(executor, "parameters")
    return _act("upgrade_executor", target, [field], workflow=workflow, executor=executor, parameters=settings)


@primitive("infrastructure", "batch", fields=("EXECUTOR.affinity",))
def update_executor_affinity(workflow: Batch, executor: Step, affinity: Mode) -> Act:
    """Set where one executor may run, from the next run on."""
    target, field = _workflow(workflow), _field(executor, "affinity")
    return _act("update_executor_affinity", target, [field], workflow=workflow, executor=executor, affinity=affinity)


@primitive("infrastructure", "batch", fields=("EXECUTOR.resource",))
def update_executor_resource(
    workflow: Batch, executor: Step, *, cpu: Cpu = None, memory: Memory = None, gpu: Gpu = None
) -> Act:
    """Set what one executor may use, from the next run on."""
    target, field = _workflow(workflow), _field(executor, "resource")
    granted = _resources("update_executor_resource", cpu, memory, gpu)
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
    fields = ["running", *_cut(instances, cores, affinity)]
    return _act(
        "deploy_workflow",
        _service(workflow),
        fields,
        "online",
        workflow=workflow,
        instances=_count(instances),
        cores=_above_zero("cores", cores),
        affinity=affinity,
        port=port,
    )


@primitive("application", "online", fields=("running",))
def delete_workflow(workflow: Online) -> Act:
    """End a service. Undone by deploying it again."""
    return _act("delete_workflow", _service(workflow), ["running"], "online", workflow=workflow)


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
        _service(workflow),
        ["replicas"],
        "online",
        workflow=workflow,
        instances=_count(instances),
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
        _service(workflow),
        ["traffic"],
        "online",
        workflow=workflow,
        model=_model(model),
        weight=weight,
        shadow=shadow,
        node=node,
    )


@primitive("infrastructure", "online", fields=("replicas", "resource", "affinity"))
def apply_workflow_instance(
    workflow: Online, *, instances: Copies = None, cores: Cores = None, affinity: SomeMode = None
) -> Act:
    """Cut a service into other instances while it serves. What is not said stays as it is."""
    fields = _cut(instances, cores, affinity)
    if not fields:
        raise InvalidError("apply_workflow_instance changes nothing. Say instances=, cores= or affinity=.")
    return _act(
        "apply_workflow_instance",
        _service(workflow),
        fields,
        "online",
        workflow=workflow,
        instances=_count(instances),
        cores=_above_zero("cores", cores),
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
        _service(workflow),
        ["replicas"],
        "online",
        workflow=workflow,
        count=_above_zero("count", count),
        instance=instance,
    )


@primitive("infrastructure", "online", fields=("replicas",))
def duplicate_workflow_instance(workflow: Online, *, count: Annotated[int, "How many to add."] = 1) -> Act:
    """Add instances to a service, cut as those it has."""
    return _act(
        "duplicate_workflow_instance",
        _service(workflow),
        ["replicas"],
        "online",
        workflow=workflow,
        count=_above_zero("count", count),
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
    if primitive not in _FUNCTIONS:
        raise NotFoundError(
            f"There is no primitive {primitive!r}.{did_you_mean(primitive, _FUNCTIONS)} See: scanflow strategies "
            "primitives"
        )
    return _FUNCTIONS[primitive](**arguments)


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
    given = {"workflow": workflow, "instances": _count(instances)}
    act = _act("update_workflow_replica", _service(workflow), ["replicas"], "online", **given)
    return act.replace(arguments={**act.arguments, "scaling": scaling})


def _workflow(name: str) -> str:
    return f"workflow/{check_name(name, 'workflow')}"


def _service(name: str) -> str:
    return f"service/{check_name(name, 'workflow')}"


def _either(name: str, kind: Kind) -> str:
    return _service(name) if kind == "online" else _workflow(name)


def _field(executor: str, field: str) -> str:
    return f"{check_name(executor, 'executor')}.{field}"


def _text(value: str, what: str) -> str:
    if not value.strip():
        raise InvalidError(f"The {what} has no name. Write one, or '@latest' for the newest.")
    return value


def _model(address: str) -> str:
    if not _MODEL.fullmatch(address):
        name = address.removeprefix("models:").strip("/@ ") or "name"
        raise InvalidError(
            f"The model {address!r} is not an address in the registry. Write 'models:/{name}@champion' or "
            f"'models:/{name}/1'."
        )
    return address


def _both(parameters: Mapping[str, Any] | None, more: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return the parameters of both spellings, or None for none."""
    if doubled := sorted(set(parameters or {}) & set(more)):
        raise InvalidError(f"The parameter {doubled[0]!r} is given twice. Remove one.")
    both: dict[str, Any] = plain_mapping({**(parameters or {}), **more})
    return both or None


def _resources(who: str, cpu: float | str | None, memory: str | int | None, gpu: int | None) -> dict[str, Any]:
    given: dict[str, Any] = {
        name: value for name, value in (("cpu", cpu), ("memory", memory), ("gpu", gpu)) if value is not None
    }
    if not given:
        raise InvalidError(f"{who} changes nothing. Say cpu=, memory= or gpu=.")
    checked = Resources(**given)
    return {name: getattr(checked, name) for name in given}


def _cut(instances: int | None, cores: float | None, affinity: str | None) -> list[str]:
    said = (("replicas", instances), ("resource", cores), ("affinity", affinity))
    return [field for field, value in said if value is not None]


def _count(instances: int | None) -> int | None:
    if instances is not None and instances < 0:
        raise InvalidError(f"instances={instances} is no number of copies. Write 0 or more.")
    return instances


def _above_zero(name: str, value: float | None) -> float | None:
    if value is not None and value <= 0:
        raise InvalidError(f"{name}={value} is not above zero.")
    return value
