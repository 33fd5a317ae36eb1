"""The run backend of a cluster: dispatches each run to the backend of its workflow's type."""

from __future__ import annotations

from collections.abc import Collection
from functools import cached_property
from typing import Any

from scanflow.app.application import Application
from scanflow.app.plan import Plan
from scanflow.app.workflow import Workflow
from scanflow.backends.backend_port import Environment
from scanflow.backends.definition import read_definition
from scanflow.backends.journal import Journal, JournalRun
from scanflow.backends.kubernetes.batch.argo_backend import KubernetesBatch
from scanflow.backends.kubernetes.batch.cluster_runs import ClusterRuns
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.mpi.mpi_backend import KubernetesMPI
from scanflow.backends.log_reader import LogReader, Stream
from scanflow.backends.output_files import OutputFiles
from scanflow.backends.run_definition import RunDefinition
from scanflow.backends.run_records import Observer, RunRecord, StepFile
from scanflow.names import RunName
from scanflow.placement.mpi.groups import ClusterNode
from scanflow.placement.mpi.job_plan import MPIPlan


class KubernetesRuns(ClusterRuns):
    """See :class:`~scanflow.backends.backend_port.RunBackend`. Any process of any home may call for any run."""

    @cached_property
    def _batch(self) -> KubernetesBatch:
        return KubernetesBatch(self._settings, self._cluster, self._cluster_settings, self._preparation)

    @cached_property
    def _mpi(self) -> KubernetesMPI:
        return KubernetesMPI(self._settings, self._cluster, self._cluster_settings, self._preparation)

    def _select_backend(self, workflow: Workflow) -> KubernetesBatch | KubernetesMPI:
        return self._mpi if workflow.type == "mpi" else self._batch

    def _get_backend(self, run: str) -> KubernetesBatch | KubernetesMPI:
        return self._select_backend(self.definition(run).workflow)

    def check(self, definition: RunDefinition) -> None:
        self._select_backend(definition.workflow).check(definition)

    def prepare(self, definition: RunDefinition) -> RunDefinition:
        if definition.workflow.type != "mpi":
            return self._batch.prepare(definition)
        self._mpi.check(definition)
        return definition

    def plan(self, app: Application, workflow: Workflow) -> Plan:
        return self._select_backend(workflow).plan(app, workflow)

    def manifests(self, app: Application, workflow: Workflow) -> list[Manifest]:
        """Return the objects of a run of a workflow, under a free run name."""
        return self._select_backend(workflow).manifests(app, workflow)

    @property
    def queue(self) -> str:
        return self._mpi.queue

    def job_nodes(self, app: Application, workflow: Workflow) -> list[ClusterNode]:
        return self._mpi.job_nodes(app, workflow)

    def job_plan(self, app: Application, workflow: Workflow) -> MPIPlan:
        return self._mpi.job_plan(app, workflow)

    def keep_function(self, pickled: bytes) -> str:
        return self._batch.keep_function(pickled)

    def forget_functions(self, before: float, needed: Collection[str] = ()) -> int:
        return self._batch.forget_functions(before, needed)

    def enter(self, definition: RunDefinition, name: RunName | None = None) -> RunRecord:
        return self._select_backend(definition.workflow).enter(definition, name)

    def drive(
        self, run: str, definition: RunDefinition | None = None, *, environment: Environment, observe: Observer
    ) -> RunRecord:
        return self._get_backend(run).drive(run, definition, environment=environment, observe=observe)

    def stop(self, run: str) -> RunRecord:
        return self._get_backend(run).stop(run)

    def stop_task(self, run: str, task: str) -> RunRecord:
        return self._get_backend(run).stop_task(run, task)

    def outputs(self, run: str, step: str) -> dict[str, Any] | list[dict[str, Any]]:
        return self._get_backend(run).outputs(run, step)

    def output_files(self, run: str, step: str, *, max_bytes: int | None = None) -> OutputFiles | list[OutputFiles]:
        return self._get_backend(run).output_files(run, step, max_bytes=max_bytes)

    def files(self, run: str, step: str | None = None) -> list[StepFile]:
        return self._get_backend(run).files(run, step)

    def logs(self, run: str, task: str, *, stream: Stream = "both", attempt: int | None = None) -> LogReader:
        return self._get_backend(run).logs(run, task, stream=stream, attempt=attempt)

    def _refresh(self, journal: Journal, run: JournalRun) -> RunRecord:
        return self._select_backend(read_definition(run).workflow)._refresh(journal, run)

    def _load_with_tasks(self, journal: Journal, run: JournalRun) -> RunRecord:
        return self._select_backend(read_definition(run).workflow)._load_with_tasks(journal, run)
