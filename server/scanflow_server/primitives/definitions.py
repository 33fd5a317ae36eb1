"""Primitives on what is wanted of a batch workflow and its steps: parameters, cores and memory, affinity.

They hold for the next run; what runs goes on as it was begun.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from pydantic import Field

from scanflow.agent.actions import Kind
from scanflow.agent.primitive_model import PrimitiveResult
from scanflow.app.executor import Executor
from scanflow.app.workflow import Workflow
from scanflow.errors import NotFoundError, ScanflowError, UnsupportedError, UsageError, did_you_mean
from scanflow_server.primitives.action_context import ActionContext
from scanflow_server.primitives.arguments import Arguments, OfExecutor, OfWorkflow, Placed, read

Change = Callable[[Executor], Executor]
"""Makes of a step as it is then what it is to be."""

_RESOURCES = ("cpu", "memory", "gpu")


class SomeResources(Arguments):
    """What a step may use; what is left out stays as it is, and null takes a limit away."""

    cpu: float | str | None = None
    memory: int | str | None = None
    gpu: int | None = None


class UpgradeBatch(OfWorkflow):
    """Arguments of ``upgrade_workflow`` for a batch workflow."""

    kind: Kind | None = None
    parameters: dict[str, Any] = Field(min_length=1)
    """``epochs`` for every step that has it, ``train.epochs`` for one."""


class UpgradeExecutor(OfExecutor):
    """Arguments of ``upgrade_executor``."""

    parameters: dict[str, Any] = Field(min_length=1)


class UpdateAffinity(OfWorkflow):
    """Arguments of ``update_workflow_affinity`` for a batch workflow: one for all steps, or one for each of some."""

    kind: Kind | None = None
    affinity: Placed = None
    executors: dict[str, Placed] | None = None


class UpdateExecutorAffinity(OfExecutor):
    """Arguments of ``update_executor_affinity``."""

    affinity: Placed = None


class UpdateResource(OfWorkflow, SomeResources):
    """Arguments of ``update_workflow_resource`` for a batch workflow: the same for all steps, or for each of some."""

    kind: Kind | None = None
    executors: dict[str, SomeResources] | None = None


class UpdateExecutorResource(OfExecutor, SomeResources):
    """Arguments of ``update_executor_resource``."""


def upgrade_batch(context: ActionContext, given: Mapping[str, Any]) -> PrimitiveResult:
    """Set parameters of a batch workflow for its later runs, the address of a model among them."""
    asked = read(UpgradeBatch, "upgrade_workflow", given)
    _, workflow = context.workflow(asked.workflow)
    changed = workflow.with_parameters(asked.parameters)
    before: dict[str, Any] = {}
    for step in workflow.steps:
        after = changed.node(step.name).parameters
        written = _written(step)["parameters"]
        before |= {f"{step.name}.{name}": written[name] for name, old in step.parameters.items() if after[name] != old}
    inverse = context.noted
    if before:
        inverse = context.undo("upgrade_workflow", {"workflow": workflow.name, "parameters": before})
        context.keep(workflow.name, lambda one: one.with_parameters(asked.parameters))
    return PrimitiveResult({"workflow": workflow.name, "before": before}, inverse)


def upgrade_executor(context: ActionContext, given: Mapping[str, Any]) -> PrimitiveResult:
    """Set parameters of one step."""
    asked = read(UpgradeExecutor, "upgrade_executor", given)
    _, workflow = context.workflow(asked.workflow)
    step = _step(workflow, asked.executor)
    if unknown := [name for name in asked.parameters if name not in step.settable]:
        raise NotFoundError(
            f"The step {step.name!r} has no parameter {unknown[0]!r}.{did_you_mean(unknown[0], step.settable)}"
        )
    before = {name: _written(step)["parameters"][name] for name in asked.parameters}
    where = {"workflow": workflow.name, "executor": step.name}
    undone = {**where, "parameters": before}
    changes = {step.name: lambda one: one.replace(parameters={**one.parameters, **asked.parameters})}
    return _keep_steps(context, workflow, "upgrade_executor", changes, undone, {**where, "before": before})


def update_batch_affinity(context: ActionContext, given: Mapping[str, Any]) -> PrimitiveResult:
    """Say where the steps of a batch workflow may run."""
    asked = read(UpdateAffinity, "update_workflow_affinity", given)
    _, workflow = context.workflow(asked.workflow)
    wanted = {step.name: asked.affinity for step in workflow.steps} if asked.executors is None else asked.executors
    before = {name: _written(_step(workflow, name)).get("affinity") for name in wanted}
    changes = {name: _with_affinity(value) for name, value in wanted.items()}
    undone = {"workflow": workflow.name, "executors": before}
    return _keep_steps(
        context, workflow, "update_workflow_affinity", changes, undone, {"workflow": workflow.name, "before": before}
    )


def update_executor_affinity(context: ActionContext, given: Mapping[str, Any]) -> PrimitiveResult:
    """Say where one step may run."""
    asked = read(UpdateExecutorAffinity, "update_executor_affinity", given)
    _, workflow = context.workflow(asked.workflow)
    step = _step(workflow, asked.executor)
    where = {"workflow": workflow.name, "executor": step.name}
    before = {"affinity": _written(step).get("affinity")}
    undone = {**where, **before}
    return _keep_steps(
        context,
        workflow,
        "update_executor_affinity",
        {step.name: _with_affinity(asked.affinity)},
        undone,
        {**where, "before": before},
    )


def update_batch_resource(context: ActionContext, given: Mapping[str, Any]) -> PrimitiveResult:
    """Say how many cores and how much memory the steps of a batch workflow may use."""
    asked = read(UpdateResource, "update_workflow_resource", given)
    _, workflow = context.workflow(asked.workflow)
    if asked.executors is None:
        each: dict[str, Arguments] = {step.name: asked for step in workflow.steps}
    else:
        each = dict(asked.executors)
    wanted = {name: _given_resources(one, "update_workflow_resource") for name, one in each.items()}
    before = {name: _resources(_step(workflow, name)) for name in wanted}
    changes = {name: _with_resources(grant) for name, grant in wanted.items()}
    undone = {"workflow": workflow.name, "executors": before}
    return _keep_steps(
        context, workflow, "update_workflow_resource", changes, undone, {"workflow": workflow.name, "before": before}
    )


def update_executor_resource(context: ActionContext, given: Mapping[str, Any]) -> PrimitiveResult:
    """Say how many cores and how much memory one step may use."""
    asked = read(UpdateExecutorResource, "update_executor_resource", given)
    _, workflow = context.workflow(asked.workflow)
    step = _step(workflow, asked.executor)
    grant = _given_resources(asked, "update_executor_resource")
    before = {name: value for name, value in _resources(step).items() if name in grant}
    where = {"workflow": workflow.name, "executor": step.name}
    undone = {**where, **before}
    return _keep_steps(
        context,
        workflow,
        "update_executor_resource",
        {step.name: _with_resources(grant)},
        undone,
        {**where, "before": before},
    )


def _keep_steps(
    context: ActionContext,
    workflow: Workflow,
    primitive: str,
    changes: Mapping[str, Change],
    undone: Mapping[str, Any],
    result: dict[str, Any],
) -> PrimitiveResult:
    _check_runnable(context, _with_steps(workflow, changes))  # before anything is noted
    inverse = context.undo(primitive, undone)
    context.keep(workflow.name, lambda one: _with_steps(one, changes))
    return PrimitiveResult(result, inverse)


def _check_runnable(context: ActionContext, workflow: Workflow) -> None:
    """Refuse a change after which the backend could not honour a field, and so run nothing of the workflow.

    Raises:
        UnsupportedError: names the field.
    """
    try:
        context.deployer.plan(context.kept().application.with_workflow(workflow), workflow.name)
    except UnsupportedError:
        raise
    except ScanflowError:
        return  # what else is wrong with it is not this change's doing


def _with_steps(workflow: Workflow, changes: Mapping[str, Change]) -> Workflow:
    changed = {name: change(_step(workflow, name)) for name, change in changes.items()}
    return workflow.replace(nodes=tuple(changed.get(node.name, node) for node in workflow.nodes))


def _step(workflow: Workflow, name: str) -> Executor:
    node = workflow.node(name)
    if not isinstance(node, Executor):
        raise UnsupportedError(
            f"{name!r} of the workflow {workflow.name!r} is no step of a batch one. Change the workflow as a whole."
        )
    return node


def _written(step: Executor) -> dict[str, Any]:
    """Return a step as it is written down, references included."""
    return step.model_dump(mode="json")


def _resources(step: Executor) -> dict[str, Any]:
    return {name: _written(step)["resources"].get(name) for name in _RESOURCES}


def _given_resources(asked: Arguments, primitive: str) -> dict[str, Any]:
    grant = {name: getattr(asked, name) for name in _RESOURCES if name in asked.model_fields_set}
    grant = {name: value for name, value in grant.items() if name != "gpu" or value is not None}
    if not grant:
        raise UsageError(f"{primitive} was given nothing to change. Give it 'cpu', 'memory' or 'gpu'.")
    return grant


def _with_affinity(value: Any) -> Change:
    return lambda step: step.replace(affinity=value)


def _with_resources(grant: Mapping[str, Any]) -> Change:
    return lambda step: step.replace(resources=step.resources.replace(**grant))
