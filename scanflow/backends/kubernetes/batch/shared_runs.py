"""Runs of a cluster, whichever home entered them: their ConfigMaps, and the copies of them in this home's journal.

A run's ConfigMap is the record that counts. The journal has what this home knows of it, and shows it without a cluster.
"""

from __future__ import annotations

import json
import random
import shutil
from contextlib import suppress
from pathlib import Path
from typing import Final, NamedTuple, Self

from scanflow.app.application_files import dump_json
from scanflow.backends.definition import SavedDefinition
from scanflow.backends.journal import Journal, JournalRun
from scanflow.backends.kubernetes.api_times import parse_epoch_s
from scanflow.backends.kubernetes.batch import pod_layout
from scanflow.backends.kubernetes.batch.batch_home import BatchHome, RunHome
from scanflow.backends.kubernetes.batch.recorded_progress import RecordedProgress
from scanflow.backends.kubernetes.batch.run_document import RunDocument
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.code_configmap import read_code_name
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.backends.kubernetes.kubernetes_settings import KubernetesSettings
from scanflow.backends.kubernetes.list_cache import ListCache
from scanflow.backends.kubernetes.object_labels import APP, MANAGED_SELECTOR, RUN, TEAM, WORKFLOW
from scanflow.backends.run_records import FINAL_STATES, RunRecord
from scanflow.errors import (
    AccessDeniedError,
    AlreadyRunningError,
    InvalidError,
    ScanflowError,
    UnavailableError,
    UsageError,
)
from scanflow.files.private import create_private_folder, write_private
from scanflow.names import RunName, check_name
from scanflow.processes.shared_files import hold_driver_lock, is_locked

SELECTOR: Final = f"{MANAGED_SELECTOR},{RUN},{WORKFLOW}"
"""Selects the ConfigMaps of runs."""


class RunHeader(NamedTuple):
    """What the metadata of a run's ConfigMap says."""

    run: str
    namespace: str
    app: str
    team: str
    workflow: str
    created: float
    """Seconds since the epoch."""

    uid: str
    version: str
    drive: int
    """The number of the last drive that was begun; 0: none was."""

    driver: str
    """The token of whoever began it."""

    ended: int | None
    """The number of the last drive whose end is recorded; None: of none."""

    stop_request: str
    claim: str
    """The uid of the claim that its outputs are on; empty: it is not known."""

    @classmethod
    def read(cls, manifest: Manifest) -> Self:
        metadata = manifest["metadata"]
        labels, annotations = metadata["labels"], metadata.get("annotations") or {}
        created, ended = annotations.get(pod_layout.CREATED), annotations.get(pod_layout.ENDED)
        return cls(
            run=labels[RUN],
            namespace=metadata["namespace"],
            app=labels.get(APP, ""),
            team=labels.get(TEAM, ""),
            workflow=labels[WORKFLOW],
            created=parse_epoch_s(metadata["creationTimestamp"]) if created is None else float(created),
            uid=metadata["uid"],
            version=metadata["resourceVersion"],
            drive=int(annotations.get(pod_layout.DRIVE, 0)),
            driver=annotations.get(pod_layout.DRIVER, ""),
            ended=None if ended is None else int(ended),
            stop_request=annotations.get(pod_layout.STOP_REQUEST, ""),
            claim=annotations.get(pod_layout.OUTPUTS_CLAIM, ""),
        )


class CopiedRecord(NamedTuple):
    """Which version of a run's ConfigMap this home read or wrote last."""

    uid: str
    version: str
    drive: int

    @classmethod
    def read(cls, home: RunHome) -> Self | None:
        """Read it; None: this home has seen none."""
        try:
            return cls(*json.loads(home.record.read_text(encoding="utf-8")))
        except (FileNotFoundError, ValueError, TypeError):
            return None

    @classmethod
    def write(cls, home: RunHome, header: RunHeader) -> None:
        create_private_folder(home.path)
        write_private(home.record, json.dumps([header.uid, header.version, header.drive]))


def read_begun_drive(home: RunHome) -> int:
    """Return the number of the last drive of a run that this home knows to have begun; 0: none."""
    record = CopiedRecord.read(home)
    return home.read_drive() if record is None else record.drive


def has_object(home: RunHome) -> bool:
    """Return whether the last drive of a run is known to have had a Workflow or job. Else nobody has driven the run, or
    somebody is about to make its object."""
    begun = read_begun_drive(home)
    return 0 < begun <= home.read_drive()


