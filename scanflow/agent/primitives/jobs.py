"""The primitive of MPI workflows that others have not: a planner decides how a job is cut (thesis 6.3.1)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import Field

from scanflow.agent.primitive_model import BuiltIn, PrimitiveContext, PrimitiveResult
from scanflow.agent.primitives.arguments import Settings
from scanflow.agent.primitives.batch import begun
from scanflow.app.mpi import MPIPolicy

if TYPE_CHECKING:
    from scanflow.deployer.port import RunRequest

Profile = Literal["cpu", "memory", "network", "auto"]


class RunAutoconfigWorkflow(BuiltIn):
    """Run an MPI workflow, cut by Algorithm 2 for the nodes that there are. Undone by stopping the run."""

    name = "run_autoconfig_workflow"
    kind = "mpi"
    writes = ("running",)
    rest = "parameters"

    policy: Annotated[MPIPolicy | None, Field(description="How it is cut. Unset: as the workload says.")] = None
    profile: Annotated[
        Profile | None,
        Field(description="What bounds the program. Unset: as the workload says, else measured where that can be."),
    ] = None
    nodes: Annotated[int | None, Field(ge=1, description="Nodes at most. Unset: all that take jobs.")] = None
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
        record, told = context.runs.begun(context.key), dict[str, Any]()
        if record is None:
            request, told = self._configured(context)
            record = context.runs.begin(request, key=context.key)
        done = begun(context, record)
        return PrimitiveResult({**done.result, **told}, done.inverse)

    def _configured(self, context: PrimitiveContext) -> tuple[RunRequest, dict[str, Any]]:
        """Return the run that is to begin, and what was decided."""
        from scanflow.backends.mpi_program import program_of
        from scanflow.backends.port import JobProfiler
        from scanflow.deployer.port import RunRequest
        from scanflow.placement.mpi.autoconfig import autoconfigured

        kept, workflow = context.workflow(self.workflow)
        workflow = workflow.with_parameters(self.parameters or {})
        planner = context.runs.job_planner()
        workload = autoconfigured(
            program_of(kept.application, workflow).workload,
            planner.job_nodes(kept.application, workflow),
            policy=self.policy,
            profile=self.profile,
            most_nodes=self.nodes,
            measurable=isinstance(planner, JobProfiler),
        )
        workflow = workflow.replace(nodes=(workload,))
        plan = planner.job_plan(kept.application, workflow)
        # Without its file, so that going on with it later takes the job as it was cut here.
        request = RunRequest(kept.application.with_workflow(workflow), self.workflow)
        cut = plan.granularity
        told = {"tasks": len(plan.ranks), "workers": cut.workers, "nodes": cut.nodes, "groups": cut.groups}
        return request, {**told, "why": list(plan.reasons), "queue": planner.queue}
