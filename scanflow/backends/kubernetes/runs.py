"""The base of the cluster's run backends: a journal, a folder for each run, and an environment."""

from __future__ import annotations

import random
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from scanflow.app.application import Application
from scanflow.backends.definition import read_definition
from scanflow.backends.journal import Journal, JournalRun
from scanflow.backends.kubernetes.batch.home import BatchHome, RunHome
from scanflow.backends.kubernetes.batch.preparation import RunPreparation
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.expiring_set import ExpiringSet
from scanflow.backends.kubernetes.settings import KubernetesSettings
from scanflow.backends.port import RunDefinition
from scanflow.backends.records import RunRecord, StepFile
from scanflow.backends.tasks import select_tasks
from scanflow.errors import UnsupportedError, UsageError
from scanflow.files.private import create_private_folder, open_home, write_private
from scanflow.names import RunName
from scanflow.processes.files import hold_driver_lock, is_locked
from scanflow.settings import Settings

ENVIRONMENT_CACHE_S: Final = 5.0
"""How long an environment that was ensured, and its key, are not checked again."""


class ClusterRuns(ABC):
    """The common part of batch workflows and MPI jobs; see :class:`~scanflow.backends.port.RunBackend`."""

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
            journal_run = journal.run(run)
            record = self._refresh(journal, journal_run)
            if record.state == "interrupted":
                journal.set_run(journal_run, "failed", seconds=record.seconds, error=why)
            return self._load_with_tasks(journal, journal.run(record.name))

    def show(self, run: str) -> RunRecord:
        with self._journal() as journal:
            journal_run = journal.run(run)
            self._refresh(journal, journal_run)
            return self._load_with_tasks(journal, journal.run(journal_run.record.name))

    def follow(self, run: str, since: int = -1) -> tuple[RunRecord, int]:
        with self._journal() as journal:
            journal_run = journal.run(run)
            record = self._refresh(journal, journal_run)
            tasks, last = journal.read_changed_tasks(journal_run, since)
            return record.model_copy(update={"tasks": tuple(tasks)}), last

    def files(self, run: str, step: str | None = None) -> list[StepFile]:
        select_tasks(self.show(run), step)
        raise UnsupportedError(
            "The backend 'kubernetes' does not list the files of steps, which are on the cluster's storage. Read them "
            "in a later step, or output their names."
        )

    def runs(
        self, *, limit: int, app: str | None = None, team: str | None = None, workflow: str | None = None
    ) -> list[RunRecord]:
        with self._journal() as journal:
            records = journal.runs(limit=limit, app=app, team=team, workflow=workflow)
            return [self._refresh(journal, journal.run(record.name)) for record in records]

    def definition(self, run: str) -> RunDefinition:
        with self._journal() as journal:
            return read_definition(journal.run(run))

    @abstractmethod
    def _refresh(self, journal: Journal, run: JournalRun) -> RunRecord:
        """Update a run in the journal from the cluster; return its record, without its tasks."""

    @abstractmethod
    def _load_with_tasks(self, journal: Journal, run: JournalRun) -> RunRecord:
        """Return a run's record from the journal, with all its tasks."""

    def _load_without_tasks(self, journal: Journal, run: JournalRun) -> RunRecord:
        """Return a run's record from the journal, without its tasks; as interrupted where it has no driver."""
        record, home = journal.run(run.record.name).record, self._run_home(run)
        if record.state == "running" and not home.driven.exists() and not is_locked(home.lock):
            return record.model_copy(update={"state": "interrupted"})
        return record

    def _add_details(self, record: RunRecord) -> RunRecord:
        return record.with_details(folder=str(self._home.run(record.name).path), namespace=self._read_namespace(record))

    @contextmanager
    def _lock_run(self, journal: Journal, run: str) -> Iterator[tuple[JournalRun, RunHome]]:
        """Lock a run for its only driver, and clear earlier requests to stop it."""
        journal_run = journal.run(run)
        home = self._run_home(journal_run)
        create_private_folder(home.path)
        with hold_driver_lock(home.lock, journal_run.record.name):
            home.asked_to_stop.unlink(missing_ok=True)
            yield journal_run, home

    def _run_home(self, run: JournalRun) -> RunHome:
        return self._home.run(run.record.name)

    def _get_namespace(self, run: JournalRun) -> str:
        return self._read_namespace(run.record)

    def _read_namespace(self, record: RunRecord) -> str:
        """Return the namespace that a run was entered in, whatever the setting names now."""
        recorded = self._home.run(record.name).namespace
        if recorded.exists():
            return recorded.read_text(encoding="utf-8")
        return self._cluster_settings.derive_namespace(record.app, record.team)

    def _record_namespace(self, run: JournalRun) -> None:
        namespace = self._cluster_settings.derive_namespace(run.record.app, run.record.team)
        write_private(self._run_home(run).namespace, namespace)

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
