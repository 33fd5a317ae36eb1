"""The run backend of MPI jobs on a cluster: Volcano or the MPI Operator runs them, this home keeps their records."""

from __future__ import annotations

import json
import time
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, Final, NoReturn

from scanflow.app.application import Application
from scanflow.app.mpi import MPIWorkload
from scanflow.app.plan import Plan
from scanflow.app.workflow import Workflow
from scanflow.backends.backend_port import Environment
from scanflow.backends.definition import read_definition, redefine_run
from scanflow.backends.job_times import MPI
from scanflow.backends.journal import Journal, JournalRun
from scanflow.backends.kubernetes.api_errors import ConflictError
from scanflow.backends.kubernetes.batch.cluster_runs import ClusterRuns
from scanflow.backends.kubernetes.batch.pod_layout import CODE, PROGRESS
from scanflow.backends.kubernetes.batch.run_document import RunDocument
from scanflow.backends.kubernetes.batch.run_writer import RunVersion, StopRequestedError
from scanflow.backends.kubernetes.batch.shared_runs import RunHeader, has_object, read_begun_drive
from scanflow.backends.kubernetes.batch.workflow_facts import read_drive
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.environment.manifests import PODS
from scanflow.backends.kubernetes.gpu_claims import check_device_class
from scanflow.backends.kubernetes.kinds import Manifest, build_manifest
from scanflow.backends.kubernetes.mpi.mpi_driver import JobDriver, JobEnd, derive_end_state
from scanflow.backends.kubernetes.mpi.mpi_facts import JobFacts
from scanflow.backends.kubernetes.mpi.mpi_objects import ClusterJob, Network, build_worker_claims
from scanflow.backends.kubernetes.mpi.observed_job import ObservedJob
from scanflow.backends.kubernetes.mpi.operator import build_mpi_job
from scanflow.backends.kubernetes.mpi.rank_program import (
    PodProgram,
    build_pod_program,
    check_ranks_per_pod,
    list_cluster_nodes,
)
from scanflow.backends.kubernetes.mpi.result_volume import build_results, check_volume
from scanflow.backends.kubernetes.mpi.volcano import SCHEDULER, build_volcano_objects, has_task_topology
from scanflow.backends.kubernetes.nodes import list_nodes, sum_allocatable
from scanflow.backends.kubernetes.object_labels import MANAGED_SELECTOR, SERVICE
from scanflow.backends.kubernetes.object_watcher import ObjectWatcher
from scanflow.backends.kubernetes.pods import explain_denied_pod
from scanflow.backends.log_files import FileLogs
from scanflow.backends.log_reader import Stream
from scanflow.backends.mpi_program import build_one_step_plan, get_mpi_workload
from scanflow.backends.output_files import OutputFiles, OutputFilesReader
from scanflow.backends.rank_files import PLAN, RANKS, build_rank_tasks, create_rank_folder, list_rank_logs
from scanflow.backends.run_definition import RunDefinition
from scanflow.backends.run_records import FINAL_STATES, Observer, RunEnded, RunRecord, RunStarted
from scanflow.backends.step_process import build_task_tags
from scanflow.backends.tasks import (
    add_details,
    add_pending_tasks,
    get_logged_task,
    list_output_tasks,
    select_running_tasks,
    split_task,
)
from scanflow.backends.values import Outputs
from scanflow.errors import (
    AlreadyRunningError,
    InvalidError,
    NotFoundError,
    ScanflowError,
    UnsupportedError,
    UsageError,
)
from scanflow.files.private import create_private_folder
from scanflow.names import RunName, StepName
from scanflow.outputs import OUTPUTS_FOLDER
from scanflow.placement.mpi.groups import ClusterNode
from scanflow.placement.mpi.job_plan import MPIPlan, plan_job
from scanflow.processes.shared_files import hold_driver_lock, is_locked

_NOT_LASTING: Final = ("quota", "cannot create resource", "service account")
"""Parts of messages of what passes, as a quota that is used up, or says nothing of what the job's controller may do."""


