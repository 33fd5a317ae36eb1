"""The run backend of batch workflows on a cluster: Argo runs them, this home keeps their records."""

from __future__ import annotations

import json
import time
from collections.abc import Collection
from contextlib import suppress
from functools import cached_property, partial
from typing import Any, NamedTuple

from scanflow.app.application import Application
from scanflow.app.plan import Plan
from scanflow.app.workflow import Workflow
from scanflow.backends.backend_port import Environment
from scanflow.backends.definition import SavedDefinition, describe_edited, read_definition, redefine_run
from scanflow.backends.function_store import delete_unused_functions
from scanflow.backends.journal import Journal, JournalRun
from scanflow.backends.kubernetes.api_errors import ConflictError
from scanflow.backends.kubernetes.batch.cluster_runs import ClusterRuns
from scanflow.backends.kubernetes.batch.fetching import are_tasks_missing
from scanflow.backends.kubernetes.batch.finished_steps import (
    FinishedSteps,
    add_skipped,
    list_finished,
    list_finished_steps,
    reset_changed,
)
from scanflow.backends.kubernetes.batch.outputs_claim import (
    are_outputs_gone,
    check_outputs,
    record_claim,
    reset_finished_tasks,
)
from scanflow.backends.kubernetes.batch.pod_functions import Functions, NamespaceKeys
from scanflow.backends.kubernetes.batch.pod_layout import CODE, DRIVE, OUTPUTS_CLAIM, PROGRESS
from scanflow.backends.kubernetes.batch.preparation import AppliedCode, StepCode
from scanflow.backends.kubernetes.batch.run_checks import CheckedRun, check_definition, check_step_gpus, plan_steps
from scanflow.backends.kubernetes.batch.run_document import RunDocument
from scanflow.backends.kubernetes.batch.run_writer import RunVersion, StopRequestedError
from scanflow.backends.kubernetes.batch.shared_runs import RunHeader, has_object, read_begun_drive
from scanflow.backends.kubernetes.batch.stopping import stop_running_task
from scanflow.backends.kubernetes.batch.store_address import check_store_secret, locate_store
from scanflow.backends.kubernetes.batch.task_results import TaskResults
from scanflow.backends.kubernetes.batch.workflow_driver import WorkflowDriver
from scanflow.backends.kubernetes.batch.workflow_facts import (
    Facts,
    LiveWorkflow,
    compute_duration,
    forget_outputs,
    list_workflows,
)
from scanflow.backends.kubernetes.batch.workflow_records import ObservedWorkflow, observe_workflow
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.log_reader import LogReader, Stream
from scanflow.backends.output_files import OutputFiles, OutputFilesReader
from scanflow.backends.run_definition import RunDefinition
from scanflow.backends.run_records import (
    FINAL_STATES,
    FINISHED_STATES,
    Observer,
    RunEnded,
    RunRecord,
    RunStarted,
    RunState,
    StepFile,
    TaskRecord,
)
from scanflow.backends.step_process import build_task_tags
from scanflow.backends.tasks import (
    add_details,
    add_pending_tasks,
    cut_down,
    list_spin_inputs,
    select_current_tasks,
    select_running_tasks,
)
from scanflow.backends.values import Outputs
from scanflow.errors import ScanflowError, UnavailableError, UsageError
from scanflow.files.private import create_private_folder
from scanflow.names import RunName, StepName
from scanflow.processes.shared_files import is_locked


class _Edited(NamedTuple):
    """What of the finished tasks of a resumed run was changed since."""

    tasks: tuple[StepName, ...] = ()
    """Those that run again."""

    steps: tuple[str, ...] = ()
    """Steps that are kept, each with what was changed."""


