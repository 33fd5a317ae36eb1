"""The logs of a run's tasks, as the command ``logs`` and ``client.logs`` show them."""

from __future__ import annotations

from collections.abc import Collection, Iterator

from scanflow.backends.log_reader import Stream
from scanflow.backends.rank_files import RANKS
from scanflow.backends.run_records import RunRecord
from scanflow.deployer import Deployer, TaskLog
from scanflow.errors import NotFoundError


def select_logged_tasks(record: RunRecord, task: str | None) -> list[str]:
    """Return the tasks whose logs are those of a task, of a step (all items of a fan-out), or of the whole run.

    Raises:
        NotFoundError: no step of the run has started.
    """
    logged = [entry for entry in record.tasks if entry.attempts]
    if task is not None:
        own = [str(entry.task) for entry in logged if task in {entry.task, entry.step}]
        return [task] if task in own or not own else own
    if not logged:
        raise NotFoundError(f"No step of the run {record.name!r} has started. See: scanflow show {record.name}")
    return [str(entry.task) for entry in logged]


def describe_earlier_attempt(record: RunRecord, tasks: Collection[str]) -> str | None:
    """Return the command that prints the attempt before the last one, if there was one. Ranks have the last one's logs
    only."""
    repeated = [task for task in record.tasks if task.task in tasks and task.attempts > 1 and task.step != RANKS]
    if not repeated:
        return None
    first, names = repeated[0], ", ".join(task.task for task in repeated)
    command = f"scanflow logs {record.name} {first.task} --attempt {first.attempts - 1}"
    return f"Shown is the last attempt of {names}. The one before: {command}"


def iterate_task_blocks(
    deployer: Deployer, run: str, task: str, *, stream: Stream, attempt: int | None = None, follow: bool = False
) -> Iterator[bytes]:
    """Yield the log of one task, stdout and stderr interleaved with ``stream="both"``."""
    return (part.data for part in deployer.logs(TaskLog(run, task, stream, attempt), follow=follow))


def format_heading(task: str) -> str:
    """Return the line above the log of a task, where there are several."""
    return f"── {task}"