class KubernetesMPI(ClusterRuns):
    """See :class:`~scanflow.backends.backend_port.RunBackend`. Any process of any home may call for any run."""

    # Before a run

    def check(self, definition: RunDefinition) -> None:
        self._plan_job(definition.app, definition.workflow)

    def keep_function(self, pickled: bytes) -> NoReturn:  # noqa: ARG002
        raise UnsupportedError("An MPI job runs a program, not a function. Write mainfile='...'.")

    def plan(self, app: Application, workflow: Workflow) -> Plan:
        program, plan = self._plan_job(app, workflow)
        notes = (f"image {program.image}", *filter(None, [program.note]), *plan.reasons, *plan.lines())
        return build_one_step_plan(
            workflow, program.workload, plan, program.argv, notes, sum_allocatable(list_nodes(self._cluster))
        )

    @property
    def queue(self) -> str:
        """Where jobs that do not fit are queued, for people."""
        return (
            "Volcano's"
            if self._cluster_settings.mpi == "volcano"
            else "the scheduler's: pods that do not fit are pending"
        )

    def job_nodes(self, app: Application, workflow: Workflow) -> list[ClusterNode]:
        """See :class:`~scanflow.backends.backend_port.JobPlanner`."""
        program = build_pod_program(app, workflow, self._cluster_settings)
        return list_cluster_nodes(self._cluster, program.workload, self._cluster_settings.device_plugin)

    def job_plan(self, app: Application, workflow: Workflow) -> MPIPlan:
        """See :class:`~scanflow.backends.backend_port.JobPlanner`."""
        return self._plan_job(app, workflow)[1]

    def manifests(self, app: Application, workflow: Workflow) -> list[Manifest]:
        """Return the objects of a run of a workflow, under a free run name."""
        program, plan = self._plan_job(app, workflow)
        return self._build_objects(str(self.free_name()), 1, app, program, plan, {})

    def _plan_job(self, app: Application, workflow: Workflow) -> tuple[PodProgram, MPIPlan]:
        program = build_pod_program(app, workflow, self._cluster_settings)
        plugin, who = self._cluster_settings.device_plugin, f"MPIWorkload {program.workload.name!r}"
        check_device_class(self._cluster, plugin, program.workload.resources_per_task, who)
        nodes = list_cluster_nodes(self._cluster, program.workload, plugin)
        plan = plan_job(program.workload, nodes)
        check_ranks_per_pod(program.workload, plan)
        namespace = self._cluster_settings.derive_namespace(app.name, app.team)
        check_volume(self._cluster, namespace, program.workload, plan, self._cluster_settings)
        return program, plan

    def _build_objects(
        self, run: str, drive: int, app: Application, program: PodProgram, plan: MPIPlan, variables: dict[str, str]
    ) -> list[Manifest]:
        """Return the objects of a job; the last one is the job itself."""
        code, results = program.code, build_results(program.workload, run)
        job = ClusterJob(
            app=app.name,
            team=app.team,
            namespace=self._cluster_settings.derive_namespace(app.name, app.team),
            run=run,
            drive=drive,
            workload=program.workload,
            plan=plan,
            argv=program.argv,
            image=program.image,
            keep_s=round(self._cluster_settings.workflow_ttl_s),
            variables={**variables, **results.variables},
            volumes=[*([] if code is None else [code.volume]), *results.volumes],
            mounts=[*([] if code is None else [code.mount]), *results.mounts],
            folder=None if code is None else str(code.mount["mountPath"]),
            service_account=PODS,
            device_plugin=self._cluster_settings.device_plugin,
            network=Network(
                host=self._cluster_settings.mpi_network == "host", multus=self._cluster_settings.mpi_multus
            ),
            task_topology=self._cluster_settings.mpi == "volcano" and self._has_task_topology(),
            has_services=self._may_have_services(),
        )
        manifests = build_volcano_objects(job) if self._cluster_settings.mpi == "volcano" else [build_mpi_job(job)]
        claims = build_worker_claims(job)
        return [*claims, *manifests] if code is None else [code.config_map, *claims, *manifests]

    def _has_task_topology(self) -> bool:
        namespace, name = SCHEDULER
        try:
            return has_task_topology(self._cluster.get("ConfigMap", name, namespace))
        except ScanflowError:  # reading it may not be allowed
            return False

    def _may_have_services(self) -> bool:
        try:
            return self._cluster.has_any("Pod", labels=f"{MANAGED_SELECTOR},{SERVICE}")
        except ScanflowError:  # listing pods of all namespaces may not be allowed
            return True

    def enter(self, definition: RunDefinition, name: RunName | None = None) -> RunRecord:
        program, plan = self._plan_job(definition.app, definition.workflow)
        self._ensure(definition.app)
        check_admission(
            self._cluster, self._build_objects(str(name or "job"), 1, definition.app, program, plan, {})[-1]
        )
        # The run keeps the content of its YAML file, which later readers may not have.
        definition = replace(definition, workflow=definition.workflow.replace(nodes=(program.workload,)))
        with self._journal() as journal:
            run = self._enter_run(journal, definition, name)
            create_private_folder(self._run_home(run).path)
            return self._load_with_tasks(journal, run)

    # A run

    def drive(
        self, run: str, definition: RunDefinition | None = None, *, environment: Environment, observe: Observer
    ) -> RunRecord:
        with self._journal() as journal:
            start = time.monotonic()
            with self._lock_run(journal, run) as (journal_run, home):
                name, begun = journal_run.record.name, None
                before = self._entered.pop(name, None) or self._read_version(journal, journal_run)
                journal_run = journal.run(name)
                run_definition = definition or read_definition(journal_run)
                facts = self._build_facts(journal, journal_run)
                manifest = facts.find_last()
                if self._wait_for_driver(journal_run, before, observe, lambda: self._get_last_drive(facts)):
                    manifest = facts.find_last()
                observed = None if manifest is None else facts.refresh(manifest)
                begun_before = 0 if before is None else before.drive
                is_last = manifest is not None and read_drive(manifest) >= begun_before
                is_unrecorded = is_last and journal_run.record.state == "running"
                adopted = observed is not None and (not observed.is_final or is_unrecorded)
                if not adopted and facts.is_done:
                    journal.set_run(journal_run, "succeeded", seconds=journal_run.record.seconds)
                    return self._load_with_tasks(journal, journal.run(name))
                if not adopted:
                    last = max(0 if manifest is None else read_drive(manifest), begun_before)
                    self._check_code(journal_run, run_definition)
                    try:
                        manifest, begun = self._submit(
                            journal, journal_run, run_definition, facts, before, last + 1, environment
                        )
                    except StopRequestedError:
                        return self._end_before_start(journal, journal_run, observe)
                assert manifest is not None
                if begun is not None and self._was_stopped(journal_run, manifest, begun):
                    facts.stop(manifest, facts.observe(manifest))
                journal.set_run(journal_run, "running", seconds=journal_run.record.seconds)
                started = RunStarted(run=name, steps=1)
                observe(started.with_details(folder=str(home.path), namespace=self._get_namespace(journal_run)))
                end = self._watch(facts, journal_run, manifest, adopted=adopted, observe=observe)
                seconds = (journal_run.record.seconds or 0.0) + time.monotonic() - start
                journal.set_run(journal_run, end.state, seconds=seconds, error=end.error)
                self._share_end(journal, journal_run, driven=True)
            record = self._load_with_tasks(journal, journal.run(name))
        observe(RunEnded(run=record.name, record=record))
        return record

    def _watch(
        self, facts: JobFacts, run: JournalRun, manifest: Manifest, *, adopted: bool, observe: Observer
    ) -> JobEnd:
        name = run.record.name
        watcher = ObjectWatcher(
            self._cluster, self._get_namespace(run), name, observe=observe, away_s=self._cluster_settings.timeout_s
        )
        driver = JobDriver(facts, watcher, name, observe=observe, pending_s=self._cluster_settings.pending_s)
        return driver.watch(manifest, adopted=adopted)

    def _submit(
        self,
        journal: Journal,
        run: JournalRun,
        definition: RunDefinition,
        facts: JobFacts,
        before: RunVersion | None,
        drive: int,
        environment: Environment,
    ) -> tuple[Manifest, RunHeader]:
        """Record what runs now, create the job, and return it, with the drive that was begun.

        Raises:
            StopRequestedError: it was asked to stop meanwhile.
            ConflictError: another home has begun a drive meanwhile.
        """
        self._check_namespace(run)
        self._ensure(definition.app)
        name, home, namespace = run.record.name, self._run_home(run), self._get_namespace(run)
        program, plan = self._plan_job(definition.app, definition.workflow)
        tags = build_task_tags(definition.workflow.name, name, program.workload.name, StepName(program.workload.name))
        variables = environment(tags)
        *others, job = self._build_objects(name, drive, definition.app, program, plan, dict(variables))
        check_admission(self._cluster, job)
        create_rank_folder(home.locate_outputs(facts.task), plan)
        document = RunDocument(**self._build_document_fields(name, definition), created=run.record.created, drive=drive)
        progress = self._build_progress(journal, run, drive, "running").pack()
        texts = {} if program.code is None else {CODE: json.dumps(program.code.volume)}
        begun = self._build_writer(run).begin_drive(
            document.build_manifest(namespace, {PROGRESS: progress}, texts), before
        )
        redefine_run(journal, run, definition, kept=())
        facts.open_output(drive).write_notes([*plan.reasons, *plan.lines()])
        for manifest in others:
            self._cluster.apply(manifest, force=True)
        try:
            created = self._cluster.create(job)
        except ConflictError as error:
            raise InvalidError(
                f"The namespace {namespace!r} already has a job {job['metadata']['name']!r}, of another run. Start a "
                "new run."
            ) from error
        home.record_drive(drive)
        return {"apiVersion": job["apiVersion"], "kind": job["kind"], **created}, begun

    def _get_last_drive(self, facts: JobFacts) -> int:
        manifest = facts.find_last()
        return 0 if manifest is None else read_drive(manifest)

    def stop(self, run: str) -> RunRecord:
        with self._journal() as journal:
            journal_run = self._get_run(journal, run)
            record = self._refresh(journal, journal_run)
            if record.state in FINAL_STATES:
                raise UsageError(f"The run {record.name!r} has {record.state} already; there is nothing to stop.")
            facts, home = self._build_facts(journal, journal_run), self._run_home(journal_run)
            live = _observe_last(facts)
            if live is None or live[1].is_final:
                is_being_created = self._request_stop(journal_run, lambda: self._get_last_drive(facts))
                live = _observe_last(facts)
                if is_being_created and (live is None or live[1].is_final):
                    return self._load_with_tasks(journal, journal.run(record.name))
            is_kept = live is not None and facts.stop(*live)
            if not is_kept and not is_locked(home.lock):
                facts.record_deletion(asked=True, why=None)
                journal.set_run(journal_run, "stopped", seconds=record.seconds)
                self._share_end(journal, journal_run)
            return self._load_with_tasks(journal, journal.run(record.name))

    def stop_task(self, run: str, task: str) -> RunRecord:
        record = self.show(run)
        select_running_tasks(record, task)
        if split_task(task)[1] is not None:
            raise UnsupportedError(
                f"The rank {task!r} cannot be stopped alone: the other ranks would wait for it forever. Stop the job: "
                f"scanflow stop {record.name}"
            )
        return self.stop(run)

    # Outputs and logs

    def outputs(self, run: str, step: str) -> dict[str, Any] | list[dict[str, Any]]:
        return dict(Outputs(self._locate_outputs(run, step), b""))

    def output_files(self, run: str, step: str, *, max_bytes: int | None = None) -> OutputFiles:
        return OutputFilesReader(max_bytes).read(self._locate_outputs(run, step), b"")

    def _locate_outputs(self, run: str, step: str) -> Path:
        record = self.show(run)
        [task] = list_output_tasks(record, step)
        return self._home.run(record.name).locate_outputs(task.task)

    def logs(self, run: str, task: str, *, stream: Stream = "both", attempt: int | None = None) -> FileLogs:
        record = self.show(run)
        task_record = get_logged_task(record, task)
        home, (job, rank) = self._home.run(record.name), split_task(task)
        folder = home.locate_attempt(StepName(job), attempt or task_record.attempts)
        files = [(name, folder / f"{name}.log") for name in ("stdout", "stderr")]
        if rank is not None:
            files = list_rank_logs(home.locate_outputs(StepName(job)), rank)
        chosen = [file for file in files if stream in {file[0], "both"}]
        if record.state in FINAL_STATES and not any(path.exists() for _, path in files):
            self._fetch_log(record, task_record.task, attempt or task_record.attempts)
        return FileLogs(lambda: (chosen, self.show(record.name).state != "running"))

    def _fetch_log(self, record: RunRecord, task: str, attempt: int) -> None:
        """Read the log of a job that another home watched to its end.

        Raises:
            NotFoundError: its launcher's pod is gone.
        """
        with self._journal() as journal:
            facts = self._build_facts(journal, journal.run(record.name))
            manifest = facts.find_last()
            if manifest is None or read_drive(manifest) != attempt or facts.refresh(manifest).launcher is None:
                raise NotFoundError(
                    f"The log of {task!r} was in pods of the run {record.name!r}, which are gone. A home that watched "
                    "the run to its end has a copy: run the command there."
                )

    # State

    def _build_facts(self, journal: Journal, run: JournalRun) -> JobFacts:
        workload: MPIWorkload = get_mpi_workload(read_definition(run).workflow)
        return JobFacts(
            self._cluster,
            self._get_namespace(run),
            journal,
            run,
            self._run_home(run),
            workload,
            self._cluster_settings.mpi,
        )

    def _refresh(self, journal: Journal, run: JournalRun) -> RunRecord:
        """Return a run's current record; while a process here drives it, the record it wrote."""
        record, home = run.record, self._run_home(run)
        if record.state in FINAL_STATES:
            return self._add_details(record)
        if not is_locked(home.lock):
            with suppress(AlreadyRunningError), hold_driver_lock(home.lock, record.name):
                return self._add_details(self._read_unwatched(journal, run))
        return self._add_details(journal.run(record.name).record)

    def _read_unwatched(self, journal: Journal, run: JournalRun) -> RunRecord:
        """Update the record of a run that no process drives."""
        record, facts, home = run.record, self._build_facts(journal, run), self._run_home(run)
        manifest = facts.find_last()
        if manifest is None or read_drive(manifest) < read_begun_drive(home):
            if not has_object(home):
                return record.model_copy(update={"state": "interrupted"})
            error = facts.record_deletion(asked=False, why=None)
            journal.set_run(run, "stopped", seconds=record.seconds, error=error)
        else:
            observed = facts.refresh(manifest)
            if not observed.is_final:
                return record
            seconds = 0.0 if observed.began is None or observed.ended is None else observed.ended - observed.began
            journal.set_run(run, derive_end_state(observed), seconds=(record.seconds or 0.0) + seconds)
        self._share_end(journal, run)
        return journal.run(record.name).record

    def _list_small_files(self, run: JournalRun) -> dict[str, str]:
        home, job = self._run_home(run), get_mpi_workload(read_definition(run).workflow).name
        folder = home.locate_outputs(StepName(job))
        paths = [folder / RANKS / PLAN, *(folder / RANKS).glob("*.exit"), *(folder / OUTPUTS_FOLDER).glob("*")]
        return {
            path.relative_to(home.outputs).as_posix(): path.read_text(encoding="utf-8")
            for path in sorted(paths)
            if path.is_file()
        }

    def _add_details(self, record: RunRecord) -> RunRecord:
        return super()._add_details(record).with_details(type=MPI)

    def _load_with_tasks(self, journal: Journal, run: JournalRun) -> RunRecord:
        workflow = read_definition(run).workflow
        tasks = add_pending_tasks(workflow, journal.read_tasks(run).values())
        ranks = build_rank_tasks(self._run_home(run).locate_outputs(tasks[0].task), tasks[0])
        place = ", ".join(sorted({rank.place for rank in ranks if rank.place})) or None
        tasks = (*ranks, tasks[0].model_copy(update={"place": place}))
        return self._add_details(add_details(self._load_without_tasks(journal, run), workflow, tasks))


