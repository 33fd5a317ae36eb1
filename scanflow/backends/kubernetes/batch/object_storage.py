"""Outputs of a run's tasks in an object store: fetched into a pod's own folder before a task, and kept after it.

Below the address of an environment:

- ``<run>/<task>.tar``: the archive of an ended task
- ``<run>/<task>.tried``: what a failed attempt changed outside of its folder
- ``<run>/<step>.link``: the past run that a spin takes a step's outputs from
- ``.cache/<key>.tar``: cached outputs
- ``.logs/<run>/<task>/<attempt>/...``: logs, and the marks of attempts that have begun
"""

from __future__ import annotations

import shutil
from collections import defaultdict
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path, PurePosixPath
from typing import Final, Self

from scanflow.backends.kubernetes.batch import pod_layout
from scanflow.backends.kubernetes.batch.folders import Folders
from scanflow.backends.kubernetes.batch.object_store import ObjectInfo, ObjectStore
from scanflow.backends.kubernetes.batch.storage import ClaimStorage
from scanflow.backends.kubernetes.batch.task_archives import (
    Snapshot,
    compare_snapshot,
    measure_size,
    mentions,
    read_index,
    take_snapshot,
    unpack_archive,
    write_archive,
)
from scanflow.backends.tasks import split_task
from scanflow.errors import NotFoundError
from scanflow.files.private import write_private
from scanflow.names import StepName

_ARCHIVE: Final = ".tar"
_LINK: Final = ".link"
_TRIED: Final = ".tried"
_MAX_CONCURRENT: Final = 8