class KubernetesBatch(ClusterRuns):
    """See :class:`~scanflow.backends.backend_port.RunBackend`. Any process of any home may call for any run."""

    @cached_property
    def _functions(self) -> Functions:
        return Functions(self._home)

    @cached_property
    def _keys(self) -> NamespaceKeys:
        return NamespaceKeys(self._cluster, self._ensured)

    @cached_property
    def _applied_code(self) -> AppliedCode:
        return AppliedCode(self._cluster, self._environments.get)

    @cached_property
    def _results(self) -> TaskResults:
        return TaskResults(
            self._cluster,
            self._cluster_settings,
            self._home,
            show=self.show,
            read_namespace=self._read_namespace,
            get_key=self._keys.get,
        )

    # Before a run

    def check(self, definition: RunDefinition) -> None:
        self.prepare(definition)

    def prepare(self, definition: RunDefinition) -> RunDefinition:
        if isinstance(definition, CheckedRun):
            return definition
        cut = cut_down(definition)
        self._take_over(cut)
        checked = self._check(cut)
        self._preparation.resolve_code(cut.app, cut.workflow)
        if cut.past is not None:
            list_spin_inputs(cut, self.show(cut.past))
        return checked

    def plan(self, app: Application, workflow: Workflow) -> Plan:
        self._check(RunDefinition(app, workflow))
        self._preparation.resolve_code(app, workflow)
        return plan_steps(self._cluster, workflow, self._cluster_settings.device_plugin)

    def manifests(self, app: Application, workflow: Workflow) -> list[Manifest]:
        """Return the objects of a run of a workflow, under a free run name."""
        from scanflow.backends.kubernetes.batch.argo_workflow import build_workflow_manifest

        definition, code = RunDefinition(app, workflow), self._preparation.resolve_code(app, workflow)
        document = RunDocument(
            run=str(self.free_name()), definition=SavedDefinition.from_definition(definition), created=0, drive=1
        )
        namespace = self._cluster_settings.derive_namespace(app.name, app.team)
        store = locate_store(self._cluster, self._cluster_settings, namespace)
        pod_settings = self._preparation.build_pod_settings(namespace, code, store)
        argo_workflow = build_workflow_manifest(document, definition, FinishedSteps(), pod_settings)
        return [manifest for manifest in (*code.objects, argo_workflow) if manifest is not None]

    def _ensure(self, app: Application) -> None:
        super()._ensure(app)
        check_store_secret(
            self._cluster, self._cluster_settings, self._cluster_settings.derive_namespace(app.name, app.team)
        )

    def _check(self, definition: RunDefinition) -> CheckedRun:
        check_gpus = partial(check_step_gpus, self._cluster, self._cluster_settings.device_plugin)
        return check_definition(definition, self._functions.check, check_gpus)

    def keep_function(self, pickled: bytes) -> str:
        return self._functions.keep(pickled)

    def forget_functions(self, before: float, needed: Collection[str] = ()) -> int:
        with self._journal() as journal:
            return delete_unused_functions(self._home.functions, before, needed, journal.iterate_definitions())

    def enter(self, definition: RunDefinition, name: RunName | None = None) -> RunRecord:
        cut = self.prepare(definition)
        self._ensure(cut.app)
        with self._journal() as journal:
            tasks: list[TaskRecord] = []
            if cut.past is not None:
                past = self._get_run(journal, cut.past)
                self._check_namespace(past)
                namespace, past_home = self._get_namespace(past), self._run_home(past)
                check_outputs(self._cluster, self._cluster_settings, namespace, past.record.name, past_home)
                tasks = list_spin_inputs(cut, self._load_with_tasks(journal, past))
            run = self._enter_run(journal, cut, name, tasks)
            create_private_folder(self._run_home(run).path)
            return self._load_with_tasks(journal, run)

    def _take_over(self, definition: RunDefinition) -> None:
        """Take over what a spin needs of its past run, if another home entered that."""
        if definition.past is not None:
            with self._journal() as journal:
                past = self._get_run(journal, definition.past)
                self._check_code(past, definition)
                self._restore_functions(past, definition)

    def _restore_functions(self, run: JournalRun, definition: RunDefinition) -> None:
        """Take over the functions by value of a run that another home entered."""
        if self._functions.lacks(definition.workflow) and (config_map := self._shared.get(run)) is not None:
            app, namespace = definition.app, self._get_namespace(run)
            self._functions.restore(
                definition.workflow, config_map, lambda: self._keys.get(namespace, app.name, app.team)
            )

    def _pack_functions(self, definition: RunDefinition) -> dict[str, str]:
        app = definition.app
        key = self._keys.get(self._cluster_settings.derive_namespace(app.name, app.team), app.name, app.team)
        return self._functions.pack_functions(definition.workflow, key)

    # A run

    def drive(
        self, run: str, definition: RunDefinition | None = None, *, environment: Environment, observe: Observer
    ) -> RunRecord:
        with self._journal() as journal:
            start = time.monotonic()
            with self._lock_run(journal, run) as (journal_run, home):
                name, observed, begun, edited = journal_run.record.name, None, None, _Edited()
                entered = self._entered.pop(name, None)
                before = entered or self._read_version(journal, journal_run)
                journal_run = journal.run(name)
                facts = Facts(journal, journal_run, home)
                live = facts.refresh(self._cluster, self._get_namespace(journal_run)) if entered is None else None
                if (
                    entered is None
                    and not _is_running(live)
                    and self._wait_for_driver(journal_run, before, observe, lambda: self._get_last_drive(journal_run))
                ):
                    live = facts.refresh(self._cluster, self._get_namespace(journal_run))
                run_definition = cut_down(definition or read_definition(journal_run))
                adopted = _is_running(live)
                previous_tasks = journal.read_tasks(journal_run)
                if live is not None and adopted:
                    manifest: Manifest | None = live.manifest
                    run_definition = read_definition(journal_run)
                else:
                    self._check_code(journal_run, run_definition)
                    self._restore_functions(journal_run, run_definition)
                    self._check(run_definition)
                    try:
                        manifest, begun, edited = self._prepare(
                            journal, journal_run, run_definition, facts, before, live, environment
                        )
                    except StopRequestedError:
                        return self._end_before_start(journal, journal_run, observe)
                finished = list_finished(run_definition.workflow, previous_tasks)
                previous_tasks = journal.read_tasks(journal_run)
                journal.set_run(journal_run, "running", seconds=journal_run.record.seconds)
                kept = list_finished(run_definition.workflow, previous_tasks)
                observe(self._build_started_event(journal_run, run_definition, finished, kept, edited))
                if manifest is not None:
                    if not adopted:
                        manifest = self._create(manifest, journal_run)
                    watcher = WorkflowDriver(
                        self._cluster,
                        self._get_namespace(journal_run),
                        name,
                        run_definition.workflow,
                        facts,
                        home,
                        observe=observe,
                        pending_s=self._cluster_settings.pending_s,
                        away_s=self._cluster_settings.timeout_s,
                        previous_tasks=dict(previous_tasks),
                    )
                    if begun is not None and self._was_stopped(journal_run, manifest, begun):
                        watcher.stop(manifest["metadata"]["name"])
                    observed = watcher.watch(manifest, adopted=adopted)
                seconds = (journal_run.record.seconds or 0.0) + time.monotonic() - start
                if manifest is not None and observed is None:
                    facts.record_deletion(self._get_namespace(journal_run), seconds=seconds)
                else:
                    self._end(facts, observed, seconds)
                self._share_end(journal, journal_run, driven=True)
            record = self._load_with_tasks(journal, journal.run(name))
        observe(RunEnded(run=record.name, record=record))
        return record

    def _get_last_drive(self, run: JournalRun) -> int:
        live = self._find_live(run)
        return 0 if live is None else live.drive

    def _build_started_event(
        self,
        run: JournalRun,
        definition: RunDefinition,
        finished: list[StepName],
        kept: list[StepName],
        edited: _Edited,
    ) -> RunStarted:
        event = RunStarted(
            run=run.record.name,
            steps=len(definition.workflow.nodes),
            kept=len(kept),
            gone=tuple(task for task in finished if task not in {*kept, *edited.tasks}),
            changed=edited.tasks,
            edited=edited.steps,
        )
        return event.with_details(folder=str(self._run_home(run).path), namespace=self._get_namespace(run))

    def _prepare(
        self,
        journal: Journal,
        run: JournalRun,
        definition: RunDefinition,
        facts: Facts,
        before: RunVersion | None,
        live: LiveWorkflow | None,
        environment: Environment,
    ) -> tuple[Manifest | None, RunHeader | None, _Edited]:
        """Record what runs now, and return the Workflow to create, with the drive that was begun; None: all steps have
        ended. ``before`` and ``live``: the run's ConfigMap, and its last Workflow.

        Raises:
            StopRequestedError: it was asked to stop meanwhile.
            ConflictError: another home has begun a drive meanwhile.
        """
        from scanflow.backends.kubernetes.batch.argo_workflow import (
            build_workflow_manifest,  # Hera takes a while to import
        )

        namespace, home = self._get_namespace(run), self._run_home(run)
        self._check_namespace(run)
        self._ensure(definition.app)
        edited = _Edited(reset_changed(journal, run, definition))
        tasks, origins = journal.read_tasks(run), {} if before is None else before.document.origins
        is_new = before is not None and not before.drive
        where = self._cluster, self._cluster_settings, namespace, home
        written = [task for task in list_finished(definition.workflow, tasks) if tasks[task].attempts]
        if not is_new and (
            are_outputs_gone(*where, has_document=before is not None) or are_tasks_missing(*where, written)
        ):
            facts.note(reset_finished_tasks(tasks))
            tasks, origins = journal.read_tasks(run), {}
        current = {task.task: task for task in select_current_tasks(definition.workflow, tasks.values())}
        finished, kept_tasks = list_finished_steps(definition.workflow, current)
        last_drive = max(0 if before is None else before.drive, 0 if live is None else live.drive)
        tags = build_task_tags(definition.workflow.name, run.record.name, "@step@", StepName("@task@"))
        document = RunDocument(
            **self._build_document_fields(run.record.name, definition),
            created=run.record.created,
            drive=last_drive + 1,
            kept=kept_tasks,
            origins=origins,
            variables=environment(tags),
        )
        code = self._preparation.resolve_code(definition.app, definition.workflow)
        self._keys.get(namespace, definition.app.name, definition.app.team)  # which the address of a store depends on
        store = locate_store(self._cluster, self._cluster_settings, namespace)
        manifest = build_workflow_manifest(
            document, definition, finished, self._preparation.build_pod_settings(namespace, code, store)
        )
        for step in add_skipped(definition.workflow, finished).skipped - finished.skipped:
            facts.note({StepName(step): TaskRecord(task=StepName(step), step=step, state="skipped")})
        if manifest is None:
            return None, None, edited
        for needed in code.objects:
            self._applied_code.ensure(needed)
        begun = self._begin(journal, run, definition, document, before, code)
        forget_outputs(home, [task for task, record in tasks.items() if record.state not in FINISHED_STATES])
        kept = [task for task in current.values() if task.state == "succeeded"]
        return manifest, begun, edited._replace(steps=describe_edited(redefine_run(journal, run, definition, kept)))

    def _begin(
        self,
        journal: Journal,
        run: JournalRun,
        definition: RunDefinition,
        document: RunDocument,
        before: RunVersion | None,
        code: StepCode,
    ) -> RunHeader:
        """Write the ConfigMap of a drive that begins."""
        namespace, home = self._get_namespace(run), self._run_home(run)
        binary, progress = self._pack_functions(definition), {}
        if (before_drive := self._build_progress(journal, run, document.drive, "running")).tasks:
            progress = {PROGRESS: before_drive.pack()}
        texts = {CODE: json.dumps(code.volumes[0])} if code.volumes else {}
        annotations = {OUTPUTS_CLAIM: record_claim(self._cluster, self._cluster_settings, namespace, home)}
        try:
            manifest = document.build_manifest(namespace, {**binary, **progress}, texts, annotations)
        except UsageError:  # it may be too large with its progress, which is in the Workflows, too
            manifest = document.build_manifest(namespace, binary, texts, annotations)
        return self._build_writer(run).begin_drive(manifest, before)

    def _create(self, manifest: Manifest, run: JournalRun) -> Manifest:
        name, namespace = manifest["metadata"]["name"], manifest["metadata"]["namespace"]
        try:
            created = self._cluster.create(manifest)
        except ConflictError:  # another process created it concurrently
            existing = self._cluster.get("Workflow", name, namespace)
            if existing is None:
                raise UnavailableError(f"The Workflow {namespace}/{name} was deleted just now. Try again.") from None
            created = existing
        self._run_home(run).record_drive(int(manifest["metadata"]["annotations"][DRIVE]))
        return created

    def _end(self, facts: Facts, observed: ObservedWorkflow | None, seconds: float | None) -> None:
        state: RunState = "succeeded" if observed is None else observed.phase
        facts.end(state, seconds=seconds, error=None if observed is None else observed.error)

    def stop(self, run: str) -> RunRecord:
        with self._journal() as journal:
            journal_run = self._get_run(journal, run)
            record, live = self._observe(journal, journal_run)
            if record.state in FINAL_STATES:
                raise UsageError(f"The run {record.name!r} has {record.state} already; there is nothing to stop.")
            is_being_created = False
            if not _is_running(live):
                is_being_created = self._request_stop(journal_run, lambda: self._get_last_drive(journal_run))
                live = self._find_live(journal_run)
            if live is not None and _is_running(live):
                self._cluster.patch(
                    "Workflow", live.name, self._get_namespace(journal_run), {"spec": {"shutdown": "Terminate"}}
                )
            elif not is_being_created:
                journal.set_run(journal_run, "stopped", seconds=record.seconds)
                self._share_end(journal, journal_run)
            return self._load_with_tasks(journal, journal.run(record.name))

    def stop_task(self, run: str, task: str) -> RunRecord:
        with self._journal() as journal:
            journal_run = self._get_run(journal, run)
            _, live = self._observe(journal, journal_run)
            record = self._load_with_tasks(journal, journal_run)
            tasks_to_stop = select_running_tasks(record, task)
            if live is not None:
                for task_record in tasks_to_stop:
                    stop_running_task(self._cluster, self._get_namespace(journal_run), live, task_record.task)
            return self._load_with_tasks(journal, journal.run(record.name))

    # Outputs and logs

    def outputs(self, run: str, step: str) -> dict[str, Any] | list[dict[str, Any]]:
        return self._results.read_outputs(self.show(run), step, lambda folder, key: dict(Outputs(folder, key)))

    def output_files(self, run: str, step: str, *, max_bytes: int | None = None) -> OutputFiles | list[OutputFiles]:
        return self._results.read_outputs(self.show(run), step, OutputFilesReader(max_bytes).read)

    def files(self, run: str, step: str | None = None) -> list[StepFile]:
        return self._results.list_files(self.show(run), step)

    def logs(self, run: str, task: str, *, stream: Stream = "both", attempt: int | None = None) -> LogReader:
        return self._results.open_logs(self.show(run), task, stream, attempt)

    # State

    def _refresh(self, journal: Journal, run: JournalRun) -> RunRecord:
        return self._observe(journal, run)[0]

    def _observe(self, journal: Journal, run: JournalRun) -> tuple[RunRecord, LiveWorkflow | None]:
        """Return a run's current record and last Workflow; while a process here drives it, the record it wrote."""
        record, home = run.record, self._run_home(run)
        if record.state in FINAL_STATES:
            return self._add_details(record), None
        if is_locked(home.lock):
            live = self._find_live(run)
            return self._add_details(journal.run(record.name).record), live
        facts = Facts(journal, run, home)
        live = facts.refresh(self._cluster, self._get_namespace(run))
        if is_locked(home.lock) or journal.run(record.name).record != record:  # another process drove it meanwhile
            return self._add_details(journal.run(record.name).record), live
        if live is None or live.drive < read_begun_drive(home):
            if not has_object(home):
                return self._add_details(record.model_copy(update={"state": "interrupted"})), None
            facts.record_deletion(self._get_namespace(run), seconds=record.seconds)
        elif live.observed.phase == "running":
            return self._add_details(record), live
        else:
            self._record_end(facts, live, record)
        self._share_end(journal, run)
        return self._add_details(journal.run(record.name).record), live

    def _find_live(self, run: JournalRun) -> LiveWorkflow | None:
        """Return the last Workflow of a run, without recording it."""
        manifests = list_workflows(self._cluster, self._get_namespace(run), run.record.name)
        return LiveWorkflow(manifests[-1], observe_workflow(manifests[-1])) if manifests else None

    def _record_end(self, facts: Facts, live: LiveWorkflow, record: RunRecord) -> RunRecord:
        status = live.manifest["status"]
        seconds = compute_duration(status.get("startedAt"), status.get("finishedAt"))
        return facts.end(live.observed.phase, seconds=(record.seconds or 0.0) + seconds, error=live.observed.error)

    def _load_with_tasks(self, journal: Journal, run: JournalRun) -> RunRecord:
        recorded = journal.read_tasks(run)
        if not recorded and run.record.state in FINAL_STATES and has_object(home := self._run_home(run)):
            with suppress(ScanflowError):  # too many for its ConfigMap: they are in its Workflows, while those are kept
                Facts(journal, run, home).refresh(self._cluster, self._get_namespace(run))
            recorded = journal.read_tasks(run)
        workflow = read_definition(run).workflow
        tasks = add_pending_tasks(workflow, recorded.values())
        return self._add_details(add_details(self._load_without_tasks(journal, run), workflow, tasks))


def _is_running(live: LiveWorkflow | None) -> bool:
    return live is not None and live.observed.phase == "running"
