"""The step cache as one run uses it: outputs of earlier runs that its tasks reuse, and its own, for later ones."""

from __future__ import annotations

from pathlib import Path

from scanflow.app.executor import Executor
from scanflow.backends.journal import CachedOutputs, Journal
from scanflow.backends.local.batch.step_keys import StepKeys
from scanflow.backends.local.layout import RunFolder
from scanflow.backends.run_records import RunRecord
from scanflow.backends.step_cache import (
    CacheKey,
    UnknownContentError,
    copy_outputs,
    describe_changed_file,
    describe_changes,
    describe_unknown,
)
from scanflow.backends.task_parameters import Resolved
from scanflow.files.private import create_private_folder
from scanflow.names import RunName, StepName


class TaskCache:
    """Reuses and keeps the outputs of the tasks of steps that are cached. Not thread-safe."""

    def __init__(self, journal: Journal, run: RunRecord, keys: StepKeys) -> None:
        self._journal, self._run, self._keys, self._folder = journal, run, keys, RunFolder(Path(run.folder))
        self._parts: dict[str, list[dict[str, str]]] = {}
        self._task_keys: dict[StepName, CacheKey] = {}
        self._notes: dict[StepName, str | None] = {}

    def find_note(self, task: StepName) -> str | None:
        """Return why a task ran, or was not kept; None: there is nothing to say of it."""
        return self._notes.get(task)

    def reuse(self, node: Executor, task: StepName, parameters: Resolved) -> RunName | None:
        """Copy the outputs that an earlier task of the same key left; return its run. None: the task has to run."""
        self._task_keys.pop(task, None)
        try:
            key = self._task_keys[task] = self._keys.compute(node, parameters)
        except UnknownContentError as error:
            self._notes[task] = describe_unknown(error)
            return None
        if node.refresh_cache:
            return None
        cached = self._journal.find_cached_outputs(key.text)
        if cached is None:
            self._notes[task] = self._explain_miss(key, node.name)
            return None
        if not self._keys.cache_keys.is_unchanged(cached.folder, cached.digest):
            self._notes[task] = f"not reused: its outputs in the run {cached.run} were changed or deleted"
            return None
        target = self._folder.get_outputs_folder(task)
        create_private_folder(target.parent)
        try:
            copy_outputs(cached.folder, target)
        except OSError:  # a pipe among them, or a full disk: running the step shows the problem
            return None
        return cached.run

    def keep(self, node: Executor, task: StepName) -> None:
        """Record what a task that succeeded left, for later runs, unless it is not known what that depends on."""
        if (key := self._task_keys.get(task)) is None:
            return
        cache_keys, folder = self._keys.cache_keys, self._folder.get_outputs_folder(task)
        if (changed := cache_keys.find_changed_file(key)) is not None:
            self._notes[task] = describe_changed_file(changed)
            return
        try:
            outputs = CachedOutputs(self._run.name, folder, cache_keys.digest_outputs(folder))
        except UnknownContentError as error:
            self._notes[task] = describe_unknown(error)
            return
        self._journal.remember(key.text, outputs, step=self._identify(node.name), parts=key.parts)

    def _explain_miss(self, key: CacheKey, step: str) -> str | None:
        if step not in self._parts:
            self._parts[step] = self._journal.read_cached_parts(self._identify(step), except_run=self._run.name)
        return describe_changes(key.parts, self._parts[step])

    def _identify(self, step: str) -> str:
        """Return what a step is called among those of all applications."""
        return f"{self._run.app}/{self._run.team}/{self._run.workflow}/{step}"