class ObjectStorage(ClaimStorage):
    """Outputs in an object store."""

    keeps_all = False

    def __init__(self, store: ObjectStore, outputs: Path) -> None:
        super().__init__(outputs)
        self._store = store
        self._fetched: set[tuple[str, StepName]] = set()
        """The tasks whose outputs are here: fetched, or this pod's own."""

    @classmethod
    def open(cls, folders: Folders) -> Self:
        """Return the outputs of an environment, as its pods have them.

        Raises:
            MissingExtraError: the pod's image cannot reach a store.
        """
        return cls(open_store(folders), folders.outputs)

    # Before a task

    def link(self, base: Path, step: str, origin: Path) -> None:
        super().link(base, step, origin)
        self._store.write(f"{base.name}/{step}{_LINK}", origin.name.encode())

    def fetch(self, run: str, steps: Sequence[str], *, outputs_only: bool = False) -> None:
        if not steps:
            return
        wanted, archives, origins = set(steps), list[ObjectInfo](), defaultdict[str, list[str]](list)
        for entry in self._store.list_objects(run):
            name = PurePosixPath(entry.name).name
            if name.endswith(_LINK) and (step := name.removesuffix(_LINK)) in wanted:
                origins[self._store.read(entry.name).decode()].append(step)
            elif name.endswith(_ARCHIVE) and split_task(name.removesuffix(_ARCHIVE))[0] in wanted:
                archives.append(entry)
        archives = [entry for entry in archives if (run, _parse_task(entry.name)) not in self._fetched]
        with ThreadPoolExecutor(_MAX_CONCURRENT) as threads:
            done = threads.map(lambda entry: self._unpack(run, entry, outputs_only=outputs_only), archives)
            waiting = [entry for entry, is_done in zip(archives, done, strict=True) if not is_done]
        for entry in sorted(waiting, key=lambda entry: entry.modified):  # they changed what others had left
            self._unpack(run, entry, outputs_only=outputs_only, in_order=True)
        self._fetched |= {(run, _parse_task(entry.name)) for entry in archives}
        for origin, linked in origins.items():
            self.fetch(origin, linked, outputs_only=outputs_only)
            base = pod_layout.locate_run_outputs(self._outputs, run)
            base.mkdir(parents=True, exist_ok=True)
            for step in linked:
                super().link(base, step, pod_layout.locate_run_outputs(self._outputs, origin))
            self._fetched |= {(run, task) for fetched_run, task in self._fetched if fetched_run == origin}

    def _unpack(self, run: str, entry: ObjectInfo, *, outputs_only: bool, in_order: bool = False) -> bool:
        """Unpack an archive, and return whether that is done: one that changes others' files waits for them."""
        base = pod_layout.locate_run_outputs(self._outputs, run)
        base.mkdir(parents=True, exist_ok=True)
        can_wait = not outputs_only and not in_order
        with self._store.open_reader(entry.name) as stream:
            index = unpack_archive(stream, base, outputs_only=outputs_only, unless_others=can_wait)
        return not (can_wait and index.changes_others)

    def check(self, run: str, tasks: Iterable[StepName]) -> None:
        missing = [task for task in tasks if (run, task) not in self._fetched]
        if missing:
            raise NotFoundError(
                f"The outputs of {', '.join(missing[:5])} in the run {run!r} are no longer in {self._store.address}: "
                f"somebody, or a rule of the bucket, deleted them. Run its steps again: scanflow resume {run}"
            )

    def begin_attempt(self, logs: Path, drive: int) -> bool:
        logs.mkdir(parents=True, exist_ok=True)
        return self._store.create(f"{self._locate(logs)}/begun-{drive}")

    def begin_task(self, run: str, task: StepName, folder: Path, *, again: bool) -> Snapshot:
        self._store.delete(_format_archive(run, task))
        self._fetched.add((run, task))
        base = pod_layout.locate_run_outputs(self._outputs, run)
        before = take_snapshot(base, folder)
        if again:
            with suppress(NotFoundError), self._store.open_reader(f"{run}/{task}{_TRIED}") as stream:
                unpack_archive(stream, base)
        return before

    # After a task

    def keep_task(self, run: str, task: StepName, folder: Path, before: Snapshot | None) -> None:
        base = pod_layout.locate_run_outputs(self._outputs, run)
        with self._store.open_writer(_format_archive(run, task), measure_size([folder])) as stream:
            write_archive(stream, base, folder, None if before is None else compare_snapshot(base, folder, before))
        self._fetched.add((run, task))

    def keep_attempt(self, run: str, task: StepName, folder: Path, before: Snapshot | None) -> None:
        base = pod_layout.locate_run_outputs(self._outputs, run)
        changes = compare_snapshot(base, folder, before or {})
        if changes.changed or changes.deleted:
            with self._store.open_writer(f"{run}/{task}{_TRIED}", measure_size([base])) as stream:
                write_archive(stream, base, None, changes)

    def keep_logs(self, logs: Path) -> None:
        for file in sorted(logs.iterdir()):
            self._store.write(f"{self._locate(logs)}/{file.name}", file)

    def _locate(self, path: Path) -> str:
        return path.relative_to(self._outputs).as_posix()

    # The step cache

    def fetch_cached(self, cached: Path) -> None:
        shutil.rmtree(cached, ignore_errors=True)
        try:
            with self._store.open_reader(f"{self._locate(cached)}{_ARCHIVE}") as stream:
                cached.parent.mkdir(parents=True, exist_ok=True)
                index = unpack_archive(stream, cached.parent)
        except NotFoundError:
            return
        write_private(cached.with_suffix(".run"), index.origin)

    def keep_cached(self, cached: Path, run: str) -> str | None:
        if mentions(cached, run):
            return (
                "not cached: what it left names the folder of its run, which a later run in an object store has not. "
                "Return a Path in the step's own output folder rather than its text, or no path of another step"
            )
        if cached.is_dir():
            with self._store.open_writer(f"{self._locate(cached)}{_ARCHIVE}", measure_size([cached])) as stream:
                write_archive(stream, cached.parent, cached, origin=run)
        return None

    # For readers outside of a step

    def fetch_folders(self, folders: Iterable[PurePosixPath]) -> None:
        """Bring folders of logs and of tasks' named outputs, whose paths are as on a claim."""
        steps = defaultdict[str, dict[str, None]](dict)
        for folder in folders:
            if folder.parts[0] == pod_layout.LOGS:
                for entry in self._store.list_objects(folder.as_posix()):
                    file = self._outputs / entry.name
                    file.parent.mkdir(parents=True, exist_ok=True)
                    file.write_bytes(self._store.read(entry.name))
            else:
                steps[folder.parts[0]][folder.parts[1]] = None
        for run, names in steps.items():
            self.fetch(run, list(names), outputs_only=True)

    def list_files(self, run: str, task: StepName) -> list[tuple[str, int]]:
        """Return the names and bytes of the files that a task left; none where it has not ended well."""
        origin = self._read_link(run, split_task(task)[0])
        if origin is not None:
            return self.list_files(origin, task)
        try:
            with self._store.open_reader(_format_archive(run, task)) as stream:
                return list(read_index(stream).files)
        except NotFoundError:
            return []

    def list_tasks(self, run: str) -> list[StepName]:
        """Return the tasks of a run whose outputs are there."""
        tasks = []
        for entry in self._store.list_objects(run):
            if entry.name.endswith(_LINK):
                step = PurePosixPath(entry.name).name.removesuffix(_LINK)
                origin = self._store.read(entry.name).decode()
                tasks += [task for task in self.list_tasks(origin) if split_task(task)[0] == step]
            elif entry.name.endswith(_ARCHIVE):
                tasks.append(_parse_task(entry.name))
        return tasks

    def _read_link(self, run: str, step: str) -> str | None:
        try:
            return self._store.read(f"{run}/{step}{_LINK}").decode()
        except NotFoundError:
            return None


def open_store(folders: Folders) -> ObjectStore:
    """Return the store of a pod: reached with its Secret or, where it has none, with the pod's own rights.

    Raises:
        MissingExtraError: the pod's image cannot reach a store.
    """
    variables = None
    if folders.store_secret.is_dir():
        files = [file for file in folders.store_secret.iterdir() if file.is_file()]
        variables = {file.name: file.read_text(encoding="utf-8").strip() for file in files}
    return ObjectStore.open(folders.store, variables)


def _format_archive(run: str, task: StepName) -> str:
    return f"{run}/{task}{_ARCHIVE}"


def _parse_task(name: str) -> StepName:
    return StepName(PurePosixPath(name).name.removesuffix(_ARCHIVE))
