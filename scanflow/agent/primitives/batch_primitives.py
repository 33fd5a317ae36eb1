"""Primitives on runs of batch workflows and of MPI jobs, and on the steps of batch workflows from the next run on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, model_validator

from scanflow.agent.primitive_model import BuiltInPrimitive, Kind, Primitive, PrimitiveContext, PrimitiveResult
from scanflow.agent.primitives.arguments import ExecutorPrimitive, Placed, ResourceArguments, RunName, Settings
from scanflow.app.executor import Executor
from scanflow.app.resources import Affinity
from scanflow.app.workflow import Workflow
from scanflow.errors import InvalidError, NotFoundError, ScanflowError, UnsupportedError, UsageError, did_you_mean

if TYPE_CHECKING:
    from scanflow.backends.run_records import RunRecord

LATEST = "@latest"
RECENT_RUNS = 200
"""The number of newest runs of a workflow that are searched for active ones."""

Change = Callable[[Executor], Executor]
"""Returns the changed step for the current one."""


class _RunPrimitive(BuiltInPrimitive):
    @property
    def workflow_kind(self) -> Kind | None:
        return None  # batch workflows and MPI jobs alike

    @classmethod
    def rows(cls) -> tuple[Primitive, ...]:
        batch = cls.row()
        return batch, cls.row("mpi", batch.what.replace("a batch workflow", "an MPI workflow as declared"))


class RunWorkflow(_RunPrimitive):
    """Start a batch workflow: ``run_workflow("training", retrain=True)``. Undone by stopping the run."""

    name = "run_workflow"
    writes = ("running",)
    rest = "parameters"

    parameters: Settings = None

    if TYPE_CHECKING:

        def __init__(self, workflow: str, *, parameters: Settings = None, **more: Any) -> None: ...

    def carry_out(self, context: PrimitiveContext) -> PrimitiveResult:
        from scanflow.deployer.deployer_port import RunRequest

        record = context.runs.find_run(context.key)
        if record is None:
            stored, workflow = context.workflow(self.workflow)
            parameters = self.parameters or {}
            workflow.with_parameters(parameters)
            request = RunRequest(stored.application, self.workflow, parameters=parameters, source=stored.source)
            record = context.runs.begin(request, key=context.key)
        return build_run_result(context, record)


class StopWorkflow(_RunPrimitive):
    """Stop a run, or every active run of the workflow."""

    name = "stop_workflow"
    writes = ("running",)
    reversible = False

    workflow: str = Field(default="", kw_only=False, description="The workflow's name.")
    run: Annotated[RunName | None, Field(description="The run's name. Unset: all active runs.")] = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.workflow and self.run is None:
            raise InvalidError("stop_workflow needs the argument 'workflow' or 'run'.")
        return self

    @property
    def target(self) -> str:
        return super().target if self.run is None else f"run/{self.run}"

    @classmethod
    def rows(cls) -> tuple[Primitive, ...]:
        return tuple(row.replace(target="workflow/WORKFLOW or run/RUN") for row in super().rows())

    def carry_out(self, context: PrimitiveContext) -> PrimitiveResult:
        """Stop active runs."""
        if self.run is None:
            context.workflow(self.workflow)
            records = _list_newest_runs(context, self.workflow)
        else:
            records = [context.runs.show(self.run)]
        stopped = [context.runs.stop(record.name) for record in records if record.state in {"running", "interrupted"}]
        return PrimitiveResult(
            {"runs": [record.name for record in records], "stopped": [record.name for record in stopped]}
        )


class RunExecutor(ExecutorPrimitive):
    """Run one executor again, on the inputs it had in a past run. Undone by stopping it."""

    name = "run_executor"
    writes = ("EXECUTOR.running",)
    rest = "parameters"

    run: Annotated[RunName, Field(description="The past run. Unset: the newest of the whole workflow.")] = LATEST
    parameters: Settings = None

    if TYPE_CHECKING:

        def __init__(
            self, workflow: str, executor: str, *, run: str = LATEST, parameters: Settings = None, **more: Any
        ) -> None: ...

    def carry_out(self, context: PrimitiveContext) -> PrimitiveResult:
        from scanflow.deployer.deployer_port import RunRequest

        record = context.runs.find_run(context.key)
        if record is None:  # only then: by now the started run is the newest
            stored, workflow = context.workflow(self.workflow)
            past = _get_past_run(context, self.workflow, self.run)
            if self.run == LATEST:
                full = context.runs.find_full_run(app=context.app, team=context.team, workflow=self.workflow)
                past = full or past
            workflow.with_parameters(parameters := self.parameters or {}, step=self.executor)
            request = RunRequest(stored.application, parameters=parameters, run=past.name, step=self.executor)
            record = context.runs.begin(request, key=context.key)
        return build_run_result(context, record)


class StopExecutor(ExecutorPrimitive):
    """Stop one executor of a run, or one replica of it, for example when another has finished the task."""

    name = "stop_executor"
    writes = ("EXECUTOR.running",)
    reversible = False

    run: Annotated[RunName, Field(description="The run. Unset: the workflow's newest.")] = LATEST
    replica: Annotated[
        int | None, Field(ge=0, description="The index of the task in a fan-out, from 0. Unset: all running tasks.")
    ] = None

    def carry_out(self, context: PrimitiveContext) -> PrimitiveResult:
        """Stop the task if it is running. Tasks that do not depend on it continue."""
        record = context.runs.show(_get_past_run(context, self.workflow, self.run).name)
        task_name = self.executor if self.replica is None else f"{self.executor}.{self.replica}"
        own = [task for task in record.tasks if task_name in {task.task, task.step}]
        if not own:
            names = {name for task in record.tasks for name in (task.step, task.task)}
            raise NotFoundError(f"The run {record.name!r} has no step {task_name!r}.{did_you_mean(task_name, names)}")
        stopped = any(task.state == "running" for task in own)
        if stopped:
            context.runs.stop(record.name, task_name)
        result = {"run": record.name, "executor": self.executor, "replica": self.replica, "stopped": stopped}
        return PrimitiveResult(result)


class UpgradeExecutor(ExecutorPrimitive):
    """Set parameters of one executor for all later runs: ``upgrade_executor("training", "load-data", days=30)``."""

    name = "upgrade_executor"
    writes = ("EXECUTOR.parameters",)
    rest = "parameters"

    parameters: Settings = None

    if TYPE_CHECKING:

        def __init__(self, workflow: str, executor: str, *, parameters: Settings = None, **more: Any) -> None: ...

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.parameters:
            raise InvalidError(
                "upgrade_executor needs a parameter to set: upgrade_executor('training', 'load', days=30)."
            )
        return self

    def carry_out(self, context: PrimitiveContext) -> PrimitiveResult:
        workflow = context.workflow(self.workflow)[1]
        step, parameters = _get_step(workflow, self.executor), dict(self.parameters or {})
        workflow.with_parameters(parameters, step=step.name)
        changes = {name.removeprefix(f"{step.name}."): value for name, value in parameters.items()}
        before = {name: _dump(step)["parameters"][name] for name in changes}
        return _change_step(
            context,
            self,
            lambda executor: executor.replace(parameters={**executor.parameters, **changes}),
            before,
            {"parameters": before},
        )


class UpdateExecutorAffinity(ExecutorPrimitive):
    """Set where one executor may run, from the next run on."""

    name = "update_executor_affinity"
    writes = ("EXECUTOR.affinity",)

    affinity: Placed = Field(kw_only=False, description="Where it may run: on any core, on exclusive cores, and so on.")

    def carry_out(self, context: PrimitiveContext) -> PrimitiveResult:
        before = {"affinity": _dump(_get_step(context.workflow(self.workflow)[1], self.executor)).get("affinity")}
        return _change_step(context, self, set_affinity(self.affinity), before, before)


class UpdateExecutorResource(ExecutorPrimitive, ResourceArguments):
    """Set the resources of one executor, from the next run on."""

    name = "update_executor_resource"
    writes = ("EXECUTOR.resource",)

    @model_validator(mode="after")
    def _check(self) -> Self:
        self.get_changed_resources()
        return self

    def carry_out(self, context: PrimitiveContext) -> PrimitiveResult:
        grant, step = self.get_changed_resources(), _get_step(context.workflow(self.workflow)[1], self.executor)
        before = {name: value for name, value in get_resources(step).items() if name in grant}
        return _change_step(context, self, set_resources(grant), before, before)


def upgrade_steps(context: PrimitiveContext, name: str, parameters: Mapping[str, Any]) -> PrimitiveResult:
    """Set parameters of a batch workflow for its later runs, the address of a model among them."""
    _, workflow = context.workflow(name)
    changed = workflow.with_parameters(parameters)
    before: dict[str, Any] = {}
    for step in workflow.steps:
        after = changed.node(step.name).parameters
        written = _dump(step)["parameters"]
        before |= {f"{step.name}.{name}": written[name] for name, old in step.parameters.items() if after[name] != old}
    inverse = context.noted
    if before:
        inverse = context.undo("upgrade_workflow", {"workflow": workflow.name, "parameters": before})
        context.update_workflow(workflow.name, lambda stored: stored.with_parameters(parameters))
    return PrimitiveResult({"workflow": workflow.name, "before": before}, inverse)


def update_steps(
    context: PrimitiveContext,
    act: BuiltInPrimitive,
    changes: Mapping[str, Change],
    get_before: Callable[[Executor], Any],
) -> PrimitiveResult:
    """Change several steps of a batch workflow; ``get_before`` returns the value that the inverse restores."""
    workflow = context.workflow(act.workflow)[1]
    before = {name: get_before(_get_step(workflow, name)) for name in changes}
    inverse_arguments = {"workflow": workflow.name, "executors": before}
    result = {"workflow": workflow.name, "before": before}
    return _store_steps(context, workflow, act.name, changes, inverse_arguments, result)


def get_affinity(step: Executor) -> Any:
    return _dump(step).get("affinity")


def get_resources(step: Executor) -> dict[str, Any]:
    return {name: _dump(step)["resources"].get(name) for name in ("cpu", "memory", "gpu")}


def set_affinity(value: Any) -> Change:
    return lambda step: step.replace(affinity=value)


def add_avoided_services(services: Sequence[str]) -> Change:
    """Add services to those whose cores a step avoids, keeping the rest of its affinity."""

    def change(step: Executor) -> Executor:
        affinity = step.affinity if isinstance(step.affinity, Affinity) else Affinity()
        return step.replace(
            affinity=affinity.replace(avoid_services=[*dict.fromkeys([*affinity.avoid_services, *services])])
        )

    return change


def set_resources(grant: Mapping[str, Any]) -> Change:
    return lambda step: step.replace(resources=step.resources.replace(**grant))


def _change_step(
    context: PrimitiveContext,
    act: ExecutorPrimitive,
    change: Change,
    before: Mapping[str, Any],
    restored: Mapping[str, Any],
) -> PrimitiveResult:
    """Change one step; ``restored`` are the arguments with which the same primitive restores ``before``."""
    where = {"workflow": act.workflow, "executor": act.executor}
    workflow = context.workflow(act.workflow)[1]
    return _store_steps(
        context, workflow, act.name, {act.executor: change}, {**where, **restored}, {**where, "before": before}
    )


def _store_steps(
    context: PrimitiveContext,
    workflow: Workflow,
    primitive: str,
    changes: Mapping[str, Change],
    inverse_arguments: Mapping[str, Any],
    result: dict[str, Any],
) -> PrimitiveResult:
    _check_runnable(context, _replace_steps(workflow, changes))  # before anything is recorded
    inverse = context.undo(primitive, inverse_arguments)
    context.update_workflow(workflow.name, lambda stored: _replace_steps(stored, changes))
    return PrimitiveResult(result, inverse)


def _check_runnable(context: PrimitiveContext, workflow: Workflow) -> None:
    """Raise ``UnsupportedError`` if the backend could not run the changed workflow, as it does not support a field."""
    from scanflow.deployer.deployer_port import RunRequest

    try:
        context.deployer.plan(RunRequest(context.get_application().application.with_workflow(workflow), workflow.name))
    except UnsupportedError:
        raise
    except ScanflowError:
        return  # other errors are not caused by this change


def _replace_steps(workflow: Workflow, changes: Mapping[str, Change]) -> Workflow:
    changed = {name: change(_get_step(workflow, name)) for name, change in changes.items()}
    return workflow.replace(nodes=tuple(changed.get(node.name, node) for node in workflow.nodes))


def _get_step(workflow: Workflow, name: str) -> Executor:
    node = workflow.node(name)
    if not isinstance(node, Executor):
        raise UnsupportedError(
            f"{name!r} of the workflow {workflow.name!r} is not a step of a batch workflow. Change the whole workflow."
        )
    return node


def _dump(step: Executor) -> dict[str, Any]:
    """Serialize a step, references included."""
    return step.model_dump(mode="json")


def build_run_result(context: PrimitiveContext, record: RunRecord) -> PrimitiveResult:
    """Return the result of a started run, with the inverse that stops it."""
    result = {"run": record.name, "workflow": record.workflow, "state": record.state}
    return PrimitiveResult(result, context.undo("stop_workflow", {"run": record.name}))


def _list_newest_runs(context: PrimitiveContext, workflow: str) -> list[RunRecord]:
    return context.runs.list_newest(app=context.app, team=context.team, workflow=workflow, limit=RECENT_RUNS)


def _get_past_run(context: PrimitiveContext, workflow: str, run: str) -> RunRecord:
    if run != LATEST:
        record = context.runs.show(run)
        if (record.app, record.team, record.workflow) != (context.app, context.team, workflow):
            raise UsageError(f"The run {record.name!r} does not belong to the workflow {workflow!r}. Use another run.")
        return record
    context.workflow(workflow)
    runs = _list_newest_runs(context, workflow)
    if not runs:
        raise NotFoundError(f"The workflow {workflow!r} has not been run yet. Run it first: run_workflow")
    return runs[0]
