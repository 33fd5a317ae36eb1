"""The primitive for MPI workflows only: a planner chooses the granularity of a job (thesis 6.3.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from scanflow.agent.primitive_model import BuiltInPrimitive, PrimitiveContext, PrimitiveResult
from scanflow.agent.primitives.arguments import Settings
from scanflow.agent.primitives.batch_primitives import build_run_result
from scanflow.app.mpi import MPIPolicy

if TYPE_CHECKING:
    from scanflow.deployer.deployer_port import RunRequest

Profile = Literal["cpu", "memory", "network", "auto"]


class RunAutoconfigWorkflow(BuiltInPrimitive):
    """Run an MPI workflow, with the granularity that Algorithm 2 chooses for the available nodes. Undone by stopping
    the run."""

    name = "run_autoconfig_workflow"
    kind = "mpi"
    writes = ("running",)
    rest = "parameters"

    policy: Annotated[MPIPolicy | None, Field(description="The granularity policy. Unset: the workload's.")] = None
    profile: Annotated[
        Profile | None, Field(description="The program's bottleneck. Unset: the workload's, else measured if possible.")
    ] = None
    nodes: Annotated[int | None, Field(ge=1, description="The node limit. Unset: all that accept jobs.")] = None
    parameters: Settings = None

    if TYPE_CHECKING:

        def __init__(
            self,
            workflow: str,
            *,
            policy: MPIPolicy | None = None,
            profile: Profile | None = None,
            nodes: int | None = None,
            parameters: Settings = None,
            **more: Any,
        ) -> None: ...

    def carry_out(self, context: PrimitiveContext) -> PrimitiveResult:
        record, details = context.runs.find_run(context.key), dict[str, Any]()
        if record is None:
            request, details = self._configure(context)
            record = context.runs.begin(request, key=context.key)
        done = build_run_result(context, record)
        return PrimitiveResult({**done.result, **details}, done.inverse)

    def _configure(self, context: PrimitiveContext) -> tuple[RunRequest, dict[str, Any]]:
        """Return the run to start, and the planner's decision."""
        from scanflow.backends.backend_port import JobProfiler
        from scanflow.backends.mpi_program import load_mpi_program
        from scanflow.deployer.deployer_port import RunRequest
        from scanflow.placement.mpi.job_granularity import autoconfigure

        stored, workflow = context.workflow(self.workflow)
        workflow = workflow.with_parameters(self.parameters or {})
        planner = context.runs.get_job_planner()
        workload = autoconfigure(
            load_mpi_program(stored.application, workflow).workload,
            planner.job_nodes(stored.application, workflow),
            policy=self.policy,
            profile=self.profile,
            most_nodes=self.nodes,
            measurable=isinstance(planner, JobProfiler),
        )
        workflow = workflow.replace(nodes=(workload,))
        plan = planner.job_plan(stored.application, workflow)
        # Without its source file, so that resuming it uses the job as planned here.
        request = RunRequest(stored.application.with_workflow(workflow), self.workflow)
        cut = plan.granularity
        details = {"tasks": len(plan.ranks), "workers": cut.workers, "nodes": cut.nodes, "groups": cut.groups}
        return request, {**details, "why": list(plan.reasons), "queue": planner.queue}
