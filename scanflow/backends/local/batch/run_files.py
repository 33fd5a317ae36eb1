"""What a run's folder says of it, and the journal made again of the runs' folders.

``run.json`` is written when a run is entered and when a drive of it begins and ends. In between, the exits of its
attempts say what has finished (see ``shim.py``).
"""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator
from contextlib import closing, suppress
from pathlib import Path

from pydantic import BaseModel, ConfigDict, ValidationError

from scanflow.backends.journal import DamagedJournalError, Journal
from scanflow.backends.local.batch.outcomes import build_task_record
from scanflow.backends.local.layout import Home, RunFolder
from scanflow.backends.run_records import RunRecord, TaskRecord
from scanflow.backends.tasks import split_task
from scanflow.errors import UnavailableError
from scanflow.names import StepName
from scanflow.processes.shared_files import hold_lock, write_atomically
from scanflow.processes.shims import read_exit

__all__ = ["build_rebuilt_error", "open_journal", "write_run_file"]

_log = logging.getLogger(__name__)
_NAME = "run.json"
_VERSION = 1

MAX_CHECKED_BYTES = 16 * 2**20
"""Some 40 ms."""


class RunFile(BaseModel):
    model_config = ConfigDict(frozen=True)

    version: int = _VERSION
    record: RunRecord
    definition: str
    """See :class:`~scanflow.backends.definition.SavedDefinition`."""


def write_run_file(journal: Journal, name: str) -> None:
    """Write what the journal knows of a run into its folder."""
    run = journal.run(name)
    record = run.record.model_copy(update={"tasks": tuple(journal.read_tasks(run).values())})
    content = RunFile(record=record, definition=run.definition).model_dump_json(exclude={"record": {"folder"}})
    write_atomically(Path(record.folder) / _NAME, content.encode())


def open_journal(home: Home, *, check: bool = False) -> Journal:
    """Open the journal of a home; one that is gone, emptied or damaged is made again of the runs' folders first.

    ``check``: look at all of its pages, unless there are more than ``MAX_CHECKED_BYTES``; those are looked at as they
    are read.
    """
    try:
        size = home.journal.stat().st_size
    except FileNotFoundError:
        size = 0
    if not size and any(_list_run_files(home)):
        return rebuild_journal(home)
    try:
        journal = Journal(home.journal)
    except DamagedJournalError:
        return rebuild_journal(home)
    if check and size <= MAX_CHECKED_BYTES:
        try:
            journal.check()
        except DamagedJournalError:
            journal.close()
            return rebuild_journal(home)
    return journal


def rebuild_journal(home: Home) -> Journal:
    """Replace a damaged journal by one made of the runs' folders; the damaged file is kept beside it.

    Nothing happens if it turns out to be good: another process may have replaced it.
    """
    path = home.journal
    with hold_lock(path.with_name(f"{path.name}.lock")):
        with suppress(DamagedJournalError):
            if path.exists() and path.stat().st_size:
                journal = Journal(path)
                try:
                    journal.check()
                except BaseException:
                    journal.close()
                    raise
                return journal
        draft = path.with_name(f"{path.name}.new")
        _remove(draft)
        try:
            with closing(Journal(draft)) as journal:
                by_age = sorted(
                    (saved.record.created, file) for file in _list_run_files(home) if (saved := _read(file))
                )
                count = sum(_insert_run(journal, file) for _, file in by_age)
        except BaseException:
            _remove(draft)
            raise
        kept = path.with_name(f"{path.name}.damaged-{time.strftime('%Y%m%dT%H%M%S')}")
        is_kept = path.exists() and path.stat().st_size > 0
        for file, target in zip(_list_files(path), _list_files(kept), strict=True):
            if file.exists():
                file.rename(target)
        draft.rename(path)
    _log.warning(
        "The journal %s was %s: it was made again of the folders of %d runs, without the step cache.%s",
        path,
        "damaged" if is_kept else "missing",
        count,
        f" What it was is kept as {kept.name}." if is_kept else "",
    )
    return Journal(path)


def _list_files(path: Path) -> list[Path]:
    """Return the files of a database: its own, and those that SQLite puts beside it."""
    return [path.with_name(f"{path.name}{ending}") for ending in ("", "-wal", "-shm")]


def _remove(path: Path) -> None:
    for file in _list_files(path):
        file.unlink(missing_ok=True)


def _list_run_files(home: Home) -> Iterator[Path]:
    return home.path.glob(f"environments/*/runs/*/{_NAME}")


def _read(file: Path) -> RunFile | None:
    try:
        saved = RunFile.model_validate_json(file.read_bytes())
    except (OSError, ValidationError) as error:
        _log.warning("The run of %s cannot be read: %s", file.parent, str(error).partition("\n")[0])
        return None
    return saved


def _insert_run(journal: Journal, file: Path) -> bool:
    if (saved := _read(file)) is None:
        return False
    folder = RunFolder(file.parent)
    tasks = {task.task: task for task in saved.record.tasks}
    tasks |= {task.task: task for task in _read_attempts(folder) if _is_newer(task, tasks.get(task.task))}
    record = saved.record.model_copy(update={"tasks": tuple(tasks.values())})
    return journal.insert_run(record, saved.definition, parent=file.parent.parent)


def _is_newer(task: TaskRecord, known: TaskRecord | None) -> bool:
    return known is None or task.attempts > known.attempts or known.state == "running"


def _read_attempts(folder: RunFolder) -> Iterator[TaskRecord]:
    """Yield the tasks that were begun, as their last attempts say."""
    for place in sorted(path for path in (folder.path / "steps").glob("*") if path.is_dir()):
        numbers = [int(path.name) for path in place.iterdir() if path.name.isdecimal()]
        if not numbers:
            continue
        task, attempts = StepName(place.name), max(numbers)
        step, exit_ = split_task(task)[0], read_exit(place / str(attempts))
        has_finished = folder.has_outputs_list(task) and folder.has_outputs(task)
        if exit_ is None or not exit_.succeeded or not has_finished:
            # Whether it runs, ended or never began: who resumes the run finds out, and runs it again if need be.
            yield TaskRecord(task=task, step=step, state="running", attempts=attempts)
        else:
            yield build_task_record(step, task, None, attempts=attempts, exit_=exit_)


def build_rebuilt_error(home: Home, journal: Journal) -> UnavailableError | None:
    """Make a journal again that turned out to be damaged while it was used; None: it is not damaged."""
    try:
        journal.check()
    except DamagedJournalError:
        journal.close()
        rebuild_journal(home).close()
        return UnavailableError(
            f"The journal {str(home.journal)!r} was damaged, and was made again of the runs' folders. Try again."
        )
    return None
