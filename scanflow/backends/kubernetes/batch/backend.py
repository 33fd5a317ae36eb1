"""Batch workflows on a cluster: runs entered, driven, stopped and looked at. Argo runs them; this home remembers."""

from __future__ import annotations

import random
import time
from collections.abc import Collection
from pathlib import Path
from typing import Any, Final

from scanflow.app.application import Application
from scanflow.app.plan import IMAGE_NOTE, Plan, plan_workflow
from scanflow.app.workflow import Workflow
from scanflow.backends.definition import KeptDefinition, definition_of, enter_run, redefine_run
from scanflow.backends.journal import Journal, JournalRun
from scanflow.backends.kept_functions import forget_functions
from scanflow.backends.kubernetes.batch import facts as known
from scanflow.backends.kubernetes.batch.checks import capacity, check_definition
from scanflow.backends.kubernetes.batch.document import RunDocument
from scanflow.backends.kubernetes.batch.driving import Drive
from scanflow.backends.kubernetes.batch.facts import ENDED, Facts, Live
from scanflow.backends.kubernetes.batch.fetching import fetch_log, fetch_outputs
from scanflow.backends.kubernetes.batch.finished import Finished, finished_of, with_skipped
from scanflow.backends.kubernetes.batch.functions import Functions, namespace_key
from scanflow.backends.kubernetes.batch.ground import Ground
from scanflow.backends.kubernetes.batch.home import RunHome
from scanflow.backends.kubernetes.batch.layout import DRIVE, run_object
from scanflow.backends.kubernetes.batch.pod_logs import TaskPodLogs, copy_log
from scanflow.backends.kubernetes.batch.records import WorkflowSeen, observe_workflow
from scanflow.backends.kubernetes.batch.stopping import stop_running_task
from scanflow.backends.kubernetes.cluster import Cluster, ConflictError
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.labels import namespace_of
from scanflow.backends.kubernetes.recently import Recently
from scanflow.backends.kubernetes.runs import ClusterRuns, run_namespace
from scanflow.backends.kubernetes.settings import KubernetesSettings
from scanflow.backends.log_files import FileLogs
from scanflow.backends.port import Environment, LogReader, RunDefinition, Stream
from scanflow.backends.records import Observer, RunEnded, RunRecord, RunStarted, RunState, TaskRecord
from scanflow.backends.step_process import task_tags
from scanflow.backends.tasks import cut_down, inputs_of_spin, logged_task, outputs_kept, running_tasks, with_pending
from scanflow.backends.values import Outputs
from scanflow.errors import InvalidError, UnavailableError, UsageError
from scanflow.names import RunName, StepName
from scanflow.outputs import OUTPUTS_FOLDER
from scanflow.private import private_folder, write_private
from scanflow.processes.files import is_locked
from scanflow.settings import Settings

CODE_FOR_S: Final = 60.0
"""How long a ConfigMap of code that was just made counts as there: as long as other objects of an environment do."""