def _observe_last(facts: JobFacts) -> tuple[Manifest, ObservedJob] | None:
    """Return the last job of a run, with its observed state."""
    manifest = facts.find_last()
    return None if manifest is None else (manifest, facts.observe(manifest))


def check_admission(cluster: Cluster, job: Manifest) -> None:
    """Raise for a job whose pods its namespace refuses, by a dry run of each.

    Raises:
        InvalidError: Pod Security, a LimitRange or a policy refuses them.
    """
    metadata = job["metadata"]
    for number, template in enumerate(_list_templates(job)):
        own = {
            **template.get("metadata", {}),
            "name": f"{metadata['name']}-{number}",
            "namespace": metadata["namespace"],
        }
        spec = {"restartPolicy": "Never", **template["spec"]}
        try:
            cluster.create(build_manifest("Pod", own, spec=spec), dry_run=True)
        except UsageError as error:
            denial = explain_denied_pod(str(error), metadata["namespace"])
            if denial is None or any(words in str(error) for words in _NOT_LASTING):
                return
            raise InvalidError(
                f"The namespace {metadata['namespace']!r} refuses the pods of MPI jobs: {denial}"
            ) from error


def _list_templates(job: Manifest) -> list[Manifest]:
    """Return the pod templates of a job of either engine."""
    spec = job["spec"]
    replicas = spec["tasks"] if job["kind"] == "Job" else spec["mpiReplicaSpecs"].values()
    return [group["template"] for group in replicas]
