"""The base of the cluster's run backends: a journal, a folder for each run, and an environment."""

from __future__ import annotations

import json
import random
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from itertools import islice
from pathlib import Path
from typing import Any, Final

from scanflow.app.application import Application
from scanflow.backends.definition import SavedDefinition, enter_run, read_definition
from scanflow.backends.journal import MAX_INTEGER, Journal, JournalRun, parse_latest
from scanflow.backends.kubernetes.api_errors import ConflictError
from scanflow.backends.kubernetes.batch.batch_home import BatchHome, RunHome
from scanflow.backends.kubernetes.batch.pod_layout import PROGRESS
from scanflow.backends.kubernetes.batch.preparation import RunPreparation
from scanflow.backends.kubernetes.batch.recorded_progress import RecordedProgress
from scanflow.backends.kubernetes.batch.run_document import RunDocument
from scanflow.backends.kubernetes.batch.run_writer import NameTakenError, RunVersion, RunWriter, StopRequestedError
from scanflow.backends.kubernetes.batch.shared_runs import (
    CopiedRecord,
    RunHeader,
    SharedRuns,
    has_object,
    locate_code,
    read_begun_drive,
)
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.code_configmap import read_code_name, unpack_code
from scanflow.backends.kubernetes.expiring_set import ExpiringSet
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scanflow.backends.kubernetes.pod_image import is_independent
from scanflow.backends.run_definition import RunDefinition
from scanflow.backends.run_records import Observer, RunEnded, RunRecord, RunState, StepFile, TaskRecord, Waiting
from scanflow.backends.tasks import select_tasks
from scanflow.errors import NotFoundError, ScanflowError, UnavailableError, UnsupportedError, UsageError
from scanflow.files.private import create_private_folder, open_home, write_private
from scanflow.names import RunName
from scanflow.processes.shared_files import hold_driver_lock, is_locked
from scanflow.settings import Settings

ENVIRONMENT_CACHE_S: Final = 5.0
"""How long an environment that was ensured, and its key, are not checked again."""

UNFETCHED_CACHE_S: Final = 60.0
"""How long files of a run of another home that could not be fetched are not asked for again, to show the run."""

BEGIN_TIMEOUT_S: Final = 10.0
"""How long another home may take from the beginning of a drive to its Workflow or job. Then it was interrupted."""

_POLL_S: Final = 0.5


