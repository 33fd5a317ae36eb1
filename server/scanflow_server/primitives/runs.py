"""Primitives on runs of batch workflows: begin and stop them, as a whole or one step."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import Field

from scanflow.agent.primitive_model import PrimitiveResult
from scanflow.app.application import Application
from scanflow.app.parameters import plain
from scanflow.backends.records import RunRecord, RunStarted
from scanflow.deployer import Deployer
from scanflow.errors import NotFoundError, UnsupportedError, UsageError, did_you_mean
from scanflow_server.primitives.action_context import ActionContext
from scanflow_server.primitives.arguments import Arguments, OfExecutor, OfWorkflow, read

LATEST = "@latest"
RECENT_RUNS = 200
"""Among how many of the newest runs the running ones of a workflow are looked for."""


class InlineRuns:
    """Runs driven by the caller, to their end, and remembered by their keys for as long as this process lives."""

    def __init__(self, deployer: Deployer) -> None:
        self._deployer = deployer
        self._names: dict[str, str] = {}

    def begun(self, key: str) -> RunRecord | None:
        """See :class:`~scanflow_server.primitives.action_context.Runs`."""
        return self._deployer.show(self._names[key]) if key in self._names else None

    def begin(
        self, app: Application, workflow: str, *, parameters: Mapping[str, Any], source: Path | None, key: str
    ) -> RunRecord:
        """See :class:`~scanflow_server.primitives.action_context.Runs`."""
        if (known := self.begun(key)) is not None:
            return known
        return self._deployer.run(
            app, workflow, parameters=parameters, source=source, observe=lambda event: self._heard(key, event)
        )

    def spin(self, app: Application, step: str, *, run: str, parameters: Mapping[str, Any], key: str) -> RunRecord:
        """See :class:`~scanflow_server.primitives.action_context.Runs`."""
        if (known := self.begun(key)) is not None:
            return known
        return self._deployer.spin(
            step, run=run, app=app, parameters=parameters, observe=lambda event: self._heard(key, event)
        )

    def stop(self, run: str) -> RunRecord:
        """See :class:`~scanflow_server.primitives.action_context.Runs`."""
        return self._deployer.stop(run)

    def show(self, run: str) -> RunRecord:
        """See :class:`~scanflow_server.primitives.action_context.Runs`."""
        return self._deployer.show(run)

    def newest(self, *, app: str, team: str, workflow: str, limit: int) -> list[RunRecord]:
        """See :class:`~scanflow_server.primitives.action_context.Runs`."""
        found = self._deployer.runs(limit=limit)
        return [one for one in found if (one.app, one.team, one.workflow) == (app, team, workflow)]

    def _heard(self, key: str, event: object) -> None:
        if key and isinstance(event, RunStarted):
            self._names[key] = event.run


class RunWorkflow(OfWorkflow):
    """Arguments of ``run_workflow``."""

    parameters: dict[str, Any] = Field(default_factory=dict)


class StopWorkflow(Arguments):
    """Arguments of ``stop_workflow``: one run, or all of a workflow that go on."""

    workflow: str | None = None
    run: str | None = None


class RunExecutor(OfExecutor):
    """Arguments of ``run_executor``."""

    run: str = LATEST
    """The past run; ``@latest`` is the workflow's newest."""

    parameters: dict[str, Any] = Field(default_factory=dict)


class StopExecutor(OfExecutor):
    """Arguments of ``stop_executor``."""

    run: str = LATEST


def run_workflow(context: ActionContext, given: Mapping[str, Any]) -> PrimitiveResult:
    """Begin a run of a batch workflow, with parameters of its own."""
    asked = read(RunWorkflow, "run_workflow", given)
    record = context.runs.begun(context.key)
    if record is None:
        kept, workflow = context.workflow(asked.workflow)
        parameters = plain(asked.parameters, "the parameters of run_workflow")
        workflow.with_parameters(parameters)
        record = context.runs.begin(
            kept.application, asked.workflow, parameters=parameters, source=kept.source, key=context.key
        )
    return PrimitiveResult(_summary(record), context.undo("stop_workflow", {"run": record.name}))


def stop_workflow(context: ActionContext, given: Mapping[str, Any]) -> PrimitiveResult:
    """Stop one run, or all running ones of a workflow. What has ended already stays as it is."""
    asked = read(StopWorkflow, "stop_workflow", given)
    records = _runs_of(context, asked.workflow) if asked.run is None else [context.runs.show(asked.run)]
    stopped = [context.runs.stop(one.name) for one in records if one.state in {"running", "interrupted"}]
    return PrimitiveResult({"runs": [one.name for one in records], "stopped": [one.name for one in stopped]})


def run_executor(context: ActionContext, given: Mapping[str, Any]) -> PrimitiveResult:
    """Run one step again, on what it was given in a past run."""
    asked = read(RunExecutor, "run_executor", given)
    record = context.runs.begun(context.key)
    if record is None:  # asked for only then: what was begun is the newest run by now
        kept, workflow = context.workflow(asked.workflow)
        past = _past_run(context, asked)
        workflow.node(asked.executor)
        record = context.runs.spin(
            kept.application, asked.executor, run=past.name, parameters=asked.parameters, key=context.key
        )
    return PrimitiveResult(_summary(record), context.undo("stop_workflow", {"run": record.name}))


def stop_executor(context: ActionContext, given: Mapping[str, Any]) -> PrimitiveResult:
    """Stop one step of a run. The embedded backend stops whole runs: it can where nothing else of it is running."""
    asked = read(StopExecutor, "stop_executor", given)
    past = _past_run(context, asked)
    record = context.runs.show(past.name)
    if asked.executor not in (steps := {task.step for task in record.tasks}):
        raise NotFoundError(
            f"The run {record.name!r} has no step {asked.executor!r}.{did_you_mean(asked.executor, steps)}"
        )
    running = {task.step for task in record.tasks if task.state == "running"}
    if asked.executor not in running:
        return PrimitiveResult({"run": record.name, "executor": asked.executor, "stopped": False})
    if others := sorted(running - {asked.executor}):
        raise UnsupportedError(
            f"stop_executor: the embedded backend stops whole runs, and {', '.join(others)} of the run {record.name!r} "
            f"would end with {asked.executor!r}. Wait for them, or stop the run: stop_workflow"
        )
    context.runs.stop(record.name)
    return PrimitiveResult({"run": record.name, "executor": asked.executor, "stopped": True})


def _summary(record: RunRecord) -> dict[str, Any]:
    return {"run": record.name, "workflow": record.workflow, "state": record.state}


def _runs_of(context: ActionContext, workflow: str | None) -> list[RunRecord]:
    if workflow is None:
        raise UsageError("Neither 'run' nor 'workflow' was given. Name the run, or the workflow whose runs are meant.")
    context.workflow(workflow)
    return context.runs.newest(app=context.app, team=context.team, workflow=workflow, limit=RECENT_RUNS)


def _past_run(context: ActionContext, asked: RunExecutor | StopExecutor) -> RunRecord:
    if asked.run != LATEST:
        found = context.runs.show(asked.run)
        if (found.app, found.team, found.workflow) != (context.app, context.team, asked.workflow):
            raise UsageError(f"The run {found.name!r} is not one of the workflow {asked.workflow!r}. Name another.")
        return found
    runs = _runs_of(context, asked.workflow)
    if not runs:
        raise NotFoundError(f"The workflow {asked.workflow!r} has not been run yet. Run it first: run_workflow")
    return runs[0]