class SharedRuns:
    """The runs of a cluster, copied into a home as they are asked for."""

    def __init__(self, cluster: Cluster, settings: KubernetesSettings, home: BatchHome) -> None:
        self._cluster, self._settings, self._namespace, self._home = cluster, settings, settings.namespace, home
        self._lists = ListCache(lambda: cluster, namespace=settings.namespace, metadata_only=True)

    def get(self, run: JournalRun) -> Manifest | None:
        """Return the ConfigMap of a run; None: there is none."""
        name = pod_layout.format_config_map_name(run.record.name)
        return self._cluster.get("ConfigMap", name, self.read_namespace(run.record))

    def read_namespace(self, record: RunRecord) -> str:
        """Return the namespace that a run was entered in, whatever the setting names now."""
        recorded = self._home.run(record.name).namespace
        if recorded.exists():
            return recorded.read_text(encoding="utf-8")
        return self._settings.derive_namespace(record.app, record.team)

    def find(self, journal: Journal, name: str) -> JournalRun | None:
        """Find a run that the journal does not have, and copy it there; None: the cluster has none of that name.

        Raises:
            UnavailableError: the cluster cannot be asked.
            AccessDeniedError: it may not be asked about all namespaces, and no one is named.
            UsageError: there are several of that name.
        """
        try:
            labels = f"{SELECTOR},{RUN}={check_name(name, 'run')}"
        except InvalidError:
            return None  # no run can have that name
        try:
            manifests = self._cluster.find("ConfigMap", self._namespace, labels=labels, metadata_only=True)[0]
        except AccessDeniedError as error:
            manifests = self._list_in_known_namespaces(journal, labels)
            if not manifests:
                raise AccessDeniedError(f"There is no run {name!r} in this home. {error}") from error
        headers = list(map(RunHeader.read, manifests))
        namespaces = sorted(header.namespace for header in headers)
        if len(namespaces) > 1:
            raise UsageError(
                f"There is a run {name!r} in each of the namespaces {', '.join(namespaces)}. Choose one: "
                f"SCANFLOW_KUBERNETES_NAMESPACE={namespaces[0]}"
            )
        return self._copy(journal, headers[0]) if headers else None

    def update(self, journal: Journal, run: JournalRun) -> JournalRun:
        """Copy what other homes changed of a run since this home last read it. A run that a process of this home
        drives is unchanged, and one that has ended where the cluster cannot be asked."""
        home = self._home.run(run.record.name)
        if is_locked(home.lock):
            return run
        namespace, name = self.read_namespace(run.record), pod_layout.format_config_map_name(run.record.name)
        try:
            manifest = self._cluster.get("ConfigMap", name, namespace, metadata_only=True)
        except ScanflowError:
            if run.record.state in FINAL_STATES:
                return run
            raise
        if manifest is None or not _has_changed(home, RunHeader.read(manifest)):
            return run
        return self._copy(journal, RunHeader.read(manifest)) or run

    def copy_newest(
        self,
        journal: Journal,
        count: int,
        *,
        app: str | None = None,
        team: str | None = None,
        workflow: str | None = None,
        fresh: bool = False,
    ) -> None:
        """Copy the newest runs of the cluster, as far as they changed since this home last read them.

        Where the cluster cannot be asked nothing is copied, if the home has runs to show.

        Args:
            journal: This home's.
            count: How many runs are to be shown.
            app: Only runs of that application.
            team: Only runs of that team.
            workflow: Only runs of that workflow.
            fresh: Ask the cluster, even if a list is kept current by a watch.

        Raises:
            UnavailableError: the cluster cannot be asked, and the home has no run.
            AccessDeniedError: it may not be asked about all namespaces, no one is named, and the home has no run.
        """
        try:
            manifests = self._list(journal, fresh=fresh)
        except (UnavailableError, AccessDeniedError):
            if journal.runs(limit=1):
                return
            raise
        wanted = {"app": app, "team": team, "workflow": workflow}
        headers = [
            header
            for header in map(RunHeader.read, manifests)
            if all(getattr(header, field) == value for field, value in wanted.items() if value is not None)
        ]
        for header in sorted(headers, key=lambda header: header.created, reverse=True)[:count]:
            home = self._home.run(header.run)
            if not is_locked(home.lock) and _has_changed(home, header):
                try:
                    self._copy(journal, header)
                except InvalidError:  # another version wrote it: it is named where that run is asked for
                    continue

    def _list(self, journal: Journal, *, fresh: bool) -> list[Manifest]:
        try:
            if fresh:
                return self._cluster.find("ConfigMap", self._namespace, labels=SELECTOR, metadata_only=True)[0]
            return self._lists.find("ConfigMap", SELECTOR)
        except AccessDeniedError:
            if not journal.runs(limit=1):
                raise
            return self._list_in_known_namespaces(journal, SELECTOR)

    def _list_in_known_namespaces(self, journal: Journal, labels: str) -> list[Manifest]:
        """Return the ConfigMaps in the namespaces of the runs that this home knows, as far as they may be listed."""
        manifests: list[Manifest] = []
        for app, team in journal.list_environments() if self._namespace is None else ():
            try:
                namespace = self._settings.derive_namespace(app, team)
                manifests += self._cluster.find("ConfigMap", namespace, labels=labels, metadata_only=True)[0]
            except AccessDeniedError:
                continue
        return manifests

    def _copy(self, journal: Journal, header: RunHeader) -> JournalRun | None:
        """Copy a run's ConfigMap, unless a process of this home enters or drives the run; return the run, if any."""
        home, name = self._home.run(header.run), pod_layout.format_config_map_name(header.run)
        before = CopiedRecord.read(home)
        manifest = self._cluster.get("ConfigMap", name, header.namespace)
        if manifest is not None:
            create_private_folder(home.path)
            with suppress(AlreadyRunningError), hold_driver_lock(home.lock, header.run):
                if CopiedRecord.read(home) == before:
                    return self.copy(journal, manifest)
        return journal.find_run(header.run)

    def copy(self, journal: Journal, manifest: Manifest) -> JournalRun:
        """Copy a run's ConfigMap into the journal and the run's folder, while its lock is held; return the run.

        Raises:
            InvalidError: another program or version wrote it.
        """
        header, document = RunHeader.read(manifest), RunDocument.from_manifest(manifest)
        progress, home = RecordedProgress.from_manifest(manifest), self._home.run(header.run)
        before, run = CopiedRecord.read(home), journal.find_run(header.run)
        if run is not None and self.read_namespace(run.record) != header.namespace:
            return run  # one of the same name in another namespace
        create_private_folder(home.path)
        is_anew = before is not None and before.uid != header.uid
        has_begun = run is None or is_anew or header.drive > read_begun_drive(home)
        if run is None or home.code.exists():
            write_private(home.code, (manifest.get("data") or {}).get(pod_layout.CODE, "null"))
        if run is None:
            run = journal.create_run(
                app=header.app,
                team=header.team,
                workflow=header.workflow,
                parent=self._home.runs,
                source=None,  # a path on another machine, where this one may have another file
                definition=_build_definition(document, locate_code(home)).model_dump_json(),
                rng=random.Random(0),  # noqa: S311  it has its name
                name=RunName(header.run),
                created=header.created,
            )
            write_private(home.namespace, header.namespace)
        elif has_begun:
            own = SavedDefinition.model_validate_json(run.definition).read(None).app.app_dir
            folder = str(locate_code(home)) if home.code.exists() else own
            journal.redefine(run, _build_definition(document, folder).model_dump_json())
        if has_begun:  # elsewhere: outputs here may be of an earlier drive
            shutil.rmtree(home.outputs, ignore_errors=True)
        if is_anew:
            home.driven.unlink(missing_ok=True)
        if has_begun or (progress is not None and progress.drive == header.drive):
            _copy_progress(journal, run, header, progress, home, is_anew=is_anew)
        if header.claim:
            write_private(home.claim, header.claim)
        CopiedRecord.write(home, header)
        return journal.run(header.run)


