"""Where the outputs of a run's tasks are from one pod to the next, as the program in a pod sees it.

A claim is mounted by all pods, so that nothing has to be done. A store is not: what a task may read is fetched before
it, and what it left is kept after it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from scanflow.backends.kubernetes.batch.folders import begin_attempt
from scanflow.backends.step_files import list_step_files
from scanflow.names import StepName

if TYPE_CHECKING:
    from scanflow.backends.kubernetes.batch.task_archives import Snapshot


class ClaimStorage:
    """Outputs on a claim that all pods mount; the base of other storages, which override what they have to do."""

    keeps_all: bool = True
    """Whether the files of a task that failed are kept, too."""

    def __init__(self, outputs: Path) -> None:
        self._outputs = outputs

    def link(self, base: Path, step: str, origin: Path) -> None:
        """Let a step's folder be that of a past run."""
        try:
            (base / step).symlink_to(origin / step, target_is_directory=True)
        except FileExistsError:
            pass

    def fetch(self, run: str, steps: Sequence[str], *, outputs_only: bool = False) -> None:
        """Bring what ended tasks of steps left; ``outputs_only``: their named outputs alone."""

    def check(self, run: str, tasks: Iterable[StepName]) -> None:
        """Raise for tasks that ended and whose outputs are not there.

        Raises:
            NotFoundError: somebody removed them.
        """

    def begin_attempt(self, logs: Path, drive: int) -> bool:
        """See :func:`~scanflow.backends.kubernetes.batch.folders.begin_attempt`."""
        return begin_attempt(logs, drive)

    def begin_task(self, run: str, task: StepName, folder: Path, *, again: bool) -> Snapshot | None:  # noqa: ARG002
        """Forget what an earlier attempt left in its own folder; return what tells later what this one changed.

        ``again``: whether there was an earlier attempt, whose changes elsewhere this one sees.
        """
        return None

    def keep_task(self, run: str, task: StepName, folder: Path, before: Snapshot | None) -> None:
        """Keep what a task left, for other pods."""

    def keep_attempt(self, run: str, task: StepName, folder: Path, before: Snapshot | None) -> None:
        """Keep what a failed attempt changed outside of its folder, for the next one."""

    def keep_logs(self, logs: Path) -> None:
        """Keep the logs of an attempt."""

    def fetch_cached(self, cached: Path) -> None:
        """Bring the cached outputs of that name, if there are any."""

    def keep_cached(self, cached: Path, run: str) -> str | None:  # noqa: ARG002
        """Keep cached outputs for other runs; return why they cannot be, for people."""
        return None

    def list_files(self, run: str, task: StepName) -> list[tuple[str, int]]:
        """Return the names and bytes of the files that a task left."""
        step, _, index = task.partition(".")
        folder = self._outputs / run / step / index
        return [(file.name, file.size_bytes) for file in list_step_files(task, folder)]
