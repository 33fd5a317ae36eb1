"""The primitive that searches for the best configuration of a service. It starts a run and changes no service."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Self

from pydantic import Field, model_validator

from scanflow.agent.primitive_model import BuiltInPrimitive, PrimitiveContext, PrimitiveResult
from scanflow.agent.primitives.batch_primitives import build_run_result
from scanflow.agent.primitives.service_values import get_own_service
from scanflow.errors import InvalidError, UnsupportedError, UsageError
from scanflow.tuning.goals import GoalName

if TYPE_CHECKING:
    from scanflow.deployer.deployer_port import RunRequest

MAX_TRIALS = 200
MAX_MINUTES = 240.0

RECENT_SEARCHES = 20
"""The number of newest searches for a service that are checked for an active one."""


class TuneWorkflow(BuiltInPrimitive):
    """Search for the best configuration of a service, on a copy of it, as a run. Undone by stopping the run."""

    name = "tune_workflow"
    layer = "infrastructure"
    kind = "online"
    writes = ("tuning",)

    inputs: Annotated[Any, Field(description="The inputs to send: rows, or a mapping of input names to rows.")] = None
    file: Annotated[
        str | None, Field(description="The file with the inputs, next to the application's. Replaces inputs.")
    ] = None
    goal: Annotated[GoalName, Field(description="The objective.")] = "throughput"
    p99_s: Annotated[
        float | None, Field(gt=0, description="An upper bound on the 99th percentile of the latency, in seconds.")
    ] = None
    trials: Annotated[int, Field(ge=1, le=MAX_TRIALS, description="The maximum number of candidates.")] = 20
    minutes: Annotated[float, Field(gt=0, le=MAX_MINUTES, description="The time limit, in minutes.")] = 15.0
    seconds: Annotated[float, Field(ge=0.5, le=600, description="The duration of one measurement, in seconds.")] = 3.0
    connections: Annotated[int, Field(ge=1, le=10_000, description="The number of concurrent connections.")] = 16

    @model_validator(mode="after")
    def _check(self) -> Self:
        if (self.inputs is None) == (self.file is None):
            raise InvalidError("tune_workflow needs either inputs=[[1, 2, 3]] or file='x.npy', the inputs to send.")
        return self

    def carry_out(self, context: PrimitiveContext) -> PrimitiveResult:
        """Start the run.

        Raises:
            NotFoundError: the service is not deployed.
            UnsupportedError: the service does not run on the server's machine.
            UsageError: a search for it is active.
        """
        record = context.runs.find_run(context.key)
        if record is None:
            record = context.runs.begin(self._request(context), key=context.key)
        return build_run_result(context, record)

    def _request(self, context: PrimitiveContext) -> RunRequest:
        from scanflow.deployer.deployer_port import RunRequest
        from scanflow.transport.clients import is_loopback
        from scanflow.tuning.step import build_tuning_workflow

        service = get_own_service(context, self.workflow)
        if not is_loopback(service.url):
            raise UnsupportedError(
                f"tune_workflow: {self.workflow!r} is at {service.url}, but searches run only on the server's "
                "machine. Deploy it there: SCANFLOW_BACKEND=local"
            )
        stored = context.get_application()
        parameters = {name: value for name, value in vars(self).items() if name != "workflow"}
        workflow = build_tuning_workflow(self.workflow, **parameters)
        if workflow.name in {other.name for other in stored.application.workflows}:
            raise InvalidError(
                f"{stored.application.name!r} already has a workflow {workflow.name!r}, which is the search's name. "
                "Rename it."
            )
        searches = context.runs.list_newest(
            app=context.app, team=context.team, workflow=workflow.name, limit=RECENT_SEARCHES
        )
        busy = next((search for search in searches if search.state in {"running", "interrupted"}), None)
        if busy is not None:
            raise UsageError(
                f"A search for {self.workflow!r} is already active: {busy.name}. Wait for it, or stop it: scanflow "
                f"stop {busy.name}"
            )
        app = stored.application.replace(workflows=(workflow,), agents=())
        return RunRequest(app, workflow.name, source=stored.source)