class ClusterRuns(ABC):
    """The common part of batch workflows and MPI jobs; see :class:`~scanflow.backends.backend_port.RunBackend`."""

    def __init__(
        self,
        settings: Settings,
        cluster: Cluster,
        cluster_settings: KubernetesSettings,
        preparation: RunPreparation,
        *,
        rng: random.Random | None = None,
    ) -> None:
        self._settings, self._cluster, self._cluster_settings, self._preparation = (
            settings,
            cluster,
            cluster_settings,
            preparation,
        )
        self._home = BatchHome(settings.home.expanduser().absolute())
        self._ensured = ExpiringSet(ENVIRONMENT_CACHE_S)
        self._environments: dict[str, str] = {}
        """By namespace: the uid of its environment when last ensured."""

        self._rng = rng or random.Random()  # noqa: S311  names for people, not secrets
        self._unfetched = ExpiringSet(UNFETCHED_CACHE_S)
        self._shared = SharedRuns(cluster, cluster_settings, self._home)
        self._entered: dict[str, RunVersion] = {}
        """Runs that this process entered and has not driven yet: their state is complete here."""

    def free_name(self) -> RunName:
        with self._journal() as journal:
            return journal.free_name(self._rng)

    def _ensure(self, app: Application) -> None:
        """Ensure the environment, unless that was done a moment ago, as for a run that is entered and then driven."""
        if (namespace := self._cluster_settings.derive_namespace(app.name, app.team)) not in self._ensured:
            self._environments[namespace] = self._preparation.ensure(app).uid
            self._ensured.add(namespace)

    def give_up(self, run: str, why: str) -> RunRecord:
        with self._journal() as journal:
            journal_run = self._get_run(journal, run)
            record = self._refresh(journal, journal_run)
            if record.state == "interrupted":
                journal.set_run(journal_run, "failed", seconds=record.seconds, error=why)
                self._share_end(journal, journal_run)
            return self._load_with_tasks(journal, journal.run(record.name))

    def show(self, run: str) -> RunRecord:
        with self._journal() as journal:
            journal_run = self._get_run(journal, run)
            self._refresh(journal, journal_run)
            return self._load_with_tasks(journal, journal.run(journal_run.record.name))

    def follow(self, run: str, since: int = -1) -> tuple[RunRecord, int]:
        with self._journal() as journal:
            journal_run = self._get_run(journal, run)
            record = self._refresh(journal, journal_run)
            tasks, last = journal.read_changed_tasks(journal_run, since)
            return record.model_copy(update={"tasks": tuple(tasks)}), last

    def files(self, run: str, step: str | None = None) -> list[StepFile]:
        select_tasks(self.show(run), step)
        raise UnsupportedError(
            "The backend 'kubernetes' does not list the files of MPI jobs, which are on the volume that the job names. "
            "Read them in a batch step."
        )

    def runs(
        self,
        *,
        limit: int,
        offset: int = 0,
        app: str | None = None,
        team: str | None = None,
        workflow: str | None = None,
        state: RunState | None = None,
    ) -> list[RunRecord]:
        with self._journal() as journal:
            self._shared.copy_newest(journal, offset + limit, app=app, team=team, workflow=workflow)
            records = journal.runs(limit=limit, offset=offset, app=app, team=team, workflow=workflow, state=state)
            return [self._refresh(journal, journal.run(record.name)) for record in records]

    def definition(self, run: str) -> RunDefinition:
        with self._journal() as journal:
            journal_run = journal.find_run(run) or self._get_run(journal, run)
            try:
                if journal_run.record.name not in self._unfetched:
                    self._fetch_code(journal_run)
            except ScanflowError:  # its folder stays missing, which is said where it is needed
                self._unfetched.add(journal_run.record.name)
            return read_definition(journal_run)

    # Runs of other homes

    def _get_run(self, journal: Journal, name: str) -> JournalRun:
        """Return a run, as any home left it.

        Raises:
            NotFoundError: neither this home nor the cluster has it.
        """
        if name.startswith("@latest"):
            return self._shared.update(journal, self._get_latest(journal, name))
        own = journal.find_run(name)
        if own is not None:
            return self._shared.update(journal, own)
        return self._shared.find(journal, name) or journal.run(name)

    def _get_latest(self, journal: Journal, name: str) -> JournalRun:
        """Return the newest run that this home entered, or one before: nobody stops or resumes another person's run by
        leaving out a name. Of a home that has entered none: that of any home."""
        back = parse_latest(name)
        records = journal.runs(limit=MAX_INTEGER)
        own = list(islice((r for r in records if not self._home.run(r.name).code.exists()), min(back + 1, MAX_INTEGER)))
        if not own:
            self._shared.copy_newest(journal, back + 1, fresh=True)
            return journal.run(name)
        if back >= len(own):
            raise NotFoundError(f"There is no run {name!r}: this home has begun {len(own)}. See all: scanflow runs")
        return journal.run(own[back].name)

    def _fetch_code(self, run: JournalRun) -> None:
        """Fetch the files that a run of another home was sent with, where they are a ConfigMap.

        Raises:
            NotFoundError: they are no longer there.
        """
        home = self._run_home(run)
        if not home.code.exists() or (folder := locate_code(home)).is_dir():
            return
        volume = json.loads(home.code.read_text(encoding="utf-8"))
        if volume is None:
            return
        name, namespace = read_code_name(volume), self._get_namespace(run)
        config_map = self._cluster.get("ConfigMap", name, namespace)
        if config_map is None:
            raise NotFoundError(f"The ConfigMap {name!r} of the namespace {namespace!r} is gone.")
        unpack_code(config_map, volume, folder)

    def _check_code(self, run: JournalRun, definition: RunDefinition) -> None:
        """Raise for a run of another home whose files are needed and not here.

        Raises:
            UsageError: says what to give.
        """
        home = self._run_home(run)
        if not home.code.exists() or Path(definition.app.app_dir) != (folder := locate_code(home)):
            return
        self._fetch_code(run)
        if not folder.is_dir() and not all(map(is_independent, definition.workflow.nodes)):
            raise UsageError(
                f"The run {run.record.name!r} was started in another home, and its application's files are in an "
                f"image, not in this home. Give the application: client.resume({run.record.name!r}, app=app). Or "
                "resume the run in the other home."
            )

    def _share_end(self, journal: Journal, run: JournalRun, *, driven: bool = False) -> None:
        """Write the end of a run, which the journal has, where other homes read it. ``driven``: this home drove it."""
        home, record = self._run_home(run), journal.run(run.record.name).record
        progress = self._build_progress(journal, run, read_begun_drive(home), record.state)
        self._build_writer(run).record_end(
            progress.model_copy(update={"seconds": record.seconds, "error": record.error}), driven=driven
        )

    def _build_progress(self, journal: Journal, run: JournalRun, drive: int, state: RunState) -> RecordedProgress:
        tasks = tuple(journal.read_tasks(run).values())
        seconds = run.record.seconds
        return RecordedProgress(
            drive=drive, state=state, seconds=seconds, tasks=tasks, files=self._list_small_files(run)
        )

    def _list_small_files(self, run: JournalRun) -> dict[str, str]:  # noqa: ARG002
        """Return the files of a run's outputs that are only in homes."""
        return {}

    def _build_writer(self, run: JournalRun) -> RunWriter:
        return RunWriter(self._cluster, self._get_namespace(run), run.record.name, self._run_home(run))

    def _enter_run(
        self, journal: Journal, definition: RunDefinition, name: RunName | None, tasks: Sequence[TaskRecord] = ()
    ) -> JournalRun:
        """Enter a run: into its ConfigMap first, so that a run that any home shows is there.

        Raises:
            InvalidError: another run has that name.
        """
        known = None if name is None else journal.find_run(name)
        if name is not None and known is not None:
            known = enter_run(journal, definition, parent=self._home.runs, rng=self._rng, name=name, tasks=tasks)
            self._create_record(definition, name, known.record.created, tasks)
            return known
        chosen = name or journal.free_name(self._rng)
        home = self._home.run(chosen)
        create_private_folder(home.path)
        try:
            with hold_driver_lock(home.lock, chosen):  # so that no process of this home takes it for another home's
                version = self._create_record(definition, chosen, time.time(), tasks)
                created = version.document.created
                run = enter_run(
                    journal,
                    definition,
                    parent=self._home.runs,
                    rng=self._rng,
                    name=chosen,
                    tasks=tasks,
                    created=created,
                )
        except NameTakenError:
            if name is not None:
                raise
            return self._enter_run(journal, definition, None, tasks)  # another home has a run of that random name
        write_private(home.namespace, self._cluster_settings.derive_namespace(definition.app.name, definition.app.team))
        if not version.drive:
            self._entered[chosen] = version
        return run

    def _create_record(
        self, definition: RunDefinition, run: RunName, created: float, tasks: Sequence[TaskRecord]
    ) -> RunVersion:
        origins = {task.step: task.origin for task in tasks if task.state == "succeeded" and task.origin}
        document = RunDocument(**self._build_document_fields(run, definition), created=created, origins=origins)
        namespace, binary = (
            self._cluster_settings.derive_namespace(definition.app.name, definition.app.team),
            self._pack_functions(definition),
        )
        if tasks:
            binary |= {PROGRESS: RecordedProgress(drive=0, state="running", tasks=tuple(tasks)).pack()}
        writer = RunWriter(self._cluster, namespace, run, self._home.run(run))
        return writer.create(document, document.build_manifest(namespace, binary))

    def _build_document_fields(self, run: RunName, definition: RunDefinition) -> dict[str, Any]:
        return {
            "run": run,
            "definition": SavedDefinition.from_definition(definition),
            "source": None if definition.source is None else str(definition.source),
            "max_fan_out": self._settings.max_fan_out,
        }

    def _pack_functions(self, definition: RunDefinition) -> dict[str, str]:  # noqa: ARG002
        """Return the pickled functions of a run, in base64."""
        return {}

    def _read_version(self, journal: Journal, run: JournalRun) -> RunVersion | None:
        """Read a run's ConfigMap, before a drive; what other homes changed is copied. None: there is none."""
        manifest = self._shared.get(run)
        if manifest is None:
            return None
        version = RunVersion.read(manifest)
        record = CopiedRecord.read(self._run_home(run))
        if record is None or (record.uid, record.version) != (version.header.uid, version.header.version):
            self._shared.copy(journal, manifest)
        return version

    def _request_stop(self, run: JournalRun, read_last: Callable[[], int]) -> bool:
        """Ask whoever is about to make the Workflow or job of a run to stop it; return whether somebody may be.

        ``read_last``: returns the number of the last drive that has one; 0: none has.

        Raises:
            UnavailableError: the request cannot be left anywhere.
        """
        home, header = self._run_home(run), self._build_writer(run).request_stop()
        if is_locked(home.lock):
            if header is None:
                raise UnavailableError(f"The run {run.record.name!r} is being started. Try again in a moment.")
            return True
        if header is None or header.drive <= max(read_last(), home.read_drive(), header.ended or 0):
            return False
        return not home.driver.exists() or home.driver.read_text(encoding="utf-8") != header.driver

    def _wait_for_driver(
        self, run: JournalRun, version: RunVersion | None, observe: Observer, read_last: Callable[[], int]
    ) -> bool:
        """Wait while another home may be about to make the Workflow or job of its drive; return whether it waited.

        ``read_last``: returns the number of the last drive that has one; 0: none has.
        """
        home = self._run_home(run)
        if version is None or max(home.read_drive(), version.header.ended or 0) >= version.drive:
            return False
        if home.driver.exists() and home.driver.read_text(encoding="utf-8") == version.header.driver:
            return False  # a process of this home was killed meanwhile
        observe(Waiting(run=run.record.name, what="another machine or home, which has just resumed the run"))
        until = time.monotonic() + BEGIN_TIMEOUT_S
        while read_last() < version.drive and time.monotonic() < until:
            time.sleep(_POLL_S)
        return True

    def _was_stopped(self, run: JournalRun, manifest: Manifest, begun: RunHeader) -> bool:
        """Return whether a run was asked to stop before its Workflow or job was made.

        Raises:
            ConflictError: another home has begun a drive meanwhile; the Workflow or job is deleted.
        """
        try:
            self._build_writer(run).check_begun(begun)
        except StopRequestedError:
            return True
        except ConflictError:
            self._cluster.delete(manifest["kind"], manifest["metadata"]["name"], self._get_namespace(run))
            raise
        return False

    def _end_before_start(self, journal: Journal, run: JournalRun, observe: Observer) -> RunRecord:
        """Record the end of a run that was asked to stop before its Workflow or job was made."""
        journal.set_run(run, "stopped", seconds=run.record.seconds)
        self._share_end(journal, run, driven=True)
        record = self._load_with_tasks(journal, journal.run(run.record.name))
        observe(RunEnded(run=record.name, record=record))
        return record

    @abstractmethod
    def _refresh(self, journal: Journal, run: JournalRun) -> RunRecord:
        """Update a run in the journal from the cluster; return its record, without its tasks."""

    @abstractmethod
    def _load_with_tasks(self, journal: Journal, run: JournalRun) -> RunRecord:
        """Return a run's record from the journal, with all its tasks."""

    def _load_without_tasks(self, journal: Journal, run: JournalRun) -> RunRecord:
        """Return a run's record from the journal, without its tasks; as interrupted where it has no driver."""
        record, home = journal.run(run.record.name).record, self._run_home(run)
        if record.state == "running" and not has_object(home) and not is_locked(home.lock):
            return record.model_copy(update={"state": "interrupted"})
        return record

    def _add_details(self, record: RunRecord) -> RunRecord:
        return record.with_details(folder=str(self._home.run(record.name).path), namespace=self._read_namespace(record))

    @contextmanager
    def _lock_run(self, journal: Journal, run: str) -> Iterator[tuple[JournalRun, RunHome]]:
        """Lock a run for its only driver in this home."""
        journal_run = journal.find_run(run) or self._get_run(journal, run)
        home = self._run_home(journal_run)
        create_private_folder(home.path)
        with hold_driver_lock(home.lock, journal_run.record.name):
            yield journal_run, home

    def _run_home(self, run: JournalRun) -> RunHome:
        return self._home.run(run.record.name)

    def _get_namespace(self, run: JournalRun) -> str:
        return self._read_namespace(run.record)

    def _read_namespace(self, record: RunRecord) -> str:
        """Return the namespace that a run was entered in, whatever the setting names now."""
        return self._shared.read_namespace(record)

    def _check_namespace(self, run: JournalRun) -> None:
        """Raise for a run whose steps would start, or be read, in another namespace than the setting names.

        Raises:
            UsageError: the message says what to set.
        """
        record, namespace = run.record, self._get_namespace(run)
        derived = self._cluster_settings.derive_namespace(record.app, record.team)
        if namespace != derived:
            raise UsageError(
                f"The run {record.name!r} is in the namespace {namespace!r}, and steps start in {derived!r} now. Go "
                f"back to its namespace: export SCANFLOW_KUBERNETES_NAMESPACE={namespace}"
            )

    @contextmanager
    def _journal(self) -> Iterator[Journal]:
        open_home(self._home.home)
        journal = Journal(self._home.journal)
        try:
            yield journal
        finally:
            journal.close()