def _copy_progress(
    journal: Journal,
    run: JournalRun,
    header: RunHeader,
    progress: RecordedProgress | None,
    home: RunHome,
    *,
    is_anew: bool,
) -> None:
    if progress is None:
        if is_anew:
            journal.replace_tasks(run, ())
        journal.set_run(run, "running", seconds=run.record.seconds)
        return
    if progress.tasks is not None or is_anew:
        journal.replace_tasks(run, progress.tasks or ())
    progress.write_files(home.outputs)
    is_current = progress.drive == header.drive
    error = progress.error if is_current else None
    journal.set_run(run, progress.state if is_current else "running", seconds=progress.seconds, error=error)
    if is_current and progress.state in FINAL_STATES and header.drive:
        home.record_drive(header.drive)


def locate_code(home: RunHome) -> Path:
    """Return the folder of the files of a run that another home entered; it need not exist yet."""
    volume = json.loads(home.code.read_text(encoding="utf-8"))
    return home.code_folders / ("none" if volume is None else read_code_name(volume))


def _build_definition(document: RunDocument, app_dir: Path | str) -> SavedDefinition:
    app = document.build_definition(Path(app_dir)).app
    return document.definition.model_copy(update={"app": dump_json(app)})


def _has_changed(home: RunHome, header: RunHeader) -> bool:
    before = CopiedRecord.read(home)
    return before is None or (before.uid, before.version) != (header.uid, header.version)
