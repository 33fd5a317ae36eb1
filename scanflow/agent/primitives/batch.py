"""Primitives on what runs to its end: runs of batch workflows and of MPI jobs, and what is wanted of the steps of batch
workflows from the next run on."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, model_validator

from scanflow.agent.primitive_model import BuiltIn, Kind, Primitive, PrimitiveContext, PrimitiveResult
from scanflow.agent.primitives.arguments import OfExecutor, OfResources, Placed, RunName, Settings
from scanflow.app.executor import Executor
from scanflow.app.resources import Affinity
from scanflow.app.workflow import Workflow
from scanflow.errors import InvalidError, NotFoundError, ScanflowError, UnsupportedError, UsageError, did_you_mean

if TYPE_CHECKING:
    from scanflow.backends.records import RunRecord

LATEST = "@latest"
RECENT_RUNS = 200
"""Among how many of the newest runs the running ones of a workflow are looked for."""

Change = Callable[[Executor], Executor]
"""Makes of a step as it is then what it is to be."""


class _OfRuns(BuiltIn):
    @property
    def workflow_kind(self) -> Kind | None:
        return None  # batch workflows and MPI jobs alike

    @classmethod
    def rows(cls) -> tuple[Primitive, ...]:
        batch = cls.row()
        return batch, cls.row("mpi", batch.what.replace("a batch workflow", "an MPI workflow as it says"))


class RunWorkflow(_OfRuns):
    """Start a batch workflow: ``run_workflow("training", retrain=True)``. Undone by stopping the run."""

    name = "run_workflow"
    writes = ("running",)
    rest = "parameters"

    parameters: Settings = None

    if TYPE_CHECKING:

        def __init__(self, workflow: str, *, parameters: Settings = None, **more: Any) -> None: ...

    def carry_out(self, context: PrimitiveContext) -> PrimitiveResult:
        from scanflow.deployer.port import RunRequest

        record = context.runs.begun(context.key)
        if record is None:
            kept, workflow = context.workflow(self.workflow)
            parameters = self.parameters or {}
            workflow.with_parameters(parameters)
            request = RunRequest(kept.application, self.workflow, parameters=parameters, source=kept.source)
            record = context.runs.begin(request, key=context.key)
        return begun(context, record)


class StopWorkflow(_OfRuns):
    """Stop a run, or every run of the workflow that goes on."""

    name = "stop_workflow"
    writes = ("running",)
    reversible = False

    workflow: str = Field(default="", kw_only=False, description="The workflow's name.")
    run: Annotated[RunName | None, Field(description="The run's name. Unset: all that go on.")] = None

    @model_validator(mode="after")
    def _check(self) -> Self:
        if not self.workflow and self.run is None:
            raise InvalidError("stop_workflow needs the argument 'workflow', or 'run': name one.")
        return self

    @property
    def target(self) -> str:
        return super().target if self.run is None else f"run/{self.run}"

    @classmethod
    def rows(cls) -> tuple[Primitive, ...]:
        return tuple(one.replace(target="workflow/WORKFLOW or run/RUN") for one in super().rows())

    def carry_out(self, context: PrimitiveContext) -> PrimitiveResult:
        """Stop what runs. What has ended already stays as it is."""
        if self.run is None:
            context.workflow(self.workflow)
            records = _newest(context, self.workflow)
        else:
            records = [context.runs.show(self.run)]
        stopped = [context.runs.stop(one.name) for one in records if one.state in {"running", "interrupted"}]
        return PrimitiveResult({"runs": [one.name for one in records], "stopped": [one.name for one in stopped]})


class RunExecutor(OfExecutor):
    """Run one executor again, on the inputs it had in a past run. Undone by stopping it."""

    name = "run_executor"
    writes = ("EXECUTOR.running",)
    rest = "parameters"

    run: Annotated[RunName, Field(description="The past run. Unset: the workflow's newest.")] = LATEST
    parameters: Settings = None

    if TYPE_CHECKING:

        def __init__(
            self, workflow: str, executor: str, *, run: str = LATEST, parameters: Settings = None, **more: Any
        ) -> None: ...

    def carry_out(self, context: PrimitiveContext) -> PrimitiveResult:
        from scanflow.deployer.port import RunRequest

        record = context.runs.begun(context.key)
        if record is None:  # asked for only then: what was begun is the newest run by now
            kept, workflow = context.workflow(self.workflow)
            past = _past_run(context, self.workflow, self.run)
            workflow.node(self.executor)
            parameters = self.parameters or {}
            request = RunRequest(kept.application, parameters=parameters, run=past.name, step=self.executor)
            record = context.runs.begin(request, key=context.key)
        return begun(context, record)


class StopExecutor(OfExecutor):
    """Stop one executor of a run, or one replica of it: when another has finished the task, say."""

    name = "stop_executor"
    writes = ("EXECUTOR.running",)
    reversible = False

    run: Annotated[RunName, Field(description="The run. Unset: the workflow's newest.")] = LATEST
    replica: Annotated[
        int | None, Field(ge=0, description="Which task of a fan-out, from 0. Unset: all that are running.")
    ] = None

    def carry_out(self, context: PrimitiveContext) -> PrimitiveResult:
        """Stop it, or leave it as it is where it is not running. What does not need it goes on."""
        record = context.runs.show(_past_run(context, self.workflow, self.run).name)
        task = self.executor if self.replica is None else f"{self.executor}.{self.replica}"
        own = [one for one in record.tasks if task in {one.task, one.step}]
        if not own:
            names = {name for one in record.tasks for name in (one.step, one.task)}
            raise NotFoundError(f"The run {record.name!r} has no step {task!r}.{did_you_mean(task, names)}")
        stopped = any(one.state == "running" for one in own)
        if stopped:
            context.runs.stop(record.name, task)
        result = {"run": record.name, "executor": self.executor, "replica": self.replica, "stopped": stopped}
        return PrimitiveResult(result)


class UpgradeExecutor(OfExecutor):
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
        wanted, step = dict(self.parameters or {}), _step(context.workflow(self.workflow)[1], self.executor)
        if unknown := [name for name in wanted if name not in step.settable]:
            raise NotFoundError(
                f"The step {step.name!r} has no parameter {unknown[0]!r}.{did_you_mean(unknown[0], step.settable)}"
            )
        before = {name: _written(step)["parameters"][name] for name in wanted}
        return _change_one(
            context,
            self,
            lambda one: one.replace(parameters={**one.parameters, **wanted}),
            before,
            {"parameters": before},
        )


class UpdateExecutorAffinity(OfExecutor):
    """Set where one executor may run, from the next run on."""

    name = "update_executor_affinity"
    writes = ("EXECUTOR.affinity",)

    affinity: Placed = Field(kw_only=False, description="Where it may run: any core, cores of its own, and so on.")

    def carry_out(self, context: PrimitiveContext) -> PrimitiveResult:
        before = {"affinity": _written(_step(context.workflow(self.workflow)[1], self.executor)).get("affinity")}
        return _change_one(context, self, with_affinity(self.affinity), before, before)


class UpdateExecutorResource(OfExecutor, OfResources):
    """Set what one executor may use, from the next run on."""

    name = "update_executor_resource"
    writes = ("EXECUTOR.resource",)

    @model_validator(mode="after")
    def _check(self) -> Self:
        self.changed_resources()
        return self

    def carry_out(self, context: PrimitiveContext) -> PrimitiveResult:
        grant, step = self.changed_resources(), _step(context.workflow(self.workflow)[1], self.executor)
        before = {name: value for name, value in resources_of(step).items() if name in grant}
        return _change_one(context, self, with_resources(grant), before, before)


def upgrade_steps(context: PrimitiveContext, name: str, parameters: Mapping[str, Any]) -> PrimitiveResult:
    """Set parameters of a batch workflow for its later runs, the address of a model among them."""
    _, workflow = context.workflow(name)
    changed = workflow.with_parameters(parameters)
    before: dict[str, Any] = {}
    for step in workflow.steps:
        after = changed.node(step.name).parameters
        written = _written(step)["parameters"]
        before |= {f"{step.name}.{name}": written[name] for name, old in step.parameters.items() if after[name] != old}
    inverse = context.noted
    if before:
        inverse = context.undo("upgrade_workflow", {"workflow": workflow.name, "parameters": before})
        context.keep(workflow.name, lambda one: one.with_parameters(parameters))
    return PrimitiveResult({"workflow": workflow.name, "before": before}, inverse)


def update_steps(
    context: PrimitiveContext, act: BuiltIn, changes: Mapping[str, Change], was: Callable[[Executor], Any]
) -> PrimitiveResult:
    """Change several steps of a batch workflow. ``was`` tells of a step what the inverse is to give back."""
    workflow = context.workflow(act.workflow)[1]
    before = {name: was(_step(workflow, name)) for name in changes}
    undone = {"workflow": workflow.name, "executors": before}
    result = {"workflow": workflow.name, "before": before}
    return _keep_steps(context, workflow, act.name, changes, undone, result)


def affinity_of(step: Executor) -> Any:
    return _written(step).get("affinity")


def resources_of(step: Executor) -> dict[str, Any]:
    return {name: _written(step)["resources"].get(name) for name in ("cpu", "memory", "gpu")}


def with_affinity(value: Any) -> Change:
    return lambda step: step.replace(affinity=value)


def with_avoided(services: Sequence[str]) -> Change:
    """Have a step keep off the cores of these services too, and leave the rest of its affinity."""

    def change(step: Executor) -> Executor:
        known = step.affinity if isinstance(step.affinity, Affinity) else Affinity()
        return step.replace(affinity=known.replace(avoid_services=[*dict.fromkeys([*known.avoid_services, *services])]))

    return change


def with_resources(grant: Mapping[str, Any]) -> Change:
    return lambda step: step.replace(resources=step.resources.replace(**grant))


def _change_one(
    context: PrimitiveContext, act: OfExecutor, change: Change, before: Mapping[str, Any], back: Mapping[str, Any]
) -> PrimitiveResult:
    """Change one step; ``back`` are the arguments that the same primitive gives back what was ``before`` with."""
    where = {"workflow": act.workflow, "executor": act.executor}
    workflow = context.workflow(act.workflow)[1]
    return _keep_steps(
        context, workflow, act.name, {act.executor: change}, {**where, **back}, {**where, "before": before}
    )


def _keep_steps(
    context: PrimitiveContext,
    workflow: Workflow,
    primitive: str,
    changes: Mapping[str, Change],
    undone: Mapping[str, Any],
    result: dict[str, Any],
) -> PrimitiveResult:
    _check_runnable(context, _with_steps(workflow, changes))  # before anything is recorded
    inverse = context.undo(primitive, undone)
    context.keep(workflow.name, lambda one: _with_steps(one, changes))
    return PrimitiveResult(result, inverse)


def _check_runnable(context: PrimitiveContext, workflow: Workflow) -> None:
    """Refuse a change after which the backend could not honour a field, and so run nothing of the workflow."""
    from scanflow.deployer.port import RunRequest

    try:
        context.deployer.plan(RunRequest(context.get_application().application.with_workflow(workflow), workflow.name))
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


def begun(context: PrimitiveContext, record: RunRecord) -> PrimitiveResult:
    """Return what is told of a run that was begun, which is undone by stopping it."""
    result = {"run": record.name, "workflow": record.workflow, "state": record.state}
    return PrimitiveResult(result, context.undo("stop_workflow", {"run": record.name}))


def _newest(context: PrimitiveContext, workflow: str) -> list[RunRecord]:
    return context.runs.newest(app=context.app, team=context.team, workflow=workflow, limit=RECENT_RUNS)


def _past_run(context: PrimitiveContext, workflow: str, run: str) -> RunRecord:
    if run != LATEST:
        found = context.runs.show(run)
        if (found.app, found.team, found.workflow) != (context.app, context.team, workflow):
            raise UsageError(f"The run {found.name!r} is not one of the workflow {workflow!r}. Name another.")
        return found
    context.workflow(workflow)
    runs = _newest(context, workflow)
    if not runs:
        raise NotFoundError(f"The workflow {workflow!r} has not been run yet. Run it first: run_workflow")
    return runs[0]