class KubernetesBatch(ClusterRuns):
    """See :class:`~scanflow.backends.port.RunBackend`. Any process of this home may call for any run."""

    def __init__(
        self,
        settings: Settings,
        cluster: Cluster,
        cluster_settings: KubernetesSettings,
        ground: Ground,
        *,
        rng: random.Random | None = None,
    ) -> None:
        super().__init__(settings, cluster, cluster_settings, ground, rng=rng)
        self._functions = Functions(self._home)
        self._keys: dict[str, bytes] = {}
        self._coded = Recently(CODE_FOR_S)
        self._entered: dict[str, RunDocument] = {}
        """Runs that were entered by this process, and not driven yet: nobody else knows more of them."""

    # Before a run

    def check(self, definition: RunDefinition) -> None:
        cut = cut_down(definition)
        self._check(cut, None)
        self._ground.code(cut.app, cut.workflow)
        if cut.past is not None:
            inputs_of_spin(cut, self.show(cut.past))

    def plan(self, app: Application, workflow: Workflow) -> Plan:
        self._check(RunDefinition(app, workflow), None)
        self._ground.code(app, workflow)
        cores, memory = capacity(self._cluster)
        plan = plan_workflow(workflow, machine_cores=cores, machine_memory_bytes=memory)
        steps = tuple(
            step.model_copy(update={"notes": tuple(self._note(note, workflow, step.name) for note in step.notes)})
            for step in plan.steps
        )
        return plan.model_copy(update={"steps": steps})

    def manifests(self, app: Application, workflow: Workflow) -> list[Manifest]:
        """Return what a run of a workflow would be made of, under a name that no run has."""
        from scanflow.backends.kubernetes.batch.workflow import workflow_manifest

        made, code = RunDefinition(app, workflow), self._ground.code(app, workflow)
        document = RunDocument(run=str(self.free_name()), definition=KeptDefinition.of(made), created=0, drive=1)
        place = self._ground.place(namespace_of(app.name, app.team), code)
        found = workflow_manifest(document, made, Finished(), place)
        return [one for one in (code.config_map, found) if one is not None]

    def _note(self, note: str, workflow: Workflow, step: str) -> str:
        return f"image {workflow.by_name[step].image}" if note == IMAGE_NOTE else note

    def _check(self, definition: RunDefinition, home: RunHome | None) -> None:
        check_definition(definition, lambda target: self._functions.check(target, home))

    def keep_function(self, pickled: bytes) -> str:
        return self._functions.keep(pickled)

    def forget_functions(self, before: float, needed: Collection[str] = ()) -> int:
        with self._journal() as journal:
            return forget_functions(self._home.functions, before, needed, journal.definitions())

    def enter(self, definition: RunDefinition, name: RunName | None = None) -> RunRecord:
        cut = cut_down(definition)
        self._check(cut, None)
        self._ensure(cut.app)
        with self._journal() as journal:
            chosen = name or journal.free_name(self._rng)
            tasks: list[TaskRecord] = []
            if cut.past is not None:
                tasks = inputs_of_spin(cut, self._load_with_tasks(journal, journal.run(cut.past)))
            run = enter_run(journal, cut, parent=self._home.runs, rng=self._rng, name=chosen, tasks=tasks)
            home = self._run_home(run)
            private_folder(home.path)
            self._functions.keep_live(cut.workflow, home)
            origins = {task.step: task.origin for task in tasks if task.state == "succeeded" and task.origin}
            document = RunDocument(**self._document(run, cut), origins=origins)
            self._write(run, cut, document, new=True)
            self._entered[document.run] = document
            return self._load_with_tasks(journal, run)

    def _document(self, run: JournalRun, definition: RunDefinition) -> dict[str, Any]:
        return {
            "run": run.record.name,
            "definition": KeptDefinition.of(definition),
            "source": run.record.source,
            "created": run.record.created,
            "max_fan_out": self._settings.max_fan_out,
        }

    def _write(self, run: JournalRun, definition: RunDefinition, document: RunDocument, *, new: bool = False) -> None:
        """Write a run's ConfigMap."""
        app, namespace = definition.app, run_namespace(run)
        key = self._key(namespace, app.name, app.team)
        manifest = document.manifest(namespace, self._functions.sent(definition.workflow, self._run_home(run), key))
        if not new:
            self._cluster.apply(manifest, force=True)
            return
        try:
            self._cluster.create(manifest)
        except ConflictError as error:
            there = self._cluster.get("ConfigMap", run_object(document.run), namespace)
            if there is None or RunDocument.of(there).definition != document.definition:
                raise InvalidError(
                    f"There is a run {document.run!r} already in the namespace {namespace!r}. Choose another name."
                ) from error

    def _key(self, namespace: str, app: str, team: str) -> bytes:
        """Return what pickles of a namespace are signed with; another process may have removed the namespace since."""
        if not (namespace in self._ensured and namespace in self._keys):
            self._keys[namespace] = namespace_key(self._cluster, namespace, app, team)
        return self._keys[namespace]

    # A run

    def drive(
        self, run: str, definition: RunDefinition | None = None, *, environment: Environment, observe: Observer
    ) -> RunRecord:
        with self._journal() as journal:
            began = time.monotonic()
            with self._lock_run(journal, run) as (found, home):
                name, facts = found.record.name, Facts(journal, found, home)
                entered = self._entered.pop(name, None)
                live = facts.refresh(self._cluster, run_namespace(found)) if entered is None else None
                made = cut_down(definition or definition_of(found))
                adopted = live is not None and live.observed.phase == "running"
                before = journal.tasks(found)
                if adopted:
                    assert live is not None
                    manifest: Manifest | None = live.manifest
                    made = definition_of(found)
                else:
                    self._check(made, home)
                    manifest = self._prepare(journal, found, made, facts, live or entered, environment)
                journal.set_run(found, "running", seconds=found.record.seconds)
                observe(self._started(found, made, before))
                observed: WorkflowSeen | None = None
                if manifest is not None:
                    if not adopted:
                        manifest = self._create(manifest, found)
                    watching = Drive(
                        self._cluster,
                        run_namespace(found),
                        name,
                        made.workflow,
                        facts,
                        home,
                        observe=observe,
                        pending_s=self._own.pending_s,
                        away_s=self._own.timeout_s,
                        known=dict(before),
                    )
                    if home.asked_to_stop.exists():
                        watching.stop(manifest["metadata"]["name"])
                    observed = watching.watch(manifest, adopted=adopted)
                seconds = (found.record.seconds or 0.0) + time.monotonic() - began
                if manifest is not None and observed is None:
                    facts.deleted(run_namespace(found))
                else:
                    self._end(facts, observed, seconds)
            record = self._load_with_tasks(journal, journal.run(name))
        observe(RunEnded(run=record.name, record=record))
        return record

    def _started(self, run: JournalRun, made: RunDefinition, before: dict[StepName, TaskRecord]) -> RunStarted:
        kept = sum(task.state == "succeeded" for task in before.values())
        event = RunStarted(run=run.record.name, steps=len(made.workflow.nodes), kept=kept)
        return event.with_details(folder=str(self._run_home(run).path), namespace=run_namespace(run))

    def _prepare(
        self,
        journal: Journal,
        run: JournalRun,
        made: RunDefinition,
        facts: Facts,
        before: Live | RunDocument | None,
        environment: Environment,
    ) -> Manifest | None:
        """Write down what runs now, and return the Workflow that is to be made; ``before``: the run's last Workflow, or
        all that there is of a run that was entered this moment."""
        from scanflow.backends.kubernetes.batch.workflow import workflow_manifest  # Hera takes a while to import

        namespace, home = run_namespace(run), self._run_home(run)
        self._ensure(made.app)
        self._functions.keep_live(made.workflow, home)
        past, live = (before, None) if isinstance(before, RunDocument) else (self._past(run), before)
        tasks = journal.tasks(run)
        finished, kept = finished_of(made.workflow, tasks)
        last = max(past.drive if past is not None else 0, live.drive if live is not None else 0)
        tags = task_tags(made.workflow.name, run.record.name, "@step@", StepName("@task@"))
        document = RunDocument(
            **self._document(run, made),
            drive=last + 1,
            kept=kept,
            origins={} if past is None else past.origins,
            variables=environment(tags),
        )
        code = self._ground.code(made.app, made.workflow)
        manifest = workflow_manifest(document, made, finished, self._ground.place(namespace, code))
        for step in with_skipped(made.workflow, finished).skipped - finished.skipped:
            facts.note({StepName(step): TaskRecord(task=StepName(step), step=step, state="skipped")})
        if manifest is None:
            return None
        known.forget_outputs(home, [task for task, one in tasks.items() if one.state not in {"succeeded", "skipped"}])
        if code.config_map is not None:
            self._ensure_code(code.config_map)
        redefine_run(journal, run, made)
        self._write(run, made, document)
        return manifest

    def _past(self, run: JournalRun) -> RunDocument | None:
        there = self._cluster.get("ConfigMap", run_object(run.record.name), run_namespace(run))
        return None if there is None else RunDocument.of(there)

    def _ensure_code(self, code: Manifest) -> None:
        """Make the ConfigMap of an application's code; its name has the hash of all that is in it."""
        metadata = code["metadata"]
        name = f"{self._environments.get(metadata['namespace'])}/{metadata['name']}"  # it goes with the environment
        if name not in self._coded:
            self._cluster.apply(code, force=True)
            self._coded.note(name)

    def _create(self, manifest: Manifest, run: JournalRun) -> Manifest:
        name, namespace = manifest["metadata"]["name"], manifest["metadata"]["namespace"]
        try:
            made = self._cluster.create(manifest)
        except ConflictError:  # another process made it this moment
            there = self._cluster.get("Workflow", name, namespace)
            if there is None:
                raise UnavailableError(f"The Workflow {namespace}/{name} was deleted this moment. Try again.") from None
            made = there
        write_private(self._run_home(run).driven, manifest["metadata"]["annotations"][DRIVE])
        return made

    def _end(self, facts: Facts, observed: WorkflowSeen | None, seconds: float | None) -> None:
        state: RunState = "succeeded" if observed is None else observed.phase
        facts.end(state, seconds=seconds, error=None if observed is None else observed.error)

    def stop(self, run: str) -> RunRecord:
        with self._journal() as journal:
            found = journal.run(run)
            home, (record, live) = self._run_home(found), self._look(journal, found)
            if record.state in ENDED:
                raise UsageError(f"The run {record.name!r} has {record.state} already; there is nothing to stop.")
            if being_made := not _is_running(live) and is_locked(home.lock):
                write_private(home.asked_to_stop, "")  # whoever makes its Workflow looks for it then
                live = self._last(found)
            if live is not None and _is_running(live):
                self._cluster.patch("Workflow", live.name, run_namespace(found), {"spec": {"shutdown": "Terminate"}})
            elif not being_made:
                journal.set_run(found, "stopped", seconds=record.seconds)
            return self._load_with_tasks(journal, journal.run(record.name))

    def stop_task(self, run: str, task: str) -> RunRecord:
        with self._journal() as journal:
            found = journal.run(run)
            _, live = self._look(journal, found)
            record = self._load_with_tasks(journal, found)
            running = running_tasks(record, task)
            if live is not None:
                for one in running:
                    stop_running_task(self._cluster, run_namespace(found), live, one.task)
            return self._load_with_tasks(journal, journal.run(record.name))

    # Looks

    def outputs(self, run: str, step: str) -> dict[str, Any] | list[dict[str, Any]]:
        record = self.show(run)
        tasks = outputs_kept(record, step)
        namespace = namespace_of(record.app, record.team)
        homes = {task.task: self._home.run(self._holder(record, task)) for task in tasks}
        missing = [task for task in tasks if not (homes[task.task].outputs_of(task.task) / OUTPUTS_FOLDER).is_dir()]
        if missing:
            fetch_outputs(
                self._cluster, self._own, namespace, record.name, {task.task: homes[task.task] for task in missing}
            )
        key = self._key(namespace, record.app, record.team) if _pickled(homes) else b""
        found = [dict(Outputs(homes[task.task].outputs_of(task.task), key)) for task in tasks]
        return found[0] if step == tasks[0].task else found

    def _holder(self, record: RunRecord, task: TaskRecord) -> str:
        """Return the run in whose folder the outputs of a task are: of a spin's input, the past one."""
        spun = task.origin is not None and not task.attempts and self._run_outputs(record.name, task) is None
        return str(task.origin) if spun else record.name

    def _run_outputs(self, run: str, task: TaskRecord) -> Path | None:
        folder = self._home.run(run).outputs_of(task.task) / OUTPUTS_FOLDER
        return folder if folder.is_dir() else None

    def logs(self, run: str, task: str, *, stream: Stream = "both", attempt: int | None = None) -> LogReader:
        record = self.show(run)
        found = logged_task(record, task)
        number = attempt or found.attempts
        folder = self._home.run(record.name).attempt(found.task, number)
        if not (folder / "stdout.log").exists() and (reader := self._pod_logs(record, found, number, stream)):
            return reader
        if not (folder / "stdout.log").exists():
            namespace = namespace_of(record.app, record.team)
            fetch_log(self._cluster, self._own, namespace, record.name, found.task, number, folder)
        files = [(one, folder / f"{one}.log") for one in ("stdout", "stderr") if stream in {one, "both"}]
        return FileLogs(lambda: (files, True))

    def _pod_logs(self, record: RunRecord, task: TaskRecord, number: int, stream: Stream) -> LogReader | None:
        """Return a reader of the log of a task that runs; None: it has ended, and its log is in this home now."""
        namespace = namespace_of(record.app, record.team)
        for manifest in reversed(known.workflows_of(self._cluster, namespace, record.name)):
            for one in observe_workflow(manifest).attempts:
                if (one.task, one.number) == (task.task, number):
                    if one.record.state == "running":
                        return TaskPodLogs(
                            self._cluster,
                            one.pod,
                            namespace,
                            stream,
                            lambda: self._task_ended(record.name, task.task, number),
                        )
                    copy_log(self._cluster, one.pod, namespace, self._home.run(record.name).attempt(task.task, number))
                    return None
        return None

    def _task_ended(self, run: str, task: str, number: int) -> bool:
        record = self.show(run)
        now = {one.task: one for one in record.tasks}.get(StepName(task))
        return record.state in ENDED or now is None or now.state != "running" or now.attempts != number

    # How it stands

    def _refresh(self, journal: Journal, run: JournalRun) -> RunRecord:
        return self._look(journal, run)[0]

    def _look(self, journal: Journal, run: JournalRun) -> tuple[RunRecord, Live | None]:
        """Return a run as it stands; while somebody here watches it, as that one wrote it down."""
        record, home = run.record, self._run_home(run)
        if record.state in ENDED:
            return self._add_details(record), None
        if is_locked(home.lock):
            live = self._last(run)
            return self._add_details(journal.run(record.name).record), live
        facts = Facts(journal, run, home)
        live = facts.refresh(self._cluster, run_namespace(run))
        if is_locked(home.lock) or journal.run(record.name).record != record:  # it was gone on with meanwhile
            return self._add_details(journal.run(record.name).record), live
        if live is None and home.driven.exists():
            return self._add_details(facts.deleted(run_namespace(run))), None
        if live is None:
            return self._add_details(record.model_copy(update={"state": "interrupted"})), None
        if live.observed.phase != "running":
            return self._add_details(self._ended(facts, live, record)), live
        return self._add_details(record), live

    def _last(self, run: JournalRun) -> Live | None:
        """Return the last Workflow of a run as it stands; nothing is written down."""
        manifests = known.workflows_of(self._cluster, run_namespace(run), run.record.name)
        return Live(manifests[-1], observe_workflow(manifests[-1])) if manifests else None

    def _ended(self, facts: Facts, live: Live, record: RunRecord) -> RunRecord:
        status = live.manifest["status"]
        took = known.seconds_between(status.get("startedAt"), status.get("finishedAt"))
        return facts.end(live.observed.phase, seconds=(record.seconds or 0.0) + took, error=live.observed.error)

    def _load_with_tasks(self, journal: Journal, run: JournalRun) -> RunRecord:
        tasks = with_pending(definition_of(run).workflow, journal.tasks(run).values())
        return self._add_details(self._load_without_tasks(journal, run).model_copy(update={"tasks": tasks}))


def _pickled(homes: dict[StepName, RunHome]) -> bool:
    return any(
        one.name.endswith(".pickle")
        for task, home in homes.items()
        for one in (home.outputs_of(task) / OUTPUTS_FOLDER).iterdir()
    )


def _is_running(live: Live | None) -> bool:
    return live is not None and live.observed.phase == "running"
