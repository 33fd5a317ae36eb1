"""Write a run's ConfigMap: of several homes that begin a drive of one run at once, one does."""

from __future__ import annotations

import secrets
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Self

from scanflow.backends.kubernetes.api_errors import ConflictError
from scanflow.backends.kubernetes.batch import pod_layout
from scanflow.backends.kubernetes.batch.batch_home import RunHome
from scanflow.backends.kubernetes.batch.recorded_progress import RecordedProgress
from scanflow.backends.kubernetes.batch.run_document import RunDocument
from scanflow.backends.kubernetes.batch.shared_runs import CopiedRecord, RunHeader
from scanflow.backends.kubernetes.cluster import Cluster
from scanflow.backends.kubernetes.kinds import Manifest
from scanflow.errors import InvalidError, NotFoundError, ScanflowError, UnavailableError, UsageError
from scanflow.files.private import create_private_folder, write_private


class StopRequestedError(UsageError):
    """A run was asked to stop before it had a Workflow or job."""


class NameTakenError(InvalidError):
    """Another run has that name."""


@dataclass(frozen=True, slots=True)
class RunVersion:
    """A run's ConfigMap, as it was read or written."""

    document: RunDocument
    header: RunHeader

    @classmethod
    def read(cls, manifest: Manifest) -> Self:
        return cls(RunDocument.from_manifest(manifest), RunHeader.read(manifest))

    @property
    def drive(self) -> int:
        """The number of the last drive that was begun."""
        return max(self.document.drive, self.header.drive)


class RunWriter:
    """Writes the ConfigMap of one run, and notes in this home what it wrote."""

    def __init__(self, cluster: Cluster, namespace: str, run: str, home: RunHome) -> None:
        self._cluster, self._namespace, self._run, self._home = cluster, namespace, run, home
        self._name = pod_layout.format_config_map_name(run)

    def create(self, document: RunDocument, manifest: Manifest) -> RunVersion:
        """Create the ConfigMap of a run that is entered; one of the same definition may be there already.

        Raises:
            NameTakenError: another run has that name.
        """
        try:
            header = RunHeader.read(self._cluster.create(manifest))
        except ConflictError as error:
            existing = self._cluster.get("ConfigMap", self._name, self._namespace)
            if existing is None or RunDocument.from_manifest(existing).definition != document.definition:
                raise NameTakenError(
                    f"The run {self._run!r} already exists in the namespace {self._namespace!r}. Choose another name."
                ) from error
            return RunVersion.read(existing)
        CopiedRecord.write(self._home, header)
        return RunVersion(document, header)

    def begin_drive(self, manifest: Manifest, before: RunVersion | None) -> RunHeader:
        """Write the ConfigMap of a drive that begins, unless it was changed since it was read.

        Raises:
            StopRequestedError: the run was asked to stop meanwhile.
            ConflictError: another home began a drive meanwhile.
        """
        driver = secrets.token_hex(8)
        create_private_folder(self._home.path)
        write_private(self._home.driver, driver)
        manifest["metadata"]["annotations"][pod_layout.DRIVER] = driver
        if before is None:  # it was deleted with its environment
            self._home.driven.unlink(missing_ok=True)
        header = None
        while header is None:
            try:
                header = RunHeader.read(self._write(manifest, before))
            except ConflictError as error:
                before = self._check_unchanged(before, error)
        CopiedRecord.write(self._home, header)
        return header

    def _write(self, manifest: Manifest, before: RunVersion | None) -> Manifest:
        if before is None:
            return self._cluster.create(manifest)
        metadata = {**manifest["metadata"], "resourceVersion": before.header.version}
        return self._cluster.apply({**manifest, "metadata": metadata}, force=True)

    def _check_unchanged(self, before: RunVersion | None, error: ConflictError) -> RunVersion:
        """Return the current ConfigMap, if nothing in it speaks against the drive."""
        current = self._cluster.get("ConfigMap", self._name, self._namespace)
        if before is None or current is None or RunHeader.read(current).drive != before.header.drive:
            raise self._build_conflict_error() from error
        if RunHeader.read(current).stop_request != before.header.stop_request:
            raise StopRequestedError(f"The run {self._run!r} was asked to stop.") from error
        return RunVersion.read(current)

    def _build_conflict_error(self) -> ConflictError:
        return ConflictError(
            f"Another machine or home has just resumed the run {self._run!r}. See its state: scanflow show "
            f"{self._run}. To watch it from here: scanflow resume {self._run}"
        )

    def check_begun(self, begun: RunHeader) -> None:
        """Check that the drive that this home began, and whose Workflow or job was just made, is to go on.

        Raises:
            StopRequestedError: the run was asked to stop meanwhile.
            ConflictError: another home has begun a drive meanwhile.
        """
        current = self._cluster.get("ConfigMap", self._name, self._namespace, metadata_only=True)
        if current is None:
            return  # deleted with the environment, which ends the Workflow or job, too
        header = RunHeader.read(current)
        if header.driver != begun.driver:
            raise self._build_conflict_error()
        if header.stop_request != begun.stop_request:
            raise StopRequestedError(f"The run {self._run!r} was asked to stop.")

    def request_stop(self) -> RunHeader | None:
        """Ask whoever begins a drive to stop the run; return what the ConfigMap says then. None: there is none."""
        request = f"{time.time():.3f}-{secrets.token_hex(4)}"
        patch = {"metadata": {"annotations": {pod_layout.STOP_REQUEST: request}}}
        try:
            return RunHeader.read(self._cluster.patch("ConfigMap", self._name, self._namespace, patch))
        except NotFoundError:
            return None

    def record_end(self, progress: RecordedProgress, *, driven: bool) -> None:
        """Write the end of a run into its ConfigMap, where it can be written. ``driven``: this home drove the run; else
        what another one wrote meanwhile is kept."""
        record = CopiedRecord.read(self._home)
        if record is None or record.drive != progress.drive:
            return
        metadata = {"annotations": {pod_layout.ENDED: str(progress.drive)}}
        precondition = {} if driven else {"resourceVersion": record.version}
        with suppress(ScanflowError):  # missing rights; or the cluster is away
            for version in (progress, progress.model_copy(update={"tasks": None, "files": {}})):
                patch = {"metadata": {**metadata, **precondition}, "binaryData": {pod_layout.PROGRESS: version.pack()}}
                try:
                    written = self._cluster.patch("ConfigMap", self._name, self._namespace, patch)
                except (InvalidError, UnavailableError):  # it may be too large with its tasks
                    continue
                if (header := RunHeader.read(written)).drive == progress.drive:  # else another home has gone on
                    CopiedRecord.write(self._home, header)
                return
